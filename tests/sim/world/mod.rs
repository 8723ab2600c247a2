//! A world of clients and nodes in virtual time, run from one sequence of choices.
//!
//! It needs nothing but the standard library and this crate, so that a fuzzer can include it.

mod ambush;
pub mod check;
pub mod choices;
mod claims;
mod client;
mod clock;
mod crash;
mod crowd;
mod debts;
mod far;
mod faults;
mod fences;
mod forms;
mod full;
mod hand_over;
mod keep;
mod keys;
mod late;
mod leap;
mod line;
mod listeners;
mod lists;
mod looks;
mod lua;
mod mixed;
mod moving;
mod network;
mod newcomers;
mod node;
mod own;
pub mod plan;
mod queue;
mod quiet;
pub mod rare;
pub mod redis;
mod relay;
mod rows;
mod script;
mod serve;
pub mod server;
mod sorted;
mod timeline;
mod transport;
mod turn;
mod upsets;
mod vigil;
pub mod wire;
mod work;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use ambush::Ambush;
use check::Checker;
use choices::Choices;
use client::Client;
use clock::{Clock, MILLI, SECOND};
use crowd::Crowd;
use far::Far;
use fences::Fences;
use full::Full;
use late::Late;
use line::Line;
use mixed::Mixed;
use network::Connection;
use node::Node;
use plan::{Class, Plan};
use queue::{Event, Queue};
use rare::{Counts, Rare};
use relay::Relay;
use rows::Rows;
use server::Server;
use timeline::Timeline;
use vigil::Vigil;

/// What the nodes' wall clocks show when a run begins: some moment in 2023.
const EPOCH: u64 = 1_700_000_000 * SECOND;
/// A run that takes more events does not end.
const EVENTS_MAX: u64 = 1_000_000;
/// After so many events, faults and work end, so that a run takes a bounded time.
const FAULTY_EVENTS_MAX: u64 = 6_000;

/// A broken invariant: its name, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: &'static str,
    pub text: String,
}

/// What came out of a run.
pub struct Outcome {
    pub violation: Option<Violation>,
    pub rare: Counts,
    /// The choices that were made; they give the same run again.
    pub drawn: Vec<u32>,
    /// A hash over all that was done.
    pub digest: u64,
    pub events: u64,
    pub timeline: Vec<String>,
}

/// Runs a world to its end; one of this class, if one is given.
pub fn run(choices: Choices, class: Option<Class>, wants_timeline: bool) -> Outcome {
    let mut world = World::new(choices, class, wants_timeline);
    let panicked = quietly(|| catch_unwind(AssertUnwindSafe(|| world.live())).err());
    if let Some(panic) = panicked {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).into()));
        world.violation = None;
        world.fail("NO-PANIC", || text.unwrap_or_default());
    }
    Outcome {
        violation: world.violation.map(|(rule, text)| Violation { rule, text }),
        rare: world.rare,
        drawn: world.choices.into_drawn(),
        digest: world.digest.0,
        events: world.events,
        timeline: world.timeline.into_lines(),
    }
}

/// A hash over what was done, in the order in which it was done.
struct Digest(u64);

