//! Manual pages and shell completions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use testbed::Folder;

use crate::cli::{muxlock, run};

#[test]
fn pages_have_the_sections_that_readers_expect() {
    let folder = Folder::create("manual");
    let one = folder.0.join("man1");
    let (code, out, err) = run(&mut muxlock(&["man", one.to_str().unwrap()]));
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    let page = |path: &str| fs::read_to_string(folder.0.join(path)).expect(path);
    let sections = |text: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(".SH "));
        lines.map(|name| name.trim_matches('"').to_owned()).collect::<Vec<_>>()
    };
    let begin = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"];
    let holders = ["run", "lock", "unlock", "renew"];
    let others = ["inspect", "list", "top", "doctor", "revoke"];
    for name in holders.into_iter().chain(others) {
        let text = page(&format!("man1/muxlock-{name}.1"));
        let middle = ["MASTERS", "DURATIONS", "EXIT STATUS", "FILES", "ENVIRONMENT"];
        let all = [&begin[..], &middle, &["EXAMPLES", "SEE ALSO"]].concat();
        assert_eq!(sections(&text), all, "{name}");
        assert!(
            text.contains("\\fBMUXLOCK_PASSWORD_FILE\\fR\n\\fB\\-\\-password\\-file"),
            "{text}"
        );
        assert!(text.ends_with(".BR muxlock.toml (5)\n"), "{text}");
        assert!(!text.contains("\n./"), "a line with a dot in front is no text: {text}");
    }
    for name in ["muxlock", "muxlock-demo", "muxlock-completions", "muxlock-man"] {
        let sections = sections(&page(&format!("man1/{name}.1")));
        assert!(sections.starts_with(&begin.map(str::to_owned)), "{name}: {sections:?}");
        assert!(sections.ends_with(&["EXAMPLES", "SEE ALSO"].map(str::to_owned)), "{sections:?}");
    }

    // Each key of the packaged file is explained.
    let packed = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/muxlock.toml");
    let packed = fs::read_to_string(packed).unwrap();
    let keys: Vec<_> = packed
        .lines()
        .filter_map(|line| Some(line.strip_prefix('#')?.split_once(" = ")?.0))
        .filter(|key| key.chars().all(|char| char.is_ascii_lowercase() || char == '_'))
        .collect();
    assert_eq!(keys.len(), 16, "{keys:?}");
    let text = page("man5/muxlock.toml.5");
    for key in keys {
        assert!(text.contains(&format!("\n.TP\n.B {key}\n")), "{key} is missing");
    }
    assert!(text.starts_with(".TH MUXLOCK.TOML 5 "), "{text}");
}

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
    // Bash itself completes files where there is no answer.
    for command in ["unlock", "renew"] {
        assert_eq!(of(&[command, ""]), [""]);
        assert_eq!(of(&[command, "mxlk-"]), [""]);
        assert_eq!(of(&[command, "-q", ""]), [""]);
        assert_eq!(of(&[command, "--qu"]), ["--quiet"]);
        assert!(of(&[command, "--restart-guard", ""]).contains(&"uptime".to_owned()));
    }
    assert!(fs::read_to_string(&script).unwrap().contains(" -o bashdefault -o default muxlock"));
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
        (&["inspect", "deploy", "--pasword-file", node], 2, "'--password-file'"),
    ] {
        let (found, _, err) = run(&mut muxlock(args));
        assert_eq!(found, code, "{args:?}: {err}");
        assert!(err.contains("tip: ") && err.contains(meant), "{args:?}: {err}");
        assert!(!err.contains("zqx"), "{err}");
    }
}
