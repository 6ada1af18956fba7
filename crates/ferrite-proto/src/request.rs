//! Requests, grouped by the part of the server that answers them.
//!
//! Contents: [`Request`], with [`ImmediateRequest`] and [`Call`]; the groups of calls. A sender writes the value of a
//! group, a receiver reads a [`Request`], or a [`Call`] where nothing else can be.
//!
//! Invariants: a request has one group, so each part of the server handles all requests that can reach it, and no
//! others. The groups do not cross the wire: a request is its number and its fields.

use ferrite_vfs::locks::{LockOwner, LockRequest, RecordLock, Unlock};
use ferrite_vfs::{FallocateMode, NewFile, NewNode, OpenFlags, OpenMode, RenameMode, SetAttr, WriteMode, XattrMode};

use super::codec::{Encode, Malformed, Reader, Wire};
use super::message::{Node, ResumeToken};
use super::rdma::QueuePairInfo;

/// All opcodes are smaller.
pub const OPCODES_MAX: usize = 64;

/// Defines an enum of groups: the conversions into it, and the properties that all groups have.
macro_rules! groups {
    ($(#[$doc:meta])* $all:ident { $($(#[$variant_doc:meta])* $variant:ident($group:ty),)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $all<'m> {
            $($(#[$variant_doc])* $variant($group),)*
        }

        $(impl<'m> From<$group> for $all<'m> {
            fn from(request: $group) -> Self {
                $all::$variant(request)
            }
        })*

        impl Encode for $all<'_> {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($all::$variant(request) => request.put(out),)*
                }
            }
        }

        impl $all<'_> {
            /// Its name.
            pub fn name(&self) -> &'static str {
                match self {
                    $($all::$variant(request) => request.name(),)*
                }
            }

            /// Its opcode.
            pub fn opcode(&self) -> u16 {
                match self {
                    $($all::$variant(request) => request.opcode(),)*
                }
            }
        }
    };
}

