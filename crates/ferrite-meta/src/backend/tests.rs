//! Files on blobs against plain bytes: reads, the state after a power failure, and that a database's copy can take its
//! place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::rocksdb::{Db, FileError, Files, Options, Place, Writer};
use ferrite_measure::Rng;

use super::files::BlobFiles;
use super::{BlobError, Blobs, MemoryBlobs};

fn open(blobs: &Arc<MemoryBlobs>) -> BlobFiles {
    BlobFiles::open(Arc::clone(blobs) as _, 1 << 20, true).unwrap()
}

fn content(files: &BlobFiles, name: &[u8], in_order: bool) -> Result<Vec<u8>, FileError> {
    let reader = files.open(name, in_order)?;
    let mut bytes = vec![0; files.size_bytes(name)? as usize + 100];
    let len = reader.read_at(0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn put(files: &BlobFiles, name: &[u8], bytes: &[u8]) {
    let writer = files.create(name).unwrap();
    writer.append(bytes).unwrap();
    writer.close().unwrap();
}

#[test]
fn names_are_made_listed_replaced_and_removed() {
    let blobs = Arc::new(MemoryBlobs::new(64 << 20, false));
    let files = open(&blobs);
    for name in ["/db/CURRENT", "/db/1.sst", "/db/sub/x", "/db-other/y", "/db0"] {
        put(&files, name.as_bytes(), name.as_bytes());
    }
    assert_eq!(files.list(b"/db").unwrap(), [&b"1.sst"[..], b"CURRENT", b"sub"]);
    assert_eq!(files.list(b"/db/").unwrap(), files.list(b"/db").unwrap());
    assert!(files.exists(b"/db").unwrap() && files.exists(b"/db/sub").unwrap());
    assert!(!files.exists(b"/d").unwrap() && !files.exists(b"/db/none").unwrap());
    // A name that is replaced is never missing, and its old blob goes.
    let count = blobs.ids().unwrap().len();
    put(&files, b"/db/tmp", b"new");
    files.rename(b"/db/tmp", b"/db/CURRENT").unwrap();
    assert_eq!(content(&files, b"/db/CURRENT", false).unwrap(), b"new");
    assert_eq!(blobs.ids().unwrap().len(), count);
    // All names below a directory move with it.
    files.rename(b"/db", b"/moved").unwrap();
    assert_eq!(files.list(b"/moved").unwrap(), [&b"1.sst"[..], b"CURRENT", b"sub"]);
    assert!(!files.exists(b"/db").unwrap() && files.exists(b"/db0").unwrap());
    assert!(matches!(files.rename(b"/db", b"/x"), Err(FileError::NotFound)));
    assert!(matches!(files.remove(b"/moved/2.sst"), Err(FileError::NotFound)));
    // An open reader keeps reading.
    let reader = files.open(b"/moved/1.sst", false).unwrap();
    files.remove(b"/moved/1.sst").unwrap();
    let mut bytes = [0; 9];
    assert_eq!(reader.read_at(0, &mut bytes).unwrap(), 9);
    assert_eq!(&bytes, b"/db/1.sst");
    drop(reader);
    let opened = open(&blobs);
    assert_eq!(opened.list(b"/moved").unwrap(), [&b"CURRENT"[..], b"sub"]);
    assert_eq!(blobs.ids().unwrap().len(), count - 1);
    files.lock(b"/LOCK").unwrap();
    assert!(matches!(files.lock(b"/LOCK"), Err(FileError::Locked(_))));
    files.unlock(b"/LOCK");
    files.lock(b"/LOCK").unwrap();
}

/// The bytes written, and how many of them were synced, after that many changes of the device.
type History = Vec<(usize, BTreeMap<Vec<u8>, (Vec<u8>, usize)>)>;

fn random_files(rng: &mut Rng, blobs: &Arc<MemoryBlobs>, steps: u64) -> History {
    let files = open(blobs);
    let mut model = BTreeMap::<Vec<u8>, (Vec<u8>, usize)>::new();
    let mut writers = BTreeMap::<Vec<u8>, Box<dyn Writer>>::new();
    let mut history = History::new();
    for _ in 0..steps {
        let kind = if rng.chance(50) { "log" } else { "sst" };
        let name = format!("/db/{}.{kind}", rng.below(3)).into_bytes();
        match rng.below(20) {
            0 => {
                writers.remove(&name);
                writers.insert(name.clone(), files.create(&name).unwrap());
                model.insert(name, (Vec::new(), 0));
            }
            1 => {
                if let Some(writer) = writers.remove(&name) {
                    writer.close().unwrap();
                    let (bytes, synced) = model.get_mut(&name).unwrap();
                    *synced = bytes.len();
                }
            }
            2 if !writers.contains_key(&name) => {
                writers.insert(name.clone(), files.append(&name).unwrap());
                model.entry(name).or_default();
            }
            3 if rng.chance(30) => {
                writers.remove(&name);
                assert_eq!(files.remove(&name).is_ok(), model.remove(&name).is_some());
            }
            4 => {
                if let Some(writer) = writers.get(&name) {
                    let (bytes, synced) = model.get_mut(&name).unwrap();
                    let len = rng.below(bytes.len() as u64 + 1);
                    writer.truncate(len).unwrap();
                    bytes.truncate(len as usize);
                    *synced = bytes.len().min(*synced);
                }
            }
            5..9 => {
                if let Some(writer) = writers.get(&name) {
                    writer.sync().unwrap();
                    let (bytes, synced) = model.get_mut(&name).unwrap();
                    *synced = bytes.len();
                }
            }
            9 => {
                if let Some((bytes, _)) = model.get(&name) {
                    assert!(content(&files, &name, true).unwrap() == *bytes);
                    let (from, mut part) = (rng.below(bytes.len() as u64 + 10), vec![0; rng.below(9000) as usize]);
                    let len = files.open(&name, false).unwrap().read_at(from, &mut part).unwrap();
                    let wanted = bytes.get(from as usize..).unwrap_or_default();
                    assert!(part[..len] == wanted[..wanted.len().min(part.len())]);
                }
            }
            _ => {
                if let Some(writer) = writers.get(&name) {
                    let most = *rng.pick(&[10, 5000, 300_000]);
                    let data: Vec<u8> = (0..rng.below(most)).map(|_| rng.next_u64() as u8 | 1).collect();
                    writer.append(&data).unwrap();
                    let bytes = &mut model.get_mut(&name).unwrap().0;
                    bytes.extend_from_slice(&data);
                    assert_eq!(writer.size_bytes(), bytes.len() as u64);
                }
            }
        }
        history.push((blobs.changes(), model.clone()));
    }
    history
}

/// Power fails between any two calls: names are as the last call left them, synced bytes are there, of the others a
/// part from the front, and a log may have zeros behind it, and nothing else.
#[test]
fn a_power_failure_leaves_what_was_synced() {
    let given = std::env::var("FERRITE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| u64::from(std::process::id()) * 1_000_003);
    eprintln!("FERRITE_SEED={seed}");
    for round in 0..6 {
        let mut rng = Rng::new(seed + round);
        let blobs = Arc::new(MemoryBlobs::new(1 << 30, true));
        let history = random_files(&mut rng, &blobs, 150);
        for (changes, model) in history.iter().step_by(7) {
            let left = Arc::new(blobs.image(*changes, 0));
            let files = open(&left);
            let names: Vec<Vec<u8>> = model.keys().map(|name| name[4..].to_vec()).collect();
            assert_eq!(
                files.list(b"/db").unwrap(),
                names,
                "seed {seed}, round {round}, {changes} changes"
            );
            for (name, (bytes, synced)) in model {
                let what = format!("seed {seed}, round {round}, {changes} changes, {}", name.escape_ascii());
                let there = content(&files, name, false).unwrap();
                let is_log = name.ends_with(b"log");
                assert!(
                    there.len() >= *synced && there[..*synced] == bytes[..*synced],
                    "{what}: synced bytes"
                );
                let same = there.iter().zip(bytes).take_while(|(a, b)| a == b).count();
                let rest = &there[same..];
                assert!(
                    rest.is_empty() || is_log && rest.iter().all(|&byte| byte == 0),
                    "{what}: others' bytes"
                );
            }
        }
    }
}

fn options() -> Options {
    Options {
        create: true,
        merges_leave_bytes: 0,
        block_cache_bytes: 1 << 20,
        write_buffer_bytes: 64 << 10,
        background_jobs: 2,
        unmerged_tables_max: 36,
        prefix_len_bytes: 0,
        lock_timeout: Duration::from_secs(5),
        sync: true,
        read_only: false,
        salvage: crate::rocksdb::Salvage::No,
    }
}

/// RocksDB writes a copy under another name and renames its directory. Then the copy takes the database's place.
#[test]
fn a_copy_of_a_database_opens_in_its_place() {
    let blobs = Arc::new(MemoryBlobs::new(256 << 20, false));
    let files = open(&blobs);
    let place = Place::Files(Arc::new(files.clone()));
    let db = Db::open(&place, &options()).unwrap();
    let put = |number: u32, value: &[u8]| {
        let mut txn = db.begin().unwrap();
        txn.put(&number.to_be_bytes(), value).unwrap();
        txn.commit().unwrap();
    };
    for number in 0..1000 {
        put(number, &[1; 300]);
    }
    db.checkpoint(b"/copy").unwrap();
    for number in 0..1000 {
        put(number, b"later");
    }
    db.close().unwrap();
    assert!(files.exists(b"/copy/CURRENT").unwrap() && !files.exists(b"/copy.tmp").unwrap());
    files.rename(b"/db", b"/old").unwrap();
    files.rename(b"/copy", b"/db").unwrap();
    let db = Db::open(&place, &options()).unwrap();
    for number in 0..1000_u32 {
        assert_eq!(db.get(&number.to_be_bytes()).unwrap(), Some(vec![1; 300]));
    }
}

#[test]
fn a_backend_is_made_only_when_asked_and_its_damage_is_reported() {
    let blobs = Arc::new(MemoryBlobs::new(64 << 20, false));
    let careful = |blobs: &Arc<MemoryBlobs>| BlobFiles::open(Arc::clone(blobs) as _, 0, false);
    assert_eq!(careful(&blobs).err(), Some(BlobError::NotFound));
    let files = open(&blobs);
    put(&files, b"/a", b"a");
    drop(files);
    drop(careful(&blobs).unwrap());
    // A name whose blob is missing.
    let file = blobs.ids().unwrap().pop().unwrap();
    blobs.delete(file).unwrap();
    assert!(matches!(careful(&blobs).err(), Some(BlobError::Corruption(text)) if text.contains("/a")));
}

/// Blobs with one write that is carried out, and whose result is lost.
struct Late {
    blobs: Arc<MemoryBlobs>,
    /// Writes before that one.
    left: AtomicU64,
}

impl Blobs for Late {
    fn create(&self, metadata: &[u8]) -> Result<u64, BlobError> {
        self.blobs.create(metadata)
    }

    fn delete(&self, id: u64) -> Result<(), BlobError> {
        self.blobs.delete(id)
    }

    fn ids(&self) -> Result<Vec<u64>, BlobError> {
        self.blobs.ids()
    }

    fn metadata(&self, id: u64) -> Result<Vec<u8>, BlobError> {
        self.blobs.metadata(id)
    }

    fn read_at(&self, id: u64, into: &mut [u8], offset: u64) -> Result<(), BlobError> {
        self.blobs.read_at(id, into, offset)
    }

    fn write_at(&self, id: u64, data: &[u8], offset: u64, metadata: Option<&[u8]>) -> Result<(), BlobError> {
        self.blobs.write_at(id, data, offset, metadata)?;
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            0 => Err(BlobError::Io("input/output error".into())),
            _ => Ok(()),
        }
    }

    fn size_bytes(&self) -> Result<u64, BlobError> {
        self.blobs.size_bytes()
    }

    fn free_bytes(&self) -> Result<u64, BlobError> {
        self.blobs.free_bytes()
    }
}

/// The table of names is on the device although its write failed. The blobs that it names are there, too: the files can
/// be opened.
#[test]
fn a_lost_answer_never_leaves_a_name_without_its_blob() {
    for left in 0..12 {
        let blobs = Arc::new(MemoryBlobs::new(16 << 20, false));
        put(&open(&blobs), b"/db/before", b"before");
        let late = Late {
            blobs: Arc::clone(&blobs),
            left: AtomicU64::new(left),
        };
        let files = BlobFiles::open(Arc::new(late), 1 << 20, true).unwrap();
        let steps: [&dyn Fn() -> Result<(), FileError>; 4] = [
            &|| files.create(b"/db/new").and_then(|file| file.append(b"new")),
            &|| files.rename(b"/db/new", b"/db/other"),
            &|| files.create(b"/db/before").and_then(|file| file.append(b"again")),
            &|| files.remove(b"/db/other"),
        ];
        // The caller stops at the first failure.
        let _ = steps.iter().try_for_each(|step| step());
        drop(files);
        let files = open(&blobs);
        for name in files.list(b"/db").unwrap() {
            let path = [b"/db/", &name[..]].concat();
            content(&files, &path, false).unwrap_or_else(|error| panic!("write {left}: {error:?}"));
        }
    }
}
