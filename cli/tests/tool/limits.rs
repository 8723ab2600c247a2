//! The tool where the system refuses descriptors, threads or processes: it ends with a sentence.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use muxlock::testing::Master;
use testbed::Folder;

/// With fewer, the system does not load the program.
const DESCRIPTORS_MIN: u32 = 4;
/// With so many, each command works.
const DESCRIPTORS_ENOUGH: u32 = 24;
const COMMANDS: [&[&str]; 6] = [
    &["run", "job", "--", "true"],
    &["run", "-v", "--no-guard", "job", "--", "true"],
    &["inspect", "job"],
    &["list"],
    &["revoke", "job", "--holder", "a"],
    &["doctor", "--connect-timeout", "1s"],
];
/// What two processes say at a limit may depend on which of them is faster.
const REPEATED: usize = 4;
/// The exit status of `run` if muxlock failed.
const FAILED: i32 = 125;
/// Those whose success is silent.
const SILENT: &str = "run";

/// Runs the tool by another program. Returns its exit code and what it has written.
#[track_caller]
fn ends_with_a_sentence(by: &[String], tool: &str, args: &[&str], url: &str) -> (i32, String) {
    let mut command = Command::new(&by[0]);
    command.args(&by[1..]).arg(tool).args(args).env_clear();
    command.env("MUXLOCK_NODES", url).env("XDG_CONFIG_HOME", "/nonexistent");
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    let code = status.code().unwrap_or_else(|| panic!("{by:?} {args:?}: {status}: {text}"));
    assert!(!text.contains("panicked"), "{by:?} {args:?}: {text}");
    let may_be_silent = code == 0 && args[0] == SILENT;
    assert!(may_be_silent || text.lines().count() > 0, "{by:?} {args:?}: {code}, and not a word");
    (code, text)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn slow_each_limit_of_descriptors_ends_with_a_sentence() {
    let master = Master::start().unwrap();
    let name = format!("redis://localhost:{}?restart_guard=off", master.port());
    let url = format!("{}?restart_guard=off", master.url());
    let tool = env!("CARGO_BIN_EXE_muxlock");
    let mut named = 0;
    for limit in DESCRIPTORS_MIN..=DESCRIPTORS_ENOUGH {
        let by = words(&["sh", "-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")]);
        for args in COMMANDS {
            let both = ["run", "inspect"].contains(&args[0]);
            for url in [&url, &name].into_iter().take(if both { 2 } else { 1 }) {
                let (_, text) = ends_with_a_sentence(&by, tool, args, url);
                named += usize::from(text.contains("raise the limit of open files (ulimit -n)"));
                let others = ["uncategorized", "does not resolve", "lookup address"];
                assert!(!others.iter().any(|words| text.contains(words)), "{limit}: {text}");
            }
        }
    }
    assert!(named > 20, "{named}");
}

/// As a user without rights, whom the limit holds for.
#[test]
fn slow_each_limit_of_processes_ends_with_a_sentence() {
    let test = "slow_each_limit_of_processes_ends_with_a_sentence";
    let limited = |limit: u32| {
        let limit = format!("--nproc={limit}");
        words(&["setpriv", "--reuid", "65534", "--clear-groups", "prlimit", &limit])
    };
    let can = Command::new("setpriv").args(&limited(64)[1..]).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        return eprintln!("{test}: skipped: it needs root, setpriv and prlimit");
    }
    let master = Master::start().unwrap();
    let url = format!("redis://localhost:{}?restart_guard=off", master.port());
    let folder = Folder::create(test);
    let tool = folder.0.join("muxlock");
    fs::copy(env!("CARGO_BIN_EXE_muxlock"), &tool).unwrap();
    for path in [&folder.0, &tool] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let tool = tool.to_str().unwrap();
    let mut named = 0;
    // The guard may meet the limit too. It says so before muxlock says that it has ended.
    for limit in (1..=6).flat_map(|limit| [limit; REPEATED]) {
        for args in COMMANDS {
            let (code, text) = ends_with_a_sentence(&limited(limit), tool, args, &url);
            let is_named = text.contains("raise the limit of processes and threads");
            assert!(is_named || code != FAILED, "{limit} {args:?}: {text}");
            assert!(!text.contains("the command goes on"), "{limit} {args:?}: {text}");
            named += usize::from(is_named);
        }
    }
    assert!(named >= 5 * REPEATED, "{named}");
}

/// In a root without `/proc`, the file that is missing is named.
#[test]
fn missing_files_of_the_system_are_named() {
    let test = "missing_files_of_the_system_are_named";
    let hidden = |script: &str| {
        words(&["unshare", "-m", "sh", "-c", &format!("mount -t tmpfs none /proc && {script}")])
    };
    let can = hidden("true");
    if !Command::new(&can[0]).args(&can[1..]).status().is_ok_and(|status| status.success()) {
        return eprintln!("{test}: skipped: it needs root and unshare");
    }
    let master = Master::start().unwrap();
    let url = format!("{}?restart_guard=off", master.url());
    let tool = env!("CARGO_BIN_EXE_muxlock");
    let run = "exec \"$0\" \"$@\"";
    let status = "mkdir /proc/self && echo SigIgn: 0 > /proc/self/status";
    for (script, file) in
        [(run.to_owned(), "/proc/self/status"), (format!("{status} && {run}"), "/proc/self/exe")]
    {
        let (code, text) = ends_with_a_sentence(&hidden(&script), tool, COMMANDS[0], &url);
        assert!(code == 125 && text.contains(&format!("cannot use {file}: ")), "{text}");
    }
}
