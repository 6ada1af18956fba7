//! Long requests, executed by threads that receive nothing.
//!
//! This module has [`Aside`], which selects such requests for engines that answer on the receiving thread, and has the
//! threads. A request that frees or searches many pages, or carries a whole list, goes there; so does every request for
//! an inode on which such a request is at work, because it may wait for the inode's lock.
//!
//! While a tree is cloned, or its quota set, all changes of its pool go there, because they wait until it is done.
//!
//! A request that names its target by a name or a path may need any inode, and goes there while there is such work.
//! docs/engines.md lists the bound of each request, with a test (`tests/bounds.rs`).
//!
//! Invariant: an inode is marked from before its request is handed to a thread until that is done, so no receiving
//! thread waits for it. Receiving threads make the marks, so a later request finds them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_transport::reactor::Served;
use ferrite_transport::send_queue::SendQueue;
use ferrite_vfs::workers::{Work, Workers};
use ferrite_vfs::{Attr, FileKind, Ino, QuotaAttribute, SNAPSHOT_XATTR, SYSTEM, Start};

use super::export::Store;
use super::lane::{Busy, Holds, Lane};
use super::meter::Received;
use super::session::Session;
use super::{Inner, change};
use ferrite_proto::{Call, FileRequest, FsRequest, Head, LockingRequest, Node, SessionRequest};

/// Threads.
const THREADS: usize = 4;
/// A receiving thread does not free or truncate larger files.
const FREED_BYTES_MAX: u64 = 4 << 20;
/// A receiving thread does not search larger files.
const SEARCHED_BYTES_MAX: u64 = 64 << 20;
/// A receiving thread does not process longer lists.
const LIST_MAX: usize = 128;

/// See the head of this module.
pub(super) struct Aside {
    pub(super) workers: Workers,
    busy: Arc<Busy>,
}

/// The inodes that a request needs, as far as it names them.
enum Needs {
    Nothing,
    Inode(Ino),
    /// The target of a name or a path.
    Any,
}

/// Whether a request may take long, and for which inode.
enum Length {
    Short,
    Long(Option<Ino>),
}

impl Length {
    fn of(is_long: bool, ino: Ino) -> Length {
        match is_long {
            true => Length::Long(Some(ino)),
            false => Length::Short,
        }
    }
}

fn is_large(attr: &Attr) -> bool {
    attr.blocks * 512 > FREED_BYTES_MAX
}

/// Whether the attributes show the last name of a large file, or none left.
fn is_last_of_large(attr: &Attr) -> bool {
    attr.nlink <= 1 && is_large(attr)
}

impl Aside {
    pub(super) fn start() -> std::io::Result<Aside> {
        Ok(Aside {
            workers: Workers::start(THREADS)?,
            busy: Arc::default(),
        })
    }

    /// Whether a request goes aside.
    fn lane(&self, session: &Session, request: &Call<'_>) -> Option<Lane> {
        let store = session.export.store.number;
        if clones(session, request) {
            return Some(Busy::mark_clone(&self.busy, store));
        }
        if self.busy.is_cloning(store) && request.is_change() {
            return Some(self.mark(session, None));
        }
        if self.busy.has_some() {
            match needs(session, request) {
                Needs::Nothing => {}
                Needs::Any => return Some(self.mark(session, None)),
                Needs::Inode(ino) if self.is_busy(session, ino) => return Some(self.mark(session, Some(ino))),
                Needs::Inode(_) => {}
            }
        }
        match length(session, request) {
            Length::Long(ino) => Some(self.mark(session, ino)),
            // It must find pending closes done.
            Length::Short if session.has_given() && session.close_barrier.latest().is_some() => {
                Some(self.mark(session, None))
            }
            Length::Short => None,
        }
    }

    fn is_busy(&self, session: &Session, ino: Ino) -> bool {
        self.busy.has((session.export.store.number, ino))
    }

    fn mark(&self, session: &Session, ino: Option<Ino>) -> Lane {
        Busy::mark(&self.busy, ino.map(|ino| (session.export.store.number, ino)))
    }
}

impl Inner {
    /// Executes a request that needs the engine: here, on a worker, or when leases have ended.
    pub(super) fn ask_engine(
        self: &Arc<Self>,
        session: &Arc<Session>,
        head: Head,
        request: Call<'_>,
        received: Received<'_>,
        out: &mut SendQueue,
    ) -> Served {
        let (id, store) = (head.id, &session.export.store);
        if session.is_given(id) {
            return Served::Yes;
        }
        let lane = match store.limits.may_block {
            true => None,
            false => self.aside.lane(session, &request),
        };
        let passing = request.is_change().then(|| store.leases.pass());
        if let Some(None) = passing {
            change::begin(self, session, id, received, (lane.is_some(), lane));
            return Served::Yes;
        }
        if store.limits.submits && self.submit(session, &head, &request, &received) {
            return Served::Yes;
        }
        if store.limits.may_block || lane.is_some() {
            let is_end = matches!(
                request,
                Call::File(FileRequest::Close { .. }) | Call::Fs(FsRequest::Release { .. })
            );
            let holds = Holds::new(passing.flatten(), lane);
            self.give(session, id, received, holds, is_end);
            return Served::Yes;
        }
        let _turn = self.may_overlap.then(|| session.begin_alone(id));
        self.reply(session, head, request, received.data.bytes(), out)
    }

