//! POSIX access control lists, as acl(5) describes them: the permissions of further users and groups.
//!
//! Contents: [`Acl`], and what setting one ([`set`]), changing the mode ([`chmod`]) and creating a file ([`inherit`])
//! do to mode and lists. Pure functions: engines store lists as the extended attributes [`ACCESS`] and [`DEFAULT`], in
//! the kernel's format, and change list and mode in one step.
//!
//! Invariants of a list: it has one entry each for the owner, the group and others, and a mask if it has any other
//! entry. A list that says no more than a mode is not stored. With one, the mode's group bits are the mask.

use crate::mode::{Access, S_ISGID};
use crate::{BadArgument, Cred, FileKind, FsError, Result, Unsupported};

/// The list that decides about access.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list of a directory that new entries get.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The version of the format, `POSIX_ACL_XATTR_VERSION`.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of entries that have none.
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The permissions of one user or group: read 4, write 2, execute 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named {
    id: u32,
    perm: u16,
}

/// A valid access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    owner: u16,
    users: Vec<Named>,
    group: u16,
    groups: Vec<Named>,
    mask: Option<u16>,
    other: u16,
}

/// Whether an extended attribute of this name is a list.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

impl Acl {
    /// The list in the kernel's format; `None` if it has no entries, which removes a list.
    ///
    /// # Errors
    /// `NotSupported` for another version, else `Invalid`, as setxattr(2).
    pub fn decode(value: &[u8]) -> Result<Option<Acl>> {
        let invalid = || FsError::Invalid(BadArgument::AccessControlList);
        let (version, entries) = value.split_first_chunk::<HEADER_BYTES>().ok_or_else(invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(FsError::NotSupported(Unsupported::AclVersion));
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        let (mut owner, mut group, mut mask, mut other) = (None, None, None, None);
        let mut stage = 0;
        for entry in entries.chunks(ENTRY_BYTES) {
            let entry: &[u8; ENTRY_BYTES] = entry.try_into().map_err(|_| invalid())?;
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let perm = u16::from_le_bytes([entry[2], entry[3]]);
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            // Tags are in this order, which is that of their numbers.
            if perm > 7 || tag < stage || (matches!(tag, USER | GROUP) && id == NO_ID) {
                return Err(invalid());
            }
            stage = tag;
            let single = match tag {
                USER => {
                    users.push(Named { id, perm });
                    continue;
                }
                GROUP => {
                    groups.push(Named { id, perm });
                    continue;
                }
                USER_OBJ => &mut owner,
                GROUP_OBJ => &mut group,
                MASK => &mut mask,
                OTHER => &mut other,
                _ => return Err(invalid()),
            };
            if single.replace(perm).is_some() {
                return Err(invalid());
            }
        }
        if mask.is_none() && !(users.is_empty() && groups.is_empty()) {
            return Err(invalid());
        }
        Ok(Some(Acl {
            owner: owner.ok_or_else(invalid)?,
            users,
            group: group.ok_or_else(invalid)?,
            groups,
            mask,
            other: other.ok_or_else(invalid)?,
        }))
    }

    /// The list in the kernel's format.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        let mut put = |tag: u16, perm: u16, id: u32| {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&perm.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        };
        put(USER_OBJ, self.owner, NO_ID);
        self.users.iter().for_each(|user| put(USER, user.perm, user.id));
        put(GROUP_OBJ, self.group, NO_ID);
        self.groups.iter().for_each(|group| put(GROUP, group.perm, group.id));
        if let Some(mask) = self.mask {
            put(MASK, mask, NO_ID);
        }
        put(OTHER, self.other, NO_ID);
        value
    }

    /// The bits of the mode that this list sets: owner, mask (or group), others.
    fn mode_bits(&self) -> u32 {
        let group = self.mask.unwrap_or(self.group);
        u32::from(self.owner) << 6 | u32::from(group) << 3 | u32::from(self.other)
    }

    /// Whether it says what a mode can say.
    fn is_mode(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.mask.is_none()
    }

    /// The list after a chmod.
    fn with_mode(mut self, mode: u32) -> Acl {
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        self.owner = bits(6);
        *self.mask.as_mut().unwrap_or(&mut self.group) = bits(3);
        self.other = bits(0);
        self
    }

