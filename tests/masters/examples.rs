//! The programs in `examples/`, as a reader of the README runs them. `cargo test` builds them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
#[cfg(target_os = "linux")]
use std::sync::mpsc::{self, Receiver};
#[cfg(target_os = "linux")]
use std::thread;
#[cfg(target_os = "linux")]
use std::time::Duration;

use muxlock::testing::Masters;
#[cfg(target_os = "linux")]
use testbed::PATIENT;
#[cfg(target_os = "linux")]
use testbed::timed;
use testbed::{Again, TTL, example, patient, soon};

const ALL: [&str; 8] = [
    "cancel",
    "critical_section",
    "fenced",
    "kinds",
    "leader",
    "long_job",
    "metrics",
    "own_event_loop",
];
/// How many samples of all masters may miss one of them.
const SAMPLES_MAX: usize = 20;

fn urls(masters: &Masters) -> Vec<String> {
    masters.urls().into_iter().map(|url| url + "?restart_guard=off").collect()
}

fn run(command: &mut Command) -> (Output, String, String) {
    let output = command.output().expect("the example is built");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

#[test]
fn without_arguments_each_says_how_to_run_it() {
    for name in ALL {
        let (output, out, err) = run(&mut example!(name));
        assert_eq!(output.status.code(), Some(2), "{name}: {out}{err}");
        assert!(err.starts_with(&format!("usage: {name} redis://")), "{err}");
    }
}

#[test]
fn slow_critical_section_and_long_job_run_to_their_end() {
    let masters = Masters::start(3).unwrap();
    let (output, out, err) = run(example!("critical_section").args(urls(&masters)));
    assert!(output.status.success() && out.ends_with("writing\n"), "{out}{err}");
    let (output, out, err) = run(example!("long_job").args(urls(&masters)));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.ends_with("done; held to the end: true\n"), "{out}");
}

#[test]
fn fenced_shows_writes_that_are_taken_and_refused() {
    let masters = Masters::start(3).unwrap();
    let (output, out, err) = run(example!("fenced").args(urls(&masters)));
    assert!(output.status.success(), "{out}{err}");
    let text = "newer holder, file: written\nnewer holder, value: written\n\
                older holder, file: refused\nolder holder, value: refused\n\
                the file has \"newer\"\n";
    assert_eq!(out, text);
}

#[test]
fn kinds_exclude_what_they_must_and_let_others_in() {
    let masters = Masters::start(3).unwrap();
    let (output, out, err) = run(example!("kinds").args(urls(&masters)));
    assert!(output.status.success(), "{out}{err}");
    let text = "readers: 2\nwriter beside them: refused\nreader beside the writer: refused\n\
                reader after the downgrade: granted\nheld to the end: true\n\
                another transfer: refused, because of account:7\nheld to the end: true\n\
                permits: smtp{permit}:0 smtp{permit}:1\nthird permit: refused\n\
                owner: worker-7\nthe same value again: refused\nheld to the end: true\n\
                another process: refused\nreleased by the inner guard: false\n\
                held to the end: true\n";
    assert_eq!(out, text);
    soon("no key is left", || masters.iter().all(|master| master.dbsize().unwrap() == 0));
}

/// The names that `docs/monitoring.md` has rules for.
#[test]
fn metrics_are_named_and_counted() {
    let masters = Masters::start(3).unwrap();
    let whole = |(output, out, _): &(Output, String, String)| {
        let is_up = |addr| out.contains(&format!("muxlock_node_up{{node=\"{addr}\"}} 1"));
        output.status.success() && masters.iter().all(|master| is_up(master.addr()))
    };
    // A sample waits long for a quorum only: on a busy machine, the last master may be missing.
    let mut samples = (0..SAMPLES_MAX).map(|_| run(example!("metrics").args(urls(&masters))));
    let (_, out, _) = samples.find(whole).expect("a sample of all masters");
    let value = |name: &str| {
        let said = out.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        said.unwrap_or_else(|| panic!("{name}: {out}")).parse::<f64>().expect(name)
    };
    for (name, expected) in [
        ("muxlock_acquire_seconds", 1.0),
        ("muxlock_hold_seconds", 1.0),
        ("muxlock_waiting", 0.0),
        ("muxlock_held", 0.0),
        ("muxlock_acquired_total", 1.0),
        ("muxlock_contended_total", 1.0),
        ("muxlock_unavailable_total", 0.0),
        ("muxlock_lost_total", 0.0),
        ("muxlock_extensions_failed_total", 0.0),
    ] {
        assert_eq!(value(name), expected, "{name}: {out}");
    }
    for master in masters.iter() {
        let of_node = |name| value(&format!("muxlock_node_{name}{{node=\"{}\"}}", master.addr()));
        assert_eq!(
            (of_node("up"), of_node("quarantined"), of_node("pending_releases")),
            (1.0, 0.0, 0.0)
        );
        assert!((0.0..1.0).contains(&of_node("latency_seconds")), "{out}");
    }
}

