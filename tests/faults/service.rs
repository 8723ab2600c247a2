//! The service of `examples/service`, as a process: with a master frozen under load, without
//! a quorum, and at its end.
//!
//! ```text
//! cargo build --all-features --example service
//! cargo test --all-features --test faults service -- --nocapture
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use muxlock::testing::{Masters, Value};
use testbed::{Again, Folder, PATIENT, Stopwatch, ask, example, heavy, pause, soon, within};

use crate::scene::{LONG, all_vote, start, trusting};

const CLIENTS: usize = 16;
/// Of each client: 400 requests per second together.
const PERIOD: Duration = Duration::from_millis(40);
const REQUESTS: usize = 40;
/// Healthy ones and ones with a frozen master in turn.
const ROUNDS: usize = 8;
const ACCOUNTS: usize = 64;
/// Each client, one after the other, asks so many times for one account.
const TOGETHER: usize = 5;
/// As long as requests wait in a healthy service, however busy the machine is.
const WAIT: Duration = Duration::from_secs(5);
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

struct Service {
    child: Again,
    address: String,
    ledger: Folder,
}

impl Service {
    fn start(test: &str, masters: &Masters, wait: Duration, stderr: Stdio) -> Service {
        let nodes: Vec<_> =
            masters.urls().iter().map(|it| format!("{it}?restart_guard=off")).collect();
        let ledger = Folder::create(test);
        let mut command = example!("service");
        command.env("MUXLOCK_NODES", nodes.join(" ")).env("LISTEN", "127.0.0.1:0");
        command.env("LEDGER", &ledger.0).env("WAIT_MS", wait.as_millis().to_string());
        // With a frozen server, one late answer would be a 503 (docs/choosing.md).
        command.env("MUXLOCK_NODE_TIMEOUT", "1s");
        let mut child = Again::start(command.stderr(stderr));
        let line = child.output().next().expect("it says where it listens");
        let address = line.strip_prefix("listening on ").expect("it says where it listens");
        Service { child, address: address.to_owned(), ledger }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        Client(BufReader::new(stream))
    }
}

/// A connection that is kept for all requests.
struct Client(BufReader<TcpStream>);

struct Answer {
    status: u16,
    retry_after: Option<u64>,
    body: String,
}

impl Client {
    fn send(&mut self, path: &str) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: service\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
    }

    #[track_caller]
    fn answer(&mut self) -> Answer {
        let mut lines = self.0.by_ref().lines().map(|line| line.expect("the request is answered"));
        let status = lines.next().expect("the request is answered");
        let headers: BTreeMap<String, String> = lines
            .take_while(|line| !line.is_empty())
            .filter_map(|line| {
                let (name, value) = line.split_once(": ")?;
                Some((name.to_owned(), value.to_owned()))
            })
            .collect();
        let number = |name: &str| headers.get(name)?.parse().ok();
        let mut body = vec![0; number("Content-Length").expect("it has a length") as usize];
        self.0.read_exact(&mut body).unwrap();
        Answer {
            status: status.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("it is HTTP"),
            retry_after: number("Retry-After"),
            body: String::from_utf8(body).unwrap().trim_end().to_owned(),
        }
    }

    #[track_caller]
    fn get(&mut self, path: &str) -> Answer {
        self.send(path);
        self.answer()
    }
}

/// An account, and the number that it had after a payment.
type Paid = (usize, u64);

#[track_caller]
fn pay(client: &mut Client, account: usize) -> Paid {
    let Answer { status, body, .. } = client.get(&format!("/accounts/{account}"));
    assert_eq!(status, 200, "{body}");
    (account, body.parse().expect("it is a number"))
}

