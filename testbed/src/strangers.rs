//! Ports on which something else than a master listens.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use muxlock::testing::Master;

use crate::Sentinel;
use crate::scripted::refused_addr;

/// Something else than a Redis server.
pub struct Stranger {
    /// The address of its port, with the password `hunter22`.
    pub url: String,
    /// What muxlock says of it.
    pub words: &'static str,
    /// What is quoted behind that.
    pub quoted: &'static str,
}

/// One of each kind, on ports that stay open as long as this process.
pub fn strangers() -> Vec<Stranger> {
    let silent = "it closed the connection without an answer: check that a server listens behind \
                  the port (of a proxy or a container), or write rediss:// if this port speaks TLS";
    let not_redis = "this is not a Redis server: it answered ";
    let table = [
        (
            stranger(b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            not_redis,
            "\"HTTP/1.1 400 Bad Request\"",
        ),
        (stranger(b"SSH-2.0-OpenSSH_9.2\r\n", b"x"), not_redis, "\"SSH-2.0-OpenSSH_9.2\""),
        (stranger(b"", b"you sent AUTH hunter22\r\n"), not_redis, "\"***\""),
        (
            stranger(b"", b"\x15\x03\x03\x00\x02\x02\x46"),
            "this port speaks TLS: write ",
            "rediss://",
        ),
        (stranger(b"", b""), silent, ""),
    ];
    table.map(|(url, words, quoted)| Stranger { url, words, quoted }).into()
}

/// A port that answers everyone with these bytes, and then closes. The first ones it says at once.
fn stranger(at_once: &'static [u8], answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it has one").port();
    std::thread::spawn(move || {
        for mut peer in listener.incoming().map_while(Result::ok) {
            let is_told = peer.write_all(at_once).is_ok();
            if is_told && !answer.is_empty() && peer.read(&mut [0; 4_096]).is_ok() {
                let _ = peer.write_all(answer);
            }
        }
    });
    format!("redis://:hunter22@127.0.0.1:{port}")
}

/// Sentinels that do not say where their master is, for another reason each.
pub struct Reticent {
    server: Master,
    open: Sentinel,
    /// It has a password.
    closed: Sentinel,
}

impl Reticent {
    /// Starts them.
    ///
    /// # Panics
    ///
    /// Panics if a server does not start.
    pub fn start() -> Reticent {
        let server = Master::start().unwrap_or_else(|error| panic!("{error}"));
        let monitor = |more: &str| {
            let port = server.port();
            Sentinel::start(&format!("sentinel monitor mymaster 127.0.0.1 {port} 1\n{more}"))
        };
        Reticent { open: monitor(""), closed: monitor("requirepass sesame\n"), server }
    }

    /// What to ask: an address, where it leads, and what muxlock says of it. The password in some
    /// of them is `hunter22`.
    pub fn questions(&self) -> Vec<(String, SocketAddr, &'static str)> {
        let (open, closed) = (self.open.port(), self.closed.port());
        let nobody = refused_addr().port();
        let table = [
            (
                closed,
                "mymaster",
                "",
                "NOAUTH: it needs a password of its own: write sentinel_password=",
            ),
            (closed, "mymaster", "?sentinel_password=hunter22", "WRONGPASS: "),
            (open, "mymaster", "?sentinel_password=hunter22", "leave out sentinel_password="),
            (
                open,
                "master01",
                "",
                "ERR: it has no master \"master01\": check the end of the address",
            ),
            (self.server.port(), "mymaster", "", "this is a server and not a Sentinel"),
            (nobody, "mymaster", "", "Connection refused (os error"),
        ];
        let question = |(port, name, more, words)| {
            let at = SocketAddr::from(([127, 0, 0, 1], port));
            (format!("redis+sentinel://{at}/{name}{more}"), at, words)
        };
        table.map(question).into()
    }

    /// Ends the server that they name. The address of the one without a password, and what muxlock
    /// says of it at last.
    pub fn without_server(self) -> (Sentinel, String, String) {
        let url = format!("redis+sentinel://127.0.0.1:{}/mymaster", self.open.port());
        let words = format!("Sentinels named {}", self.server.addr());
        (self.open, url, words)
    }
}
