//! Fencing tokens at resources: a file, and a value in Redis. Each refuses a holder that writes
//! after its lock was over. Each control, without the check, shows what is lost otherwise.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use muxlock::{FencingToken, Redlock};
use testbed::{Again, Folder, PATIENT, all_ready, is_child, patient, re_execute, report_to_parent};

use crate::scene::{KEY, start};
use muxlock::testing::Masters;

/// How many holders are stopped with the check, and how many without it.
const RUNS_VARIABLE: &str = "MUXLOCK_FENCING_RUNS";
const RUNS: usize = 3;
const URLS_VARIABLE: &str = "MUXLOCK_TEST_URLS";
const FILE_VARIABLE: &str = "MUXLOCK_TEST_FILE";
/// The lock of the holder that is stopped.
const SHORT: Duration = Duration::from_millis(250);
const LONG: Duration = Duration::from_secs(20);
const VALUE: &str = "balance";

/// `KEYS` value; `ARGV` number, new value; or the number alone, to enter.
const WRITE: &str = r#"
local mark = redis.call("HGET", KEYS[1], "fence")
if mark and tonumber(mark) > tonumber(ARGV[1]) then return 0 end
redis.call("HSET", KEYS[1], "fence", ARGV[1])
if ARGV[2] then redis.call("HSET", KEYS[1], "value", ARGV[2]) end
return 1
"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    On,
    Off,
}

/// Something that several processes read and write.
trait Resource {
    fn read(&mut self) -> String;

    /// Writes, unless the check finds a greater number (F20). Returns whether it was written.
    fn write(&mut self, check: Check, number: FencingToken, text: &str) -> bool;

    /// Raises the mark alone (F22).
    fn enter(&mut self, number: FencingToken) -> bool;
}

/// The first line is the mark, the second one the text.
struct File(PathBuf);

impl File {
    fn parts(&self) -> (u64, String) {
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return (0, String::new()),
            Err(error) => panic!("{error}"),
        };
        let (mark, text) = text.split_once('\n').expect("the mark has a line of its own");
        (mark.parse().expect("a number"), text.to_owned())
    }

    /// Runs this while no other process does.
    fn alone<T>(&self, run: impl FnOnce() -> T) -> T {
        let lock = self.0.with_extension("lock");
        let is_free = || OpenOptions::new().write(true).create_new(true).open(&lock).is_ok();
        testbed::soon("the file is free", is_free);
        let result = run();
        fs::remove_file(lock).unwrap();
        result
    }

    fn replace(&self, mark: u64, text: &str) {
        let new = self.0.with_extension("new");
        fs::write(&new, format!("{mark}\n{text}")).unwrap();
        fs::rename(new, &self.0).unwrap();
    }
}

impl Resource for File {
    fn read(&mut self) -> String {
        self.parts().1
    }

    fn write(&mut self, check: Check, number: FencingToken, text: &str) -> bool {
        self.alone(|| {
            let (mark, _) = self.parts();
            let is_written = check == Check::Off || number.get() >= mark;
            if is_written {
                self.replace(number.get().max(mark), text);
            }
            is_written
        })
    }

    fn enter(&mut self, number: FencingToken) -> bool {
        self.alone(|| {
            let (mark, text) = self.parts();
            let is_entered = number.get() >= mark;
            if is_entered {
                self.replace(number.get(), &text);
            }
            is_entered
        })
    }
}

/// A hash with the fields `fence` and `value`.
struct Value(BufReader<TcpStream>);

impl Value {
    fn connect(url: &str) -> Value {
        let address = url.strip_prefix("redis://").expect("an address of a master");
        Value(BufReader::new(TcpStream::connect(address).unwrap()))
    }

    fn ask(&mut self, words: &[&str]) -> String {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let mut line = || {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        match line() {
            error if error.starts_with('-') => panic!("{error}"),
            length if length.starts_with('$') && length != "$-1" => line(),
            other => other,
        }
    }
}

impl Resource for Value {
    fn read(&mut self) -> String {
        self.ask(&["HGET", VALUE, "value"])
    }

    fn write(&mut self, check: Check, number: FencingToken, text: &str) -> bool {
        match check {
            Check::On => self.ask(&["EVAL", WRITE, "1", VALUE, &number.to_string(), text]) == ":1",
            Check::Off => {
                self.ask(&["HSET", VALUE, "value", text]);
                true
            }
        }
    }

    fn enter(&mut self, number: FencingToken) -> bool {
        self.ask(&["EVAL", WRITE, "1", VALUE, &number.to_string()]) == ":1"
    }
}

/// Masters, a client, and the resources of one test. The value is on the first master.
struct Scene {
    masters: Masters,
    redlock: Redlock,
    folder: Folder,
}

impl Scene {
    fn start(test: &str) -> Scene {
        let masters = start(3);
        let redlock = all_ready(&patient(masters.urls()));
        Scene { masters, redlock, folder: Folder::create(test) }
    }

