//! The bodies of the fuzz targets. `cargo test` runs them over the committed corpora.

mod engine;
mod reply;

pub use engine::engine;
pub use reply::reply;
