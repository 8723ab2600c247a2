//! The texts of the scripts. `build.rs` composes them of the pieces in `src/scripts`.

include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
