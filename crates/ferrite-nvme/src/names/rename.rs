//! Renaming: two names at once.
//!
//! The order of locks is that of the crate, and the hard part is what is parent and what is child. While directories
//! are moved nobody else moves anything between directories, and while files are moved between directories no directory
//! is; so the answer to "which of these is above the other" does not change under the one who asked.

use std::sync::Arc;

use ferrite_vfs::{BadArgument, Ctx, FsError, Ino, LINK_MAX, Outcome, ROOT_INO, RenameMode, Result, posix};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use super::{Slot, is_live_dir, missing};
use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::{Content, Edge, Node};
use crate::held::Held;
use crate::table::{Reading, State, Writing};

/// How often a rename looks again because names have changed between a look and their locks.
const RACES_MAX: usize = 64;

/// Whose tree stays as it is.
enum Still<'c> {
    /// Of one directory alone.
    Nothing,
    /// No directory moves.
    Files { _guard: RwLockReadGuard<'c, ()> },
    /// Nothing moves but by us.
    Directories { _guard: RwLockWriteGuard<'c, ()> },
}

/// The state of a directory whose names change: alone if its number of links may.
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

impl DirState<'_> {
    fn set_nlink(&mut self, nlink: u32) {
        if let DirState::Alone(state) = self {
            state.node.nlink = nlink;
        }
    }
}

/// A name, where it is, and how the directory is locked.
struct Side<'n> {
    dir: Ino,
    name: &'n [u8],
}

