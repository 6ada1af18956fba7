//! Merging: the merged page is written to a new block, which replaces block and log (HDPM §2.4).
//!
//! A merge changes no content, so it needs no record: a crash leaves the old word or the new one, and both lead to the
//! same bytes.
//!
//! The order of its steps ensures that: the merged page is fenced before the word is set; the word is durable before
//! the checkpoint passes the merge; and the blocks that the old word names are reused only after that. If an older
//! record is replayed and restores the old word, everything that it names is still there.
//!
//! The merged page's checksum, where data carries one, is stored in place and fenced with the page: until the word is
//! set it belongs to a block that no thread reads, and no record sets the checksum of a free block any more.
//!
//! With deferred write-back, no fence makes the merged page durable, and a later record may name it without its
//! checksum. There a merge is an ordinary change, by a record that carries the checksum of the page.
//!
//! The page is merged and written without a lock. Only to set the word, the inode's lock is *tried*, and held for some
//! hundred instructions per page; if a writer has it, or has changed the inode meanwhile, the merge is dropped. Readers
//! never wait: they see a changed version and read again.

use std::sync::Arc;

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_map::{BlockNo, Lblk, PageId, PageWord, Resource, StoredWord};
use ferrite_vfs::{FsError, Result, SpaceOf};

use super::{append, scan};
use crate::cache::inodes::InodeMem;
use crate::cache::logged::Cause;
use crate::format::page_buffer::PageBuffer;
use crate::format::unit::Unit;
use crate::page::block;
use crate::pool::core::Core;
use crate::pool::tx::{Purpose, Tx};
use crate::space::blocks::Class;

/// Merges between two checks of whether they are enough.
const CHECK_EVERY: usize = 32;
/// Merges one page. False if the page has no log (any more), or a writer was faster.
pub(crate) fn merge(core: &Core, mem: &Arc<InodeMem>, lblk: Lblk, cause: Cause) -> Result<bool> {
    merge_all(core, mem, &[lblk], cause).map(|done| done > 0)
}

/// A merged page in a new block, to which nothing leads yet.
struct Merged {
    lblk: Lblk,
    /// The page's word before the merge.
    word: PageWord,
    block: BlockNo,
    /// Headers of the segments of the replaced log.
    segments: Vec<Unit>,
    /// Its checksum.
    sum: Option<StoredWord>,
}

impl Merged {
    fn set_sum(&self, core: &Core) {
        if let Some(StoredWord { offset, value }) = self.sum {
            core.region.store(offset, value);
            core.region.write_back(offset, 8);
        }
    }
}

/// Merges pages of one file under one fence; by records, if write-back is deferred. Returns how many still had a log
/// and could be merged. A failure on one page does not keep the others from being merged.
pub(crate) fn merge_all(core: &Core, mem: &Arc<InodeMem>, lblks: &[Lblk], cause: Cause) -> Result<usize> {
    core.check_writable()?;
    if core.journal.is_frozen() {
        return Ok(0);
    }
    if core.region.defers_write_back() && !is_seeded(Bug::MergeWithoutRecord) {
        return merge_by_records(core, mem, lblks, cause);
    }
    let Some(version) = mem.begin_read() else {
        return Ok(0);
    };
    let mut pages = Vec::new();
    let mut outcome = Ok(0);
    for &lblk in lblks {
        match merged_page(core, mem, version, lblk) {
            Ok(page) => pages.extend(page),
            Err(error) => outcome = Err(error),
        }
    }
    if pages.is_empty() {
        return outcome;
    }
    if !mem.end_read(version) {
        // The fence would be for nothing, and it can be expensive.
        pages.iter().for_each(|page| core.release(Resource::Block(page.block)));
        return Ok(0);
    }
    core.region.fence().map_err(|error| core.fail(&error))?;
    let done = install(core, mem, version, &pages);
    for (page, installed) in pages.iter().zip(&done) {
        if !installed {
            core.release(Resource::Block(page.block));
            continue;
        }
        if is_seeded(Bug::MergedSumLate) {
            page.set_sum(core);
        }
        core.merges.count(cause);
    }
    match done.iter().filter(|&&installed| installed).count() {
        0 => outcome,
        done => Ok(done),
    }
}

/// The same where a merge needs a record. Does not wait for a writer that has the inode.
fn merge_by_records(core: &Core, mem: &Arc<InodeMem>, lblks: &[Lblk], cause: Cause) -> Result<usize> {
    let Some(_lock) = mem.try_write() else {
        return Ok(0);
    };
    let mut done = 0;
    for &lblk in lblks {
        let page = PageId::new(mem.ino, lblk);
        let mut tx = Tx::new(core, Purpose::Background);
        let word = core.map.get(page);
        if mem.is_dead() || !word.has_log() {
            continue;
        }
        append::rewrite(core, &mut tx, page, word, cause)?;
        tx.commit(&[mem])?;
        done += 1;
    }
    Ok(done)
}

