//! A TCP server on mio that takes a lock for each request, as a guest in its own event loop.
//!
//! Each connection sends a line with a resource's name, and is told `held` or why not; the lock is
//! released at once. Try it with `nc 127.0.0.1 7700`.
//!
//! ```text
//! cargo run --example own_event_loop -- redis://10.0.0.{1,2,3}
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use muxlock::{Done, Multiplexer, OpId, Redlock};

const LISTENER: Token = Token(0);
const CLIENTS_MAX: usize = 1_000;
/// Ours are the tokens below; the multiplexer has one for each master from here on.
const MASTERS: Token = Token(1 + CLIENTS_MAX);
const TTL: Duration = Duration::from_secs(5);

struct Server {
    mux: Multiplexer,
    clients: HashMap<Token, TcpStream>,
    waiting: HashMap<OpId, Token>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let config = Redlock::builder().nodes(std::env::args().skip(1)).config()?;
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(256);
    let mut listener = TcpListener::bind("127.0.0.1:7700".parse()?)?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mux = Multiplexer::new(config, poll.registry(), MASTERS)?;
    let mut server = Server { mux, clients: HashMap::new(), waiting: HashMap::new() };
    println!("listening on {}", listener.local_addr()?);

    loop {
        // The masters' timeouts bound how long this loop sleeps.
        match poll.poll(&mut events, server.mux.next_timeout()) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        }
        for event in &events {
            match event.token() {
                LISTENER => server.accept(&poll, &listener)?,
                // A token from MASTERS on is the multiplexer's.
                token if !server.mux.handle_event(event) => server.read(token),
                _ => {}
            }
        }
        server.mux.handle_timeout();
        server.answer();
    }
}

impl Server {
    fn accept(&mut self, poll: &Poll, listener: &TcpListener) -> std::io::Result<()> {
        loop {
            let (mut client, _) = match listener.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                other => other?,
            };
            let free = (1..=CLIENTS_MAX).map(Token).find(|token| !self.clients.contains_key(token));
            // A client too many is hung up on.
            let Some(token) = free else { continue };
            poll.registry().register(&mut client, token, Interest::READABLE)?;
            self.clients.insert(token, client);
        }
    }

    fn read(&mut self, token: Token) {
        let mut line = [0; 256];
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        match client.read(&mut line) {
            Ok(0) => self.hang_up(token),
            Ok(length) => match self.mux.lock(line[..length].trim_ascii(), TTL) {
                Ok(op) => {
                    self.waiting.insert(op, token);
                }
                Err(error) => self.tell(token, &error.to_string()),
            },
            Err(_) => {}
        }
    }

    /// Tells the clients whose operations have ended; a lock that nobody waits for is let go.
    fn answer(&mut self) {
        while let Some((op, done)) = self.mux.poll_done() {
            let text = match done {
                Done::Acquired(Ok(lease)) => {
                    let left = lease.remaining(self.mux.now());
                    self.mux.abandon(lease);
                    format!("held for another {left:?}")
                }
                Done::Acquired(Err(error)) => error.to_string(),
                Done::Extended(..) | Done::Released(_) => continue,
            };
            if let Some(token) = self.waiting.remove(&op) {
                self.tell(token, &text);
            }
        }
        self.mux.flush();
    }

    fn tell(&mut self, token: Token, text: &str) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        if writeln!(client, "{text}").is_err() {
            self.hang_up(token);
        }
    }

    /// The token may be another client's next: no answer of this one's must reach that one.
    fn hang_up(&mut self, token: Token) {
        self.clients.remove(&token);
        self.waiting.retain(|_, waiting| *waiting != token);
    }
}
