//! Clones of files and of whole trees, and snapshots, which are clones that do not change.
//!
//! A clone is new nodes and new names; its files name the blobs of the originals ([`crate::sharing`]), so no content
//! moves. It is one state of the tree: while it is made, no other change of the pool begins, and those that had begun
//! have ended ([`crate::freeze_barrier`]). Reads go on.
//!
//! Crash argument: the clone is made without a name, as an orphan, and the last step gives it one. Before that, each
//! step adds names together with the inodes that they lead to and with the numbers of those that share their blobs; so
//! a start finds an orphan, and removes it with all that is below ([`super::clear`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_meta::Lock;
use ferrite_vfs::{
    Attr, Ctx, FileKind, FsError, Ino, InodeFlags, LINK_MAX, NameChange, Outcome, ROOT_INO, Result, SNAPSHOTS_NAME,
    Timestamp, posix,
};

use super::{Listed, is_dir, is_live_dir, missing};
use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::{Content, Edge, Marks, Node};
use crate::inode_ref::InodeRef;
use crate::quotas::owners_of;
use crate::rights::Xattrs;
use crate::table::{State, Turn};
use crate::unfinished::Making;

/// Names that one step adds at most.
const NAMES_AT_ONCE: usize = 64;
/// Bytes of values from which on a step ends.
const BYTES_AT_ONCE: usize = 256 << 10;

/// A clone, or a snapshot in the directory for those of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum As {
    Clone,
    Snapshot { of: Ino },
}

/// The name that a clone gets.
struct Target<'t> {
    parent: Ino,
    name: &'t [u8],
    as_what: As,
}

/// A clone keeps owner and mode, which only the owner and root may give; and only root may make devices.
fn check_owner(ctx: &Ctx, node: &Node) -> Result<()> {
    match ctx.check && !ctx.cred.is_root() && ctx.cred.uid != node.uid {
        true => Err(FsError::NotPermitted),
        false if ctx.check => posix::may_mknod(node.kind, &ctx.cred),
        false => Ok(()),
    }
}

impl Core {
    /// Clones an inode, and everything below it, to a new name. Blocks on all changes in progress; the caller makes
    /// none.
    pub(crate) fn clone_tree(
        self: &Arc<Core>,
        ctx: &Ctx,
        step: Step<'_>,
        source: Ino,
        parent: Ino,
        name: &[u8],
    ) -> Result<(InodeRef, Attr)> {
        let as_what = As::Clone;
        self.clone_to(ctx, step, source, &Target { parent, name, as_what })
    }

    /// Takes a snapshot of the directory that `snapshots` is in: a clone of all of it but its directories of snapshots,
    /// which has the name there and does not change. Blocks as [`Self::clone_tree`].
    pub(crate) fn take_snapshot(
        self: &Arc<Core>,
        ctx: &Ctx,
        step: Step<'_>,
        snapshots: Ino,
        name: &[u8],
    ) -> Result<(InodeRef, Attr)> {
        let of = self.dir(snapshots)?.read().map_err(missing)?.node.parent;
        let target = Target {
            parent: snapshots,
            name,
            as_what: As::Snapshot { of },
        };
        self.clone_to(ctx, step, of, &target)
    }

    fn clone_to(
        self: &Arc<Core>,
        ctx: &Ctx,
        step: Step<'_>,
        source: Ino,
        target: &Target<'_>,
    ) -> Result<(InodeRef, Attr)> {
        posix::check_name(target.name)?;
        self.check_clone(ctx, source, target)?;
        let mut cloning = Cloning {
            core: self,
            ctx,
            as_what: target.as_what,
            quota: 0,
            now: self.now(),
            top: None,
            linked: HashMap::new(),
            dirs: Vec::new(),
        };
        self.settle_all();
        let cloned = {
            let _alone = self.freeze_barrier.shut_for_caller();
            cloning.make(step, source, target)
        };
        if let Some(top) = cloning.top {
            // Without a name, all of it is removed with this pin, and others need not wait for that.
            drop(self.pin(top));
        }
        cloned
    }

