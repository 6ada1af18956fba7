//! For how long the kernel may keep attributes.
//!
//! Contents: [`AttrValidity`], the time that goes with attributes in a reply. No other code makes one, so no reply can
//! forget the rule.
//!
//! Invariant: if a file gives rights to its users (setuid, setgid), the kernel keeps none of its attributes: it asks
//! again for each lookup and each `exec`.
//!
//! Why. A change of content clears these rights, and the engine does that as part of the change. Not every reply tells
//! the kernel:
//! * The reply to `SETATTR` (truncate, `O_TRUNC`, chown) has attributes. Before a write into its own cache, and before
//!   `fallocate` and `copy_file_range`, the kernel sends an empty `SETATTR` if the mode that it knows has the bits. So
//!   those cases are covered.
//! * A direct write (`FOPEN_DIRECT_IO`: `-o direct_io`, every mount of a server) has no such prelude. It says
//!   `FUSE_WRITE_KILL_SUIDGID`, its reply has only a length, and it makes the kernel drop its cached size and times,
//!   but not the mode (`FUSE_STATX_MODSIZE`; so it is in Linux 6.1 to 6.18). `exec` would use the old mode for as long
//!   as it may be kept.
//! * Another client's change recalls the attributes before it is made (`leased`), and drops everything.
//!
//! A notification (`FUSE_NOTIFY_INVAL_INODE`) before the reply would do as well, at a system call per write, since only
//! the engine knows whether a write cleared something; and a failed notification would leave the old mode.
//!
//! With no time to live there is nothing to recall, whatever order replies arrive in, and no thread waits for the
//! kernel. It costs a `GETATTR` for each lookup of such a file, and such files are few. File capabilities need none of
//! this: the kernel keeps no extended attributes, and asks for the capability at each `exec`.
//!
//! The rest is the kernel's: it ignores attributes that a write on the same mount has overtaken, and an `exec` whose
//! `GETATTR` meets that uses the old mode. The writer must have closed the file between that and the moment when `exec`
//! refuses files that are open for writing. `nosuid` excludes it.

use std::time::Duration;

use ferrite_vfs::{Attr, FileKind, posix};

/// How long the kernel may keep attributes; see the head of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttrValidity(Duration);

impl AttrValidity {
    /// Not at all.
    pub(crate) const NOT: AttrValidity = AttrValidity(Duration::ZERO);

    /// For these attributes, on which the engine has given a lease of `validity`.
    pub(crate) fn of(attr: &Attr, validity: Duration) -> AttrValidity {
        let gives_rights = attr.kind == FileKind::File && attr.mode & (posix::S_ISUID | posix::S_ISGID) != 0;
        AttrValidity(if gives_rights { Duration::ZERO } else { validity })
    }

    pub(crate) fn duration(self) -> Duration {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use ferrite_vfs::memfs::MemFs;
    use ferrite_vfs::{FileSystem, ROOT_INO, SYSTEM};

    use super::*;

    #[test]
    fn rights_are_not_kept() {
        let root = MemFs::new().getattr(SYSTEM, ROOT_INO).unwrap();
        let keep = |kind, mode| {
            AttrValidity::of(&Attr { kind, mode, ..root }, Duration::from_secs(9))
                .duration()
                .as_secs()
        };
        for mode in [0o4755, 0o2755, 0o6711, 0o2644] {
            assert_eq!(keep(FileKind::File, mode), 0, "{mode:o}");
        }
        assert_eq!((keep(FileKind::File, 0o755), keep(FileKind::File, 0o1644)), (9, 9));
        assert_eq!(keep(FileKind::Directory, 0o2775), 9, "no content is run");
    }
}
