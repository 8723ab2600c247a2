//! A TCP server on mio that takes a lock for each request, as a guest in its own event loop.
//!
//! A client sends lines with one resource name each. For each line the server answers, in order,
//! `held until ...` or an error, and immediately releases the lock. The line `stats` asks how long
//! the multiplexer blocked the loop. If a client closes its connection, the server cancels its
//! request. Try it with `nc 127.0.0.1 7700`.
//!
//! ```text
//! cargo run --example own_event_loop -- redis://10.0.0.{1,2,3}
//! ```
//!
//! `LISTEN` is another address to listen on.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use muxlock::proto::{Done, OpId};
use muxlock::{Config, Multiplexer, Redlock};

const LISTENER: Token = Token(0);
const CLIENTS_MAX: usize = 1_000;
/// This example uses the tokens below. The multiplexer uses one for each master from here on.
const MASTERS: Token = Token(1 + CLIENTS_MAX);
/// The limit for the unanswered input of a client; more input waits in its socket.
const INPUT_BYTES_MAX: usize = 2 * 1_024;
/// The most requests of a client in one turn; further ones are served in the next turn.
const REQUESTS_PER_TURN_MAX: usize = 16;
const TTL: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        eprintln!("usage: own_event_loop redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3");
        std::process::exit(2);
    }
    let config = Redlock::builder().nodes(urls).config()?;
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:7700".to_owned());
    let mut server = Server::bind(address.parse()?, config, wall_time)?;
    println!("listening on {}", server.listener.local_addr()?);
    loop {
        server.turn()?;
    }
}

#[expect(clippy::disallowed_methods, reason = "the multiplexer is measured from outside")]
fn wall_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// The server: its clients, and the multiplexer that runs in its loop.
pub struct Server {
    poll: Poll,
    events: Events,
    /// Where clients come in.
    pub listener: TcpListener,
    guest: Guest,
    clients: HashMap<Token, Client>,
    free: Vec<Token>,
    /// The client that waits for each operation.
    waiting: HashMap<OpId, Token>,
    /// Clients that have more requests than fit into a turn.
    hasty: Vec<Token>,
}

