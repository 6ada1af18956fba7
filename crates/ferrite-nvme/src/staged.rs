//! Files with changes in a log that is not here: naming them, and giving the changes up.
//!
//! Used by `volume`, for pools whose content is in S3.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use ferrite_vfs::volume::human_bytes;
use ferrite_vfs::{Ino, Outcome, Result};

use crate::check::Finding;
use crate::content_store::{self, Blob, Place, StagedElsewhere};
use crate::core::Core;
use crate::format::key;
use crate::format::node::{Content, Edge, Node};
use crate::format::tail::Tail;

/// The bytes of a file, in words.
fn in_words(bytes: &[Range<u64>]) -> String {
    let parts: Vec<String> = bytes
        .iter()
        .map(|range| format!("{} to {}", human_bytes(range.start), human_bytes(range.end)))
        .collect();
    match parts.is_empty() {
        true => "attributes".into(),
        false => parts.join(", "),
    }
}

/// The files that have these blobs.
fn files_of(core: &Core, staged: &[StagedElsewhere]) -> Result<HashMap<Place, Vec<Ino>>> {
    let mut files: HashMap<Place, Vec<Ino>> = staged.iter().map(|one| (one.place, Vec::new())).collect();
    core.each(b'N', |key, value| {
        let node = key::ino_of(key).zip(Node::decode(value));
        if let Some((ino, node)) = node
            && let Content::Blob(place) = node.content
            && let Some(inos) = files.get_mut(&place)
        {
            inos.push(ino);
        }
    })?;
    Ok(files)
}

/// A finding for each file.
///
/// # Errors
/// Errors of the metadata store.
pub(crate) fn findings(core: &Core, staged: &[StagedElsewhere]) -> Result<Vec<Finding>> {
    if staged.is_empty() {
        return Ok(Vec::new());
    }
    let files = files_of(core, staged)?;
    let mut names: HashMap<Ino, String> = files.values().flatten().map(|&ino| (ino, String::new())).collect();
    core.each(b'E', |key, value| {
        let edge = key::parts_of_edge(key).zip(Edge::decode(value));
        if let Some(((parent, _, name), edge)) = edge
            && let Some(known) = names.get_mut(&edge.ino)
        {
            *known = format!(" (directory {parent}, entry `{}`)", name.escape_ascii());
        }
    })?;
    let mut found = Vec::new();
    for one in staged {
        for ino in &files[&one.place] {
            let name = names.get(ino).map_or("", String::as_str);
            found.push(Finding::of_staged(format!(
                "inode {ino}{name}: changes of {} are staged on {}, which is lost or away; they cannot be read, and the \
                 file cannot be changed",
                in_words(&one.bytes),
                one.log
            )));
        }
    }
    Ok(found)
}

/// Gives the changes up: the files are as the content store has them. Returns how many files there are. Nobody uses
/// the pool meanwhile, and it is closed next.
///
/// A node may know of a length that no content has, so each file gets its length. For a crash at any time: the blob's
/// tail with this length, as a later change than the node's, becomes durable in one step with the end of its record;
/// after it, the node is behind its blob, as after any crash, and a record says so already.
///
/// # Errors
/// Errors of the stores; the next call continues.
pub(crate) fn give_up(
    core: &Core,
    staged: &[StagedElsewhere],
    unlock: impl Fn(Place) -> content_store::Result<Arc<dyn Blob>>,
) -> Result<u64> {
    let mut count = 0;
    for (place, inos) in files_of(core, staged)? {
        let blob = match unlock(place) {
            Ok(blob) => blob,
            // The record of a blob that is gone, or that a repair removes.
            Err(content_store::Error::NotFound | content_store::Error::Damaged(_)) => continue,
            Err(error) => return Err(error.into()),
        };
        let tail = Tail::decode(&blob.tail()?);
        for ino in inos {
            count += 1;
            let key = key::node(ino);
            let node = core.meta.get(&key)?.and_then(|value| Node::decode(&value));
            let Some(mut node) = node else { continue };
            let own = tail.filter(|tail| tail.ino == ino && !node.marks.is_shared);
            match own {
                Some(tail) if tail.change > node.change => tail.update(&mut node),
                Some(tail) => node.size = node.size.min(tail.size),
                // Its tail is that of another file, or of none yet.
                None => node.size = node.size.min(blob.valid_len()),
            }
            node.change += 1;
            let mut step = core.own_step()?;
            if !node.marks.is_shared {
                // The record that it may be ahead of its node comes first.
                step.txn.put(&key::ahead(ino), b"")?;
                step.commit(|| Outcome::Done)?;
                blob.truncate(node.size, Some(&Tail::of(ino, &node).encode()))?;
                blob.sync()?;
                step = core.own_step()?;
                step.txn.delete(&key::ahead(ino))?;
            }
            node.allocated_bytes = blob.allocated_bytes();
            step.put_node(ino, &node)?;
            step.commit(|| Outcome::Done)?;
        }
    }
    Ok(count)
}
