//! Asks Sentinels where a master is, on the helper thread of a lookup.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::blocking::{self, dial};
use super::failure::limit;
use crate::config::{NodeConfig, Resolver, Sentinels, Target};
use crate::moment::Moment;
use crate::outcome::{explained, explained_connection, printable};
use crate::proto::foreign;
use crate::resp::{
    self, ANSWER_BYTES_MAX, Failover, NoMaster, SentinelMaster, SentinelRefusal, answer, ask,
};

/// So many Sentinels are named with the reason why they named no master.
const REASONS_MAX: usize = 3;
/// How often one of the Sentinels is asked while the node is connected.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Asks the Sentinels of a node in turn.
#[cfg(feature = "unstable-tool")]
pub(crate) fn ask_sentinels(
    node: &NodeConfig,
    resolver: &Resolver,
    within: Duration,
) -> io::Result<(Failover, Vec<SocketAddr>)> {
    let located = Search::of(node, resolver, within, 0).locate()?;
    let master_for = located.master_for.map(|(age, _)| age);
    Ok((Failover { master_for, ..located.failover }, located.addresses))
}

/// Where a node is.
#[derive(Debug, Clone, Default)]
pub(super) struct Located {
    pub(super) addresses: Vec<SocketAddr>,
    /// For how long the server has been the master at least, and when Sentinels had said so.
    pub(super) master_for: Option<(Duration, Moment)>,
    /// Grows with each failover.
    epoch: u64,
    /// Whether the Sentinel that said so leads a failover, and still names the old master.
    is_failing_over: bool,
    #[cfg_attr(not(feature = "unstable-tool"), expect(dead_code, reason = "the tool shows it"))]
    failover: Failover,
}

impl From<Vec<SocketAddr>> for Located {
    fn from(addresses: Vec<SocketAddr>) -> Located {
        Located { addresses, ..Located::default() }
    }
}

impl Located {
    /// When it is used, the server may have been the master for a shorter time.
    pub(super) fn for_later(self) -> Located {
        Located { master_for: None, ..self }
    }

    fn shares_address(&self, other: &Located) -> bool {
        self.addresses.iter().any(|address| other.addresses.contains(address))
    }
}

/// The Sentinels of a node, and how to reach them.
pub(super) struct Search {
    node: NodeConfig,
    sentinels: Arc<Sentinels>,
    resolver: Resolver,
    /// For each Sentinel.
    timeout: Duration,
    /// The Sentinel to ask next: each is asked in turn, so that none that is cut off is believed
    /// for long.
    next: usize,
}

impl Search {
    /// All Sentinels of the node together have this time.
    ///
    /// # Panics
    /// If it has none.
    pub(super) fn of(
        node: &NodeConfig,
        resolver: &Resolver,
        within: Duration,
        next: usize,
    ) -> Search {
        let Target::Sentinel(sentinels) = &node.target else {
            unreachable!("the caller has looked");
        };
        let hosts = u32::try_from(sentinels.hosts.len()).unwrap_or(u32::MAX);
        Search {
            node: node.clone(),
            sentinels: Arc::clone(sentinels),
            resolver: resolver.clone(),
            timeout: within / hosts,
            next,
        }
    }

    /// Asks the Sentinels in turn until more than half of them name the same address. A Sentinel
    /// that was cut off may name an old master, or not know that a server was a replica meanwhile.
    /// But of those that have elected a master, one is among any such half. So for how long it has
    /// been the master is the least that they say. Without such a half, that is not known.
    pub(super) fn locate(&mut self) -> io::Result<Located> {
        let mut failures = Vec::new();
        let hosts = self.sentinels.hosts.len();
        let mut all: Vec<Located> = Vec::new();
        for _ in 0..hosts {
            match self.ask_next() {
                Ok(located) => all.push(located),
                Err(error) => failures.push(error),
            }
            let Some(last) = all.last().filter(|last| !last.is_failing_over) else {
                continue;
            };
            let agrees = |it: &&Located| !it.is_failing_over && it.shares_address(last);
            if all.iter().filter(agrees).count() > hosts / 2 {
                let ages = all.iter().filter(agrees).filter_map(|located| located.master_for);
                let now = blocking::now();
                let master_for =
                    ages.min_by_key(|(age, at)| age.saturating_add(now.steadily_since(*at)));
                // Not that of a failover in progress: a watch follows only to a later one.
                let epoch = all.iter().filter(agrees).map(|located| located.epoch).max();
                let epoch = epoch.unwrap_or(0);
                return Ok(Located { master_for, epoch, ..last.clone() });
            }
        }
        // The leader of a failover still names the old master, with the epoch of the new one.
        let newest = all.into_iter().max_by_key(|it| (!it.is_failing_over, it.epoch));
        let before = |it: &Located| it.epoch.saturating_sub(u64::from(it.is_failing_over));
        let newest = newest.map(|it| Located { epoch: before(&it), ..it.for_later() });
        newest.ok_or_else(|| all_of(&failures))
    }

