//! Requests, and what answers them.

use ferrite_vfs::locks::{LockOwner, LockRequest, RecordLock, Unlock};
use ferrite_vfs::{
    Attr, BadArgument, Durability, FallocateMode, FileKind, FsError, Ino, NewFile, NewNode, Once, OpenFlags, OpenMode,
    RenameMode, SetAttr, WriteMode, XattrMode, posix,
};

use super::codec::{Malformed, Reader, Wire, fields};
use super::rdma::QueuePairTold;

/// An inode as the server named it. The client cannot make one up.
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

/// A proof that a session is the one it says, for a client that comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The session.
    pub session: u64,
    /// The server's seal on session and export.
    pub seal: u64,
}

fields!(Ticket { session, seal });

/// What a server promises, of [`ferrite_vfs::Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Longest write that is one atomic step.
    pub atomic_write_bytes: u64,
    /// Longest write that others see whole.
    pub whole_write_bytes: u64,
    /// Longest file.
    pub file_bytes_max: u64,
    /// What survives.
    pub durability: Durability,
    /// Without `sync`.
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
    /// How much the server knows of the session that the client asked for.
    pub state: SessionState,
    /// Without a sign of life for so long a session ends, in milliseconds.
    pub lease_ms: u32,
    /// The root of the export.
    pub root: Node,
    /// What the server promises.
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

/// What became of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// It is new; an older one, if the client asked for it, has ended.
    New,
    /// It goes on as it was.
    Alive,
    /// The server has restarted: the client says what it had open, pinned and locked.
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
    /// What it is.
    pub told: Told,
    /// The call created it.
    pub created: bool,
    /// The server's seal on inode and mode, with which the client opens it again after a restart.
    pub seal: u64,
}

fields!(OpenedFile { told, created, seal });

/// What comes with a part of what is read in several requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Pieces of one version, asked for over one connection, are of one state of the file; `None`: nobody knows.
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
    /// Where the listing goes on after it.
    pub next_cookie: u64,
    /// Its name.
    pub name: &'m [u8],
    /// What else is told of it.
    pub told: EntryTold,
}

/// What a listing tells of an entry besides its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryTold {
    /// How to name it in requests.
    Node(Node),
    /// Its attributes, which were asked for.
    Attributes(Told),
    /// Why neither can be had.
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
/// The most that a client gets of a listing in one answer, about.
pub const LISTING_BYTES_MAX: usize = 48 << 10;

/// On whose behalf a request is made.
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
    /// Refuses one whose user or groups are none ([`posix::NO_ID`]): what it creates would be nobody's.
    pub fn check(&self) -> Result<(), FsError> {
        let groups = self.groups.iter().copied();
        match groups.chain([self.uid, self.gid]).any(|id| id == posix::NO_ID) {
            true => Err(FsError::Invalid(BadArgument::NoId)),
            false => Ok(()),
        }
    }
}

/// What precedes every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Chosen by the client; the answer carries it. A request that is sent again has the same.
    pub id: u64,
    /// All requests with smaller numbers are answered, or will not be sent again, except those for locks.
    pub settled_below: u64,
    /// Inodes whose attributes are returned come pinned.
    pub pins: bool,
    /// Permissions are checked. A server that does not trust its clients checks anyway.
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

/// What precedes every answer, and every recall, which has the number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerHead {
    /// That of the request.
    pub id: u64,
    /// The result follows; else an error.
    pub is_ok: bool,
    /// The session has a lease on what the answer tells of.
    pub is_leased: bool,
}

impl AnswerHead {
    /// That of a result that may not be kept.
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

