//! Credentials that change while a client runs.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use muxlock::Redlock;
use muxlock::node::NodeOutcome;
use muxlock::settings::Credentials;
use muxlock::testing::Masters;
use testbed::{TTL, all_ready, ask, is_older_than, patient, ready, soon};

/// What a provider of tokens would say, and how often each node was asked for.
#[derive(Default)]
struct Provider {
    token: &'static str,
    asked: BTreeMap<String, usize>,
}

/// The user's passwords change as `docs/masters.md` says, and its connections end.
fn rotate(masters: &Masters, new: &str, old: &str) {
    for master in masters {
        ask(master, &["ACL", "SETUSER", "locker", &format!(">{new}"), &format!("<{old}")]);
        ask(master, &["CLIENT", "KILL", "USER", "locker"]);
    }
}

fn locks(redlock: &Redlock) -> bool {
    redlock.try_lock("rotated", TTL).is_ok_and(|lock| lock.unlock().unwrap().was_held())
}

/// R32
#[test]
fn credentials_are_asked_for_at_each_connection() {
    if is_older_than([6, 0, 0], "credentials_are_asked_for_at_each_connection", "ACL") {
        return;
    }
    let masters = Masters::start(3).unwrap();
    for master in &masters {
        ask(master, &["ACL", "SETUSER", "locker", "on", ">zqxone", "~*", "&*", "+@all"]);
    }
    let provider = Arc::new(Mutex::new(Provider { token: "zqxone", ..Provider::default() }));
    let asked = Arc::clone(&provider);
    let credentials = move |node: &str| {
        let mut provider = asked.lock().unwrap();
        *provider.asked.entry(node.to_owned()).or_default() += 1;
        match provider.token {
            "" => Err(io::Error::other("no token today")),
            token => Ok(Credentials::new(token).user("locker")),
        }
    };
    let mut urls = masters.urls();
    // Its own credentials count.
    urls[2] = testbed::with_login(&urls[2], "default:any");
    let builder = patient(urls).credentials(credentials);
    assert!(!format!("{builder:?} {:?}", Credentials::new("zqx")).contains("zqx"));
    let redlock = all_ready(&builder);
    assert!(locks(&redlock));
    let asked = || provider.lock().unwrap().asked.clone();
    let each = |times| [0, 1].map(|i| (masters[i].addr(), times)).into_iter().collect();
    assert_eq!(asked(), each(1));

    // A connection that ends asks for new ones.
    provider.lock().unwrap().token = "zqxtwo";
    rotate(&masters, "zqxtwo", "zqxone");
    soon("all are connected with the new token", || locks(&redlock) && ready(&redlock) == 3);
    assert_eq!(asked(), each(2));

    // Without an answer there is no vote until there is one.
    provider.lock().unwrap().token = "";
    rotate(&masters, "zqxthree", "zqxtwo");
    let why = "no credentials for a connection: no token today";
    soon("it is said why", || {
        let error = redlock.try_lock("rotated", TTL).err().map(|it| it.to_string());
        error.is_some_and(|text| text.matches(why).count() == 2 && !text.contains("zqx"))
    });
    let failed = redlock.nodes()[0].last_failure;
    assert_eq!(failed, Some(NodeOutcome::NoCredentials));
    provider.lock().unwrap().token = "zqxthree";
    soon("all are connected again", || locks(&redlock) && ready(&redlock) == 3);

    let panics = patient([masters[0].url()]).credentials(|_| panic!("odd"));
    let error = panics.connect().unwrap_err().to_string();
    assert!(error.contains("the function for credentials panicked"), "{error}");
}
