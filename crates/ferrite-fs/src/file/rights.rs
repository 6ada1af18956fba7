//! Rights that a file gives to those who run it, and how changes remove them: setuid, setgid, the capability.
//!
//! Contents: the extended attributes of a file as far as every change of content concerns them, and [`take`],
//! [`take_for_region`], [`refuse_if_written`]. Setting attributes is for `tree::xattr`.
//!
//! Invariants:
//! * Every record that changes a file's content, size or owner takes its capability, so that after a crash no content
//!   has a capability that older content was given. (Reserving space takes several records; the last one does, and the
//!   earlier ones change nothing that can be read.)
//! * An adapter, which stores in place without a record, removes the rights when it binds the file; while it may store,
//!   none are given.
//! * [`InodeMem::lacks_capability`] is set only under the inode's exclusive lock, by a function that has read all
//!   attributes; every change of attributes clears it. So a file with other attributes is examined once, and a file
//!   without any costs a comparison of words that the caller has loaded.

use std::sync::Arc;

use ferrite_map::{BlockNo, Inum, MapTx, Resource};
use ferrite_vfs::posix::Guarded;
use ferrite_vfs::{Attr, Ctx, FsError, Result, SetAttr, acl, posix};

use crate::cache::inodes::InodeMem;
use crate::format::inode::Inode;
use crate::format::layout::BLOCK_BYTES;
use crate::format::xattr::{self, Attributes};
use crate::pool::core::{Core, map_error};
use crate::pool::tx::{Purpose, Tx};
use crate::space::blocks::Class;

/// All extended attributes of an inode; the caller holds its lock.
pub(crate) fn attributes(core: &Core, ino: Inum, inode: &Inode) -> Result<Attributes> {
    let block = inode.xattr_block();
    if block == BlockNo::NONE {
        return Ok(Attributes::new());
    }
    let damaged = || {
        FsError::damaged(
            u64::from(ino),
            format!("damaged extended attributes in block {block}; run `ferrite fsck`"),
        )
    };
    if !core.superblock.is_data_block(block) {
        return Err(damaged());
    }
    xattr::read(&core.region, &core.superblock, ino, block).ok_or_else(damaged)
}

/// One extended attribute of an inode; the caller holds its lock.
pub(crate) fn attribute(core: &Core, ino: Inum, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let found = attributes(core, ino, inode)?
        .into_iter()
        .find(|(found, _)| found == name);
    Ok(found.map(|(_, value)| value))
}

/// An inode as the caller is checked against it.
pub(crate) fn guarded(core: &Core, ctx: &Ctx, (ino, inode): (Inum, &Inode)) -> Result<Guarded> {
    guarded_attr(core, ctx, core.attr(ino, inode)?, (ino, inode))
}

/// The same, with attributes that the caller of this has.
pub(crate) fn guarded_attr(core: &Core, ctx: &Ctx, attr: Attr, (ino, inode): (Inum, &Inode)) -> Result<Guarded> {
    Guarded::of(attr, &ctx.cred, || attribute(core, ino, inode, acl::ACCESS))
}

/// The blocks of the extended attributes of an inode. If the list of them is damaged, only the one that has the list:
/// the others become free with the next mount.
pub(crate) fn attribute_blocks(core: &Core, ino: Inum, inode: &Inode) -> Vec<BlockNo> {
    let block = inode.xattr_block();
    match core.superblock.is_data_block(block) {
        true => {
            let mut blocks = xattr::further_blocks(&core.region, &core.superblock, ino, block);
            blocks.push(block);
            blocks
        }
        false => Vec::new(),
    }
}

