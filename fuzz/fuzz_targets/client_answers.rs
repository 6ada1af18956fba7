#![no_main]
#[path = "../src/answers.rs"]
#[allow(dead_code)]
mod answers;

libfuzzer_sys::fuzz_target!(|data: &[u8]| answers::client_answers(data));
