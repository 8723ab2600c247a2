//! Leader and followers: how threads share an event loop that belongs to none of them.
//!
//! The shared [`LoopState`], in short the *loop*, is with one thread at a time, or free. A thread
//! that finds it free takes it and works for all threads: it begins the orders filed meanwhile,
//! sends them, and hands out outcomes. A thread that finds it taken files its order in the
//! [`Inbox`], and sleeps until the order is done. One of the threads whose orders are not done, the
//! *leader*, waits for events. While it waits, the loop is free.
//!
//! These rules ensure that no order is forgotten and no thread sleeps forever:
//!
//! 1. A thread does not give the loop back while the inbox is not empty.
//! 2. A thread that gives the loop back while some order is not done makes sure of a leader. If
//!    none waits for events, it becomes the leader itself, or calls another thread to the loop.
//! 3. A thread that is called and finds the loop taken may sleep on: the thread at the loop is
//!    bound by 1 and 2.
//! 4. A leader whose wait would last too long, or whose order is done, is woken.
//! 5. A thread writes a report only while it holds neither loop nor poller. Meanwhile it is not
//!    called to the loop; afterwards it checks the loop by itself.
//! 6. No thread sleeps past the limit of its order, whatever the others do. At the limit it takes
//!    the order back, and the outcome is given up.
//! 7. Outcomes that end together are posted first, and then the bell rings once for all of them. A
//!    thread that panics in between rings it.
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
const ROUNDS_WITHOUT_LOOK_MAX: usize = 4;

/// After waking this many threads, yield, so that their next requests leave together.
const CROWD_MIN: usize = 4;
/// Most waiters kept for reuse, in each of two places. With more threads than that, they are
/// allocated.
const WAITERS_KEPT_MAX: usize = 256;
/// How many kept waiters are tried to find a free one.
const WAITERS_TRIED_MAX: usize = 8;

/// What the loop does.
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

    /// Same as [`turn`](Work::turn), without the poller, for an order whose limit is reached.
    fn tick(&mut self, id: Self::Id);

    /// When to poll at the latest; `None` if only an event makes that necessary.
    fn due(&self) -> Option<Self::Time>;

    /// Sets the poller to wait until then.
    fn set_timeout(&self, poller: &mut Self::Poller, due: Option<Self::Time>);

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
    inbox: Mutex<Inbox<W>>,
    waker: WakerOf<W>,
    /// The sleeping threads wait for it.
    event_count: EventCount,
}

/// Where a thread learns whether it has to work or to sleep.
struct Inbox<W: Work> {
    /// `None` while a thread works at it.
    state: Option<Box<LoopState<W>>>,
    /// At most two per waiting thread, one per thread that took back a begun order, and one per
    /// outcome that was given up.
    orders: VecDeque<Filed<W>>,
    /// The leader's poller, if the leader found the loop taken on its return.
    back: Option<LeaderReturn<W>>,
    /// The waiters of threads that deliver a report.
    away: Vec<Arc<Participant<W>>>,
    /// Mailboxes for reuse; some still belong to threads that are about to wake.
    used: VecDeque<Arc<Participant<W>>>,
    /// The slot of the last new mailbox.
    slot: u8,
}