    /// Asks until a Sentinel knows of a failover to another address, or the other end of `stop` is
    /// closed. Only one that knows of more failovers is believed.
    pub(super) fn watch(&mut self, mut known: Located, stop: &Receiver<()>) -> Option<Located> {
        while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(LOOK_INTERVAL) {
            match self.ask_next() {
                Ok(located) if located.is_failing_over || located.epoch < known.epoch => {}
                Ok(located) if located.shares_address(&known) => known = located,
                Ok(located) if located.epoch > known.epoch => return Some(located.for_later()),
                Ok(_) | Err(_) => {}
            }
        }
        None
    }

    fn ask_next(&mut self) -> io::Result<Located> {
        let (host, port) = &self.sentinels.hosts[self.next % self.sentinels.hosts.len()];
        self.next = self.next.wrapping_add(1);
        let failed = |why: &str| {
            // The answer of a Sentinel may be anything.
            let why = printable(why);
            io::Error::new(ErrorKind::NotFound, format!("{host}:{port}: {why}"))
        };
        let said = self.ask(host, *port).map_err(|why| failed(&why))?;
        let addresses = self.resolver.look_up(&said.host, said.port).map_err(|error| {
            failed(&format!("it names {}, which does not resolve: {}", said.host, why(&error)))
        })?;
        let SentinelMaster { master_for, epoch, is_failing_over, failover, .. } = said;
        // Read after the answer, so that the age is not too great.
        let master_for = Some((master_for, blocking::now()));
        Ok(Located { addresses, master_for, epoch, is_failing_over, failover })
    }

    /// Asks one Sentinel. An error is the reason in words.
    fn ask(&self, host: &str, port: u16) -> Result<SentinelMaster, String> {
        let addresses = self
            .resolver
            .look_up(host, port)
            .map_err(|error| format!("its name does not resolve: {}", why(&error)))?;
        let mut stream = dial(&self.node, &addresses, self.timeout).map_err(|error| {
            let phase = if self.node.is_plain_tcp() { "connect" } else { "TLS" };
            self.lost(&error, phase, MAYBE_NO_TLS)
        })?;
        let Sentinels { user, password, service, .. } = &*self.sentinels;
        // Its answer from before it closed the connection is read all the same.
        let written = stream
            .write_all(&ask(user.as_deref(), password.as_deref(), service))
            .and_then(|()| stream.flush());
        let mut bytes = [0; ANSWER_BYTES_MAX];
        let mut filled = 0;
        // Each iteration reads a byte at least, before the stream's deadline.
        loop {
            let read = match stream.read(&mut bytes[filled..]) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                read => read,
            };
            let hint = if self.node.is_plain_tcp() { MAYBE_TLS } else { MAYBE_NO_TLS };
            let hint = if filled == 0 { hint } else { "" };
            let read = read.map_err(|error| written.as_ref().err().map_or(error, copy_of));
            filled += read.map_err(|error| self.lost(&error, "answer", hint))?;
            let bytes = &bytes[..filled];
            match answer(bytes) {
                Ok(Some(master)) => return Ok(master),
                Ok(None) => {}
                Err(NoMaster::Refused(refusal)) => return Err(refused(refusal, service)),
                Err(NoMaster::Protocol) => {
                    return Err(match resp::foreign(bytes) {
                        Some(it) if !matches!(bytes.first(), Some(b'+' | b'*')) => {
                            foreign(it, password.as_deref())
                        }
                        _ => "this is not a Sentinel: check the port".to_owned(),
                    });
                }
            }
        }
    }

    /// Why there is no connection, or no answer on it.
    fn lost(&self, error: &io::Error, phase: &str, hint: &str) -> String {
        match error.kind() {
            ErrorKind::TimedOut => {
                let hint = if phase == "TLS" { hint } else { "" };
                format!("timed out ({phase}): longer than {:?}{hint}", self.timeout)
            }
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                format!("it closed the connection{hint}")
            }
            _ => why(error),
        }
    }
}

