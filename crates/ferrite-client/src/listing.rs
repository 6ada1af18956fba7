//! Listings of directories.
//!
//! Contents: [`Client::list`], and [`ReadDirSizes`], with which it requests about as much as its callers take. A caller
//! does not state that: it takes entries until it has enough. A kernel takes what its buffer of 4 KiB holds,
//! repeatedly, and the rest of a reply would be sent for nothing; a copy of a tree takes everything.

use std::sync::atomic::{AtomicUsize, Ordering};

use ferrite_vfs::{Attr, Ctx, DirEntry, FileSystem, FsError, Ino, Result};

use super::Client;
use super::untrusted::{Progress, refused};
use ferrite_proto::{
    ENTRY_FOLLOWS, Entry, EntryInfo, FsRequest, LISTING_BYTES_MAX, LISTING_ENDS, LISTING_GOES_ON, Malformed, Reader,
};

/// Estimates never fall below this: the next caller may want everything.
const WISH_BYTES_MIN: usize = 4 << 10;
/// The growth of the next request when a caller wants more than estimated.
const GROWTH: usize = 4;

/// How much callers recently took of listings: of those without attributes, and of those with them.
#[derive(Debug)]
pub(super) struct ReadDirSizes([AtomicUsize; 2]);

impl Default for ReadDirSizes {
    fn default() -> ReadDirSizes {
        ReadDirSizes([const { AtomicUsize::new(LISTING_BYTES_MAX) }; 2])
    }
}

impl ReadDirSizes {
    fn of(&self, with_attributes: bool) -> &AtomicUsize {
        &self.0[usize::from(with_attributes)]
    }

    /// The first request: as much as the previous caller took, and some more, or a few longer names would cost another
    /// reply.
    fn first(&self, with_attributes: bool) -> usize {
        let taken = self.of(with_attributes).load(Ordering::Relaxed);
        (taken + taken / 4).clamp(WISH_BYTES_MIN, LISTING_BYTES_MAX)
    }

    /// Notes that a caller has taken so much, and did not want more, or reached the end.
    fn note(&self, with_attributes: bool, taken: usize, is_enough: bool) {
        let wish = self.of(with_attributes);
        match is_enough {
            true => wish.store(taken, Ordering::Relaxed),
            // A short directory says nothing about callers that want more of longer ones.
            false => drop(wish.fetch_max(taken, Ordering::Relaxed)),
        }
    }
}

impl Client {
    /// Lists a directory, in several replies, until `take` returns false.
    pub(super) fn list(
        &self,
        ctx: &Ctx,
        dir: Ino,
        cookie: u64,
        with_attributes: bool,
        take: &mut dyn FnMut(&DirEntry<'_>, Result<Attr>) -> bool,
    ) -> Result<()> {
        let dir = self.node(dir)?;
        let mut space = self.readdir_sizes.first(with_attributes);
        let mut taken_bytes = 0;
        let mut progress = Progress::behind(cookie);
        loop {
            let request = FsRequest::Readdir {
                dir,
                cookie: progress.cookie(),
                with_attributes,
                reply_bytes: space as u32,
            };
            let reply = self.ask(ctx, request)?;
            self.link.was_read(dir.ino);
            let mut reader = Reader::new(reply.body()?);
            let mut goes_on = true;
            loop {
                let before = reader.len_bytes();
                match reader.get::<u8>().map_err(refused)? {
                    ENTRY_FOLLOWS => {}
                    LISTING_GOES_ON if goes_on => break progress.goes_on()?,
                    LISTING_ENDS | LISTING_GOES_ON => {
                        self.readdir_sizes.note(with_attributes, taken_bytes, !goes_on);
                        return Ok(());
                    }
                    _ => return Err(refused(Malformed("a listing has an unknown mark"))),
                }
                let entry: Entry<'_> = reader.get().map_err(refused)?;
                progress.entry(&entry)?;
                let (attr, pinned) = match entry.info {
                    EntryInfo::Attributes(node_attr) => {
                        self.link.session.reclaim_state.learn(&node_attr);
                        (Ok(node_attr.attr), node_attr.is_pinned.then_some(node_attr.attr.ino))
                    }
                    EntryInfo::Node(node) => {
                        self.link.session.reclaim_state.learn_node(node);
                        (Err(FsError::Stale), None)
                    }
                    // As without attributes: the caller looks the name up, and the owner answers.
                    EntryInfo::Nothing(FsError::NotOwner { .. }) => (Err(FsError::Stale), None),
                    EntryInfo::Nothing(error) => (Err(error), None),
                };
                let shown = DirEntry {
                    ino: entry.ino,
                    kind: entry.kind,
                    name: entry.name,
                    next_cookie: entry.next_cookie,
                };
                goes_on = goes_on && take(&shown, attr);
                match goes_on {
                    true => taken_bytes += before - reader.len_bytes(),
                    // Entries that the caller did not take are not kept.
                    false => pinned.into_iter().for_each(|ino| self.unpin(ctx, ino, 1)),
                }
            }
            space = (space * GROWTH).min(LISTING_BYTES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_what_the_last_caller_took_and_some_more() {
        let readdir_sizes = ReadDirSizes::default();
        assert_eq!(readdir_sizes.first(false), LISTING_BYTES_MAX);
        readdir_sizes.note(false, 8000, true);
        assert_eq!(
            (readdir_sizes.first(false), readdir_sizes.first(true)),
            (10_000, LISTING_BYTES_MAX)
        );
        // The end of a directory.
        readdir_sizes.note(false, 100, false);
        assert_eq!(readdir_sizes.first(false), 10_000);
        readdir_sizes.note(false, 1 << 20, false);
        assert_eq!(readdir_sizes.first(false), LISTING_BYTES_MAX);
        readdir_sizes.note(true, 0, true);
        assert_eq!(readdir_sizes.first(true), WISH_BYTES_MIN);
    }
}