impl<W: Work> Inbox<W> {
    fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.back.is_none()
    }

    fn waiter(&mut self) -> Arc<Participant<W>> {
        for _ in 0..self.used.len().min(WAITERS_TRIED_MAX) {
            let Some(mut waiter) = self.used.pop_front() else {
                break;
            };
            if let Some(unused) = Arc::get_mut(&mut waiter) {
                let mut mail = unused.lock();
                debug_assert!(mail.outcome.is_none(), "it was taken, or given up");
                *mail = Mail { outcome: None, is_called: false };
                drop(mail);
                return waiter;
            }
            self.used.push_back(waiter);
        }
        self.slot = self.slot.wrapping_add(1);
        Participant::new(self.slot)
    }

    /// Gives the loop back. Returns the waiter of the thread to call to it, if any.
    #[inline(always)]
    fn put(
        &mut self,
        mut state: Box<LoopState<W>>,
        waker: &WakerOf<W>,
    ) -> Option<Arc<Participant<W>>> {
        let successor = match state.poller {
            Some(_) => state.waiters.values().find(|waiter| !self.is_away(waiter)).cloned(),
            None => {
                state.hasten_leader(waker);
                None
            }
        };
        state.clear_up(self);
        self.state = Some(state);
        successor
    }

    fn is_away(&self, waiter: &Arc<Participant<W>>) -> bool {
        self.away.iter().any(|away| Arc::ptr_eq(away, waiter))
    }

    /// The order of this waiter is no longer awaited.
    fn take_back(&mut self, waiter: Arc<Participant<W>>) {
        let is_its = |filed: &Filed<W>| match filed {
            Filed::Order(_, Some(sender)) => Arc::ptr_eq(sender, &waiter),
            _ => false,
        };
        let Some(at) = self.orders.iter().position(is_its) else {
            self.orders.push_back(Filed::Gone(Own::Mail(waiter)));
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
    /// An order, and the waiter of the thread that waits for it.
    Order(W::Order, Option<Arc<Participant<W>>>),
    /// This order is no longer awaited.
    Gone(Own<W>),
    /// Its thread panicked before it received the outcome.
    Outcome(W::Outcome),
}

struct LeaderReturn<W: Work> {
    poller: Box<W::Poller>,
    /// The order that the leader waits for, and its waiter.
    waits: Option<(W::Id, Arc<Participant<W>>)>,
}

/// Ids do not come from outside, so their hashes need no secret seed; and runs are repeatable.
type Waiters<W> = HashMap<<W as Work>::Id, Arc<Participant<W>>, BuildHasherDefault<IdHasher>>;

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
    /// The leader's waiter, if it has one.
    leader: Option<Arc<Participant<W>>>,
    /// The orders of all threads with a waiter.
    waiters: Waiters<W>,
    /// Orders taken from the inbox that are not begun yet.
    orders: VecDeque<Filed<W>>,
    back: Option<LeaderReturn<W>>,
    /// Reused list of orders to hand out.
    ended: Vec<W::Id>,
    /// Where outcomes were posted and the threads are still to be notified.
    posted: WakeSet,
    /// Mailboxes that receive nothing more.
    used: VecDeque<Arc<Participant<W>>>,
}

/// Where a thread sleeps until it is called or its outcome is there.
struct Participant<W: Work> {
    mail: Mutex<Mail<W>>,
    /// The slot of the event count at which its thread waits.
    slot: u8,
}

struct Mail<W: Work> {
    outcome: Option<W::Outcome>,
    /// Called to the loop.
    is_called: bool,
}

impl<W: Work> Participant<W> {
    fn new(slot: u8) -> Arc<Participant<W>> {
        let mail = Mail { outcome: None, is_called: false };
        Arc::new(Participant { mail: Mutex::new(mail), slot })
    }

    fn lock(&self) -> MutexGuard<'_, Mail<W>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Sleeps until there is mail, at most until then. Returns what there is.
    fn await_mail(
        &self,
        event_count: &EventCount,
        until: Option<W::Time>,
    ) -> MutexGuard<'_, Mail<W>> {
        loop {
            let seen = event_count.prepare(self.slot);
            let mail = self.lock();
            if mail.outcome.is_some() || mail.is_called {
                return mail;
            }
            let left = until.map(W::left);
            if left.is_some_and(|left| left.is_zero()) {
                return mail;
            }
            drop(mail);
            event_count.wait(self.slot, seen, left);
        }
    }
}

/// How an awake thread identifies its own order.
enum Own<W: Work> {
    /// It has none, or the order is done.
    None,
    /// By its id; no other thread knows whose order it is.
    Order(W::Id),
    /// By the waiter that its outcome arrives in.
    Mail(Arc<Participant<W>>),
}

