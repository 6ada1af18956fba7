//! Random operations on blobs, and their expected results.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod image;
pub(crate) mod sparse;

use std::collections::BTreeMap;

use ferrite_blob::{Blob, BlobId, BlobStore, CLUSTER_BYTES, Error, PAGE_BYTES};
use ferrite_testkit::rng::{Rng, pattern};

/// Blobs never grow beyond this.
const BLOB_BYTES_MAX: u64 = 3 * CLUSTER_BYTES;

/// The expected state of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Known {
    /// Its bytes up to its valid length; all others are zero.
    pub(crate) data: Vec<u8>,
    pub(crate) metadata: Vec<u8>,
}

/// All blobs.
pub(crate) type Model = BTreeMap<BlobId, Known>;

/// An operation on a store.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Create(BlobId, Vec<u8>),
    Delete(BlobId),
    Write {
        id: BlobId,
        offset: u64,
        data: Vec<u8>,
        metadata: Option<Vec<u8>>,
    },
    Truncate(BlobId, u64, Option<Vec<u8>>),
    Punch(BlobId, u64, u64, Option<Vec<u8>>),
    Reserve(BlobId, u64, u64, Option<Vec<u8>>),
    Metadata(BlobId, Vec<u8>),
    /// A blob that was just made gets what another has before an end.
    Share {
        id: BlobId,
        from: BlobId,
        end: u64,
    },
}

impl Step {
    pub(crate) fn id(&self) -> BlobId {
        match self {
            Step::Create(id, _)
            | Step::Delete(id)
            | Step::Write { id, .. }
            | Step::Truncate(id, ..)
            | Step::Punch(id, ..)
            | Step::Reserve(id, ..)
            | Step::Metadata(id, _)
            | Step::Share { id, .. } => *id,
        }
    }

    /// Applies it to the expected state.
    pub(crate) fn apply(&self, model: &mut Model) {
        let id = self.id();
        match self {
            Step::Create(_, metadata) => {
                let metadata = metadata.clone();
                model.insert(
                    id,
                    Known {
                        data: Vec::new(),
                        metadata,
                    },
                );
                return;
            }
            Step::Delete(_) => {
                model.remove(&id);
                return;
            }
            Step::Share { from, end, .. } => {
                let mut data = model[from].data.clone();
                data.truncate(*end as usize);
                model.get_mut(&id).expect("it was just made").data = data;
                return;
            }
            _ => {}
        }
        let known = model.get_mut(&id).expect("steps are on blobs that are there");
        let metadata = match self {
            Step::Write {
                offset, data, metadata, ..
            } => {
                let (from, to) = (*offset as usize, *offset as usize + data.len());
                if known.data.len() < to {
                    known.data.resize(to, 0);
                }
                known.data[from..to].copy_from_slice(data);
                metadata.clone()
            }
            Step::Truncate(_, len, metadata) => {
                known.data.truncate(*len as usize);
                metadata.clone()
            }
            Step::Punch(_, offset, len, metadata) => {
                let size = known.data.len();
                known.data[(*offset as usize).min(size)..((offset + len) as usize).min(size)].fill(0);
                metadata.clone()
            }
            Step::Reserve(_, _, _, metadata) => metadata.clone(),
            Step::Metadata(_, metadata) => Some(metadata.clone()),
            Step::Create(..) | Step::Delete(_) | Step::Share { .. } => None,
        };
        if let Some(metadata) = metadata {
            known.metadata = metadata;
        }
    }

    /// Carries it out.
    pub(crate) fn run(&self, store: &BlobStore) -> ferrite_blob::Result<()> {
        let blob = || store.blob(self.id());
        match self {
            Step::Create(id, metadata) => store.create(*id, metadata).map(drop),
            Step::Delete(id) => store.delete(*id),
            Step::Write {
                offset, data, metadata, ..
            } => blob()?.write_at(data, *offset, metadata.as_deref()),
            Step::Truncate(_, len, metadata) => blob()?.truncate(*len, metadata.as_deref()),
            Step::Punch(_, offset, len, metadata) => blob()?.punch(*offset, *len, metadata.as_deref()),
            Step::Reserve(_, offset, len, metadata) => blob()?.reserve(*offset, *len, metadata.as_deref()),
            Step::Metadata(_, metadata) => blob()?.set_metadata(metadata),
            Step::Share { from, end, .. } => {
                assert!(
                    blob()?.share_from(&store.blob(*from)?, *end)?,
                    "it is empty, and of the same store"
                );
                Ok(())
            }
        }
    }
}

/// Generates steps.
pub(crate) struct Maker {
    rng: Rng,
    count: u32,
    /// Small writes on few pages, most of them without metadata.
    is_hot: bool,
    /// The blob that the last step made.
    made: Option<BlobId>,
}

impl Maker {
    pub(crate) fn new(seed: u64) -> Maker {
        Maker {
            rng: Rng::new(seed),
            count: 0,
            is_hot: seed % 4 == 1 || seed % 4 == 2,
            made: None,
        }
    }

