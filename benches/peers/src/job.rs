//! What a worker is asked to do, and what it answers: words and lines between two processes.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// More than one plan has.
const WORKERS: usize = 100;
/// Of a semaphore of which one is taken at a time.
pub const PERMITS: u32 = 5;

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// The loop written by hand.
    Floor,
    /// This crate.
    Muxlock,
    /// The asynchronous client.
    Rslock,
    /// The synchronous client.
    Redlock,
    /// One master, without any quorum, for scale.
    Redis,
}

impl Client {
    /// All of them.
    pub const ALL: [Client; 5] =
        [Client::Floor, Client::Muxlock, Client::Rslock, Client::Redlock, Client::Redis];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Client::Floor => "floor",
            Client::Muxlock => "muxlock",
            Client::Rslock => "rslock",
            Client::Redlock => "redlock",
            Client::Redis => "redis",
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Acquire and release, one after the other.
    Pair,
    /// The same, with a fencing token.
    Fenced,
    /// The same with locks of other kinds: a share; a permit of several; several resources.
    Share,
    Permit,
    Set,
    /// Acquire and release; only the acquisition is timed.
    Acquire,
    /// Acquire, and let go without waiting if the client can.
    Drop,
    /// `size` pairs that are counted, not timed; and without the restart guard.
    Count,
    CountUnguarded,
    /// `size` pairs a second.
    Steady,
    /// The first lock of a new client.
    First,
    /// Nothing, with `size` locks that are kept alive.
    Idle,
    /// Pairs over `size` resources in turn.
    Resources,
    /// `size` pairs at once on one thread.
    InFlight,
    /// `size` threads on one client, each with a resource of its own.
    Threads,
    /// From lock to lock on `size` threads of one client.
    Swap,
    /// `size` clients that want the same resource.
    HandOff,
}

impl Work {
    const ALL: [(Work, &'static str); 17] = [
        (Work::Pair, "pair"),
        (Work::Fenced, "fenced"),
        (Work::Share, "share"),
        (Work::Permit, "permit"),
        (Work::Set, "set"),
        (Work::Acquire, "acquire"),
        (Work::Drop, "drop"),
        (Work::Count, "count"),
        (Work::CountUnguarded, "count-unguarded"),
        (Work::Steady, "steady"),
        (Work::First, "first"),
        (Work::Idle, "idle"),
        (Work::Resources, "resources"),
        (Work::InFlight, "in-flight"),
        (Work::Threads, "threads"),
        (Work::Swap, "swap"),
        (Work::HandOff, "hand-off"),
    ];
}

/// What a worker is asked to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub client: Client,
    pub work: Work,
    /// How many of what the work is made of.
    pub size: usize,
    /// The masters, all on this machine.
    pub ports: Vec<u16>,
    /// How many of them can be connected to.
    pub alive: usize,
    /// How long one turn is.
    pub slice: Duration,
    /// How long a lock lives; no lock of any worker on these masters lives longer.
    pub ttl: Duration,
    /// How long a client waits for one master, if it can be told.
    pub patience: Duration,
    /// How long nothing is done between two pairs.
    pub pause: Duration,
    /// Tells the keys of workers apart.
    pub number: u32,
    /// The file with the root of the masters' certificates, if they are connected to with TLS.
    pub ca: Option<PathBuf>,
}

impl Job {
    /// As arguments of a command line.
    pub fn to_args(&self) -> Vec<String> {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        let numbers = [
            self.size as u128,
            self.alive as u128,
            self.slice.as_millis(),
            self.ttl.as_millis(),
            self.patience.as_millis(),
            self.pause.as_millis(),
            u128::from(self.number),
        ];
        let name = |work: Work| Work::ALL.into_iter().find(|(known, _)| *known == work);
        let mut args = vec![
            self.client.name().to_owned(),
            name(self.work).map_or_else(String::new, |(_, name)| name.to_owned()),
            ports.join(","),
        ];
        args.extend(numbers.map(|number| number.to_string()));
        args.extend(self.ca.iter().map(|path| path.display().to_string()));
        args
    }

    /// From arguments of a command line.
    pub fn from_args(args: &[String]) -> Option<Job> {
        let [client, work, ports, size, alive, slice, ttl, patience, pause, number, ca @ ..] = args
        else {
            return None;
        };
        let millis = |text: &String| Some(Duration::from_millis(text.parse().ok()?));
        Some(Job {
            client: Client::ALL.into_iter().find(|known| known.name() == client)?,
            work: Work::ALL.into_iter().find(|(_, name)| name == work)?.0,
            ports: ports.split(',').map(|port| port.parse().ok()).collect::<Option<_>>()?,
            size: size.parse().ok()?,
            alive: alive.parse().ok()?,
            slice: millis(slice)?,
            ttl: millis(ttl)?,
            patience: millis(patience)?,
            pause: millis(pause)?,
            number: number.parse().ok()?,
            ca: ca.first().map(PathBuf::from),
        })
    }

    /// The one key of work that needs one; as long as every other.
    pub fn key(&self) -> String {
        slot_key(self.number as usize)
    }

