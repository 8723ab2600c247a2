//! The command-line tool on real masters: what it prints, and its exit codes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use muxlock::Redlock;
use muxlock::settings::RestartGuard;
use muxlock::testing::{Master, Masters, Value as Answer};
use serde_json::{Value, json};
use testbed::{Folder, TTL, all_ready, patient, soon};

/// The tool, without the settings of the user who runs the test.
pub fn muxlock(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muxlock"));
    let mine = std::env::vars_os().map(|(name, _)| name);
    mine.filter(|name| name.to_string_lossy().starts_with("MUXLOCK_")).for_each(|name| {
        command.env_remove(name);
    });
    command.args(args).env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null());
    command
}

/// The tool on these masters, where none is slow on purpose: a busy machine may be.
pub fn unhurried(list: &str, args: &[&str]) -> Command {
    let mut command = muxlock(args);
    command.env("MUXLOCK_NODES", list);
    with_patience(&mut command);
    command
}

fn with_patience(command: &mut Command) -> &mut Command {
    command.env("MUXLOCK_NODE_TIMEOUT", "2s").env("MUXLOCK_CONNECT_TIMEOUT", "10s")
}

#[track_caller]
pub fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("it writes UTF-8");
    (status.code().expect("it exits"), text(stdout), text(stderr))
}

/// How a client of this machine is shown, up to its start.
pub fn client(pid: u32, command: &str) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.or_else(|_| std::env::var("HOSTNAME")).unwrap_or_default();
    format!("{} pid {pid} ({command}), started ", host.trim_end())
}

/// How a client of this test is shown, up to its start.
pub fn this_client() -> String {
    let program = std::env::args_os().next().unwrap();
    let name = Path::new(&program).file_name().unwrap();
    client(std::process::id(), name.to_str().unwrap())
}

pub fn start() -> (Masters, Redlock, String) {
    let masters = Masters::start(3).unwrap();
    let redlock = all_ready(&patient(masters.urls()).restart_guard(RestartGuard::Off));
    let list = masters.urls().join(",");
    (masters, redlock, list)
}

#[test]
fn inspect_shows_who_holds_a_lock_and_exits_accordingly() {
    let (mut masters, redlock, list) = start();
    let inspect = |more: &[&str]| run(unhurried(&list, &["inspect", "deploy"]).args(more));
    let (code, out, err) = inspect(&[]);
    assert_eq!((code, err.as_str()), (1, ""), "{out}");
    assert!(out.ends_with("\ndeploy is free\n") && out.lines().count() == 4, "{out}");

    let lock = redlock.try_lock("deploy", TTL).unwrap();
    assert_eq!(redlock.shutdown(TTL), 0);
    let holder = lock.token().fingerprint().to_string();
    let (code, out, _) = inspect(&[]);
    assert_eq!(code, 0, "{out}");
    let held = format!("deploy is held by {holder} on 3 of 3; free for others in ");
    let last = out.lines().last().unwrap();
    assert!(last.starts_with(&held), "{out}");
    assert!(last.ends_with(" s at the latest unless renewed"), "{out}");
    for (line, master) in out.lines().zip(masters.iter()) {
        assert!(line.starts_with(&format!("{}  {holder}  ", master.addr())), "{line}");
    }
    // The tag is public, like the fingerprint.
    let token = lock.token().as_bytes();
    let secret = std::str::from_utf8(&token[8..32]).unwrap();
    let told = format!("\n{holder}: {}", this_client());
    assert!(out.contains(&told) && !out.contains(secret), "{out}");

    let (code, out, _) = inspect(&["--json"]);
    let json: Value = serde_json::from_str(&out).expect("it is JSON");
    assert_eq!((code, json["holder"].as_str()), (0, Some(holder.as_str())));
    assert!(json["free_in_ms"].as_u64().is_some_and(|ms| ms > 0), "{json}");
    assert_eq!(json["nodes"].as_array().unwrap().len(), 3);
    let node = &json["nodes"][2];
    assert_eq!((&node["state"], &node["said"]), (&"held".into(), &"held".into()));
    assert!(lock.unlock().unwrap().was_held());

    masters[0].query(&[b"SET", b"deploy", b"0123456789abcdef01234567", b"PX", b"20000"]).unwrap();
    let (code, out, _) = inspect(&[]);
    let last = out.lines().last().unwrap();
    assert!(
        code == 1 && last.starts_with("deploy is free; leftovers on 1 of 3, gone in "),
        "{out}"
    );
    masters[1].query(&[b"SET", b"deploy", b"ab0123456789abcdef012345", b"PX", b"20000"]).unwrap();
    let (code, out, _) = inspect(&[]);
    let last = out.lines().last().unwrap();
    let split = "deploy is split: 2 of 3 have a key, and no holder a quorum";
    assert_eq!((code, last), (1, split));

    masters[1].kill().unwrap();
    masters[2].kill().unwrap();
    let (code, out, _) = inspect(&[]);
    let last = out.lines().last().unwrap();
    assert_eq!((code, last), (3, "unknown: only 1 of 3 masters answered"), "{out}");
    assert!(out.contains("  disconnected (connection refused)\n"), "{out}");
}

