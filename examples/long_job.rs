//! A job that outlasts the TTL: the lock is renewed, and the job stops if the lock is lost.
//!
//! If a job has small steps and should not start a thread, call `LockGuard::ensure` before each
//! step instead.
//!
//! ```text
//! cargo run --example long_job -- redis://10.0.0.{1,2,3}
//! ```

use std::error::Error;
use std::thread;
use std::time::Duration;

use muxlock::{KeepAlive, Redlock};

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        eprintln!("usage: long_job redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3");
        std::process::exit(2);
    }
    let redlock = Redlock::connect(urls)?;
    let lock = redlock.try_lock("report:yearly", Duration::from_secs(2))?;

    // A job that never ends must not hold its lock forever.
    let how = KeepAlive::default()
        .lifetime_max(Duration::from_secs(60))
        // Report a loss this long before the lock expires: longer than one step takes. The callback
        // runs on the renewal thread; it could close what the job writes to.
        .notice(Duration::from_millis(700))
        .on_loss(|loss| eprintln!("{loss}"));
    let lock = lock.keep_alive(how)?;

    for step in 0.. {
        if let Some(loss) = lock.loss() {
            return Err(format!("stopped before step {step}: {loss}").into());
        }
        if !do_step(step) {
            break;
        }
    }

    println!("renewed {} times", lock.renewals());
    println!("done; held to the end: {}", lock.unlock()?.was_held());
    Ok(())
}

/// It takes about half a second.
#[allow(clippy::disallowed_methods, reason = "in place of work")]
fn do_step(step: u32) -> bool {
    println!("step {step}");
    thread::sleep(Duration::from_millis(500));
    step < 7
}
