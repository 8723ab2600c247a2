//! What is not one plain key (K1 to K8, K11 to K15): several resources at once, a share of one, one
//! slot of several, one with a caller's value. Their rounds are as all others are; here is what the
//! refusals tell.

use std::time::Duration;

use super::failure::Failure;
use super::kind::Claim;
use super::operation::Task;
use super::wait::round_trip;
use super::{Engine, Lease, Patience};
use crate::moment::Moment;
use crate::resource::{Form, Resource, SLOT_ANY};

/// For how long a client that waits for readers holds new ones off, unless it asks again (K6): so
/// long where the masters are near, and longer by what it takes to ask again where they are not.
const INTENT: Duration = Duration::from_millis(500);
const INTENT_ROUND_TRIPS: u32 = 8;
const INTENT_MAX: Duration = Duration::from_secs(5);
/// How many slots are tried without a pause (K8).
const SLOTS_TRIED_MAX: u32 = 8;

/// How many rounds an acquisition of exactly one may take: one for each slot that it tries.
pub(crate) fn rounds_at_once(resource: &Resource) -> u32 {
    if resource.form() == Form::Slot { SLOTS_TRIED_MAX } else { 1 }
}

impl Engine {
    /// For how long this acquisition holds readers off if it is refused.
    pub(super) fn intent_of(&self, round: usize) -> Duration {
        let owner = self.rounds[round].owner;
        let waits = owner.is_some_and(|op| {
            matches!(self.operations[op].task, Task::Acquire { patience: Patience::Until(_), .. })
        });
        let is_exclusive = self.rounds.claim(round).key.form() == Form::Exclusive;
        if waits && is_exclusive {
            let round_trip = round_trip(&self.nodes, self.rounds.round_trip());
            let distance = round_trip.saturating_mul(INTENT_ROUND_TRIPS);
            INTENT.saturating_add(distance).min(INTENT_MAX)
        } else {
            Duration::ZERO
        }
    }

    /// Starts a round of an acquisition that is not of one plain key.
    #[inline(never)]
    pub(super) fn start_formed(&mut self, now: Moment, mut claim: Claim, op: usize) -> usize {
        if let Some((slots, SLOT_ANY)) = claim.key.slot_of() {
            claim.key = claim.key.with_slot(self.entropy.next_u64() as u32 % slots);
        }
        self.rounds.start_formed(now, claim, op)
    }

    /// Which slot is to be asked for, after this round has failed; and whether at once. `None` if
    /// it was not for a slot.
    pub(super) fn next_slot(
        &mut self,
        now: Moment,
        op: usize,
        round: usize,
        failure: Failure,
    ) -> Option<(Resource, bool)> {
        let key = &self.rounds.claim(round).key;
        let (slots, _) = key.slot_of()?;
        let Task::Acquire { attempts, patience, .. } = self.operations[op].task else {
            return None;
        };
        let free = self.rounds.free_slots(round, slots);
        if free.is_empty() || failure != Failure::Contended {
            return Some((key.with_slot(SLOT_ANY), false));
        }
        let has_time = match patience {
            Patience::OneRound => true,
            Patience::Until(give_up_at) => now < give_up_at,
        };
        let random = self.entropy.next_u64() as usize;
        let is_at_once = has_time && attempts % SLOTS_TRIED_MAX != 0;
        Some((key.with_slot(free[random % free.len()]), is_at_once))
    }
}

impl Lease {
    /// The same lock, to be [extended](Engine::extend) into a share of its resource: from that
    /// extension on, others may share it. If the extension fails, some nodes may have shared it
    /// already: release it.
    ///
    /// A lock of several resources stays as it is, and so does one with a caller's value. A share
    /// has no fencing token.
    pub fn into_shared(mut self) -> Lease {
        if !matches!(self.resource.form(), Form::All | Form::As) {
            (self.resource, self.fencing) = (self.resource.into_shared(), None);
        }
        self
    }
}
