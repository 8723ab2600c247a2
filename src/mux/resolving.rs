//! Where a node is, and what a connection to it needs: its driver looks that up, and connects.

use std::io;
use std::mem;
use std::sync::Arc;

use mio::Token;

use super::driver::Driver;
use super::failure::{Failed, limit};
use super::lookup::{Found, Lookup, NodeSearch, Ready};
use super::sentinel::{self, Located};
use crate::config::{NodeConfig, Target};
use crate::outcome::{NodeOutcome, Phase, TlsErrorKind, explained, explained_lookup, is_limit};
use crate::proto::NodeEvent;

impl Driver {
    /// Starts to look up the node's name and to ask for its credentials, or waits for a lookup of
    /// an earlier try.
    pub(super) fn look_up(&mut self, node: usize) {
        let now = self.engine.last_now();
        let search = match mem::take(&mut self.nodes[node].search) {
            NodeSearch::Over(ready) => return self.handle_found(node, Ok(ready)),
            NodeSearch::Running(lookup) => Ok(lookup),
            NodeSearch::None | NodeSearch::Watching(_) => self.start_lookup(node),
        };
        match search {
            Ok(lookup) => self.nodes[node].search = NodeSearch::Running(lookup),
            // A missing thread or descriptor says nothing about the name.
            Err(failed) => return self.fail(now, node, failed),
        }
        self.nodes[node].is_awaited = true;
        self.engine.handle_node(now, node, NodeEvent::Connecting(Phase::Lookup));
    }

    fn start_lookup(&mut self, node: usize) -> Result<Lookup, Failed> {
        let (token, address) = (self.token(node), Arc::clone(&self.config.nodes[node].address));
        let resolver = self.config.resolver.clone();
        let locate: Box<dyn FnOnce() -> io::Result<Located> + Send> =
            match self.config.nodes[node].target.clone() {
                Target::Name { host, port } => Box::new(move || {
                    let found = resolver.look_up(&host, port);
                    found.map(Located::from).map_err(|error| limit().unwrap_or(error))
                }),
                Target::Sentinel(_) => {
                    let mut search = self.search_of(node);
                    let next = &mut self.nodes[node].sentinel;
                    *next = next.wrapping_add(1);
                    Box::new(move || search.locate())
                }
                Target::Address(address) => Box::new(move || Ok(vec![address].into())),
                Target::Unix(_) => Box::new(|| Ok(Located::default())),
            };
        let settings = self.nodes[node].settings.clone();
        Lookup::start(&self.registry, token, address, move |_: &_| Some(prepare(settings, locate)))
    }

    fn search_of(&self, node: usize) -> sentinel::Search {
        let (config, next) = (&self.config, self.nodes[node].sentinel);
        // The reason is there before the node fails without one.
        let within = config.connect_timeout / 10 * 9;
        sentinel::Search::of(&config.nodes[node], &config.resolver, within, next)
    }

    pub(super) fn token(&self, node: usize) -> Token {
        Token(self.first.0 + node)
    }

    /// Takes the result of the node's lookup, if it has ended.
    #[cold]
    pub(super) fn ask_lookup(&mut self, node: usize) {
        let connection = &mut self.nodes[node];
        let (NodeSearch::Running(lookup) | NodeSearch::Watching(lookup)) = &mut connection.search
        else {
            return;
        };
        let Some(found) = lookup.take() else {
            return;
        };
        let was_watching = matches!(connection.search, NodeSearch::Watching(_));
        connection.search = NodeSearch::None;
        match found {
            found if connection.is_awaited => self.handle_found(node, found),
            Ok(mut ready) => {
                // It may be used much later.
                ready.located = ready.located.for_later();
                // Credentials are asked for with the next try.
                if !was_watching || !ready.settings.is_asked_for() {
                    connection.search = NodeSearch::Over(ready);
                }
                if was_watching && connection.socket.is_some() {
                    // The one that it is connected to is a master no longer.
                    let outcome = NodeOutcome::Disconnected(io::ErrorKind::ConnectionAborted);
                    self.fail(self.engine.last_now(), node, outcome);
                }
            }
            Err(_) => {}
        }
    }

