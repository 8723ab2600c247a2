//! Clocks that run at a rate of their own, and can be stepped.

pub const MICRO: u64 = 1_000;
pub const MILLI: u64 = 1_000 * MICRO;
pub const SECOND: u64 = 1_000 * MILLI;

/// Parts of a rate: one million is the rate of true time.
const PPM: u64 = 1_000_000;

/// A clock: linear in true time since its anchor. All times are in nanoseconds.
#[derive(Clone)]
pub struct Clock {
    /// A moment of true time, and what the clock showed then.
    anchor: (u64, u64),
    /// Millionths of true time that it gains, or loses if negative.
    ppm: i32,
}

impl Clock {
    /// A clock that shows `reading` when true time begins.
    pub fn new(reading: u64, ppm: i32) -> Clock {
        Clock { anchor: (0, reading), ppm }
    }

    /// What it shows at `time`; before its anchor, it stands still.
    pub fn read(&self, time: u64) -> u64 {
        let passed = time.saturating_sub(self.anchor.0);
        let shown = match passed.checked_mul(self.rate()) {
            Some(parts) => parts / PPM,
            // Hours: a key of a server whose clock is years ahead.
            None => (u128::from(passed) * u128::from(self.rate()) / u128::from(PPM)) as u64,
        };
        self.anchor.1.saturating_add(shown)
    }

    /// The first moment of true time at which it shows `reading` or more.
    pub fn when(&self, reading: u64) -> u64 {
        let passed = reading.saturating_sub(self.anchor.1);
        let whole = u128::from(passed) * u128::from(PPM) / u128::from(self.rate());
        let mut time = self.anchor.0 + whole as u64;
        // Rounding down lost less than one tick of either clock.
        while self.read(time) < reading {
            time += 1;
        }
        time
    }

    /// Sets it forward, or back if negative, at `time`.
    pub fn step(&mut self, time: u64, by: i64) {
        self.anchor = (time, self.read(time).saturating_add_signed(by));
    }

    /// Stands still from `time` on, for so long, and does not notice.
    pub fn freeze(&mut self, time: u64, length: u64) {
        self.anchor = (time + length, self.read(time));
    }

    /// From when on it runs, in true time, if it stands still.
    pub fn stands_until(&self) -> u64 {
        self.anchor.0
    }

    fn rate(&self) -> u64 {
        PPM.saturating_add_signed(i64::from(self.ppm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_is_the_first_moment_that_shows_the_reading() {
        for ppm in [-5_000, -1, 0, 3, 5_000] {
            let mut clock = Clock::new(1_000, ppm);
            clock.step(77, 5);
            let century = 36_525 * 86_400 * SECOND;
            for reading in [1_082, 1_083, 5_000, 123_456_789, 300_000_000_000, century] {
                let time = clock.when(reading);
                assert!(clock.read(time) >= reading);
                assert!(time == 77 || clock.read(time - 1) < reading, "{ppm} {reading}");
            }
        }
    }

    #[test]
    fn steps_and_pauses_show() {
        let mut clock = Clock::new(100, 10_000);
        assert_eq!(clock.read(1_000), 1_110);
        clock.step(1_000, -500);
        assert_eq!((clock.read(1_000), clock.read(1_100)), (610, 711));
        clock.freeze(1_100, 3_900);
        assert_eq!((clock.read(4_000), clock.read(5_000)), (711, 711));
        assert_eq!(clock.read(6_000), 1_721);
    }
}
