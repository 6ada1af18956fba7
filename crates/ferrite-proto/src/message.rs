//! The heads of messages, and the replies to requests.

use ferrite_vfs::{Attr, BadArgument, DedupToken, Durability, FileKind, FsError, Ino, SyncMode, posix};

use super::codec::{Encode, Malformed, Reader, Wire};
use crate::fields;

/// An inode as the server named it. The client cannot forge one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Its number. The root of the export is 1.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// The server's MAC on both, valid for one export.
    pub mac: u64,
}

fields!(Node { ino, generation, mac });

/// An inode's attributes, and how to name it in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeAttr {
    /// The attributes.
    pub attr: Attr,
    /// See [`Node::mac`].
    pub mac: u64,
    /// The session has pinned the inode once for this reply.
    pub is_pinned: bool,
}

fields!(NodeAttr { attr, mac, is_pinned });

impl NodeAttr {
    /// How requests name it.
    pub fn node(&self) -> Node {
        Node {
            ino: self.attr.ino,
            generation: self.attr.generation,
            mac: self.mac,
        }
    }
}

/// A proof of its session, for a client that reconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeToken {
    /// The session.
    pub session: u64,
    /// The server's MAC on session and export.
    pub mac: u64,
}

fields!(ResumeToken { session, mac });

/// A server's promises, of [`ferrite_vfs::Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Longest write that is one atomic step.
    pub atomic_write_bytes: u64,
    /// Longest write that others see whole.
    pub whole_write_bytes: u64,
    /// Longest file.
    pub file_bytes_max: u64,
    /// The state that survives a failure.
    pub durability: Durability,
    /// Changes are durable without `sync`.
    pub is_durable_at_once: bool,
    /// Changes can be made to happen once: there are slots for tokens.
    pub has_slots: bool,
    /// The places that `sync` waits for.
    pub sync_mode: SyncMode,
}

fields!(Promises {
    atomic_write_bytes,
    whole_write_bytes,
    file_bytes_max,
    durability,
    is_durable_at_once,
    has_slots,
    sync_mode
});

/// The reply to [`ImmediateRequest::Hello`](super::ImmediateRequest::Hello).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// The version that both speak.
    pub version: u16,
    /// A number of this run of the server.
    pub instance: u64,
    /// The session.
    pub resume_token: ResumeToken,
    /// How much the server knows of the session that the client wants to resume.
    pub state: SessionState,
    /// A session without a sign of life for so long ends, in milliseconds.
    pub lease_ms: u32,
    /// The root of the export.
    pub root: Node,
    /// The server's promises.
    pub promises: Promises,
}

fields!(Welcome {
    version,
    instance,
    resume_token,
    state,
    lease_ms,
    root,
    promises
});

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// It is new; an older one that the client wanted has ended.
    New,
    /// It continues as it was.
    Alive,
    /// The server has restarted: the client reclaims its open files, pins and locks.
    ToReclaim,
}

super::codec::values!(SessionState {
    0 = SessionState::New,
    1 = SessionState::Alive,
    2 = SessionState::ToReclaim,
});

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenedFile {
    /// Its inode.
    pub node_attr: NodeAttr,
    /// The call created it.
    pub created: bool,
    /// The server's MAC on inode and mode, with which the client reopens it after a restart.
    pub mac: u64,
}

fields!(OpenedFile {
    node_attr,
    created,
    mac
});

/// The reply to one part of a read in several requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Pieces of one version, requested over one connection, are of one state of the file; `None`: unknown.
    pub version: Option<u64>,
}

fields!(Piece { version });

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'m> {
    /// Its inode.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// The position of the listing after it.
    pub next_cookie: u64,
    /// Its name.
    pub name: &'m [u8],
    /// Further information about it.
    pub info: EntryInfo,
}

/// The information of a listing about an entry besides its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryInfo {
    /// How to name it in requests.
    Node(Node),
    /// Its attributes, if requested.
    Attributes(NodeAttr),
    /// Why neither is available.
    Nothing(FsError),
}

