//! Clones of files and of whole trees: new inodes whose pages share the blocks of the old ones; and snapshots, clones
//! that do not change.
//!
//! Contents: [`clone_tree`] and [`take_snapshot`]. The clone is one state of the tree: while it is made, no other
//! change of the pool begins, and those that had begun have ended ([`Core::changes`]). Reads go on.
//!
//! Crash argument: the clone is made without a name, and the last record gives it one. Before that, mount removes all
//! of it ([`super::remove`]): at each of the records in between, the directories made so far count the entries that
//! they have, and lead to nothing else. The originals do not change, except that logs of pages are merged.
//!
//! Records hold as many files as they have space for, since most files are small.

use std::cell::OnceCell;
use std::sync::{Arc, PoisonError};

use ferrite_map::{BlockNo, Inum, Lblk, TransCache};
use ferrite_vfs::{
    Attr, Ctx, FileKind, FsError, Ino, LINK_MAX, Outcome, Position, Result, SNAPSHOTS_NAME, SYSTEM, SpaceOf, Timestamp,
    Unsupported, posix,
};
use rustc_hash::FxHashMap;

use super::lookup::{check_dir, gone};
use super::{create, dir, permission, remove, rename};
use crate::cache::inodes::{Exclusive, InodeMem};
use crate::file::clone::PagesToShare;
use crate::file::read::Reader;
use crate::file::{rights, write};
use crate::format::inode::{INLINE_BYTES, INODE_WORDS, Inode, QuotaId, ROOT};
use crate::format::layout::BLOCK_BYTES;
use crate::format::xattr::Attributes;
use crate::pool::core::Core;
use crate::pool::locks::LockSet;
use crate::pool::tx::{Purpose, Tx};
use crate::retry::{self, Need};

/// Most pages that one record maps.
const PAGES_PER_RECORD: usize = 1024;
/// Bytes of a bound file copied at a time.
const COPY_BYTES: u64 = 256 << 10;

/// A clone, or a snapshot in the directory for those of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum As {
    Clone,
    Snapshot { of: Inum },
}

/// The name that a clone gets.
#[derive(Clone, Copy)]
struct Target<'a> {
    parent: Ino,
    name: &'a [u8],
    as_what: As,
}

/// See [`ferrite_vfs::FileSystem::clone_tree`]. Blocks on all changes in progress.
pub(crate) fn clone_tree(core: &Core, ctx: &Ctx, source: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
    let as_what = As::Clone;
    clone(core, ctx, source, Target { parent, name, as_what })
}

/// Takes a snapshot of the directory that `snapshots` is in: a clone of all of it but its directories of snapshots,
/// which has the name `name` there and does not change. Blocks on all changes in progress.
pub(crate) fn take_snapshot(core: &Core, ctx: &Ctx, snapshots: Ino, name: &[u8]) -> Result<Attr> {
    let source = core.with_dir(snapshots, |_, inode| Ok(u64::from(inode.parent())))?;
    let parent = snapshots;
    let of = core.inode(source)?.ino;
    let as_what = As::Snapshot { of };
    clone(core, ctx, source, Target { parent, name, as_what })
}

fn clone(core: &Core, ctx: &Ctx, source: Ino, target: Target<'_>) -> Result<Attr> {
    posix::check_name(target.name)?;
    core.check_writable()?;
    if !core.superblock.has_shared_blocks() {
        return Err(FsError::NotSupported(Unsupported::Clone));
    }
    check_first(core, ctx, source, target)?;
    let mut top = None;
    let cloned = {
        let _alone = core.changes.write().unwrap_or_else(PoisonError::into_inner);
        clone_alone(core, ctx, source, target, &mut top)
    };
    if let Some(top) = top {
        // Without a name, all of it is removed, and others need not wait for that.
        remove::unpin(core, &top, 1);
    }
    cloned
}