    /// Refuses, without keeping others waiting, all that would be refused later: also if the caller may not clone a
    /// part of the tree.
    fn check_clone(self: &Arc<Core>, ctx: &Ctx, source: Ino, target: &Target<'_>) -> Result<()> {
        let kind = {
            let inode = self.pin(source).map_err(missing)?;
            let state = inode.read().map_err(missing)?;
            check_owner(ctx, &state.node)?;
            state.node.kind
        };
        self.check_place(ctx, target, kind)?;
        if !ctx.check || ctx.cred.is_root() || kind != FileKind::Directory {
            return Ok(());
        }
        self.walk_below(source, |_, entries, dirs| {
            for entry in entries {
                if self.check_owner_of(ctx, entry)? {
                    dirs.push(entry.edge.ino);
                }
            }
            Ok(())
        })
    }

    /// Refuses an entry that the caller may not clone; returns whether it is a directory to look into.
    fn check_owner_of(self: &Arc<Core>, ctx: &Ctx, entry: &Listed) -> Result<bool> {
        // Others may remove it now.
        let Ok(inode) = self.pin(entry.edge.ino) else {
            return Ok(false);
        };
        let Ok(state) = inode.read() else { return Ok(false) };
        if state.node.marks.holds_snapshots {
            // They are left out.
            return Ok(false);
        }
        check_owner(ctx, &state.node)?;
        Ok(state.node.is_dir())
    }

    /// Whether the name is free and the caller may create it: also known before the work.
    fn check_place(self: &Arc<Core>, ctx: &Ctx, target: &Target<'_>, kind: FileKind) -> Result<()> {
        let dir = self.dir(target.parent)?;
        let state = dir.read().map_err(missing)?;
        is_dir(&state)?;
        let is_taken = self.find(target.parent, target.name)?.is_some();
        self.check_new_name(ctx, (&dir, &state), is_taken, target, kind)
    }

    fn check_new_name(
        &self,
        ctx: &Ctx,
        (dir, state): (&InodeRef, &State),
        is_taken: bool,
        target: &Target<'_>,
        kind: FileKind,
    ) -> Result<()> {
        is_live_dir(state)?;
        if ctx.check {
            posix::may_create(&self.guarded(ctx, dir, state)?, &ctx.cred, is_taken)?;
            posix::may_mknod(kind, &ctx.cred)?;
        }
        let node = &state.node;
        // The directory of snapshots may have been replaced since it was found.
        let is_place = match target.as_what {
            As::Clone => true,
            As::Snapshot { of } => node.marks.holds_snapshots && node.parent == of,
        };
        match () {
            () if is_taken => Err(FsError::Exists),
            // Of all the steps of a clone, this one alone may change it.
            () if node.is_kept_as_is() && target.as_what == As::Clone => Err(FsError::ReadOnly),
            () if node.flags.check_names(NameChange::Adds).is_err() => Err(FsError::NotPermitted),
            () if !is_place => Err(FsError::NotFound),
            () if kind == FileKind::Directory && node.nlink >= LINK_MAX => Err(FsError::TooManyLinks),
            () => Ok(()),
        }
    }

    /// Whether a directory is in a removed snapshot, of which parts may be gone already. Nothing is removed meanwhile.
    fn is_going(self: &Arc<Core>, dir: Ino) -> Result<bool> {
        let mut at = dir;
        for _ in 0..=self.inodes.load(Ordering::Relaxed) {
            let inode = match self.pin(at) {
                Err(FsError::Stale) => return Ok(true),
                other => other?,
            };
            let state = inode.read().map_err(missing)?;
            if state.node.nlink == 0 {
                return Ok(true);
            }
            if at == ROOT_INO {
                return Ok(false);
            }
            at = state.node.parent;
        }
        Err(FsError::Loop)
    }
}

/// A file, or whatever else has an inode, that is to be cloned.
struct Original {
    /// The new entry.
    name: Vec<u8>,
    inode: InodeRef,
    node: Node,
    xattrs: Xattrs,
    /// Content beside the node.
    small: Option<Vec<u8>>,
}

