//! Values: nodes (an inode's attributes, and where its content is) and edges (what a name leads to).
//!
//! A directory's mode and owner stand in its edge, too, so that a path is checked without reading nodes (RUFS, section
//! 2.2.1). Only directories have them there: a file can have several edges, a directory has one.

use ferrite_vfs::{Attr, FileKind, Ino, InodeFlags, Timestamp};

use super::Reader;
use crate::content_store::{BlobName, Place, UniqueId};

const VERSION: u8 = 1;

/// Longest content that a node holds itself.
pub(crate) const INLINE_BYTES_MAX: usize = 2048;

/// Where an inode's content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// Here: that of a small file (zeros follow, up to its size), the target of a link, or a directory's own name.
    Inline(Vec<u8>),
    /// In a blob.
    Blob(Place),
    /// Under a key of its own (zeros follow, up to the file's size).
    Beside(Beside),
}

impl Content {
    /// Length of what is stored without a blob.
    pub(crate) fn small_bytes(&self) -> u64 {
        match self {
            Content::Inline(bytes) => bytes.len() as u64,
            Content::Beside(beside) => beside.len_bytes.into(),
            Content::Blob(_) => 0,
        }
    }
}

/// A node's record of content under a key of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beside {
    pub(crate) len_bytes: u32,
    /// CRC-32C of all of it.
    pub(crate) crc: u32,
}

impl Beside {
    pub(crate) fn of(bytes: &[u8]) -> Beside {
        Beside {
            len_bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            crc: crc32c::crc32c(bytes),
        }
    }
}

/// The part that an inode has in clones and snapshots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Other nodes may name its blob, too, which stays as it is (`sharing`).
    pub(crate) is_shared: bool,
    /// A part of a snapshot, which does not change until the snapshot is removed as a whole.
    pub(crate) in_snapshot: bool,
    /// A directory whose entries are snapshots of its parent.
    pub(crate) holds_snapshots: bool,
    /// A directory without a name that has entries all the same: they are removed with it.
    pub(crate) is_orphan_tree: bool,
}

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) size: u64,
    /// Of its blob, as far as the node knows.
    pub(crate) allocated_bytes: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) btime: Timestamp,
    /// See [`Attr::change`].
    pub(crate) change: u64,
    /// Of a directory: the one that holds it.
    pub(crate) parent: Ino,
    pub(crate) has_xattrs: bool,
    /// It never had a name, and may get one.
    pub(crate) is_nameless: bool,
    pub(crate) marks: Marks,
    /// The directory of the quota that counts it; 0 for none.
    pub(crate) quota: Ino,
    pub(crate) flags: InodeFlags,
    pub(crate) content: Content,
}

/// Bits of the byte behind the version.
const HAS_XATTRS: u8 = 1;
const IS_NAMELESS: u8 = 2;
const IS_SHARED: u8 = 4;
const IN_SNAPSHOT: u8 = 8;
const HOLDS_SNAPSHOTS: u8 = 16;
const IS_ORPHAN_TREE: u8 = 32;
/// The quota that counts it follows the times.
const HAS_QUOTA: u8 = 64;
/// Flags that callers have set follow the quota.
const HAS_FLAGS: u8 = 128;

impl Node {
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Whether it is the directory of the quota that counts it.
    pub(crate) fn has_own_quota(&self, ino: Ino) -> bool {
        self.is_dir() && self.quota == ino
    }

    /// The quota of what is made in this directory. Snapshots count for none.
    pub(crate) fn inherited_quota(&self) -> Ino {
        match self.marks.in_snapshot || self.marks.holds_snapshots {
            true => 0,
            false => self.quota,
        }
    }

    /// Whether callers may not change it: it has a name, and is a part of a snapshot or has snapshots.
    pub(crate) fn is_kept_as_is(&self) -> bool {
        (self.marks.in_snapshot || self.marks.holds_snapshots) && self.nlink > 0
    }

