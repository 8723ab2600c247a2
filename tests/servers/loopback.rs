//! The library over scripted servers: whatever one of them does, it costs its own vote and nothing
//! else.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use mio::{Events, Interest, Poll, Token};
use muxlock::error::{ConnectError, ProtocolError, ServerErrorKind};
use muxlock::node::{NodeOutcome, NodeState, Phase};
use muxlock::proto::{Done, Lease, OpId};
use muxlock::settings::RestartGuard;
use muxlock::{Builder, LockError, LockErrorKind, Multiplexer, Redlock};
use testbed::scripted::{HANDSHAKE, Peer, Scripted, never_accepting, refused_addr};
use testbed::{
    PATIENT, SOON, Stopwatch, TTL, all_ready, count, outcomes, patient, pause, soon, timed, waited,
    within,
};

const KEY: &str = "invoice:42";
/// How long a node may be silent where the silence is what is tested.
const SHORT: Duration = Duration::from_millis(150);

fn good(n: usize) -> Vec<Scripted> {
    (0..n).map(|_| Scripted::well_behaved()).collect()
}

fn urls(servers: &[Scripted]) -> Vec<String> {
    servers.iter().map(Scripted::url).collect()
}

fn holds_no_key(server: &Scripted) -> bool {
    server.store().is_empty()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, LockError>) -> LockError {
    match result {
        Ok(granted) => panic!("it succeeded: {granted:?}"),
        Err(error) => error,
    }
}

/// Answers the handshake.
fn greet(peer: &mut Peer) -> io::Result<()> {
    peer.serve_normally(Some(HANDSHAKE))
}

/// Answers as Redis would, but each SET with these bytes, without doing it.
fn answer_sets(peer: &mut Peer, bytes: &[u8]) -> io::Result<()> {
    while let Some(command) = peer.read_command()? {
        match command[0].as_slice() {
            b"SET" => peer.reply(bytes)?,
            _ => {
                let reply = peer.normal_reply(&command);
                peer.reply(&reply)?;
            }
        }
    }
    Ok(())
}

/// R10, R14: the release is in front of the next SET on the connection, and no answer to it is
/// waited for.
#[test]
fn release_and_the_next_set_leave_together_when_locks_are_swapped() {
    let servers: Vec<_> = (0..3).map(|_| Scripted::start(swaps)).collect();
    let redlock = all_ready(&patient(urls(&servers)));
    let lock = redlock.try_lock("first", TTL).unwrap();
    let lock = redlock.swap(lock, "second", TTL).unwrap();
    let lock = redlock.swap_for(lock, "third", TTL, PATIENT).unwrap();
    assert!(lock.unlock().unwrap().was_held());
}

/// Answers a release only when a SET has followed it.
fn swaps(peer: &mut Peer) -> io::Result<()> {
    greet(peer)?;
    let set = |peer: &mut Peer, name: &[u8]| -> io::Result<()> {
        let command = peer.read_command()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        assert_eq!((&command[0][..], &command[1][..]), (&b"SET"[..], name));
        Ok(())
    };
    set(peer, b"first")?;
    peer.reply(b"+OK\r\n")?;
    for (released, next) in [(b"first".as_slice(), b"second".as_slice()), (b"second", b"third")] {
        let command = peer.read_command()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        assert_eq!((&command[0][..], &command[3][..]), (&b"EVAL"[..], released));
        set(peer, next)?;
        peer.reply(b":1\r\n+OK\r\n")?;
    }
    peer.read_command()?;
    peer.reply(b":1\r\n")?;
    peer.read_command().map(|_| ())
}

// ---- Hostile servers ----

/// A server that misbehaves, what its vote then is, and what is needed to keep it up.
struct Hostile {
    name: &'static str,
    url: String,
    /// What a client that needs the vote is told, in its first round.
    outcome: NodeOutcome,
    _server: Box<dyn Any>,
}

fn hostile(
    name: &'static str,
    outcome: NodeOutcome,
    script: impl Fn(&mut Peer) -> io::Result<()> + Send + Sync + 'static,
) -> Hostile {
    let server = Scripted::start(script);
    let url = server.url();
    Hostile { name, url, outcome, _server: Box::new(server) }
}

/// Answers the first SET and whatever follows it like this.
fn answers(name: &'static str, outcome: NodeOutcome, bytes: impl Into<Vec<u8>>) -> Hostile {
    let bytes = bytes.into();
    hostile(name, outcome, move |peer| {
        greet(peer)?;
        peer.read_command()?;
        peer.reply(&bytes)?;
        // It goes on reading, so that what the client sees is its own doing.
        while peer.read_command()?.is_some() {}
        Ok(())
    })
}

/// Answers the handshake like this, and then nothing.
fn greets(name: &'static str, outcome: NodeOutcome, bytes: impl Into<Vec<u8>>) -> Hostile {
    let bytes = bytes.into();
    hostile(name, outcome, move |peer| {
        peer.read_command()?;
        peer.reply(&bytes)?;
        while peer.read_command()?.is_some() {}
        Ok(())
    })
}

fn all_hostile() -> Vec<Hostile> {
    use NodeOutcome::{Disconnected, Protocol, Server, TimedOut};
    use ProtocolError::{Malformed, Surplus, TooLarge, Unexpected};

    let refusing = refused_addr();
    let full = never_accepting();
    let phase = if full.is_full() { Phase::Connect } else { Phase::Handshake };
    let endless = [b"+".as_slice(), &[b'x'; 8 << 20]].concat();
    vec![
        Hostile {
            name: "refuses to connect",
            url: format!("redis://{refusing}"),
            outcome: Disconnected(io::ErrorKind::ConnectionRefused),
            _server: Box::new(()),
        },
        Hostile {
            name: "never accepts",
            url: full.url(),
            outcome: TimedOut(phase),
            _server: Box::new(full),
        },
        hostile("is silent before the handshake", TimedOut(Phase::Handshake), |peer| peer.hold()),
        hostile("is silent after the handshake", TimedOut(Phase::Reply), |peer| {
            greet(peer)?;
            peer.hold()
        }),
        hostile("ends at the handshake", Disconnected(io::ErrorKind::UnexpectedEof), |peer| {
            peer.read_command().map(drop)
        }),
        hostile("resets at the handshake", Disconnected(io::ErrorKind::ConnectionReset), |peer| {
            peer.read_command()?;
            peer.reset()
        }),
        hostile("resets within a reply", Disconnected(io::ErrorKind::ConnectionReset), |peer| {
            greet(peer)?;
            peer.read_command()?;
            peer.reply(b"+O")?;
            peer.reset()
        }),
        hostile("ends within a reply", Disconnected(io::ErrorKind::UnexpectedEof), |peer| {
            greet(peer)?;
            peer.read_command()?;
            peer.reply(b"+O")
        }),
        hostile("half-closes at a SET", Disconnected(io::ErrorKind::UnexpectedEof), |peer| {
            greet(peer)?;
            peer.read_command()?;
            peer.half_close()?;
            while peer.read_command()?.is_some() {}
            Ok(())
        }),
        hostile("sends a byte now and then", TimedOut(Phase::Reply), |peer| {
            greet(peer)?;
            peer.read_command()?;
            peer.reply_slowly(b"+OK", SHORT)?;
            peer.hold()
        }),
        greets("greets in HTTP", Protocol(Malformed), "HTTP/1.1 400 Bad Request\r\n\r\n"),
        greets("greets with a number", Protocol(Unexpected), ":1\r\n"),
        greets("greets twice", Protocol(Unexpected), "+OK\r\n+OK\r\n"),
        hostile("says more than it was asked", Protocol(Surplus), |peer| {
            peer.serve_normally(Some(HANDSHAKE - 1))?;
            let probe = peer.read_command()?.unwrap_or_default();
            // In one piece: later, it would be the answer to a SET.
            let reply = [&peer.normal_reply(&probe), b"+OK\r\n".as_slice()].concat();
            peer.reply(&reply)?;
            peer.hold()
        }),
        greets(
            "wants a password",
            Server(ServerErrorKind::Auth),
            "-NOAUTH Authentication required.\r\n",
        ),
        hostile("is full", Server(ServerErrorKind::MaxClients), |peer| {
            peer.read_command()?;
            peer.reply(b"-ERR max number of clients reached\r\n")
        }),
        answers("answers in HTTP", Protocol(Malformed), "HTTP/1.1 400 Bad Request\r\n\r\n"),
        answers("nests arrays", Protocol(Unexpected), "*1\r\n".repeat(100_000)),
        answers("announces a huge string", Protocol(TooLarge), "$9223372036854775807\r\n"),
        answers("announces a huge array", Protocol(Unexpected), "*2147483647\r\n"),
        answers(
            "answers a number beyond 64 bits",
            Protocol(Malformed),
            ":99999999999999999999\r\n",
        ),
        answers("answers a line without end", Protocol(TooLarge), endless),
        answers(
            "answers digits without end",
            Protocol(TooLarge),
            format!(":{}", "1".repeat(1 << 20)),
        ),
        answers("pushes", Protocol(Unexpected), ">2\r\n+invalidate\r\n*0\r\n"),
        answers("queues the SET", Protocol(Unexpected), "+QUEUED\r\n"),
        answers("answers the SET with a number", Protocol(Unexpected), ":1\r\n"),
        answers("answers the SET with a string", Protocol(Unexpected), "$2\r\nOK\r\n"),
        answers("ends lines with a newline only", Protocol(Malformed), "+OK\n"),
        answers("answers zero bytes", Protocol(Malformed), vec![0; 1 << 16]),
    ]
}

