//! `ferrite dump`: a file as it is stored on the medium.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ferrite_fs::PageDump;

use super::control::Request;
use super::pages::pages;
use super::target::Target;
use super::{Outcome, say, say_json};

/// Show a file's pages, page words and log entries
#[derive(Debug, clap::Args)]
#[command(after_help = "\
PATH starts at the root of the file system in the pool, no matter where it is mounted. Log entries are listed newest \
first, as a read walks them. Units are 64 bytes and count from the start of the pool.")]
pub(crate) struct Dump {
    /// Pool, or a directory where one is mounted
    pool: PathBuf,
    /// File in the pool
    path: PathBuf,
    /// Print one JSON object per page
    #[arg(long)]
    json: bool,
}

impl Dump {
    pub(crate) fn run(self) -> Outcome {
        let target = Target::new(&self.pool);
        let path = self.path.as_os_str().as_bytes();
        let pages = match target.ask(&Request::Dump(path.to_vec()))? {
            Some(pages) => pages,
            None => pages(&target.look()?, path)?,
        };
        for page in &pages {
            if self.json {
                say_json(page)?;
            } else {
                print(page);
            }
        }
        if pages.is_empty() && !self.json {
            say("no pages: the content is in the inode, or there is none");
        }
        Ok(0)
    }
}

fn print(page: &PageDump) {
    let state = match (page.unwritten, page.entries.len()) {
        (true, _) => "reserved".to_owned(),
        (false, 0) => "no log".to_owned(),
        (false, 1) => "1 log entry".to_owned(),
        (false, count) => format!("{count} log entries"),
    };
    say(format!(
        "page {:<8} word {:016x}  block {:<9} {state}",
        page.page, page.word, page.block
    ));
    for entry in &page.entries {
        let what = if entry.zeros { "zeros" } else { "bytes" };
        say(format!(
            "    unit {:<11} segment {:<11} {:>4} {what} at {}",
            entry.unit, entry.segment, entry.len_bytes, entry.offset
        ));
    }
}