    /// The keys of one lock, which no other worker of its plan has; the first is the one above.
    pub fn keys(&self) -> Vec<String> {
        let count = if self.work == Work::Set { self.size } else { 1 };
        (0..count).map(|slot| slot_key(self.number as usize + slot * WORKERS)).collect()
    }

    /// As most clients want it.
    pub fn ttl_ms(&self) -> u64 {
        u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX)
    }

    /// As most clients want them.
    pub fn urls(&self) -> Vec<String> {
        let url = |port: &u16| match &self.ca {
            Some(ca) => format!("rediss://127.0.0.1:{port}?ca={}", ca.display()),
            None => format!("redis://127.0.0.1:{port}"),
        };
        self.ports.iter().map(url).collect()
    }
}

/// A key with a number, as long as every other.
pub fn slot_key(slot: usize) -> String {
    format!("bench:{slot:08}")
}

/// What came out of one turn. What was not measured is zero or not a number.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Pairs that ended.
    pub done: f64,
    /// Those of them of which a half failed; for a hand-off, two holders at once.
    pub failed: f64,
    /// The median, in nanoseconds.
    pub p50: f64,
    /// In nanoseconds.
    pub p99: f64,
    pub p999: f64,
    pub longest: f64,
    /// Pairs in a second.
    pub rate: f64,
    /// Time that the client computed for a pair, in nanoseconds.
    pub cpu: f64,
    /// The fewest pairs that one of several clients got.
    pub least: f64,
    /// The most pairs that one of several clients got.
    pub most: f64,
    /// Bytes for each operation under way, or lock that is kept alive, or of an idle client.
    pub memory: f64,
    /// How often the client wakes up in a second.
    pub wakes: f64,
    /// Heap allocations for each pair.
    pub allocations: f64,
    /// Instructions in user space for each pair.
    pub instructions: f64,
    /// System calls for each pair.
    pub calls: f64,
    /// Between two holders, in nanoseconds.
    pub gap_p99: f64,
    pub longest_gap: f64,
    pub longest_wait: f64,
    /// Calls of SET on all masters, for each acquisition.
    pub sets: f64,
    /// Time that all masters computed for an acquisition, in nanoseconds.
    pub server_cpu: f64,
}

impl Sample {
    fn figures(&mut self) -> [&mut f64; 20] {
        [
            &mut self.done,
            &mut self.failed,
            &mut self.p50,
            &mut self.p99,
            &mut self.p999,
            &mut self.longest,
            &mut self.rate,
            &mut self.cpu,
            &mut self.least,
            &mut self.most,
            &mut self.memory,
            &mut self.wakes,
            &mut self.allocations,
            &mut self.instructions,
            &mut self.calls,
            &mut self.gap_p99,
            &mut self.longest_gap,
            &mut self.longest_wait,
            &mut self.sets,
            &mut self.server_cpu,
        ]
    }

    /// Whether more failed than not: its times are those of failing.
    pub fn is_failure(&self) -> bool {
        self.done == 0.0 || 2.0 * self.failed > self.done
    }
}

/// The first word of a line with a sample.
const SAMPLE: &str = "sample";

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SAMPLE)?;
        self.clone().figures().into_iter().try_for_each(|figure| write!(f, " {figure}"))
    }
}

impl FromStr for Sample {
    type Err = ();

    fn from_str(line: &str) -> Result<Sample, ()> {
        let mut words = line.split(' ');
        if words.next() != Some(SAMPLE) {
            return Err(());
        }
        let mut sample = Sample::default();
        for figure in sample.figures() {
            *figure = words.next().and_then(|word| word.parse().ok()).ok_or(())?;
        }
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_survives_a_command_line() {
        let job = Job {
            client: Client::Rslock,
            work: Work::HandOff,
            size: 16,
            ports: vec![1, 65_535],
            alive: 2,
            slice: Duration::from_millis(150),
            ttl: Duration::from_secs(2),
            patience: Duration::from_millis(50),
            pause: Duration::from_millis(1),
            number: 7,
            ca: None,
        };
        assert_eq!(Job::from_args(&job.to_args()), Some(job.clone()));
        let over_tls = Job { ca: Some("/a/ca.pem".into()), ..job.clone() };
        assert_eq!(Job::from_args(&over_tls.to_args()), Some(over_tls.clone()));
        assert_eq!(over_tls.urls()[0], "rediss://127.0.0.1:1?ca=/a/ca.pem");
        assert_eq!(Job::from_args(&job.to_args()[1..]), None);
    }

    #[test]
    fn sample_survives_a_line() {
        let sample = Sample { done: 1e6, p50: 70_123.5, most: 3.0, ..Sample::default() };
        assert_eq!(sample.to_string().parse(), Ok(sample));
        assert_eq!("panicked at sample 1 2".parse::<Sample>(), Err(()));
    }

    #[test]
    fn sample_without_successes_is_a_failure() {
        let sample = |done, failed| Sample { done, failed, ..Sample::default() };
        assert!(sample(0.0, 0.0).is_failure());
        assert!(sample(3.0, 2.0).is_failure());
        assert!(!sample(4.0, 2.0).is_failure());
    }
}
