//! The operations in flight: their ids, their timers, their leases, and the results that were not
//! taken yet.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::proto::index::{OpIndex, RoundId};
use slab::Slab;

use super::failure::Failure;
use super::kind::RoundKind;
use super::lease::Lease;
use super::limits::ROUNDS_USUAL;
use super::op_id::OpId;
use super::patience::Patience;
use super::terms::Keep;
use super::timer::Timers;
use crate::inspection::FoundKey;
use crate::keep_alive::LossCause;
use crate::lock_error::LockError;
use crate::moment::Moment;
use crate::resource::Key;
use crate::validity::Ttl;

/// How many engines this process has made.
static INSTANCES: AtomicU64 = AtomicU64::new(0);

pub struct Operation {
    generation: u32,
    pub(super) task: Task,
    pub(super) progress: Progress,
    timer: Option<Moment>,
}

pub(crate) enum Task {
    Acquire {
        ttl: Ttl,
        patience: Patience,
        attempts: u32,
        /// The kind of its rounds.
        kind: RoundKind,
        started: Moment,
        last: Option<Box<Last>>,
    },
    Extend {
        lease: usize,
        /// Why nothing was sent, if so.
        refused: Option<LockError>,
    },
    /// What each node has said.
    Inspect { found: Vec<Option<FoundKey>> },
    /// Whether the lock was valid when its release began.
    Release { was_valid: bool },
    /// The lock is renewed until it is stopped or lost.
    Keep { lease: usize, keep: Box<Keep> },
}

/// What is remembered between two rounds, and before the first round if the acquisition has to
/// wait.
pub(crate) struct Last {
    pub(super) key: Key,
    /// What the nodes said last, once the acquisition has failed without a round of its own.
    pub(super) report: Option<LockError>,
}

// Each operation is moved several times, so its size matters.
const _: () = assert!(size_of::<Operation>() <= 128);

#[derive(Clone, Copy)]
pub(crate) enum Progress {
    /// Between two rounds, or in a queue.
    Waiting,
    Voting(RoundId),
    /// This round was won; its validity is not proved yet.
    Won(RoundId),
    Failed(Failure, Option<RoundId>),
    /// Nothing was sent; the task has the reason.
    Refused,
    /// A kept lock is lost, maybe during this round.
    Lost(LossCause, Option<RoundId>),
}

impl Progress {
    /// The round that the operation still owns.
    #[inline]
    pub(super) fn round(self) -> Option<RoundId> {
        match self {
            Progress::Voting(round) | Progress::Won(round) => Some(round),
            Progress::Failed(_, round) | Progress::Lost(_, round) => round,
            Progress::Waiting | Progress::Refused => None,
        }
    }
}

/// The operations in flight, until their results are taken. See
/// [`Engine::operations`](super::Engine::operations).
pub struct Operations {
    open: Slab<Operation>,
    generation: u32,
    instance: u64,
    timers: Timers,
    /// The operations whose results were not taken yet.
    ended: VecDeque<OpIndex>,
    /// The leases of extensions and of kept locks.
    pub(super) leases: Slab<Lease>,
}

/// The view of a caller.
impl Operations {
    /// The number of operations in flight.
    pub fn count(&self) -> usize {
        self.open.len()
    }

    /// The operations whose results can be taken.
    pub fn done(&self) -> impl Iterator<Item = OpId> + '_ {
        self.ended.iter().map(|op| self.id_of(*op))
    }

    /// The acquisitions.
    pub fn acquisitions(&self) -> impl Iterator<Item = OpId> + '_ {
        let is_acquisition =
            |(_, op): &(usize, &Operation)| matches!(op.task, Task::Acquire { .. });
        self.open.iter().filter(is_acquisition).map(|(op, _)| self.id_of(OpIndex(op)))
    }

    /// Whether there are results to take.
    #[inline]
    pub fn has_done(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Whether the operation has ended and its result was not taken yet.
    pub fn is_done(&self, id: OpId) -> bool {
        let is_concluded = |op: OpIndex| {
            !matches!(self.open[op.0].progress, Progress::Waiting | Progress::Voting(_))
        };
        self.lookup(id).is_some_and(is_concluded)
    }

    /// Whether the operation is a release. Its result does not depend on the time.
    pub fn is_release(&self, id: OpId) -> bool {
        self.lookup(id).is_some_and(|op| self.open[op.0].is_release())
    }

    /// Same as [`is_release`](Operations::is_release), for the operation that
    /// [`poll_done`](super::Engine::poll_done) returns next; `None` if there is none.
    pub fn is_release_next(&self) -> Option<bool> {
        self.ended.front().map(|op| self.open[op.0].is_release())
    }

    /// The lease of a renewed lock, as of its last renewal.
    pub fn kept(&self, id: OpId) -> Option<&Lease> {
        let is_kept = |op: &OpIndex| matches!(self.open[op.0].task, Task::Keep { .. });
        self.lookup(id).filter(is_kept).and_then(|op| self.lease_of(op))
    }
}

