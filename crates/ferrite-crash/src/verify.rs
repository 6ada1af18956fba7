//! The requirements of an image: it passes fsck, mounts, holds every change that returned and all or nothing of those
//! in progress, leaks nothing, still works, answers resent changes, and meets all of that once more if recovery
//! crashes.

use std::collections::HashSet;
use std::sync::Arc;

use ferrite_fs::{Engine, MountOptions, fsck};
use ferrite_pm::{Choice, Image, Recorder, Region};
use ferrite_vfs::{FileKind, FileSystem, FsError, NewNode, OpenMode, ROOT_INO, RenameMode, SYSTEM};

use crate::allowed::Allowed;
use crate::choices::choices;
use crate::record::{Tree, capture, elsewhere, quiet_mount};
use crate::resend;

/// Blocks to which a page is written after a crash; nearly full pools have fewer.
const ECHOES_MAX: u64 = 100;

/// Statistics of the trials on an image.
#[derive(Debug, Default)]
pub struct Verified {
    /// Images of its recovery, by fingerprint.
    pub recovered: Vec<u64>,
    /// Resent changes.
    pub resent: u64,
}

/// Tries an image whose history is unknown. Checks all that [`verify`] does, except the tree: the one that the first
/// mount recovers must come out again wherever recovery is crashed; `seed` picks where. Returns the tree.
///
/// # Errors
/// The violation, as text.
pub fn verify_alone(image: &Image, seed: u64) -> Result<Tree, String> {
    let region = Region::of_image(image).map_err(|error| error.to_string())?;
    let mount = quiet_mount();
    let engine = Engine::mount(region, &mount).map_err(|error| format!("does not mount: {error}"))?;
    let tree = capture(&engine)?;
    drop(engine);
    verify(image, &Allowed::only(&tree), &mount, seed, Some(16))?;
    Ok(tree)
}

/// Tries one image. With `recrash`, a budget, crashes its recovery as well, and the changes resent after it. `seed`
/// picks the samples.
///
/// # Errors
/// The violation, as text.
pub fn verify(
    image: &Image,
    allowed: &Allowed<'_>,
    mount: &MountOptions,
    seed: u64,
    recrash: Option<usize>,
) -> Result<Verified, String> {
    check(image, "before recovery")?;
    let mut region = Region::of_image(image).map_err(|error| error.to_string())?;
    let recorder = recrash.map(|_| Recorder::new(image.clone()));
    if let Some(recorder) = &recorder {
        region.attach_recorder(Arc::clone(recorder));
    }
    let engine = Engine::mount(region, mount).map_err(|error| format!("does not mount: {error}"))?;
    if let Some(found) = engine.damage().first() {
        return Err(format!("the mount takes what a crash left for damage: {found}"));
    }
    let tree = capture(&engine)?;
    allowed.check(&tree)?;
    count_inodes(&engine, &tree)?;
    if let (Some(_), Some(page)) = (recrash, allowed.page()) {
        echo(image, page, mount, seed % 2).map_err(|what| format!("crashed again after {what}"))?;
    }
    let (tree, resent) = match allowed.resends().is_empty() {
        true => (tree, 0),
        false => {
            let sent = resend::send(&engine, allowed, tree, seed)?;
            count_inodes(&engine, &sent.0)?;
            sent
        }
    };
    if let Some(recorder) = &recorder {
        recorder.mark(1);
    }
    probe(&engine).map_err(|error| format!("the recovered pool does not work: {error}"))?;
    if capture(&engine)? != tree {
        return Err("work that was undone left something behind".into());
    }
    let free = engine.statfs(SYSTEM).map_err(|error| error.to_string())?.blocks_free;
    engine.unmount().map_err(|error| format!("does not unmount: {error}"))?;
    let (Some(recorder), Some(budget)) = (recorder, recrash) else {
        return Ok(Verified {
            recovered: Vec::new(),
            resent,
        });
    };
    let log = recorder.log();
    let blocks = check(&log.final_image().into(), "after recovery")?;
    let superblock = ferrite_fs::identify(&Region::of_image(image).map_err(|error| error.to_string())?)
        .map_err(|error| error.to_string())?;
    if blocks + free != superblock.blocks {
        return Err(format!(
            "of {} blocks {blocks} have an owner and {free} are free: some are lost",
            superblock.blocks
        ));
    }
    let mut verified = crash_recovery(&log, &allowed.recovered(), mount, budget, seed)?;
    verified.resent += resent;
    Ok(verified)
}

/// Recovers `image`, writes `page`, which the operation in progress wrote as well, to one free block after another, and
/// crashes. That must not revive a record that the first crash left without its data.
fn echo(image: &Image, page: &[u8], mount: &MountOptions, ring: u64) -> Result<(), String> {
    let recorder = Recorder::new(image.clone());
    let mut region = Region::of_image(image).map_err(|error| error.to_string())?;
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, mount).map_err(|error| format!("recovery: does not mount: {error}"))?;
    // Either ring may hold such a record, and overwrites it if it is used first.
    elsewhere(ring, || write_often(&engine, page))?.map_err(|error| format!("recovery: {error}"))?;
    engine.sync(SYSTEM).map_err(|error| format!("recovery: {error}"))?;
    let tree = capture(&engine)?;
    let log = recorder.log();
    let mut cursor = log.cursor();
    while cursor.advance() {}
    cursor.with_image(Choice::None, |image| {
        verify(image, &Allowed::only(&tree), mount, ring, None)
            .map(drop)
            .map_err(|what| format!("a recovery that was followed by the same page: {what}"))
    })
}

