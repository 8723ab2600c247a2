//! What applications do with their clients: take, extend, release, drop and forget locks.

use std::time::Duration;

use muxlock::proto::{Cancelled, Done, Fencing, Lease, OpId, Patience, ReleaseHow};
use muxlock::{LockError, LockErrorKind, LockToken, Moment, Resource};

use super::World;
use super::clock::MILLI;
use super::own::{Freeing, Look};
use super::queue::Event;
use super::rare::Rare;
use super::timeline::{Millis, Short};

/// What an operation may take beyond its time: turns are late, and so are timers.
pub const LATENESS_MAX: u64 = 100 * MILLI;
/// How often the pause between two tries to get a lock doubles, when all faults are over.
const DOUBLINGS_MAX: u32 = 7;

/// How often an application has something cancelled when it does something, of a thousand times.
const CANCELS: u32 = 60;

/// How many rounds one try for a permit may take.
pub const ROUNDS_MAX: u64 = 8;

/// How often an application does something with a lock that it knows by its value, in those runs.
const CALLS: u32 = 200;

/// How often an application writes with a number first, in runs where locks have some.
const WRITES: u32 = 300;

/// How often a wait is for a holder only, in runs where some are.
const FOR_HOLDERS: u32 = 700;

/// How often a holder hands its lock to another client, in runs where they do.
const HAND_OVERS: u32 = 300;

/// An operation that was started.
#[derive(Debug, Clone)]
pub struct Operation {
    pub kind: Kind,
    /// When its client started it, by the client's clock.
    pub started: u64,
    pub started_true: u64,
    /// When it must be over, by the client's clock.
    pub limit: u64,
}

/// What an operation is.
#[derive(Debug, Clone)]
pub enum Kind {
    Acquire {
        resource: usize,
        patience: Option<u64>,
        /// Whether a round without a quorum is the last one.
        is_for_holder: bool,
        is_fenced: bool,
    },
    Extend {
        token: [u8; 40],
        deadline: u64,
        granted: Vec<usize>,
        ttl_ms: u32,
    },
    /// The engine renews the lock; `sent` are the slots that were sent the current renewal.
    Keep {
        token: [u8; 40],
        deadline: u64,
        granted: Vec<usize>,
        ttl_ms: u32,
        sent: u64,
        /// How long before the deadline a loss is told, if that was asked for.
        notice: Option<u64>,
        /// When it is told, unless the lock is renewed before; by the client's clock.
        tell_at: u64,
    },
    Release,
    /// A lock is released by who knows its value.
    ReleaseAs(Freeing),
    /// All nodes are asked what a name is locked with.
    Look(Look),
}

impl Operation {
    /// Whether it may start a round then, by its client's clock (R9).
    fn may_start(&self, at: u64) -> bool {
        let Kind::Acquire { patience, .. } = self.kind else {
            return false;
        };
        patience.is_none_or(|until| at < until)
    }
}

impl World {
    /// What the engine has drawn since it was last looked at, beginning with `drawn`: the tokens of
    /// rounds, which are for operations under way, and the name of its channel.
    pub fn note_drawn(&mut self, client: usize, mut drawn: Vec<([u8; 40], u64)>) {
        let it = &mut self.clients[client];
        for (token, at) in it.drawn()() {
            self.checker.draw(client, token, at);
            drawn.push((token, at));
        }
        let rounds = it.engine.stats().rounds;
        let started = (rounds - std::mem::replace(&mut it.rounds, rounds)) as usize;
        let is_late = |at: u64| !it.operations.values().any(|operation| operation.may_start(at));
        let late: Vec<_> = drawn.iter().filter(|(_, at)| is_late(*at)).collect();
        if late.len() + started > drawn.len() {
            let text = format!("client {client} begins {} for nobody", Short(&late[0].0));
            self.fail("PATIENCE", || text);
        }
    }

