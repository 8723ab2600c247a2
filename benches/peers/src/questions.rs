//! The questions that are asked, and what is measured to answer each.

use std::io;
use std::time::Duration;

use testbed::proxy::DelayProxy;
use testbed::scripted::refused_addr;

use crate::columns::{
    CONTENTION, COUNTS, Column, FAR, FIRST, IN_FLIGHT, PAIRS, PAUSES, RATES, STOPPED, THREADS,
};
use crate::contention;
use crate::counts;
use crate::driver::{Cell, Entry, Plan, Player, Verdict, play};
use crate::job::{Client, Job, Work};
use crate::masters::Pool;

/// How many masters there are unless their number is the question.
const MASTERS: usize = 5;
/// How long a lock lives, and how long a young master is mistrusted.
const TTL: Duration = Duration::from_secs(2);
/// How long a client waits for one master: the default of this crate.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a client waits for a master that is far away.
const LONG_PATIENCE: Duration = Duration::from_secs(10);
/// What passes between a client and five masters and back.
const ROUND_TRIPS_MS: [u64; MASTERS] = [1, 2, 3, 40, 400];
const SET_RESOURCES: usize = 8;
/// Keys of different plans have different numbers, as long as a plan has fewer workers.
const NUMBERS: u32 = 10_000;

/// What can be asked.
pub struct Question {
    /// As on the command line.
    pub name: &'static str,
    /// Above its table in the page.
    pub title: &'static str,
    pub columns: &'static [Column],
    pub ask: Ask,
}

/// The answer to one.
pub struct Answer {
    pub question: &'static Question,
    pub cells: Vec<Cell>,
}

impl Question {
    pub fn named(name: &str) -> Option<&'static Question> {
        QUESTIONS.iter().find(|question| question.name == name)
    }
}

/// All, in the order of asking.
pub static QUESTIONS: [Question; 14] = [
    question("pairs", "Acquire and release, one after the other", PAIRS, Inquiry::pairs),
    question("pauses", "Acquire and release, with pauses in between", PAUSES, Inquiry::pauses),
    question("fenced", "With fencing tokens", PAIRS, Inquiry::fenced),
    question("kinds", "Other kinds of lock", PAIRS, Inquiry::kinds),
    question("tls", "Over TLS", PAIRS, Inquiry::tls),
    question("counts", "What a pair costs that can be counted", COUNTS, Inquiry::counts),
    question("distance", "Acquire from masters at different distances", FAR, Inquiry::distance),
    question("in-flight", "Many pairs at once on one thread", IN_FLIGHT, Inquiry::in_flight),
    question("threads", "Many threads on one client", THREADS, Inquiry::threads),
    question("swap", "From one lock to the next", RATES, Inquiry::swap),
    question("masters", "More masters", RATES, Inquiry::masters),
    question("contention", "One lock that many processes want", CONTENTION, Inquiry::contention),
    question("stopped", "A process that waits for a lock is stopped", STOPPED, Inquiry::stopped),
    question("first", "The first lock of a client", FIRST, Inquiry::first),
];

type Ask = fn(&mut Inquiry) -> io::Result<Vec<Cell>>;

const fn question(
    name: &'static str,
    title: &'static str,
    columns: &'static [Column],
    ask: Ask,
) -> Question {
    Question { name, title, columns, ask }
}

