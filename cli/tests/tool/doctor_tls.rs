//! What `muxlock doctor` says about certificates.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use testbed::{Authority, start_with_tls, tls_addr};

use crate::cli::{muxlock, run};

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The findings about TLS: number of the master, severity, why.
fn said(urls: &[String]) -> Vec<String> {
    let mut doctor = muxlock(&["doctor", "--json", "--read-only"]);
    let (code, out, err) = run(doctor.env("MUXLOCK_NODES", urls.join(" ")));
    assert_eq!(code, 1, "{err}");
    let said: Value = serde_json::from_str(&out).unwrap();
    let all = said["findings"].as_array().unwrap().iter();
    let tls = all.filter(|it| ["tls", "unreachable"].contains(&it["id"].as_str().unwrap()));
    let tls = tls.flat_map(|it| {
        let [severity, why] = ["severity", "why"].map(|name| it[name].as_str().unwrap());
        let masters = it["masters"].as_array().unwrap().iter();
        masters.map(move |address| {
            let address = address.as_str().unwrap();
            let master = urls.iter().position(|url| url.contains(address)).unwrap();
            format!("{master} {severity}: {why}")
        })
    });
    let mut tls: Vec<_> = tls.collect();
    tls.sort();
    tls
}

/// With TLS 1.3, the server says so after the handshake.
#[test]
fn missing_client_certificates_are_found() {
    let authority = Authority::new();
    let files = authority.sign(&["127.0.0.1"]);
    let masters = ["TLSv1.2", "TLSv1.3"].map(|protocol| {
        start_with_tls(&files, &["--tls-auth-clients", "yes", "--tls-protocols", protocol])
    });
    let why = "error: TLS failed (the server requires another client certificate): its alert is";
    let found = said(&masters.each_ref().map(|master| authority.trusting(master)));
    for (master, found) in found.iter().enumerate() {
        assert!(found.starts_with(&format!("{master} {why}")), "{found}");
    }
    assert_eq!(found.len(), 2);
}

#[test]
fn slow_ports_with_and_without_tls_are_told_apart() {
    let authority = Authority::new();
    let master = start_with_tls(&authority.sign(&["127.0.0.1"]), &[]);
    let plain = format!("rediss://{}?ca={}", master.addr(), authority.ca().display());
    let found = said(&[plain, format!("redis://{}", tls_addr(&master))]);
    let silent = "0 error: timed out (TLS handshake; does this port speak TLS?): longer than \
         connect_timeout (500ms)";
    assert_eq!(found[0], silent);
    // It closes or resets it.
    assert!(found[1].ends_with("write rediss:// if this port speaks TLS"), "{found:?}");
}

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
    let masters = files.map(|files| start_with_tls(&files, &[]));
    let mut urls = masters.each_ref().map(|master| authority.trusting(master));
    urls[5] = format!("{}?verify=no", masters[5].tls_url().unwrap());
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
    assert_eq!(said(&urls), expected);
}

/// The tool asks over TLS too, and says why it cannot.
#[test]
fn doctor_asks_over_tls() {
    let [authority, other] = [(); 2].map(|()| Authority::new());
    let master = start_with_tls(&authority.sign(&["127.0.0.1"]), &[]);
    let doctor = |ca: &Authority| {
        let url = ca.trusting(&master);
        let allowed = ["--allow", "marker", "--allow", "single", "--restart-guard", "off"];
        let mut doctor = muxlock(&["doctor", "--node", &url]);
        let (code, out, _) = run(doctor.args(allowed));
        (code, out)
    };
    let (code, said) = doctor(&authority);
    assert!(code == 0 && said.contains("1 of 1 master can vote now"), "{said}");
    let (code, said) = doctor(&other);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("error    tls"), "{said}");
    assert!(said.contains("TLS failed (the server's certificate is not trusted): none"), "{said}");
}
