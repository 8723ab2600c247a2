//! Settings that the tool and a service share, on real masters.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use muxlock::Builder;
use muxlock::testing::{Masters, Value as Answer};
use testbed::{Folder, TTL, ask, soon};

use crate::cli::{muxlock, run, start};
use crate::run::{Running, first_line, unhurried};

/// Names the process of the service.
const SERVICE: &str = "SETTINGS_TEST_SERVICE";

/// The service, in a process of its own: a test sets the variables of this process only.
#[test]
fn service_takes_its_settings_from_the_environment() {
    if env::var_os(SERVICE).is_none() {
        return;
    }
    let redlock = Builder::from_env().unwrap().connect().unwrap();
    println!("ready");
    let mut lines = std::io::stdin().lines().map(Result::unwrap);
    while let Some(line) = lines.next() {
        match redlock.try_lock("deploy", TTL) {
            Ok(lock) => {
                println!("held {line}");
                lines.next();
                assert!(lock.unlock().unwrap().was_held());
                println!("released");
            }
            Err(error) => println!("contended {}", error.is_contended()),
        }
    }
}

#[test]
fn service_and_tool_exclude_each_other() {
    let masters = Masters::start_with(3, &["--requirepass", "se@cret"]).unwrap();
    let folder = Folder::create("settings-service");
    let secret = folder.0.join("secret");
    fs::write(&secret, "se@cret\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let list: Vec<_> = masters.iter().map(|it| format!("redis://{}", it.addr())).collect();
    let with_settings = |command: &mut Command| {
        command.env("MUXLOCK_NODES", list.join(" ")).env("MUXLOCK_PASSWORD_FILE", &secret);
        command.env("MUXLOCK_NODE_TIMEOUT", "2s").env("MUXLOCK_CONNECT_TIMEOUT", "20s");
        command.env("MUXLOCK_RESTART_GUARD", "off").env("MUXLOCK_PREFIX", "app:");
    };
    let mut service = Command::new(env::current_exe().unwrap());
    service.args(["--exact", "settings::service_takes_its_settings_from_the_environment"]);
    with_settings(service.args(["--nocapture"]).env(SERVICE, "1"));
    let mut service = Running::start(service.stdin(Stdio::piped()));
    let mut said = BufReader::new(service.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut expect = |word: &str| {
        let found = said.find(|line| line.ends_with(word));
        assert!(found.is_some(), "the service has ended before {word:?}");
    };
    let mut input = service.0.stdin.take().unwrap();
    expect("ready");
    let job = |args: &[&str]| {
        let mut command = muxlock(&["run"]);
        with_settings(command.args(args));
        command
    };

    input.write_all(b"one\n").unwrap();
    expect("held one");
    let (code, _, err) = run(&mut job(&["deploy", "true"]));
    assert!(code == 121 && err.contains("contended"), "{err}");
    input.write_all(b"\n").unwrap();
    expect("released");
    let mut tool =
        Running::start(job(&["deploy", "-c", "echo held; read x"]).stdin(Stdio::piped()));
    assert_eq!(first_line(&mut tool.0), "held");
    input.write_all(b"two\n").unwrap();
    expect("contended true");
    tool.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(tool.end(), (0, String::new(), String::new()));
    drop(input);
    assert!(service.0.wait().unwrap().success());
}

/// The same process, after its connections ended.
#[test]
fn service_reads_a_password_file_again() {
    let masters = Masters::start(3).unwrap();
    let folder = Folder::create("settings-rotated");
    let secret = folder.0.join("secret");
    let each = |words: &[&str]| masters.iter().for_each(|it| drop(ask(it, words)));
    each(&["ACL", "SETUSER", "locker", "on", ">one", "~*", "&*", "+@all"]);
    fs::write(&secret, "one").unwrap();
    let list: Vec<_> = masters.iter().map(|it| it.url()).collect();
    let mut service = Command::new(env::current_exe().unwrap());
    service.args(["--exact", "settings::service_takes_its_settings_from_the_environment"]);
    // Relative to the folder in which it starts.
    service.current_dir(&folder.0).env("MUXLOCK_PASSWORD_FILE", "secret");
    service.env("MUXLOCK_USER", "locker").env("MUXLOCK_NODES", list.join(" "));
    service.env("MUXLOCK_RESTART_GUARD", "off").env("MUXLOCK_CONNECT_TIMEOUT", "20s");
    service.env("MUXLOCK_NODE_TIMEOUT", "2s").arg("--nocapture").env(SERVICE, "1");
    let mut service = Running::start(service.stdin(Stdio::piped()));
    let mut said = BufReader::new(service.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut input = service.0.stdin.take().unwrap();
    assert!(said.any(|line| line.ends_with("ready")));
    each(&["ACL", "SETUSER", "locker", ">two"]);
    fs::write(&secret, "two").unwrap();
    each(&["ACL", "SETUSER", "locker", "<one"]);
    each(&["CLIENT", "KILL", "USER", "locker"]);
    soon("it locks again", || {
        input.write_all(b"one\n").unwrap();
        let is_held = said.next().unwrap() == "held one";
        if is_held {
            input.write_all(b"\n").unwrap();
            assert_eq!(said.next().unwrap(), "released");
        }
        is_held
    });
    drop(input);
    assert!(service.0.wait().unwrap().success());
}

/// Flags count before the table `[run]` of the file.
#[test]
fn defaults_of_run_come_from_the_file() {
    let (masters, redlock, list) = start();
    let folder = Folder::create("settings-run");
    let path = folder.0.join("muxlock.toml");
    let file = |text: &str| fs::write(&path, format!("restart_guard = \"off\"\n{text}")).unwrap();
    let job = |args: &[&str]| {
        let mut command = unhurried(&list, args);
        run(command.env("MUXLOCK_CONFIG", &path))
    };
    file("[run]\nconflict_exit_code = 7\nttl = \"20s\"\n");
    let lock = redlock.try_lock("deploy", TTL).unwrap();
    assert_eq!(job(&["deploy", "true"]).0, 7);
    assert_eq!(job(&["-E", "9", "deploy", "true"]).0, 9);
    assert!(lock.unlock().unwrap().was_held());
    let mut command = unhurried(&list, &["deploy", "-c", "echo held; read x"]);
    let command = command.env("MUXLOCK_CONFIG", &path).stdin(Stdio::piped());
    let mut tool = Running::start(command);
    assert_eq!(first_line(&mut tool.0), "held");
    let left = masters[0].query(&[b"PTTL", b"deploy"]).unwrap();
    assert!(matches!(left, Answer::Integer(10_001..=20_000)), "{left:?}");
    drop(tool.0.stdin.take());
    assert_eq!(tool.end().0, 1, "read finds the end of the input");

    file("\n[run]\nwiat = \"1s\"\n");
    let (code, _, err) = job(&["deploy", "true"]);
    let text =
        format!("muxlock: {}, line 4: wiat is not known; did you mean wait?\n", path.display());
    assert_eq!((code, err), (125, text));
    file("[run]\nttl = 5\n");
    let (code, _, err) = job(&["--ttl", "3s", "deploy", "true"]);
    assert!(code == 125 && err.contains("line 3: ttl is \"5\": it has no unit"), "{err}");
}