    /// The list that a new file gets of this default, if the call that creates it asks for `mode`.
    fn for_new(mut self, mode: u32) -> Acl {
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        self.owner &= bits(6);
        *self.mask.as_mut().unwrap_or(&mut self.group) &= bits(3);
        self.other &= bits(0);
        self
    }

    /// Whether the list lets a caller who is not the owner do this; `gid` is the file's group.
    pub fn permits(&self, gid: u32, cred: &Cred, want: Access) -> bool {
        let wanted = want.bits() as u16;
        let mask = self.mask.unwrap_or(7);
        if let Some(user) = self.users.iter().find(|user| user.id == cred.uid) {
            return user.perm & mask & wanted == wanted;
        }
        let of_group = cred.in_group(gid).then_some(self.group);
        let of_groups = self.groups.iter().filter(|group| cred.in_group(group.id));
        let mut perms = of_group.into_iter().chain(of_groups.map(|group| group.perm)).peekable();
        match perms.peek() {
            Some(_) => perms.any(|perm| perm & mask & wanted == wanted),
            None => self.other & wanted == wanted,
        }
    }
}

/// The change that setting a list makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclChange {
    /// The attribute that is stored, if any.
    pub value: Option<Vec<u8>>,
    /// The new permission bits (`07777`).
    pub mode: u32,
}

/// Sets (or with `None` removes) the list of this name of an inode of this kind, mode and group.
///
/// # Errors
/// `NotSupported` for a symbolic link, `AccessDenied` for the default list of anything but a directory.
pub fn set(
    (kind, mode, gid): (FileKind, u32, u32),
    cred: &Cred,
    name: &[u8],
    value: Option<&[u8]>,
) -> Result<AclChange> {
    if kind == FileKind::Symlink {
        return Err(FsError::NotSupported(Unsupported::LinkMode));
    }
    let acl = value.map(Acl::decode).transpose()?.flatten();
    if name == DEFAULT {
        if kind != FileKind::Directory && acl.is_some() {
            return Err(FsError::AccessDenied);
        }
        let value = acl.map(|acl| acl.encode());
        return Ok(AclChange { value, mode });
    }
    let Some(acl) = acl else {
        return Ok(AclChange { value: None, mode });
    };
    let setgid = match cred.is_root() || cred.in_group(gid) {
        true => 0,
        false => S_ISGID,
    };
    Ok(AclChange {
        mode: (mode & !0o777 | acl.mode_bits()) & !setgid,
        value: (!acl.is_mode()).then(|| acl.encode()),
    })
}

/// Changes a list [`ACCESS`] as a chmod to `mode` does.
///
/// # Errors
/// Damage of the list.
pub fn chmod(value: &mut Vec<u8>, mode: u32) -> Result<()> {
    if let Some(acl) = Acl::decode(value)? {
        *value = acl.with_mode(mode).encode();
    }
    Ok(())
}

/// Mode and lists of a new inode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewLists {
    /// Its permission bits.
    pub mode: u32,
    /// Its list [`ACCESS`].
    pub access: Option<Vec<u8>>,
    /// Its list [`DEFAULT`].
    pub default: Option<Vec<u8>>,
}

impl NewLists {
    /// The lists as extended attributes.
    pub fn attributes(self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        let named = |name: &[u8], value: Option<Vec<u8>>| value.map(|value| (name.to_vec(), value));
        [named(ACCESS, self.access), named(DEFAULT, self.default)]
            .into_iter()
            .flatten()
    }
}

/// Mode and lists of a new inode in a directory that has this default list, or none. `umask` counts only without one.
///
/// # Errors
/// Damage of the list.
pub fn inherit(default: Option<&[u8]>, kind: FileKind, mode: u32, umask: u32) -> Result<NewLists> {
    let masked = NewLists {
        mode: mode & !(umask & 0o777),
        ..NewLists::default()
    };
    let Some(value) = default.filter(|_| kind != FileKind::Symlink) else {
        return Ok(masked);
    };
    let Some(acl) = Acl::decode(value)? else {
        return Ok(masked);
    };
    let access = acl.for_new(mode);
    Ok(NewLists {
        mode: mode & !0o777 | access.mode_bits(),
        access: (!access.is_mode()).then(|| access.encode()),
        default: (kind == FileKind::Directory).then(|| value.to_vec()),
    })
}
