//! Locks that an application keeps alive: extended again and again, for several times their time
//! to live.

use muxlock::Lease;

use super::World;
use super::client::Client;
use super::clock::MILLI;
use super::queue::Event;
use super::rare::Rare;
use super::work::token_of;

/// Of the validity that is left, until the lock is renewed.
const RENEWED_AFTER: u64 = 3;
/// And until a renewal that failed is tried again.
const TRIED_AFTER: u64 = 24;
/// The most renewals of one lock.
const RENEWALS_MAX: u64 = 40;
/// So many times as long as it was to live, and it is a situation worth counting.
const LONG: u64 = 3;
/// How often an application does something else with a lock that it keeps alive.
const RECALLS: u32 = 150;

/// A lock that is kept alive.
pub struct Kept {
    token: [u8; 40],
    ttl: u64,
    /// Renewals that are still to come.
    left: u64,
    /// When it was granted, or handed over, in true time.
    since: u64,
    /// When it is to be renewed, in true time.
    due: u64,
}

impl Client {
    pub fn keeps(&self, lease: &Lease) -> bool {
        let token = token_of(lease);
        self.kept.iter().any(|kept| kept.token == token)
    }
}

impl World {
    /// Whether the application has a lock to do something with.
    pub fn is_holding(&mut self, client: usize) -> bool {
        let it = &self.clients[client];
        let is_any_free = it.leases.iter().any(|lease| !it.keeps(lease));
        is_any_free || !it.leases.is_empty() && self.choices.chance(RECALLS)
    }

    /// Keeps a lock alive from now on.
    pub fn keep(&mut self, client: usize, lease: &Lease) {
        self.keep_for_long(client, lease);
        self.renew_after(client, lease, RENEWED_AFTER);
    }

    /// The same, with the first renewal soon.
    pub fn keep_on(&mut self, client: usize, lease: &Lease) {
        self.keep_for_long(client, lease);
        let soon = self.choices.magnitude(MILLI / 100, 20 * MILLI);
        self.renew_at(client, lease, self.now + soon);
    }

    fn keep_for_long(&mut self, client: usize, lease: &Lease) {
        let ttl = self.plan.ttl(&mut self.choices);
        let left = self.choices.between(2, RENEWALS_MAX);
        let kept = Kept { token: token_of(lease), ttl, left, since: self.now, due: 0 };
        self.clients[client].kept.push(kept);
    }

    /// Renews the lock when this part of its validity has passed.
    fn renew_after(&mut self, client: usize, lease: &Lease, part: u64) {
        let it = &self.clients[client];
        let left = it.clock.when(lease.valid_until().as_nanos()).saturating_sub(self.now);
        let pause = (left / part).max(MILLI);
        let early = self.choices.between(0, pause / 4);
        self.renew_at(client, lease, self.now + pause - early);
    }

    fn renew_at(&mut self, client: usize, lease: &Lease, due: u64) {
        let it = &mut self.clients[client];
        let token = token_of(lease);
        if let Some(kept) = it.kept.iter_mut().find(|kept| kept.token == token) {
            kept.due = due;
            self.queue.push(due, Event::Renew(client));
        }
    }

    /// Renews what is due.
    pub fn renew(&mut self, client: usize) {
        if !self.is_faulty {
            return;
        }
        let it = &mut self.clients[client];
        if self.now < it.paused_until {
            return self.queue.push(it.paused_until, Event::Renew(client));
        }
        let (now, leases) = (self.now, &it.leases);
        let due = it.kept.iter().position(|kept| kept.due <= now);
        let Some(due) = due else {
            return;
        };
        let token = it.kept[due].token;
        let Some(at) = leases.iter().position(|lease| token_of(lease) == token) else {
            // It was given up, or something else extends it.
            it.kept.swap_remove(due);
            return;
        };
        let lease = it.leases.swap_remove(at);
        let kept = &mut it.kept[due];
        let ttl = kept.ttl;
        (kept.due, kept.left) = (u64::MAX, kept.left.saturating_sub(1));
        self.extend(client, lease, ttl);
        self.wake_client(client, self.now);
    }

    /// An extension has ended: if it was a renewal, another one follows.
    pub fn note_renewed(&mut self, client: usize, lease: &Lease, is_extended: bool) {
        let token = token_of(lease);
        let it = &mut self.clients[client];
        let Some(at) = it.kept.iter().position(|kept| kept.token == token) else {
            return;
        };
        let kept = &it.kept[at];
        let is_long = is_extended && self.now - kept.since > LONG * kept.ttl;
        self.rare.hit_if(is_long, Rare::KeptLong);
        let is_over = it.is_over(self.now, lease.valid_until().as_nanos());
        if kept.left == 0 || is_over {
            it.kept.swap_remove(at);
            return self.come_back(client, lease);
        }
        self.renew_after(client, lease, if is_extended { RENEWED_AFTER } else { TRIED_AFTER });
    }
}