    fn resources(&self) -> [Box<dyn Resource>; 2] {
        resources(self.folder.0.join("balance"), &self.masters[0].url())
    }

    /// The number of a lock of another client.
    fn number(&self) -> FencingToken {
        let lock = self.redlock.fenced().try_lock_for(KEY, LONG, PATIENT).unwrap();
        let number = lock.fencing_token();
        assert!(lock.unlock().unwrap().was_held());
        number
    }
}

fn resources(file: PathBuf, url: &str) -> [Box<dyn Resource>; 2] {
    [Box::new(File(file)), Box::new(Value::connect(url))]
}

/// Each line of its input is an order: takes the lock, or writes with the number of it, whatever
/// has happened since.
fn hold_and_write() {
    let urls = env::var(URLS_VARIABLE).expect("the parent names the masters");
    let file = env::var(FILE_VARIABLE).expect("the parent names the file");
    let redlock = all_ready(&patient(urls.split(' ')));
    let mut resources = resources(file.into(), urls.split(' ').next().expect("it has one"));
    let mut held = None;
    for order in io::stdin().lines() {
        let check = match order.unwrap().as_str() {
            "checked" => Check::On,
            "unchecked" => Check::Off,
            _ => {
                let lock = redlock.fenced().try_lock_for(KEY, SHORT, PATIENT).unwrap();
                report_to_parent(lock.fencing_token());
                held = Some(lock);
                continue;
            }
        };
        let number = held.as_ref().expect("it was ordered before").fencing_token();
        let written =
            resources.each_mut().map(|resource| resource.write(check, number, "of the stopped"));
        report_to_parent(format!("{written:?}"));
        held = None;
    }
}

/// F20, and the control without the check.
#[test]
fn slow_holder_stopped_past_its_ttl_is_refused_by_what_checks() {
    const TEST: &str = "slow_holder_stopped_past_its_ttl_is_refused_by_what_checks";
    if is_child(TEST) {
        return hold_and_write();
    }
    let runs = env::var(RUNS_VARIABLE).map_or(RUNS, |runs| runs.parse().expect("a count"));
    let scene = Scene::start(TEST);
    let mut resources = scene.resources();
    let mut child = Again::start(
        re_execute(TEST)
            .env(URLS_VARIABLE, scene.masters.urls().join(" "))
            .env(FILE_VARIABLE, scene.folder.0.join("balance"))
            .stdin(Stdio::piped()),
    );
    let mut orders = child.take_input().expect("it is piped");
    let mut told = child.lines();
    let mut refused = 0;
    for check in [Check::On, Check::Off].into_iter().cycle().take(2 * runs) {
        writeln!(orders, "lock").unwrap();
        let older: FencingToken = told.next().expect("it has the lock").parse().unwrap();
        child.signal("STOP");
        let lock = scene.redlock.fenced().try_lock_for(KEY, LONG, PATIENT).unwrap();
        let newer = lock.fencing_token();
        assert!(newer > older, "{newer} after {older}");
        for resource in &mut resources {
            assert!(resource.write(Check::On, newer, "of the other"));
        }
        writeln!(orders, "{}", if check == Check::On { "checked" } else { "unchecked" }).unwrap();
        child.signal("CONT");
        let written = told.next().expect("it has gone on");
        let left = resources.each_mut().map(|resource| resource.read());
        match check {
            Check::On => {
                assert_eq!(written, "[false, false]");
                assert_eq!(left, ["of the other", "of the other"]);
                refused += 1;
            }
            Check::Off => {
                assert_eq!(written, "[true, true]", "the control shows the harm");
                assert_eq!(left, ["of the stopped", "of the stopped"]);
            }
        }
        assert!(lock.unlock().unwrap().was_held());
    }
    drop(orders);
    assert!(child.status().success());
    println!("measured: {refused} of {runs} refused; without the check, {runs} writes were lost");
}

/// F22: an older holder writes between the read and the write of the newer one.
#[test]
fn write_between_anothers_read_and_write_is_refused_after_it_entered() {
    const TEST: &str = "write_between_anothers_read_and_write_is_refused_after_it_entered";
    let scene = Scene::start(TEST);
    for resource in &mut scene.resources() {
        for check in [Check::On, Check::Off] {
            assert!(resource.write(Check::On, scene.number(), "100"));
            let (older, newer) = (scene.number(), scene.number());
            // Without this, the numbers are checked all the same.
            if check == Check::On {
                assert!(resource.enter(newer));
            }
            let balance: i64 = resource.read().parse().unwrap();
            let is_taken = resource.write(Check::On, older, &(balance - 10).to_string());
            assert!(resource.write(Check::On, newer, &(balance + 5).to_string()));
            assert_eq!(resource.read(), "105");
            // The control: the withdrawal was accepted, and is gone.
            assert_eq!(is_taken, check == Check::Off);
            assert!(!resource.enter(older) && resource.enter(newer));
        }
    }
}