/// Refuses, without keeping others waiting, all that would be refused later: also if the caller may not clone a part of
/// the tree.
fn check_first(core: &Core, ctx: &Ctx, source: Ino, target: Target<'_>) -> Result<()> {
    let source = core.inode(source).map_err(gone)?;
    let inode = core.snapshot(&source).map_err(gone)?;
    let kind = inode.kind().ok_or(FsError::NotFound)?;
    check_owner(ctx, &inode, kind)?;
    check_place(core, ctx, target, kind)?;
    if !ctx.check || ctx.cred.is_root() || kind != FileKind::Directory {
        return Ok(());
    }
    let (mut dirs, mut walked) = (vec![source], 0);
    while let Some(dir) = dirs.pop() {
        walked += 1;
        if walked > core.superblock.inodes {
            return Err(FsError::damaged(u64::from(dir.ino), "the directory contains itself"));
        }
        let mut cookie = 0;
        loop {
            let entries = dir::list_some(core, &dir, cookie)?;
            let Some(last) = entries.last() else { break };
            cookie = last.next_cookie;
            for entry in entries {
                let mem = core.inode(u64::from(entry.ino))?;
                // Others may remove it now.
                let Ok(inode) = core.snapshot(&mem) else { continue };
                let Some(kind) = inode.kind() else { continue };
                if inode.is_snapshots() {
                    // They are left out.
                    continue;
                }
                check_owner(ctx, &inode, kind)?;
                if kind == FileKind::Directory {
                    dirs.push(mem);
                }
            }
        }
    }
    Ok(())
}

/// A clone keeps owner and mode, which only the owner and root may give; and only root may make devices.
fn check_owner(ctx: &Ctx, inode: &Inode, kind: FileKind) -> Result<()> {
    match ctx.check && !ctx.cred.is_root() && ctx.cred.uid != inode.uid() {
        true => Err(FsError::NotPermitted),
        false if ctx.check => posix::may_mknod(kind, &ctx.cred),
        false => Ok(()),
    }
}

/// The same while nothing else changes. Leaves the new inode pinned in `top`.
fn clone_alone(
    core: &Core,
    ctx: &Ctx,
    source: Ino,
    target: Target<'_>,
    top: &mut Option<Arc<InodeMem>>,
) -> Result<Attr> {
    let source = core.inode(source).map_err(gone)?;
    let mut cloning = Cloning {
        core,
        ctx,
        as_what: target.as_what,
        now: Core::now(),
        quota: QuotaId::NONE,
        linked: FxHashMap::default(),
        dirs: Vec::new(),
    };
    let original = cloning.original(&source, b"").map_err(gone)?;
    if original.inode.nlink() == 0 || original.kind == FileKind::Directory && is_going(core, source.ino)? {
        return Err(FsError::NotFound);
    }
    check_place(core, ctx, target, original.kind)?;
    if target.as_what == As::Clone {
        cloning.quota = core.with_dir(target.parent, |_, directory| Ok(directory.quota()))?;
    }
    let first = cloning.make_top(&original)?;
    let made = top.insert(Arc::clone(&first.mem));
    cloning.complete(original, first)?;
    let mut subdirs = 0;
    while let Some((from, to)) = cloning.dirs.pop() {
        let found = cloning.fill(&from, &to)?;
        if to.ino == made.ino {
            subdirs = found;
        }
    }
    give_name(core, ctx, made, subdirs, target)
}

/// Whether a directory is in a removed snapshot, of which parts may be gone already. Nothing is removed meanwhile.
fn is_going(core: &Core, dir: Inum) -> Result<bool> {
    let mut at = dir;
    for _ in 0..rename::DEPTH_MAX {
        let inode = core.load(at);
        if inode.nlink() == 0 {
            return Ok(true);
        }
        if at == ROOT {
            return Ok(false);
        }
        at = core.inode(u64::from(inode.parent()))?.ino;
    }
    Err(FsError::Loop)
}

