//! A test of your own program, with masters that fail: fake ones, and then real ones.
//!
//! ```text
//! cargo run --example testing --features testing
//! ```
//!
//! In your crate, put the functions named `..._test` into `tests/` and mark them `#[test]`. Those
//! named `fake_...` take milliseconds and need nothing. The others need `redis-server` on PATH.

use std::error::Error;
use std::time::Duration;

use muxlock::settings::RestartGuard;
use muxlock::testing::{FakeMasters, Masters};
use muxlock::{LockError, Redlock};

const TTL: Duration = Duration::from_secs(10);

/// What is tested: a report that one process at a time writes.
fn write_report(redlock: &Redlock, written: &mut u32) -> Result<(), LockError> {
    let lock = redlock.try_lock("report:daily", TTL)?;
    *written += 1;
    assert!(lock.unlock()?.was_held(), "no other process wrote meanwhile");
    Ok(())
}

/// Each fault is over in milliseconds, and the client has the settings of the program.
fn fake_masters_show_each_path_of_the_program_test() -> Result<(), Box<dyn Error>> {
    let mut masters = FakeMasters::start(3)?;
    let redlock = Redlock::connect(masters.urls())?;
    let mut written = 0;
    masters[2].stop();
    write_report(&redlock, &mut written)?;
    assert_eq!(written, 1, "two of three masters are enough");

    masters[1].refuse("MISCONF Redis is configured to save RDB snapshots");
    let error = write_report(&redlock, &mut written).expect_err("one of three masters is left");
    assert!(error.is_unavailable(), "{error}");
    masters[1].obey();

    masters.hold("report:daily", TTL);
    let error = write_report(&redlock, &mut written).expect_err("another holder has the lock");
    assert!(error.is_contended(), "{error}");
    assert_eq!(written, 1);
    Ok(())
}

/// Masters that belong to one test, and a client of them.
fn start(count: usize) -> Result<(Masters, Redlock), Box<dyn Error>> {
    let masters = Masters::start(count)?;
    let redlock = Redlock::builder()
        .nodes(masters.urls())
        // With the guard, these new masters would not vote for about 31 s.
        .restart_guard(RestartGuard::Off)
        // Without a quorum, a call waits at most this long for a master that does not answer.
        .node_timeout(Duration::from_millis(250))
        .connect()?;
    Ok((masters, redlock))
}

fn one_frozen_master_is_not_noticed_test() -> Result<(), Box<dyn Error>> {
    let (masters, redlock) = start(3)?;
    let mut written = 0;
    masters[2].freeze()?;
    write_report(&redlock, &mut written)?;
    assert_eq!(written, 1);
    Ok(())
}

fn without_a_quorum_nothing_is_written_test() -> Result<(), Box<dyn Error>> {
    let (mut masters, redlock) = start(3)?;
    let mut written = 0;
    masters[0].kill()?;
    masters[1].kill()?;
    let error = write_report(&redlock, &mut written).expect_err("one of three masters is left");
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(written, 0);

    // Once the masters are back, the report can be written again.
    masters[0].restart()?;
    masters[1].restart()?;
    let lock = redlock.try_lock_for("report:daily", TTL, TTL)?;
    assert!(lock.unlock()?.was_held());
    Ok(())
}

fn taken_lock_keeps_others_out_test() -> Result<(), Box<dyn Error>> {
    let (masters, redlock) = start(3)?;
    let mut written = 0;
    let other = redlock.try_lock("report:daily", TTL)?;
    let error = write_report(&redlock, &mut written).expect_err("another holder has the lock");
    assert!(error.is_contended(), "{error}");
    drop(other);
    assert_eq!(redlock.shutdown(TTL), 0, "every command is answered");
    // A test can ask the masters themselves which keys they have.
    for master in &masters {
        assert_eq!(master.dbsize()?, 0);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    fake_masters_show_each_path_of_the_program_test()?;
    one_frozen_master_is_not_noticed_test()?;
    without_a_quorum_nothing_is_written_test()?;
    taken_lock_keeps_others_out_test()?;
    println!("all passed");
    Ok(())
}