    /// An application does something, and later something else.
    pub fn work(&mut self, client: usize) {
        let it = &mut self.clients[client];
        if it.work_left == 0 {
            return;
        }
        if self.now < it.paused_until {
            let at = it.paused_until;
            self.queue.push(at, Event::Work(client));
            return;
        }
        it.work_left -= 1;
        let pause = self.choices.magnitude(MILLI / 10, 2 * self.plan.work_interval);
        self.queue.push(self.now + pause, Event::Work(client));
        if self.choices.chance(CANCELS) {
            self.cancel_something(client);
        }
        if self.plan.fenced > 0 && self.choices.chance(WRITES) {
            self.write_something(client);
        }
        if self.plan.forms && self.crowd.is_none() && self.choices.chance(CALLS) {
            self.call_by_value(client);
        }
        let is_holding = self.is_holding(client);
        if is_holding && self.plan.hands_over && self.choices.chance(HAND_OVERS) {
            return self.hand_over_something(client);
        }
        // What holders do is what matters most, and where they heal, that they extend.
        let kinds = match (is_holding, self.plan.heals) {
            (false, _) => 3,
            (true, false) => 12,
            (true, true) => 24,
        };
        match self.choices.below(kinds) {
            0..=2 => self.acquire_something(client),
            3..=6 => self.extend_something(client),
            7..=9 => self.release_something(client),
            10 => self.abandon_something(client),
            11 => self.forget_something(client),
            _ => self.extend_something(client),
        }
        self.wake_client(client, self.now);
    }

    fn acquire_something(&mut self, client: usize) {
        let resource = self.choices.below(self.plan.resources as u32) as usize;
        let ttl = self.plan.ttl(&mut self.choices);
        let is_patient = self.choices.chance(500);
        let wait_max = if self.plan.is_for_holders { 20_000 } else { 1_000 };
        let wait = is_patient.then(|| self.choices.magnitude(MILLI, wait_max * MILLI));
        self.may_lie_in_wait(client);
        self.may_relay(client);
        let ttl = self.may_be_late(client, ttl);
        let until = match self.plan.is_for_holders && self.choices.chance(FOR_HOLDERS) {
            true => Patience::WhileHeld,
            false => Patience::Until,
        };
        self.acquire_until(client, resource, ttl, (wait, until));
    }

    /// Starts an acquisition; a time to live that is out of bounds is refused, as it should be.
    pub fn acquire(&mut self, client: usize, resource: usize, ttl: u64, wait: Option<u64>) {
        self.acquire_until(client, resource, ttl, (wait, Patience::Until));
    }

    /// The same, with a wait of this kind.
    fn acquire_until(
        &mut self,
        client: usize,
        resource: usize,
        ttl: u64,
        (wait, kind): (Option<u64>, fn(Moment) -> Patience),
    ) {
        let now = self.client_now(client);
        let started = self.clients[client].told;
        let patience = wait.map(|wait| started + wait);
        let until = |at: u64| kind(Moment::with_jumps(at, self.clients[client].jumped));
        let asked = patience.map_or(Patience::OneRound, until);
        let is_fenced = self.choices.chance(self.plan.fenced);
        let (resource_name, name) = match is_fenced {
            true => {
                let name = [self.plan.split(client).1, self.plan.names[resource]].concat();
                (Resource::new(&name).expect("a valid name"), name)
            }
            false => self.draw_form(client, resource),
        };
        let (engine, wanted) = (&mut self.clients[client].engine, Duration::from_nanos(ttl));
        let fencing = if is_fenced { Fencing::On } else { Fencing::Off };
        let result = engine.acquire(now, resource_name, wanted, asked, fencing);
        self.timeline.note(self.now, || {
            let kind = if is_fenced { "fenced" } else { "plain" };
            format!("client {client} locks {name} for {} {asked:?}, {kind}", Millis(ttl))
        });
        match result {
            Ok(id) => {
                // A fenced round may raise counters in the end, which is a command of its own.
                let raise = if is_fenced { self.plan.node_timeout } else { 0 };
                let rounds = if self.plan.forms { ROUNDS_MAX } else { 1 };
                let limit = patience.unwrap_or(started + rounds * self.plan.round_max() + raise);
                let is_for_holder = matches!(asked, Patience::WhileHeld(_));
                let kind = Kind::Acquire { resource, patience, is_for_holder, is_fenced };
                self.start(client, id, kind, limit);
            }
            Err(error) => {
                let is_odd = !matches!(error.kind(), LockErrorKind::InvalidTtl { .. });
                if is_odd {
                    self.fail("TERMINATION", || format!("an acquisition did not start: {error}"));
                }
            }
        }
    }

