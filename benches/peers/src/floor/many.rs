//! The floor with many locks at once, on one thread: all commands that are ready leave in one
//! `send` for each master and turn, and each reply is found by its place in the order of the
//! commands.

use std::io::{self, ErrorKind};
use std::mem;
use std::net::TcpStream;

use rustix::event::epoll;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::time::Timespec;

use super::wire::{self, DIGITS, Replies, Reply, TOKEN, Template, Tokens};
use super::{Asked, EVENTS, PATIENCE, connect_all, no_events, send_rest};
use crate::flight::{Flight, Turned};
use crate::job::slot_key;

/// How many commands a master may lag behind, at the least; then it is left out for good.
const LAG: usize = 64 * 1024;
/// How many bytes a full socket may leave over; then its master is left out for good.
const REST_BYTES: usize = 64 * 1024 * 1024;
/// No command has this place.
const DECIDED: u64 = u64::MAX;
/// No master has this number.
const BELL: u64 = u64::MAX;

/// Many locks with a resource for each.
pub struct Many {
    epoll: rustix::fd::OwnedFd,
    nodes: Vec<Node>,
    majority: u16,
    slots: Vec<Slot>,
    set: Template,
    release: Template,
    tokens: Tokens,
    batch: Vec<u8>,
    /// Whose command has which place in the order; a ring.
    order: Box<[u32]>,
    /// How many commands there were.
    asked: u64,
    under_way: usize,
    /// The slots whose last command was decided, and whether a majority agreed.
    decided: Vec<(usize, bool)>,
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
        };
        Ok(Many {
            epoll,
            nodes: streams.into_iter().map(node).collect(),
            majority: (ports.len() / 2 + 1) as u16,
            slots: (0..count).map(slot).collect(),
            set: Template::set(&slot_key(0), ttl_ms),
            release: Template::release(&slot_key(0)),
            tokens: Tokens::default(),
            batch: Vec::new(),
            order: vec![0; (4 * count).max(LAG).next_power_of_two()].into(),
            asked: 0,
            under_way: 0,
            decided: Vec::new(),
            events: no_events(),
        })
    }

    /// What else is to end a wait, edge-triggered.
    pub fn add_bell(&self, bell: &impl AsFd) -> io::Result<()> {
        let (data, interest) = (epoll::EventData::new_u64(BELL), epoll::EventFlags::IN);
        Ok(epoll::add(&self.epoll, bell, data, interest | epoll::EventFlags::ET)?)
    }

    /// Begins a slot's next command, with a fresh token if it is to set.
    pub fn ask(&mut self, index: usize, asked: Asked) -> io::Result<()> {
        if asked == Asked::Set {
            self.slots[index].token = self.tokens.next()?;
        }
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
        Ok(())
    }

    /// Sends what was begun.
    pub fn send(&mut self) {
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
        self.tokens.forget();
    }

    /// Waits for replies and reads them; whether there was anything.
    pub fn wait(&mut self, longest: &Timespec) -> io::Result<bool> {
        let count = loop {
            match epoll::wait(&self.epoll, &mut self.events, Some(longest)) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        for event in 0..count {
            let data = self.events[event].data.u64();
            if data != BELL {
                self.read(data as usize)?;
            }
        }
        Ok(count > 0)
    }

    /// What was decided since it was last taken away from here.
    pub fn decided(&mut self) -> &mut Vec<(usize, bool)> {
        &mut self.decided
    }

    fn read(&mut self, index: usize) -> io::Result<()> {
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
                self.count(place, reply);
            }
            if drained {
                return Ok(());
            }
        }
    }

    /// Counts a vote, if it is one on its slot's last command and that is not decided.
    fn count(&mut self, place: u64, reply: Reply) {
        let index = self.order[place as usize & (self.order.len() - 1)] as usize;
        let minority = self.nodes.len() as u16 - self.majority;
        let slot = &mut self.slots[index];
        if slot.place != place {
            return;
        }
        match (slot.asked, reply) {
            (Asked::Set, Reply::Ok) | (Asked::Release, Reply::One) => slot.yes += 1,
            _ => slot.no += 1,
        }
        let is_won = slot.yes == self.majority;
        if is_won || slot.no > minority {
            // What comes late must not decide once more.
            slot.place = DECIDED;
            self.decided.push((index, is_won));
        }
    }

    /// Goes on with a slot's pair.
    fn go_on(
        &mut self,
        (index, is_won): (usize, bool),
        with_the_next: bool,
        turned: &mut Turned,
    ) -> io::Result<()> {
        if self.slots[index].asked == Asked::Set {
            self.ask(index, Asked::Release)?;
            if is_won {
                return Ok(());
            }
            // A minority may have granted it. Nobody waits for that release, as muxlock does not.
            self.slots[index].place = DECIDED;
        }
        turned.done += 1;
        turned.failed += u64::from(!is_won);
        if with_the_next {
            return self.ask(index, Asked::Set);
        }
        self.under_way -= 1;
        Ok(())
    }
}

impl Flight for Many {
    fn start(&mut self) -> io::Result<()> {
        for slot in 0..self.slots.len() {
            self.ask(slot, Asked::Set)?;
        }
        self.under_way = self.slots.len();
        Ok(())
    }

    fn turn(&mut self, go_on: bool) -> io::Result<Turned> {
        let mut turned = Turned::default();
        self.send();
        if !self.wait(&PATIENCE)? {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut decided = mem::take(&mut self.decided);
        for one in decided.drain(..) {
            self.go_on(one, go_on, &mut turned)?;
        }
        self.decided = decided;
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