impl Encode for Entry<'_> {
    fn put(&self, out: &mut Vec<u8>) {
        self.ino.put(out);
        self.kind.put(out);
        self.next_cookie.put(out);
        self.name.put(out);
        match &self.info {
            EntryInfo::Node(node) => {
                0u8.put(out);
                node.put(out);
            }
            EntryInfo::Attributes(node_attr) => {
                1u8.put(out);
                node_attr.put(out);
            }
            EntryInfo::Nothing(error) => {
                2u8.put(out);
                error.put(out);
            }
        }
    }
}

impl<'m> Wire<'m> for Entry<'m> {
    fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
        Ok(Entry {
            ino: from.get()?,
            kind: from.get()?,
            next_cookie: from.get()?,
            name: from.get()?,
            info: match from.get::<u8>()? {
                0 => EntryInfo::Node(from.get()?),
                1 => EntryInfo::Attributes(from.get()?),
                2 => EntryInfo::Nothing(from.get()?),
                _ => return Err(Malformed("an entry has a name for requests, attributes or an error")),
            },
        })
    }
}

/// A listing is a sequence of entries, each behind a byte 1, and a last byte: 0 if the directory ends there, 2 if there
/// is more.
pub const ENTRY_FOLLOWS: u8 = 1;
/// See [`ENTRY_FOLLOWS`].
pub const LISTING_ENDS: u8 = 0;
/// See [`ENTRY_FOLLOWS`].
pub const LISTING_GOES_ON: u8 = 2;
/// The approximate maximum of a listing in one reply.
pub const LISTING_BYTES_MAX: usize = 48 << 10;

/// The caller on whose behalf a request is made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

fields!(Caller { uid, gid, groups });

impl Caller {
    /// Refuses a caller whose user or groups are invalid ([`posix::NO_ID`]): its files would have no owner.
    pub fn check(&self) -> Result<(), FsError> {
        let groups = self.groups.iter().copied();
        match groups.chain([self.uid, self.gid]).any(|id| id == posix::NO_ID) {
            true => Err(FsError::Invalid(BadArgument::NoId)),
            false => Ok(()),
        }
    }
}

/// The head of every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Chosen by the client; the reply carries it. A repeated request has the same.
    pub id: u64,
    /// All requests with smaller numbers are answered, or will not be repeated, except those for locks.
    pub settled_below: u64,
    /// The server pins inodes whose attributes it returns.
    pub pins: bool,
    /// The server checks permissions. A server that does not trust its clients checks anyway.
    pub check: bool,
    /// The token of a change.
    pub token: Option<DedupToken>,
    /// The caller.
    pub caller: Caller,
}

impl Encode for DedupToken {
    fn put(&self, out: &mut Vec<u8>) {
        self.slot.put(out);
        self.seq.put(out);
    }
}

impl Wire<'_> for DedupToken {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(DedupToken {
            slot: from.get()?,
            seq: from.get()?,
        })
    }
}

fields!(Head {
    id,
    settled_below,
    pins,
    check,
    token,
    caller
});

/// The head of every reply, and of every recall, which has the number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    /// That of the request.
    pub id: u64,
    /// The result follows; else an error.
    pub is_ok: bool,
    /// The session has a lease on the inodes in the reply.
    pub is_leased: bool,
}

impl ReplyHead {
    /// The head of a result that must not be cached.
    pub fn ok(id: u64) -> ReplyHead {
        ReplyHead {
            id,
            is_ok: true,
            is_leased: false,
        }
    }
}

impl Encode for ReplyHead {
    fn put(&self, out: &mut Vec<u8>) {
        self.id.put(out);
        (u8::from(self.is_ok) | u8::from(self.is_leased) << 1).put(out);
    }
}

impl Wire<'_> for ReplyHead {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let id = from.get()?;
        match from.get::<u8>()? {
            flags @ 0..=3 => Ok(ReplyHead {
                id,
                is_ok: flags & 1 != 0,
                is_leased: flags & 2 != 0,
            }),
            _ => Err(Malformed("a reply succeeds or fails, with a lease or without")),
        }
    }
}

/// The number of a recall, in place of a request's. The recall's number and the inode follow (see
/// [`ImmediateRequest::Recalled`](super::ImmediateRequest::Recalled)).
pub const RECALL_ID: u64 = 0;
