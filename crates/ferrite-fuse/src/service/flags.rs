//! Flags of inodes by ioctl(2), as chattr(1) and lsattr(1) ask for them. The kernel translates both kinds of calls, and
//! checks callers besides the engine.

use ferrite_vfs::{Ctx, FLAGS_XATTR, FsError, Ino, InodeFlags, XattrMode};
use fuser::Errno;

use super::{Response, Service, space, to_response};
use crate::message::abi::IoctlCall;

/// `FS_IOC_GETFLAGS` and the others, as all 64-bit machines number them.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XFLAGS: u32 = 0x801c_581f;
const SET_XFLAGS: u32 = 0x401c_5820;
/// Whether a command changes something, so that a freeze holds it back. Programs send others to find out what a file
/// is.
pub(crate) fn is_change(call: &IoctlCall<'_>) -> bool {
    matches!(call.command, SET_FLAGS | SET_XFLAGS)
}

/// Bytes of `struct fsxattr`, of which the first four are the flags.
const FSXATTR_BYTES: usize = 28;

impl Service {
    /// Carries out a command, and returns what the caller reads: as many bytes as it wants.
    pub(crate) fn ioctl(&self, ctx: &Ctx, ino: Ino, call: &IoctlCall<'_>) -> Response<Vec<u8>> {
        let data = call.data;
        let given = || {
            let word = data.first_chunk().ok_or(Errno::EINVAL)?;
            Ok::<u32, Errno>(u32::from_ne_bytes(*word))
        };
        let wanted = |flags: u32, len_bytes: usize| {
            let mut out = flags.to_ne_bytes().to_vec();
            out.resize(len_bytes.min(call.wanted_bytes as usize), 0);
            out
        };
        match call.command {
            GET_FLAGS => Ok(wanted(self.flags(ctx, ino)?.to_fs_flags(), size_of::<u64>())),
            GET_XFLAGS => Ok(wanted(self.flags(ctx, ino)?.to_fs_xflags(), FSXATTR_BYTES)),
            SET_FLAGS => self.set_flags(ctx, ino, InodeFlags::from_fs_flags(given()?)),
            SET_XFLAGS => {
                let others = data.get(4..FSXATTR_BYTES).ok_or(Errno::EINVAL)?;
                match others.iter().all(|&byte| byte == 0) {
                    true => self.set_flags(ctx, ino, InodeFlags::from_fs_xflags(given()?)),
                    // Extents and projects.
                    false => Err(Errno::EINVAL.into()),
                }
            }
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn flags(&self, ctx: &Ctx, ino: Ino) -> Response<InodeFlags> {
        match self.fs.getxattr(ctx, ino, FLAGS_XATTR) {
            // An engine or a server without flags.
            Err(FsError::NotSupported(_) | FsError::NoAttribute) => Err(Errno::ENOTTY.into()),
            found => to_response(found.and_then(|letters| InodeFlags::parse(&letters))),
        }
    }

    fn set_flags(&self, ctx: &Ctx, ino: Ino, flags: Option<InodeFlags>) -> Response<Vec<u8>> {
        let letters = flags.ok_or(Errno::EOPNOTSUPP)?.to_string();
        let set = self.fs.setxattr(
            &space::checked(ctx),
            ino,
            FLAGS_XATTR,
            letters.as_bytes(),
            XattrMode::Any,
        );
        to_response(set)?;
        // The kernel does not expect that a time has changed.
        if let Some(notifications) = self.notifications.get()
            && let Err(error) = notifications.attributes_changed(ino)
        {
            tracing::debug!(ino, %error, "the kernel keeps attributes from before a change of flags");
        }
        Ok(Vec::new())
    }
}
