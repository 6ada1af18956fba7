//! The program under test, and how tests run it.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::process::{Command, Output};

/// The program under test: `FERRITE_LAB_BIN`, or the one that cargo built for these tests.
pub(crate) fn lab() -> Command {
    let program = std::env::var_os("FERRITE_LAB_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_ferrite-lab").into());
    Command::new(program)
}

/// Runs a command; panics with its output unless it succeeds.
pub(crate) fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        text(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must fail with this exit code; returns its output.
pub(crate) fn fails(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", text(&output));
    text(&output)
}

pub(crate) fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
