//! A request becomes its reply, whatever transport brought it.
//!
//! Contents: [`serve`]: which requests are carried out now, and which later.
//!
//! Invariants:
//! * Each request gets exactly one reply: it is returned with its reply in it, or it is passed to `later`, also if the
//!   code that owes the reply forgets it or panics. Without a reply its caller would wait forever.
//! * Each request that may change something has a passage of the freeze barrier while it is carried out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ferrite_vfs::{Ctx, NO_NAME};
use fuser::Errno;

use crate::caller;
use crate::locks::Requester;
use crate::message::abi::{InHeader, Request, decode, forgotten};
use crate::message::reply::{Encode, Ioctl, Reply, StatX, Written, Xattr};
use crate::message::{Exchange, Parts, kind};
use crate::service::{Response, Service, flags};
use crate::space::{Attempt, RetryTimeout, go_on, is_no_space, when_open};

/// A request that needs a reply before it is passed on.
struct Owed<E: Exchange, F: FnOnce(E)>(Option<(E, F)>);

impl<E: Exchange, F: FnOnce(E)> Owed<E, F> {
    fn of(exchange: E, later: F) -> Owed<E, F> {
        Owed(Some((exchange.set_aside(), later)))
    }

    fn pay(mut self, outcome: Response<usize>) {
        if let Some((mut exchange, later)) = self.0.take() {
            exchange.respond(outcome);
            later(exchange);
        }
    }
}

impl<E: Exchange, F: FnOnce(E)> Drop for Owed<E, F> {
    fn drop(&mut self) {
        if let Some((mut exchange, later)) = self.0.take() {
            exchange.respond(Err(Errno::EIO.into()));
            later(exchange);
        }
    }
}

/// Carries a request out. `None`: it has to wait, for a lock, for space or until the mount is thawed, and `later` gets
/// it with its reply, perhaps at once, perhaps on another thread.
pub(crate) fn serve<E: Exchange>(
    service: &Arc<Service>,
    mut exchange: E,
    later: impl FnOnce(E) + Send + 'static,
) -> Option<E> {
    let requested = exchange.request();
    let Parts { op, payload, used } = exchange.parts();
    let mut is_change = kind::changes(requested.opcode);
    match decode(requested.opcode, op, &payload[..used]) {
        Ok(Request::SetLk {
            fh,
            owner,
            wanted,
            may_wait,
            is_flock,
        }) => {
            let requester = Requester {
                thread: requested.pid,
                unique: requested.unique,
                may_wait,
                is_flock,
            };
            let owed = Owed::of(exchange, later);
            let done = move |outcome: Response<()>| owed.pay(outcome.map(|()| 0));
            unless_it_panics(|| service.setlk((requested.ino, fh), owner, wanted, requester, done));
            return None;
        }
        Ok(Request::Release { fh }) => {
            unless_it_panics(|| service.release_locks(requested.ino, fh));
        }
        Ok(Request::Ioctl(call)) => is_change = flags::is_change(&call),
        _ => {}
    }
    if !is_change {
        let made = perform_in(service, &mut exchange);
        exchange.respond(made);
        return Some(exchange);
    }
    let Some(passage) = service.freeze_barrier().pass() else {
        when_open(
            Arc::clone(service),
            Change::of(exchange, later),
            RetryTimeout::default(),
        );
        return None;
    };
    let made = perform_in(service, &mut exchange);
    drop(passage);
    if is_no_space(&made) {
        let mut change = Change::of(exchange, later);
        change.made = made;
        go_on(Arc::clone(service), change, RetryTimeout::default());
        return None;
    }
    exchange.respond(made);
    Some(exchange)
}

/// A change that could not be made at once.
struct Change<E: Exchange, F: FnOnce(E)> {
    owed: Owed<E, F>,
    made: Response<usize>,
}

impl<E: Exchange, F: FnOnce(E)> Change<E, F> {
    fn of(exchange: E, later: F) -> Change<E, F> {
        Change {
            owed: Owed::of(exchange, later),
            made: Err(Errno::EIO.into()),
        }
    }
}

impl<E: Exchange, F: FnOnce(E) + Send + 'static> Attempt for Change<E, F> {
    fn attempt(&mut self, service: &Service) {
        if let Some((exchange, _)) = &mut self.owed.0 {
            self.made = perform_in(service, exchange);
        }
    }

    fn found_no_space(&self) -> bool {
        is_no_space(&self.made)
    }

    fn respond(self) {
        self.owed.pay(self.made);
    }
}

/// Carries a request out; its reply is in it then, unless that is an error.
fn perform_in<E: Exchange>(service: &Service, exchange: &mut E) -> Response<usize> {
    let requested = exchange.request();
    let ctx = caller::ctx(requested.pid, requested.uid, requested.gid);
    let perform = || perform(service, &ctx, &requested, exchange.parts());
    let perform = || service.meter().counted(requested.opcode, perform);
    unless_it_panics(perform).unwrap_or(Err(Errno::EIO.into()))
}

/// The result of a call, unless it panics: a missing thread would leave its requests without any. A panic has reported
/// its reason.
fn unless_it_panics<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

fn reply<T: Encode>(response: Response<T>, payload: &mut [u8]) -> Response<usize> {
    Ok(response?.encode(payload)?)
}

