//! Leader and followers: how threads share an event loop that belongs to none of them.
//!
//! The shared [`LoopState`], in short the *loop*, is with one thread at a time, or free. A thread
//! that finds it free takes it and works for all threads: it begins the orders submitted until
//! then, sends them, and distributes outcomes. A thread that finds it taken adds its order to the
//! [`Submissions`], and sleeps until the order is done. One of the threads whose orders are not
//! done, called the *leader*, waits for events. While it waits, the loop is free.
//!
//! These rules ensure that no order is forgotten and no thread sleeps forever:
//!
//! 1. A thread gives the loop back only while there are no submissions.
//! 2. A thread that gives the loop back while some order is not done makes sure of a leader. If
//!    none waits for events, it becomes the leader itself, or calls another thread to the loop.
//! 3. A thread that is called and finds the loop taken may sleep on: the thread at the loop is
//!    bound by 1 and 2.
//! 4. A leader whose wait would last too long, or whose order is done, is woken.
//! 5. A thread delivers a report only while it holds neither loop nor poller. Until it is done, it
//!    is not called to the loop; afterwards it checks the loop by itself.
//! 6. No thread sleeps past the limit of its order. At the limit it takes the order back, and the
//!    outcome is given up.
//! 7. Outcomes that end together are posted first, and then one notification wakes all their
//!    threads. If they are few, a thread whose own order has ended gives the loop back in between.
//!    A thread that panics in between sends that notification.
//!
//! The module knows neither locks nor sockets; `tests/handover` explores its interleavings.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::mem;
use std::time::Duration;

use super::sync::{Arc, EventCount, Mutex, MutexGuard, PoisonError, WakeSet, yield_now};

/// Most extra rounds that a thread works for others after its own order is done.
const ROUNDS_FOR_OTHERS_MAX: usize = 4;
/// Most rounds of begun orders between two polls for events.
const ROUNDS_WITHOUT_POLL_MAX: usize = 4;

/// A thread that has woken so many others, or finds that they were woken, yields before it waits or
/// gives its next order, so that all orders leave together.
const SEVERAL: usize = 2;
/// So many are woken before the loop is given back, and yielded to at once.
const MANY: usize = 8;
/// Most participants kept for reuse in each of two lists. With more threads than that, they are
/// allocated.
const PARTICIPANTS_REUSED_MAX: usize = 256;
/// How many participants are tried to find a free one.
const PARTICIPANTS_TRIED_MAX: usize = 8;

/// The work of the loop.
pub(super) trait Work {
    type Order;
    /// Identifies an order in progress.
    type Id: Copy + Eq + Hash;
    type Outcome;
    type Time: Copy + Ord;
    type Poller: Poll;
    /// A report for a receiver that may block or panic.
    type Report;

    /// To be called before orders are begun. Returns whether to poll for events first.
    fn get_ready(&mut self) -> bool;

    /// Begins an order. It must not panic: the order would be lost.
    fn begin(&mut self, order: Self::Order) -> Begun<Self>;

    /// Sends the commands of begun orders.
    fn send(&mut self);

    /// Handles the events of a wait, and due timers. If `alone` is the only awaited order, the rest
    /// may be deferred once that order is done.
    fn turn(&mut self, poller: &mut Self::Poller, alone: Option<Self::Id>);

    /// Same as [`turn`](Work::turn), without the poller, for an order whose limit is reached.
    fn tick(&mut self, id: Self::Id);

    /// When to poll at the latest; `None` if only an event makes that necessary.
    fn poll_at(&self) -> Option<Self::Time>;

    /// Sets the poller to wait until then.
    fn set_timeout(&self, poller: &mut Self::Poller, due: Option<Self::Time>);

    /// Whether an order has ended whose outcome was not taken.
    fn has_ended(&self) -> bool;

    /// Appends the ids of those orders.
    fn ended(&mut self, to: &mut Vec<Self::Id>);

    /// The outcome of an order; `None` if it is not done.
    fn take(&mut self, id: Self::Id) -> Option<Self::Outcome>;

    /// Checks an outcome again that its thread did not receive at once.
    fn receive(outcome: Self::Outcome) -> Self::Outcome;

    /// The order is no longer awaited. It must not panic.
    fn cancel(&mut self, id: Self::Id);

    /// The outcome is no longer awaited. It must not panic.
    fn give_up(&mut self, outcome: Self::Outcome);

    /// The rest of an order that is no longer awaited and was not begun.
    fn withdraw(order: Self::Order) -> Option<Self::Order>;

    fn has_report(&self) -> bool;

    /// The pending report, if any.
    fn report(&mut self) -> Option<Self::Report>;

    /// Delivers a report. It may block or panic.
    fn deliver(report: Self::Report);

