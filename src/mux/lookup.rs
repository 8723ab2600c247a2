//! Looks up a node's host name on a helper thread, which exists only while the lookup runs.
//!
//! A node has one lookup at a time. No system can abort a lookup, so a lookup that exceeds the
//! connect timeout continues, and no second one starts beside it. Later tries wait for it, each for
//! its own connect timeout. If it ends between two tries, the next try uses its result.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

use mio::{Registry, Token};

use super::driver::{Driver, disconnected};
use crate::config::{NodeConfig, Resolver, Target};
use crate::outcome::{NodeOutcome, Phase};
#[cfg(not(unix))]
pub(super) use wakeup::LOOK_INTERVAL;
use wakeup::{Trigger, Wakeup};

type Found = io::Result<Vec<SocketAddr>>;

/// The state of the lookup of a node's name.
#[derive(Default)]
pub(super) enum Search {
    #[default]
    None,
    Running(Lookup),
    /// A lookup that ended after its try had timed out; its addresses are for the next try.
    Over(Vec<SocketAddr>),
}

/// A running lookup.
pub(super) struct Lookup {
    found: Receiver<Found>,
    /// Registered with the poll, which reports it when a result is available.
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
                // Dropped in reverse order, also on a panic: the result is there before the poll
                // reports it.
                let _trigger: Trigger = trigger;
                let tell = tell;
                let found = resolver.look_up(&host, port);
                let failure = found.as_ref().err().map(ToString::to_string);
                // Sending fails only if the client is gone.
                let _ = tell.send(found);
                failure
            };
            // A logger that blocks delays only this thread.
            if let Some(failure) = failure {
                log::debug!(target: "muxlock", "{address}: {failure}");
            }
        };
        thread::Builder::new().name("muxlock-lookup".into()).spawn(look_up)?;
        Ok(Lookup { found, _wakeup })
    }

    /// The result, if the lookup has ended. Not to be called again after that.
    fn take(&self) -> Option<Found> {
        match self.found.try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::Error::other("the resolver panicked"))),
        }
    }
}

impl Driver {
    /// Starts to look up the node's name, or waits for a lookup of an earlier try.
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
                    // A missing thread or descriptor says nothing about the name.
                    Err(error) => return self.fail(now, node, disconnected(&error)),
                }
            }
        };
        connection.is_awaited = true;
        self.engine.handle_connecting(now, node, Phase::Lookup);
    }

    /// Takes the result of the node's lookup, if it has ended.
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
        // Continues with the address whose turn it is, at its place in the new list.
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

    /// Another node that shares an address with this node's name. A numeric node always has its
    /// address, a name has its addresses while it is connected.
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

/// A pair of sockets: one end is registered with the poll, the other end is shut down.
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

/// Without Unix sockets the poll is not woken: the loop checks lookups at an interval.
#[cfg(not(unix))]
mod wakeup {
    use std::io;
    use std::time::Duration;

    use mio::{Registry, Token};

    /// How often the loop checks a running lookup.
    pub(in crate::mux) const LOOK_INTERVAL: Duration = Duration::from_millis(5);

    pub(super) struct Wakeup;
    pub(super) struct Trigger;

    pub(super) fn register(_: &Registry, _: Token) -> io::Result<(Wakeup, Trigger)> {
        Ok((Wakeup, Trigger))
    }
}
