//! Extended attributes as they are stored, and those that decide about rights: a change of content or owner takes the
//! capability, a change of the mode changes the access control list.
//!
//! Contents: [`Wanted`], a change of attributes, with that of an access control list ([`AclEdit`]); [`Left`], the
//! extended attributes that such a change leaves. They go with the node into the same
//! transaction, or, where content in place and its node are two steps, with the mode into the step that comes first
//! (`content`).
//!
//! Invariant: only a thread that holds the state exclusively and has read all attributes sets
//! [`State::lacks_capability`]; a change of attributes clears it. A file without any costs a look at its node.

use std::collections::BTreeMap;

use ferrite_vfs::posix::{self, Guarded};
use ferrite_vfs::{Ctx, FsError, Ino, ROOT_INO, Result, SetAttr, SpaceOf, UserQuotas, XATTR_SIZE_MAX, XattrMode, acl};

use crate::core::{Core, Step};
use crate::format::key;
use crate::format::node::Node;
use crate::inode_ref::InodeRef;
use crate::quotas::{Owners, owners_of};
use crate::table::State;

/// Extended attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The extended attributes that are left, if the change takes the capability.
#[derive(Debug, Default)]
pub(crate) struct Left(Option<Xattrs>);

impl Left {
    /// Whether the change takes something.
    pub(crate) fn is_less(&self) -> bool {
        self.0.is_some()
    }

    /// Stores it, in the step that stores the node, which was `before`.
    pub(crate) fn put(&self, step: &mut Step<'_>, ino: Ino, before: &Node) -> Result<()> {
        self.put_for(step, ino, (owners_of(before), before.has_xattrs))
    }

    /// The same, counted by these quotas, of an inode that had any attributes or none.
    pub(crate) fn put_for(&self, step: &mut Step<'_>, ino: Ino, (owners, had): (Owners, bool)) -> Result<()> {
        match &self.0 {
            None => Ok(()),
            Some(left) => step.core().put_xattrs(step, ino, (owners, had), left),
        }
    }
}

/// A new value of an access control list, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AclEdit<'e> {
    pub(crate) name: &'e [u8],
    pub(crate) value: Option<&'e [u8]>,
    pub(crate) mode: XattrMode,
}

impl AclEdit<'_> {
    /// Changes the list among the extended attributes, and the mode with it.
    fn apply(&self, ctx: &Ctx, node: &mut Node, xattrs: &mut Xattrs) -> Result<()> {
        match (self.mode, xattrs.contains_key(self.name)) {
            (XattrMode::Create, true) => return Err(FsError::Exists),
            (XattrMode::Replace, false) => return Err(FsError::NoAttribute),
            _ => {}
        }
        if self.value.is_some_and(|value| value.len() > XATTR_SIZE_MAX) {
            return Err(FsError::ValueTooLong);
        }
        let change = acl::set((node.kind, node.mode, node.gid), &ctx.cred, self.name, self.value)?;
        node.mode = change.mode;
        match change.value {
            Some(value) => drop(xattrs.insert(self.name.to_vec(), value)),
            None => drop(xattrs.remove(self.name)),
        }
        match posix::xattrs_fit(xattrs.iter().map(|(name, value)| (&name[..], &value[..]))) {
            true => Ok(()),
            false => Err(FsError::NoSpace(SpaceOf::Attributes)),
        }
    }
}

/// A change of attributes.
pub(crate) struct Wanted<'w> {
    pub(crate) set: SetAttr,
    /// The caller has the file open for writing.
    pub(crate) opened: bool,
    pub(crate) acl: Option<AclEdit<'w>>,
}

impl Wanted<'_> {
    pub(crate) fn of(set: &SetAttr, opened: bool) -> Self {
        Wanted {
            set: *set,
            opened,
            acl: None,
        }
    }
}

impl Core {
    /// An inode as the caller is checked against it.
    pub(crate) fn guarded(&self, ctx: &Ctx, inode: &InodeRef, state: &State) -> Result<Guarded> {
        Guarded::of(self.attr(inode, state), &ctx.cred, || {
            Ok(self.xattrs(inode.ino, &state.node)?.remove(acl::ACCESS))
        })
    }

    /// The extended attributes after a change of the others: without the capability where it takes that, and with a
    /// list that goes with the mode, or gives it. `node` is the inode's new node.
    pub(crate) fn follow(
        &self,
        ctx: &Ctx,
        ino: Ino,
        state: &mut State,
        node: &mut Node,
        set: &SetAttr,
        edit: Option<&AclEdit<'_>>,
    ) -> Result<Left> {
        let takes = posix::takes_capability(set);
        if edit.is_none() && (set.mode.is_none() || !node.has_xattrs) {
            return Ok(match takes {
                true => self.without_capability(ino, state, node),
                false => Left::default(),
            });
        }
        let before = self.xattrs(ino, &state.node)?;
        let mut after = before.clone();
        if takes && !node.is_dir() {
            after.remove(posix::CAPABILITY);
        }
        if let (Some(mode), Some(list)) = (set.mode, after.get_mut(acl::ACCESS)) {
            acl::chmod(list, mode)?;
        }
        if let Some(edit) = edit {
            edit.apply(ctx, node, &mut after)?;
        }
        node.has_xattrs = !after.is_empty();
        Ok(Left((after != before).then_some(after)))
    }

