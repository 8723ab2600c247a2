//! Randomness from the operating system.

use rand::rngs::{SmallRng, SysRng};
use rand::{Rng, SeedableRng, TryRng};

use crate::proto::Entropy;

/// Tokens from the operating system, one call each; jitter from a small generator.
///
/// A generator in user space would hand the same tokens to a forked child or a cloned virtual
/// machine, and each would own the other's locks (R6). One call costs about half a microsecond.
pub(crate) struct SystemEntropy {
    jitter: SmallRng,
}

impl SystemEntropy {
    pub(crate) fn new() -> SystemEntropy {
        // If the operating system has no randomness, tokens will fail loudly; jitter need not.
        let jitter = SmallRng::try_from_rng(&mut SysRng).unwrap_or(SmallRng::seed_from_u64(1));
        SystemEntropy { jitter }
    }
}

impl Entropy for SystemEntropy {
    fn token(&mut self) -> Option<[u8; 20]> {
        let mut random = [0; 20];
        SysRng.try_fill_bytes(&mut random).ok()?;
        Some(random)
    }

    fn next_u64(&mut self) -> u64 {
        self.jitter.next_u64()
    }
}
