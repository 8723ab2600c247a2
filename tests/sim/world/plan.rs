//! What a run is like: drawn once, at its beginning.
//!
//! Every run draws which faults it has at all ("swarm testing"): many have one kind only, and so
//! come into corners that a mixture of everything never reaches.

use std::time::Duration;

use muxlock::Redlock;
use muxlock::settings::{Heal, RestartGuard, Retry, Waiting};

use super::choices::Choices;
use super::clock::MILLI;
use super::faults::Fault;
use super::server::Make;

/// The longest command: the first lock of a kind, with its trial.
pub const COMMAND_BYTES_MAX: usize = 2_600;

/// No clock is off by more than half of the drift that clients allow for.
const PPM_MAX: i32 = 5_000;

/// How far a mad clock is off, in nanoseconds: an hour, a year, and back to 1985.
const FAR: [i64; 3] = [3_600_000_000_000, 30_000_000_000_000_000, 1_200_000_000_000_000_000];
/// In one of the pairs, both names share a counter.
const NAMES: [[&str; 2]; 2] = [["r", "invoice:42"], ["r26751", "invoice:42"]];
/// Parts of a prefix, with what is left of it.
const SPLITS: [(&str, &str); 3] = [("locks:", ""), ("lock", "s:"), ("", "locks:")];

/// Servers of one make, or of several: each process is drawn from the list.
const FLEETS: [&[Make]; 4] = [&[Make::PLAIN], &Make::ALL, &[DELEX], &[Make::PLAIN, DELEX, DELIFEQ]];
const DELEX: Make = Make::ALL[1];
const DELIFEQ: Make = Make::ALL[2];

/// What may go wrong in a run, and so what is promised all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The network, freezes, pauses, and crashes that lose nothing: everything holds.
    Durable,
    /// Masters are restarted without their data, and the guard is on: mutual exclusion holds.
    Guarded,
    /// Clock steps, promotions, flushes, and clients that guard nothing.
    Stepped,
    /// Masters forget, and nobody guards: no panic, no leak, no false vote.
    Unguarded,
    /// Masters are promoted, or started from a file of one that had a replica, while clients come
    /// and go: mutual exclusion holds, and later clients do not wait again.
    Promoted,
    /// As [`Durable`](Class::Durable), and applications wait for holders only. No seed draws it, so
    /// that seeds stay the runs that they were.
    ForHolders,
}

impl Class {
    pub const ALL: [Class; 5] =
        [Class::Durable, Class::Guarded, Class::Stepped, Class::Unguarded, Class::Promoted];
}

/// How a message travels and what a kernel takes, in thousandths and nanoseconds.
pub struct Wire {
    pub latency: u64,
    /// How often a message is late, and by up to how much.
    pub late: u32,
    pub late_max: u64,
    /// How often a message is cut in two.
    pub split: u32,
    /// How often a write or a read takes a part only.
    pub partial: u32,
    /// What a kernel buffers for one direction.
    pub buffer: usize,
}

/// How a client's process runs.
pub struct Process {
    /// How often it is held up between two steps of a turn.
    pub pause: u32,
    pub pause_max: u64,
    /// How often a clock read shows a little less than one before.
    pub glitch: u32,
    /// How often a timer fires late.
    pub late_timer: u32,
}

