//! The repair: it mends the findings of a check, each in a transaction of its own.
//!
//! Nothing is lost silently: inodes without a name get one in `lost+found` (`#INODE`), files whose content cannot be
//! right get one there that says so (`damaged-INODE`), and the report names every loss.
//!
//! Invariants: nothing else uses the engine meanwhile, so memory holds nothing that a repair changes. Each step can be
//! done again: a crash during a repair is followed by another repair, which finds what is left.

use std::ops::ControlFlow;
use std::sync::Arc;

use ferrite_meta::Lock;
use ferrite_vfs::{Cred, Ctx, FileKind, FsError, Ino, Outcome, ROOT_INO, Result};

use crate::check::{Finding, Mend, Report};
use crate::content_store::Place;
use crate::core::{Core, Step};
use crate::data::Shows;
use crate::format::key;
use crate::format::node::{Content, Edge, Marks, Node};
use crate::format::quota::QuotaRecord;
use crate::format::tail::Tail;
use crate::names::New;
use crate::rights;
use crate::sharing::encode_sharers;

/// Where inodes without a name go.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// A mend may uncover what another hid; no damage is that deep.
const PASSES_MAX: usize = 8;

/// The result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// The findings mended, in order.
    pub mended: Vec<Finding>,
    /// The check afterwards.
    pub after: Report,
}

impl Core {
    /// Mends what can be mended. Nothing else uses the engine.
    pub(crate) fn repair(self: &Arc<Core>, data: bool, show: Shows<'_>) -> Result<Repaired> {
        let mut check = || match data {
            true => self.check_with_data(None, show),
            false => self.check(),
        };
        let mut repaired = Repaired {
            after: check()?,
            ..Repaired::default()
        };
        for _ in 0..PASSES_MAX {
            let found = std::mem::take(&mut repaired.after.findings);
            let mendable: Vec<Finding> = found.into_iter().filter(|finding| finding.way.is_some()).collect();
            for finding in &mendable {
                if let Some(way) = &finding.way {
                    self.mend(way)?;
                }
            }
            self.table.forget_resting();
            self.load_quotas(false)?;
            let is_done = mendable.is_empty();
            repaired.mended.extend(mendable);
            repaired.after = check()?;
            if is_done {
                break;
            }
        }
        self.table.forget_resting();
        self.count_inodes()?;
        self.content.sync()?;
        Ok(repaired)
    }

    fn mend(self: &Arc<Core>, way: &Mend) -> Result<()> {
        // The previous pass may have changed nodes of directories that rest.
        self.table.forget_resting();
        match way {
            Mend::Adopt(ino) => return self.adopt_lost(*ino, format!("#{ino}").as_bytes()),
            Mend::Quarantine(ino) => return self.quarantine(*ino, false),
            Mend::Keep(ino) => {
                self.quarantine(*ino, true)?;
                return self.keep_small(*ino);
            }
            Mend::Accept { ino, place, damaged } => {
                // It has the name first: no program mistakes it for the original.
                self.quarantine(*ino, true)?;
                let blob = self.content.open(*place)?;
                return Ok(damaged.iter().try_for_each(|bytes| blob.accept(bytes.clone()))?);
            }
            Mend::Untangle(ino, place) => {
                self.quarantine(*ino, true)?;
                self.content.accept_older(*place)?;
                return Ok(self.content.untangle(*place)?);
            }
            Mend::Older(ino, place) => {
                self.quarantine(*ino, true)?;
                self.content.accept_older(*place)?;
                return self.agree(*ino);
            }
            Mend::Unlike(ino) => {
                self.quarantine(*ino, true)?;
                return self.agree(*ino);
            }
            Mend::Found(place) => return self.adopt_blob(*place),
            Mend::Number(ino) => return self.give_number(*ino),
            // Every pass does, at its end.
            Mend::Recount => return Ok(()),
            Mend::Tail(ino) => return self.tell_blob(*ino),
            Mend::Store(number) => return Ok(self.content.mend(*number)?),
            _ => {}
        }
        self.mend_in_one_step(way)
    }

