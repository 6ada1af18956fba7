//! Extended attributes: all of an inode's in blocks of their own (see [`crate::format::xattr`]), rewritten with every
//! change.
//!
//! Crash argument: [`rights::put_attributes`].

use ferrite_vfs::posix::{self, Access};
use ferrite_vfs::{
    Attr, BadArgument, Ctx, FsError, Ino, Outcome, Result, SpaceOf, UserQuotas, XATTR_NAME_MAX, XATTR_SIZE_MAX,
    XATTR_SPACE_BYTES, XattrMode, acl,
};

use super::lookup::gone;
use crate::cache::inodes::InodeMem;
use crate::file::rights;
use crate::format::inode::Inode;
use crate::format::xattr::Attributes;
use crate::pool::core::Core;
use crate::pool::tx::{Purpose, Tx, WhenFrozen};
use crate::retry::{self, Need};

fn read<T>(
    core: &Core,
    ctx: &Ctx,
    ino: Ino,
    name: Option<&[u8]>,
    f: impl FnOnce(Attributes) -> Result<T>,
) -> Result<T> {
    let inode = core.inode(ino).map_err(gone)?;
    let _lock = inode.read();
    let loaded = core.load_live(&inode)?;
    if let Some(name) = name.filter(|_| ctx.check) {
        let guarded = rights::guarded(core, ctx, (inode.ino, &loaded))?;
        posix::may_xattr(&guarded, &ctx.cred, name, Access::READ)?;
    }
    f(rights::attributes(core, inode.ino, &loaded)?)
}

fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(FsError::Invalid(BadArgument::EmptyAttributeName)),
        // Quotas that are changed by them would count wrong.
        1..=XATTR_NAME_MAX if UserQuotas::is_kept_in(name) => Err(FsError::NotPermitted),
        1..=XATTR_NAME_MAX => Ok(()),
        _ => Err(FsError::Range),
    }
}

/// Value of one attribute.
pub(crate) fn get(core: &Core, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
    check_name(name)?;
    read(core, ctx, ino, Some(name), |attributes| {
        attributes
            .into_iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value)
            .ok_or(FsError::NoAttribute)
    })
}

/// Names of all attributes that the caller may see.
pub(crate) fn list(core: &Core, ctx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
    read(core, ctx, ino, None, |attributes| {
        let names = attributes.into_iter().map(|(name, _)| name);
        Ok(names
            .filter(|name| !UserQuotas::is_kept_in(name) && (!ctx.check || posix::sees_xattr(&ctx.cred, name)))
            .collect())
    })
}

/// Creates or replaces an attribute.
pub(crate) fn set(core: &Core, ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
    check_name(name)?;
    if value.len() > XATTR_SIZE_MAX {
        return Err(FsError::ValueTooLong);
    }
    change(core, ctx, (ino, name), |attributes| {
        let at = attributes.iter().position(|(found, _)| found == name);
        match (mode, at) {
            (XattrMode::Create, Some(_)) => return Err(FsError::Exists),
            (XattrMode::Replace, None) => return Err(FsError::NoAttribute),
            (_, Some(at)) => attributes[at].1 = value.to_vec(),
            (_, None) => attributes.push((name.to_vec(), value.to_vec())),
        }
        if !posix::xattrs_fit(attributes.iter().map(|(name, value)| (&name[..], &value[..]))) {
            return Err(FsError::NoSpace(SpaceOf::Attributes));
        }
        Ok(())
    })
}

/// Removes an attribute.
pub(crate) fn remove(core: &Core, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
    check_name(name)?;
    change(core, ctx, (ino, name), |attributes| {
        let at = attributes
            .iter()
            .position(|(found, _)| found == name)
            .ok_or(FsError::NoAttribute)?;
        attributes.remove(at);
        Ok(())
    })
}

/// Brings mode and lists in line after the list `name` was set or removed.
fn settle_acl(
    core: &Core,
    ctx: &Ctx,
    mem: &InodeMem,
    new: &mut Inode,
    name: &[u8],
    attributes: &mut Attributes,
) -> Result<()> {
    let Attr { kind, mode, gid, .. } = core.attr(mem.ino, new)?;
    let at = attributes.iter().position(|(found, _)| found == name);
    let value = at.map(|at| &attributes[at].1[..]);
    let change = acl::set((kind, mode, gid), &ctx.cred, name, value)?;
    // Holders of keys were checked against the list that was there.
    if core.bindings.of(mem.ino).is_some() {
        return Err(FsError::Busy);
    }
    new.set_permissions(change.mode);
    match (at, change.value) {
        (Some(at), Some(value)) => attributes[at].1 = value,
        (Some(at), None) => drop(attributes.remove(at)),
        (None, _) => {}
    }
    Ok(())
}

/// Edits all attributes of an inode, because of one of them.
pub(crate) fn change(
    core: &Core,
    ctx: &Ctx,
    (ino, name): (Ino, &[u8]),
    edit: impl Fn(&mut Attributes) -> Result<()>,
) -> Result<()> {
    core.check_writable()?;
    // At most all attributes are written anew.
    retry::with_space(core, Need::pages(XATTR_SPACE_BYTES), || {
        let inode = core.inode(ino).map_err(gone)?;
        let _lock = inode.write();
        let old = core.load_live(&inode)?;
        if ctx.check {
            let guarded = rights::guarded(core, ctx, (inode.ino, &old))?;
            posix::may_xattr(&guarded, &ctx.cred, name, Access::WRITE)?;
        }
        let mut attributes = rights::attributes(core, inode.ino, &old)?;
        edit(&mut attributes)?;
        if name == posix::CAPABILITY {
            rights::refuse_if_written(core, inode.ino)?;
        }
        let mut new = old;
        if acl::is_acl(name) {
            settle_acl(core, ctx, &inode, &mut new, name, &mut attributes)?;
        }
        let is_own = posix::is_own_xattr(name);
        if !is_own {
            old.callers_flags().check_change()?;
        }
        let purpose = match is_own {
            true => Purpose::Upkeep(WhenFrozen::Wait),
            false => Purpose::Change,
        };
        let mut tx = Tx::new(core, purpose);
        rights::put_attributes(core, &mut tx, inode.ino, &mut new, &attributes)?;
        inode.set_lacks_capability(false);
        if !is_own {
            new.set_ctime(Core::now());
        }
        tx.put_inode(inode.ino, &mut new);
        tx.note_outcome(ctx, || Ok(Outcome::Done))?;
        tx.commit(&[&inode])
    })
}
