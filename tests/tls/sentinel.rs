//! Sentinels and their master over TLS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use muxlock::Redlock;
use muxlock::error::ConfigError;
use testbed::{Authority, all_ready, patient, start_with_tls, tls_addr};

use crate::front::{Habit, front};
use crate::masters::locks_and_unlocks;

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
    let master = start_with_tls(&files, &[]);
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
