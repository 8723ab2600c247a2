//! The questions that are asked, and what is measured to answer each.

use std::io;
use std::time::Duration;

use crate::contention;
use crate::counts;
use crate::driver::{Cell, Entry, Plan, Player, Verdict, play};
use crate::job::{Client, Job, Work, slot_key};
use crate::masters::{Pool, Refused};
use crate::noise::Noise;
use crate::proxy::Proxy;

/// How many masters there are unless their number is the question.
const MASTERS: usize = 5;
/// How long a lock lives, and how long a young master is mistrusted.
const TTL: Duration = Duration::from_secs(2);
/// How long a lock lives if a hundred thousand wait for the same masters.
const LONG_TTL: Duration = Duration::from_secs(15);
/// How long a client waits for one master: the default of this crate.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long a client waits for a master that is far or has much to do.
const LONG_PATIENCE: Duration = Duration::from_secs(10);
/// What passes between a client and five masters and back.
const ROUND_TRIPS_MS: [u64; MASTERS] = [1, 2, 3, 40, 400];
const RIVALS: usize = 16;
/// Between two pairs of a client that does something else meanwhile.
pub const PAUSES: [(&str, u64); 2] = [("15 ms apart", 15), ("100 ms apart", 100)];
/// Between two pairs, so that the masters are through with a release that nobody waited for.
const PAUSE: Duration = Duration::from_millis(1);
/// The case of masters at different distances.
pub const FAR: &str = "1, 2, 3, 40, 400 ms";
/// Those that let go without waiting.
pub const FLOOR_DROP: &str = "floor, drop";
pub const MUXLOCK_DROP: &str = "muxlock, drop";
pub const MUXLOCK_PAIR: &str = "muxlock, pair";
/// The case of masters that are all as far away; and a round trip to them.
pub const AWAY: &str = "5 ms away";
const AWAY_ROUND_TRIP: Duration = Duration::from_millis(5);
/// Those whose locks come with fencing tokens.
pub const FLOOR_FENCED: &str = "floor, fenced";
pub const MUXLOCK_FENCED: &str = "muxlock, fenced";
/// With and without TLS.
pub const MUXLOCK_PLAIN: &str = "muxlock, plain";
pub const MUXLOCK_TLS: &str = "muxlock, TLS";
/// Locks of different kinds.
pub const PLAIN: &str = "plain lock";
pub const SHARE: &str = "share";
pub const PERMIT: &str = "permit, 1 of 5";
pub const SET: &str = "set of 8";
pub const FLOOR_SHARE: &str = "floor, share";
pub const FLOOR_PERMIT: &str = "floor, permit";
pub const FLOOR_SET: &str = "floor, set of 8";
const SET_RESOURCES: usize = 8;
/// Many pairs at once, of which one is refused.
pub const ONE_REFUSED: [(&str, usize); 2] = [("64, one refused", 64), ("512, one refused", 512)];
/// One thread for all pairs, or one for each.
pub const FLOOR_IN_FLIGHT: &str = "floor, one thread";
pub const FLOOR_THREADS: &str = "floor, threads";
pub const MUXLOCK_IN_FLIGHT: &str = "muxlock, one thread";
pub const MUXLOCK_THREADS: &str = "muxlock, threads";
/// From one lock to the next.
pub const MUXLOCK_SWAP: &str = "muxlock, swap";
/// Without the guard against masters that forget.
pub const MUXLOCK_UNGUARDED: &str = "muxlock, no guard";
/// Of five masters and of nine, in the same turns.
pub const FIVE_AND_NINE: &str = "5 and 9";
pub const FLOOR_OF: [&str; 2] = ["floor, 5", "floor, 9"];
pub const MUXLOCK_OF: [&str; 2] = ["muxlock, 5", "muxlock, 9"];
/// Pairs in a second of a client that has little to do.
const STEADY_RATE: usize = 2_000;
/// Locks that an idle client keeps alive.
const KEPT: usize = 1_000;
/// Above this number of operations at once, a turn is as long as they need to end a few times.
const ONE_OPERATION: Duration = Duration::from_micros(80);