    /// The time at which orders are begun.
    fn now(&self) -> Self::Time;

    /// The time, read from the clock.
    fn read_clock() -> Self::Time;

    fn after(time: Self::Time, duration: Duration) -> Self::Time;

    /// The time left until then, read from the clock; zero when it has passed.
    fn left(until: Self::Time) -> Duration;
}

/// How long a thread sleeps for its order at most.
#[derive(Clone, Copy)]
pub(super) enum Limit<T> {
    None,
    At(T),
    /// This long after the order was given.
    After(Duration),
}

/// The immediate result of beginning an order.
pub(super) enum Begun<W: Work + ?Sized> {
    Now(W::Outcome),
    Later(W::Id),
    /// An order without an outcome to wait for.
    Unattended,
}

/// The leader's means of waiting.
pub(super) trait Poll {
    type Waker: Wake;

    /// Waits for events, as long as it was set to.
    fn wait(&mut self);

    /// Fetches events without waiting.
    fn poll_now(&mut self);
}

/// Ends the leader's wait, or its next one.
pub(super) trait Wake {
    fn wake(&self);
}

type WakerOf<W> = <<W as Work>::Poller as Poll>::Waker;

/// The state that the threads share.
pub(super) struct LeaderFollower<W: Work> {
    submissions: Mutex<Submissions<W>>,
    waker: WakerOf<W>,
    /// The sleeping threads wait for it.
    event_count: EventCount,
}

/// The orders that wait for the thread at the loop, and the loop itself while it is free.
struct Submissions<W: Work> {
    /// `None` while a thread works at it.
    state: Option<Box<LoopState<W>>>,
    /// At most two per waiting thread, one per thread that took back a begun order, and one per
    /// outcome that was given up.
    orders: VecDeque<Submission<W>>,
    /// The leader's poller, if the leader found the loop taken on its return.
    back: Option<LeaderReturn<W>>,
    /// The participants whose threads deliver a report.
    away: Vec<Arc<Participant<W>>>,
    /// Participants for reuse; some still belong to threads that are about to wake.
    used: VecDeque<Arc<Participant<W>>>,
    /// The slot of the last new participant.
    slot: u8,
}

impl<W: Work> Submissions<W> {
    fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.back.is_none()
    }

    fn participant(&mut self) -> Arc<Participant<W>> {
        for _ in 0..self.used.len().min(PARTICIPANTS_TRIED_MAX) {
            let Some(mut participant) = self.used.pop_front() else {
                break;
            };
            if let Some(unused) = Arc::get_mut(&mut participant) {
                let mut completion = unused.lock();
                debug_assert!(completion.outcome.is_none(), "it was taken, or given up");
                *completion = Completion { outcome: None, is_called: false };
                drop(completion);
                return participant;
            }
            self.used.push_back(participant);
        }
        self.slot = self.slot.wrapping_add(1);
        Participant::new(self.slot)
    }

    /// Gives the loop back. Returns the participant to call to it, if any.
    #[inline(always)]
    fn put(
        &mut self,
        mut state: Box<LoopState<W>>,
        waker: &WakerOf<W>,
    ) -> Option<Arc<Participant<W>>> {
        let successor = match state.poller {
            Some(_) => state.participants.values().find(|it| !self.is_away(it)).cloned(),
            None => {
                state.hasten_leader(waker);
                None
            }
        };
        state.clear_up(self);
        self.state = Some(state);
        successor
    }

    fn is_away(&self, participant: &Arc<Participant<W>>) -> bool {
        self.away.iter().any(|away| Arc::ptr_eq(away, participant))
    }

    /// The order of this participant is no longer awaited.
    fn take_back(&mut self, participant: Arc<Participant<W>>) {
        let is_its = |submission: &Submission<W>| match submission {
            Submission::Order(_, Some(sender)) => Arc::ptr_eq(sender, &participant),
            _ => false,
        };
        let Some(at) = self.orders.iter().position(is_its) else {
            self.orders.push_back(Submission::Cancel(Own::Participant(participant)));
            return;
        };
        let Some(Submission::Order(order, _)) = self.orders.remove(at) else {
            unreachable!("it is an order");
        };
        if let Some(rest) = W::withdraw(order) {
            self.orders.insert(at, Submission::Order(rest, None));
        }
    }
}

enum Submission<W: Work> {
    /// An order, and the participant that waits for it.
    Order(W::Order, Option<Arc<Participant<W>>>),
    /// This order is no longer awaited.
    Cancel(Own<W>),
    /// Its thread panicked before it received the outcome.
    Outcome(W::Outcome),
}

struct LeaderReturn<W: Work> {
    poller: Box<W::Poller>,
    /// The order that the leader waits for, and its participant.
    awaits: Option<(W::Id, Arc<Participant<W>>)>,
}