/// Carries out a request, and overwrites its payload with that of the reply; returns its length.
fn perform(service: &Service, ctx: &Ctx, requested: &InHeader, parts: Parts<'_>) -> Response<usize> {
    let ino = requested.ino;
    let Parts { op, payload, used } = parts;
    match decode(requested.opcode, op, &payload[..used])? {
        Request::Lookup(name) => reply(service.lookup(ctx, ino, name), payload),
        Request::GetAttr => reply(service.getattr(ctx, ino), payload),
        Request::StatX => reply(service.getattr(ctx, ino).map(StatX), payload),
        Request::SetAttr { fh, set } => reply(service.setattr(ctx, ino, fh, &set), payload),
        Request::ReadLink => reply(service.readlink(ctx, ino), payload),
        Request::Symlink { name, target } => reply(service.symlink(ctx, ino, name, target), payload),
        Request::MkNod { name, bits, rdev } => {
            reply(service.mknod(&bits.masked(ctx), (ino, name), bits.mode, rdev), payload)
        }
        Request::MkDir { name, bits } => reply(service.mkdir(&bits.masked(ctx), ino, name, bits.mode), payload),
        Request::Create { name, bits, flags } => reply(
            service.create(&bits.masked(ctx), (ino, name), bits.mode, flags),
            payload,
        ),
        Request::TmpFile { bits, flags } => reply(
            service.create(&bits.masked(ctx), (ino, NO_NAME), bits.mode, flags),
            payload,
        ),
        Request::Unlink(name) => reply(service.unlink(ctx, ino, name), payload),
        Request::RmDir(name) => reply(service.rmdir(ctx, ino, name), payload),
        Request::Rename { name, to, new, flags } => reply(service.rename(ctx, (ino, name), (to, new), flags), payload),
        Request::Link { ino: of, name } => reply(service.link(ctx, of, ino, name), payload),
        Request::Open { flags } => reply(service.open(ctx, ino, flags), payload),
        Request::Read { fh, offset, len_bytes } => {
            let into = payload.get_mut(..len_bytes).ok_or(Errno::EIO)?;
            service.read(ctx, fh, offset, into)
        }
        Request::Write { at, how, flags, data } => {
            reply(service.write(ctx, at, data, how, flags).map(Written), payload)
        }
        Request::StatFs => reply(service.statfs_at(ctx, ino), payload),
        Request::Release { fh } => {
            service.release(fh);
            Ok(0)
        }
        Request::FSync { fh } => reply(service.fsync(ctx, fh), payload),
        Request::SetXattr { name, value, flags } => reply(service.setxattr(ctx, ino, name, value, flags), payload),
        Request::GetXattr { name, len_bytes } => xattr(service.getxattr(ctx, ino, name), len_bytes, payload),
        Request::ListXattr { len_bytes } => xattr(service.listxattr(ctx, ino), len_bytes, payload),
        Request::RemoveXattr(name) => reply(service.removexattr(ctx, ino, name), payload),
        Request::Flush { fh, owner } => reply(service.flush(ctx, ino, fh, owner), payload),
        Request::OpenDir => reply(Ok(service.opendir()), payload),
        Request::ReadDir { offset, len_bytes } => list(payload, len_bytes, |entries| {
            service.readdir(ctx, ino, offset, |ino, next, kind, name| {
                entries.dirent(ino, next, kind, name)
            })
        }),
        Request::ReadDirPlus { offset, len_bytes } => list(payload, len_bytes, |entries| {
            service.readdirplus(ctx, ino, offset, |it| entries.dirent_plus(it))
        }),
        Request::ReleaseDir => Ok(0),
        Request::FSyncDir => reply(service.fsyncdir(ctx), payload),
        Request::GetLk { owner, wanted } => reply(service.getlk(ctx, ino, owner, wanted), payload),
        Request::SetLk { .. } => Err(Errno::EIO.into()), // the caller of this locks
        Request::Fallocate { at, length, mode } => reply(service.fallocate(ctx, at, length, mode), payload),
        Request::CopyFileRange { from, to, length } => {
            reply(service.copy_file_range(ctx, from, to, length).map(Written), payload)
        }
        Request::LSeek { fh, offset, whence } => reply(service.lseek(ctx, fh, offset, whence), payload),
        Request::Ioctl(call) => reply(service.ioctl(ctx, ino, &call).map(Ioctl), payload),
        note @ (Request::Forget { .. } | Request::BatchForget(_) | Request::Interrupt { .. }) => {
            take_note(service, ino, &note);
            Ok(0)
        }
    }
}

/// Requests that need no reply.
fn take_note(service: &Service, ino: u64, note: &Request<'_>) {
    match note {
        Request::Forget { nlookup } => service.forget(ino, *nlookup),
        Request::BatchForget(list) => forgotten(list).for_each(|(ino, nlookup)| service.forget(ino, nlookup)),
        Request::Interrupt { unique } => service.interrupt(*unique),
        _ => {}
    }
}

/// Fills the reply with as many entries of a directory as fit.
fn list<'p>(
    payload: &'p mut [u8],
    len_bytes: usize,
    fill: impl FnOnce(&mut Reply<'p>) -> Response<()>,
) -> Response<usize> {
    let mut entries = Reply::within(payload, len_bytes);
    fill(&mut entries)?;
    Ok(entries.len_bytes())
}

/// Replies with a value, or with its length if the caller asked for that.
fn xattr(value: Response<Vec<u8>>, len_bytes: u32, payload: &mut [u8]) -> Response<usize> {
    reply(value.map(|value| Xattr(value, len_bytes)), payload)
}
