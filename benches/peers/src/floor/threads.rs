//! The floor for many threads: one works the loop, the others give it orders and sleep.
//!
//! Nothing is cheaper with the means of the standard library: a thread sleeps and is woken once for
//! each half of a pair, and what was ordered meanwhile leaves in one write for each master. It has
//! a thread of its own, which muxlock must not have.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::time::Timespec;

use super::many::Many;
use super::{Asked, PATIENCE};

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

const PENDING: u32 = 0;
const NO: u32 = 1;
const YES: u32 = 2;

/// What one of the threads has of the floor.
pub struct Member {
    slot: usize,
    desk: Arc<Desk>,
}

struct Desk {
    orders: Mutex<Vec<Order>>,
    /// Whether the loop is about to wait, or does.
    is_waiting: AtomicBool,
    bell: OwnedFd,
    /// What came of each member's last order.
    outcomes: Box<[AtomicU32]>,
}

struct Order {
    slot: usize,
    asked: Asked,
    by: Thread,
}

/// Connects to these ports of this machine, for so many threads.
pub fn members(ports: &[u16], count: usize, ttl_ms: u64) -> io::Result<Vec<Member>> {
    let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    let outcomes = (0..count).map(|_| AtomicU32::new(PENDING)).collect();
    let (orders, is_waiting) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let desk = Arc::new(Desk { orders, is_waiting, bell, outcomes });
    let (work_for, ports) = (Arc::clone(&desk), ports.to_vec());
    thread::spawn(move || {
        // Without it, the members wait for ever, which is seen.
        let worked = Many::connect(&ports, count, ttl_ms).and_then(|many| work(&work_for, many));
        worked.expect("the masters answer");
    });
    Ok((0..count).map(|slot| Member { slot, desk: Arc::clone(&desk) }).collect())
}

impl Member {
    /// Whether a majority agreed.
    pub fn ask(&self, asked: Asked) -> bool {
        let outcome = &self.desk.outcomes[self.slot];
        outcome.store(PENDING, Ordering::Relaxed);
        self.desk.take(Order { slot: self.slot, asked, by: thread::current() });
        loop {
            match outcome.load(Ordering::Acquire) {
                PENDING => thread::park(),
                other => return other == YES,
            }
        }
    }
}

impl Desk {
    fn take(&self, order: Order) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        if self.is_waiting.swap(false, Ordering::SeqCst) {
            // It fails only if the counter is full, and then nobody needs to be woken.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

fn work(desk: &Desk, mut many: Many) -> io::Result<()> {
    many.add_bell(&desk.bell)?;
    let mut orders = Vec::new();
    let mut sleepers: Vec<Option<Thread>> = vec![None; desk.outcomes.len()];
    let orders_left = || desk.orders.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        std::mem::swap(&mut *orders_left(), &mut orders);
        for Order { slot, asked, by } in orders.drain(..) {
            sleepers[slot] = Some(by);
            many.ask(slot, asked)?;
        }
        many.send();
        desk.is_waiting.store(true, Ordering::SeqCst);
        let has_more = !orders_left().is_empty();
        many.wait(if has_more { &AT_ONCE } else { &PATIENCE })?;
        desk.is_waiting.store(false, Ordering::SeqCst);
        for (slot, is_won) in many.decided().drain(..) {
            desk.outcomes[slot].store(if is_won { YES } else { NO }, Ordering::Release);
            if let Some(sleeper) = sleepers[slot].take() {
                sleeper.unpark();
            }
        }
    }
}