impl Operation {
    fn is_release(&self) -> bool {
        matches!(self.task, Task::Release { .. })
    }
}

impl Index<OpIndex> for Operations {
    type Output = Operation;

    #[inline(always)]
    fn index(&self, op: OpIndex) -> &Operation {
        &self.open[op.0]
    }
}

impl IndexMut<OpIndex> for Operations {
    #[inline(always)]
    fn index_mut(&mut self, op: OpIndex) -> &mut Operation {
        &mut self.open[op.0]
    }
}

impl Operations {
    pub(super) fn new() -> Operations {
        Operations {
            open: Slab::with_capacity(ROUNDS_USUAL),
            generation: 0,
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
            timers: Timers::default(),
            ended: VecDeque::with_capacity(ROUNDS_USUAL),
            leases: Slab::new(),
        }
    }

    /// The number of the engine, unique in this process.
    #[inline]
    pub(super) fn instance(&self) -> u64 {
        self.instance
    }

    #[inline(always)]
    pub(super) fn start(&mut self, task: Task, progress: Progress) -> OpIndex {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        OpIndex(self.open.insert(Operation { generation, task, progress, timer: None }))
    }

    #[inline]
    pub(super) fn id_of(&self, op: OpIndex) -> OpId {
        let generation = self.open[op.0].generation;
        OpId { slot: op.0 as u32, generation, instance: self.instance }
    }

    #[inline]
    pub(super) fn lookup(&self, id: OpId) -> Option<OpIndex> {
        let op = id.slot as usize;
        let is_known = self.open.get(op)?.generation == id.generation;
        (is_known && id.instance == self.instance).then_some(OpIndex(op))
    }

    /// Forgets an operation whose result was taken.
    #[inline(always)]
    pub(super) fn end(&mut self, op: OpIndex) -> Operation {
        self.open.remove(op.0)
    }

    /// Forgets an operation, and its result if there is one.
    pub(super) fn cancel(&mut self, op: OpIndex) {
        self.clear_timer(op);
        self.ended.retain(|ended| *ended != op);
        self.open.remove(op.0);
    }
}

/// Leases.
impl Operations {
    /// The lease that is extended or kept.
    pub(super) fn lease_of(&self, op: OpIndex) -> Option<&Lease> {
        match self.open[op.0].task {
            Task::Extend { lease, .. } | Task::Keep { lease, .. } => Some(&self.leases[lease]),
            Task::Acquire { .. } | Task::Release { .. } | Task::Inspect { .. } => None,
        }
    }

    /// A lock that is kept, with its lease.
    pub(super) fn keep_of(&mut self, op: OpIndex) -> (usize, &mut Keep) {
        match &mut self.open[op.0].task {
            Task::Keep { lease, keep } => (*lease, keep),
            _ => unreachable!("called for kept locks only"),
        }
    }
}

/// Timers.
impl Operations {
    pub(super) fn set_timer(&mut self, op: OpIndex, at: Moment) {
        self.clear_timer(op);
        self.open[op.0].timer = Some(at);
        self.timers.set(at, self.id_of(op));
    }

    /// Its round is over, and it waits until then.
    pub(super) fn wait_until(&mut self, op: OpIndex, at: Moment) {
        self.open[op.0].progress = Progress::Waiting;
        self.set_timer(op, at);
    }

    /// Sets the timer of an operation, unless it fires before.
    pub(super) fn hasten(&mut self, op: OpIndex, at: Moment) {
        if self.open[op.0].timer.is_none_or(|due| at < due) {
            self.set_timer(op, at);
        }
    }

    #[inline]
    fn clear_timer(&mut self, op: OpIndex) {
        if self.open[op.0].timer.take().is_some() {
            let open = &self.open;
            self.timers.clear_one(|at, id| is_timer(open, at, id));
        }
    }

    /// A lower bound on the next timer.
    #[inline]
    pub(super) fn due(&self) -> Option<Moment> {
        self.timers.due()
    }

    /// Makes the bound exact.
    pub(super) fn settle_due(&mut self) {
        let open = &self.open;
        self.timers.settle_due(|at, id| is_timer(open, at, id));
    }

