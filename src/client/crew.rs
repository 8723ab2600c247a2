//! Leader and followers: how threads share an event loop that belongs to none of them.
//!
//! What they share lies on a desk. Whoever finds it free takes it and works for all: he begins what
//! was ordered meanwhile, sends it, and hands out results. Whoever finds it taken leaves his order
//! at the gate and sleeps until it is done. One of those whose orders are not done, the leader,
//! waits for events; the desk is free as long as he does.
//!
//! So that nothing is forgotten and nobody sleeps for ever:
//!
//! 1. Nobody puts the desk down while there is something at the gate.
//! 2. Nobody puts it down while nobody waits for events and some order is not done, unless he goes
//!    to wait for them himself, or calls somebody to the desk.
//! 3. Who is called and finds the desk taken may sleep on: whoever has it is bound by 1 and 2.
//! 4. A leader who must not wait for so long any more, or whose order is done, is woken.
//!
//! The module knows neither locks nor sockets; `tests/handover` explores its interleavings.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};
use std::mem;

use super::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, yield_now};

/// How often a thread whose own order is done still looks after those of others.
const ROUNDS_FOR_OTHERS_MAX: usize = 4;
/// How often orders are begun before somebody looks for events again.
const ROUNDS_WITHOUT_LOOK_MAX: usize = 4;

/// Whoever has woken so many lets them go first: their next orders then leave together.
const CROWD_MIN: usize = 4;
/// So many mailboxes are kept, twice: more threads than that allocate.
const MAILBOXES_KEPT_MAX: usize = 256;
/// How many of them are looked at for one that is free.
const MAILBOXES_TRIED_MAX: usize = 8;

/// What lies on the desk.
pub(super) trait Work {
    type Order;
    /// An order under way.
    type Id: Copy + Eq + Hash;
    type Outcome;
    type Time: Copy + Ord;
    type Poller: Poll;

    /// To be called before orders are begun. Says whether somebody should look for events before.
    fn get_ready(&mut self) -> bool;

    /// Starts what was ordered. It must not panic: nobody would hear of the order again.
    fn begin(&mut self, order: Self::Order) -> Begun<Self>;

    /// Sends what was begun.
    fn send(&mut self);

    /// Handles what a wait has brought, and what is due. If `alone` is all that anybody waits for,
    /// the rest may be left for later once that is done.
    fn turn(&mut self, poller: &mut Self::Poller, alone: Option<Self::Id>);

    /// When somebody has to look; `None` if only an event can make that necessary.
    fn due(&self) -> Option<Self::Time>;

    /// Sets the poller to wait until then.
    fn aim(&self, poller: &mut Self::Poller, due: Option<Self::Time>);

    /// Whether an order has ended whose outcome was not taken.
    fn has_ended(&self) -> bool;

    /// Appends those orders.
    fn ended(&mut self, to: &mut Vec<Self::Id>);

    /// What came of an order; `None` if it goes on.
    fn take(&mut self, id: Self::Id) -> Option<Self::Outcome>;

    /// Looks again at an outcome that was not handed over at once.
    fn receive(outcome: Self::Outcome) -> Self::Outcome;

    /// Nobody waits for the order any more. It must not panic.
    fn cancel(&mut self, id: Self::Id);

    /// Nobody waited for the outcome any more. It must not panic.
    fn give_up(&mut self, outcome: Self::Outcome);
}

/// What became of an order at once.
pub(super) enum Begun<W: Work + ?Sized> {
    Now(W::Outcome),
    Later(W::Id),
    /// It is nobody's to wait for.
    Unattended,
}

/// What the leader waits with.
pub(super) trait Poll {
    type Waker: Wake;

    /// Waits for events for as long as it was set to.
    fn wait(&mut self);

    /// Fetches the events that are there.
    fn look(&mut self);
}

/// Ends the leader's wait, or his next one.
pub(super) trait Wake {
    fn wake(&self);
}

type WakerOf<W> = <<W as Work>::Poller as Poll>::Waker;

