//! Keys of the metadata store. The first byte gives the kind.

use ferrite_vfs::Ino;

use crate::content_store::{BlobName, Place, UniqueId};

/// The record of the pool.
pub(crate) const POOL: &[u8] = b"P";

fn numbered(kind: u8, number: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// A node: the attributes of an inode, and where its content is.
pub(crate) fn node(ino: Ino) -> [u8; 9] {
    numbered(b'N', ino)
}

/// The extended attributes of an inode.
pub(crate) fn xattrs(ino: Ino) -> [u8; 9] {
    numbered(b'A', ino)
}

/// The content of a file that is too long for its node and too short for a blob.
pub(crate) fn small(ino: Ino) -> [u8; 9] {
    numbered(b'S', ino)
}

/// An inode without a name that is still open.
pub(crate) fn orphan(ino: Ino) -> [u8; 9] {
    numbered(b'O', ino)
}

/// An inode whose blob may be ahead of its node.
pub(crate) fn ahead(ino: Ino) -> [u8; 9] {
    numbered(b'D', ino)
}

/// The last change that carried a token of this slot.
pub(crate) fn slot(slot: u32) -> [u8; 9] {
    numbered(b'T', slot.into())
}

/// A blob that no node names.
pub(crate) fn detached(place: Place) -> Vec<u8> {
    about(b'X', place)
}

/// How many nodes name a blob that may have several.
pub(crate) fn sharers(place: Place) -> Vec<u8> {
    about(b'R', place)
}

fn about(kind: u8, place: Place) -> Vec<u8> {
    let mut key = Vec::with_capacity(27);
    key.push(kind);
    key.extend_from_slice(&place.store.to_be_bytes());
    match place.name {
        BlobName::Local(id) => key.extend_from_slice(&id.raw().to_be_bytes()),
        BlobName::Unique(id) => {
            for number in [id.shard, id.epoch, id.number] {
                key.extend_from_slice(&number.to_be_bytes());
            }
        }
    }
    key
}

/// The blob that such a key names.
pub(crate) fn place_of(key: &[u8]) -> Option<Place> {
    let (store, name) = key.get(1..)?.split_first_chunk()?;
    let (numbers, rest) = name.as_chunks();
    let name = match (numbers, rest) {
        (&[id], []) => BlobName::Local(ferrite_blob::BlobId::from_raw(u64::from_be_bytes(id))),
        (&[shard, epoch, number], []) => BlobName::Unique(UniqueId {
            shard: u64::from_be_bytes(shard),
            epoch: u64::from_be_bytes(epoch),
            number: u64::from_be_bytes(number),
        }),
        _ => return None,
    };
    Some(Place {
        store: u16::from_be_bytes(*store),
        name,
    })
}

/// The inode that a key of a node, its content, an orphan or one that is ahead names.
pub(crate) fn ino_of(key: &[u8]) -> Option<Ino> {
    Some(u64::from_be_bytes(key.get(1..)?.try_into().ok()?))
}

/// All keys of a kind, for a scan.
pub(crate) fn all_of(kind: u8) -> ([u8; 1], [u8; 1]) {
    ([kind], [kind + 1])
}

/// The ranges of the keys that name inodes of these numbers.
pub(crate) fn all_about(numbers: std::ops::Range<Ino>) -> impl Iterator<Item = ([u8; 9], [u8; 9])> {
    let range = move |kind| (numbered(kind, numbers.start), numbered(kind, numbers.end));
    b"ACDENOS".iter().map(move |&kind| range(kind))
}

/// The lock of a place in a directory, and the key stored there once names have collided on it.
pub(crate) fn place_in(parent: Ino, cookie: u64) -> [u8; 17] {
    let mut key = [b'C'; 17];
    key[1..9].copy_from_slice(&parent.to_be_bytes());
    key[9..].copy_from_slice(&cookie.to_be_bytes());
    key
}

/// An edge: a name in a directory.
pub(crate) fn edge(parent: Ino, cookie: u64, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(17 + name.len());
    key.push(b'E');
    key.extend_from_slice(&parent.to_be_bytes());
    key.extend_from_slice(&cookie.to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// The edges of a directory from a cookie on, for a scan.
pub(crate) fn edges_from(parent: Ino, cookie: u64) -> (Vec<u8>, [u8; 9]) {
    (edge(parent, cookie, b""), numbered(b'E', parent + 1))
}

/// The keys of places of a directory, for a scan.
pub(crate) fn places_of(parent: Ino) -> ([u8; 9], [u8; 9]) {
    (numbered(b'C', parent), numbered(b'C', parent + 1))
}

/// The parts of an edge's key: directory, cookie, name.
pub(crate) fn parts_of_edge(key: &[u8]) -> Option<(Ino, u64, &[u8])> {
    let (parent, rest) = key.strip_prefix(b"E")?.split_first_chunk()?;
    let (cookie, name) = rest.split_first_chunk()?;
    Some((u64::from_be_bytes(*parent), u64::from_be_bytes(*cookie), name))
}