/// Requests at a fixed rate, each with its time since it was due.
fn round(clients: &mut [Client]) -> Vec<(Paid, Duration)> {
    let watch = Stopwatch::start();
    let run = |at: usize, client: &mut Client| -> Vec<_> {
        let first = PERIOD * at as u32 / CLIENTS as u32;
        let request = |number: usize| {
            let due = first + PERIOD * number as u32;
            pause(due.saturating_sub(watch.elapsed()));
            let paid = pay(client, (at * REQUESTS + number) % ACCOUNTS);
            (paid, watch.elapsed() - due)
        };
        (0..REQUESTS).map(request).collect()
    };
    thread::scope(|scope| {
        let clients = clients.iter_mut().enumerate();
        let running: Vec<_> =
            clients.map(|(at, client)| scope.spawn(move || run(at, client))).collect();
        running.into_iter().flat_map(|it| it.join().unwrap()).collect()
    })
}

/// The median and the 99th percentile.
fn percentiles(times: impl Iterator<Item = Duration>) -> [Duration; 2] {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    [times[times.len() / 2], times[times.len() * 99 / 100]]
}

#[track_caller]
fn is_ready(probe: &mut Client) -> Answer {
    assert_eq!(probe.get("/healthz").status, 200);
    probe.get("/ready")
}

#[test]
fn slow_alone_service_pays_under_load_with_a_frozen_master() {
    let _turn = heavy();
    let masters = start(3);
    let service = Service::start("load", &masters, WAIT, Stdio::inherit());
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| service.client()).collect();
    let is_over = AtomicBool::new(false);
    let mut all = Vec::new();
    let mut figures = [const { Vec::new() }; 2];

    // One master is frozen in half of the time, and the service is ready all the time.
    thread::scope(|scope| {
        let probes = scope.spawn(|| {
            let mut probe = service.client();
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let answer = is_ready(&mut probe);
                assert_eq!(answer.status, 200, "{}", answer.body);
                count += 1;
                pause(PROBE_INTERVAL);
            }
            count
        });
        for number in 0..ROUNDS {
            let is_frozen = number % 2 == 1;
            if is_frozen {
                masters[0].freeze().unwrap();
            }
            let answers = round(&mut clients);
            if is_frozen {
                masters[0].thaw().unwrap();
            }
            let [p50, p99] = percentiles(answers.iter().map(|(_, time)| *time));
            let what = if is_frozen { "one frozen" } else { "healthy" };
            println!("measured: {what}: p50 {p50:.2?}, p99 {p99:.2?}");
            figures[usize::from(is_frozen)].push([p50, p99]);
            all.extend(answers.into_iter().map(|(paid, _)| paid));
        }
        is_over.store(true, Ordering::Relaxed);
        println!("ready at each of {} probes", probes.join().unwrap());
    });
    for (at, what) in ["p50", "p99"].into_iter().enumerate() {
        let median = |rounds: &Vec<[Duration; 2]>| percentiles(rounds.iter().map(|it| it[at]))[0];
        let [healthy, frozen] = figures.each_ref().map(median);
        let ratio = frozen.as_secs_f64() / healthy.as_secs_f64();
        println!("measured: {what} with one frozen / healthy: {ratio:.2}");
    }

    // Everybody wants the same account.
    masters[0].freeze().unwrap();
    thread::scope(|scope| {
        let pay = |client: &mut Client| (0..TOGETHER).map(|_| pay(client, 0)).collect::<Vec<_>>();
        let running: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(move || pay(client))).collect();
        all.extend(running.into_iter().flat_map(|it| it.join().unwrap()));
    });
    assert_eq!(all.len(), CLIENTS * (ROUNDS * REQUESTS + TOGETHER), "none is lost");
    // Two that write at the same time would return the same number.
    let mut numbers: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    all.into_iter().for_each(|(account, number)| numbers.entry(account).or_default().push(number));
    for (account, mut numbers) in numbers {
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "{account}: {numbers:?}");
        let written = fs::read_to_string(service.ledger.0.join(account.to_string())).unwrap();
        assert_eq!(written, numbers.len().to_string());
    }

    // Two are frozen: every request is refused with a reason, and the service is not ready.
    masters[1].freeze().unwrap();
    for (at, client) in clients.iter_mut().enumerate() {
        // Those for one account would wait for each other, and not for the masters.
        client.send(&format!("/accounts/{at}"));
    }
    let mut probe = service.client();
    for client in &mut clients {
        let Answer { status, retry_after, body } = client.answer();
        assert_eq!((status, retry_after), (503, Some(1)), "{body}");
        assert!(["unavailable: ", "timed out: "].iter().any(|it| body.starts_with(it)), "{body}");
    }
    let answer = is_ready(&mut probe);
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.body.contains(&masters[1].addr()), "{}", answer.body);
    println!("not ready: {}", answer.body);
    masters.iter().take(2).for_each(|master| master.thaw().unwrap());
    within(PATIENT, "it is ready again", || is_ready(&mut probe).status == 200);
    pay(&mut clients[0], 1);
}