impl<W: Work> Own<W> {
    fn is(&self, waiter: &Arc<Participant<W>>) -> bool {
        matches!(self, Own::Mail(own) if Arc::ptr_eq(own, waiter))
    }
}

impl<W: Work> Crew<W> {
    pub(super) fn new(work: W, poller: W::Poller, waker: WakerOf<W>) -> Crew<W> {
        let state = LoopState {
            work,
            poller: Some(Box::new(poller)),
            waits_until: None,
            is_leader_woken: false,
            leader: None,
            waiters: HashMap::default(),
            orders: VecDeque::new(),
            back: None,
            ended: Vec::new(),
            posted: WakeSet::default(),
            used: VecDeque::new(),
        };
        let inbox = Inbox {
            state: Some(Box::new(state)),
            orders: VecDeque::new(),
            back: None,
            away: Vec::new(),
            used: VecDeque::new(),
            slot: 0,
        };
        Crew { inbox: Mutex::new(inbox), waker, event_count: EventCount::new() }
    }

    /// Gives an order, and works, or sleeps while others work, until it is done. `None` if it slept
    /// until the limit and took the order back.
    #[inline]
    pub(super) fn run(&self, order: W::Order, limit: Limit<W::Time>) -> Option<W::Outcome> {
        self.give(None, order, limit)
    }

