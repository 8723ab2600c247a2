//! `muxlock lock`, `unlock` and `renew` on real masters: the file, the process that renews the
//! lock, and the result of each fault.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use muxlock::testing::{Master, Masters, Value as Answer};
use muxlock::{LockParts, Redlock};
use testbed::{Folder, TTL, pause, soon, within};

use super::cli::{client, muxlock, run, start};
use super::run::{Running, children, signal};

const MODE: u32 = 0o600;

/// The tool on these masters, where none is slow on purpose: a busy machine may be.
fn tool(list: &str, args: &[&str]) -> Command {
    let mut command = muxlock(args);
    command.env("MUXLOCK_NODES", list).env("MUXLOCK_RESTART_GUARD", "off");
    command.env("MUXLOCK_NODE_TIMEOUT", "200ms").env("MUXLOCK_CONNECT_TIMEOUT", "20s");
    command
}

/// A folder for the file. If a test fails, renewers end with it.
struct Scene {
    list: String,
    file: String,
    folder: Folder,
}

impl Scene {
    fn new(name: &str, list: String) -> Scene {
        let folder = Folder::create(name);
        let file = folder.0.join("lock").to_str().unwrap().to_owned();
        Scene { list, file, folder }
    }

    fn tool(&self, args: &[&str]) -> (i32, String, String) {
        run(&mut tool(&self.list, args))
    }

    /// Takes the lock.
    #[track_caller]
    fn lock(&self, args: &[&str]) -> (String, String) {
        let args = [&["lock", "r", "--to", &self.file], args].concat();
        let (code, out, err) = self.tool(&args);
        assert_eq!(code, 0, "{err}");
        (out, err)
    }

    fn unlock(&self) -> (i32, String) {
        let (code, out, err) = self.tool(&["unlock", &self.file]);
        assert_eq!(out, "");
        (code, err)
    }

    fn renew(&self, args: &[&str]) -> (i32, String) {
        let (code, out, err) = self.tool(&[&["renew", &self.file], args].concat());
        assert_eq!(out, "");
        (code, err)
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.file).unwrap()
    }

    fn field(&self, name: &str) -> String {
        let text = self.text();
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("a line for {name}")).to_owned()
    }

    fn renewer(&self) -> u32 {
        self.field("renewer").parse().unwrap()
    }

    fn has_file(&self) -> bool {
        Path::new(&self.file).exists()
    }

    /// The names of the files in the folder.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder.0).unwrap();
        entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // One that has ended may wait for its parent.
    !stat.is_empty() && !stat.contains(") Z ")
}

fn is_free(masters: &Masters) -> bool {
    masters.iter().all(|master| master.value_of(b"r").unwrap().is_none())
}

fn left(master: &Master) -> i64 {
    match master.query(&[b"PTTL", b"r"]).unwrap() {
        Answer::Integer(left) => left,
        other => panic!("{other:?}"),
    }
}

/// A key's value, which is the token.
fn token(masters: &Masters) -> String {
    let values = masters.iter().find_map(|it| it.value_of(b"r").unwrap());
    String::from_utf8(values.expect("a key")).unwrap()
}

/// Until a renewal has set the keys again.
#[track_caller]
fn wait_for_renewal(masters: &Masters) {
    let before = left(&masters[0]);
    let mut least = before;
    within(TTL, "the lock is renewed", || {
        let now = left(&masters[0]);
        assert!(now > 0, "it did not expire");
        least = least.min(now);
        now > least + 100
    });
}

