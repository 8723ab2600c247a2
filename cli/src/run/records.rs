//! Shows the library's log records: masters that stop voting, and masters that vote again.

use log::{Level, LevelFilter, Log, Metadata, Record};

use super::console::say;

struct Records;

impl Log for Records {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            say(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}

pub fn show() {
    // It fails if it was called before.
    if log::set_logger(&Records).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}
