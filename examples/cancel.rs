//! Wait for a lock until the user gives up.
//!
//! ```text
//! cargo run --example cancel -- redis://10.0.0.{1,2,3}
//! ```
//!
//! A service does the same when it shuts down: one waiter for all its threads, and
//! [`Waiter::cancel`](muxlock::Waiter::cancel) in the handler of SIGTERM.

use std::error::Error;
use std::io;
use std::time::Duration;

use muxlock::{LockErrorKind, Redlock};

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        eprintln!("usage: cancel redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3");
        std::process::exit(2);
    }
    // Who waits for so long need not give up on a slow master after 50 ms.
    let node_timeout = Duration::from_secs(1);
    let redlock = Redlock::builder().nodes(urls).node_timeout(node_timeout).connect()?;
    let waiter = redlock.waiter();

    let stop = waiter.clone();
    std::thread::spawn(move || {
        // At the end of the input, too.
        let _ = io::stdin().read_line(&mut String::new());
        stop.cancel();
    });

    println!("waiting; press Enter to give up");
    let (ttl, wait) = (Duration::from_secs(10), Duration::from_secs(3600));
    match waiter.redlock().try_lock_for("report:daily", ttl, wait) {
        Ok(lock) => {
            println!("held for another {:?}", lock.remaining());
            if !lock.unlock()?.was_held() {
                return Err("the lock may have been lost".into());
            }
        }
        Err(error) if error.kind() == LockErrorKind::Cancelled => println!("gave up"),
        Err(error) => return Err(error.into()),
    }

    // The client has released whatever the attempt left on the masters; let that arrive.
    redlock.shutdown(Duration::from_secs(1));
    Ok(())
}