    /// Passes a request for a lock to the engine, which may weaken another and so settle many waiting requests.
    pub(super) fn ask_for_lock(&self, store: &Store, work: Work) {
        match !store.limits.may_block && has_many_unsettled_locks(store) {
            true => self.go_on(work),
            false => self.work(store, work),
        }
    }

    /// The threads for work on an engine that may wait, or take long.
    pub(super) fn workers_of(&self, store: &Store) -> &Workers {
        let for_blocking = self.workers.as_ref().filter(|_| store.limits.may_block);
        for_blocking.unwrap_or(&self.aside.workers)
    }
}

/// Whether a request clones a tree, or takes a snapshot.
fn clones(session: &Session, request: &Call<'_>) -> bool {
    match request {
        Call::Fs(FsRequest::CloneTree { .. }) => true,
        // Each inode in the tree of a quota is changed meanwhile, and what a user owns is counted.
        Call::Fs(FsRequest::Setxattr { name, .. } | FsRequest::Removexattr { name, .. }) => {
            QuotaAttribute::of(name).is_some()
        }
        Call::Fs(FsRequest::Mkdir { parent, .. }) => is_of_snapshots(session, parent),
        _ => false,
    }
}

/// Whether directories in this one are snapshots.
fn is_of_snapshots(session: &Session, dir: &Node) -> bool {
    meant(session, dir).is_some_and(|dir| session.export.fs().takes_snapshots(dir))
}

/// Whether a call that releases a lock may have to reply to many requests.
fn has_many_unsettled_locks(store: &Store) -> bool {
    store.unsettled_locks.load(Ordering::Relaxed) > LIST_MAX
}

fn meant(session: &Session, node: &Node) -> Option<Ino> {
    session.export.meant(*node).ok()
}

fn needs(session: &Session, request: &Call<'_>) -> Needs {
    let inode = match request {
        Call::Fs(request) => match request {
            FsRequest::Lookup { .. }
            | FsRequest::Link { .. }
            | FsRequest::CloneTree { .. }
            | FsRequest::Unlink { .. }
            | FsRequest::Rename { .. }
            | FsRequest::Create { .. }
            | FsRequest::Readdir { .. }
            | FsRequest::Resolve { .. }
            | FsRequest::OpenPath { .. }
            | FsRequest::Release { .. } => return Needs::Any,
            FsRequest::Getattr { node }
            | FsRequest::Setattr { node, .. }
            | FsRequest::Open { node, .. }
            | FsRequest::Reopen { node, .. }
            | FsRequest::Pin { node }
            | FsRequest::Readlink { node }
            | FsRequest::Getxattr { node, .. }
            | FsRequest::Setxattr { node, .. }
            | FsRequest::Listxattr { node }
            | FsRequest::Removexattr { node, .. } => meant(session, node),
            FsRequest::Statfs {}
            | FsRequest::Parent { .. }
            | FsRequest::Mknod { .. }
            | FsRequest::Mkdir { .. }
            | FsRequest::Symlink { .. }
            | FsRequest::Rmdir { .. }
            | FsRequest::Sync {} => None,
        },
        Call::File(request) => match request {
            FileRequest::Close { .. } => return Needs::Any,
            FileRequest::FileGetattr { file }
            | FileRequest::FileSetattr { file, .. }
            | FileRequest::Read { file, .. }
            | FileRequest::ReadPiece { file, .. }
            | FileRequest::Write { file, .. }
            | FileRequest::Fallocate { file, .. }
            | FileRequest::CloneRange { file, .. }
            | FileRequest::SeekData { file, .. }
            | FileRequest::SeekHole { file, .. }
            | FileRequest::Fsync { file } => session.file(*file).ok().map(|file| file.ino()),
        },
        Call::Session(SessionRequest::Abandon { .. }) => return Needs::Any,
        Call::Session(_) | Call::Lock(_) | Call::Rdma(_) => None,
    };
    inode.map_or(Needs::Nothing, Needs::Inode)
}

