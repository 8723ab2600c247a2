//! Masters whose wall clock is set while they run, by a library that is loaded into them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use std::{env, process};

use muxlock::testing::{Master, Value};

use crate::{Folder, soon};

/// Shifts the process's time of day by the seconds in a file. It asks the kernel itself, and
/// allocates nothing, since an allocator may ask for the time before it is ready.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

static int64_t shifted(void) {
    const char *path = getenv("MUXLOCK_TEST_CLOCK");
    if (!shift && path) {
        int file = open(path, O_RDONLY);
        void *page = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (page != MAP_FAILED) shift = page;
    }
    return shift ? *shift : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shifted();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
"#;
const SHIM_VARIABLE: &str = "MUXLOCK_TEST_CLOCK";

/// Masters whose clocks can be set.
#[derive(Debug)]
pub struct Clocks {
    /// The masters.
    pub masters: Vec<Master>,
    // Behind the masters that use it.
    folder: Folder,
}

impl Clocks {
    /// Starts so many masters.
    ///
    /// # Errors
    ///
    /// The feature that this machine lacks, so that the test has to be left out.
    ///
    /// # Panics
    ///
    /// Panics if the masters cannot be started.
    pub fn start(n: usize) -> Result<Clocks, &'static str> {
        if !cfg!(target_os = "linux") {
            return Err("libraries are preloaded in another way here");
        }
        // Not in memory, where nothing may be executed on some systems.
        let name = format!("muxlock-{}-clocks-{}", process::id(), unique());
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).expect("a folder for temporary files");
        let folder = Folder(path);
        let (source, shim) = (folder.0.join("shim.c"), folder.0.join("shim.so"));
        fs::write(&source, SHIM).expect("there is room for a file");
        let flags = ["-shared", "-fPIC", "-O1", "-o"];
        match Command::new("cc").args(flags).arg(&shim).arg(&source).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err("there is no C compiler (cc)");
            }
            Err(error) => panic!("cc: {error}"),
        }
        let clocks = Clocks { masters: Vec::new(), folder };
        let start = |node| {
            let clock = clocks.clock(node);
            fs::write(&clock, 0_i64.to_ne_bytes()).expect("there is room for a file");
            let environment: [(&str, &OsStr); 2] =
                [("LD_PRELOAD", shim.as_os_str()), (SHIM_VARIABLE, clock.as_os_str())];
            Master::start_in(&environment).unwrap_or_else(|error| panic!("{error}"))
        };
        let masters = (0..n).map(start).collect();
        Ok(Clocks { masters, ..clocks })
    }

    fn clock(&self, node: usize) -> PathBuf {
        self.folder.0.join(format!("clock-{node}"))
    }

    /// The addresses of the masters.
    pub fn urls(&self) -> Vec<String> {
        self.masters.iter().map(Master::url).collect()
    }

    /// Sets the clock of a master, by so much against the true time; returns when the master has
    /// seen it. Valkey 9 looks at the clock once a millisecond.
    ///
    /// # Panics
    ///
    /// Panics if there is no such master, or it does not answer.
    pub fn set(&self, node: usize, seconds: i64) {
        // Overwritten, never truncated: it is mapped.
        let file = File::options().write(true).open(self.clock(node)).expect("it was made");
        let shift = seconds.to_ne_bytes();
        std::os::unix::fs::FileExt::write_all_at(&file, &shift, 0).expect("it has that size");
        let shift = Duration::from_secs(seconds.unsigned_abs());
        soon("the clock is set", || {
            let time = wall_time(&self.masters[node]);
            let now = match seconds {
                0.. => true_time() + shift,
                ..0 => true_time() - shift,
            };
            // Less than the smallest step, and more than an answer takes.
            time.abs_diff(now) < Duration::from_millis(500)
        });
    }
}

/// A master's time of day, since 1970.
fn wall_time(master: &Master) -> Duration {
    let Ok(Value::Array(parts)) = master.query(&[b"TIME"]) else { panic!("TIME is a list") };
    let number = |part: &Value| -> u64 {
        let Value::Bulk(digits) = part else { panic!("TIME is text") };
        String::from_utf8_lossy(digits).parse().expect("TIME is a number")
    };
    Duration::from_secs(number(&parts[0])) + Duration::from_micros(number(&parts[1]))
}

#[expect(clippy::disallowed_methods, reason = "what the clocks of masters are compared with")]
fn true_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970")
}

/// Several tests of a process have folders of their own.
fn unique() -> usize {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    COUNTER.fetch_add(1, Ordering::Relaxed)
}
