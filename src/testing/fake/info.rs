//! What a fake master says about itself.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::process;
use std::time::{Duration, Instant};

use super::clock::Now;

/// How long a new master says that it has run. Longer than any lock lasts, so that the restart
/// guard of any client trusts it at once.
const UPTIME_AT_FIRST: Duration = Duration::from_secs(60 * 24 * 60 * 60);

/// The process that a master pretends to be.
#[derive(Debug)]
pub(super) struct Process {
    port: u16,
    run_id: String,
    replication_id: String,
    started: Instant,
    uptime_at_start: Duration,
}

impl Process {
    pub(super) fn new(now: Now, port: u16) -> Process {
        Process {
            port,
            run_id: random_id(),
            replication_id: random_id(),
            started: now.steady,
            uptime_at_start: UPTIME_AT_FIRST,
        }
    }

    /// Another process at the same port, which has just been started.
    pub(super) fn restarted(&self, now: Now) -> Process {
        Process { uptime_at_start: Duration::ZERO, ..Process::new(now, self.port) }
    }

    /// These sections, or all if none is named.
    pub(super) fn info(&self, now: Now, sections: &[&[u8]]) -> String {
        let is_asked_for = |name: &str| {
            let all = ["all", "default", "everything"];
            let is_it = |section: &[u8]| section.eq_ignore_ascii_case(name.as_bytes());
            let is_all =
                |section: &[u8]| all.iter().any(|all| section.eq_ignore_ascii_case(all.as_bytes()));
            sections.is_empty() || sections.iter().any(|section| is_it(section) || is_all(section))
        };
        let parts = [
            ("Server", self.about_server(now)),
            ("Memory", "maxmemory:0\r\nmaxmemory_policy:noeviction\r\n".to_owned()),
            ("Persistence", "loading:0\r\nasync_loading:0\r\n".to_owned()),
            ("Stats", "evicted_keys:0\r\n".to_owned()),
            ("Replication", self.about_replication()),
        ];
        let mut text = String::new();
        for (name, part) in parts.iter().filter(|(name, _)| is_asked_for(name)) {
            let gap = if text.is_empty() { "" } else { "\r\n" };
            // Writing to a string does not fail.
            let _ = write!(text, "{gap}# {name}\r\n{part}");
        }
        text
    }

    /// The version is one without a native command for releases, which it does not have.
    fn about_server(&self, now: Now) -> String {
        let uptime = (now.steady - self.started + self.uptime_at_start).as_secs();
        format!(
            "redis_version:7.0.0\r\nredis_mode:standalone\r\nos:muxlock testing\r\n\
             process_id:{}\r\nrun_id:{}\r\ntcp_port:{}\r\nuptime_in_seconds:{uptime}\r\n\
             uptime_in_days:{}\r\n",
            process::id(),
            self.run_id,
            self.port,
            uptime / (24 * 60 * 60),
        )
    }

    fn about_replication(&self) -> String {
        format!(
            "role:master\r\nconnected_slaves:0\r\nmaster_failover_state:no-failover\r\n\
             master_replid:{}\r\nmaster_replid2:{:040}\r\nmaster_repl_offset:0\r\n\
             second_repl_offset:-1\r\n",
            self.replication_id, 0,
        )
    }
}

/// 40 hexadecimal digits, as servers name themselves. They need to differ, and not to be secret.
fn random_id() -> String {
    let digits = |_| format!("{:016x}", RandomState::new().hash_one("fake master"));
    let digits: String = (0..3).map(digits).collect();
    digits[..40].to_owned()
}
