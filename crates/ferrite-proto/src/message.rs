//! Requests, and their answers.

use ferrite_vfs::locks::{LockOwner, LockRequest, RecordLock, Unlock};
use ferrite_vfs::{
    Attr, BadArgument, Durability, FallocateMode, FileKind, FsError, Ino, NewFile, NewNode, Once, OpenFlags, OpenMode,
    RenameMode, SetAttr, WriteMode, XattrMode, posix,
};

use super::codec::{Malformed, Reader, Wire};
use super::rdma::QueuePairTold;
use crate::fields;

/// An inode as the server named it. The client cannot forge one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Its number. The root of the export is 1.
    pub ino: Ino,
    /// Its generation.
    pub generation: u32,
    /// The server's seal on both, valid for one export.
    pub seal: u64,
}

fields!(Node { ino, generation, seal });

/// An inode's attributes, and how to name it in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The attributes.
    pub attr: Attr,
    /// See [`Node::seal`].
    pub seal: u64,
    /// The session has pinned the inode once for this answer.
    pub is_pinned: bool,
}

fields!(Told { attr, seal, is_pinned });

impl Told {
    /// How requests name it.
    pub fn node(&self) -> Node {
        Node {
            ino: self.attr.ino,
            generation: self.attr.generation,
            seal: self.seal,
        }
    }
}

/// A proof of its session, for a client that reconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The session.
    pub session: u64,
    /// The server's seal on session and export.
    pub seal: u64,
}

fields!(Ticket { session, seal });

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
    /// Operations are durable without `sync`.
    pub durable_operations: bool,
    /// Changes can be made to happen once: there are slots for tokens.
    pub has_slots: bool,
}

fields!(Promises {
    atomic_write_bytes,
    whole_write_bytes,
    file_bytes_max,
    durability,
    durable_operations,
    has_slots
});

/// The answer to [`Request::Hello`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// The version that both speak.
    pub version: u16,
    /// A number of this run of the server.
    pub instance: u64,
    /// The session.
    pub ticket: Ticket,
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
    ticket,
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
    pub told: Told,
    /// The call created it.
    pub created: bool,
    /// The server's seal on inode and mode, with which the client reopens it after a restart.
    pub seal: u64,
}

fields!(OpenedFile { told, created, seal });

/// The answer to one part of a read in several requests.
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
    pub told: EntryTold,
}

/// The information of a listing about an entry besides its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryTold {
    /// How to name it in requests.
    Node(Node),
    /// Its attributes, if requested.
    Attributes(Told),
    /// Why neither is available.
    Nothing(FsError),
}

impl<'m> Wire<'m> for Entry<'m> {
    fn put(&self, out: &mut Vec<u8>) {
        self.ino.put(out);
        self.kind.put(out);
        self.next_cookie.put(out);
        self.name.put(out);
        match &self.told {
            EntryTold::Node(node) => {
                0u8.put(out);
                node.put(out);
            }
            EntryTold::Attributes(told) => {
                1u8.put(out);
                told.put(out);
            }
            EntryTold::Nothing(error) => {
                2u8.put(out);
                error.put(out);
            }
        }
    }

    fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
        Ok(Entry {
            ino: from.get()?,
            kind: from.get()?,
            next_cookie: from.get()?,
            name: from.get()?,
            told: match from.get::<u8>()? {
                0 => EntryTold::Node(from.get()?),
                1 => EntryTold::Attributes(from.get()?),
                2 => EntryTold::Nothing(from.get()?),
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
/// The approximate maximum of a listing in one answer.
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
    /// Chosen by the client; the answer carries it. A repeated request has the same.
    pub id: u64,
    /// All requests with smaller numbers are answered, or will not be repeated, except those for locks.
    pub settled_below: u64,
    /// The server pins inodes whose attributes it returns.
    pub pins: bool,
    /// The server checks permissions. A server that does not trust its clients checks anyway.
    pub check: bool,
    /// The token of a change.
    pub once: Option<Once>,
    /// The caller.
    pub caller: Caller,
}

impl Wire<'_> for Once {
    fn put(&self, out: &mut Vec<u8>) {
        self.slot.put(out);
        self.seq.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Once {
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
    once,
    caller
});

/// The head of every answer, and of every recall, which has the number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerHead {
    /// That of the request.
    pub id: u64,
    /// The result follows; else an error.
    pub is_ok: bool,
    /// The session has a lease on the inodes in the answer.
    pub is_leased: bool,
}

impl AnswerHead {
    /// The head of a result that must not be cached.
    pub fn ok(id: u64) -> AnswerHead {
        AnswerHead {
            id,
            is_ok: true,
            is_leased: false,
        }
    }
}

impl Wire<'_> for AnswerHead {
    fn put(&self, out: &mut Vec<u8>) {
        self.id.put(out);
        (u8::from(self.is_ok) | u8::from(self.is_leased) << 1).put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let id = from.get()?;
        match from.get::<u8>()? {
            flags @ 0..=3 => Ok(AnswerHead {
                id,
                is_ok: flags & 1 != 0,
                is_leased: flags & 2 != 0,
            }),
            _ => Err(Malformed("an answer succeeds or fails, with a lease or without")),
        }
    }
}

