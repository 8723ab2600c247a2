//! Why TLS fails, as the client reports it. Nothing is sent to a server that was not verified.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use muxlock::Redlock;
use muxlock::error::TlsErrorKind;
use muxlock::node::{NodeOutcome, Phase};
use muxlock::settings::Tls;
use muxlock::testing::Master;
use rcgen::date_time_ymd;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::{ClientConfig, RootCertStore};
use std::io::{Read, Write};
use testbed::scripted::never_accepting;
use testbed::{Authority, TTL, outcomes, patient, start_with_tls, tls_addr};

use crate::masters::{KEY, locks_and_unlocks};

/// What a lock on this one server fails with.
#[track_caller]
fn refused_by(redlock: &Redlock) -> (TlsErrorKind, String) {
    let error = redlock.try_lock(KEY, TTL).unwrap_err();
    match outcomes(&error)[..] {
        [NodeOutcome::Tls(kind)] => {
            let message = error.nodes()[0].message.as_deref().expect("it has words");
            assert!(error.to_string().contains(message), "{error}");
            let status = &redlock.nodes()[0];
            assert_eq!(status.last_message.as_deref(), Some(message));
            (kind, message.to_owned())
        }
        _ => panic!("{error}"),
    }
}

#[track_caller]
fn refused(url: &str) -> (TlsErrorKind, String) {
    refused_by(&patient([url]).build().unwrap_or_else(|error| panic!("{error}")))
}

/// The server has got no command but those of the test.
#[track_caller]
fn has_heard_nothing(master: &Master) {
    for command in ["client|setname", "client|id", "set", "eval", "auth", "select"] {
        assert_eq!(master.command_calls(command).unwrap(), 0, "{command}");
    }
}

#[test]
fn certificates_that_do_not_fit_are_told_apart() {
    let (authority, other) = (Authority::new(), Authority::new());
    let names = ["127.0.0.1"];
    let files = [
        authority.sign(&names),
        authority.sign_with(&names, |it| it.not_after = date_time_ymd(2020, 1, 1)),
        authority.sign_with(&names, |it| it.not_before = date_time_ymd(2999, 1, 1)),
        authority.sign(&["127.0.0.2", "redis-1"]),
    ];
    let masters = files.map(|files| start_with_tls(&files, &[]));
    let [good, expired, early, foreign] = &masters;
    let parameters = |url: String, more: &str| format!("{url}&{more}");
    let ca = |authority: &Authority, master| authority.trusting(master);
    let table = [
        (ca(&other, good), TlsErrorKind::Untrusted, "none of the roots"),
        (good.tls_url().unwrap(), TlsErrorKind::Untrusted, "none of the roots"),
        (ca(&authority, expired), TlsErrorKind::Expired, "expired"),
        (ca(&authority, early), TlsErrorKind::NotYetValid, "not valid yet"),
        (ca(&authority, foreign), TlsErrorKind::WrongName, "redis-1"),
        (
            parameters(ca(&authority, good), "server_name=redis-2"),
            TlsErrorKind::WrongName,
            "redis-2",
        ),
    ];
    for (url, kind, words) in table {
        let (found, message) = refused(&url);
        assert_eq!(found, kind, "{url}: {message}");
        assert!(message.contains(words), "{url}: {message}");
    }
    masters.iter().for_each(has_heard_nothing);
    locks_and_unlocks(&patient([ca(&authority, good)]).connect().unwrap());
}

/// As people make them: with the authority's own certificate, for no purpose of a server, and
/// without a name. The words say how to make another, and are those of the tool.
#[test]
fn certificates_of_no_use_are_told_with_what_to_do() {
    let authority = Authority::new();
    let own = authority.itself(&["127.0.0.1"]);
    let for_clients = authority.sign_with(&["127.0.0.1"], |it| {
        it.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    });
    let table = [
        (&own, TlsErrorKind::Certificate, "basicConstraints=CA:FALSE"),
        (&authority.sign(&[]), TlsErrorKind::WrongName, "subjectAltName=IP:127.0.0.1"),
        (&for_clients, TlsErrorKind::Certificate, "make a new one with serverAuth"),
    ];
    for (files, kind, words) in table {
        let master = start_with_tls(files, &[]);
        let url = format!("{}?ca={}", master.tls_url().unwrap(), files.ca.display());
        let (found, message) = refused(&url);
        assert_eq!(found, kind, "{message}");
        assert!(message.contains(words) && !message.contains("Other("), "{message}");
        has_heard_nothing(&master);
    }
}

#[test]
fn without_verification_any_certificate_will_do() {
    let authority = Authority::new();
    let files = authority.sign_with(&["other"], |it| it.not_after = date_time_ymd(2020, 1, 1));
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let master = start_with_tls(&files, &["--tls-protocols", protocol]);
        let url = format!("{}?verify=no", master.tls_url().unwrap());
        locks_and_unlocks(&patient([url]).connect().unwrap());
    }
}

/// With TLS 1.3 the server says so after the client took the handshake for complete.
#[test]
fn server_that_wants_another_client_certificate_says_so() {
    let (authority, other) = (Authority::new(), Authority::new());
    let files = authority.sign(&["127.0.0.1"]);
    let stranger = other.sign(&["me"]);
    let show = format!("&cert={}&key={}", stranger.cert.display(), stranger.key.display());
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let strict = ["--tls-auth-clients", "yes", "--tls-protocols", protocol];
        let master = start_with_tls(&files, &strict);
        let url = authority.trusting(&master);
        for url in [url.clone(), url + &show] {
            let (kind, message) = refused(&url);
            assert_eq!(kind, TlsErrorKind::ClientCertificate, "{protocol}: {message}");
            assert!(message.ends_with("\": check cert= and key="), "{message}");
        }
        has_heard_nothing(&master);
    }
}