/// The alert of `docs/monitoring.md`: twice the masters that vote are no more than all of them.
#[test]
fn process_that_locks_nothing_causes_no_alert() {
    let pages = |urls: Vec<String>| {
        let (output, out, err) = run(example!("metrics").arg("idle").args(urls));
        assert!(output.status.success(), "{out}{err}");
        let of_nodes = |name: &str| -> Vec<bool> {
            let lines = out.lines().filter(|line| line.starts_with(name));
            lines.map(|line| line.ends_with(" 1")).collect()
        };
        let (up, barred) = (of_nodes("muxlock_node_up"), of_nodes("muxlock_node_quarantined"));
        assert_eq!((up.len(), barred.len()), (3, 3), "{out}");
        2 * up.iter().zip(barred).filter(|(up, barred)| **up && !*barred).count() <= 3
    };
    let mut masters = Masters::start(3).unwrap();
    assert!(!pages(urls(&masters)));
    masters[0].kill().unwrap();
    assert!(!pages(urls(&masters)));
    // It is just started, and quarantined; then it is gone.
    assert!(pages(masters.urls()));
    masters[1].kill().unwrap();
    assert!(pages(urls(&masters)));
}

/// On fresh masters, a newcomer reads in one line what to do.
#[test]
fn slow_newcomer_with_fresh_masters_is_told_what_to_do() {
    let masters = Masters::start(3).unwrap();
    let (output, _, err) = run(example!("critical_section").args(masters.urls()));
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<&str> = err.lines().collect();
    // The third may not have answered when the other two deny a quorum.
    let begin = lines[0].split("; a master").next().unwrap();
    let counts =
        ["2 of 3", "3 of 3"].map(|n| format!("Error: unavailable: {n} nodes gave no vote"));
    let (before, after) = (
        "; a master that may have forgotten a lock does not vote until that lock has expired: \
         try again in ",
        "s, or in development switch the guard off with restart_guard(RestartGuard::Off) or \
         ?restart_guard=off",
    );
    let hint = lines[0].strip_prefix(begin).and_then(|hint| hint.strip_prefix(before));
    let seconds = hint.and_then(|hint| hint.strip_suffix(after)).expect(&err);
    assert!((20.0..32.0).contains(&seconds.parse::<f64>().unwrap()), "{seconds}");
    assert!(counts.iter().any(|count| *count == begin), "{err}");
    assert_eq!(lines.len(), 4, "one for each node: {err}");
    for (node, line) in lines[1..].iter().enumerate() {
        let begin = format!("  node {node} {}: ", masters[node].addr());
        let said = line.strip_prefix(&begin).unwrap_or_else(|| panic!("{line}"));
        let is_waited_for = said.starts_with("quarantined for another ")
            && said.ends_with(": started a short time ago");
        assert!(is_waited_for || said == "no answer yet", "{line}");
    }
}