/// Whether the name is free and the caller may create it: also known before the work.
fn check_place(core: &Core, ctx: &Ctx, target: Target<'_>, kind: FileKind) -> Result<()> {
    let parent = core.inode(target.parent).map_err(gone)?;
    let _lock = parent.read();
    let directory = core.load_live(&parent).map_err(gone)?;
    check_name(core, ctx, (parent.ino, &directory), target, kind)
}

fn check_name(
    core: &Core,
    ctx: &Ctx,
    (ino, directory): (Inum, &Inode),
    Target { name, as_what, .. }: Target<'_>,
    kind: FileKind,
) -> Result<()> {
    check_dir(directory)?;
    let taken = dir::find(core, directory, &core.names.key(ino, name))?.is_some();
    permission::create(core, ctx, (ino, directory), kind, taken)?;
    match () {
        () if taken => Err(FsError::Exists),
        // Of all the records of a clone, this one alone may change it.
        () if directory.is_read_only() && as_what == As::Clone => Err(FsError::ReadOnly),
        () if !is_place_of(directory, as_what) => Err(FsError::NotFound),
        () if kind == FileKind::Directory && directory.nlink() >= LINK_MAX => Err(FsError::TooManyLinks),
        () => Ok(()),
    }
}

/// Whether what has been found as the directory of snapshots of a directory still is that.
fn is_place_of(directory: &Inode, as_what: As) -> bool {
    match as_what {
        As::Clone => true,
        As::Snapshot { of } => directory.is_snapshots() && directory.parent() == of,
    }
}

/// Gives the clone its name; `subdirs` are the directories in it.
fn give_name(core: &Core, ctx: &Ctx, made: &Arc<InodeMem>, subdirs: u32, target: Target<'_>) -> Result<Attr> {
    let parent = core.inode(target.parent).map_err(gone)?;
    let attr = retry::with_space(core, Need::FEW, || {
        let mut locks = LockSet::lock(&[made, &parent]);
        let mut directory = core.load_live(&parent).map_err(gone)?;
        let mut inode = core.load_live(made)?;
        let kind = inode.kind().ok_or(FsError::NotFound)?;
        check_name(core, ctx, (parent.ino, &directory), target, kind)?;
        inode.set_nlink(1);
        if kind == FileKind::Directory {
            inode.set_nlink(2 + subdirs);
            inode.set_parent(parent.ino);
            inode.set_orphan_tree(false);
            directory.set_nlink(directory.nlink() + 1);
        }
        let now = Core::now();
        directory.set_mtime(now);
        directory.set_ctime(now);
        let mut tx = Tx::new(core, Purpose::Clone);
        let key = core.names.key(parent.ino, target.name);
        let place = (&mut directory, locks.hints(parent.ino));
        let planned = dir::insert(core, &mut tx, &key, place, (made.ino, kind))?;
        tx.put_inode(parent.ino, &mut directory);
        tx.put_inode(made.ino, &mut inode);
        tx.note_outcome(ctx, || core.attr(made.ino, &inode).map(Outcome::Attr))?;
        tx.commit(&[made, &parent])?;
        dir::inserted(&planned, locks.hints(parent.ino));
        made.pin(u64::from(ctx.pins));
        core.locked_attr(made, &inode)
    })?;
    core.unnamed_freed();
    Ok(attr)
}

/// A file, or whatever else has an inode, that is to be cloned.
struct Original<'c> {
    /// The new entry.
    name: Vec<u8>,
    mem: Arc<InodeMem>,
    inode: Inode,
    kind: FileKind,
    attributes: Attributes,
    /// The target of a link that does not fit in the inode.
    target: Vec<u8>,
    /// The first pages of a file.
    pages: Option<PagesToShare<'c>>,
}

