//! One process of those that want the same lock: it begins and ends at moments that it is told, and
//! writes down when it began to want the lock, got it, and let it go.

use std::io::{self, BufWriter, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ::muxlock::LockGuard;
use ::muxlock::settings::Waiting;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::figures::{Record, Share};
use crate::clients::redlock::Redlock;
use crate::clients::rslock::Rslock;
use crate::clients::{Failure, Locks, muxlock};
use crate::clock;
use crate::floor::Floor;
use crate::job::Job;
use crate::worker::READY;

/// How long one call may wait: longer than any turn with what follows it.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most acquisitions that are written down.
const RECORDS: usize = 1 << 18;

/// How a contender waits, and what it does with the lock.
#[derive(Debug, Clone)]
pub struct Task {
    pub way: String,
    /// The least and the most, in microseconds.
    pub hold: (u64, u64),
    pub job: Job,
}

impl Task {
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![self.way.clone(), self.hold.0.to_string(), self.hold.1.to_string()];
        args.extend(self.job.to_args());
        args
    }

    fn from_args(args: &[String]) -> Option<Task> {
        let [way, least, most, job @ ..] = args else {
            return None;
        };
        let hold = (least.parse().ok()?, most.parse().ok()?);
        Some(Task { way: way.clone(), hold, job: Job::from_args(job)? })
    }

    /// Between the least and the most, another one each time.
    fn hold(&self, count: usize) {
        let (least, most) = self.hold;
        let step = count as u64 * 7_919 % (most - least + 1);
        if most > 0 {
            clock::pause(Duration::from_micros(least + step));
        }
    }
}

/// The ways to wait; the last is followed by a place, a slash and how many places there are.
pub const QUEUE: &str = "queue";
pub const RETRY: &str = "retry";
pub const RSLOCK: &str = "rslock";
pub const REDLOCK: &str = "redlock";
pub const TOLD: &str = "told";

/// Does what the arguments say.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let task = Task::from_args(args).ok_or("these are no arguments of a contender")?;
    // A contender that hangs must not outlive the process that measures it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let job = &task.job;
    let waiter = |waiting| -> Result<Waiter, Failure> {
        Ok(Waiter { redlock: muxlock::waiting(job, waiting)?, key: job.key(), ttl: job.ttl })
    };
    match task.way.as_str() {
        QUEUE => contend(&task, waiter(Waiting::Queue)?),
        RETRY => contend(&task, waiter(Waiting::Retry)?),
        RSLOCK => {
            let client = Rslock::for_job(job)?;
            contend(&task, Other { client, validity: |held| held.validity_time })
        }
        REDLOCK => {
            let client = Redlock::for_job(job)?;
            contend(&task, Other { client, validity: |held| held.validity_time })
        }
        _ => match task.way.strip_prefix(TOLD) {
            Some(place) => contend(&task, Told::connect(job, place)?),
            None => Err("there is no such way to wait".into()),
        },
    }
}

/// One that wants the lock.
trait Contends {
    type Held;

    /// Waits for the lock, until `end` at the least; how long it is valid.
    fn take(&mut self, end: u64) -> Option<(Self::Held, Duration)>;

    fn give(&mut self, held: Self::Held);
}

struct Waiter {
    redlock: ::muxlock::Redlock,
    key: String,
    ttl: Duration,
}

impl Contends for Waiter {
    type Held = LockGuard;

    fn take(&mut self, _end: u64) -> Option<(LockGuard, Duration)> {
        let guard = self.redlock.try_lock_for(&self.key, self.ttl, PATIENCE).ok()?;
        let remaining = guard.remaining();
        Some((guard, remaining))
    }

    fn give(&mut self, held: LockGuard) {
        // A lock that has expired shows as one that overlaps, or not at all.
        let _ = held.unlock();
    }
}

/// Another client, which gives up after some attempts and is asked again.
struct Other<C: Locks> {
    client: C,
    /// In milliseconds.
    validity: fn(&C::Held) -> usize,
}

impl<C: Locks> Contends for Other<C> {
    type Held = C::Held;

    fn take(&mut self, end: u64) -> Option<(C::Held, Duration)> {
        while clock::monotonic() < end {
            if let Some(held) = self.client.lock() {
                let validity = Duration::from_millis((self.validity)(&held) as u64);
                return Some((held, validity));
            }
        }
        None
    }

    fn give(&mut self, held: C::Held) {
        self.client.unlock(held);
    }
}