groups! {
    /// A request: its opcode (16 bits), then its fields.
    Request {
        /// The thread that receives it handles it.
        Immediate(ImmediateRequest<'m>),
        /// It may wait for an engine: a thread that may wait answers it.
        Call(Call<'m>),
    }
}

groups! {
    /// A request that may wait for an engine.
    Call {
        /// The server answers it, from the state of the session, the export and their store.
        Session(SessionRequest),
        /// The session's locks.
        Lock(LockingRequest),
        /// The adapter for RDMA.
        Rdma(RdmaRequest),
        /// A call of [`ferrite_vfs::FileSystem`].
        Fs(FsRequest<'m>),
        /// A call of [`ferrite_vfs::OpenFile`].
        File(FileRequest),
    }
}

/// Calls need not be wrapped twice.
macro_rules! calls {
    ($($group:ty),*) => {
        $(impl<'m> From<$group> for Request<'m> {
            fn from(request: $group) -> Self {
                Request::Call(request.into())
            }
        })*
    };
}

calls!(SessionRequest, LockingRequest, RdmaRequest, FsRequest<'m>, FileRequest);

impl<'m> Wire<'m> for Call<'m> {
    fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
        match from.get()? {
            Request::Call(call) => Ok(call),
            Request::Immediate(_) => Err(Malformed("no call has this number")),
        }
    }
}

/// Defines the groups of requests, and reads a request of any.
macro_rules! requests {
    ($(
        $(#[$group_doc:meta])*
        $group:ident $(<$life:lifetime>)? {
            $($(#[$doc:meta])* $number:literal $name:ident { $($field:ident: $type:ty),* $(,)? })*
        }
    )*) => {
        $(
            $(#[$group_doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            #[expect(missing_docs, reason = "fields have the names they have in the traits")]
            pub enum $group $(<$life>)? {
                $($(#[$doc])* $name { $($field: $type),* },)*
            }

            impl $(<$life>)? Encode for $group $(<$life>)? {
                fn put(&self, out: &mut Vec<u8>) {
                    match self {
                        $($group::$name { $($field),* } => {
                            let number: u16 = $number;
                            number.put(out);
                            $($field.put(out);)*
                        })*
                    }
                }
            }

            impl $(<$life>)? $group $(<$life>)? {
                /// Its name.
                pub fn name(&self) -> &'static str {
                    match self {
                        $($group::$name { .. } => stringify!($name),)*
                    }
                }

                /// Its opcode.
                pub fn opcode(&self) -> u16 {
                    match self {
                        $($group::$name { .. } => $number,)*
                    }
                }
            }
        )*

        impl<'m> Wire<'m> for Request<'m> {
            fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
                match from.get::<u16>()? {
                    $($($number => {
                        $(let $field = from.get()?;)*
                        Ok($group::$name { $($field),* }.into())
                    })*)*
                    _ => Err(Malformed("no request has this opcode")),
                }
            }
        }

        impl Request<'_> {
            /// The name of the request with this opcode.
            pub fn name_of(opcode: u16) -> Option<&'static str> {
                match opcode {
                    $($($number => Some(stringify!($name)),)*)*
                    _ => None,
                }
            }
        }
    };
}

requests! {
    /// Requests that the receiving thread handles, about the connection and what the session waits for.
    ImmediateRequest<'m> {
        /// The first request of a connection.
        1 Hello { magic: [u8; 8], version: u16, export: &'m [u8], resume: Option<ResumeToken> }
        /// A sign of life.
        2 Ping {}
        /// The session ends.
        4 Goodbye {}
        /// The client has reclaimed the open files, pins and locks that it had before the server restarted.
        5 Reclaimed {}
        /// Answered when it is settled. `client` identifies the party that the client serves. A claim is for a lock
        /// that the session had before the server restarted.
        35 Lock { node: Node, client: u64, lock: LockRequest, may_wait: bool, is_claim: bool }
        /// Cancels the waiting request with this number.
        38 CancelLock { request: u64 }
        /// The client's cache no longer holds anything that these recalls name.
        53 Recalled { recalls: Vec<u64> }
    }

    /// Requests about the session, and the server's report.
    SessionRequest {
        /// Gives a session without slots for tokens up to `count`, or as many as the server has to spare; answered with
        /// the upper half of the tokens' numbers, and the slots.
        3 Slots { count: u32 }
        /// The slots that the session had before the server restarted; answered as `Slots`.
        6 ReclaimSlots {}
        /// The client no longer waits for the reply to this request: the server releases the session state that it
        /// took.
        7 Abandon { request: u64, file: u64 }
        /// Operations on the export, by client; answered with an [`Activity`](super::Activity).
        8 Activity {}
        /// The session wants leases. Its earlier ones are over, unless other parties still rely on them. Answered with
        /// their term in milliseconds, 0 if there are no leases.
        52 Leases { relied_on: bool }
    }

    /// Requests about locks that do not wait.
    LockingRequest {
        36 Unlock { node: Node, client: u64, owner: LockOwner, what: Unlock }
        37 ConflictingLock { node: Node, client: u64, lock: RecordLock }
        39 ReleaseClient { client: u64 }
    }

    /// Requests about RDMA.
    RdmaRequest {
        /// The addresses of RDMA; answered with a list of places, empty without RDMA. An unspecified address is the one
        /// that the client has reached.
        54 Rdma {}
        /// Opens the peer of the client's queue pair; answered with the server's end.
        55 OpenQueuePair { client: QueuePairInfo }
        /// Closes one, by the server's number.
        56 CloseQueuePair { qpn: u32 }
        /// Gives a key of a regular file, for queue pairs of the session; answered with a `GrantedKey`. `atomic`: each
        /// WRITE is one step, as a local write is.
        57 Bind { node: Node, writable: bool, defragment: bool, atomic: bool }
        /// A key is invalid once this is answered.
        58 ReleaseKey { key: u32 }
        /// All keys of a file are invalid, and it is an ordinary file again.
        59 Unbind { node: Node }
        /// Counters of RDMA, and the bound files of the export; answered with an
        /// [`RdmaActivity`](super::RdmaActivity).
        60 RdmaActivity {}
    }

    /// Calls of [`ferrite_vfs::FileSystem`]; see there.
    FsRequest<'m> {
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
        /// `reply_bytes`: about how much of the listing the client wants.
        25 Readdir { dir: Node, cookie: u64, with_attributes: bool, reply_bytes: u32 }
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
        61 CloneTree { node: Node, parent: Node, name: &'m [u8] }
        /// Reopens a file after a restart of the server; the MAC is that of [`OpenedFile`](super::OpenedFile).
        49 Reopen { node: Node, mode: OpenMode, mac: u64, file: u64 }
    }

    /// Calls of [`ferrite_vfs::OpenFile`]; see there. `file` is the number under which the client has opened it.
    FileRequest {
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
        /// Answered with data and a [`Piece`](super::Piece).
        50 ReadPiece { file: u64, offset: u64, len_bytes: u32 }
        51 CloneRange { file: u64, source: u64, source_offset: u64, offset: u64, len_bytes: u64 }
    }
}

// The properties of requests. No match on a group has a wildcard where the author of a new request must decide.

impl Request<'_> {
    /// The number of the file that it opens, if it opens one.
    pub fn file(&self) -> Option<u64> {
        match self {
            Request::Call(Call::Fs(request)) => request.file(),
            Request::Call(_) | Request::Immediate(_) => None,
        }
    }

    /// See [`Call::is_change`]; nothing else is one.
    pub fn is_change(&self) -> bool {
        match self {
            Request::Call(call) => call.is_change(),
            Request::Immediate(_) => false,
        }
    }

    /// Whether it opens a file so that changes may follow.
    pub fn opens_for_writing(&self) -> bool {
        match self {
            Request::Call(Call::Fs(request)) => request.opens_for_writing(),
            Request::Call(_) | Request::Immediate(_) => false,
        }
    }
}

impl Call<'_> {
    /// Whether it may change what others see: then it should carry a token, waits for leases, and a read-only export
    /// refuses it. Only opening something also needs [`FsRequest::opens_for_writing`] for that.
    pub fn is_change(&self) -> bool {
        match self {
            Call::Session(_) | Call::Lock(_) => false,
            Call::Rdma(request) => request.is_change(),
            Call::Fs(request) => request.is_change(),
            Call::File(request) => request.is_change(),
        }
    }
}

impl RdmaRequest {
    /// See [`Call::is_change`].
    pub fn is_change(&self) -> bool {
        match self {
            RdmaRequest::Unbind { .. } => true,
            // Later writes arrive another way, and revoke no leases then.
            RdmaRequest::Bind { writable, .. } => *writable,
            RdmaRequest::Rdma {}
            | RdmaRequest::OpenQueuePair { .. }
            | RdmaRequest::CloseQueuePair { .. }
            | RdmaRequest::ReleaseKey { .. }
            | RdmaRequest::RdmaActivity {} => false,
        }
    }

    /// Whether it always takes long: moving a file's pages does, and so does finalizing a file whose last key is gone.
    pub fn is_long(&self) -> bool {
        match self {
            RdmaRequest::Bind { .. } | RdmaRequest::ReleaseKey { .. } | RdmaRequest::Unbind { .. } => true,
            RdmaRequest::Rdma {}
            | RdmaRequest::OpenQueuePair { .. }
            | RdmaRequest::CloseQueuePair { .. }
            | RdmaRequest::RdmaActivity {} => false,
        }
    }
}

/// The permission bits of a new inode as requests have them: as the caller's mask leaves them, and from bit 16 on those
/// that the mask took. A default access control list of the directory gives them back.
pub fn masked_mode(mode: u32, umask: u32) -> u32 {
    let taken = mode & umask & 0o777;
    (mode & 0xffff & !taken) | taken << 16
}

/// Permission bits before the mask, and the mask, of [`masked_mode`].
pub fn unmasked_mode(mode: u32) -> (u32, u32) {
    let taken = mode >> 16 & 0o777;
    (mode & 0xffff | taken, taken)
}

impl FsRequest<'_> {
    /// The number of the file that it opens, if it opens one.
    pub fn file(&self) -> Option<u64> {
        match self {
            FsRequest::Open { file, .. }
            | FsRequest::Create { file, .. }
            | FsRequest::OpenPath { file, .. }
            | FsRequest::Reopen { file, .. } => Some(*file),
            _ => None,
        }
    }

    /// See [`Call::is_change`].
    pub fn is_change(&self) -> bool {
        match self {
            FsRequest::Setattr { .. }
            | FsRequest::Mknod { .. }
            | FsRequest::Mkdir { .. }
            | FsRequest::Symlink { .. }
            | FsRequest::Link { .. }
            | FsRequest::CloneTree { .. }
            | FsRequest::Unlink { .. }
            | FsRequest::Rmdir { .. }
            | FsRequest::Rename { .. }
            | FsRequest::Create { .. }
            | FsRequest::Setxattr { .. }
            | FsRequest::Removexattr { .. } => true,
            FsRequest::Open { mode, .. } => mode.truncate,
            FsRequest::OpenPath { flags, .. } => flags.create || flags.truncate,
            // Reopening a file does not truncate it again.
            FsRequest::Reopen { .. }
            | FsRequest::Statfs {}
            | FsRequest::Lookup { .. }
            | FsRequest::Parent { .. }
            | FsRequest::Getattr { .. }
            | FsRequest::Pin { .. }
            | FsRequest::Release { .. }
            | FsRequest::Readlink { .. }
            | FsRequest::Readdir { .. }
            | FsRequest::Resolve { .. }
            | FsRequest::Getxattr { .. }
            | FsRequest::Listxattr { .. }
            | FsRequest::Sync {} => false,
        }
    }

    /// Whether it opens a file so that changes may follow.
    pub fn opens_for_writing(&self) -> bool {
        match self {
            FsRequest::Open { mode, .. } | FsRequest::Reopen { mode, .. } => mode.changes(),
            FsRequest::Create { new, .. } => new.open.changes(),
            FsRequest::OpenPath { flags, .. } => flags.write || flags.truncate,
            _ => false,
        }
    }
}

