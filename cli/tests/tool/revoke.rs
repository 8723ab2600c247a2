//! `muxlock revoke` on real masters: who learns what, and when the next holder comes.

use std::process::Command;
use std::time::Duration;

use muxlock::settings::{Heal, RestartGuard};
use muxlock::testing::{Master, Masters, Value};
use muxlock::{KeepAlive, KeptLock, LockGuard, LossCause, Redlock};
use testbed::{TTL, all_ready, patient, pause, soon, with_login};

use crate::cli::{muxlock, run};
use crate::doctor::LOCKER;

const KEY: &str = "deploy";
const SHORT: Duration = Duration::from_secs(6);
/// By how much the quarantine of a new master is longer, and its age is rounded.
const QUARANTINE_MORE: Duration = Duration::from_millis(2_200);

fn start() -> (Masters, Redlock) {
    let masters = Masters::start(3).unwrap();
    let redlock = all_ready(&patient(masters.urls()));
    (masters, redlock)
}

/// On all masters, not just on a quorum.
fn take(redlock: &Redlock, ttl: Duration) -> LockGuard {
    let lock = redlock.try_lock(KEY, ttl).unwrap();
    assert_eq!(redlock.shutdown(TTL), 0);
    lock
}

fn revoke(urls: &[String], args: &[&str]) -> (i32, String, String) {
    let patient = ["--node-timeout", "20s", "--connect-timeout", "10s", "--restart-guard", "off"];
    let mut command = muxlock(&["revoke", KEY]);
    run(command.args(patient).args(args).env("MUXLOCK_NODES", urls.join(",")))
}

fn fingerprint(lock: &LockGuard) -> String {
    lock.token().fingerprint().to_string()
}

