//! Locks that are not one plain key, over real masters: several resources, shares, slots (K1 to
//! K8).

use std::thread;
use std::time::Duration;

use muxlock::limits::SLOTS_MAX;
use muxlock::settings::{Heal, RestartGuard};
use muxlock::testing::{Master, Masters, Value};
use muxlock::{LockError, LockErrorKind, LockGuard, LockParts, Redlock, Resource};
use testbed::{PATIENT, Stopwatch, all_ready, patient, soon};

const TTL: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(300);
const NAMES: [&str; 3] = ["a", "b", "c"];

pub(crate) fn start(count: usize) -> (Masters, Redlock) {
    let masters = Masters::start(count).unwrap_or_else(|error| panic!("{error}"));
    let redlock = all_ready(&patient(masters.urls()));
    (masters, redlock)
}

pub(crate) fn other(masters: &Masters) -> Redlock {
    all_ready(&patient(masters.urls()))
}

/// Each master has as many keys: a lock is held when most have it, and the others are about to.
fn settled(masters: &Masters, keys: u64) {
    soon("each has it", || masters.iter().all(|master| master.dbsize().unwrap() >= keys));
}

pub(crate) fn ask(master: &Master, words: &[&str]) -> Value {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    master.query(&words).unwrap()
}

#[track_caller]
pub(crate) fn nothing_is_left(masters: &Masters) {
    soon("no key is left", || masters.iter().all(|master| master.dbsize().unwrap() == 0));
}

