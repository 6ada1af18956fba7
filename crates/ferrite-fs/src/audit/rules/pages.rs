//! Mapped pages: their owner, their permitted places, and that they are the pages written there.

use ferrite_map::{Lblk, MapEntry, PageId, StoredWord};

use super::View;
use crate::audit::wrong::{PageWrong, Wrong};
use crate::format::data_sum;
use crate::format::inode::Inode;

/// The inode that a page belongs to. Mount does not check page by page: a free inode counts no pages, so a page mapped
/// for it shows in [`super::inodes::count`].
pub(crate) fn owner(view: View<'_>, at: &MapEntry) -> Result<Inode, PageWrong> {
    view.in_use(at.ino).ok_or(PageWrong::Nobody)
}

/// Whether a page may name a block that another page names as well. Mount does not check that both belong to files: a
/// directory's block shows that it is one.
pub(crate) fn may_share(view: View<'_>, at: &MapEntry) -> bool {
    let mark = view.superblock.mark(view.superblock.page(at.word));
    !at.word.is_unwritten() && mark.is_some_and(|(offset, bit)| view.region.load(offset) & bit != 0)
}

/// Whether a page restricts where its file may end. Reserved pages may lie past the end.
pub(crate) fn is_within_end(at: &MapEntry) -> bool {
    !at.word.is_unwritten()
}

/// Whether page `lblk`, for which [`is_within_end`] holds, lies past `written_end` ([`Inode::written_end`]) of a sound
/// inode.
pub(crate) fn is_behind(lblk: Lblk, written_end: u64) -> bool {
    u64::from(lblk) >= written_end
}

/// A page of `inode`, which passed [`super::inodes::of_itself`], lies before its end.
pub(crate) fn end(at: &MapEntry, inode: &Inode) -> Option<Wrong> {
    let &MapEntry { ino, lblk, .. } = at;
    // Space is never reserved for a directory.
    let counts = inode.is_dir() || is_within_end(at);
    let is_wrong = counts && is_behind(lblk, inode.written_end());
    is_wrong.then(|| match inode.is_dir() {
        true => Wrong::DirBlockBehindEnd { dir: ino, lblk },
        false => Wrong::Page {
            at: *at,
            what: PageWrong::BehindEnd,
        },
    })
}

/// Whether a page lies where lookups find it, and is the page it is mapped as, as far as that can be determined. The
/// mapping is loaded. Mount checks only where there is reason to, because each check costs lookups: for keys far from
/// home, and where [`data_sum::misplaced`] asks for it. A page that is mapped twice shows in the count of its inode as
/// well.
pub(crate) fn place(view: View<'_>, at: &MapEntry) -> Option<PageWrong> {
    if is_out_of_reach(view, at) {
        return Some(PageWrong::OutOfReach);
    }
    if is_second(view, at) {
        return Some(PageWrong::Twice);
    }
    written_as(view, at).map(|other| PageWrong::WrittenAs { other })
}

/// Whether a key of HashFS lies where no insert ever puts one.
pub(crate) fn is_out_of_reach(view: View<'_>, at: &MapEntry) -> bool {
    let keys = view.map.hashed_keys();
    keys.is_some_and(|keys| keys.is_out_of_reach(PageId::new(at.ino, at.lblk), at.slot))
}

/// Whether lookups find another entry for this page.
pub(crate) fn is_second(view: View<'_>, at: &MapEntry) -> bool {
    match view.map.hashed_keys() {
        Some(keys) => keys.slot_of(PageId::new(at.ino, at.lblk)) != Some(at.slot),
        None => view.map.get(PageId::new(at.ino, at.lblk)) != at.word,
    }
}

/// The hole that a page of a file or link has left, if its checksum shows it.
pub(crate) fn written_as(view: View<'_>, at: &MapEntry) -> Option<Lblk> {
    let other = data_sum::misplaced(view.region, view.superblock, at)?;
    let is_summed = view.is_ino(at.ino) && !view.inode(at.ino).is_dir();
    (is_summed && view.map.get(PageId::new(at.ino, other)).is_hole()).then_some(other)
}

/// Compares the data of a page of a sound file or link with its checksum, with the right checksum.
pub(crate) fn data(view: View<'_>, at: &MapEntry) -> Option<(Wrong, StoredWord)> {
    let inode = view.in_use(at.ino)?;
    if inode.is_dir() || super::inodes::of_itself(at.ino, &inode).is_some() {
        return None;
    }
    let (error, right) = data_sum::wrong_word(view.region, view.superblock, at)?;
    // Writers to a bound file in place compute no checksum.
    let difference = view.region.load(right.offset) ^ right.value;
    if inode.is_bound() && difference >> 32 == 0 {
        return None;
    }
    let what = error.to_string();
    Some((Wrong::Data { what }, right))
}
