//! Deregistration of bound files: of one, and of all with the pool.
//!
//! Contents: [`one`], [`all`]. The last pin of a file may go here, so this is above `file`.

use std::sync::Arc;

use ferrite_vfs::{Result, SYSTEM};

use crate::cache::bindings::Attached;
use crate::cache::inodes::InodeMem;
use crate::file::bind;
use crate::pool::core::Core;
use crate::tree::remove;

/// Ends one binding and finalizes the file.
pub(super) fn one(core: &Core, mem: &Arc<InodeMem>, file: &Attached) -> Result<()> {
    let (has_ended, finalized) = bind::unbind(core, mem, file);
    if has_ended {
        remove::unpin(core, mem, 1);
    }
    core.told(finalized)
}

/// Ends all bindings, and takes no more. With `finalizes`, all bound files become ordinary ones again; files that
/// cannot be finalized, and all files without it, stay bound.
pub(super) fn all(core: &Core, finalizes: bool) {
    core.bindings.close();
    for file in core.bindings.attached() {
        match finalizes {
            true => {
                let mem = core.inodes.get(file.ino);
                if let Err(error) = one(core, &mem, &file) {
                    tracing::warn!(ino = file.ino.get(), %error, "a bound file was not finalized");
                }
            }
            false => drop(bind::abandon(core, &file)),
        }
    }
    let left = if finalizes { core.bindings.left() } else { Vec::new() };
    for ino in left {
        if let Err(error) = bind::finalize(core, SYSTEM, &core.inodes.get(ino)) {
            tracing::warn!(ino = ino.get(), %error, "a bound file was not finalized");
        }
    }
}