/// K1: a set excludes each of its resources, in both directions, and takes all or none.
#[test]
fn set_takes_all_or_none() {
    let (masters, redlock) = start(3);
    let other = other(&masters);
    let set = redlock.try_lock_all(["b", "a", "c", "a"], TTL).unwrap();
    assert_eq!(set.resource(), &Resource::all(NAMES).unwrap());
    settled(&masters, 3);
    for name in NAMES {
        assert!(other.try_lock(name, TTL).unwrap_err().is_contended());
        for master in masters.iter() {
            let value = master.value_of(name.as_bytes()).unwrap().unwrap();
            assert_eq!(value, set.token().as_bytes());
        }
    }
    let refused = other.try_lock_all(["c", "d"], TTL).unwrap_err();
    assert!(refused.is_contended());
    soon("nothing of it is left", || {
        masters.iter().all(|master| master.value_of(b"d").unwrap().is_none())
    });
    assert!(set.unlock().unwrap().was_held());
    nothing_is_left(&masters);
    let plain = other.try_lock("b", TTL).unwrap();
    assert!(redlock.try_lock_all(NAMES, TTL).unwrap_err().is_contended());
    assert!(plain.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}

/// K2: the error names the resource that lives longest.
#[test]
fn error_names_the_resource_that_is_held() {
    let (masters, redlock) = start(3);
    let other = other(&masters);
    let short = other.try_lock("a", TTL / 2).unwrap();
    let long = other.try_lock("c", TTL).unwrap();
    let error = redlock.try_lock_all(NAMES, TTL).unwrap_err();
    assert_eq!(error.held_resource(), Some(&Resource::new("c").unwrap()));
    let error = redlock.try_lock_all_for(NAMES, TTL, SHORT).unwrap_err();
    assert_eq!(error.held_resource(), Some(&Resource::new("c").unwrap()));
    drop(long);
    soon("it is gone", || {
        let error = redlock.try_lock_all(NAMES, TTL).unwrap_err();
        error.held_resource() == Some(&Resource::new("a").unwrap())
    });
    drop(short);
    assert_eq!(
        redlock.try_lock("a", PATIENT).err().and_then(|it| it.held_resource().cloned()),
        None
    );
}

#[test]
fn one_resource_is_a_plain_lock() {
    let (masters, redlock) = start(3);
    let lock = redlock.try_lock_all(["a", "a"], TTL).unwrap();
    assert_eq!(lock.resource(), &Resource::new("a").unwrap());
    assert_eq!(
        masters.iter().map(|it| it.command_calls("eval").unwrap()).max(),
        Some(1),
        "the probe"
    );
    assert!(lock.unlock().unwrap().was_held());
}

/// K3: an extension counts only where every key is there; it shortens none of them.
#[test]
fn part_of_a_set_is_not_extended() {
    let (masters, redlock) = start(3);
    let mut set = redlock.try_lock_all(NAMES, TTL).unwrap();
    settled(&masters, 3);
    set.extend(2 * TTL).unwrap();
    set.extend(TTL).unwrap();
    for master in masters.iter() {
        for name in NAMES {
            assert!(master.pttl(name.as_bytes()).unwrap() > TTL.as_millis() as i64, "{name}");
        }
    }
    for master in masters.iter().take(2) {
        ask(master, &["DEL", "b"]);
    }
    let error = set.extend(3 * TTL).unwrap_err();
    assert_eq!(error.kind(), LockErrorKind::Expired);
    let left = masters[0].pttl(b"a").unwrap();
    assert!(left <= 2 * TTL.as_millis() as i64, "a part was extended: {left}");
    assert!(!set.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}

/// K3: a key of another type saves no other.
#[test]
fn release_goes_on_behind_a_foreign_type() {
    let (masters, redlock) = start(1);
    let set = redlock.try_lock_all(NAMES, TTL).unwrap();
    ask(&masters[0], &["DEL", "a"]);
    ask(&masters[0], &["HSET", "a", "field", "1"]);
    assert!(!set.unlock().unwrap().was_held());
    assert_eq!(masters[0].dbsize().unwrap(), 1, "the hash alone");
}

/// K4: readers share, and exclude whoever wants the resource alone.
#[test]
fn readers_share_and_exclude_writers() {
    let (masters, redlock) = start(3);
    let other = other(&masters);
    let one = redlock.try_read("a", TTL).unwrap();
    let two = other.try_read("a", TTL).unwrap();
    assert!(redlock.try_write("a", TTL).unwrap_err().is_contended());
    assert!(other.try_lock("a", TTL).unwrap_err().is_contended());
    assert!(other.try_lock_all(["a", "b"], TTL).unwrap_err().is_contended());
    assert!(one.unlock().unwrap().was_held());
    assert!(redlock.try_write("a", TTL).unwrap_err().is_contended());
    assert!(two.unlock().unwrap().was_held());
    let alone = redlock.try_write("a", TTL).unwrap();
    assert!(other.try_read("a", TTL).unwrap_err().is_contended());
    assert!(other.try_write("a", TTL).unwrap_err().is_contended());
    assert!(alone.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}

/// K4: a share of the same caller refuses it, and makes it wait. It costs the share nothing, and
/// ends when another thread gives the share back.
#[test]
fn writer_waits_for_a_share_of_its_own() {
    let (masters, redlock) = start(3);
    let mut share = redlock.try_read("a", TTL).unwrap();
    assert!(redlock.try_write("a", TTL).unwrap_err().is_contended());
    let error = redlock.try_write_for("a", TTL, SHORT).unwrap_err();
    assert!(error.is_contended() || error.is_timed_out(), "{error}");
    assert!(share.is_valid());
    share.extend(2 * TTL).unwrap();
    let signs = || masters.iter().filter(|it| it.value_of(b"a:intent").unwrap().is_some()).count();
    soon("its sign has ended", || signs() == 0);
    std::thread::scope(|scope| {
        let redlock = &redlock;
        let writer = scope.spawn(move || redlock.try_write_for("a", TTL, PATIENT).unwrap());
        soon("it waits", || signs() == 3);
        assert!(share.unlock().unwrap().was_held());
        assert!(writer.join().unwrap().unlock().unwrap().was_held());
    });
    nothing_is_left(&masters);
}

/// K4: a sorted set of others, which has no end, is left alone.
#[test]
fn sorted_set_of_others_is_left_alone() {
    let (masters, redlock) = start(1);
    ask(&masters[0], &["ZADD", "a", "1", "theirs"]);
    assert!(redlock.try_read("a", TTL).unwrap_err().is_contended());
    assert!(redlock.try_write("a", TTL).unwrap_err().is_contended());
    assert_eq!(ask(&masters[0], &["ZCARD", "a"]), Value::Integer(1));
    assert_eq!(masters[0].pttl(b"a").unwrap(), -1);
}

/// K5, K9: a reader that is gone keeps no writer out for longer than its own time, whatever other
/// readers do; the key lives as long as the longest share.
#[test]
fn share_ends_by_itself() {
    let (masters, redlock) = start(3);
    let short = redlock.try_read("a", SHORT).unwrap();
    let _parts = short.into_parts();
    let mut long = redlock.try_read("a", TTL).unwrap();
    soon("the short one is purged", || {
        drop(redlock.try_read("a", TTL).unwrap());
        let count = |master: &Master| ask(master, &["ZCARD", "a"]);
        masters.iter().all(|master| count(master) == Value::Integer(1))
    });
    long.extend(2 * TTL).unwrap();
    let is_extended = |it: &&Master| it.pttl(b"a").unwrap() > TTL.as_millis() as i64;
    assert!(masters.iter().filter(is_extended).count() >= 2, "a quorum has confirmed it");
    assert!(long.unlock().unwrap().was_held());
    let short = redlock.try_read("a", SHORT).unwrap();
    let _parts = short.into_parts();
    let alone = redlock.try_write_for("a", TTL, PATIENT).unwrap();
    assert!(alone.unlock().unwrap().was_held());
    nothing_is_left(&masters);
}

/// K6: a waiting writer lets no new reader in, and leaves nothing behind; one that does not wait
/// leaves no sign.
#[test]
fn waiting_writer_holds_new_readers_off() {
    let (masters, redlock) = start(3);
    let reader = redlock.try_read("a", TTL).unwrap();
    settled(&masters, 1);
    assert!(redlock.try_write("a", TTL).unwrap_err().is_contended());
    assert!(masters.iter().all(|it| it.value_of(b"a:intent").unwrap().is_none()));
    let other = other(&masters);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| other.try_write_for("a", TTL, PATIENT).unwrap());
        soon("the sign is there", || {
            masters.iter().all(|it| it.value_of(b"a:intent").unwrap().is_some())
        });
        assert!(redlock.try_read("a", TTL).unwrap_err().is_contended());
        assert!(reader.unlock().unwrap().was_held());
        assert!(writer.join().unwrap().unlock().unwrap().was_held());
    });
    nothing_is_left(&masters);
}