/// What a client does beside a hostile server: with four good ones, and with one, where the
/// hostile one's vote is needed.
fn live_with(good: &[String], name: &str, url: &str, outcome: NodeOutcome) {
    let mut beside = vec![url.to_owned()];
    beside.extend_from_slice(good);
    let redlock = patient(&beside).build().unwrap();
    for round in 0..20 {
        let (took, ()) = timed(|| {
            let mut lock =
                redlock.try_lock(KEY, TTL).unwrap_or_else(|error| panic!("{name}: {error}"));
            lock.extend(TTL).unwrap_or_else(|error| panic!("{name}: {error}"));
            let released = lock.unlock().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(released.was_held(), "{name}: {released:?}");
        });
        assert!(took < SOON, "{name}: {took:?} in round {round}");
    }
    // A client that ends while replies are under way resets its connections, and may lose what it
    // has sent: as before the end of a process, this waits for the good ones.
    soon(name, || redlock.nodes()[1..].iter().all(|node| node.in_flight == 0));

    let needed = Redlock::builder()
        .nodes([url, &good[0]])
        .node_timeout(SHORT)
        .connect_timeout(SHORT)
        .restart_guard(RestartGuard::Off)
        .build()
        .unwrap();
    let (took, result) = timed(|| needed.try_lock(KEY, TTL));
    let error = refused(result);
    assert!(error.is_unavailable(), "{name}: {error}");
    assert_eq!(outcomes(&error)[0], outcome, "{name}: {error}");
    assert!(took < SOON, "{name}: {took:?}");
    // No call after the first waits longer, and none succeeds.
    for _ in 0..3 {
        let (took, result) = timed(|| needed.try_lock(KEY, TTL));
        assert!(refused(result).is_unavailable(), "{name}");
        assert!(took < SOON, "{name}: {took:?}");
    }
    assert_eq!(needed.nodes()[0].address.as_ref(), url.strip_prefix("redis://").unwrap(), "{name}");
    soon(name, || needed.nodes()[1].in_flight == 0);
}

#[test]
fn slow_hostile_server_costs_its_own_vote_and_nothing_else() {
    let good = good(4);
    for case in all_hostile() {
        live_with(&urls(&good), case.name, &case.url, case.outcome);
        for server in &good {
            soon(&format!("{}: no key is left", case.name), || holds_no_key(server));
        }
    }
}

/// A child runs through all of it; the servers are its parent's, so that the memory is its own.
#[cfg(target_os = "linux")]
#[test]
fn hostile_servers_together_do_not_fill_the_memory() {
    use testbed::{is_child, re_execute, report_to_parent, run_child, status_figure};

    const URLS_VARIABLE: &str = "MUXLOCK_TEST_URLS";
    let test = "hostile_servers_together_do_not_fill_the_memory";
    if is_child(test) {
        let urls = std::env::var(URLS_VARIABLE).expect("the parent names the servers");
        let urls: Vec<_> = urls.split(' ').map(str::to_owned).collect();
        let (good, hostile) = urls.split_at(4);
        for url in hostile {
            let beside = good.iter().chain([url]);
            let redlock = patient(beside).build().unwrap();
            for _ in 0..20 {
                let _ = redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap();
            }
            soon(url, || redlock.nodes()[..4].iter().all(|node| node.in_flight == 0));
        }
        let all = Redlock::builder().nodes(&urls).node_timeout(SHORT).connect_timeout(SHORT);
        let redlock = all.build().unwrap();
        for _ in 0..20 {
            assert!(refused(redlock.try_lock(KEY, TTL)).is_unavailable());
        }
        report_to_parent(status_figure("VmHWM"));
        return;
    }
    let good = good(4);
    let hostile = all_hostile();
    let mut urls = urls(&good);
    urls.extend(hostile.iter().map(|case| case.url.clone()));
    let told = run_child(re_execute(test).env(URLS_VARIABLE, urls.join(" ")));
    let peak: u64 = told[0].parse().unwrap();
    println!("peak resident memory: {peak} KiB");
    assert!(peak < 32 * 1024, "{peak} KiB");
}

// ---- Answers that are no votes ----

#[test]
fn error_reply_is_named_and_is_no_vote() {
    use ServerErrorKind as Kind;

    let table = [
        ("LOADING Redis is loading the dataset in memory", Kind::Loading),
        (
            "MISCONF Redis is configured to save RDB snapshots, but it's unable to",
            Kind::Misconfigured,
        ),
        ("OOM command not allowed when used memory > 'maxmemory'.", Kind::OutOfMemory),
        ("NOAUTH Authentication required.", Kind::Auth),
        ("NOPERM this user has no permissions to run the 'set' command", Kind::Permission),
        ("READONLY You can't write against a read only replica.", Kind::ReadOnly),
        ("MOVED 3999 127.0.0.1:6381", Kind::Cluster),
        ("ASK 3999 127.0.0.1:6381", Kind::Cluster),
        ("CLUSTERDOWN Hash slot not served", Kind::Cluster),
        ("NOREPLICAS Not enough good replicas to write.", Kind::NoReplicas),
        ("BUSY Redis is busy running a script.", Kind::Busy),
        ("ERR unknown command 'SET', with args beginning with: ", Kind::UnknownCommand),
        ("ERR max number of clients reached", Kind::MaxClients),
        ("ERR something new", Kind::Other),
    ];
    let good = Scripted::well_behaved();
    for (text, kind) in table {
        let failing =
            Scripted::start(move |peer| answer_sets(peer, format!("-{text}\r\n").as_bytes()));
        let redlock = all_ready(&patient([failing.url(), good.url()]));
        let error = refused(redlock.try_lock(KEY, TTL));
        assert!(error.is_unavailable(), "{text}: {error}");
        assert_eq!(outcomes(&error)[0], NodeOutcome::Server(kind), "{error}");
        let shown = error.nodes()[0].message.as_deref().unwrap_or_default();
        assert!(!shown.is_empty() && text.starts_with(shown), "{shown}");
        assert!(error.to_string().contains(shown), "{error}");
        assert!(redlock.stats().server_errors >= 1);
        soon("no key is left", || holds_no_key(&good));
    }
}

