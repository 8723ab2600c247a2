//! Looks up a node's host name, and asks for its credentials and TLS files, on a helper thread. It
//! exists only while the lookup runs.
//!
//! A node has one lookup at a time. No system can abort a lookup, so a lookup that exceeds the
//! connect timeout continues, and no second one starts beside it. Later tries wait for it, each for
//! its own connect timeout. If it ends between two tries, the next try uses its result.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use mio::{Registry, Token};

use super::failure::Failed;
use super::sentinel::Located;
use crate::config::{Credentials, NodeConfig};
use crate::outcome::NodeOutcome;
#[cfg(not(unix))]
pub(super) use wakeup::LOOK_INTERVAL;
use wakeup::{LookupWaker, Trigger};

/// The result of a lookup.
pub(super) type Found = Result<Box<Ready>, Failed>;

/// What a connection needs.
pub(super) struct Ready {
    pub(super) located: Located,
    /// Those of the node, as its files are now.
    pub(super) settings: NodeConfig,
    pub(super) credentials: Option<Credentials>,
}

/// The state of the lookup of a node's name.
#[derive(Default)]
pub(super) enum NodeSearch {
    #[default]
    None,
    Running(Lookup),
    /// Sentinels have named the address, and are asked whether there was a failover.
    Watching(Lookup),
    /// A lookup that ended after its try had timed out, or found a failover; its result is for the
    /// next try.
    Over(Box<Ready>),
}

/// A running lookup.
pub(super) struct Lookup {
    /// The mutex makes it `Sync`. It is never locked.
    found: Mutex<Receiver<Found>>,
    /// Closed when the result is no longer wanted.
    _stop: SyncSender<()>,
    /// Registered with the poll, which reports it when a result is available.
    _wakeup: LookupWaker,
}

impl Lookup {
    /// Runs `look_up` on a thread of its own. Its argument is disconnected when the result is no
    /// longer wanted.
    pub(super) fn start(
        registry: &Registry,
        token: Token,
        address: Arc<str>,
        look_up: impl FnOnce(&Receiver<()>) -> Option<Found> + Send + 'static,
    ) -> Result<Lookup, Failed> {
        let registered = wakeup::register(registry, token);
        let (_wakeup, trigger) = registered.map_err(|error| Failed::disconnected(&error))?;
        let (sender, found) = sync_channel(1);
        let (_stop, stopped) = sync_channel(0);
        let run = move || {
            let failure = {
                // Dropped in reverse order, also on a panic: the result is there before the poll
                // reports it.
                let _trigger: Trigger = trigger;
                let sender = sender;
                let found = look_up(&stopped);
                let error = found.as_ref().and_then(|found| found.as_ref().err());
                let failure = error.and_then(|failed| failed.words.clone());
                // Sending fails only if the client is gone.
                if let Some(found) = found {
                    let _ = sender.send(found);
                }
                failure
            };
            // A logger that blocks delays only this thread.
            if let Some(failure) = failure {
                log::debug!(target: "muxlock", "{address}: {failure}");
            }
        };
        let thread = thread::Builder::new().name("muxlock-lookup".into());
        thread.spawn(run).map_err(|error| Failed::no_thread(&error))?;
        Ok(Lookup { found: Mutex::new(found), _stop, _wakeup })
    }

    /// The result, if the lookup has ended. Not to be called again after that.
    pub(super) fn take(&mut self) -> Option<Found> {
        match self.found.get_mut().unwrap_or_else(PoisonError::into_inner).try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                let words = "the resolver panicked".to_owned();
                Some(Err(Failed::with(NodeOutcome::Unresolved, words)))
            }
        }
    }
}

/// A pair of sockets: one end is registered with the poll, the other end is shut down.
#[cfg(unix)]
mod wakeup {
    use std::io;
    use std::net::Shutdown;

    use mio::net::UnixStream;
    use mio::{Interest, Registry, Token};

    pub(super) struct LookupWaker {
        end: UnixStream,
        registry: Registry,
    }

    /// Wakes the poll when it is dropped.
    pub(super) struct Trigger(UnixStream);

    pub(super) fn register(
        registry: &Registry,
        token: Token,
    ) -> io::Result<(LookupWaker, Trigger)> {
        let registry = registry.try_clone()?;
        let (mut end, other) = UnixStream::pair()?;
        registry.register(&mut end, token, Interest::READABLE)?;
        Ok((LookupWaker { end, registry }, Trigger(other)))
    }

    impl Drop for LookupWaker {
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

    pub(super) struct LookupWaker;
    pub(super) struct Trigger;

    pub(super) fn register(_: &Registry, _: Token) -> io::Result<(LookupWaker, Trigger)> {
        Ok((LookupWaker, Trigger))
    }
}