/// Replaces the extended attributes of an inode as part of a record. The new blocks are claimed and filled before the
/// record that changes the inode's pointer to them; that record frees the old blocks.
pub(crate) fn put_attributes(
    core: &Core,
    tx: &mut Tx<'_>,
    ino: Inum,
    new: &mut Inode,
    attributes: &Attributes,
) -> Result<()> {
    let old = attribute_blocks(core, ino, new);
    let parts = xattr::parts(attributes);
    let mut fresh = Vec::new();
    if !attributes.is_empty() {
        let count = parts.len() / BLOCK_BYTES as usize + 1;
        if count <= old.len() {
            tx.set_class(Class::Replacing);
        }
        for _ in 0..count {
            fresh.push(tx.alloc_block().map_err(map_error)?);
        }
    }
    old.into_iter().for_each(|block| tx.freed(Resource::Block(block)));
    let block = fresh.pop().unwrap_or(BlockNo::NONE);
    for (&block, part) in fresh.iter().zip(parts.chunks(BLOCK_BYTES as usize)) {
        tx.stream_block(block, part);
    }
    if block != BlockNo::NONE {
        tx.stream_block(block, &xattr::encode(ino, attributes, &parts, &fresh));
    }
    new.set_xattr_block(block);
    Ok(())
}

/// Takes the capability, if there is one, as part of the record that changes content, size or owner. The caller has
/// the inode's exclusive lock and puts `new` into the record; allocations that follow are [`Class::Ordinary`] then.
#[inline]
pub(crate) fn take(core: &Core, tx: &mut Tx<'_>, mem: &InodeMem, new: &mut Inode) -> Result<()> {
    if new.xattr_block() == BlockNo::NONE || mem.lacks_capability() {
        return Ok(());
    }
    take_found(core, tx, mem, new)
}

#[cold]
fn take_found(core: &Core, tx: &mut Tx<'_>, mem: &InodeMem, new: &mut Inode) -> Result<()> {
    if new.is_dir() {
        return Ok(());
    }
    // An unreadable capability gives no rights: `exec` reads it, and fails.
    let Ok(mut attributes) = attributes(core, mem.ino, new) else {
        return Ok(());
    };
    let before = attributes.len();
    attributes.retain(|(name, _)| name != posix::CAPABILITY);
    if attributes.len() == before {
        mem.set_lacks_capability(true);
        return Ok(());
    }
    put_attributes(core, tx, mem.ino, new, &attributes)?;
    tx.set_class(Class::Ordinary);
    Ok(())
}

/// Lets the extended attributes follow a change of the others: takes the capability, where the change does that, and
/// changes the access control list with the mode. As [`take`].
pub(crate) fn follow(core: &Core, tx: &mut Tx<'_>, mem: &InodeMem, new: &mut Inode, set: &SetAttr) -> Result<()> {
    let Some(mode) = set.mode.filter(|_| new.xattr_block() != BlockNo::NONE) else {
        return match posix::takes_capability(set) {
            true => take(core, tx, mem, new),
            false => Ok(()),
        };
    };
    let before = attributes(core, mem.ino, new)?;
    let mut after = before.clone();
    if posix::takes_capability(set) && !new.is_dir() {
        after.retain(|(name, _)| name != posix::CAPABILITY);
    }
    if let Some((_, list)) = after.iter_mut().find(|(name, _)| name == acl::ACCESS) {
        acl::chmod(list, mode)?;
    }
    if after != before {
        put_attributes(core, tx, mem.ino, new, &after)?;
        tx.set_class(Class::Ordinary);
    }
    Ok(())
}

/// Takes the rights of a file that is about to be changed in place, by a record of its own: as a write by this caller
/// would. The caller has the inode's exclusive lock; returns the inode as stored.
pub(super) fn take_for_region(core: &Core, ctx: &Ctx, mem: &Arc<InodeMem>, old: Inode) -> Result<Inode> {
    let mut new = old;
    let mut tx = Tx::new(core, Purpose::Change);
    take(core, &mut tx, mem, &mut new)?;
    if ctx.kills_priv()
        && let Some(kind) = new.kind()
    {
        new.set_permissions(posix::kill_priv_by(&ctx.cred, kind, new.permissions(), new.gid()));
    }
    if new.words == old.words {
        return Ok(old);
    }
    new.set_ctime(Core::now());
    tx.put_inode(mem.ino, &mut new);
    tx.commit(&[mem])?;
    Ok(new)
}

/// Refuses to give rights to a file that is changed in place: no write would remove them. The caller has the inode's
/// lock.
pub(crate) fn refuse_if_written(core: &Core, ino: Inum) -> Result<()> {
    match core.bindings.of(ino) {
        Some(file) if file.how.writable => Err(FsError::Busy),
        _ => Ok(()),
    }
}
