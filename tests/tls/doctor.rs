//! What `muxlock doctor` says about certificates.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::authority::Authority;
use crate::masters::{start, trusting};

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[test]
fn certificates_that_end_soon_are_found() {
    let authority = Authority::new();
    let now = fs::metadata(authority.ca()).unwrap().modified().unwrap();
    // So long that the test is over before the next whole day.
    let days = [0, 6, 7, 29, 30, 0];
    let files = days.map(|days| {
        let end = now + days * DAY + HOUR;
        authority.sign_with(&["127.0.0.1"], |params| params.not_after = end.into())
    });
    let masters = files.map(|files| start(&files, &[]));
    let mut urls = masters.each_ref().map(|master| trusting(&authority, master));
    urls[5] = format!("{}?verify=no", masters[5].tls_url().unwrap());
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_muxlock"));
    doctor.args(["doctor", "--json", "--read-only"]).env("MUXLOCK_NODES", urls.join(" "));
    let out = doctor.output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stderr));
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    let all = said["findings"].as_array().unwrap().iter();
    let tls = all.filter(|it| it["id"] == "tls").map(|it| {
        let [address, severity, why] =
            ["master", "severity", "why"].map(|name| it[name].as_str().unwrap());
        let master = urls.iter().position(|url| url.contains(address)).unwrap();
        format!("{master} {severity}: {why}")
    });
    let mut tls: Vec<_> = tls.collect();
    tls.sort();
    let expires =
        |master, severity, when| format!("{master} {severity}: its certificate expires {when}");
    let expected = [
        expires(0, "error", "in less than a day: renew it"),
        expires(1, "error", "in 6 days: renew it"),
        expires(2, "warning", "in 7 days: renew it"),
        expires(3, "warning", "in 29 days: renew it"),
        "5 error: its address says verify=no, so another server in between can pretend to be it: \
         write ca= with the root of its certificate"
            .to_owned(),
    ];
    assert_eq!(tls, expected, "{said:#}");
}
