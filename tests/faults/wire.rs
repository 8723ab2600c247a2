//! Connections of the tests' own to a master: for what a query cannot do, and for the way between
//! a client and a master.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use muxlock::testing::Master;
use testbed::scripted::{Peer, Scripted};

/// How long a master may take to answer: longer than any test freezes it.
const REPLY_CAP: Duration = Duration::from_secs(60);
/// The longest line of a reply.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// The longest text in a reply.
const TEXT_BYTES_MAX: usize = 1024 * 1024;

/// A connection that can be written to without waiting, and dropped with the reply outstanding.
pub struct Wire(BufReader<TcpStream>);

impl Wire {
    pub fn connect(addr: &str) -> io::Result<Wire> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_CAP))?;
        Ok(Wire(BufReader::new(stream)))
    }

    /// A connection of a script: it ends with the script's server.
    fn of(peer: &Peer, addr: &str) -> io::Result<Wire> {
        let wire = Wire::connect(addr)?;
        peer.upstream(wire.0.get_ref())?;
        Ok(wire)
    }

    /// Leaves a command in the socket; does not wait for the reply.
    pub fn send<W: AsRef<[u8]>>(&mut self, command: &[W]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for word in command.iter().map(AsRef::as_ref) {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&bytes)
    }

    /// The bytes of the next reply, from the first to the last, behind those of pushes before it.
    pub fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        (&mut self.0).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        let Some(rest) = line.strip_suffix(b"\r\n") else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let count = rest.get(1..).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        match (rest.first(), count) {
            (Some(b'$' | b'='), Some(length @ 0..=TEXT_BYTES_MAX)) => {
                let mut text = vec![0; length + b"\r\n".len()];
                self.0.read_exact(&mut text)?;
                line.extend_from_slice(&text);
            }
            (Some(kind @ (b'*' | b'%' | b'>')), Some(length @ 0..=TEXT_BYTES_MAX)) => {
                let parts = if *kind == b'%' { 2 * length } else { length };
                let behind = usize::from(*kind == b'>');
                for _ in 0..parts + behind {
                    line.extend_from_slice(&self.reply()?);
                }
            }
            _ => {}
        }
        Ok(line)
    }

    /// Sends a command and waits for its reply, as text.
    pub fn ask<W: AsRef<[u8]>>(&mut self, command: &[W]) -> io::Result<String> {
        self.send(command)?;
        Ok(String::from_utf8_lossy(&self.reply()?).into_owned())
    }
}

/// Passes commands on and replies back, one at a time, until either end is gone.
fn pass_on(peer: &mut Peer, upstream: &mut Wire) -> io::Result<()> {
    while let Some(command) = peer.read_command()? {
        upstream.send(&command)?;
        let reply = upstream.reply()?;
        peer.reply(&reply)?;
    }
    Ok(())
}

/// What becomes of the first SET on a way that is cut there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The master has received it, and sees the connection end.
    AndClosed,
    /// The master has received it, and its end of the connection stays open.
    AndHeldOpen,
}

/// A way to a master on which the first connection is cut at its first SET, and later ones are not.
pub fn cut_at_the_first_set(master: &Master, cut: Cut) -> Scripted {
    let addr = master.addr();
    Scripted::start(move |peer| {
        let mut upstream = Wire::of(peer, &addr)?;
        if peer.index() > 0 {
            return pass_on(peer, &mut upstream);
        }
        while let Some(command) = peer.read_command()? {
            upstream.send(&command)?;
            if command[0] == b"SET" {
                peer.reset()?;
                match cut {
                    Cut::AndClosed => return Ok(()),
                    Cut::AndHeldOpen => return peer.hold(),
                }
            }
            let reply = upstream.reply()?;
            peer.reply(&reply)?;
        }
        Ok(())
    })
}

/// A way to a master on which the first SET stays under way while its sender loses the connection.
pub struct Detour {
    pub way: Scripted,
    arrive: Sender<Sender<bool>>,
}

impl Detour {
    pub fn start(master: &Master) -> Detour {
        let addr = master.addr();
        let (arrive, arrived) = mpsc::channel::<Sender<bool>>();
        let arrived = Mutex::new(arrived);
        let way = Scripted::start(move |peer| {
            let mut upstream = Wire::of(peer, &addr)?;
            if peer.index() > 0 {
                return pass_on(peer, &mut upstream);
            }
            while let Some(command) = peer.read_command()? {
                if command[0] == b"SET" {
                    peer.reset()?;
                    let tell = peer.wait_for(&arrived)?;
                    let ran = upstream.send(&command).and_then(|()| upstream.reply());
                    // It fails if the test has failed and no longer listens.
                    let _ = tell.send(ran.is_ok_and(|reply| reply == b"+OK\r\n"));
                    return Ok(());
                }
                upstream.send(&command)?;
                let reply = upstream.reply()?;
                peer.reply(&reply)?;
            }
            Ok(())
        });
        Detour { way, arrive }
    }

    /// Lets the SET arrive; returns whether the master ran it.
    pub fn arrive(&self) -> bool {
        let (tell, told) = mpsc::channel();
        self.arrive.send(tell).expect("the first connection was cut");
        told.recv_timeout(REPLY_CAP).expect("it arrives, one way or the other")
    }
}
