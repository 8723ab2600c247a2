//! Manual pages and shell completions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use testbed::Folder;

use crate::cli::{muxlock, run};

/// Answers that bash would show, for a line whose last word is being typed.
fn completed(script: &Path, path: &Path, before: &str, words: &[&str]) -> Vec<String> {
    let call = r#"
        . "$1" || exit 1
        shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        function=$(complete -p muxlock)
        function=${function##*-F }
        "${function%% *}" muxlock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", &format!("{before}\n{call}"), "bash"]);
    command.arg(script).arg("muxlock").args(words);
    let usual = std::env::var("PATH").unwrap();
    let (code, out, err) = run(command.env("PATH", format!("{}:{usual}", path.display())));
    assert_eq!((code, err.as_str()), (0, ""), "{words:?}");
    out.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_the_command_behind_the_resource() {
    let folder = Folder::create("completions");
    let script = folder.0.join("muxlock.bash");
    let (_, text, _) = run(&mut muxlock(&["completions", "bash"]));
    fs::write(&script, text).unwrap();
    let program = folder.0.join("mxlk-program");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();

    let of = |words: &[&str]| completed(&script, &folder.0, "", words);
    let lines: [&[&str]; 8] = [
        &["run", "deploy", "--", "mxlk-"],
        &["run", "deploy", "mxlk-"],
        &["run", "--", "deploy", "mxlk-"],
        &["run", "-w", "3s", "--descendants", "end", "-v", "deploy", "mxlk-"],
        // Bash splits words at these signs.
        &["run", "--wait", "=", "3s", "db", ":", "users", "--", "mxlk-"],
        &["run", "--node", "=", "redis", ":", "//h", ":", "1", "deploy", "mxlk-"],
        &["run", "--node", "redis", ":", "//h", ":", "1", "deploy", "mxlk-"],
        &["run", "--fenced", "deploy", "--", "mxlk-"],
    ];
    for words in lines {
        assert_eq!(of(words), ["mxlk-program"], "{words:?}");
    }
    let path = program.to_str().unwrap();
    assert_eq!(of(&["run", "deploy", "--", "cat", &path[..path.len() - 3]]), [path]);
    // The options, and other commands, are completed as before.
    assert_eq!(of(&["run", "--kill-a"]), ["--kill-after"]);
    assert_eq!(of(&["run", "deploy", "--kill-a"]), ["--kill-after"]);
    assert_eq!(of(&["run", "deploy", "--descendants", "l"]), ["leave"]);
    assert_eq!(of(&["insp"]), ["inspect"]);
    for words in [&["run", "mxlk-"][..], &["run", "deploy", "-c", "mxlk-"], &["doctor", "mxlk-"]] {
        assert!(!of(words).contains(&"mxlk-program".to_owned()), "{words:?}");
    }

    // The package bash-completion knows the options of the command.
    let package = "_command_offset() { COMPREPLY=(\"from word $1\"); }";
    let words = ["run", "-w", "3s", "deploy", "--", "git", "che"];
    assert_eq!(completed(&script, &folder.0, package, &words), ["from word 6"]);
}

#[test]
fn zsh_and_fish_complete_the_command_too() {
    let (_, zsh, _) = run(&mut muxlock(&["completions", "zsh"]));
    assert!(zsh.contains("'*:::command -- The command and its arguments:_cmdambivalent'"), "{zsh}");
    let (_, fish, _) = run(&mut muxlock(&["completions", "fish"]));
    assert!(fish.contains("(__fish_complete_subcommand --fcs-skip=3 -c --command "), "{fish}");
}

/// A slip gets an answer that names the right word, and no password.
#[test]
fn words_that_were_meant_are_named() {
    let node = "redis://:zqx@127.0.0.1:1";
    for (args, code, meant) in [
        (&["inpsect", "deploy"][..], 2, "'inspect'"),
        (&["run", "--wiat", "3s", "deploy", "true"], 125, "'--wait'"),
        (&["run", "--descendants", "waitt", "deploy", "true"], 125, "'wait'"),
        (&["inspect", "deploy", "--restart-guard", "uptme"], 2, "'uptime'"),
        (&["inspect", "deploy", "--nodes", node], 2, "'--node'"),
    ] {
        let (found, _, err) = run(&mut muxlock(args));
        assert_eq!(found, code, "{args:?}: {err}");
        assert!(err.contains("tip: ") && err.contains(meant), "{args:?}: {err}");
        assert!(!err.contains("zqx"), "{err}");
    }
}
