//! Renaming: two names at once.
//!
//! The order of locks is that of the crate; the hard part is to know which directory is the parent. While a directory
//! move runs, no other thread moves anything between directories, and while files move between directories no directory
//! moves; so the answer to "which of these is above the other" stays valid for the thread that asked.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_checks::ranked::{RwLockReadGuard, RwLockWriteGuard};
use ferrite_vfs::{BadArgument, Ctx, FileKind, FsError, Ino, LINK_MAX, Outcome, ROOT_INO, RenameMode, Result, posix};

use super::remove::Lost;
use super::{New, Slot, Touch, is_live_dir, missing};
use crate::core::{Core, Step};
use crate::format::node::{Content, Edge, Node};
use crate::inode_ref::InodeRef;
use crate::table::{Reading, State, Turn, Writing};

/// How often a rename starts over because names have changed between the lookup and their locks.
const RACES_MAX: usize = 64;

/// Which tree stays unchanged.
enum Still<'c> {
    /// Of one directory alone.
    Nothing,
    /// No directory moves.
    Files { _guard: RwLockReadGuard<'c, ()> },
    /// Only this rename moves anything.
    Directories { _guard: RwLockWriteGuard<'c, ()> },
}

/// The state of a directory whose names change: exclusive if its number of links may change.
enum DirState<'i> {
    Shared(Reading<'i>),
    Alone(Writing<'i>),
}

impl std::ops::Deref for DirState<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        match self {
            DirState::Shared(state) => state,
            DirState::Alone(state) => state,
        }
    }
}

impl<'i> DirState<'i> {
    fn lock(dir: &'i InodeRef, turn: Turn, alone: bool) -> Result<Self> {
        Ok(match alone {
            true => DirState::Alone(dir.write_dir(turn).map_err(missing)?),
            false => DirState::Shared(dir.read_dir(turn).map_err(missing)?),
        })
    }

    fn set_nlink(&mut self, nlink: Option<u32>) {
        if let (DirState::Alone(state), Some(nlink)) = (self, nlink) {
            state.node.nlink = nlink;
        }
    }
}

/// A name, and the directory it is in.
struct Side<'n> {
    dir: Ino,
    name: &'n [u8],
}

/// The result of one attempt.
enum Tried {
    Done,
    /// The names have changed since the lookup.
    Again,
}

/// A rename as requested, with both directories pinned.
struct Rename<'a> {
    core: &'a Arc<Core>,
    ctx: &'a Ctx,
    mode: RenameMode,
    from: &'a Side<'a>,
    to: &'a Side<'a>,
    from_dir: InodeRef,
    to_dir: InodeRef,
}

/// The inodes that the names led to when they were looked up, and the locks that follow from them.
struct Plan<'c> {
    source: Edge,
    target: Option<Edge>,
    /// Links of directories change when one crosses, or when one goes.
    moves_dirs: bool,
    /// From one directory to another.
    crosses: bool,
    /// The directory of the old name is locked first.
    locks_from_first: bool,
    /// Which directory is above which stays true as long as the plan lives.
    _still: Still<'c>,
}

/// The directories, locked.
struct Dirs<'i> {
    from: DirState<'i>,
    /// `None`: the same directory.
    to: Option<DirState<'i>>,
}

/// The inodes that the names lead to, locked by their numbers. None of them is one of the directories: the plan has
/// refused to move a directory below itself, or over one that contains it.
struct Inodes<'i> {
    moved: &'i InodeRef,
    moved_state: Writing<'i>,
    victim: Option<(&'i InodeRef, Writing<'i>)>,
}

/// New numbers of links of the directories, where they change. Within one directory, `from` holds it.
#[derive(Clone, Copy)]
struct Links {
    from: Option<u32>,
    to: Option<u32>,
}

/// The fate of the inode that the new name led to.
enum Replaced {
    Nothing,
    /// It lost this name.
    Lost(Lost),
    /// It has the old name now.
    Exchanged(Node),
}

/// The contents of the step, which memory follows once it is committed.
struct Edit {
    moved: Node,
    replaced: Replaced,
    from_touch: Touch,
    to_touch: Option<Touch>,
}

fn is_dir(edge: &Edge) -> bool {
    edge.kind == FileKind::Directory
}

impl Plan<'_> {
    fn seen(&self) -> [Option<Edge>; 2] {
        [Some(self.source), self.target]
    }
}

