//! Keys of the metadata store. The first byte gives the kind.

#[cfg(feature = "s3")]
use ferrite_slices::SliceId;
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

/// The quota of a directory.
pub(crate) fn quota(dir: Ino) -> [u8; 9] {
    numbered(b'Q', dir)
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

/// The row of a blob whose content is in slices.
#[cfg(feature = "s3")]
pub(crate) fn blob(place: Place) -> Vec<u8> {
    about(b'L', place)
}

/// A chunk of such a blob: which bytes lie in which slices.
#[cfg(feature = "s3")]
pub(crate) fn chunk(place: Place, chunk: u64) -> Vec<u8> {
    let mut key = blob(place);
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

/// The keys of a blob and of its chunks, for a scan.
#[cfg(feature = "s3")]
pub(crate) fn rows_of_blob(place: Place) -> (Vec<u8>, Vec<u8>) {
    let mut to = chunk(place, u64::MAX);
    to.push(0);
    (blob(place), to)
}

/// The place of a blob's row, and the chunk if it is that of one.
#[cfg(feature = "s3")]
pub(crate) fn blob_row(key: &[u8]) -> Option<(Place, Option<u64>)> {
    match key.len() {
        27 => Some((place_of(key)?, None)),
        35 => {
            let (place, chunk) = key.split_last_chunk()?;
            Some((place_of(place)?, Some(u64::from_be_bytes(*chunk))))
        }
        _ => None,
    }
}

/// The bytes that chunks name, as of an orderly end.
#[cfg(feature = "s3")]
pub(crate) const USAGE: &[u8] = b"Y";

/// A slice that no chunk names yet.
#[cfg(feature = "s3")]
pub(crate) fn staged(id: SliceId) -> [u8; 18] {
    let mut key = *b"ZS................";
    key[2..10].copy_from_slice(&id.epoch.to_be_bytes());
    key[10..].copy_from_slice(&id.number.to_be_bytes());
    key
}

/// A slice that no chunk names any more, and whose object may go at this time.
#[cfg(feature = "s3")]
pub(crate) fn dead(time: u64, id: SliceId) -> [u8; 26] {
    let mut key = *b"ZD........................";
    key[2..10].copy_from_slice(&time.to_be_bytes());
    key[10..18].copy_from_slice(&id.epoch.to_be_bytes());
    key[18..].copy_from_slice(&id.number.to_be_bytes());
    key
}

/// All keys of slices without a name, for a scan: of the dead ones by their time, and then of the staged ones.
#[cfg(feature = "s3")]
pub(crate) fn all_states() -> ([u8; 1], [u8; 1]) {
    all_of(b'Z')
}

/// All keys of staged slices, for a scan.
#[cfg(feature = "s3")]
pub(crate) fn all_staged() -> ([u8; 2], [u8; 2]) {
    (*b"ZS", *b"ZT")
}

/// All keys of dead slices, for a scan: in the order of their times.
#[cfg(feature = "s3")]
pub(crate) fn all_dead() -> ([u8; 2], [u8; 2]) {
    (*b"ZD", *b"ZE")
}

/// The mark of a blob with changes in a log.
#[cfg(feature = "s3")]
pub(crate) fn mark(place: Place) -> Vec<u8> {
    let mut key = b"ZL".to_vec();
    key.extend_from_slice(&about(b'L', place)[1..]);
    key
}

/// How many chunks name a slice besides the first.
#[cfg(feature = "s3")]
pub(crate) fn more_names(id: SliceId) -> [u8; 18] {
    let mut key = staged(id);
    key[1] = b'C';
    key
}

/// The slice that such a key names.
#[cfg(feature = "s3")]
pub(crate) fn named_more(key: &[u8]) -> Option<SliceId> {
    slice_id(key.strip_prefix(b"ZC")?)
}

/// All such keys, for a scan.
#[cfg(feature = "s3")]
pub(crate) fn all_more_names() -> ([u8; 2], [u8; 2]) {
    (*b"ZC", *b"ZD")
}

/// The key of the content, encrypted.
pub(crate) const CONTENT_KEY: &[u8] = b"ZK";

/// The last term in which a log got changes.
#[cfg(feature = "s3")]
pub(crate) fn log_term(log: [u8; 16]) -> Vec<u8> {
    [b"ZG", &log[..]].concat()
}

/// All keys of marks, for a scan.
#[cfg(feature = "s3")]
pub(crate) fn all_marks() -> ([u8; 2], [u8; 2]) {
    (*b"ZL", *b"ZM")
}

/// The blob that a key of a mark names.
#[cfg(feature = "s3")]
pub(crate) fn marked(key: &[u8]) -> Option<Place> {
    place_of(key.strip_prefix(b"Z")?)
}

/// The slice that a key of a staged one names.
#[cfg(feature = "s3")]
pub(crate) fn staged_slice(key: &[u8]) -> Option<SliceId> {
    slice_id(key.strip_prefix(b"ZS")?)
}

/// The slice that a key of a dead one names, and its time.
#[cfg(feature = "s3")]
pub(crate) fn dead_slice(key: &[u8]) -> Option<(SliceId, u64)> {
    let (time, id) = key.strip_prefix(b"ZD")?.split_first_chunk()?;
    Some((slice_id(id)?, u64::from_be_bytes(*time)))
}

#[cfg(feature = "s3")]
fn slice_id(bytes: &[u8]) -> Option<SliceId> {
    let (&[epoch, number], []) = bytes.as_chunks() else {
        return None;
    };
    Some(SliceId {
        epoch: u64::from_be_bytes(epoch),
        number: u64::from_be_bytes(number),
    })
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

/// The inode that a key of a node, its content, a quota, an orphan or one that is ahead names.
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
    b"ACDENOQS".iter().map(move |&kind| range(kind))
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