const MAYBE_TLS: &str = " without an answer: check that a Sentinel listens behind the port, or \
                         write rediss+sentinel:// if this port speaks TLS";
const MAYBE_NO_TLS: &str = "; does this port speak TLS?";

fn copy_of(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// The text of an error, or that of the limit behind it.
fn why(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => error.to_string(),
        _ => match limit() {
            Some(limit) => explained(&limit),
            None => explained_connection(error).unwrap_or_else(|| error.to_string()),
        },
    }
}

/// The reasons of all Sentinels.
fn all_of(failures: &[io::Error]) -> io::Error {
    let mut words: Vec<String> =
        failures.iter().take(REASONS_MAX).map(ToString::to_string).collect();
    let more = failures.len().saturating_sub(REASONS_MAX);
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    io::Error::new(ErrorKind::NotFound, words.join("; "))
}

/// The meaning of a Sentinel's error, with its code.
fn refused(refusal: SentinelRefusal, service: &str) -> String {
    let text = match refusal {
        SentinelRefusal::NoPassword => {
            "NOAUTH: it needs a password of its own: write sentinel_password="
        }
        SentinelRefusal::WrongPassword => "WRONGPASS: its user or sentinel_password= is wrong",
        SentinelRefusal::NeedlessPassword => {
            "ERR: it has no password: leave out sentinel_password="
        }
        SentinelRefusal::UnknownMaster => {
            return format!("ERR: it has no master \"{service}\": check the end of the address");
        }
        SentinelRefusal::NoSentinel => {
            "ERR unknown command: this is a server and not a Sentinel: write the Sentinel's port"
        }
        SentinelRefusal::Forbidden => "NOPERM: its user lacks +sentinel|master",
        SentinelRefusal::Protected => {
            "DENIED: it is in protected mode and answers its own machine only: give it a password"
        }
        SentinelRefusal::MaxClients => "ERR: it accepts no more clients: raise its maxclients",
        SentinelRefusal::Other => "it answered with an error",
    };
    text.to_owned()
}