/// A directory of the clone, or the only inode of it.
struct Made {
    ino: Ino,
    node: Node,
    subdirs: u32,
}

/// The clone of a file with several names.
struct Linked {
    ino: Ino,
    /// Names of the original that were not met yet.
    left: u32,
}

/// A step that adds clones to a directory.
struct Batch<'c> {
    step: Step<'c>,
    bytes: usize,
    /// Originals whose blobs become shared.
    shared: Vec<InodeRef>,
    /// The content of each clone.
    made: Vec<Content>,
    subdirs: u32,
}

impl<'c> Batch<'c> {
    fn new(core: &'c Core) -> Result<Self> {
        let mut step = core.own_step()?;
        step.is_limited = true;
        Ok(Batch {
            step,
            bytes: 0,
            shared: Vec::new(),
            made: Vec::new(),
            subdirs: 0,
        })
    }
}

/// A clone that is being made.
struct Cloning<'c> {
    core: &'c Arc<Core>,
    ctx: &'c Ctx,
    as_what: As,
    /// The quota that counts the clone.
    quota: Ino,
    now: Timestamp,
    /// The clone, as long as it has no name.
    top: Option<Ino>,
    /// The clones of files with several names, by the number of the original.
    linked: HashMap<Ino, Linked>,
    /// Directories whose entries are still to be cloned, with their clones.
    dirs: Vec<(Ino, Ino)>,
}

