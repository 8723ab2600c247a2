//! A service with several instances, of which one leads.
//!
//! Start it several times. If you end the leader with Ctrl-C or SIGTERM, another one leads at once. If
//! you kill it, another one leads after at most a TTL. If you stop the leader with Ctrl-Z for longer
//! than that, it steps down when it continues.
//!
//! ```text
//! cargo run --example leader -- redis://10.0.0.{1,2,3}
//! ```

use std::error::Error;
use std::thread;
use std::time::Duration;

use muxlock::settings::Wait;
use muxlock::{Fenced, FencingToken, KeepAlive, KeptLock, Loss, Redlock};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How long nobody leads after a crash of the leader, at most.
const TTL: Duration = Duration::from_secs(5);
/// The time from one step of the work to the next.
const PERIOD: Duration = Duration::from_millis(200);
/// Longer than one step takes: the leader steps down this long before its lock expires.
const NOTICE: Duration = Duration::from_secs(1);
/// How long to wait at the end until the masters have the release.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        eprintln!("usage: leader redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3");
        std::process::exit(2);
    }
    // An instance also starts, and waits, while there is no quorum.
    let node_timeout = Duration::from_millis(500);
    let redlock = Redlock::builder().nodes(urls).node_timeout(node_timeout).build()?;
    let (mut signals, closing) = (Signals::new([SIGTERM, SIGINT])?, redlock.clone());
    thread::spawn(move || {
        signals.forever().next();
        // A wait for the lock ends, and so does the loop of the leader.
        closing.close();
    });
    while !redlock.is_closed() {
        println!("follows");
        let lock = match redlock.fenced().try_lock_for("invoices:leader", TTL, Wait::forever()) {
            Err(_) if redlock.is_closed() => break,
            lock => lock?,
        };
        // The default limits end the term after an hour, in case that the work hangs.
        let lock = lock.keep_alive(KeepAlive::default().notice(NOTICE))?;
        println!("leads with token {}", lock.fencing_token());
        match lead(&redlock, &lock) {
            Some(loss) => println!("steps down: {loss}"),
            None => println!("ends"),
        }
        // Dropping the lock lets another instance lead at once.
    }
    redlock.shutdown(SHUTDOWN_TIMEOUT);
    Ok(())
}

/// Works until the lock is lost, or the instance is to end.
fn lead(redlock: &Redlock, lock: &Fenced<KeptLock>) -> Option<Loss> {
    while !redlock.is_closed() {
        // It reads the clock after the wait, so a paused leader notices before its next step.
        let loss = lock.wait_for_loss(PERIOD);
        if loss.is_some() {
            return loss;
        }
        do_step(lock.fencing_token());
    }
    None
}

/// If the process is paused between the check and this, only the token protects the data: each
/// write carries it, and the resource refuses a token that is lower than the highest one seen.
fn do_step(token: FencingToken) {
    println!("step with token {token}");
}