/// Ids do not come from outside, so their hashes need no secret seed; and runs are repeatable.
type Participants<W> = HashMap<<W as Work>::Id, Arc<Participant<W>>, BuildHasherDefault<IdHasher>>;

/// Multiplies by the golden ratio, which spreads numbers that follow each other.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        // The map takes its places from the low bits, and the high ones tell its entries apart.
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

struct LoopState<W: Work> {
    work: W,
    /// `None` while the leader waits with it.
    poller: Option<Box<W::Poller>>,
    /// When that wait ends by itself.
    waits_until: Option<W::Time>,
    is_leader_woken: bool,
    /// The leader's participant, if it has one.
    leader: Option<Arc<Participant<W>>>,
    /// The orders of all participants.
    participants: Participants<W>,
    /// Orders taken from the submissions and not begun yet.
    orders: VecDeque<Submission<W>>,
    back: Option<LeaderReturn<W>>,
    /// Reused list of ended orders.
    ended: Vec<W::Id>,
    /// Where outcomes were posted and the threads are still to be notified.
    posted: WakeSet,
    /// How many outcomes were posted since a thread last yielded.
    woken: usize,
    /// Participants that receive nothing more.
    used: VecDeque<Arc<Participant<W>>>,
}

/// A thread that sleeps until it is called or its outcome is there.
struct Participant<W: Work> {
    completion: Mutex<Completion<W>>,
    /// The slot of the event count at which its thread waits.
    slot: u8,
}

struct Completion<W: Work> {
    outcome: Option<W::Outcome>,
    /// Called to the loop.
    is_called: bool,
}

impl<W: Work> Participant<W> {
    fn new(slot: u8) -> Arc<Participant<W>> {
        let completion = Completion { outcome: None, is_called: false };
        Arc::new(Participant { completion: Mutex::new(completion), slot })
    }

    fn lock(&self) -> MutexGuard<'_, Completion<W>> {
        self.completion.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller has to notify the slot.
    fn post(&self, outcome: W::Outcome, posted: &mut WakeSet) {
        self.lock().outcome = Some(outcome);
        posted.insert(self.slot);
    }

    /// The caller has to notify the slot.
    fn call(&self, called: &mut WakeSet) {
        self.lock().is_called = true;
        called.insert(self.slot);
    }

    /// Sleeps until it is called or has its outcome, at most until then.
    fn wait(&self, events: &EventCount, until: Option<W::Time>) -> MutexGuard<'_, Completion<W>> {
        loop {
            let seen = events.prepare(self.slot);
            let completion = self.lock();
            if completion.outcome.is_some() || completion.is_called {
                return completion;
            }
            let left = until.map(W::left);
            if left.is_some_and(|left| left.is_zero()) {
                return completion;
            }
            drop(completion);
            events.wait(self.slot, seen, left);
        }
    }
}

/// How an awake thread identifies its own order.
enum Own<W: Work> {
    /// It has none, or the order is done.
    None,
    /// By its id; no other thread knows whose order it is.
    Order(W::Id),
    /// By the participant that receives its outcome.
    Participant(Arc<Participant<W>>),
}

impl<W: Work> Own<W> {
    fn is(&self, participant: &Arc<Participant<W>>) -> bool {
        matches!(self, Own::Participant(own) if Arc::ptr_eq(own, participant))
    }
}

impl<W: Work> LeaderFollower<W> {
    pub(super) fn new(work: W, poller: W::Poller, waker: WakerOf<W>) -> LeaderFollower<W> {
        let state = LoopState {
            work,
            poller: Some(Box::new(poller)),
            waits_until: None,
            is_leader_woken: false,
            leader: None,
            participants: HashMap::default(),
            orders: VecDeque::new(),
            back: None,
            ended: Vec::new(),
            posted: WakeSet::default(),
            woken: 0,
            used: VecDeque::new(),
        };
        let submissions = Submissions {
            state: Some(Box::new(state)),
            orders: VecDeque::new(),
            back: None,
            away: Vec::new(),
            used: VecDeque::new(),
            slot: 0,
        };
        let submissions = Mutex::new(submissions);
        LeaderFollower { submissions, waker, event_count: EventCount::new() }
    }

    /// Gives an order, and works, or sleeps while others work, until it is done. `None` if it slept
    /// until the limit and took the order back.
    #[inline]
    pub(super) fn run(&self, order: W::Order, limit: Limit<W::Time>) -> Option<W::Outcome> {
        self.give(None, order, limit)
    }

    /// Gives an order as [`run`](LeaderFollower::run) does, right behind one that is not waited
    /// for. Both are sent together, and nothing undoes the first.
    pub(super) fn run_behind(
        &self,
        first: W::Order,
        order: W::Order,
        limit: Limit<W::Time>,
    ) -> Option<W::Outcome> {
        self.give(Some(first), order, limit)
    }

