//! Volumes: opening, making and closing them, and their space.

use std::ffi::{OsStr, c_char, c_int};

use ferrite::{Fs, Mapping, MkfsOptions, VolumeOptions};

use crate::border::{self, Grows, text};
use crate::failure::{Failure, call, given};

/// An open volume.
pub struct Volume(pub(crate) Fs);

/// The space of a volume.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Space {
    /// The size of this struct, which the caller sets.
    pub struct_size: usize,
    /// Bytes of a block, in which the following are counted.
    pub block_bytes: u64,
    /// Blocks for data and directories.
    pub blocks: u64,
    /// Free ones, the reserve included.
    pub blocks_free: u64,
    /// Free ones that new files can get.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

// SAFETY: eight-byte numbers only.
unsafe impl Grows for Space {}
const _: () = assert!(size_of::<Space>() == size_of::<usize>() + 6 * 8);

/// `NAME=VALUE,NAME=VALUE`; a name without a value is true.
fn pairs(options: &OsStr) -> Result<Vec<(&str, &str)>, Failure> {
    let text = options.to_str();
    let text = text.ok_or_else(|| Failure::new(libc::EINVAL, "the options are not UTF-8"))?;
    let words = text.split(',').filter(|word| !word.is_empty());
    Ok(words
        .map(|word| word.split_once('=').unwrap_or((word, "true")))
        .collect())
}

fn parsed(options: *const c_char) -> Result<Vec<(String, String)>, Failure> {
    if options.is_null() {
        return Ok(Vec::new());
    }
    let pairs = pairs(text(options, "the options")?)?;
    Ok(pairs
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect())
}

/// The version of the library, such as `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Opens a volume: the path of a pool, `tcp://HOST:PORT/EXPORT`, or `nvme:FILE` if the library was built with it.
///
/// `options` is NULL, or names options, separated by commas: `read_only=true|false`,
/// `durability=strict|fsync|process`, `atime=relative|never|strict`; for servers `key=FILE`, `encrypt=auto|on|off`,
/// `timeout_ms=N`. A pool belongs to one process at a time. Blocks while a pool recovers from a crash, and while a
/// server cannot be reached, up to its timeout.
///
/// Returns a volume to be closed by `ferrite_close`, or NULL. Errors: `EBUSY` if another process has the pool;
/// `EINVAL` for an unknown option; those of opening a file.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_open(address: *const c_char, options: *const c_char) -> Option<Box<Volume>> {
    call(None, || {
        let address = text(address, "the address")?;
        let options = VolumeOptions::parse(parsed(options)?)?;
        Ok(Some(Box::new(Volume(Fs::open_volume_with(address, options)?))))
    })
}

/// Makes a pool of `size_bytes` at a path, and opens it. A file that holds something is refused.
///
/// `options` is NULL, or `mapping=hashfs|cuckoo|radix|extent|leaf`, `data_checksum=true|false`, separated by commas.
///
/// Returns a volume to be closed by `ferrite_close`, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_create(path: *const c_char, size_bytes: u64, options: *const c_char) -> Option<Box<Volume>> {
    call(None, || {
        let path = text(path, "the path")?;
        let mut made = MkfsOptions::default();
        for (name, value) in parsed(options)? {
            let wrong = || Failure::new(libc::EINVAL, format!("the option {name}: no value `{value}`"));
            made = match &*name {
                "mapping" => made.mapping(Mapping::from_name(&value).ok_or_else(wrong)?),
                "data_checksum" => match &*value {
                    "true" => made.data_checksum(true),
                    "false" => made.data_checksum(false),
                    _ => return Err(wrong()),
                },
                _ => return Err(Failure::new(libc::EINVAL, format!("unknown option {name}"))),
            };
        }
        Ok(Some(Box::new(Volume(Fs::create_with(path, size_bytes, &made)?))))
    })
}

/// Closes a volume. Its files and directories may stay open, but every further call on them fails; close them, too.
///
/// The handle is gone even after an error. NULL is accepted.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_close(volume: Option<Box<Volume>>) -> c_int {
    call(-1, || {
        if let Some(volume) = volume {
            volume.0.close()?;
        }
        Ok(0)
    })
}

/// The space of a volume.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_space(volume: Option<&Volume>, space: *mut Space) -> c_int {
    call(-1, || {
        let stat = given(volume)?.0.statfs()?;
        let value = Space {
            struct_size: 0,
            block_bytes: stat.block_bytes.into(),
            blocks: stat.blocks,
            blocks_free: stat.blocks_free,
            blocks_available: stat.blocks_available,
            inodes: stat.inodes,
            inodes_free: stat.inodes_free,
        };
        border::fill(space, &value, "ferrite_statfs")?;
        Ok(0)
    })
}
