#![no_main]
#[path = "../src/replies.rs"]
#[allow(dead_code)]
mod replies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| replies::client_replies(data));
