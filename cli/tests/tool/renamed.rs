//! Masters on which a command is switched off by name: the doctor names it.

use muxlock::testing::Master;
use testbed::{Mute, commands_of_scripts};

use crate::cli::{muxlock, run};

/// The commands that every lock needs.
const NEEDED: [&str; 6] = ["DEL", "GET", "PEXPIRE", "PTTL", "SET", "TIME"];

/// The doctor names it and says what to do; what every lock needs is an error.
#[test]
fn slow_doctor_names_every_command() {
    // The doctor does not try what would leave something behind.
    let is_tried = |name: &String| name != "LPUSH" && name != "RPUSH";
    for name in commands_of_scripts().into_iter().filter(is_tried) {
        let master = Master::start_with(&["--rename-command", &name, ""]).unwrap();
        let (code, out, err) = doctor(&master.url(), &[]);
        let is_needed = NEEDED.contains(&name.as_str());
        assert_eq!(code, i32::from(is_needed), "{name}: {out}{err}");
        let is_named = out.to_uppercase().contains(&format!("NOT KNOW {name}"));
        assert!(is_named, "{name}: {out}");
    }
}

fn doctor(url: &str, args: &[&str]) -> (i32, String, String) {
    let common = ["doctor", "--node-timeout", "20s", "--connect-timeout", "10s"];
    let allowed = ["--restart-guard", "off", "--allow", "open", "--allow", "version"];
    let mut command = muxlock(&[&common[..], &allowed, args].concat());
    run(command.env("MUXLOCK_NODES", url))
}

#[test]
fn doctor_names_commands_that_identify_a_server() {
    for name in ["INFO", "TIME", "CLIENT"] {
        let mute = Mute::start(name);
        let (code, out, err) = doctor(mute.url(), &["--read-only"]);
        // Locks work without CLIENT.
        assert_eq!(code, i32::from(name != "CLIENT"), "{name}: {out}{err}");
        assert!(out.contains(&format!("it does not know {name}")), "{name}: {out}");
    }
}