impl Original<'_> {
    /// Words of a record that its clone needs, without pages: those of the inode and the entry with their offsets, and
    /// the blocks of attributes.
    fn words(&self) -> usize {
        let attribute_bytes: usize = self
            .attributes
            .iter()
            .map(|(name, value)| name.len() + value.len() + 8)
            .sum();
        let attribute_blocks = attribute_bytes / BLOCK_BYTES as usize + 2;
        2 * INODE_WORDS + 2 * self.name.len().div_ceil(8) + 32 + 4 * attribute_blocks
    }

    /// A bound file has its blocks for itself.
    fn is_copied(&self) -> bool {
        self.inode.is_bound()
    }

    /// Puts the clone of the inode on the free one into `tx`; returns it, and how many pages come with it.
    fn put(
        &self,
        (core, tx): (&Core, &mut Tx<'_>),
        ino: Inum,
        (now, quota): (Timestamp, QuotaId),
        most: usize,
        marked: &mut Vec<BlockNo>,
    ) -> Result<(Inode, usize)> {
        let mut inode = self.inode.clone_onto(&core.load(ino), now);
        inode.set_quota(quota);
        inode.set_nlink(if self.kind == FileKind::Directory { 2 } else { 1 });
        if !self.target.is_empty() {
            create::store_target(core, tx, ino, &mut inode, &self.target)?;
        }
        if !self.attributes.is_empty() {
            rights::put_attributes(core, tx, ino, &mut inode, &self.attributes)?;
        }
        let pages = match &self.pages {
            Some(pages) => pages.map((core, tx), self.mem.ino, (ino, &mut inode), most, marked)?,
            None => 0,
        };
        Ok((inode, pages))
    }
}

/// The clone of an original, after its record.
struct Made {
    mem: Arc<InodeMem>,
    /// Pages that are mapped.
    pages: usize,
}

/// A clone that is being made.
struct Cloning<'c> {
    core: &'c Core,
    ctx: &'c Ctx,
    as_what: As,
    now: Timestamp,
    /// The quota that counts the clone. Snapshots count for none.
    quota: QuotaId,
    /// The clones of files with several names, by the number of the original.
    linked: FxHashMap<Inum, Arc<InodeMem>>,
    /// Directories whose entries are still to be cloned, with their clones.
    dirs: Vec<(Arc<InodeMem>, Arc<InodeMem>)>,
}

