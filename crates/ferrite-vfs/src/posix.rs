//! The rules POSIX and Linux tie to operations, as pure functions: permissions, ownership, setuid and setgid,
//! access times. Engines and [`crate::Vfs`] call them, so that each rule exists once.

use crate::{
    Attr, BadArgument, Cred, FileKind, FsError, NAME_MAX, OpenMode, RenameMode, Result, SetAttr, SetTime, Timestamp,
    Unsupported, XATTR_LIST_MAX, XATTR_SPACE_BYTES,
};

/// The file runs with its owner's rights.
pub const S_ISUID: u32 = 0o4000;
/// The file runs with its group's rights; of a directory: new entries get its group.
pub const S_ISGID: u32 = 0o2000;
/// The extended attribute with the capabilities of those who run a file.
pub const CAPABILITY: &[u8] = b"security.capability";
const S_ISVTX: u32 = 0o1000;
const S_IXGRP: u32 = 0o010;
const DAY_NS: i64 = 86_400 * 1_000_000_000;

/// The id of no user and no group: `chown(2)` means "no change" with it, a kernel "an unknown user".
pub const NO_ID: u32 = u32::MAX;

/// The permissions that an access check asks for.
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

/// The attributes that a new file gets from its directory and its creator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inherited {
    /// Its group.
    pub gid: u32,
    /// Its permission bits.
    pub mode: u32,
}

/// Group and permission bits of a file that `cred` creates with `mode` in `parent`. In a setgid directory the group is
/// the directory's, and subdirectories are setgid too. A new file keeps setgid with group execution only if its creator
/// is root or a member of the group.
pub fn inherit(parent: &Attr, cred: &Cred, mode: u32, is_dir: bool) -> Inherited {
    let mode = mode & 0o7777;
    if parent.mode & S_ISGID == 0 {
        return Inherited { gid: cred.gid, mode };
    }
    let gid = parent.gid;
    if is_dir {
        return Inherited {
            gid,
            mode: mode | S_ISGID,
        };
    }
    let asks = mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
    let drop = asks && !cred.is_root() && !cred.in_group(gid);
    let mode = if drop { mode & !S_ISGID } else { mode };
    Inherited { gid, mode }
}

/// Permission bits after an unprivileged change of content or owner: without setuid, and without setgid where the group
/// may execute or (`outside_group`) the caller is not in the group. Elsewhere the bit means mandatory locking, and
/// members keep it, as on Linux since 6.2. Directories keep both.
pub fn kill_priv(kind: FileKind, mode: u32, outside_group: bool) -> u32 {
    if kind == FileKind::Directory {
        return mode;
    }
    let setgid = if outside_group || mode & S_IXGRP != 0 {
        S_ISGID
    } else {
        0
    };
    mode & !(S_ISUID | setgid)
}

/// [`kill_priv`] for a change by `cred` of an inode that belongs to group `gid`. Looks up groups only if the result
/// depends on them.
pub fn kill_priv_by(cred: &Cred, kind: FileKind, mode: u32, gid: u32) -> u32 {
    let depends = kind != FileKind::Directory && mode & (S_ISGID | S_IXGRP) == S_ISGID;
    let outside_group = depends && !cred.is_root() && !cred.in_group(gid);
    kill_priv(kind, mode, outside_group)
}

/// Whether a change of attributes removes the file's capabilities ([`CAPABILITY`]; directories keep them): a new size
/// does, and any change of the owner, whoever makes it. So does every write that is not empty, and every `fallocate`.
pub fn takes_capability(set: &SetAttr) -> bool {
    set.size.is_some() || set.uid.is_some() || set.gid.is_some() || set.kill_priv
}

/// Checks permission bits: owner, then group, then others. Root may do anything except execute a file without any
/// execute bit.
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

/// Refuses [`NO_ID`] as owner or group, whoever asks: the kernel and `chown(2)` mean "no change" with it, and a file
/// that had it would belong to callers whose user is unknown.
pub fn check_owner(set: &SetAttr) -> Result<()> {
    match set.uid == Some(NO_ID) || set.gid == Some(NO_ID) {
        true => Err(FsError::Invalid(BadArgument::NoId)),
        false => Ok(()),
    }
}

/// Checks a change of attributes by `cred`, and returns it with its consequences. A chown clears setuid and setgid
/// (root's too, as on Linux), and so does a truncate by any other user than root. A chmod by a non-member of the group
/// drops setgid (of directories too, as the kernel does for a mount). A symbolic link itself has no mode to change. A
/// caller that has the file open for writing may set its size.
pub fn may_setattr(attr: &Attr, cred: &Cred, set: &SetAttr, opened_for_writing: bool) -> Result<SetAttr> {
    let mut set = *set;
    if set.size.is_some() {
        match attr.kind {
            FileKind::File => {}
            // For every caller: a size for an inode that has none is refused before permissions are checked.
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid(BadArgument::NoSize)),
        }
    }
    let owner = cred.is_root() || cred.uid == attr.uid;
    if set.mode.is_some() && attr.kind == FileKind::Symlink {
        return Err(FsError::NotSupported(Unsupported::LinkMode));
    }
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
        // Root's chown too: the program would run with the rights of a new owner that did not write it.
        set.kill_priv |= set.mode.is_none();
    }
    if set.size.is_some() {
        if !opened_for_writing {
            may_access(attr, cred, Access::WRITE)?;
        }
        set.kill_priv |= !cred.is_root() && set.mode.is_none();
    }
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

