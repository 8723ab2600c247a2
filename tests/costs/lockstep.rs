//! Servers that say when all of them have answered, so that a client can wait until there is
//! nothing left to wait for: then it does the same things in the same order every time.

use std::io::{self, ErrorKind, Write};
use std::process::ChildStdin;
use std::sync::{Arc, Mutex, PoisonError};

use testbed::scripted::{Peer, Scripted};

/// Several servers, and the barrier that they let a child pass.
pub struct Lockstep {
    servers: Vec<Scripted>,
    gate: Arc<Mutex<Gate>>,
}

struct Gate {
    /// How many batches each server has answered.
    answered: Vec<u64>,
    /// So many commands of locks are one.
    batch: u64,
    passed: u64,
    barrier: Option<ChildStdin>,
}

impl Lockstep {
    /// Starts so many servers; `batch` is how many commands are sent to each before the barrier.
    pub fn start(nodes: usize, batch: usize) -> Lockstep {
        let gate = Gate { answered: vec![0; nodes], batch: batch as u64, passed: 0, barrier: None };
        let gate = Arc::new(Mutex::new(gate));
        let server = |node| {
            let gate = Arc::clone(&gate);
            Scripted::start(move |peer| serve(peer, node, &gate))
        };
        Lockstep { servers: (0..nodes).map(server).collect(), gate }
    }

    /// The URL of each server.
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Scripted::url).collect()
    }

    /// What the child reads a byte from at each barrier.
    pub fn open(&self, barrier: ChildStdin) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        gate.barrier = Some(barrier);
        gate.let_pass();
    }
}

impl Gate {
    fn let_pass(&mut self) {
        let Some(barrier) = &mut self.barrier else { return };
        let all = self.answered.iter().min().copied().unwrap_or_default();
        while self.passed < all {
            self.passed += 1;
            // It fails if the child is gone; its parent sees how it ended.
            let _ = barrier.write_all(b"\n");
        }
    }
}

/// Answers a handshake, which a script ends: what comes before it depends on the restart guard.
fn greet(peer: &mut Peer) -> io::Result<()> {
    while let Some(command) = peer.read_command()? {
        let reply = peer.normal_reply(&command);
        peer.reply(&reply)?;
        // The trial is the only script without a key.
        if command.len() > 2 && command[0] == b"EVAL" && command[2] == b"0" {
            return Ok(());
        }
    }
    Err(ErrorKind::UnexpectedEof.into())
}

fn serve(peer: &mut Peer, node: usize, gate: &Mutex<Gate>) -> io::Result<()> {
    greet(peer)?;
    let batch = gate.lock().unwrap_or_else(PoisonError::into_inner).batch;
    // What is sent together is answered together, in one packet. That is also where the client
    // finds what it asks now and then about a server's clock.
    let (mut replies, mut answered) = (Vec::new(), 0);
    while let Some(command) = peer.read_command()? {
        replies.extend(peer.normal_reply(&command));
        answered += u64::from(is_of_a_lock(&command));
        if answered == batch {
            peer.reply(&replies)?;
            (replies, answered) = (Vec::new(), 0);
            let mut gate = gate.lock().unwrap_or_else(PoisonError::into_inner);
            gate.answered[node] += 1;
            gate.let_pass();
        }
    }
    Ok(())
}

/// A server that answers a release together with the next SET: nobody waits for it alone.
pub fn late_releases() -> Scripted {
    Scripted::start(|peer| {
        greet(peer)?;
        let mut replies = Vec::new();
        while let Some(command) = peer.read_command()? {
            replies.extend(peer.normal_reply(&command));
            if command.first().is_some_and(|name| name == b"SET") {
                peer.reply(&replies)?;
                replies.clear();
            }
        }
        Ok(())
    })
}

fn is_of_a_lock(command: &[Vec<u8>]) -> bool {
    command.first().is_some_and(|name| name == b"SET" || name == b"EVAL")
}
