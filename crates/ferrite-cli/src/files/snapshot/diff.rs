//! `ferrite snapshot diff`: the differences between two trees, as lines.

use std::path::Path;

use serde::Serialize;

use super::super::folder::Folder;
use super::super::pairs::{Change, Entry, Visit, walk};
use super::super::place::{Result, Why};
use super::super::show;
use crate::{output, say_json};

fn sign(change: Change) -> &'static str {
    match change {
        Change::Added => "+ ",
        Change::Removed => "- ",
        Change::Modified => "M ",
        Change::Attributes => "m ",
    }
}

#[derive(Serialize)]
struct Row<'r> {
    change: Change,
    path: std::borrow::Cow<'r, str>,
}

struct Printer {
    json: bool,
}

impl Visit for Printer {
    fn entry(&mut self, entry: &Entry<'_>) -> Result<bool> {
        if let Some(change) = Change::between(entry.found_before(), entry.found_after()) {
            self.print(change, entry.path)?;
        }
        Ok(true)
    }

    fn leave(&mut self, _: &Path, _: Option<&Folder>, _: Option<&Folder>) -> Result<()> {
        Ok(())
    }

    fn is_done(&self) -> bool {
        !output::goes_on()
    }
}

impl Printer {
    fn print(&self, change: Change, path: &Path) -> Result<()> {
        if self.json {
            let path = path.to_string_lossy();
            return say_json(&Row { change, path }).map_err(|failure| Why::new(failure.message));
        }
        let mut line = sign(change).as_bytes().to_vec();
        line.extend(show::name(path.as_os_str()));
        line.push(b'\n');
        output::write(&line);
        Ok(())
    }
}

/// Prints the differences, directory by directory, each in the order of names.
pub(super) fn compare(older: Folder, newer: Folder, json: bool) -> Result<()> {
    walk(Some(older), newer, &mut Printer { json })
}