/// Who takes part: a label, a client, and its work.
type Contestant = (&'static str, Client, Work);

/// Asks questions, with as much effort as was asked for.
pub struct Inquiry {
    quick: bool,
    pool: Pool,
    next_number: u32,
}

impl Inquiry {
    /// Starts the masters.
    pub fn new(quick: bool) -> io::Result<Inquiry> {
        let pool = Pool::start(MASTERS)?;
        pool.ripen(TTL);
        Ok(Inquiry { quick, pool, next_number: 1 })
    }

    /// How often everything is repeated with fresh processes, and how often each client has its
    /// turn in each.
    fn repeats(&self) -> (usize, usize) {
        self.either((2, 8), (5, 14))
    }

    fn either<T>(&self, quick: T, thorough: T) -> T {
        if self.quick { quick } else { thorough }
    }

    fn bound(&self) -> Duration {
        Duration::from_secs(self.either(4, 10))
    }

    fn slice(&self) -> Duration {
        Duration::from_millis(self.either(50, 60))
    }

    fn job(&mut self, client: Client, work: Work) -> Job {
        self.next_number += NUMBERS;
        Job {
            client,
            work,
            size: 1,
            ports: self.pool.ports(),
            alive: MASTERS,
            slice: self.slice(),
            ttl: TTL,
            patience: PATIENCE,
            pause: Duration::ZERO,
            number: self.next_number % 90_000_000,
            ca: None,
        }
    }

    fn players(&mut self, contestants: &[Contestant], change: impl Fn(&mut Job)) -> Vec<Player> {
        let player = |(label, client, work): &Contestant| {
            let mut job = self.job(*client, *work);
            change(&mut job);
            Player { label: (*label).to_owned(), job }
        };
        contestants.iter().map(player).collect()
    }

    fn plan(&self, name: &str, players: Vec<Player>) -> Plan {
        let (repeats, turns) = self.repeats();
        let bound = self.bound();
        Plan { name: name.to_owned(), players, repeats, turns, frozen: 0, bound }
    }

    /// As most questions are asked.
    fn play(&mut self, name: &str, contestants: &[Contestant]) -> io::Result<Cell> {
        let players = self.players(contestants, |_| {});
        play(&self.plan(name, players), &self.pool)
    }

    fn pairs(&mut self) -> io::Result<Vec<Cell>> {
        let refused = refused_addr();
        let mut cells = Vec::new();
        let states = [("healthy", 0), ("refused", 0), ("frozen", 1), ("two-frozen", 2)];
        for (state, frozen) in states {
            let clients = if state == "healthy" { &Client::ALL[..] } else { &Client::ALL[..4] };
            let players = self.players(&each(clients, Work::Pair), |job| {
                if state == "refused" {
                    job.ports[MASTERS - 1] = refused.port();
                    job.alive = MASTERS - 1;
                }
            });
            let plan = Plan { frozen, ..self.plan(state, players) };
            cells.push(play(&plan, &self.pool)?);
        }
        Ok(cells)
    }

    /// Pairs of a client that does nothing in between, and what they are in instructions.
    fn pauses(&mut self) -> io::Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for millis in [15, 100] {
            let pause = Duration::from_millis(millis);
            let least = Duration::from_millis(self.either(750, 1_500));
            let players = self.players(&each(&Client::ALL[..2], Work::Pair), |job| {
                job.pause = pause;
                job.slice = (pause * 20).max(least);
            });
            let (repeats, turns) = self.either((2, 2), (3, 5));
            let name = format!("{millis} ms apart");
            let plan = Plan { repeats, turns, ..self.plan(&name, players) };
            let mut cell = play(&plan, &self.pool)?;
            for entry in &mut cell.entries {
                let job = Job { pause, ..self.job(entry.client, Work::Count) };
                let instructions = counts::instructions(&job);
                let samples = entry.samples.iter_mut().flatten();
                samples.for_each(|sample| sample.instructions = instructions);
            }
            cells.push(cell);
        }
        Ok(cells)
    }

    /// Beside pairs without fencing tokens.
    fn fenced(&mut self) -> io::Result<Vec<Cell>> {
        let contestants = [
            ("floor, fenced", Client::Floor, Work::Fenced),
            ("muxlock, fenced", Client::Muxlock, Work::Fenced),
            ("floor, plain", Client::Floor, Work::Pair),
            ("muxlock, plain", Client::Muxlock, Work::Pair),
        ];
        let cell = |(frozen, state)| {
            let players = self.players(&contestants, |_| {});
            play(&Plan { frozen, ..self.plan(state, players) }, &self.pool)
        };
        ["healthy", "frozen"].into_iter().enumerate().map(cell).collect()
    }

    /// Beside plain locks of the same client, and beside a floor that sends the same commands.
    fn kinds(&mut self) -> io::Result<Vec<Cell>> {
        let contestants = [
            ("plain lock", Client::Muxlock, Work::Pair),
            ("floor, plain", Client::Floor, Work::Pair),
            ("share", Client::Muxlock, Work::Share),
            ("floor, share", Client::Floor, Work::Share),
            ("permit, 1 of 5", Client::Muxlock, Work::Permit),
            ("floor, permit", Client::Floor, Work::Permit),
            ("set of 8", Client::Muxlock, Work::Set),
            ("floor, set of 8", Client::Floor, Work::Set),
        ];
        let players = self.players(&contestants, |job| {
            if job.work == Work::Set {
                job.size = SET_RESOURCES;
            }
        });
        Ok(vec![play(&self.plan("healthy", players), &self.pool)?])
    }

    /// With and without TLS, to the same masters.
    fn tls(&mut self) -> io::Result<Vec<Cell>> {
        let pool = match Pool::start_with_tls(MASTERS) {
            // There are servers without it.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                eprintln!("  left out: {error}");
                return Ok(Vec::new());
            }
            other => other?,
        };
        pool.ripen(TTL);
        let (tls_ports, ca) = pool.tls().ok_or(io::ErrorKind::NotFound)?;
        let contestants =
            ["muxlock, plain", "muxlock, TLS"].map(|label| (label, Client::Muxlock, Work::Pair));
        let mut players = self.players(&contestants, |job| job.ports = pool.ports());
        players[1].job.ports = tls_ports;
        players[1].job.ca = Some(ca);
        Ok(vec![play(&self.plan("healthy", players), &pool)?])
    }

    fn counts(&mut self) -> io::Result<Vec<Cell>> {
        let mut contestants = each(&Client::ALL, Work::Count);
        contestants.push(("muxlock, no guard", Client::Muxlock, Work::CountUnguarded));
        let count = |Player { label, job }| {
            eprintln!("  {label}");
            let counted = counts::count(&job);
            let sample = counted.inspect_err(|error| eprintln!("  {label}: {error}")).ok();
            let verdict = if sample.is_some() { Verdict::Measured } else { Verdict::Fails };
            Entry { label, client: job.client, verdict, samples: vec![sample] }
        };
        let entries = self.players(&contestants, |_| {}).into_iter().map(count).collect();
        Ok(vec![Cell { name: "one pair".to_owned(), entries }])
    }

    fn distance(&mut self) -> io::Result<Vec<Cell>> {
        let route = |(port, millis)| {
            DelayProxy::start(([127, 0, 0, 1], port).into(), Duration::from_millis(millis))
        };
        let routes = self.pool.ports().into_iter().zip(ROUND_TRIPS_MS);
        let proxies = routes.map(route).collect::<io::Result<Vec<_>>>()?;
        let players = self.players(&each(&Client::ALL[..4], Work::Acquire), |job| {
            job.ports = proxies.iter().map(|proxy| proxy.addr().port()).collect();
            job.patience = LONG_PATIENCE;
            job.slice = Duration::from_millis(400);
        });
        let (repeats, turns) = self.either((1, 3), (3, 5));
        let plan = Plan { repeats, turns, ..self.plan("1, 2, 3, 40, 400 ms", players) };
        Ok(vec![play(&plan, &self.pool)?])
    }

    fn in_flight(&mut self) -> io::Result<Vec<Cell>> {
        let contestants = each(&Client::ALL[..3], Work::InFlight);
        self.sizes(&[1, 8, 64, 512], &contestants)
    }

    /// Beside threads, as many pairs at once on one thread, and threads that go from lock to lock.
    fn threads(&mut self) -> io::Result<Vec<Cell>> {
        let contestants = [
            ("floor, one thread", Client::Floor, Work::InFlight),
            ("floor, threads", Client::Floor, Work::Threads),
            ("muxlock, threads", Client::Muxlock, Work::Threads),
            ("muxlock, one thread", Client::Muxlock, Work::InFlight),
            ("muxlock, swap", Client::Muxlock, Work::Swap),
            ("rslock", Client::Rslock, Work::Threads),
            ("redlock", Client::Redlock, Work::Threads),
        ];
        self.sizes(&[1, 8, 16, 64], &contestants)
    }

    fn sizes(&mut self, sizes: &[usize], contestants: &[Contestant]) -> io::Result<Vec<Cell>> {
        let (repeats, turns) = self.either((2, 4), (3, 4));
        let cell = |size: &usize| {
            let players = self.players(contestants, |job| {
                job.size = *size;
                job.slice *= 3;
            });
            let plan = Plan { repeats, turns, ..self.plan(&size.to_string(), players) };
            play(&plan, &self.pool)
        };
        sizes.iter().map(cell).collect()
    }

    /// On one thread, beside pairs.
    fn swap(&mut self) -> io::Result<Vec<Cell>> {
        let mut contestants = each(&Client::ALL[..2], Work::Pair);
        contestants.push(("muxlock, swap", Client::Muxlock, Work::Swap));
        Ok(vec![self.play("healthy", &contestants)?])
    }

    fn masters(&mut self) -> io::Result<Vec<Cell>> {
        let counts: &[usize] = self.either(&[1, 3, 5, 7, 9], &[1, 3, 5, 7, 9, 64]);
        let pool = Pool::start(counts[counts.len() - 1])?;
        pool.ripen(TTL);
        let (repeats, turns) = self.either((2, 5), (3, 10));
        let cell = |count: &usize| {
            let players = self.players(&each(&Client::ALL[..4], Work::Pair), |job| {
                job.ports = pool.ports()[..*count].to_vec();
                job.alive = *count;
            });
            play(&Plan { repeats, turns, ..self.plan(&count.to_string(), players) }, &pool)
        };
        counts.iter().map(cell).collect()
    }

    fn contention(&mut self) -> io::Result<Vec<Cell>> {
        let slice = Duration::from_millis(self.either(500, 5_000));
        let job = Job { slice, ..self.job(Client::Muxlock, Work::Pair) };
        contention::ask(&self.pool, &job, self.either(1, 3))
    }

    fn stopped(&mut self) -> io::Result<Vec<Cell>> {
        let slice = Duration::from_millis(self.either(1_500, 5_000));
        let job = Job { slice, ..self.job(Client::Muxlock, Work::Pair) };
        contention::ask_stopped(&self.pool, &job, self.either(1, 3))
    }

    fn first(&mut self) -> io::Result<Vec<Cell>> {
        Ok(vec![self.play("first lock", &each(&Client::ALL[..2], Work::First))?])
    }
}

fn each(clients: &[Client], work: Work) -> Vec<Contestant> {
    clients.iter().map(|client| (client.name(), *client, work)).collect()
}
