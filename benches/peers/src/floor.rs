//! The floor: the least work with which one lock can be taken and released, as a loop written by
//! hand for that alone.
//!
//! Non-blocking sockets in one edge-triggered epoll; commands whose bytes are ready but for the
//! token; 20 fresh bytes from the kernel for each attempt, as a lone thread of muxlock draws them;
//! one `send` for each master and one `recv` for each readable socket. It returns at the majority
//! and reads late replies later. Beyond the check that each reply is the expected one there is no
//! safety: no clock, no validity, no identity of the masters, no reconnecting, no pending release.

pub mod many;
pub mod threads;
mod wire;

use std::io::{self, Read, Write};
use std::net::TcpStream;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::time::Timespec;

use crate::clock;
use crate::scripts::sent;
pub use wire::token;
use wire::{Replies, Reply, Template};

/// A majority that takes longer than this does not come.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The most events taken at once.
const EVENTS: usize = 64;

/// One lock, taken and released again and again.
pub struct Floor {
    epoll: rustix::fd::OwnedFd,
    nodes: Vec<Node>,
    majority: usize,
    kind: Kind,
    set: Template,
    release: Template,
    events: [epoll::Event; EVENTS],
    unexpected: u64,
}

/// What kind of lock it is.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Plain,
    /// With a fencing token, which is the time of this machine's clock.
    Fenced,
    Share,
    /// The first of so many permits.
    Permit(u32),
    /// Of all keys.
    Set,
}

impl Kind {
    /// The commands that take and release it.
    fn commands(self, ports: &[u16], keys: &[String], ttl_ms: u64) -> io::Result<[Template; 2]> {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let key = *keys.first().ok_or(io::ErrorKind::InvalidInput)?;
        let both = |take: &str, free: &str, keys: &[&str]| -> io::Result<[Template; 2]> {
            // As muxlock sends them.
            let take = Template::hashed(&digest(ports, take)?, keys, ttl_ms);
            Ok([take, Template::script(free, keys, ttl_ms)])
        };
        match self {
            Kind::Plain => Ok([Template::set(key, ttl_ms), Template::release(key)]),
            Kind::Fenced => Ok([Template::fenced(key, ttl_ms), Template::release(key)]),
            Kind::Share => both("TAKE_SHARED", "FREE_SHARED", &[key, &format!("{key}:intent")]),
            Kind::Permit(count) => {
                let slot = format!("{key}{{{count}}}:0");
                Ok([Template::set(&slot, ttl_ms), Template::release(&slot)])
            }
            Kind::Set => both("TAKE_ALL", "FREE_ALL", &keys),
        }
    }
}

/// Loads a script into every master; its digest.
fn digest(ports: &[u16], name: &str) -> io::Result<String> {
    let mut digest = String::new();
    for port in ports {
        let mut stream = TcpStream::connect(("127.0.0.1", *port))?;
        let text = sent(name);
        let load = format!("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${}\r\n{text}\r\n", text.len());
        stream.write_all(load.as_bytes())?;
        let mut reply = [0; "$40\r\n".len() + 40 + "\r\n".len()];
        stream.read_exact(&mut reply)?;
        digest = String::from_utf8_lossy(&reply["$40\r\n".len()..][..40]).into_owned();
    }
    Ok(digest)
}

/// What is asked of the masters.
#[derive(Clone, Copy, PartialEq)]
pub enum Asked {
    Set,
    Release,
}

struct Node {
    /// `None` if the master refused, or hung up.
    stream: Option<TcpStream>,
    replies: Replies,
    /// Replies that are still to come.
    owed: u32,
    /// Whether the last of them is the answer to what was asked last.
    is_asked: bool,
    /// What a full socket did not take of a command that it took the beginning of.
    rest: Vec<u8>,
}

impl Floor {
    /// Connects to these ports of this machine; a master that refuses is left out for good.
    pub fn connect(ports: &[u16], keys: &[String], ttl_ms: u64, kind: Kind) -> io::Result<Floor> {
        let [set, release] = kind.commands(ports, keys, ttl_ms)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let streams = connect_all(&epoll, ports)?;
        let nodes = streams
            .into_iter()
            .map(|stream| Node {
                stream,
                replies: Replies::new(),
                owed: 0,
                is_asked: false,
                rest: Vec::new(),
            })
            .collect();
        Ok(Floor {
            epoll,
            nodes,
            majority: ports.len() / 2 + 1,
            kind,
            set,
            release,
            events: no_events(),
            unexpected: 0,
        })
    }

