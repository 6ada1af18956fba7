//! Copies of a store: the readable part of a damaged one, a dump of one in use, and one restored from a dump.
//!
//! A damaged store is never mended in place: all readable pairs go to a new one beside it, which takes its place when
//! it is whole and durable. In a directory of the machine the damaged one stays, under another name; on blobs its files
//! go, as there may be no space for both.
//!
//! Invariants: until the new store takes the place, the old one is unchanged (unless RocksDB has to rebuild its list of
//! tables to read it at all); a crash in between leaves the old one, and the next try removes what was begun. No other
//! process has the store open.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::rocksdb::{Db, Place, Salvage};

use crate::backend::{Below, BlobFiles, Blobs};
use crate::error::{Error, Result};
use crate::rocks::{Backend, Options, RocksStore, Space, refused, unreadable};
use crate::shelf::Shelf;
use crate::store::{MetaStore, Transaction};

/// Pairs copied per commit.
const PAIRS_A_COMMIT: usize = 1000;
/// And their approximate bytes.
const BYTES_A_COMMIT: usize = 1 << 20;
/// Where a database on blobs lies, and where the new one is made.
const ON_BLOBS: &[u8] = b"/db";
const NEW_ON_BLOBS: &[u8] = b"/new";
/// Names that are tried for a damaged store.
const NAMES_MAX: u32 = 10_000;

/// The result of copying a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// Pairs that were copied.
    pub pairs: u64,
    /// Ranges of keys that are partly unreadable.
    pub gaps: u64,
    /// Where the damaged store is now, if it was kept.
    pub kept: Option<PathBuf>,
}

/// Fixes a copy before it takes the place of the store: the caller knows what the pairs mean.
pub type Fix<'f> = &'f mut dyn FnMut(&dyn MetaStore) -> Result<()>;

/// Commits pairs in lots.
struct Copy<'s> {
    to: &'s RocksStore,
    txn: Option<Box<dyn Transaction + 's>>,
    in_txn: (usize, usize),
    pairs: u64,
}

