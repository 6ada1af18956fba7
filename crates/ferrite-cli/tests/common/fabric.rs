//! The abilities of libfabric on this machine, as `ferrite doctor` reports them.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::process::Command;

use serde_json::Value;

use super::{ferrite, text};

/// The report of `ferrite doctor` on each subject.
pub(crate) fn doctor(command: &mut Command) -> Vec<Value> {
    let output = command.args(["doctor", "--json"]).output().unwrap();
    let said = text(&output);
    said.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

pub(crate) fn find<'f>(checks: &'f [Value], name: &str) -> &'f Value {
    let found = checks.iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("nothing about {name}: {checks:?}"))
}

/// Whether libfabric has a provider here. Prints a message if not.
pub(crate) fn has(provider: &str) -> bool {
    let checks = doctor(&mut ferrite());
    let is_there = find(&checks, &format!("fabric:// over {provider}"))["state"] == "good";
    if !is_there {
        eprintln!("skipped: libfabric has no provider {provider} here");
    }
    is_there
}