impl<'i> Dirs<'i> {
    fn lock(from_dir: &'i InodeRef, to_dir: &'i InodeRef, plan: &Plan<'_>) -> Result<Self> {
        let lock = |dir, turn| DirState::lock(dir, turn, plan.moves_dirs);
        let dirs = match (plan.crosses, plan.locks_from_first) {
            (false, _) => Self {
                from: lock(from_dir, Turn::First)?,
                to: None,
            },
            (true, true) => {
                let from = lock(from_dir, Turn::First)?;
                let to = Some(lock(to_dir, Turn::Second)?);
                Self { from, to }
            }
            (true, false) => {
                let to = Some(lock(to_dir, Turn::First)?);
                let from = lock(from_dir, Turn::Second)?;
                Self { from, to }
            }
        };
        is_live_dir(dirs.from())?;
        is_live_dir(dirs.to())?;
        Ok(dirs)
    }

    fn from(&self) -> &State {
        &self.from
    }

    fn to(&self) -> &State {
        self.to.as_ref().unwrap_or(&self.from)
    }
}

impl<'i> Inodes<'i> {
    fn lock(moved: &'i InodeRef, victim: Option<&'i InodeRef>) -> Result<Self> {
        Ok(match victim {
            None => Self {
                moved,
                moved_state: moved.write()?,
                victim: None,
            },
            Some(victim) if moved.ino < victim.ino => {
                let moved_state = moved.write()?;
                let victim = Some((victim, victim.write()?));
                Self {
                    moved,
                    moved_state,
                    victim,
                }
            }
            Some(victim) => {
                let victim = Some((victim, victim.write()?));
                let moved_state = moved.write()?;
                Self {
                    moved,
                    moved_state,
                    victim,
                }
            }
        })
    }

    fn moves_dir(&self) -> bool {
        self.moved_state.node.is_dir()
    }

    fn replaces_dir(&self) -> bool {
        self.victim.as_ref().is_some_and(|(_, state)| state.node.is_dir())
    }
}

impl Core {
    pub(crate) fn rename<'c>(
        self: &'c Arc<Core>,
        ctx: &Ctx,
        step: Step<'c>,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        posix::check_name(name)?;
        posix::check_name(new_name)?;
        let from = Side { dir: parent, name };
        let to = Side {
            dir: new_parent,
            name: new_name,
        };
        // Programs write a file, and then give it the name of the one that it replaces.
        self.settle_name(parent, name, false)?;
        self.settle_name(new_parent, new_name, mode != RenameMode::Exchange)?;
        let mut step = step;
        for _ in 0..RACES_MAX {
            let rename = Rename {
                core: self,
                ctx,
                mode,
                from: &from,
                to: &to,
                from_dir: self.dir(from.dir)?,
                to_dir: self.dir(to.dir)?,
            };
            match rename.attempt(step)? {
                Tried::Done => return Ok(()),
                Tried::Again => step = self.step_of(ctx),
            }
        }
        Err(FsError::Busy)
    }
}