    #[inline(always)]
    fn give(
        &self,
        first: Option<W::Order>,
        order: W::Order,
        limit: Limit<W::Time>,
    ) -> Option<W::Outcome> {
        let mut submissions = self.lock();
        let mut caller = self.caller(submissions.state.take());
        if caller.state.is_none() {
            let participant = submissions.participant();
            submissions.orders.extend(first.map(|first| Submission::Order(first, None)));
            submissions.orders.push_back(Submission::Order(order, Some(Arc::clone(&participant))));
            drop(submissions);
            caller.until = limit.until::<W>(W::read_clock);
            caller.own = Own::Participant(participant);
            caller.sleep_and_work();
            return caller.outcome.take();
        }
        drop(submissions);
        if caller.state().woken >= SEVERAL {
            caller.step_aside(SEVERAL);
            caller.state().take_in(&mut self.lock());
        }
        let begun = match first {
            None => caller.begin(order),
            Some(first) => {
                let begun = caller.begin(first);
                caller.forget(begun);
                caller.state().work.begin(order)
            }
        };
        match begun {
            Begun::Later(id) => {
                caller.own = Own::Order(id);
                caller.until = limit.until::<W>(|| caller.state().work.now());
                caller.send();
                if !caller.work() {
                    caller.sleep_and_work();
                }
            }
            Begun::Now(outcome) => {
                caller.outcome = Some(outcome);
                caller.send();
                caller.distribute();
                caller.go();
            }
            Begun::Unattended => unreachable!("a thread waits for it"),
        }
        caller.outcome.take()
    }

    /// Gives an order without waiting for its outcome.
    pub(super) fn submit(&self, order: W::Order) {
        let mut submissions = self.lock();
        let Some(state) = submissions.state.take() else {
            submissions.orders.push_back(Submission::Order(order, None));
            return;
        };
        drop(submissions);
        let mut caller = self.caller(Some(state));
        let begun = caller.begin(order);
        caller.forget(begun);
        caller.state().work.send();
        caller.distribute();
        caller.go();
    }