/// Clients that wait, one that has ended, something else in the list, and more than are shown.
#[test]
fn inspect_shows_how_many_share_a_resource() {
    let (masters, redlock, list) = start();
    let inspect = |more: &[&str]| run(unhurried(&list, &["inspect", "deploy"]).args(more));
    let shares = [(); 2].map(|()| redlock.try_read("deploy", TTL).unwrap());
    assert_eq!(redlock.shutdown(TTL), 0);
    // One that is over counts for nothing.
    masters[0].query(&[b"ZADD", b"deploy", b"1", b"over"]).unwrap();
    let (code, out, err) = inspect(&[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.ends_with("\ndeploy has read locks on 3 of 3\n"), "{out}");
    for (line, master) in out.lines().zip(masters.iter()) {
        assert!(line.starts_with(&format!("{}  2 read locks  ", master.addr())), "{line}");
    }
    let (code, out, _) = inspect(&["--json"]);
    let json: Value = serde_json::from_str(&out).expect("it is JSON");
    let node = &json["nodes"][0];
    assert_eq!(
        (code, &node["read_locks"], &node["state"]),
        (0, &2.into(), &"held".into()),
        "{json}"
    );
    assert!(node["expires_in_ms"].as_u64().is_some_and(|ms| ms > 0), "{json}");
    drop(shares);
    let (code, out, _) = inspect(&[]);
    assert!(
        code == 1 && out.ends_with("deploy is free; leftovers on 1 of 3, gone in 0.0 s\n")
            || out.ends_with("deploy is free\n"),
        "{out}"
    );
    // A sorted set without an end is no lock's.
    for master in masters.iter() {
        master.query(&[b"DEL", b"deploy"]).unwrap();
        master.query(&[b"ZADD", b"deploy", b"1", b"theirs"]).unwrap();
    }
    let (code, out, _) = inspect(&[]);
    assert!(code == 1 && out.contains("  a value of another type\n"), "{out}");
}

#[test]
fn inspect_shows_the_queue_and_who_of_it_listens() {
    let (masters, redlock, list) = start();
    let inspect = |more: &[&str]| run(unhurried(&list, &["inspect", "deploy"]).args(more));
    let lock = redlock.try_lock("deploy", TTL).unwrap();
    let waiter = all_ready(&patient(masters.urls()));
    let queue = "deploy:muxlock:queue";
    let length = |master: &Master| tell_number(master, &["LLEN", queue]);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(waiter.try_lock_for("deploy", TTL, TTL).unwrap()));
        soon("it waits", || masters.iter().any(|master| length(master) == 1));
        let gate = masters.iter().position(|master| length(master) == 1).unwrap();
        let entries = masters[gate].query(&[b"LRANGE", queue.as_bytes(), b"0", b"0"]).unwrap();
        let Answer::Array(entries) = entries else { panic!("{entries:?}") };
        let Answer::Bulk(channel) = &entries[0] else { panic!("{entries:?}") };
        let channel = str::from_utf8(channel).unwrap();
        let ended = "muxlock:00000000000000000000";
        let secret = str::from_utf8(lock.token().as_bytes()).unwrap();
        tell_number(&masters[gate], &["RPUSH", queue, ended, secret]);

        let (code, out, err) = inspect(&[]);
        let address = masters[gate].addr();
        let first =
            format!("\nqueue on {address}: 3\n  0  {channel}  listening  {}", this_client());
        let rest = format!(
            ", from 127.0.0.1\n  1  {ended}  not listening\n  \
             2  another client library  not listening\ndeploy is held by "
        );
        let shown = code == 0 && err.is_empty() && out.contains(&first) && out.contains(&rest);
        assert!(shown, "{out}");
        assert_eq!(out.matches("queue on").count(), 1, "the others have none: {out}");
        let (_, out, _) = inspect(&["--json"]);
        let json: Value = serde_json::from_str(&out).expect("it is JSON");
        let mut listed = json["nodes"][gate]["queue"].clone();
        let client = listed["entries"][0]["client"].take();
        assert_eq!(
            (&client["pid"], &client["address"]),
            (&std::process::id().into(), &"127.0.0.1".into())
        );
        let expected = json!({"length": 3, "more": 0, "entries": [
            {"position": 0, "channel": channel, "client": null, "listens": true},
            {"position": 1, "channel": ended, "client": null, "listens": false},
            {"position": 2, "channel": null, "client": null, "listens": false},
        ]});
        assert_eq!(listed, expected);
        assert_eq!(json["nodes"][(gate + 1) % 3]["queue"]["length"], 0);
        assert!(!out.contains(secret));

        for _ in 0..10 {
            tell_number(&masters[gate], &["RPUSH", queue, ended]);
        }
        let (_, out, _) = inspect(&[]);
        assert!(out.contains("  9  ") && !out.contains("  10  "), "{out}");
        assert!(out.contains("\n  and 3 more\ndeploy is held by "), "{out}");
        assert_eq!(length(&masters[gate]), 13, "nothing was changed");
        // A user without the right to read it is told so, and the rest.
        masters[gate].query(&[b"ACL", b"SETUSER", b"default", b"-lrange"]).unwrap();
        let (code, out, _) = inspect(&[]);
        let refused = format!("\nqueue on {address}: unknown: it refused: NOPERM\ndeploy is held");
        assert!(code == 0 && out.contains(&refused), "{out}");
        assert!(lock.unlock().unwrap().was_held());
    });
    waiter.shutdown(TTL);
    let (_, out, _) = inspect(&["--json"]);
    let json: Value = serde_json::from_str(&out).expect("it is JSON");
    let nodes = json["nodes"].as_array().unwrap().iter();
    assert!(nodes.clone().all(|node| node["queue"]["length"] == 0), "{json}");
}

