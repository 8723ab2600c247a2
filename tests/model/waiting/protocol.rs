//! The queue as a transition system: its bounds, its rules, and what may happen next.

use stateright::Model;

use super::state::{
    CLIENTS, Client, NO_OWNER, Phase, Reply, Request, STRANGER, State, Timer, Vote, number,
};

pub const NODES: usize = 3;

/// The bounds within which every schedule is tried.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// 1 or 3.
    pub nodes: usize,
    pub clients: usize,
    /// How many of the clients, the last ones, queue up at the second node: they disagree with the
    /// others.
    pub elsewhere: usize,
    /// How many of the clients, the first ones, know of no queue, and try again and again.
    pub foreign: usize,
    /// How many times each wants the lock.
    pub turns: u8,
    /// What may befall clients, and how many of them.
    pub fault: Fault,
    pub faults: u8,
    /// How many nodes may be given a key that no client has set.
    pub strangers: u8,
    pub slow_timer: SlowTimer,
    /// A client does nothing while more requests than that are on their way to one node. Without
    /// it, a node that executes nothing would make the model infinite.
    pub backlog: usize,
    pub mistake: Option<Mistake>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its process ends. The nodes learn of it late, and of what it sent they may execute a part.
    Crash,
    /// It does nothing any more; its connections stay. What it sent is executed.
    Pause,
    /// Its patience ends while it waits.
    GiveUp,
    /// A node drops what it tracks for a client, as a full table does.
    Untrack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowTimer {
    Off,
    On,
}

/// A rule that is broken, so that the search has something to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// What PTTL answers is not looked at (W8).
    PttlUnread,
    /// Who was refused does not watch (W11).
    NoWatchAfterRefusal,
    /// Who queues up does not look whether the key is there (W5).
    KeyUnreadInQueue,
    /// Who queues up waits to be told, whatever the answer says (W5).
    PositionUnread,
    /// At the second place, an invalidation is ignored (W8).
    InvalidationIgnoredNext,
    /// The scripts tell the first and never the next (W6).
    NextUntold,
    /// Only one node is watched (W9).
    OneWatched,
    /// Who hands on says go only if its key was there (W7).
    GoOnlyIfDeleted,
    /// The scripts keep who is not connected.
    DeadKept,
    /// Who overtook does not step in front (W11).
    BehindWhoSlept,
    /// Who gives up leaves its position behind (W12).
    PositionLeftBehind,
    /// Who gives up at the front tells nobody (W12).
    SilentStepOut,
    /// A `g` for nobody is not passed on (W6).
    GoSwallowed,
    /// A `g` is taken for the lock itself: nobody votes (W6).
    GoIsGrant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Start(usize),
    /// Whose last release told it of a crowd queues up first (W7).
    StartInQueue(usize),
    /// A node executes the first of what a client sent; a client reads the first of what a node
    /// sent.
    Execute(usize, usize),
    Read(usize, usize),
    Fire(usize),
    FireSlow(usize),
    Release(usize),
    GiveUp(usize),
    Crash(usize),
    Pause(usize),
    /// A node learns that a client's process has ended. What it has not executed is lost.
    Close(usize, usize),
    /// The key of a client that is dead or paused, or of a poller, expires.
    Expire(usize),
    Stranger(usize),
    /// A node forgets silently that it should tell a client.
    Untrack(usize, usize),
}