    /// The same for what takes one step of the metadata.
    fn mend_in_one_step(&self, way: &Mend) -> Result<()> {
        let mut step = self.own_step()?;
        match way {
            Mend::Drop(key) | Mend::Unname { key, .. } => step.txn.delete(key)?,
            Mend::Edge { key, edge } => step.txn.put(key, &edge.encode())?,
            Mend::Links { ino, nlink } => change_node(&mut step, *ino, |node| node.nlink = *nlink)?,
            Mend::Parent { ino, parent, name } => change_node(&mut step, *ino, |node| {
                node.parent = *parent;
                node.content = Content::Inline(name.clone());
            })?,
            Mend::Xattrs { ino, has } => change_node(&mut step, *ino, |node| node.has_xattrs = *has)?,
            Mend::Detach(place) => step.txn.put(&key::detached(*place), b"")?,
            Mend::Attach(place) => step.txn.delete(&key::detached(*place))?,
            Mend::Release(ino) => change_node(&mut step, *ino, |node| node.marks.in_snapshot = false)?,
            Mend::Quota { ino, quota } => change_node(&mut step, *ino, |node| node.quota = *quota)?,
            Mend::Limits(dir) => step.txn.put(&key::quota(*dir), &QuotaRecord::default().encode())?,
            Mend::UserQuotas => drop_user_quotas(&mut step)?,
            Mend::Sharers { place, count } => step.txn.put(&key::sharers(*place), &encode_sharers(*count))?,
            Mend::Adopt(_)
            | Mend::Quarantine(_)
            | Mend::Keep(_)
            | Mend::Accept { .. }
            | Mend::Untangle(..)
            | Mend::Found(_)
            | Mend::Older(..)
            | Mend::Unlike(_)
            | Mend::Number(_)
            | Mend::Recount
            | Mend::Tail(_)
            | Mend::Store(_) => {}
        }
        step.commit(|| Outcome::Done)?;
        match way {
            Mend::Detach(place) => self.delete_blobs(&[*place]),
            _ => Ok(()),
        }
    }

    fn tell_blob(&self, ino: Ino) -> Result<()> {
        let node = node_of(&mut self.own_step()?, ino)?;
        match node.content {
            Content::Blob(place) => Ok(self.content.open(place)?.set_tail(&Tail::of(ino, &node).encode())?),
            Content::Inline(_) | Content::Beside(_) => Ok(()),
        }
    }

    /// Makes a node record the content beside it.
    fn keep_small(&self, ino: Ino) -> Result<()> {
        let mut step = self.own_step()?;
        let mut node = node_of(&mut step, ino)?;
        let mut bytes = step
            .txn
            .get_for_update(&key::small(ino), Lock::Exclusive)?
            .unwrap_or_default();
        bytes.truncate(usize::try_from(node.size).unwrap_or(usize::MAX));
        node.content = self.put_small(&mut step, ino, &node.content, bytes)?;
        step.put_node(ino, &node)?;
        step.commit(|| Outcome::Done)
    }

    pub(crate) fn lost_and_found(self: &Arc<Core>) -> Result<Ino> {
        if let Some(edge) = self.find(ROOT_INO, LOST_AND_FOUND)? {
            return match edge.kind {
                FileKind::Directory => Ok(edge.ino),
                _ => Err(FsError::damaged(
                    ROOT_INO,
                    "lost+found is not a directory; give it another name",
                )),
            };
        }
        let ctx = Ctx::trusted(Cred::root());
        let new = New::of(FileKind::Directory, 0o700);
        let (_, attr) = self.make(&ctx, self.own_step()?, ROOT_INO, LOST_AND_FOUND, &new, Outcome::Attr)?;
        Ok(attr.ino)
    }