fn tell_number(master: &Master, words: &[&str]) -> i64 {
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    match master.query(&words).unwrap() {
        Answer::Integer(number) => number,
        other => panic!("{other:?}"),
    }
}

#[test]
fn inspect_watches_and_writes_a_line_for_each_change() {
    let (_masters, redlock, list) = start();
    let mut command = unhurried(&list, &["inspect", "--watch=100ms", "deploy"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "deploy is free");
    let lock = redlock.try_lock("deploy", TTL).unwrap();
    let line = lines.find(|line| line.contains(" on 3 of 3")).unwrap();
    assert!(line.contains(&lock.token().fingerprint().to_string()), "{line}");
    assert!(lock.unlock().unwrap().was_held());
    assert!(lines.any(|line| line == "deploy is free"));
    // Closing the output ends it.
    drop(lines);
    drop(redlock.try_lock("deploy", TTL).unwrap());
    drop(redlock.try_lock_for("deploy", TTL, TTL).unwrap());
    let _keep = redlock.try_lock_for("deploy", TTL, TTL).unwrap();
    soon("it ends", || child.try_wait().unwrap().is_some());
}

/// Flag, variable, file: the first that has a value counts. Nodes without credentials get those of
/// the file.
#[test]
fn settings_come_from_flags_variables_and_a_file() {
    let masters = Masters::start_with(3, &["--requirepass", "se cret"]).unwrap();
    let folder = Folder::create("cli");
    let (file, secret) = (folder.0.join("config.toml"), folder.0.join("secret"));
    let url = |i: usize| format!("redis://{}", masters[i].addr());
    fs::write(&secret, "se cret\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!(
        "nodes = [{:?}, {:?}, {:?}]\npassword_file = {:?}\nprefix = \"app:\"\nmax_ttl = \"1m\"\n\
         restart_guard = \"off\"\n",
        url(0),
        url(1),
        url(2),
        secret
    );
    fs::write(&file, text).unwrap();
    for i in 0..3 {
        masters[i].query(&[b"SET", b"app:deploy", b"0123456789abcdef01234567"]).unwrap();
        masters[i].query(&[b"SET", b"other:deploy", b"ab0123456789abcdef012345"]).unwrap();
    }
    let file = file.to_str().unwrap();
    let inspect = |command: &mut Command| {
        let (code, out, err) = run(with_patience(command));
        assert_eq!((code, err.as_str()), (0, ""), "{out}{err}");
        out.lines().last().unwrap().to_owned()
    };
    let with_file = || muxlock(&["inspect", "deploy", "--config", file]);
    assert!(inspect(&mut with_file()).starts_with("deploy is held by 01234567 on 3 of 3"));
    let mut command = muxlock(&["inspect", "deploy"]);
    assert!(inspect(command.env("MUXLOCK_CONFIG", file)).contains("held by 01234567 "));
    let mut command = with_file();
    assert!(inspect(command.env("MUXLOCK_PREFIX", "other:")).contains("held by ab012345 "));
    let mut command = with_file();
    command.env("MUXLOCK_PREFIX", "none:").args(["--prefix", "app:"]);
    assert!(inspect(&mut command).contains("held by 01234567 "));

    // The password for the addresses of a flag or variable.
    let more = ["--prefix", "app:", "--restart-guard", "off"];
    let list = [0, 1, 2].map(url).join(" ");
    let without_file = |more_args: &[&str]| {
        let mut command = muxlock(&["inspect", "deploy"]);
        command.args(more).args(more_args).env("MUXLOCK_NODES", &list);
        command
    };
    let secret = secret.to_str().unwrap();
    let mut command = without_file(&["--password-file", secret]);
    assert!(inspect(&mut command).contains("held by 01234567 "));
    let mut command = without_file(&["--user", "default"]);
    let command = command.env("MUXLOCK_PASSWORD_FILE", secret);
    assert!(inspect(command).contains("held by 01234567 "));
    let (code, out, _) = run(with_patience(&mut without_file(&["--config", file])));
    assert!(code == 3 && out.contains("not authenticated"), "{out}");
}

/// The file of the Debian package sets nothing as it is, and all its settings are known.
#[test]
fn packaged_file_is_read_as_it_is_and_without_its_marks() {
    let (masters, _, list) = start();
    let packed = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/muxlock.toml");
    let (code, out, err) = run(&mut muxlock(&["inspect", "deploy", "--config", packed]));
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.starts_with("muxlock: no masters: "), "{err}");

    let folder = Folder::create("cli-packaged");
    let (file, secret) = (folder.0.join("muxlock.toml"), folder.0.join("secret"));
    fs::write(&secret, "sesame").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let secret = secret.to_str().unwrap();
    let text = fs::read_to_string(packed).unwrap();
    let settings = text.lines().filter_map(|line| line.strip_prefix('#'));
    let settings: Vec<&str> = settings
        .filter(|line| line.starts_with(|first: char| first == '[' || first.is_ascii_lowercase()))
        .collect();
    assert_eq!(settings.len(), 17, "{settings:?}");
    fs::write(&file, settings.join("\n").replace("/run/secrets/redis", secret)).unwrap();
    let mut command = unhurried(&list, &["inspect", "deploy", "--config", file.to_str().unwrap()]);
    let (code, out, err) = run(&mut command);
    assert_eq!((code, err.as_str()), (1, ""), "{out}");
    assert!(out.ends_with("\ndeploy is free\n"), "{out}");
    drop(masters);
}

