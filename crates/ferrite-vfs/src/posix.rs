//! The rules POSIX and Linux tie to operations, as pure functions: permissions, ownership, setuid and setgid,
//! access times. Engines and [`crate::Vfs`] call them, so that each rule exists once.

use crate::{
    Attr, BadArgument, Cred, FileKind, FsError, NAME_MAX, OpenMode, Result, SetAttr, SetTime, Timestamp, Unsupported,
};

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_ISVTX: u32 = 0o1000;
const S_IXGRP: u32 = 0o010;
const DAY_NS: i64 = 86_400 * 1_000_000_000;

/// What an access check asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Read the content, or list the directory.
    pub read: bool,
    /// Change the content, or the directory's entries.
    pub write: bool,
    /// Execute, or search the directory.
    pub exec: bool,
}

impl Access {
    /// Reading.
    pub const READ: Access = Access {
        read: true,
        write: false,
        exec: false,
    };
    /// Writing.
    pub const WRITE: Access = Access {
        read: false,
        write: true,
        exec: false,
    };
    /// Executing or searching.
    pub const EXEC: Access = Access {
        read: false,
        write: false,
        exec: true,
    };
    /// Changing a directory's entries.
    pub const WRITE_EXEC: Access = Access {
        read: false,
        write: true,
        exec: true,
    };
}

/// Checks one path component: 1 to 255 bytes, without `/` and NUL, neither `.` nor `..`.
pub fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(FsError::Invalid(BadArgument::ReservedName)),
        _ if name.len() > NAME_MAX => Err(FsError::NameTooLong),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(FsError::Invalid(BadArgument::NameBytes)),
        _ => Ok(()),
    }
}

/// Group and permission bits of what `cred` creates with `mode` in `parent`. In a setgid directory the group is the
/// directory's, and subdirectories are setgid too. A new file keeps setgid with group execution only if its creator is
/// root or a member of the group.
pub fn inherit(parent: &Attr, cred: &Cred, mode: u32, is_dir: bool) -> (u32, u32) {
    let mode = mode & 0o7777;
    if parent.mode & S_ISGID == 0 {
        return (cred.gid, mode);
    }
    let gid = parent.gid;
    if is_dir {
        return (gid, mode | S_ISGID);
    }
    let asks = mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
    let drop = asks && !cred.is_root() && !cred.in_group(gid);
    (gid, if drop { mode & !S_ISGID } else { mode })
}

/// Permission bits after an unprivileged change of content or owner: without setuid, and without setgid where the group
/// may execute or (`by_stranger`) the caller is not in the group. Elsewhere the bit means mandatory locking, and
/// members keep it, as on Linux since 6.2. Directories keep both.
pub fn kill_priv(kind: FileKind, mode: u32, by_stranger: bool) -> u32 {
    if kind == FileKind::Directory {
        return mode;
    }
    let setgid = if by_stranger || mode & S_IXGRP != 0 { S_ISGID } else { 0 };
    mode & !(S_ISUID | setgid)
}

impl SetAttr {
    /// The permission bits that result, besides what is asked for.
    pub fn killed(&self, kind: FileKind, mode: u32) -> u32 {
        match self.kill_priv {
            true => kill_priv(kind, mode, self.by_stranger),
            false => mode,
        }
    }
}

impl OpenMode {
    /// The permission bits that result when the content is changed.
    pub fn killed(&self, kind: FileKind, mode: u32) -> u32 {
        match self.kill_priv {
            true => kill_priv(kind, mode, self.by_stranger),
            false => mode,
        }
    }
}

/// Whether `cred` is neither root nor in the group of an inode with these attributes.
pub fn is_stranger(attr: &Attr, cred: &Cred) -> bool {
    !cred.is_root() && !cred.in_group(attr.gid)
}

