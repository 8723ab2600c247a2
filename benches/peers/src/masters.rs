//! The masters that clients are measured on: real servers on free ports of this machine.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use muxlock::testing::{self, Masters};
use testbed::Authority;

use crate::clock;

/// What a server's age lacks of the truth: it tells whole seconds, and the clocks may differ.
const AGE_SLACK: Duration = Duration::from_millis(2_200);
/// How often a server that was frozen is asked whether it has caught up.
const THAW_TRIES: usize = 20;

/// Masters that were started together.
pub struct Pool {
    masters: Masters,
    started: Instant,
    authority: Option<Authority>,
}

impl Pool {
    /// Starts so many.
    pub fn start(count: usize) -> io::Result<Pool> {
        let masters = Masters::start(count)?;
        Ok(Pool { masters, started: clock::now(), authority: None })
    }

    /// Starts so many that also listen on a port with TLS.
    pub fn start_with_tls(count: usize) -> io::Result<Pool> {
        let authority = Authority::new();
        let masters = Masters::start_with_tls(count, &authority.sign(&["127.0.0.1"]), &[])?;
        Ok(Pool { masters, started: clock::now(), authority: Some(authority) })
    }

    /// Where they listen with TLS, and the file with the root of their certificates, if they do.
    pub fn tls(&self) -> Option<(Vec<u16>, PathBuf)> {
        let ports = self.masters.iter().filter_map(testing::Master::tls_port).collect();
        Some((ports, self.authority.as_ref()?.ca()))
    }

    /// Where they listen.
    pub fn ports(&self) -> Vec<u16> {
        self.masters.iter().map(testing::Master::port).collect()
    }

    /// Calls of SET so far, and the time that they computed, in nanoseconds; of all together.
    pub fn spent(&self) -> io::Result<(f64, f64)> {
        let (mut sets, mut cpu) = (0, 0.0);
        for master in self.masters.iter() {
            sets += master.command_calls("set")?;
            let testing::Value::Bulk(info) = master.query(&[b"INFO", b"cpu"])? else {
                return Err(io::Error::other("a master does not say what it computed"));
            };
            let info = String::from_utf8_lossy(&info).into_owned();
            let seconds = |name: &str| -> f64 {
                let line = info.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(f64::NAN)
            };
            cpu += seconds("used_cpu_user:") + seconds("used_cpu_sys:");
        }
        Ok((sets as f64, cpu * 1e9))
    }

    /// What they have computed so far, in nanoseconds; not a number where the kernel does not say.
    pub fn computed(&self) -> f64 {
        self.masters.iter().map(|master| computed(master.pid())).sum()
    }

    /// Waits until a client whose locks live for `ttl` at most does not mistrust them any more.
    pub fn ripen(&self, ttl: Duration) {
        let ripe = self.started + ttl + ttl / 50 + AGE_SLACK;
        clock::pause(ripe.saturating_duration_since(clock::now()));
    }

    /// Stops the last `count`; their kernel still takes bytes and connections.
    pub fn freeze(&self, count: usize) -> io::Result<()> {
        self.last(count).try_for_each(testing::Master::freeze)
    }

    /// Lets them go on, and waits until they have caught up.
    pub fn thaw(&self, count: usize) -> io::Result<()> {
        for master in self.last(count) {
            master.thaw()?;
            let answers = || master.query(&[b"PING"]).is_ok();
            if !(0..THAW_TRIES).any(|_| answers()) {
                return Err(io::Error::other("a master that was frozen does not answer"));
            }
        }
        Ok(())
    }

    fn last(&self, count: usize) -> impl Iterator<Item = &testing::Master> {
        self.masters.iter().skip(self.masters.len().saturating_sub(count))
    }
}

/// What the main thread of a process has computed so far, in nanoseconds.
fn computed(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|it| it.parse().ok()).unwrap_or(f64::NAN)
}

/// The version of the servers.
pub fn version() -> io::Result<String> {
    let binary =
        std::env::var_os(testing::SERVER_VARIABLE).unwrap_or_else(|| "redis-server".into());
    let output = std::process::Command::new(binary).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    Ok(version.unwrap_or("of an unknown version").to_owned())
}
