#![cfg_attr(feature = "libfuzzer", no_main)]

#[cfg(feature = "libfuzzer")]
libfuzzer_sys::fuzz_target!(|data: &[u8]| testbed::fuzz::reply(data));

#[cfg(not(feature = "libfuzzer"))]
fn main() {
    testbed::fuzz::reply(&[]);
}
