//! The surface of the library: a program that uses only this library can name every type in a public signature, and a
//! name comes or goes only with a change of the list here.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferrite::volume::{Address, AddressError, Volume, VolumeError, VolumeErrorKind};
use ferrite::{
    Access, AtimePolicy, ByteRange, Cause, Cred, Dir, DirEntry, DramUse, Durability, Error, FallocateMode, File,
    FileKind, FileTimes, FileType, Fs, LastScrub, LockKind, LockOwner, LogMerges, Mapping, Metadata, MkfsOptions,
    MountOptions, NewNode, OpenOptions, OperationError, PoolInfo, ReadDir, RecordLock, RenameMode, Result,
    RuntimeFinding, SpaceOf, StatFs, VolumeOptions, Wait, XattrMode,
};

/// The names at the root of the library, with all features.
const NAMES: &[&str] = &[
    "Access",
    "AtimePolicy",
    "Borrowed",
    "ByteRange",
    "Cause",
    "ClientOptions",
    "Completion",
    "Cred",
    "Dir",
    "DirEntry",
    "DramUse",
    "Durability",
    "Encrypt",
    "Error",
    "FallocateMode",
    "File",
    "FileKind",
    "FileTimes",
    "FileType",
    "Fs",
    "Groups",
    "Key",
    "LastScrub",
    "LockKind",
    "LockOwner",
    "LogMerges",
    "Mapping",
    "Metadata",
    "MkfsOptions",
    "MountOptions",
    "NewNode",
    "OpenOptions",
    "OperationError",
    "PoolInfo",
    "Queue",
    "ReadDir",
    "RecordLock",
    "RenameMode",
    "Result",
    "RuntimeFinding",
    "SpaceOf",
    "StatFs",
    "VolumeOptions",
    "Wait",
    "XattrMode",
    "log",
    "volume",
];

#[test]
fn the_names_are_those_of_the_list() {
    let source = include_str!("../src/lib.rs");
    let code: String = source
        .lines()
        .map(|line| line.split("//").next().unwrap())
        .collect::<Vec<_>>()
        .join(" ");
    let mut found = BTreeSet::new();
    for item in code.split(';') {
        let Some((_, item)) = item.split_once("pub ") else {
            continue;
        };
        let Some((word, rest)) = item.trim().split_once(' ') else {
            continue;
        };
        assert!(word == "use" || word == "mod", "{item}: move it to a module");
        assert!(!rest.contains(" as ") && !rest.contains('*'), "{item}: list the names");
        let names = rest.rsplit("::").next().unwrap();
        found.extend(names.trim_matches(['{', '}', ' ']).split(',').map(str::trim));
    }
    found.remove("");
    let listed: BTreeSet<&str> = NAMES.iter().copied().collect();
    let [new, gone] = [found.difference(&listed), listed.difference(&found)].map(Vec::from_iter);
    assert!(new.is_empty() && gone.is_empty(), "new: {new:?}; gone: {gone:?}");
}

/// No public signature has a type of an engine: `pool` and `info` know one; `pool` passes on its options.
#[test]
fn no_type_of_an_engine_is_public() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in std::fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let names_one = [
                "ferrite_fs",
                "ferrite_pm",
                "ferrite_map",
                "ferrite_nvme",
                "ferrite_transport",
            ]
            .iter()
            .any(|name| line.contains(name));
            let is_public = line.trim_start().starts_with("pub ");
            let is_options = line.contains("pub use ferrite_fs::{") && line.contains("Options");
            assert!(
                !names_one || !is_public || is_options,
                "{}:{}: {line}",
                path.display(),
                number + 1
            );
        }
    }
}

fn of_a_pool(fs: Fs, pool: &Path) -> Result<()> {
    let mapping: Mapping = Mapping::Leaf;
    let options = MkfsOptions::default().mapping(mapping);
    let _: Fs = Fs::create_with(pool, 64 << 20, &options)?;
    let mount: MountOptions = MountOptions::default();
    let (atime, durability): (AtimePolicy, Durability) = (mount.atime, mount.durability);
    let _: Fs = Fs::open_with(pool, &MountOptions::default().atime(atime).durability(durability))?;
    let _: Fs = Fs::open_volume_with(pool, VolumeOptions::new().read_only(true))?;
    let info: PoolInfo = fs.info().unwrap();
    let _: (LogMerges, DramUse, Mapping) = (info.log_merges, info.dram, info.mapping);
    let _: (Option<LastScrub>, Vec<RuntimeFinding>) = (info.last_scrub, info.runtime_findings);
    let _: StatFs = fs.as_user(Cred::root()).statfs()?;
    Ok(())
}

fn of_names(fs: &Fs) -> Result<()> {
    let dir: Dir = fs.open_dir("/")?;
    let mut listing: ReadDir = dir.entries()?;
    if let Some(entry) = listing.next() {
        let entry: DirEntry = entry?;
        let _: (OsString, PathBuf, u64) = (entry.file_name(), entry.path(), entry.ino());
        let (kind, metadata): (FileType, Metadata) = (entry.file_type()?, entry.metadata()?);
        let _: (FileKind, bool, u64) = (kind.kind(), kind.is_fifo(), metadata.ino());
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
    let _: (Permissions, SystemTime, u32) = (metadata.permissions(), metadata.created()?, metadata.uid());
    fs.set_times("/f", FileTimes::now().set_modified(SystemTime::now()))?;
    fs.access("/f", Access::READ)?;
    fs.set_xattr("/f", "user.x", "value", XattrMode::Create)?;
    let _: Vec<OsString> = fs.list_xattrs("/f")?;
    Ok(())
}

fn of_files(fs: &Fs) -> Result<()> {
    let file: File = OpenOptions::new().read(true).write(true).mode(0o600).open(fs, "/f")?;
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
        Cause::Operation(error) => {
            let error: &OperationError = error;
            error.out_of()
        }
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
    address.open(MountOptions::inspect())
}

#[test]
fn every_name_is_there_and_handles_go_from_thread_to_thread() {
    fn shared<T: Send + Sync>() {}
    shared::<(Fs, File, Dir, Error, OpenOptions, Metadata, FileTimes, VolumeOptions)>();
    shared::<(ReadDir, DirEntry)>();
    let _ = (of_a_pool, of_names, of_attributes, of_files, of_errors, of_addresses);
}