/// K6: a lock of that very name is no sign, whatever its value is: it is neither overwritten nor
/// deleted.
#[test]
fn lock_with_the_name_of_a_sign_is_a_lock() {
    let (masters, redlock) = start(3);
    let locks = [
        redlock.try_lock("a:intent", TTL),
        redlock.try_lock_as("b:intent", "intent", TTL),
        redlock.try_lock_as("c:intent", "\0", TTL),
    ];
    for (lock, name) in locks.into_iter().zip(["a", "b", "c"]) {
        let reader = redlock.try_read(name, TTL).unwrap();
        assert!(redlock.try_write_for(name, TTL, SHORT).unwrap_err().is_contended());
        assert!(reader.unlock().unwrap().was_held());
        assert!(redlock.try_write(name, TTL).unwrap().unlock().unwrap().was_held());
        let sign = format!("{name}:intent");
        assert!(redlock.try_lock_as(&sign, "other", TTL).unwrap_err().is_contended());
        assert!(lock.unwrap().unlock().unwrap().was_held());
    }
    nothing_is_left(&masters);
}

/// K7: from the downgrade on, others may read, and nobody may write.
#[test]
fn downgrade_lets_readers_in() {
    let (masters, redlock) = start(3);
    let other = other(&masters);
    for alone in [redlock.try_write("a", TTL).unwrap(), redlock.try_lock("b", TTL).unwrap()] {
        let name = alone.resource().as_bytes().to_vec();
        let mut share = alone.downgrade(TTL).unwrap();
        let reader = other.try_read(&name, TTL).unwrap();
        assert!(other.try_lock(&name, TTL).unwrap_err().is_contended());
        share.extend(2 * TTL).unwrap();
        assert!(reader.unlock().unwrap().was_held());
        assert!(other.try_write(&name, TTL).unwrap_err().is_contended());
        assert!(share.unlock().unwrap().was_held());
    }
    nothing_is_left(&masters);
}

