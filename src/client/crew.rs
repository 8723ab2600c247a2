//! Leader and followers: how threads share an event loop that belongs to none of them.
//!
//! The shared state lies on a *desk*. A thread that finds the desk free takes it and works for all
//! threads: it begins the orders filed meanwhile, sends them, and hands out outcomes. A thread that
//! finds the desk taken files its order at the *gate*, and sleeps until the order is done. One of
//! the threads whose orders are not done, the *leader*, waits for events. While it waits, the desk
//! is free.
//!
//! These rules ensure that no order is forgotten and no thread sleeps forever:
//!
//! 1. A thread does not put the desk down while the gate is not empty.
//! 2. A thread that puts the desk down while some order is not done makes sure of a leader. If none
//!    waits for events, it becomes the leader itself, or calls another thread to the desk.
//! 3. A thread that is called and finds the desk taken may sleep on: the thread at the desk is
//!    bound by 1 and 2.
//! 4. A leader whose wait would last too long, or whose order is done, is woken.
//! 5. A thread writes a report only while it holds neither desk nor poller. Meanwhile it is not
//!    called to the desk; afterwards it checks the desk by itself.
//! 6. No thread sleeps past the limit of its order, whatever the others do. At the limit it takes
//!    the order back, and the outcome is given up.
//!
//! The module knows neither locks nor sockets; `tests/handover` explores its interleavings.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};
use std::mem;
use std::time::Duration;

use super::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, yield_now};

/// Most extra rounds that a thread works for others after its own order is done.
const ROUNDS_FOR_OTHERS_MAX: usize = 4;
/// Most rounds of begun orders between two polls for events.
const ROUNDS_WITHOUT_LOOK_MAX: usize = 4;

/// After waking this many threads, yield, so that their next requests leave together.
const CROWD_MIN: usize = 4;
/// Most mailboxes kept for reuse, in each of two places. With more threads than that, they are
/// allocated.
const MAILBOXES_KEPT_MAX: usize = 256;
/// How many kept mailboxes are tried to find a free one.
const MAILBOXES_TRIED_MAX: usize = 8;

/// The work that lies on the desk.
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

    /// Sends what was begun.
    fn send(&mut self);

    /// Handles the events of a wait, and what is due. If `alone` is the only awaited order, the
    /// rest may be deferred once that order is done.
    fn turn(&mut self, poller: &mut Self::Poller, alone: Option<Self::Id>);

    /// As [`turn`](Work::turn), without the poller, for an order whose limit is reached.
    fn tick(&mut self, id: Self::Id);

    /// When to poll at the latest; `None` if only an event makes that necessary.
    fn due(&self) -> Option<Self::Time>;

    /// Sets the poller to wait until then.
    fn aim(&self, poller: &mut Self::Poller, due: Option<Self::Time>);

    /// Whether an order has ended whose outcome was not taken.
    fn has_ended(&self) -> bool;

    /// Appends the ids of those orders.
    fn ended(&mut self, to: &mut Vec<Self::Id>);

    /// The outcome of an order; `None` if it is not done.
    fn take(&mut self, id: Self::Id) -> Option<Self::Outcome>;

    /// Checks an outcome again that was not handed over at once.
    fn receive(outcome: Self::Outcome) -> Self::Outcome;

    /// The order is no longer awaited. It must not panic.
    fn cancel(&mut self, id: Self::Id);

    /// The outcome is no longer awaited. It must not panic.
    fn give_up(&mut self, outcome: Self::Outcome);

    /// What remains of an order that is no longer awaited and was not begun.
    fn withdraw(order: Self::Order) -> Option<Self::Order>;

    fn has_report(&self) -> bool;

    /// The pending report, if any.
    fn report(&mut self) -> Option<Self::Report>;

    /// Delivers a report. It may block or panic.
    fn tell(report: Self::Report);

    /// The time at which orders are begun.
    fn now(&self) -> Self::Time;

    /// The time, read from the clock.
    fn look_at_clock() -> Self::Time;

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

/// What the leader waits with.
pub(super) trait Poll {
    type Waker: Wake;