#[test]
fn wrong_type_is_a_refusal() {
    let other = Scripted::start(|peer| {
        answer_sets(peer, b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n")
    });
    let good = Scripted::well_behaved();
    let redlock = all_ready(&patient([other.url(), good.url()]));
    let error = refused(redlock.try_lock(KEY, TTL));
    assert!(error.is_contended(), "{error}");
    assert_eq!(outcomes(&error)[0], NodeOutcome::Held);
}

#[test]
fn echoed_secrets_are_not_shown() {
    let password = "open-sesame";
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    // What it is sent at each stage it repeats in an error, in several disguises.
    let start = |stage: &'static str| {
        let seen = Arc::clone(&seen);
        Scripted::start(move |peer| {
            let mut words: Vec<String> = Vec::new();
            while let Some(command) = peer.read_command()? {
                words.extend(command.iter().map(|word| String::from_utf8_lossy(word).into_owned()));
                if command[0] == b"SET" {
                    let token = String::from_utf8_lossy(&command[2]).into_owned();
                    seen.lock().unwrap().push(token);
                }
                if command[0] == stage.as_bytes() {
                    words.reverse();
                    let echo = format!("-ERR no {:?}, '{}'\r\n", words, words.join("' '"));
                    peer.reply(echo.as_bytes())?;
                } else {
                    let reply = peer.normal_reply(&command);
                    peer.reply(&reply)?;
                }
            }
            Ok(())
        })
    };
    let mut leaks = Vec::new();
    for stage in ["HELLO", "SELECT", "CLIENT", "SET", "EVAL"] {
        let server = start(stage);
        let url = format!("redis://user:{password}@{}/2", server.addr());
        let redlock = patient([url]).build().unwrap();
        let error = redlock.try_lock(KEY, TTL).and_then(|lock| lock.unlock()).err();
        assert!(error.is_some(), "{stage}");
        let text = error.as_ref().map(LockError::to_string);
        let shown = format!("{text:?} {error:?} {redlock:?} {:?}", redlock.nodes());
        for token in seen.lock().unwrap().iter() {
            assert!(!shown.contains(&token[..20]), "{stage}: {shown}");
            assert!(!shown.contains(&token[20..]), "{stage}: {shown}");
        }
        if shown.contains(password) {
            leaks.push(format!("{stage}: {text:?}"));
        }
    }
    assert!(leaks.is_empty(), "the password was shown: {leaks:#?}");
    assert!(seen.lock().unwrap().len() >= 2, "no token was sent: nothing was tested");
}

#[test]
fn credentials_come_first_in_the_handshake() {
    let log: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
    let for_script = Arc::clone(&log);
    let server = Scripted::start(move |peer| {
        while let Some(command) = peer.read_command()? {
            let words = command.iter().map(|word| String::from_utf8_lossy(word).into_owned());
            for_script.lock().unwrap().push(words.collect());
            let reply = peer.normal_reply(&command);
            peer.reply(&reply)?;
        }
        Ok(())
    });
    let url = format!("redis://user:se%20cret@{}/7", server.addr());
    drop(patient([url]).connect().unwrap());
    let log = log.lock().unwrap();
    assert_eq!(log[0][..6], ["HELLO", "3", "AUTH", "user", "se cret", "SETNAME"]);
    assert_eq!(log[1], ["SELECT", "7"]);
    assert_eq!(log[2], ["CLIENT", "TRACKING", "ON", "OPTIN"]);
    // All of it at once: INFO in five parts, and a release that finds nothing.
    assert_eq!(log.len(), 1 + HANDSHAKE);
    assert_eq!(log[HANDSHAKE][0], "EVAL");
}

#[test]
fn number_from_a_script_that_is_no_answer_is_a_protocol_error() {
    let good = Scripted::well_behaved();
    for reply in ["+OK\r\n", "$-1\r\n", ":2\r\n", ":-1\r\n"] {
        let server = Scripted::start(move |peer| {
            greet(peer)?;
            while let Some(command) = peer.read_command()? {
                let normal = peer.normal_reply(&command);
                let is_script = command[0] == b"EVAL";
                peer.reply(if is_script { reply.as_bytes() } else { &normal })?;
            }
            Ok(())
        });
        let unexpected = NodeOutcome::Protocol(ProtocolError::Unexpected);
        let redlock = all_ready(&patient([server.url(), good.url()]));
        let mut lock = redlock.try_lock(KEY, TTL).unwrap();
        let error = lock.extend(TTL).unwrap_err();
        assert!(error.is_unavailable(), "{reply:?}: {error}");
        assert_eq!(outcomes(&error)[0], unexpected, "{reply:?}: {error}");
        drop(lock);
        let redlock = all_ready(&patient([server.url(), good.url()]));
        let error = refused(redlock.try_lock("other", TTL).unwrap().unlock());
        assert_eq!(outcomes(&error)[0], unexpected, "{reply:?}: {error}");
    }
}

#[test]
fn reply_too_many_counts_for_nobody() {
    // Two OKs for one SET: the second must not be taken for the answer to the next (R17).
    let server = Scripted::start(|peer| answer_sets(peer, b"+OK\r\n+OK\r\n"));
    let good = Scripted::well_behaved();
    let redlock = all_ready(&patient([server.url(), good.url()]));
    let _ = redlock.try_lock(KEY, TTL).map(drop);
    soon("the connection is dropped", || redlock.stats().disconnected == 1);
    let surplus = Some(NodeOutcome::Protocol(ProtocolError::Surplus));
    assert_eq!(redlock.nodes()[0].last_failure, surplus);
}

// ---- Slow servers ----

#[test]
fn slow_reply_within_the_timeout_counts() {
    let slow = Scripted::start(|peer| {
        while let Some(command) = peer.read_command()? {
            let reply = peer.normal_reply(&command);
            peer.reply_slowly(&reply, Duration::from_millis(3))?;
        }
        Ok(())
    });
    let good = Scripted::well_behaved();
    let redlock = patient([slow.url(), good.url()]).connect().unwrap();
    let mut lock = redlock.try_lock(KEY, TTL).unwrap();
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [0, 1]);
    lock.extend(TTL).unwrap();
    assert_eq!(lock.unlock().unwrap().confirmed, 2);
    assert!(holds_no_key(&slow) && holds_no_key(&good));
}

#[test]
fn reply_split_anywhere_is_the_same_reply() {
    // Longer than any reply that is split here.
    for at in 1..8 {
        let split = move |peer: &mut Peer| {
            while let Some(command) = peer.read_command()? {
                let reply = peer.normal_reply(&command);
                let (head, tail) = reply.split_at(at.min(reply.len()));
                peer.reply(head)?;
                peer.pause(Duration::from_millis(2))?;
                peer.reply(tail)?;
            }
            Ok(())
        };
        let servers: Vec<_> = (0..3).map(|_| Scripted::start(split)).collect();
        let redlock = all_ready(&patient(urls(&servers)));
        let mut lock = redlock.try_lock(KEY, TTL).unwrap();
        lock.extend(TTL).unwrap();
        soon("all have it", || servers.iter().all(|server| server.store().len() == 1));
        let error = refused(redlock.try_lock(KEY, TTL));
        assert!(count(&error, NodeOutcome::Held) >= 2, "{error}");
        assert!(lock.unlock().unwrap().was_held());
        soon("all keys are gone", || servers.iter().all(holds_no_key));
    }
}

