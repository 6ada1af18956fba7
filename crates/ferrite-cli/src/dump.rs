//! `ferrite dump`: a file as it is stored on the medium.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ferrite::volume::Address;

use super::control::Request;
use super::pages::{pages, show};
use super::target::{Target, local_address};
use super::{Outcome, say};

/// Show a file's pages, page words and log entries
#[derive(Debug, clap::Args)]
#[command(after_help = "\
PATH starts at the root of the file system in the pool, no matter where it is mounted. Log entries are listed newest \
first, as a read walks them. Units are 64 bytes and count from the start of the pool.")]
pub(crate) struct Dump {
    /// Pool, or a directory where one is mounted
    #[arg(value_parser = local_address(), value_hint = clap::ValueHint::AnyPath)]
    pool: Address,
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
            None => pages(&*target.inspect()?, path)?,
        };
        show(&pages, self.json);
        if pages.is_empty() && !self.json {
            say("no pages: the content is in the inode, or there is none");
        }
        Ok(0)
    }
}
