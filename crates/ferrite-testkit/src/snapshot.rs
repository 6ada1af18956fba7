//! A whole tree as a value: the state that must be equal on two engines, and before and after a remount.
//!
//! Invariant: capturing changes nothing that a snapshot shows (files are read without touching `atime`), and
//! reads only through [`FileSystem`]. It is deliberately not shared with any engine's own tools.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

use ferrite_vfs::{FileKind, FileSystem, FsError, Ino, OpenMode, ROOT_INO, Result, SNAPSHOTS_NAME, SYSTEM};

use crate::apply::CanonAttr;

/// One inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its attributes.
    pub attr: CanonAttr,
    /// The first path (in order) of the same inode.
    pub first_path: Vec<u8>,
    /// Hashes of the 4 KiB pages that hold a byte other than zero.
    pub pages: BTreeMap<u64, u64>,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Hashes of the extended attributes' values, by name.
    pub xattrs: BTreeMap<Vec<u8>, u64>,
}

/// Every path of a tree and its inode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot(pub BTreeMap<Vec<u8>, Node>);

impl Snapshot {
    /// The tree below a path from the root, by the paths there. Without names elsewhere, so a clone of it is equal.
    ///
    /// # Errors
    /// As [`Self::capture`].
    pub fn below(fs: &dyn FileSystem, path: &str) -> Result<Snapshot> {
        let prefix = [b"/", path.as_bytes()].concat();
        let within = |path: &[u8]| {
            let rest = path.strip_prefix(&prefix[..])?;
            (rest.is_empty() || rest[0] == b'/').then(|| rest.to_vec())
        };
        let Snapshot(nodes) = Snapshot::capture(fs)?;
        let nodes = nodes.into_iter().filter_map(|(path, mut node)| {
            node.first_path = within(&node.first_path)?;
            Some((within(&path)?, node))
        });
        Ok(Snapshot(nodes.collect()))
    }

    /// Reads the whole tree, which must not change meanwhile.
    ///
    /// # Errors
    /// Any error of the engine; a sound file system returns none.
    pub fn capture(fs: &dyn FileSystem) -> Result<Snapshot> {
        let mut paths = BTreeMap::from([(b"/".to_vec(), ROOT_INO)]);
        let mut pending = vec![(Vec::new(), ROOT_INO)];
        while let Some((path, dir)) = pending.pop() {
            let mut entries = Vec::new();
            fs.readdir(SYSTEM, dir, 0, &mut |entry| {
                entries.push((entry.name.to_vec(), entry.kind, entry.ino));
                true
            })?;
            // Listings leave out the directory of snapshots.
            if let Ok(hidden) = fs.lookup(SYSTEM, dir, SNAPSHOTS_NAME)
                && !entries.iter().any(|(name, ..)| name == SNAPSHOTS_NAME)
            {
                entries.push((SNAPSHOTS_NAME.to_vec(), hidden.kind, hidden.ino));
            }
            for (name, kind, ino) in entries {
                let child = [&path[..], b"/", &name].concat();
                if kind == FileKind::Directory {
                    pending.push((child.clone(), ino));
                }
                if paths.insert(child.clone(), ino).is_some() {
                    return Err(FsError::damaged(
                        None,
                        format!("{} is listed twice", child.escape_ascii()),
                    ));
                }
            }
        }
        let mut first_paths: HashMap<Ino, Vec<u8>> = HashMap::new();
        let mut nodes = BTreeMap::new();
        let mut buffer = Vec::new();
        for (path, ino) in paths {
            let first_path = first_paths.entry(ino).or_insert_with(|| path.clone()).clone();
            let attr = fs.getattr(SYSTEM, ino)?;
            let mut xattrs = BTreeMap::new();
            for name in fs.listxattr(SYSTEM, ino)? {
                let value = fs.getxattr(SYSTEM, ino, &name)?;
                xattrs.insert(name, hash(&value));
            }
            // A second name of an inode is identified by `first_path`; its content is compared there.
            let pages = if attr.kind == FileKind::File && first_path == path {
                pages(fs, ino, &mut buffer)?
            } else {
                BTreeMap::new()
            };
            let target = if attr.kind == FileKind::Symlink {
                fs.readlink(SYSTEM, ino)?
            } else {
                Vec::new()
            };
            nodes.insert(
                path,
                Node {
                    attr: (&attr).into(),
                    first_path,
                    pages,
                    target,
                    xattrs,
                },
            );
        }
        Ok(Snapshot(nodes))
    }

