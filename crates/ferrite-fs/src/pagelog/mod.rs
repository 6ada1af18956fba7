//! Page logs: unaligned writes cost what they carry (hdpm.txt §2, DESIGN §4).
//!
//! A page is a block plus, after unaligned writes, a log: a chain of *segments* that hold *entries*, the newest of which the
//! page word names. What lives here, by file: the format ([`entry`]), the space ([`space`]), reading backwards
//! ([`scan`]), the choice between log and copy and the append ([`append`]), folding a log back into its page
//! ([`fold`]), the thread that does so in the background ([`cleaner`]), and a view for people ([`dump`]).
//!
//! Invariants:
//! * Entries are only ever added, behind the newest; the record that makes one reachable vouches for it by checksum,
//!   so that both share a fence. A crash leaves the word as it was, or with the whole entry.
//! * A page with a log has a block: holes and reserved pages get one by their first write.
//! * Segments are freed by a record that changes the word, or by a fold; both wait for the journal's mark, so that no replay
//!   names them. Their space is not written again before.

pub(crate) mod append;
pub(crate) mod buffer;
pub(crate) mod cleaner;
pub(crate) mod dump;
pub(crate) mod entry;
pub(crate) mod fold;
pub(crate) mod scan;
pub(crate) mod space;

use ferrite_map::{MapTx, PageWord, Resource};
use ferrite_vfs::Result;

use crate::core::Core;
use crate::tx::Tx;

/// Whether the page of `word` has a log.
pub(crate) fn has_log(word: PageWord) -> bool {
    word.log() != 0 && !word.is_unwritten()
}

/// Frees the log of a page whose word `tx` replaces or removes.
pub(crate) fn free(core: &Core, tx: &mut Tx<'_>, page: (u32, u32), word: PageWord) -> Result<()> {
    if has_log(word) {
        scan::segments(core, page, word, &mut |header_unit| {
            tx.freed(Resource::LogSegment(header_unit));
        })?;
    }
    Ok(())
}
