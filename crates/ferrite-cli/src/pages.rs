//! The pages of a file as `ferrite dump` shows them, read from a volume: by the command, or by the daemon on its
//! behalf.

use ferrite::volume::{DumpedPiece, Volume};
use ferrite_vfs::{Cred, Vfs};

use super::{FAILED, Failure, say};

/// Pages of the file at `path`, whose names may contain any bytes.
pub(crate) fn pages(volume: &dyn Volume, path: &[u8]) -> Result<Vec<DumpedPiece>, Failure> {
    let attr = Vfs::new(volume.fs(), Cred::root())
        .stat(&[b"/", path].concat(), false)
        .map_err(|error| Failure::new(FAILED, format!("{}: {error}", String::from_utf8_lossy(path))))?;
    Ok(volume.dump(attr.ino)?)
}

/// Shows them, as lines or as one JSON object each.
pub(crate) fn show(pages: &[DumpedPiece], as_json: bool) {
    for page in pages {
        match as_json {
            true => say(&page.json),
            false => page.lines.iter().for_each(say),
        }
    }
}