    /// Attributes; inode numbers are never reused, so their generation is always 1.
    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        let small_bytes = match &self.content {
            Content::Inline(bytes) if self.kind == FileKind::File => bytes.len() as u64,
            Content::Beside(beside) => beside.len_bytes.into(),
            _ => 0,
        };
        Attr {
            ino,
            generation: 1,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: (self.allocated_bytes + small_bytes).div_ceil(512),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            change: self.change,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let flag = |bit, is_set| if is_set { bit } else { 0 };
        let marks = &self.marks;
        let flags = flag(HAS_XATTRS, self.has_xattrs)
            | flag(IS_NAMELESS, self.is_nameless)
            | flag(IS_SHARED, marks.is_shared)
            | flag(IN_SNAPSHOT, marks.in_snapshot)
            | flag(HOLDS_SNAPSHOTS, marks.holds_snapshots)
            | flag(IS_ORPHAN_TREE, marks.is_orphan_tree)
            | flag(HAS_QUOTA, self.quota != 0)
            | flag(HAS_FLAGS, self.flags != InodeFlags::NONE);
        let mut value = vec![VERSION, flags];
        for number in [
            self.kind.mode_bits() | self.mode,
            self.nlink,
            self.uid,
            self.gid,
            self.rdev,
        ] {
            value.extend_from_slice(&number.to_le_bytes());
        }
        let times = [self.atime, self.mtime, self.ctime, self.btime].map(|time| time.0 as u64);
        let numbers = [self.size, self.allocated_bytes, self.change, self.parent];
        for number in numbers.into_iter().chain(times) {
            value.extend_from_slice(&number.to_le_bytes());
        }
        if self.quota != 0 {
            value.extend_from_slice(&self.quota.to_le_bytes());
        }
        if self.flags != InodeFlags::NONE {
            value.push(self.flags.to_stored());
        }
        match &self.content {
            Content::Inline(bytes) => {
                value.push(0);
                value.extend_from_slice(bytes);
            }
            Content::Blob(place) => {
                value.push(match place.name {
                    BlobName::Local(_) => 1,
                    BlobName::Unique(_) => 3,
                });
                value.extend_from_slice(&place.store.to_le_bytes());
                match place.name {
                    BlobName::Local(id) => value.extend_from_slice(&id.raw().to_le_bytes()),
                    BlobName::Unique(id) => {
                        for number in [id.shard, id.epoch, id.number] {
                            value.extend_from_slice(&number.to_le_bytes());
                        }
                    }
                }
            }
            Content::Beside(beside) => {
                value.push(2);
                value.extend_from_slice(&beside.len_bytes.to_le_bytes());
                value.extend_from_slice(&beside.crc.to_le_bytes());
            }
        }
        value
    }

    /// `None`: it is damaged.
    pub(crate) fn decode(value: &[u8]) -> Option<Node> {
        let mut from = Reader(value);
        if from.u8()? != VERSION {
            return None;
        }
        let flags = from.u8()?;
        let has = |flag: u8| flags & flag != 0;
        let mode = from.u32()?;
        let mut node = Node {
            kind: FileKind::from_mode(mode)?,
            mode: mode & 0o7777,
            nlink: from.u32()?,
            uid: from.u32()?,
            gid: from.u32()?,
            rdev: from.u32()?,
            size: from.u64()?,
            allocated_bytes: from.u64()?,
            change: from.u64()?,
            parent: from.u64()?,
            atime: from.time()?,
            mtime: from.time()?,
            ctime: from.time()?,
            btime: from.time()?,
            has_xattrs: has(HAS_XATTRS),
            is_nameless: has(IS_NAMELESS),
            marks: Marks {
                is_shared: has(IS_SHARED),
                in_snapshot: has(IN_SNAPSHOT),
                holds_snapshots: has(HOLDS_SNAPSHOTS),
                is_orphan_tree: has(IS_ORPHAN_TREE),
            },
            quota: 0,
            flags: InodeFlags::NONE,
            content: Content::Inline(Vec::new()),
        };
        if has(HAS_QUOTA) {
            node.quota = from.u64()?;
        }
        if has(HAS_FLAGS) {
            node.flags = InodeFlags::from_stored(from.u8()?)?;
        }
        node.content = match from.u8()? {
            0 => Content::Inline(from.rest().to_vec()),
            1 => Content::Blob(Place {
                store: from.u16()?,
                name: BlobName::Local(ferrite_blob::BlobId::from_raw(from.u64()?)),
            }),
            2 => Content::Beside(Beside {
                len_bytes: from.u32()?,
                crc: from.u32()?,
            }),
            3 => Content::Blob(Place {
                store: from.u16()?,
                name: BlobName::Unique(UniqueId {
                    shard: from.u64()?,
                    epoch: from.u64()?,
                    number: from.u64()?,
                }),
            }),
            _ => return None,
        };
        Some(node)
    }
}