/// K7: what is left of a failed downgrade is released, in both forms.
#[test]
fn failed_downgrade_releases_the_lock() {
    let (masters, redlock) = start(3);
    let alone = redlock.try_write("a", TTL).unwrap();
    for master in masters.iter().take(2) {
        ask(master, &["DEL", "a"]);
    }
    assert_eq!(alone.downgrade(TTL).unwrap_err().kind(), LockErrorKind::Expired);
    nothing_is_left(&masters);
}

/// K8: at most so many, and all of them can be had.
#[test]
fn semaphore_has_so_many_permits() {
    let (masters, redlock) = start(3);
    for permits in [1, 3, SLOTS_MAX] {
        let semaphore = redlock.semaphore("s", permits).unwrap();
        let mut held: Vec<_> =
            (0..permits).map(|_| semaphore.try_acquire_for(TTL, PATIENT).unwrap()).collect();
        assert!(semaphore.try_acquire(TTL).unwrap_err().is_contended());
        held[0].extend(2 * TTL).unwrap();
        for permit in held {
            assert!(permit.unlock().unwrap().was_held());
        }
        nothing_is_left(&masters);
    }
}

/// K8: one attempt finds the one slot that is free, however it begins.
#[test]
fn last_free_permit_is_found() {
    let (masters, others) = start(3);
    let redlock = all_ready(&patient(masters.urls()));
    let semaphore = redlock.semaphore("s", 5).unwrap();
    assert!(semaphore.try_acquire(TTL).unwrap().unlock().unwrap().was_held());
    for free in (0..5).chain(0..5) {
        let taken = (0..5).filter(|slot| *slot != free);
        let taken: Vec<_> = taken
            .map(|slot| others.try_lock(format!("s{{permit}}:{slot}"), TTL).unwrap())
            .collect();
        // A quorum has answered; a permit is free or taken where all have.
        assert_eq!(others.shutdown(PATIENT), 0);
        for _ in 0..2 {
            let permit = semaphore.try_acquire(TTL).unwrap();
            assert_eq!(permit.resource().as_bytes(), format!("s{{permit}}:{free}").as_bytes());
            assert!(semaphore.try_acquire(TTL).unwrap_err().is_contended());
            assert!(permit.unlock().unwrap().was_held());
            assert_eq!(redlock.shutdown(PATIENT), 0);
        }
        for lock in taken {
            assert!(lock.unlock().unwrap().was_held());
        }
        assert_eq!(others.shutdown(PATIENT), 0);
    }
}

/// K8: a permit is a plain lock of its slot, for everyone.
#[test]
fn permit_is_a_plain_lock() {
    let (masters, redlock) = start(3);
    let semaphore = redlock.semaphore("s", 1).unwrap();
    let permit = semaphore.try_acquire(TTL).unwrap();
    assert_eq!(permit.resource(), &Resource::new("s{permit}:0").unwrap());
    assert!(redlock.try_lock("s{permit}:0", TTL).unwrap_err().is_contended());
    drop(permit);
    nothing_is_left(&masters);
    let plain = redlock.try_lock("s{permit}:0", TTL).unwrap();
    assert!(semaphore.try_acquire(TTL).unwrap_err().is_contended());
    assert!(plain.unlock().unwrap().was_held());
}

