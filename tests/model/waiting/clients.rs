//! What clients do.

use super::protocol::{Crowd, Mistake};
use super::state::{Client, Phase, Placed, Reply, Request, State, Timer, Vote, Watch};

/// Acquisition and release.
impl Crowd {
    pub fn start(&self, state: &mut State, c: usize) {
        state.clients[c].stands = false;
        self.attempt(state, c);
    }

    pub fn start_in_queue(&self, state: &mut State, c: usize) {
        let client = &mut state.clients[c];
        client.phase = Phase::Queued;
        self.ask_for_position(client);
    }

    /// A round with a fresh token. The watch ends with it: what it might tell is told by the
    /// queue's answer after a refusal.
    pub fn attempt(&self, state: &mut State, c: usize) {
        let client = &mut state.clients[c];
        self.end_watch(client);
        client.phase = Phase::Trying;
        client.timer = Timer::None;
        client.is_caused = false;
        client.votes = [Vote::Pending; _];
        client.refusers = [false; _];
        client.links[..self.nodes].iter_mut().for_each(|link| link.requests.send(Request::Set));
    }

    fn vote(&self, state: &mut State, n: usize, c: usize, vote: Vote) {
        let client = &mut state.clients[c];
        client.votes[n] = vote;
        if client.count(Vote::Granted) >= self.quorum() {
            self.granted(client);
        } else if client.count(Vote::Refused) > self.nodes - self.quorum() {
            self.refused(client);
        }
    }

    fn granted(&self, client: &mut Client) {
        let steps_in = !self.makes(Mistake::BehindWhoSlept);
        if client.stands && client.position != 0 && steps_in {
            client.links[client.queue_node].requests.send(Request::StepInFront);
        }
        self.retire(client, Phase::Held);
    }

    /// It undoes the round and queues up in the same write. The wait may be as short as nothing,
    /// so one that is not needed makes no difference (W11).
    fn refused(&self, client: &mut Client) {
        for n in (0..self.nodes).filter(|n| client.votes[*n] != Vote::Refused) {
            client.links[n].requests.send(Request::Release);
        }
        client.refusers = client.votes.map(|vote| vote == Vote::Refused);
        client.doubts |= client.is_caused;
        client.is_caused = false;
        self.forget_round(client);
        client.phase = Phase::Queued;
        if client.is_foreign {
            client.refusers = [false; _];
            client.doubts = false;
            client.timer = Timer::Retry;
            return;
        }
        self.ask_for_position(client);
        client.timer = Timer::BackOff;
    }

    /// The round is decided. What is left of it is executed, and nobody waits for its replies.
    fn forget_round(&self, client: &mut Client) {
        client.votes = [Vote::Pending; _];
        for link in &mut client.links {
            link.requests.make_stale(Request::Set, Request::StaleSet);
            link.replies.keep_replies(|it| !matches!(it, Reply::Granted | Reply::Refused));
        }
    }

    /// Others first, the queue node last; on connections of their own, they may arrive in any
    /// order.
    pub fn release(&self, state: &mut State, c: usize) {
        let client = &mut state.clients[c];
        let at_queue_node = if client.stands { Request::HandOn } else { Request::Release };
        for n in 0..self.nodes {
            let request = if n == client.queue_node { at_queue_node } else { Request::Release };
            client.links[n].requests.send(request);
        }
        let phase = if client.left > 0 { Phase::Idle } else { Phase::Done };
        client.left = client.left.saturating_sub(1);
        self.retire(client, phase);
    }

    pub fn give_up(&self, state: &mut State, c: usize) {
        state.faults += 1;
        let client = &mut state.clients[c];
        if client.phase == Phase::Trying {
            for n in (0..self.nodes).filter(|n| client.votes[*n] != Vote::Refused) {
                client.links[n].requests.send(Request::Release);
            }
        }
        if client.stands && !self.makes(Mistake::PositionLeftBehind) {
            client.links[client.queue_node].requests.send(Request::StepOut);
        }
        self.retire(client, Phase::Done);
    }