    fn handle_found(&mut self, node: usize, found: Found) {
        let now = self.engine.last_now();
        let connection = &mut self.nodes[node];
        connection.is_awaited = false;
        let Ready { located, settings, credentials } = match found {
            Ok(ready) => *ready,
            Err(failed) => return self.fail(now, node, failed),
        };
        connection.settings = settings;
        if let Some(credentials) = &credentials {
            self.engine.handle_node(now, node, NodeEvent::Credentials(credentials));
        }
        let connection = &mut self.nodes[node];
        // Continues with the address whose turn it is, at its place in the new list.
        let before = mem::replace(&mut connection.addresses, located.addresses.clone());
        let next = before.get(connection.address.checked_rem(before.len()).unwrap_or(0));
        let at = located.addresses.iter().position(|address| Some(address) == next);
        connection.address = at.unwrap_or(0);
        if let Target::Sentinel(_) = &self.config.nodes[node].target {
            self.notify_engine(node, NodeEvent::Elected { master_for: located.master_for });
            let mut search = self.search_of(node);
            let address = Arc::clone(&self.config.nodes[node].address);
            let settings = self.nodes[node].settings.clone();
            let watch = move |stop: &_| {
                let located = search.watch(located, stop)?;
                Some(Ok(Box::new(Ready { located, settings, credentials })))
            };
            // Without it, a failover is noticed when the connection ends.
            let watch = Lookup::start(&self.registry, self.token(node), address, watch);
            self.nodes[node].search = watch.map_or(NodeSearch::None, NodeSearch::Watching);
        }
        match self.same_server(node) {
            Some(other) => self.engine.handle_node(now, node, NodeEvent::Duplicate { of: other }),
            None => {
                self.engine.handle_node(now, node, NodeEvent::Connecting(Phase::Connect));
                self.try_address(node);
            }
        }
    }

    /// Another node that shares an address with this node's name, if it has one. A numeric node
    /// always has its address, a name has its addresses while it is connected.
    fn same_server(&self, node: usize) -> Option<usize> {
        if let Target::Address(_) = self.config.nodes[node].target {
            return None;
        }
        let addresses = &self.nodes[node].addresses;
        (0..self.nodes.len()).find(|other| {
            let connection = &self.nodes[*other];
            let is_there = match self.config.nodes[*other].target {
                Target::Address(_) => true,
                Target::Name { .. } | Target::Sentinel(_) => connection.socket.is_some(),
                Target::Unix(_) => false,
            };
            let is_shared = |address| addresses.contains(address);
            *other != node && is_there && connection.addresses.iter().any(is_shared)
        })
    }
}

/// Finds the server, and asks for what else a connection needs.
fn prepare(settings: NodeConfig, locate: impl FnOnce() -> io::Result<Located>) -> Found {
    let of_files = |why| Failed::with(NodeOutcome::Tls(TlsErrorKind::Other), why);
    let settings = settings.fresh().map_err(of_files)?;
    let failed = |outcome, words, error: &io::Error| match is_limit(error) {
        true => Failed::with(NodeOutcome::AtLimit, explained(error)),
        false => Failed::with(outcome, words),
    };
    let located = locate().map_err(|error| {
        let (outcome, words) = match &settings.target {
            Target::Name { host, .. } => (NodeOutcome::Unresolved, explained_lookup(&error, host)),
            Target::Sentinel(_) => (NodeOutcome::NoSentinel, explained(&error)),
            _ => (NodeOutcome::Unresolved, explained(&error)),
        };
        failed(outcome, words, &error)
    })?;
    let credentials = settings.login.ask(&settings.address);
    let credentials = credentials
        .map_err(|error| failed(NodeOutcome::NoCredentials, explained(&error), &error))?;
    Ok(Box::new(Ready { located, settings, credentials }))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;
    use std::time::Duration;

    use mio::{Events, Poll};

    use super::*;
    use crate::config::Builder;
    use crate::sys::clock::Clock;

    /// R32: when the result is used, another server may have been the master meanwhile.
    #[test]
    fn age_of_a_master_that_nobody_waits_for_is_not_kept() {
        let mut poll = Poll::new().unwrap();
        let config = Builder::default().node("redis://127.0.0.1:1").config().unwrap();
        let mut driver = Driver::new(config, poll.registry(), Token(0)).unwrap();
        let master_for = Some((Duration::from_secs(3_600), Clock.now()));
        let mut located = Located::from(vec!["127.0.0.1:1".parse().unwrap()]);
        located.master_for = master_for;
        let (registry, token) = (&driver.registry, driver.token(0));
        let settings = driver.nodes[0].settings.clone();
        let look_up = move |_: &Receiver<()>| Some(prepare(settings, || Ok(located)));
        let Ok(lookup) = Lookup::start(registry, token, Arc::from("it"), look_up) else {
            panic!("the thread of the lookup does not start");
        };
        driver.nodes[0].search = NodeSearch::Running(lookup);
        let mut events = Events::with_capacity(1);
        while let NodeSearch::Running(_) = driver.nodes[0].search {
            poll.poll(&mut events, Some(Duration::from_millis(5))).unwrap();
            driver.ask_lookup(0);
        }
        match &driver.nodes[0].search {
            NodeSearch::Over(ready) => assert_eq!(ready.located.master_for, None),
            _ => panic!("the result is for the next try"),
        }
    }
}
