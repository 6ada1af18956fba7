//! The pages of a file as `ferrite dump` shows them, read from an engine: by the command, or by the daemon on its
//! behalf.

use std::sync::Arc;

use ferrite_fs::{Engine, PageDump};
use ferrite_vfs::{Cred, Vfs};

use super::{FAILED, Failure};

/// Pages of the file at `path`, whose names may contain any bytes.
pub(crate) fn pages(engine: &Engine, path: &[u8]) -> Result<Vec<PageDump>, Failure> {
    let attr = Vfs::new(Arc::new(engine.clone()), Cred::root())
        .stat(&[b"/", path].concat(), false)
        .map_err(|error| Failure::new(FAILED, format!("{}: {error}", String::from_utf8_lossy(path))))?;
    Ok(engine.dump(attr.ino)?)
}
