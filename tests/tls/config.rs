//! Files and settings for TLS are checked before anything is sent.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use muxlock::error::ConfigError;
use muxlock::settings::Tls;
use muxlock::{Builder, Redlock};
use rcgen::KeyPair;
use rustls::{ClientConfig, RootCertStore};
use testbed::Authority;

#[track_caller]
fn refused(builder: &Builder) -> String {
    match builder.config() {
        Err(error @ ConfigError::Tls { .. }) => error.to_string(),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it is accepted"),
    }
}

fn with(url: impl Into<String>) -> Builder {
    Redlock::builder().node(url)
}

#[test]
fn files_that_are_missing_or_wrong_are_named() {
    let authority = Authority::new();
    let files = authority.sign(&["127.0.0.1"]);
    let other = authority.sign(&["127.0.0.1"]);
    let text = authority.write("text", "sesame\n");
    let damaged = authority.write("damaged", "-----BEGIN CERTIFICATE-----\nsesame\n");
    let odd =
        authority.write("odd", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let encrypted = authority.write("encrypted", encrypted);
    let strange = authority.write("strange", KeyPair::generate().unwrap().serialize_pem());
    let ca = |path: &Path| format!("rediss://127.0.0.1?ca={}", path.display());
    let client = |cert: &Path, key: &Path| {
        let cert = cert.display();
        format!("rediss://127.0.0.1?verify=no&cert={cert}&key={}", key.display())
    };
    let nowhere = authority.file("nowhere");
    let long = authority.write("long", vec![b'\n'; 4 * 1024 * 1024 + 1]);
    let table = [
        (ca(&long), "long has more than 4194304 bytes"),
        (ca(&nowhere), "nowhere cannot be read: No such file"),
        (ca(&authority.file("")), "cannot be read: Is a directory"),
        (ca(&text), "text has no certificate as PEM (-----BEGIN CERTIFICATE-----)"),
        (ca(&damaged), "damaged is damaged: it is not PEM throughout"),
        (ca(&odd), "odd: certificate 1 cannot be a root"),
        (client(&nowhere, &files.key), "nowhere cannot be read: No such file"),
        (client(&files.cert, &nowhere), "nowhere cannot be read: No such file"),
        (client(&files.key, &files.key), "has no certificate as PEM"),
        (
            client(&files.cert, &files.cert),
            "has no private key as PEM (-----BEGIN PRIVATE KEY-----)",
        ),
        (client(&files.cert, &encrypted), "is encrypted; decrypt it with \"openssl pkey\""),
        (client(&files.cert, &other.key), "the key does not match the certificate"),
        (client(&files.cert, &strange), "the key does not match the certificate"),
        (client(&odd, &files.key), "the key or the certificate cannot be used"),
        (
            "rediss://h?verify=no&cert=c&key=-----BEGIN%20PRIVATE%20KEY-----sesame".into(),
            "cert=c cannot be read",
        ),
        (
            client(&files.cert, std::path::Path::new("sesame")),
            "key, the name of a file, cannot be read",
        ),
        ("rediss://h?ca=-----BEGIN%20X%0Asesame".into(), "ca names a file; Tls::new() takes PEM"),
        ("rediss://bad_host..x".into(), "bad_host..x:6379: the host is neither a DNS name nor"),
        ("rediss://h?verify=no&server_name=a%20b".into(), "the server_name is neither a DNS name"),
    ];
    for (url, words) in table {
        let text = refused(&with(&url));
        assert!(text.starts_with("cannot set up TLS: "), "{text}");
        assert!(text.contains(words), "{url}: {text}");
        assert!(!text.contains("sesame"), "{text}");
    }
    // Which node, and which parameter.
    let text = refused(&with("redis://10.0.0.1").node(ca(&nowhere)));
    assert!(text.contains("127.0.0.1:6379: ca=/"), "{text}");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let authority = Authority::new();
    let files = authority.sign(&["127.0.0.1"]);
    let read = |path| fs::read(path).unwrap();
    let tls = || Tls::new().ca_pem(read(&files.ca));
    let unused = refused(&with("redis://127.0.0.1").tls(tls()));
    assert!(unused.contains("no address begins with rediss://"), "{unused}");
    assert!(with("rediss://127.0.0.1").node("redis://127.0.0.2").tls(tls()).config().is_ok());

    let empty = refused(&with("rediss://127.0.0.1").tls(Tls::new().ca_pem("")));
    assert!(empty.contains("Tls::ca_pem has no certificate as PEM"), "{empty}");
    let other = authority.sign(&["127.0.0.1"]);
    let mixed = tls().client_cert_pem(read(&files.cert), read(&other.key));
    let mixed = refused(&with("rediss://127.0.0.1").tls(mixed));
    assert!(mixed.contains("the certificate of Tls::client_cert_pem: the key does not"), "{mixed}");

    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let own = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let own = Tls::unversioned_config(Arc::new(own));
    assert!(with("rediss://127.0.0.1?server_name=n").tls(own.clone()).config().is_ok());
    for (url, tls) in [
        ("rediss://127.0.0.1", own.clone().ca_pem("x")),
        ("rediss://127.0.0.1?verify=no", own.clone()),
        ("rediss://127.0.0.1?ca=/x", own.clone()),
    ] {
        let text = refused(&with(url).tls(tls));
        assert!(text.contains("Tls::unversioned_config replaces all settings"), "{text}");
    }
}

#[test]
fn nothing_shows_a_key() {
    let authority = Authority::new();
    let files = authority.sign(&["127.0.0.1"]);
    let key = fs::read_to_string(&files.key).unwrap();
    let line = key.lines().nth(1).unwrap();
    let tls = Tls::new().client_cert_pem(fs::read(&files.cert).unwrap(), key.clone());
    let builder = with("rediss://:sesame@127.0.0.1?verify=no").tls(tls.clone());
    let shown = format!("{tls:?} {builder:?} {:?}", builder.config().unwrap());
    assert!(!shown.contains(line) && !shown.contains("sesame"), "{shown}");
}
