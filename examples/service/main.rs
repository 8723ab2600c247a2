//! An HTTP service that takes a lock for each request: a bounded number of requests at a time, a
//! time limit for each wait, probes, metrics, and an end that answers everybody.
//!
//! ```text
//! export MUXLOCK_NODES='redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3'
//! cargo run --features env --example service
//! curl -i http://127.0.0.1:8080/accounts/7
//! ```
//!
//! `/accounts/7` adds one to the number in the file `7`. `/healthz` says that the process lives,
//! `/ready` that it can lock, and `/metrics` has the numbers of the file `collector.rs`. Further
//! settings: `LISTEN` is the address, `LEDGER` the folder of the files, and `WAIT_MS` how long
//! a request may wait for its lock.

mod collector;
mod http;

use std::error::Error;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use collector::Locks;
use http::{Answer, Server};
use muxlock::settings::Wait;
use muxlock::{Builder, LockError, LockGuard, Redlock};
use prometheus_client::{encoding::text::encode, registry::Registry};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Requests that wait for a lock or work, at a time; further ones are refused at once.
const PAYMENTS_MAX: usize = 16;
/// More than three times as long as the work.
const TTL: Duration = Duration::from_secs(10);
/// `connect_timeout` and a round trip.
const READY_TIMEOUT: Duration = Duration::from_millis(600);
/// After a signal, `/ready` fails for so long before the process ends: longer than the load
/// balancer takes to notice it.
const DRAIN: Duration = Duration::from_secs(1);
/// How long to wait at the end until the masters have every release.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn main() -> Result<(), Box<dyn Error>> {
    let setting = |name, usual: &str| std::env::var(name).unwrap_or_else(|_| usual.to_owned());
    // The variables that the tool reads too: both have the same servers, prefix and `max_ttl`.
    let redlock = Builder::from_env()?.build()?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Locks(redlock.clone())));
    let service = Arc::new(Service {
        redlock: redlock.clone(),
        registry,
        payments: AtomicUsize::new(0),
        ledger: setting("LEDGER", ".").into(),
        wait: Duration::from_millis(setting("WAIT_MS", "250").parse()?),
    });

    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let listen = setting("LISTEN", "127.0.0.1:8080");
    let listener = TcpListener::bind(&listen)
        .map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    println!("listening on {}", listener.local_addr()?);
    let server = Arc::new(Server::default());
    let running = Arc::clone(&server);
    thread::spawn(move || running.run(&listener, move |path| service.answer(path)));

    signals.forever().next();
    // All waits for locks end, and `/ready` fails from now on. What holds a lock goes on.
    redlock.close();
    server.end(DRAIN);
    redlock.shutdown(SHUTDOWN_TIMEOUT);
    Ok(())
}

struct Service {
    redlock: Redlock,
    registry: Registry,
    payments: AtomicUsize,
    ledger: PathBuf,
    wait: Duration,
}

impl Service {
    fn answer(&self, path: &str) -> Answer {
        match path {
            // It depends on no master: otherwise an outage of the masters would restart every
            // process.
            "/healthz" => Answer::text(200, "alive"),
            "/ready" => match self.redlock.ready(READY_TIMEOUT) {
                Ok(()) => Answer::text(200, "ready"),
                Err(error) => refused(&error),
            },
            "/metrics" => {
                let mut body = String::new();
                encode(&mut body, &self.registry).expect("a text takes everything");
                Answer { content_type: OPEN_METRICS, body, ..Answer::text(200, "") }
            }
            path => match path.strip_prefix("/accounts/").map(str::parse) {
                Some(Ok(account)) => self.pay_if_free(account),
                _ => Answer::text(404, "try /accounts/7"),
            },
        }
    }

    /// Bounds the threads that wait for locks, so that a load that is too high is refused early.
    fn pay_if_free(&self, account: u32) -> Answer {
        /// Counts one less, even if the handler panics.
        struct Leave<'a>(&'a AtomicUsize);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let before = self.payments.fetch_add(1, Ordering::Relaxed);
        let _leave = Leave(&self.payments);
        match before < PAYMENTS_MAX {
            true => self.pay(account),
            false => retry(503, "too many requests at a time", 1),
        }
    }

    fn pay(&self, account: u32) -> Answer {
        // Without a quorum it fails at once, instead of filling the pool with requests that wait.
        let wait = Wait::for_holder(self.wait);
        let lock = match self.redlock.try_lock_for(format!("account:{account}"), TTL, wait) {
            Ok(lock) => lock,
            Err(error) => return refused(&error),
        };
        let paid = self.add_one(account, &lock);
        // Only then is it certain that no other request was writing at the same time.
        let was_held = lock.unlock().is_ok_and(|released| released.was_held());
        match paid {
            Ok(number) if was_held => Answer::text(200, number),
            Ok(_) => Answer::text(500, "the lock may have been lost before the end"),
            Err(error) => Answer::text(500, error),
        }
    }

    /// Two requests at the same time would write the same number.
    fn add_one(&self, account: u32, lock: &LockGuard) -> io::Result<u64> {
        let file = self.ledger.join(account.to_string());
        let number: u64 = match fs::read_to_string(&file) {
            Ok(text) => text.parse().expect("the file has a number"),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        work();
        if !lock.is_valid() {
            return Err(io::Error::other("the lock has expired; nothing was written"));
        }
        fs::write(&file, (number + 1).to_string())?;
        Ok(number + 1)
    }
}

/// Another holder has the lock, or the masters do not vote. The reason names masters: it is for
/// callers whom you trust with that.
fn refused(error: &LockError) -> Answer {
    let status = if error.is_contended() { 409 } else { 503 };
    // After a restart of masters, it is known when they vote again.
    retry(status, error, error.ready_in().map_or(1, |wait| wait.as_secs() + 1))
}

fn retry(status: u16, reason: impl ToString, secs: u64) -> Answer {
    Answer { retry_after_secs: Some(secs), ..Answer::text(status, reason) }
}

#[allow(clippy::disallowed_methods, reason = "in place of work")]
fn work() {
    thread::sleep(Duration::from_millis(2));
}
