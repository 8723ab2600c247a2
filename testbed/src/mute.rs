//! Commands of scripts, and servers without a command that every client needs.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use muxlock::testing::SERVER_VARIABLE;

use crate::soon;

/// The commands that the scripts of the library call.
///
/// # Panics
///
/// Panics if there are no scripts.
pub fn commands_of_scripts() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/scripts");
    let mut names = BTreeSet::new();
    for file in fs::read_dir(folder).expect("the folder of the scripts") {
        let script = fs::read_to_string(file.expect("an entry").path()).expect("a text");
        let calls = script.split("call(\"").skip(1);
        names.extend(calls.map(|rest| rest.split('"').next().expect("a name").to_owned()));
    }
    assert!(names.len() > 20, "{names:?}");
    names
}

/// A server that cannot be asked whether it is ready.
pub struct Mute(Child, String);

impl Mute {
    /// Starts one without this command.
    pub fn start(renamed: &str) -> Mute {
        let mute = (0..5).find_map(|_| Mute::start_on_free_port(renamed));
        mute.expect("a server that keeps its port")
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.1
    }

    /// `None` if another process takes the port first.
    fn start_on_free_port(renamed: &str) -> Option<Mute> {
        let binary = env::var_os(SERVER_VARIABLE).filter(|path| !path.is_empty());
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let free = free.expect("a free port");
        let port = free.port().to_string();
        let args = ["--save", "", "--bind", "127.0.0.1", "--port", &port, "--dir"];
        let child = Command::new(binary.unwrap_or_else(|| "redis-server".into()))
            .args(args)
            .arg(env::temp_dir())
            .args(["--rename-command", renamed, ""])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is there");
        let mut mute = Mute(child, format!("redis://{free}"));
        let mut is_over = false;
        soon("it answers", || {
            let answers = says_pong(free);
            is_over = mute.0.try_wait().expect("a child of this process").is_some();
            answers || is_over
        });
        (!is_over).then_some(mute)
    }
}

/// A port on which nothing listens may be connected with itself.
fn says_pong(at: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(at) else { return false };
    let mut said = [0; 5];
    let asked = stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut said));
    asked.is_ok() && said == *b"+PONG"
}

impl Drop for Mute {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
