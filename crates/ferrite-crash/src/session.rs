//! A client that sends changes with tokens, and keeps each until it knows that it need not resend it.
//!
//! Contents: [`Session`], a layer that lets one call of an operation carry a token and remembers it as [`Sent`];
//! [`Sent::again`], which sends that to an engine of another mount; [`Resend`], the changes to resend.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrite_vfs::{
    Attr, CloneRange, Ctx, DedupToken, FallocateMode, FileLayer, FileSystem, FsError, Ino, Layer, NewNode, OpenFile,
    OpenMode, Outcome, RenameMode, Result, SYSTEM, SetAttr, WriteMode, Written, XattrMode,
};
use parking_lot::Mutex;

/// The content of a reply, without [`Attr::change`], which no outcome keeps.
trait Answer {
    fn outcome(&self) -> Outcome;
}

impl Answer for () {
    fn outcome(&self) -> Outcome {
        Outcome::Done
    }
}

impl Answer for Attr {
    fn outcome(&self) -> Outcome {
        Outcome::Attr(Attr { change: 0, ..*self })
    }
}

impl Answer for Written {
    fn outcome(&self) -> Outcome {
        Outcome::Wrote {
            offset: self.offset,
            len_bytes: self.len_bytes as u64,
        }
    }
}

impl Answer for Arc<dyn OpenFile> {
    fn outcome(&self) -> Outcome {
        Outcome::Done
    }
}

fn told<T: Answer>(answer: &Result<T>) -> Outcome {
    match answer {
        Ok(answer) => answer.outcome(),
        Err(error) => Outcome::Failed(error.clone()),
    }
}

/// The inode that a request concerns, and its generation: a directory, if the request concerns a name.
type Subject = (Ino, u32);

/// Whether the inode exists, and is still the same.
fn is_there(fs: &dyn FileSystem, (ino, generation): Subject) -> bool {
    fs.getattr(SYSTEM, ino).is_ok_and(|attr| attr.generation == generation)
}

/// Sends the same request with a token.
type Send = Box<dyn Fn(&dyn FileSystem, DedupToken) -> Outcome + std::marker::Send + Sync>;

/// A change that was sent.
pub struct Sent {
    /// Its token.
    pub token: DedupToken,
    /// The reply to the sender.
    pub told: Outcome,
    subject: Subject,
    /// It opens the file, or goes through a handle that must be opened first.
    needs_file: bool,
    send: Send,
}

impl Sent {
    /// Resends it with `token`, its own token or another; returns the reply. `None` if it needs an open file that is
    /// gone, like one without a name after a crash.
    pub fn again(&self, fs: &dyn FileSystem, token: DedupToken) -> Option<Outcome> {
        if self.needs_file && !is_there(fs, self.subject) {
            return None;
        }
        Some((self.send)(fs, token))
    }

    /// Whether its subject still exists.
    pub fn is_possible(&self, fs: &dyn FileSystem) -> bool {
        is_there(fs, self.subject)
    }

    /// The change counter of its subject, if that still exists: it stays, unless something changes.
    pub fn change(&self, fs: &dyn FileSystem) -> Option<u64> {
        let attr = fs.getattr(SYSTEM, self.subject.0).ok()?;
        (attr.generation == self.subject.1).then_some(attr.change)
    }
}

/// The state that a session shares with its open files.
#[derive(Default)]
struct Line {
    /// The token for the next call that changes something.
    token: Mutex<Option<DedupToken>>,
    sent: Mutex<Option<Sent>>,
}

/// An engine as one client uses it.
pub struct Session<'a> {
    fs: &'a dyn FileSystem,
    line: Arc<Line>,
}

impl<'a> Session<'a> {
    /// A client of `fs` without a token.
    pub fn new(fs: &'a dyn FileSystem) -> Self {
        Session {
            fs,
            line: Arc::default(),
        }
    }

    /// The first call from now on that changes something carries this token.
    pub fn arm(&self, token: Option<DedupToken>) {
        *self.line.token.lock() = token;
    }

