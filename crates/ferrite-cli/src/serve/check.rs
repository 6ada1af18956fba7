//! Checks that the pools and directories of a plan exist. Opens nothing for writing.

use ferrite::MountOptions;
use ferrite::volume::VolumeErrorKind;
use ferrite_vfs::{FileKind, FileSystem, SYSTEM, Start};

use super::plan::{Plan, Pool, Problem};
use crate::FAILED;

/// Missing pools and directories, and those of the wrong kind.
pub(super) fn problems(plan: &Plan) -> Vec<Problem> {
    plan.pools.iter().flat_map(of_pool).collect()
}

fn of_pool(pool: &Pool) -> Vec<Problem> {
    let path = pool.address.path();
    let volume = match pool.address.open(MountOptions::inspect()) {
        Ok(volume) => volume,
        // Most likely open in the server that this file is for. Its owner has found it to be a pool.
        Err(error) if matches!(error.kind(), VolumeErrorKind::InUse { .. }) => return Vec::new(),
        Err(error) => {
            let text = match error.names_volume() {
                true => error.to_string(),
                false => format!("{}: {error}", path.display()),
            };
            return vec![Problem::new(FAILED, pool.line, text)];
        }
    };
    let wrong = pool.exports.iter().filter_map(|export| {
        let why = directory(&*volume.fs(), &export.options.path).err()?;
        Some(Problem::new(FAILED, export.line, format!("{}: {why}", path.display())))
    });
    let wrong = wrong.collect();
    // It is a private copy, so nothing can be lost.
    let _ = volume.close();
    wrong
}

/// Whether `path` is a directory; the error says why not.
pub(super) fn directory(fs: &dyn FileSystem, path: &[u8]) -> Result<(), String> {
    let shown = String::from_utf8_lossy(path);
    match fs.resolve(SYSTEM, &Start::default(), path, true) {
        Ok(attr) if attr.kind == FileKind::Directory => Ok(()),
        Ok(_) => Err(format!("{shown}: is no directory, so it cannot be exported")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}
