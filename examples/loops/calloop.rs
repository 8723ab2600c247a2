//! A lock in an event loop of calloop, beside a timer.
//!
//! ```text
//! cargo run --manifest-path tests/loops/Cargo.toml --bin calloop -- redis://10.0.0.{1,2,3}
//! ```

use std::error::Error;
use std::os::fd::AsFd;
use std::time::Duration;

use calloop::generic::Generic;
use calloop::timer::{TimeoutAction, Timer};
use calloop::{EventLoop, Interest, Mode, PostAction};
use muxlock::proto::Done;
use muxlock::{Redlock, Standalone};

fn main() -> Result<(), Box<dyn Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        eprintln!("usage: calloop redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3");
        std::process::exit(2);
    }
    let mut locks = Standalone::new(Redlock::builder().nodes(urls).config()?)?;
    let mut event_loop = EventLoop::<u32>::try_new()?;
    // calloop owns the descriptors that it watches, so it gets a duplicate.
    let descriptor = locks.as_fd().try_clone_to_owned()?;
    let readable = Generic::new(descriptor, Interest::READ, Mode::Level);
    event_loop.handle().insert_source(readable, |_, _, _| Ok(PostAction::Continue))?;
    let (timer, period) = (Timer::immediate(), Duration::from_millis(5));
    event_loop.handle().insert_source(timer, move |_, _, ticks| {
        *ticks += 1;
        TimeoutAction::ToDuration(period)
    })?;

    let mut ticks = 0;
    let (ttl, wait) = (Duration::from_secs(10), Duration::from_secs(5));
    locks.mux_mut().try_lock_for("report:daily", ttl, wait)?;
    locks.mux_mut().flush();
    loop {
        while let Some((_, done)) = locks.mux_mut().poll_done() {
            match done {
                Done::Acquired(lease) => _ = locks.mux_mut().unlock(lease?),
                Done::Released(released) => {
                    println!("held to the end: {}", released?.was_held());
                    println!("the timer ticked: {}", ticks > 0);
                    return Ok(());
                }
                _ => {}
            }
        }
        locks.mux_mut().flush();
        // `run` would wait for too long: the timeout changes in each turn.
        event_loop.dispatch(locks.mux().next_timeout(), &mut ticks)?;
        locks.turn()?; // even after a timeout
    }
}
