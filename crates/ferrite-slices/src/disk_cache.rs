//! Objects of slices in a directory of this machine, so that they need not be read from the bucket again.
//!
//! A file has an object as the bucket has it: it is verified as that is, and encrypted if that is. Nothing is ever
//! synced: what a crash damages does not pass verification, and is removed. Content that nobody but this machine has is
//! never here, so the directory may be lost at any time.
//!
//! A file is `XX/EPOCH-NUMBER`, by the id of its slice. It is written under another name first, so it is whole, or has
//! lost its end in a crash. The directory is one pool's; the files of a second process, which has another list of them,
//! come and go without harm.
//!
//! Invariant: a file is counted, is being written, or is about to be removed.

use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};
use rustix::fs::OFlags;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, Result};
use crate::slice::{BLOCK_BYTES, SliceId};

/// Files that are written at once.
const WRITES_MAX: usize = 8;
/// How long a reader waits for the disk to take an object.
const TURN_MAX: Duration = Duration::from_millis(100);
/// After a failure, such as of a full disk, nothing is kept for this time.
const PAUSE: Duration = Duration::from_secs(30);
/// The mode of a directory in which nobody can exchange what belongs to others.
const STICKY: u32 = 0o1000;
/// The unit of space.
const UNIT_BYTES: u64 = 4096;
/// A shard admits no entry that is larger than itself.
const SHARDS: usize = 4;
/// The smallest size: some blocks.
pub const DISK_CACHE_BYTES_MIN: u64 = (SHARDS as u64) * 8 * BLOCK_BYTES;
/// The end of the name of a file that is being written.
const UNFINISHED: &str = ".new";

/// Space that a file takes.
#[derive(Debug, Clone)]
struct Space;

impl Weighter<SliceId, u32> for Space {
    fn weight(&self, _: &SliceId, bytes: &u32) -> u64 {
        u64::from(*bytes).max(1).next_multiple_of(UNIT_BYTES)
    }
}

/// Removes files that have to go.
#[derive(Debug, Clone)]
struct Removal(Arc<Path>);

/// Files to remove, once no lock is held.
#[derive(Debug, Default)]
struct Gone(Vec<PathBuf>);

impl Drop for Gone {
    fn drop(&mut self) {
        for file in &self.0 {
            // Somebody else may have removed it.
            let _ = fs::remove_file(file);
        }
    }
}

impl Lifecycle<SliceId, u32> for Removal {
    type RequestState = Gone;

    fn on_evict(&self, gone: &mut Gone, id: SliceId, _: u32) {
        gone.0.push(file_of(&self.0, id));
    }
}

/// Objects in a directory. Clones are the same.
#[derive(Debug, Clone)]
pub struct DiskCache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: Arc<Path>,
    files: Cache<SliceId, u32, Space, DefaultHashBuilder, Removal>,
    writes: Arc<Semaphore>,
    opened: Instant,
    /// Until when nothing is kept, in milliseconds since it was opened.
    paused_until_ms: AtomicU64,
    hits: AtomicU64,
}

/// Refuses a directory that others can change.
fn check_owner(dir: &Path) -> Result<()> {
    let found = fs::metadata(dir).map_err(|error| Error::Refused(format!("{}: {error}", dir.display())))?;
    let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    match is_ours && (found.mode() & 0o022 == 0 || found.mode() & STICKY != 0) {
        true => Ok(()),
        false => Err(Error::Refused(format!(
            "{}: others can change it; `chown` it to this user, and `chmod 700` it",
            dir.display()
        ))),
    }
}

fn file_of(dir: &Path, id: SliceId) -> PathBuf {
    let name = format!("{:02x}/{:016x}-{:016x}", id.number & 0xff, id.epoch, id.number);
    dir.join(name)
}

/// The slice that a file is of.
fn slice_of(name: &str) -> Option<SliceId> {
    SliceId::parse(&name.replacen('-', "/", 1))
}