    /// Whether it may change what others see: it should carry a token then, waits for leases, and is refused by an
    /// export that is read-only. Only opening something also needs [`Self::opens_for_writing`] for that.
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
            // What is written later comes by another way, and nobody asks for leases then.
            Request::Bind { writable, .. } => *writable,
            Request::Open { mode, .. } => mode.truncate,
            Request::OpenPath { flags, .. } => flags.create || flags.truncate,
            // All others, so that a new request is decided on. A file that is opened again is not cut again.
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

/// The number of a recall, in place of a request's. What follows is the recall's number, and the inode (see
/// [`Request::Recalled`]).
pub const RECALL_ID: u64 = 0;

requests! {
    /// The first of a connection.
    1 Hello { magic: [u8; 8], version: u16, export: &'m [u8], resume: Option<Ticket> }
    /// A sign of life.
    2 Ping {}
    /// Gives a session without slots for tokens up to `count`, or as many as the server has to spare; answered with the
    /// number that tokens carry in the upper half of theirs, and the slots.
    3 Slots { count: u32 }
    /// The session ends.
    4 Goodbye {}
    /// The client has said what it had open, pinned and locked before the server restarted.
    5 Reclaimed {}
    /// The slots that the session had before the server restarted; answered as `Slots`.
    6 ReclaimSlots {}
    /// The client does not wait for the answer to this request any more: what it took of the session is given back.
    7 Abandon { request: u64, file: u64 }
    /// What was done with the export, and by whom; answered with an [`Activity`](super::Activity).
    8 Activity {}
    10 Statfs {}
    11 Lookup { parent: Node, name: &'m [u8] }
    12 Parent { dir: Node }
    13 Getattr { node: Node }
    14 Setattr { node: Node, set: SetAttr }
    15 Pin { node: Node }
    /// Gives pins back: of each inode as many.
    16 Release { pins: Vec<(u64, u64)> }
    17 Readlink { node: Node }
    18 Mknod { parent: Node, name: &'m [u8], new: NewNode }
    19 Mkdir { parent: Node, name: &'m [u8], mode: u32 }
    20 Symlink { parent: Node, name: &'m [u8], target: &'m [u8] }
    21 Link { node: Node, parent: Node, name: &'m [u8] }
    22 Unlink { parent: Node, name: &'m [u8] }
    23 Rmdir { parent: Node, name: &'m [u8] }
    24 Rename { parent: Node, name: &'m [u8], new_parent: Node, new_name: &'m [u8], mode: RenameMode }
    /// `room_bytes`: how much of the listing is wanted, about.
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
    /// Answered when it is settled. `client` tells apart whom the client serves. A claim is for what the session had
    /// before the server restarted.
    35 Lock { node: Node, client: u64, lock: LockRequest, may_wait: bool, is_claim: bool }
    36 Unlock { node: Node, client: u64, owner: LockOwner, what: Unlock }
    37 ConflictingLock { node: Node, client: u64, lock: RecordLock }
    /// Ends the wait of the request with this number.
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
    /// Opens a file again after a restart of the server; the seal is that of [`OpenedFile`].
    49 Reopen { node: Node, mode: OpenMode, seal: u64, file: u64 }
    /// Answered with data and a [`Piece`].
    50 ReadPiece { file: u64, offset: u64, len_bytes: u32 }
    /// The session wants leases. Those that it had are over, unless somebody relies on them still. Answered with their
    /// term in milliseconds, 0 if there are none.
    52 Leases { relied_on: bool }
    /// What these recalls told of is not in the client's cache any more.
    53 Recalled { recalls: Vec<u64> }
    /// Where RDMA is to be had; answered with a list of places, empty if it is not. An unspecified address is the one
    /// that the client has reached.
    54 Rdma {}
    /// Opens a queue pair for the client's; answered with the server's end.
    55 OpenQueuePair { client: QueuePairTold }
    /// Closes one, by the server's number.
    56 CloseQueuePair { qpn: u32 }
    /// Gives a key of a regular file, for queue pairs of the session; answered with a `GrantedKey`. `atomic`: each
    /// WRITE is one step, as a local write is.
    57 Bind { node: Node, writable: bool, arrange: bool, atomic: bool }
    /// A key is not valid any more when this is answered.
    58 ReleaseKey { key: u32 }
    /// All keys of a file are not valid any more, and it is an ordinary file again.
    59 Unbind { node: Node }
    /// What RDMA does, and which files of the export are bound; answered with an [`RdmaActivity`](super::RdmaActivity).
    60 RdmaActivity {}
}
