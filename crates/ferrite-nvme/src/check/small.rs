//! The check of content beside nodes: each belongs to a node that records the same of it.
//!
//! Nodes and content are read in two scans. Where they disagree, both are read again until the node has stayed the same
//! meanwhile: then both come from one moment, and a disagreement counts.

use std::collections::HashSet;

use ferrite_vfs::{Ino, Result};

use super::{Mend, Report, Seen, has_no_blob};
use crate::FILE_BYTES_MAX;
use crate::core::Core;
use crate::format::key;
use crate::format::node::{Beside, Content, Node};

/// After this many attempts, the check skips a file that changes all the time.
const LOOKS_MAX: usize = 16;

/// Judges all content beside nodes.
pub(super) fn judge(core: &Core, report: &mut Report, seen: &Seen) -> Result<()> {
    let says = |ino: &Ino| match seen.nodes.get(ino).map(|node| &node.content) {
        Some(Content::Beside(beside)) => Some(*beside),
        _ => None,
    };
    let (mut sound, mut doubtful) = (HashSet::new(), Vec::new());
    core.each(b'S', |key, value| {
        report.bytes += (key.len() + value.len()) as u64;
        let Some(ino) = key::ino_of(key) else {
            let way = Some(Mend::Drop(key.to_vec()));
            return report.found("content whose key cannot be read", way);
        };
        match says(&ino) == Some(Beside::of(value)) {
            true => drop(sound.insert(ino)),
            false => doubtful.push(ino),
        }
    })?;
    let without = seen.nodes.keys().filter(|ino| says(ino).is_some());
    doubtful.extend(without.filter(|ino| !sound.contains(ino)));
    doubtful.sort_unstable();
    doubtful.dedup();
    for ino in doubtful {
        doubted(core, report, ino)?;
    }
    Ok(())
}

fn doubted(core: &Core, report: &mut Report, ino: Ino) -> Result<()> {
    for _ in 0..LOOKS_MAX {
        let value = core.meta.get(&key::node(ino))?;
        let content = core.meta.get(&key::small(ino))?;
        if core.meta.get(&key::node(ino))? != value {
            continue;
        }
        let node = value.as_deref().map(Node::decode);
        let is = content.as_deref().map(Beside::of);
        match (node.map(|node| node.map(|node| node.content)), is) {
            // It was reported, and its content may be whole.
            (Some(None), _) => {}
            (Some(Some(Content::Beside(says))), Some(is)) if says == is => {}
            (Some(Some(Content::Beside(says))), Some(is)) => {
                let (is, says) = (is.len_bytes, says.len_bytes);
                let what = format!("inode {ino}: its content of {is} bytes is not the {says} that its node tells of");
                report.found(what, Some(Mend::Keep(ino)));
            }
            (Some(Some(Content::Beside(_))), None) => {
                let way = Some(Mend::Quarantine(ino));
                report.found(format!("inode {ino}: its content is missing"), way);
            }
            (_, Some(_)) => {
                let way = Some(Mend::Drop(key::small(ino).to_vec()));
                report.found(format!("content of inode {ino}, whose node tells of none"), way);
            }
            (_, None) => {}
        }
        return Ok(());
    }
    Ok(())
}

/// Judges what a node records of content beside it.
pub(super) fn node(report: &mut Report, ino: Ino, node: &Node, beside: Beside) {
    if has_no_blob(node.kind) {
        return report.found(format!("inode {ino}: only files have content beside their nodes"), None);
    }
    let len = u64::from(beside.len_bytes);
    if len > node.size || node.size > FILE_BYTES_MAX {
        let what = format!("inode {ino}: {len} bytes of content, a size of {}", node.size);
        report.found(what, Some(Mend::Quarantine(ino)));
    }
}