    pub fn start(&mut self, client: usize, id: OpId, kind: Kind, limit: u64) {
        let it = &mut self.clients[client];
        let limit = limit.saturating_add(LATENESS_MAX);
        let operation = Operation { kind, started: it.told, started_true: self.now, limit };
        let before = it.operations.insert(id, operation);
        if before.is_some() {
            self.fail("TERMINATION", || format!("{id:?} was given twice"));
        }
    }

    /// What becomes of a lock that was granted.
    fn hold(&mut self, client: usize, lease: Lease) {
        let Some(lease) = self.relay(client, lease) else {
            return;
        };
        let Some(lease) = self.late_granted(client, lease) else {
            return;
        };
        let token = token_of(&lease);
        self.may_disturb_stragglers(client, &token);
        if self.plan.hands_over && self.choices.chance(HAND_OVERS / 3) {
            // Before all nodes have answered.
            return self.hand_over(client, lease);
        }
        if self.is_hunted(&token) || self.plan.keeps && self.choices.chance(500) {
            if self.choices.chance(500) {
                return self.keep_in_engine(client, lease);
            }
            self.keep(client, &lease);
        } else {
            self.come_back(client, &lease);
        }
        self.clients[client].leases.push(lease);
    }

    /// Who got a lock does something with it while it is valid, or just when it is over.
    pub fn come_back(&mut self, client: usize, lease: &Lease) {
        let end = self.clients[client].clock.when(lease.valid_until().as_nanos());
        let left = end.saturating_sub(self.now);
        let early = match self.choices.chance(300) {
            true => self.choices.magnitude(MILLI / 100, 4 * self.plan.wire.latency + MILLI),
            false => self.choices.between(0, left),
        };
        self.queue.push(self.now.max(end.saturating_sub(early)), Event::Work(client));
    }

    /// Takes one of the locks; one that is kept alive, if there is no other.
    pub fn take_lease(&mut self, client: usize) -> Option<Lease> {
        let it = &self.clients[client];
        let mut any: Vec<usize> = (0..it.leases.len()).collect();
        if any.iter().any(|at| !it.keeps(&it.leases[*at])) {
            any.retain(|at| !it.keeps(&it.leases[*at]));
        }
        if any.is_empty() {
            return self.take_from_engine(client);
        }
        let picked = any[self.choices.below(any.len() as u32) as usize];
        Some(self.clients[client].leases.swap_remove(picked))
    }

    fn extend_something(&mut self, client: usize) {
        if let Some(lease) = self.take_lease(client) {
            let ttl = self.plan.ttl(&mut self.choices);
            let lease = self.may_downgrade(client, lease);
            self.extend(client, lease, ttl);
        }
    }

    pub fn extend(&mut self, client: usize, lease: Lease, ttl: u64) {
        let now = self.client_now(client);
        let started = self.clients[client].told;
        let token = token_of(&lease);
        let deadline = lease.valid_until().as_nanos();
        let granted = lease.granted_by().collect();
        self.timeline.note(self.now, || {
            format!("client {client} extends {} to {}", Short(&token), Millis(ttl))
        });
        self.checker.start_extension(started, &token);
        let id = self.clients[client].engine.extend(now, lease, Duration::from_nanos(ttl));
        let ttl_ms = (ttl / MILLI) as u32;
        let kind = Kind::Extend { token, deadline, granted, ttl_ms };
        self.start(client, id, kind, deadline.max(started));
    }

