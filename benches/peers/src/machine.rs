//! Where and with what it was measured, as far as it matters for the figures.

use std::fs;
use std::process::Command;
use std::thread;

use crate::masters;

/// One line for each thing that matters.
pub fn describe() -> Vec<(&'static str, String)> {
    let unknown = || "unknown".to_owned();
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    vec![
        ("date", said_by("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_else(unknown)),
        ("processor", format!("{}, {cores} cores", cpu_model(&cpu).unwrap_or("unknown"))),
        ("kernel", kernel.map_or_else(unknown, |kernel| format!("Linux {}", version_of(&kernel)))),
        ("redis-server", masters::version().unwrap_or_else(|_| unknown())),
        ("compiler", said_by("rustc", &["--version"]).unwrap_or_else(unknown)),
        ("clients", clients(include_str!("../../../Cargo.lock"))),
    ]
}

fn said_by(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// Without what its builder calls it.
fn version_of(kernel: &str) -> &str {
    kernel.trim().split(['-', '+']).next().unwrap_or_default()
}

/// The versions that this program was built with. Of redis there are two, since redlock needs an
/// old one: the newer is measured.
fn clients(lock: &str) -> String {
    let version = |name: &str| {
        let entry = format!("name = \"{name}\"\nversion = \"");
        let rest = lock.rsplit_once(&entry)?.1;
        rest.split_once('"').map(|(version, _)| version)
    };
    let names = ["muxlock", "rslock", "redlock", "redis", "tokio"];
    let named = names.map(|name| format!("{name} {}", version(name).unwrap_or("unknown")));
    named.join(", ")
}
