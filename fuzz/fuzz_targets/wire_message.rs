#![no_main]
#[path = "../src/network.rs"]
#[allow(dead_code)]
mod network;

libfuzzer_sys::fuzz_target!(|data: &[u8]| network::wire_message(data));