#[test]
fn slow_service_that_ends_answers_every_request() {
    let masters = start(3);
    let mut service = Service::start("end", &masters, LONG, Stdio::inherit());
    let holder = all_vote(&trusting(masters.urls()));
    let lock = holder.try_lock("account:7", LONG).unwrap();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| service.client()).collect();
    clients.iter_mut().for_each(|client| client.send("/accounts/7"));
    let mut probe = service.client();
    let waiting = format!("muxlock_waiting {CLIENTS}.0");
    soon("all wait", || probe.get("/metrics").body.lines().any(|line| line == waiting));
    // They have all threads, and the probe is answered.
    assert_eq!(is_ready(&mut probe).status, 200);

    service.child.signal("TERM");
    for client in &mut clients {
        let Answer { status, body, .. } = client.answer();
        assert_eq!((status, body.as_str()), (503, "closed: this client acquires no more locks"));
    }
    assert!(service.child.status().success());
    assert!(lock.is_valid() && lock.unlock().unwrap().was_held());
    soon("no key is left", || masters.iter().all(|master| master.dbsize().unwrap() == 0));
}

#[test]
fn service_whose_handler_panics_releases_the_lock() {
    let masters = start(3);
    // It writes the panic there.
    let service = Service::start("panic", &masters, WAIT, Stdio::null());
    fs::write(service.ledger.0.join("13"), "no number").unwrap();
    let mut client = service.client();
    for _ in 0..2 * CLIENTS {
        let Answer { status, body, .. } = client.get("/accounts/13");
        assert_eq!((status, body.as_str()), (500, "the handler panicked"));
    }
    soon("no key is left", || masters.iter().all(|master| master.dbsize().unwrap() == 0));
    assert_eq!(pay(&mut client, 7), (7, 1));
}

#[test]
fn service_refuses_a_lock_that_another_holds() {
    let masters = start(3);
    let service = Service::start("refused", &masters, Duration::ZERO, Stdio::inherit());
    let holder = all_vote(&trusting(masters.urls()));
    let lock = holder.try_lock("account:7", LONG).unwrap();
    let mut client = service.client();
    soon("it is refused", || client.get("/accounts/7").status == 409);
    let answer = client.get("/accounts/7");
    assert!(answer.body.starts_with("contended: held on "), "{}", answer.body);
    assert_eq!(answer.retry_after, Some(1));
    assert_eq!(client.get("/accounts/x").status, 404);
    assert!(lock.unlock().unwrap().was_held());
}

/// The samples of a scrape.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name, value.parse().expect("it is a number")))
    });
    samples.collect()
}

/// Whether the first condition of the alert `LocksHaveNoQuorum` is met.
fn has_no_quorum(samples: &BTreeMap<&str, f64>) -> bool {
    let of_nodes = |name: &str| -> Vec<f64> {
        let named = samples.iter().filter(|(sample, _)| sample.starts_with(name));
        named.map(|(_, value)| *value).collect()
    };
    let (up, barred) = (of_nodes("muxlock_node_up{"), of_nodes("muxlock_node_quarantined{"));
    assert_eq!((up.len(), barred.len()), (3, 3), "{samples:?}");
    2 * up.iter().zip(barred).filter(|(up, barred)| **up > *barred).count() <= 3
}