/// Answers each SET after `delay`, once it has been done.
fn delay_sets(peer: &mut Peer, delay: Duration) -> io::Result<()> {
    while let Some(command) = peer.read_command()? {
        let reply = peer.normal_reply(&command);
        if command[0] == b"SET" {
            peer.pause(delay)?;
        }
        peer.reply(&reply)?;
    }
    Ok(())
}

#[test]
fn slow_quorum_that_comes_after_the_validity_is_no_lock() {
    let start = || Scripted::start(|peer| delay_sets(peer, Duration::from_millis(400)));
    let servers = [start(), start(), start()];
    let redlock = all_ready(&patient(urls(&servers)));
    let ttl = Duration::from_millis(250);
    let error = refused(redlock.try_lock(KEY, ttl));
    assert_eq!(error.kind(), LockErrorKind::Expired, "R2: {error}");
    assert!(count(&error, NodeOutcome::Granted) >= 2, "{error}");
    assert_eq!((redlock.stats().acquired, redlock.stats().expired), (0, 1));

    // Nor is it one in any round of several.
    let wait = Duration::from_secs(3);
    let (took, result) = timed(|| redlock.try_lock_for(KEY, ttl, wait));
    let error = refused(result);
    assert!(error.attempts() >= 2, "{error}");
    assert!(took < wait + SOON, "{took:?}");
    assert_eq!(redlock.stats().acquired, 0);

    // With time enough it is one, of which the delay is taken off.
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    assert!(lock.remaining() <= TTL - Duration::from_millis(400 + 302));
    let _ = lock.unlock().unwrap();
}

#[test]
fn slow_late_reply_is_not_credited_to_a_later_attempt() {
    let asked = Arc::new(AtomicUsize::new(0));
    let for_script = Arc::clone(&asked);
    let is_second = AtomicBool::new(false);
    let late = Scripted::start(move |peer| {
        if is_second.swap(true, Ordering::SeqCst) {
            // Opened beside the first one, when that had been silent for so long.
            return peer.hold();
        }
        greet(peer)?;
        let mut replies = Vec::new();
        // The first SET is granted, its release done; the second SET finds a stranger's key. All
        // of it is told only when both attempts have been made.
        let mut sets = ["+OK\r\n", "$-1\r\n"].into_iter();
        while sets.len() > 0 {
            let command = peer.read_command()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            match &command[0][..] {
                b"SET" => {
                    for_script.fetch_add(1, Ordering::SeqCst);
                    replies.extend_from_slice(sets.next().unwrap_or_default().as_bytes());
                }
                b"EVAL" | b"EVALSHA" => replies.extend_from_slice(b":1\r\n"),
                // On a busy machine, its clock may be looked at.
                _ => replies.extend_from_slice(&peer.normal_reply(&command)),
            }
        }
        peer.reply(&replies)?;
        peer.serve_normally(None)
    });
    let good = Scripted::well_behaved();
    let builder = patient([late.url(), good.url()]);
    let redlock = all_ready(&builder.clone().node_timeout(Duration::from_secs(3)));
    let error = refused(redlock.try_lock(KEY, TTL));
    assert_eq!(outcomes(&error)[0], NodeOutcome::TimedOut(Phase::Reply), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 1);

    let error = refused(redlock.try_lock(KEY, TTL));
    assert_eq!(asked.load(Ordering::SeqCst), 2, "{error}");
    assert_eq!(outcomes(&error)[0], NodeOutcome::Held, "R3: {error}");
    assert!(error.is_contended(), "{error}");
    assert_eq!(redlock.stats().late_replies, 1);
    // The connection has kept its place in the order (R5).
    assert_eq!(redlock.stats().disconnected, 0);
    assert!(late.accepted() <= 2);
    assert!(redlock.try_lock(KEY, TTL).unwrap().unlock().unwrap().was_held());
}

#[test]
fn slow_first_call_takes_no_longer_than_the_connect_timeout() {
    let silent = Scripted::start(|peer| peer.hold());
    let full = never_accepting();
    let good = Scripted::well_behaved();
    let limit = Duration::from_millis(300);
    let builder = || {
        Redlock::builder()
            .nodes([silent.url(), full.url(), good.url()])
            .node_timeout(PATIENT)
            .connect_timeout(limit)
    };
    let phase = if full.is_full() { Phase::Connect } else { Phase::Handshake };
    let expected = [NodeOutcome::TimedOut(Phase::Handshake), NodeOutcome::TimedOut(phase)];
    let check = |took: Duration, error: LockError| {
        assert!(took >= limit, "{took:?}");
        assert!(took < limit + Duration::from_secs(2), "{took:?}");
        assert!(error.is_unavailable());
        assert_eq!(outcomes(&error)[..2], expected, "{error}");
    };
    let (took, result) = timed(|| builder().connect());
    match result {
        Err(ConnectError::Unavailable(error)) => check(took, error),
        other => panic!("{other:?}"),
    }
    let redlock = builder().build().unwrap();
    let (took, result) = timed(|| redlock.try_lock(KEY, TTL));
    check(took, refused(result));
    soon("the good one is left without a key", || holds_no_key(&good));
    // Those that are down are known by now: nobody waits for them again.
    let (took, result) = timed(|| redlock.try_lock(KEY, TTL));
    assert!(refused(result).is_unavailable());
    assert!(took < limit + Duration::from_secs(2), "{took:?}");
}

// ---- Lost connections ----

/// Half of the longest delay before a reconnect, to a server that has said something and to one
/// that has not.
const DELAY_MAX: Duration = Duration::from_millis(500);
const DELAY_TO_SILENT_MAX: Duration = Duration::from_millis(50);

/// How many connections may begin within `time`: one, one more at once if that one had worked,
/// and then after delays of at least half of 20 ms, 40 ms, and so on, up to `longest`.
fn connections_in(time: Duration, longest: Duration) -> usize {
    let (mut at, mut delay, mut connections) = (Duration::ZERO, Duration::from_millis(10), 2);
    loop {
        at += delay;
        if at > time {
            return connections;
        }
        connections += 1;
        delay = (delay * 2).min(longest);
    }
}

#[test]
fn slow_server_that_hangs_up_is_not_called_in_a_hot_loop() {
    assert_eq!(connections_in(Duration::from_secs(1), DELAY_MAX), 8);
    assert_eq!(connections_in(Duration::from_secs(1), DELAY_TO_SILENT_MAX), 23);
    type Script = fn(&mut Peer) -> io::Result<()>;
    let scripts: [(&str, Script); 4] = [
        ("at once", |_| Ok(())),
        ("after the handshake", greet),
        ("after a SET", |peer| {
            greet(peer)?;
            peer.read_command().map(drop)
        }),
        ("because of a wrong password", |peer| {
            peer.read_command()?;
            peer.reply(b"-NOAUTH Authentication required.\r\n")
        }),
    ];
    for (name, script) in scripts {
        let server = Scripted::start(script);
        let good = Scripted::well_behaved();
        let redlock = patient([server.url(), good.url()]).build().unwrap();
        let watch = Stopwatch::start();
        let mut calls = 0;
        while watch.elapsed() < Duration::from_secs(1) {
            assert!(refused(redlock.try_lock(KEY, TTL)).is_unavailable());
            calls += 1;
        }
        let longest = if name == "at once" { DELAY_TO_SILENT_MAX } else { DELAY_MAX };
        let limit = connections_in(watch.elapsed(), longest);
        let accepted = server.accepted();
        assert!((3..=limit).contains(&accepted), "{name}: {accepted} of {limit}, {calls} calls");
    }
}