/// Checks whether `cred` may search `dir`: `NotDirectory` if it is no directory.
pub fn may_search(dir: &Attr, cred: &Cred) -> Result<()> {
    if dir.kind != FileKind::Directory {
        return Err(FsError::NotDirectory);
    }
    may_access(dir, cred, Access::EXEC)
}

/// Checks whether `cred` may add a name to `dir`. Every caller that may search learns that a name is taken.
pub fn may_create(dir: &Attr, cred: &Cred, taken: bool) -> Result<()> {
    may_search(dir, cred)?;
    if taken {
        return Err(FsError::Exists);
    }
    may_access(dir, cred, Access::WRITE_EXEC)
}

/// Checks whether `cred` may create a node of this kind: only root may create devices.
pub fn may_mknod(kind: FileKind, cred: &Cred) -> Result<()> {
    match kind {
        FileKind::CharDevice | FileKind::BlockDevice if !cred.is_root() => Err(FsError::NotPermitted),
        _ => Ok(()),
    }
}

/// Checks whether `cred` may open a file like this.
pub fn may_open(file: &Attr, cred: &Cred, mode: OpenMode) -> Result<()> {
    let want = Access {
        read: mode.read,
        write: mode.changes(),
        exec: false,
    };
    may_access(file, cred, want)?;
    if mode.no_atime && !cred.is_root() && cred.uid != file.uid {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// The source or target name of a rename, and the inode there.
#[derive(Debug, Clone, Copy)]
pub struct RenameSide<'a> {
    /// The directory.
    pub dir: &'a Attr,
    /// The inode that the name leads to.
    pub entry: Option<&'a Attr>,
}

/// Checks whether `cred` may rename the existing entry at `from` to `to`, where another entry or nothing is. A
/// directory that moves changes its `..`, so it must be writable itself.
pub fn may_rename(from: RenameSide<'_>, to: RenameSide<'_>, cred: &Cred, mode: RenameMode) -> Result<()> {
    let moved = from.entry.ok_or(FsError::NotFound)?;
    may_delete(from.dir, moved, cred)?;
    match to.entry {
        Some(victim) => may_delete(to.dir, victim, cred)?,
        None => may_access(to.dir, cred, Access::WRITE_EXEC)?,
    }
    if from.dir.ino != to.dir.ino {
        let exchanged = to.entry.filter(|_| mode == RenameMode::Exchange);
        for attr in [Some(moved), exchanged].into_iter().flatten() {
            if attr.kind == FileKind::Directory {
                may_access(attr, cred, Access::WRITE)?;
            }
        }
    }
    Ok(())
}

/// Whether an inode may have these extended attributes, names and values: they take no more than
/// [`XATTR_SPACE_BYTES`], and all names can be listed at once ([`XATTR_LIST_MAX`]).
pub fn xattrs_fit<'x>(attributes: impl Iterator<Item = (&'x [u8], &'x [u8])>) -> bool {
    let (mut space, mut list) = (0, 0);
    for (name, value) in attributes {
        space += 4 + name.len() + value.len();
        list += name.len() + 1;
    }
    space <= XATTR_SPACE_BYTES && list <= XATTR_LIST_MAX
}

/// The rules of xattr(7): `user.` needs access to the content of a file or directory (in a sticky one, ownership),
/// `trusted.` needs root. `system.` (access control lists) is not supported.
pub fn may_xattr(attr: &Attr, cred: &Cred, name: &[u8], want: Access) -> Result<()> {
    check_xattr_name(name)?;
    let refused = if want.write {
        FsError::NotPermitted
    } else {
        FsError::NoAttribute
    };
    let dot = name.iter().position(|&byte| byte == b'.');
    match &name[..dot.unwrap_or(0)] {
        b"user" => {
            let owner = cred.is_root() || cred.uid == attr.uid;
            match attr.kind {
                FileKind::Directory if want.write && attr.mode & S_ISVTX != 0 && !owner => return Err(refused),
                FileKind::File | FileKind::Directory => {}
                _ => return Err(refused),
            }
            may_access(attr, cred, want)
        }
        b"trusted" if !cred.is_root() => Err(refused),
        b"security" if want.write && !cred.is_root() => Err(refused),
        _ => Ok(()),
    }
}

/// Whether a caller sees an extended attribute of this name in a list.
pub fn sees_xattr(cred: &Cred, name: &[u8]) -> bool {
    cred.is_root() || !name.starts_with(b"trusted.")
}

/// Whether an extended attribute is Ferrite's own, which services keep with a file system. Setting one does not change
/// the file: neither its `ctime` nor [`Attr::change`] moves.
pub fn is_own_xattr(name: &[u8]) -> bool {
    name.starts_with(b"trusted.ferrite.")
}

/// Whether a read updates the access time under `relatime`: if it is not after the last change, or is a day old.
pub fn relatime_due(atime: Timestamp, mtime: Timestamp, ctime: Timestamp, now: Timestamp) -> bool {
    atime <= mtime || atime <= ctime || now.0.saturating_sub(atime.0) >= DAY_NS
}

/// Checks the name of an extended attribute: one of the namespaces `user`, `trusted` and `security`, and a name in it.
/// `system` holds POSIX ACLs, which are not supported and must not pass for plain attributes: a kernel would enforce
/// them.
pub fn check_xattr_name(name: &[u8]) -> Result<()> {
    const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    match NAMESPACES.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        None => Err(FsError::NotSupported(Unsupported::AttributeNamespace)),
        Some(b"") => Err(FsError::Invalid(BadArgument::BareNamespace)),
        Some(_) => Ok(()),
    }
}
