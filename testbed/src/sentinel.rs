//! Real Sentinels.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use muxlock::testing::SERVER_VARIABLE;

use crate::{Folder, POLL_INTERVAL, SOON, Stopwatch, pause};

/// A free port may be taken before the Sentinel has it; then it gets another.
const MAX_PORTS_TRIED: usize = 5;

/// A Sentinel, which ends with its test.
pub struct Sentinel {
    port: u16,
    /// To be frozen or ended.
    pub process: Child,
    _folder: Folder,
}

impl Sentinel {
    /// A Sentinel with these lines of settings, on a free port; it answers already.
    pub fn start(settings: &str) -> Sentinel {
        let started = (0..MAX_PORTS_TRIED).find_map(|_| {
            let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            Sentinel::start_on(free.expect("a free port").port(), settings)
        });
        started.expect("a Sentinel that keeps its port")
    }

    /// The same on this port; `None` if another process has it.
    pub fn start_on(port: u16, settings: &str) -> Option<Sentinel> {
        let folder = Folder::create(&format!("sentinel-{port}"));
        let file = folder.0.join("sentinel.conf");
        let settings = format!("port {port}\nbind 127.0.0.1\n{settings}");
        fs::write(&file, settings).expect("the folder is there");
        let binary = env::var_os(SERVER_VARIABLE).unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(binary);
        command.arg(&file).arg("--sentinel").current_dir(&folder.0).stdout(Stdio::null());
        let process = command.spawn().expect("redis-server is there");
        let mut sentinel = Sentinel { port, process, _folder: folder };
        let watch = Stopwatch::start();
        while watch.elapsed() < SOON + SOON {
            let answers = answers(port);
            if sentinel.process.try_wait().expect("a child of this process").is_some() {
                return None;
            }
            if answers {
                return Some(sentinel);
            }
            pause(POLL_INTERVAL);
        }
        panic!("the Sentinel on port {port} does not answer");
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

/// Whether a server answers there, if only that it asks for a password.
fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut first = [0];
    let asked = stream.set_read_timeout(Some(SOON)).and_then(|()| stream.write_all(b"PING\r\n"));
    asked.and_then(|()| stream.read_exact(&mut first)).is_ok() && matches!(&first, b"+" | b"-")
}