/// Checks permission bits: owner, then group, then others. Root may do anything except execute a file that nobody may
/// execute.
pub fn may_access(attr: &Attr, cred: &Cred, want: Access) -> Result<()> {
    if cred.is_root() {
        let runnable = attr.kind == FileKind::Directory || attr.mode & 0o111 != 0;
        return if want.exec && !runnable {
            Err(FsError::AccessDenied)
        } else {
            Ok(())
        };
    }
    let shift = match () {
        () if attr.uid == cred.uid => 6,
        () if cred.in_group(attr.gid) => 3,
        () => 0,
    };
    let wanted = u32::from(want.read) * 4 + u32::from(want.write) * 2 + u32::from(want.exec);
    if attr.mode >> shift & wanted == wanted {
        Ok(())
    } else {
        Err(FsError::AccessDenied)
    }
}

/// Whether `cred` may remove or rename `victim`, an entry of `dir`. It needs write permission on the directory, and in
/// a sticky directory it must own one of the two.
pub fn may_delete(dir: &Attr, victim: &Attr, cred: &Cred) -> Result<()> {
    may_access(dir, cred, Access::WRITE_EXEC)?;
    let sticky = dir.mode & S_ISVTX != 0;
    if sticky && !cred.is_root() && cred.uid != dir.uid && cred.uid != victim.uid {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Checks a change of attributes by `cred`, and returns it with its consequences. A chown clears setuid and setgid
/// (root's too, as on Linux), and so does a truncate by anybody but root. A chmod by a non-member of the group drops
/// setgid (of directories too, as the kernel does for a mount).
pub fn may_setattr(attr: &Attr, cred: &Cred, set: &SetAttr) -> Result<SetAttr> {
    let mut set = *set;
    if set.size.is_some() {
        match attr.kind {
            FileKind::File => {}
            // For every caller: a size on what has none is refused before permissions are checked.
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid(BadArgument::NoSize)),
        }
    }
    let owner = cred.is_root() || cred.uid == attr.uid;
    if let Some(mode) = set.mode {
        if !owner {
            return Err(FsError::NotPermitted);
        }
        let gid = set.gid.unwrap_or(attr.gid);
        if !cred.is_root() && !cred.in_group(gid) {
            set.mode = Some(mode & !S_ISGID);
        }
    }
    if set.uid.is_some() || set.gid.is_some() {
        let keeps_owner = set.uid.is_none_or(|uid| uid == attr.uid);
        let joins_own_group = set.gid.is_none_or(|gid| gid == attr.gid || cred.in_group(gid));
        let by_owner = owner && keeps_owner && joins_own_group;
        if !(cred.is_root() || by_owner) {
            return Err(FsError::NotPermitted);
        }
        // Root's chown too: the new owner did not write what runs with the new owner's rights.
        set.kill_priv |= set.mode.is_none();
    }
    if set.size.is_some() {
        may_access(attr, cred, Access::WRITE)?;
        set.kill_priv |= !cred.is_root() && set.mode.is_none();
    }
    set.by_stranger |= set.kill_priv && is_stranger(attr, cred);
    for time in [set.atime, set.mtime].into_iter().flatten() {
        let both_now = set.atime == Some(SetTime::Now) && set.mtime == Some(SetTime::Now);
        match time {
            _ if owner => {}
            SetTime::Now if both_now || set.size.is_some() => may_access(attr, cred, Access::WRITE)?,
            _ => return Err(FsError::NotPermitted),
        }
    }
    Ok(set)
}

/// Whether a read updates the access time under `relatime`: if it is not after the last change, or is a day old.
pub fn relatime_due(atime: Timestamp, mtime: Timestamp, ctime: Timestamp, now: Timestamp) -> bool {
    atime <= mtime || atime <= ctime || now.0.saturating_sub(atime.0) >= DAY_NS
}
/// Checks the name of an extended attribute: one of the namespaces `user`, `trusted` and `security`, and a name in it.
/// `system` holds POSIX ACLs, which are not supported and must not pass for plain attributes: a kernel would trust
/// them.
pub fn check_xattr_name(name: &[u8]) -> Result<()> {
    const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    match NAMESPACES.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        None => Err(FsError::NotSupported(Unsupported::AttributeNamespace)),
        Some(b"") => Err(FsError::Invalid(BadArgument::BareNamespace)),
        Some(_) => Ok(()),
    }
}
