//! The check of nodes: links, places of directories, content.

use std::sync::Arc;

use ferrite_vfs::{Ino, ROOT_INO, Result};

use super::{Mend, Report, Seen, Top, has_no_blob};
use crate::FILE_BYTES_MAX;
use crate::content_store::{self, Blob, Error, Place};
use crate::core::Core;
use crate::format::key;
use crate::format::node::{Content, INLINE_BYTES_MAX, Node};
use crate::format::tail::Tail;

/// Judges each node by what else was seen.
pub(super) fn judge(core: &Core, report: &mut Report, seen: &Seen) -> Result<()> {
    if seen.nodes.get(&ROOT_INO).is_none_or(|root| !root.is_dir()) {
        report.found("there is no root directory", None);
    }
    // By number, so that two checks report the same.
    let mut inos: Vec<Ino> = seen.nodes.keys().copied().collect();
    inos.sort_unstable();
    for ino in inos {
        let Some(node) = seen.nodes.get(&ino) else { continue };
        names(report, seen, ino, node);
        if node.marks.in_snapshot && node.nlink > 0 && !seen.is_below_snapshots(ino) {
            let what = format!("inode {ino}: it says that it is in a snapshot, and is in none");
            report.found(what, Some(Mend::Release(ino)));
        }
        match &node.content {
            Content::Inline(bytes) => inline(report, ino, node, bytes),
            Content::Beside(beside) => super::small::node(report, ino, node, *beside),
            Content::Blob(place) => blob(core, report, seen, ino, node, *place),
        }
        if node.has_xattrs && core.meta.get(&key::xattrs(ino))?.is_none() {
            let way = Mend::Xattrs { ino, has: false };
            report.found(format!("inode {ino}: its extended attributes are missing"), Some(way));
        }
    }
    Ok(())
}

fn names(report: &mut Report, seen: &Seen, ino: Ino, node: &Node) {
    let names = seen.names.get(&ino).map_or(&[][..], |names| names);
    let is_orphan = seen.orphans.contains(&ino);
    if node.is_dir() {
        return dir(report, seen, ino, node);
    }
    let found = names.len() as u32;
    match (found, node.nlink, is_orphan) {
        (0, 0, true) => {}
        (0, _, _) => report.found(format!("inode {ino}: no name leads to it"), Some(Mend::Adopt(ino))),
        (found, nlink, false) if found == nlink => {}
        (found, nlink, is_orphan) => {
            if is_orphan {
                let way = Mend::Drop(key::orphan(ino).to_vec());
                report.found(
                    format!("inode {ino}: it has a name, and a record says it has none"),
                    Some(way),
                );
            }
            if found != nlink {
                let way = Mend::Links { ino, nlink: found };
                report.found(format!("inode {ino}: {found} names, the node says {nlink}"), Some(way));
            }
        }
    }
}

fn dir(report: &mut Report, seen: &Seen, ino: Ino, node: &Node) {
    let names = seen.names.get(&ino).map_or(&[][..], |names| names);
    let subdirs = seen.subdirs.get(&ino).copied().unwrap_or(0);
    let is_orphan = seen.orphans.contains(&ino) && names.is_empty() && node.nlink == 0;
    if is_orphan && (subdirs == 0 || node.marks.is_orphan_tree) {
        return;
    }
    let top = seen.top_of(ino);
    match names {
        [] if ino == ROOT_INO => {}
        [] => report.found(format!("directory {ino}: no name leads to it"), Some(Mend::Adopt(ino))),
        [name] => {
            let own = key::parts_of_edge(&name.key).map_or(&[][..], |(_, _, own)| own);
            if node.parent != name.parent || node.content != Content::Inline(own.to_vec()) {
                let way = Mend::Parent {
                    ino,
                    parent: name.parent,
                    name: own.to_vec(),
                };
                report.found(format!("directory {ino}: it is not where it says it is"), Some(way));
            }
            if top == Top::Unknown {
                let way = Mend::Unname {
                    parent: name.parent,
                    key: name.key.clone(),
                };
                report.found(format!("directory {ino}: it lies below itself"), Some(way));
            }
        }
        [_, others @ ..] => {
            for other in others {
                let way = Mend::Unname {
                    parent: other.parent,
                    key: other.key.clone(),
                };
                report.found(format!("directory {ino}: it has more than one name"), Some(way));
            }
        }
    }
    // In a tree that is being removed, links go first.
    if node.nlink != 2 + subdirs && top != Top::Orphan {
        let nlink = 2 + subdirs;
        report.found(
            format!(
                "directory {ino}: {subdirs} directories in it, the node has {} links",
                node.nlink
            ),
            Some(Mend::Links { ino, nlink }),
        );
    }
}