/// A run's settings.
pub struct Plan {
    pub class: Class,
    pub nodes: usize,
    pub clients: usize,
    pub resources: usize,
    /// Whether applications wait for holders only.
    pub is_for_holders: bool,
    pub max_ttl: u64,
    pub node_timeout: u64,
    pub connect_timeout: u64,
    pub retry_most: u64,
    pub guard: RestartGuard,
    pub has_marker: bool,
    /// Whether those who guard heal.
    pub heals: bool,
    /// Which node each slot of the configuration is: a node may be listed twice.
    pub routes: Vec<usize>,
    /// Clients that do not guard, as those of another make.
    pub unguarded_clients: usize,
    /// Which machine each client runs on: those of one machine share its clock.
    pub machines: Vec<usize>,
    /// How many of a thousand acquisitions ask for a fencing token.
    pub fenced: u32,
    /// How far apart the nodes' clocks are, but for those of mad ones: how far these are off.
    pub spread: u64,
    pub mad: Vec<i64>,
    /// What is locked: its names, for clients without a prefix of their own.
    pub names: [&'static str; 2],
    /// Whether each client has another part of the key as its prefix.
    pub splits: bool,
    /// Whether clients of one machine hand locks to each other.
    pub hands_over: bool,
    /// Whether applications keep locks alive.
    pub keeps: bool,
    pub password: Option<String>,
    pub db: u64,
    /// What servers there are: each process is one of them.
    pub makes: &'static [Make],
    pub key_prefix: &'static str,
    pub wire: Wire,
    pub process: Process,
    /// With how often each is picked.
    pub faults: Vec<(Fault, u32)>,
    pub fault_count: u32,
    pub fault_interval: u64,
    pub fault_length_max: u64,
    pub work_count: u32,
    pub work_interval: u64,
    /// How often a reply is an error for no reason that lasts.
    pub stray_error: u32,
    /// Whether Sentinels say where the masters are, and elect others in their places.
    pub has_sentinels: bool,
    /// Whether clients queue up for locks on the masters.
    pub waits: bool,
    /// Whether applications ask for more than plain locks.
    pub forms: bool,
    /// Whether a server sends what a command has its own connection told before the reply.
    pub pushes_first: bool,
    /// How long after its end a server tells of a watched key.
    pub ends_late: u64,
}

impl Plan {
    /// Draws a plan; of this class, if one is given.
    pub fn draw(choices: &mut Choices, class: Option<Class>) -> Plan {
        let class = class.unwrap_or_else(|| choices.pick(&Class::ALL));
        let is_for_holders = class == Class::ForHolders;
        let class = if is_for_holders { Class::Durable } else { class };
        let nodes = choices.pick(&[3, 3, 3, 3, 3, 5, 2, 1]);
        let max_ttl = choices.pick(&[1_000, 300, 2_000, 5_000, 100, 30_000]) * MILLI;
        let guard = match class {
            Class::Unguarded => RestartGuard::Off,
            _ if choices.chance(120) => RestartGuard::OwnObservation,
            _ => RestartGuard::Uptime,
        };
        let node_timeout = choices.pick(&[50, 20, 5, 200, 1_000]) * MILLI;
        let connect_timeout = choices.pick(&[500, 100, 30, 2_000]) * MILLI;
        let is_stepped = class == Class::Stepped;
        let is_often_flushed = matches!(class, Class::Stepped | Class::Unguarded);
        // A promotion that another one follows after a quarantine.
        let slowest = if class == Class::Promoted { 1_000 * MILLI } else { 4 * MILLI };
        let mut routes: Vec<usize> = (0..nodes).collect();
        if is_stepped && nodes >= 3 && choices.chance(150) {
            let last = nodes - 1;
            routes[last] = choices.below(last as u32) as usize;
        }
        let clients = 2 + choices.below(3) as usize;
        let fenced = choices.pick(&[0, 500, 1_000]);
        let mut mad = vec![0; nodes];
        if fenced > 0 && choices.chance(150) {
            for _ in 0..=choices.below(2) {
                let node = choices.below(nodes as u32) as usize;
                mad[node] = choices.pick(&[1, -1]) * choices.pick(&FAR);
            }
        }
        // The longest command must fit.
        let forms = choices.chance(400);
        let small = if fenced == 0 && !forms { 1_000 } else { COMMAND_BYTES_MAX };
        let hands_over = choices.chance(450);
        let machine = |client| if hands_over && choices.chance(700) { 0 } else { client };
        let machines = (0..clients).map(machine).collect();
        let mut plan = Plan {
            class,
            nodes,
            clients,
            is_for_holders,
            fenced,
            spread: choices.pick(&[10_000, 20, 300, 1_200]) * MILLI,
            mad,
            names: choices.pick(&NAMES),
            splits: !hands_over && choices.chance(500),
            resources: 1 + usize::from(choices.chance(300)),
            max_ttl,
            node_timeout,
            connect_timeout,
            retry_most: choices.pick(&[64, 20, 250]) * MILLI,
            guard,
            has_marker: choices.chance(if is_often_flushed { 500 } else { 200 }),
            heals: guard != RestartGuard::Off && choices.chance(500),
            routes,
            unguarded_clients: usize::from(is_stepped && choices.chance(150)),
            machines,
            hands_over,
            keeps: choices.chance(400),
            password: choices.chance(150).then(|| "secret".into()),
            db: u64::from(choices.chance(150)) * 3,
            makes: choices.pick(&FLEETS),
            key_prefix: if choices.chance(150) { "locks:" } else { "" },
            wire: Wire::draw(choices, (node_timeout / 4).min(connect_timeout / 10), small),
            process: Process::draw(choices),
            faults: draw_faults(choices, class),
            fault_count: choices.pick(&[12, 4, 0, 24]),
            fault_interval: choices.magnitude(MILLI, max_ttl.max(slowest)),
            fault_length_max: choices.pick(&[
                max_ttl / 2,
                max_ttl / 10,
                max_ttl * 3,
                3_000 * MILLI,
                // Longer than a silent connection is kept.
                15_000 * MILLI,
            ]),
            work_count: choices.pick(&[10, 4, 18]),
            work_interval: choices.magnitude(MILLI, (max_ttl / 2).max(slowest)),
            stray_error: choices.pick(&[0, 0, 0, 30]),
            has_sentinels: class == Class::Guarded && choices.chance(250),
            waits: choices.chance(600),
            forms,
            pushes_first: choices.chance(500),
            ends_late: choices.pick(&[0, MILLI, 20 * MILLI, 200 * MILLI]),
        };
        // What Sentinels say is of a server, and addresses may lead from one to another.
        let unfit = if plan.has_sentinels { Fault::Swap } else { Fault::Election };
        plan.faults.retain(|(fault, _)| *fault != unfit);
        plan
    }

    /// Whether this may go wrong.
    pub fn has(&self, fault: Fault) -> bool {
        self.faults.iter().any(|(other, _)| *other == fault)
    }