/// Merges a page and its log, as they were at `version`, into a free block, without a fence.
fn merged_page(core: &Core, mem: &InodeMem, version: u64, lblk: Lblk) -> Result<Option<Merged>> {
    let page = PageId::new(mem.ino, lblk);
    let word = core.map.get(PageId::new(mem.ino, lblk));
    if mem.is_dead() || !word.has_log() {
        return Ok(None);
    }
    let mut merged = PageBuffer::take();
    let mut segments = Vec::new();
    let read = scan::read(core, page, word, 0, &mut merged[..])
        .and_then(|_| scan::segments(core, page, word, &mut |segment| segments.push(segment.header)));
    if !mem.end_read(version) {
        return Ok(None);
    }
    core.told(read)?;
    // If no other page has the block, the merge frees it, and leaves no debt to the reserve.
    let class = match core.shares.is_shared(core.superblock.page(word)) {
        true => Class::Ordinary,
        false => Class::Replacing,
    };
    let (block, _) = core.alloc.claim_any(class).ok_or(FsError::NoSpace(SpaceOf::Blocks))?;
    core.region.stream(core.superblock.block_offset(block), &merged[..]);
    let made = Merged {
        lblk,
        word,
        block,
        segments,
        sum: block::for_block(core, page, block, &merged[..]),
    };
    if !is_seeded(Bug::MergedSumLate) {
        made.set_sum(core);
    }
    Ok(Some(made))
}

/// Makes the pages' words name the merged blocks, where possible; returns which.
fn install(core: &Core, mem: &Arc<InodeMem>, version: u64, pages: &[Merged]) -> Vec<bool> {
    let Some(_lock) = mem.try_write() else {
        return vec![false; pages.len()];
    };
    // The version changes with every change of the inode, so the words are those that were merged.
    if !mem.end_read(version) || mem.is_dead() {
        return vec![false; pages.len()];
    }
    // Between finding a word and noting its line as dirty, the word must not be moved.
    let _shared = core.map.move_lock().map(|move_lock| move_lock.lock_shared());
    if !is_seeded(Bug::MergeUnannounced) {
        mem.begin_change();
    }
    pages.iter().map(|page| swing(core, mem, page)).collect()
}

/// The same for one page; the caller has the lock and has the move lock shared.
fn swing(core: &Core, mem: &InodeMem, page: &Merged) -> bool {
    let at_once = is_seeded(Bug::MergedSpaceAtOnce);
    let segments = page.segments.iter().map(|&header| header.segment());
    let old = segments.chain([Resource::Block(core.superblock.page(page.word))]);
    let new = PageWord::of_block(page.block);
    let freed = old.clone().filter(|_| !at_once);
    core.log_space.set_waiting(page.segments.iter().copied(), !at_once);
    let seq = core.journal.install(mem.last_seq(), freed, || {
        core.map.swing(PageId::new(mem.ino, page.lblk), page.word, new)
    });
    if let Some(seq) = seq {
        mem.set_last_seq(seq);
        if at_once {
            old.for_each(|resource| core.release(resource));
        }
    }
    if seq.is_none() {
        core.log_space.set_waiting(page.segments.iter().copied(), false);
    }
    seq.is_some()
}