#[cfg(all(test, repository))]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::sync_channel;
    use std::thread;

    use super::*;
    use crate::config::Builder;

    const SECOND: Duration = Duration::from_secs(1);

    /// A Sentinel that gives these answers, one for each connection.
    fn sentinel(answers: Vec<String>) -> (String, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for answer in answers {
                let mut peer = listener.accept().unwrap().0;
                let _ = peer.read(&mut [0; 1_024]);
                // In two pieces.
                let (head, tail) = answer.as_bytes().split_at(answer.len() / 2);
                let _ = peer.write_all(head).and_then(|()| peer.flush());
                let _ = peer.write_all(tail);
            }
        });
        ("127.0.0.1".to_owned(), port)
    }

    fn says(address: &str, epoch: u64) -> String {
        says_with(address, epoch, "5000", "master")
    }

    fn says_with(address: &str, epoch: u64, age: &str, flags: &str) -> String {
        let epoch = epoch.to_string();
        let pairs = [
            ("ip", address),
            ("port", "6379"),
            ("role-reported", "master"),
            ("role-reported-time", age),
            ("config-epoch", &epoch),
            ("flags", flags),
        ];
        let words = pairs.iter().flat_map(|(name, value)| [*name, *value]);
        let words: String = words.map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("*{}\r\n{words}", 2 * pairs.len())
    }

    fn search(hosts: Vec<(String, u16)>) -> Search {
        let hosts: Vec<_> = hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        let url = format!("redis+sentinel://{}/mymaster", hosts.join(","));
        let config = Builder::default().node(url).config().unwrap();
        Search::of(&config.nodes[0], &config.resolver, Duration::from_secs(30), 0)
    }

    fn at(address: &str) -> Vec<SocketAddr> {
        vec![format!("{address}:6379").parse().unwrap()]
    }

    #[test]
    fn one_sentinel_that_answers_is_enough_for_the_address() {
        let refused = "-ERR No such master with that name\r\n".to_owned();
        let ended = sentinel(vec![String::new()]);
        let hosts = vec![ended, sentinel(vec![refused]), sentinel(vec![says("10.0.0.1", 1)])];
        let mut search = search(hosts);
        let located = search.locate().unwrap();
        assert_eq!(located.addresses, at("10.0.0.1"));
        assert_eq!(located.master_for, None, "it may have been cut off");
        assert_eq!(search.next, 3, "the first is next");
    }

    /// One of those that elected the master is among more than half.
    #[test]
    fn age_of_a_master_is_the_least_that_more_than_half_say() {
        let old = || says_with("10.0.0.1", 9, "64000", "master");
        let young = || says_with("10.0.0.1", 9, "12000", "master");
        let other = || says("10.0.0.2", 3);
        let table = [
            ([old(), young(), young()], Some(12)),
            ([other(), old(), young()], Some(12)),
            ([old(), other(), young()], Some(12)),
            ([old(), other(), other()], Some(5)),
            ([old(), says("10.0.0.3", 1), other()], None),
        ];
        for (answers, age) in table {
            let hosts = answers.map(|answer| sentinel(vec![answer]));
            let located = search(hosts.to_vec()).locate().unwrap();
            assert_eq!(located.master_for.map(|(age, _)| age.as_secs()), age);
        }
    }

    /// A duration that was reported long ago has grown.
    #[test]
    fn ages_are_compared_at_one_moment() {
        let slow = |age: &str, pause: u64| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let said = says_with("10.0.0.1", 9, age, "master");
            thread::spawn(move || {
                let mut peer = listener.accept().unwrap().0;
                let _ = peer.read(&mut [0; 1_024]);
                testbed::pause(Duration::from_millis(pause));
                let _ = peer.write_all(said.as_bytes());
            });
            ("127.0.0.1".to_owned(), port)
        };
        // The second has known it since a later moment than the first.
        let located = search(vec![slow("10000", 0), slow("10200", 600)]).locate().unwrap();
        assert_eq!(located.master_for.map(|(age, _)| age.as_millis()), Some(10_200));
    }

    /// It has the new epoch, and names the old master.
    #[test]
    fn slow_leader_of_a_failover_is_believed_last() {
        let leading = || says_with("10.0.0.1", 9, "64000", "master,failover_in_progress");
        let hosts = [leading(), leading(), says("10.0.0.2", 8)].map(|it| sentinel(vec![it]));
        let located = search(hosts.to_vec()).locate().unwrap();
        assert_eq!((located.addresses, located.master_for), (at("10.0.0.2"), None));
        // A connection that was made meanwhile follows when the failover is over.
        let old = || says("10.0.0.1", 8);
        for hosts in [vec![leading(), old(), old()], vec![leading()]] {
            let hosts = hosts.into_iter().map(|it| sentinel(vec![it])).collect();
            let located = search(hosts).locate().unwrap();
            assert_eq!((located.addresses, located.epoch), (at("10.0.0.1"), 8));
        }
        let answers = vec![leading(), says("10.0.0.2", 7), says("10.0.0.2", 8)];
        let known = Located { epoch: 7, ..Located::from(at("10.0.0.1")) };
        let (_stop, stopped) = sync_channel(0);
        let found = search(vec![sentinel(answers)]).watch(known, &stopped).unwrap();
        assert_eq!((found.addresses, found.epoch), (at("10.0.0.2"), 8));
    }

    #[test]
    fn failure_names_each_sentinel_with_its_reason_and_not_its_words() {
        let refusing = testbed::scripted::refused_addr();
        let table = [
            (
                "-WRONGPASS you sent hunter2\r\n",
                "WRONGPASS: its user or sentinel_password= is wrong",
            ),
            ("-NOAUTH Authentication\r\n", "NOAUTH: it needs a password of its own: write "),
            ("-ERR AUTH called without any password\r\n", "leave out sentinel_password="),
            (
                "-ERR No such master with that name\r\n",
                "ERR: it has no master \"mymaster\": check the end of the address",
            ),
            ("-ERR unknown command `SENTINEL`\r\n", "this is a server and not a Sentinel"),
            (
                "HTTP/1.1 400 Bad\r\n",
                // The second piece may come too late to be shown.
                "this is not a Redis server: it answered \"HTTP/1.1 ",
            ),
            ("*0\r\n", "this is not a Sentinel"),
            ("", "it closed the connection without an answer: check that a Sentinel listens"),
        ];
        for (answer, words) in table {
            let (host, port) = sentinel(vec![answer.to_owned()]);
            let error = search(vec![(host, port)]).locate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("127.0.0.1:{port}: ")), "{error}");
            assert!(error.contains(words) && !error.contains("hunter2"), "{error}");
        }
        let hosts = || (0..5).map(|_| sentinel(vec!["-NOAUTH x\r\n".to_owned()])).collect();
        let many = search(hosts()).locate().unwrap_err().to_string();
        assert_eq!(many.matches("NOAUTH").count(), REASONS_MAX, "{many}");
        assert!(many.ends_with("; and 2 more"), "{many}");
        let hosts = vec![("127.0.0.1".to_owned(), refusing.port())];
        let error = search(hosts).locate().unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
    }

    /// It names an address that has none.
    #[test]
    fn name_that_a_sentinel_gives_is_named_if_it_does_not_resolve() {
        let (_, port) = sentinel(vec![says("odd\u{1b}", 1)]);
        let builder = Builder::default().node(format!("redis+sentinel://here:{port}/mymaster"));
        let builder = builder.resolver(|host, port| match host {
            "here" => Ok(vec![([127, 0, 0, 1], port).into()]),
            _ => Err(io::Error::other("no such name")),
        });
        let config = builder.config().unwrap();
        let mut search = Search::of(&config.nodes[0], &config.resolver, SECOND, 0);
        let error = search.locate().unwrap_err().to_string();
        let words = "it names odd\\u{1b}, which does not resolve: no such name";
        assert!(error.ends_with(words), "{error}");
    }

    /// None that lies, or was cut off, is asked first each time.
    #[test]
    fn each_lookup_begins_with_another_sentinel() {
        let last = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = last.local_addr().unwrap().port();
        // Nothing listens there, so there is another lookup soon.
        let nowhere = || says("127.0.0.1", 1).replace("$4\r\n6379", "$1\r\n1");
        let hosts = [(); 2].map(|()| sentinel((0..100).map(|_| nowhere()).collect()));
        let hosts = hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>();
        // The first two agree.
        let url = format!("redis+sentinel://{},127.0.0.1:{port}/mymaster", hosts.join(","));
        let (sender, asked) = sync_channel(1);
        thread::spawn(move || sender.send(last.accept().is_ok()));
        let client = Builder::default().node(url).build().unwrap();
        // Only while a caller waits does the client connect again.
        let wait = |_: &_| drop(client.try_lock_for("any", SECOND, SECOND / 50));
        let is_asked = (0..200).inspect(wait).any(|_| asked.try_recv().is_ok());
        assert!(is_asked);
    }

    /// One that was cut off still names the old master.
    #[test]
    fn slow_watch_reports_a_failover_and_believes_no_sentinel_that_knows_less() {
        let answers = vec![says("10.0.0.1", 7), says("10.0.0.9", 6), says("10.0.0.2", 8)];
        let mut search = search(vec![sentinel(answers)]);
        let known = Located { epoch: 7, ..Located::from(at("10.0.0.1")) };
        let (_stop, stopped) = sync_channel(0);
        let found = search.watch(known, &stopped).unwrap();
        assert_eq!(found.addresses, at("10.0.0.2"));
        assert_eq!(found.master_for, None, "it may be used much later");
    }

    #[test]
    fn watch_ends_with_its_client() {
        let mut search = search(vec![sentinel(Vec::new())]);
        let (stop, stopped) = sync_channel(0);
        drop(stop);
        assert!(search.watch(at("10.0.0.1").into(), &stopped).is_none());
    }
}
