//! `RawVolume`: an open volume, its directories and attributes. The Python class `ferrite.Volume` wraps it.
//!
//! Paths arrive as bytes without NUL, which the Python half has checked, and leave as bytes.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt as _, OpenOptionsExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferrite::{FileTimes, Fs, Mapping, MkfsOptions, OpenOptions, RenameMode, VolumeOptions, XattrMode};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{not_negative, of_library, path_of};
use crate::file::RawFile;
use crate::stat::{StatTuple, stat_tuple};

/// Name, mode, inode; attributes if they were asked for and could be read.
type Listed = (Vec<u8>, u32, u64, Option<StatTuple>);

fn time_of(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    match ns < 0 {
        true => UNIX_EPOCH - distance,
        false => UNIX_EPOCH + distance,
    }
}

/// An open volume.
#[pyclass(frozen, module = "ferrite._ferrite")]
pub(crate) struct RawVolume {
    fs: Mutex<Option<Arc<Fs>>>,
}

impl RawVolume {
    fn new(fs: Fs) -> RawVolume {
        RawVolume {
            fs: Mutex::new(Some(Arc::new(fs))),
        }
    }

    fn run<T: Send>(&self, py: Python<'_>, f: impl FnOnce(&Fs) -> ferrite::Result<T> + Send) -> PyResult<T> {
        let fs = self.fs.lock().clone();
        let fs = fs.ok_or_else(|| PyValueError::new_err("operation on a closed volume"))?;
        py.detach(move || f(&fs)).map_err(|error| of_library(&error))
    }
}

#[pymethods]
impl RawVolume {
    /// Opens the volume at an address.
    #[staticmethod]
    fn open(py: Python<'_>, address: &[u8], options: Vec<(String, String)>) -> PyResult<RawVolume> {
        let open = || Fs::open_volume_with(path_of(address), VolumeOptions::parse(options)?);
        py.detach(open).map(RawVolume::new).map_err(|error| of_library(&error))
    }

    /// Makes a pool and opens it.
    #[staticmethod]
    fn create(
        py: Python<'_>,
        path: &[u8],
        size: i64,
        mapping: Option<&str>,
        data_checksum: bool,
    ) -> PyResult<RawVolume> {
        let path = path_of(path);
        let size = not_negative(size, "the size", path)?;
        let mut options = MkfsOptions::default();
        options.data_checksum = data_checksum;
        if let Some(name) = mapping {
            let found = Mapping::from_name(name).ok_or_else(|| {
                let known: Vec<&str> = Mapping::ALL.iter().map(|mapping| mapping.name()).collect();
                PyValueError::new_err(format!("mapping must be one of {}, not {name}", known.join(", ")))
            })?;
            options = options.mapping(found);
        }
        py.detach(|| Fs::create_with(path, size, &options))
            .map(RawVolume::new)
            .map_err(|error| of_library(&error))
    }