#[test]
fn bad_input_is_named_and_nothing_is_done() {
    let folder = Folder::create("cli-bad");
    let file = |name: &str, text: &str| {
        let path = folder.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let node = ["--node", "redis://127.0.0.1:1"];
    let unknown = file("unknown.toml", "nodes = []\n\nnode_timout = \"1s\"\n");
    let broken = file("broken.toml", "nodes = [\n\"redis://h\"\nprefix = 1\n");
    let number = file("number.toml", "nodes = [\"redis://127.0.0.1:1\"]\nnode_timeout = 50\n");
    let unit = file("unit.toml", "nodes = [\"redis://127.0.0.1:1\"]\nnode_timeout = \"50\"\n");
    let user = file("user.toml", "nodes = [\"redis://127.0.0.1:1\"]\nuser = \"u\"\n");
    let path = |text: &str| text.replace("DIR", folder.0.to_str().unwrap());
    let secret = file("secret.toml", "\"redis://:sesame@h\" = 1\n");
    let guard = file("guard.toml", "restart_guard = \"redis://:sesame@h\"\n");
    let table: [(Vec<&str>, String); 14] = [
        (
            vec!["deploy"],
            "muxlock: no masters: give --node, MUXLOCK_NODES or a file (/etc/muxlock.toml)\n"
                .into(),
        ),
        (vec!["deploy", "--node", "redis://u:sesame@h:x"], "the port is not a number".into()),
        (
            vec!["", node[0], node[1]],
            "the resource name has 0 bytes: it must have 1 to 1024".into(),
        ),
        (
            vec!["deploy", node[0], node[1], "--node-timeout", "10"],
            "it has no unit: write 10s or 10ms".into(),
        ),
        (
            vec!["deploy", node[0], node[1], "--max-ttl", "1000h"],
            "max_ttl is 3600000s: it must be from".into(),
        ),
        (
            vec!["deploy", "--config", &unknown],
            path(
                "muxlock: DIR/unknown.toml, line 3: node_timout is not known; did you mean \
                 node_timeout?\n",
            ),
        ),
        (vec!["deploy", "--config", &broken], path("muxlock: DIR/broken.toml, line 3: ")),
        (
            vec!["deploy", "--config", &number],
            path("muxlock: DIR/number.toml, line 2: node_timeout is not a text\n"),
        ),
        (
            vec!["deploy", "--config", &unit],
            path(
                "muxlock: DIR/unit.toml, line 2: node_timeout is \"50\": it has no unit: write 50s or \
                 50ms\n",
            ),
        ),
        (
            vec!["deploy", "--config", &user],
            path("DIR/user.toml, line 2: user needs password_file "),
        ),
        (vec!["deploy", "--config", "/dev/zero"], "/dev/zero: it has more than 65536 bytes".into()),
        (vec!["deploy", "--config", &secret], path("DIR/secret.toml, line 1: *** is not known")),
        (
            vec!["deploy", node[0], node[1], "--config", &guard],
            path("DIR/guard.toml, line 1: restart_guard is \"***\": it must be uptime,"),
        ),
        (vec!["deploy", "--config", "/nonexistent"], "muxlock: /nonexistent: No such file".into()),
    ];
    for (args, text) in table {
        let (code, out, err) = run(muxlock(&["inspect"]).args(&args));
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(&text), "{args:?}: {err}");
        assert!(!err.contains("sesame"), "{err}");
    }
    let mut command = muxlock(&["inspect", "deploy"]);
    let (code, _, err) = run(command.args(node).env("MUXLOCK_RESTART_GUARD", "on"));
    let text = "MUXLOCK_RESTART_GUARD is \"on\": it must be uptime, own_observation or off";
    assert!(code == 2 && err.contains(text), "{err}");
    let mut command = muxlock(&["inspect", "deploy"]);
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    let (code, _, err) = run(command.args(node).env("MUXLOCK_PREFIX", odd));
    assert_eq!((code, err.as_str()), (2, "muxlock: MUXLOCK_PREFIX is not UTF-8\n"));
}