impl Rename<'_> {
    /// Locks everything in the crate's order, and renames if the names still lead where the plan saw them lead.
    fn attempt(&self, mut step: Step<'_>) -> Result<Tried> {
        let plan = self.plan()?;
        let mut dirs = Dirs::lock(&self.from_dir, &self.to_dir, &plan)?;
        let slots = self.lock_names(&mut step)?;
        if [slots.0.found, slots.1.found] != plan.seen() {
            return Ok(Tried::Again);
        }
        self.check_mode(plan.target)?;
        if plan.target.is_some_and(|target| target.ino == plan.source.ino) {
            // Two names of one file: POSIX requires that nothing happens.
            step.commit(|| Outcome::Done)?;
            return Ok(Tried::Done);
        }
        let moved = self.pin_edge(self.from.dir, plan.source)?;
        let victim = plan
            .target
            .map(|target| self.pin_edge(self.to.dir, target))
            .transpose()?;
        let inodes = Inodes::lock(&moved, victim.as_ref())?;
        self.check(&dirs, &inodes)?;
        let links = self.links(&dirs, &inodes, plan.crosses)?;
        let whiteout = match self.mode.leaves_whiteout() {
            true => Some(self.whiteout(dirs.from())?),
            false => None,
        };
        let edit = self.put(&mut step, &dirs, &inodes, slots, (links, whiteout.as_ref()))?;
        // After what goes has made space.
        if let Some((ino, node)) = &whiteout {
            step.count_new(*ino, node)?;
        }
        // As in `make`: other threads see it as soon as it is there.
        let made = whiteout.map(|(ino, node)| (self.core.entry(ino), node));
        let made_state = made.as_ref().map(|(made, _)| made.state.write_ordered(made.ino));
        step.commit(|| Outcome::Done)?;
        if let (Some((made, node)), Some(mut state)) = (&made, made_state) {
            made.init(&mut state, node.clone(), false);
            self.core.inodes.fetch_add(1, Ordering::Relaxed);
        }
        self.publish(&mut dirs, inodes, links, edit);
        Ok(Tried::Done)
    }

    /// Looks both names up, and fixes what may move while the directories are locked.
    fn plan(&self) -> Result<Plan<'_>> {
        let (core, from, to) = (self.core, self.from, self.to);
        // A caller without the right to the source learns that before anything about the target.
        self.check_search(&self.from_dir)?;
        let source = core.find(from.dir, from.name)?.ok_or(FsError::NotFound)?;
        self.check_search(&self.to_dir)?;
        let target = core.find(to.dir, to.name)?;
        let seen = [Some(source), target];
        let moves_dirs = seen.iter().flatten().any(is_dir);
        let crosses = from.dir != to.dir;
        let still = match () {
            () if !crosses => Still::Nothing,
            () if moves_dirs => Still::Directories {
                _guard: core.renames.write(),
            },
            () => Still::Files {
                _guard: core.renames.read(),
            },
        };
        if crosses {
            self.check_tree(source, target)?;
        }
        Ok(Plan {
            source,
            target,
            moves_dirs,
            crosses,
            locks_from_first: !crosses || core.comes_first(from.dir, to.dir)?,
            _still: still,
        })
    }

    fn check_search(&self, dir: &InodeRef) -> Result<()> {
        let state = dir.read().map_err(missing)?;
        super::is_dir(&state)?;
        match self.ctx.check {
            true => posix::may_search(&self.core.guarded(self.ctx, dir, &state)?, &self.ctx.cred),
            false => Ok(()),
        }
    }

    /// Neither of the two moves may put a directory below itself.
    fn check_tree(&self, source: Edge, target: Option<Edge>) -> Result<()> {
        let core = self.core;
        if is_dir(&source) && core.is_below(self.to.dir, source.ino)? {
            self.check_early(source, target)?;
            return Err(FsError::Invalid(BadArgument::BelowItself));
        }
        if let Some(target) = target.filter(|target| is_dir(target) && target.ino != source.ino)
            && core.is_below(self.from.dir, target.ino)?
        {
            self.check_early(source, Some(target))?;
            return Err(match self.mode {
                RenameMode::Exchange => FsError::Invalid(BadArgument::BelowItself),
                _ if !is_dir(&source) => FsError::IsDirectory,
                _ => FsError::NotEmpty,
            });
        }
        Ok(())
    }

    /// Locks both names, in the order of their keys.
    fn lock_names(&self, step: &mut Step<'_>) -> Result<(Slot, Slot)> {
        let (from, to) = (self.from, self.to);
        let mut lock = |side: &Side<'_>| self.core.lock_name(step, side.dir, side.name);
        match (from.dir, from.name) <= (to.dir, to.name) {
            true => {
                let from = lock(from)?;
                Ok((from, lock(to)?))
            }
            false => {
                let to = lock(to)?;
                Ok((lock(from)?, to))
            }
        }
    }

    /// Whether the new name may, or must, exist.
    fn check_mode(&self, target: Option<Edge>) -> Result<()> {
        match (self.mode, target) {
            (mode, Some(_)) if mode.refuses_target() => Err(FsError::Exists),
            (RenameMode::Exchange, None) => Err(FsError::NotFound),
            _ => Ok(()),
        }
    }

    fn pin_edge(&self, dir: Ino, edge: Edge) -> Result<InodeRef> {
        let pinned = self.core.pin(edge.ino);
        pinned.map_err(|error| self.core.dangling(dir, edge.ino, error))
    }

    /// Everything that POSIX refuses, given what is locked now.
    fn check(&self, dirs: &Dirs<'_>, inodes: &Inodes<'_>) -> Result<()> {
        let core = self.core;
        if self.ctx.check {
            let guarded = |inode: &InodeRef, state: &State| core.guarded(self.ctx, inode, state);
            let moved = guarded(inodes.moved, &inodes.moved_state)?;
            let victim = inodes.victim.as_ref();
            let victim = victim.map(|(victim, state)| guarded(victim, state)).transpose()?;
            let from = posix::RenameSide {
                dir: &guarded(&self.from_dir, dirs.from())?,
                entry: Some(&moved),
            };
            let to = posix::RenameSide {
                dir: &guarded(&self.to_dir, dirs.to())?,
                entry: victim.as_ref(),
            };
            posix::may_rename(from, to, &self.ctx.cred, self.mode)?;
        }
        if let Some((victim, _)) = inodes.victim.as_ref().filter(|_| self.mode != RenameMode::Exchange) {
            match (inodes.moves_dir(), inodes.replaces_dir()) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (_, true) if !core.is_empty(victim.ino)? => return Err(FsError::NotEmpty),
                _ => {}
            }
        }
        // A quota counts all that is below its directory; so only copies cross its border.
        match dirs.from().node.inherited_quota() == dirs.to().node.inherited_quota() {
            true => Ok(()),
            false => Err(FsError::CrossDevice),
        }
    }

    /// How many links the directories have afterwards: each subdirectory is one.
    fn links(&self, dirs: &Dirs<'_>, inodes: &Inodes<'_>, crosses: bool) -> Result<Links> {
        let (from, to) = (
            self.core.attr(&self.from_dir, dirs.from()).nlink,
            self.core.attr(&self.to_dir, dirs.to()).nlink,
        );
        let gains = |comes: bool, goes: bool| i64::from(comes) - i64::from(goes);
        let to_gains = gains(inodes.moves_dir(), inodes.replaces_dir());
        let comes_back = self.mode == RenameMode::Exchange && inodes.replaces_dir();
        let from_gains = gains(comes_back, inodes.moves_dir());
        if crosses && (to_gains > 0 && to >= LINK_MAX || from_gains > 0 && from >= LINK_MAX) {
            return Err(FsError::TooManyLinks);
        }
        let after = |nlink: u32, gains: i64| (gains != 0).then(|| (i64::from(nlink) + gains).max(0) as u32);
        Ok(match crosses {
            true => Links {
                from: after(from, from_gains),
                to: after(to, to_gains),
            },
            false => Links {
                from: after(from, from_gains + to_gains),
                to: None,
            },
        })
    }

    /// Puts the change into the step: the old name first, so that a name that is exchanged is put last.
    fn put(
        &self,
        step: &mut Step<'_>,
        dirs: &Dirs<'_>,
        inodes: &Inodes<'_>,
        (from_slot, to_slot): (Slot, Slot),
        (links, whiteout): (Links, Option<&(Ino, Node)>),
    ) -> Result<Edit> {
        let (core, from, to) = (self.core, self.from, self.to);
        let now = core.now();
        let moved = core.moved(inodes.moved, &inodes.moved_state, to, now)?;
        if dirs.to.is_some() && inodes.victim.is_none() {
            step.adds_to(self.to_dir.ino);
        }
        // The keys of directories before that of a blob, as in other steps that remove a name.
        let from_touch = core.touch(step, &self.from_dir, dirs.from(), links.from)?;
        let to_touch = match &dirs.to {
            Some(state) => Some(core.touch(step, &self.to_dir, state, links.to)?),
            None => None,
        };
        let replaced = match &inodes.victim {
            Some((victim, state)) if self.mode == RenameMode::Exchange => {
                let node = core.moved(victim, state, from, now)?;
                core.put_edge(step, from.dir, from.name, from_slot, &Edge::to(victim.ino, &node))?;
                step.put_node(victim.ino, &node)?;
                Replaced::Exchanged(node)
            }
            Some((victim, state)) => {
                self.leave(step, from_slot, whiteout)?;
                if state.node.is_dir() {
                    core.delete_places(step, victim.ino)?;
                }
                Replaced::Lost(core.lose_name(step, victim, state, now)?)
            }
            None => {
                self.leave(step, from_slot, whiteout)?;
                Replaced::Nothing
            }
        };
        core.put_edge(step, to.dir, to.name, to_slot, &Edge::to(inodes.moved.ino, &moved))?;
        step.put_node(inodes.moved.ino, &moved)?;
        Ok(Edit {
            moved,
            replaced,
            from_touch,
            to_touch,
        })
    }

    /// Removes the old name, or gives it to a whiteout.
    fn leave(&self, step: &mut Step<'_>, slot: Slot, whiteout: Option<&(Ino, Node)>) -> Result<()> {
        let (core, from) = (self.core, self.from);
        match whiteout {
            Some((ino, node)) => {
                core.put_edge(step, from.dir, from.name, slot, &Edge::to(*ino, node))?;
                step.put_node(*ino, node)?;
                Ok(())
            }
            None => core.delete_edge(step, from.dir, from.name, &slot),
        }
    }

    /// A character device 0:0, which hides its name in the layers below an overlay.
    fn whiteout(&self, dir: &State) -> Result<(Ino, Node)> {
        let attr = self.core.attr(&self.from_dir, dir);
        let new = New::of(FileKind::CharDevice, 0);
        let dir = (&attr, dir.node.inherited_quota());
        self.core.new_node(self.ctx, dir, &new, Content::Inline(Vec::new()))
    }

    /// Publishes in memory what has been committed, under the same locks.
    fn publish(&self, dirs: &mut Dirs<'_>, inodes: Inodes<'_>, links: Links, edit: Edit) {
        self.core.names_lost.fetch_add(1, Ordering::AcqRel);
        edit.from_touch.done(&self.from_dir);
        if let Some(touch) = edit.to_touch {
            touch.done(&self.to_dir);
        }
        dirs.from.set_nlink(links.from);
        if let Some(state) = &mut dirs.to {
            state.set_nlink(links.to);
        }
        let Inodes {
            moved,
            mut moved_state,
            victim,
        } = inodes;
        moved.adopt(&mut moved_state, edit.moved);
        if let Some((victim, mut state)) = victim {
            match edit.replaced {
                Replaced::Lost(lost) => self.core.lost_name(victim, &mut state, lost),
                Replaced::Exchanged(node) => victim.adopt(&mut state, node),
                Replaced::Nothing => {}
            }
        }
    }

    /// The refusals that come before the check of which directory is below which.
    fn check_early(&self, source: Edge, target: Option<Edge>) -> Result<()> {
        let core = self.core;
        let attr = |pinned: &InodeRef| {
            let state = pinned.read().map_err(missing)?;
            core.guarded(self.ctx, pinned, &state)
        };
        for dir in [&self.from_dir, &self.to_dir] {
            is_live_dir(&*dir.read().map_err(missing)?)?;
        }
        self.check_mode(target)?;
        if self.ctx.check {
            let of = |edge: Edge| core.pin(edge.ino).map_err(missing).and_then(|pinned| attr(&pinned));
            let (source, target) = (of(source)?, target.map(of).transpose()?);
            let (from, to) = (attr(&self.from_dir)?, attr(&self.to_dir)?);
            let from = posix::RenameSide {
                dir: &from,
                entry: Some(&source),
            };
            let to = posix::RenameSide {
                dir: &to,
                entry: target.as_ref(),
            };
            posix::may_rename(from, to, &self.ctx.cred, self.mode)?;
        }
        Ok(())
    }
}

impl Core {
    /// An inode at its new name.
    fn moved(&self, inode: &InodeRef, state: &State, to: &Side<'_>, now: ferrite_vfs::Timestamp) -> Result<Node> {
        self.settle(state)?;
        let mut node = inode.present(state);
        (node.ctime, node.change) = (now, self.next_change());
        if node.is_dir() {
            node.parent = to.dir;
            node.content = Content::Inline(to.name.to_vec());
        }
        Ok(node)
    }

    /// Whether `dir` is `above`, or below it. No directory moves meanwhile.
    fn is_below(self: &Arc<Core>, dir: Ino, above: Ino) -> Result<bool> {
        let mut at = dir;
        while at != above {
            if at == ROOT_INO {
                return Ok(false);
            }
            at = self.pin(at).map_err(missing)?.read().map_err(missing)?.node.parent;
        }
        Ok(true)
    }

    /// Which of two directories is locked first: the one above, else that with the smaller number.
    fn comes_first(self: &Arc<Core>, one: Ino, other: Ino) -> Result<bool> {
        Ok(match () {
            () if self.is_below(other, one)? => true,
            () if self.is_below(one, other)? => false,
            () => one < other,
        })
    }
}
