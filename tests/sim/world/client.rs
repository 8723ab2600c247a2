//! A client: the library's engine and its RESP layer, a clock, and sockets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use muxlock::node::{Quarantine, QuarantineCause};
use muxlock::proto::{Engine, Entropy, Lease, OpId};
use muxlock::resp::ReplyReader;
use muxlock::{Config, Moment};

use super::World;
use super::choices::split_mix;
use super::clock::{Clock, MICRO, MILLI};
use super::debts::Owed;
use super::keep::Kept;
use super::looks::Looks;
use super::queue::Event;
use super::rare::Rare;
use super::timeline::Millis;
use super::work::{Kind, LATENESS_MAX, Operation, ROUNDS_MAX};

/// Tokens that an engine drew, with what its clock showed.
type Drawn = Arc<Mutex<Vec<([u8; 40], u64)>>>;

/// Tokens that differ for sure, and jitter: all from one seed.
struct Seeded {
    state: u64,
    /// A number that no other engine of the run has.
    engine: u32,
    count: u32,
    now: Arc<AtomicU64>,
    drawn: Drawn,
}

impl Entropy for Seeded {
    fn token(&mut self, _: Moment) -> Option<[u8; 20]> {
        self.count += 1;
        let mut token = [0; 20];
        token[..2].copy_from_slice(&(self.count as u16).to_be_bytes());
        token[2..4].copy_from_slice(&(self.engine as u16).to_be_bytes());
        token[4..12].copy_from_slice(&split_mix(&mut self.state).to_be_bytes());
        token[12..].copy_from_slice(&split_mix(&mut self.state).to_be_bytes());
        let now = self.now.load(Ordering::Relaxed);
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        drawn.push((hexadecimal(&token), now));
        Some(token)
    }

    fn next_u64(&mut self) -> u64 {
        split_mix(&mut self.state)
    }
}

fn hexadecimal(bytes: &[u8; 20]) -> [u8; 40] {
    let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
    std::array::from_fn(|i| digit(bytes[i / 2] >> (4 * (1 - i % 2)) & 15))
}

/// A socket of a client.
#[derive(Default)]
pub struct Slot {
    pub connection: Option<usize>,
    /// Whether the engine knows that it stands.
    pub is_connected: bool,
    /// The connection beside which the server has answered on a second one.
    pub answered_beside: Option<usize>,
    pub reader: ReplyReader,
    pub unsent: Vec<u8>,
}

/// Where a turn of the event loop has got to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Read,
    Time,
    Flush,
    Take,
}

#[derive(Clone, Copy)]
pub enum Step {
    Connect(usize),
    Beside(usize, Option<Moment>),
    Close(usize),
    Send { slot: usize, from: usize, to: usize, what: What },
}

/// What a command is about.
#[derive(Clone, Copy)]
pub enum What {
    /// A lock: its token, and the time to live, if it is a SET.
    Lock([u8; 40], Option<u32>),
    /// The server's time, asked for at this moment of the client's clock without its jumps.
    Time(u64),
    /// A counter that is to be raised.
    Raise,
    Other,
}

/// A client.
pub struct Client {
    pub engine: Engine,
    pub clock: Clock,
    /// How much of what the clock shows were jumps of the machine's wall clock.
    pub jumped: u64,
    pub slots: Vec<Slot>,
    pub stage: Stage,
    pub steps: VecDeque<Step>,
    /// How many times the engine's actions were taken.
    pub passes: u64,
    pub batch: Vec<u8>,
    pub paused_until: u64,
    /// The first reading of its clock since the engine's actions were taken.
    pub read_first: Option<u64>,
    /// Its engine waits until then for the ends of locks that the application has forgotten.
    pub forgotten_until: u64,
    pub wake_at: u64,
    /// The turns at `spun_at`.
    pub turns: u32,
    pub spun_at: u64,
    now: Arc<AtomicU64>,
    /// The greatest clock reading that the engine was told.
    pub told: u64,
    /// The same without jumps.
    pub steady: u64,
    /// For each slot.
    pub looks: Vec<Looks>,
    drawn: Drawn,
    /// How many rounds it had started when this was last looked at.
    pub rounds: u64,
    pub operations: BTreeMap<OpId, Operation>,
    pub leases: Vec<Lease>,
    pub kept: Vec<Kept>,
    /// For each slot, what lost connections may have left there.
    pub owed: Vec<Vec<Owed>>,
    pub work_left: u32,
    /// What it still has to lock, after all faults have ended.
    pub demands: Vec<usize>,
    pub tries: u32,
    pub retry_at: u64,
}