#[test]
fn no_common_version_or_cipher_is_told() {
    let authority = Authority::new();
    let files = authority.sign(&["127.0.0.1"]);
    // Without forward secrecy: rustls has none of these.
    let old = ["--tls-protocols", "TLSv1.2", "--tls-ciphers", "AES128-SHA256"];
    let master = start_with_tls(&files, &old);
    let (kind, message) = refused(&authority.trusting(&master));
    assert_eq!(kind, TlsErrorKind::Version, "{message}");
}

/// A server that answers whatever comes first with these bytes.
fn answering(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read(&mut [0; 1_024]).and_then(|_| client.write_all(bytes));
            // The client ends it.
            let _ = client.read(&mut [0; 1_024]);
        }
    });
    format!("rediss://{addr}")
}

#[test]
fn bytes_that_are_no_tls_and_alerts_are_told_apart() {
    let authority = Authority::new();
    let table: [(&[u8], TlsErrorKind, &str); 5] = [
        (b"-ERR unknown command\r\n", TlsErrorKind::NotTls, "write redis://"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", TlsErrorKind::NotTls, "answered without TLS"),
        (&[21, 3, 1, 0, 2, 2, 70], TlsErrorKind::Version, "alert is \"protocol version\""),
        (&[21, 3, 3, 0, 2, 2, 40], TlsErrorKind::Version, "alert is \"handshake failure\""),
        (&[21, 3, 3, 0, 2, 2, 80], TlsErrorKind::Other, "alert is \"internal error\""),
    ];
    for (bytes, kind, words) in table {
        let url = format!("{}?ca={}", answering(bytes), authority.ca().display());
        let (found, message) = refused(&url);
        assert_eq!(found, kind, "{}: {message}", bytes.escape_ascii());
        assert!(message.contains(words), "{message}");
    }
}

fn roots(ca: &Path) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    Arc::new(roots)
}

/// A revocation list, which only the caller's own settings can have.
#[test]
fn revoked_certificate_is_refused() {
    let authority = Authority::new();
    let [revoked, good] = [(); 2].map(|()| start_with_tls(&authority.sign(&["127.0.0.1"]), &[]));
    let list = CertificateRevocationListDer::from(authority.revoke_first());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = roots(&authority.ca());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let verifier = verifier.with_crls([list]).build().unwrap();
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let config = builder.with_webpki_verifier(verifier).with_no_client_auth();
    let config = Tls::unversioned_config(Arc::new(config));
    let with = |master: &Master| patient([master.tls_url().unwrap()]).tls(config.clone());
    let (kind, message) = refused_by(&with(&revoked).build().unwrap());
    assert_eq!(kind, TlsErrorKind::Revoked, "{message}");
    has_heard_nothing(&revoked);
    locks_and_unlocks(&with(&good).connect().unwrap());
}

/// One address of a name has another server: the next address is tried, and never without TLS.
#[test]
fn name_with_an_impostor_among_its_addresses_is_followed_to_the_real_server() {
    let (authority, other) = (Authority::new(), Authority::new());
    let real = start_with_tls(&authority.sign(&["redis-1"]), &[]);
    let impostor = start_with_tls(&other.sign(&["redis-1"]), &[]);
    let addresses = vec![tls_addr(&impostor), tls_addr(&real)];
    let url = format!("rediss://redis-1?ca={}", authority.ca().display());
    let builder = patient([url]).resolver(move |_, _| Ok(addresses.clone()));
    let redlock = builder.connect().unwrap();
    locks_and_unlocks(&redlock);
    assert_eq!(redlock.stats().disconnected, 0, "it was the same attempt");
    has_heard_nothing(&impostor);

    let addresses = vec![tls_addr(&impostor)];
    let url = format!("rediss://redis-1?ca={}", authority.ca().display());
    let builder = patient([url]).resolver(move |_, _| Ok(addresses.clone()));
    let (kind, _) = refused_by(&builder.build().unwrap());
    assert_eq!(kind, TlsErrorKind::Untrusted);
}

/// Each address of a name is said to be where it is.
#[test]
fn second_address_that_does_not_accept_is_not_in_a_handshake() {
    let authority = Authority::new();
    let strange = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let strange = strange.strip_prefix("rediss://").unwrap().parse().unwrap();
    let full = never_accepting();
    let addresses = vec![strange, full.addr()];
    let url = format!("rediss://redis-1?ca={}", authority.ca().display());
    let builder = patient([url]).resolver(move |_, _| Ok(addresses.clone()));
    let redlock = builder.connect_timeout(Duration::from_millis(300)).build().unwrap();
    let error = redlock.try_lock(KEY, TTL).unwrap_err();
    let phase = if full.is_full() { Phase::Connect } else { Phase::Tls };
    assert_eq!(outcomes(&error), [NodeOutcome::TimedOut(phase)]);
}

/// What fails is tried again, with growing delays.
#[test]
fn server_whose_certificate_was_replaced_votes() {
    let authority = Authority::new();
    let names = ["127.0.0.1"];
    let expired = authority.sign_with(&names, |it| it.not_after = date_time_ymd(2020, 1, 1));
    let good = authority.sign(&names);
    let mut master = start_with_tls(&expired, &[]);
    let redlock = patient([authority.trusting(&master)]).build().unwrap();
    assert_eq!(refused_by(&redlock).0, TlsErrorKind::Expired);
    std::fs::copy(&good.cert, &expired.cert).unwrap();
    std::fs::copy(&good.key, &expired.key).unwrap();
    master.restart().unwrap();
    let lock = redlock.try_lock_for(KEY, TTL, Duration::from_secs(5)).unwrap();
    assert!(lock.unlock().unwrap().was_held());
}
