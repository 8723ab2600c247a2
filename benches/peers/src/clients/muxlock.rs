//! This crate: as a blocking handle, and as a guest in an event loop.

use std::io;
use std::time::Duration;

use mio::{Events, Poll, Token};
use muxlock::node::{NodeState, NodeStatus};
use muxlock::proto::{Done, Lease, OpId};
use muxlock::settings::{RestartGuard, Waiting};
use muxlock::{Builder, Fenced, FencedRedlock, LockGuard, Multiplexer, Redlock};

use super::{Failure, Locks};
use crate::clock;
use crate::flight::{Flight, Turned};
use crate::job::{Job, PERMITS, Work, slot_key};

/// How long it may take until all masters vote: young ones are in quarantine.
const SETTLE_MAX: Duration = Duration::from_secs(20);
/// What a connection may take in any case.
const CONNECT_MIN: Duration = Duration::from_millis(500);
/// More than one for each master.
const EVENTS: usize = 128;

/// With everything on that is on by default.
fn builder(job: &Job) -> Builder {
    builder_of(job, &job.urls())
}

/// The same, with addresses that were written before.
fn builder_of(job: &Job, urls: &[String]) -> Builder {
    let builder = Redlock::builder()
        .nodes(urls)
        .max_ttl(job.ttl)
        .node_timeout(job.patience)
        .connect_timeout(job.patience.max(CONNECT_MIN));
    match job.work {
        Work::CountUnguarded => builder.restart_guard(RestartGuard::Off),
        _ => builder,
    }
}

fn ready(nodes: impl Iterator<Item = NodeStatus>) -> usize {
    nodes.filter(|node| node.state == NodeState::Ready).count()
}

/// The blocking handle, with a lock of the kind that the work says.
pub struct Muxlock {
    redlock: Redlock,
    work: Work,
    ttl: Duration,
    /// As many as the lock has resources.
    names: Vec<String>,
}

impl Muxlock {
    /// One lock.
    pub fn for_job(job: &Job) -> Result<Muxlock, Failure> {
        Ok(Muxlock { redlock: settled(job)?, work: job.work, ttl: job.ttl, names: job.keys() })
    }

    /// The same handle for each of several threads, each with a resource of its own.
    pub fn for_threads(job: &Job) -> Result<Vec<Muxlock>, Failure> {
        let redlock = settled(job)?;
        let thread = |slot| {
            let (redlock, names) = (redlock.clone(), vec![slot_key(slot)]);
            Muxlock { redlock, work: job.work, ttl: job.ttl, names }
        };
        Ok((0..job.size).map(thread).collect())
    }
}

/// A handle for which every master votes that can.
fn settled(job: &Job) -> Result<Redlock, Failure> {
    waiting(job, Waiting::default())
}

/// The same, with this way of waiting.
pub fn waiting(job: &Job, waiting: Waiting) -> Result<Redlock, Failure> {
    let redlock = builder(job).waiting(waiting).build()?;
    let give_up_at = clock::now() + SETTLE_MAX;
    loop {
        let voting = ready(redlock.nodes().into_iter());
        if voting >= job.alive {
            return Ok(redlock);
        }
        if clock::now() > give_up_at {
            return Err(format!("{voting} of {} masters vote: {redlock:?}", job.alive).into());
        }
        // Connections are made while somebody calls. A lock that is not released expires.
        if let Ok(guard) = redlock.try_lock(job.key(), job.ttl) {
            let _ = guard.unlock();
        }
    }
}

impl Locks for Muxlock {
    type Held = LockGuard;

    fn lock(&mut self) -> Option<LockGuard> {
        let taken = match self.work {
            Work::Share => self.redlock.try_read(&self.names[0], self.ttl),
            Work::Permit => self
                .redlock
                .semaphore(&self.names[0], PERMITS)
                .and_then(|semaphore| semaphore.try_acquire(self.ttl)),
            Work::Set => self.redlock.try_lock_all(&self.names, self.ttl),
            _ => self.redlock.try_lock(&self.names[0], self.ttl),
        };
        taken.ok()
    }

    fn unlock(&mut self, held: LockGuard) -> bool {
        held.unlock().is_ok_and(|released| released.was_held())
    }
}

/// The blocking handle that goes from one of two locks to the other, and always holds one.
pub struct Swapping {
    redlock: Redlock,
    ttl: Duration,
    names: [String; 2],
    held: Option<LockGuard>,
}

impl Swapping {
    /// The same handle for each of several threads.
    pub fn for_threads(job: &Job) -> Result<Vec<Swapping>, Failure> {
        let redlock = settled(job)?;
        let thread = |slot| {
            // It holds a lock between two turns, and when it is ended: no other has its names.
            let process = std::process::id();
            let names = [0, 1].map(|at| format!("swap:{process}:{slot}:{at}"));
            Swapping { redlock: redlock.clone(), ttl: job.ttl, names, held: None }
        };
        Ok((0..job.size).map(thread).collect())
    }
}

impl Locks for Swapping {
    type Held = ();

    fn lock(&mut self) -> Option<()> {
        self.names.swap(0, 1);
        let next = match self.held.take() {
            Some(held) => self.redlock.swap(held, &self.names[0], self.ttl),
            None => self.redlock.try_lock(&self.names[0], self.ttl),
        };
        self.held = next.ok();
        self.held.as_ref().map(|_| ())
    }

