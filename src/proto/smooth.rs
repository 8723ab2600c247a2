//! The average of round trips.

/// The usual smoothing of round trips (RFC 6298, section 2): new = old + (sample - old) / 8. The
/// first sample is taken whole.
pub(super) fn smooth(average: &mut Option<u64>, sample: u64) {
    *average = Some(average.map_or(sample, |old| old - old / 8 + sample / 8));
}
