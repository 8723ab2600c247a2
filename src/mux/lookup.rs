//! Looking up a node's name on a helper thread, which exists for as long as the lookup runs.
//!
//! A node has one lookup at a time. One that takes longer than a connection may is not ended,
//! because no system can end it, nor joined by a second one: the tries that follow wait for it,
//! each for as long as it has, and what it finds at last is for the next one.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

use mio::{Registry, Token};

use super::{Multiplexer, disconnected};
use crate::config::{NodeConfig, Resolver, Target};
use crate::error::{NodeOutcome, Phase};
#[cfg(not(unix))]
pub(super) use wakeup::LOOK_INTERVAL;
use wakeup::{Trigger, Wakeup};

type Found = io::Result<Vec<SocketAddr>>;

/// What is done about a node's name.
#[derive(Default)]
pub(super) enum Search {
    #[default]
    None,
    Running(Lookup),
    /// It has ended after its try: for the next.
    Over(Vec<SocketAddr>),
}

/// A lookup that runs.
pub(super) struct Lookup {
    found: Receiver<Found>,
    /// It is announced to the poll when there is something to take.
    _wakeup: Wakeup,
}

impl Lookup {
    fn start(
        registry: &Registry,
        token: Token,
        (host, port): (&str, u16),
        node: &NodeConfig,
        resolver: &Resolver,
    ) -> io::Result<Lookup> {
        let (_wakeup, trigger) = wakeup::register(registry, token)?;
        let (tell, found) = sync_channel(1);
        let (host, resolver) = (host.to_owned(), resolver.clone());
        let address = node.address.clone();
        let look_up = move || {
            let failure = {
                // Dropped in the opposite order, also by a panic: what is announced is there.
                let _trigger: Trigger = trigger;
                let tell = tell;
                let found = resolver.look_up(&host, port);
                let failure = found.as_ref().err().map(ToString::to_string);
                // If it fails, the client is gone.
                let _ = tell.send(found);
                failure
            };
            // A logger that blocks has this thread to itself.
            if let Some(failure) = failure {
                log::debug!(target: "muxlock", "{address}: {failure}");
            }
        };
        thread::Builder::new().name("muxlock-lookup".into()).spawn(look_up)?;
        Ok(Lookup { found, _wakeup })
    }

    /// What it has found, if it has ended. To be asked no more then.
    fn take(&self) -> Option<Found> {
        match self.found.try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::Error::other("it has panicked"))),
        }
    }
}

impl Multiplexer {
    /// Starts to look up the node's name, or waits for a lookup that an earlier try has left.
    pub(super) fn look_up(&mut self, node: usize, host: &str, port: u16) {
        let now = self.engine.last_now();
        let connection = &mut self.nodes[node];
        connection.search = match mem::take(&mut connection.search) {
            Search::Over(addresses) => return self.handle_found(node, Ok(addresses)),
            Search::Running(lookup) => Search::Running(lookup),
            Search::None => {
                let token = Token(self.first.0 + node);
                let Self { config, registry, .. } = self;
                let of = &config.nodes[node];
                match Lookup::start(registry, token, (host, port), of, &config.resolver) {
                    Ok(lookup) => Search::Running(lookup),
                    // It is no fault of the name's if there is no thread or descriptor.
                    Err(error) => return self.fail(now, node, disconnected(&error)),
                }
            }
        };
        connection.is_awaited = true;
        self.engine.handle_connecting(now, node, Phase::Lookup);
    }

    /// Takes what the node's lookup has found, if one has ended.
    #[cold]
    pub(super) fn ask_lookup(&mut self, node: usize) {
        let connection = &mut self.nodes[node];
        let Search::Running(lookup) = &connection.search else {
            return;
        };
        let Some(found) = lookup.take() else {
            return;
        };
        connection.search = Search::None;
        match found {
            found if connection.is_awaited => self.handle_found(node, found),
            Ok(addresses) => connection.search = Search::Over(addresses),
            Err(_) => {}
        }
    }

    fn handle_found(&mut self, node: usize, found: Found) {
        let now = self.engine.last_now();
        let connection = &mut self.nodes[node];
        connection.is_awaited = false;
        let Ok(addresses) = found else {
            return self.fail(now, node, NodeOutcome::Unresolved);
        };
        // The one whose turn it is, wherever it stands in the new list.
        let before = mem::take(&mut connection.addresses);
        let next = before.get(connection.address.checked_rem(before.len()).unwrap_or(0));
        let at = addresses.iter().position(|address| Some(address) == next);
        connection.address = at.unwrap_or(0);
        connection.addresses = addresses;
        match self.same_server(node) {
            Some(other) => self.engine.handle_duplicate(now, node, other),
            None => {
                self.engine.handle_connecting(now, node, Phase::Connect);
                self.try_address(node);
            }
        }
    }

    /// Another node that has one of the addresses that this node's name was found to have. A number
    /// has its address for ever, a name for as long as it is connected.
    fn same_server(&self, node: usize) -> Option<usize> {
        let addresses = &self.nodes[node].addresses;
        (0..self.nodes.len()).find(|other| {
            let connection = &self.nodes[*other];
            let is_there = match self.config.nodes[*other].target {
                Target::Address(_) => true,
                Target::Name { .. } => connection.socket.is_some(),
                Target::Unix(_) => false,
            };
            let is_shared = |address| addresses.contains(address);
            *other != node && is_there && connection.addresses.iter().any(is_shared)
        })
    }
}

/// A pair of sockets: one end is registered with the poll, and the other one is shut down.
#[cfg(unix)]
mod wakeup {
    use std::io;
    use std::net::Shutdown;

    use mio::net::UnixStream;
    use mio::{Interest, Registry, Token};

    pub(super) struct Wakeup {
        end: UnixStream,
        registry: Registry,
    }

    /// Wakes the poll when it is dropped.
    pub(super) struct Trigger(UnixStream);

    pub(super) fn register(registry: &Registry, token: Token) -> io::Result<(Wakeup, Trigger)> {
        let registry = registry.try_clone()?;
        let (mut end, other) = UnixStream::pair()?;
        registry.register(&mut end, token, Interest::READABLE)?;
        Ok((Wakeup { end, registry }, Trigger(other)))
    }

    impl Drop for Wakeup {
        fn drop(&mut self) {
            let _ = self.registry.deregister(&mut self.end);
        }
    }

    impl Drop for Trigger {
        fn drop(&mut self) {
            // Closing it is not enough: a forked process may have a copy of it.
            let _ = self.0.shutdown(Shutdown::Both);
        }
    }
}

/// Nothing wakes the poll: the loop looks by itself.
#[cfg(not(unix))]
mod wakeup {
    use std::io;
    use std::time::Duration;

    use mio::{Registry, Token};

    /// How often a lookup is looked at.
    pub(in crate::mux) const LOOK_INTERVAL: Duration = Duration::from_millis(5);

    pub(super) struct Wakeup;
    pub(super) struct Trigger;

    pub(super) fn register(_: &Registry, _: Token) -> io::Result<(Wakeup, Trigger)> {
        Ok((Wakeup, Trigger))
    }
}