    /// The next swap does.
    fn unlock(&mut self, (): ()) -> bool {
        true
    }
}

/// The blocking handle whose locks come with fencing tokens.
pub struct Fencing {
    redlock: FencedRedlock,
    ttl: Duration,
    name: String,
}

impl Fencing {
    /// One resource.
    pub fn for_job(job: &Job) -> Result<Fencing, Failure> {
        Ok(Fencing { redlock: settled(job)?.fenced(), ttl: job.ttl, name: job.key() })
    }
}

impl Locks for Fencing {
    type Held = Fenced<LockGuard>;

    fn lock(&mut self) -> Option<Fenced<LockGuard>> {
        self.redlock.try_lock(&self.name, self.ttl).ok()
    }

    fn unlock(&mut self, held: Fenced<LockGuard>) -> bool {
        held.unlock().is_ok_and(|released| released.was_held())
    }
}

/// A new handle for each lock.
pub struct First {
    job: Job,
    urls: Vec<String>,
    key: String,
}

impl First {
    /// One resource.
    pub fn for_job(job: &Job) -> First {
        First { job: job.clone(), urls: job.urls(), key: job.key() }
    }
}

impl Locks for First {
    type Held = LockGuard;

    fn lock(&mut self) -> Option<LockGuard> {
        let redlock = builder_of(&self.job, &self.urls).build().ok()?;
        redlock.try_lock(&self.key, self.job.ttl).ok()
    }

    fn unlock(&mut self, held: LockGuard) -> bool {
        held.unlock().is_ok_and(|released| released.was_held())
    }
}

/// The guest in an event loop, with many resources at once.
pub struct Guest {
    poll: Poll,
    events: Events,
    mux: Multiplexer,
    ttl: Duration,
    names: Vec<String>,
    /// The slot of each operation, by its place.
    slots: Vec<usize>,
    results: Vec<(OpId, Done)>,
    under_way: usize,
}

impl Guest {
    /// As many resources as the job is large.
    pub fn for_job(job: &Job) -> Result<Guest, Failure> {
        let poll = Poll::new()?;
        let mux = Multiplexer::new(builder(job).config()?, poll.registry(), Token(0))?;
        let mut guest = Guest {
            poll,
            events: Events::with_capacity(EVENTS),
            mux,
            ttl: job.ttl,
            names: (0..job.size).map(slot_key).collect(),
            slots: vec![0; job.size],
            results: Vec::with_capacity(job.size),
            under_way: 0,
        };
        guest.settle(job.alive)?;
        Ok(guest)
    }

    fn settle(&mut self, alive: usize) -> Result<(), Failure> {
        let give_up_at = clock::now() + SETTLE_MAX;
        while ready(self.mux.nodes()) < alive {
            if clock::now() > give_up_at {
                return Err(format!("not all masters vote: {:?}", self.mux).into());
            }
            self.mux.connect();
            let limit = Duration::from_millis(10);
            self.poll(Some(self.mux.next_timeout().map_or(limit, |next| next.min(limit))))?;
        }
        Ok(())
    }

    fn poll(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => other?,
        }
        self.mux.handle_events(&self.events);
        Ok(())
    }

    fn lock(&mut self, slot: usize) -> io::Result<()> {
        let op = self.mux.try_lock(&self.names[slot], self.ttl).map_err(io::Error::from)?;
        self.note(op, slot);
        Ok(())
    }

    fn unlock(&mut self, slot: usize, lease: Lease) {
        let op = self.mux.unlock(lease);
        self.note(op, slot);
    }

    fn note(&mut self, op: OpId, slot: usize) {
        if self.slots.len() <= op.index() {
            self.slots.resize(op.index() + 1, 0);
        }
        self.slots[op.index()] = slot;
        self.under_way += 1;
    }
}

impl Flight for Guest {
    fn start(&mut self) -> io::Result<()> {
        (0..self.names.len()).try_for_each(|slot| self.lock(slot))?;
        self.mux.flush();
        Ok(())
    }

    fn turn(&mut self, go_on: bool) -> io::Result<Turned> {
        self.poll(self.mux.next_timeout())?;
        let mut turned = Turned::default();
        let mut results = std::mem::take(&mut self.results);
        self.mux.take_all_done(&mut results);
        // Their places are used again as soon as the first of them is followed by another.
        let slots: Vec<usize> = results.iter().map(|(op, _)| self.slots[op.index()]).collect();
        self.under_way -= results.len();
        for ((_, done), slot) in results.drain(..).zip(slots) {
            let has_failed = match done {
                Done::Acquired(Ok(lease)) => {
                    self.unlock(slot, lease);
                    continue;
                }
                Done::Released(Ok(_)) => false,
                Done::Acquired(Err(_)) | Done::Extended(..) | Done::Released(Err(_)) => true,
                other => unreachable!("no such operation was started: {other:?}"),
            };
            turned.done += 1;
            turned.failed += u64::from(has_failed);
            if go_on {
                self.lock(slot)?;
            }
        }
        self.results = results;
        self.mux.flush();
        Ok(turned)
    }

    fn under_way(&self) -> usize {
        self.under_way
    }
}