    /// Gives an order as [`run`](Crew::run) does, right behind one that is not waited for. Both are
    /// sent together, and nothing undoes the first.
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
        let mut inbox = self.lock();
        let mut member = self.member(inbox.state.take());
        if member.state.is_none() {
            let waiter = inbox.waiter();
            inbox.orders.extend(first.map(|first| Filed::Order(first, None)));
            inbox.orders.push_back(Filed::Order(order, Some(Arc::clone(&waiter))));
            drop(inbox);
            member.until = limit.until::<W>(W::read_clock);
            member.own = Own::Mail(waiter);
            member.sleep_and_work();
            return member.outcome.take();
        }
        drop(inbox);
        let is_behind = first.is_some();
        let begun = match first {
            None => member.begin(order),
            Some(first) => {
                let begun = member.begin(first);
                member.forget(begun);
                member.state().work.begin(order)
            }
        };
        match begun {
            Begun::Later(id) => {
                member.own = Own::Order(id);
                member.until = limit.until::<W>(|| member.state().work.now());
                member.state().work.send();
                if !member.work() {
                    member.sleep_and_work();
                }
            }
            Begun::Now(outcome) => {
                member.outcome = Some(outcome);
                if is_behind {
                    member.state().work.send();
                }
                member.hand_out();
                member.go();
            }
            Begun::Unattended => unreachable!("a thread waits for it"),
        }
        member.outcome.take()
    }

    /// Gives an order without waiting for its outcome.
    pub(super) fn leave(&self, order: W::Order) {
        let mut inbox = self.lock();
        let Some(state) = inbox.state.take() else {
            inbox.orders.push_back(Filed::Order(order, None));
            return;
        };
        drop(inbox);
        let mut member = self.member(Some(state));
        let begun = member.begin(order);
        member.forget(begun);
        member.state().work.send();
        member.hand_out();
        member.go();
    }

    /// Acts like a thread that is delayed while it has the loop, until the result is called.
    #[cfg(test)]
    pub(super) fn hold_desk(&self) -> impl FnOnce() {
        let mut member = self.member(self.inbox_with_state().state.take());
        move || _ = member.go()
    }

    /// Looks at the work between two steps of other threads.
    #[cfg(test)]
    pub(super) fn look_at<T>(&self, look: impl FnOnce(&W) -> T) -> T {
        let inbox = self.inbox_with_state();
        look(&inbox.state.as_ref().expect("it waited for it").work)
    }

    /// Waits until no other thread has the loop.
    #[cfg(test)]
    fn inbox_with_state(&self) -> MutexGuard<'_, Inbox<W>> {
        loop {
            let inbox = self.lock();
            if inbox.state.is_some() {
                return inbox;
            }
            drop(inbox);
            yield_now();
        }
    }

    /// Acts like a leader that is delayed while it waits for events.
    #[cfg(test)]
    pub(super) fn hold_poller(&self) -> impl FnOnce() {
        let mut inbox = self.inbox_with_state();
        let mut member = self.member(inbox.state.take());
        assert!(member.put_down(inbox), "no other thread waits");
        move || {
            if member.come_back() {
                member.hand_out();
                member.go();
            }
        }
    }

    #[inline]
    fn member(&self, state: Option<Box<LoopState<W>>>) -> Member<'_, W> {
        let (own, until) = (Own::None, None);
        Member { crew: self, state, poller: None, own, until, outcome: None, posted: 0 }
    }

    /// Calls a thread to the loop.
    fn call(&self, waiter: &Participant<W>) {
        let mut called = WakeSet::default();
        waiter.call(&mut called);
        self.event_count.notify(called);
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Inbox<W>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
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
struct Member<'a, W: Work> {
    crew: &'a Crew<W>,
    /// Present while it works.
    state: Option<Box<LoopState<W>>>,
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

impl<'a, W: Work> Member<'a, W> {
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

    /// No thread waits for what was begun.
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
        self.state().orders.push_back(Filed::Order(order, None));
        self.look();
        self.state().work.get_ready();
        let Some(Filed::Order(order, None)) = self.state().orders.pop_back() else {
            unreachable!("it was put there");
        };
        self.state().work.begin(order)
    }

    #[inline(never)]
    fn look(&mut self) {
        if let Some(poller) = &mut self.state().poller {
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
            let mut inbox = self.crew.lock();
            if inbox.is_empty() {
                if self.state().work.has_report() {
                    self.step_out(inbox);
                    return false;
                }
                if !self.put_down(inbox) {
                    return false;
                }
                self.poller.as_mut().expect("it has it from the state").wait();
                if !self.come_back() {
                    return false;
                }
                rounds = 0;
            } else {
                self.state().take_in(&mut inbox);
                drop(inbox);
                rounds += 1;
                self.serve(rounds % ROUNDS_WITHOUT_LOOK_MAX == 0);
            }
        }
    }

    /// Sleeps until its order is done or its limit is reached, and works when it is called.
    fn sleep_and_work(&mut self) {
        loop {
            let Own::Mail(waiter) = &self.own else {
                unreachable!("it sleeps with a waiter");
            };
            let mut mail = waiter.await_mail(&self.crew.event_count, self.until);
            if let Some(outcome) = mail.outcome.take() {
                self.outcome = Some(W::receive(outcome));
                return;
            }
            let is_called = mem::take(&mut mail.is_called);
            drop(mail);
            let mut inbox = self.crew.lock();
            self.state = inbox.state.take();
            if self.state.is_none() {
                match is_called {
                    true => continue,
                    false => return inbox.take_back(Arc::clone(waiter)),
                }
            }
            // If the inbox is not empty, its own order may be there.
            let is_to_work = is_called || !inbox.is_empty();
            drop(inbox);
            if !is_to_work {
                return self.take_back();
            }
            if self.work() {
                return;
            }
        }
    }

    /// Its limit is reached, and it has the loop because no other thread works. It handles what is
    /// known by now; if its outcome is not among that, it takes its order back.
    #[cold]
    fn take_back(&mut self) {
        let state = self.state.as_mut().expect("it works");
        if state.poller.is_some() {
            self.look();
        } else if let Some(id) = state.id_of(&self.own) {
            state.work.tick(id);
        }
        self.hand_out();
        let own = mem::replace(&mut self.own, Own::None);
        if self.outcome.is_none() {
            let state = self.state();
            state.forget(&own);
            state.work.send();
            self.hand_out();
        }
        self.go();
        self.outcome = self.outcome.take().map(W::receive);
    }

    /// Begins and sends the orders taken from the inbox.
    #[inline(never)]
    fn serve(&mut self, look: bool) {
        let state = self.state();
        if let Some(LeaderReturn { poller, waits }) = state.back.take() {
            state.waiters.extend(waits);
            self.have_back(poller);
        } else if look {
            self.look();
        }
        if self.state().work.get_ready() {
            self.look();
            self.state().work.get_ready();
        }
        let state = self.state();
        while let Some(filed) = state.orders.pop_front() {
            let (order, sender) = match filed {
                Filed::Order(order, sender) => (order, sender),
                Filed::Gone(own) => {
                    state.forget(&own);
                    continue;
                }
                Filed::Outcome(outcome) => {
                    state.work.give_up(outcome);
                    continue;
                }
            };
            match (state.work.begin(order), sender) {
                (Begun::Now(outcome), Some(sender)) => {
                    sender.post(outcome, &mut state.posted);
                    state.keep(sender);
                }
                (Begun::Later(id), Some(sender)) => {
                    state.waiters.insert(id, sender);
                }
                (Begun::Later(id), None) => state.work.cancel(id),
                (Begun::Now(outcome), None) => state.work.give_up(outcome),
                (Begun::Unattended, _) => {}
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
            Own::Order(id) if state.waiters.is_empty() => Some(*id),
            _ => None,
        };
        if let Some(poller) = &mut state.poller {
            state.work.turn(poller, alone);
        }
    }

    /// Hands out the ended orders, and keeps its own outcome. Returns whether there was nothing for
    /// others.
    #[inline(always)]
    fn hand_out(&mut self) -> bool {
        let state = self.state.as_mut().expect("it works");
        match &self.own {
            // No other thread waits for anything.
            Own::Order(id) if state.waiters.is_empty() && state.poller.is_some() => {
                if state.work.has_ended() {
                    self.outcome = state.work.take(*id);
                    state.work.send();
                }
                true
            }
            Own::None if !state.work.has_ended() => true,
            _ => {
                self.hand_out_to_all();
                false
            }
        }
    }

    fn hand_out_to_all(&mut self) {
        if let Own::Mail(waiter) = &self.own {
            self.outcome = waiter.lock().outcome.take().map(W::receive);
        }
        let mut posted = 0;
        // An order may end because another outcome was taken, without any other notification. Each
        // iteration but the last takes one order in progress, and none is added.
        while self.hand_out_once(&mut posted) && self.state().work.has_ended() {}
        self.posted += posted;
        self.wake_posted();
    }

    /// Wakes the threads whose outcomes were posted.
    fn wake_posted(&mut self) {
        let posted = mem::take(&mut self.state().posted);
        self.crew.event_count.notify(posted);
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
        let Member { crew, state, own, outcome, .. } = self;
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
            let Some(waiter) = state.waiters.get(&id) else {
                state.wake_leader(&crew.waker);
                continue;
            };
            let Some(ended) = state.work.take(id) else {
                continue;
            };
            was_any = true;
            let is_leader = state.leader.as_ref().is_some_and(|leader| Arc::ptr_eq(leader, waiter));
            match own.is(waiter) {
                true => *outcome = Some(ended),
                false => {
                    waiter.post(ended, &mut state.posted);
                    *posted += 1;
                }
            }
            if let Some(waiter) = state.waiters.remove(&id) {
                state.keep(waiter);
            }
            if is_leader {
                state.wake_leader(&crew.waker);
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
    fn put_down(&mut self, mut inbox: MutexGuard<'_, Inbox<W>>) -> bool {
        let mut state = self.state.take().expect("it works");
        self.poller = state.poller.take();
        match (&mut self.poller, &self.own) {
            (Some(poller), own) => {
                let due = state.work.due();
                state.work.set_timeout(poller, due);
                state.waits_until = due;
                if let Own::Mail(waiter) = own {
                    state.leader = Some(Arc::clone(waiter));
                }
            }
            (None, _) => {
                self.waiter(&mut state, &mut inbox);
                state.hasten_leader(&self.crew.waker);
            }
        }
        state.clear_up(&mut inbox);
        inbox.state = Some(state);
        self.poller.is_some()
    }

    /// Handles the events of the wait, if the loop is free; otherwise the thread at the loop will.
    /// Returns whether it works again; otherwise the thread has to sleep.
    #[inline(always)]
    fn come_back(&mut self) -> bool {
        let mut inbox = self.crew.lock();
        self.state = inbox.state.take();
        let poller = self.poller.take().expect("it waited with it");
        if self.state.is_some() {
            drop(inbox);
            self.have_back(poller);
            return true;
        }
        let waits = match self.own {
            Own::Order(id) => {
                let waiter = inbox.waiter();
                self.own = Own::Mail(Arc::clone(&waiter));
                Some((id, waiter))
            }
            Own::None | Own::Mail(_) => None,
        };
        inbox.back = Some(LeaderReturn { poller, waits });
        false
    }

    /// Gives the loop back while its order is not done, to deliver a report; then the thread has to
    /// sleep.
    #[cold]
    fn step_out(&mut self, mut inbox: MutexGuard<'_, Inbox<W>>) {
        let mut state = self.state.take().expect("it works");
        let report = state.work.report();
        let waiter = self.waiter(&mut state, &mut inbox);
        inbox.away.push(Arc::clone(&waiter));
        let successor = inbox.put(state, &self.crew.waker);
        drop(inbox);
        if let Some(successor) = successor {
            self.crew.call(&successor);
        }
        if let Some(report) = report {
            self.tell(report);
        }
        self.crew.lock().away.retain(|away| !Arc::ptr_eq(away, &waiter));
        // It was not called meanwhile, so the loop may be free.
        self.crew.call(&waiter);
    }

    /// The waiter in which it waits for its order from now on.
    fn waiter(&mut self, state: &mut LoopState<W>, inbox: &mut Inbox<W>) -> Arc<Participant<W>> {
        let waiter = match &self.own {
            Own::Mail(waiter) => return Arc::clone(waiter),
            Own::Order(id) => {
                let waiter = inbox.waiter();
                state.waiters.insert(*id, Arc::clone(&waiter));
                waiter
            }
            Own::None => unreachable!("its order is not done"),
        };
        self.own = Own::Mail(Arc::clone(&waiter));
        waiter
    }

    /// Delivers a report. The thread holds nothing but, possibly, its outcome.
    #[cold]
    fn tell(&mut self, report: W::Report) {
        let telling = Telling { member: self };
        W::tell(report);
        mem::forget(telling);
    }

    /// Gives the loop back after its own order is done. Returns whether others, or a report, have
    /// delayed it.
    #[inline(always)]
    fn go(&mut self) -> bool {
        let crew = self.crew;
        let mut inbox = crew.lock();
        let is_kept = !inbox.is_empty();
        if is_kept {
            drop(inbox);
            inbox = self.work_for_others();
        }
        let mut state = self.state.take().expect("it works");
        let report = state.work.report();
        let successor = inbox.put(state, &crew.waker);
        drop(inbox);
        if let Some(successor) = successor {
            self.crew.call(&successor);
        }
        match report {
            None => is_kept,
            Some(report) => {
                self.tell(report);
                true
            }
        }
    }

    /// Returns with the inbox empty and locked.
    fn work_for_others(&mut self) -> MutexGuard<'a, Inbox<W>> {
        let crew = self.crew;
        for _ in 0..ROUNDS_FOR_OTHERS_MAX {
            let mut inbox = crew.lock();
            if inbox.is_empty() {
                return inbox;
            }
            self.state().take_in(&mut inbox);
            drop(inbox);
            self.serve(false);
            self.hand_out();
            self.step_aside();
        }
        // The inbox stays locked from here on, so no further order arrives.
        let mut inbox = crew.lock();
        self.state().take_in(&mut inbox);
        self.serve(false);
        self.hand_out();
        inbox
    }

    /// The thread panicked. Orders that it took but did not begin go back to the inbox, and all
    /// threads are called. What no thread waits for is left to the next one at the loop.
    #[cold]
    fn give_back(&mut self) {
        let mut own = mem::replace(&mut self.own, Own::None);
        let mut called = WakeSet::default();
        let mut inbox = self.crew.lock();
        if let Some(mut state) = self.state.take() {
            called = mem::take(&mut state.posted);
            state.orders.append(&mut inbox.orders);
            mem::swap(&mut inbox.orders, &mut state.orders);
            for filed in &mut inbox.orders {
                if let Filed::Order(_, sender) = filed {
                    drop(sender.take_if(|sender| own.is(sender)));
                }
            }
            match self.outcome.take() {
                // Its order is done.
                Some(outcome) => state.work.give_up(outcome),
                None => state.forget(&own),
            }
            own = Own::None;
            inbox.back = inbox.back.take().or(state.back.take());
            inbox.state = Some(state);
        }
        if let Some(poller) = self.poller.take() {
            inbox.back = Some(LeaderReturn { poller, waits: None });
            inbox.orders.push_back(Filed::Gone(own));
        }
        let waiters = inbox.state.iter().flat_map(|state| state.waiters.values());
        let senders = inbox.orders.iter().filter_map(|filed| match filed {
            Filed::Order(_, sender) => sender.as_ref(),
            Filed::Gone(_) | Filed::Outcome(_) => None,
        });
        let leader = inbox.back.iter().filter_map(|back| Some(&back.waits.as_ref()?.1));
        waiters.chain(senders).chain(leader).for_each(|waiter| waiter.call(&mut called));
        drop(inbox);
        self.crew.event_count.notify(called);
    }
}

impl<W: Work> Drop for Member<'_, W> {
    #[inline]
    fn drop(&mut self) {
        // On the normal path both have been returned.
        if self.state.is_some() || self.poller.is_some() {
            self.give_back();
        }
    }
}

/// Guards the delivery of a report. If that panics, the thread waits for nothing from then on, and
/// what it had is left to the next thread at the loop.
struct Telling<'h, 'a, W: Work> {
    member: &'h mut Member<'a, W>,
}

impl<W: Work> Drop for Telling<'_, '_, W> {
    fn drop(&mut self) {
        let mut inbox = self.member.crew.lock();
        if let Own::Mail(waiter) = mem::replace(&mut self.member.own, Own::None) {
            inbox.away.retain(|away| !Arc::ptr_eq(away, &waiter));
            inbox.take_back(waiter);
        }
        inbox.orders.extend(self.member.outcome.take().map(Filed::Outcome));
    }
}

impl<W: Work> LoopState<W> {
    /// Takes everything from the inbox.
    fn take_in(&mut self, inbox: &mut Inbox<W>) {
        debug_assert!(self.orders.is_empty() && self.back.is_none());
        mem::swap(&mut inbox.orders, &mut self.orders);
        self.back = inbox.back.take();
        self.clear_up(inbox);
    }

    #[inline]
    fn clear_up(&mut self, inbox: &mut Inbox<W>) {
        if !self.used.is_empty() && inbox.used.len() < WAITERS_KEPT_MAX {
            inbox.used.append(&mut self.used);
        }
    }

    /// Keeps a waiter that receives nothing more for reuse.
    fn keep(&mut self, waiter: Arc<Participant<W>>) {
        if self.used.len() < WAITERS_KEPT_MAX {
            self.used.push_back(waiter);
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
                waiters.find(|(_, waiter)| own.is(waiter)).map(|(id, _)| *id)
            }
        }
    }

    /// A thread no longer waits for its order.
    fn forget(&mut self, own: &Own<W>) {
        if let Some(id) = self.id_of(own) {
            self.waiters.remove(&id);
            self.work.cancel(id);
        }
        let Own::Mail(waiter) = own else {
            return;
        };
        if let Some(outcome) = waiter.lock().outcome.take() {
            self.work.give_up(outcome);
        }
    }
}
