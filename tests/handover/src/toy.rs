//! An event loop that has nothing to do with sockets.

use std::collections::VecDeque;
use std::mem;

use shuttle::thread::{self, ThreadId};

use crate::crew::{Begun, Crew, Poll, Wake, Work};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, steps, take_step};

/// Between the event loop and the masters.
pub struct Wire {
    state: Mutex<State>,
    /// Rings for the one that waits for events.
    event: Condvar,
    /// Rings for the masters.
    sent: Condvar,
}

#[derive(Default)]
struct State {
    sent: Vec<u32>,
    answered: Vec<u32>,
    is_woken: bool,
    pollers: usize,
}

impl Wire {
    pub fn new() -> Arc<Wire> {
        let (event, sent) = (Condvar::new(), Condvar::new());
        Arc::new(Wire { state: Mutex::new(State::default()), event, sent })
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

    /// What the masters have not seen.
    pub fn unsent(&self) -> Vec<u32> {
        self.lock().sent.clone()
    }
}

pub struct Poller {
    wire: Arc<Wire>,
    events: Vec<u32>,
    /// The next wait is over at once.
    is_short: bool,
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

    fn look(&mut self) {
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
    /// Is done when nobody looks who came before, or when the outcome of one who does is taken.
    Behind(u32),
    /// Is done at once.
    Nothing,
    /// As `Ask`; and the thread that handles the next answer panics.
    Trip(u32),
    /// Is done at once; and the next two threads that begin an order look before, and panic.
    Doze,
    /// From now on sending fails, and ends all that was asked.
    Cut(u32),
    /// The same, and nobody waits for it.
    CutAndGo,
}

#[derive(Debug, PartialEq)]
pub enum Answer {
    Number(u32),
    Looked(u32),
    Nothing,
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
    is_cut: bool,
}

impl Toy {
    pub fn crew(wire: &Arc<Wire>, panics: bool) -> Crew<Toy> {
        let toy = Toy {
            wire: Arc::clone(wire),
            unsent: Vec::new(),
            asked: Vec::new(),
            looks: Vec::new(),
            behind: VecDeque::new(),
            ended: Vec::new(),
            trips: 0,
            dozes: 0,
            is_cut: false,
        };
        let events = Vec::new();
        let poller = Poller { wire: Arc::clone(wire), events, is_short: false, panics };
        Crew::new(toy, poller, Waker(Arc::clone(wire)))
    }
}

impl Work for Toy {
    type Order = Order;
    type Id = u32;
    type Outcome = Outcome;
    type Time = u32;
    type Poller = Poller;

    fn get_ready(&mut self) -> bool {
        take_one(&mut self.dozes)
    }

    fn begin(&mut self, order: Order) -> Begun<Toy> {
        take_step();
        match order {
            Order::Ask(number) | Order::Trip(number) => {
                self.trips += usize::from(matches!(order, Order::Trip(_)));
                self.unsent.push(number);
                self.asked.push(number);
                Begun::Later(number)
            }
            Order::Cut(number) => {
                self.is_cut = true;
                self.asked.push(number);
                Begun::Later(number)
            }
            Order::CutAndGo => {
                self.is_cut = true;
                Begun::Unattended
            }
            Order::Look(number) => {
                self.looks.push(number);
                Begun::Later(number)
            }
            Order::Behind(number) => {
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
            }
        }
        self.ended.extend(self.looks.drain(..).map(|number| (number, false)));
        assert!(!take_one(&mut self.trips), "planned");
    }

    fn due(&self) -> Option<u32> {
        (!self.looks.is_empty()).then_some(0)
    }

    fn aim(&self, poller: &mut Poller, due: Option<u32>) {
        poller.is_short = due.is_some();
    }

    fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    fn ended(&mut self, to: &mut Vec<u32>) {
        to.extend(self.ended.iter().map(|(number, _)| *number));
    }

    fn take(&mut self, id: u32) -> Option<Outcome> {
        let at = self.ended.iter().position(|(number, _)| *number == id)?;
        take_step();
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
        self.asked.retain(|number| *number != id);
        self.looks.retain(|number| *number != id);
        self.behind.retain(|number| *number != id);
        self.ended.retain(|(number, _)| *number != id);
    }

    fn give_up(&mut self, _: Outcome) {}
}

/// Whether there was one to take.
fn take_one(count: &mut usize) -> bool {
    let before = *count;
    *count = before.saturating_sub(1);
    before > 0
}