impl<'c> Cloning<'c> {
    /// Reads an inode, with all that its clone needs to have. Counts the blocks of its first pages as shared.
    fn original(&self, mem: &Arc<InodeMem>, name: &[u8]) -> Result<Original<'c>> {
        // Merging logs may need blocks, and sharing needs entries, that clones which are gone have left to the
        // checkpoint.
        retry::with_space(self.core, Need::FEW, || self.read(mem, name))
    }

    fn read(&self, mem: &Arc<InodeMem>, name: &[u8]) -> Result<Original<'c>> {
        let core = self.core;
        let _lock = mem.write();
        let mut inode = core.load_live(mem)?;
        let kind = inode.kind().ok_or(FsError::NotFound)?;
        check_owner(self.ctx, &inode, kind)?;
        let mut attributes = rights::attributes(core, mem.ino, &inode)?;
        // State that a service keeps about the pool belongs to its root alone.
        attributes.retain(|(name, _)| !posix::is_own_xattr(name));
        if self.ctx.check && !self.ctx.cred.is_root() {
            // As with other files that a user makes.
            attributes.retain(|(name, _)| name != posix::CAPABILITY && posix::sees_xattr(&self.ctx.cred, name));
            if kind != FileKind::Directory && !self.ctx.cred.in_group(inode.gid()) {
                inode.set_permissions(inode.permissions() & !posix::S_ISGID);
            }
        }
        if inode.is_bound() {
            core.quarantine.check_holes(mem.ino)?;
            core.quarantine.check_pages(mem.ino)?;
        }
        let target = match kind == FileKind::Symlink && inode.size() > INLINE_BYTES as u64 {
            true => create::link_target(core, mem.ino, &inode)?,
            false => Vec::new(),
        };
        let pages = match inode.is_file() && !inode.is_bound() {
            true => Some(PagesToShare::find(core, mem, &inode, Lblk::FIRST)?),
            false => None,
        };
        Ok(Original {
            name: name.to_vec(),
            attributes,
            mem: Arc::clone(mem),
            inode,
            kind,
            target,
            pages,
        })
    }

    /// Whether the clone takes no changes from its first record on.
    fn keeps_as_is(&self, original: &Original<'_>) -> bool {
        self.as_what != As::Clone && !original.is_copied()
    }

    /// Marks a part of a snapshot. A file that is copied first becomes one at the end; until then it belongs to root,
    /// so that it never counts for its owner.
    fn mark(&self, original: &Original<'_>, inode: &mut Inode) {
        inode.set_read_only(self.keeps_as_is(original));
        if self.as_what != As::Clone && original.is_copied() {
            inode.set_uid(0);
        }
    }

    /// Makes the inode at the top, without a name; it is pinned.
    fn make_top(&self, original: &Original<'c>) -> Result<Made> {
        let core = self.core;
        with_fewer_pages(core, |most| {
            let place = OnceCell::new();
            let mut tx = Tx::new(core, Purpose::Clone);
            let mut marked = Vec::new();
            let ino = tx.alloc_inode()?;
            let child = core.inodes.fresh(ino, &place);
            let like = (self.now, self.quota);
            let (mut inode, pages) = original.put((core, &mut tx), ino, like, most, &mut marked)?;
            self.mark(original, &mut inode);
            inode.set_nlink(0);
            if original.kind == FileKind::Directory {
                // Its way to the root, which checks follow, whatever becomes of the directory that it is for.
                inode.set_parent(ROOT);
                inode.set_orphan_tree(true);
            }
            tx.put_inode(ino, &mut inode);
            let mem = Arc::clone(child.inode);
            commit(core, tx, std::slice::from_ref(&child), None, &marked)?;
            mem.pin(1);
            core.note_unnamed();
            Ok(Made { mem, pages })
        })
    }

    /// Does the rest for a clone after its first record.
    fn complete(&mut self, original: Original<'c>, made: Made) -> Result<()> {
        let Made { mem, pages } = made;
        if original.kind != FileKind::Directory && original.inode.nlink() > 1 {
            self.linked.insert(original.mem.ino, Arc::clone(&mem));
        }
        match original.kind {
            FileKind::Directory => self.dirs.push((original.mem, mem)),
            FileKind::File if original.is_copied() => self.copy(&original, &mem)?,
            _ => {
                let mut next = original.pages.and_then(|found| found.mapped(pages));
                while let Some(first) = next {
                    next = self.extend(&original.mem, &mem, first)?;
                }
            }
        }
        Ok(())
    }

    /// Maps more pages of a file, from `first` on; returns where others follow.
    fn extend(&self, source: &Arc<InodeMem>, file: &Arc<InodeMem>, first: Lblk) -> Result<Option<Lblk>> {
        let core = self.core;
        let found = retry::with_space(core, Need::FEW, || {
            let _lock = source.write();
            PagesToShare::find(core, source, &core.load_live(source)?, first)
        })?;
        let done = with_fewer_pages(core, |most| {
            let lock = file.write();
            let mut inode = core.load_live(file)?;
            let mut tx = Tx::new(core, Purpose::Clone);
            let mut marked = Vec::new();
            let done = found.map(
                (core, &mut tx),
                source.ino,
                (file.ino, &mut inode),
                most.max(1),
                &mut marked,
            )?;
            tx.put_inode(file.ino, &mut inode);
            commit(core, tx, std::slice::from_ref(&lock), None, &marked)?;
            Ok(done)
        })?;
        Ok(found.mapped(done))
    }

    /// Copies the content of a bound file, which others may change in place meanwhile.
    fn copy(&self, original: &Original<'_>, file: &Arc<InodeMem>) -> Result<()> {
        let core = self.core;
        let cache = TransCache::default();
        let reader = Reader {
            core,
            inode: &original.mem,
            cache: &cache,
            no_atime: true,
        };
        let mut buffer = vec![0; COPY_BYTES as usize];
        let (mut at, size) = (0, original.inode.size());
        while at < size {
            let data = match reader.find_data(at) {
                Ok(data) if data < size => data,
                Ok(_) | Err(FsError::NoSuchAddress) => break,
                Err(error) => return Err(error),
            };
            let end = reader.find_hole(data)?.min(size);
            let part = &mut buffer[..(end - data).min(COPY_BYTES) as usize];
            let count = reader.read_at(data, part)?;
            if count == 0 {
                break;
            }
            write::write(core, SYSTEM, file, Position::At(data).into(), &part[..count])?;
            at = data + count as u64;
        }
        let lock = file.write();
        let mut inode = core.load_live(file)?;
        inode.set_mtime(original.inode.mtime());
        inode.set_ctime(self.now);
        inode.set_read_only(self.as_what != As::Clone);
        inode.set_uid(original.inode.uid());
        let mut tx = Tx::new(core, Purpose::Clone);
        tx.put_inode(file.ino, &mut inode);
        commit(core, tx, std::slice::from_ref(&lock), None, &[])
    }

    /// Clones the entries of a directory; returns how many are directories themselves.
    fn fill(&mut self, from: &Arc<InodeMem>, to: &Arc<InodeMem>) -> Result<u32> {
        let (mut filler, mut cookie, mut subdirs) = (dir::Filler::default(), 0, 0);
        loop {
            let entries = dir::list_some(self.core, from, cookie)?;
            let Some(last) = entries.last() else {
                return Ok(subdirs);
            };
            cookie = last.next_cookie;
            let mut batch = Vec::new();
            for dir::Listed { name, ino, .. } in entries {
                let mem = self.core.inode(u64::from(ino))?;
                if name == SNAPSHOTS_NAME && self.core.snapshot(&mem)?.is_snapshots() {
                    continue;
                }
                if let Some(clone) = self.linked.get(&ino).map(Arc::clone) {
                    self.link(to, (&clone, &name), &mut filler)?;
                    continue;
                }
                let original = self.original(&mem, &name)?;
                subdirs += u32::from(original.kind == FileKind::Directory);
                let is_linked = original.kind != FileKind::Directory && original.inode.nlink() > 1;
                batch.push(original);
                if is_linked {
                    // Its next name may be the next entry.
                    self.add(to, std::mem::take(&mut batch), &mut filler)?;
                }
            }
            self.add(to, batch, &mut filler)?;
        }
    }

    /// Adds clones to a directory, by as many records as needed.
    fn add(&mut self, to: &Arc<InodeMem>, batch: Vec<Original<'c>>, filler: &mut dir::Filler) -> Result<()> {
        let mut left = batch;
        while !left.is_empty() {
            let (made, filled) = with_fewer_pages(self.core, |most| self.add_some(to, &left, *filler, most))?;
            *filler = filled;
            let rest = left.split_off(made.len());
            for (original, made) in std::mem::replace(&mut left, rest).into_iter().zip(made) {
                self.complete(original, made)?;
            }
        }
        Ok(())
    }

    /// One record's worth: at least the first of the clones.
    fn add_some(
        &self,
        to: &Arc<InodeMem>,
        batch: &[Original<'c>],
        mut filler: dir::Filler,
        most: usize,
    ) -> Result<(Vec<Made>, dir::Filler)> {
        let core = self.core;
        let _lock = to.write();
        let mut directory = core.load_live(to)?;
        let places: Vec<_> = batch.iter().map(|_| OnceCell::new()).collect();
        let mut tx = Tx::new(core, Purpose::Clone);
        let (mut made, mut children, mut marked) = (Vec::new(), Vec::new(), Vec::new());
        // Starts loading their lines of the table.
        let keys: Vec<_> = batch
            .iter()
            .map(|original| core.names.key(to.ino, &original.name))
            .collect();
        for ((original, key), place) in batch.iter().zip(&keys).zip(&places) {
            let is_full = marked.len().max(made.len()) >= most || !tx.has_space(original.words() + 2 * marked.len());
            if !made.is_empty() && is_full {
                break;
            }
            let ino = tx.alloc_inode()?;
            let child = core.inodes.fresh(ino, place);
            let pages_left = most.saturating_sub(marked.len());
            let like = (self.now, self.quota);
            let (mut inode, pages) = original.put((core, &mut tx), ino, like, pages_left, &mut marked)?;
            self.mark(original, &mut inode);
            if original.kind == FileKind::Directory {
                inode.set_parent(to.ino);
                // The one at the top has no links until it has its name.
                let nlink = directory.nlink();
                directory.set_nlink(nlink + u32::from(nlink > 0));
            }
            filler.add(core, &mut tx, key, &mut directory, (ino, original.kind))?;
            tx.put_inode(ino, &mut inode);
            made.push(Made {
                mem: Arc::clone(child.inode),
                pages,
            });
            children.push(child);
        }
        filler.end(&mut tx);
        tx.put_inode(to.ino, &mut directory);
        commit(core, tx, &children, Some(to), &marked)?;
        Ok((made, filler))
    }

    /// Adds another name of a file that has been cloned already.
    fn link(&self, to: &Arc<InodeMem>, (clone, name): (&Arc<InodeMem>, &[u8]), filler: &mut dir::Filler) -> Result<()> {
        let core = self.core;
        *filler = retry::with_space(core, Need::FEW, || {
            let _locks = LockSet::lock(&[to, clone]);
            let (mut directory, mut inode) = (core.load_live(to)?, core.load_live(clone)?);
            let kind = inode.kind().ok_or(FsError::NotFound)?;
            let mut tx = Tx::new(core, Purpose::Clone);
            let mut filler = *filler;
            inode.set_nlink(inode.nlink() + 1);
            let key = core.names.key(to.ino, name);
            filler.add(core, &mut tx, &key, &mut directory, (clone.ino, kind))?;
            filler.end(&mut tx);
            tx.put_inode(to.ino, &mut directory);
            tx.put_inode(clone.ino, &mut inode);
            tx.commit(&[to, clone])?;
            Ok(filler)
        })?;
        Ok(())
    }
}