impl Client {
    pub fn new(config: Arc<Config>, clock: Clock, engine: u32, seed: u64) -> Client {
        let now = Arc::new(AtomicU64::new(0));
        let drawn = Drawn::default();
        let entropy = Seeded {
            state: seed,
            engine,
            count: 0,
            now: Arc::clone(&now),
            drawn: Arc::clone(&drawn),
        };
        Client {
            slots: (0..config.nodes()).map(|_| Slot::default()).collect(),
            engine: Engine::new(Arc::clone(&config), Box::new(entropy)),
            clock,
            jumped: 0,
            stage: Stage::Read,
            steps: VecDeque::new(),
            passes: 0,
            batch: Vec::new(),
            paused_until: 0,
            read_first: None,
            forgotten_until: 0,
            wake_at: u64::MAX,
            turns: 0,
            spun_at: 0,
            now,
            told: 0,
            steady: 0,
            looks: vec![Looks::default(); config.nodes()],
            drawn,
            rounds: 0,
            operations: BTreeMap::new(),
            leases: Vec::new(),
            kept: Vec::new(),
            owed: (0..config.nodes()).map(|_| Vec::new()).collect(),
            work_left: 0,
            demands: Vec::new(),
            tries: 0,
            retry_at: 0,
        }
    }

    /// Reads its clock at `time`; the reading is `glitch` too low.
    pub fn read_clock(&mut self, time: u64, glitch: u64) -> Moment {
        let now = self.clock.read(time).saturating_sub(glitch);
        if now > self.told {
            (self.told, self.steady) = (now, now.saturating_sub(self.jumped));
        }
        self.read_first.get_or_insert(self.told);
        self.now.store(self.told, Ordering::Relaxed);
        Moment::with_jumps(now, self.jumped)
    }

    /// Whether the lock is over at `time`, by its clock as it is.
    pub fn is_over(&self, time: u64, deadline: u64) -> bool {
        self.clock.read(time) >= deadline
    }

    /// The slots whose votes do not count now, by the engine's own word.
    pub fn slots_in_quarantine(&self, node_timeout: u64) -> u64 {
        // Where it is only in doubt what was flushed, the answer about that comes before theirs.
        let is_over_soon = |it: &Quarantine| it.ready_in.as_nanos() <= u128::from(node_timeout);
        let is_certain =
            |it: &Quarantine| it.cause != QuarantineCause::Flushed || !is_over_soon(it);
        let statuses = self
            .engine
            .statuses()
            .filter(|status| status.quarantine.as_ref().is_some_and(is_certain));
        statuses.map(|status| 1 << status.node).sum()
    }

    /// The tokens that its engine has drawn since the last call, also while the engine is borrowed.
    pub fn drawn(&self) -> impl Fn() -> Vec<([u8; 40], u64)> + use<> {
        let drawn = Arc::clone(&self.drawn);
        move || std::mem::take(&mut *drawn.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl World {
    pub fn client_now(&mut self, client: usize) -> Moment {
        let is_glitch = self.choices.chance(self.plan.process.glitch);
        let glitch = if is_glitch { self.choices.magnitude(MICRO, 20 * MILLI) } else { 0 };
        self.clients[client].read_clock(self.now, glitch)
    }

    /// Has the client take a turn at `at`, or earlier.
    pub fn wake_client(&mut self, client: usize, at: u64) {
        let it = &mut self.clients[client];
        let at = at.max(it.paused_until).max(self.now);
        if at < it.wake_at {
            it.wake_at = at;
            self.queue.push(at, Event::ClientTurn(client));
        }
    }

    /// Holds the client's process up; returns whether it was.
    pub fn may_pause(&mut self, client: usize) -> bool {
        if !self.is_faulty || !self.choices.chance(self.plan.process.pause) {
            return false;
        }
        let pause = self.choices.magnitude(10 * MICRO, self.plan.process.pause_max);
        self.pause_client(client, pause);
        true
    }

    pub fn pause_client(&mut self, client: usize, pause: u64) {
        let until = self.now + pause;
        self.timeline.note(self.now, || format!("client {client} pauses until {}", Millis(until)));
        let it = &mut self.clients[client];
        it.paused_until = it.paused_until.max(until);
        it.wake_at = u64::MAX;
        let until = it.paused_until;
        let ends = |lease: &Lease| {
            let deadline = lease.valid_until().as_nanos();
            !it.is_over(self.now, deadline) && it.is_over(until, deadline)
        };
        if it.leases.iter().any(ends) {
            self.rare.hit(Rare::PausedPastDeadline);
        }
        self.start_anew(client);
        self.wake_client(client, until);
    }

    /// What the client's operations may take starts anew when its process next runs: nobody was
    /// there to end them.
    pub fn start_anew(&mut self, client: usize) {
        let it = &mut self.clients[client];
        let resumed = it.clock.read(self.now.max(it.paused_until));
        let rounds = if self.plan.forms { ROUNDS_MAX } else { 1 };
        let limit = resumed + rounds * self.plan.round_max() + LATENESS_MAX;
        for operation in it.operations.values_mut() {
            let is_fenced = matches!(operation.kind, Kind::Acquire { is_fenced: true, .. });
            let raise = if is_fenced { self.plan.node_timeout } else { 0 };
            operation.limit = operation.limit.max(limit + raise);
        }
    }
}