    #[inline]
    fn caller(&self, state: Option<Box<LoopState<W>>>) -> Caller<'_, W> {
        let (own, until) = (Own::None, None);
        Caller { threads: self, state, poller: None, own, until, outcome: None }
    }

    /// Calls a thread to the loop.
    fn call(&self, participant: &Participant<W>) {
        let mut called = WakeSet::default();
        participant.call(&mut called);
        self.event_count.notify(called);
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Submissions<W>> {
        self.submissions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Limit<T> {
    #[inline]
    fn until<W: Work<Time = T>>(self, start: impl FnOnce() -> T) -> Option<T> {
        match self {
            Limit::None => None,
            Limit::At(time) => Some(time),
            Limit::After(duration) => Some(W::after(start(), duration)),
        }
    }
}

/// A thread that gives an order. If it panics, the loop and the poller are given back and its order
/// is cancelled.
struct Caller<'a, W: Work> {
    threads: &'a LeaderFollower<W>,
    /// Present while it works.
    state: Option<Box<LoopState<W>>>,
    /// Present while it waits for events.
    poller: Option<Box<W::Poller>>,
    own: Own<W>,
    /// The limit of its sleep for its order.
    until: Option<W::Time>,
    /// The outcome of its own order.
    outcome: Option<W::Outcome>,
}

impl<'a, W: Work> Caller<'a, W> {
    #[inline]
    fn state(&mut self) -> &mut LoopState<W> {
        self.state.as_mut().expect("it works")
    }

    #[inline]
    fn begin(&mut self, order: W::Order) -> Begun<W> {
        match self.state().work.get_ready() {
            true => self.poll_and_begin(order),
            false => self.state().work.begin(order),
        }
    }

    /// No thread waits for the begun order.
    #[inline]
    fn forget(&mut self, begun: Begun<W>) {
        match begun {
            Begun::Now(outcome) => self.state().work.give_up(outcome),
            Begun::Later(id) => self.state().work.cancel(id),
            Begun::Unattended => {}
        }
    }

    /// The order is kept with the others meanwhile: if polling panics, another thread finds it
    /// there.
    #[cold]
    fn poll_and_begin(&mut self, order: W::Order) -> Begun<W> {
        self.state().orders.push_back(Submission::Order(order, None));
        self.poll_now();
        self.state().work.get_ready();
        let Some(Submission::Order(order, None)) = self.state().orders.pop_back() else {
            unreachable!("it was put there");
        };
        self.state().work.begin(order)
    }

    #[inline(never)]
    fn poll_now(&mut self) {
        if let Some(poller) = &mut self.state().poller {
            poller.poll_now();
            self.turn();
        }
    }

    /// Works for all threads until its own order is done. Returns whether it is; otherwise the
    /// thread has to sleep.
    #[inline]
    fn work(&mut self) -> bool {
        let mut rounds = 0;
        loop {
            let was_alone = self.distribute();
            self.step_aside(if self.outcome.is_some() { MANY } else { SEVERAL });
            if self.outcome.is_some() {
                self.own = Own::None;
                let was_delayed = self.go();
                if !was_alone || was_delayed {
                    self.outcome = self.outcome.take().map(W::receive);
                }
                return true;
            }
            let mut submissions = self.threads.lock();
            if submissions.is_empty() {
                if self.state().work.has_report() {
                    self.step_out(submissions);
                    return false;
                }
                if !self.put_down(submissions) {
                    return false;
                }
                self.poller.as_mut().expect("it has it from the state").wait();
                if !self.come_back() {
                    return false;
                }
                rounds = 0;
            } else {
                self.state().take_in(&mut submissions);
                drop(submissions);
                rounds += 1;
                self.serve(rounds % ROUNDS_WITHOUT_POLL_MAX == 0);
            }
        }
    }

    /// Sleeps until its order is done or its limit is reached, and works when it is called.
    fn sleep_and_work(&mut self) {
        loop {
            let Own::Participant(participant) = &self.own else {
                unreachable!("it sleeps as a participant");
            };
            let mut completion = participant.wait(&self.threads.event_count, self.until);
            if let Some(outcome) = completion.outcome.take() {
                self.outcome = Some(W::receive(outcome));
                return;
            }
            let is_called = mem::take(&mut completion.is_called);
            drop(completion);
            let mut submissions = self.threads.lock();
            self.state = submissions.state.take();
            if self.state.is_none() {
                match is_called {
                    true => continue,
                    false => return submissions.take_back(Arc::clone(participant)),
                }
            }
            // If there are submissions, its own order may be among them.
            let is_to_work = is_called || !submissions.is_empty();
            drop(submissions);
            if !is_to_work {
                return self.take_back();
            }
            if self.work() {
                return;
            }
        }
    }

    /// Its limit is reached, and it has the loop because no other thread works. It handles the
    /// events so far; if they do not end its order, it takes the order back.
    #[cold]
    fn take_back(&mut self) {
        let state = self.state.as_mut().expect("it works");
        if state.poller.is_some() {
            self.poll_now();
        } else if let Some(id) = state.id_of(&self.own) {
            state.work.tick(id);
        }
        self.distribute();
        let own = mem::replace(&mut self.own, Own::None);
        if self.outcome.is_none() {
            let state = self.state();
            state.forget(&own);
            state.work.send();
            self.distribute();
        }
        self.go();
        self.outcome = self.outcome.take().map(W::receive);
    }

    /// Begins and sends the orders taken from the submissions.
    #[inline(never)]
    fn serve(&mut self, poll_first: bool) {
        let state = self.state();
        if let Some(LeaderReturn { poller, awaits }) = state.back.take() {
            state.participants.extend(awaits);
            self.have_back(poller);
        } else if poll_first {
            self.poll_now();
        }
        if self.state().work.get_ready() {
            self.poll_now();
            self.state().work.get_ready();
        }
        let state = self.state();
        while let Some(submission) = state.orders.pop_front() {
            match submission {
                Submission::Order(order, sender) => match (state.work.begin(order), sender) {
                    (Begun::Now(outcome), Some(sender)) => {
                        sender.post(outcome, &mut state.posted);
                        state.keep(sender);
                    }
                    (Begun::Later(id), Some(sender)) => {
                        state.participants.insert(id, sender);
                    }
                    (Begun::Later(id), None) => state.work.cancel(id),
                    (Begun::Now(outcome), None) => state.work.give_up(outcome),
                    (Begun::Unattended, _) => {}
                },
                Submission::Cancel(own) => state.forget(&own),
                Submission::Outcome(outcome) => state.work.give_up(outcome),
            }
        }
        state.work.send();
        self.wake_posted();
    }

    /// Takes the poller back after a leader's wait.
    #[inline(always)]
    fn have_back(&mut self, poller: Box<W::Poller>) {
        let state = self.state();
        state.poller = Some(poller);
        state.leader = None;
        state.is_leader_woken = false;
        self.turn();
    }

    #[inline(always)]
    fn turn(&mut self) {
        let own = &self.own;
        let state = self.state.as_mut().expect("it works");
        let alone = match own {
            Own::Order(id) if state.participants.is_empty() => Some(*id),
            _ => None,
        };
        if let Some(poller) = &mut state.poller {
            state.work.turn(poller, alone);
        }
    }

    /// Distributes the outcomes of the ended orders, and keeps its own. Returns whether there was
    /// nothing for others.
    #[inline(always)]
    fn distribute(&mut self) -> bool {
        let state = self.state.as_mut().expect("it works");
        match &self.own {
            // No other thread waits for anything.
            Own::Order(id) if state.participants.is_empty() && state.poller.is_some() => {
                if state.work.has_ended() {
                    self.outcome = state.work.take(*id);
                    state.work.send();
                }
                true
            }
            Own::None if !state.work.has_ended() => true,
            _ => {
                self.distribute_to_all();
                false
            }
        }
    }

    fn distribute_to_all(&mut self) {
        if let Own::Participant(participant) = &self.own {
            self.outcome = participant.lock().outcome.take().map(W::receive);
        }
        // An order may end because another outcome was taken, without any other notification. Each
        // iteration but the last takes one order in progress, and none is added.
        while self.distribute_once() && self.state().work.has_ended() {}
        if self.outcome.is_none() || self.state().woken >= MANY {
            self.wake_posted();
        }
    }

    /// Wakes the threads whose outcomes were posted.
    fn wake_posted(&mut self) {
        let posted = mem::take(&mut self.state().posted);
        self.threads.event_count.notify(posted);
    }

    /// Yields to the threads that were woken, if they are so many, so that they submit their next
    /// orders.
    #[inline]
    fn step_aside(&mut self, least: usize) {
        if self.state().woken >= least {
            self.state().woken = 0;
            yield_now();
        }
    }

    /// Sends its order, and begins and sends what it has taken in. A leader may be back without an
    /// order of anyone.
    #[inline]
    fn send(&mut self) {
        let state = self.state();
        match state.orders.is_empty() && state.back.is_none() {
            true => state.work.send(),
            false => self.serve(false),
        }
    }

    /// Returns whether there was an outcome.
    fn distribute_once(&mut self) -> bool {
        let Caller { threads, state, own, outcome, .. } = self;
        let state = state.as_mut().expect("it works");
        let mut all = mem::take(&mut state.ended);
        state.work.ended(&mut all);
        let mut was_any = false;
        for id in all.drain(..) {
            if matches!(own, Own::Order(own) if *own == id) {
                *outcome = state.work.take(id);
                was_any |= outcome.is_some();
                continue;
            }
            let Some(participant) = state.participants.get(&id) else {
                state.wake_leader(&threads.waker);
                continue;
            };
            let Some(ended) = state.work.take(id) else {
                continue;
            };
            was_any = true;
            let is_leader = state.leader.as_ref().is_some_and(|it| Arc::ptr_eq(it, participant));
            match own.is(participant) {
                true => *outcome = Some(ended),
                false => {
                    participant.post(ended, &mut state.posted);
                    state.woken += 1;
                }
            }
            if let Some(participant) = state.participants.remove(&id) {
                state.keep(participant);
            }
            if is_leader {
                state.wake_leader(&threads.waker);
            }
        }
        state.ended = all;
        // Taking outcomes may have undone rounds: their commands are sent now.
        state.work.send();
        was_any
    }

    /// Gives the loop back while its order is not done. Returns whether to wait for events;
    /// otherwise the thread has to sleep.
    #[inline(always)]
    fn put_down(&mut self, mut submissions: MutexGuard<'_, Submissions<W>>) -> bool {
        let mut state = self.state.take().expect("it works");
        self.poller = state.poller.take();
        match (&mut self.poller, &self.own) {
            (Some(poller), own) => {
                let due = state.work.poll_at();
                state.work.set_timeout(poller, due);
                state.waits_until = due;
                if let Own::Participant(participant) = own {
                    state.leader = Some(Arc::clone(participant));
                }
            }
            (None, _) => {
                self.participant(&mut state, &mut submissions);
                state.hasten_leader(&self.threads.waker);
            }
        }
        state.clear_up(&mut submissions);
        submissions.state = Some(state);
        self.poller.is_some()
    }

    /// Handles the events of the wait, if the loop is free; otherwise the thread at the loop will.
    /// Returns whether it works again; otherwise the thread has to sleep.
    #[inline(always)]
    fn come_back(&mut self) -> bool {
        let mut submissions = self.threads.lock();
        self.state = submissions.state.take();
        let poller = self.poller.take().expect("it waited with it");
        if self.state.is_some() {
            drop(submissions);
            self.have_back(poller);
            return true;
        }
        let awaits = match self.own {
            Own::Order(id) => {
                let participant = submissions.participant();
                self.own = Own::Participant(Arc::clone(&participant));
                Some((id, participant))
            }
            Own::None | Own::Participant(_) => None,
        };
        submissions.back = Some(LeaderReturn { poller, awaits });
        false
    }

    /// Gives the loop back while its order is not done, to deliver a report; then the thread has to
    /// sleep.
    #[cold]
    fn step_out(&mut self, mut submissions: MutexGuard<'_, Submissions<W>>) {
        let mut state = self.state.take().expect("it works");
        let report = state.work.report();
        let participant = self.participant(&mut state, &mut submissions);
        submissions.away.push(Arc::clone(&participant));
        let successor = submissions.put(state, &self.threads.waker);
        drop(submissions);
        successor.iter().for_each(|successor| self.threads.call(successor));
        if let Some(report) = report {
            self.deliver_report(report);
        }
        self.threads.lock().away.retain(|away| !Arc::ptr_eq(away, &participant));
        // It was not called meanwhile, so the loop may be free.
        self.threads.call(&participant);
    }

    /// The participant that waits for its order from now on.
    fn participant(
        &mut self,
        state: &mut LoopState<W>,
        submissions: &mut Submissions<W>,
    ) -> Arc<Participant<W>> {
        let participant = match &self.own {
            Own::Participant(participant) => return Arc::clone(participant),
            Own::Order(id) => {
                let participant = submissions.participant();
                state.participants.insert(*id, Arc::clone(&participant));
                participant
            }
            Own::None => unreachable!("its order is not done"),
        };
        self.own = Own::Participant(Arc::clone(&participant));
        participant
    }

    /// Delivers a report. The thread holds nothing but, possibly, its outcome.
    #[cold]
    fn deliver_report(&mut self, report: W::Report) {
        let delivery = Delivery { caller: self };
        W::deliver(report);
        mem::forget(delivery);
    }

    /// Gives the loop back after its own order is done. Returns whether others, or a report, have
    /// delayed it.
    #[inline(always)]
    fn go(&mut self) -> bool {
        let threads = self.threads;
        let mut submissions = threads.lock();
        let is_delayed = !submissions.is_empty();
        if is_delayed {
            drop(submissions);
            submissions = self.work_for_others();
        }
        let mut state = self.state.take().expect("it works");
        let report = state.work.report();
        let posted = (state.woken > 0).then(|| mem::take(&mut state.posted));
        let successor = submissions.put(state, &threads.waker);
        drop(submissions);
        posted.into_iter().for_each(|posted| threads.event_count.notify(posted));
        successor.iter().for_each(|successor| threads.call(successor));
        match report {
            None => is_delayed,
            Some(report) => {
                self.deliver_report(report);
                true
            }
        }
    }

    /// Returns with the submissions empty and locked.
    fn work_for_others(&mut self) -> MutexGuard<'a, Submissions<W>> {
        let threads = self.threads;
        for _ in 0..ROUNDS_FOR_OTHERS_MAX {
            let mut submissions = threads.lock();
            if submissions.is_empty() {
                return submissions;
            }
            self.state().take_in(&mut submissions);
            drop(submissions);
            self.serve(false);
            self.distribute();
            self.step_aside(MANY);
        }
        // The submissions stay locked from here on, so no further order arrives.
        let mut submissions = threads.lock();
        self.state().take_in(&mut submissions);
        self.serve(false);
        self.distribute();
        submissions
    }

    /// The thread panicked. Orders that it took but did not begin go back to the submissions, and
    /// all threads are called. Work that no thread waits for is left to the next thread at the
    /// loop.
    #[cold]
    fn give_back(&mut self) {
        let mut own = mem::replace(&mut self.own, Own::None);
        let mut called = WakeSet::default();
        let mut submissions = self.threads.lock();
        if let Some(mut state) = self.state.take() {
            called = mem::take(&mut state.posted);
            state.orders.append(&mut submissions.orders);
            mem::swap(&mut submissions.orders, &mut state.orders);
            for submission in &mut submissions.orders {
                if let Submission::Order(_, sender) = submission {
                    drop(sender.take_if(|sender| own.is(sender)));
                }
            }
            match self.outcome.take() {
                // Its order is done.
                Some(outcome) => state.work.give_up(outcome),
                None => state.forget(&own),
            }
            own = Own::None;
            submissions.back = submissions.back.take().or(state.back.take());
            submissions.state = Some(state);
        }
        if let Some(poller) = self.poller.take() {
            submissions.back = Some(LeaderReturn { poller, awaits: None });
            submissions.orders.push_back(Submission::Cancel(own));
        }
        let participants = submissions.state.iter().flat_map(|state| state.participants.values());
        let senders = submissions.orders.iter().filter_map(|submission| match submission {
            Submission::Order(_, sender) => sender.as_ref(),
            Submission::Cancel(_) | Submission::Outcome(_) => None,
        });
        let leader = submissions.back.iter().filter_map(|back| Some(&back.awaits.as_ref()?.1));
        participants.chain(senders).chain(leader).for_each(|it| it.call(&mut called));
        drop(submissions);
        self.threads.event_count.notify(called);
    }
}