#[test]
fn lock_is_held_from_one_step_to_another() {
    let (masters, redlock, list) = start();
    let scene = Scene::new("step", list);
    let (out, err) = scene.lock(&[]);
    assert_eq!(out, "");
    assert!(err.starts_with("muxlock: r is locked for "), "{err}");
    let unlock = format!(" s; to unlock: muxlock unlock {}\nmuxlock: no process ", scene.file);
    assert!(err.contains(&unlock), "{err}");
    assert!(err.ends_with("even if the work goes on (--keep 1h would renew it)\n"), "{err}");

    let (code, _, err) = scene.tool(&["run", "r", "true"]);
    assert!(code == 121 && err.starts_with("muxlock: contended: "), "{err}");
    let other = scene.folder.0.join("other");
    let again = ["lock", "r", "--to", other.to_str().unwrap()];
    let (code, _, err) = scene.tool(&again);
    assert!(code == 121 && err.starts_with("muxlock: contended: "), "{err}");
    assert_eq!(scene.tool(&[&again[..], &["-q", "-E", "0"]].concat()), (0, "".into(), "".into()));
    assert_eq!(scene.tool(&[&again[..], &["-E", "7"]].concat()).0, 7);
    assert_eq!(scene.files(), ["lock"], "nothing is left of an attempt");

    assert_eq!(scene.unlock(), (0, "muxlock: r is unlocked\n".into()));
    assert!(is_free(&masters) && scene.files().is_empty());
    let (code, err) = scene.unlock();
    let words = format!("{} is missing: lock has not written it, or unlock has ", scene.file);
    assert!(code == 125 && err.starts_with(&format!("muxlock: {words}")), "{err}");

    assert_eq!(scene.lock(&["-q"]), (String::new(), String::new()));
    assert_eq!(scene.tool(&["renew", "-q", &scene.file]), (0, "".into(), "".into()));
    assert_eq!(scene.tool(&["unlock", "-q", &scene.file]), (0, "".into(), "".into()));
    assert!(redlock.try_lock("r", TTL).is_ok());
}

/// The client that took the lock has ended.
#[test]
fn holder_of_the_lock_is_named_while_a_process_renews_it() {
    let (masters, _redlock, list) = start();
    let scene = Scene::new("step-client", list);
    let refused = || {
        let file = scene.folder.0.join("other");
        let (code, _, err) = scene.tool(&["lock", "r", "--to", file.to_str().unwrap()]);
        assert_eq!(code, 121, "{err}");
        err
    };
    for kind in
        [&["--keep", "1h", "--ttl", "30s"][..], &["--keep", "1h", "--ttl", "30s", "--as", "me"]]
    {
        scene.lock(kind);
        let words = client(scene.renewer(), "muxlock-lock");
        let short = words.replace(", started ", "");
        let value = if kind.len() > 4 { "value \"me\", " } else { "" };
        let said = format!(" on 3 of 3 masters: {value}{words}");
        let mut least = left(&masters[0]);
        within(TTL, "the process connects", || {
            let is_named = refused().contains(&said);
            let now = left(&masters[0]);
            assert!(now <= least, "before its first renewal, some seconds later");
            least = now;
            is_named
        });
        let (_, out, _) = scene.tool(&["inspect", "r"]);
        assert!(out.contains(&format!(": {value}{words}")), "{out}");
        let (_, out, _) = scene.tool(&["list", "r"]);
        assert!(out.ends_with(&format!("  {value}{short}\n")), "{out}");
        let names = masters[0].query(&[b"CLIENT", b"LIST"]).unwrap();
        assert!(!format!("{names:?}").contains(&scene.file), "no arguments");
        assert_eq!(scene.unlock().0, 0);
    }
    scene.lock(&[]);
    assert!(refused().contains(": no longer connected, or without a name; free in "));
    assert_eq!(scene.unlock().0, 0);
    scene.lock(&["--as", "web-1 https://ci/job/7"]);
    let words = ": value \"web-1 https://ci/job/7\", no longer connected, or without a name; ";
    assert!(refused().contains(words));
    assert_eq!(scene.unlock().0, 0);
}

/// Each kind goes through the file and is released.
#[test]
fn every_kind_of_lock_is_handed_over() {
    let (masters, _redlock, list) = start();
    let scene = Scene::new("step-kinds", list);
    let kinds: [&[&str]; 6] = [
        &["--fenced"],
        &["--also", "s"],
        &["--shared"],
        &["--exclusive"],
        &["--slots", "2"],
        &["--as", "me"],
    ];
    for kind in kinds {
        let (out, err) = scene.lock(kind);
        let number = out.trim_end().strip_prefix("MUXLOCK_FENCING_TOKEN=");
        let is_number = number.is_some_and(|it| it.parse::<muxlock::FencingToken>().is_ok());
        assert_eq!((is_number, out.is_empty()), (kind == ["--fenced"], kind != ["--fenced"]));
        let name = match kind[0] {
            "--also" => "r,s",
            "--slots" => &scene.field("resource"),
            _ => "r",
        };
        assert!(err.starts_with(&format!("muxlock: {name} is locked for ")), "{err}");
        let (code, err) = scene.renew(&[]);
        assert!(code == 0 && err.contains(" is locked for another "), "{kind:?}: {err}");
        assert_eq!(scene.unlock(), (0, format!("muxlock: {name} is unlocked\n")), "{kind:?}");
    }
    assert!(is_free(&masters));
}

