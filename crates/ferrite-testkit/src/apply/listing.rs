//! Listings, whole and in parts with changes in between.
//!
//! Invariant checked here: an entry that exists throughout a listing comes exactly once. Names that any operation of
//! the runner touched meanwhile may come any number of times.

use std::collections::{BTreeMap, BTreeSet};

use ferrite_vfs::{FileKind, FsError, Ino, SYSTEM};

use super::{Outcome, Runner, Step, Stop};
use crate::ops::{Op, Path, SNAPSHOTS};

/// A listing in progress, and the names that may change during it.
pub(super) struct Listing {
    pub(super) dir: Ino,
    cookie: u64,
    at_start: BTreeMap<Vec<u8>, FileKind>,
    pub(super) touched: BTreeSet<Vec<u8>>,
    seen: BTreeSet<Vec<u8>>,
    /// It is of a part of a snapshot that was removed: entries go when the engine has time for that.
    is_going: bool,
}

impl Runner<'_> {
    /// Takes note of an operation that is not applied, because another engine has refused it: its names count as
    /// touched, there and here.
    pub fn skip(&mut self, op: &Op) {
        let names = match op {
            Op::Mknod { path, .. } | Op::Mkdir { path, .. } | Op::Symlink { path, .. } => vec![path],
            Op::Unlink { path } | Op::Rmdir { path } => vec![path],
            Op::Link { to, .. } | Op::CloneTree { to, .. } | Op::LinkOpen { to, .. } => vec![to],
            Op::Rename { from, to, .. } => vec![from, to],
            _ => return,
        };
        for path in names {
            if let Ok((dir, name)) = self.split(path) {
                self.touch(dir, &name);
            }
        }
    }

    /// Removes a directory. With a snapshot, all that is below it goes.
    pub(super) fn rmdir(&mut self, path: &Path) -> Step<Outcome> {
        let going = match path.0[..] {
            [.., SNAPSHOTS, _] => self.listed_below(path),
            _ => Vec::new(),
        };
        let done = self.change_name(path, |fs, dir, name| fs.rmdir(SYSTEM, dir, name))?;
        for slot in going {
            if let Some(listing) = &mut self.listings[slot] {
                listing.is_going = true;
            }
        }
        Ok(done)
    }

    /// The listings in progress of directories at or below a path.
    fn listed_below(&self, path: &Path) -> Vec<usize> {
        let mut below = BTreeSet::new();
        let mut dirs: Vec<Ino> = self.resolve(path).ok().map(|attr| attr.ino).into_iter().collect();
        while let Some(dir) = dirs.pop() {
            if below.insert(dir) {
                // Whatever is no directory, or cannot be listed, has no listing in progress.
                let _ = self.fs.readdir(SYSTEM, dir, 0, &mut |entry| {
                    dirs.extend((entry.kind == FileKind::Directory).then_some(entry.ino));
                    true
                });
            }
        }
        let listings = self.listings.iter().enumerate();
        let is_below = |listing: &Option<Listing>| listing.as_ref().is_some_and(|it| below.contains(&it.dir));
        listings.filter(|(_, it)| is_below(it)).map(|(slot, _)| slot).collect()
    }

    pub(super) fn list(&mut self, path: &Path) -> Step<Outcome> {
        let dir = self.resolve(path)?.ino;
        let mut entries = Vec::new();
        self.fs.readdir(SYSTEM, dir, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.kind, entry.ino));
            true
        })?;
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        for pair in entries.windows(2) {
            demand!(pair[0].0 != pair[1].0, "{} is listed twice", pair[0].0.escape_ascii());
        }
        for (name, kind, ino) in &entries {
            let attr = self.fs.lookup(SYSTEM, dir, name)?;
            demand!(
                (attr.ino, attr.kind) == (*ino, *kind),
                "{} is listed as {kind:?} {ino}, looked up as {:?} {}",
                name.escape_ascii(),
                attr.kind,
                attr.ino
            );
        }
        Ok(Outcome::Entries(
            entries.into_iter().map(|(name, kind, _)| (name, kind)).collect(),
        ))
    }

    pub(super) fn begin_listing(&mut self, path: &Path, slot: u8) -> Step<Outcome> {
        self.end_listing(slot);
        let Outcome::Entries(entries) = self.list(path)? else {
            unreachable!("a list gives entries")
        };
        let dir = self.resolve(path)?;
        self.fs.pin(SYSTEM, dir.ino, dir.generation)?;
        self.listings[slot as usize] = Some(Listing {
            dir: dir.ino,
            cookie: 0,
            at_start: entries.into_iter().collect(),
            touched: BTreeSet::new(),
            seen: BTreeSet::new(),
            is_going: false,
        });
        Ok(Outcome::Done)
    }

    pub(super) fn continue_listing(&mut self, slot: u8, count: usize) -> Step<Outcome> {
        let Some(listing) = &mut self.listings[slot as usize] else {
            return Ok(Outcome::Skipped);
        };
        let mut broken = None;
        let mut taken = 0;
        let result = self.fs.readdir(SYSTEM, listing.dir, listing.cookie, &mut |entry| {
            if taken == count {
                return false;
            }
            taken += 1;
            listing.cookie = entry.next_cookie;
            let fresh = listing.seen.insert(entry.name.to_vec());
            if !listing.is_going && !listing.touched.contains(entry.name) {
                let known = listing.at_start.get(entry.name) == Some(&entry.kind);
                if !fresh || !known {
                    let what = if fresh { "was not there" } else { "came twice" };
                    broken = Some(format!(
                        "a listing in parts gave {}, which {what}",
                        entry.name.escape_ascii()
                    ));
                }
            }
            true
        });
        match result {
            Ok(()) => {}
            // The directory may have been removed meanwhile.
            Err(FsError::NotFound | FsError::Stale) if listing.is_going => {}
            Err(FsError::NotFound | FsError::Stale)
                if self.fs.getattr(SYSTEM, listing.dir).map_or(0, |a| a.nlink) == 0 => {}
            Err(error) => return Err(error.into()),
        }
        broken.map_or(Ok(Outcome::Done), |text| Err(Stop::Violation(text)))
    }

    pub(super) fn finish_listing(&mut self, slot: u8) -> Step<Outcome> {
        let outcome = self.continue_listing(slot, usize::MAX)?;
        let Some(listing) = self.end_listing(slot) else {
            return Ok(outcome);
        };
        let kept: Vec<_> = listing
            .at_start
            .into_iter()
            .filter(|(name, _)| !listing.is_going && !listing.touched.contains(name))
            .collect();
        for (name, _) in &kept {
            demand!(
                listing.seen.contains(name),
                "a listing in parts left out {}",
                name.escape_ascii()
            );
        }
        Ok(Outcome::Entries(kept))
    }

    pub(super) fn end_listing(&mut self, slot: u8) -> Option<Listing> {
        let listing = self.listings[slot as usize].take()?;
        self.fs.unpin(SYSTEM, listing.dir, 1);
        Some(listing)
    }
}