/// All numbers of requests are smaller.
pub const REQUEST_NUMBERS: usize = 64;

macro_rules! requests {
    ($($(#[$doc:meta])* $number:literal $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        /// A request: its number (16 bits), then its fields. Most are calls of the traits; see there.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[expect(missing_docs, reason = "fields have the names they have in the traits")]
        pub enum Request<'m> {
            $($(#[$doc])* $name { $($field: $type),* },)*
        }

        impl<'m> Wire<'m> for Request<'m> {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Request::$name { $($field),* } => {
                        let number: u16 = $number;
                        number.put(out);
                        $($field.put(out);)*
                    })*
                }
            }

            fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
                match from.get::<u16>()? {
                    $($number => {
                        $(let $field = from.get()?;)*
                        Ok(Request::$name { $($field),* })
                    })*
                    _ => Err(Malformed("no request has this number")),
                }
            }
        }

        impl Request<'_> {
            /// Its name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Request::$name { .. } => stringify!($name),)*
                }
            }

            /// Its number.
            pub fn number(&self) -> u16 {
                match self {
                    $(Request::$name { .. } => $number,)*
                }
            }

            /// The name of the request with this number.
            pub fn name_of(number: u16) -> Option<&'static str> {
                match number {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

impl Request<'_> {
    /// The number of the file that it opens, if it opens one.
    pub fn file(&self) -> Option<u64> {
        match self {
            Request::Open { file, .. }
            | Request::Create { file, .. }
            | Request::OpenPath { file, .. }
            | Request::Reopen { file, .. } => Some(*file),
            _ => None,
        }
    }

    /// Whether it may change what others see: then it should carry a token, waits for leases, and a read-only export
    /// refuses it. Only opening something also needs [`Self::opens_for_writing`] for that.
    pub fn is_change(&self) -> bool {
        match self {
            Request::Setattr { .. }
            | Request::Mknod { .. }
            | Request::Mkdir { .. }
            | Request::Symlink { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::Create { .. }
            | Request::Setxattr { .. }
            | Request::Removexattr { .. }
            | Request::FileSetattr { .. }
            | Request::Write { .. }
            | Request::Fallocate { .. }
            | Request::Unbind { .. } => true,
            // Later writes arrive another way, and revoke no leases then.
            Request::Bind { writable, .. } => *writable,
            Request::Open { mode, .. } => mode.truncate,
            Request::OpenPath { flags, .. } => flags.create || flags.truncate,
            // All others, so that the author of a new request must decide. Reopening a file does not truncate it again.
            Request::Reopen { .. }
            | Request::Hello { .. }
            | Request::Ping {}
            | Request::Slots { .. }
            | Request::Goodbye {}
            | Request::Reclaimed {}
            | Request::ReclaimSlots {}
            | Request::Abandon { .. }
            | Request::Activity {}
            | Request::Statfs {}
            | Request::Lookup { .. }
            | Request::Parent { .. }
            | Request::Getattr { .. }
            | Request::Pin { .. }
            | Request::Release { .. }
            | Request::Readlink { .. }
            | Request::Readdir { .. }
            | Request::Resolve { .. }
            | Request::Getxattr { .. }
            | Request::Listxattr { .. }
            | Request::Sync {}
            | Request::Lock { .. }
            | Request::Unlock { .. }
            | Request::ConflictingLock { .. }
            | Request::CancelLock { .. }
            | Request::ReleaseClient { .. }
            | Request::FileGetattr { .. }
            | Request::Read { .. }
            | Request::SeekData { .. }
            | Request::SeekHole { .. }
            | Request::Fsync { .. }
            | Request::Close { .. }
            | Request::ReadPiece { .. }
            | Request::Leases { .. }
            | Request::Recalled { .. }
            | Request::Rdma {}
            | Request::OpenQueuePair { .. }
            | Request::CloseQueuePair { .. }
            | Request::ReleaseKey { .. }
            | Request::RdmaActivity {} => false,
        }
    }

    /// Whether it opens a file so that changes may follow.
    pub fn opens_for_writing(&self) -> bool {
        match self {
            Request::Open { mode, .. } | Request::Reopen { mode, .. } => mode.write || mode.truncate,
            Request::Create { new, .. } => new.open.write || new.open.truncate,
            Request::OpenPath { flags, .. } => flags.write || flags.truncate,
            _ => false,
        }
    }
}

/// The number of a recall, in place of a request's. The recall's number and the inode follow (see
/// [`Request::Recalled`]).
pub const RECALL_ID: u64 = 0;

requests! {
    /// The first request of a connection.
    1 Hello { magic: [u8; 8], version: u16, export: &'m [u8], resume: Option<Ticket> }
    /// A sign of life.
    2 Ping {}
    /// Gives a session without slots for tokens up to `count`, or as many as the server has to spare; answered with the
    /// upper half of the tokens' numbers, and the slots.
    3 Slots { count: u32 }
    /// The session ends.
    4 Goodbye {}
    /// The client has reclaimed the open files, pins and locks that it had before the server restarted.
    5 Reclaimed {}
    /// The slots that the session had before the server restarted; answered as `Slots`.
    6 ReclaimSlots {}
    /// The client no longer waits for the answer to this request: the server releases the session state that it took.
    7 Abandon { request: u64, file: u64 }
    /// Operations on the export, by client; answered with an [`Activity`](super::Activity).
    8 Activity {}
    10 Statfs {}
    11 Lookup { parent: Node, name: &'m [u8] }
    12 Parent { dir: Node }
    13 Getattr { node: Node }
    14 Setattr { node: Node, set: SetAttr }
    15 Pin { node: Node }
    /// Returns pins: so many of each inode.
    16 Release { pins: Vec<(u64, u64)> }
    17 Readlink { node: Node }
    18 Mknod { parent: Node, name: &'m [u8], new: NewNode }
    19 Mkdir { parent: Node, name: &'m [u8], mode: u32 }
    20 Symlink { parent: Node, name: &'m [u8], target: &'m [u8] }
    21 Link { node: Node, parent: Node, name: &'m [u8] }
    22 Unlink { parent: Node, name: &'m [u8] }
    23 Rmdir { parent: Node, name: &'m [u8] }
    24 Rename { parent: Node, name: &'m [u8], new_parent: Node, new_name: &'m [u8], mode: RenameMode }
    /// `room_bytes`: about how much of the listing the client wants.
    25 Readdir { dir: Node, cookie: u64, with_attributes: bool, room_bytes: u32 }
    /// `file` is a number that the client has not used before.
    26 Open { node: Node, mode: OpenMode, file: u64 }
    27 Create { parent: Node, name: &'m [u8], new: NewFile, file: u64 }
    28 Resolve { root: Node, base: Node, path: &'m [u8], follow: bool }
    29 OpenPath { root: Node, base: Node, path: &'m [u8], flags: OpenFlags, file: u64 }
    30 Getxattr { node: Node, name: &'m [u8] }
    31 Setxattr { node: Node, name: &'m [u8], value: &'m [u8], mode: XattrMode }
    32 Listxattr { node: Node }
    33 Removexattr { node: Node, name: &'m [u8] }
    34 Sync {}
    /// Answered when it is settled. `client` identifies the party that the client serves. A claim is for a lock that
    /// the session had before the server restarted.
    35 Lock { node: Node, client: u64, lock: LockRequest, may_wait: bool, is_claim: bool }
    36 Unlock { node: Node, client: u64, owner: LockOwner, what: Unlock }
    37 ConflictingLock { node: Node, client: u64, lock: RecordLock }
    /// Cancels the waiting request with this number.
    38 CancelLock { request: u64 }
    39 ReleaseClient { client: u64 }
    40 FileGetattr { file: u64 }
    41 FileSetattr { file: u64, set: SetAttr }
    /// Answered with data.
    42 Read { file: u64, offset: u64, len_bytes: u32 }
    /// Comes with data.
    43 Write { file: u64, mode: WriteMode }
    44 Fallocate { file: u64, mode: FallocateMode, offset: u64, len_bytes: u64 }
    45 SeekData { file: u64, offset: u64 }
    46 SeekHole { file: u64, offset: u64 }
    47 Fsync { file: u64 }
    48 Close { files: Vec<u64> }
    /// Reopens a file after a restart of the server; the seal is that of [`OpenedFile`].
    49 Reopen { node: Node, mode: OpenMode, seal: u64, file: u64 }
    /// Answered with data and a [`Piece`].
    50 ReadPiece { file: u64, offset: u64, len_bytes: u32 }
    /// The session wants leases. Its earlier ones are over, unless other parties still rely on them. Answered with
    /// their term in milliseconds, 0 if there are no leases.
    52 Leases { relied_on: bool }
    /// The client's cache no longer holds anything that these recalls name.
    53 Recalled { recalls: Vec<u64> }
    /// The addresses of RDMA; answered with a list of places, empty without RDMA. An unspecified address is the one
    /// that the client has reached.
    54 Rdma {}
    /// Opens the peer of the client's queue pair; answered with the server's end.
    55 OpenQueuePair { client: QueuePairTold }
    /// Closes one, by the server's number.
    56 CloseQueuePair { qpn: u32 }
    /// Gives a key of a regular file, for queue pairs of the session; answered with a `GrantedKey`. `atomic`: each
    /// WRITE is one step, as a local write is.
    57 Bind { node: Node, writable: bool, arrange: bool, atomic: bool }
    /// A key is invalid once this is answered.
    58 ReleaseKey { key: u32 }
    /// All keys of a file are invalid, and it is an ordinary file again.
    59 Unbind { node: Node }
    /// Counters of RDMA, and the bound files of the export; answered with an [`RdmaActivity`](super::RdmaActivity).
    60 RdmaActivity {}
}
