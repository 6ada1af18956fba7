//! A program that uses only this library can name every type in a public signature: this compiles, or it does not.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferrite::volume::{Address, AddressError, Volume, VolumeError, VolumeErrorKind};
use ferrite::{
    Access, AtimePolicy, Attr, ByteRange, Cause, Cred, Dir, DirEntry, DramUse, EngineError, Error, FallocateMode, File,
    FileKind, FileSystem, FileTimes, FoldCounts, Fs, FsError, Ino, LastScrub, LockKind, LockOwner, Mapping, Metadata,
    MkfsOptions, MountOptions, NewNode, OpenFile, OpenOptions, PmError, PoolInfo, ReadDir, RecordLock, RenameMode,
    Result, RuntimeFinding, SetTime, SpaceOf, StatFs, Timestamp, Wait, XattrMode,
};

fn of_a_pool(fs: Fs, pool: &Path, engine: Arc<dyn FileSystem>) -> Result<()> {
    let mapping: Mapping = Mapping::Leaf;
    let options = MkfsOptions::default().mapping(mapping);
    let _: Fs = Fs::create_with(pool, 64 << 20, &options)?;
    let atime: AtimePolicy = MountOptions::default().atime;
    let _: Fs = Fs::open_with(pool, &MountOptions::default().atime(atime))?;
    let _: Fs = Fs::over(engine).as_user(Cred::root());
    let info: PoolInfo = fs.info().unwrap();
    let _: (FoldCounts, DramUse, Mapping) = (info.folds, info.dram, info.mapping);
    let _: (Option<LastScrub>, Vec<RuntimeFinding>) = (info.last_scrub, info.runtime_findings);
    let _: StatFs = fs.statfs()?;
    Ok(())
}

fn of_names(fs: &Fs) -> Result<()> {
    let dir: Dir = fs.open_dir("/")?;
    let mut listing: ReadDir = dir.entries()?;
    if let Some(entry) = listing.next() {
        let entry: DirEntry = entry?;
        let _: (&OsStr, PathBuf, FileKind) = (entry.file_name(), entry.path(), entry.kind());
    }
    fs.rename_with("/a", "/b", RenameMode::NoReplace)?;
    let node = NewNode {
        kind: FileKind::Fifo,
        mode: 0o600,
        rdev: 0,
    };
    dir.mknod("fifo", &node)
}

fn of_attributes(fs: &Fs) -> Result<()> {
    let metadata: Metadata = fs.metadata("/f")?;
    let attr: &Attr = metadata.attr();
    let _: (Ino, FileKind, Timestamp, SetTime) = (attr.ino, attr.kind, attr.atime, SetTime::To(attr.mtime));
    fs.set_times("/f", FileTimes::now().set_modified(SystemTime::now()))?;
    fs.access("/f", Access::READ)?;
    fs.set_xattr("/f", "user.x", "value", XattrMode::Create)?;
    let _: Vec<OsString> = fs.list_xattrs("/f")?;
    Ok(())
}

fn of_files(fs: &Fs) -> Result<()> {
    let file: File = OpenOptions::new().read(true).write(true).open(fs, "/f")?;
    file.allocate(FallocateMode::Allocate { keep_size: true }, 0, 4096)?;
    file.lock_with(LockKind::Shared, Wait::AtMost(Duration::from_secs(1)))?;
    if let Some(lock) = file.conflicting_lock(0..8, LockKind::Exclusive)? {
        let lock: RecordLock = lock;
        let _: (LockOwner, ByteRange) = (lock.owner, lock.range);
    }
    Ok(())
}

fn of_errors(error: &Error) -> Option<SpaceOf> {
    let cause: &Cause = error.cause();
    match cause {
        Cause::Operation(FsError::NoSpace(of)) => Some(*of),
        Cause::Pool(EngineError::Medium(PmError::InUse { .. })) => None,
        Cause::Volume(error) => {
            let _: (&VolumeError, &VolumeErrorKind) = (error, error.kind());
            None
        }
        _ => None,
    }
}

/// The needs of a program that takes addresses from its user.
fn of_addresses(text: &str) -> std::result::Result<Arc<dyn Volume>, VolumeError> {
    let address: Address = Address::parse(text).map_err(|error: AddressError| VolumeError::from(error))?;
    address.open(&MountOptions::look())
}

/// The parts of a custom engine.
fn of_engines(file: &dyn OpenFile, engine: &dyn FileSystem) -> ferrite::vfs::Result<()> {
    use ferrite::vfs::{DirEntry, OpenMode, SYSTEM, SetAttr};
    let _: Arc<dyn OpenFile> = engine.open(SYSTEM, file.ino(), OpenMode::read_only())?;
    engine.setattr(SYSTEM, file.ino(), &SetAttr::default())?;
    engine.readdir(SYSTEM, 1, 0, &mut |entry: &DirEntry<'_>| entry.ino == 1)
}

#[test]
fn every_name_is_there_and_handles_go_from_thread_to_thread() {
    fn shared<T: Send + Sync>() {}
    shared::<(Fs, File, Dir, Error, OpenOptions, Metadata, FileTimes)>();
    shared::<ReadDir>();
    let _ = (
        of_a_pool,
        of_names,
        of_attributes,
        of_files,
        of_errors,
        of_addresses,
        of_engines,
    );
}