impl Model for Crowd {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State::EMPTY;
        state.clients[..self.clients].fill(Client { left: self.turns - 1, ..Client::IDLE });
        for client in &mut state.clients[..self.foreign] {
            client.is_foreign = true;
        }
        for client in &mut state.clients[self.clients - self.elsewhere..self.clients] {
            client.queue_node = 1;
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for c in 0..self.clients {
            for n in 0..self.nodes {
                if !state.clients[c].links[n].requests.is_empty() {
                    actions.push(Action::Execute(n, c));
                }
            }
            if self.may_act(&state.clients[c]) {
                self.client_actions(state, c, actions);
            }
            self.fault_actions(state, c, actions);
        }
        for n in 0..self.nodes {
            if self.may_expire(state, n) {
                actions.push(Action::Expire(n));
            }
            if state.owners[n] == NO_OWNER && state.strangers < self.strangers {
                actions.push(Action::Stranger(n));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Start(c) => self.start(&mut state, c),
            Action::StartInQueue(c) => self.start_in_queue(&mut state, c),
            Action::Execute(n, c) => self.execute(&mut state, n, c),
            Action::Read(n, c) => self.read(&mut state, n, c),
            Action::Fire(c) => self.fire(&mut state, c),
            Action::FireSlow(c) => self.fire_slow(&mut state, c),
            Action::Release(c) => self.release(&mut state, c),
            Action::GiveUp(c) => self.give_up(&mut state, c),
            Action::Crash(c) => self.end(&mut state, c, Phase::Crashed),
            Action::Pause(c) => self.end(&mut state, c, Phase::Paused),
            Action::Untrack(n, c) => {
                state.faults += 1;
                state.clients[c].links[n].is_tracked = false;
            }
            Action::Close(n, c) => self.close(&mut state, n, c),
            Action::Expire(n) => self.set_owner(&mut state, n, NO_OWNER),
            Action::Stranger(n) => {
                state.strangers += 1;
                self.set_owner(&mut state, n, STRANGER);
            }
        }
        Some(self.canonical(state))
    }
}

/// What may happen.
impl Crowd {
    pub fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    pub fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn may_act(&self, client: &Client) -> bool {
        client.is_alive() && client.links.iter().all(|link| link.requests.len() <= self.backlog)
    }

    fn client_actions(&self, state: &State, c: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[c];
        let readable = |n: &usize| !client.links[*n].replies.is_empty();
        actions.extend((0..self.nodes).filter(readable).map(|n| Action::Read(n, c)));
        let may_give_up = self.fault == Fault::GiveUp && state.faults < self.faults;
        match client.phase {
            Phase::Idle => {
                actions.push(Action::Start(c));
                if client.stands {
                    actions.push(Action::StartInQueue(c));
                }
            }
            Phase::Held => actions.push(Action::Release(c)),
            Phase::Trying if may_give_up => actions.push(Action::GiveUp(c)),
            Phase::Queued => {
                if !matches!(client.timer, Timer::None | Timer::LooksAgain(_)) {
                    actions.push(Action::Fire(c));
                }
                // The other timers are much shorter.
                let is_idle = client.timer == Timer::None && !client.is_asking;
                if self.slow_timer == SlowTimer::On && is_idle {
                    actions.push(Action::FireSlow(c));
                }
                if may_give_up {
                    actions.push(Action::GiveUp(c));
                }
            }
            Phase::Trying | Phase::Done | Phase::Crashed | Phase::Paused => {}
        }
    }

    fn fault_actions(&self, state: &State, c: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[c];
        let is_sending = client.links.iter().any(|link| !link.requests.is_empty());
        // Who has not begun, or is through, and dies or stops, disturbs nobody.
        let matters = match client.phase {
            Phase::Trying | Phase::Queued | Phase::Held => true,
            Phase::Idle | Phase::Done => is_sending,
            Phase::Crashed | Phase::Paused => false,
        };
        if self.fault == Fault::Untrack && state.faults < self.faults {
            let tracked = (0..self.nodes).filter(|n| client.links[*n].is_tracked);
            actions.extend(tracked.map(|n| Action::Untrack(n, c)));
        }
        if matters && state.faults < self.faults {
            match self.fault {
                Fault::Crash => actions.push(Action::Crash(c)),
                Fault::Pause => actions.push(Action::Pause(c)),
                Fault::GiveUp | Fault::Untrack => {}
            }
        }
        if client.phase == Phase::Crashed {
            // Elsewhere it is of interest only if something is lost.
            let closes = |n: &usize| {
                let link = &client.links[*n];
                !link.is_closed && (*n == client.queue_node || !link.requests.is_empty())
            };
            actions.extend((0..self.nodes).filter(closes).map(|n| Action::Close(n, c)));
        }
    }