impl<W: Work> Drop for Caller<'_, W> {
    #[inline]
    fn drop(&mut self) {
        // On the normal path both have been returned.
        if self.state.is_some() || self.poller.is_some() {
            self.give_back();
        }
    }
}

/// Guards the delivery of a report. If that panics, the thread waits for nothing from then on. Its
/// order and its outcome are left to the next thread at the loop.
struct Delivery<'h, 'a, W: Work> {
    caller: &'h mut Caller<'a, W>,
}

impl<W: Work> Drop for Delivery<'_, '_, W> {
    fn drop(&mut self) {
        let mut submissions = self.caller.threads.lock();
        if let Own::Participant(participant) = mem::replace(&mut self.caller.own, Own::None) {
            submissions.away.retain(|away| !Arc::ptr_eq(away, &participant));
            submissions.take_back(participant);
        }
        submissions.orders.extend(self.caller.outcome.take().map(Submission::Outcome));
    }
}

impl<W: Work> LoopState<W> {
    /// Takes all submissions.
    fn take_in(&mut self, submissions: &mut Submissions<W>) {
        debug_assert!(self.orders.is_empty() && self.back.is_none());
        mem::swap(&mut submissions.orders, &mut self.orders);
        self.back = submissions.back.take();
        self.clear_up(submissions);
    }