/// The threads, and what they share.
pub(super) struct Crew<W: Work> {
    gate: Mutex<Gate<W>>,
    waker: WakerOf<W>,
}

/// Where a thread finds out whether it is to work or to sleep.
struct Gate<W: Work> {
    /// Not there while somebody has it.
    desk: Option<Box<Desk<W>>>,
    /// One of each thread that waits at the most, and one of each thing that was given up.
    orders: VecDeque<Filed<W>>,
    /// The leader's, who found the desk taken.
    back: Option<Back<W>>,
    /// Mailboxes to be used again; some still belong to threads that are about to wake.
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
}

/// An order, and who waits for it.
struct Filed<W: Work> {
    order: W::Order,
    sender: Option<Arc<Mailbox<W>>>,
}

struct Back<W: Work> {
    poller: Box<W::Poller>,
    news: News<W>,
}

/// What is to be known of the order of a leader who is back.
enum News<W: Work> {
    None,
    /// He waits for it here.
    Waits(W::Id, Arc<Mailbox<W>>),
    /// He panicked, and waits for nothing.
    Gone(Own<W>),
}

/// Ids are no business of anybody else's, so that their hashes need not be secret; and a run can be
/// repeated.
type Waiters<W> = HashMap<<W as Work>::Id, Arc<Mailbox<W>>, BuildHasherDefault<DefaultHasher>>;

struct Desk<W: Work> {
    work: W,
    /// Not there while the leader waits with it.
    poller: Option<Box<W::Poller>>,
    /// When that wait ends by itself.
    waits_until: Option<W::Time>,
    is_leader_woken: bool,
    /// The mailbox of the leader, if he has one.
    leader: Option<Arc<Mailbox<W>>>,
    /// The orders of all that have a mailbox.
    waiters: Waiters<W>,
    /// What was at the gate, and is yet to be begun.
    orders: VecDeque<Filed<W>>,
    back: Option<Back<W>>,
    /// Orders to be handed out.
    ended: Vec<W::Id>,
    /// Mailboxes that nothing is to come to any more.
    used: VecDeque<Arc<Mailbox<W>>>,
}

/// Where a thread sleeps until there is something for it.
struct Mailbox<W: Work> {
    mail: Mutex<Mail<W>>,
    bell: Condvar,
}

struct Mail<W: Work> {
    outcome: Option<W::Outcome>,
    /// To the desk.
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
}

