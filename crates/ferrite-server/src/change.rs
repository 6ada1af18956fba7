//! Changes in the presence of leases: each waits until no client caches its inodes any more.
//!
//! Contents: [`Change`], a copied request that goes through the table of leases step by step, and is answered over
//! whatever connection the client has then. Without leases none of this happens.
//!
//! Changes of names are sequential: the inode behind a name must not change between its lookup and the change. A path
//! walked by the engine may end anywhere, so a change by path recalls everything.
//!
//! Invariant: a change is made only while everything that it touches is in the table as being changed. The meaning of a
//! request may change while it waits (the client closes a file, and opens another under its number): so the request is
//! examined again when it may be made, with the number fixed from then on ([`Session::changing_file`]). If it touches
//! an inode that was not recalled it recalls anew, a few times, and at last everything.

use std::sync::Arc;

use ferrite_transport::send_queue::SendQueue;
use ferrite_vfs::{Ino, SYSTEM};

use super::Inner;
use super::deferred_reply::Owned;
use super::lane::Lane;
use super::leases::{Holder, Touched};
use super::meter::{Measured, Received};
use super::reply::begin_reply;
use super::session::{Recipient, Session};
use ferrite_proto::{Call, Encode, FileRequest, FsRequest, Head, Node, RECALL_ID, RdmaRequest, Reader};

/// How often a change whose targets keep changing recalls only those.
const RECALLS_MAX: u32 = 4;

impl Holder for Recipient {
    fn number(&self) -> u64 {
        self.number
    }

    fn export(&self) -> usize {
        Arc::as_ptr(&self.export).addr()
    }

    fn recall(&self, recall: u64, ino: Ino) {
        let shown = self.export.shown(ino);
        self.send(|out| {
            let mut frame = begin_reply(out, RECALL_ID, false);
            (recall, shown).put(frame.body());
            frame.finish();
        });
    }
}

fn changes_names(request: &Call<'_>) -> bool {
    matches!(
        request,
        Call::Fs(
            FsRequest::Mknod { .. }
                | FsRequest::Mkdir { .. }
                | FsRequest::Symlink { .. }
                | FsRequest::Link { .. }
                | FsRequest::CloneTree { .. }
                | FsRequest::Unlink { .. }
                | FsRequest::Rmdir { .. }
                | FsRequest::Rename { .. }
                | FsRequest::Create { .. }
                | FsRequest::OpenPath { .. }
        )
    )
}

/// The number of the open file through which a request changes something.
fn changed_file(request: &Call<'_>) -> Option<u64> {
    match request {
        Call::File(
            FileRequest::FileSetattr { file, .. }
            | FileRequest::Write { file, .. }
            | FileRequest::Fallocate { file, .. }
            | FileRequest::CloneRange { file, .. },
        ) => Some(*file),
        _ => None,
    }
}

/// The inodes that a change touches. If it changes names, no other such change is in progress.
fn touched(session: &Session, request: &Call<'_>) -> Touched {
    let inodes: Vec<Option<Ino>> = match request {
        Call::Fs(request) => match touched_by_call(session, request) {
            Some(inodes) => inodes,
            None => return Touched::Everything,
        },
        Call::File(_) => match changed_file(request) {
            Some(file) => vec![session.file(file).ok().map(|file| file.ino())],
            None => return Touched::Everything,
        },
        Call::Rdma(RdmaRequest::Bind {
            node, writable: true, ..
        })
        | Call::Rdma(RdmaRequest::Unbind { node }) => vec![session.export.meant(*node).ok()],
        // A read-only binding does not invalidate caches.
        Call::Rdma(RdmaRequest::Bind { .. } | RdmaRequest::ReleaseKey { .. }) => vec![],
        Call::Rdma(_) | Call::Session(_) | Call::Lock(_) => return Touched::Everything,
    };
    Touched::These(inodes.into_iter().flatten().collect())
}