#[test]
fn file_is_for_its_owner_alone_and_the_token_is_nowhere_else() {
    let (masters, _redlock, list) = start();
    let scene = Scene::new("step-secret", list);
    for (mask, keep) in [("000", &[][..]), ("077", &[]), ("777", &["--keep", "1m"])] {
        let script = format!("umask {mask}; exec \"$0\" \"$@\"");
        let args = [&["lock", "r", "--to", &scene.file, "-v"], keep].concat();
        let tool = tool(&scene.list, &args);
        let mut masked = Command::new("sh");
        masked.args(["-c", &script]).arg(tool.get_program()).args(tool.get_args());
        for (name, value) in tool.get_envs() {
            match value {
                Some(value) => masked.env(name, value),
                None => masked.env_remove(name),
            };
        }
        let (code, out, err) = run(masked.stdin(Stdio::null()));
        assert_eq!(code, 0, "{err}");
        assert_eq!(fs::metadata(&scene.file).unwrap().permissions().mode() & 0o777, MODE);
        let (token, secret) = (token(&masters), scene.field("lock"));
        assert!(secret.contains(&token), "the text is the secret");
        let mut seen = vec![out, err];
        if !keep.is_empty() {
            let renewer = scene.renewer();
            for of in ["cmdline", "environ"] {
                let bytes = fs::read(format!("/proc/{renewer}/{of}")).unwrap();
                assert!(!bytes.is_empty());
                seen.push(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        let (code, err) = scene.renew(&[]);
        assert_eq!(code, if keep.is_empty() { 0 } else { 125 }, "{err}");
        seen.push(err);
        assert_eq!(fs::metadata(&scene.file).unwrap().permissions().mode() & 0o777, MODE);
        let (code, err) = scene.unlock();
        assert_eq!(code, 0, "{err}");
        seen.push(err);
        for text in seen {
            assert!(!text.contains(&token[8..]) && !text.contains("muxlock.5."), "{text}");
        }
    }
}

#[test]
fn slow_file_in_the_way_is_kept_and_no_lock_is_taken() {
    let (masters, _redlock, list) = start();
    let scene = Scene::new("step-way", list);
    let lock = || scene.tool(&["lock", "r", "--to", &scene.file]);
    let refused = |words: &str| {
        let (code, out, err) = lock();
        assert_eq!((code, out), (125, String::new()), "{err}");
        assert_eq!(err, format!("muxlock: {}{words}\n", scene.file));
        assert!(is_free(&masters));
    };
    let target = scene.folder.0.join("target");
    symlink(&target, &scene.file).unwrap();
    refused(" is a symbolic link, which is not followed");
    assert!(!target.exists());
    fs::write(&target, "precious").unwrap();
    refused(" is a symbolic link, which is not followed");
    assert_eq!(scene.unlock().0, 125);
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    fs::remove_file(&scene.file).unwrap();

    for text in ["precious", "", "muxlock step 2\nlock=x\n", "muxlock step 1\nlock=x\n"] {
        fs::write(&scene.file, text).unwrap();
        refused(" exists, and is no file of muxlock lock");
        assert_eq!(scene.unlock().0, 125);
        assert_eq!(scene.text(), text);
    }
    fs::remove_file(&scene.file).unwrap();
    assert!(Command::new("mkfifo").arg(&scene.file).status().unwrap().success());
    refused(" exists, and is no file of muxlock lock");
    fs::remove_file(&scene.file).unwrap();
    fs::create_dir(&scene.file).unwrap();
    refused(": Is a directory (os error 21)");
    fs::remove_dir(&scene.file).unwrap();

    let missing = scene.folder.0.join("missing/lock");
    let (code, _, err) = scene.tool(&["lock", "r", "--to", missing.to_str().unwrap()]);
    assert!(code == 125 && err.ends_with("/missing: create it first\n"), "{err}");
    // Without servers, the missing file is named first.
    for name in ["unlock", "renew"] {
        let mut command = muxlock(&[name, missing.to_str().unwrap()]);
        let (code, _, err) = run(command.env_remove("MUXLOCK_NODES"));
        assert!(code == 125 && err.contains(" is missing: lock has not written it"), "{err}");
    }
    let (code, _, err) = scene.tool(&["lock", "r"]);
    assert!(code == 125 && err.contains("--to <FILE>"), "{err}");
    let keep = ["lock", "r", "--to", &scene.file, "--keep", "8days"];
    let (code, _, err) = scene.tool(&keep);
    assert_eq!((code, err.as_str()), (125, "muxlock: keep is 8days: it can be 7days at most\n"));
    assert!(is_free(&masters));

    // A lock that has ended makes room; one that is held does not.
    scene.lock(&["--ttl", "1s"]);
    let old = scene.field("lock");
    soon("it has expired", || is_free(&masters));
    scene.lock(&["--ttl", "30s"]);
    let secret = scene.field("lock");
    assert_ne!(secret, old);
    let (code, _, err) = lock();
    let words = format!("{0} has the lock of r; muxlock unlock {0} releases it", scene.file);
    assert_eq!((code, err), (125, format!("muxlock: {words}\n")));
    assert_eq!(scene.field("lock"), secret);
    assert_eq!(scene.unlock().0, 0);
    scene.lock(&["--keep", "1m"]);
    let (code, _, err) = lock();
    let words =
        format!("{0} has a lock that is in use; muxlock unlock {0} releases it", scene.file);
    assert_eq!((code, err), (125, format!("muxlock: {words}\n")));
    assert_eq!(scene.unlock().0, 0);
}

/// The lock must not stay where no step can release it.
#[test]
fn lock_is_released_if_its_file_cannot_be_written() {
    let (masters, _redlock, list) = start();
    let scene = Scene::new("step-full", list);
    for keep in [&[][..], &["--keep", "1m"]] {
        let args = [&["lock", "r", "--to", &scene.file], keep].concat();
        let tool = tool(&scene.list, &args);
        let mut full = Command::new("sh");
        full.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]);
        full.arg(tool.get_program()).args(tool.get_args());
        let set = tool.get_envs().filter_map(|(name, value)| Some((name, value?)));
        full.envs(set).env_remove("MUXLOCK_CONFIG");
        let (code, out, err) = run(full.stdin(Stdio::null()));
        assert_eq!((code, out.as_str()), (125, ""), "{err}");
        assert!(err.ends_with(": File too large (os error 27)\n"), "{err}");
        soon("it was released", || is_free(&masters));
        assert!(scene.files().is_empty());
    }
    // Standard output, after the file.
    let mut closed = tool(&scene.list, &["lock", "r", "--to", &scene.file, "--fenced"]);
    let closed = closed.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let (code, _, err) = run_without_output(closed);
    assert!(code == 125 && err.starts_with("muxlock: standard output: No space left"), "{err}");
    soon("it was released", || is_free(&masters));
    assert!(scene.files().is_empty());
}

fn run_without_output(command: &mut Command) -> (i32, String, String) {
    let child = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let err = String::from_utf8(child.stderr).unwrap();
    (child.status.code().unwrap(), String::new(), err)
}

#[test]
fn text_of_another_lock_or_machine_is_refused() {
    let (masters, _redlock, list) = start();
    let scene = Scene::new("step-text", list.clone());
    scene.lock(&["--ttl", "30s"]);
    let good = scene.text();
    let secret = scene.field("lock");
    let refused = |text: String, words: &str| {
        fs::write(&scene.file, &text).unwrap();
        for command in ["unlock", "renew"] {
            let (code, _, err) = scene.tool(&[command, &scene.file]);
            assert_eq!((code, err), (125, format!("muxlock: {}: {words}\n", scene.file)));
        }
        assert_eq!(scene.text(), text, "it stays");
    };
    let cannot = "cannot hand the lock over: ";
    refused(good.replace(".72.", ".71."), &format!("{cannot}the text is damaged"));
    let version = good.replace("muxlock.5.", "muxlock.4.");
    refused(version, &format!("{cannot}another version of muxlock wrote the text"));
    let other = good.replace(&secret, &elsewhere(&secret)).replace("machine=", "machine=x");
    let advice = "; unlock it there, or if this machine was restarted, remove the file";
    refused(
        other,
        &format!("{cannot}it comes from another machine, boot or time namespace{advice}"),
    );
    fs::write(&scene.file, &good).unwrap();
    let two = list.rsplit_once(',').unwrap().0;
    let mut fewer = tool(two, &["unlock", &scene.file]);
    let (code, _, err) = run(&mut fewer);
    assert!(code == 125 && err.contains(": the lock has the masters \"127.0.0.1:"), "{err}");
    let (code, _, err) = scene.tool(&["unlock", &scene.file, "--prefix", "app:"]);
    let words = ": the lock has the prefix \"\"; the settings have \"app:\"\n";
    assert!(code == 125 && err.ends_with(words), "{err}");
    assert!(!is_free(&masters));
    assert_eq!(scene.unlock().0, 0);
    assert!(is_free(&masters));
}

/// No process of that boot can release it any more. Who gets the lock is decided by the masters.
#[test]
fn file_of_an_earlier_boot_makes_room_for_a_new_one() {
    let (_masters, redlock, list) = start();
    let scene = Scene::new("step-boot", list);
    let before = || {
        scene.lock(&["--ttl", "30s"]);
        let secret = scene.field("lock");
        let text = scene.text().replace(&secret, &elsewhere(&secret));
        fs::write(&scene.file, &text).unwrap();
        (text, secret.parse::<LockParts>().unwrap())
    };
    let (text, old) = before();
    let (code, _, err) = scene.tool(&["lock", "r", "--to", &scene.file]);
    assert!(code == 121 && err.starts_with("muxlock: contended: "), "{err}");
    assert!(redlock.adopt(old).unwrap().unlock().unwrap().was_held());
    fs::write(&scene.file, text).unwrap();
    scene.lock(&["--ttl", "30s"]);
    assert_eq!(scene.unlock().0, 0);

    let words = "muxlock: lost r: this machine was restarted since; the lock expires by itself\n";
    let (_, old) = before();
    assert_eq!(scene.renew(&[]), (120, words.to_owned()));
    assert_eq!(scene.unlock(), (120, words.to_owned()));
    assert!(!scene.has_file() && redlock.adopt(old).unwrap().unlock().unwrap().was_held());
}

/// The same text with another boot, and the checksum that belongs to it.
fn elsewhere(secret: &str) -> String {
    let (text, _) = secret.rsplit_once('.').unwrap();
    let clock = text.split('.').nth(2).unwrap();
    let (boot, space) = clock.split_once('-').unwrap();
    let other: String = boot.chars().rev().collect();
    assert_ne!(other, boot);
    let text = text.replace(clock, &format!("{other}-{space}"));
    let sum = text.bytes().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (0xEDB8_8320 * (sum & 1)))
    });
    format!("{text}.{:08x}", !sum)
}

