//! Sentinels and their master over TLS, and the tool.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use muxlock::Redlock;
use muxlock::error::ConfigError;
use testbed::{all_ready, patient};

use crate::authority::Authority;
use crate::front::{Habit, front};
use crate::masters::{locks_and_unlocks, start, tls_addr};

/// A Sentinel without TLS, which names this master.
fn sentinel(master: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, port) = (listener.local_addr().unwrap(), master.port().to_string());
    let words = [
        ["ip", "127.0.0.1"],
        ["port", &port],
        ["role-reported", "master"],
        ["role-reported-time", "100000"],
        ["config-epoch", "1"],
        ["flags", "master"],
    ];
    let words = words.as_flattened().iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let answer = format!("*12\r\n{}", words.collect::<String>());
    thread::spawn(move || {
        for mut peer in listener.incoming().map_while(Result::ok) {
            let _ = peer.read(&mut [0; 1_024]);
            let _ = peer.write_all(answer.as_bytes());
            // Until the client ends it.
            let _ = peer.read(&mut [0; 1]);
        }
    });
    at
}

#[test]
fn sentinels_and_their_master_are_verified() {
    let [authority, other] = [(); 2].map(|()| Authority::new());
    let files = authority.sign(&["redis.test"]);
    let master = start(&files, &[]);
    let at = front(&files, sentinel(tls_addr(&master)), Habit::SaysGoodbye(usize::MAX));
    let url = |ca: &Authority, name: &str| {
        let ca = ca.ca().display().to_string();
        format!("rediss+sentinel://{at}/mymaster?ca={ca}{name}")
    };
    let named = "&server_name=redis.test";
    locks_and_unlocks(&all_ready(&patient([url(&authority, named)])));

    let error = Redlock::builder().node(url(&authority, "")).config().unwrap_err();
    assert!(matches!(&error, ConfigError::Tls { .. }), "{error}");
    assert!(error.to_string().contains("server_name is missing"), "{error}");
    for (ca, name) in [(&other, named), (&authority, "&server_name=other.test")] {
        let error = patient([url(ca, name)]).connect().unwrap_err().to_string();
        assert!(error.contains("no Sentinel reported where the master is"), "{error}");
        assert!(
            error.contains(&format!(": {at}: TLS failed (the server's certificate is ")),
            "{error}"
        );
    }
}

/// The tool asks over TLS too, and says why it cannot.
#[cfg(feature = "cli")]
#[test]
fn doctor_asks_over_tls() {
    let [authority, other] = [(); 2].map(|()| Authority::new());
    let master = start(&authority.sign(&["127.0.0.1"]), &[]);
    let doctor = |ca: &Authority| {
        let mut doctor = std::process::Command::new(env!("CARGO_BIN_EXE_muxlock"));
        let url = format!("{}?ca={}", master.tls_url().unwrap(), ca.ca().display());
        doctor.args(["doctor", "--allow", "marker", "--allow", "single", "--node", &url]);
        let doctor = doctor.args(["--restart-guard", "off"]).env("XDG_CONFIG_HOME", "/nonexistent");
        let output = doctor.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = doctor(&authority);
    assert!(code == Some(0) && said.contains("1 of 1 master can vote now"), "{said}");
    let (code, said) = doctor(&other);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error    tls"), "{said}");
    assert!(said.contains("TLS failed (the server's certificate is not trusted): none"), "{said}");
}