/// How a thread that is awake knows its own order.
enum Own<W: Work> {
    /// It has none, or it is done.
    None,
    /// By its id; nobody else knows whose it is.
    Order(W::Id),
    /// By what comes in here.
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
            used: VecDeque::new(),
        };
        Crew { gate: Mutex::new(gate), waker }
    }

    /// Gives an order and works, or sleeps while others work, until it is done.
    #[inline]
    pub(super) fn run(&self, order: W::Order) -> W::Outcome {
        let mut gate = self.lock();
        let mut hand = self.hand(gate.desk.take());
        if hand.desk.is_none() {
            let mailbox = gate.mailbox();
            gate.orders.push_back(Filed { order, sender: Some(Arc::clone(&mailbox)) });
            drop(gate);
            hand.own = Own::Mail(mailbox);
            hand.sleep_and_work();
            return hand.outcome();
        }
        drop(gate);
        match hand.begin(order) {
            Begun::Later(id) => {
                hand.own = Own::Order(id);
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
            Begun::Unattended => unreachable!("somebody waits for it"),
        }
        hand.outcome()
    }

    /// Gives an order that nobody waits for, and does not wait itself.
    pub(super) fn leave(&self, order: W::Order) {
        let mut gate = self.lock();
        let Some(desk) = gate.desk.take() else {
            gate.orders.push_back(Filed { order, sender: None });
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

    #[inline]
    fn hand(&self, desk: Option<Box<Desk<W>>>) -> Hand<'_, W> {
        Hand { crew: self, desk, poller: None, own: Own::None, outcome: None, posted: 0 }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Gate<W>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the threads. If it panics, it gives back what it has, and its order is cancelled.
struct Hand<'a, W: Work> {
    crew: &'a Crew<W>,
    /// While it works.
    desk: Option<Box<Desk<W>>>,
    /// While it waits for events.
    poller: Option<Box<W::Poller>>,
    own: Own<W>,
    /// What came of its own order.
    outcome: Option<W::Outcome>,
    /// How many were handed theirs since it stepped aside.
    posted: usize,
}

impl<'a, W: Work> Hand<'a, W> {
    #[inline]
    fn desk(&mut self) -> &mut Desk<W> {
        self.desk.as_mut().expect("it works")
    }

    /// What came of its own order, which is done.
    #[inline]
    fn outcome(&mut self) -> W::Outcome {
        self.outcome.take().expect("its order is done")
    }

    #[inline]
    fn begin(&mut self, order: W::Order) -> Begun<W> {
        match self.desk().work.get_ready() {
            true => self.look_and_begin(order),
            false => self.desk().work.begin(order),
        }
    }

    /// The order is with the others meanwhile: if looking panics, somebody else finds it there.
    #[cold]
    fn look_and_begin(&mut self, order: W::Order) -> Begun<W> {
        self.desk().orders.push_back(Filed { order, sender: None });
        self.look();
        self.desk().work.get_ready();
        let order = self.desk().orders.pop_back().expect("it was put there").order;
        self.desk().work.begin(order)
    }

    #[inline(never)]
    fn look(&mut self) {
        if let Some(poller) = &mut self.desk().poller {
            poller.look();
            self.turn();
        }
    }

    /// Works for all until its own order is done. Says whether it is; otherwise it is to sleep.
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

    /// Sleeps until its order is done, and works when it is called.
    fn sleep_and_work(&mut self) {
        loop {
            let Own::Mail(mailbox) = &self.own else {
                unreachable!("it sleeps with a mailbox");
            };
            let mut mail = mailbox.lock();
            while mail.outcome.is_none() && !mail.is_called {
                mail = mailbox.bell.wait(mail).unwrap_or_else(PoisonError::into_inner);
            }
            if let Some(outcome) = mail.outcome.take() {
                self.outcome = Some(W::receive(outcome));
                return;
            }
            mail.is_called = false;
            drop(mail);
            self.desk = self.crew.lock().desk.take();
            if self.desk.is_some() && self.work() {
                return;
            }
        }
    }

    /// Begins and sends what was fetched from the gate.
    #[inline(never)]
    fn serve(&mut self, look: bool) {
        let desk = self.desk();
        if let Some(Back { poller, news }) = desk.back.take() {
            match news {
                News::None => {}
                News::Waits(id, mailbox) => {
                    desk.waiters.insert(id, mailbox);
                }
                News::Gone(own) => desk.forget(&own),
            }
            self.have_back(poller);
        } else if look {
            self.look();
        }
        if self.desk().work.get_ready() {
            self.look();
            self.desk().work.get_ready();
        }
        let desk = self.desk();
        while let Some(Filed { order, sender }) = desk.orders.pop_front() {
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

    /// A leader's wait is over.
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

    /// Hands out what has ended, and keeps what is its own. Says whether there was nothing else.
    #[inline(always)]
    fn hand_out(&mut self) -> bool {
        let desk = self.desk.as_mut().expect("it works");
        match &self.own {
            // Nobody else waits for anything.
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
        // One may end because another was taken, and nothing else would tell. Each turn but the
        // last takes one of those under way, and none is added.
        while self.hand_out_once(&mut posted) && self.desk().work.has_ended() {}
        self.posted += posted;
    }

    /// Lets those who were handed theirs run first, if they are many.
    #[inline]
    fn step_aside(&mut self) {
        if mem::take(&mut self.posted) >= CROWD_MIN {
            yield_now();
        }
    }

    /// Says whether there was an outcome.
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
        // What was undone on the way.
        desk.work.send();
        was_any
    }

    /// Puts the desk down while its order goes on. Says whether it is to wait for events; otherwise
    /// it is to sleep.
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
            (None, own) => {
                if let Own::Order(id) = own {
                    let mailbox = gate.mailbox();
                    desk.waiters.insert(*id, Arc::clone(&mailbox));
                    self.own = Own::Mail(mailbox);
                }
                desk.hasten_leader(&self.crew.waker);
            }
        }
        desk.clear_up(&mut gate);
        gate.desk = Some(desk);
        self.poller.is_some()
    }

    /// Handles what the wait has brought, if the desk is free; otherwise whoever has it will. Says
    /// whether it works again; otherwise it is to sleep.
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
        let news = match self.own {
            Own::Order(id) => {
                let mailbox = gate.mailbox();
                self.own = Own::Mail(Arc::clone(&mailbox));
                News::Waits(id, mailbox)
            }
            Own::None | Own::Mail(_) => News::None,
        };
        gate.back = Some(Back { poller, news });
        false
    }

    /// Puts the desk down for good. Its own order is done. Says whether others have kept it.
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
        let mut heir = None;
        match desk.poller {
            Some(_) => heir = desk.waiters.values().next().cloned(),
            None => desk.hasten_leader(&self.crew.waker),
        }
        desk.clear_up(&mut gate);
        gate.desk = Some(desk);
        drop(gate);
        if let Some(heir) = heir {
            heir.call();
        }
        is_kept
    }

    /// Leaves the gate empty, and locked.
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
        // Nobody can come before this is over.
        let mut gate = crew.lock();
        self.desk().take_in(&mut gate);
        self.serve(false);
        self.hand_out();
        gate
    }

    /// It panicked. What was fetched but not begun is put back to the gate, and all are called;
    /// what nobody waits for is left to whoever comes next.
    #[cold]
    fn give_back(&mut self) {
        let mut own = mem::replace(&mut self.own, Own::None);
        let mut gate = self.crew.lock();
        if let Some(mut desk) = self.desk.take() {
            desk.orders.append(&mut gate.orders);
            mem::swap(&mut gate.orders, &mut desk.orders);
            let is_own = |sender: &mut Arc<Mailbox<W>>| own.is(sender);
            gate.orders.iter_mut().for_each(|filed| drop(filed.sender.take_if(is_own)));
            desk.forget(&own);
            own = Own::None;
            if let Some(outcome) = self.outcome.take() {
                desk.work.give_up(outcome);
            }
            gate.back = gate.back.take().or(desk.back.take());
            gate.desk = Some(desk);
        }
        if let Some(poller) = self.poller.take() {
            gate.back = Some(Back { poller, news: News::Gone(own) });
        }
        let waiters = gate.desk.iter().flat_map(|desk| desk.waiters.values());
        let senders = gate.orders.iter().filter_map(|filed| filed.sender.as_ref());
        waiters.chain(senders).for_each(|mailbox| mailbox.call());
    }
}

impl<W: Work> Drop for Hand<'_, W> {
    #[inline]
    fn drop(&mut self) {
        // Whoever goes in peace has put both down.
        if self.desk.is_some() || self.poller.is_some() {
            self.give_back();
        }
    }
}

impl<W: Work> Desk<W> {
    /// Fetches what is at the gate.
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

    /// Nothing is to come to this mailbox any more.
    fn keep(&mut self, mailbox: Arc<Mailbox<W>>) {
        if self.used.len() < MAILBOXES_KEPT_MAX {
            self.used.push_back(mailbox);
        }
    }

    /// The leader may wait for longer than he should by now.
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

    /// A thread that panicked waits for nothing any more.
    fn forget(&mut self, own: &Own<W>) {
        let id = match own {
            Own::None => None,
            Own::Order(id) => Some(*id),
            Own::Mail(_) => {
                let mut waiters = self.waiters.iter();
                waiters.find(|(_, mailbox)| own.is(mailbox)).map(|(id, _)| *id)
            }
        };
        if let Some(id) = id {
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
