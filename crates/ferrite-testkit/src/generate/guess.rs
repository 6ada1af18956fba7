//! The generator's guess of the tree.
//!
//! Contents: [`Guess`], which follows operations as if each that makes sense succeeded. [`super`] alone uses it.

use std::collections::BTreeMap;

use ferrite_vfs::{FileKind, RenameMode};

use crate::ops::{Op, Path, SLOTS, SNAPSHOTS, Target};

/// The probable state of the tree.
#[derive(Debug, Default)]
pub(super) struct Guess {
    pub(super) nodes: BTreeMap<Path, FileKind>,
    /// Attributes set recently: where, and which.
    pub(super) xattrs: Vec<(Target, u8)>,
    pub(super) open: [bool; SLOTS as usize],
    pub(super) listing: [bool; SLOTS as usize],
    /// A slot with a file that may get its first name.
    pub(super) nameless: Option<u8>,
}

impl Guess {
    fn is_dir(&self, path: &Path) -> bool {
        path.0.is_empty() || self.nodes.get(path) == Some(&FileKind::Directory)
    }

    fn is_empty(&self, path: &Path) -> bool {
        !self
            .nodes
            .keys()
            .any(|other| other.0.len() > path.0.len() && other.0.starts_with(&path.0))
    }

    fn create(&mut self, path: &Path, kind: FileKind) {
        let parent = Path(path.0[..path.0.len().saturating_sub(1)].to_vec());
        if self.is_dir(&parent) && !self.nodes.contains_key(path) {
            self.nodes.insert(path.clone(), kind);
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        let parent = Path(to.0[..to.0.len().saturating_sub(1)].to_vec());
        if !self.nodes.contains_key(from) || !self.is_dir(&parent) || to.0.starts_with(&from.0) || !self.is_empty(to) {
            return;
        }
        let moved: Vec<_> = self
            .nodes
            .keys()
            .filter(|path| path.0.starts_with(&from.0))
            .cloned()
            .collect();
        for path in moved {
            let kind = self.nodes.remove(&path).unwrap_or(FileKind::File);
            self.nodes
                .insert(Path([&to.0[..], &path.0[from.0.len()..]].concat()), kind);
        }
    }

    fn clone_tree(&mut self, from: &Path, to: &Path) {
        let parent = Path(to.0[..to.0.len().saturating_sub(1)].to_vec());
        if self.nodes.contains_key(to) || !self.is_dir(&parent) {
            return;
        }
        let is_cloned = |path: &Path| path.0.starts_with(&from.0) && !path.0[from.0.len()..].contains(&SNAPSHOTS);
        let below: Vec<_> = self
            .nodes
            .iter()
            .filter(|(path, _)| is_cloned(path))
            .map(|(path, &kind)| (Path([&to.0[..], &path.0[from.0.len()..]].concat()), kind))
            .collect();
        self.nodes.extend(below);
    }

    fn snapshot(&mut self, dir: &Path, path: &Path) {
        if self.is_dir(&Path(path.0[..path.0.len() - 1].to_vec())) {
            self.clone_tree(dir, path);
            self.nodes.insert(path.clone(), FileKind::Directory);
        }
    }

    pub(super) fn follow(&mut self, op: &Op) {
        match op {
            Op::Mknod { path, node, .. } => self.create(path, node.kind),
            Op::Mkdir { path, .. } => match snapshot_of(path) {
                Some(dir) => self.snapshot(&dir, path),
                None => self.create(path, FileKind::Directory),
            },
            Op::Rmdir { path } if snapshot_of(path).is_some() => {
                self.nodes.retain(|other, _| !other.0.starts_with(&path.0));
            }
            Op::Symlink { path, .. } => self.create(path, FileKind::Symlink),
            Op::Link { from, to } => match self.nodes.get(from).copied() {
                Some(FileKind::Directory) | None => {}
                Some(kind) => self.create(to, kind),
            },
            Op::CloneTree { from, to } => self.clone_tree(from, to),
            Op::Unlink { path } if !self.is_dir(path) => drop(self.nodes.remove(path)),
            Op::Rmdir { path } if self.is_dir(path) && self.is_empty(path) => drop(self.nodes.remove(path)),
            Op::Rename {
                from,
                to,
                mode: RenameMode::Replace,
            } => self.rename(from, to),
            Op::Rename {
                from,
                to,
                mode: RenameMode::NoReplace,
            } if !self.nodes.contains_key(to) => self.rename(from, to),
            Op::Open { path, slot, .. } | Op::Pin { path, slot } => {
                self.open[*slot as usize] = self.nodes.contains_key(path);
            }
            Op::CreateNameless { slot, is_final, .. } => {
                self.open[*slot as usize] = true;
                self.nameless = (!is_final).then_some(*slot);
            }
            Op::LinkOpen { slot, to } if self.open[*slot as usize] => {
                self.create(to, FileKind::File);
                self.nameless = self.nameless.filter(|nameless| nameless != slot);
            }
            Op::Close { slot } => self.open[*slot as usize] = false,
            Op::Setxattr { on, name, .. } => {
                self.xattrs.truncate(8);
                self.xattrs.insert(0, (on.clone(), *name));
            }
            Op::ListBegin { slot, .. } => self.listing[*slot as usize] = true,
            Op::ListEnd { slot } => self.listing[*slot as usize] = false,
            _ => {}
        }
    }
}

/// The directory of which something with this path would be a snapshot.
fn snapshot_of(path: &Path) -> Option<Path> {
    match &path.0[..] {
        [dir @ .., SNAPSHOTS, _] => Some(Path(dir.to_vec())),
        _ => None,
    }
}
