//! Inodes, alone and compared with the pages that are mapped for them.

use ferrite_map::{BlockNo, Inum, Lblk, PageId};
use ferrite_vfs::{FileKind, UserQuotas};

use super::View;
use crate::audit::wrong::{BlockWrong, Wrong};
use crate::format::inode::{INLINE_BYTES, Inode, ROOT};
use crate::format::layout::MAX_FILE_BYTES;
use crate::format::xattr;

/// The fields of an inode alone. If anything is wrong here, none of its other fields can be trusted.
pub(crate) fn of_itself(ino: Inum, inode: &Inode) -> Option<Wrong> {
    let is_root = ino == ROOT;
    if !inode.is_sound(ino) {
        return Some(Wrong::InodeChecksum { ino });
    }
    // There is always a root, so one that looks free was wiped.
    if is_root && !inode.is_dir() {
        return Some(Wrong::Root);
    }
    if !inode.in_use() {
        return None;
    }
    if inode.kind().is_none() {
        let mode = inode.mode_bits();
        return Some(Wrong::Mode { ino, mode });
    }
    let bytes = inode.size();
    (bytes > MAX_FILE_BYTES).then_some(Wrong::Size { ino, bytes })
}

/// The root is its own parent. Mount and scrub do not check this: only `..` of the root uses it, which paths never
/// follow. Repair sets all parents from the names it found.
pub(crate) fn root_parent(root: &Inode) -> Option<Wrong> {
    (root.parent() != ROOT).then_some(Wrong::Root)
}

/// A page that vanished would read as zeros; an extra one belongs to another inode.
pub(crate) fn count(ino: Inum, counted: u32, mapped: u32) -> Option<Wrong> {
    (counted != mapped).then_some(Wrong::PageCount { ino, counted, mapped })
}

/// Which inodes have pages, and how many. For inodes that passed [`of_itself`], once it is known that `pages` are
/// mapped. Mount and scrub do not check this: an inode whose checksum is right was written that way, and reads follow
/// its fields.
pub(crate) fn kind_of_content(view: View<'_>, ino: Inum, inode: &Inode, pages: u32) -> Option<Wrong> {
    let bytes = inode.size();
    match inode.kind()? {
        _ if inode.is_inline() && (pages > 0 || bytes > INLINE_BYTES as u64) => {
            Some(Wrong::Inline { ino, pages, bytes })
        }
        // An inode without a name is being freed, and its page goes first.
        FileKind::Symlink
            if inode.nlink() > 0 && !inode.is_inline() && view.map.get(PageId::new(ino, Lblk::FIRST)).is_hole() =>
        {
            Some(Wrong::NoTarget { ino })
        }
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice if pages > 0 => {
            Some(Wrong::SpecialPages { ino, pages })
        }
        _ => None,
    }
}

/// Only a regular file in blocks is bound. Mount and scrub do not check this: elsewhere the flag has no effect.
pub(crate) fn bound(ino: Inum, inode: &Inode) -> Option<Wrong> {
    (inode.is_bound() && (!inode.is_file() || inode.is_inline())).then_some(Wrong::Bound { ino })
}

/// Extended attributes lie in their own blocks: the one that the inode names, and those that this one lists. `claim` as
/// in [`View::own`].
pub(crate) fn attribute_blocks(
    view: View<'_>,
    ino: Inum,
    block: BlockNo,
    mut claim: impl FnMut(BlockNo) -> bool,
) -> Result<(), Wrong> {
    let mut own = |block: BlockNo| {
        let wrong = |what: BlockWrong| Wrong::AttributeBlock { ino, block, what };
        view.own(block, &mut claim).map_err(wrong)
    };
    own(block)?;
    let further = xattr::further_blocks(view.region, view.superblock, ino, block);
    further.into_iter().try_for_each(own)
}

/// That block, a data block, names the inode whose attributes it holds. Mount does not check this: reading attributes
/// does, and no block's ownership depends on its content.
pub(crate) fn attributes(view: View<'_>, ino: Inum, block: BlockNo) -> Result<(), Wrong> {
    let found = xattr::read(view.region, view.superblock, ino, block);
    match found {
        Some(found) if ino != ROOT || has_sound_user_quotas(&found) => Ok(()),
        _ => Err(Wrong::Attributes { ino, block }),
    }
}

/// A mount takes the quotas of users from these attributes of the root directory.
fn has_sound_user_quotas(attributes: &xattr::Attributes) -> bool {
    UserQuotas::of(attributes.iter().map(|(name, value)| (&name[..], &value[..]))).is_some()
}