    /// Closes the volume; calls that have begun finish first. Further calls do nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(fs) = self.fs.lock().take() else {
            return Ok(());
        };
        py.detach(move || Fs::clone(&fs).close())
            .map_err(|error| of_library(&error))
    }

    /// Opens a file. The flags are those of `os`.
    fn open_file(&self, py: Python<'_>, path: &[u8], flags: i32, mode: u32) -> PyResult<RawFile> {
        let path = path_of(path);
        let has = |flag: i32| flags & flag == flag;
        let access = flags & libc::O_ACCMODE;
        let mut options = OpenOptions::new();
        options
            .read(access != libc::O_WRONLY)
            .write(access != libc::O_RDONLY)
            .append(has(libc::O_APPEND))
            .create(has(libc::O_CREAT))
            .truncate(has(libc::O_TRUNC))
            .no_follow(has(libc::O_NOFOLLOW))
            .mode(mode);
        if has(libc::O_TMPFILE) {
            options.custom_flags(flags & (libc::O_TMPFILE | libc::O_EXCL));
        }
        if has(libc::O_CREAT | libc::O_EXCL) {
            options.create_new(true);
        }
        let file = self.run(py, |fs| options.open(fs, path))?;
        Ok(RawFile::new(file, path.to_owned()))
    }

    /// The entries of a directory: name, mode, inode, and attributes on request.
    fn list(&self, py: Python<'_>, path: &[u8], with_stat: bool) -> PyResult<Vec<Listed>> {
        self.run(py, |fs| {
            let entries = match with_stat {
                true => fs.read_dir_with_metadata(path_of(path))?,
                false => fs.read_dir(path_of(path))?,
            };
            let mut found = Vec::new();
            for entry in entries {
                let entry = entry?;
                // An entry removed meanwhile has no attributes.
                let attributes = with_stat.then(|| entry.metadata().ok()).flatten();
                found.push((
                    entry.file_name().into_vec(),
                    entry.file_type()?.kind().mode_bits(),
                    entry.ino(),
                    attributes.as_ref().map(stat_tuple),
                ));
            }
            Ok(found)
        })
    }

    /// Attributes; see `StatTuple`.
    fn stat(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<StatTuple> {
        let found = self.run(py, |fs| match follow {
            true => fs.metadata(path_of(path)),
            false => fs.symlink_metadata(path_of(path)),
        })?;
        Ok(stat_tuple(&found))
    }

    /// Makes a directory.
    fn mkdir(&self, py: Python<'_>, path: &[u8], mode: u32) -> PyResult<()> {
        self.run(py, |fs| fs.create_dir_with(path_of(path), mode))
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, |fs| fs.remove_dir(path_of(path)))
    }

    /// Removes a directory and all below it.
    fn rmtree(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, |fs| fs.remove_dir_all(path_of(path)))
    }

    /// Removes a name of a file.
    fn remove(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        self.run(py, |fs| fs.remove_file(path_of(path)))
    }

    /// Renames.
    fn rename(&self, py: Python<'_>, old: &[u8], new: &[u8], replace: bool) -> PyResult<()> {
        let mode = match replace {
            true => RenameMode::Replace,
            false => RenameMode::NoReplace,
        };
        self.run(py, |fs| fs.rename_with(path_of(old), path_of(new), mode))
    }

    /// Adds a name to a file.
    fn link(&self, py: Python<'_>, original: &[u8], link: &[u8]) -> PyResult<()> {
        self.run(py, |fs| fs.hard_link(path_of(original), path_of(link)))
    }

    /// Copies a file; returns its length.
    fn copy(&self, py: Python<'_>, original: &[u8], copy: &[u8]) -> PyResult<u64> {
        self.run(py, |fs| fs.copy(path_of(original), path_of(copy)))
    }

    /// Clones a file or a tree.
    fn clone_tree(&self, py: Python<'_>, original: &[u8], clone: &[u8]) -> PyResult<()> {
        self.run(py, |fs| fs.clone_tree(path_of(original), path_of(clone)))
    }

    /// Makes a symbolic link.
    fn symlink(&self, py: Python<'_>, target: &[u8], link: &[u8]) -> PyResult<()> {
        self.run(py, |fs| fs.symlink(path_of(target), path_of(link)))
    }

    /// The target of a symbolic link.
    fn readlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<Vec<u8>> {
        let target = self.run(py, |fs| fs.read_link(path_of(path)))?;
        Ok(target.into_os_string().into_vec())
    }

    /// Sets the permission bits.
    fn chmod(&self, py: Python<'_>, path: &[u8], mode: u32, follow: bool) -> PyResult<()> {
        self.run(py, |fs| match follow {
            true => fs.set_mode(path_of(path), mode),
            false => fs.set_mode_nofollow(path_of(path), mode),
        })
    }

    /// Sets owner and group; None leaves one as it is.
    fn chown(&self, py: Python<'_>, path: &[u8], uid: Option<u32>, gid: Option<u32>, follow: bool) -> PyResult<()> {
        self.run(py, |fs| match follow {
            true => fs.chown(path_of(path), uid, gid),
            false => fs.lchown(path_of(path), uid, gid),
        })
    }

    /// Sets both times, in nanoseconds; None is now.
    fn utime(&self, py: Python<'_>, path: &[u8], ns: Option<(i64, i64)>, follow: bool) -> PyResult<()> {
        let times = match ns {
            Some((accessed, modified)) => FileTimes::new()
                .set_accessed(time_of(accessed))
                .set_modified(time_of(modified)),
            None => FileTimes::now(),
        };
        self.run(py, |fs| match follow {
            true => fs.set_times(path_of(path), times),
            false => fs.set_times_nofollow(path_of(path), times),
        })
    }

    /// Sets the length of a file.
    fn truncate(&self, py: Python<'_>, path: &[u8], size: i64) -> PyResult<()> {
        let size = not_negative(size, "the size", path_of(path))?;
        self.run(py, |fs| fs.truncate(path_of(path), size))
    }

    /// The value of an extended attribute.
    fn getxattr(&self, py: Python<'_>, path: &[u8], name: &[u8], follow: bool) -> PyResult<Vec<u8>> {
        let name = path_of(name).as_os_str();
        self.run(py, |fs| match follow {
            true => fs.get_xattr(path_of(path), name),
            false => fs.get_xattr_nofollow(path_of(path), name),
        })
    }

    /// Sets an extended attribute. The flags are `os.XATTR_CREATE` and `os.XATTR_REPLACE`.
    fn setxattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        flags: i32,
        follow: bool,
    ) -> PyResult<()> {
        let mode = match flags {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => {
                let text = format!("flags must be 0, XATTR_CREATE or XATTR_REPLACE, not {flags}");
                return Err(PyValueError::new_err(text));
            }
        };
        let name = path_of(name).as_os_str();
        self.run(py, |fs| match follow {
            true => fs.set_xattr(path_of(path), name, value, mode),
            false => fs.set_xattr_nofollow(path_of(path), name, value, mode),
        })
    }

    /// The names of the extended attributes.
    fn listxattr(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<Vec<Vec<u8>>> {
        let names = self.run(py, |fs| match follow {
            true => fs.list_xattrs(path_of(path)),
            false => fs.list_xattrs_nofollow(path_of(path)),
        })?;
        Ok(names.iter().map(|name| name.as_bytes().to_vec()).collect())
    }

    /// Removes an extended attribute.
    fn removexattr(&self, py: Python<'_>, path: &[u8], name: &[u8], follow: bool) -> PyResult<()> {
        let name = path_of(name).as_os_str();
        self.run(py, |fs| match follow {
            true => fs.remove_xattr(path_of(path), name),
            false => fs.remove_xattr_nofollow(path_of(path), name),
        })
    }

    /// Block size, blocks, free, available, inodes, free inodes, identity.
    fn statvfs(&self, py: Python<'_>) -> PyResult<(u32, u64, u64, u64, u64, u64, u64)> {
        let found = self.run(py, Fs::statfs)?;
        Ok((
            found.block_bytes,
            found.blocks,
            found.blocks_free,
            found.blocks_available,
            found.inodes,
            found.inodes_free,
            found.fsid,
        ))
    }

    /// Facts about a pool in this process; empty for other volumes.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = PyDict::new(py);
        if let Some(info) = self.run(py, |fs| Ok(fs.info()))? {
            facts.set_item("uuid", info.uuid)?;
            facts.set_item("format_version", info.format_version)?;
            facts.set_item("medium", info.medium)?;
            facts.set_item("durability", info.durability)?;
            facts.set_item("mapping", info.mapping.name())?;
            facts.set_item("data_checksum", info.data_checksum)?;
            facts.set_item("size_bytes", info.size_bytes)?;
            facts.set_item("block_bytes", info.block_bytes)?;
            facts.set_item("blocks", info.blocks)?;
            facts.set_item("blocks_free", info.blocks_free)?;
            facts.set_item("inodes", info.inodes)?;
            facts.set_item("inodes_free", info.inodes_free)?;
            facts.set_item("was_clean", info.was_clean)?;
            facts.set_item("mounts", info.mounts)?;
            facts.set_item("failed", info.failed)?;
            facts.set_item("damage", info.damage)?;
        }
        Ok(facts)
    }
}