/// Merges candidates, those with the longest logs first, until `enough`, which is called from time to time, returns
/// true. Returns how many were merged.
pub(crate) fn merge_some(core: &Core, most: usize, cause: Cause, enough: &mut dyn FnMut() -> bool) -> Result<usize> {
    core.candidates.prune(&|page| scan::may_have_log(core, page));
    // A merge of a shared page takes more space than it frees.
    let helps = |word| cause != Cause::LowSpace || !core.shares.is_shared(core.superblock.page(word));
    let length = |&page: &PageId| {
        let word = core.map.get(page);
        // A log that cannot be read may just be in use by a writer: the page must not drop out of the lists for that.
        let units = || scan::newest(core, page, word).map_or(0, |entry| entry.trailer.log_units);
        (word.has_log() && helps(word)).then(units)
    };
    let taken = core.candidates.take(most);
    let mut pages = Vec::new();
    for &page in &taken.pages {
        match length(&page) {
            Some(units) => pages.push((units, page)),
            None if scan::may_have_log(core, page) => core.candidates.put_back(page),
            None => {}
        }
    }
    pages.sort_unstable();
    pages.dedup();
    let mut done = 0;
    while let Some((_, page)) = pages.pop() {
        let mem = core.inodes.get(page.ino);
        let result = match merge(core, &mem, page.lblk, cause) {
            // Blocks that earlier merges freed may be the only space left.
            Err(FsError::NoSpace(_)) => core.reclaim().and_then(|()| merge(core, &mem, page.lblk, cause)),
            other => other,
        };
        match result {
            Ok(true) => done += 1,
            // A writer is using it: it stays a candidate if it still has a log.
            Ok(false) if core.map.get(page).has_log() => core.candidates.put_back(page),
            Ok(false) => {}
            // Damage, which has already been reported: the others can still be merged, and retrying this one would fail
            // again.
            Err(FsError::Damaged(_) | FsError::Io(_)) if core.check_writable().is_ok() => core.candidates.leave_out(),
            Err(error) => {
                core.candidates.put_back(page);
                pages.into_iter().for_each(|(_, page)| core.candidates.put_back(page));
                return if done > 0 { Ok(done) } else { Err(error) };
            }
        }
        if done % CHECK_EVERY == CHECK_EVERY - 1 && enough() {
            pages.into_iter().for_each(|(_, page)| core.candidates.put_back(page));
            return Ok(done);
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use ferrite_pm::Region;
    use ferrite_vfs::{FallocateMode, FileKind, FileSystem, Ino, NewNode, OpenFile, OpenMode, ROOT_INO, SYSTEM};

    use super::*;
    use crate::cache::logged::{CHUNK, LIST_LONG};
    use crate::format::layout::BLOCK_BYTES;
    use crate::{Engine, MkfsOptions, MountOptions, mkfs};

    /// A pool whose logs are not merged automatically, with an open file.
    fn empty_file(pool_bytes: u64) -> (Engine, Ino, Arc<dyn OpenFile>) {
        let region = Region::anonymous(pool_bytes).unwrap();
        mkfs(&region, &MkfsOptions::default()).unwrap();
        let options = MountOptions::default().cleaner(false).merge_read_entries(0);
        let engine = Engine::mount(region, &options).unwrap();
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        let ino = engine.mknod(SYSTEM, ROOT_INO, b"file", &node).unwrap().ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        (engine, ino, file)
    }

    #[test]
    fn pages_whose_logs_come_and_go_fill_no_list() {
        let (engine, ino, file) = empty_file(64 << 20);
        let pages = 64;
        let whole = [1; BLOCK_BYTES as usize];
        for round in 0..3 * LIST_LONG as u64 {
            let at = round % pages * BLOCK_BYTES;
            file.write_at(SYSTEM, at, &whole).unwrap();
            file.write_at(SYSTEM, at + 5, b"logged").unwrap();
        }
        let core = engine.core();
        assert!(
            core.candidates.len() <= LIST_LONG + CHUNK,
            "{} pages are listed",
            core.candidates.len()
        );
        // No page that has a log was dropped from the lists.
        let listed = core.candidates.take(usize::MAX).pages;
        for lblk in 0..pages as u32 {
            assert!(
                listed.contains(&PageId::from_raw(ino as u32, lblk)),
                "page {lblk} is missing"
            );
        }
    }

    /// Nor do those of a file that is being written, of which other pages come each time.
    #[test]
    fn pages_that_had_logs_once_fill_no_list() {
        let (engine, ino, file) = empty_file(64 << 20);
        let whole = [1; BLOCK_BYTES as usize];
        for round in 0..2 * LIST_LONG as u64 {
            let at = round * BLOCK_BYTES;
            file.write_at(SYSTEM, at, &whole).unwrap();
            file.write_at(SYSTEM, at + 5, b"logged").unwrap();
            if round % 1000 == 999 {
                let mode = FallocateMode::PunchHole;
                file.fallocate(SYSTEM, mode, 0, at).unwrap();
            }
        }
        let core = engine.core();
        let listed = core.candidates.len();
        assert!(listed <= LIST_LONG + CHUNK, "{listed} pages are listed");
        let last = PageId::from_raw(ino as u32, 2 * LIST_LONG as u32 - 1);
        assert!(core.candidates.take(usize::MAX).pages.contains(&last));
    }

    /// A reader of a page that is being merged may be about to read a block or log that the merge freed, so it must
    /// read again.
    #[test]
    fn a_merge_is_news_to_readers() {
        let (engine, ino, file) = empty_file(4 << 20);
        file.write_at(SYSTEM, 0, &[1; 4096]).unwrap();
        file.write_at(SYSTEM, 100, b"a part").unwrap();
        let core = engine.core();
        let mem = core.inode(ino).unwrap();
        let version = mem.begin_read().unwrap();
        assert!(core.map.get(PageId::new(mem.ino, Lblk::FIRST)).has_log());
        assert!(merge(core, &mem, Lblk::FIRST, Cause::Idle).unwrap());
        assert!(
            !mem.end_read(version),
            "a read that began before the merge accepts what it got"
        );
        assert!(mem.begin_read().is_some(), "the change is over");
    }
}