impl<'s> Copy<'s> {
    fn to(to: &'s RocksStore) -> Copy<'s> {
        Copy {
            to,
            txn: None,
            in_txn: (0, 0),
            pairs: 0,
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let txn = self.txn.get_or_insert_with(|| self.to.begin());
        txn.put(key, value)?;
        self.pairs += 1;
        self.in_txn = (self.in_txn.0 + 1, self.in_txn.1 + key.len() + value.len());
        match self.in_txn.0 >= PAIRS_A_COMMIT || self.in_txn.1 >= BYTES_A_COMMIT {
            true => self.commit(),
            false => Ok(()),
        }
    }

    fn commit(&mut self) -> Result<()> {
        self.in_txn = (0, 0);
        self.txn.take().map_or(Ok(()), Transaction::commit)
    }
}

/// Copies with commits that are durable together at the end.
fn making() -> Options {
    Options {
        create: true,
        sync: false,
        reserve_bytes: 0,
        ..Options::default()
    }
}

impl RocksStore {
    /// Opens a partly unreadable store, and replaces it by one with all readable pairs, after `fix` has seen it.
    /// Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Missing`]; errors of `fix`; errors of the place. The store is unchanged then.
    pub fn salvage(backend: Backend, fix: Fix<'_>) -> Result<Salvaged> {
        match backend {
            Backend::Directory(path) => in_directory(&path, &Place::Directory(path.clone()), fix),
            Backend::Blobs(blobs) => on_blobs(blobs, None, fix),
        }
    }

    /// The same with the pairs of a dump, whatever the store holds, if there is one.
    ///
    /// # Errors
    /// As of [`Self::salvage`]; errors of the dump, all of which has to be whole.
    pub fn restore(backend: Backend, dump: &Path, fix: Fix<'_>) -> Result<Salvaged> {
        let source = Shelf::Directory(dump.to_path_buf());
        if source.size_bytes("CURRENT")?.is_none() {
            return Err(Error::Missing(dump.display().to_string()));
        }
        crate::close_mark::check(&source)?;
        let source = Place::Directory(dump.to_path_buf());
        match backend {
            Backend::Directory(path) => in_directory(&path, &source, fix),
            Backend::Blobs(blobs) => on_blobs(blobs, Some(&source), fix),
        }
    }
}

/// Writes a copy of everything stored now to a directory of the machine that is missing or empty. Returns the number of
/// pairs. Durable when it returns; the store may be in use meanwhile.
///
/// # Errors
/// [`Error::InUse`] if the directory is not empty; errors of both stores. The partial copy is removed then.
pub fn dump(from: &dyn MetaStore, to: &Path) -> Result<u64> {
    let about = |error: std::io::Error| Error::Io(format!("{}: {error}", to.display()));
    if std::fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::InUse(format!("{}: not empty", to.display())));
    }
    let written = (|| {
        let store = RocksStore::open(Backend::Directory(to.to_path_buf()), &making())?;
        let mut copy = Copy::to(&store);
        let mut failed = None;
        from.scan(&[], &[0xff; 32], &mut |key, value| match copy.put(key, value) {
            Ok(()) => std::ops::ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                std::ops::ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        copy.commit()?;
        let pairs = copy.pairs;
        drop(copy);
        store.sync()?;
        store.close()?;
        sync_parent(to).map_err(about)?;
        Ok(pairs)
    })();
    if written.is_err() {
        // It was empty or missing.
        let _ = std::fs::remove_dir_all(to);
    }
    written
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Opens a database to read as much as possible.
fn open_damaged(place: &Place) -> Result<Db> {
    let options = |salvage| crate::rocksdb::Options {
        create: false,
        block_cache_bytes: 8 << 20,
        write_buffer_bytes: 32 << 20,
        merges_leave_bytes: 0,
        background_jobs: 1,
        unmerged_tables_max: u32::MAX,
        prefix_len_bytes: 0,
        lock_timeout: Options::default().lock_timeout,
        sync: false,
        read_only: true,
        salvage,
    };
    Db::open(place, &options(Salvage::Read)).or_else(|error| {
        tracing::warn!(%error, "the list of tables cannot be read: it is made anew from those that are there");
        Db::open(place, &options(Salvage::Rebuild)).map_err(refused)
    })
}

/// Copies the readable part of a place to a new store, which is fixed and then closed.
fn copy(from: &Place, to: RocksStore, fix: Fix<'_>) -> Result<Salvaged> {
    let source = open_damaged(from)?;
    let mut copy = Copy::to(&to);
    let mut failed = Ok(());
    let gaps = source.salvage(&mut |key, value| {
        failed = copy.put(key, value);
        failed.is_ok()
    });
    failed?;
    copy.commit()?;
    let pairs = copy.pairs;
    drop(copy);
    fix(&to)?;
    to.sync()?;
    to.close()?;
    source.close().map_err(refused)?;
    Ok(Salvaged {
        pairs,
        gaps,
        kept: None,
    })
}

/// A path beside another, which does not exist.
fn free_name(path: &Path, what: &str) -> Result<PathBuf> {
    let name = |number: u32| {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{what}-{number}"));
        path.with_file_name(name)
    };
    let free = (1..NAMES_MAX).map(name).find(|path| !path.exists());
    free.ok_or_else(|| {
        Error::Io(format!(
            "{}: there are too many copies beside it; remove some",
            path.display()
        ))
    })
}

fn in_directory(path: &Path, from: &Place, fix: Fix<'_>) -> Result<Salvaged> {
    let about = |error: std::io::Error| Error::Io(format!("{}: {error}", path.display()));
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let new = path.with_file_name(name);
    if new.exists() {
        std::fs::remove_dir_all(&new).map_err(about)?;
    }
    let store = RocksStore::open(Backend::Directory(new.clone()), &making())?;
    let copied = copy(from, store, fix);
    let mut salvaged = match copied {
        Ok(salvaged) => salvaged,
        Err(error) => {
            let _ = std::fs::remove_dir_all(&new);
            return Err(error);
        }
    };
    if path.exists() {
        let kept = free_name(path, "old")?;
        // At once, so that a crash leaves one of the two under the name.
        rustix::fs::renameat_with(
            rustix::fs::CWD,
            &new,
            rustix::fs::CWD,
            path,
            rustix::fs::RenameFlags::EXCHANGE,
        )
        .map_err(|error| about(error.into()))?;
        std::fs::rename(&new, &kept).map_err(about)?;
        salvaged.kept = Some(kept);
    } else {
        std::fs::rename(&new, path).map_err(about)?;
    }
    sync_parent(path).map_err(about)?;
    Ok(salvaged)
}

fn on_blobs(blobs: Arc<dyn Blobs>, from: Option<&Place>, fix: Fix<'_>) -> Result<Salvaged> {
    let files = BlobFiles::open(blobs, 0, from.is_some()).map_err(|error| match error {
        crate::BlobError::NotFound => Error::Missing("the device of blobs".into()),
        error => unreadable(error),
    })?;
    let remove_new = || {
        files
            .replace(NEW_ON_BLOBS, b"/none")
            .map_err(|error| Error::Io(error.to_string()))
    };
    remove_new()?;
    let below = Below {
        files: files.clone(),
        from: ON_BLOBS,
        to: NEW_ON_BLOBS,
    };
    let own = Place::Files(Arc::new(files.clone()));
    let started = RocksStore::start(
        &Place::Files(Arc::new(below)),
        Space::Blobs(files.clone()),
        None,
        &making(),
    );
    let copied = started.and_then(|store| copy(from.unwrap_or(&own), store, fix));
    match copied {
        Ok(salvaged) => {
            let placed = files.replace(ON_BLOBS, NEW_ON_BLOBS);
            placed.map_err(|error| Error::Io(error.to_string()))?;
            Ok(salvaged)
        }
        Err(error) => {
            let _ = remove_new();
            Err(error)
        }
    }
}