/// Overwrites a page as often as there are free blocks, so that it has been in each; not more often, or the checkpoint
/// would move.
fn write_often(engine: &Engine, page: &[u8]) -> ferrite_vfs::Result<()> {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o600,
        rdev: 0,
    };
    let made = match engine.mknod(SYSTEM, ROOT_INO, b"echo", &node) {
        Err(FsError::NoSpace(_)) => return Ok(()),
        made => made?,
    };
    let file = engine.open(SYSTEM, made.ino, OpenMode::read_write())?;
    let free = engine.statfs(SYSTEM)?.blocks_free;
    for _ in 4..free.min(ECHOES_MAX) {
        match file.write_at(SYSTEM, 0, page) {
            Err(FsError::NoSpace(_)) => break,
            other => other?,
        };
    }
    Ok(())
}

fn crash_recovery(
    log: &ferrite_pm::Log,
    allowed: &Allowed<'_>,
    mount: &MountOptions,
    budget: usize,
    seed: u64,
) -> Result<Verified, String> {
    let mut cursor = log.cursor();
    let mut seen = Vec::new();
    let mut resent = 0;
    // The checkpoint says that recovery is over, and that the changes to resend were sent; the probe too leaves the
    // same tree, once its names are gone.
    while cursor.marks().is_empty() {
        for choice in choices(cursor.lines_in_flight(), budget, seed ^ cursor.point() as u64) {
            let fingerprint = cursor.fingerprint(choice);
            if seen.contains(&fingerprint) {
                continue;
            }
            seen.push(fingerprint);
            let point = cursor.point();
            resent += cursor
                .with_image(choice, |image| verify(image, allowed, mount, fingerprint, None))
                .map(|verified| verified.resent)
                .map_err(|what| format!("crashed again while it recovered (point {point}, {choice:?}): {what}"))?;
        }
        if !cursor.advance() {
            break;
        }
    }
    Ok(Verified {
        recovered: seen,
        resent,
    })
}

/// Runs fsck; returns the number of blocks with an owner.
fn check(image: &Image, when: &str) -> Result<u64, String> {
    let region = Region::of_image(image).map_err(|error| error.to_string())?;
    let report = fsck(region, &mut |_, _, _| {}).map_err(|error| format!("fsck {when}: {error}"))?;
    match &report.findings[..] {
        [] => Ok(report.blocks),
        findings => {
            let what: Vec<_> = findings.iter().map(|finding| &finding.what[..]).take(5).collect();
            Err(format!("fsck {when}: {}", what.join("; ")))
        }
    }
}

/// The inodes in use are as many as those of the tree.
fn count_inodes(engine: &Engine, tree: &Tree) -> Result<(), String> {
    let stat = engine.statfs(SYSTEM).map_err(|error| error.to_string())?;
    let counted = stat.inodes - stat.inodes_free;
    let there: HashSet<_> = tree.values().map(|node| &node.first_path).collect();
    match counted == there.len() as u64 {
        true => Ok(()),
        false => Err(format!("{counted} inodes are in use, the tree has {}", there.len())),
    }
}

/// A little of everything, all of it undone. A full pool may refuse calls that need space, and no others.
fn probe(engine: &Engine) -> ferrite_vfs::Result<()> {
    fn unless_full<T>(result: ferrite_vfs::Result<T>) -> ferrite_vfs::Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(FsError::NoSpace(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
    let Some(dir) = unless_full(engine.mkdir(SYSTEM, ROOT_INO, b"probe-dir", 0o755))? else {
        return Ok(());
    };
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o600,
        rdev: 0,
    };
    if let Some(made) = unless_full(engine.mknod(SYSTEM, dir.ino, b"probe", &node))? {
        let file = engine.open(SYSTEM, made.ino, OpenMode::read_write())?;
        let mut expected = vec![7; 5000];
        let mut written = unless_full(file.write_at(SYSTEM, 0, &expected))?.is_some();
        written = written && unless_full(file.write_at(SYSTEM, 100, b"in the middle"))?.is_some();
        expected[100..113].copy_from_slice(b"in the middle");
        if written {
            let mut found = vec![0; 6000];
            let len = file.read_at(SYSTEM, 0, &mut found)?;
            if found[..len] != expected {
                return Err(FsError::damaged(None, "what was written does not read back"));
            }
        }
        drop(file);
        engine.rename(SYSTEM, dir.ino, b"probe", ROOT_INO, b"probe-moved", RenameMode::Replace)?;
        engine.unlink(SYSTEM, ROOT_INO, b"probe-moved")?;
    }
    engine.rmdir(SYSTEM, ROOT_INO, b"probe-dir")
}
