//! Readers and a writer of one thing, a transfer between two things, a bound on how many processes
//! do something at a time, a lock that shows who has it, and one that its own thread takes again.
//!
//! ```text
//! cargo run --example kinds -- redis://10.0.0.{1,2,3}
//! ```

use std::error::Error;
use std::time::Duration;

use muxlock::inspection::Owner;
use muxlock::{LockError, Redlock};

const TTL: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        eprintln!("usage: kinds redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3");
        std::process::exit(2);
    }
    let redlock = Redlock::connect(urls)?;
    read_and_write(&redlock)?;
    transfer(&redlock)?;
    send(&redlock)?;
    report(&redlock)?;
    close_books(&redlock)?;
    Ok(())
}

/// Many may read the catalogue at a time, or one may change it.
fn read_and_write(redlock: &Redlock) -> Result<(), Box<dyn Error>> {
    let readers = [(); 2].map(|()| redlock.try_read_for("catalogue", TTL, WAIT));
    println!("readers: {}", readers.iter().flatten().count());
    println!("writer beside them: {}", said(redlock.try_write("catalogue", TTL)));
    drop(readers);

    let writer = redlock.try_write_for("catalogue", TTL, WAIT)?;
    println!("reader beside the writer: {}", said(redlock.try_read("catalogue", TTL)));
    // ... change it; then let readers in, and check what was written before another may write ...
    let share = writer.downgrade(TTL)?;
    println!("reader after the downgrade: {}", said(redlock.try_read("catalogue", TTL)));
    println!("held to the end: {}", share.unlock()?.was_held());
    Ok(())
}

/// Both accounts or none: nobody waits for one and holds the other meanwhile.
fn transfer(redlock: &Redlock) -> Result<(), Box<dyn Error>> {
    let both = redlock.try_lock_all_for(["account:9", "account:7"], TTL, WAIT)?;
    let third = redlock.try_lock_all(["account:7", "account:8"], TTL);
    let held = third.as_ref().err().and_then(LockError::held_resource).map(ToString::to_string);
    println!("another transfer: {}, because of {}", said(third), held.unwrap_or_default());
    println!("held to the end: {}", both.unlock()?.was_held());
    Ok(())
}

/// At most two connections to the mail server, of all processes together. Each may be told from the
/// others by the name of its slot.
fn send(redlock: &Redlock) -> Result<(), Box<dyn Error>> {
    let smtp = redlock.semaphore("smtp", 2)?;
    let permits = [smtp.try_acquire_for(TTL, WAIT)?, smtp.try_acquire_for(TTL, WAIT)?];
    let mut names = permits.each_ref().map(|permit| permit.resource().to_string());
    names.sort();
    println!("permits: {}", names.join(" "));
    println!("third permit: {}", said(smtp.try_acquire(TTL)));
    Ok(())
}

/// Others see who writes the report. Where that process has ended, another one that knows its value
/// releases the lock and takes it.
fn report(redlock: &Redlock) -> Result<(), Box<dyn Error>> {
    let lock = redlock.try_lock_as_for("report", "worker-7", TTL, WAIT)?;
    if let Owner::Value(value) = redlock.owner("report")? {
        println!("owner: {}", String::from_utf8_lossy(&value));
    }
    println!("the same value again: {}", said(redlock.try_lock_as("report", "worker-7", TTL)));
    // It ends and releases nothing.
    let _ended = lock.into_parts();
    let _ = redlock.release_as("report", "worker-7")?;
    let next = redlock.try_lock_as_for("report", "worker-8", TTL, WAIT)?;
    println!("held to the end: {}", next.unlock()?.was_held());
    Ok(())
}

/// A step that takes the lock for itself may be called with the lock held.
fn close_books(redlock: &Redlock) -> Result<(), Box<dyn Error>> {
    let ledger = redlock.reentrant("ledger")?;
    let outer = ledger.try_lock_for(TTL, WAIT)?;
    let inner = ledger.try_lock_for(TTL, WAIT)?;
    println!("another process: {}", said(redlock.try_lock("ledger", TTL)));
    println!("released by the inner guard: {}", inner.unlock()?.is_some());
    println!("held to the end: {}", outer.unlock()?.is_some_and(|released| released.was_held()));
    Ok(())
}

fn said<T>(result: Result<T, LockError>) -> &'static str {
    match result {
        Ok(_) => "granted",
        Err(error) if error.is_contended() => "refused",
        Err(_) => "too few masters gave a vote",
    }
}
