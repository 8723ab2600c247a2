//! How a client describes its process to operators, who read it in `CLIENT LIST`.

use std::ffi::OsStr;
use std::path::Path;
use std::{env, process};

use super::clock::Clock;

/// Most bytes of a part. The name of a Linux host has no more.
const PART_BYTES_MAX: usize = 64;

/// The process, its host, the file name of its program, or of that which it runs for, and the time.
/// Arguments are left out, because they can be secrets.
pub(crate) fn of_process(program: Option<&OsStr>) -> String {
    let own = env::args_os().next().unwrap_or_default();
    let file = Path::new(program.unwrap_or(&own)).file_name().unwrap_or_default();
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    let host = env::var("HOSTNAME").unwrap_or_default();
    let [host, command] = [&*host, &file.to_string_lossy()].map(part);
    let (pid, start) = (process::id(), Clock.stamp().wall_nanos / 1_000_000_000);
    format!(":pid={pid}:host={host}:cmd={command}:start={start}")
}

/// Its beginning, of characters that a server accepts in a name. A colon ends a part.
fn part(text: &str) -> String {
    let is_fit = |char: char| char.is_ascii_graphic() && char != ':';
    text.chars().take(PART_BYTES_MAX).map(|char| if is_fit(char) { char } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_described_in_bytes_that_servers_accept() {
        let name = of_process(Some(OsStr::new("/opt/my job:\u{e9}")));
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
        assert!(name.starts_with(&format!(":pid={}:host=", process::id())), "{name}");
        assert!(name.contains(":cmd=my_job__:start="), "{name}");
        let own = env::args_os().next();
        let until_start = |name: String| name.split(":start=").next().map(str::to_owned);
        assert_eq!(until_start(of_process(None)), until_start(of_process(own.as_deref())));
    }

    #[test]
    fn description_is_bounded() {
        let long = "\u{e9}".repeat(500);
        assert_eq!(part(&long), "_".repeat(PART_BYTES_MAX));
        let name = of_process(Some(OsStr::new(&long)));
        assert!(name.len() < 180, "{name}");
    }
}