/// By address, and from the user and the password of a file.
#[test]
fn sockets_take_credentials() {
    let folder = Folder::create("cli-socket");
    let (path, secret) = (folder.0.join("config.toml"), folder.0.join("secret"));
    let socket = folder.0.join("r@1:2.sock");
    let socket = socket.to_str().unwrap();
    let user = "user app on >sesame ~* +@all".split(' ');
    let args = ["--requirepass", "se sam@e", "--unixsocket", socket, "--unixsocketperm", "700"];
    let args: Vec<_> = args.into_iter().chain(["--user"]).chain(user.skip(1)).collect();
    let _master = Master::start_with(&args).unwrap();
    let encoded = socket.replace('@', "%40").replace(':', "%3A");
    fs::write(&secret, "sesame").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let file = |user: &str| {
        let node = format!("nodes = [\"unix://{encoded}?restart_guard=off\"]");
        fs::write(&path, format!("{node}\n{user}password_file = \"secret\"\n")).unwrap();
        let mut command = muxlock(&["inspect", "deploy", "--config", path.to_str().unwrap()]);
        run(with_patience(&mut command))
    };
    let (code, out, err) = file("user = \"app\"\n");
    assert_eq!((code, err.as_str()), (1, ""), "{out}");
    let (code, out, _) = file("");
    assert!(code == 3 && out.contains("not authenticated") && !out.contains("sesame"), "{out}");

    for credentials in ["app:sesame", ":se sam@e", ":se%20sam%40e", "default:se%20sam@e"] {
        let node = format!("unix://{credentials}@{encoded}?db=1&restart_guard=off");
        let (code, out, err) = run(&mut unhurried(&node, &["run", "deploy", "true"]));
        assert_eq!((code, err.as_str()), (0, ""), "{node}: {out}");
        let redlock = all_ready(&patient([node.as_str()]));
        assert!(redlock.try_lock("deploy", TTL).unwrap().unlock().unwrap().was_held());
        let address = &redlock.nodes()[0].address;
        assert_eq!(**address, format!("unix:{socket}"));
    }
}

