//! Replies to listings: entries go into the reply while the engine finds them.

use ferrite_transport::frame::BODY_BYTES_MAX;
use ferrite_transport::send_queue::SendQueue;
use ferrite_vfs::{Attr, DirEntry, FsError, Ino, Result, SYSTEM, posix, walk};

use super::RequestHandler;
use crate::reply::{begin_reply, put};
use ferrite_proto::{ENTRY_FOLLOWS, Encode, Entry, EntryInfo, LISTING_BYTES_MAX, LISTING_ENDS, LISTING_GOES_ON, Node};

/// The longest entry, with a margin.
const ENTRY_BYTES_MAX: usize = 1600;
const _: () = assert!(LISTING_BYTES_MAX + ENTRY_BYTES_MAX < BODY_BYTES_MAX);

impl RequestHandler<'_> {
    /// Answers with a part of a directory, from `cookie` on, of about `reply_bytes`.
    pub(super) fn readdir(&self, at: (Node, u64), with_attributes: bool, reply_bytes: usize, out: &mut SendQueue) {
        if let Err(error) = self.list(at, with_attributes, reply_bytes, out) {
            put::<()>(out, self.id, Err(error));
        }
    }

    /// Lists at least one entry, if the directory has one. A caller without search permission gets names alone.
    fn list(
        &self,
        (dir, cookie): (Node, u64),
        with_attributes: bool,
        reply_bytes: usize,
        out: &mut SendQueue,
    ) -> Result<()> {
        let export = &self.session.export;
        let dir = self.session.hold(dir)?;
        let may_search = self.may_list(dir.ino)?;
        let mut frame = begin_reply(out, self.id, false);
        let reply_bytes = frame.body_bytes() + reply_bytes.min(LISTING_BYTES_MAX);
        let (mut ending, mut has_entry) = (LISTING_ENDS, false);
        // A client that wants no attributes still wants handles of the entries, but no pins.
        let mut ctx = self.ctx.clone();
        ctx.pins &= with_attributes && may_search;
        let mut append = |entry: &DirEntry<'_>, attr: Result<Attr>| {
            if std::mem::replace(&mut has_entry, true) && frame.body_bytes() > reply_bytes {
                ending = LISTING_GOES_ON;
                return false;
            }
            let entry = Entry {
                ino: export.shown(entry.ino),
                kind: entry.kind,
                next_cookie: entry.next_cookie,
                name: entry.name,
                info: match attr {
                    _ if !may_search => EntryInfo::Nothing(FsError::AccessDenied),
                    Ok(attr) if with_attributes => EntryInfo::Attributes(self.reported(attr)),
                    Ok(attr) => EntryInfo::Node(export.node(attr.ino, attr.generation)),
                    Err(error) => EntryInfo::Nothing(error),
                },
            };
            ENTRY_FOLLOWS.put(frame.body());
            entry.put(frame.body());
            true
        };
        if let Err(error) = export.fs().readdir_plus(&ctx, dir.ino, cookie, &mut append) {
            // Entries before the error are discarded, with the frame.
            self.session.undo(self.id);
            return Err(error);
        }
        ending.put(frame.body());
        frame.finish();
        Ok(())
    }

    /// Whether the caller may also use the entries of a directory that it lists; an error if it may not even list it.
    /// Engines leave that check to the opener of a directory. A client opens none here, and is not trusted if root is
    /// squashed: it lets its own root list everything.
    fn may_list(&self, dir: Ino) -> Result<bool> {
        let export = &self.session.export;
        if !export.options.root_squash {
            return Ok(true);
        }
        let (cred, attr) = (&self.ctx.cred, export.fs().getattr(SYSTEM, dir)?);
        let guarded = walk::guarded(export.fs(), attr, cred)?;
        posix::may_access(&guarded, cred, posix::Access::READ)?;
        Ok(posix::may_access(&guarded, cred, posix::Access::EXEC).is_ok())
    }
}
