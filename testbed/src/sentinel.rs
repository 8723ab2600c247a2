//! Real Sentinels.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use muxlock::testing::SERVER_VARIABLE;

use crate::Folder;

/// A Sentinel, which ends with its test.
pub struct Sentinel {
    port: u16,
    /// To be frozen or ended.
    pub process: Child,
    _folder: Folder,
}

impl Sentinel {
    /// A Sentinel with these lines of settings, on a free port.
    pub fn start(settings: &str) -> Sentinel {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a free port").port();
        let folder = Folder::create(&format!("sentinel-{port}"));
        let file = folder.0.join("sentinel.conf");
        let settings = format!("port {port}\nbind 127.0.0.1\n{settings}");
        fs::write(&file, settings).expect("the folder is there");
        let binary = env::var_os(SERVER_VARIABLE).unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(binary);
        command.arg(&file).arg("--sentinel").current_dir(&folder.0).stdout(Stdio::null());
        let process = command.spawn().expect("redis-server is there");
        Sentinel { port, process, _folder: folder }
    }

    /// On 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
