//! Signals as events of the loop.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;
use signal_hook::{flag, low_level::pipe};

use super::stub::about;

/// While the tool waits for the lock, they end it; later, the command gets them.
const FORWARDED: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

const STATUS: &str = "/proc/self/status";

/// The signals that came. Those that were ignored when the tool started stay ignored.
pub struct Signals {
    /// Readable when one came.
    receiver: UnixStream,
    came: Vec<(Signal, Arc<AtomicBool>)>,
    /// A child has ended or was stopped.
    child: Arc<AtomicBool>,
}

impl Signals {
    pub fn new() -> io::Result<Signals> {
        let (receiver, sender) = UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        let mut came = Vec::new();
        for signal in not_ignored(FORWARDED)? {
            let flag = Arc::new(AtomicBool::new(false));
            // Before the pipe, so that the flag is set when the pipe becomes readable.
            flag::register(signal as i32, Arc::clone(&flag))?;
            pipe::register(signal as i32, sender.try_clone()?)?;
            came.push((signal, flag));
        }
        // The first process of a container may have orphans from before.
        let child = Arc::new(AtomicBool::new(process::id() == 1));
        flag::register(Signal::SIGCHLD as i32, Arc::clone(&child))?;
        pipe::register(Signal::SIGCHLD as i32, sender)?;
        Ok(Signals { receiver, came, child })
    }

    pub fn fd(&self) -> RawFd {
        self.receiver.as_raw_fd()
    }

    /// Whether a child has ended since that was last forgotten.
    pub fn has_lost_child(&self) -> bool {
        self.child.load(Ordering::SeqCst)
    }

    pub fn forget_lost_child(&self) {
        self.child.store(false, Ordering::SeqCst);
    }

    /// The signals that came since the last call, each once.
    pub fn take(&mut self) -> Vec<Signal> {
        let mut bytes = [0; 64];
        // Ends when the pipe is empty; each signal writes one byte.
        while matches!(self.receiver.read(&mut bytes), Ok(count) if count == bytes.len()) {}
        let has_come = |(_, flag): &&(Signal, Arc<AtomicBool>)| flag.swap(false, Ordering::SeqCst);
        self.came.iter().filter(has_come).map(|(signal, _)| *signal).collect()
    }
}

/// Those of the signals that are not ignored: `nohup` asks for that, and the command is to ignore
/// them too.
pub fn not_ignored<const N: usize>(
    signals: [Signal; N],
) -> io::Result<impl Iterator<Item = Signal>> {
    let status = fs::read_to_string(STATUS).map_err(|error| about(STATUS, &error))?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Ok(signals.into_iter().filter(move |it| mask & (1 << (*it as i32 - 1)) == 0))
}
