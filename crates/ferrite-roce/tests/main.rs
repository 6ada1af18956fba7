//! The tests of the RoCE protocol, in one program.
//!
//! They are linked once; `scripts/run-tests.py` runs each module in a process of its own.

mod adversarial;
mod connections;
mod exchange;
mod fuzz_corpus;
mod requester;
mod responder;
#[path = "../../../fuzz/src/roce.rs"]
mod roce;
mod support;
mod whole;
mod wire;
