//! The operating system's data about this process, and folders for its files.

use std::{env, fs};

/// A number from `/proc/self/status`: `Threads`, or a size in KiB such as `VmHWM`.
#[cfg(target_os = "linux")]
pub fn status_figure(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let figure = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let digits = figure.and_then(|figure| figure.split_whitespace().next());
    digits.and_then(|digits| digits.parse().ok()).expect("a known name and a number")
}

/// How many descriptors this process has open, the one to count them with included.
#[cfg(target_os = "linux")]
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("Linux has it").count()
}

/// A folder that is removed in the end.
#[derive(Debug)]
pub struct Folder(pub std::path::PathBuf);

impl Folder {
    /// Makes a folder for `test`, in memory if the system has such a place.
    pub fn create(test: &str) -> Folder {
        let name = format!("muxlock-{}-{test}", std::process::id());
        let folders = ["/dev/shm".into(), env::temp_dir()];
        let made = folders.map(|folder: std::path::PathBuf| folder.join(&name));
        let path = made.into_iter().find(|path| fs::create_dir(path).is_ok());
        Folder(path.expect("a folder for temporary files"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Files that stay in a temporary folder do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