    /// Cancels one of the operations under way, or one that has ended and was not taken.
    fn cancel_something(&mut self, client: usize) {
        let count = self.clients[client].operations.len() as u32;
        if count == 0 {
            return;
        }
        let picked = self.choices.below(count) as usize;
        if let Some(id) = self.clients[client].operations.keys().nth(picked).copied() {
            self.cancel(client, id);
        }
    }

    /// What has ended is about to be taken.
    pub fn may_cancel_ended(&mut self, client: usize) {
        let ended = self.clients[client].engine.operations().done().next();
        if let (Some(id), true) = (ended, self.is_faulty) {
            if self.choices.chance(CANCELS / 4) {
                self.cancel(client, id);
            }
        }
    }

    pub fn cancel(&mut self, client: usize, id: OpId) {
        self.note_drawn(client, Vec::new());
        let now = self.client_now(client);
        let it = &mut self.clients[client];
        let has_ended = it.engine.operations().is_done(id);
        let cancelled = it.engine.cancel(now, id);
        let Some(operation) = it.operations.remove(&id) else {
            return self.fail("TERMINATION", || format!("{id:?} ended twice"));
        };
        self.timeline.note(self.now, || format!("client {client} cancels {:?}", operation.kind));
        match (cancelled, &operation.kind) {
            (Cancelled::Acquisition, Kind::Acquire { .. }) => {
                self.rare.hit(Rare::CancelledAcquisition);
                self.rare.hit_if(has_ended, Rare::CancelledEnd);
            }
            (
                Cancelled::Extension(lease),
                Kind::Extend { deadline, granted, .. } | Kind::Keep { deadline, granted, .. },
            ) => {
                self.check_fence_kept(&lease, None);
                let known = Known::of(&lease);
                let is_extended = known.until > *deadline || known.granted != *granted;
                let told = self.clients[client].told;
                let is_gone = matches!(operation.kind, Kind::Keep { .. })
                    && known.until < *deadline
                    && known.until <= told;
                let rare = match operation.kind {
                    Kind::Keep { .. } => Rare::KeptStopped,
                    _ => Rare::CancelledExtension,
                };
                self.rare.hit(rare);
                self.rare.hit_if(is_extended, Rare::CancelledSuccess);
                match is_gone {
                    // A quorum had said so.
                    true => self.checker.end(&token_of(&lease)),
                    false => self.check_extended(client, &operation, &known, is_extended),
                }
                self.clients[client].leases.push(lease);
            }
            (Cancelled::Inspection, Kind::Look(_)) => self.rare.hit(Rare::CancelledLook),
            (Cancelled::Release, Kind::Release | Kind::ReleaseAs(_)) => {
                self.rare.hit(Rare::CancelledRelease)
            }
            _ => self.fail("TERMINATION", || format!("{id:?} was not cancelled as what it is")),
        }
    }

    fn release_something(&mut self, client: usize) {
        if let Some(lease) = self.take_lease(client) {
            self.release(client, lease);
        }
    }

    pub fn release(&mut self, client: usize, lease: Lease) {
        let token = token_of(&lease);
        self.timeline.note(self.now, || format!("client {client} releases {}", Short(&token)));
        self.checker.end(&token);
        let now = self.client_now(client);
        let id = self.clients[client].engine.release(now, lease, ReleaseHow::ToTheEnd);
        let limit = self.clients[client].told + self.plan.round_max();
        self.start(client, id, Kind::Release, limit);
    }

    fn abandon_something(&mut self, client: usize) {
        if let Some(lease) = self.take_lease(client) {
            let token = token_of(&lease);
            self.timeline.note(self.now, || format!("client {client} drops {}", Short(&token)));
            self.checker.end(&token);
            let now = self.client_now(client);
            self.clients[client].engine.abandon(now, lease);
        }
    }

    /// Forgets a lock without a release: what a process that ends without its loop does.
    fn forget_something(&mut self, client: usize) {
        if let Some(lease) = self.take_lease(client) {
            let token = token_of(&lease);
            self.timeline.note(self.now, || format!("client {client} forgets {}", Short(&token)));
            self.checker.end(&token);
            self.checker.disown(&token);
            let it = &mut self.clients[client];
            let end = it.clock.when(lease.valid_until().as_nanos());
            it.forgotten_until = it.forgotten_until.max(end);
        }
    }