/// The holder learns it long before its lock ends, and the next one gets it only then.
#[test]
fn slow_revoked_holder_is_told_and_the_next_one_waits_for_its_end() {
    let (masters, redlock) = start();
    let urls = masters.urls();
    let other = all_ready(&patient(masters.urls()));
    let plain = take(&redlock, SHORT);
    let holder = fingerprint(&plain);
    let (code, out, err) = revoke(&urls, &["--holder", &holder]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let last = out.lines().last().unwrap();
    let text = format!("{KEY} was taken from {holder} on 3 of 3; free for others in ");
    assert!(last.starts_with(&text) && last.ends_with(" s at the latest"), "{out}");
    assert!(plain.is_valid(), "it does not know yet");
    let next = other.try_lock_for(KEY, SHORT, TTL).unwrap();
    assert!(!plain.is_valid(), "one holder at a time");
    assert!(!plain.unlock().is_ok_and(|released| released.was_held()), "its release tells");
    assert!(next.is_valid() && next.unlock().unwrap().was_held(), "that release spared it");

    let kept = take(&redlock, SHORT).keep_alive(KeepAlive::default()).unwrap();
    let holder = kept.token().fingerprint().to_string();
    assert_eq!(revoke(&urls, &["--holder", &holder]).0, 0);
    let loss = kept.wait_for_loss(TTL).expect("it is told at its next renewal");
    assert_eq!(loss.cause, LossCause::Gone);
    assert!(other.try_lock(KEY, SHORT).unwrap_err().is_contended(), "not before its end");
    let next = other.try_lock_for(KEY, SHORT, TTL).unwrap();
    assert!(!kept.is_valid() && next.is_valid());
}

/// The control: what the warning says does happen.
#[test]
fn slow_with_now_there_may_be_two_holders() {
    let (masters, redlock) = start();
    let urls = masters.urls();
    let other = all_ready(&patient(masters.urls()));
    let plain = take(&redlock, 2 * SHORT);
    let holder = fingerprint(&plain);
    // The timeouts of this machine's tests are no use for a time to live.
    let mut command = muxlock(&["revoke", KEY, "--holder", &holder, "--now"]);
    let quick = ["--node-timeout", "500ms", "--restart-guard", "off"];
    let (code, out, err) = run(command.args(quick).env("MUXLOCK_NODES", urls.join(",")));
    assert_eq!(code, 0, "{out}{err}");
    assert!(err.contains(&format!("takes the lock from {holder}, which can use it for another ")));
    let next = other.try_lock_for(KEY, SHORT, TTL).unwrap();
    assert!(plain.is_valid() && next.is_valid(), "two at once");
}

fn healing(masters: &Masters) -> (Redlock, KeptLock) {
    let builder = patient(masters.urls()).restart_guard(RestartGuard::Uptime).max_ttl(SHORT);
    pause(SHORT + QUARANTINE_MORE);
    let redlock = all_ready(&builder.heal(Heal::On));
    let kept = take(&redlock, SHORT).keep_alive(KeepAlive::default()).unwrap();
    (redlock, kept)
}

fn have(masters: &Masters, value: &[u8]) -> usize {
    let has = |master: &&Master| master.value_of(KEY.as_bytes()).unwrap().as_deref() == Some(value);
    masters.iter().filter(has).count()
}

/// A holder that sets a missing key again learns its loss all the same; deleting does not help.
#[test]
fn slow_holder_that_heals_loses_with_now() {
    let masters = Masters::start(3).unwrap();
    let (_redlock, kept) = healing(&masters);
    let token = kept.token().as_bytes().to_vec();
    for master in masters.iter() {
        master.query(&[b"DEL", KEY.as_bytes()]).unwrap();
    }
    soon("the control: it has set its key again", || have(&masters, &token) == 3);
    assert!(!kept.is_lost());

    let mut command = muxlock(&["revoke", KEY, "--now", "--restart-guard", "off"]);
    let holder = kept.token().fingerprint().to_string();
    command.args(["--holder", &holder]).env("MUXLOCK_NODES", masters.urls().join(" "));
    let (code, out, _) = run(&mut command);
    assert_eq!(code, 0, "{out}");
    let loss = kept.wait_for_loss(SHORT).expect("it is told at its next renewal");
    assert_eq!(loss.cause, LossCause::Gone);
    soon("the keys are gone soon", || masters.iter().all(|it| it.dbsize().unwrap() == 0));
    let other = all_ready(&patient(masters.urls()));
    assert!(other.try_lock(KEY, SHORT).unwrap().unlock().unwrap().was_held());
}

#[test]
fn nothing_is_revoked_that_is_not_named_or_not_held() {
    let (masters, redlock) = start();
    let urls = masters.urls();
    let (code, out, err) = revoke(&urls, &[]);
    let text = "muxlock: refused: no holder has a quorum: free (";
    assert!((code, out.as_str()) == (1, "") && err.starts_with(text), "{err}");
    let lock = take(&redlock, TTL);
    let holder = fingerprint(&lock);
    let (code, out, err) = revoke(&urls, &[]);
    let text =
        format!("muxlock: refused: pass --holder '{holder}', the holder that inspect shows\n");
    assert_eq!((code, out.as_str(), err), (1, "", text));
    let (code, out, _) = revoke(&urls, &["--holder", "00000000"]);
    let text = "another holder has it\n00000000 does not hold deploy\n";
    assert!(code == 1 && out.ends_with(text), "{out}");
    for (wrong, text) in [("0123456789", "it has 10 bytes"), ("\\q", "no escaped byte")] {
        let (code, _, err) = revoke(&urls, &["--holder", wrong]);
        assert!(code == 2 && err.contains(text), "{err}");
    }
    assert!(lock.unlock().unwrap().was_held(), "it was left alone");
}

/// Values of other Redlock clients: binary ones, short ones, and those that never expire.
#[test]
fn values_of_other_makes_are_found_by_what_inspect_shows() {
    let (masters, _redlock) = start();
    let urls = masters.urls();
    let values: [&[u8]; 3] =
        [b"\x00\xff\r\n\\'12and some more bytes", b"short", b"0123456789abcdef01234567"];
    for value in values {
        for master in masters.iter() {
            master.query(&[b"SET", KEY.as_bytes(), value]).unwrap();
        }
        let (_, out, _) = run(muxlock(&["inspect", KEY, "--json"])
            .args(["--restart-guard", "off"])
            .env("MUXLOCK_NODES", urls.join(",")));
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        let holder = json["holder"].as_str().unwrap();
        let (code, out, _) = revoke(&urls, &["--holder", holder]);
        assert!(code == 1 && out.contains("its key never expires: use --now\n"), "{out}");
        assert_eq!(have(&masters, value), 3);
        let (code, out, _) = revoke(&urls, &["--holder", holder, "--now", "--max-ttl", "3s"]);
        assert!(code == 0 && out.contains("; free for others in 3.0 s"), "{out}");
        assert!(
            masters
                .iter()
                .all(|master| (1..=3_000).contains(&master.pttl(KEY.as_bytes()).unwrap()))
        );
    }
}

/// The user of the locks may do it, and the key has the prefix.
#[test]
fn rights_of_the_locks_are_enough() {
    let masters = Masters::start(3).unwrap();
    for master in masters.iter() {
        let words = ["ACL", "SETUSER", "locker", "on", ">sesame", "~app:*"];
        let words = words.into_iter().chain(LOCKER.split(' ')).map(str::as_bytes);
        master.query(&words.collect::<Vec<_>>()).unwrap();
    }
    let login = |url: String| with_login(&url, "locker:sesame") + "/0";
    let urls: Vec<String> = masters.urls().into_iter().map(login).collect();
    let redlock = all_ready(&patient(urls.clone()).key_prefix("app:"));
    let lock = take(&redlock, TTL);
    let (code, out, _) = revoke(&urls, &["--prefix", "app:", "--holder", &fingerprint(&lock)]);
    assert!(code == 0 && !out.contains("sesame"), "{out}");
    assert!(!lock.unlock().is_ok_and(|released| released.was_held()));
}

/// The server's error does not say which right is missing.
#[test]
fn missing_right_is_named() {
    let (masters, redlock) = start();
    let lock = take(&redlock, TTL);
    let holder = fingerprint(&lock);
    let user = |rights: &[&str]| {
        for master in masters.iter() {
            let words = ["ACL", "SETUSER", "viewer", "reset", "on", ">sesame", "~*"];
            let words: Vec<_> = words.iter().chain(rights).map(|word| word.as_bytes()).collect();
            assert!(!matches!(master.query(&words).unwrap(), Value::Error(_)), "{rights:?}");
        }
    };
    let login = |url: String| url.replace("redis://", "redis://viewer:sesame@");
    let urls: Vec<String> = masters.urls().into_iter().map(login).collect();
    user(&["+eval", "+get", "+pttl", "+info"]);
    for now in [&[][..], &["--now"]] {
        let (code, out, _) = revoke(&urls, &[&["--holder", &holder], now].concat());
        assert_eq!(code, 3, "{out}");
        assert_eq!(out.matches("  the user \"viewer\" lacks +set\n").count(), 3, "{out}");
    }
    // Nothing is to be set, so nothing is missing.
    let (code, out, _) = revoke(&urls, &["--holder", "00000000"]);
    assert!(code == 1 && out.matches("another holder has it").count() == 3, "{out}");
    user(&["+eval", "+get", "+pttl", "+info", "+set"]);
    assert_eq!(revoke(&urls, &["--holder", &holder]).0, 0);

    let odd = Master::start_with(&["--rename-command", "SET", "HIDDEN"]).unwrap();
    odd.query(&[b"HIDDEN", KEY.as_bytes(), b"short"]).unwrap();
    let (code, out, _) = revoke(&[odd.url()], &["--holder", "a0f4ea7d", "--now"]);
    assert!(code == 3 && out.contains("  the server does not know set\n"), "{out}");
}

/// What does not count for locks is not asked: a replica has no key, and a server is listed twice.
#[test]
fn only_masters_that_count_are_asked() {
    let (mut masters, redlock) = start();
    let lock = take(&redlock, TTL);
    let holder = fingerprint(&lock);
    let port = masters[0].port().to_string();
    let words: [&[u8]; 3] = [b"REPLICAOF", b"127.0.0.1", port.as_bytes()];
    masters[1].query(&words).unwrap();
    let urls = masters.urls();
    let twice = [urls[0].clone(), urls[0].replace("127.0.0.1", "localhost"), urls[2].clone()];
    let (code, out, _) = revoke(&twice, &["--holder", "00000000"]);
    assert!(code == 1 && out.matches("another holder has it").count() == 2, "{out}");
    assert!(out.contains("the same server as another node"), "{out}");
    let (_, out, _) = revoke(&urls, &["--holder", "00000000"]);
    assert!(out.contains("unusable (a replica"), "{out}");
    masters[2].kill().unwrap();
    let (code, out, _) = revoke(&urls, &["--holder", &holder]);
    assert!(code == 3 && out.ends_with("\nunknown: only 1 of 3 masters answered\n"), "{out}");
    let reply = masters[0].query(&[b"GET", KEY.as_bytes()]).unwrap();
    assert!(matches!(reply, Value::Bulk(value) if value.starts_with(b"revoked:")));
}

/// The user types the name.
#[test]
fn terminal_is_asked_for_the_name() {
    if Command::new("script").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: script is not on PATH");
    }
    let (masters, redlock) = start();
    let lock = take(&redlock, TTL);
    let line = format!(
        "{} revoke {KEY} --now --node-timeout 20s --connect-timeout 10s --restart-guard off",
        env!("CARGO_BIN_EXE_muxlock")
    );
    let type_it = |typed: &str| {
        let script = format!("printf '{typed}\\n' | script -qec '{line}' /dev/null");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env("MUXLOCK_NODES", masters.urls().join(","));
        run(shell.env("XDG_CONFIG_HOME", "/nonexistent"))
    };
    let (code, out, _) = type_it("deplo");
    assert!(code == 1 && out.contains("Type the resource's name to go on: "), "{out}");
    assert!(
        out.contains("Two holders might work on deploy at once.") && out.contains("refused: "),
        "{out}"
    );
    assert_eq!(have(&masters, lock.token().as_bytes()), 3);
    let (code, out, _) = type_it(KEY);
    assert_eq!(code, 0, "{out}");
    assert_eq!(have(&masters, lock.token().as_bytes()), 0);
}
