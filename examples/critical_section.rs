//! Do something that only one process may do at a time.
//!
//! ```text
//! cargo run --example critical_section -- redis://10.0.0.{1,2,3}
//! ```
//!
//! With masters that were just started, write `'redis://10.0.0.1?restart_guard=off'` and so on.

use std::error::Error;
use std::time::Duration;

use muxlock::Redlock;

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        eprintln!("usage: critical_section redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3");
        std::process::exit(2);
    }
    let redlock = Redlock::connect(urls)?;

    // Wait for the current holder for at most five seconds. Then hold the lock for at most ten.
    let ttl = Duration::from_secs(10);
    let lock = match redlock.try_lock_for("report:daily", ttl, Duration::from_secs(5)) {
        Ok(lock) => lock,
        Err(error) if error.is_contended() => {
            println!("another process is writing the report");
            return Ok(());
        }
        // Too few masters gave a vote: the error says what each of them did.
        Err(error) => return Err(error.into()),
    };

    println!("held for another {:?}", lock.remaining());
    write_report();

    // Only if this is true is it certain that no other process was writing at the same time.
    if !lock.unlock()?.was_held() {
        return Err("the lock may have been lost before the report was written".into());
    }
    Ok(())
}

fn write_report() {
    println!("writing");
}
