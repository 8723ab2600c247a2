//! Do something that only one process may do at a time.
//!
//! ```text
//! cargo run --example critical_section -- redis://10.0.0.{1,2,3}
//! ```

use std::error::Error;
use std::time::Duration;

use muxlock::Redlock;

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let redlock = Redlock::connect(urls)?;

    // Wait for at most five seconds for whoever has it; hold it for ten at most.
    let ttl = Duration::from_secs(10);
    let lock = match redlock.try_lock_for("report:daily", ttl, Duration::from_secs(5)) {
        Ok(lock) => lock,
        Err(error) if error.is_contended() => {
            println!("somebody else is writing the report");
            return Ok(());
        }
        // Too few masters answered: the error says what each of them did.
        Err(error) => return Err(error.into()),
    };

    println!("held for another {:?}", lock.remaining());
    write_report();

    // Only now is it certain that nobody else can have been at it.
    let released = lock.unlock()?;
    println!("held to the end: {}", released.was_held());
    Ok(())
}

fn write_report() {
    println!("writing");
}