    /// Waits for events, as long as it was set to.
    fn wait(&mut self);

    /// Fetches events without waiting.
    fn look(&mut self);
}

/// Ends the leader's wait, or its next one.
pub(super) trait Wake {
    fn wake(&self);
}

type WakerOf<W> = <<W as Work>::Poller as Poll>::Waker;

/// The threads, and what they share.
pub(super) struct Crew<W: Work> {
    gate: Mutex<Gate<W>>,
    waker: WakerOf<W>,
}

/// Where a thread learns whether it has to work or to sleep.
struct Gate<W: Work> {
    /// `None` while a thread works at it.
    desk: Option<Box<Desk<W>>>,
    /// At most one per waiting thread, one per thread that took back a begun order, and one per
    /// outcome that was given up.
    orders: VecDeque<Filed<W>>,
    /// The leader's poller, if the leader found the desk taken on its return.
    back: Option<Back<W>>,
    /// The mailboxes of threads that deliver a report.
    away: Vec<Arc<Mailbox<W>>>,
    /// Mailboxes for reuse; some still belong to threads that are about to wake.
    used: VecDeque<Arc<Mailbox<W>>>,
}

impl<W: Work> Gate<W> {
    fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.back.is_none()
    }

    fn mailbox(&mut self) -> Arc<Mailbox<W>> {
        for _ in 0..self.used.len().min(MAILBOXES_TRIED_MAX) {
            let Some(mut mailbox) = self.used.pop_front() else {
                break;
            };
            if let Some(unused) = Arc::get_mut(&mut mailbox) {
                let mut mail = unused.lock();
                debug_assert!(mail.outcome.is_none(), "it was taken, or given up");
                *mail = Mail { outcome: None, is_called: false };
                drop(mail);
                return mailbox;
            }
            self.used.push_back(mailbox);
        }
        Mailbox::new()
    }

    /// Puts the desk back. Returns the mailbox of the thread to call to it, if any.
    #[inline(always)]
    fn put(&mut self, mut desk: Box<Desk<W>>, waker: &WakerOf<W>) -> Option<Arc<Mailbox<W>>> {
        let heir = match desk.poller {
            Some(_) => desk.waiters.values().find(|waiter| !self.is_away(waiter)).cloned(),
            None => {
                desk.hasten_leader(waker);
                None
            }
        };
        desk.clear_up(self);
        self.desk = Some(desk);
        heir
    }

    fn is_away(&self, mailbox: &Arc<Mailbox<W>>) -> bool {
        self.away.iter().any(|away| Arc::ptr_eq(away, mailbox))
    }

    /// The order of this mailbox is no longer awaited.
    fn take_back(&mut self, mailbox: Arc<Mailbox<W>>) {
        let is_its = |filed: &Filed<W>| match filed {
            Filed::Order(_, Some(sender)) => Arc::ptr_eq(sender, &mailbox),
            _ => false,
        };
        let Some(at) = self.orders.iter().position(is_its) else {
            self.orders.push_back(Filed::Gone(Own::Mail(mailbox)));
            return;
        };
        let Some(Filed::Order(order, _)) = self.orders.remove(at) else {
            unreachable!("it is an order");
        };
        if let Some(rest) = W::withdraw(order) {
            self.orders.insert(at, Filed::Order(rest, None));
        }
    }
}

enum Filed<W: Work> {
    /// An order, and the mailbox of the thread that waits for it.
    Order(W::Order, Option<Arc<Mailbox<W>>>),
    /// This order is no longer awaited.
    Gone(Own<W>),
    /// Its thread panicked before it received the outcome.
    Outcome(W::Outcome),
}

struct Back<W: Work> {
    poller: Box<W::Poller>,
    /// The order that the leader waits for, and its mailbox.
    waits: Option<(W::Id, Arc<Mailbox<W>>)>,
}

/// Ids do not come from outside, so their hashes need no secret seed; and runs are repeatable.
type Waiters<W> = HashMap<<W as Work>::Id, Arc<Mailbox<W>>, BuildHasherDefault<DefaultHasher>>;

