//! Long commands show their progress on a terminal, and nothing elsewhere.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common;
use crate::common::{TestPool, ferrite, has_fuse, ok};

/// The output of a command on its own terminal.
fn on_terminal(words: &[&str]) -> String {
    let program = ferrite().get_program().to_str().unwrap().to_owned();
    let command = [&[program.as_str()], words].concat().join(" ");
    ok(Command::new("script")
        .args(["-q", "-e", "-c", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null()))
}

/// Its output on a standard error that is not a terminal.
fn elsewhere(words: &[&str]) -> String {
    let output = ferrite().args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", common::text(&output));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn bars_are_shown_on_terminals_only() {
    if !has_fuse() {
        return;
    }
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: there is no script(1)");
        return;
    }
    let test = TestPool::new("16M", &["--data-checksum"]);
    std::fs::write(test.path("f"), vec![7; 8 << 20]).unwrap();
    let scratch = test.scratch();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (new, copy, dir) = (path(&scratch.join("new")), path(&scratch.join("copy")), path(&test.dir));
    let commands: [(&[&str], &str, &str); 4] = [
        (&["mkfs", &new, "--size", "64M", "--force"], "tables", "--quiet"),
        // By the daemon, and by the command itself. Slow enough for the daemon to report something.
        (&["scrub", &dir, "--limit", "16"], "scrubbing", "--json"),
        (&["scrub", &new], "scrubbing", "--json"),
        (&["copy", &dir, &copy, "--force"], "copying", "--quiet"),
    ];
    for (words, phase, quiet) in commands {
        assert_eq!(elsewhere(words), "", "{words:?}");
        let shown = on_terminal(words);
        assert!(shown.contains(phase) && shown.contains(" %"), "{words:?}: {shown:?}");
        let shown = on_terminal(&[words, &[quiet]].concat());
        assert!(!shown.contains(" %"), "{words:?} {quiet}: {shown:?}");
    }
    test.finish();
}
