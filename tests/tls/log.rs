//! What the log says of a client that verifies no server.

use std::sync::{Mutex, PoisonError};

use muxlock::Redlock;

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        said.push(format!("{}: {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

#[test]
fn each_start_of_a_client_that_verifies_nothing_is_warned_of() {
    log::set_logger(&Warnings).expect("there is no other one");
    log::set_max_level(log::LevelFilter::Warn);
    let urls = ["rediss://127.0.0.9:1?verify=no", "rediss://127.0.0.9:2", "redis://127.0.0.9:3"];
    let warning = "WARN: 127.0.0.9:1: verify=no: the client trusts any server that answers there";
    for starts in 1..=2 {
        let redlock = Redlock::builder().nodes(urls).build().unwrap();
        let _ = redlock.stats();
        drop(redlock);
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(said.iter().filter(|text| *text == warning).count(), starts, "{said:?}");
        assert!(!said.iter().any(|text| text.contains("127.0.0.9:2")), "{said:?}");
    }
}