    /// Takes what has ended; returns whether anything had.
    pub fn take(&mut self, client: usize) -> bool {
        let mut any = false;
        loop {
            self.note_drawn(client, Vec::new());
            let now = self.client_now(client);
            let Some((id, done)) = self.clients[client].engine.poll_done(now) else {
                return any;
            };
            any = true;
            if let Done::Renewed(until) = done {
                self.renewed(client, id, until.as_nanos());
                continue;
            }
            let Some(operation) = self.clients[client].operations.remove(&id) else {
                self.fail("TERMINATION", || format!("{id:?} ended twice"));
                return any;
            };
            match done {
                Done::Acquired(result) => self.acquired(client, operation, result),
                Done::Extended(lease, result) => self.extended(client, operation, lease, result),
                Done::Inspected(inspection) => self.looked(client, operation, &inspection),
                Done::Released(result) if matches!(operation.kind, Kind::ReleaseAs(_)) => {
                    self.released_as(&operation, result.as_ref().ok());
                }
                Done::Released(result) => match result {
                    Ok(released) if released.absent > 0 => self.rare.hit(Rare::ReleasedAbsent),
                    Ok(_) => {}
                    Err(_) => self.rare.hit(Rare::ReleaseUnconfirmed),
                },
                Done::Lost(lease, loss) => self.lost(client, &operation, lease, &loss),
                other => unreachable!("it goes on, or was not started: {other:?}"),
            }
        }
    }

    fn acquired(&mut self, client: usize, operation: Operation, result: Result<Lease, LockError>) {
        let Kind::Acquire { resource, patience, is_for_holder, .. } = operation.kind else {
            return self.fail("TERMINATION", || "an operation changed its kind".into());
        };
        match result {
            Ok(lease) => {
                self.rare.hit(Rare::Granted);
                self.check_acquired(client, &operation, &lease);
                if self.crowd.is_some() {
                    self.crowd_granted(client, lease);
                } else if self.vigil.is_some() {
                    self.vigil_granted(client, lease);
                } else if self.is_faulty {
                    self.hold(client, lease);
                } else if let Some(lease) = self.scene_acquired(client, Some(lease)) {
                    self.clients[client].leases.push(lease);
                    self.demand_met(client, resource);
                }
            }
            Err(error) => {
                self.timeline.note(self.now, || format!("client {client} fails: {error}"));
                match error.kind() {
                    LockErrorKind::Contended => self.rare.hit(Rare::Contended),
                    LockErrorKind::Unavailable => self.rare.hit(Rare::Unavailable),
                    LockErrorKind::Expired => self.rare.hit(Rare::LateQuorum),
                    _ => {}
                }
                let is_over = patience.is_some_and(|until| self.clients[client].told >= until);
                self.rare.hit_if(is_over, Rare::GiveUpInRound);
                // No acquisition waits for a round that its patience does not last for (R9).
                let pause_max = 2 * self.plan.retry_most + 6 * self.plan.round_max();
                let told = self.clients[client].told + pause_max;
                if is_for_holder && patience.is_some_and(|until| told < until) {
                    self.check_ended_early(&error);
                }
                match (&self.crowd, &self.vigil) {
                    (Some(_), _) => self.crowd_missed(client),
                    (_, Some(_)) => self.vigil_missed(client),
                    _ => {
                        self.scene_acquired(client, None);
                        self.demand_missed(client, resource);
                    }
                }
            }
        }
    }

    /// A wait for a holder ends early for one reason: a round without the votes of a quorum.
    fn check_ended_early(&mut self, error: &LockError) {
        let failed = error.nodes().iter().filter(|node| node.outcome.is_failure()).count();
        let is_quorum_denied = self.plan.nodes - failed < self.plan.nodes / 2 + 1;
        if error.kind() != LockErrorKind::Unavailable || !is_quorum_denied {
            let text = error.to_string();
            self.fail("HOLDER", || format!("a wait for a holder ends early: {text}"));
        }
    }

