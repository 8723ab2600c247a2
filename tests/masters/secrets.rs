//! Whatever form an address has, and wherever in it a password stands: no output has it.

use std::sync::{Mutex, Once};
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use muxlock::settings::RestartGuard;
use muxlock::{Builder, Redlock, Standalone};
use testbed::secrets::{FORMS, check};
use testbed::{TTL, alone};

/// Each piece has the mark that [`check`] looks for.
const PASSWORDS: [&str; 13] = [
    "zqx",
    "zqx=",
    "zqx zqx",
    "zqx,zqx",
    "zqx;zqx",
    "zqx:zqx",
    "zqx@zqx",
    "zqx/zqx@zqx",
    "zqx?zqx=zqx@zqx",
    "zqx#zqx",
    "zqx%zqx",
    "zqx&zqx=zqx",
    "1zqx\u{e9}\"'\\zqx",
];

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn addresses() -> impl Iterator<Item = String> {
    let passwords = || PASSWORDS.iter().flat_map(|raw| [(*raw).to_owned(), encoded(raw)]);
    FORMS
        .iter()
        .flat_map(move |form| passwords().map(move |password| form.replace("{}", &password)))
}

static RECORDS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        RECORDS.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// What a program may show of a builder, and of all that is made from it.
fn shown(builder: Builder) -> Vec<String> {
    let builder = builder
        .restart_guard(RestartGuard::Off)
        .connect_timeout(Duration::from_millis(2))
        .node_timeout(Duration::from_millis(1));
    let mut shown = vec![format!("{builder:?}")];
    match builder.config() {
        Err(error) => shown.push(format!("{error} {error:?}")),
        Ok(config) => {
            let standalone = Standalone::new(config.clone()).unwrap();
            shown.push(format!("{config:?} {standalone:?}"));
        }
    }
    match builder.build() {
        Err(error) => shown.push(format!("{error} {error:?}")),
        Ok(redlock) => {
            let error = redlock.try_lock("resource", TTL).unwrap_err();
            shown.push(format!("{error} {error:?} {:?}", redlock.nodes()));
            shown.push(format!("{redlock:?}"));
            let inspection = redlock.inspect("resource").unwrap();
            shown.push(format!("{inspection} {inspection:?}"));
        }
    }
    shown
}

#[test]
fn no_form_of_an_address_shows_its_password() {
    alone("no_form_of_an_address_shows_its_password", || {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| log::set_logger(&Logger).expect("there is no other logger"));
        log::set_max_level(LevelFilter::Trace);
        for address in addresses() {
            let alone = shown(Redlock::builder().node(&address));
            let second = shown(Redlock::builder().node("redis://127.0.0.1:2").node(&address));
            let listed = shown(Redlock::builder().nodes_from(&address));
            for text in alone.into_iter().chain(second).chain(listed) {
                check(&address, &text);
            }
            for record in RECORDS.lock().unwrap().drain(..) {
                check(&address, &record);
            }
        }
    });
}
