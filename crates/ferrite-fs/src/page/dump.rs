//! The pages of a file as they are on the medium, for people: `ferrite dump`.

use ferrite_map::{Lblk, PageId};
use ferrite_vfs::{Ino, Result};

use super::scan;
use crate::options::{EntryDump, PageDump};
use crate::pool::core::Core;

/// Gathers words and log entries of all mapped pages, in order. Holds the inode's lock while it does.
pub(crate) fn dump(core: &Core, ino: Ino) -> Result<Vec<PageDump>> {
    core.check_readable()?;
    let mem = core.inode(ino)?;
    let _lock = mem.read();
    core.load_live(&mem)?;
    let mut pages = Vec::new();
    core.map.for_range(mem.ino, Lblk::FIRST, 1 << 32, &mut |entry| {
        pages.push(PageDump {
            page: entry.lblk.get(),
            block: core.superblock.page(entry.word).get(),
            unwritten: entry.word.is_unwritten(),
            word: entry.word.0,
            entries: Vec::new(),
        });
        true
    });
    pages.sort_unstable_by_key(|page| page.page);
    for page in &mut pages {
        let word = ferrite_map::PageWord(page.word);
        if word.has_log() {
            scan::entries(
                core.media(),
                PageId::new(mem.ino, Lblk::new(page.page)),
                word,
                &mut |entry| {
                    page.entries.push(EntryDump {
                        unit: entry.unit.number(),
                        offset: entry.trailer.offset,
                        len_bytes: entry.trailer.len,
                        zeros: entry.trailer.zero,
                        segment: entry.segment().header.number(),
                    });
                    Ok(true)
                },
            )?;
        }
    }
    Ok(pages)
}