    /// Gives an inode its only name, in lost+found.
    fn adopt_lost(self: &Arc<Core>, ino: Ino, name: &[u8]) -> Result<()> {
        let dir = self.lost_and_found()?;
        let mut step = self.own_step()?;
        self.put_lost(&mut step, dir, ino, name)?;
        step.commit(|| Outcome::Done)
    }

    pub(crate) fn put_lost(&self, step: &mut Step<'_>, dir: Ino, ino: Ino, name: &[u8]) -> Result<()> {
        let slot = self.lock_name(step, dir, name)?;
        let mut node = node_of(step, ino)?;
        if !node.has_own_quota(ino) {
            node.quota = node_of(step, dir)?.inherited_quota();
        }
        let is_shared = node.marks.is_shared;
        node.marks = Marks {
            is_shared,
            ..Marks::default()
        };
        if node.is_dir() {
            node.parent = dir;
            node.content = Content::Inline(name.to_vec());
            change_node(step, dir, |dir| dir.nlink += 1)?;
        } else {
            node.nlink = 1;
        }
        self.put_edge(step, dir, name, slot, &Edge::to(ino, &node))?;
        step.put_node(ino, &node)?;
        Ok(step.txn.delete(&key::orphan(ino))?)
    }

    /// Takes a file's names from it, and its content, unless it `keeps` that; gives it a name that says so.
    fn quarantine(self: &Arc<Core>, ino: Ino, keeps: bool) -> Result<()> {
        let dir = self.lost_and_found()?;
        let (from, to) = key::all_of(b'E');
        let mut names = Vec::new();
        self.meta.scan(&from, &to, &mut |key, value| {
            if Edge::decode(value).is_some_and(|edge| edge.ino == ino) {
                names.push(key.to_vec());
            }
            ControlFlow::Continue(())
        })?;
        let mut step = self.own_step()?;
        for name in names {
            step.txn.delete(&name)?;
        }
        let mut place: Option<Place> = None;
        if !keeps {
            change_node(&mut step, ino, |node| {
                if let Content::Blob(blob) = node.content {
                    place = Some(blob);
                }
                node.content = Content::Inline(Vec::new());
                node.marks.is_shared = false;
                (node.size, node.allocated_bytes) = (0, 0);
            })?;
            step.txn.delete(&key::ahead(ino))?;
            step.txn.delete(&key::small(ino))?;
        }
        self.put_lost(&mut step, dir, ino, format!("damaged-{ino}").as_bytes())?;
        step.commit(|| Outcome::Done)?;
        if !keeps {
            let blob = place.map_or_else(|| "no blob".to_owned(), |place| place.to_string());
            tracing::warn!(ino, blob, "a file has lost its content");
        }
        Ok(())
    }
}

/// A node as the step sees it.
pub(crate) fn node_of(step: &mut Step<'_>, ino: Ino) -> Result<Node> {
    let value = step.txn.get_for_update(&key::node(ino), Lock::Exclusive)?;
    value
        .and_then(|value| Node::decode(&value))
        .ok_or_else(|| FsError::damaged(ino, "its node cannot be read"))
}

fn drop_user_quotas(step: &mut Step<'_>) -> Result<()> {
    let key = key::xattrs(ROOT_INO);
    let value = step.txn.get_for_update(&key, Lock::Exclusive)?.unwrap_or_default();
    match rights::without_user_quotas(&value).filter(|left| !left.is_empty()) {
        Some(left) => step.txn.put(&key, &left)?,
        None => {
            step.txn.delete(&key)?;
            change_node(step, ROOT_INO, |node| node.has_xattrs = false)?;
        }
    }
    Ok(())
}

fn change_node(step: &mut Step<'_>, ino: Ino, change: impl FnOnce(&mut Node)) -> Result<()> {
    let mut node = node_of(step, ino)?;
    change(&mut node);
    step.put_node(ino, &node)
}
