//! What is not one plain key (K1 to K8, K11 to K15): several resources at once, a share of one, one
//! slot of several, one with a caller's value. Their rounds are as all others are; here is what the
//! refusals tell.

use std::mem;
use std::time::Duration;

use super::Voting;
use crate::lock_error::LockError;
use crate::moment::Moment;
use crate::proto::index::{OpIndex, RoundId};
use crate::proto::kind::{Claim, RoundKind};
use crate::proto::nodes::Nodes;
use crate::resource::{Key, KindRow, Refusal};
use crate::token::Entropy;

/// For how long a client that waits for readers holds new ones off, unless it asks again (K6): so
/// long where the masters are near, and longer by what it takes to ask again where they are not.
const INTENT: Duration = Duration::from_millis(500);
const INTENT_ROUND_TRIPS: u32 = 8;
const INTENT_MAX: Duration = Duration::from_secs(5);
/// How many slots are tried without a pause: one by a plain SET, the others by the script (K8).
const SLOTS_TRIED_MAX: u32 = 9;

/// How many rounds an acquisition of exactly one may take: one for each slot that it tries.
pub(crate) fn rounds_at_once(row: &KindRow) -> u32 {
    if row.refusal == Refusal::FreeSlots { SLOTS_TRIED_MAX } else { 1 }
}

impl Voting {
    /// Starts a round of an acquisition that is not of one plain key. If the round asks for one all
    /// the same, returns also what that key stands for.
    #[inline(never)]
    pub(crate) fn start_of_kind(
        &mut self,
        now: Moment,
        mut claim: Claim,
        (op, attempts): (OpIndex, u32),
        entropy: &mut dyn Entropy,
    ) -> (RoundId, Option<Key>) {
        if let Some((slots, slot)) = claim.key.slot() {
            if slot.is_none() {
                claim.key = claim.key.with_slot(Some(entropy.next_u64() as u32 % slots));
            }
            if attempts == 1 && mem::replace(&mut self.refusals.is_slot_likely, true) {
                let slot = claim.key.undone();
                let key = mem::replace(&mut claim.key, slot);
                return (self.start(now, RoundKind::Acquire, claim, Some(op)), Some(key));
            }
        }
        let round = self.start(now, RoundKind::Take, claim, Some(op));
        self.refusals.start(round);
        (round, None)
    }

    /// Which slot is to be asked for, after a round for this key has failed; and whether at once.
    /// `None` if it was not for a slot. `tries` are those so far, if another one may follow now.
    pub(crate) fn next_slot(
        &mut self,
        round: RoundId,
        key: &Key,
        tries: Option<(u32, bool)>,
        entropy: &mut dyn Entropy,
    ) -> Option<(Key, bool)> {
        let (slots, slot) = key.slot()?;
        self.refusals.is_slot_likely &= tries.is_none();
        let free = match self[round].kind {
            // Its nodes have named no slot: any other might be free, and the script will say.
            RoundKind::Acquire => (0..slots).filter(|it| slots == 1 || Some(*it) != slot).collect(),
            _ => self.refusals.free(round, slots),
        };
        let Some((tries, has_time)) = tries.filter(|_| !free.is_empty()) else {
            return Some((key.with_slot(None), false));
        };
        let random = entropy.next_u64() as usize;
        let is_at_once = has_time && tries % SLOTS_TRIED_MAX != 0;
        Some((key.with_slot(Some(free[random % free.len()])), is_at_once))
    }

    /// For how long a refused acquisition with patience holds readers off.
    pub(crate) fn intent(&self, nodes: &Nodes, round: RoundId) -> Duration {
        if self.claim(round).key.row().refusal != Refusal::Sign {
            return Duration::ZERO;
        }
        let round_trip = nodes.round_trip(self.round_trip());
        INTENT.saturating_add(round_trip.saturating_mul(INTENT_ROUND_TRIPS)).min(INTENT_MAX)
    }

    /// Which resource of a set most nodes have named when they refused it.
    pub(crate) fn held_of(&self, round: RoundId) -> Option<usize> {
        match self.claim(round).key.row().refusal {
            Refusal::HeldName => self.refusals.named(round),
            _ => None,
        }
    }

    /// The error, with the resource that was held.
    pub(crate) fn with_held(&self, error: LockError, round: RoundId) -> LockError {
        let claim = self.claim(round);
        if self[round].kind != RoundKind::Take || claim.key.row().refusal != Refusal::HeldName {
            return error;
        }
        let held = self.held_of(round).and_then(|index| claim.key.plain_at(index));
        error.for_held(held.map(|held| held.resource().clone()))
    }
}