    /// A client that lives releases its lock in time.
    fn may_expire(&self, state: &State, n: usize) -> bool {
        let is_dead = |c: usize| !state.clients[c].is_alive();
        let owner = state.owners[n];
        owner == STRANGER || (0..self.clients).any(|c| owner == number(c) && is_dead(c))
    }
}

/// What the search asks.
impl Crowd {
    /// Whether the step may be relied on: faults may stay away, and a key that expires may take so
    /// long that it is no way out, unless there is no quorum without it.
    pub fn is_progress(&self, state: &State, action: &Action) -> bool {
        match action {
            Action::Crash(_) | Action::Pause(_) | Action::GiveUp(_) => false,
            Action::Stranger(_) | Action::Untrack(..) => false,
            Action::Expire(_) => {
                let expiring = (0..self.nodes).filter(|n| self.may_expire(state, *n)).count();
                self.nodes - expiring < self.quorum()
            }
            _ => true,
        }
    }

    /// Everybody who can has had the lock, or has given up.
    pub fn is_end(&self, state: &State) -> bool {
        state.clients.iter().all(|it| it.phase == Phase::Done || !it.is_alive())
    }

    pub fn is_exclusive(&self, state: &State) -> bool {
        state.clients.iter().filter(|client| client.phase == Phase::Held).count() <= 1
    }

    /// Nothing is on its way any more, and a key or a position is left of a client that was
    /// through.
    pub fn has_left_something(&self, state: &State) -> bool {
        let mut links = state.clients.iter().flat_map(|client| &client.links);
        let is_quiet =
            self.is_end(state) && links.all(|it| it.requests.is_empty() && it.replies.is_empty());
        let is_left = |c: usize| {
            let is_owner = state.owners.contains(&number(c));
            state.clients[c].is_alive() && (is_owner || state.stands(c))
        };
        is_quiet && (0..self.clients).any(is_left)
    }

    /// Clients are alike: they are put in the order of all that concerns them.
    fn canonical(&self, state: State) -> State {
        let mut order = [0, 1, 2, 3];
        let concerns = |c: &usize| {
            let owns = state.owners.map(|owner| owner == number(*c));
            let client = &state.clients[*c];
            (*client, state.position_of(client.queue_node, *c), owns)
        };
        order[..self.clients].sort_by_key(concerns);
        let mut numbers = [0, 0, 0, 0, 0, STRANGER];
        let mut clients = state.clients;
        for (c, old) in order.into_iter().enumerate() {
            clients[c] = state.clients[old];
            numbers[usize::from(number(old))] = number(c);
        }
        let renamed = |it: u8| numbers[usize::from(it)];
        State {
            clients,
            owners: state.owners.map(renamed),
            queues: state.queues.map(|queue| queue.map(renamed)),
            ..state
        }
    }
}

/// What tests want to have seen.
impl State {
    pub fn is_overtaken(&self) -> bool {
        let is_next = |it: &Option<Request>| *it == Some(Request::StepInFront);
        let mut first =
            self.clients.iter().map(|it| it.links[it.queue_node].requests.first_request());
        first.any(|it| is_next(&it))
    }

    pub fn is_split(&self) -> bool {
        let votes = |it: &&Client| it.phase == Phase::Trying && it.count(Vote::Granted) > 0;
        self.clients.iter().filter(votes).count() > 1
    }

    pub fn is_dead_in_queue(&self) -> bool {
        (0..CLIENTS).any(|c| !self.clients[c].is_alive() && self.stands(c))
    }

    pub fn is_doubted(&self) -> bool {
        self.clients.iter().any(|it| it.doubts)
    }

    /// A client reads next that it may go, and somebody has the lock.
    pub fn is_told_in_vain(&self) -> bool {
        let is_held = self.clients.iter().any(|it| it.phase == Phase::Held);
        let is_told = |it: &Client| {
            it.phase == Phase::Queued
                && it.links[it.queue_node].replies.first_reply() == Some(Reply::Go)
        };
        is_held && self.clients.iter().any(is_told)
    }
}