/// Keys of different plans have different numbers, as long as a plan has fewer workers.
const NUMBERS: u32 = 10_000;

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    Pairs,
    Pauses,
    Fenced,
    Kinds,
    Tls,
    Counts,
    Drop,
    Distance,
    InFlight,
    Threads,
    Swap,
    Masters,
    HandOff,
    Contention,
    Stopped,
    Growth,
    Resources,
    Steady,
    Rest,
}

impl Question {
    /// All, in the order of asking.
    pub const ALL: [Question; 19] = [
        Question::Pairs,
        Question::Pauses,
        Question::Fenced,
        Question::Kinds,
        Question::Tls,
        Question::Counts,
        Question::Drop,
        Question::Distance,
        Question::InFlight,
        Question::Threads,
        Question::Swap,
        Question::Masters,
        Question::HandOff,
        Question::Contention,
        Question::Stopped,
        Question::Growth,
        Question::Resources,
        Question::Steady,
        Question::Rest,
    ];

    /// How long it takes to ask, about, on two cores.
    pub fn seconds(self, quick: bool) -> u64 {
        let (quickly, thoroughly) = match self {
            Question::Pairs => (25, 120),
            Question::Pauses => (70, 160),
            Question::Fenced => (10, 40),
            Question::Kinds => (8, 38),
            Question::Tls => (8, 17),
            Question::Counts => (40, 40),
            Question::Drop => (14, 75),
            Question::Distance => (10, 30),
            Question::InFlight => (23, 90),
            Question::Threads => (33, 115),
            Question::Swap => (3, 15),
            Question::Masters => (20, 90),
            Question::HandOff => (5, 38),
            Question::Contention => (70, 740),
            Question::Stopped => (7, 65),
            Question::Growth => (50, 80),
            Question::Resources => (5, 15),
            Question::Steady => (15, 725),
            Question::Rest => (15, 75),
        };
        if quick { quickly } else { thoroughly }
    }

    /// As on the command line, and of its chart's file.
    pub fn name(self) -> &'static str {
        match self {
            Question::Pairs => "pairs",
            Question::Pauses => "pauses",
            Question::Fenced => "fenced",
            Question::Kinds => "kinds",
            Question::Tls => "tls",
            Question::Counts => "counts",
            Question::Drop => "drop",
            Question::Distance => "distance",
            Question::InFlight => "in-flight",
            Question::Threads => "threads",
            Question::Swap => "swap",
            Question::Masters => "masters",
            Question::HandOff => "hand-off",
            Question::Contention => "contention",
            Question::Stopped => "stopped",
            Question::Growth => "growth",
            Question::Resources => "resources",
            Question::Steady => "steady",
            Question::Rest => "rest",
        }
    }
}