    pub fn end(&self, state: &mut State, c: usize, phase: Phase) {
        state.faults += 1;
        self.retire(&mut state.clients[c], phase);
    }

    /// It waits for nothing. If it lives, it still reads who tells it to go.
    fn retire(&self, client: &mut Client, phase: Phase) {
        self.forget_round(client);
        self.end_watch(client);
        let Client { links, queue_node, is_foreign, left, stands, .. } = *client;
        *client = Client { links, queue_node, is_foreign, ..Client::ended(phase) };
        if matches!(phase, Phase::Held | Phase::Idle) {
            (client.left, client.stands) = (left, stands);
        }
        for link in &mut client.links {
            link.requests.make_stale(Request::QueueUp, Request::StaleQueueUp);
            link.replies.keep_replies(|it| {
                let is_read = matches!(phase, Phase::Held | Phase::Idle | Phase::Done);
                is_read && matches!(it, Reply::Go | Reply::Passed)
            });
        }
    }
}

/// The queue.
impl Crowd {
    /// An earlier answer that is still on its way is older than this one, and does not count.
    fn ask_for_position(&self, client: &mut Client) {
        client.stands = true;
        client.is_asking = true;
        let link = &mut client.links[client.queue_node];
        link.requests.make_stale(Request::QueueUp, Request::StaleQueueUp);
        link.replies.keep_replies(|it| it.as_placed().is_none());
        link.requests.send(Request::QueueUp);
    }

    pub fn read(&self, state: &mut State, n: usize, c: usize) {
        let client = &mut state.clients[c];
        let reply = client.links[n].replies.first_reply().expect("something was sent");
        client.links[n].replies.remove_first();
        match reply {
            Reply::Granted => self.vote(state, n, c, Vote::Granted),
            Reply::Refused => self.vote(state, n, c, Vote::Refused),
            Reply::Absent => self.seen_absent(state, n, c),
            Reply::Present => client.watches[n] = Watch::Watched,
            Reply::Changed => self.changed(state, n, c),
            Reply::Go | Reply::Passed | Reply::Next => self.told(state, c, reply),
            placed => {
                let placed = placed.as_placed().expect("nothing else is left");
                self.placed(state, c, placed);
            }
        }
    }

    /// W5.
    fn placed(&self, state: &mut State, c: usize, Placed { position, is_absent }: Placed) {
        let client = &mut state.clients[c];
        (client.position, client.is_asking) = (position, false);
        let was = std::mem::replace(&mut client.timer, Timer::None);
        match (client.phase, position) {
            _ if self.makes(Mistake::PositionUnread) => {}
            (Phase::Queued, 0..=1) if was == Timer::BackOff => client.timer = was,
            (Phase::Queued, 0) if is_absent => self.attempt(state, c),
            (Phase::Queued, 0) => self.watch(client),
            (Phase::Queued, 1) => client.timer = Timer::OvertakeDelay,
            (Phase::Queued, _) if is_absent && was == Timer::LooksAgain(position) => {
                self.attempt(state, c);
            }
            (Phase::Queued, _) if is_absent => client.timer = Timer::LookAgain,
            // While it tries, it only notes its position: what comes of it is decided by the votes.
            _ => {}
        }
    }

    /// W6.
    fn told(&self, state: &mut State, c: usize, letter: Reply) {
        let client = &mut state.clients[c];
        match client.phase {
            Phase::Idle | Phase::Done if letter == Reply::Next => return,
            Phase::Idle | Phase::Done if self.makes(Mistake::GoSwallowed) => return,
            Phase::Idle | Phase::Done => {
                return client.links[client.queue_node].requests.send(Request::StepOut);
            }
            Phase::Trying | Phase::Queued => {}
            Phase::Held | Phase::Crashed | Phase::Paused => return,
        }
        client.position = if letter == Reply::Next { 1 } else { 0 };
        // While it tries, it has all that a letter could tell it to do.
        if client.phase == Phase::Trying {
            return;
        }
        let waits = client.timer == Timer::BackOff;
        match letter {
            Reply::Go if self.makes(Mistake::GoIsGrant) => self.granted(client),
            Reply::Go => self.attempt(state, c),
            Reply::Passed if !waits => {
                client.timer = Timer::None;
                if !self.is_watching(client) {
                    self.watch(client);
                }
            }
            Reply::Next if !waits => client.timer = Timer::OvertakeDelay,
            _ => {}
        }
    }

