//! One process of those that want the same lock: it begins and ends at moments that it is told, and
//! writes down when it began to want the lock, got it, and let it go.

use std::io::{self, BufWriter, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use ::muxlock::settings::Waiting;
use ::muxlock::{LockGuard, Redlock};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::figures::{Record, Share};
use crate::clients::rslock::Rslock;
use crate::clients::{Failure, Locks, muxlock};
use crate::clock;
use crate::floor::{Floor, Kind};
use crate::job::{Client, Job, Work};
use crate::worker::{READY, WARM_UP};

/// How long one call may wait: longer than any turn with what follows it.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most acquisitions of one thread that are written down.
const RECORDS: usize = 1 << 18;

/// How a contender waits, and what it does with the lock.
#[derive(Debug, Clone)]
pub struct Task {
    pub way: String,
    pub threads: usize,
    pub ports: Vec<u16>,
    pub key: u32,
    pub ttl_ms: u64,
    /// The least and the most.
    pub hold_us: (u64, u64),
    pub pause_us: u64,
}

impl Task {
    pub fn to_args(&self) -> Vec<String> {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        let numbers = [
            self.threads as u64,
            self.key.into(),
            self.ttl_ms,
            self.hold_us.0,
            self.hold_us.1,
            self.pause_us,
        ];
        let mut args = vec![self.way.clone(), ports.join(",")];
        args.extend(numbers.map(|number| number.to_string()));
        args
    }

    fn from_args(args: &[String]) -> Option<Task> {
        let [way, ports, numbers @ ..] = args else {
            return None;
        };
        let ports = ports.split(',').map(|port| port.parse().ok()).collect::<Option<_>>()?;
        let numbers: Option<Vec<u64>> = numbers.iter().map(|word| word.parse().ok()).collect();
        let [threads, key, ttl_ms, least, most, pause_us] = numbers?.try_into().ok()?;
        let (threads, key) = (usize::try_from(threads).ok()?, u32::try_from(key).ok()?);
        let (way, hold_us) = (way.clone(), (least, most));
        Some(Task { way, threads, ports, key, ttl_ms, hold_us, pause_us })
    }

    fn job(&self, client: Client) -> Job {
        Job {
            client,
            work: Work::Pair,
            size: 1,
            ports: self.ports.clone(),
            alive: self.ports.len(),
            slice: WARM_UP,
            ttl: Duration::from_millis(self.ttl_ms),
            patience: Duration::from_millis(50),
            pause: Duration::ZERO,
            number: self.key,
            ca: None,
        }
    }

    /// Between the least and the most, another one each time.
    fn hold(&self, count: usize) {
        let (least, most) = self.hold_us;
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
pub const SPIN: &str = "spin";
pub const TOLD: &str = "told";

/// Does what the arguments say.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let task = Task::from_args(args).ok_or("these are no arguments of a contender")?;
    // A contender that hangs must not outlive the process that measures it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let ttl = Duration::from_millis(task.ttl_ms);
    let waiters = |waiting| -> Result<Vec<Waiter>, Failure> {
        let redlock = muxlock::waiting(&task.job(Client::Muxlock), waiting)?;
        let key = task.job(Client::Muxlock).key();
        Ok((0..task.threads)
            .map(|_| Waiter { redlock: redlock.clone(), key: key.clone(), ttl })
            .collect())
    };
    match task.way.as_str() {
        QUEUE => on_threads(&task, waiters(Waiting::Queue)?),
        RETRY => on_threads(&task, waiters(Waiting::Retry)?),
        RSLOCK => alone(&task, Rslock::for_job(&task.job(Client::Rslock))?),
        SPIN => alone(&task, Spinner(floor(&task)?, ttl)),
        _ => match task.way.strip_prefix(TOLD) {
            Some(place) => alone(&task, Told::connect(&task, place)?),
            None => Err("there is no such way to wait".into()),
        },
    }
}

fn floor(task: &Task) -> io::Result<Floor> {
    Floor::connect(&task.ports, &task.job(Client::Floor).keys(), task.ttl_ms, Kind::Plain)
}

/// One that wants the lock.
trait Contends {
    type Held;

    /// Waits for the lock, until `end` at the least; how long it is valid.
    fn take(&mut self, end: u64) -> Option<(Self::Held, Duration)>;

    fn give(&mut self, held: Self::Held);
}

struct Waiter {
    redlock: Redlock,
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

impl Contends for Rslock {
    type Held = rslock::Lock;

    fn take(&mut self, end: u64) -> Option<(rslock::Lock, Duration)> {
        while clock::monotonic() < end {
            if let Some(held) = self.lock() {
                let validity = Duration::from_millis(held.validity_time as u64);
                return Some((held, validity));
            }
        }
        None
    }

    fn give(&mut self, held: rslock::Lock) {
        self.unlock(held);
    }
}

/// Asks again at once.
struct Spinner(Floor, Duration);

impl Contends for Spinner {
    type Held = ();

    fn take(&mut self, end: u64) -> Option<((), Duration)> {
        while clock::monotonic() < end {
            if self.0.lock().is_some() {
                return Some(((), self.1));
            }
        }
        None
    }

    fn give(&mut self, (): ()) {
        self.0.unlock(());
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
    fn connect(task: &Task, place: &str) -> Result<Told, Failure> {
        let (place, count) = place.split_once('/').ok_or("a place lacks its ring")?;
        let next = (place.parse::<usize>()? + 1) % count.parse::<usize>()?;
        let port = task.ports.first().ok_or("there is no master")?;
        let mut inbox = TcpStream::connect(("127.0.0.1", *port))?;
        inbox.set_nodelay(true)?;
        inbox.set_read_timeout(Some(TOLD_MAX))?;
        let channel = |place: &str| format!("bench:{:08}:{place}", task.key);
        let mine = channel(place);
        write!(inbox, "*2\r\n$9\r\nSUBSCRIBE\r\n${}\r\n{mine}\r\n", mine.len())?;
        let mut told = Told {
            floor: floor(task)?,
            inbox,
            message: publication(&channel(&next.to_string())),
            ttl: Duration::from_millis(task.ttl_ms),
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

fn alone<C: Contends>(task: &Task, mut contender: C) -> Result<(), Failure> {
    contend(|start, end| vec![one(task, &mut contender, start, end)])
}

fn on_threads<C: Contends + Send>(task: &Task, mut contenders: Vec<C>) -> Result<(), Failure> {
    contend(|start, end| {
        thread::scope(|scope| {
            let spawn = |contender| scope.spawn(move || one(task, contender, start, end));
            let threads: Vec<_> = contenders.iter_mut().map(spawn).collect();
            // A thread that panics must not look like one that got nothing.
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    })
}

/// Stands ready, is told when to begin and to end, works, and tells what it wrote down.
fn contend(work: impl FnOnce(u64, u64) -> Vec<Share>) -> Result<(), Failure> {
    println!("{READY}");
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::parse);
    let (Some(Ok(start)), Some(Ok(end))) = (words.next(), words.next()) else {
        return Err("these are no times".into());
    };
    let cpu = clock::cpu();
    let shares = work(start, end);
    let mut out = BufWriter::new(io::stdout().lock());
    writeln!(out, "cpu {}", (clock::cpu() - cpu).as_nanos())?;
    for Share { records, in_vain } in shares {
        writeln!(out, "thread")?;
        for Record { begun, granted, let_go, valid_until } in records {
            writeln!(out, "{begun} {granted} {let_go} {valid_until}")?;
        }
        for wait in in_vain {
            writeln!(out, "vain {wait}")?;
        }
    }
    writeln!(out, "end")?;
    out.flush()?;
    drop(out);
    // It stays until its computing time was read.
    io::stdin().read_line(&mut line)?;
    Ok(())
}

fn one<C: Contends>(task: &Task, contender: &mut C, start: u64, end: u64) -> Share {
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
        if task.pause_us > 0 {
            clock::pause(Duration::from_micros(task.pause_us));
        }
    }
    share
}