    /// The first few differences as text, or None.
    pub fn difference(&self, other: &Snapshot, names: [&str; 2]) -> Option<String> {
        let mut lines = Vec::new();
        for path in self
            .0
            .keys()
            .chain(other.0.keys().filter(|path| !self.0.contains_key(*path)))
        {
            let (a, b) = (self.0.get(path), other.0.get(path));
            if a != b {
                let detail = match (a, b) {
                    (Some(a), Some(b)) => a.difference(b, names),
                    (Some(_), None) => format!("only in {}", names[0]),
                    _ => format!("only in {}", names[1]),
                };
                lines.push(format!("{}: {detail}", path.escape_ascii()));
            }
        }
        if lines.is_empty() {
            return None;
        }
        let more = lines.len().saturating_sub(5);
        lines.truncate(5);
        Some(format!("trees differ:\n  {}\n  ({more} more)", lines.join("\n  ")))
    }
}

impl Node {
    fn difference(&self, other: &Node, names: [&str; 2]) -> String {
        if self.attr != other.attr {
            return format!("{}: {:?}, {}: {:?}", names[0], self.attr, names[1], other.attr);
        }
        if self.pages != other.pages {
            let differs = |page: &&u64| self.pages.get(page) != other.pages.get(page);
            let page = self.pages.keys().chain(other.pages.keys()).filter(differs).min();
            return format!("content differs, first in page {page:?}");
        }
        if self.first_path != other.first_path {
            return "different hard links".into();
        }
        if self.target != other.target {
            "different link targets".into()
        } else {
            "different attributes (xattr)".into()
        }
    }
}

const PAGE: usize = 4096;
/// Pages that one call reads.
const PAGES_AT_ONCE: usize = 64;

/// The pages of a file. `buffer` is for reuse: most snapshots are of a few small files.
fn pages(fs: &dyn FileSystem, ino: Ino, buffer: &mut Vec<u8>) -> Result<BTreeMap<u64, u64>> {
    let file = fs.open(
        SYSTEM,
        ino,
        OpenMode {
            no_atime: true,
            ..OpenMode::read_only()
        },
    )?;
    let mut pages = BTreeMap::new();
    buffer.resize(PAGES_AT_ONCE * PAGE, 0);
    let mut at = 0;
    loop {
        at = match file.seek_data(SYSTEM, at) {
            Ok(data) => data.max(at) / PAGE as u64 * PAGE as u64,
            Err(FsError::NoSuchAddress) => return Ok(pages),
            Err(error) => return Err(error),
        };
        let count = file.read_at(SYSTEM, at, buffer)?;
        for (index, page) in buffer[..count].chunks(PAGE).enumerate() {
            // Zeros at the end must not distinguish a short page from a long one: the size is compared separately.
            let used = used(page);
            if used > 0 {
                pages.insert(at / PAGE as u64 + index as u64, hash(&page[..used]));
            }
        }
        if count == 0 {
            return Ok(pages);
        }
        at = (at / PAGE as u64 + (count as u64).div_ceil(PAGE as u64)) * PAGE as u64;
    }
}

/// The length of `page` without the zeros at its end.
fn used(page: &[u8]) -> usize {
    const ZEROS: [u8; PAGE] = [0; PAGE];
    // Comparing parts is far faster than looking at each byte.
    let mut end = page.len();
    for step in [PAGE, 256, 16, 1] {
        while end >= step && page[end - step..end] == ZEROS[..step] {
            end -= step;
        }
    }
    end
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_at_the_end_of_a_page_do_not_count() {
        for len in [1, 5, 256, 300, 4095, PAGE] {
            let mut page = vec![0; len];
            assert_eq!(used(&page), 0);
            for last in [0, len / 3, len / 2, len - 1] {
                page[last] = 1;
                assert_eq!(used(&page), last + 1, "{len}");
            }
        }
    }
}
