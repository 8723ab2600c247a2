//! Every decision of a run, drawn from one source and written down.
//!
//! A run is a function of its choices: the same choices give the same run, byte for byte. Zero is
//! always the dull choice (no fault, the shortest delay, the first of a list), so that a run gets
//! simpler when choices are set to zero, and ends quietly when they run out.

/// No run draws more: a world that does is one that does not end.
pub const CHOICES_MAX: usize = 1 << 20;

enum Source {
    Seed(u64),
    Record { values: Vec<u32>, at: usize },
    Bytes { bytes: Vec<u8>, at: usize },
}

/// A sequence of choices, and what was drawn from it so far.
pub struct Choices {
    source: Source,
    drawn: Vec<u32>,
}

impl Choices {
    /// Endless choices from a generator.
    pub fn from_seed(seed: u64) -> Choices {
        Choices::new(Source::Seed(seed))
    }

    /// The choices of an earlier run, then zeros.
    pub fn from_record(values: Vec<u32>) -> Choices {
        Choices::new(Source::Record { values, at: 0 })
    }

    /// Choices from arbitrary bytes, then zeros.
    pub fn from_bytes(bytes: &[u8]) -> Choices {
        Choices::new(Source::Bytes { bytes: bytes.to_vec(), at: 0 })
    }

    fn new(source: Source) -> Choices {
        Choices { source, drawn: Vec::new() }
    }

    /// What was drawn so far; a record of it gives the same run again.
    pub fn into_drawn(self) -> Vec<u32> {
        self.drawn
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "there is no number below zero");
        let raw = match &mut self.source {
            // Multiplying keeps the upper bits, which are the good ones, and is not biased enough
            // to matter.
            Source::Seed(state) => (((split_mix(state) >> 32) * u64::from(bound)) >> 32) as u32,
            Source::Record { values, at } => next(values, at).unwrap_or(0) % bound,
            Source::Bytes { bytes, at } => {
                let mut raw = 0;
                // As many bytes as the bound needs, so that short inputs go far.
                for _ in 0..(u32::BITS - (bound - 1).leading_zeros()).div_ceil(8) {
                    raw = raw << 8 | u32::from(next(bytes, at).unwrap_or(0));
                }
                raw % bound
            }
        };
        if self.drawn.len() < CHOICES_MAX {
            self.drawn.push(raw);
        }
        raw
    }

    /// `true` so many times in a thousand. Never and always draw nothing.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        match per_mille {
            0 => false,
            1_000.. => true,
            _ => self.below(1_000) >= 1_000 - per_mille,
        }
    }

    /// One of a list; the first is the dull one.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u32) as usize]
    }

    /// A number in `[low, high]`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let range = high.saturating_sub(low);
        match u32::try_from(range) {
            Ok(u32::MAX) | Err(_) => low + scaled(range, self.below(u32::MAX)),
            Ok(range) => low + u64::from(self.below(range + 1)),
        }
    }

    /// A number in `[low, high]` whose magnitude is even: as often from 1 to 10 as from 10 to 100.
    pub fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        let doublings = (high / low.max(1)).max(1).ilog2();
        let least = low << self.below(doublings + 1);
        self.between(least, (2 * least).min(high))
    }

    /// Whether any position of the input is left; a seed never ends.
    pub fn is_exhausted(&self) -> bool {
        match &self.source {
            Source::Seed(_) => self.drawn.len() >= CHOICES_MAX,
            Source::Record { values, at } => *at >= values.len(),
            Source::Bytes { bytes, at } => *at >= bytes.len(),
        }
    }
}

fn next<T: Copy>(list: &[T], at: &mut usize) -> Option<T> {
    let value = list.get(*at).copied();
    *at += 1;
    value
}

fn scaled(range: u64, raw: u32) -> u64 {
    (u128::from(range) * u128::from(raw) / u128::from(u32::MAX)) as u64
}

/// One step of the generator SplitMix64: small, fast, and good enough for faults.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(choices: &mut Choices) -> Vec<u64> {
        let mut all = Vec::new();
        for bound in [2, 7, 1_000, 1 << 20] {
            all.push(u64::from(choices.below(bound)));
            all.push(u64::from(choices.chance(300)));
            all.push(choices.between(5, 60_000_000_000));
            all.push(choices.magnitude(10, 1_000_000));
        }
        all
    }

    #[test]
    fn record_gives_the_same_again_and_then_zeros() {
        let mut first = Choices::from_seed(7);
        let drawn = draw(&mut first);
        let mut again = Choices::from_record(first.into_drawn());
        assert_eq!(draw(&mut again), drawn);
        assert!(again.is_exhausted());
        assert_eq!((again.below(9), again.chance(999), again.between(3, 9)), (0, false, 3));
    }

    #[test]
    fn bytes_take_as_many_as_the_bound_needs() {
        let mut choices = Choices::from_bytes(&[5, 1, 2, 9]);
        assert_eq!(choices.below(256), 5);
        assert_eq!(choices.below(65_536), 0x0102);
        assert_eq!(choices.below(10), 9);
        assert!(choices.is_exhausted());
        assert_eq!(choices.below(10), 0);
    }

    #[test]
    fn draws_stay_in_their_range_and_reach_both_ends() {
        let mut choices = Choices::from_seed(1);
        let below: Vec<u32> = (0..1_000).map(|_| choices.below(3)).collect();
        assert!((0..3).all(|value| below.contains(&value)));
        for _ in 0..1_000 {
            assert!((3..=5).contains(&choices.between(3, 5)));
            assert!((10..=1_000).contains(&choices.magnitude(10, 1_000)));
        }
        let heads = (0..10_000).filter(|_| choices.chance(250)).count();
        assert!((2_200..2_800).contains(&heads), "{heads}");
    }
}