    #[inline]
    fn clear_up(&mut self, submissions: &mut Submissions<W>) {
        if !self.used.is_empty() && submissions.used.len() < PARTICIPANTS_REUSED_MAX {
            submissions.used.append(&mut self.used);
        }
    }

    /// Keeps a participant that receives nothing more for reuse.
    fn keep(&mut self, participant: Arc<Participant<W>>) {
        if self.used.len() < PARTICIPANTS_REUSED_MAX {
            self.used.push_back(participant);
        }
    }

    /// Wakes the leader if it would wait too long now.
    fn hasten_leader(&mut self, waker: &WakerOf<W>) {
        let due = self.work.poll_at();
        if due.is_some_and(|due| self.waits_until.is_none_or(|until| due < until)) {
            self.wake_leader(waker);
        }
    }

    fn wake_leader(&mut self, waker: &WakerOf<W>) {
        if self.poller.is_none() && !mem::replace(&mut self.is_leader_woken, true) {
            waker.wake();
        }
    }

    fn id_of(&self, own: &Own<W>) -> Option<W::Id> {
        match own {
            Own::None => None,
            Own::Order(id) => Some(*id),
            Own::Participant(_) => {
                let mut participants = self.participants.iter();
                participants.find(|(_, participant)| own.is(participant)).map(|(id, _)| *id)
            }
        }
    }

