//! Log records to be written later: a logger may block or panic.

use std::fmt;

use log::Level;

/// Further records are only counted until these are written.
const RECORDS_MAX: usize = 256;

/// Records that wait until a thread can write them without delaying others.
#[derive(Default)]
pub(crate) struct Records {
    records: Vec<(Level, String)>,
    missed: u64,
}

impl Records {
    /// Adds a record, if its level is enabled.
    #[cold]
    pub(crate) fn note(&mut self, level: Level, text: fmt::Arguments<'_>) {
        // Does not ask the logger itself: that would call it.
        if level > log::STATIC_MAX_LEVEL || level > log::max_level() {
            return;
        }
        match self.records.len() < RECORDS_MAX {
            true => self.records.push((level, text.to_string())),
            false => self.missed += 1,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The pending records, if any.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Records> {
        if self.is_empty() { None } else { Some(std::mem::take(self)) }
    }

    /// Adds records that were taken before.
    pub(crate) fn append(&mut self, mut others: Records) {
        let room = RECORDS_MAX - self.records.len();
        self.missed += others.missed + others.records.len().saturating_sub(room) as u64;
        others.records.truncate(room);
        self.records.append(&mut others.records);
    }

    pub(crate) fn write(self) {
        for (level, text) in &self.records {
            log::log!(target: "muxlock", *level, "{text}");
        }
        if self.missed > 0 {
            log::warn!(target: "muxlock", "{} more records were dropped", self.missed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_beyond_the_most_are_counted_until_the_others_are_taken() {
        log::set_max_level(log::LevelFilter::Debug);
        let mut records = Records::default();
        records.note(Level::Trace, format_args!("not enabled"));
        assert!(records.is_empty() && records.take().is_none());
        (0..RECORDS_MAX + 3).for_each(|i| records.note(Level::Debug, format_args!("{i}")));
        let taken = records.take().unwrap();
        assert_eq!((taken.records.len(), taken.missed), (RECORDS_MAX, 3));
        assert_eq!(taken.records[RECORDS_MAX - 1], (Level::Debug, (RECORDS_MAX - 1).to_string()));
        assert!(records.is_empty() && records.missed == 0);
        taken.write();
    }
}