/// One of several in a ring: each tells the next one, through a channel of the first master, in the
/// same write as the release there. Nothing that hands a lock on in order does less.
struct Told {
    floor: Floor,
    inbox: TcpStream,
    message: Vec<u8>,
    ttl: Duration,
    is_first: bool,
}

/// How long one waits for its turn.
const TOLD_MAX: Duration = Duration::from_secs(2);

impl Told {
    fn connect(job: &Job, place: &str) -> Result<Told, Failure> {
        let (place, count) = place.split_once('/').ok_or("a place lacks its ring")?;
        let next = (place.parse::<usize>()? + 1) % count.parse::<usize>()?;
        let port = job.ports.first().ok_or("there is no master")?;
        let mut inbox = TcpStream::connect(("127.0.0.1", *port))?;
        inbox.set_nodelay(true)?;
        inbox.set_read_timeout(Some(TOLD_MAX))?;
        let channel = |place: &str| format!("{}:{place}", job.key());
        let mine = channel(place);
        write!(inbox, "*2\r\n$9\r\nSUBSCRIBE\r\n${}\r\n{mine}\r\n", mine.len())?;
        let mut told = Told {
            floor: Floor::for_job(job)?,
            inbox,
            message: publication(&channel(&next.to_string())),
            ttl: job.ttl,
            is_first: place == "0",
        };
        if !told.hears(b":1\r\n") {
            return Err("the subscription was refused".into());
        }
        Ok(told)
    }

    /// Reads until something ends like this; whether it came.
    fn hears(&mut self, ending: &[u8]) -> bool {
        let (mut heard, mut bytes) = (Vec::new(), [0; 256]);
        while !heard.ends_with(ending) {
            match self.inbox.read(&mut bytes) {
                Ok(count @ 1..) if heard.len() < 4_096 => heard.extend_from_slice(&bytes[..count]),
                _ => return false,
            }
        }
        true
    }
}

fn publication(channel: &str) -> Vec<u8> {
    format!("*3\r\n$7\r\nPUBLISH\r\n${}\r\n{channel}\r\n$1\r\ng\r\n", channel.len()).into_bytes()
}

impl Contends for Told {
    type Held = ();

    fn take(&mut self, end: u64) -> Option<((), Duration)> {
        if !std::mem::take(&mut self.is_first) && !self.hears(b"$1\r\ng\r\n") {
            return None;
        }
        // A master may read this SET before the release that was sent before it.
        while self.floor.lock().is_none() {
            if clock::monotonic() >= end {
                // The next one waits for its turn all the same.
                self.give(());
                return None;
            }
        }
        Some(((), self.ttl))
    }

    fn give(&mut self, (): ()) {
        // Without it the next one hears nothing, which is seen.
        let _ = self.floor.hand_on(&self.message);
    }
}

/// Stands ready, is told when to begin and to end, works, and tells what it wrote down.
fn contend<C: Contends>(task: &Task, mut contender: C) -> Result<(), Failure> {
    println!("{READY}");
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::parse);
    let (Some(Ok(start)), Some(Ok(end))) = (words.next(), words.next()) else {
        return Err("these are no times".into());
    };
    let cpu = clock::cpu();
    let Share { records, in_vain } = work(task, &mut contender, start, end);
    let mut out = BufWriter::new(io::stdout().lock());
    writeln!(out, "cpu {}", (clock::cpu() - cpu).as_nanos())?;
    for Record { begun, granted, let_go, valid_until } in records {
        writeln!(out, "{begun} {granted} {let_go} {valid_until}")?;
    }
    for wait in in_vain {
        writeln!(out, "vain {wait}")?;
    }
    writeln!(out, "end")?;
    out.flush()?;
    drop(out);
    // It stays until its computing time was read.
    io::stdin().read_line(&mut line)?;
    Ok(())
}

fn work<C: Contends>(task: &Task, contender: &mut C, start: u64, end: u64) -> Share {
    let mut share = Share::default();
    clock::pause(Duration::from_nanos(start.saturating_sub(clock::monotonic())));
    while share.records.len() < RECORDS {
        let begun = clock::monotonic();
        if begun >= end {
            break;
        }
        let Some((held, validity)) = contender.take(end) else {
            share.in_vain.push(clock::monotonic() - begun);
            continue;
        };
        let granted = clock::monotonic();
        if granted < end {
            task.hold(share.records.len());
        }
        let let_go = clock::monotonic();
        contender.give(held);
        let valid_until = granted + validity.as_nanos() as u64;
        share.records.push(Record { granted, begun, let_go, valid_until });
        if !task.job.pause.is_zero() {
            clock::pause(task.job.pause);
        }
    }
    share
}
