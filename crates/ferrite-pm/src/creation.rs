//! The file of a new pool: in the end it exists completely or not at all.
//!
//! Contents: [`PoolCreation`], a file or device that is to become a pool. Only `MappedMemory::create` makes one.
//!
//! Invariant: if anything goes wrong before [`PoolCreation::keep`], or the process is killed, no new file is left
//! behind, and an existing one has its old length. A new file therefore has no name until its content is whole, on file
//! systems that support that; elsewhere it is removed, unless the process is killed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FallocateFlags};

use crate::error::PmError;
use crate::medium;

const MODE: u32 = 0o600;

/// How to undo the creation of a file that does not become a pool.
enum Undo {
    /// It has no name yet: nothing.
    Unnamed,
    /// It was made under its name, which is removed again.
    Remove(PathBuf),
    /// It existed: it gets its length back.
    Shorten(u64),
    /// It is kept, or a device.
    Nothing,
}

/// The space of a new pool file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// All of it is allocated.
    Allocated,
    /// Allocated where it is written to.
    Sparse,
}

/// See the module's head.
pub(crate) struct PoolCreation {
    path: PathBuf,
    file: File,
    undo: Undo,
}

impl PoolCreation {
    /// Opens the file or device at `path`, or makes a file.
    pub(crate) fn open(path: &Path) -> Result<PoolCreation, PmError> {
        let fails = |error: io::Error| PmError::io("create", path, error);
        let open = |options: &mut OpenOptions| options.read(true).write(true).mode(MODE).open(path);
        // A dangling link names a file to make elsewhere, which a nameless file cannot do.
        let is_free = std::fs::symlink_metadata(path).is_err();
        let is_no_device = std::fs::metadata(path).map_or(true, |found| found.is_file());
        if is_no_device && medium::is_among_devices(&std::fs::canonicalize(path).unwrap_or(path.to_path_buf())) {
            return Err(no_device(path));
        }
        if is_free && let Ok(file) = unnamed(directory(path)) {
            return Ok(PoolCreation::new(path, file, Undo::Unnamed));
        }
        match open(OpenOptions::new().create_new(true)) {
            Ok(file) => return Ok(PoolCreation::new(path, file, Undo::Remove(path.to_path_buf()))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(fails(error)),
        }
        let existed = path.exists();
        let file = open(OpenOptions::new().create(true)).map_err(fails)?;
        let metadata = file.metadata().map_err(fails)?;
        let undo = match existed {
            false => Undo::Remove(std::fs::canonicalize(path).map_err(fails)?),
            true if metadata.is_file() => Undo::Shorten(metadata.len()),
            true => Undo::Nothing,
        };
        let creation = PoolCreation::new(path, file, undo);
        match &creation.undo {
            // Only the open shows where a dangling link leads.
            Undo::Remove(made) if medium::is_among_devices(made) => Err(no_device(path)),
            _ => Ok(creation),
        }
    }

    fn new(path: &Path, file: File, undo: Undo) -> PoolCreation {
        PoolCreation {
            path: path.to_path_buf(),
            file,
            undo,
        }
    }

    /// The open file; another handle of the same.
    pub(crate) fn file(&self) -> Result<File, PmError> {
        self.file
            .try_clone()
            .map_err(|error| PmError::io("open", &self.path, error))
    }

    /// Gives it exactly `len_bytes`. Checks first whether there is enough space, if that is to be allocated, since even
    /// a temporarily full disk harms other users of it.
    pub(crate) fn allocate(&self, len_bytes: u64, space: Space) -> Result<(), PmError> {
        if space == Space::Sparse {
            let sized = self.file.set_len(len_bytes).and_then(|()| self.file.sync_all());
            return sized.map_err(|error| PmError::io("set the length of", &self.path, error));
        }
        self.check_space(len_bytes)?;
        // Space first: the file gets its new length only when the space is there.
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len_bytes)
            .map_err(io::Error::from)
            .or_else(|error| match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => fill(&self.file, len_bytes),
                _ => Err(error),
            })
            .and_then(|()| self.file.set_len(len_bytes))
            .and_then(|()| self.file.sync_all())
            .map_err(|error| PmError::io("allocate the space for", &self.path, error))
    }

    fn check_space(&self, len_bytes: u64) -> Result<(), PmError> {
        let fails = |error: io::Error| PmError::io("examine", &self.path, error);
        let has_bytes = self.file.metadata().map_err(fails)?.blocks() * 512;
        let fs = rustix::fs::fstatvfs(&self.file).map_err(|error| fails(error.into()))?;
        // Root could often take more: the reserve that keeps a full disk from stopping the machine.
        let free_bytes = fs.f_bavail.saturating_mul(fs.f_frsize);
        let wanted_bytes = len_bytes.saturating_sub(has_bytes);
        // Some file systems do not report their size.
        if fs.f_blocks == 0 || wanted_bytes <= free_bytes {
            return Ok(());
        }
        let (wanted_mib, free_mib) = (wanted_bytes.div_ceil(1 << 20), free_bytes >> 20);
        let why = format!(
            "{wanted_mib} MiB are needed, its file system has {free_mib} MiB free; `mkfs --sparse` allocates none"
        );
        Err(PmError::io(
            "allocate the space for",
            &self.path,
            io::Error::new(io::ErrorKind::StorageFull, why),
        ))
    }

    /// It is a pool now: it gets its name, durably.
    pub(crate) fn keep(mut self) -> Result<(), PmError> {
        let named = match self.undo {
            Undo::Unnamed => name(&self.file, &self.path),
            _ => Ok(()),
        };
        let kept = named.and_then(|()| match self.undo {
            Undo::Unnamed | Undo::Remove(_) => File::open(directory(&self.path))?.sync_all(),
            Undo::Shorten(_) | Undo::Nothing => Ok(()),
        });
        kept.map_err(|error| PmError::io("name", &self.path, error))?;
        self.undo = Undo::Nothing;
        Ok(())
    }
}

impl Drop for PoolCreation {
    fn drop(&mut self) {
        // There is already an error to report.
        let _ = match &self.undo {
            Undo::Remove(path) => std::fs::remove_file(path),
            Undo::Shorten(len_bytes) => self.file.set_len(*len_bytes),
            Undo::Unnamed | Undo::Nothing => Ok(()),
        };
    }
}

fn no_device(path: &Path) -> PmError {
    PmError::Unsuitable {
        path: path.to_path_buf(),
        why: "no such device; `ferrite doctor` lists the devices. For files in DRAM use /dev/shm".into(),
    }
}

fn directory(path: &Path) -> &Path {
    path.parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// A new file without a name.
fn unnamed(dir: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(MODE)
        .custom_flags(libc::O_TMPFILE)
        .open(dir)?;
    // The file gets its name through /proc; without a /proc it could not get one.
    std::fs::symlink_metadata(through_proc(&file)).map(|_| file)
}

fn through_proc(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// Gives a file its name, unless the name is taken.
fn name(file: &File, path: &Path) -> io::Result<()> {
    Ok(rustix::fs::linkat(
        CWD,
        through_proc(file),
        CWD,
        path,
        AtFlags::SYMLINK_FOLLOW,
    )?)
}

/// Allocates by writing, where the file system supports no other way.
fn fill(file: &File, len_bytes: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < len_bytes {
        let len = (len_bytes - at).min(zeros.len() as u64) as usize;
        file.write_all_at(&zeros[..len], at)?;
        at += len as u64;
    }
    Ok(())
}
