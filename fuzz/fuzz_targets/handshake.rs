#![no_main]
#[path = "../src/handshake.rs"]
#[allow(dead_code)]
mod handshake;

libfuzzer_sys::fuzz_target!(|data: &[u8]| handshake::handshake(data));
