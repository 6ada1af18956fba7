//! Servers of engines whose content ends with the process unless it was synced: clients come back to the next process,
//! and do not know what it lacks, so no change is answered before it is durable. Names and sessions do not wait for
//! content.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{connect, export, serve};
use ferrite_server::ServerOptions;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{
    Attr, Ctx, FallocateMode, FileLayer, FileSystem, Ino, Layer, Limits, NewFile, OpenFile, OpenMode, Opened, Position,
    ROOT_INO, RenameMode, Result, SYSTEM, SetAttr, Unsynced, WriteMode, Written, XattrMode,
};

/// Changes of content without a token that no sync of the file has covered, and how often files and everything were
/// synced.
#[derive(Default)]
struct Counts {
    unsynced: AtomicUsize,
    syncs_of_files: AtomicUsize,
    syncs_of_all: AtomicUsize,
}

/// Keeps content in the process until it is synced, and makes changes with tokens durable together with their outcome.
struct Staging {
    below: MemFs,
    dedup_slots: u32,
    counts: Arc<Counts>,
}

struct StagingFile {
    below: Arc<dyn OpenFile>,
    counts: Arc<Counts>,
}

impl Counts {
    fn changed(&self, ctx: &Ctx) {
        if ctx.token.is_none() {
            self.unsynced.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Staging {
    fn file(&self, ctx: &Ctx, below: Arc<dyn OpenFile>, mode: OpenMode) -> Arc<dyn OpenFile> {
        if mode.truncate {
            self.counts.changed(ctx);
        }
        let counts = Arc::clone(&self.counts);
        Arc::new(StagingFile { below, counts })
    }
}

impl Layer for Staging {
    fn below(&self) -> &dyn FileSystem {
        &self.below
    }

    fn limits(&self) -> Limits {
        let mut limits = self.below.limits();
        limits.unsynced = Unsynced::Content;
        limits.dedup_slots = self.dedup_slots;
        limits
    }

    fn setattr(&self, ctx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        if set.size.is_some() {
            self.counts.changed(ctx);
        }
        self.below.setattr(ctx, ino, set)
    }

    fn open(&self, ctx: &Ctx, ino: Ino, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        Ok(self.file(ctx, self.below.open(ctx, ino, mode)?, mode))
    }

    fn create(&self, ctx: &Ctx, parent: Ino, name: &[u8], new: &NewFile) -> Result<Opened> {
        let opened = self.below.create(ctx, parent, name, new)?;
        let file = self.file(ctx, Arc::clone(&opened.file), new.open);
        Ok(Opened { file, ..opened })
    }

    fn sync_names(&self, ctx: &Ctx) -> Result<()> {
        // That of any engine, for these limits.
        ferrite_vfs::sync_names(self, ctx)
    }

    fn sync(&self, _: &Ctx) -> Result<()> {
        self.counts.syncs_of_all.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

impl FileLayer for StagingFile {
    fn below(&self) -> &dyn OpenFile {
        &*self.below
    }

    fn setattr(&self, ctx: &Ctx, set: &SetAttr) -> Result<Attr> {
        self.counts.changed(ctx);
        self.below.setattr(ctx, set)
    }

    fn write(&self, ctx: &Ctx, mode: WriteMode, data: &[u8]) -> Result<Written> {
        self.counts.changed(ctx);
        self.below.write(ctx, mode, data)
    }

    fn fallocate(&self, ctx: &Ctx, mode: FallocateMode, offset: u64, len: u64) -> Result<()> {
        self.counts.changed(ctx);
        self.below.fallocate(ctx, mode, offset, len)
    }

    fn fsync(&self, _: &Ctx) -> Result<()> {
        self.counts.unsynced.store(0, Ordering::SeqCst);
        self.counts.syncs_of_files.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

/// A change of content by a client, and its name.
type Change<'c> = (&'c str, &'c dyn Fn() -> Result<()>);

/// Makes each change once; returns how often files were synced.
fn check_changes(dedup_slots: u32) -> usize {
    let counts = Arc::<Counts>::default();
    let fs = Arc::new(Staging {
        below: MemFs::new(),
        dedup_slots,
        counts: Arc::clone(&counts),
    });
    let (_server, address) = serve(fs, vec![export("")], &ServerOptions::default());
    let client = connect(&address);
    assert!(client.limits().is_durable_at_once());
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: false,
    };
    let truncating = OpenMode {
        truncate: true,
        ..OpenMode::read_write()
    };
    let opened = client.create(SYSTEM, ROOT_INO, b"file", &new).unwrap();
    let (file, ino) = (opened.file, opened.attr.ino);
    let append = Position::End.into();
    let changes: [Change<'_>; 7] = [
        ("write", &|| file.write_at(SYSTEM, 0, b"text").map(|_| ())),
        ("append", &|| file.write(SYSTEM, append, b"more").map(|_| ())),
        ("truncate the open file", &|| file.setattr(SYSTEM, &size(3)).map(|_| ())),
        ("truncate", &|| client.setattr(SYSTEM, ino, &size(2)).map(|_| ())),
        ("allocate", &|| file.fallocate(SYSTEM, FallocateMode::PunchHole, 0, 1)),
        ("open and truncate", &|| {
            client.open(SYSTEM, ino, truncating).map(|_| ())
        }),
        ("create and truncate", &|| {
            let new = NewFile {
                open: truncating,
                ..new
            };
            client.create(SYSTEM, ROOT_INO, b"file", &new).map(|_| ())
        }),
    ];
    for (name, change) in changes {
        change().unwrap();
        assert_eq!(counts.unsynced.load(Ordering::SeqCst), 0, "{name}");
    }
    client.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
    client
        .rename(SYSTEM, ROOT_INO, b"dir", ROOT_INO, b"other", RenameMode::Replace)
        .unwrap();
    client.setxattr(SYSTEM, ino, b"user.a", b"b", XattrMode::Any).unwrap();
    client.sync_names(SYSTEM).unwrap();
    drop(connect(&address));
    assert_eq!(counts.syncs_of_all.load(Ordering::SeqCst), 0, "nobody has asked for it");
    client.sync(SYSTEM).unwrap();
    assert_eq!(counts.syncs_of_all.load(Ordering::SeqCst), 1);
    counts.syncs_of_files.load(Ordering::SeqCst)
}

#[test]
fn content_is_durable_before_its_change_is_answered() {
    assert_eq!(check_changes(0), 7);
}

#[test]
fn changes_with_tokens_are_left_to_the_engine() {
    assert_eq!(check_changes(MemFs::new().limits().dedup_slots), 0);
}