#[test]
fn slow_lost_lock_is_reported_by_the_next_step() {
    let (masters, redlock, list) = start();
    let scene = Scene::new("step-lost", list);
    // Expired.
    for command in ["renew", "unlock"] {
        scene.lock(&["--ttl", "1s"]);
        soon("it has expired", || is_free(&masters));
        let next = redlock.try_lock("r", TTL).unwrap();
        let (code, _, err) = scene.tool(&[command, &scene.file]);
        assert_eq!((code, err.as_str()), (120, "muxlock: lost r: it had expired\n"));
        assert_eq!(scene.has_file(), command == "renew");
        assert!(next.unlock().unwrap().was_held(), "the next holder keeps it");
    }
    // Taken away.
    for command in ["renew", "unlock"] {
        scene.lock(&["--ttl", "30s"]);
        masters.iter().for_each(|master| drop(master.query(&[b"DEL", b"r"]).unwrap()));
        let next = redlock.try_lock("r", TTL).unwrap();
        let (code, _, err) = scene.tool(&[command, &scene.file]);
        assert_eq!((code, err.as_str()), (120, "muxlock: lost r: too few masters still had it\n"));
        assert!(next.unlock().unwrap().was_held(), "the next holder keeps it");
        if command == "renew" {
            assert_eq!(scene.unlock().0, 120, "the file tells it again");
        }
    }
    // Released by a command that was killed before it could remove the file.
    scene.lock(&["--ttl", "30s"]);
    masters.iter().for_each(|master| drop(master.query(&[b"DEL", b"r"]).unwrap()));
    fs::write(&scene.file, scene.text() + "held=\n").unwrap();
    assert_eq!(scene.renew(&[]), (120, "muxlock: lost r: it was released\n".into()));
    assert!(is_free(&masters), "it is not taken again");
    assert_eq!(scene.unlock().0, 0);
    assert!(scene.files().is_empty());
}