    /// Releases the lock, and sends `message`, of which the answer is a number, behind the release
    /// to the first master, which comes last.
    pub fn hand_on(&mut self, message: &[u8]) -> io::Result<bool> {
        let last = [self.release.bytes(), message].concat();
        let (first, others) = self.nodes.split_first_mut().ok_or(io::ErrorKind::NotConnected)?;
        others.iter_mut().for_each(|node| node.ask(self.release.bytes()));
        first.ask(&last);
        first.owed += u32::from(first.is_asked);
        self.wait(Asked::Release)
    }

    /// Takes the lock, with a fresh token; whether a majority granted it.
    pub fn acquire(&mut self) -> io::Result<bool> {
        let token = wire::token()?;
        self.set.put(&token);
        self.release.put(&token);
        if self.kind == Kind::Fenced {
            self.set.propose(clock::since_1970().as_micros() as u64);
        }
        self.ask(Asked::Set);
        self.wait(Asked::Set)
    }

    /// Releases the lock; whether a majority confirmed it.
    pub fn release(&mut self) -> io::Result<bool> {
        self.ask(Asked::Release);
        self.wait(Asked::Release)
    }

    /// Sends the release without waiting for an answer.
    pub fn let_go(&mut self) {
        self.ask(Asked::Release);
    }

    /// Late replies that were not what a free lock brings.
    pub fn unexpected(&self) -> u64 {
        self.unexpected
    }

    fn ask(&mut self, asked: Asked) {
        let command = match asked {
            Asked::Set => self.set.bytes(),
            Asked::Release => self.release.bytes(),
        };
        for node in &mut self.nodes {
            node.ask(command);
        }
    }

    fn wait(&mut self, asked: Asked) -> io::Result<bool> {
        let (mut granted, mut refused) = (0, 0);
        loop {
            let count = match epoll::wait(&self.epoll, &mut self.events, Some(&PATIENCE)) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if count == 0 {
                return Ok(false);
            }
            for event in &self.events[..count] {
                let index = event.data.u64() as usize;
                match self.nodes[index].read(asked, &mut self.unexpected)? {
                    Some(true) => granted += 1,
                    Some(false) => refused += 1,
                    None => {}
                }
                // What the rest of the events announced is read when the next reply announces it
                // once more.
                if granted == self.majority {
                    return Ok(true);
                }
            }
            if refused > self.nodes.len() - self.majority {
                return Ok(false);
            }
        }
    }
}

impl Node {
    fn ask(&mut self, command: &[u8]) {
        self.is_asked = false;
        let Some(stream) = &self.stream else {
            return;
        };
        if !self.rest.is_empty() && !send_rest(stream, &mut self.rest) {
            return;
        }
        match send(stream, command, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                self.owed += 1;
                self.is_asked = true;
                if sent < command.len() {
                    self.rest.extend_from_slice(&command[sent..]);
                }
            }
            Err(Errno::AGAIN) => {}
            Err(_) => self.stream = None,
        }
    }

    /// Reads what is there; its vote on what was asked last, if that is among it.
    fn read(&mut self, asked: Asked, unexpected: &mut u64) -> io::Result<Option<bool>> {
        let Some(stream) = &self.stream else {
            return Ok(None);
        };
        let mut vote = None;
        loop {
            let drained = match self.replies.receive(stream) {
                Ok(drained) => drained,
                Err(_) => {
                    self.stream = None;
                    return Ok(vote);
                }
            };
            while let Some(reply) = self.replies.next()? {
                self.owed = self.owed.checked_sub(1).ok_or(io::ErrorKind::InvalidData)?;
                if self.owed == 0 && self.is_asked {
                    vote = Some(match asked {
                        Asked::Set => reply != Reply::Other,
                        Asked::Release => reply == Reply::One,
                    });
                } else if reply == Reply::Other {
                    *unexpected += 1;
                }
            }
            if drained {
                return Ok(vote);
            }
        }
    }
}

/// Connects, and registers each socket under its index.
fn connect_all(epoll: &rustix::fd::OwnedFd, ports: &[u16]) -> io::Result<Vec<Option<TcpStream>>> {
    let connect = |(index, port): (usize, &u16)| {
        let stream = match TcpStream::connect(("127.0.0.1", *port)) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            other => other?,
        };
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let interest = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(epoll, &stream, epoll::EventData::new_u64(index as u64), interest)?;
        Ok(Some(stream))
    };
    ports.iter().enumerate().map(connect).collect()
}

fn no_events() -> [epoll::Event; EVENTS] {
    let none =
        epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    [none; EVENTS]
}

/// Sends what a full socket left over; whether nothing is left.
fn send_rest(stream: &TcpStream, rest: &mut Vec<u8>) -> bool {
    // A connection that is gone shows when it is read.
    let sent = send(stream, rest, SendFlags::NOSIGNAL).unwrap_or(0);
    rest.drain(..sent);
    rest.is_empty()
}
