//! `ferrite stat`: show the attributes of files in volumes.

use std::os::unix::fs::MetadataExt;

use super::place::Why;
use super::show::{self, Json};
use ferrite_client::volume::RemoteVolume;

use super::{OPERANDS, Opened, Operand, Volumes, shown};
use crate::printable::printable;
use crate::{FAILED, Outcome, complain, output, say_json};

/// Show the attributes of files in volumes that are not mounted
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{OPERANDS}\n\n`ferrite top` shows the activity of a server."))]
pub(crate) struct Stat {
    /// Files
    #[arg(required = true, value_parser = Operand::parser_in_volume())]
    files: Vec<Operand>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print one line of JSON per file
    #[arg(long)]
    json: bool,
}

/// The line about a file that is bound for RDMA; `None` for other files.
fn region_of(volume: &Opened, ino: u64) -> Option<String> {
    let remote = volume.volume.as_any().downcast_ref::<RemoteVolume>()?;
    let told = remote.client().rdma_activity().ok()?;
    let file = told.files.into_iter().find(|file| file.ino == ino)?;
    let keys = if file.keys == 1 { "key" } else { "keys" };
    let hits = match file.lookups {
        0 => String::new(),
        lookups => format!(
            ", {} % of {lookups} translations from the cache",
            u128::from(file.hits) * 100 / u128::from(lookups)
        ),
    };
    let of = told.counters;
    Some(format!(
        "Region: {} {keys}, {} ranges{hits}{}\n  RDMA: {} queue pairs; {} packets in, {} out, {} carried out, {} again, \
         {} put off (RNR), {} dropped (all files)\n",
        file.keys,
        file.entries,
        if file.writable { ", writable" } else { "" },
        of.queue_pairs,
        of.received,
        of.sent,
        of.executed,
        of.duplicates,
        of.not_ready,
        of.dropped,
    ))
}

impl Stat {
    pub(crate) fn run(self) -> Outcome {
        let mut volumes = Volumes::to_read();
        let mut code = 0;
        for operand in &self.files {
            let Operand::There { address, prefix, path } = operand else {
                continue;
            };
            let volume = volumes.open(address)?;
            let looked = match self.dereference {
                true => volume.fs.metadata(path),
                false => volume.fs.symlink_metadata(path),
            };
            let name = shown(prefix, path);
            let found = match looked {
                Ok(found) => found,
                Err(error) => {
                    let why = Why::from(error);
                    let hint = volume.hint(&why);
                    complain(format_args!("ferrite: {}: {}{hint}", printable(&name), why.text));
                    code = FAILED;
                    continue;
                }
            };
            let target = match found.is_symlink() {
                true => volume.fs.read_link(path).ok().map(|path| path.into_os_string()),
                false => None,
            };
            if self.json {
                say_json(&Json::new(&name, &found, target.as_deref()))?;
                continue;
            }
            let mut text = b"  File: ".to_vec();
            text.extend(show::name(&name));
            if let Some(target) = target {
                text.extend(b" -> ");
                text.extend(show::name(&target));
            }
            let time = |time| show::time(time, "%Y-%m-%d %H:%M:%S.%9f %z");
            text.extend(
                format!(
                    "\n  Size: {:<15} Blocks: {:<10} {}\n Inode: {:<15} Links: {}\nAccess: ({:04o}/{})  Uid: {:<5}  Gid: \
                     {}\nAccess: {}\nModify: {}\nChange: {}\n Birth: {}\n",
                    found.len(),
                    found.blocks(),
                    show::kind(found.file_type().kind()),
                    found.ino(),
                    found.nlink(),
                    found.mode() & 0o7777,
                    show::mode(&found),
                    found.uid(),
                    found.gid(),
                    time(found.accessed().ok()),
                    time(found.modified().ok()),
                    time(found.changed().ok()),
                    time(found.created().ok()),
                )
                .into_bytes(),
            );
            output::write(&text);
            if let Some(bound) = region_of(&volume, found.ino()) {
                output::write(bound.as_bytes());
            }
        }
        volumes.close()?;
        Ok(code)
    }
}