    /// Whether a lock that a node has forgotten can be taken a second time only by a client that
    /// broke a rule.
    pub fn is_guarded(&self) -> bool {
        self.guard != RestartGuard::Off && self.unguarded_clients == 0
    }

    /// Whether this client guards.
    pub fn is_guarding(&self, client: usize) -> bool {
        self.guard != RestartGuard::Off && client >= self.unguarded_clients
    }

    /// Whether this client looks for a flush: those of another make do not.
    pub fn is_marking(&self, client: usize) -> bool {
        self.has_marker && client >= self.unguarded_clients
    }

    /// Whether there may be times at which this client does not count a node.
    pub fn is_distrusting(&self, client: usize) -> bool {
        self.is_guarding(client) || self.is_marking(client)
    }

    /// The client's part of the prefix, and what its names begin with instead.
    pub fn split(&self, client: usize) -> (&'static str, &'static str) {
        match self.splits && !self.key_prefix.is_empty() {
            true => SPLITS[client % SPLITS.len()],
            false => (self.key_prefix, ""),
        }
    }

    /// The settings of the client with this number.
    pub fn config(&self, client: usize) -> muxlock::Config {
        let duration = Duration::from_nanos;
        let credentials = self.password.as_ref().map_or(String::new(), |it| format!(":{it}@"));
        let urls = (0..self.nodes).map(|slot| {
            let db = if self.db == 0 { String::new() } else { format!("/{}", self.db) };
            format!("redis://{credentials}10.0.0.{}{db}", slot + 1)
        });
        let is_guarding = client >= self.unguarded_clients;
        let guard = if is_guarding { self.guard } else { RestartGuard::Off };
        let builder = Redlock::builder()
            .nodes(urls)
            .node_timeout(duration(self.node_timeout))
            .connect_timeout(duration(self.connect_timeout))
            .retry(Retry::default().most(duration(self.retry_most)))
            .key_prefix(self.split(client).0)
            .max_ttl(duration(self.max_ttl))
            .restart_guard(guard)
            .waiting(if self.waits { Waiting::Queue } else { Waiting::Retry });
        let marked = match self.is_marking(client) {
            true => builder.flush_marker("marker"),
            false => builder,
        };
        let heal = if self.heals && is_guarding { Heal::On } else { Heal::Off };
        marked.heal(heal).config().expect("the plan is valid")
    }

    /// For how long a restarted node is waited for, and somewhat longer.
    pub fn quarantine(&self) -> u64 {
        self.max_ttl + self.max_ttl / 50 + 1_100 * MILLI
    }

    /// What one round may take. A connection that stands just when its time is over is given that
    /// time again.
    pub fn round_max(&self) -> u64 {
        2 * self.connect_timeout + self.node_timeout
    }

    /// When work and faults begin: a client that believes in nothing but what it saw itself sees
    /// nothing of interest for a while.
    pub fn start(&self) -> u64 {
        match self.guard {
            RestartGuard::OwnObservation => self.quarantine(),
            _ => 0,
        }
    }

    /// A rate that some clock of the run has.
    pub fn ppm(choices: &mut Choices) -> i32 {
        let any = choices.below(2 * PPM_MAX as u32 + 1) as i32 - PPM_MAX;
        choices.pick(&[0, PPM_MAX, -PPM_MAX, any])
    }

    /// A time to live, in nanoseconds.
    pub fn ttl(&self, choices: &mut Choices) -> u64 {
        let any = choices.magnitude(MILLI, self.max_ttl);
        choices.pick(&[self.max_ttl, self.max_ttl / 2, self.max_ttl, self.max_ttl / 5, any])
    }
}

impl Wire {
    /// Nobody gets anywhere if a message usually takes longer than `latency_max`.
    fn draw(choices: &mut Choices, latency_max: u64, small: usize) -> Wire {
        Wire {
            latency: choices.pick(&[100_000, 10_000, MILLI, 8 * MILLI]).min(latency_max),
            late: choices.pick(&[0, 20, 200]),
            late_max: choices.pick(&[5 * MILLI, 60 * MILLI, 1_000 * MILLI]),
            split: choices.pick(&[0, 0, 100]),
            partial: choices.pick(&[0, 0, 100]),
            buffer: choices.pick(&[64 * 1024, 64 * 1024, small]),
        }
    }
}

impl Process {
    fn draw(choices: &mut Choices) -> Process {
        Process {
            pause: choices.pick(&[0, 0, 20, 100]),
            pause_max: choices.pick(&[5 * MILLI, 100 * MILLI, 1_500 * MILLI]),
            glitch: choices.pick(&[0, 0, 50]),
            late_timer: choices.pick(&[0, 100]),
        }
    }
}

fn draw_faults(choices: &mut Choices, class: Class) -> Vec<(Fault, u32)> {
    let mut faults = Vec::new();
    for fault in Fault::ALL {
        if fault.is_allowed(class) {
            let often = class == Class::Promoted && fault.is_of_promotions();
            let weight = choices.pick(if often { &[1, 4, 8, 2] } else { &[0, 1, 0, 4] });
            if weight > 0 {
                faults.push((fault, weight));
            }
        }
    }
    faults
}
