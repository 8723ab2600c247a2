//! Masters on which a command is switched off by name: no lock is held that cannot be kept or
//! released there, and every error names the command.

use muxlock::node::NodeOutcome;
use muxlock::testing::{Master, Masters, Value};
use muxlock::{LockError, LockErrorKind, LockGuard, Redlock};
use testbed::{Mute, TTL, all_ready, commands_of_scripts, patient, soon};

/// What every lock needs; without `SET`, which plain locks send without a script.
const NEEDED: [&str; 4] = ["DEL", "GET", "PEXPIRE", "PTTL"];
/// What only waiting in a queue takes. Clients find another way to wait.
const WAITING: [&str; 7] = ["LINDEX", "LLEN", "LPOS", "LPUSH", "LREM", "PUBLISH", "RPUSH"];

type Take = fn(&Redlock) -> Option<LockError>;

/// The kinds of lock, and what each takes beside what every lock needs.
const KINDS: [(&str, &[&str], Take); 6] = [
    ("set", &["EXISTS", "SET"], |it| it.try_lock_all(["a", "b"], TTL).err()),
    ("permit", &["EXISTS", "SET"], |it| it.semaphore("a", 2).unwrap().try_acquire(TTL).err()),
    ("read lock", &READERS, |it| it.try_read("a", TTL).err()),
    ("write lock", &READERS, |it| it.try_write("a", TTL).err()),
    ("value", &["EXISTS", "HGET", "HSET", "PEXPIREAT", "SET", "TIME"], |it| {
        it.try_lock_as("a", "mine", TTL).err()
    }),
    ("fenced", &["HGET", "HSET", "SET", "TIME"], |it| it.fenced().try_lock("a", TTL).err()),
];
const READERS: [&str; 9] =
    ["PEXPIREAT", "SET", "TIME", "TYPE", "ZADD", "ZRANGE", "ZREM", "ZREMRANGEBYSCORE", "ZSCORE"];

/// A client of one master, which may be unfit.
fn client(master: &Master) -> Redlock {
    patient([master.url()]).build().unwrap()
}

#[test]
fn every_command_of_every_script_is_missed_before_a_lock_is_held() {
    for name in commands_of_scripts() {
        let name = name.as_str();
        if WAITING.contains(&name) {
            continue;
        }
        let master = Master::start_with(&["--rename-command", name, ""]).unwrap();
        if NEEDED.contains(&name) {
            let error = client(&master).try_lock("a", TTL).unwrap_err();
            let said = format!("unusable ({name} is renamed or forbidden; allow it)");
            assert!(error.to_string().contains(&said), "{name}: {error}");
            continue;
        }
        let redlock = all_ready(&patient([master.url()]));
        let plain = redlock.try_lock("p", TTL);
        match name {
            "SET" => {
                let error = plain.unwrap_err().to_string();
                assert!(error.contains("unknown command 'SET'"), "{error}");
            }
            _ => assert!(plain.unwrap().unlock().unwrap().was_held(), "{name}"),
        }
        let mut refused = 0;
        for (kind, needs, take) in KINDS {
            let error = take(&redlock);
            if !needs.contains(&name) {
                assert!(error.is_none(), "{name}, {kind}: {error:?}");
                continue;
            }
            let error = error.unwrap_or_else(|| panic!("{name}: a {kind} was held"));
            let outcome = error.nodes()[0].outcome;
            assert!(
                matches!(outcome, NodeOutcome::MissingCommand(missing) if missing.name() == name),
                "{name}, {kind}: {error}"
            );
            assert_eq!(error.kind(), LockErrorKind::Unavailable, "{name}, {kind}");
            refused += 1;
        }
        assert!(refused > 0, "{name}: nothing needs it");
        // Nothing of what was refused was begun.
        redlock.shutdown(TTL);
        for key in ["a", "b", "a:as", "a:intent"] {
            let left = master.query(&[b"EXISTS", key.as_bytes()]);
            let is_left = matches!(left, Ok(muxlock::testing::Value::Integer(1)));
            assert!(!is_left, "{name}: {key} is left");
        }
    }
}

/// The user may call all but one command. The kinds that need it name it and write nothing; once
/// the user may call it, they work on the same connection.
#[test]
fn every_command_that_is_forbidden_is_missed_before_anything_is_written() {
    let master = Master::start().unwrap();
    let tell = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        assert_eq!(master.query(&words).unwrap(), Value::Status("OK".into()));
    };
    for (kind, needs, take) in KINDS {
        for name in needs {
            tell(&["ACL", "SETUSER", "locker", "reset", "on", "nopass", "~*", "&*", "+@all"]);
            tell(&["ACL", "SETUSER", "locker", &format!("-{name}")]);
            let redlock = all_ready(&patient([format!("redis://locker:any@{}", master.addr())]));
            let error = take(&redlock).unwrap_or_else(|| panic!("{name}: a {kind} was held"));
            let outcome = error.nodes()[0].outcome;
            assert!(
                matches!(outcome, NodeOutcome::MissingCommand(missing) if missing.name() == *name),
                "{name}, {kind}: {error}"
            );
            assert_eq!(master.dbsize().unwrap(), 0, "{kind}, {name}");
            tell(&["ACL", "SETUSER", "locker", &format!("+{name}")]);
            assert!(take(&redlock).is_none(), "{kind}, {name}");
            assert_eq!(redlock.shutdown(TTL), 0);
            master.query(&[b"DEL", b"muxlock:fence"]).unwrap();
            assert_eq!(master.dbsize().unwrap(), 0, "{kind}, {name}");
        }
    }
}

/// Each master is sent one command for it, and has it without another call of the client. All are
/// scripts, but for the second permit's (K8).
#[test]
fn first_lock_of_each_kind_reaches_all_masters_in_one_round_trip() {
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    type Take = fn(&Redlock) -> LockGuard;
    let kinds: [Take; 5] = [
        |it| it.try_lock_all(["a", "b"], TTL).unwrap(),
        |it| it.semaphore("a", 2).unwrap().try_acquire(TTL).unwrap(),
        |it| it.try_read("a", TTL).unwrap(),
        |it| it.try_write("a", TTL).unwrap(),
        |it| it.try_lock_as("a", "mine", TTL).unwrap(),
    ];
    let evals = || -> Vec<u64> {
        masters.iter().map(|master| master.command_calls("eval").unwrap()).collect()
    };
    for (kind, take) in kinds.into_iter().enumerate() {
        let redlock = all_ready(&patient(masters.urls()));
        for number in ["first", "second"] {
            let before = evals();
            let lock = take(&redlock);
            // No call of the client meanwhile.
            soon("all have it", || masters.iter().all(|master| master.dbsize().unwrap() > 0));
            let sent: Vec<u64> = evals().iter().zip(before).map(|(now, then)| now - then).collect();
            let is_script = (kind, number) != (1, "second");
            assert_eq!(sent, [u64::from(is_script); 3], "kind {kind}, {number}");
            assert!(lock.unlock().unwrap().was_held());
            let is_empty = |master: &Master| master.dbsize().unwrap() == 0;
            soon("nothing is left", || masters.iter().all(is_empty));
        }
    }
}

/// Without these, clients know less of the server, as without the right to them.
#[test]
fn commands_that_identify_a_server_are_missed_as_forbidden_ones() {
    for name in ["INFO", "TIME", "CLIENT"] {
        let mute = Mute::start(name);
        let redlock = all_ready(&patient([mute.url()]));
        assert!(redlock.try_lock("a", TTL).unwrap().unlock().unwrap().was_held(), "{name}");
    }
}