impl FileRequest {
    /// See [`Call::is_change`].
    pub fn is_change(&self) -> bool {
        match self {
            FileRequest::FileSetattr { .. }
            | FileRequest::Write { .. }
            | FileRequest::Fallocate { .. }
            | FileRequest::CloneRange { .. } => true,
            FileRequest::FileGetattr { .. }
            | FileRequest::Read { .. }
            | FileRequest::ReadPiece { .. }
            | FileRequest::SeekData { .. }
            | FileRequest::SeekHole { .. }
            | FileRequest::Fsync { .. }
            | FileRequest::Close { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(request: &impl Encode) -> Vec<u8> {
        let mut out = Vec::new();
        request.put(&mut out);
        out
    }

    /// A group adds nothing to the bytes of its requests: not where it stands alone, and not in the enums above it.
    #[test]
    fn groups_do_not_cross_the_wire() {
        let seek = FileRequest::SeekHole { file: 3, offset: 258 };
        let golden = [46, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes(&seek), golden);
        assert_eq!(bytes(&Call::from(seek.clone())), golden);
        assert_eq!(bytes(&Request::from(seek.clone())), golden);
        assert_eq!(Reader::new(&golden).last(), Ok(Call::File(seek)));
        let others: [(Request<'_>, &[u8]); 5] = [
            (
                ImmediateRequest::CancelLock { request: 7 }.into(),
                &[38, 0, 7, 0, 0, 0, 0, 0, 0, 0],
            ),
            (SessionRequest::Leases { relied_on: true }.into(), &[52, 0, 1]),
            (
                LockingRequest::ReleaseClient { client: 9 }.into(),
                &[39, 0, 9, 0, 0, 0, 0, 0, 0, 0],
            ),
            (RdmaRequest::ReleaseKey { key: 5 }.into(), &[58, 0, 5, 0, 0, 0]),
            (FsRequest::Sync {}.into(), &[34, 0]),
        ];
        for (request, golden) in others {
            assert_eq!(bytes(&request), golden, "{request:?}");
            assert_eq!(Reader::new(golden).last(), Ok(request));
        }
    }

    /// The server keeps the bytes of a call, and reads them again on another thread: nothing else can be there.
    #[test]
    fn only_calls_are_read_as_calls() {
        let ping = bytes(&ImmediateRequest::Ping {});
        assert!(Reader::new(&ping).last::<Request<'_>>().is_ok());
        assert!(Reader::new(&ping).last::<Call<'_>>().is_err());
        for number in 0..OPCODES_MAX as u16 {
            let mut body = bytes(&number);
            body.extend([0; 200]);
            let (any, call) = (
                Reader::new(&body).get::<Request<'_>>(),
                Reader::new(&body).get::<Call<'_>>(),
            );
            let is_immediate = matches!(any, Ok(Request::Immediate(_)));
            assert_eq!(any.is_ok(), call.is_ok() || is_immediate, "{number}");
            if let Ok(any) = any {
                assert_eq!((any.opcode(), Some(any.name())), (number, Request::name_of(number)));
            }
        }
    }
}
