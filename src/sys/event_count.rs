//! Wakes any number of threads that sleep at the same bell with few system calls.
//!
//! A sleeper [listens](Bell::listen), then looks whether what it waits for is there, and then
//! [waits](Bell::wait). Who brings it rings afterwards. So a ring that comes after the sleeper has
//! looked ends its wait, or is heard when the wait begins.

const WORD_BITS: usize = 32;
/// So many words have a place for each number of a byte. More sleepers than that share places, and
/// wake each other for nothing.
const WORDS: usize = 256 / WORD_BITS;

/// Where to ring.
#[derive(Default)]
pub(crate) struct Places([u32; WORDS]);

impl Places {
    pub(crate) fn insert(&mut self, place: u8) {
        self.0[usize::from(place) / WORD_BITS] |= 1 << (usize::from(place) % WORD_BITS);
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use futex::Bell;

/// One call wakes all sleepers of a word whose bits it names.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod futex {
    use std::num::NonZeroU32;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use rustix::thread::futex::{Flags, wait_bitset, wake_bitset};

    use super::{Places, WORD_BITS, WORDS};
    use crate::sys::clock::timeout_in;

    /// Each word counts the rings at its places.
    pub(crate) struct Bell([AtomicU32; WORDS]);

    impl Bell {
        pub(crate) fn new() -> Bell {
            Bell(Default::default())
        }

        /// What [`wait`](Bell::wait) needs to know.
        pub(crate) fn listen(&self, place: u8) -> u32 {
            self.0[usize::from(place) / WORD_BITS].load(Ordering::Acquire)
        }

        /// Sleeps until the bell rings here, or has rung since `heard`, or the time is over. It may
        /// also end for no reason.
        pub(crate) fn wait(&self, place: u8, heard: u32, limit: Option<Duration>) {
            let (word, bit) = (usize::from(place) / WORD_BITS, usize::from(place) % WORD_BITS);
            if let Some(bit) = NonZeroU32::new(1 << bit) {
                let until = limit.map(timeout_in);
                // All its errors mean that the wait is over.
                let _ = wait_bitset(&self.0[word], Flags::PRIVATE, heard, until.as_ref(), bit);
            }
        }

        /// Wakes who sleeps at these places.
        pub(crate) fn ring(&self, places: Places) {
            for (word, bits) in self.0.iter().zip(places.0) {
                if let Some(bits) = NonZeroU32::new(bits) {
                    word.fetch_add(1, Ordering::Release);
                    let _ = wake_bitset(word, Flags::PRIVATE, i32::MAX as u32, bits);
                }
            }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use condvars::Bell;

/// One call for each place.
#[cfg(any(test, not(any(target_os = "linux", target_os = "android"))))]
mod condvars {
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    use super::{Places, WORD_BITS, WORDS};

    /// Each mutex has the number of rings at its place.
    pub(crate) struct Bell(Box<[(Mutex<u32>, Condvar)]>);

    impl Bell {
        pub(crate) fn new() -> Bell {
            Bell((0..WORDS * WORD_BITS).map(|_| Default::default()).collect())
        }

        fn lock(&self, place: u8) -> MutexGuard<'_, u32> {
            self.0[usize::from(place)].0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn listen(&self, place: u8) -> u32 {
            *self.lock(place)
        }

        pub(crate) fn wait(&self, place: u8, heard: u32, limit: Option<Duration>) {
            let rings = self.lock(place);
            if *rings != heard {
                return;
            }
            let rung = &self.0[usize::from(place)].1;
            match limit {
                None => drop(rung.wait(rings)),
                Some(limit) => drop(rung.wait_timeout(rings, limit)),
            }
        }

        pub(crate) fn ring(&self, places: Places) {
            for (place, (_, rung)) in self.0.iter().enumerate() {
                if places.0[place / WORD_BITS] & 1 << (place % WORD_BITS) != 0 {
                    let mut rings = self.lock(place as u8);
                    *rings = rings.wrapping_add(1);
                    drop(rings);
                    rung.notify_all();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::Places;

    /// No test waits for so long.
    const LONG: Option<Duration> = Some(Duration::from_secs(60));
    const SHORT: Option<Duration> = Some(Duration::from_millis(20));
    /// Together shorter than [`LONG`].
    const LOOKS_MAX: usize = 1_000;

    fn places<const N: usize>(at: [u8; N]) -> Places {
        let mut places = Places::default();
        at.into_iter().for_each(|place| places.insert(place));
        places
    }

    /// Both bells do the same.
    macro_rules! tests_of {
        ($name:ident, $bell:ty) => {
            mod $name {
                use super::*;

                #[test]
                fn ring_that_comes_before_the_wait_ends_it() {
                    let bell = <$bell>::new();
                    for place in [0, 1, 31, 32, 255] {
                        let heard = bell.listen(place);
                        bell.ring(places([place]));
                        bell.wait(place, heard, LONG);
                        assert_ne!(bell.listen(place), heard);
                        bell.wait(place, bell.listen(place), SHORT);
                    }
                }

                /// All at once, and those at a place that they share.
                #[test]
                fn ring_wakes_who_sleeps_there() {
                    let (bell, looks, awake) =
                        (<$bell>::new(), AtomicUsize::new(0), AtomicUsize::new(0));
                    const AT: [u8; 6] = [3, 3, 30, 31, 32, 255];
                    thread::scope(|scope| {
                        for place in AT {
                            let (bell, looks, awake) = (&bell, &looks, &awake);
                            scope.spawn(move || {
                                let heard = bell.listen(place);
                                looks.fetch_add(1, Ordering::SeqCst);
                                while bell.listen(place) == heard {
                                    bell.wait(place, heard, LONG);
                                }
                                awake.fetch_add(1, Ordering::SeqCst);
                            });
                        }
                        while looks.load(Ordering::SeqCst) < AT.len() {
                            thread::yield_now();
                        }
                        bell.wait(9, bell.listen(9), SHORT);
                        assert_eq!(awake.load(Ordering::SeqCst), 0);
                        bell.ring(places(AT));
                        // Not when their own waits are over.
                        for _ in 0..LOOKS_MAX {
                            if awake.load(Ordering::SeqCst) == AT.len() {
                                break;
                            }
                            bell.wait(9, bell.listen(9), SHORT);
                        }
                        assert_eq!(awake.load(Ordering::SeqCst), AT.len());
                    });
                }
            }
        };
    }

    tests_of!(condvars, crate::sys::event_count::condvars::Bell);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    tests_of!(futex, crate::sys::event_count::futex::Bell);
}
