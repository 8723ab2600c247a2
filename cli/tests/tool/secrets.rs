//! Whatever form an address has, and wherever in it a password stands: no output has it.

use std::fs;

use testbed::Folder;
use testbed::secrets::{FORMS, check};

use crate::cli::{muxlock, run};

const QUICK: [&str; 4] = ["--connect-timeout", "2ms", "--node-timeout", "1ms"];

/// By flag, variable and file, and in places where no address belongs.
#[test]
fn slow_no_output_of_the_tool_shows_a_password() {
    let folder = Folder::create("secrets");
    let path = folder.0.join("config.toml");
    let file = path.to_str().unwrap();
    for (at, form) in FORMS.iter().enumerate() {
        let address = form.replace("{}", "zqx");
        let node = ["--node", &address];
        fs::write(&path, format!("nodes = ['''{address}''']\n")).unwrap();
        let mut commands = vec![
            muxlock(&["inspect", "resource"]),
            muxlock(&["inspect", "resource"]),
            muxlock(&["inspect", "resource", "--json"]),
        ];
        commands[0].args(node).args(QUICK);
        commands[1].env("MUXLOCK_NODES", &address).args(QUICK);
        commands[2].args(["--config", file]).args(QUICK);
        // The others print the same errors; so they take turns.
        let mut another = match at % 4 {
            0 => muxlock(&["run", "resource", "-v"]),
            1 => muxlock(&["doctor"]),
            2 => muxlock(&["doctor", "--json"]),
            _ => muxlock(&["list"]),
        };
        another.args(node).args(QUICK);
        if at % 4 == 0 {
            another.args(["--", "true"]);
        }
        commands.push(another);
        for command in &mut commands {
            let (_, out, err) = run(command);
            check(&format!("{command:?}"), &format!("{out}{err}"));
        }
    }
    // Mistakes in a file.
    for text in [
        "nodes = redis://:zqx@127.0.0.1:1",
        "redis://:zqx@127.0.0.1:1",
        "nodes = [\"redis://:zqx@127.0.0.1:1]",
        "nodes = \"redis://:zqx@127.0.0.1:1\"",
        "password = \"zqx\"",
        "nodes = [\"redis://127.0.0.1:1\"]\npassword_file = \"zqx\"",
        "nodes = [\"redis://127.0.0.1:1\"]\npassword_file = \"zqx/zqx\"",
        "restart_guard = \"redis://:zqx@127.0.0.1:1\"",
        "node_timeout = \"redis://:zqx@127.0.0.1:1\"",
        "[run]\n\"redis://:zqx@127.0.0.1:1\" = [1]",
    ] {
        fs::write(&path, text).unwrap();
        let (code, out, err) = run(&mut muxlock(&["inspect", "r", "--config", file]));
        assert_eq!(code, 2, "{text}");
        check(text, &format!("{out}{err}"));
    }
    // One word too many, or a value of another option.
    let address = "redis://:zqx@127.0.0.1:1";
    for args in [
        &["doctor", address][..],
        &["inspect", "resource", address],
        &["list", address],
        &["list", "resource", address],
        &["demo", address],
        &["revoke", "resource", address],
        &["completions", address],
        &[address],
        &["--node", address, "doctor"],
        &["doctor", "--nodes", address],
        &["doctor", "--config", address],
        &["doctor", "--node", "redis://127.0.0.1:1", "--password-file", address],
        &["doctor", "--node", "redis://127.0.0.1:1", "--password-file", "zqx"],
        &["doctor", "--user", address, "--node", "redis://127.0.0.1:1"],
        &["doctor", "--pasword-file", address],
        &["doctor", "--max-ttl", address],
        &["doctor", "--restart-guard", address],
        &["doctor", "127.0.0.1:1,password=zqx"],
        &["doctor", "--pasword-file=zqx"],
        &["doctor", "--password=zqx"],
    ] {
        let (_, out, err) = run(&mut muxlock(args));
        check(&format!("{args:?}"), &format!("{out}{err}"));
    }
}