    pub fn fire(&self, state: &mut State, c: usize) {
        let client = &mut state.clients[c];
        match std::mem::replace(&mut client.timer, Timer::None) {
            // The answer that is on its way says what to do.
            Timer::BackOff if client.is_asking => {}
            Timer::BackOff if client.position <= 1 => self.watch(client),
            Timer::OvertakeDelay => self.watch(client),
            Timer::Retry => self.attempt(state, c),
            Timer::SecondLook => {
                self.watch(client);
                client.overtakes = true;
            }
            Timer::LookAgain => {
                client.timer = Timer::LooksAgain(client.position);
                self.ask_for_position(client);
            }
            Timer::BackOff | Timer::None | Timer::LooksAgain(_) => {}
        }
    }

    /// W10, but for the rotation of the nodes that are watched.
    pub fn fire_slow(&self, state: &mut State, c: usize) {
        let client = &mut state.clients[c];
        self.ask_for_position(client);
    }
}

/// The watch (W8, W9).
impl Crowd {
    /// The first two, in the order of the queue nodes, that refused the last attempt; without such,
    /// the queue node and the one behind it.
    fn watched(&self, client: &Client) -> impl Iterator<Item = usize> + use<> {
        let is_refused = client.refusers.contains(&true);
        let most = match self.mistake {
            Some(Mistake::NoWatchAfterRefusal) if is_refused => 0,
            Some(Mistake::OneWatched) => 1,
            _ => 2,
        };
        let (refusers, queue_node) = (client.refusers, client.queue_node);
        let is_watched = move |n: &usize| if is_refused { refusers[*n] } else { *n >= queue_node };
        (0..self.nodes).filter(is_watched).take(most)
    }

    fn watch(&self, client: &mut Client) {
        self.end_watch(client);
        for n in self.watched(client) {
            client.watches[n] = Watch::Asked;
            client.links[n].requests.send(Request::Watch);
        }
    }

    /// Whether every node of the watch would tell: what was told ends it there.
    fn is_watching(&self, client: &Client) -> bool {
        self.watched(client).all(|n| client.watches[n] != Watch::None)
    }

    /// What its numbers tell apart from a newer one is taken away.
    fn end_watch(&self, client: &mut Client) {
        client.watches = [Watch::None; _];
        client.overtakes = false;
        for link in &mut client.links {
            link.requests.withdraw(Request::Watch);
            link.is_tracked = false;
            link.replies
                .keep_replies(|it| !matches!(it, Reply::Absent | Reply::Present | Reply::Changed));
        }
    }

    fn seen_absent(&self, state: &mut State, n: usize, c: usize) {
        let client = &mut state.clients[c];
        client.watches[n] = Watch::None;
        client.links[n].is_tracked = false;
        client.doubts = false;
        match client.position {
            0 => self.attempt(state, c),
            1 if client.overtakes => self.attempt(state, c),
            1 => client.timer = Timer::SecondLook,
            _ => {}
        }
    }

    fn changed(&self, state: &mut State, n: usize, c: usize) {
        let client = &mut state.clients[c];
        if client.watches[n] != Watch::Watched {
            return;
        }
        client.watches[n] = Watch::None;
        match client.position {
            0 if client.doubts => self.watch(client),
            0 => {
                self.attempt(state, c);
                state.clients[c].is_caused = true;
            }
            1 if self.makes(Mistake::InvalidationIgnoredNext) => {}
            1 => client.timer = Timer::SecondLook,
            _ => {}
        }
    }
}