impl DiskCache {
    /// Objects of up to so many bytes in all, in a directory, which is made. Files that are there already are found in
    /// the background. Those of `epoch` and later ones are removed: an owner of this epoch has made no object yet, and
    /// metadata that was restored from a backup uses epochs again.
    ///
    /// # Errors
    /// [`Error::Refused`]: the directory cannot be made or read, or others can change it.
    pub fn open(dir: &Path, bytes: u64, epoch: u64) -> Result<DiskCache> {
        let refused = |error: io::Error| {
            let what = "it cannot keep content of the bucket; make it, or name another directory";
            Error::Refused(format!("{}: {error}: {what}", dir.display()))
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(refused)?;
        check_owner(dir)?;
        // Anybody who can change the one above can exchange it.
        dir.parent().map_or(Ok(()), check_owner)?;
        let bytes = bytes.max(DISK_CACHE_BYTES_MIN);
        let mut options = OptionsBuilder::new();
        options.estimated_items_capacity((bytes / (256 << 10)) as usize);
        options.weight_capacity(bytes).shards(SHARDS);
        // It has all that it needs.
        let options = options.build().map_err(|error| Error::Refused(error.to_string()))?;
        let dir: Arc<Path> = dir.into();
        let files = Cache::with_options(options, Space, DefaultHashBuilder::default(), Removal(Arc::clone(&dir)));
        let cache = DiskCache(Arc::new(Inner {
            dir,
            files,
            writes: Arc::new(Semaphore::new(WRITES_MAX)),
            opened: Instant::now(),
            paused_until_ms: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }));
        let (found, since) = (Arc::downgrade(&cache.0), SystemTime::now());
        let listing = std::thread::Builder::new().name("ferrite-s3-disk".into());
        let started = listing.spawn(move || {
            for number in 0..=u8::MAX {
                let Some(inner) = found.upgrade() else { return };
                inner.find(&inner.dir.join(format!("{number:02x}")), since, epoch);
            }
        });
        started.map_err(|error| Error::Failed(format!("no thread to list a directory: {error}")))?;
        Ok(cache)
    }

    /// The object of a slice, not verified, if it is here. Blocks for the disk.
    pub(crate) fn get(&self, id: SliceId, bytes_max: u64) -> Option<Bytes> {
        self.get_by(id, |file| read(file, bytes_max))
    }

    /// These bytes of the object, in the same way.
    pub(crate) fn get_range(&self, id: SliceId, bytes: Range<u64>) -> Option<Bytes> {
        self.get_by(id, |file| {
            let mut found = vec![0; (bytes.end - bytes.start) as usize];
            open(file)?.read_exact_at(&mut found, bytes.start)?;
            Ok(found.into())
        })
    }

    fn get_by(&self, id: SliceId, read: impl FnOnce(&Path) -> io::Result<Bytes>) -> Option<Bytes> {
        self.0.files.get(&id)?;
        match read(&file_of(&self.0.dir, id)) {
            Ok(object) => {
                self.0.hits.fetch_add(1, Ordering::Relaxed);
                Some(object)
            }
            Err(error) => {
                tracing::debug!(%id, %error, "an object is not on the disk any more");
                self.remove(id);
                None
            }
        }
    }

    /// Whether the object of a slice is here, as far as is known.
    pub fn contains(&self, id: SliceId) -> bool {
        self.0.files.contains_key(&id)
    }

    /// A turn to keep an object. `None`: the disk is too slow for those who read.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.0.writes).acquire_owned();
        tokio::time::timeout(TURN_MAX, turn).await.ok()?.ok()
    }

    /// Keeps an object that the bucket has. Blocks for the disk.
    pub(crate) fn add(&self, id: SliceId, object: &Bytes, _turn: OwnedSemaphorePermit) {
        let now_ms = self.0.opened.elapsed().as_millis() as u64;
        if now_ms < self.0.paused_until_ms.load(Ordering::Relaxed) || self.contains(id) {
            return;
        }
        let file = file_of(&self.0.dir, id);
        let mut unfinished = file.clone().into_os_string();
        unfinished.push(UNFINISHED);
        let written = write(&unfinished.into(), object, &file);
        match written {
            // This removes those that have to go for it.
            Ok(()) => self.0.files.insert(id, object.len() as u32),
            Err(error) => {
                tracing::warn!(place = %self.0.dir.display(), %error, "content is not kept on the disk for a while");
                let until_ms = now_ms + PAUSE.as_millis() as u64;
                self.0.paused_until_ms.store(until_ms, Ordering::Relaxed);
            }
        }
    }

    /// Removes an object, if it is here.
    pub(crate) fn remove(&self, id: SliceId) {
        if self.0.files.remove(&id).is_some() {
            drop(Gone(vec![file_of(&self.0.dir, id)]));
        }
    }

    /// Bytes of the disk in use.
    pub fn bytes(&self) -> u64 {
        self.0.files.weight()
    }

    /// Objects that readers found here.
    pub fn hits(&self) -> u64 {
        self.0.hits.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// Counts the files of a directory, and removes what a crash before this time has left half written.
    fn find(&self, dir: &Path, since: SystemTime, epoch: u64) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let Ok(found) = entry.metadata() else { continue };
            if let Some(of) = name.strip_suffix(UNFINISHED) {
                let is_old = found.modified().is_ok_and(|time| time < since);
                drop(slice_of(of).filter(|_| is_old).map(|_| Gone(vec![entry.path()])));
            } else if let (Some(id), Ok(bytes)) = (slice_of(name), u32::try_from(found.len()))
                && !self.files.contains_key(&id)
            {
                match id.epoch < epoch {
                    true => self.files.insert(id, bytes),
                    false => drop(Gone(vec![entry.path()])),
                }
            }
        }
    }
}

