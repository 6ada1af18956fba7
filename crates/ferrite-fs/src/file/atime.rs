//! Access times.

use std::sync::Arc;

use ferrite_vfs::posix;

use crate::cache::inodes::InodeMem;
use crate::format::inode::Inode;
use crate::options::AtimePolicy;
use crate::pool::core::Core;
use crate::pool::tx::{Purpose, Tx};

/// Updates the access time after a read, if the mount's policy and the times require it. Has no effect on a pool that
/// cannot be changed. The data read is right whether or not the time can be recorded, so a failure is not reported to
/// the reader: the commit has stopped the engine and logged why.
pub(crate) fn touch_atime(core: &Core, inode: &Arc<InodeMem>) {
    // A frozen pool keeps its times, as on Linux: readers do not wait.
    if core.options.atime == AtimePolicy::Never || core.journal.is_frozen() || core.check_writable().is_err() {
        return;
    }
    let now = Core::now();
    let due = |loaded: &Inode| match core.options.atime {
        _ if loaded.is_read_only() || loaded.callers_flags().no_atime => false,
        AtimePolicy::Relative => posix::relatime_due(loaded.atime(), loaded.mtime(), loaded.ctime(), now),
        AtimePolicy::Strict => loaded.atime() != now,
        AtimePolicy::Never => false,
    };
    if !core.snapshot(inode).is_ok_and(|loaded| due(&loaded)) {
        return;
    }
    let _lock = inode.write();
    let Ok(old) = core.load_live(inode) else {
        return;
    };
    if !due(&old) {
        return;
    }
    let mut new = old;
    new.set_atime(now);
    let mut tx = Tx::new(core, Purpose::Background);
    tx.put_inode(inode.ino, &mut new);
    if let Err(error) = tx.commit(&[inode]) {
        tracing::debug!(ino = inode.ino.get(), %error, "an access time was not recorded");
    }
}