/// Takes one lock of each kind that a script takes, and gives it up.
fn take_each(redlock: &Redlock) {
    let ttl = Duration::from_secs(2);
    let locks = [
        redlock.try_lock_all(NAMES, ttl),
        redlock.try_read("r", ttl),
        redlock.try_write("w", ttl),
        redlock.try_lock_as("own", "mine", ttl),
    ];
    for lock in locks {
        assert!(lock.unwrap().unlock().unwrap().was_held());
    }
}

/// What each master says of this command: how often it ran, and failed.
fn stats_of(masters: &Masters, command: &str) -> Vec<String> {
    let begin = format!("cmdstat_{command}:");
    let stats = |master: &Master| {
        let Value::Bulk(text) = ask(master, &["INFO", "commandstats"]) else {
            panic!("INFO is a text");
        };
        let text = String::from_utf8(text).unwrap();
        text.lines().find(|line| line.starts_with(&begin)).unwrap_or_default().to_owned()
    };
    masters.iter().map(stats).collect()
}

/// K16: the hashes are those of the scripts, and a master that has forgotten them is sent the text.
#[test]
fn slow_scripts_are_run_by_their_hash_until_a_master_forgets_them() {
    let (masters, redlock) = start(3);
    take_each(&redlock);
    assert_eq!(stats_of(&masters, "evalsha"), [""; 3]);
    // The third answer may come after the next question.
    (0..5).for_each(|_| take_each(&redlock));
    for stats in stats_of(&masters, "evalsha") {
        let calls = stats.split_once("calls=").and_then(|(_, rest)| rest.split_once(','));
        let calls = calls.map_or(0, |(calls, _)| calls.parse().unwrap());
        assert!(calls >= 8, "{stats}");
        assert!(!stats.contains("failed_calls=") || stats.contains("failed_calls=0"), "{stats}");
    }
    masters.iter().for_each(|master| drop(ask(master, &["SCRIPT", "FLUSH"])));
    (0..2).for_each(|_| take_each(&redlock));
}

/// K16: who has rights for the texts alone loses no vote.
#[test]
fn user_without_a_right_to_hashes_takes_locks_by_their_text() {
    let (masters, _) = start(3);
    for master in masters.iter() {
        let user = ["ACL", "SETUSER", "app", "on", ">pass", "~*", "&*", "+@all", "-evalsha"];
        assert_eq!(ask(master, &user), Value::Status("OK".into()));
    }
    let urls: Vec<String> =
        masters.iter().map(|master| format!("redis://app:pass@{}", master.addr())).collect();
    let redlock = all_ready(&patient(urls));
    (0..5).for_each(|_| take_each(&redlock));
}

/// A lock of each form goes to another client as text, and is what it was there.
#[test]
fn every_form_is_handed_over() {
    let (masters, redlock) = start(3);
    let other = other(&masters);
    let share = redlock.try_write("w", TTL).unwrap().downgrade(TTL).unwrap();
    let locks = [
        redlock.try_lock_all(NAMES, TTL).unwrap(),
        redlock.try_read("r", TTL).unwrap(),
        redlock.try_write("x", TTL).unwrap(),
        redlock.semaphore("s", 2).unwrap().try_acquire(TTL).unwrap(),
        share,
    ];
    settled(&masters, 7);
    for lock in locks {
        let (resource, text) =
            (lock.resource().clone(), lock.into_parts().to_secret_text().unwrap());
        let parts: LockParts = text.parse().unwrap();
        let mut lock = other.adopt(parts).unwrap();
        assert_eq!(lock.resource(), &resource);
        lock.extend(2 * TTL).unwrap();
        assert!(lock.unlock().unwrap().was_held());
    }
    nothing_is_left(&masters);
}

