//! Randomness from the operating system.

use rand::rngs::{SmallRng, SysRng};
use rand::{Rng, SeedableRng, TryRng};

use crate::moment::Moment;
use crate::token::{Entropy, TOKEN_BYTES, TOKEN_RANDOM_BYTES};

/// Most tokens drawn by one getrandom call. They are 240 bytes: getrandom(2) returns requests of up
/// to 256 bytes in full, and no signal interrupts it.
const DRAWN_MAX: usize = 12;
/// Attempts that start within this time may use tokens that were drawn together.
const DRAWN_TOGETHER_NANOS_MAX: u64 = 1_000_000;

/// Tokens from the operating system; jitter from a small generator.
///
/// A generator in user space would give a forked child or a cloned virtual machine the same tokens,
/// and each would own the other's locks (R6). A long-lived stock of tokens would, too. But a system
/// call for each token takes a third of a microsecond, nearly a seventh of the client's cost when
/// it takes many locks at once. So tokens for locks that start together are drawn together. The
/// rest is dropped when commands are sent, when the event loop has waited, and after a millisecond.
/// Two copies of a machine therefore share only the tokens of operations in flight at that moment,
/// which is unavoidable, and of those that started within the last millisecond. A forked child
/// cannot use its parent's client at all (R24).
pub(crate) struct SystemEntropy {
    /// It replaces the end of each token. Each client has its own, even after a fork.
    pub(crate) tag: u32,
    jitter: SmallRng,
    drawn: [[u8; TOKEN_BYTES / 2]; DRAWN_MAX],
    /// Number of unused tokens: the first `left` entries of `drawn`.
    left: usize,
    /// Tokens given out since the last `forget`, and in the period before it.
    had: usize,
    had_before: usize,
    /// When the first of these tokens was asked for.
    drawn_at: Option<Moment>,
}

impl SystemEntropy {
    pub(crate) fn new() -> SystemEntropy {
        // Without randomness from the system, drawing tokens fails with an error; jitter and tag
        // need not fail.
        let mut jitter = SmallRng::try_from_rng(&mut SysRng).unwrap_or(SmallRng::seed_from_u64(1));
        let drawn = [[0; TOKEN_BYTES / 2]; DRAWN_MAX];
        let tag = jitter.next_u32();
        SystemEntropy { tag, jitter, drawn, left: 0, had: 0, had_before: 0, drawn_at: None }
    }

    fn draw(&mut self) -> Option<()> {
        let count = self.had.max(self.had_before).clamp(1, DRAWN_MAX);
        SysRng.try_fill_bytes(self.drawn[..count].as_flattened_mut()).ok()?;
        self.left = count;
        Some(())
    }
}

impl Entropy for SystemEntropy {
    fn token(&mut self, now: Moment) -> Option<[u8; TOKEN_BYTES / 2]> {
        let is_together = |at: Moment| now.nanos_since(at) <= DRAWN_TOGETHER_NANOS_MAX;
        if !self.drawn_at.is_some_and(is_together) {
            self.forget();
            self.drawn_at = Some(now);
        }
        if self.left == 0 {
            self.draw()?;
        }
        self.left -= 1;
        self.had += 1;
        let mut token = self.drawn[self.left];
        token[TOKEN_RANDOM_BYTES..].copy_from_slice(&self.tag.to_be_bytes());
        Some(token)
    }

    fn forget(&mut self) {
        if self.drawn_at.take().is_some() {
            self.left = 0;
            self.had_before = std::mem::take(&mut self.had);
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.jitter.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn at(micros: u64) -> Moment {
        Moment::from_nanos(micros * 1_000)
    }

    #[test]
    fn only_what_is_started_within_a_millisecond_is_drawn_together() {
        let mut entropy = SystemEntropy::new();
        entropy.had_before = 4;
        // (when a token is asked for, how many are left then)
        let table =
            [(1_000, 3), (1_000, 2), (2_000, 1), (2_001, 2), (3_001, 1), (3_002, 1), (9_000, 0)];
        for (micros, left) in table {
            entropy.token(at(micros)).unwrap();
            assert_eq!(entropy.left, left, "{micros}");
        }
    }

    #[test]
    fn token_that_was_given_out_is_not_drawn_together_with_later_ones() {
        let mut entropy = SystemEntropy::new();
        entropy.had_before = 2;
        entropy.token(at(1_000)).unwrap();
        assert_eq!(entropy.left, 1);
        entropy.forget();
        entropy.forget();
        entropy.token(at(1_000)).unwrap();
        assert_eq!(entropy.left, 0, "one was asked for before");
    }

    #[test]
    fn no_token_comes_twice_however_many_are_drawn_together() {
        let mut entropy = SystemEntropy::new();
        let mut seen = HashSet::new();
        for together in [1, 2, 3, DRAWN_MAX, 1, 100, 7, 1, 1] {
            for _ in 0..together {
                let token = entropy.token(at(1_000)).unwrap();
                assert_ne!(token[..TOKEN_RANDOM_BYTES], [0; TOKEN_RANDOM_BYTES]);
                assert_eq!(token[TOKEN_RANDOM_BYTES..], entropy.tag.to_be_bytes());
                assert!(seen.insert(token));
                assert!(entropy.left < DRAWN_MAX);
            }
            entropy.forget();
            assert_eq!(entropy.left, 0, "what was not used is never used");
        }
    }

    #[test]
    fn one_alone_is_drawn_alone() {
        let mut entropy = SystemEntropy::new();
        for _ in 0..3 {
            entropy.token(at(1_000)).unwrap();
            assert_eq!(entropy.left, 0);
            entropy.forget();
        }
    }
}