impl Digest {
    fn add(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// A panic in here is a finding, told later, and not one of a thousand messages.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                usual(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let result = run();
    IS_QUIET.set(false);
    result
}

/// All there is.
pub struct World {
    choices: Choices,
    plan: Plan,
    /// True time.
    now: u64,
    queue: Queue,
    clients: Vec<Client>,
    nodes: Vec<Node>,
    connections: Vec<Connection>,
    /// Until when nothing passes between a client and a node.
    links: Vec<Vec<u64>>,
    /// Until when a client's requests to connect do not get through to a node.
    shut: Vec<Vec<u64>>,
    /// The process of a node that a client last heard of, and when.
    heard_at: Vec<Vec<Option<(u64, u64)>>>,
    slow_until: u64,
    faults_left: u32,
    /// Connections that will get a reply too many when they owe none.
    surprises: Vec<usize>,
    ambushes: Vec<Ambush>,
    relays: Vec<Relay>,
    late: Option<Late>,
    /// Whether things still go wrong.
    is_faulty: bool,
    healed_at: u64,
    /// Whether a process had two addresses: in one of them it is as one that has moved.
    had_twins: bool,
    /// Whether an address has come to lead to another process.
    has_swapped: bool,
    /// Whether nothing has happened yet that the protocol cannot survive.
    mutex_promised: bool,
    /// Processes that were started so far.
    engines: u32,
    servers: u64,
    checker: Checker,
    fences: Fences,
    crowd: Option<Crowd>,
    vigil: Option<Vigil>,
    line: Option<Line>,
    rows: Option<Rows>,
    /// Whether a process is about to move while a lock is extended.
    is_moving: bool,
    full: Option<Full>,
    far: Option<Far>,
    mixed: Option<Mixed>,
    violation: Option<check::Failure>,
    rare: Counts,
    timeline: Timeline,
    digest: Digest,
    events: u64,
    /// Kept for its capacity.
    input: Vec<u8>,
}

impl World {
    fn new(mut choices: Choices, class: Option<Class>, wants_timeline: bool) -> World {
        let plan = Plan::draw(&mut choices, class);
        let nodes = (0..plan.nodes)
            .map(|node| {
                let wall = EPOCH + choices.between(0, plan.spread);
                let wall = wall.saturating_add_signed(plan.mad[node]);
                let clock = Clock::new(wall, Plan::ppm(&mut choices));
                Node::new(clock, Server::new(String::new(), String::new(), 0), plan.max_ttl)
            })
            .collect();
        let links = vec![vec![0; plan.nodes]; plan.clients];
        let shut = links.clone();
        let heard_at = vec![vec![None; plan.nodes]; plan.clients];
        let mutex_promised = match plan.class {
            Class::Durable | Class::ForHolders => true,
            Class::Guarded | Class::Stepped | Class::Promoted => plan.is_guarded(),
            Class::Unguarded => false,
        };
        let had_twins = !plan.routes.iter().enumerate().all(|(slot, route)| slot == *route);
        let mut world = World {
            choices,
            plan,
            now: 0,
            queue: Queue::default(),
            clients: Vec::new(),
            nodes,
            connections: Vec::new(),
            links,
            shut,
            heard_at,
            slow_until: 0,
            faults_left: 0,
            surprises: Vec::new(),
            ambushes: Vec::new(),
            relays: Vec::new(),
            late: None,
            is_faulty: true,
            healed_at: u64::MAX,
            had_twins,
            has_swapped: false,
            mutex_promised,
            engines: 0,
            servers: 0,
            checker: Checker::default(),
            fences: Fences::default(),
            crowd: None,
            vigil: None,
            line: None,
            rows: None,
            is_moving: false,
            full: None,
            far: None,
            mixed: None,
            violation: None,
            rare: Counts::new(),
            timeline: Timeline::new(wants_timeline),
            digest: Digest(0),
            events: 0,
            input: Vec::new(),
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for node in 0..self.plan.nodes {
            let mut server = self.new_server(node);
            // Most have been up for longer than any lock lives.
            let age = if self.choices.chance(100) { 0 } else { 100_000 };
            server.started = server.started.saturating_sub(age);
            self.nodes[node].redis.server = server;
            if self.plan.has_marker && !self.choices.chance(200) {
                self.leave_marker(node);
            }
        }
        for client in 0..self.plan.clients {
            let clock = match self.plan.machines[client] {
                first if first < client => self.clients[first].clock.clone(),
                _ => {
                    // Suspend and all: the safety clock of a machine that has been up for a while.
                    let reading = SECOND + self.choices.between(0, 1_000 * SECOND);
                    Clock::new(reading, Plan::ppm(&mut self.choices))
                }
            };
            let client = self.new_client(client, clock);
            self.clients.push(client);
        }
        for client in 0..self.plan.clients {
            self.clients[client].work_left = self.plan.work_count;
            let start = self.plan.start() + self.choices.between(0, 20 * MILLI);
            self.queue.push(start, Event::Work(client));
            if self.plan.start() > 0 || !self.choices.chance(300) {
                let now = self.client_now(client);
                self.clients[client].engine.connect(now);
                self.wake_client(client, self.now);
            }
        }
        self.faults_left = self.plan.fault_count;
        let start = self.plan.start() + self.choices.magnitude(MILLI, 2 * self.plan.fault_interval);
        self.queue.push(start, Event::Fault);
        self.timeline.note(0, || {
            let plan = &self.plan;
            format!(
                "{:?}, {} nodes {:?}, {} clients, max_ttl {}, {:?}",
                plan.class,
                plan.nodes,
                plan.routes,
                plan.clients,
                timeline::Millis(plan.max_ttl),
                plan.guard
            )
        });
    }

    /// A marker that was left long ago: nobody waits for the node.
    fn leave_marker(&mut self, node: usize) {
        let text = format!("!{:016x}{}", 0, EPOCH / 1_000 - 1_000_000_000);
        let value = redis::Value::Text(text.into_bytes());
        let entry = redis::Entry { value, expires: None, written: 0, extended: 0 };
        let key = (self.plan.db, b"marker".to_vec());
        self.nodes[node].redis.data.insert(key, entry);
    }

    fn new_client(&mut self, client: usize, clock: Clock) -> Client {
        let config = Arc::new(self.plan.config(client));
        let seed = u64::from(self.choices.below(u32::MAX));
        Client::new(config, clock, self.engines << 3 | client as u32, seed)
    }

    /// Lives through faults, heals, and comes to rest.
    fn live(&mut self) {
        while self.violation.is_none() {
            let is_busy = self.faults_left > 0
                || self.clients.iter().any(|it| it.work_left > 0)
                || self.is_late();
            let is_worn_out = self.events > FAULTY_EVENTS_MAX || self.choices.is_exhausted();
            if !is_busy || is_worn_out || !self.step() {
                break;
            }
        }
        self.heal();
        for client in 0..self.clients.len() {
            self.clients[client].work_left = 0;
            self.demand(client);
        }
        while self.violation.is_none() && self.step() {}
        if self.violation.is_none() {
            self.check_quiet();
            self.count_stats();
        }
        let is_well = self.violation.is_none() && self.gather_crowd();
        if self.violation.is_none() {
            self.check_quiet();
        }
        if self.violation.is_none() && is_well {
            self.wait_for_long();
            self.check_quiet();
        }
        if self.violation.is_none() && is_well {
            self.wait_in_line();
            self.wait_behind_rows();
            self.mix_kinds();
            self.run_out_of_memory();
            self.write_from_far();
        }
        if self.violation.is_none() {
            self.check_quiet();
        }
        if self.violation.is_none() {
            self.check_all_are_asked();
        }
        if self.violation.is_none() {
            self.check_newcomers();
        }
        if self.violation.is_none() {
            self.leap_in_quarantine();
            self.move_in_extension();
        }
    }

    /// The next event; `false` if there is none.
    fn step(&mut self) -> bool {
        let Some((at, event)) = self.queue.pop() else {
            return false;
        };
        self.now = at;
        self.events += 1;
        if self.events > EVENTS_MAX {
            self.fail("TERMINATION", || "the world does not come to rest".into());
            return false;
        }
        match event {
            Event::Knock(id) => self.knock(id),
            Event::Answer(id) => self.answer(id),
            Event::Beside(id) => self.answer_beside(id),
            Event::Deliver(id, way) => self.deliver(id, way),
            Event::NodeTurn(node) => self.node_turn(node, at),
            Event::ClientTurn(client) => self.client_turn(client, at),
            Event::Work(client) if self.is_faulty => self.work(client),
            Event::Work(client) => self.retry_demand(client),
            Event::Renew(client) => self.renew(client),
            Event::Late => self.late_turn(),
            Event::Fault if self.is_faulty => self.strike(),
            Event::Fault => {}
            Event::Relay(client) => self.extend_relayed(client),
            Event::Restart(node) => self.restart(node),
            Event::Crowd(client) => self.crowd_turn(client),
            Event::Vigil(number) => self.vigil_turn(number),
            Event::Line(number) => self.line_turn(number),
            Event::Rows(client) => self.rows_turn(client),
            Event::Far(client) => self.far_turn(client),
            Event::Mixed(client) => self.mixed_turn(client),
            Event::Full(client, is_last) => self.full_turn(client, is_last),
            Event::Nothing => {}
            Event::Ends(node) => self.tell_ends(node),
        }
        true
    }

    /// How long clients may have to wait for a lock when all is well again.
    fn patience(&self) -> u64 {
        // A connection that is dead without a sign is given up after ten seconds of silence.
        3 * self.plan.quarantine() + 4 * self.plan.max_ttl + 30 * SECOND
    }

    fn count_stats(&mut self) {
        for client in 0..self.clients.len() {
            let stats = self.clients[client].engine.stats();
            let failed = stats.contended + stats.unavailable + stats.expired + stats.timed_out;
            let ended = stats.acquired + failed;
            if stats.rounds > ended {
                self.rare.hit(Rare::Retry);
            }
            if stats.clock_jumps > 0 {
                self.rare.hit(Rare::ClockStepDetected);
            }
        }
    }
}