/// The states of the masters that pairs are measured in.
pub const STATES: [&str; 4] = ["healthy", "refused", "frozen", "two-frozen"];

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

    /// In a sentence.
    pub fn effort(&self, minutes: u64) -> String {
        let (repeats, turns) = self.repeats();
        let run = self.either("`--quick`", "the whole run");
        let (slice, bound) = (self.slice().as_millis(), self.bound().as_secs());
        format!(
            "This was {run}, of {minutes} minutes: pairs in {repeats} repeats with fresh \
             processes, and in each of them {turns} turns of {slice} ms for each client. One that \
             takes {bound} s longer than its turn is said to hang."
        )
    }

    /// How often everything is repeated with fresh processes, and how often each client has its
    /// turn in each.
    fn repeats(&self) -> (usize, usize) {
        self.either((2, 8), (5, 14))
    }

    /// Measures; of pairs, only these states, if there are any.
    pub fn ask(&mut self, question: Question, states: &[&str]) -> io::Result<Vec<Cell>> {
        match question {
            Question::Pairs => self.pairs(states),
            Question::Pauses => self.pauses(),
            Question::Fenced => self.fenced(),
            Question::Kinds => self.kinds(),
            Question::Tls => self.tls(),
            Question::Counts => self.counts(),
            Question::Drop => self.drop(),
            Question::Distance => self.distance(),
            Question::InFlight => self.in_flight(),
            Question::Threads => self.threads(),
            Question::Swap => self.swap(),
            Question::Masters => self.masters(),
            Question::HandOff => self.hand_off(),
            Question::Contention => self.contention(),
            Question::Stopped => {
                let turn = Duration::from_millis(self.either(1_500, 5_000));
                contention::ask_stopped(&self.pool, TTL, self.either(1, 3), turn)
            }
            Question::Growth => self.growth(),
            Question::Resources => self.resources(),
            Question::Steady => self.steady(),
            Question::Rest => self.rest(),
        }
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

    fn players(&mut self, clients: &[Client], work: Work) -> Vec<Player> {
        let player = |client: &Client| named(client.name(), self.job(*client, work));
        clients.iter().map(player).collect()
    }

    fn plan(&self, name: &str, players: Vec<Player>, repeats: usize, turns: usize) -> Plan {
        let bound = self.bound();
        Plan { name: name.to_owned(), players, repeats, turns, frozen: 0, bound }
    }

    fn pairs(&mut self, states: &[&str]) -> io::Result<Vec<Cell>> {
        let refused = Refused::take()?;
        let (repeats, turns) = self.repeats();
        let mut cells = Vec::new();
        for state in STATES.into_iter().filter(|state| states.is_empty() || states.contains(state))
        {
            let clients = if state == "healthy" { &Client::ALL[..] } else { &Client::ALL[..4] };
            let mut players = self.players(clients, Work::Pair);
            if state == "refused" {
                for Player { job, .. } in &mut players {
                    job.ports[MASTERS - 1] = refused.port();
                    job.alive = MASTERS - 1;
                }
            }
            let frozen = STATES.iter().skip(1).position(|known| *known == state).unwrap_or(0);
            let plan = Plan { frozen, ..self.plan(state, players, repeats, turns) };
            cells.push(play(&plan, &[&self.pool])?);
        }
        Ok(cells)
    }

    /// Pairs of a client that does nothing in between, and what they are in instructions.
    fn pauses(&mut self) -> io::Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for (name, millis) in PAUSES {
            let pause = Duration::from_millis(millis);
            let clients = [Client::Floor, Client::Muxlock];
            let mut players = self.players(&clients, Work::Pair);
            for Player { job, .. } in &mut players {
                job.pause = pause;
                job.slice = (pause * 20).max(Duration::from_millis(self.either(750, 1_500)));
            }
            let (repeats, turns) = self.either((2, 2), (3, 5));
            let mut cell = play(&self.plan(name, players, repeats, turns), &[&self.pool])?;
            for entry in &mut cell.entries {
                let job = Job { pause, ..self.job(entry.client, Work::Count) };
                let instructions = count_of(entry, || counts::instructions(&job));
                let samples = entry.samples.iter_mut().flatten();
                samples.for_each(|sample| sample.instructions = instructions);
            }
            cells.push(cell);
        }
        Ok(cells)
    }

    /// Beside pairs without fencing tokens.
    fn fenced(&mut self) -> io::Result<Vec<Cell>> {
        let (repeats, turns) = self.repeats();
        let mut cells = Vec::new();
        for (frozen, state) in ["healthy", "frozen"].into_iter().enumerate() {
            let players = [
                (FLOOR_FENCED, Client::Floor, Work::Fenced),
                (MUXLOCK_FENCED, Client::Muxlock, Work::Fenced),
                ("floor, plain", Client::Floor, Work::Pair),
                (MUXLOCK_PLAIN, Client::Muxlock, Work::Pair),
            ];
            let players = players.map(|(label, client, work)| named(label, self.job(client, work)));
            let plan = Plan { frozen, ..self.plan(state, players.into(), repeats, turns) };
            cells.push(play(&plan, &[&self.pool])?);
        }
        Ok(cells)
    }

    /// Beside plain locks of the same client, and beside a floor that sends the same commands.
    fn kinds(&mut self) -> io::Result<Vec<Cell>> {
        let (repeats, turns) = self.repeats();
        let kinds = [
            ([PLAIN, "floor, plain"], Work::Pair, 1),
            ([SHARE, FLOOR_SHARE], Work::Share, 1),
            ([PERMIT, FLOOR_PERMIT], Work::Permit, 1),
            ([SET, FLOOR_SET], Work::Set, SET_RESOURCES),
        ];
        let clients = [Client::Muxlock, Client::Floor];
        let players = kinds.map(|(labels, work, size)| {
            let of_each = |(label, client)| named(label, Job { size, ..self.job(client, work) });
            labels.into_iter().zip(clients).map(of_each).collect::<Vec<_>>()
        });
        let plan = self.plan("healthy", players.concat(), repeats, turns);
        Ok(vec![play(&plan, &[&self.pool])?])
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
        let sides = [(MUXLOCK_PLAIN, pool.ports(), None), (MUXLOCK_TLS, tls_ports, Some(ca))];
        let players = sides.map(|(label, ports, ca)| {
            named(label, Job { ports, ca, ..self.job(Client::Muxlock, Work::Pair) })
        });
        let (repeats, turns) = self.repeats();
        let plan = self.plan("healthy", players.into(), repeats, turns);
        Ok(vec![play(&plan, &[&pool])?])
    }

    fn counts(&mut self) -> io::Result<Vec<Cell>> {
        for tool in counts::missing_tools() {
            eprintln!("  {tool} is missing: what it counts is left out");
        }
        let mut entries = Vec::new();
        let unguarded = (MUXLOCK_UNGUARDED, Client::Muxlock, Work::CountUnguarded);
        let all = Client::ALL.map(|client| (client.name(), client, Work::Count));
        for (label, client, work) in all.into_iter().chain([unguarded]) {
            eprintln!("  {label}");
            let job = self.job(client, work);
            let counted = counts::count(&job);
            let complain = |error: &io::Error| eprintln!("  {label}: {error}");
            let sample = counted.inspect_err(complain).ok();
            let verdict = if sample.is_some() { Verdict::Measured } else { Verdict::Fails };
            let label = label.to_owned();
            entries.push(Entry { label, client, verdict, samples: vec![sample] });
        }
        Ok(vec![Cell { name: "one pair".to_owned(), entries, noise: Noise::default() }])
    }

    /// Nobody waits for the release; the floor's pair is what it is compared with.
    fn drop(&mut self) -> io::Result<Vec<Cell>> {
        let (repeats, turns) = self.repeats();
        let near = self.pool.ports();
        let routes: Vec<_> = near.iter().map(|port| (*port, AWAY_ROUND_TRIP)).collect();
        let proxy = Proxy::start(&routes)?;
        let cases = [
            ("1 ms apart", PAUSE, &near[..]),
            ("back to back", Duration::ZERO, &near[..]),
            (AWAY, PAUSE, proxy.ports()),
        ];
        let mut cells = Vec::new();
        for (name, pause, ports) in cases {
            let players = [
                ("floor, pair", Client::Floor, Work::Pair),
                (FLOOR_DROP, Client::Floor, Work::Drop),
                (MUXLOCK_PAIR, Client::Muxlock, Work::Pair),
                (MUXLOCK_DROP, Client::Muxlock, Work::Drop),
                ("redlock, drop", Client::Redlock, Work::Drop),
            ];
            let players = players.map(|(label, client, work)| {
                let ports = ports.to_vec();
                named(label, Job { pause, ports, ..self.job(client, work) })
            });
            let plan = self.plan(name, players.into(), repeats, turns);
            cells.push(play(&plan, &[&self.pool])?);
        }
        Ok(cells)
    }

    fn distance(&mut self) -> io::Result<Vec<Cell>> {
        let routes = self.pool.ports().into_iter().zip(ROUND_TRIPS_MS);
        let routes = routes.map(|(port, millis)| (port, Duration::from_millis(millis)));
        let proxy = Proxy::start(&routes.collect::<Vec<_>>())?;
        let mut players = self.players(&Client::ALL[..4], Work::Acquire);
        for Player { job, .. } in &mut players {
            job.ports = proxy.ports().to_vec();
            job.patience = LONG_PATIENCE;
            job.slice = Duration::from_millis(400);
        }
        let plan = self.plan(FAR, players, self.either(1, 3), self.either(3, 5));
        Ok(vec![play(&plan, &[&self.pool])?])
    }

    fn in_flight(&mut self) -> io::Result<Vec<Cell>> {
        let sizes: &[usize] =
            self.either(&[1, 8, 64, 512], &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        let contestants = [Client::Floor, Client::Muxlock, Client::Rslock]
            .map(|client| (client.name(), client, Work::InFlight));
        let mut cells = self.sizes(sizes, &contestants)?;
        // Of the resources, which have the same names in each turn, somebody else holds the first.
        self.pool.hold(&slot_key(0))?;
        for (name, size) in ONE_REFUSED {
            let mut refused = self.sizes(&[size], &contestants[..2])?;
            refused.iter_mut().for_each(|cell| cell.name = name.to_owned());
            cells.extend(refused);
        }
        self.pool.free(&slot_key(0))?;
        Ok(cells)
    }

    /// Beside threads, as many pairs at once on one thread, and threads that go from lock to lock.
    fn threads(&mut self) -> io::Result<Vec<Cell>> {
        let sizes: &[usize] = self.either(&[1, 8, 64], &[1, 2, 4, 8, 16, 32, 64]);
        let contestants = [
            (FLOOR_IN_FLIGHT, Client::Floor, Work::InFlight),
            (FLOOR_THREADS, Client::Floor, Work::Threads),
            (MUXLOCK_THREADS, Client::Muxlock, Work::Threads),
            (MUXLOCK_IN_FLIGHT, Client::Muxlock, Work::InFlight),
            (MUXLOCK_SWAP, Client::Muxlock, Work::Swap),
            (Client::Rslock.name(), Client::Rslock, Work::Threads),
            (Client::Redlock.name(), Client::Redlock, Work::Threads),
        ];
        self.sizes(sizes, &contestants)
    }

    /// On one thread, beside pairs.
    fn swap(&mut self) -> io::Result<Vec<Cell>> {
        let (repeats, turns) = self.repeats();
        let players = [
            (Client::Floor.name(), Client::Floor, Work::Pair),
            (Client::Muxlock.name(), Client::Muxlock, Work::Pair),
            (MUXLOCK_SWAP, Client::Muxlock, Work::Swap),
        ];
        let players = players.map(|(label, client, work)| named(label, self.job(client, work)));
        let plan = self.plan("healthy", players.into(), repeats, turns);
        Ok(vec![play(&plan, &[&self.pool])?])
    }

    fn sizes(
        &mut self,
        sizes: &[usize],
        contestants: &[(&str, Client, Work)],
    ) -> io::Result<Vec<Cell>> {
        let mut cells = Vec::new();
        let (repeats, turns) = self.either((2, 4), (3, 4));
        for size in sizes {
            let mut player = |(label, client, work): &(&str, Client, Work)| {
                let mut job = self.job(*client, *work);
                job.size = *size;
                job.slice *= 3;
                named(label, job)
            };
            let players = contestants.iter().map(&mut player).collect();
            let name = size.to_string();
            let plan = self.plan(&name, players, repeats, turns);
            cells.push(play(&plan, &[&self.pool])?);
        }
        Ok(cells)
    }

    fn masters(&mut self) -> io::Result<Vec<Cell>> {
        let counts: &[usize] = self.either(&[1, 3, 5, 7, 9], &[1, 3, 5, 7, 9, 64]);
        let most = counts.iter().copied().max().unwrap_or(MASTERS);
        let more = Pool::start(most - MASTERS)?;
        more.ripen(TTL);
        let mut cells = Vec::new();
        for count in counts {
            let mut players = self.players(&Client::ALL[..4], Work::Pair);
            for Player { job, .. } in &mut players {
                job.ports.extend(more.ports());
                job.ports.truncate(*count);
                job.alive = *count;
            }
            let name = count.to_string();
            let plan = self.plan(&name, players, self.either(2, 3), self.either(5, 10));
            cells.push(play(&plan, &[&self.pool, &more])?);
        }
        // In the same turns, because what is lost is small beside what hours differ by.
        let mut player = |(label, client, count)| {
            let mut job = self.job(client, Work::Pair);
            job.ports.extend(more.ports());
            job.ports.truncate(count);
            job.alive = count;
            named(label, job)
        };
        let players = [
            (FLOOR_OF[0], Client::Floor, 5),
            (MUXLOCK_OF[0], Client::Muxlock, 5),
            (FLOOR_OF[1], Client::Floor, 9),
            (MUXLOCK_OF[1], Client::Muxlock, 9),
        ];
        let players = players.map(&mut player).into();
        let (repeats, turns) = self.repeats();
        let plan = self.plan(FIVE_AND_NINE, players, repeats, turns);
        cells.push(play(&plan, &[&self.pool, &more])?);
        Ok(cells)
    }

    fn hand_off(&mut self) -> io::Result<Vec<Cell>> {
        let mut players =
            self.players(&[Client::Muxlock, Client::Rslock, Client::Redlock], Work::HandOff);
        for Player { job, .. } in &mut players {
            job.size = RIVALS;
            job.slice = Duration::from_secs(self.either(1, 3));
        }
        let plan = self.plan("16 clients", players, self.either(1, 2), self.either(1, 2));
        Ok(vec![play(&plan, &[&self.pool])?])
    }

    fn contention(&mut self) -> io::Result<Vec<Cell>> {
        let turn = Duration::from_millis(self.either(500, 5_000));
        contention::ask(&self.pool, TTL, self.either(1, 3), turn)
    }

    fn growth(&mut self) -> io::Result<Vec<Cell>> {
        self.pool.ripen(LONG_TTL);
        let sizes: &[usize] =
            self.either(&[1, 8, 64, 512, 100_000], &[1, 8, 64, 512, 4_096, 32_768, 100_000]);
        let mut cells = Vec::new();
        for size in sizes {
            let mut players = self.players(&[Client::Floor, Client::Muxlock], Work::InFlight);
            for Player { job, .. } in &mut players {
                job.size = *size;
                job.ttl = LONG_TTL;
                job.patience = LONG_PATIENCE;
                job.slice = (5 * self.slice()).max(ONE_OPERATION * *size as u32);
            }
            let name = size.to_string();
            let mut plan = self.plan(&name, players, self.either(1, 2), 1);
            plan.bound = Duration::from_secs(60);
            cells.push(play(&plan, &[&self.pool])?);
        }
        Ok(cells)
    }

    fn resources(&mut self) -> io::Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for size in [1, 64, 4_096, 100_000] {
            let mut players = self.players(&[Client::Muxlock], Work::Resources);
            players.iter_mut().for_each(|player| {
                player.job.size = size;
                player.job.slice *= 6;
            });
            let plan = self.plan(&size.to_string(), players, self.either(1, 3), 2);
            cells.push(play(&plan, &[&self.pool])?);
        }
        Ok(cells)
    }

    /// In one long turn each; the floor's is shorter, since all that it is asked is what is usual.
    fn steady(&mut self) -> io::Result<Vec<Cell>> {
        let lengths = self.either([5, 10], [120, 600]);
        let players = [Client::Floor, Client::Muxlock].into_iter().zip(lengths).map(|it| {
            let slice = Duration::from_secs(it.1);
            named(it.0.name(), Job { size: STEADY_RATE, slice, ..self.job(it.0, Work::Steady) })
        });
        let players = players.collect();
        let plan = self.plan("2,000 pairs/s", players, 1, 1);
        Ok(vec![play(&plan, &[&self.pool])?])
    }

    /// What a client costs that does little or nothing.
    fn rest(&mut self) -> io::Result<Vec<Cell>> {
        let (repeats, turns) = self.repeats();
        let players = self.players(&[Client::Floor, Client::Muxlock], Work::First);
        let plan = self.plan("first lock", players, repeats, turns);
        let mut cells = vec![play(&plan, &[&self.pool])?];
        let kept = [("nothing kept", 0), ("1 lock kept", 1), ("1,000 locks kept", KEPT)];
        let players = kept.map(|(label, size)| {
            let slice = Duration::from_secs(self.either(2, 10));
            named(label, Job { size, slice, ..self.job(Client::Muxlock, Work::Idle) })
        });
        let plan = self.plan("idle", players.into(), 1, self.either(1, 2));
        cells.push(play(&plan, &[&self.pool])?);
        Ok(cells)
    }
}

/// What cannot be counted is not a number.
fn count_of(entry: &Entry, count: impl FnOnce() -> io::Result<f64>) -> f64 {
    count().inspect_err(|error| eprintln!("  {}: {error}", entry.label)).unwrap_or(f64::NAN)
}

fn named(label: &str, job: Job) -> Player {
    Player { label: label.to_owned(), job }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_run_takes_no_longer_than_three_quarters_of_an_hour() {
        let seconds = |quick| Question::ALL.map(|question| question.seconds(quick)).iter().sum();
        let (quick, whole): (u64, u64) = (seconds(true), seconds(false));
        assert!(quick <= 8 * 60 && whole <= 45 * 60, "{quick} s, {whole} s");
    }
}