#[test]
fn connection_lost_with_a_set_unanswered_is_followed_by_its_release() {
    let server = Scripted::start(|peer| {
        if peer.index() > 0 {
            return peer.serve_normally(None);
        }
        greet(peer)?;
        let command = peer.read_command()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        peer.normal_reply(&command);
        peer.reset()
    });
    let good = Scripted::well_behaved();
    let redlock = all_ready(&patient([server.url(), good.url()]));
    assert!(refused(redlock.try_lock(KEY, TTL)).is_unavailable());
    // Nothing new is locked; any call makes the client look after its connections.
    soon("the key is deleted (R12)", || {
        redlock.nodes();
        holds_no_key(&server) && redlock.nodes()[0].pending_releases == 0
    });
    assert_eq!(server.accepted(), 2);
    soon("the key is deleted", || holds_no_key(&good));
}

#[test]
fn release_that_overtakes_its_set_is_sent_again() {
    let overtaken = Arc::new(AtomicBool::new(false));
    let for_script = Arc::clone(&overtaken);
    let server = Scripted::start(move |peer| {
        greet(peer)?;
        let mut command = peer.read_command()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if peer.index() > 0 {
            // Without the barrier, only a second release helps.
            assert_eq!(command[..2], [b"CLIENT".to_vec(), b"KILL".to_vec()]);
            peer.reply(b"-NOPERM no permissions to run the 'client|kill' command\r\n")?;
            // The release of the SET that has not run yet.
            command = peer.read_command()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            assert_eq!(command[0], b"EVAL");
            let reply = peer.normal_reply(&command);
            peer.reply(&reply)?;
            for_script.store(true, Ordering::SeqCst);
            return peer.serve_normally(None);
        }
        peer.reset()?;
        while !for_script.load(Ordering::SeqCst) {
            peer.pause(Duration::from_millis(1))?;
        }
        // Only now: it was in the buffers of a connection that is gone.
        peer.normal_reply(&command);
        Ok(())
    });
    let good = Scripted::well_behaved();
    let redlock = all_ready(&patient([server.url(), good.url()]));
    assert!(refused(redlock.try_lock(KEY, TTL)).is_unavailable());
    let mut seen = false;
    soon("the SET runs after its release, and is deleted nevertheless (R12)", || {
        redlock.nodes();
        let is_there = !holds_no_key(&server);
        seen |= is_there;
        overtaken.load(Ordering::SeqCst) && seen && !is_there
    });
}

#[test]
fn release_before_the_connection_stands_takes_the_set_back() {
    let log: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let for_script = Arc::clone(&log);
    let (open, opened) = mpsc::channel::<()>();
    let opened = Mutex::new(opened);
    let slow = Scripted::start(move |peer| {
        let hello = peer.read_command()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        peer.wait_for(&opened)?;
        let reply = peer.normal_reply(&hello);
        peer.reply(&reply)?;
        peer.serve_normally(Some(HANDSHAKE - 1))?;
        while let Some(command) = peer.read_command()? {
            for_script.lock().unwrap().push(command[0].clone());
            let reply = peer.normal_reply(&command);
            peer.reply(&reply)?;
        }
        Ok(())
    });
    let good = good(2);
    let redlock = patient([slow.url(), good[0].url(), good[1].url()]).build().unwrap();
    let lock = redlock.try_lock("first", TTL).unwrap();
    assert_eq!(lock.granted_by().collect::<Vec<_>>(), [1, 2]);
    let _ = lock.unlock().unwrap();
    let second = redlock.try_lock("second", TTL).unwrap();
    open.send(()).unwrap();
    soon("the node is ready", || redlock.nodes()[0].state == NodeState::Ready);
    assert_eq!(redlock.shutdown(PATIENT), 0);
    // Nothing was sent of the first lock; of the second, which is still held, the SET was (R11).
    assert_eq!(*log.lock().unwrap(), [b"SET".to_vec()]);
    assert_eq!(slow.store().keys().collect::<Vec<_>>(), [b"second"]);
    drop(second);
    soon("the second is released everywhere", || holds_no_key(&slow));
}

#[test]
fn set_that_is_too_late_when_the_connection_stands_is_not_sent() {
    let (open, opened) = mpsc::channel::<()>();
    let opened = Mutex::new(opened);
    let sets = Arc::new(AtomicUsize::new(0));
    let for_script = Arc::clone(&sets);
    let slow = Scripted::start(move |peer| {
        let hello = peer.read_command()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        peer.wait_for(&opened)?;
        let reply = peer.normal_reply(&hello);
        peer.reply(&reply)?;
        peer.serve_normally(Some(HANDSHAKE - 1))?;
        while let Some(command) = peer.read_command()? {
            for_script.fetch_add(usize::from(command[0] == b"SET"), Ordering::SeqCst);
            let reply = peer.normal_reply(&command);
            peer.reply(&reply)?;
        }
        Ok(())
    });
    let good = good(2);
    let redlock = patient([slow.url(), good[0].url(), good[1].url()]).build().unwrap();
    let lock = redlock.try_lock(KEY, Duration::from_secs(1)).unwrap();
    soon("it expires", || !lock.is_valid());
    open.send(()).unwrap();
    soon("the node is ready", || redlock.nodes()[0].state == NodeState::Ready);
    assert_eq!(redlock.shutdown(PATIENT), 0);
    assert_eq!(sets.load(Ordering::SeqCst), 0, "R11");
    drop(lock);
}

// ---- A guest in another event loop ----

struct Loop {
    poll: Poll,
    events: Events,
    mux: Multiplexer,
}

impl Loop {
    fn new(builder: &Builder) -> Loop {
        let poll = Poll::new().unwrap();
        let mux =
            Multiplexer::new(builder.config().unwrap(), poll.registry(), Token(1000)).unwrap();
        Loop { poll, events: Events::with_capacity(16), mux }
    }

    /// One turn, as in the documentation.
    fn turn(&mut self) {
        let limit = self.mux.next_timeout().unwrap_or(SOON).min(SOON);
        waited(self.poll.poll(&mut self.events, Some(limit)));
        for event in &self.events {
            assert!(self.mux.handle_event(event), "{event:?} is nobody else's");
        }
        self.mux.handle_timeout();
    }

    /// Turns until an operation has ended, and leaves it for later.
    fn until_done(&mut self) {
        self.mux.flush();
        let watch = Stopwatch::start();
        while self.mux.next_timeout() != Some(Duration::ZERO) {
            assert!(watch.elapsed() < SOON, "nothing has ended");
            waited(self.poll.poll(&mut self.events, Some(SHORT)));
            self.mux.handle_events(&self.events);
        }
    }

    /// Turns until `n` operations have ended.
    #[track_caller]
    fn done(&mut self, n: usize) -> BTreeMap<OpId, Done> {
        let watch = Stopwatch::start();
        let mut ended = BTreeMap::new();
        while ended.len() < n {
            assert!(watch.elapsed() < SOON, "{} of {n} have ended", ended.len());
            self.turn();
            while let Some((id, done)) = self.mux.poll_done() {
                assert!(ended.insert(id, done).is_none(), "{id:?} ended twice");
            }
        }
        ended
    }

    #[track_caller]
    fn all_ready(&mut self) {
        self.mux.connect();
        let watch = Stopwatch::start();
        while self.mux.nodes().any(|node| node.state != NodeState::Ready) {
            assert!(watch.elapsed() < SOON, "not all nodes are ready");
            self.turn();
        }
    }
}