#[test]
fn renewed_lock_lasts_longer() {
    let (mut masters, _redlock, list) = start();
    let scene = Scene::new("step-renew", list);
    scene.lock(&["--ttl", "20s"]);
    let (secret, before) = (scene.field("lock"), left(&masters[0]));
    let (code, err) = scene.renew(&["--ttl", "29s"]);
    assert!(code == 0 && err.starts_with("muxlock: r is locked for another "), "{err}");
    assert!(left(&masters[0]) > before);
    let renewed: LockParts = scene.field("lock").parse().unwrap();
    assert_eq!(renewed.token(), secret.parse::<LockParts>().unwrap().token());
    assert_ne!(scene.field("lock"), secret);
    let (code, err) = scene.renew(&["--ttl", "31s"]);
    assert!(code == 125 && err.starts_with("muxlock: ttl is 31s: it can be max-ttl"), "{err}");
    // Without a quorum it is held until its end.
    masters[1].kill().unwrap();
    masters[2].kill().unwrap();
    let (code, err) = scene.renew(&[]);
    assert!(code == 122 && err.starts_with("muxlock: r was not extended, and is locked "), "{err}");
    let (code, err) = scene.unlock();
    assert!(code == 122 && err.starts_with("muxlock: the release is not confirmed: "), "{err}");
    assert!(scene.has_file(), "to try again");
    let other = scene.folder.0.join("other");
    let (code, _, err) = scene.tool(&["lock", "s", "--to", other.to_str().unwrap()]);
    assert!(code == 122 && err.starts_with("muxlock: unavailable: "), "{err}");
    assert_eq!(scene.files(), ["lock"]);
}

