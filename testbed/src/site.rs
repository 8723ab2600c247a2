//! A master that Sentinels fail over.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use muxlock::testing::Master;

use crate::{SOON, Sentinel, ask, info, within};

/// A master counts as down after this time. Before that, it has stopped to write without replicas.
const DOWN_AFTER_MS: u32 = 3_000;
/// How long a failover may take.
pub const FAILED_OVER: Duration = Duration::from_secs(60);

/// One master with two replicas and three Sentinels. The first server is the master in the
/// beginning.
pub struct Site {
    pub servers: Vec<Master>,
    pub sentinels: Vec<Sentinel>,
}

impl Site {
    /// Starts them. They know each other then.
    pub fn start() -> Site {
        let careful = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"];
        let prompt = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
        let args = [careful, prompt].concat();
        let servers: Vec<_> =
            (0..3).map(|_| Master::start_with(&args).expect("a server")).collect();
        let port = servers[0].port().to_string();
        for replica in &servers[1..] {
            ask(replica, &["REPLICAOF", "127.0.0.1", &port]);
        }
        within(SOON + SOON, "the replicas are up to date", || {
            info(&servers[0], "replication", "min_slaves_good_slaves") == "2"
        });
        let sentinels: Vec<_> = (0..3).map(|_| watching(&servers[0])).collect();
        let mut last = Vec::new();
        within(FAILED_OVER, "the Sentinels know each other", || {
            let known = sentinels.iter().map(|sentinel| {
                let mut said = said(sentinel);
                ["num-slaves", "num-other-sentinels", "flags"].map(|name| said.remove(name))
            });
            let known: Vec<_> = known.collect();
            if known != last {
                println!("the Sentinels know: {known:?}");
                last.clone_from(&known);
            }
            let is_two = |figure: &Option<String>| figure.as_deref() == Some("2");
            known.iter().all(|known| known[..2].iter().all(is_two))
        });
        Site { servers, sentinels }
    }

    /// The address of the master, by its Sentinels.
    pub fn url(&self) -> String {
        let hosts = self.sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port()));
        let hosts = hosts.collect::<Vec<_>>().join(",");
        format!("redis+sentinel://{hosts}/mymaster")
    }

    /// Waits until all Sentinels name another master than the first, and returns it.
    pub fn promoted(&self) -> &Master {
        let named = || {
            let mut ports = self.sentinels.iter().map(|it| said(it).get("port").cloned());
            let port: u16 = ports.next()??.parse().ok()?;
            ports.all(|other| other == Some(port.to_string())).then_some(port)
        };
        let other = || named().filter(|port| *port != self.servers[0].port());
        within(FAILED_OVER, "another is the master", || other().is_some());
        let port = other().expect("they agree");
        let promoted = self.servers.iter().find(|it| it.port() == port);
        let promoted = promoted.expect("one of these");
        within(FAILED_OVER, "it has a replica", || {
            info(promoted, "replication", "min_slaves_good_slaves") != "0"
        });
        promoted
    }
}

fn watching(master: &Master) -> Sentinel {
    Sentinel::start(&format!(
        "sentinel monitor mymaster 127.0.0.1 {} 2\n\
         sentinel down-after-milliseconds mymaster {DOWN_AFTER_MS}\n\
         sentinel failover-timeout mymaster 6000\n\
         sentinel parallel-syncs mymaster 2\n",
        master.port()
    ))
}

/// What a Sentinel says about the master; nothing if it does not answer.
fn said(sentinel: &Sentinel) -> HashMap<String, String> {
    let words = ask_sentinel(sentinel).unwrap_or_default();
    words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

fn ask_sentinel(sentinel: &Sentinel) -> Option<Vec<String>> {
    let mut stream = TcpStream::connect(("127.0.0.1", sentinel.port())).ok()?;
    stream.set_read_timeout(Some(SOON)).ok()?;
    stream.write_all(b"SENTINEL MASTER mymaster\r\n").ok()?;
    let mut lines = BufReader::new(stream).lines();
    let count: usize = lines.next()?.ok()?.strip_prefix('*')?.parse().ok()?;
    // Each word has its length before it.
    (0..count).map(|_| lines.nth(1)?.ok()).collect()
}