#[track_caller]
fn acquired(done: Done) -> Lease {
    match done {
        Done::Acquired(Ok(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

#[test]
fn hundred_locks_over_one_flush_all_end() {
    let servers = good(5);
    let mut this = Loop::new(&patient(urls(&servers)));
    this.all_ready();
    let key = |i: usize| format!("{KEY}:{i}");
    let ops: Vec<_> = (0..100).map(|i| this.mux.try_lock(key(i), TTL).unwrap()).collect();
    this.mux.flush();
    let mut ended = this.done(100);
    let mut leases = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        let lease = acquired(ended.remove(op).expect("each operation ends under its own id"));
        assert_eq!(lease.resource().as_bytes(), key(i).as_bytes());
        assert!(lease.granted_by().count() >= 3);
        assert!(lease.is_valid_at(this.mux.now()));
        leases.push(lease);
    }
    // Extensions, refusals and releases of many at once, all in flight together.
    let taken: Vec<_> = (0..50).map(|i| this.mux.try_lock(key(i), TTL).unwrap()).collect();
    let extended: Vec<_> = leases.drain(..50).map(|lease| this.mux.extend(lease, TTL)).collect();
    let released: Vec<_> = leases.drain(..).map(|lease| this.mux.unlock(lease)).collect();
    this.mux.flush();
    let mut ended = this.done(150);
    for op in taken {
        match ended.remove(&op) {
            Some(Done::Acquired(Err(error))) => assert!(error.is_contended(), "{error}"),
            other => panic!("{other:?}"),
        }
    }
    for op in extended {
        match ended.remove(&op) {
            Some(Done::Extended(lease, Ok(()))) => this.mux.abandon(lease),
            other => panic!("{other:?}"),
        }
    }
    for op in released {
        match ended.remove(&op) {
            Some(Done::Released(Ok(released))) => assert!(released.was_held()),
            other => panic!("{other:?}"),
        }
    }
    this.mux.flush();
    soon("no key is left", || servers.iter().all(holds_no_key));
    assert_eq!(this.mux.stats().acquired, 100);
    assert_eq!(this.mux.stats().disconnected, 0);
}

#[test]
fn forgotten_flush_costs_a_turn_and_nothing_else() {
    let servers = good(3);
    let mut this = Loop::new(&patient(urls(&servers)));
    let op = this.mux.try_lock(KEY, TTL).unwrap();
    assert_eq!(this.mux.next_timeout(), Some(Duration::ZERO));
    let lease = acquired(this.done(1).remove(&op).unwrap());
    let op = this.mux.unlock(lease);
    assert_eq!(this.mux.next_timeout(), Some(Duration::ZERO));
    assert!(matches!(this.done(1).remove(&op), Some(Done::Released(Ok(_)))));
    let op = this.mux.try_lock(KEY, TTL).unwrap();
    let lease = acquired(this.done(1).remove(&op).unwrap());
    this.mux.abandon(lease);
    assert_eq!(this.mux.next_timeout(), Some(Duration::ZERO));
    this.turn();
    soon("no key is left", || servers.iter().all(holds_no_key));
}

#[test]
fn foreign_event_is_left_to_its_owner() {
    let servers = good(3);
    let mut this = Loop::new(&patient(urls(&servers)));
    this.all_ready();
    let mut foreign = mio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let from = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // Just outside on both sides, and at both ends of what a token can be.
    for token in [Token(0), Token(999), Token(1003), Token(usize::MAX)] {
        let registry = this.poll.registry();
        registry.register(&mut foreign, token, Interest::READABLE).unwrap();
        from.send_to(b"news", foreign.local_addr().unwrap()).unwrap();
        let op = this.mux.try_lock(KEY, TTL).unwrap();
        this.mux.flush();
        let (mut lease, mut foreign_events) = (None, 0);
        let watch = Stopwatch::start();
        while lease.is_none() || foreign_events == 0 {
            assert!(watch.elapsed() < SOON);
            waited(this.poll.poll(&mut this.events, this.mux.next_timeout()));
            for event in &this.events {
                let is_foreign = event.token() == token;
                assert_eq!(this.mux.handle_event(event), !is_foreign, "{event:?}");
                foreign_events += usize::from(is_foreign);
            }
            this.mux.handle_timeout();
            while let Some((id, done)) = this.mux.poll_done() {
                assert_eq!(id, op);
                lease = Some(acquired(done));
            }
        }
        assert_eq!(foreign.recv_from(&mut [0; 8]).unwrap().0, 4);
        this.poll.registry().deregister(&mut foreign).unwrap();
        let op = this.mux.unlock(lease.unwrap());
        assert!(matches!(this.done(1).remove(&op), Some(Done::Released(Ok(_)))));
    }
}

#[test]
fn wrong_arguments_start_nothing() {
    let servers = good(1);
    let mut this = Loop::new(&patient(urls(&servers)));
    let error = refused(this.mux.try_lock("", TTL));
    assert_eq!(error.kind(), LockErrorKind::InvalidResource { bytes: 0 });
    let error = refused(this.mux.try_lock_for(KEY, Duration::ZERO, SOON));
    assert!(matches!(error.kind(), LockErrorKind::InvalidTtl { .. }));
    assert_eq!(this.mux.next_timeout(), None);
    assert!(this.mux.poll_done().is_none());
    // A lease comes back also when its new time to live is wrong.
    let op = this.mux.try_lock(KEY, TTL).unwrap();
    let lease = acquired(this.done(1).remove(&op).unwrap());
    let until = lease.valid_until();
    let op = this.mux.extend(lease, Duration::MAX);
    match this.done(1).remove(&op) {
        Some(Done::Extended(lease, Err(error))) => {
            assert!(matches!(error.kind(), LockErrorKind::InvalidTtl { .. }), "{error}");
            assert_eq!(lease.valid_until(), until);
            this.mux.abandon(lease);
        }
        other => panic!("{other:?}"),
    }
}

/// A server that speaks as soon as a connection stands, and an event loop that looks only after
/// that: what the first node's vote is then.
fn spoken_to_first(greeting: &'static [u8], and_end: bool) -> NodeOutcome {
    let (sender, spoken) = mpsc::channel();
    let sender = Mutex::new(sender);
    let server = Scripted::start(move |peer| {
        peer.reply(greeting)?;
        if and_end {
            peer.half_close()?;
        }
        let _ = sender.lock().unwrap().send(());
        peer.serve_normally(None)
    });
    let mut this = Loop::new(&patient([server.url()]));
    let op = this.mux.try_lock(KEY, TTL).unwrap();
    this.mux.flush();
    spoken.recv_timeout(SOON).expect("the server speaks");
    match this.done(1).remove(&op) {
        Some(Done::Acquired(Err(error))) => {
            assert!(error.is_unavailable(), "{error}");
            outcomes(&error)[0]
        }
        other => panic!("{other:?}"),
    }
}

/// Found before the handshake is sent it is surplus, and found later it is an answer too many: on
/// this machine, the handshake leaves as soon as the server could speak.
#[test]
fn reply_before_any_request_ends_the_connection() {
    let ends = |greeting| {
        let outcome = spoken_to_first(greeting, false);
        let found = [ProtocolError::Surplus, ProtocolError::Unexpected].map(NodeOutcome::Protocol);
        assert!(found.contains(&outcome), "{outcome:?}");
    };
    ends(b"+OK\r\n");
    ends(b":1\r\n:1\r\n");
}

/// A Redis that has too many clients says so and hangs up, before it was asked anything.
#[test]
fn error_before_any_request_is_named() {
    let full = b"-ERR max number of clients reached\r\n";
    let named = NodeOutcome::Server(ServerErrorKind::MaxClients);
    assert_eq!(spoken_to_first(full, true), named);
    assert_eq!(spoken_to_first(full, false), named);
}

#[test]
fn loop_that_sleeps_too_long_gets_no_expired_lock() {
    let servers = good(3);
    let mut this = Loop::new(&patient(urls(&servers)));
    this.all_ready();
    let op = this.mux.try_lock(KEY, Duration::from_millis(50)).unwrap();
    this.mux.flush();
    // The replies are here long before the loop looks at them (R2).
    within(SOON, "the servers have granted", || {
        servers.iter().all(|server| server.store().len() == 1) || servers.iter().all(holds_no_key)
    });
    pause(Duration::from_millis(60));
    match this.done(1).remove(&op) {
        Some(Done::Acquired(Err(error))) => assert!(error.is_expired(), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn loop_that_sleeps_too_long_gets_no_extension() {
    let servers = good(3);
    let mut this = Loop::new(&patient(urls(&servers)));
    this.all_ready();
    let op = this.mux.try_lock(KEY, Duration::from_secs(1)).unwrap();
    this.mux.flush();
    let lease = acquired(this.done(1).remove(&op).unwrap());
    let until = lease.valid_until();
    let op = this.mux.extend(lease, TTL);
    this.mux.flush();
    // Every server extends in time and says so; the loop looks when the old validity is over.
    within(SOON, "it is over", || this.mux.now() >= until);
    match this.done(1).remove(&op) {
        Some(Done::Extended(lease, Err(error))) => {
            assert!(error.is_expired(), "R25: {error}");
            assert_eq!(lease.valid_until(), until, "R26");
            this.mux.abandon(lease);
        }
        other => panic!("{other:?}"),
    }
    this.mux.flush();
    soon("no key is left", || servers.iter().all(holds_no_key));
}

// ---- What nobody has asked for ----

/// It grants its first SET, sends these bytes as well once it is told to, and says of every other
/// SET that the key is held.
struct Stray {
    server: Scripted,
    /// 1: to be sent; 2: sent.
    state: Arc<AtomicUsize>,
}

impl Stray {
    fn start(bytes: &'static [u8]) -> Stray {
        let state = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&state);
        let server = Scripted::start(move |peer| {
            greet(peer)?;
            if peer.index() == 0 {
                peer.serve_normally(Some(1))?;
                while shared.load(Ordering::SeqCst) == 0 {
                    peer.pause(Duration::from_millis(1))?;
                }
                peer.reply(bytes)?;
                shared.store(2, Ordering::SeqCst);
            }
            answer_sets(peer, b"$-1\r\n")
        });
        Stray { server, state }
    }

    /// Returns when it is in the client's socket, and for so long that it can be known to be stray.
    fn send(&self) {
        self.state.store(1, Ordering::SeqCst);
        soon("it was sent", || self.state.load(Ordering::SeqCst) == 2);
        pause(Duration::from_millis(20));
    }
}

/// R17: what was there before a command was sent is not its answer, be it all or a part of it.
#[test]
fn reply_that_lies_there_before_a_lock_is_no_vote_for_it() {
    for (bytes, name) in [(b"+OK\r\n".as_slice(), "whole"), (b"+O", "a part")] {
        let stray = Stray::start(bytes);
        let redlock = all_ready(&patient([stray.server.url()]));
        let _first = redlock.try_lock("first", TTL).unwrap();
        stray.send();
        let error = refused(redlock.try_lock("second", TTL));
        assert!(error.is_contended(), "{name}: {error}");
        assert_eq!(stray.server.accepted(), 2, "{name}: it was connected to anew");
    }
}

/// The same for a guest that starts an operation before it looks at what has come, or that has not
/// passed on for long what it knows of.
#[test]
fn reply_that_lies_there_before_a_guests_lock_is_no_vote_for_it() {
    for (bytes, name) in [(b"+OK\r\n".as_slice(), "whole"), (b"+O", "a part")] {
        for starts_first in [true, false] {
            let stray = Stray::start(bytes);
            let mut this = Loop::new(&patient([stray.server.url()]));
            this.all_ready();
            let first = this.mux.try_lock("first", TTL).unwrap();
            this.mux.flush();
            let lease = acquired(this.done(1).remove(&first).unwrap());
            let started = starts_first.then(|| this.mux.try_lock("second", TTL).unwrap());
            stray.send();
            let second = match started {
                Some(second) => second,
                None => {
                    // It looked before the reply came.
                    this.mux.handle_events([]);
                    this.mux.try_lock("second", TTL).unwrap()
                }
            };
            this.mux.flush();
            match this.done(1).remove(&second) {
                Some(Done::Acquired(Err(error))) => {
                    let surplus = NodeOutcome::Protocol(ProtocolError::Surplus);
                    assert_eq!(outcomes(&error), [surplus], "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
            this.mux.abandon(lease);
        }
    }
}

#[test]
fn answer_that_nobody_was_there_to_read_says_nothing_of_its_servers_latency() {
    let servers = good(1);
    let redlock = all_ready(&patient(urls(&servers)));
    let latency = || redlock.nodes()[0].latency;
    let lock = redlock.try_lock(KEY, TTL).unwrap();
    let before = latency();
    drop(lock);
    soon("it was answered", || holds_no_key(&servers[0]));
    pause(Duration::from_millis(200));
    soon("it was read", || redlock.nodes()[0].in_flight == 0);
    assert_eq!(latency(), before);
}

// ---- Slow masters ----

/// How many bytes of commands a slow server takes in a second.
const SLOW_BYTES: f64 = 60_000.0;
const BUSY: Duration = Duration::from_secs(5);
/// How long a test waits for a slow server to be of use again.
const RECOVERY_MAX: Duration = Duration::from_secs(60);

/// It takes commands as a thin line would bring them.
fn slow() -> Scripted {
    Scripted::start(|peer| {
        let (watch, mut taken) = (Stopwatch::start(), 0.0);
        while let Some(command) = peer.read_command()? {
            // What it could have taken while there was nothing is lost.
            let now = watch.elapsed().as_secs_f64() * SLOW_BYTES;
            let length = command.iter().map(|argument| argument.len() + 6).sum::<usize>();
            taken = f64::max(taken, now) + length as f64;
            peer.pause(Duration::from_secs_f64((taken - now) / SLOW_BYTES))?;
            let reply = peer.normal_reply(&command);
            peer.reply(&reply)?;
        }
        Ok(())
    })
}

/// Takes and releases locks as fast as it can for a while.
fn keep_busy(redlock: &Redlock) {
    let watch = Stopwatch::start();
    while watch.elapsed() < BUSY {
        let _ = redlock.try_lock(KEY, TTL).map(drop);
    }
}

/// How long it takes until it is so, with another try every 10 ms.
fn tried_until(mut is_so: impl FnMut() -> bool) -> Duration {
    let watch = Stopwatch::start();
    while !is_so() {
        assert!(watch.elapsed() < RECOVERY_MAX, "not within {RECOVERY_MAX:?}");
        pause(Duration::from_millis(10));
    }
    watch.elapsed()
}

#[test]
#[ignore = "it measures: run it by name, with --nocapture and in a release build"]
fn late_server_after_a_busy_time_votes_again() {
    let node_timeout = Duration::from_millis(50);
    let client = |servers: &[&Scripted]| {
        let builder = patient(servers.iter().map(|server| server.url()));
        all_ready(&builder.node_timeout(node_timeout))
    };
    let servers = [slow(), Scripted::well_behaved(), Scripted::well_behaved()];
    let redlock = client(&[&servers[0], &servers[1], &servers[2]]);
    keep_busy(&redlock);
    let before = redlock.stats();
    let voted = tried_until(|| {
        let _ = redlock.try_lock(KEY, TTL).map(drop);
        matches!(redlock.nodes()[0].last_outcome, Some((NodeOutcome::Granted, _)))
    });
    println!("one slow of three, {} locks: it votes again after {voted:?}", before.acquired);

    let (slow, mut good) = ([slow(), slow()], good(3));
    let redlock = client(&[&slow[0], &slow[1], &good[0], &good[1], &good[2]]);
    keep_busy(&redlock);
    let before = redlock.stats();
    good.pop();
    let locked = tried_until(|| redlock.try_lock(KEY, TTL).is_ok());
    println!("two slow of five, {} locks, one gone: a lock after {locked:?}", before.acquired);
}

// ---- The handle ----

/// It ends the first connection after the handshake and one SET; the next ones work.
fn hangs_up_after_a_lock() -> Scripted {
    Scripted::start(|peer| {
        if peer.index() > 0 {
            return peer.serve_normally(None);
        }
        peer.serve_normally(Some(HANDSHAKE + 1))?;
        peer.pause(Duration::from_millis(50))
    })
}

#[test]
fn owed_release_is_waited_for_by_shutdown() {
    let servers: Vec<_> = (0..3).map(|_| hangs_up_after_a_lock()).collect();
    let redlock = all_ready(&patient(servers.iter().map(Scripted::url)));
    let lock = redlock.try_lock("owed", TTL).unwrap();
    let all_have_it = || servers.iter().all(|server| server.store().len() == 1);
    soon("all have it", all_have_it);
    // The connections end while nobody looks: the release is written into dead sockets.
    pause(Duration::from_millis(200));
    drop(lock);
    assert_eq!(redlock.shutdown(Duration::from_secs(5)), 0);
    let left = servers.iter().filter(|server| !server.store().is_empty());
    assert_eq!(left.count(), 0);
}

#[test]
fn connecting_again_and_again_does_not_stretch_the_connect_timeout() {
    let limit = Duration::from_millis(500);
    let hang_up = |peer: &mut Peer| peer.pause(Duration::from_millis(400));
    let servers: Vec<_> = (0..3).map(|_| Scripted::start(hang_up)).collect();
    let builder = Redlock::builder().nodes(servers.iter().map(Scripted::url));
    let (took, result) = timed(|| builder.connect_timeout(limit).connect());
    assert!(matches!(result, Err(ConnectError::Unavailable(_))));
    assert!(took < limit + Duration::from_millis(250), "{took:?}");
}

#[test]
fn server_that_only_errs_is_not_connected_to_in_a_loop() {
    let read_only = Scripted::start(|peer| {
        greet(peer)?;
        while let Some(command) = peer.read_command()? {
            let is_lock = matches!(command[0].as_slice(), b"SET" | b"EVAL");
            let reply = match is_lock {
                true => b"-READONLY You can't write against a read only replica.\r\n".to_vec(),
                false => peer.normal_reply(&command),
            };
            peer.reply(&reply)?;
        }
        Ok(())
    });
    let good: Vec<_> = (0..2).map(|_| Scripted::well_behaved()).collect();
    let holder = all_ready(&patient(good.iter().map(Scripted::url)));
    let _held = holder.try_lock("held", TTL).unwrap();
    let urls = [read_only.url(), good[0].url(), good[1].url()];
    let redlock = all_ready(&patient(urls));
    let (took, result) = timed(|| redlock.try_lock_for("held", TTL, Duration::from_secs(1)));
    assert!(result.is_err());
    // At once, then after 20 ms doubling to a second.
    let most = 9 + took.as_secs() as usize * 2;
    assert!(read_only.accepted() <= most, "{} in {took:?}", read_only.accepted());
}

/// It greets, says yes to what it is owed, and ends each connection inside its answer to a SET.
#[test]
fn slow_server_that_hangs_up_at_each_set_is_not_connected_to_in_a_loop() {
    let hangs_up = Scripted::start(|peer| {
        while let Some(command) = peer.read_command()? {
            if command[0] == b"SET" {
                return peer.reply(b"+O");
            }
            let reply = peer.normal_reply(&command);
            peer.reply(&reply)?;
        }
        Ok(())
    });
    let good = good(2);
    let redlock = all_ready(&patient([hangs_up.url(), good[0].url(), good[1].url()]));
    let (took, ()) = timed(|| {
        let watch = Stopwatch::start();
        while watch.elapsed() < Duration::from_secs(1) {
            drop(redlock.try_lock(KEY, TTL).unwrap());
            pause(Duration::from_millis(1));
        }
    });
    // The first, one at once, then after 20 ms doubling to a second.
    let most = 9 + took.as_secs() as usize * 2;
    let made = hangs_up.accepted();
    assert!((3..=most).contains(&made), "{made} connections in {took:?}");
}

/// A logger that panics, as one that writes to a closed pipe may, in the thread with this name.
struct Fragile;

const VICTIM: &str = "victim";

impl log::Log for Fragile {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let is_victim = std::thread::current().name() == Some(VICTIM);
        assert!(!is_victim || record.target() != "muxlock", "the pipe is closed");
    }

    fn flush(&self) {}
}

#[test]
fn slow_panicking_thread_that_polls_for_all_hands_the_poller_back() {
    log::set_logger(&Fragile).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let dying = hangs_up_after_a_lock();
    let good: Vec<_> = (0..2).map(|_| Scripted::well_behaved()).collect();
    let redlock = all_ready(&patient([dying.url(), good[0].url(), good[1].url()]));
    drop(redlock.try_lock("first", TTL).unwrap());
    let victim = redlock.clone();
    // After a while, a client looks at its connections first, and logs that one has ended.
    let thread = std::thread::Builder::new().name(VICTIM.to_owned()).spawn(move || {
        pause(Duration::from_millis(1_200));
        let _ = victim.try_lock("second", TTL);
    });
    assert!(thread.unwrap().join().is_err(), "the logger panicked");
    // Without a poller, only the silence limit of ten seconds would ever look at a reply.
    let (took, third) = timed(|| redlock.try_lock("third", TTL));
    assert!(third.is_ok());
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// R2, R25: what counts is the moment at which the result is taken, not that of the last reply.
#[test]
fn slow_quorum_that_nobody_takes_in_time_is_no_lock_and_no_extension() {
    let ttl = Duration::from_secs(1);
    let servers = good(3);
    let mut guest = Loop::new(&patient(urls(&servers)));
    guest.all_ready();

    guest.mux.try_lock(KEY, ttl).unwrap();
    guest.until_done();
    pause(ttl);
    match guest.mux.poll_done() {
        Some((_, Done::Acquired(Err(error)))) => assert!(error.is_expired(), "{error}"),
        other => panic!("{other:?}"),
    }

    let id = guest.mux.try_lock("second", ttl).unwrap();
    let lease = acquired(guest.done(1).remove(&id).expect("it has ended"));
    guest.mux.extend(lease, ttl);
    guest.until_done();
    pause(ttl * 2);
    match guest.mux.poll_done() {
        Some((_, Done::Extended(_, Err(error)))) => assert!(error.is_expired(), "{error}"),
        other => panic!("{other:?}"),
    }
}

// ---- The scripted servers themselves ----

/// A test that fails while a script waits for something else must end and say why.
#[test]
fn script_that_waits_elsewhere_ends_with_its_server() {
    let silent = Scripted::start(|peer| peer.hold());
    let addr = silent.addr();
    let (never, nothing) = mpsc::channel::<()>();
    let nothing = Mutex::new(nothing);
    let server = Scripted::start(move |peer| {
        if peer.index() > 0 {
            return peer.wait_for(&nothing);
        }
        let mut upstream = TcpStream::connect(addr)?;
        peer.upstream(&upstream)?;
        upstream.read_exact(&mut [0])
    });
    let clients = [0, 1].map(|_| TcpStream::connect(server.addr()).unwrap());
    soon("both wait", || server.accepted() == 2 && silent.accepted() == 1);
    // It panics if one of them goes on.
    let (took, ()) = timed(|| drop(server));
    assert!(took < SOON, "{took:?}");
    drop((clients, never));
}