/// Writes a file under another name first. Follows no links.
fn write(unfinished: &PathBuf, object: &[u8], file: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let opened = options.open(unfinished).or_else(|error| match error.kind() {
        // Half a file of a crash.
        io::ErrorKind::AlreadyExists => fs::remove_file(unfinished).and_then(|()| options.open(unfinished)),
        // The first one in its directory.
        io::ErrorKind::NotFound => file
            .parent()
            .map_or(Ok(()), fs::create_dir)
            .and_then(|()| options.open(unfinished)),
        _ => Err(error),
    });
    let written = opened.and_then(|mut to| to.write_all(object));
    let written = written.and_then(|()| fs::rename(unfinished, file));
    written.inspect_err(|_| drop(Gone(vec![unfinished.clone()])))
}

fn read(file: &Path, bytes_max: u64) -> io::Result<Bytes> {
    let file = open(file)?;
    let bytes = file.metadata()?.len();
    if bytes > bytes_max {
        return Err(io::Error::other("it cannot be that of its slice"));
    }
    let mut object = Vec::with_capacity(bytes as usize);
    file.take(bytes_max).read_to_end(&mut object)?;
    Ok(object.into())
}

fn open(file: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.read(true).custom_flags(flags.bits() as i32).open(file)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> SliceId {
        SliceId { epoch: 7, number }
    }

    fn files(dir: &Path) -> Vec<String> {
        let folders = fs::read_dir(dir).unwrap().map(|folder| folder.unwrap().path());
        let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
        files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    fn add(cache: &DiskCache, id: SliceId, object: &Bytes) {
        let turn = Arc::clone(&cache.0.writes).try_acquire_owned().unwrap();
        cache.add(id, object, turn);
    }

    fn wait_for(what: &str, is_so: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn objects_are_found_again_and_lost_ones_are_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(dir.path(), 0, 8).unwrap();
        let object = Bytes::from(vec![3; 10_000]);
        assert_eq!(cache.get(id(300), 10_000), None);
        add(&cache, id(300), &object);
        add(&cache, id(301), &object);
        assert_eq!(cache.get(id(300), 10_000), Some(object.clone()));
        assert_eq!((cache.bytes(), cache.hits()), (2 * 12_288, 1));
        fs::write(
            dir.path().join("2d").join(format!("{:016x}-{:016x}.new", 7, 301)),
            b"half",
        )
        .unwrap();
        fs::create_dir_all(dir.path().join("00")).unwrap();
        fs::write(dir.path().join("00/other"), b"of somebody else").unwrap();
        drop(cache);
        let cache = DiskCache::open(dir.path(), 0, 8).unwrap();
        wait_for("the files are not found", || cache.bytes() == 2 * 12_288);
        wait_for("half a file stays", || files(dir.path()).len() == 3);
        assert_eq!(cache.get(id(301), 10_000), Some(object.clone()));
        // Files that are longer, or gone; other things under their names.
        std::os::unix::fs::symlink("/etc/passwd", file_of(dir.path(), id(557))).unwrap();
        cache.0.files.insert(id(557), 10);
        assert_eq!(cache.get(id(557), 10_000), None);
        assert_eq!(cache.get(id(301), 9_999), None);
        fs::remove_file(file_of(dir.path(), id(300))).unwrap();
        assert_eq!((cache.get(id(300), 10_000), cache.bytes()), (None, 0));
        cache.remove(id(300));
        assert_eq!(files(dir.path()), ["other"]);
    }

    /// Protects content that has the id of other content, which restored metadata does not know.
    #[test]
    fn objects_of_later_owners_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(dir.path(), 0, 8).unwrap();
        add(&cache, id(1), &Bytes::from(vec![3; 100]));
        drop(cache);
        let cache = DiskCache::open(dir.path(), 0, 7).unwrap();
        wait_for("a later owner's file stays", || files(dir.path()).is_empty());
        assert!(!cache.contains(id(1)));
    }

    /// Protects the disk: files take no more space than was given, whatever comes.
    #[test]
    fn the_space_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(dir.path(), 0, 8).unwrap();
        let object = Bytes::from(vec![3; 1 << 20]);
        for number in 0..300 {
            add(&cache, id(number), &object);
        }
        let left = files(dir.path()).len() as u64;
        assert!(left << 20 <= DISK_CACHE_BYTES_MIN && left > 50, "{left} files");
        assert_eq!(cache.bytes(), left << 20);
    }

    #[test]
    fn a_directory_that_cannot_be_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), b"").unwrap();
        let error = DiskCache::open(&dir.path().join("file/cache"), 0, 8)
            .unwrap_err()
            .to_string();
        assert!(error.contains("name another directory"), "{error}");
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let error = DiskCache::open(&open, 0, 8).unwrap_err().to_string();
        assert!(error.contains("chmod 700"), "{error}");
    }
}
