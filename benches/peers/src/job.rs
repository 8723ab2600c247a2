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
    /// `size` pairs that are counted, not timed; and without the restart guard.
    Count,
    CountUnguarded,
    /// The first lock of a new client.
    First,
    /// `size` pairs at once on one thread.
    InFlight,
    /// `size` threads on one client, each with a resource of its own.
    Threads,
    /// From lock to lock on `size` threads of one client.
    Swap,
}

impl Work {
    const ALL: [Work; 12] = [
        Work::Pair,
        Work::Fenced,
        Work::Share,
        Work::Permit,
        Work::Set,
        Work::Acquire,
        Work::Count,
        Work::CountUnguarded,
        Work::First,
        Work::InFlight,
        Work::Threads,
        Work::Swap,
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
        let mut args =
            vec![self.client.name().to_owned(), format!("{:?}", self.work), ports.join(",")];
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
            work: Work::ALL.into_iter().find(|known| format!("{known:?}") == *work)?,
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

macro_rules! sample {
    ($($(#[$doc:meta])* $figure:ident)*) => {
        /// What came out of one turn. What was not measured is zero or not a number.
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct Sample { $($(#[$doc])* pub $figure: f64,)* }

        impl Sample {
            fn figures(&mut self) -> Vec<&mut f64> {
                vec![$(&mut self.$figure),*]
            }
        }
    };
}

sample! {
    /// Pairs that ended.
    done
    /// Those of them of which a half failed; in contention, two holders at once.
    failed
    /// The median, in nanoseconds.
    p50
    p99
    /// Pairs in a second.
    rate
    /// Time that the client computed for a pair, in nanoseconds.
    cpu
    /// Time that all masters computed for a pair, in nanoseconds.
    server_cpu
    /// The fewest pairs that one of several clients got, and the most.
    least
    most
    /// Of a pair.
    allocations
    instructions
    calls
    /// Between two holders, in nanoseconds.
    gap_p99
    longest_gap
    longest_wait
    /// Calls of SET on all masters, for each acquisition.
    sets
}

impl Sample {
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
            work: Work::InFlight,
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
