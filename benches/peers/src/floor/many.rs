//! The floor with many locks at once, on one thread: all commands that are ready leave in one
//! `send` for each master and turn, and each reply is found by its place in the order of the
//! commands.

use std::io::{self, ErrorKind};
use std::net::TcpStream;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::wire::{self, DIGITS, Replies, Reply, TOKEN, Template};
use super::{Asked, EVENTS, PATIENCE, connect_all, no_events, send_rest};
use crate::flight::{Flight, Turned};
use crate::job::slot_key;

/// How many commands a master may lag behind, at the least; then it is left out for good.
const LAG: usize = 64 * 1024;
/// How many bytes a full socket may leave over; then its master is left out for good.
const REST_BYTES: usize = 64 * 1024 * 1024;

/// Many locks with a resource for each.
pub struct Many {
    epoll: rustix::fd::OwnedFd,
    nodes: Vec<Node>,
    majority: u16,
    slots: Vec<Slot>,
    set: Template,
    release: Template,
    batch: Vec<u8>,
    /// Whose command has which place in the order; a ring.
    order: Box<[u32]>,
    /// How many commands there were.
    asked: u64,
    under_way: usize,
    events: [epoll::Event; EVENTS],
}

struct Node {
    stream: Option<TcpStream>,
    replies: Replies,
    /// The place of the command that is answered next.
    next: u64,
    rest: Vec<u8>,
}

struct Slot {
    key: [u8; DIGITS],
    token: [u8; TOKEN],
    asked: Asked,
    /// The place of its last command, of which the votes count.
    place: u64,
    yes: u16,
    no: u16,
    has_failed: bool,
}

impl Many {
    /// Connects to these ports of this machine for `count` locks.
    pub fn connect(ports: &[u16], count: usize, ttl_ms: u64) -> io::Result<Many> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let streams = connect_all(&epoll, ports)?;
        let node = |stream| Node { stream, replies: Replies::new(), next: 0, rest: Vec::new() };
        let slot = |slot| Slot {
            key: wire::digits(slot),
            token: [0; TOKEN],
            asked: Asked::Set,
            place: 0,
            yes: 0,
            no: 0,
            has_failed: false,
        };
        Ok(Many {
            epoll,
            nodes: streams.into_iter().map(node).collect(),
            majority: (ports.len() / 2 + 1) as u16,
            slots: (0..count).map(slot).collect(),
            set: Template::set(&slot_key(0), ttl_ms),
            release: Template::release(&slot_key(0)),
            batch: Vec::new(),
            order: vec![0; (4 * count).max(LAG).next_power_of_two()].into(),
            asked: 0,
            under_way: 0,
            events: no_events(),
        })
    }

    fn acquire(&mut self, slot: usize) -> io::Result<()> {
        self.slots[slot].token = wire::token()?;
        self.slots[slot].has_failed = false;
        self.ask(slot, Asked::Set);
        Ok(())
    }

    fn ask(&mut self, index: usize, asked: Asked) {
        let slot = &mut self.slots[index];
        let template = match asked {
            Asked::Set => &mut self.set,
            Asked::Release => &mut self.release,
        };
        template.put_digits(&slot.key);
        template.put(&slot.token);
        self.batch.extend_from_slice(template.bytes());
        (slot.asked, slot.place, slot.yes, slot.no) = (asked, self.asked, 0, 0);
        let place = self.asked as usize & (self.order.len() - 1);
        self.order[place] = index as u32;
        self.asked += 1;
    }

    fn send(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let lag_max = self.order.len() as u64;
        for node in &mut self.nodes {
            node.send(&self.batch);
            if self.asked - node.next > lag_max || node.rest.len() > REST_BYTES {
                node.stream = None;
            }
        }
        self.batch.clear();
    }

    fn read(&mut self, index: usize, go_on: bool, turned: &mut Turned) -> io::Result<()> {
        loop {
            let node = &mut self.nodes[index];
            let Some(stream) = &node.stream else {
                return Ok(());
            };
            if !node.rest.is_empty() {
                send_rest(stream, &mut node.rest);
            }
            let Ok(drained) = node.replies.receive(stream) else {
                node.stream = None;
                return Ok(());
            };
            while let Some(reply) = self.nodes[index].replies.next()? {
                let place = self.nodes[index].next;
                if place == self.asked {
                    return Err(ErrorKind::InvalidData.into());
                }
                self.nodes[index].next += 1;
                self.count(place, reply, go_on, turned)?;
            }
            if drained {
                return Ok(());
            }
        }
    }

    /// Counts a vote, and goes on with its lock if it decides.
    fn count(
        &mut self,
        place: u64,
        reply: Reply,
        go_on: bool,
        turned: &mut Turned,
    ) -> io::Result<()> {
        let index = self.order[place as usize & (self.order.len() - 1)] as usize;
        let minority = self.nodes.len() as u16 - self.majority;
        let slot = &mut self.slots[index];
        if slot.place != place {
            return Ok(());
        }
        match (slot.asked, reply) {
            (Asked::Set, Reply::Ok) | (Asked::Release, Reply::One) => slot.yes += 1,
            _ => slot.no += 1,
        }
        let is_won = slot.yes == self.majority;
        if !is_won && slot.no <= minority {
            return Ok(());
        }
        slot.has_failed |= !is_won;
        if slot.asked == Asked::Set {
            self.ask(index, Asked::Release);
            return Ok(());
        }
        // What comes late must not decide once more.
        slot.place = u64::MAX;
        turned.done += 1;
        turned.failed += u64::from(slot.has_failed);
        if go_on {
            return self.acquire(index);
        }
        self.under_way -= 1;
        Ok(())
    }
}

impl Flight for Many {
    fn start(&mut self) -> io::Result<()> {
        for slot in 0..self.slots.len() {
            self.acquire(slot)?;
        }
        self.under_way = self.slots.len();
        Ok(())
    }

    fn turn(&mut self, go_on: bool) -> io::Result<Turned> {
        let mut turned = Turned::default();
        self.send();
        let count = match epoll::wait(&self.epoll, &mut self.events, Some(&PATIENCE)) {
            Err(Errno::INTR) => return Ok(turned),
            other => other?,
        };
        if count == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
        for event in 0..count {
            let node = self.events[event].data.u64() as usize;
            self.read(node, go_on, &mut turned)?;
        }
        Ok(turned)
    }

    fn under_way(&self) -> usize {
        self.under_way
    }
}

impl Node {
    fn send(&mut self, batch: &[u8]) {
        let Some(stream) = &self.stream else {
            return;
        };
        if !self.rest.is_empty() && !send_rest(stream, &mut self.rest) {
            self.rest.extend_from_slice(batch);
            return;
        }
        match send(stream, batch, SendFlags::NOSIGNAL) {
            Ok(sent) => self.rest.extend_from_slice(&batch[sent..]),
            Err(Errno::AGAIN) => self.rest.extend_from_slice(batch),
            Err(_) => self.stream = None,
        }
    }
}
