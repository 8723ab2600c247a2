//! Encodes [`Command`](crate::proto::Command) and decodes [`Reply`](crate::proto::Reply): the only
//! importer of `redis-protocol`, which decodes single frames.
//!
//! Everything that a peer can make large is limited here, before the decoder sees it. The decoder
//! itself has no limit on depth or length, does not check the line end of bulk strings, and
//! accepts malformed numbers. A lock client asks for scalars, for sections of `INFO`, for the time,
//! and for what a server has for a key. Only these pass.

mod encode;
mod foreign;
mod frame;
mod info;
mod limits;
mod line;
mod lock_kinds;
mod numbers;
mod reader;
mod resp3;
mod scripts;
mod sentinel;
mod sighting;
mod trial;
mod wait;
mod words;

pub use encode::encode;
pub use foreign::foreign;
#[cfg(feature = "unstable-resp")]
pub use limits::REPLY_BYTES_MAX;
pub use numbers::meaning;
pub use reader::ReplyReader;
/// The scripts, by which a fake master recognises them.
#[cfg(feature = "testing")]
pub(crate) use scripts::*;
pub use sentinel::Failover;
pub(crate) use sentinel::{
    ANSWER_BYTES_MAX, NoMaster, SentinelMaster, SentinelRefusal, answer, ask,
};
#[cfg(feature = "testing")]
pub(crate) use trial::without_trial;
#[cfg(feature = "unstable-resp")]
pub use wait::message;