struct Desk<W: Work> {
    work: W,
    /// `None` while the leader waits with it.
    poller: Option<Box<W::Poller>>,
    /// When that wait ends by itself.
    waits_until: Option<W::Time>,
    is_leader_woken: bool,
    /// The leader's mailbox, if it has one.
    leader: Option<Arc<Mailbox<W>>>,
    /// The orders of all threads with a mailbox.
    waiters: Waiters<W>,
    /// Orders taken from the gate that are not begun yet.
    orders: VecDeque<Filed<W>>,
    back: Option<Back<W>>,
    /// Reused list of orders to hand out.
    ended: Vec<W::Id>,
    /// Mailboxes that receive nothing more.
    used: VecDeque<Arc<Mailbox<W>>>,
}

/// Where a thread sleeps until it is called or its outcome is there.
struct Mailbox<W: Work> {
    mail: Mutex<Mail<W>>,
    bell: Condvar,
}

struct Mail<W: Work> {
    outcome: Option<W::Outcome>,
    /// Called to the desk.
    is_called: bool,
}

impl<W: Work> Mailbox<W> {
    fn new() -> Arc<Mailbox<W>> {
        let mail = Mail { outcome: None, is_called: false };
        Arc::new(Mailbox { mail: Mutex::new(mail), bell: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Mail<W>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, outcome: W::Outcome) {
        self.lock().outcome = Some(outcome);
        self.bell.notify_one();
    }

    fn call(&self) {
        self.lock().is_called = true;
        self.bell.notify_one();
    }

    fn wait<'a>(
        &'a self,
        mail: MutexGuard<'a, Mail<W>>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, Mail<W>> {
        match limit {
            None => self.bell.wait(mail).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.bell.wait_timeout(mail, limit);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

/// How an awake thread identifies its own order.
enum Own<W: Work> {
    /// It has none, or the order is done.
    None,
    /// By its id; no other thread knows whose order it is.
    Order(W::Id),
    /// By the mailbox that its outcome arrives in.
    Mail(Arc<Mailbox<W>>),
}

impl<W: Work> Own<W> {
    fn is(&self, mailbox: &Arc<Mailbox<W>>) -> bool {
        matches!(self, Own::Mail(own) if Arc::ptr_eq(own, mailbox))
    }
}

impl<W: Work> Crew<W> {
    pub(super) fn new(work: W, poller: W::Poller, waker: WakerOf<W>) -> Crew<W> {
        let desk = Desk {
            work,
            poller: Some(Box::new(poller)),
            waits_until: None,
            is_leader_woken: false,
            leader: None,
            waiters: HashMap::default(),
            orders: VecDeque::new(),
            back: None,
            ended: Vec::new(),
            used: VecDeque::new(),
        };
        let gate = Gate {
            desk: Some(Box::new(desk)),
            orders: VecDeque::new(),
            back: None,
            away: Vec::new(),
            used: VecDeque::new(),
        };
        Crew { gate: Mutex::new(gate), waker }
    }

    /// Gives an order, and works, or sleeps while others work, until it is done. `None` if it slept
    /// until the limit and took the order back.
    #[inline]
    pub(super) fn run(&self, order: W::Order, limit: Limit<W::Time>) -> Option<W::Outcome> {
        let mut gate = self.lock();
        let mut hand = self.hand(gate.desk.take());
        if hand.desk.is_none() {
            let mailbox = gate.mailbox();
            gate.orders.push_back(Filed::Order(order, Some(Arc::clone(&mailbox))));
            drop(gate);
            hand.until = limit.until::<W>(W::look_at_clock);
            hand.own = Own::Mail(mailbox);
            hand.sleep_and_work();
            return hand.outcome.take();
        }
        drop(gate);
        match hand.begin(order) {
            Begun::Later(id) => {
                hand.own = Own::Order(id);
                hand.until = limit.until::<W>(|| hand.desk().work.now());
                hand.desk().work.send();
                if !hand.work() {
                    hand.sleep_and_work();
                }
            }
            Begun::Now(outcome) => {
                hand.outcome = Some(outcome);
                hand.hand_out();
                hand.go();
            }
            Begun::Unattended => unreachable!("a thread waits for it"),
        }
        hand.outcome.take()
    }

    /// Gives an order without waiting for its outcome.
    pub(super) fn leave(&self, order: W::Order) {
        let mut gate = self.lock();
        let Some(desk) = gate.desk.take() else {
            gate.orders.push_back(Filed::Order(order, None));
            return;
        };
        drop(gate);
        let mut hand = self.hand(Some(desk));
        match hand.begin(order) {
            Begun::Now(outcome) => hand.desk().work.give_up(outcome),
            Begun::Later(id) => hand.desk().work.cancel(id),
            Begun::Unattended => {}
        }
        hand.desk().work.send();
        hand.hand_out();
        hand.go();
    }

    /// Files an order without waiting for it; [`tend`](Crew::tend) must follow. It delivers no
    /// report, so the caller may hold a lock.
    pub(super) fn file(&self, order: W::Order) {
        self.lock().orders.push_back(Filed::Order(order, None));
    }

    /// Works on the filed orders if the desk is free.
    pub(super) fn tend(&self) {
        let desk = self.lock().desk.take();
        if desk.is_some() {
            self.hand(desk).go();
        }
    }

    /// Acts like a thread that is delayed while it has the desk, until the result is called.
    #[cfg(test)]
    pub(super) fn hold_desk(&self) -> impl FnOnce() {
        let mut hand = self.hand(self.gate_with_desk().desk.take());
        move || _ = hand.go()
    }

    /// Waits until no other thread has the desk.
    #[cfg(test)]
    fn gate_with_desk(&self) -> MutexGuard<'_, Gate<W>> {
        loop {
            let gate = self.lock();
            if gate.desk.is_some() {
                return gate;
            }
            drop(gate);
            yield_now();
        }
    }

    /// Acts like a leader that is delayed while it waits for events.
    #[cfg(test)]
    pub(super) fn hold_poller(&self) -> impl FnOnce() {
        let mut gate = self.gate_with_desk();
        let mut hand = self.hand(gate.desk.take());
        assert!(hand.put_down(gate), "no other thread waits");
        move || {
            if hand.come_back() {
                hand.hand_out();
                hand.go();
            }
        }
    }

    #[inline]
    fn hand(&self, desk: Option<Box<Desk<W>>>) -> Hand<'_, W> {
        let (own, until) = (Own::None, None);
        Hand { crew: self, desk, poller: None, own, until, outcome: None, posted: 0 }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Gate<W>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
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

/// One of the threads. If it panics, it gives back what it holds, and its order is cancelled.
struct Hand<'a, W: Work> {
    crew: &'a Crew<W>,
    /// Present while it works.
    desk: Option<Box<Desk<W>>>,
    /// Present while it waits for events.
    poller: Option<Box<W::Poller>>,
    own: Own<W>,
    /// The limit of its sleep for its order.
    until: Option<W::Time>,
    /// The outcome of its own order.
    outcome: Option<W::Outcome>,
    /// How many outcomes it has posted since it last yielded.
    posted: usize,
}

impl<'a, W: Work> Hand<'a, W> {
    #[inline]
    fn desk(&mut self) -> &mut Desk<W> {
        self.desk.as_mut().expect("it works")
    }

    #[inline]
    fn begin(&mut self, order: W::Order) -> Begun<W> {
        match self.desk().work.get_ready() {
            true => self.look_and_begin(order),
            false => self.desk().work.begin(order),
        }
    }

    /// The order is kept with the others meanwhile: if polling panics, another thread finds it
    /// there.
    #[cold]
    fn look_and_begin(&mut self, order: W::Order) -> Begun<W> {
        self.desk().orders.push_back(Filed::Order(order, None));
        self.look();
        self.desk().work.get_ready();
        let Some(Filed::Order(order, None)) = self.desk().orders.pop_back() else {
            unreachable!("it was put there");
        };
        self.desk().work.begin(order)
    }

    #[inline(never)]
    fn look(&mut self) {
        if let Some(poller) = &mut self.desk().poller {
            poller.look();
            self.turn();
        }
    }

    /// Works for all threads until its own order is done. Returns whether it is; otherwise the
    /// thread has to sleep.
    #[inline]
    fn work(&mut self) -> bool {
        let mut rounds = 0;
        loop {
            let was_alone = self.hand_out();
            if !was_alone {
                self.step_aside();
            }
            if self.outcome.is_some() {
                self.own = Own::None;
                let was_kept = self.go();
                if !was_alone || was_kept {
                    self.outcome = self.outcome.take().map(W::receive);
                }
                return true;
            }
            let mut gate = self.crew.lock();
            if gate.is_empty() {
                if self.desk().work.has_report() {
                    self.step_out(gate);
                    return false;
                }
                if !self.put_down(gate) {
                    return false;
                }
                self.poller.as_mut().expect("it has it from the desk").wait();
                if !self.come_back() {
                    return false;
                }
                rounds = 0;
            } else {
                self.desk().take_in(&mut gate);
                drop(gate);
                rounds += 1;
                self.serve(rounds % ROUNDS_WITHOUT_LOOK_MAX == 0);
            }
        }
    }

    /// Sleeps until its order is done or its limit is reached, and works when it is called.
    fn sleep_and_work(&mut self) {
        loop {
            let Own::Mail(mailbox) = &self.own else {
                unreachable!("it sleeps with a mailbox");
            };
            let mut mail = mailbox.lock();
            while mail.outcome.is_none() && !mail.is_called {
                let left = self.until.map(W::left);
                if left.is_some_and(|left| left.is_zero()) {
                    break;
                }
                mail = mailbox.wait(mail, left);
            }
            if let Some(outcome) = mail.outcome.take() {
                self.outcome = Some(W::receive(outcome));
                return;
            }
            let is_called = mem::take(&mut mail.is_called);
            drop(mail);
            let mut gate = self.crew.lock();
            self.desk = gate.desk.take();
            if self.desk.is_none() {
                match is_called {
                    true => continue,
                    false => return gate.take_back(Arc::clone(mailbox)),
                }
            }
            // If the gate is not empty, its own order may be there.
            let is_to_work = is_called || !gate.is_empty();
            drop(gate);
            if !is_to_work {
                return self.take_back();
            }
            if self.work() {
                return;
            }
        }
    }

    /// Its limit is reached, and it has the desk because no other thread works. It handles what is
    /// known by now; if its outcome is not among that, it takes its order back.
    #[cold]
    fn take_back(&mut self) {
        let desk = self.desk.as_mut().expect("it works");
        if desk.poller.is_some() {
            self.look();
        } else if let Some(id) = desk.id_of(&self.own) {
            desk.work.tick(id);
        }
        self.hand_out();
        let own = mem::replace(&mut self.own, Own::None);
        if self.outcome.is_none() {
            let desk = self.desk();
            desk.forget(&own);
            desk.work.send();
            self.hand_out();
        }
        self.go();
        self.outcome = self.outcome.take().map(W::receive);
    }

    /// Begins and sends the orders taken from the gate.
    #[inline(never)]
    fn serve(&mut self, look: bool) {
        let desk = self.desk();
        if let Some(Back { poller, waits }) = desk.back.take() {
            desk.waiters.extend(waits);
            self.have_back(poller);
        } else if look {
            self.look();
        }
        if self.desk().work.get_ready() {
            self.look();
            self.desk().work.get_ready();
        }
        let desk = self.desk();
        while let Some(filed) = desk.orders.pop_front() {
            let (order, sender) = match filed {
                Filed::Order(order, sender) => (order, sender),
                Filed::Gone(own) => {
                    desk.forget(&own);
                    continue;
                }
                Filed::Outcome(outcome) => {
                    desk.work.give_up(outcome);
                    continue;
                }
            };
            match (desk.work.begin(order), sender) {
                (Begun::Now(outcome), Some(sender)) => {
                    sender.post(outcome);
                    desk.keep(sender);
                }
                (Begun::Later(id), Some(sender)) => {
                    desk.waiters.insert(id, sender);
                }
                (Begun::Later(id), None) => desk.work.cancel(id),
                (Begun::Now(outcome), None) => desk.work.give_up(outcome),
                (Begun::Unattended, _) => {}
            }
        }
        desk.work.send();
    }

    /// Takes the poller back after a leader's wait.
    #[inline(always)]
    fn have_back(&mut self, poller: Box<W::Poller>) {
        let desk = self.desk();
        desk.poller = Some(poller);
        desk.leader = None;
        desk.is_leader_woken = false;
        self.turn();
    }

    #[inline(always)]
    fn turn(&mut self) {
        let own = &self.own;
        let desk = self.desk.as_mut().expect("it works");
        let alone = match own {
            Own::Order(id) if desk.waiters.is_empty() => Some(*id),
            _ => None,
        };
        if let Some(poller) = &mut desk.poller {
            desk.work.turn(poller, alone);
        }
    }

    /// Hands out the ended orders, and keeps its own outcome. Returns whether there was nothing for
    /// others.
    #[inline(always)]
    fn hand_out(&mut self) -> bool {
        let desk = self.desk.as_mut().expect("it works");
        match &self.own {
            // No other thread waits for anything.
            Own::Order(id) if desk.waiters.is_empty() && desk.poller.is_some() => {
                if desk.work.has_ended() {
                    self.outcome = desk.work.take(*id);
                    desk.work.send();
                }
                true
            }
            Own::None if !desk.work.has_ended() => true,
            _ => {
                self.hand_out_to_all();
                false
            }
        }
    }

    fn hand_out_to_all(&mut self) {
        if let Own::Mail(mailbox) = &self.own {
            self.outcome = mailbox.lock().outcome.take().map(W::receive);
        }
        let mut posted = 0;
        // An order may end because another outcome was taken, without any other notification. Each
        // iteration but the last takes one order in progress, and none is added.
        while self.hand_out_once(&mut posted) && self.desk().work.has_ended() {}
        self.posted += posted;
    }

    /// Yields after many outcomes were posted, so that their threads run first.
    #[inline]
    fn step_aside(&mut self) {
        if mem::take(&mut self.posted) >= CROWD_MIN {
            yield_now();
        }
    }

    /// Returns whether there was an outcome.
    fn hand_out_once(&mut self, posted: &mut usize) -> bool {
        let Hand { crew, desk, own, outcome, .. } = self;
        let desk = desk.as_mut().expect("it works");
        let mut all = mem::take(&mut desk.ended);
        desk.work.ended(&mut all);
        let mut was_any = false;
        for id in all.drain(..) {
            if matches!(own, Own::Order(own) if *own == id) {
                *outcome = desk.work.take(id);
                was_any |= outcome.is_some();
                continue;
            }
            let Some(mailbox) = desk.waiters.get(&id) else {
                desk.wake_leader(&crew.waker);
                continue;
            };
            let Some(ended) = desk.work.take(id) else {
                continue;
            };
            was_any = true;
            let is_leader = desk.leader.as_ref().is_some_and(|leader| Arc::ptr_eq(leader, mailbox));
            match own.is(mailbox) {
                true => *outcome = Some(ended),
                false => {
                    mailbox.post(ended);
                    *posted += 1;
                }
            }
            if let Some(mailbox) = desk.waiters.remove(&id) {
                desk.keep(mailbox);
            }
            if is_leader {
                desk.wake_leader(&crew.waker);
            }
        }
        desk.ended = all;
        // Taking outcomes may have undone rounds: their commands are sent now.
        desk.work.send();
        was_any
    }

    /// Puts the desk down while its order is not done. Returns whether to wait for events;
    /// otherwise the thread has to sleep.
    #[inline(always)]
    fn put_down(&mut self, mut gate: MutexGuard<'_, Gate<W>>) -> bool {
        let mut desk = self.desk.take().expect("it works");
        self.poller = desk.poller.take();
        match (&mut self.poller, &self.own) {
            (Some(poller), own) => {
                let due = desk.work.due();
                desk.work.aim(poller, due);
                desk.waits_until = due;
                if let Own::Mail(mailbox) = own {
                    desk.leader = Some(Arc::clone(mailbox));
                }
            }
            (None, _) => {
                self.mailbox(&mut desk, &mut gate);
                desk.hasten_leader(&self.crew.waker);
            }
        }
        desk.clear_up(&mut gate);
        gate.desk = Some(desk);
        self.poller.is_some()
    }

    /// Handles the events of the wait, if the desk is free; otherwise the thread at the desk will.
    /// Returns whether it works again; otherwise the thread has to sleep.
    #[inline(always)]
    fn come_back(&mut self) -> bool {
        let mut gate = self.crew.lock();
        self.desk = gate.desk.take();
        let poller = self.poller.take().expect("it waited with it");
        if self.desk.is_some() {
            drop(gate);
            self.have_back(poller);
            return true;
        }
        let waits = match self.own {
            Own::Order(id) => {
                let mailbox = gate.mailbox();
                self.own = Own::Mail(Arc::clone(&mailbox));
                Some((id, mailbox))
            }
            Own::None | Own::Mail(_) => None,
        };
        gate.back = Some(Back { poller, waits });
        false
    }

    /// Puts the desk down while its order is not done, to deliver a report; then the thread has to
    /// sleep.
    #[cold]
    fn step_out(&mut self, mut gate: MutexGuard<'_, Gate<W>>) {
        let mut desk = self.desk.take().expect("it works");
        let report = desk.work.report();
        let mailbox = self.mailbox(&mut desk, &mut gate);
        gate.away.push(Arc::clone(&mailbox));
        let heir = gate.put(desk, &self.crew.waker);
        drop(gate);
        if let Some(heir) = heir {
            heir.call();
        }
        if let Some(report) = report {
            self.tell(report);
        }
        self.crew.lock().away.retain(|away| !Arc::ptr_eq(away, &mailbox));
        // It was not called meanwhile, so the desk may be free.
        mailbox.call();
    }

    /// The mailbox in which it waits for its order from now on.
    fn mailbox(&mut self, desk: &mut Desk<W>, gate: &mut Gate<W>) -> Arc<Mailbox<W>> {
        let mailbox = match &self.own {
            Own::Mail(mailbox) => return Arc::clone(mailbox),
            Own::Order(id) => {
                let mailbox = gate.mailbox();
                desk.waiters.insert(*id, Arc::clone(&mailbox));
                mailbox
            }
            Own::None => unreachable!("its order is not done"),
        };
        self.own = Own::Mail(Arc::clone(&mailbox));
        mailbox
    }

    /// Delivers a report. The thread holds nothing but, possibly, its outcome.
    #[cold]
    fn tell(&mut self, report: W::Report) {
        let telling = Telling { hand: self };
        W::tell(report);
        mem::forget(telling);
    }

    /// Puts the desk down after its own order is done. Returns whether others, or a report, have
    /// delayed it.
    #[inline(always)]
    fn go(&mut self) -> bool {
        let crew = self.crew;
        let mut gate = crew.lock();
        let is_kept = !gate.is_empty();
        if is_kept {
            drop(gate);
            gate = self.work_for_others();
        }
        let mut desk = self.desk.take().expect("it works");
        let report = desk.work.report();
        let heir = gate.put(desk, &crew.waker);
        drop(gate);
        if let Some(heir) = heir {
            heir.call();
        }
        match report {
            None => is_kept,
            Some(report) => {
                self.tell(report);
                true
            }
        }
    }

    /// Returns with the gate empty and locked.
    fn work_for_others(&mut self) -> MutexGuard<'a, Gate<W>> {
        let crew = self.crew;
        for _ in 0..ROUNDS_FOR_OTHERS_MAX {
            let mut gate = crew.lock();
            if gate.is_empty() {
                return gate;
            }
            self.desk().take_in(&mut gate);
            drop(gate);
            self.serve(false);
            self.hand_out();
            self.step_aside();
        }
        // The gate stays locked from here on, so no further order arrives.
        let mut gate = crew.lock();
        self.desk().take_in(&mut gate);
        self.serve(false);
        self.hand_out();
        gate
    }

    /// The thread panicked. Orders that it took but did not begin go back to the gate, and all
    /// threads are called. What no thread waits for is left to the next one at the desk.
    #[cold]
    fn give_back(&mut self) {
        let mut own = mem::replace(&mut self.own, Own::None);
        let mut gate = self.crew.lock();
        if let Some(mut desk) = self.desk.take() {
            desk.orders.append(&mut gate.orders);
            mem::swap(&mut gate.orders, &mut desk.orders);
            for filed in &mut gate.orders {
                if let Filed::Order(_, sender) = filed {
                    drop(sender.take_if(|sender| own.is(sender)));
                }
            }
            desk.forget(&own);
            own = Own::None;
            if let Some(outcome) = self.outcome.take() {
                desk.work.give_up(outcome);
            }
            gate.back = gate.back.take().or(desk.back.take());
            gate.desk = Some(desk);
        }
        if let Some(poller) = self.poller.take() {
            gate.back = Some(Back { poller, waits: None });
            gate.orders.push_back(Filed::Gone(own));
        }
        let waiters = gate.desk.iter().flat_map(|desk| desk.waiters.values());
        let senders = gate.orders.iter().filter_map(|filed| match filed {
            Filed::Order(_, sender) => sender.as_ref(),
            Filed::Gone(_) | Filed::Outcome(_) => None,
        });
        let leader = gate.back.iter().filter_map(|back| Some(&back.waits.as_ref()?.1));
        waiters.chain(senders).chain(leader).for_each(|mailbox| mailbox.call());
    }
}

impl<W: Work> Drop for Hand<'_, W> {
    #[inline]
    fn drop(&mut self) {
        // On the normal path both have been returned.
        if self.desk.is_some() || self.poller.is_some() {
            self.give_back();
        }
    }
}

/// Guards the delivery of a report. If that panics, the thread waits for nothing from then on, and
/// what it had is left to the next thread at the desk.
struct Telling<'h, 'a, W: Work> {
    hand: &'h mut Hand<'a, W>,
}

impl<W: Work> Drop for Telling<'_, '_, W> {
    fn drop(&mut self) {
        let mut gate = self.hand.crew.lock();
        if let Own::Mail(mailbox) = mem::replace(&mut self.hand.own, Own::None) {
            gate.away.retain(|away| !Arc::ptr_eq(away, &mailbox));
            gate.take_back(mailbox);
        }
        gate.orders.extend(self.hand.outcome.take().map(Filed::Outcome));
    }
}

impl<W: Work> Desk<W> {
    /// Takes everything from the gate.
    fn take_in(&mut self, gate: &mut Gate<W>) {
        debug_assert!(self.orders.is_empty() && self.back.is_none());
        mem::swap(&mut gate.orders, &mut self.orders);
        self.back = gate.back.take();
        self.clear_up(gate);
    }

    #[inline]
    fn clear_up(&mut self, gate: &mut Gate<W>) {
        if !self.used.is_empty() && gate.used.len() < MAILBOXES_KEPT_MAX {
            gate.used.append(&mut self.used);
        }
    }

    /// Keeps a mailbox that receives nothing more for reuse.
    fn keep(&mut self, mailbox: Arc<Mailbox<W>>) {
        if self.used.len() < MAILBOXES_KEPT_MAX {
            self.used.push_back(mailbox);
        }
    }

    /// Wakes the leader if it would wait too long now.
    fn hasten_leader(&mut self, waker: &WakerOf<W>) {
        let due = self.work.due();
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
            Own::Mail(_) => {
                let mut waiters = self.waiters.iter();
                waiters.find(|(_, mailbox)| own.is(mailbox)).map(|(id, _)| *id)
            }
        }
    }

    /// A thread no longer waits for its order.
    fn forget(&mut self, own: &Own<W>) {
        if let Some(id) = self.id_of(own) {
            self.waiters.remove(&id);
            self.work.cancel(id);
        }
        let Own::Mail(mailbox) = own else {
            return;
        };
        if let Some(outcome) = mailbox.lock().outcome.take() {
            self.work.give_up(outcome);
        }
    }
}