#[test]
fn frozen_master_holds_up_no_step() {
    let (masters, _redlock, list) = start();
    let scene = Scene::new("step-frozen", list);
    masters[2].freeze().unwrap();
    for keep in [&[][..], &["--keep", "1m"]] {
        scene.lock(&[&["--ttl", "30s"], keep].concat());
        if keep.is_empty() {
            let (code, err) = scene.renew(&[]);
            assert_eq!(code, 0, "{err}");
        }
        assert_eq!(scene.unlock(), (0, "muxlock: r is unlocked\n".into()));
        let is_gone = |it: &Master| it.value_of(b"r").unwrap().is_none();
        soon("it is free", || is_gone(&masters[0]) && is_gone(&masters[1]));
    }
}

#[test]
fn slow_renewer_renews_the_lock_until_the_next_step() {
    let (masters, redlock, list) = start();
    let scene = Scene::new("step-keep", list);
    // It has no pipe of this test: the call would wait for it.
    let (out, err) = scene.lock(&["--keep", "1h", "--ttl", "2s"]);
    let words = format!("r is locked for up to 1h; to unlock: muxlock unlock {}", scene.file);
    assert_eq!((out, err), (String::new(), format!("muxlock: {words}\n")));
    let renewer = scene.renewer();
    let own = fs::read_to_string(format!("/proc/{renewer}/stat")).unwrap();
    let fields: Vec<&str> = own.rsplit_once(") ").unwrap().1.split(' ').collect();
    let session = renewer.to_string();
    assert_eq!(fields[2..5], [session.as_str(), &session, "0"], "group, session, terminal");
    assert_eq!(fs::read_link(format!("/proc/{renewer}/cwd")).unwrap(), Path::new("/"));
    for number in 0..3 {
        // It closes its pipe when it has reported.
        let link = format!("/proc/{renewer}/fd/{number}");
        soon("it is closed", || fs::read_link(&link).unwrap() == Path::new("/dev/null"));
    }
    for _ in 0..4 {
        wait_for_renewal(&masters);
    }
    assert!(redlock.try_lock("r", TTL).is_err());
    let (code, err) = scene.renew(&[]);
    let words = format!("{}: process {renewer} renews the lock already", scene.file);
    assert_eq!((code, err), (125, format!("muxlock: {words}\n")));
    assert_eq!(scene.unlock(), (0, "muxlock: r is unlocked\n".into()));
    assert!(is_free(&masters) && scene.files().is_empty());
    soon("the renewer has ended", || !is_alive(renewer));
}

/// The renewer has given the lock up, so nothing is left to try again.
#[test]
fn file_of_a_renewer_is_removed_even_if_its_release_is_not_confirmed() {
    let (mut masters, _redlock, list) = start();
    let scene = Scene::new("step-unconfirmed", list);
    scene.lock(&["--keep", "1h", "--ttl", "20s"]);
    let renewer = scene.renewer();
    masters[1].kill().unwrap();
    masters[2].kill().unwrap();
    let (code, err) = scene.unlock();
    assert!(code == 122 && err.starts_with("muxlock: the release is not confirmed: "), "{err}");
    assert!(scene.files().is_empty());
    soon("the renewer has ended", || !is_alive(renewer));
}

