//! The one place that reads a clock (R20).

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::moment::Moment;

/// The safety clock of this machine.
///
/// It combines a clock that counts during suspend with the wall clock. When a host pauses a virtual
/// machine, only the wall clock shows it: it jumps forward when it is corrected. So a forward jump
/// counts as elapsed time, for any reason, and a backward jump counts as none. Either way, a lock
/// is never considered valid for too long. [`Moment`] keeps the jumps apart, for waits that must
/// not be too short.
///
/// - Linux and Android: `CLOCK_BOOTTIME`;
/// - other Apple systems: `CLOCK_MONOTONIC`, which counts as `mach_continuous_time` does;
/// - Windows: [`std::time::Instant`], which is the performance counter, and counts during suspend;
/// - elsewhere: [`std::time::Instant`]; if it stops during suspend, the wall clock's jump
///   compensates.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock;

impl Clock {
    pub(crate) fn now(self) -> Moment {
        let (steady, jumped) = WALL.now(|| (steady_nanos(), wall_nanos()));
        Moment::with_jumps(steady.saturating_add(jumped), jumped)
    }

    /// As [`now`](Clock::now), but without reading the wall clock: jumps since the last reading are
    /// missing.
    ///
    /// It is good enough for anything that is not about safety. It must not be used to report a
    /// lock as held. As the start of a validity it would be safe, but a jump found later would be
    /// subtracted from the validity.
    pub(crate) fn now_coarse(self) -> Moment {
        let (steady, jumped) = (steady_nanos(), WALL.jumped.load(Ordering::Relaxed));
        Moment::with_jumps(steady.saturating_add(jumped), jumped)
    }

    /// Both clocks, in a form that another process can compare with its own.
    pub(crate) fn stamp(self) -> Stamp {
        Stamp { steady_nanos: steady_nanos(), wall_nanos: wall_nanos() }
    }
}

/// Readings of both clocks at one moment. Another process has the same clocks, but has not seen the
/// same jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) steady_nanos: u64,
    pub(crate) wall_nanos: i64,
}

impl Stamp {
    /// The time since `earlier`: the greater one of the two clocks. `None` if `earlier` is later on
    /// the steady clock.
    pub(crate) fn since(self, earlier: Stamp) -> Option<Duration> {
        let steady = self.steady_nanos.checked_sub(earlier.steady_nanos)?;
        let wall = self.wall_nanos.saturating_sub(earlier.wall_nanos);
        Some(Duration::from_nanos(steady.max(u64::try_from(wall).unwrap_or(0))))
    }
}

/// Identifies the steady clock: two processes with equal ids have the same clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClockId(String);