/// The target of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    /// Of a directory; 0 for anything else.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Edge {
    pub(crate) fn to(ino: Ino, node: &Node) -> Edge {
        let of_dir = |number: u32| if node.is_dir() { number } else { 0 };
        Edge {
            ino,
            kind: node.kind,
            mode: of_dir(node.mode),
            uid: of_dir(node.uid),
            gid: of_dir(node.gid),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = vec![VERSION];
        value.extend_from_slice(&self.ino.to_le_bytes());
        value.extend_from_slice(&(self.kind.mode_bits() | self.mode).to_le_bytes());
        if self.kind == FileKind::Directory {
            value.extend_from_slice(&self.uid.to_le_bytes());
            value.extend_from_slice(&self.gid.to_le_bytes());
        }
        value
    }

    /// `None`: it is damaged.
    pub(crate) fn decode(value: &[u8]) -> Option<Edge> {
        let mut from = Reader(value);
        if from.u8()? != VERSION {
            return None;
        }
        let (ino, mode) = (from.u64()?, from.u32()?);
        let kind = FileKind::from_mode(mode)?;
        let (uid, gid) = match kind {
            FileKind::Directory => (from.u32()?, from.u32()?),
            _ => (0, 0),
        };
        let edge = Edge {
            ino,
            kind,
            mode: mode & 0o7777,
            uid,
            gid,
        };
        from.rest().is_empty().then_some(edge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(content: Content) -> Node {
        Node {
            kind: FileKind::File,
            mode: 0o4755,
            nlink: 3,
            uid: 7,
            gid: 8,
            rdev: 9,
            size: 1 << 40,
            allocated_bytes: 4096,
            atime: Timestamp(-1),
            mtime: Timestamp(2),
            ctime: Timestamp(3),
            btime: Timestamp(4),
            change: 5 << 40,
            parent: 1,
            has_xattrs: true,
            is_nameless: true,
            marks: Marks {
                is_shared: true,
                holds_snapshots: true,
                ..Marks::default()
            },
            quota: 0,
            flags: InodeFlags::NONE,
            content,
        }
    }

    #[test]
    fn what_was_encoded_is_decoded_and_a_part_of_it_is_damage() {
        let place = |name| Place { store: 3, name };
        let blob = place(BlobName::Local(ferrite_blob::BlobId::from_raw(77 << 32 | 5)));
        let elsewhere = place(BlobName::Unique(UniqueId {
            shard: 1 << 63,
            epoch: 2,
            number: 3,
        }));
        let beside = Beside::of(&[7; 3000]);
        for content in [
            Content::Inline(b"content".to_vec()),
            Content::Blob(blob),
            Content::Blob(elsewhere),
            Content::Beside(beside),
        ] {
            for (quota, flags) in [(0, 0), (1 << 40, 0), (1 << 40, 5), (0, 15)] {
                let node = Node {
                    quota,
                    flags: InodeFlags::from_stored(flags).unwrap(),
                    ..node(content.clone())
                };
                let value = node.encode();
                assert_eq!(Node::decode(&value), Some(node));
                // Inline content may have any length.
                for len in 0..87 {
                    assert_eq!(Node::decode(&value[..len.min(value.len() - 8)]), None, "{len}");
                }
            }
        }
        let mut dir = node(Content::Inline(b"dir".to_vec()));
        dir.kind = FileKind::Directory;
        for node in [dir, node(Content::Inline(Vec::new()))] {
            let edge = Edge::to(12, &node);
            let value = edge.encode();
            assert_eq!(Edge::decode(&value), Some(edge));
            for len in 0..value.len() {
                assert_eq!(Edge::decode(&value[..len]), None);
            }
        }
    }
}
