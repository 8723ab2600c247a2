//! The library over TLS: real `redis-server` processes with a port for it, and servers in the
//! process of the test for what a real one will not do.

#![cfg(feature = "tls")]
#![allow(missing_docs)]

mod config;
mod front;
mod kinds;
mod log;
mod masters;
mod odd;
mod sentinel;