/// The inodes that a call of the file system touches; `None` if that may be any.
fn touched_by_call(session: &Session, request: &FsRequest<'_>) -> Option<Vec<Option<Ino>>> {
    let ino = |node: &Node| session.export.meant(*node).ok();
    // An inode whose attributes cannot be returned to any client has no leases.
    let named = |dir: &Node, name: &[u8]| Some(session.export.fs().lookup(SYSTEM, ino(dir)?, name).ok()?.ino);
    Some(match request {
        FsRequest::Setattr { node, .. }
        | FsRequest::Setxattr { node, .. }
        | FsRequest::Removexattr { node, .. }
        | FsRequest::Open { node, .. } => vec![ino(node)],
        FsRequest::Mknod { parent, .. } | FsRequest::Mkdir { parent, .. } | FsRequest::Symlink { parent, .. } => {
            vec![ino(parent)]
        }
        FsRequest::Link { node, parent, .. } => vec![ino(node), ino(parent)],
        FsRequest::CloneTree { parent, .. } => vec![ino(parent)],
        // All of a snapshot.
        FsRequest::Rmdir { parent, .. } if ino(parent).is_some_and(|dir| session.export.fs().takes_snapshots(dir)) => {
            return None;
        }
        FsRequest::Unlink { parent, name }
        | FsRequest::Rmdir { parent, name }
        | FsRequest::Create { parent, name, .. } => vec![ino(parent), named(parent, name)],
        FsRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            ..
        } => vec![
            ino(parent),
            named(parent, name),
            ino(new_parent),
            named(new_parent, new_name),
        ],
        _ => return None,
    })
}

/// A request that waits for leases to end.
struct Change {
    inner: Arc<Inner>,
    session: Arc<Session>,
    id: u64,
    body: Vec<u8>,
    data: Owned,
    measured: Measured,
    /// Others go aside until it is made.
    _cloning: Option<Lane>,
}

/// Makes a change once no client caches its inodes, and answers it then. A change that is repeated meanwhile is
/// answered once. One that `is_long` goes to a thread that receives nothing.
pub(super) fn begin(
    inner: &Arc<Inner>,
    session: &Arc<Session>,
    id: u64,
    received: Received<'_>,
    (is_long, lane): (bool, Option<Lane>),
) {
    if !session.defer_change(id) {
        return;
    }
    let change = Change {
        inner: Arc::clone(inner),
        session: Arc::clone(session),
        id,
        body: received.body.to_vec(),
        data: received.data.into(),
        measured: received.measured,
        _cloning: lane.filter(Lane::is_of_clone),
    };
    match is_long {
        true => inner.go_on(Box::new(move || change.begin())),
        false => inner.work(&session.export.store, move || change.begin()),
    }
}

impl Change {
    fn request(&self) -> Option<(Head, Call<'_>)> {
        Reader::new(&self.body).last().ok()
    }

    fn begin(self) {
        let Some((_, request)) = self.request() else { return };
        if !changes_names(&request) {
            return self.recall(0);
        }
        let leases = Arc::clone(&self.session.export.store.leases);
        if let Some(work) = leases.change_names(Box::new(move || self.recall(0))) {
            work();
        }
    }

    fn recall(self, before: u32) {
        let Some((_, request)) = self.request() else { return };
        let touched = match before < RECALLS_MAX {
            true => touched(&self.session, &request),
            false => Touched::Everything,
        };
        let (session, leases) = (Arc::clone(&self.session), Arc::clone(&self.session.export.store.leases));
        let (inner, then) = (Arc::clone(&self.inner), touched.clone());
        if let Some(work) = leases.recall(
            &touched,
            &*session.recipient,
            Box::new(move || self.make(&then, before)),
        ) {
            work();
        } else {
            inner.wake_reaper();
        }
    }

    fn make(self, recalled: &Touched, before: u32) {
        let Some((head, request)) = self.request() else { return };
        let (inner, session) = (&self.inner, &self.session);
        let leases = &session.export.store.leases;
        let number = changed_file(&request).map(|file| session.changing_file(file));
        if !recalled.covers(&touched(session, &request)) {
            drop(number);
            leases.changed(recalled);
            return self.recall(before + 1);
        }
        let has_names = changes_names(&request);
        let data = self.data.bytes();
        let (mut out, measured) = (SendQueue::default(), self.measured.on_this_thread());
        // Changes have their data here; none starves.
        inner.reply(session, head, request, data, &mut out);
        drop(number);
        leases.changed(recalled);
        if has_names && let Some(next) = leases.names_changed() {
            inner.go_on(next);
        }
        session.end_deferred_change(self.id);
        measured.count_if_replied(&session.meter, &out);
        session.send(|to| to.append(&mut out));
    }
}