impl Server {
    /// Listens. `clock` measures how long the multiplexer takes.
    pub fn bind(address: SocketAddr, config: Config, clock: fn() -> Duration) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(address)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let mux = Multiplexer::new(config, poll.registry(), MASTERS)?;
        Ok(Server {
            poll,
            events: Events::with_capacity(256),
            listener,
            guest: Guest { mux, clock, this_turn: Duration::ZERO, longest_turn: Duration::ZERO },
            clients: HashMap::new(),
            free: (1..=CLIENTS_MAX).map(Token).collect(),
            waiting: HashMap::new(),
            hasty: Vec::new(),
        })
    }

    /// Waits until there is something to do, and does it. Returns how long the multiplexer took.
    pub fn turn(&mut self) -> io::Result<Duration> {
        // The masters' timeouts bound how long this loop sleeps.
        let next = self.guest.call(|mux| mux.next_timeout());
        let timeout = if self.hasty.is_empty() { next } else { Some(Duration::ZERO) };
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => other?,
        }
        // The multiplexer handles the events with its own tokens, and ignores the others.
        self.guest.call(|mux| mux.handle_events(&self.events));
        let tokens = self.events.iter().map(|event| event.token());
        let tokens: Vec<Token> = tokens.chain(self.hasty.drain(..)).collect();
        for token in tokens {
            // No client has a master's token.
            if token == LISTENER { self.accept()? } else { self.serve(token) }
        }
        self.answer();
        Ok(self.guest.end_turn())
    }

    fn accept(&mut self) -> io::Result<()> {
        // It ends when no connection is pending, or too many files are open. Neither stops the
        // server.
        while let Ok((mut stream, _)) = self.listener.accept() {
            // If there are too many clients, this drops the connection.
            let Some(token) = self.free.pop() else { continue };
            let both = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut stream, token, both)?;
            let client = Client { stream, input: Vec::new(), output: Vec::new(), op: None };
            self.clients.insert(token, client);
        }
        Ok(())
    }

    /// Serves a client's requests one at a time. So the answers stay in order, and no more than one
    /// of them waits for the client to read it.
    fn serve(&mut self, token: Token) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        for _ in 0..REQUESTS_PER_TURN_MAX {
            if client.write().and_then(|()| client.read()).is_err() {
                return self.hang_up(token);
            }
            if client.op.is_some() || !client.output.is_empty() {
                return;
            }
            let Some(line) = client.next_line() else { return };
            if line == b"stats" {
                client.tell(&format!("waiting {} {}", self.waiting.len(), self.guest.report()));
                continue;
            }
            match self.guest.call(|mux| mux.try_lock_for(&line, TTL, WAIT)) {
                Ok(op) => {
                    client.op = Some(op);
                    self.waiting.insert(op, token);
                }
                Err(error) => client.tell(&error.to_string()),
            }
        }
        self.hasty.push(token);
    }

    /// Answers the clients whose operations have ended, and sends the commands of this turn.
    fn answer(&mut self) {
        while let Some((op, done)) = self.guest.call(Multiplexer::poll_done) {
            let text = match done {
                Done::Acquired(Ok(lease)) => {
                    let until = lease.valid_until();
                    self.guest.call(|mux| mux.abandon(lease));
                    format!("held until {until:?}")
                }
                Done::Acquired(Err(error)) => error.to_string(),
                // This program starts no operation of another kind.
                _ => continue,
            };
            let token = self.waiting.remove(&op).expect("hang_up removes the operation");
            let client = self.clients.get_mut(&token).expect("hang_up removes both");
            client.op = None;
            client.tell(&text);
            self.serve(token);
        }
        self.guest.call(Multiplexer::flush);
    }

    /// Another client may get the token next, so this client's operation must be removed.
    fn hang_up(&mut self, token: Token) {
        let Some(client) = self.clients.remove(&token) else { return };
        self.free.push(token);
        if let Some(op) = client.op {
            self.waiting.remove(&op);
            // It is an acquisition: cancelling it returns nothing that must be handled.
            let _ = self.guest.call(|mux| mux.cancel(op));
        }
    }
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    op: Option<OpId>,
}

impl Client {
    /// Reads while there is room. Fails if the client is gone, or has sent too much without a line.
    fn read(&mut self) -> io::Result<()> {
        let mut chunk = [0; INPUT_BYTES_MAX];
        while self.input.len() < INPUT_BYTES_MAX {
            let room = INPUT_BYTES_MAX - self.input.len();
            match self.stream.read(&mut chunk[..room]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let is_line = self.input.contains(&b'\n');
        if is_line { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
    }

    fn next_line(&mut self) -> Option<Vec<u8>> {
        let end = self.input.iter().position(|byte| *byte == b'\n')?;
        let line = self.input.drain(..=end).collect::<Vec<u8>>();
        Some(line.trim_ascii().to_vec())
    }

    fn tell(&mut self, text: &str) {
        self.output.extend_from_slice(text.as_bytes());
        self.output.push(b'\n');
    }

    /// Writes what the socket accepts; an event announces when it accepts more.
    fn write(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The multiplexer, and how long its calls block the loop.
struct Guest {
    mux: Multiplexer,
    clock: fn() -> Duration,
    this_turn: Duration,
    longest_turn: Duration,
}

impl Guest {
    fn call<T>(&mut self, call: impl FnOnce(&mut Multiplexer) -> T) -> T {
        let start = (self.clock)();
        let result = call(&mut self.mux);
        self.this_turn += (self.clock)().saturating_sub(start);
        result
    }

    fn end_turn(&mut self) -> Duration {
        self.longest_turn = self.longest_turn.max(self.this_turn);
        std::mem::take(&mut self.this_turn)
    }

    fn report(&self) -> String {
        let (longest, stats) = (self.longest_turn, self.mux.stats());
        format!("longest {longest:?} acquired {} cancelled {}", stats.acquired, stats.cancelled)
    }
}