#[test]
fn idle_service_causes_no_alert() {
    let masters = start(3);
    let service = Service::start("idle", &masters, WAIT, Stdio::inherit());
    let mut client = service.client();
    for _ in 0..3 {
        let text = client.get("/metrics").body;
        let samples = samples(&text);
        assert!(!has_no_quorum(&samples), "{text}");
        for (sample, value) in samples.iter().filter(|(sample, _)| sample.ends_with("_total")) {
            assert_eq!(*value, 0.0, "{sample}");
        }
        // As a server does with a connection that was idle for as long as its setting `timeout`.
        let kill = |master| match ask(master, &["CLIENT", "KILL", "TYPE", "normal"]) {
            Value::Integer(killed) => killed,
            other => panic!("{other:?}"),
        };
        // At least a quorum was connected.
        assert!(masters.iter().map(kill).sum::<i64>() >= 2);
    }
    (0..2).for_each(|at| masters[at].freeze().unwrap());
    assert!(has_no_quorum(&samples(&client.get("/metrics").body)), "the control shows nothing");
    (0..2).for_each(|at| masters[at].thaw().unwrap());
}

/// Every name of the page, the alerts and the dashboard is one of a sample. Metrics of `doctor` have
/// a test beside it, and scripts of the page write those of jobs.
#[test]
fn metrics_of_the_service_have_the_names_of_the_page() {
    let masters = start(3);
    let service = Service::start("names", &masters, WAIT, Stdio::inherit());
    let mut client = service.client();
    pay(&mut client, 7);
    let text = client.get("/metrics").body;
    let samples = samples(&text);
    let read =
        |file: &str| fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let page = read("docs/monitoring.md");
    let all =
        [page.clone(), read("packaging/alerts.yml"), read("packaging/dashboard.json")].concat();
    let words = all.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    let names: BTreeSet<_> = words.filter(|word| word.starts_with("muxlock_")).collect();
    assert!(names.len() > 20, "{names:?}");
    let of_scripts = ["{name=", "{resource="];
    for name in names.into_iter().filter(|name| !name.starts_with("muxlock_doctor_")) {
        if ["muxlock_job_", "muxlock_lock_"].iter().any(|begin| name.starts_with(begin)) {
            let writes = |label: &&str| page.contains(&format!("{name}{label}"));
            assert!(of_scripts.iter().any(writes), "{name}");
            continue;
        }
        let is_it = |sample: &&&str| {
            let rest = sample.strip_prefix(name).map(|rest| rest.split('{').next().unwrap());
            // A histogram is in the table without its endings.
            rest.is_some_and(|rest| rest.is_empty() || rest == "_bucket")
        };
        assert!(samples.keys().find(is_it).is_some(), "{name}: {text}");
    }
    let types = |of: &str| text.lines().filter(|line| line.ends_with(of)).count();
    assert_eq!((types(" counter"), types(" gauge"), types(" histogram")), (5, 6, 2), "{text}");
    assert_eq!(samples.keys().filter(|sample| sample.ends_with("_total")).count(), 5, "{text}");
    for name in ["muxlock_acquire_seconds", "muxlock_hold_seconds"] {
        let begin = format!("{name}_bucket{{le=\"");
        let buckets = text.lines().filter_map(|line| line.strip_prefix(&begin)?.split_once("\"} "));
        let buckets: Vec<(f64, u64)> = buckets
            .map(|(le, count)| (le.replace("+Inf", "inf").parse().unwrap(), count.parse().unwrap()))
            .collect();
        assert!(buckets.is_sorted() && buckets.len() > 20, "{text}");
        assert_eq!(buckets[0], (1.024e-6, 0));
        assert_eq!(*buckets.last().unwrap(), (f64::INFINITY, 1));
        assert_eq!(samples[format!("{name}_count").as_str()], 1.0);
        // One grant: its time is between the bounds of the bucket in which the count rises.
        let sum = samples[format!("{name}_sum").as_str()];
        let at = buckets.iter().position(|(_, count)| *count == 1).unwrap();
        assert!(buckets[at - 1].0 < sum && sum <= buckets[at].0, "{text}");
    }
}