    /// Puts all extended attributes of an inode that these quotas count, in place of those that it had, if it had any.
    /// The caller puts the node in the same step.
    ///
    /// # Errors
    /// `OverQuota`; errors of the store.
    pub(crate) fn put_xattrs(
        &self,
        step: &mut Step<'_>,
        ino: Ino,
        (owners, had): (Owners, bool),
        xattrs: &Xattrs,
    ) -> Result<()> {
        let before = self.xattr_bytes(ino, had && self.quotas.counts(owners))?;
        let value = encode_xattrs(xattrs);
        step.count_xattrs(ino, owners, before, value.len() as u64)?;
        match xattrs.is_empty() {
            true => step.txn.delete(&key::xattrs(ino))?,
            false => step.txn.put(&key::xattrs(ino), &value)?,
        }
        Ok(())
    }

    /// The quotas of users, as the root directory keeps them. Damage, which a check reports, leaves none until then.
    pub(crate) fn kept_user_quotas(&self) -> Result<UserQuotas> {
        let Some(value) = self.meta.get(&key::xattrs(ROOT_INO))? else {
            return Ok(UserQuotas::default());
        };
        let kept = user_quotas_in(&value);
        if kept.is_none() {
            tracing::warn!("the quotas of users cannot be read: none holds until `ferrite fsck --repair`");
        }
        Ok(kept.unwrap_or_default())
    }

    /// All extended attributes of an inode.
    pub(crate) fn xattrs(&self, ino: Ino, node: &Node) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        if !node.has_xattrs {
            return Ok(BTreeMap::new());
        }
        let value = self.meta.get(&key::xattrs(ino))?;
        let damaged = || FsError::damaged(ino, "its extended attributes cannot be read");
        decode_xattrs(&value.ok_or_else(damaged)?).ok_or_else(damaged)
    }

    /// The attributes after a change of content or owner; `node` is the inode's new node.
    pub(crate) fn without_capability(&self, ino: Ino, state: &mut State, node: &mut Node) -> Left {
        if !node.has_xattrs || state.lacks_capability || node.is_dir() {
            return Left::default();
        }
        // Unreadable attributes grant no rights: `exec` reads them, and fails.
        let Ok(mut xattrs) = self.xattrs(ino, &state.node) else {
            return Left::default();
        };
        if xattrs.remove(posix::CAPABILITY).is_none() {
            state.lacks_capability = true;
            return Left::default();
        }
        node.has_xattrs = !xattrs.is_empty();
        Left(Some(xattrs))
    }
}

/// Whether the extended attributes in a record can be read.
pub(crate) fn are_readable(value: &[u8]) -> bool {
    decode_xattrs(value).is_some()
}

/// The quotas of users among the extended attributes in a record; `None` if they cannot be read.
pub(crate) fn user_quotas_in(value: &[u8]) -> Option<UserQuotas> {
    let xattrs = decode_xattrs(value)?;
    UserQuotas::of(xattrs.iter().map(|(name, value)| (&name[..], &value[..])))
}

/// The attributes in a record without the quotas of users; `None` if it cannot be read.
pub(crate) fn without_user_quotas(value: &[u8]) -> Option<Vec<u8>> {
    let mut xattrs = decode_xattrs(value)?;
    xattrs.retain(|name, _| !UserQuotas::is_kept_in(name));
    Some(encode_xattrs(&xattrs))
}

/// The bit of a name's length that says that its value has a byte more than the other length says.
const LONGEST_SHIFT: u32 = 15;

/// Names and values, with their lengths. Values of 65536 bytes, which 16 bits cannot tell, set a bit of the name's.
fn encode_xattrs(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<u8> {
    let mut value = Vec::new();
    for (name, content) in xattrs {
        let is_longest = content.len() > usize::from(u16::MAX);
        value.extend_from_slice(&(name.len() as u16 | u16::from(is_longest) << LONGEST_SHIFT).to_le_bytes());
        value.extend_from_slice(&content.len().min(usize::from(u16::MAX)).to_le_bytes()[..2]);
        value.extend_from_slice(name);
        value.extend_from_slice(content);
    }
    value
}

fn decode_xattrs(value: &[u8]) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut xattrs = BTreeMap::new();
    let mut rest = value;
    while !rest.is_empty() {
        let (lengths, behind) = rest.split_first_chunk::<4>()?;
        let name_word = u16::from_le_bytes([lengths[0], lengths[1]]);
        let (name_len, longer) = (name_word & !(1 << LONGEST_SHIFT), name_word >> LONGEST_SHIFT);
        let name_len = usize::from(name_len);
        let content_len = usize::from(u16::from_le_bytes([lengths[2], lengths[3]])) + usize::from(longer);
        let (name, behind) = behind.split_at_checked(name_len)?;
        let (content, behind) = behind.split_at_checked(content_len)?;
        xattrs.insert(name.to_vec(), content.to_vec());
        rest = behind;
    }
    Some(xattrs)
}