    fn extended(
        &mut self,
        client: usize,
        operation: Operation,
        lease: Lease,
        result: Result<(), LockError>,
    ) {
        self.check_extended(client, &operation, &Known::of(&lease), result.is_ok());
        self.check_fence_kept(&lease, result.is_ok().then_some(Rare::FencedExtended));
        match &result {
            Ok(()) => self.rare.hit(Rare::Extended),
            Err(error) => {
                self.timeline.note(self.now, || format!("client {client} not extended: {error}"));
                let is_gone = self.checker.gone_at(&token_of(&lease)).is_some();
                self.rare.hit_if(is_gone, Rare::ExtendedFreed);
                if self.clients[client].told >= lease.valid_until().as_nanos() {
                    self.rare.hit(Rare::ExtensionLate);
                }
            }
        }
        if self.is_faulty {
            self.note_renewed(client, &lease, result.is_ok());
            if let Some(lease) = self.late_extended(client, lease, result.is_ok()) {
                self.clients[client].leases.push(lease);
            }
        } else if let Some(lease) = self.scene_extended(client, lease) {
            self.release(client, lease);
        }
    }

    /// All faults are over: everybody gets every lock once (invariant 13).
    pub fn demand(&mut self, client: usize) {
        while let Some(lease) = self.take_from_engine(client) {
            self.release(client, lease);
        }
        while let Some(lease) = self.clients[client].leases.pop() {
            self.release(client, lease);
        }
        self.clients[client].demands = (0..self.plan.resources).collect();
        self.clients[client].tries = 0;
        self.next_demand(client);
        self.wake_client(client, self.now);
    }

    pub fn next_demand(&mut self, client: usize) {
        if let Some(resource) = self.clients[client].demands.last().copied() {
            let ttl = self.plan.max_ttl;
            let wait = (500 * MILLI) >> self.clients[client].tries.min(3);
            self.acquire(client, resource, ttl, Some(wait));
        }
    }

    fn demand_met(&mut self, client: usize, resource: usize) {
        if let Some(lease) = self.clients[client].leases.pop() {
            self.release(client, lease);
        }
        let it = &mut self.clients[client];
        it.tries = 0;
        if it.demands.last() == Some(&resource) {
            it.demands.pop();
            self.next_demand(client);
        }
    }

    /// Tries again, less and less often: a quarantine takes its time.
    fn demand_missed(&mut self, client: usize, resource: usize) {
        let it = &mut self.clients[client];
        if self.is_faulty || it.demands.last() != Some(&resource) {
            return;
        }
        it.tries += 1;
        let tries = it.tries;
        if self.now > self.healed_at + self.patience() {
            return self.fail("LIVENESS", || {
                format!("client {client} does not get the lock after {tries} tries")
            });
        }
        let most = (100 * MILLI) << tries.min(DOUBLINGS_MAX);
        let pause = self.choices.between(most / 4, most);
        self.clients[client].retry_at = self.now + pause;
        self.queue.push(self.now + pause, Event::Work(client));
    }

    /// It is time for the next try, unless this was for something that is over.
    pub fn retry_demand(&mut self, client: usize) {
        if self.clients[client].retry_at == self.now {
            self.next_demand(client);
            self.wake_client(client, self.now);
        }
    }
}

/// What a client knows of a lock that it holds.
pub struct Known {
    pub until: u64,
    pub granted: Vec<usize>,
}

impl Known {
    pub fn of(lease: &Lease) -> Known {
        Known { until: lease.valid_until().as_nanos(), granted: lease.granted_by().collect() }
    }
}

pub fn token_of(lease: &Lease) -> [u8; 40] {
    digits(lease.token())
}

pub fn digits(token: &LockToken) -> [u8; 40] {
    token.as_bytes().try_into().expect("a token has 40 digits")
}