    fn range(&mut self) -> (u64, u64) {
        let page = PAGE_BYTES as u64;
        let len = match self.rng.below(10) {
            0..=2 => 1 + self.rng.below(200),
            3 | 4 => page,
            5 | 6 => 1 + self.rng.below(3 * page),
            7 => page * (1 + self.rng.below(20)),
            8 => 1 + self.rng.below(40 * page),
            _ => 1 + self.rng.below(CLUSTER_BYTES + 2 * page),
        };
        let offset = match self.rng.below(6) {
            0 => 0,
            1 => self.rng.below(BLOB_BYTES_MAX / page) * page,
            2 => (CLUSTER_BYTES * (1 + self.rng.below(2))).saturating_sub(self.rng.below(2 * page)),
            3 | 4 => self.rng.below(6 * page),
            _ => self.rng.below(BLOB_BYTES_MAX),
        };
        let offset = offset.min(BLOB_BYTES_MAX - len.min(BLOB_BYTES_MAX));
        (offset, len)
    }

    /// The next step, on existing blobs.
    pub(crate) fn next(&mut self, model: &Model, store: &BlobStore) -> Step {
        self.count += 1;
        let mut metadata = vec![0; 8 + self.rng.below(40) as usize];
        metadata[..4].copy_from_slice(&self.count.to_le_bytes());
        let maybe = self.rng.below(if self.is_hot { 20 } else { 2 }) == 0;
        let some = maybe.then(|| metadata.clone());
        if let Some(id) = self.made.take().filter(|_| model.len() > 1 && self.rng.below(3) > 0) {
            let others: Vec<BlobId> = model.keys().copied().filter(|other| *other != id).collect();
            let from = others[self.rng.below(others.len() as u64) as usize];
            let size = model[&from].data.len() as u64;
            let end = match self.rng.below(4) {
                0 => self.rng.below(size + 1),
                _ => size + self.rng.below(2) * PAGE_BYTES as u64,
            };
            return Step::Share { id, from, end };
        }
        if model.len() < 2 || (model.len() < 5 && self.rng.below(8) == 0) {
            let id = store.reserve(1).unwrap()[0];
            self.made = Some(id);
            return Step::Create(id, metadata);
        }
        let nth = self.rng.below(model.len() as u64) as usize;
        let id = *model.keys().nth(nth).expect("counted");
        let (offset, len) = match self.is_hot {
            true => (self.rng.below(16_000), 1 + self.rng.below(5_000)),
            false => self.range(),
        };
        let kind = match self.is_hot && self.rng.below(8) > 0 {
            true => 19,
            false => self.rng.below(20),
        };
        match kind {
            0 => Step::Delete(id),
            1 | 2 => Step::Truncate(id, offset, some),
            3 | 4 => Step::Punch(id, offset, len, some),
            5 => Step::Reserve(id, offset, len, some),
            6 => Step::Metadata(id, metadata),
            kind => {
                let size = model[&id].data.len() as u64;
                let offset = match kind {
                    // Appends, and overwrites.
                    7..=10 => size.min(BLOB_BYTES_MAX - len.min(BLOB_BYTES_MAX)),
                    11..=14 if size > 0 => offset % size,
                    _ => offset,
                };
                let len = len.min(BLOB_BYTES_MAX - offset).max(1);
                Step::Write {
                    id,
                    offset,
                    data: pattern(self.count, len as usize),
                    metadata: some,
                }
            }
        }
    }
}

/// The present state of a blob.
pub(crate) fn content(blob: &Blob) -> Known {
    let mut data = vec![0xaa; blob.valid_len() as usize];
    blob.read_at(&mut data, 0).unwrap();
    Known {
        data,
        metadata: blob.metadata(),
    }
}

/// All blobs as the store has them.
pub(crate) fn contents(store: &BlobStore) -> Model {
    store
        .ids()
        .unwrap()
        .into_iter()
        .map(|id| (id, content(&store.blob(id).unwrap())))
        .collect()
}

/// Panics if the store differs from the expected state.
pub(crate) fn compare(store: &BlobStore, model: &Model, what: &str) {
    let found = contents(store);
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        model.keys().collect::<Vec<_>>(),
        "{what}: blobs"
    );
    for (id, known) in model {
        assert!(same(&found[id], known), "{what}: {}", difference(&found[id], known));
    }
    let report = store.check().unwrap();
    assert!(report.findings.is_empty(), "{what}: {:#?}", report.findings);
}

/// Equal, where bytes that one does not have are zeros.
pub(crate) fn same(one: &Known, other: &Known) -> bool {
    one.metadata == other.metadata && same_bytes(&one.data, &other.data)
}

pub(crate) fn same_bytes(one: &[u8], other: &[u8]) -> bool {
    let len = one.len().min(other.len());
    one[..len] == other[..len] && one[len..].iter().chain(&other[len..]).all(|&byte| byte == 0)
}

pub(crate) fn difference(found: &Known, known: &Known) -> String {
    let at = (0..found.data.len().max(known.data.len())).find(|&at| {
        let byte = |data: &[u8]| data.get(at).copied().unwrap_or(0);
        byte(&found.data) != byte(&known.data)
    });
    format!(
        "{} bytes, {} expected; first difference at {at:?}; metadata {:?}, {:?} expected",
        found.data.len(),
        known.data.len(),
        found.metadata,
        known.metadata
    )
}

/// Whether a step could not be carried out for lack of space, which does not fail the test.
pub(crate) fn is_full(result: &ferrite_blob::Result<()>) -> bool {
    matches!(result, Err(Error::NoSpace))
}
