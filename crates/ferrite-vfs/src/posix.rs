//! The rules POSIX and Linux tie to operations, as pure functions: permissions, ownership, setuid and setgid,
//! access times. Engines and [`crate::Vfs`] call them, so that each rule exists once.

use crate::acl::{self, Acl};
pub use crate::mode::{Access, S_ISGID, S_ISUID};
use crate::mode::{S_IRWXG, S_ISVTX, S_IXGRP};
use crate::{
    Attr, BadArgument, Cred, FileKind, FsError, NAME_MAX, OpenMode, RenameMode, Result, SetAttr, SetTime, Timestamp,
    Unsupported, XATTR_LIST_MAX, XATTR_SPACE_BYTES,
};

/// The extended attribute with the capabilities of those who run a file.
pub const CAPABILITY: &[u8] = b"security.capability";
const DAY_NS: i64 = 86_400 * 1_000_000_000;

/// The id of no user and no group: `chown(2)` means "no change" with it, a kernel "an unknown user".
pub const NO_ID: u32 = u32::MAX;

/// An inode as the rules about permissions see it: its attributes, and its access control list if that matters to the
/// caller.
#[derive(Debug, Clone)]
pub struct Guarded {
    /// Its attributes.
    pub attr: Attr,
    acl: Option<Acl>,
}

impl Guarded {
    /// The inode for this caller. `acl` reads the attribute [`acl::ACCESS`]; it is called only if the list decides: not
    /// for root and the owner, and not if the mode gives the group nothing, as in Linux.
    ///
    /// # Errors
    /// Those of `acl`, and damage of the list.
    pub fn of(attr: Attr, cred: &Cred, acl: impl FnOnce() -> Result<Option<Vec<u8>>>) -> Result<Guarded> {
        let decides = !cred.is_root() && attr.uid != cred.uid && attr.mode & S_IRWXG != 0;
        let value = match decides && attr.kind != FileKind::Symlink {
            true => acl()?,
            false => None,
        };
        let damaged = |_| FsError::damaged(attr.ino, "its access control list cannot be read; set it anew");
        let acl = value.map(|value| Acl::decode(&value).map_err(damaged)).transpose()?;
        Ok(Guarded {
            attr,
            acl: acl.flatten(),
        })
    }

    /// An inode that has no access control list, or whose list does not count.
    pub fn by_mode(attr: Attr) -> Guarded {
        Guarded { attr, acl: None }
    }
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

/// Checks permissions: of the owner, then by the access control list, or of the group, then of the rest. Root may do
/// anything except execute a file without any execute bit.
pub fn may_access(node: &Guarded, cred: &Cred, want: Access) -> Result<()> {
    let attr = &node.attr;
    let wanted = want.bits();
    let may = match &node.acl {
        _ if cred.is_root() => !want.exec || attr.kind == FileKind::Directory || attr.mode & 0o111 != 0,
        _ if attr.uid == cred.uid => attr.mode >> 6 & wanted == wanted,
        Some(acl) => acl.permits(attr.gid, cred, want),
        None if cred.in_group(attr.gid) => attr.mode >> 3 & wanted == wanted,
        None => attr.mode & wanted == wanted,
    };
    if may { Ok(()) } else { Err(FsError::AccessDenied) }
}

/// Whether `cred` may remove or rename `victim`, an entry of `dir`. It needs write permission on the directory, and in
/// a sticky directory it must own one of the two.
pub fn may_delete(dir: &Guarded, victim: &Attr, cred: &Cred) -> Result<()> {
    may_access(dir, cred, Access::WRITE_EXEC)?;
    let dir = &dir.attr;
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
pub fn may_setattr(node: &Guarded, cred: &Cred, set: &SetAttr, opened_for_writing: bool) -> Result<SetAttr> {
    let attr = &node.attr;
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
            may_access(node, cred, Access::WRITE)?;
        }
        set.kill_priv |= !cred.is_root() && set.mode.is_none();
    }
    for time in [set.atime, set.mtime].into_iter().flatten() {
        let both_now = set.atime == Some(SetTime::Now) && set.mtime == Some(SetTime::Now);
        match time {
            _ if owner => {}
            SetTime::Now if both_now || set.size.is_some() => may_access(node, cred, Access::WRITE)?,
            _ => return Err(FsError::NotPermitted),
        }
    }
    Ok(set)
}

/// Checks whether `cred` may search `dir`: `NotDirectory` if it is no directory.
pub fn may_search(dir: &Guarded, cred: &Cred) -> Result<()> {
    if dir.attr.kind != FileKind::Directory {
        return Err(FsError::NotDirectory);
    }
    may_access(dir, cred, Access::EXEC)
}

/// Checks whether `cred` may add a name to `dir`. Every caller that may search learns that a name is taken.
pub fn may_create(dir: &Guarded, cred: &Cred, taken: bool) -> Result<()> {
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
pub fn may_open(file: &Guarded, cred: &Cred, mode: OpenMode) -> Result<()> {
    let want = Access {
        read: mode.read,
        write: mode.changes(),
        exec: false,
    };
    may_access(file, cred, want)?;
    if mode.no_atime && !cred.is_root() && cred.uid != file.attr.uid {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// The source or target name of a rename, and the inode there.
#[derive(Debug, Clone, Copy)]
pub struct RenameSide<'a> {
    /// The directory.
    pub dir: &'a Guarded,
    /// The inode that the name leads to.
    pub entry: Option<&'a Guarded>,
}

/// Checks whether `cred` may rename the existing entry at `from` to `to`, where another entry or nothing is. A
/// directory that moves changes its `..`, so it must be writable itself.
pub fn may_rename(from: RenameSide<'_>, to: RenameSide<'_>, cred: &Cred, mode: RenameMode) -> Result<()> {
    let moved = from.entry.ok_or(FsError::NotFound)?;
    may_delete(from.dir, &moved.attr, cred)?;
    match to.entry {
        Some(victim) => may_delete(to.dir, &victim.attr, cred)?,
        None => may_access(to.dir, cred, Access::WRITE_EXEC)?,
    }
    if from.dir.attr.ino != to.dir.attr.ino {
        let exchanged = to.entry.filter(|_| mode == RenameMode::Exchange);
        for node in [Some(moved), exchanged].into_iter().flatten() {
            if node.attr.kind == FileKind::Directory {
                may_access(node, cred, Access::WRITE)?;
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
/// `trusted.` needs root. Everyone reads access control lists, which only the owner sets.
pub fn may_xattr(node: &Guarded, cred: &Cred, name: &[u8], want: Access) -> Result<()> {
    check_xattr_name(name)?;
    let attr = &node.attr;
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
            may_access(node, cred, want)
        }
        b"system" if want.write && !cred.is_root() && cred.uid != attr.uid => Err(refused),
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

/// Checks the name of an extended attribute: an access control list, or one of the namespaces `user`, `trusted` and
/// `security` and a name in it. The rest of `system` belongs to kernels.
pub fn check_xattr_name(name: &[u8]) -> Result<()> {
    const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if acl::is_acl(name) {
        return Ok(());
    }
    match NAMESPACES.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        None => Err(FsError::NotSupported(Unsupported::AttributeNamespace)),
        Some(b"") => Err(FsError::Invalid(BadArgument::BareNamespace)),
        Some(_) => Ok(()),
    }
}