fn inline(report: &mut Report, ino: Ino, node: &Node, bytes: &[u8]) {
    if has_no_blob(node.kind) {
        return;
    }
    if bytes.len() > INLINE_BYTES_MAX || bytes.len() as u64 > node.size || node.size > FILE_BYTES_MAX {
        let what = format!("inode {ino}: {} bytes of content, a size of {}", bytes.len(), node.size);
        report.found(what, Some(Mend::Quarantine(ino)));
    }
}

/// The tail of a blob, unless it may be older than its node.
fn known_tail(blob: Arc<dyn Blob>) -> content_store::Result<Option<Vec<u8>>> {
    match blob.is_staged_elsewhere() {
        true => Ok(None),
        false => blob.tail().map(Some),
    }
}

fn blob(core: &Core, report: &mut Report, seen: &Seen, ino: Ino, node: &Node, place: Place) {
    let quarantine = Some(Mend::Quarantine(ino));
    if has_no_blob(node.kind) {
        return report.found(format!("inode {ino}: only files have blobs"), None);
    }
    if seen.missing.contains(&place.store) {
        // Reported once for the whole store.
        return;
    }
    if !seen.blobs.contains(&place) && !seen.unlisted.contains(&place.store) {
        return report.found(format!("inode {ino}: its {place} is missing"), quarantine);
    }
    if seen.older.contains(&place) {
        // Reported with the blobs.
        return;
    }
    let users = seen.users_of(place);
    if node.marks.is_shared && users.first() != Some(&ino) {
        // Looked at, and reported for each, with the first.
        return;
    }
    let tail = match core.content.open(place).and_then(known_tail) {
        Ok(Some(tail)) => tail,
        Ok(None) => return,
        Err(error) => {
            let what = match &error {
                Error::NotFound => "is gone".to_owned(),
                other => other.to_string(),
            };
            let may_mend = matches!(error, Error::NotFound | Error::Damaged(_));
            for &ino in users {
                let way = may_mend.then_some(Mend::Quarantine(ino));
                report.found(format!("inode {ino}: its {place}: {what}"), way);
            }
            return;
        }
    };
    if node.marks.is_shared {
        // Its tail is that of the file it was made for, maybe of none that is left.
        if node.size > FILE_BYTES_MAX {
            report.found(format!("inode {ino}: a size of {}", node.size), None);
        }
        return;
    }
    let Some(tail) = Tail::decode(&tail) else {
        let what = format!("inode {ino}: its blob does not know whose it is; its last bytes may be missing");
        return report.found(what, Some(Mend::Tail(ino)));
    };
    if tail.ino != ino {
        return report.found(
            format!("inode {ino}: its blob says that it is inode {}'s", tail.ino),
            quarantine,
        );
    }
    if tail.change > node.change && !seen.ahead.contains(&ino) {
        let what = format!("inode {ino}: its blob knows of a later change, and no record tells of it");
        report.found(what, None);
    }
    // Where both know of the same change, they know the same size.
    if !seen.ahead.contains(&ino) && tail.change == node.change && tail.size != node.size {
        let what = format!(
            "inode {ino}: it has {} bytes, its blob says {} for the same change",
            node.size, tail.size
        );
        report.found(what, Some(Mend::Unlike(ino)));
    }
    if node.size > FILE_BYTES_MAX || tail.size > FILE_BYTES_MAX {
        report.found(format!("inode {ino}: a size of {}", node.size.max(tail.size)), None);
    }
}
