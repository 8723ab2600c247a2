//! The library's requests to the operating system: the time, its own process, random bytes.

pub(crate) mod clock;
pub(crate) mod entropy;
pub(crate) mod event_count;
pub(crate) mod name;
pub(crate) mod process;
