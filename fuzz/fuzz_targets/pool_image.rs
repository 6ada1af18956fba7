#![no_main]
#[path = "../src/attacks.rs"]
#[allow(dead_code)]
mod attacks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| attacks::pool_image(data));