    /// The change sent with the token, if the token was used; no later call carries it.
    pub fn disarm(&self) -> Option<Sent> {
        self.arm(None);
        self.line.sent.lock().take()
    }

    /// Makes a change that concerns inode `about`.
    fn change<T: Answer>(
        &self,
        ctx: &Ctx,
        about: Ino,
        ask: impl Fn(&dyn FileSystem, &Ctx) -> Result<T> + std::marker::Send + Sync + 'static,
    ) -> Result<T> {
        self.send(ctx, about, false, ask)
    }

    fn send<T: Answer>(
        &self,
        ctx: &Ctx,
        about: Ino,
        needs_file: bool,
        ask: impl Fn(&dyn FileSystem, &Ctx) -> Result<T> + std::marker::Send + Sync + 'static,
    ) -> Result<T> {
        let Some(token) = self.line.token.lock().take() else {
            return ask(self.fs, ctx);
        };
        let ctx = ctx.clone();
        let generation = self.fs.getattr(SYSTEM, about).map_or(0, |attr| attr.generation);
        let answer = ask(self.fs, &ctx.clone().token(token));
        *self.line.sent.lock() = Some(Sent {
            token,
            told: told(&answer),
            subject: (about, generation),
            needs_file,
            send: Box::new(move |fs, token| told(&ask(fs, &ctx.clone().token(token)))),
        });
        answer
    }
}

impl Layer for Session<'_> {
    fn below(&self) -> &dyn FileSystem {
        self.fs
    }

    fn setattr(&self, ctx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let set = *set;
        self.change(ctx, ino, move |fs, ctx| fs.setattr(ctx, ino, &set))
    }

    fn mknod(&self, ctx: &Ctx, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let (name, node) = (name.to_vec(), *node);
        self.change(ctx, parent, move |fs, ctx| fs.mknod(ctx, parent, &name, &node))
    }

    fn mkdir(&self, ctx: &Ctx, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let name = name.to_vec();
        self.change(ctx, parent, move |fs, ctx| fs.mkdir(ctx, parent, &name, mode))
    }

    fn symlink(&self, ctx: &Ctx, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let (name, target) = (name.to_vec(), target.to_vec());
        self.change(ctx, parent, move |fs, ctx| fs.symlink(ctx, parent, &name, &target))
    }

    fn link(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let name = name.to_vec();
        self.change(ctx, ino, move |fs, ctx| fs.link(ctx, ino, parent, &name))
    }

    fn clone_tree(&self, ctx: &Ctx, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let name = name.to_vec();
        self.change(ctx, ino, move |fs, ctx| fs.clone_tree(ctx, ino, parent, &name))
    }

    fn unlink(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        let name = name.to_vec();
        self.change(ctx, parent, move |fs, ctx| fs.unlink(ctx, parent, &name))
    }

    fn rmdir(&self, ctx: &Ctx, parent: Ino, name: &[u8]) -> Result<()> {
        let name = name.to_vec();
        self.change(ctx, parent, move |fs, ctx| fs.rmdir(ctx, parent, &name))
    }

    fn rename(
        &self,
        ctx: &Ctx,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        self.change(ctx, parent, move |fs, ctx| {
            fs.rename(ctx, parent, &name, new_parent, &new_name, mode)
        })
    }

    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        let file = match mode.truncate {
            true => self.send(ctx, ino, true, move |fs, ctx| fs.open(ctx, ino, mode))?,
            false => self.fs.open(ctx, ino, mode)?,
        };
        let generation = file.getattr(SYSTEM)?.generation;
        Ok(Arc::new(SessionFile {
            file,
            mode: OpenMode {
                truncate: false,
                ..mode
            },
            generation,
            line: Arc::clone(&self.line),
        }))
    }

    fn setxattr(&self, ctx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let (name, value) = (name.to_vec(), value.to_vec());
        self.change(ctx, ino, move |fs, ctx| fs.setxattr(ctx, ino, &name, &value, mode))
    }

    fn removexattr(&self, ctx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        let name = name.to_vec();
        self.change(ctx, ino, move |fs, ctx| fs.removexattr(ctx, ino, &name))
    }
}