/// Each form, with healing: a copy that is gone is set again.
#[test]
fn slow_every_form_heals() {
    let masters = Masters::start(3).unwrap_or_else(|error| panic!("{error}"));
    let builder = patient(masters.urls()).restart_guard(RestartGuard::Uptime).heal(Heal::On);
    let ttl = Duration::from_secs(2);
    let redlock = all_ready(&builder.max_ttl(ttl));
    let locks = || {
        [
            redlock.try_lock_all_for(NAMES, ttl, PATIENT),
            redlock.try_read_for("r", ttl, PATIENT),
            redlock.try_write_for("x", ttl, PATIENT),
            redlock.semaphore("s", 2).unwrap().try_acquire_for(ttl, PATIENT),
        ]
    };
    for lock in locks() {
        let mut lock = lock.unwrap();
        let keys: Vec<Vec<u8>> = lock.resource().names().map(<[u8]>::to_vec).collect();
        for key in &keys {
            masters[0].query(&[b"DEL", key]).unwrap();
        }
        lock.extend(ttl).unwrap();
        for key in &keys {
            soon("it is set again", || masters[0].pttl(key).unwrap() > 0);
        }
        assert!(lock.unlock().unwrap().was_held());
    }
    nothing_is_left(&masters);
}

#[test]
fn bad_input_is_refused_with_its_value() {
    let (_masters, redlock) = start(1);
    let many: Vec<String> = (0..200).map(|i| i.to_string()).collect();
    let kind = |error: muxlock::LockError| error.kind();
    let none: [&str; 0] = [];
    let refused = redlock.try_lock_all(none, TTL).unwrap_err();
    assert_eq!(kind(refused), LockErrorKind::InvalidSet { resources: 0, bytes: 0 });
    let refused = redlock.try_lock_all(&many, TTL).unwrap_err();
    assert!(refused.to_string().starts_with("200 resources"), "{refused}");
    assert_eq!(kind(refused), LockErrorKind::InvalidSet { resources: 200, bytes: 490 });
    let refused = redlock.try_lock_all(["a", ""], TTL).unwrap_err();
    assert_eq!(kind(refused), LockErrorKind::InvalidResource { bytes: 0 });
    for slots in [0, SLOTS_MAX + 1, u32::MAX] {
        let refused = redlock.semaphore("s", slots).unwrap_err();
        assert_eq!(kind(refused), LockErrorKind::InvalidSlots { slots });
    }
    let long = "x".repeat(1_017);
    let refused = redlock.semaphore(&long, 1).unwrap_err();
    assert_eq!(kind(refused), LockErrorKind::InvalidResource { bytes: 1_017 });
    let longest: Vec<String> = (0..64).map(|i| format!("{i:01024}")).collect();
    let set = redlock.try_lock_all(&longest, TTL).unwrap();
    assert!(set.unlock().unwrap().was_held());
}

/// What clients of other makes do to take a lock: a string, or a hash with a count for the owner,
/// as Redisson writes it, which enters where the key is absent or its own.
const OTHERS: [&[&str]; 2] = [
    &["SET", "a", "theirs", "NX", "PX", "20000"],
    &[
        "EVAL",
        "if redis.call('EXISTS',KEYS[1])==1 and redis.call('HEXISTS',KEYS[1],ARGV[1])==0 then \
         return false end redis.call('HINCRBY',KEYS[1],ARGV[1],1) \
         redis.call('PEXPIRE',KEYS[1],20000) return 1",
        "1",
        "a",
        "3b241101-e2bb-4255-8caf-4136c566a962:1",
    ],
];

