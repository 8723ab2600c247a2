//! An event count: wakes any number of sleeping threads with few system calls.
//!
//! A sleeper [prepares](EventCount::prepare), then checks its condition, and then
//! [waits](EventCount::wait). Another thread makes the condition true and then
//! [notifies](EventCount::notify). A notification after the check ends the wait, even if it comes
//! before the wait begins.

const WORD_BITS: usize = 32;
/// With this many words, each value of a byte has a slot. If there are more sleepers than slots,
/// some share a slot and wake each other needlessly.
const WORDS: usize = 256 / WORD_BITS;

/// The slots to notify.
#[derive(Default)]
pub(crate) struct WakeSet([u32; WORDS]);

impl WakeSet {
    pub(crate) fn insert(&mut self, slot: u8) {
        self.0[usize::from(slot) / WORD_BITS] |= 1 << (usize::from(slot) % WORD_BITS);
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use futex::EventCount;

/// One call wakes all sleepers of a word that wait at the given bits.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod futex {
    use std::num::NonZeroU32;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use rustix::thread::futex::{Flags, wait_bitset, wake_bitset};

    use super::{WORD_BITS, WORDS, WakeSet};
    use crate::sys::clock::timeout_in;

    /// Each word counts the notifications of its slots.
    pub(crate) struct EventCount([AtomicU32; WORDS]);

    impl EventCount {
        pub(crate) fn new() -> EventCount {
            EventCount(Default::default())
        }

        /// The count to pass to [`wait`](EventCount::wait).
        pub(crate) fn prepare(&self, slot: u8) -> u32 {
            self.0[usize::from(slot) / WORD_BITS].load(Ordering::Acquire)
        }

        /// Sleeps until the slot is notified, was notified since `seen`, or the limit is reached.
        /// It can also end without a reason.
        pub(crate) fn wait(&self, slot: u8, seen: u32, limit: Option<Duration>) {
            let (word, bit) = (usize::from(slot) / WORD_BITS, usize::from(slot) % WORD_BITS);
            if let Some(bit) = NonZeroU32::new(1 << bit) {
                let until = limit.map(timeout_in);
                // All its errors mean that the wait is over.
                let _ = wait_bitset(&self.0[word], Flags::PRIVATE, seen, until.as_ref(), bit);
            }
        }

        /// Wakes the threads that sleep at these slots.
        pub(crate) fn notify(&self, wake: WakeSet) {
            for (word, bits) in self.0.iter().zip(wake.0) {
                if let Some(bits) = NonZeroU32::new(bits) {
                    word.fetch_add(1, Ordering::Release);
                    let _ = wake_bitset(word, Flags::PRIVATE, i32::MAX as u32, bits);
                }
            }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use condvars::EventCount;

/// One call for each slot.
#[cfg(any(test, not(any(target_os = "linux", target_os = "android"))))]
mod condvars {
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    use super::{WORD_BITS, WORDS, WakeSet};

    /// Each mutex has the number of notifications of its slot.
    pub(crate) struct EventCount(Box<[(Mutex<u32>, Condvar)]>);

    impl EventCount {
        pub(crate) fn new() -> EventCount {
            EventCount((0..WORDS * WORD_BITS).map(|_| Default::default()).collect())
        }

        fn lock(&self, slot: u8) -> MutexGuard<'_, u32> {
            self.0[usize::from(slot)].0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn prepare(&self, slot: u8) -> u32 {
            *self.lock(slot)
        }

        pub(crate) fn wait(&self, slot: u8, seen: u32, limit: Option<Duration>) {
            let count = self.lock(slot);
            if *count != seen {
                return;
            }
            let changed = &self.0[usize::from(slot)].1;
            match limit {
                None => drop(changed.wait(count)),
                Some(limit) => drop(changed.wait_timeout(count, limit)),
            }
        }

        pub(crate) fn notify(&self, wake: WakeSet) {
            for (slot, (_, changed)) in self.0.iter().enumerate() {
                if wake.0[slot / WORD_BITS] & 1 << (slot % WORD_BITS) != 0 {
                    let mut count = self.lock(slot as u8);
                    *count = count.wrapping_add(1);
                    drop(count);
                    changed.notify_all();
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

    use super::WakeSet;

    /// No test waits for so long.
    const LONG: Option<Duration> = Some(Duration::from_secs(60));
    const SHORT: Option<Duration> = Some(Duration::from_millis(20));
    /// Together shorter than [`LONG`].
    const LOOKS_MAX: usize = 1_000;

    fn wake<const N: usize>(at: [u8; N]) -> WakeSet {
        let mut wake = WakeSet::default();
        at.into_iter().for_each(|slot| wake.insert(slot));
        wake
    }

    /// Both implementations behave the same.
    macro_rules! tests_of {
        ($name:ident, $event_count:ty) => {
            mod $name {
                use super::*;

                #[test]
                fn notification_before_the_wait_ends_it() {
                    let event_count = <$event_count>::new();
                    for slot in [0, 1, 31, 32, 255] {
                        let seen = event_count.prepare(slot);
                        event_count.notify(wake([slot]));
                        event_count.wait(slot, seen, LONG);
                        assert_ne!(event_count.prepare(slot), seen);
                        event_count.wait(slot, event_count.prepare(slot), SHORT);
                    }
                }

                /// All at once, including two sleepers that share a slot.
                #[test]
                fn notification_wakes_the_sleepers_of_its_slots() {
                    let (event_count, looks, awake) =
                        (<$event_count>::new(), AtomicUsize::new(0), AtomicUsize::new(0));
                    const AT: [u8; 6] = [3, 3, 30, 31, 32, 255];
                    thread::scope(|scope| {
                        for slot in AT {
                            let (event_count, looks, awake) = (&event_count, &looks, &awake);
                            scope.spawn(move || {
                                let seen = event_count.prepare(slot);
                                looks.fetch_add(1, Ordering::SeqCst);
                                while event_count.prepare(slot) == seen {
                                    event_count.wait(slot, seen, LONG);
                                }
                                awake.fetch_add(1, Ordering::SeqCst);
                            });
                        }
                        while looks.load(Ordering::SeqCst) < AT.len() {
                            thread::yield_now();
                        }
                        event_count.wait(9, event_count.prepare(9), SHORT);
                        assert_eq!(awake.load(Ordering::SeqCst), 0);
                        event_count.notify(wake(AT));
                        // Not when their own waits are over.
                        for _ in 0..LOOKS_MAX {
                            if awake.load(Ordering::SeqCst) == AT.len() {
                                break;
                            }
                            event_count.wait(9, event_count.prepare(9), SHORT);
                        }
                        assert_eq!(awake.load(Ordering::SeqCst), AT.len());
                    });
                }
            }
        };
    }

    tests_of!(condvars, crate::sys::event_count::condvars::EventCount);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    tests_of!(futex, crate::sys::event_count::futex::EventCount);
}