/// An open file of a session.
struct SessionFile {
    file: Arc<dyn OpenFile>,
    mode: OpenMode,
    generation: u32,
    line: Arc<Line>,
}

impl SessionFile {
    /// Makes a change through the handle. To resend it, the client opens the file in the same way.
    fn change<T: Answer>(
        &self,
        ctx: &Ctx,
        ask: impl Fn(&dyn OpenFile, &Ctx) -> Result<T> + std::marker::Send + Sync + 'static,
    ) -> Result<T> {
        let Some(token) = self.line.token.lock().take() else {
            return ask(&*self.file, ctx);
        };
        let (ctx, ino, mode) = (ctx.clone(), self.file.ino(), self.mode);
        let answer = ask(&*self.file, &ctx.clone().token(token));
        let send = move |fs: &dyn FileSystem, token: DedupToken| match fs.open(SYSTEM, ino, mode) {
            Ok(file) => told(&ask(&*file, &ctx.clone().token(token))),
            Err(error) => Outcome::Failed(error),
        };
        *self.line.sent.lock() = Some(Sent {
            token,
            told: told(&answer),
            subject: (ino, self.generation),
            needs_file: true,
            send: Box::new(send),
        });
        answer
    }
}

impl FileLayer for SessionFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.file
    }

    fn setattr(&self, ctx: &Ctx, set: &SetAttr) -> Result<Attr> {
        let set = *set;
        self.change(ctx, move |file, ctx| file.setattr(ctx, &set))
    }

    fn write(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written> {
        let data = data.to_vec();
        self.change(ctx, move |file, ctx| file.write(ctx, mode, &data))
    }

    fn fallocate(&self, ctx: &Ctx, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.change(ctx, move |file, ctx| file.fallocate(ctx, mode, offset, len))
    }

    fn clone_range(&self, ctx: &Ctx, range: &CloneRange) -> Result<Written> {
        let range = *range;
        self.change(ctx, move |file, ctx| file.clone_range(ctx, &range))
    }
}

/// Whether a slot keeps the reply to this change. A request that is refused early leaves nothing, but is refused again.
fn is_kept(told: &Outcome) -> bool {
    !matches!(told, Outcome::Failed(error) if !ferrite_vfs::dedup::keeps(error))
}

/// Whether it was refused for want of space; after a crash there may be more space, or less.
pub(crate) fn lacked_space(told: &Outcome) -> bool {
    matches!(told, Outcome::Failed(FsError::NoSpace(_)))
}

/// The last change of a slot.
#[derive(Clone, Copy)]
pub struct Resend<'a> {
    pub(crate) sent: &'a Sent,
    pub(crate) thread: usize,
    /// The sender's reply from before the crash, or the one it will get if the change happened: `None` for a change in
    /// progress that an earlier recovery may have received.
    pub(crate) told: Option<&'a Outcome>,
    pub(crate) in_progress: bool,
}

impl Resend<'_> {
    /// The same after a recovery that may have received it.
    pub(crate) fn recovered(&self) -> Self {
        Resend {
            told: self.told.filter(|_| !self.in_progress),
            ..*self
        }
    }
}

/// The last change of each slot when `returned` operations of each thread have returned.
pub(crate) fn last(sent: &[Vec<Option<Sent>>], returned: impl Fn(usize) -> usize) -> Vec<Resend<'_>> {
    let mut last = BTreeMap::new();
    for (thread, of_thread) in sent.iter().enumerate() {
        let returned = returned(thread);
        for (index, sent) in of_thread.iter().enumerate().take(returned + 1) {
            let Some(sent) = sent else { continue };
            let resend = Resend {
                sent,
                thread,
                told: Some(&sent.told),
                in_progress: index == returned,
            };
            let is_sent = is_kept(&sent.told) && !(resend.in_progress && lacked_space(&sent.told));
            last.insert(sent.token.slot, is_sent.then_some(resend));
        }
    }
    last.into_values().flatten().collect()
}