/// K1, K4, K8: each kind excludes what other makes put on the same key, and is excluded by it.
#[test]
fn every_form_excludes_other_makes_and_is_excluded() {
    let (masters, redlock) = start(3);
    type Take = fn(&Redlock) -> Result<LockGuard, LockError>;
    let kinds: [Take; 4] = [
        |redlock| redlock.try_lock_all(["a", "b"], TTL),
        |redlock| redlock.try_read("a", TTL),
        |redlock| redlock.try_write("a", TTL),
        |redlock| redlock.try_write("a", TTL)?.downgrade(TTL),
    ];
    for theirs in OTHERS {
        for (kind, take) in kinds.iter().enumerate() {
            let lock = take(&redlock).unwrap();
            settled(&masters, 1);
            for master in masters.iter() {
                let refused =
                    master.query(&theirs.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
                let is_refused = matches!(refused, Err(_) | Ok(Value::Nil | Value::Error(_)));
                assert!(is_refused, "{kind}: {refused:?}");
            }
            assert!(lock.unlock().unwrap().was_held());
            nothing_is_left(&masters);
        }
        masters.iter().for_each(|master| drop(ask(master, theirs)));
        for take in kinds {
            assert!(take(&redlock).unwrap_err().is_contended());
        }
        masters.iter().for_each(|master| drop(ask(master, &["DEL", "a"])));
        nothing_is_left(&masters);
    }
}

/// As `docs/changing-clients.md` says: a plain lock and the lock of Redisson do not go together on
/// one key, and a bucket that is set if absent is a plain lock.
#[test]
fn bucket_and_plain_lock_exclude_each_other() {
    let (masters, redlock) = start(1);
    let set = |value| ask(&masters[0], &["SET", "a", value, "PX", "20000", "NX"]);
    let lock = redlock.try_lock("a", TTL).unwrap();
    match masters[0].query(&OTHERS[1].iter().map(|word| word.as_bytes()).collect::<Vec<_>>()) {
        Ok(Value::Error(text)) => assert!(text.contains("WRONGTYPE"), "{text}"),
        other => panic!("Redisson's script: {other:?}"),
    }
    assert_eq!(set("theirs"), Value::Nil);
    assert!(lock.unlock().unwrap().was_held());
    nothing_is_left(&masters);

    assert_eq!(set("theirs"), Value::Status("OK".into()));
    assert!(redlock.try_lock("a", TTL).unwrap_err().is_contended());
    let delete = "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end";
    assert_eq!(ask(&masters[0], &["EVAL", delete, "1", "a", "theirs"]), Value::Integer(1));
    assert!(redlock.try_lock("a", TTL).unwrap().unlock().unwrap().was_held());

    ask(&masters[0], OTHERS[1]);
    assert!(redlock.try_lock("a", TTL).unwrap_err().is_contended());
    ask(&masters[0], &["PEXPIRE", "a", "100"]);
    assert!(redlock.try_lock_for("a", TTL, PATIENT).unwrap().unlock().unwrap().was_held());
}

/// As `docs/recipes.md` says: a permit that expires instead of being released has one start in each
/// window of its TTL.
#[test]
fn slow_permits_that_expire_limit_the_rate() {
    let masters = Masters::start(3).unwrap();
    let clock = Stopwatch::start();
    let pass = |redlock: &Redlock| {
        let start = clock.elapsed();
        let permit = redlock.semaphore("s", 2).unwrap().try_acquire_for(SHORT, PATIENT).unwrap();
        let (name, end) = (permit.resource().to_string(), clock.elapsed());
        drop(permit.into_parts());
        (name, end, start)
    };
    let mut passes = thread::scope(|scope| {
        let clients = [(); 3].map(|()| other(&masters));
        let run = |redlock: Redlock| scope.spawn(move || [(); 3].map(|()| pass(&redlock)));
        let threads = clients.map(run);
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    passes.sort();
    let of_one = passes.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    let gaps: Vec<_> = of_one.map(|pair| pair[1].1 - pair[0].2).collect();
    assert_eq!(gaps.len(), 7, "nine passes with two permits: {passes:?}");
    // A server's clock counts whole milliseconds.
    assert!(gaps.iter().all(|gap| *gap >= SHORT - Duration::from_millis(2)), "{gaps:?}");
}
