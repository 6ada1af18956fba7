//! Devices in memory, and NVMe engines on them.
//!
//! Invariant: an engine ends before its devices, and these before the directory that holds their content.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ferrite_blob::device::Device;
use ferrite_blob::device::uring::{Options, Reactor, Uring, Waiting};
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_buffers::Buffer;
use ferrite_meta::{Backend, MetaStore, RocksStore};
use ferrite_nvme::{MetaBlobs, NvmeFs};
use ferrite_vfs::{FileSystem, NewFile, OpenFile, OpenMode, ROOT_INO, SYSTEM};

use crate::error::LabError;
use crate::figures::rufs::{LARGE_BYTES, Local, buffer, transfer, write_whole};
use crate::peers::{Ext4, FILE_BYTES};

const META_BYTES: u64 = 256 << 20;
const DATA_BYTES: u64 = 2 * FILE_BYTES;
const POOL: [u8; 16] = [7; 16];

/// A file behind a block device, which is removed when this value is dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None` if this process may not have one.
    fn new(file: &Path) -> Option<Loop> {
        let found = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .ok()?;
        let path = String::from_utf8(found.stdout).ok()?;
        found.status.success().then(|| Loop(path.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A process that still has it open keeps it until then.
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

/// See the module's head.
pub(super) struct TestBed {
    // In this order: what is used, and what it lies on.
    reactor: Arc<Reactor>,
    ext4: Result<Ext4, LabError>,
    loops: Vec<Loop>,
    lacks_loops: bool,
    dir: tempfile::TempDir,
}

impl TestBed {
    pub(super) fn new() -> Result<TestBed, LabError> {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
        Ok(TestBed {
            reactor: Reactor::start(Waiting::Sleeping)?,
            ext4: Ext4::new(dir.path()),
            loops: Vec::new(),
            lacks_loops: false,
            dir,
        })
    }

    /// The root of a kernel's file system on a device like the others, if it exists.
    pub(super) fn ext4(&self) -> Option<&Path> {
        self.ext4.as_ref().ok().map(Ext4::root)
    }

    /// The remark about it for readers.
    pub(super) fn note(&self) -> String {
        let kind = match self.lacks_loops {
            true => "files in memory, since this process may not set up loop devices",
            false => "loop devices over files in memory",
        };
        let ext4 = match &self.ext4 {
            Ok(_) => "ext4 has one of its own.".into(),
            Err(why) => format!("ext4 left out: {why}."),
        };
        format!(
            "Devices are {kind}, which are taken to write whole pages, as NVMe drives do. The engine uses them through \
             io_uring, with a reactor that sleeps. {ext4} Every write of the engine is durable when it returns."
        )
    }

    /// A device of zeros.
    pub(super) fn disk(&mut self, name: &str, len_bytes: u64) -> Result<PathBuf, LabError> {
        let path = self.dir.path().join(name);
        std::fs::File::create(&path)?.set_len(len_bytes)?;
        let Some(disk) = Loop::new(&path) else {
            self.lacks_loops = true;
            return Ok(path);
        };
        self.loops.push(disk);
        Ok(self.loops[self.loops.len() - 1].0.clone())
    }

    fn device(&mut self, name: &str, len_bytes: u64) -> Result<Uring, LabError> {
        let path = self.disk(name, len_bytes)?;
        let mut options = Options::default();
        options.whole_pages = Some(true);
        Ok(Uring::open(&path, &self.reactor, &options)?)
    }

    /// An engine on a device for data, with RocksDB in a directory, or else on a blob store of its own.
    pub(super) fn engine(&mut self, name: &str, dir: Option<PathBuf>, is_sync: bool) -> Result<Server, LabError> {
        let backend = match dir {
            Some(dir) => Backend::Directory(dir),
            None => {
                let device = self.device(&format!("{name}-meta"), META_BYTES)?;
                format(&device, 0)?;
                Backend::Blobs(Arc::new(MetaBlobs::open(Box::new(device))?))
            }
        };
        let options = ferrite_meta::Options {
            create: true,
            sync: is_sync,
            reserve_bytes: 0,
            ..ferrite_meta::Options::default()
        };
        let meta = RocksStore::open(backend, &options)?;
        let device = self.device(&format!("{name}-data"), DATA_BYTES)?;
        format(&device, 0)?;
        Server::new(Box::new(meta), vec![Box::new(device)])
    }
}

/// Makes an empty store, the pool's data store of that index.
pub(super) fn format(device: &dyn Device, index: usize) -> Result<(), LabError> {
    let options = FormatOptions {
        store: [index as u8 + 1; 16],
        pool: POOL,
        index: index as u16,
        checksums: false,
        shares_clusters: false,
    };
    Ok(BlobStore::format(device, &options)?)
}

/// An engine, which is closed when this value is dropped.
pub(super) struct Server {
    pub(super) fs: NvmeFs,
}

impl Server {
    /// A new file system on devices that have been formatted.
    pub(super) fn new(meta: Box<dyn MetaStore>, devices: Vec<Box<dyn Device>>) -> Result<Server, LabError> {
        ferrite_nvme::format(&*meta, POOL, [9; 16], devices.len() as u16)?;
        let mut stores = Vec::new();
        for device in devices {
            stores.push(Some(BlobStore::open(device, false)?));
        }
        let fs = ferrite_nvme::assemble(meta, stores, ferrite_nvme::Options::default())?;
        Ok(Server { fs })
    }

    /// A new file of this length, fully written.
    pub(super) fn file(&self, name: &str, len_bytes: u64) -> Result<Arc<dyn OpenFile>, LabError> {
        let new = NewFile {
            mode: 0o644,
            open: OpenMode::read_write(),
            exclusive: true,
        };
        let file = self.fs.create(SYSTEM, ROOT_INO, name.as_bytes(), &new)?.file;
        let chunk = vec![7; LARGE_BYTES];
        for offset in (0..len_bytes).step_by(LARGE_BYTES) {
            write_whole(&*file, offset, &chunk)?;
        }
        Ok(file)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The measurements are complete, and the pool is removed anyway.
        let _ = self.fs.close();
    }
}

/// A reader and writer with its own memory.
pub(super) trait Side: Send {
    /// One complete read or write.
    fn transfer(&mut self, is_write: bool, offset: u64, len: usize) -> Result<(), LabError>;
}

impl Side for Local {
    fn transfer(&mut self, is_write: bool, offset: u64, len: usize) -> Result<(), LabError> {
        Local::transfer(self, is_write, offset, len)
    }
}

/// A file of the engine.
pub(super) struct Ours {
    file: Arc<dyn OpenFile>,
    buffer: Buffer,
}

impl Ours {
    pub(super) fn new(file: &Arc<dyn OpenFile>, len_max: usize) -> Result<Ours, LabError> {
        Ok(Ours {
            file: Arc::clone(file),
            buffer: buffer(len_max)?,
        })
    }
}

impl Side for Ours {
    fn transfer(&mut self, is_write: bool, offset: u64, len: usize) -> Result<(), LabError> {
        transfer(&*self.file, is_write, offset, &mut self.buffer[..len])
    }
}
