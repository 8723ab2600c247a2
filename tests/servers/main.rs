//! The public interface, over scripted servers that do what a real one will not.

#![allow(missing_docs)]

mod api;
mod forms;
mod logging;
mod loopback;
mod panics;