/// Commits a record that makes new inodes or adds pages to them, and marks blocks as shared.
fn commit(
    core: &Core,
    mut tx: Tx<'_>,
    inodes: &[Exclusive<'_>],
    directory: Option<&Arc<InodeMem>>,
    marked: &[BlockNo],
) -> Result<()> {
    let was_dead: Vec<_> = inodes.iter().filter(|lock| lock.inode.is_dead()).collect();
    was_dead.iter().for_each(|lock| lock.inode.set_alive());
    let changed: Vec<_> = inodes.iter().map(|lock| lock.inode).chain(directory).collect();
    let marks = (!marked.is_empty()).then(|| core.shares.marks());
    if let Some(marks) = &marks {
        tx.mark_shared(marks, marked);
    }
    tx.commit(&changed)
        .inspect_err(|_| was_dead.iter().for_each(|lock| lock.inode.set_dead()))?;
    if let (Some(marks), Some(last)) = (marks, changed.first()) {
        marks.committed(last.last_seq());
    }
    Ok(())
}

/// Makes a change that maps up to so many pages, and fewer if the mapping has no entries for them at once.
fn with_fewer_pages<T>(core: &Core, mut change: impl FnMut(usize) -> Result<T>) -> Result<T> {
    let mut most = PAGES_PER_RECORD;
    loop {
        match retry::with_space(core, Need::FEW, || change(most)) {
            // Entries cannot be moved out of the way of many pages at once, but of each in its turn; and where records
            // have the nodes of trees, pages that are far apart need a node each.
            Err(FsError::NoSpace(SpaceOf::MapEntries) | FsError::NotSupported(Unsupported::StepSize)) if most > 1 => {
                most = (most / 8).max(1);
            }
            other => return other,
        }
    }
}
