//! How much of the machine others had while something was measured.

use std::fs;

/// Where the fields of a process's own and its children's computing time are, behind its name.
const USER_TIME: usize = 11;

/// What was going on in a stretch of time, in terms of all that the machine's cores could do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Noise {
    /// What the machine's host gave to other machines.
    pub stolen: f64,
    /// What processes used that had nothing to do with the measurement.
    pub others: f64,
}

/// Counters of the kernel at one moment, in its ticks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    busy: u64,
    all: u64,
    stolen: u64,
    ours: u64,
}

impl Counters {
    /// Reads them; `pids` are all processes that belong to the measurement.
    pub fn read(pids: &[u32]) -> Counters {
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        let time = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            process_time(&stat)
        };
        let ours = pids.iter().map(time).sum();
        Counters { ours, ..machine_times(&machine) }
    }

    /// What happened from `self` to `later`. A process that began in between counts from zero, and
    /// must not have ended.
    pub fn until(&self, later: Counters) -> Noise {
        let all = later.all.saturating_sub(self.all).max(1) as f64;
        let busy = later.busy.saturating_sub(self.busy);
        let ours = later.ours.saturating_sub(self.ours);
        Noise {
            stolen: later.stolen.saturating_sub(self.stolen) as f64 / all,
            others: busy.saturating_sub(ours) as f64 / all,
        }
    }
}

/// What the main thread of a process has computed so far, in nanoseconds.
pub fn computed(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|it| it.parse().ok()).unwrap_or(f64::NAN)
}

/// From the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
fn machine_times(stat: &str) -> Counters {
    let line = stat.lines().next().unwrap_or_default();
    let times: Vec<u64> =
        line.split_whitespace().skip(1).map(|time| time.parse().unwrap_or(0)).collect();
    let time = |at: usize| times.get(at).copied().unwrap_or(0);
    Counters {
        busy: time(0) + time(1) + time(2),
        all: times.iter().take(8).sum(),
        stolen: time(7),
        ours: 0,
    }
}

/// From `/proc/PID/stat`: time in user space and in the kernel.
fn process_time(stat: &str) -> u64 {
    // The name stands before it, in parentheses, and may contain any character.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(USER_TIME).take(2).map(|time| time.parse().unwrap_or(0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found() {
        let stat = "cpu  10 1 5 70 3 2 1 8 0 0\ncpu0 1 2 3\n";
        let times = machine_times(stat);
        assert_eq!((times.busy, times.all, times.stolen), (16, 100, 8));
        let stat = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 300 44 0 0";
        assert_eq!(process_time(stat), 344);
    }

    #[test]
    fn process_has_computed_something() {
        assert!(computed(std::process::id()) > 0.0 && computed(0).is_nan());
    }

    #[test]
    fn others_are_what_is_not_ours() {
        let before = Counters { busy: 100, all: 1_000, stolen: 0, ours: 50 };
        let after = Counters { busy: 180, all: 1_200, stolen: 20, ours: 90 };
        let noise = before.until(after);
        assert_eq!((noise.stolen, noise.others), (0.1, 0.2));
    }
}
