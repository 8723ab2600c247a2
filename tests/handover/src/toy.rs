//! An event loop that has nothing to do with sockets.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::time::Duration;

use shuttle::thread::{self, ThreadId};

use crate::leader_follower::{Begun, LeaderFollower, Limit, Poll, Wake, Work};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, number, steps, take_step, ticks};

/// Between the event loop and the masters.
pub struct Wire {
    state: Mutex<State>,
    /// Wakes the thread that waits for events.
    event: Condvar,
    /// Wakes the masters.
    sent: Condvar,
    /// Wakes the thread that is held up until the others are done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    sent: Vec<u32>,
    answered: Vec<u32>,
    is_woken: bool,
    pollers: usize,
    /// The masters answer nothing any more.
    is_over: bool,
    /// The orders of which nobody knows yet what came of them.
    open: BTreeSet<u32>,
    /// The threads that are not done.
    busy: Vec<Busy>,
}

impl Wire {
    pub fn new() -> Arc<Wire> {
        let (event, sent, done) = (Condvar::new(), Condvar::new(), Condvar::new());
        Arc::new(Wire { state: Mutex::new(State::default()), event, sent, done })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The masters: answer so many commands, as they come.
    pub fn answer(&self, count: usize) {
        let mut answered = 0;
        while answered < count {
            let mut state = self.lock();
            while state.sent.is_empty() {
                state = self.sent.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let commands = mem::take(&mut state.sent);
            answered += commands.len();
            state.answered.extend(commands);
            drop(state);
            self.event.notify_one();
        }
    }

    /// The masters: answer all commands, until it is over.
    pub fn answer_all(&self) {
        let mut state = self.lock();
        loop {
            let commands = mem::take(&mut state.sent);
            if !commands.is_empty() {
                state.answered.extend(commands);
                drop(state);
                self.event.notify_one();
                state = self.lock();
            } else if state.is_over {
                return;
            } else {
                state = self.sent.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    pub fn end(&self) {
        self.lock().is_over = true;
        self.sent.notify_one();
    }

    /// An order was begun that something is to come of.
    fn open(&self, number: u32) {
        assert!(self.lock().open.insert(number), "{number} is new");
    }

    /// What came of an order was received, cancelled or given up: one of them, and once.
    pub fn settle(&self, number: u32) {
        assert!(self.lock().open.remove(&number), "something came of {number} already");
    }

    /// The orders that were lost.
    pub fn unsettled(&self) -> BTreeSet<u32> {
        self.lock().open.clone()
    }

    pub fn set_busy(&self, busy: Vec<Busy>) {
        self.lock().busy = busy;
    }

    /// This thread is done.
    pub fn done(&self) {
        self.lock().busy.retain(|busy| busy.thread != number());
        self.done.notify_one();
    }

    /// This thread goes on when those of the others are done.
    fn hold_up(&self, until: fn(&Busy) -> bool) {
        let mut state = self.lock();
        while state.busy.iter().any(|busy| busy.thread != number() && until(busy)) {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What the masters have not seen.
    pub fn unsent(&self) -> Vec<u32> {
        self.lock().sent.clone()
    }
}

/// A thread that is not done.
pub struct Busy {
    pub thread: usize,
    /// Whether some of its orders may take as long as they like.
    pub is_patient: bool,
}

pub struct Poller {
    wire: Arc<Wire>,
    events: Vec<u32>,
    /// The next wait is over at once.
    is_short: bool,
    is_held_up: bool,
    panics: bool,
}

pub struct Waker(Arc<Wire>);

impl Wake for Waker {
    fn wake(&self) {
        self.0.lock().is_woken = true;
        self.0.event.notify_one();
    }
}

impl Poll for Poller {
    type Waker = Waker;

    fn wait(&mut self) {
        if mem::take(&mut self.is_held_up) {
            self.wire.hold_up(|busy| !busy.is_patient);
        }
        let mut state = self.wire.lock();
        state.pollers += 1;
        assert_eq!(state.pollers, 1, "one waits for all");
        while state.answered.is_empty() && !state.is_woken && !self.is_short {
            state = self.wire.event.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.pollers -= 1;
        state.is_woken = false;
        self.events.append(&mut state.answered);
        drop(state);
        assert!(!mem::take(&mut self.panics), "planned");
    }

    fn poll_now(&mut self) {
        self.events.append(&mut self.wire.lock().answered);
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Order {
    /// Sends a number, and is done when it was answered.
    Ask(u32),
    /// Is done when somebody has looked: nothing will be announced.
    Look(u32),
    /// Sends a number.
    Tell(u32),
    /// Tells its number, and asks the one after it right behind.
    Swap(u32),
    /// As `Ask`, right behind the number before.
    AskBehind(u32),
    /// The same, but its thread does not sleep for long.
    HurryBehind(u32),
    /// As `Swap`, with that.
    SwapInAHurry(u32),
    /// As `Nothing`, right behind the number before.
    NothingBehind(u32),
    /// Is done when nobody looks who came before, or when the outcome of one who does is taken.
    Behind(u32),
    /// Is done at once.
    Nothing,
    /// As `Ask`; and the thread that handles the next answer panics.
    Trip(u32),
    /// As `Ask`; and the thread that hands its outcome out right after another's panics, once.
    Snap(u32),
    /// Is done at once; and the next two threads that begin an order look before, and panic.
    Doze,
    /// From now on sending fails, and ends all that was asked.
    Cut(u32),
    /// The same, and nobody waits for it.
    CutAndGo,
    /// As `Ask`, but its thread does not sleep for long.
    Hurry(u32),
    /// As `Ask`; and there is something to report, which takes until the other threads are done.
    Say(u32),
    /// The same, but not before it was answered.
    SayAfter(u32),
    /// As `Ask`; and there is something to report, and that panics.
    Swear(u32),
    /// The same, but not before it was answered.
    SwearAfter(u32),
    /// As `Ask`; and beginning it takes until the others that have no patience are done.
    Stall(u32),
    /// As `Ask`; and the next wait for events takes until the others without patience are done.
    Stick(u32),
}

impl Order {
    pub fn is_patient(&self) -> bool {
        !matches!(self, Order::Hurry(_) | Order::SwapInAHurry(_) | Order::Tell(_) | Order::CutAndGo)
    }

    pub fn limit(self) -> Limit<u32> {
        match self {
            Order::Hurry(_) | Order::HurryBehind(_) => Limit::After(Duration::from_millis(3)),
            _ => Limit::None,
        }
    }
}

pub enum Report {
    Long(Arc<Wire>),
    Wrong,
}

#[derive(Debug, PartialEq)]
pub enum Answer {
    Number(u32),
    Looked(u32),
    Nothing,
}

impl Answer {
    pub fn number(&self) -> Option<u32> {
        match self {
            Answer::Number(number) | Answer::Looked(number) => Some(*number),
            Answer::Nothing => None,
        }
    }
}

/// What came of an order, and when that was judged.
pub struct Outcome {
    pub answer: Answer,
    judged: (ThreadId, usize),
}

impl Outcome {
    fn now(answer: Answer) -> Outcome {
        Outcome { answer, judged: (thread::current().id(), steps()) }
    }

    /// Whether it was judged by this thread, which has done nothing since.
    pub fn is_fresh(&self) -> bool {
        self.judged == (thread::current().id(), steps())
    }
}

pub struct Toy {
    wire: Arc<Wire>,
    unsent: Vec<u32>,
    asked: Vec<u32>,
    looks: Vec<u32>,
    behind: VecDeque<u32>,
    ended: Vec<(u32, bool)>,
    trips: usize,
    dozes: usize,
    snaps_at: Option<u32>,
    /// Outcomes taken since it was last asked which have ended.
    taken: usize,
    is_cut: bool,
    reports: Vec<Report>,
    /// With the answers to these.
    later_reports: Vec<(u32, Report)>,
    is_sticking: Cell<bool>,
}

impl Toy {
    pub fn leader_follower(wire: &Arc<Wire>, panics: bool) -> LeaderFollower<Toy> {
        let toy = Toy {
            wire: Arc::clone(wire),
            unsent: Vec::new(),
            asked: Vec::new(),
            looks: Vec::new(),
            behind: VecDeque::new(),
            ended: Vec::new(),
            trips: 0,
            dozes: 0,
            snaps_at: None,
            taken: 0,
            is_cut: false,
            reports: Vec::new(),
            later_reports: Vec::new(),
            is_sticking: Cell::new(false),
        };
        let (events, is_short, is_held_up) = (Vec::new(), false, false);
        let poller = Poller { wire: Arc::clone(wire), events, is_short, is_held_up, panics };
        LeaderFollower::new(toy, poller, Waker(Arc::clone(wire)))
    }

    fn ask(&mut self, number: u32) -> Begun<Toy> {
        self.wire.open(number);
        self.unsent.push(number);
        self.asked.push(number);
        Begun::Later(number)
    }
}

impl Work for Toy {
    type Order = Order;
    type Id = u32;
    type Outcome = Outcome;
    type Time = u32;
    type Poller = Poller;
    type Report = Vec<Report>;

    fn get_ready(&mut self) -> bool {
        take_one(&mut self.dozes)
    }

    fn begin(&mut self, order: Order) -> Begun<Toy> {
        take_step();
        match order {
            Order::Ask(number) | Order::Hurry(number) => self.ask(number),
            Order::AskBehind(number) | Order::HurryBehind(number) => {
                assert_eq!(self.unsent.last(), Some(&(number - 1)), "they leave together");
                self.ask(number)
            }
            Order::NothingBehind(number) => {
                assert_eq!(self.unsent.last(), Some(&(number - 1)), "it was told before");
                Begun::Now(Outcome::now(Answer::Nothing))
            }
            Order::Swap(_) | Order::SwapInAHurry(_) => unreachable!("these are two orders"),
            Order::Snap(number) => {
                self.snaps_at = Some(number);
                self.ask(number)
            }
            Order::Trip(number) => {
                self.trips += 1;
                self.ask(number)
            }
            Order::Say(number) => {
                self.reports.push(Report::Long(Arc::clone(&self.wire)));
                self.ask(number)
            }
            Order::SayAfter(number) => {
                self.later_reports.push((number, Report::Long(Arc::clone(&self.wire))));
                self.ask(number)
            }
            Order::Swear(number) => {
                self.reports.push(Report::Wrong);
                self.ask(number)
            }
            Order::SwearAfter(number) => {
                self.later_reports.push((number, Report::Wrong));
                self.ask(number)
            }
            Order::Stall(number) => {
                self.wire.hold_up(|busy| !busy.is_patient);
                self.ask(number)
            }
            Order::Stick(number) => {
                self.is_sticking.set(true);
                self.ask(number)
            }
            Order::Cut(number) => {
                self.is_cut = true;
                self.wire.open(number);
                self.asked.push(number);
                Begun::Later(number)
            }
            Order::CutAndGo => {
                self.is_cut = true;
                Begun::Unattended
            }
            Order::Look(number) => {
                self.wire.open(number);
                self.looks.push(number);
                Begun::Later(number)
            }
            Order::Behind(number) => {
                self.wire.open(number);
                let is_looked = self.ended.iter().any(|(_, was_asked)| !was_asked);
                if self.looks.is_empty() && !is_looked {
                    return Begun::Now(Outcome::now(Answer::Looked(number)));
                }
                self.behind.push_back(number);
                Begun::Later(number)
            }
            Order::Tell(number) => {
                self.unsent.push(number);
                Begun::Unattended
            }
            Order::Nothing => Begun::Now(Outcome::now(Answer::Nothing)),
            Order::Doze => {
                (self.dozes, self.trips) = (2, 2);
                Begun::Now(Outcome::now(Answer::Nothing))
            }
        }
    }

    fn send(&mut self) {
        if self.is_cut {
            self.ended.extend(self.asked.drain(..).map(|number| (number, true)));
        }
        if !self.unsent.is_empty() {
            take_step();
            self.wire.lock().sent.append(&mut self.unsent);
            self.wire.sent.notify_one();
        }
    }

    fn turn(&mut self, poller: &mut Poller, _: Option<u32>) {
        take_step();
        for number in poller.events.drain(..) {
            // What was cancelled, or never asked for, may be answered, too.
            if let Some(at) = self.asked.iter().position(|asked| *asked == number) {
                self.asked.remove(at);
                self.ended.push((number, true));
                let later = self.later_reports.extract_if(.., |(of, _)| *of == number);
                self.reports.extend(later.map(|(_, report)| report));
            }
        }
        self.ended.extend(self.looks.drain(..).map(|number| (number, false)));
        assert!(!take_one(&mut self.trips), "planned");
    }

    fn tick(&mut self, _: u32) {
        take_step();
    }

    fn poll_at(&self) -> Option<u32> {
        (!self.looks.is_empty()).then_some(0)
    }

    fn set_timeout(&self, poller: &mut Poller, due: Option<u32>) {
        poller.is_short = due.is_some();
        poller.is_held_up = self.is_sticking.replace(false);
    }

    fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    fn ended(&mut self, to: &mut Vec<u32>) {
        self.taken = 0;
        to.extend(self.ended.iter().map(|(number, _)| *number));
    }

    fn take(&mut self, id: u32) -> Option<Outcome> {
        let at = self.ended.iter().position(|(number, _)| *number == id)?;
        take_step();
        if self.snaps_at.take_if(|number| *number == id).is_some() {
            assert_eq!(self.taken, 0, "planned");
        }
        self.taken += 1;
        let (number, was_asked) = self.ended.remove(at);
        if was_asked {
            return Some(Outcome::now(Answer::Number(number)));
        }
        self.ended.extend(self.behind.pop_front().map(|number| (number, false)));
        Some(Outcome::now(Answer::Looked(number)))
    }

    fn receive(outcome: Outcome) -> Outcome {
        Outcome::now(outcome.answer)
    }

    fn cancel(&mut self, id: u32) {
        self.wire.settle(id);
        self.asked.retain(|number| *number != id);
        self.looks.retain(|number| *number != id);
        self.behind.retain(|number| *number != id);
        self.ended.retain(|(number, _)| *number != id);
    }

    fn give_up(&mut self, outcome: Outcome) {
        if let Some(number) = outcome.answer.number() {
            self.wire.settle(number);
        }
    }

    fn withdraw(order: Order) -> Option<Order> {
        let is_hurried = matches!(order, Order::Hurry(_) | Order::HurryBehind(_));
        assert!(is_hurried, "others have patience");
        None
    }

    fn has_report(&self) -> bool {
        !self.reports.is_empty()
    }

    fn report(&mut self) -> Option<Vec<Report>> {
        self.has_report().then(|| mem::take(&mut self.reports))
    }

    fn deliver(reports: Vec<Report>) {
        take_step();
        for report in reports {
            match report {
                Report::Long(wire) => wire.hold_up(|_| true),
                Report::Wrong => panic!("planned"),
            }
        }
    }

    fn now(&self) -> u32 {
        ticks()
    }

    fn read_clock() -> u32 {
        ticks()
    }

    fn after(time: u32, duration: Duration) -> u32 {
        time + duration.as_millis() as u32
    }

    fn left(until: u32) -> Duration {
        Duration::from_millis(until.saturating_sub(ticks()).into())
    }
}

/// Whether there was one to take.
fn take_one(count: &mut usize) -> bool {
    let before = *count;
    *count = before.saturating_sub(1);
    before > 0
}
