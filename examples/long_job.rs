//! A job of small steps that outlasts the TTL: extend the lock as it goes, stop when it is lost.
//!
//! ```text
//! cargo run --example long_job -- redis://10.0.0.{1,2,3}
//! ```

use std::error::Error;
use std::time::Duration;

use muxlock::Redlock;

/// Extensions keep others out: a job that never ends must not hold its lock for ever.
const STEPS_MAX: u32 = 1_000;

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    let redlock = Redlock::connect(urls)?;
    let mut lock = redlock.try_lock("report:yearly", Duration::from_secs(2))?;

    for step in 0..STEPS_MAX {
        // A step takes at most half a second. This talks to the masters only when less than a
        // second of the validity is left.
        if let Err(error) = lock.ensure(Duration::from_secs(1)) {
            if error.is_unavailable() && lock.remaining() > Duration::from_millis(500) {
                println!("step {step}: could not extend, but this step still fits: {error}");
            } else {
                return Err(format!("stopped before step {step}: {error}").into());
            }
        }
        if !do_step(step) {
            break;
        }
    }

    println!("done; held to the end: {}", lock.unlock()?.was_held());
    Ok(())
}

fn do_step(step: u32) -> bool {
    println!("step {step}");
    step < 9
}