    /// A thread no longer waits for its order.
    fn forget(&mut self, own: &Own<W>) {
        if let Some(id) = self.id_of(own) {
            self.participants.remove(&id);
            self.work.cancel(id);
        }
        let Own::Participant(participant) = own else {
            return;
        };
        if let Some(outcome) = participant.lock().outcome.take() {
            self.work.give_up(outcome);
        }
    }
}

/// For the tests of the whole client.
#[cfg(test)]
#[allow(dead_code, reason = "a package does not have those tests")]
mod tests {
    use super::*;

    impl<W: Work> LeaderFollower<W> {
        /// Acts like a thread that is delayed while it has the loop, until the result is called.
        pub(in super::super) fn hold_loop(&self) -> impl FnOnce() {
            let mut caller = self.caller(self.submissions_with_loop().state.take());
            move || _ = caller.go()
        }

        /// Looks at the work between two steps of other threads.
        pub(in super::super) fn look_at<T>(&self, look: impl FnOnce(&W) -> T) -> T {
            let submissions = self.submissions_with_loop();
            look(&submissions.state.as_ref().expect("it waited for it").work)
        }

        /// Waits until no other thread has the loop.
        fn submissions_with_loop(&self) -> MutexGuard<'_, Submissions<W>> {
            loop {
                let submissions = self.lock();
                if submissions.state.is_some() {
                    return submissions;
                }
                drop(submissions);
                yield_now();
            }
        }

        /// Acts like a leader that is delayed while it waits for events.
        pub(in super::super) fn hold_poller(&self) -> impl FnOnce() {
            let mut submissions = self.submissions_with_loop();
            let mut caller = self.caller(submissions.state.take());
            assert!(caller.put_down(submissions), "no other thread waits");
            move || {
                if caller.come_back() {
                    caller.distribute();
                    caller.go();
                }
            }
        }
    }
}
