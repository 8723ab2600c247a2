//! The simulator's choices, drawn from bytes: what fails is a run that `tests/sim` would fail.

#![cfg_attr(feature = "libfuzzer", no_main)]

/// The scripts, as they are sent.
#[allow(dead_code)]
mod scripts {
    include!(concat!(env!("OUT_DIR"), "/scripts.rs"));
}

#[allow(dead_code)]
#[path = "../../tests/sim/world/mod.rs"]
mod world;

fn schedule(data: &[u8]) {
    let outcome = world::run(world::choices::Choices::from_bytes(data), None, false);
    if let Some(violation) = outcome.violation {
        panic!("{}: {}", violation.rule, violation.text);
    }
}

#[cfg(feature = "libfuzzer")]
libfuzzer_sys::fuzz_target!(|data: &[u8]| schedule(data));

#[cfg(not(feature = "libfuzzer"))]
fn main() {
    schedule(&[]);
}