/// One that a test has inherited, as a step has pipes of its runner.
#[test]
fn renewer_has_no_descriptor_of_the_step() {
    let (_masters, _redlock, list) = start();
    let scene = Scene::new("step-pipes", list);
    let tool = tool(&scene.list, &["lock", "r", "--to", &scene.file, "--keep", "30s"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 7>&1 8>&2; exec \"$0\" \"$@\""]).arg(tool.get_program());
    shell.args(tool.get_args());
    shell.envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // It ends when both pipes have.
    let (code, _, err) = run(shell.env_remove("MUXLOCK_CONFIG").stdin(Stdio::null()));
    assert_eq!(code, 0, "{err}");
    assert!(is_alive(scene.renewer()));
    assert_eq!(scene.unlock().0, 0);
}

#[test]
fn slow_killed_renewer_leaves_the_lock_to_its_text() {
    let (masters, redlock, list) = start();
    let scene = Scene::new("step-killed", list);
    scene.lock(&["--keep", "1h", "--ttl", "30s"]);
    let renewer = scene.renewer();
    signal("KILL", renewer);
    soon("the renewer has ended", || !is_alive(renewer));
    assert_eq!(scene.unlock(), (0, "muxlock: r is unlocked\n".into()));
    assert!(is_free(&masters));

    // The first validity is over: it is unknown whether the lock was held.
    scene.lock(&["--keep", "1h", "--ttl", "2s"]);
    let renewer = scene.renewer();
    for _ in 0..4 {
        wait_for_renewal(&masters);
    }
    signal("KILL", renewer);
    soon("the renewer has ended", || !is_alive(renewer));
    let (code, err) = scene.unlock();
    let words = format!("process {renewer}, which renewed the lock, was killed");
    assert_eq!(err, format!("muxlock: {words}\nmuxlock: lost r: it had expired\n"));
    assert!(code == 120 && scene.files().is_empty());
    soon("it is free", || redlock.try_lock("r", TTL).is_ok());
}

/// A command that has opened the file before must not release the lock of a file that is gone: its
/// path may have another lock by then.
#[test]
fn file_that_is_removed_during_the_wait_is_not_unlocked() {
    let (masters, redlock, list) = start();
    let scene = Scene::new("step-gone", list);
    scene.lock(&["--keep", "1h", "--ttl", "30s"]);
    let renewer = scene.renewer();
    signal("STOP", renewer);
    let unlock = Running::start(&mut tool(&scene.list, &["unlock", &scene.file]));
    soon("it has asked for the lock", || scene.text().ends_with("\nunlock\n"));
    fs::remove_file(&scene.file).unwrap();
    signal("KILL", renewer);
    let (code, _, err) = unlock.end();
    assert!(code == 125 && err.contains(" is missing: "), "{err}");
    assert!(!is_free(&masters) && redlock.try_lock("r", TTL).is_err());
}