fn length(session: &Session, request: &Call<'_>) -> Length {
    match request {
        // It walks all that is in snapshots.
        Call::Fs(FsRequest::Getxattr { name, .. }) if *name == SNAPSHOT_XATTR => Length::Long(None),
        Call::Fs(request) => length_of_call(session, request),
        Call::File(request) => length_on_file(session, request),
        Call::Session(SessionRequest::Activity {}) | Call::Lock(LockingRequest::ReleaseClient { .. }) => {
            Length::Long(None)
        }
        Call::Session(SessionRequest::Abandon { file, .. }) => length_of_end(session, std::slice::from_ref(file), &[]),
        // It may have to reply to all waiting requests.
        Call::Lock(LockingRequest::Unlock { node, .. }) if has_many_unsettled_locks(&session.export.store) => {
            Length::Long(meant(session, node))
        }
        Call::Session(_) | Call::Lock(_) | Call::Rdma(_) => Length::Short,
    }
}

fn length_of_call(session: &Session, request: &FsRequest<'_>) -> Length {
    let fs = session.export.fs();
    let of = |attr: Option<Attr>, is_long: fn(&Attr) -> bool| {
        attr.map_or(Length::Short, |attr| Length::of(is_long(&attr), attr.ino))
    };
    let named = |dir: &Node, name: &[u8], is_long: fn(&Attr) -> bool| {
        let attr = meant(session, dir).and_then(|dir| fs.lookup(SYSTEM, dir, name).ok());
        of(attr, is_long)
    };
    let attr = |node: &Node| fs.getattr(SYSTEM, meant(session, node)?).ok();
    match request {
        FsRequest::Setattr { node, set } if set.size.is_some() => of(attr(node), is_large),
        FsRequest::Open { node, mode, .. } if mode.truncate => of(attr(node), is_large),
        FsRequest::Create { parent, name, new, .. } if new.open.truncate => named(parent, name, is_large),
        FsRequest::OpenPath {
            root,
            base,
            path,
            flags,
            ..
        } if flags.truncate => {
            let start = meant(session, root).zip(meant(session, base));
            let start = start.map(|(root, base)| Start { root, base });
            of(
                start.and_then(|start| fs.resolve(SYSTEM, &start, path, true).ok()),
                is_large,
            )
        }
        FsRequest::Unlink { parent, name } => named(parent, name, is_last_of_large),
        FsRequest::Rename {
            new_parent, new_name, ..
        } => named(new_parent, new_name, is_last_of_large),
        FsRequest::Rmdir { parent, .. } if is_of_snapshots(session, parent) => Length::Long(None),
        FsRequest::Release { pins } => length_of_end(session, &[], pins),
        _ => Length::Short,
    }
}

fn length_on_file(session: &Session, request: &FileRequest) -> Length {
    let open = |file: &u64| session.file(*file).ok();
    match request {
        FileRequest::FileSetattr { file, set } if set.size.is_some() => {
            let ino = open(file).map(|file| file.ino());
            let attr = ino.and_then(|ino| session.export.fs().getattr(SYSTEM, ino).ok());
            attr.map_or(Length::Short, |attr| Length::of(is_large(&attr), attr.ino))
        }
        FileRequest::Fallocate { file, len_bytes, .. } if *len_bytes > FREED_BYTES_MAX => {
            open(file).map_or(Length::Short, |file| Length::Long(Some(file.ino())))
        }
        // It waits for the lock of a second file, too, which may be at work aside. It keeps that for one record.
        FileRequest::CloneRange { file, .. } => open(file).map_or(Length::Short, |file| Length::Long(Some(file.ino()))),
        FileRequest::SeekData { file, .. } | FileRequest::SeekHole { file, .. } => {
            let attr = open(file).and_then(|file| file.getattr(SYSTEM).ok());
            match attr.is_some_and(|attr| attr.size > SEARCHED_BYTES_MAX) {
                // A search holds no lock for long.
                true => Length::Long(None),
                false => Length::Short,
            }
        }
        FileRequest::Close { files } => length_of_end(session, files, &[]),
        _ => Length::Short,
    }
}

/// Whether closing these files, or releasing these pins, may free much.
fn length_of_end(session: &Session, files: &[u64], pins: &[(Ino, u64)]) -> Length {
    // With a directory all of a snapshot may go.
    let is_freed = |attr: Attr| attr.nlink == 0 && (attr.kind == FileKind::Directory || is_large(&attr));
    let by_closing = |file: &u64| {
        let attr = session.file(*file).and_then(|file| file.getattr(SYSTEM));
        attr.is_ok_and(is_freed)
    };
    let by_release = |&(ino, _): &(Ino, u64)| session.export.fs().getattr(SYSTEM, ino).is_ok_and(is_freed);
    match files.len() + pins.len() > LIST_MAX || files.iter().any(by_closing) || pins.iter().any(by_release) {
        true => Length::Long(None),
        false => Length::Short,
    }
}