#[test]
fn passwords_that_others_can_read_are_warned_of() {
    let folder = Folder::create("cli-warn");
    let path = folder.0.join("config.toml");
    fs::write(&path, "nodes = [\"redis://:sesame@127.0.0.1:1\"]\nconnect_timeout = \"1ms\"\n")
        .unwrap();
    let file = path.to_str().unwrap();
    let inspect = || run(&mut muxlock(&["inspect", "deploy", "--config", file]));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, out, err) = inspect();
    assert_eq!(
        err,
        format!("muxlock: {file} has a password, and others may read it: chmod o-rwx\n")
    );
    assert!(code == 3 && !out.contains("sesame"), "{out}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(inspect().2, "");
    let url = ["--node", "redis://:sesame@127.0.0.1:1", "--connect-timeout", "1ms"];
    let (_, out, err) = run(muxlock(&["inspect", "deploy"]).args(url));
    let text =
        "muxlock: --node has a password, which ps shows to others: use MUXLOCK_NODES or a file\n";
    assert_eq!(err, text, "{out}");
}

#[test]
fn completions_and_the_manual_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, out, err) = run(&mut muxlock(&["completions", shell]));
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.contains("inspect") && out.contains("demo"), "{shell}: {out}");
    }
    let folder = Folder::create("cli-man");
    let (code, out, err) = run(&mut muxlock(&["man", folder.0.to_str().unwrap()]));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for page in [
        "muxlock.1",
        "muxlock-inspect.1",
        "muxlock-list.1",
        "muxlock-top.1",
        "muxlock-doctor.1",
        "muxlock-revoke.1",
        "muxlock-demo.1",
    ] {
        let text = fs::read_to_string(folder.0.join(page)).expect(page);
        assert!(text.contains(".TH"), "{page}");
    }
}