impl Cloning<'_> {
    fn make(&mut self, step: Step<'_>, source: Ino, target: &Target<'_>) -> Result<(InodeRef, Attr)> {
        self.core.check_writable()?;
        let making = self.core.unfinished.begin(*self.core.next_ino.lock());
        let original = self.read(source, Vec::new()).map_err(missing)?;
        let kind = original.node.kind;
        if original.node.nlink == 0 || original.node.is_dir() && self.core.is_going(source)? {
            return Err(FsError::NotFound);
        }
        self.core.check_place(self.ctx, target, kind)?;
        self.quota = self
            .core
            .dir(target.parent)?
            .read()
            .map_err(missing)?
            .node
            .inherited_quota();
        let mut top = self.make_top(original)?;
        if kind == FileKind::Directory {
            self.fill(source, &mut top)?;
        }
        while let Some((from, ino)) = self.dirs.pop() {
            let node = stored_node(self.core.meta.get(&key::node(ino))?, ino)?;
            self.fill(from, &mut Made { ino, node, subdirs: 0 })?;
        }
        self.give_name(step, top, target, making)
    }

    /// Reads an inode, with all that its clone needs to have. Its blob is not ahead of it then.
    fn read(&self, ino: Ino, name: Vec<u8>) -> Result<Original> {
        let core = self.core;
        let inode = core.pin(ino)?;
        let mut node = {
            let mut state = inode.write()?;
            core.store_node(&inode, &mut state)?;
            inode.present(&state)
        };
        check_owner(self.ctx, &node)?;
        let mut xattrs = core.xattrs(ino, &node)?;
        // State that a service keeps about the pool belongs to its root alone.
        xattrs.retain(|name, _| !posix::is_own_xattr(name));
        let small = match node.content {
            Content::Beside(_) => Some(core.small(ino, &node)?.into_owned()),
            _ => None,
        };
        if self.ctx.check && !self.ctx.cred.is_root() {
            // As with other files that a user makes.
            xattrs.retain(|name, _| name != posix::CAPABILITY && posix::sees_xattr(&self.ctx.cred, name));
            if !node.is_dir() && !self.ctx.cred.in_group(node.gid) {
                node.mode &= !posix::S_ISGID;
            }
        }
        Ok(Original {
            name,
            inode,
            node,
            xattrs,
            small,
        })
    }

    /// Makes the inode at the top, without a name.
    fn make_top(&mut self, original: Original) -> Result<Made> {
        let mut batch = Batch::new(self.core)?;
        let ino = self.core.next_ino()?;
        let mut node = self.node_of(&original, ROOT_INO);
        node.nlink = 0;
        node.marks.is_orphan_tree = node.is_dir();
        self.put(&mut batch, original, ino, &node)?;
        batch.step.txn.put(&key::orphan(ino), b"")?;
        let mut made = Made { ino, node, subdirs: 0 };
        self.commit(batch, &mut made)?;
        self.top = Some(ino);
        Ok(made)
    }

    /// The node of a clone in this directory.
    fn node_of(&self, original: &Original, parent: Ino) -> Node {
        let node = &original.node;
        let content = match node.is_dir() {
            true => Content::Inline(original.name.clone()),
            false => node.content.clone(),
        };
        Node {
            nlink: if node.is_dir() { 2 } else { 1 },
            ctime: self.now,
            btime: self.now,
            change: self.core.next_change(),
            parent,
            has_xattrs: !original.xattrs.is_empty(),
            is_nameless: false,
            marks: Marks {
                is_shared: matches!(content, Content::Blob(_)),
                in_snapshot: self.as_what != As::Clone,
                ..Marks::default()
            },
            quota: self.quota,
            flags: InodeFlags::NONE,
            content,
            ..node.clone()
        }
    }

    /// Puts a clone into the step, and that its blob is shared.
    fn put(&self, batch: &mut Batch<'_>, original: Original, ino: Ino, node: &Node) -> Result<()> {
        let step = &mut batch.step;
        step.count_new(ino, node)?;
        if !original.xattrs.is_empty() {
            self.core
                .put_xattrs(step, ino, (owners_of(node), false), &original.xattrs)?;
            let sizes = original.xattrs.iter().map(|(name, value)| name.len() + value.len());
            batch.bytes += sizes.sum::<usize>();
        }
        if let Some(small) = &original.small {
            step.txn.put(&key::small(ino), small)?;
            batch.bytes += small.len();
        }
        step.put_node(ino, node)?;
        batch.bytes += node.encode().len();
        if let Content::Blob(place) = node.content {
            let number = original.inode.ino;
            self.core.share(step, number, &original.node, place)?;
            if !original.node.marks.is_shared {
                let mut shared = original.inode.present(&*original.inode.read()?);
                shared.marks.is_shared = true;
                step.put_node(number, &shared)?;
                batch.shared.push(original.inode);
            }
        }
        batch.made.push(node.content.clone());
        Ok(())
    }

    /// Clones the entries of a directory.
    fn fill(&mut self, from: Ino, to: &mut Made) -> Result<()> {
        let core = self.core;
        let mut cookie = 0;
        loop {
            let entries = core.readable_names(from, cookie, NAMES_AT_ONCE)?;
            let Some(last) = entries.last() else { return Ok(()) };
            if core.housekeeper.is_stopping() {
                return Err(FsError::Io("the pool is being closed".into()));
            }
            cookie = last.cookie;
            let mut batch = Batch::new(core)?;
            for entry in entries {
                let ino = entry.edge.ino;
                if let Some(linked) = self.linked.get_mut(&ino) {
                    link(core, &mut batch, to.ino, linked.ino, &entry)?;
                    linked.left -= 1;
                    if linked.left == 0 {
                        self.linked.remove(&ino);
                    }
                    continue;
                }
                if entry.name == SNAPSHOTS_NAME && core.pin(ino)?.read()?.node.marks.holds_snapshots {
                    continue;
                }
                let original = self.read(ino, entry.name);
                let original = original.map_err(|error| core.dangling(from, ino, error))?;
                self.add(&mut batch, to.ino, original)?;
                if batch.bytes >= BYTES_AT_ONCE {
                    self.commit(std::mem::replace(&mut batch, Batch::new(core)?), to)?;
                }
            }
            self.commit(batch, to)?;
        }
    }

    /// Adds a clone to a directory.
    fn add(&mut self, batch: &mut Batch<'_>, to: Ino, original: Original) -> Result<()> {
        let core = self.core;
        let ino = core.next_ino()?;
        let node = self.node_of(&original, to);
        let slot = core.lock_name(&mut batch.step, to, &original.name)?;
        core.put_edge(&mut batch.step, to, &original.name, slot, &Edge::to(ino, &node))?;
        let number = original.inode.ino;
        let left = original.node.nlink.saturating_sub(1);
        self.put(batch, original, ino, &node)?;
        if node.is_dir() {
            batch.subdirs += 1;
            self.dirs.push((number, ino));
        } else if left > 0 {
            self.linked.insert(number, Linked { ino, left });
        }
        Ok(())
    }

    /// Commits a step that adds to a clone.
    fn commit(&self, batch: Batch<'_>, to: &mut Made) -> Result<()> {
        let core = self.core;
        let Batch {
            mut step,
            shared,
            made,
            subdirs,
            ..
        } = batch;
        to.subdirs += subdirs;
        // The one at the top has no links until it has its name.
        if subdirs > 0 && to.node.nlink > 0 {
            to.node.nlink += subdirs;
            step.put_node(to.ino, &to.node)?;
        }
        step.commit(|| Outcome::Done)?;
        core.inodes.fetch_add(made.len() as u64, Ordering::Relaxed);
        made.iter().for_each(|content| core.count_small(None, Some(content)));
        for inode in shared {
            inode.write()?.node.marks.is_shared = true;
        }
        Ok(())
    }

    /// Gives the clone its name, and ends the making of it.
    fn give_name(
        &mut self,
        mut step: Step<'_>,
        top: Made,
        target: &Target<'_>,
        making: Making<'_>,
    ) -> Result<(InodeRef, Attr)> {
        let core = self.core;
        let Made { ino, mut node, subdirs } = top;
        let (parent, name) = (target.parent, target.name);
        step.may_change_snapshots();
        step.adds_to(parent);
        let dir = core.dir(parent)?;
        let mut state = dir.write_dir(Turn::First).map_err(missing)?;
        let slot = core.lock_name(&mut step, parent, name)?;
        core.check_new_name(self.ctx, (&dir, &state), slot.found.is_some(), target, node.kind)?;
        node.parent = parent;
        node.nlink = 1;
        if node.is_dir() {
            node.nlink = 2 + subdirs;
            node.content = Content::Inline(name.to_vec());
            node.marks.is_orphan_tree = false;
        }
        let nlink = node.is_dir().then(|| state.node.nlink + 1);
        core.put_edge(&mut step, parent, name, slot, &Edge::to(ino, &node))?;
        let touch = core.touch(&mut step, &dir, &state, nlink)?;
        step.put_node(ino, &node)?;
        step.txn.delete(&key::orphan(ino))?;
        let attr = node.attr(ino);
        // As in `make`: other threads see the name as soon as it is there, and wait here until all of it can be used.
        let made = core.entry(ino);
        let mut made_state = made.state.write_ordered(ino);
        step.commit(|| Outcome::Attr(Attr { change: 0, ..attr }))?;
        self.top = None;
        made.init(&mut made_state, node, false);
        drop(making);
        drop(made_state);
        touch.done(&dir);
        state.node.nlink = nlink.unwrap_or(state.node.nlink);
        drop(state);
        Ok((made, attr))
    }
}

fn stored_node(value: Option<Vec<u8>>, ino: Ino) -> Result<Node> {
    let node = value.and_then(|value| Node::decode(&value));
    node.ok_or_else(|| FsError::damaged(ino, "its node cannot be read"))
}

/// Adds another name of a file that has been cloned already.
fn link(core: &Core, batch: &mut Batch<'_>, to: Ino, clone: Ino, entry: &Listed) -> Result<()> {
    let value = batch.step.txn.get_for_update(&key::node(clone), Lock::Exclusive)?;
    let mut node = stored_node(value, clone)?;
    node.nlink += 1;
    let slot = core.lock_name(&mut batch.step, to, &entry.name)?;
    core.put_edge(&mut batch.step, to, &entry.name, slot, &Edge::to(clone, &node))?;
    batch.step.put_node(clone, &node)
}
