//! Who holds a resource, asked by a user that may only look.

use muxlock::testing::Masters;
use testbed::{TTL, all_ready, documented_rights, patient, with_login};

use crate::cli::{muxlock, run, this_client};

/// The user of docs/masters.md is denied nothing that the tool needs.
#[test]
fn user_that_may_only_look_is_told_who_holds_a_lock() {
    let rights = documented_rights("viewer", "Two users for people");
    let masters = Masters::start(3).unwrap();
    for master in masters.iter() {
        let words = ["ACL", "SETUSER", "looker", "on", ">sesame", "~locks:*"];
        let words = words.into_iter().chain(rights.iter().map(String::as_str)).map(str::as_bytes);
        master.query(&words.collect::<Vec<_>>()).unwrap();
    }
    let locks = all_ready(&patient(masters.urls()).key_prefix("locks:"));
    let lock = locks.try_lock("report", TTL).unwrap();
    assert_eq!(locks.shutdown(TTL), 0, "all three have it");

    let login = |url: String| with_login(&url, "looker:sesame");
    let urls: Vec<String> = masters.urls().into_iter().map(login).collect();
    let mut command = muxlock(&["inspect", "report", "--prefix", "locks:"]);
    let (code, out, err) = run(command.env("MUXLOCK_NODES", urls.join(",")));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let text = format!("held by {}", lock.token().fingerprint());
    assert!(out.contains(&text) && !out.contains("unusable"), "{out}");
    assert!(out.contains(&this_client()), "{out}");
}
