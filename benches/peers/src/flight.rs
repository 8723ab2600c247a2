//! Many pairs at once on one thread: how it is measured, whoever does it.

use std::io;
use std::time::Duration;

use crate::clock;
use crate::job::Sample;

/// How long the last pairs may take to end.
const END_MAX: Duration = Duration::from_secs(20);

/// Who has many pairs under way, from a loop of its own.
pub trait Flight {
    /// Starts a pair for each resource.
    fn start(&mut self) -> io::Result<()>;

    /// One turn of the loop. A pair that ends is followed by the next of its resource, if it is to
    /// go on.
    fn turn(&mut self, go_on: bool) -> io::Result<Turned>;

    /// How many pairs are under way.
    fn under_way(&self) -> usize;
}

/// What ended in one turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Turned {
    /// Pairs.
    pub done: u64,
    /// Those of which a half failed.
    pub failed: u64,
}

impl Turned {
    fn add(&mut self, other: Turned) {
        self.done += other.done;
        self.failed += other.failed;
    }
}

/// Keeps pairs under way for `slice`. The rate counts what ended until then; the computing time is
/// that of all pairs, to the last.
pub fn measure(flight: &mut impl Flight, slice: Duration) -> io::Result<Sample> {
    let (start, cpu) = (clock::now(), clock::cpu());
    let mut all = Turned::default();
    flight.start()?;
    let took = loop {
        all.add(flight.turn(true)?);
        let took = clock::now() - start;
        if took >= slice {
            break took;
        }
    };
    let rate = all.done as f64 / took.as_secs_f64();
    let give_up_at = clock::now() + END_MAX;
    while flight.under_way() > 0 {
        all.add(flight.turn(false)?);
        if clock::now() > give_up_at {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    let cpu = (clock::cpu() - cpu).as_nanos() as f64 / all.done.max(1) as f64;
    let (done, failed) = (all.done as f64, all.failed as f64);
    let (least, most) = (f64::NAN, f64::NAN);
    Ok(Sample { done, failed, rate, cpu, least, most, ..Sample::default() })
}