    /// Takes the next operation whose timer has fired.
    #[inline]
    pub(super) fn take_due(&mut self, now: Moment) -> Option<OpIndex> {
        let open = &self.open;
        let id = self.timers.take_due(now, |at, id| is_timer(open, at, id))?;
        let op = self.lookup(id)?;
        self.open[op.0].timer = None;
        Some(op)
    }
}

/// Results.
impl Operations {
    /// Puts an operation with a known outcome into the queue of results.
    #[inline(always)]
    pub(super) fn conclude(&mut self, op: OpIndex, progress: Progress) {
        self.clear_timer(op);
        self.open[op.0].progress = progress;
        self.ended.push_back(op);
    }

    /// Takes the operation that ended first.
    #[inline]
    pub(super) fn pop_ended(&mut self) -> Option<OpIndex> {
        self.ended.pop_front()
    }

    /// Takes this operation, if it has ended.
    #[inline(always)]
    pub(super) fn take_ended(&mut self, id: OpId) -> Option<OpIndex> {
        let op = self.lookup(id)?;
        if self.ended.front() == Some(&op) {
            self.ended.pop_front();
        } else {
            let at = self.ended.iter().position(|ended| *ended == op)?;
            self.ended.remove(at);
        }
        Some(op)
    }
}

/// Acquisitions.
impl Operations {
    /// What an acquisition remembers.
    pub(super) fn last_of(&self, op: OpIndex) -> Option<&Last> {
        match &self.open[op.0].task {
            Task::Acquire { last, .. } => last.as_deref(),
            _ => None,
        }
    }

    /// It waits before its first round, or that round asks for another key.
    pub(super) fn remember(&mut self, op: OpIndex, key: &Key) {
        if let Task::Acquire { last, .. } = &mut self.open[op.0].task {
            let report = last.take().and_then(|last| last.report);
            *last = Some(Box::new(Last { key: key.clone(), report }));
        }
    }

    /// A node has said to this inspection what it has.
    #[cold]
    pub(super) fn note_found(&mut self, op: Option<OpIndex>, node: usize, key: FoundKey) {
        if let Some(Task::Inspect { found }) = op.map(|op| &mut self[op].task) {
            found[node] = Some(key);
        }
    }

    /// Whether it is an acquisition of another kind of lock whose round is one of a plain lock: of
    /// the slot that it tries first (K8). It remembers its own key.
    pub(super) fn asks_as_plain(&self, op: OpIndex, round: RoundKind) -> bool {
        let task = &self.open[op.0].task;
        round == RoundKind::Acquire && matches!(task, Task::Acquire { kind: RoundKind::Take, .. })
    }

    /// Whether it is an acquisition with patience.
    pub(super) fn is_patient(&self, op: OpIndex) -> bool {
        let task = &self.open[op.0].task;
        matches!(task, Task::Acquire { patience, .. } if patience.until().is_some())
    }

    /// How many rounds an acquisition has had, and whether its patience lasts.
    pub(super) fn tries_of(&self, op: OpIndex, now: Moment) -> Option<(u32, bool)> {
        match self.open[op.0].task {
            Task::Acquire { attempts, patience, .. } => {
                Some((attempts, patience.until().is_none_or(|give_up_at| now < give_up_at)))
            }
            _ => None,
        }
    }

    /// An acquisition that is in flight and has patience, and how much.
    pub(super) fn patience_of(&self, id: OpId) -> Option<(OpIndex, Patience, Moment)> {
        let op = self.lookup(id)?;
        match self.open[op.0].task {
            Task::Acquire { patience, .. } => Some((op, patience, patience.until()?)),
            _ => None,
        }
    }

    /// No quorum answers: an acquisition that waits for a holder only waits no longer, and
    /// fails with this report. Returns whether it is one.
    pub(super) fn end_wait(&mut self, now: Moment, id: OpId, report: &LockError) -> bool {
        let Some((op, Patience::WhileHeld(_), _)) = self.patience_of(id) else {
            return false;
        };
        if let Task::Acquire { patience, last, .. } = &mut self.open[op.0].task {
            *patience = Patience::WhileHeld(now);
            last.iter_mut().for_each(|last| last.report = Some(report.clone()));
        }
        self.hasten(op, now);
        true
    }
}

/// Whether the operation waits for this moment.
fn is_timer(open: &Slab<Operation>, at: Moment, id: OpId) -> bool {
    let waits = |op: &Operation| op.generation == id.generation && op.timer == Some(at);
    open.get(id.slot as usize).is_some_and(waits)
}
