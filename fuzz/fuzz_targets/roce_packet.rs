#![no_main]
#[path = "../src/roce.rs"]
#[allow(dead_code)]
mod roce;

libfuzzer_sys::fuzz_target!(|data: &[u8]| roce::roce_packet(data));