#[test]
fn slow_renewer_ends_by_time_signal_removal_and_loss() {
    let (masters, redlock, list) = start();
    let scene = Scene::new("step-ends", list);
    let lost = |why: &str| {
        let (code, err) = scene.unlock();
        assert_eq!((code, err), (120, format!("muxlock: lost r: {why}\n")));
        assert!(scene.files().is_empty());
    };
    // Long before the TTL.
    scene.lock(&["--keep", "100ms", "--ttl", "3s"]);
    let renewer = scene.renewer();
    within(TTL, "the renewer has ended", || !is_alive(renewer));
    assert!(is_free(&masters));
    lost("--keep has passed, and it was released");

    for name in ["TERM", "INT", "HUP"] {
        scene.lock(&["--keep", "1h", "--ttl", "30s"]);
        signal(name, scene.renewer());
        soon("it is free", || is_free(&masters));
        lost("a signal ended the process that renewed it");
    }

    // As with `nohup`.
    let lock = tool(&scene.list, &["lock", "r", "--to", &scene.file, "--keep", "1h"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(lock.get_program());
    shell.args(lock.get_args());
    shell.envs(lock.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_eq!(run(&mut shell).0, 0);
    signal("HUP", scene.renewer());
    // It looks for signals each 100 ms.
    pause(Duration::from_millis(150));
    assert_eq!(scene.unlock().0, 0);

    scene.lock(&["--keep", "1h", "--ttl", "30s"]);
    let renewer = scene.renewer();
    fs::remove_file(&scene.file).unwrap();
    soon("it is free", || is_free(&masters));
    soon("the renewer has ended", || !is_alive(renewer));
    assert_eq!(scene.unlock().0, 125);

    scene.lock(&["--keep", "1h", "--ttl", "2s"]);
    let renewer = scene.renewer();
    masters.iter().for_each(|master| drop(master.query(&[b"DEL", b"r"]).unwrap()));
    let next = redlock.try_lock("r", TTL).unwrap();
    within(TTL, "the renewer has ended", || !is_alive(renewer));
    assert_eq!(scene.renew(&[]).0, 120);
    let (code, err) = scene.unlock();
    assert!(code == 120 && err.starts_with("muxlock: lost r: "), "{err}");
    assert!(next.unlock().unwrap().was_held(), "the next holder keeps it");
}

#[test]
fn one_of_two_unlocks_wins() {
    let (masters, _redlock, list) = start();
    let scene = Scene::new("step-two", list);
    for keep in [&[][..], &["--keep", "1h"]] {
        scene.lock(&[&["--ttl", "30s"], keep].concat());
        let both =
            [(); 2].map(|()| Running::start(&mut tool(&scene.list, &["unlock", &scene.file])));
        let mut codes = both.map(|it| it.end().0);
        codes.sort_unstable();
        assert_eq!(codes, [0, 125]);
        assert!(is_free(&masters));
    }
}

/// Success needs a look at the clock after everything else, which may take long.
#[test]
fn slow_lock_that_expires_before_it_is_handed_over_is_not_reported() {
    let (masters, _redlock, list) = start();
    let scene = Scene::new("step-late", list);
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    // The tool has to wait for room.
    while theirs.write(&[0; 4096]).is_ok() {}
    theirs.set_nonblocking(false).unwrap();
    let args = ["lock", "r", "--to", &scene.file, "--fenced", "--ttl", "2s"];
    let mut command = tool(&scene.list, &args);
    let child = command.stdout(OwnedFd::from(theirs)).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    soon("the lock is in its file", || scene.has_file());
    within(TTL, "it has expired", || is_free(&masters));
    ours.read_to_end(&mut Vec::new()).unwrap();
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(122), "{err}");
    assert_eq!(err, "muxlock: unavailable: the quorum came too late, with 0.0 s left\n");
    assert!(scene.files().is_empty());
}

/// A step that is cancelled while it waits leaves nothing.
#[test]
fn signal_ends_the_wait_for_a_lock() {
    let (_masters, redlock, list) = start();
    let scene = Scene::new("step-wait", list);
    let held = take(&redlock);
    let args = ["lock", "r", "--to", &scene.file, "--wait", "1h"];
    let waiting = Running::start(&mut tool(&scene.list, &args));
    soon("it has a place for its file", || scene.files().len() == 1);
    assert!(!scene.has_file());
    signal_once_caught(&waiting);
    assert_eq!(waiting.end().0, 143);
    assert!(scene.files().is_empty());
    assert!(held.unlock().unwrap().was_held());
}

/// A step that is cancelled before the renewer is ready is not reported as a failure.
#[test]
fn slow_signal_ends_the_start_of_a_renewer() {
    let (masters, _redlock, list) = start();
    let scene = Scene::new("step-start", list);
    // Each process that reads the settings waits for somebody to write them.
    let settings = scene.folder.0.join("settings");
    assert!(Command::new("mkfifo").arg(&settings).status().unwrap().success());
    // Other pipes than those of a shell are refused.
    let config = format!("/proc/self/fd/../../..{}", settings.display());
    let args = ["lock", "r", "--to", &scene.file, "--keep", "1h", "--config", &config];
    let locking = Running::start(&mut tool(&scene.list, &args));
    fs::write(&settings, "prefix = \"\"\n").unwrap();
    soon("it waits for its renewer", || children(locking.id()).len() == 1);
    signal_once_caught(&locking);
    let (code, out, err) = locking.end();
    assert_eq!((code, out, err), (143, String::new(), String::new()));
    assert!(is_free(&masters));
    assert_eq!(scene.files(), ["settings"]);
}

fn take(redlock: &Redlock) -> muxlock::LockGuard {
    redlock.try_lock("r", Duration::from_secs(30)).unwrap()
}

/// SIGTERM, once the process handles it.
fn signal_once_caught(process: &Running) {
    let status = format!("/proc/{}/status", process.id());
    soon("it handles SIGTERM", || {
        let status = fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 14) != 0
    });
    signal("TERM", process.id());
}