impl ClockId {
    /// The id of this process' clock; `None` if the system does not provide one.
    ///
    /// The steady clock restarts with each boot, and differs between time namespaces by an offset.
    /// A container may have its own time namespace.
    pub(crate) fn here() -> Option<ClockId> {
        if !cfg!(any(target_os = "linux", target_os = "android")) {
            return None;
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = match std::fs::read_link("/proc/self/ns/time") {
            Ok(link) => Some(link.to_str()?.to_owned()),
            // The kernel has no time namespaces, so there is no offset to distinguish.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(_) => return None,
        };
        ClockId::new(boot.trim_end(), namespace.as_deref())
    }

    /// From a boot's id, `c6af2e8f-a82c-…`, and the name of a time namespace, `time:[4026531834]`.
    fn new(boot: &str, namespace: Option<&str>) -> Option<ClockId> {
        let boot = boot.replace('-', "");
        let namespace = match namespace {
            Some(name) => name.strip_prefix("time:[")?.strip_suffix(']')?,
            None => "0",
        };
        let is_boot = boot.len() == 32 && boot.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_namespace = !namespace.is_empty() && namespace.len() <= 20;
        let is_number = namespace.bytes().all(|byte| byte.is_ascii_digit());
        (is_boot && is_namespace && is_number).then(|| ClockId(format!("{boot}-{namespace}")))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

static WALL: WallClock = WallClock::new();

/// A smaller deviation of the wall clock is not a jump: the two clocks are not read at the same
/// moment.
const JUMP_NANOS_MIN: u64 = 1_000_000;
/// A jump must show in this many readings: the thread may be paused between the two clocks of one
/// reading.
const READINGS: usize = 5;

/// Detects jumps of the wall clock against the steady clock, which makes none. The system slews
/// both alike.
struct WallClock {
    /// Wall clock minus steady clock; `UNKNOWN` before the first reading.
    offset: AtomicI64,
    /// The sum of all jumps forward.
    jumped: AtomicU64,
    jump: Mutex<()>,
}

impl WallClock {
    const UNKNOWN: i64 = i64::MIN;

    const fn new() -> WallClock {
        WallClock {
            offset: AtomicI64::new(WallClock::UNKNOWN),
            jumped: AtomicU64::new(0),
            jump: Mutex::new(()),
        }
    }

    /// The steady clock, and the sum of the wall clock's forward jumps.
    fn now(&self, read: impl Fn() -> (u64, i64)) -> (u64, u64) {
        let (steady, wall) = read();
        let offset = wall.wrapping_sub_unsigned(steady);
        // `offset` is stored after `jumped`, so it must be loaded before it.
        let expected = self.offset.load(Ordering::Acquire);
        if offset.abs_diff(expected) < JUMP_NANOS_MIN {
            return (steady, self.jumped.load(Ordering::Relaxed));
        }
        self.measure_jump(read)
    }

    #[cold]
    fn measure_jump(&self, read: impl Fn() -> (u64, i64)) -> (u64, u64) {
        let _one_at_a_time = self.jump.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = self.offset.load(Ordering::Acquire);
        let readings = (0..READINGS).map(|_| {
            let (steady, wall) = read();
            (steady, wall.wrapping_sub_unsigned(steady))
        });
        let (steady, offset) = readings
            .min_by_key(|(_, offset)| offset.abs_diff(expected))
            .expect("there are several readings");
        if offset.abs_diff(expected) >= JUMP_NANOS_MIN {
            if expected != WallClock::UNKNOWN && offset > expected {
                self.jumped.fetch_add(offset.abs_diff(expected), Ordering::Relaxed);
            }
            self.offset.store(offset, Ordering::Release);
        }
        (steady, self.jumped.load(Ordering::Relaxed))
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn steady_nanos() -> u64 {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(target_vendor = "apple")]
    const STEADY: ClockId = ClockId::Monotonic;
    #[cfg(not(target_vendor = "apple"))]
    const STEADY: ClockId = ClockId::Boottime;
    let time = clock_gettime(STEADY);
    // The time is never negative, and 2^64 ns are 584 years.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
#[expect(clippy::disallowed_methods, reason = "the one clock read")]
fn steady_nanos() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let origin = *ORIGIN.get_or_init(Instant::now);
    // Starts above zero, so that the origin remains distinct from a real moment.
    u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(2)
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn wall_nanos() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    time.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec)
}

/// The end of a wait that begins now, as the kernel wants to know it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn timeout_in(limit: Duration) -> rustix::time::Timespec {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    let now = clock_gettime(ClockId::Monotonic);
    let limit = Timespec::try_from(limit).ok();
    limit.and_then(|limit| now.checked_add(limit)).unwrap_or(Timespec { tv_sec: i64::MAX, ..now })
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
#[expect(clippy::disallowed_methods, reason = "the one clock read")]
fn wall_nanos() -> i64 {
    use std::time::SystemTime;

    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The time until an instant of the standard library's clock.
#[expect(clippy::disallowed_methods, reason = "the one clock read")]
pub(crate) fn time_until(deadline: std::time::Instant) -> Duration {
    deadline.saturating_duration_since(std::time::Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn sum((steady, jumped): (u64, u64)) -> u64 {
        steady + jumped
    }

    #[test]
    fn the_clock_does_not_go_backwards() {
        let mut last = Clock.now();
        for _ in 0..1_000 {
            let now = Clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    /// R20: the elapsed time is the greater one of the two clocks.
    #[test]
    fn jump_forward_counts_as_time_and_a_jump_back_as_none() {
        let clock = WallClock::new();
        let at = |steady_ms: u64, wall_ms: i64| {
            sum(clock.now(|| (steady_ms * MS, (1_700_000_000_000 + wall_ms) * MS as i64))) / MS
        };
        assert_eq!(at(10, 10), 10);
        assert_eq!(at(20, 20), 20);
        assert_eq!(at(30, 60_030), 60_030, "forward by a minute");
        assert_eq!(at(40, 60_040), 60_040, "once");
        assert_eq!(at(50, -3_599_950), 60_050, "back by an hour");
        assert_eq!(at(60, -3_599_940), 60_060);
        assert_eq!(at(70, 70), 60_070 + 3_600_000, "and put right again");
    }

    #[test]
    fn pause_between_the_two_readings_is_no_jump() {
        let clock = WallClock::new();
        assert_eq!(sum(clock.now(|| (0, 0))), 0);
        let readings = std::cell::Cell::new(0);
        let paused_once = || {
            readings.set(readings.get() + 1);
            if readings.get() <= 2 { (10 * MS, 30 * MS as i64) } else { (31 * MS, 31 * MS as i64) }
        };
        assert_eq!(clock.now(paused_once), (31 * MS, 0));
        assert_eq!(clock.now(|| (32 * MS, 32 * MS as i64)), (32 * MS, 0));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn clock_is_known_by_its_boot_and_namespace() {
        let boot = "c6af2e8f-a82c-4f42-8782-a7e153af4724";
        let id = |namespace| ClockId::new(boot, namespace).map(|id| id.as_str().to_owned());
        let plain = "c6af2e8fa82c4f428782a7e153af4724";
        assert_eq!(id(Some("time:[4026531834]")), Some(format!("{plain}-4026531834")));
        assert_eq!(id(None), Some(format!("{plain}-0")));
        assert_eq!(ClockId::here(), ClockId::here());
        assert!(ClockId::here().is_some());
        for namespace in ["", "time:[]", "time:[1", "pid:[1]", "time:[a]"] {
            assert_eq!(id(Some(namespace)), None, "{namespace}");
        }
        for boot in ["", &boot[1..], "g6af2e8f-a82c-4f42-8782-a7e153af4724"] {
            assert_eq!(ClockId::new(boot, None), None, "{boot}");
        }
    }

    #[test]
    fn small_jumps_are_not_lost() {
        let clock = WallClock::new();
        clock.now(|| (0, 0));
        for i in 1..=10 {
            clock.now(|| (i * MS, (i * MS + i * MS * 2 / 5) as i64));
        }
        let now = sum(clock.now(|| (10 * MS, 14 * MS as i64)));
        assert!(now >= 13 * MS, "{now}");
    }
}