/// Each fits a terminal of 80 columns.
#[test]
fn help_fits_a_terminal() {
    let commands = [
        "run",
        "lock",
        "unlock",
        "renew",
        "list",
        "top",
        "inspect",
        "doctor",
        "revoke",
        "demo",
        "completions",
        "man",
    ]
    .map(|name| vec![name]);
    for command in [vec![]].into_iter().chain(commands) {
        for flag in ["-h", "--help"] {
            let mut args = command.clone();
            args.push(flag);
            let (code, out, _) = run(&mut muxlock(&args));
            assert_eq!(code, 0);
            let long: Vec<_> = out.lines().filter(|line| line.chars().count() > 80).collect();
            assert_eq!(long, [""; 0], "{args:?}");
        }
    }
}

/// A closed pipe is no error: its reader has seen enough.
#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_an_error_in_each_command_and_format() {
    let (_masters, redlock, list) = start();
    let lock = redlock.try_lock("r", TTL).unwrap();
    let holder = lock.token().fingerprint().to_string();
    let revoke = ["revoke", "r", "--holder", &holder];
    // And the exit status if it is written, or if it cannot be.
    let table: [(&[&str], i32, i32); 26] = [
        (&["inspect", "r"], 0, 2),
        (&["inspect", "r", "--json"], 0, 2),
        (&["inspect", "r", "--watch"], 0, 2),
        (&["inspect", "r", "--watch", "--json"], 0, 2),
        (&["list"], 0, 2),
        (&["list", "--json"], 0, 2),
        (&["list", "--watch"], 0, 2),
        (&["list", "--watch", "--json"], 0, 2),
        (&["top"], 0, 2),
        (&["top", "--json"], 0, 2),
        (&["doctor"], 0, 2),
        (&["doctor", "--json"], 0, 2),
        (&["doctor", "--prometheus"], 0, 2),
        (&["completions", "bash"], 0, 2),
        (&["completions", "zsh"], 0, 2),
        (&["completions", "fish"], 0, 2),
        (&["man"], 0, 2),
        (&["--version"], 0, 2),
        (&["--help"], 0, 2),
        (&["help", "list"], 0, 2),
        (&["doctor", "-h"], 0, 2),
        (&["run", "--help"], 0, 125),
        (&["unlock", "--help"], 0, 125),
        (&["demo", "--masters", "3"], 0, 2),
        // The second time, it is gone.
        (&revoke, 1, 2),
        (&["inspect", "free"], 1, 2),
    ];
    let tool = |args: &[&str]| {
        let mut tool = unhurried(&list, args);
        tool.env("MUXLOCK_RESTART_GUARD", "off");
        tool
    };
    for (args, closed, full) in table {
        let file = fs::File::options().write(true).open("/dev/full").unwrap();
        let (code, _, err) = run(tool(args).stdout(file));
        let words = "muxlock: standard output: No space left on device (os error 28)\n";
        assert!(code == full && err.ends_with(words), "{args:?}: {code} {err}");
        let (pipe, reader) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(reader);
        let pipe = std::os::fd::OwnedFd::from(pipe);
        let (code, _, err) = run(tool(args).stdout(pipe));
        assert_eq!((code, err.as_str()), (closed, ""), "{args:?}");
    }
}