#[test]
fn cancel_waits_until_enter_is_pressed() {
    let masters = Masters::start(3).unwrap();
    let holder = patient(masters.urls()).connect().unwrap();
    let lock = holder.try_lock("report:daily", TTL).unwrap();
    let start = || {
        let mut command = example!("cancel");
        command.args(urls(&masters)).stdin(Stdio::piped());
        let mut waiting = Again::start(&mut command);
        let said = waiting.output();
        (waiting, said)
    };
    let (mut waiting, mut said) = start();
    assert_eq!(said.next().unwrap(), "waiting; press Enter to give up");
    waiting.take_input().expect("it is piped").write_all(b"\n").unwrap();
    assert_eq!(said.next().unwrap(), "gave up");
    assert!(waiting.status().success() && lock.is_valid());

    let (mut waiting, mut said) = start();
    assert!(said.next().is_some());
    assert!(lock.unlock().unwrap().was_held());
    let line = said.next().unwrap();
    assert!(line.starts_with("held for another "), "{line}");
    assert!(waiting.status().success());
    let are_free = || masters.iter().all(|master| master.dbsize().unwrap() == 0);
    soon("no key is left", are_free);
}

#[test]
fn own_event_loop_serves_a_client() {
    let masters = Masters::start(3).unwrap();
    let mut command = example!("own_event_loop");
    command.args(urls(&masters)).env("LISTEN", "127.0.0.1:0");
    let mut server = Again::start(&mut command);
    let line = server.output().next().expect("it says where it listens");
    let address = line.strip_prefix("listening on ").expect("it says where it listens");
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"invoice:42\n").unwrap();
    let answer = BufReader::new(client).lines().next().expect("there is an answer").unwrap();
    assert!(answer.starts_with("held until "), "{answer}");
}

/// An instance of the example `leader`, and its next lines.
#[cfg(target_os = "linux")]
struct Instance {
    process: Again,
    said: Receiver<String>,
}

#[cfg(target_os = "linux")]
impl Instance {
    fn start(masters: &Masters) -> Instance {
        let mut command = example!("leader");
        command.args(urls(masters));
        let mut process = Again::start(&mut command);
        let mut output = process.output();
        let (sender, said) = mpsc::channel();
        // It ends with the process.
        thread::spawn(move || {
            let _ = output.try_for_each(|line| sender.send(line));
        });
        Instance { process, said }
    }

    /// Waits for a line that begins like this; returns its rest, and how many others came before.
    fn says(&mut self, begin: &str) -> (String, usize) {
        let mut others = 0;
        loop {
            let line = self.said.recv_timeout(PATIENT).expect(begin);
            match line.strip_prefix(begin) {
                Some(rest) => return (rest.to_owned(), others),
                None => others += 1,
            }
        }
    }

    fn leads(&mut self) -> u64 {
        self.says("leads with token ").0.parse().expect("it is a token")
    }
}

/// A frozen leader can be between its check and its step: then it makes one more.
#[cfg(target_os = "linux")]
#[test]
fn slow_leader_is_followed_by_another_if_it_ends_or_freezes() {
    let masters = Masters::start(3).unwrap();
    let mut first = Instance::start(&masters);
    let mut tokens = vec![first.leads()];
    let mut second = Instance::start(&masters);
    second.says("follows");
    first.says("step with token ");
    drop(first);
    tokens.push(second.leads());
    second.says("step with token ");

    let mut third = Instance::start(&masters);
    third.says("follows");
    second.process.signal("STOP");
    tokens.push(third.leads());
    third.says("step with token ");
    // Lines from before it was frozen.
    second.said.try_iter().for_each(drop);
    second.process.signal("CONT");
    let (_, steps) = second.says("steps down: ");
    assert!(steps <= 1, "{steps} steps beside the next leader");
    second.says("follows");
    drop(third);
    tokens.push(second.leads());
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// It works on until it looks, whether it leads or waits.
#[cfg(target_os = "linux")]
#[test]
fn leader_that_gets_a_signal_ends_and_the_next_leads_at_once() {
    let masters = Masters::start(3).unwrap();
    let mut first = Instance::start(&masters);
    first.leads();
    let [mut second, mut third] = [(); 2].map(|()| Instance::start(&masters));
    for follower in [&mut second, &mut third] {
        follower.says("follows");
    }
    // A follower just ends.
    third.process.signal("TERM");
    assert!(third.process.status().success());
    first.says("step with token ");
    let (took, _) = timed(|| {
        first.process.signal("TERM");
        second.leads()
    });
    // Otherwise the lock would last for another two thirds of its TTL or longer.
    assert!(took < Duration::from_secs(3), "{took:?}");
    first.says("ends");
    assert!(first.process.status().success());
    second.says("step with token ");
}
