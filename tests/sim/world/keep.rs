//! Locks that an application keeps alive: extended again and again, for several times their time
//! to live, by the application itself or by the engine.

use std::collections::BTreeMap;
use std::time::Duration;

use muxlock::proto::{Lease, OpId};
use muxlock::{KeepAlive, LockToken, Loss, LossCause};

use super::World;
use super::client::Client;
use super::clock::MILLI;
use super::queue::Event;
use super::rare::Rare;
use super::work::{Kind, Known, Operation, token_of};

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

    fn kept_by_engine(&self) -> Option<OpId> {
        let mut operations = self.operations.iter();
        let kept = operations.find(|(_, it)| matches!(it.kind, Kind::Keep { .. }));
        kept.map(|(id, _)| *id)
    }
}

/// Whether these slots are sent the first command of a renewal that the engine has started: each is
/// sent one of each renewal.
pub fn is_new_renewal(
    operations: &mut BTreeMap<OpId, Operation>,
    of: &LockToken,
    slots: u64,
) -> bool {
    for operation in operations.values_mut() {
        if let Kind::Keep { token, sent, .. } = &mut operation.kind {
            if token == of.as_bytes() {
                let is_new = *sent == 0 || *sent & slots != 0;
                *sent = if is_new { slots } else { *sent | slots };
                return is_new;
            }
        }
    }
    false
}

/// When a loss is told of a lock that was kept, or renewed, at `now`; never if no notice was asked
/// for.
fn tell_at(now: u64, deadline: u64, notice: Option<u64>) -> u64 {
    let left = deadline.saturating_sub(now);
    notice.map_or(u64::MAX, |notice| deadline - notice.min(left / 2))
}

impl World {
    /// Whether the application has a lock to do something with.
    pub fn is_holding(&mut self, client: usize) -> bool {
        let it = &self.clients[client];
        let is_any_free = it.leases.iter().any(|lease| !it.keeps(lease));
        let is_any_kept = !it.leases.is_empty() || it.kept_by_engine().is_some();
        is_any_free || is_any_kept && self.choices.chance(RECALLS)
    }

    /// The engine renews the lock from now on.
    pub fn keep_in_engine(&mut self, client: usize, lease: Lease) {
        let now = self.client_now(client);
        let (started, token) = (self.clients[client].told, token_of(&lease));
        let Known { until: deadline, granted } = Known::of(&lease);
        let ttl_ms = lease.ttl().as_millis() as u32;
        let renewals = self.choices.between(1, RENEWALS_MAX) as u32;
        let mut how = KeepAlive::default().renewals_max(renewals);
        let notice =
            self.choices.chance(500).then(|| self.choices.magnitude(MILLI / 10, 50 * MILLI));
        if let Some(notice) = notice {
            how = how.notice(Duration::from_nanos(notice));
        }
        self.checker.start_extension(started, &token);
        let engine = &mut self.clients[client].engine;
        let id = engine.keep(now, lease, &how);
        let tell_at = tell_at(engine.last_now().as_nanos(), deadline, notice);
        let kind = Kind::Keep { token, deadline, granted, ttl_ms, sent: 0, notice, tell_at };
        self.start(client, id, kind, u64::MAX);
        self.wake_client(client, self.now);
    }

    /// Takes back a lock that the engine renews.
    pub fn take_from_engine(&mut self, client: usize) -> Option<Lease> {
        let id = self.clients[client].kept_by_engine()?;
        self.cancel(client, id);
        self.clients[client].leases.pop()
    }

    /// The engine has renewed a lock.
    pub fn renewed(&mut self, client: usize, id: OpId, until: u64) {
        let it = &self.clients[client];
        let (Some(lease), Some(operation)) =
            (it.engine.operations().kept(id), it.operations.get(&id))
        else {
            return self.fail("TERMINATION", || format!("{id:?} is renewed and not kept"));
        };
        let (known, operation) = (Known::of(lease), operation.clone());
        if known.until != until {
            self.fail("EXTEND-DEADLINE", || "a renewal is told with another deadline".into());
        }
        self.rare.hit(Rare::Renewed);
        self.check_extended(client, &operation, &known, true);
        let now = self.now;
        let it = &mut self.clients[client];
        let told = it.engine.last_now().as_nanos();
        if let Some(operation) = it.operations.get_mut(&id) {
            operation.started_true = now;
            if let Kind::Keep { deadline, granted, sent, notice, tell_at: at, .. } =
                &mut operation.kind
            {
                *at = tell_at(told, known.until, *notice);
                (*deadline, *granted, *sent) = (known.until, known.granted, 0);
            }
        }
    }

    /// What was due was done: whose time to be told of a loss has come, is told (R31).
    pub fn check_told(&mut self, client: usize) {
        let it = &self.clients[client];
        let now = it.engine.last_now().as_nanos();
        let is_late = |(id, operation): &(&OpId, &Operation)| {
            let is_due = matches!(operation.kind, Kind::Keep { tell_at, .. } if tell_at <= now);
            is_due && !it.engine.operations().is_done(**id)
        };
        if it.operations.iter().any(|kept| is_late(&kept)) {
            self.fail("NOTICE", || format!("client {client} is not told of a loss in time"));
        }
    }

    /// The engine renews a lock no longer: its application gets it back.
    pub fn lost(&mut self, client: usize, operation: &Operation, lease: Lease, loss: &Loss) {
        let Kind::Keep { token, deadline, tell_at, notice, .. } = operation.kind else {
            return self.fail("TERMINATION", || "an operation changed its kind".into());
        };
        let is_early = notice.is_some()
            && matches!(loss.cause, LossCause::Late | LossCause::Unavailable)
            && self.clients[client].engine.last_now().as_nanos() < tell_at;
        if is_early {
            self.fail("NOTICE", || format!("too early for a loss: {loss}"));
        }
        let (until, told) = (lease.valid_until().as_nanos(), self.clients[client].told);
        let is_gone = loss.cause == LossCause::Gone;
        let least = if is_gone { deadline.min(told) } else { deadline };
        if until != least {
            self.fail("EXTEND-KEPT", || "a loss changed the deadline".into());
        }
        if is_gone {
            self.checker.end(&token);
        }
        self.timeline.note(self.now, || format!("client {client} loses: {loss}"));
        self.rare.hit_if(is_gone, Rare::KeptGone);
        self.rare.hit_if(!is_gone, Rare::KeptLost);
        if self.is_faulty {
            self.come_back(client, &lease);
            self.clients[client].leases.push(lease);
        } else {
            self.release(client, lease);
        }
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