/// What came of one try.
enum Tried {
    Done,
    /// The names lead elsewhere by now.
    Again,
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
        let mut step = step;
        for _ in 0..RACES_MAX {
            match self.try_rename(ctx, step, &from, &to, mode)? {
                Tried::Done => return Ok(()),
                Tried::Again => step = self.step_of(ctx),
            }
        }
        Err(FsError::Busy)
    }

    fn try_rename<'c>(
        self: &'c Arc<Core>,
        ctx: &Ctx,
        mut step: Step<'c>,
        from: &Side<'_>,
        to: &Side<'_>,
        mode: RenameMode,
    ) -> Result<Tried> {
        let (from_dir, to_dir) = (self.dir(from.dir)?, self.dir(to.dir)?);
        // Who lacks the source hears so before anything is said of the target.
        let searched = |dir: &Held| {
            let state = dir.read().map_err(missing)?;
            super::is_dir(&state)?;
            match ctx.check {
                true => posix::may_search(&self.attr(dir, &state), &ctx.cred),
                false => Ok(()),
            }
        };
        searched(&from_dir)?;
        let source = self.find(from.dir, from.name)?.ok_or(FsError::NotFound)?;
        searched(&to_dir)?;
        let seen = [Some(source), self.find(to.dir, to.name)?];
        let is_dir = |edge: &Edge| edge.kind == ferrite_vfs::FileKind::Directory;
        let moves_dirs = seen.iter().flatten().any(is_dir);
        let crosses = from.dir != to.dir;
        let _still = match () {
            () if !crosses => Still::Nothing,
            () if moves_dirs => Still::Directories {
                _guard: self.renames.write(),
            },
            () => Still::Files {
                _guard: self.renames.read(),
            },
        };
        if crosses && is_dir(&source) && self.is_below(to.dir, source.ino)? {
            // What is refused for other reasons is refused for those first.
            self.check_early(ctx, &from_dir, &to_dir, seen, mode)?;
            return Err(FsError::Invalid(BadArgument::BelowItself));
        }
        if let Some(target) = seen[1].filter(|target| crosses && is_dir(target) && target.ino != source.ino)
            && self.is_below(from.dir, target.ino)?
        {
            self.check_early(ctx, &from_dir, &to_dir, seen, mode)?;
            return Err(match mode {
                RenameMode::Exchange => FsError::Invalid(BadArgument::BelowItself),
                _ if !is_dir(&source) => FsError::IsDirectory,
                _ => FsError::NotEmpty,
            });
        }
        let first_is_from = !crosses || self.comes_first(from.dir, to.dir)?;
        let (first, second) = match first_is_from {
            true => (&from_dir, &to_dir),
            false => (&to_dir, &from_dir),
        };
        // Links of directories change when one crosses, or when one goes.
        let mut first_state = dir_state(first, moves_dirs)?;
        let mut second_state = match crosses {
            true => Some(dir_state(second, moves_dirs)?),
            false => None,
        };
        is_live_dir(&first_state)?;
        if let Some(state) = &second_state {
            is_live_dir(state)?;
        }
        // Names by the order of their keys.
        let from_is_first = (from.dir, from.name) <= (to.dir, to.name);
        let mut slots: [Option<Slot>; 2] = [None, None];
        for at_from in [from_is_first, !from_is_first] {
            let side = if at_from { from } else { to };
            slots[usize::from(!at_from)] = Some(self.lock_name(&mut step, side.dir, side.name)?);
        }
        let [Some(from_slot), Some(to_slot)] = slots else {
            return Err(FsError::Busy);
        };
        if [from_slot.found, to_slot.found] != seen {
            return Ok(Tried::Again);
        }
        match (mode, seen[1]) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (_, Some(target)) if target.ino == source.ino => {
                step.commit(|| Outcome::Done)?;
                return Ok(Tried::Done);
            }
            _ => {}
        }
        // What the names lead to: a directory of the two is neither of the parents, that was refused above.
        let moved = self
            .hold(source.ino)
            .map_err(|error| self.dangling(from.dir, source.ino, error))?;
        let victim = match seen[1] {
            Some(target) => Some(
                self.hold(target.ino)
                    .map_err(|error| self.dangling(to.dir, target.ino, error))?,
            ),
            None => None,
        };
        let mut moved_state = None;
        let mut victim_state = None;
        if victim.as_ref().is_none_or(|victim| moved.ino < victim.ino) {
            moved_state = Some(moved.write()?);
        }
        if let Some(victim) = &victim {
            victim_state = Some(victim.write()?);
        }
        let mut moved_state = match moved_state {
            Some(state) => state,
            None => moved.write()?,
        };
        let (from_state, to_state) = match (&second_state, first_is_from) {
            (None, _) => (&first_state, &first_state),
            (Some(second), true) => (&first_state, second),
            (Some(second), false) => (second, &first_state),
        };
        let (from_attr, to_attr) = (self.attr(&from_dir, from_state), self.attr(&to_dir, to_state));
        if ctx.check {
            let moved_attr = self.attr(&moved, &moved_state);
            let victim_attr = match (&victim, &victim_state) {
                (Some(victim), Some(state)) => Some(self.attr(victim, state)),
                _ => None,
            };
            let from = posix::RenameSide {
                dir: &from_attr,
                entry: Some(&moved_attr),
            };
            let to = posix::RenameSide {
                dir: &to_attr,
                entry: victim_attr.as_ref(),
            };
            posix::may_rename(from, to, &ctx.cred, mode)?;
        }
        let source_is_dir = moved_state.node.is_dir();
        let target_is_dir = victim_state.as_ref().is_some_and(|state| state.node.is_dir());
        if let (Some(victim), Some(_)) = (&victim, &victim_state)
            && mode != RenameMode::Exchange
        {
            match () {
                () if source_is_dir && !target_is_dir => return Err(FsError::NotDirectory),
                () if !source_is_dir && target_is_dir => return Err(FsError::IsDirectory),
                () if target_is_dir && !self.is_empty(victim.ino)? => return Err(FsError::NotEmpty),
                () => {}
            }
        }
        let exchanges = mode == RenameMode::Exchange;
        // Subdirectories that each of the two gains.
        let gains = |comes: bool, goes: bool| i64::from(comes) - i64::from(goes);
        let to_gains = gains(source_is_dir, target_is_dir);
        let from_gains = gains(exchanges && target_is_dir, source_is_dir);
        if crosses && (to_gains > 0 && to_attr.nlink >= LINK_MAX || from_gains > 0 && from_attr.nlink >= LINK_MAX) {
            return Err(FsError::TooManyLinks);
        }
        let nlink =
            |attr: &ferrite_vfs::Attr, gains: i64| (gains != 0).then(|| (i64::from(attr.nlink) + gains).max(0) as u32);
        let now = self.now();
        let (from_nlink, to_nlink) = match crosses {
            true => (nlink(&from_attr, from_gains), nlink(&to_attr, to_gains)),
            false => (nlink(&from_attr, from_gains + to_gains), None),
        };

        // Edges: the old name first, so that a name that is exchanged is put last.
        let moved_node = self.moved(&moved, &moved_state, to, now);
        let mut lost = None;
        let mut back = None;
        match (&victim, &victim_state) {
            (Some(victim), Some(state)) if exchanges => {
                let node = self.moved(victim, state, from, now);
                self.put_edge(&mut step, from.dir, from.name, from_slot, &Edge::to(victim.ino, &node))?;
                back = Some(node);
            }
            (Some(victim), Some(state)) => {
                self.delete_edge(&mut step, from.dir, from.name, &from_slot)?;
                if target_is_dir {
                    self.delete_places(&mut step, victim.ino)?;
                }
                lost = Some(self.lose_name(&mut step, victim, state, now)?);
            }
            _ => self.delete_edge(&mut step, from.dir, from.name, &from_slot)?,
        }
        self.put_edge(&mut step, to.dir, to.name, to_slot, &Edge::to(moved.ino, &moved_node))?;
        let from_touch = self.touch(&mut step, &from_dir, from_state, from_nlink)?;
        let to_touch = match crosses {
            true => Some(self.touch(&mut step, &to_dir, to_state, to_nlink)?),
            false => None,
        };
        step.txn.put(&key::node(moved.ino), &moved_node.encode())?;
        if let (Some(victim), Some(node)) = (&victim, &back) {
            step.txn.put(&key::node(victim.ino), &node.encode())?;
        }
        step.commit(|| Outcome::Done)?;

        self.names_lost.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        from_touch.done(&from_dir);
        if let Some(touch) = to_touch {
            touch.done(&to_dir);
        }
        let (of_first, of_second) = match first_is_from {
            true => (from_nlink, to_nlink),
            false => (to_nlink, from_nlink),
        };
        if let Some(nlink) = of_first {
            first_state.set_nlink(nlink);
        }
        if let (Some(nlink), Some(state)) = (of_second, &mut second_state) {
            state.set_nlink(nlink);
        }
        moved.adopt(&mut moved_state, moved_node);
        if let (Some(victim), Some(mut state)) = (&victim, victim_state) {
            match (lost, back) {
                (Some(lost), _) => self.lost_name(victim, &mut state, lost),
                (None, Some(node)) => victim.adopt(&mut state, node),
                (None, None) => {}
            }
        }
        Ok(Tried::Done)
    }

    /// What is refused before the question which directory is below which.
    fn check_early(
        self: &Arc<Core>,
        ctx: &Ctx,
        from: &Held,
        to: &Held,
        seen: [Option<Edge>; 2],
        mode: RenameMode,
    ) -> Result<()> {
        let attr = |held: &Held| held.read().map(|state| self.attr(held, &state)).map_err(missing);
        for dir in [from, to] {
            is_live_dir(&*dir.read().map_err(missing)?)?;
        }
        match (mode, seen[1]) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            _ => {}
        }
        if ctx.check {
            let of = |edge: Edge| self.hold(edge.ino).map_err(missing).and_then(|held| attr(&held));
            let [source, target] = [seen[0].map(of).transpose()?, seen[1].map(of).transpose()?];
            let (from, to) = (attr(from)?, attr(to)?);
            let from = posix::RenameSide {
                dir: &from,
                entry: source.as_ref(),
            };
            let to = posix::RenameSide {
                dir: &to,
                entry: target.as_ref(),
            };
            posix::may_rename(from, to, &ctx.cred, mode)?;
        }
        Ok(())
    }

    /// An inode at its new name.
    fn moved(&self, inode: &Held, state: &State, to: &Side<'_>, now: ferrite_vfs::Timestamp) -> Node {
        let mut node = inode.present(state);
        (node.ctime, node.change) = (now, self.next_change());
        if node.is_dir() {
            node.parent = to.dir;
            node.content = Content::Inline(to.name.to_vec());
        }
        node
    }

    /// Whether `dir` is `above`, or below it. Nobody moves directories meanwhile.
    fn is_below(self: &Arc<Core>, dir: Ino, above: Ino) -> Result<bool> {
        let mut at = dir;
        while at != above {
            if at == ROOT_INO {
                return Ok(false);
            }
            at = self.hold(at).map_err(missing)?.read().map_err(missing)?.node.parent;
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

fn dir_state(dir: &Held, alone: bool) -> Result<DirState<'_>> {
    Ok(match alone {
        true => DirState::Alone(dir.write().map_err(missing)?),
        false => DirState::Shared(dir.read().map_err(missing)?),
    })
}
