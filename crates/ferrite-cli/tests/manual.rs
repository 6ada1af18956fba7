//! Man pages and completions are made from the same source as `--help`: every command has a page, every shell a file.

use std::fs;
use std::process::Command;

use crate::common::{ferrite, ok};

/// The commands that `ferrite --help` lists.
fn commands() -> Vec<String> {
    let help = ok(ferrite().arg("--help"));
    let listed = help
        .split("Commands:")
        .nth(1)
        .unwrap()
        .split("Options:")
        .next()
        .unwrap();
    let names = listed
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.split_whitespace().next().unwrap().to_string())
        .filter(|name| name != "help");
    names.collect()
}

#[test]
fn every_command_has_a_page_and_every_shell_knows_it() {
    let dir = tempfile::tempdir().unwrap();
    ok(ferrite().arg("manual").arg(dir.path()));
    let commands = commands();
    assert!(commands.len() >= 12, "{commands:?}");
    let pages = fs::read_dir(dir.path().join("man/man1")).unwrap();
    let names = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let help: Vec<String> = names.filter(|name| name.contains("help")).collect();
    assert!(help.is_empty(), "{help:?}");
    let bash = fs::read_to_string(dir.path().join("completions/ferrite.bash")).unwrap();
    for command in &commands {
        let page = dir.path().join(format!("man/man1/ferrite-{command}.1"));
        let text = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains(".TH") && text.contains("SYNOPSIS"), "{text}");
        assert!(bash.contains(command), "{command} in the completions of bash");
    }
    for name in ["ferrite.bash", "_ferrite", "ferrite.fish"] {
        assert!(dir.path().join("completions").join(name).exists(), "{name}");
    }
    // A shell reads it without a message.
    let status = Command::new("bash")
        .arg("-n")
        .arg(dir.path().join("completions/ferrite.bash"))
        .status()
        .unwrap();
    assert!(status.success());
}
