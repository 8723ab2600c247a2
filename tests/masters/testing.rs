//! `muxlock::testing`: what a test does to its masters is done when the call returns.

use std::path::Path;

use muxlock::testing::{Master, Masters, Value};
use testbed::soon;

fn start() -> Master {
    Master::start().unwrap_or_else(|error| panic!("{error}"))
}

fn set(master: &Master) {
    assert_eq!(master.query(&[b"SET", b"key", b"value"]).unwrap(), Value::Status("OK".into()));
}

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn stopped_master_has_ended_and_starts_again_without_data() {
    for is_frozen in [false, true] {
        let mut master = start();
        set(&master);
        let (port, pid) = (master.port(), master.pid());
        if is_frozen {
            master.freeze().unwrap();
        }
        master.stop().unwrap();
        assert!(!master.is_running());
        assert!(master.query(&[b"PING"]).is_err() && master.freeze().is_err());
        // There is nothing left to end.
        master.stop().unwrap();
        master.kill().unwrap();
        master.restart().unwrap();
        assert_eq!((master.port(), master.dbsize().unwrap()), (port, 0));
        assert_ne!(master.pid(), pid);
    }
}

#[test]
fn master_says_its_version() {
    let master = start();
    let Value::Bulk(info) = master.query(&[b"INFO", b"server"]).unwrap() else { panic!() };
    let [major, minor, patch] = master.version().unwrap();
    let line = format!("redis_version:{major}.{minor}.{patch}\r\n");
    assert!(String::from_utf8_lossy(&info).contains(&line), "{line}");
}

#[test]
fn thawed_master_answers_and_has_its_data() {
    let master = start();
    set(&master);
    master.freeze().unwrap();
    master.thaw().unwrap();
    assert_eq!(master.value_of(b"key").unwrap().as_deref(), Some(b"value".as_slice()));
}

#[cfg(target_os = "linux")]
#[test]
fn dropped_masters_have_ended() {
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    masters[2].freeze().unwrap();
    let pids: Vec<_> = masters.iter().map(Master::pid).collect();
    drop(masters);
    soon("the processes are gone", || !pids.iter().any(|pid| exists(*pid)));
}

#[test]
fn masters_that_cannot_be_started_are_an_error_with_what_they_wrote() {
    let error = Masters::start_with(1, &["--no-such-setting", "1"]).unwrap_err().to_string();
    assert!(error.contains("ended before it answered"), "{error}");
    assert!(error.contains("no-such-setting"), "{error}");
}
