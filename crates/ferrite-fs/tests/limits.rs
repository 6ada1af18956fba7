//! Limits that checks assume, and the engine must therefore never pass: those of docs/limits.md, stressed by repeating
//! one simple operation very often between two moves of the journal's checkpoint.
//!
//! Rewriting one file 1,500 times once left a pool of 1 GiB damaged: each freed slot of the table waits for the
//! checkpoint, so the file's key walked away from its home, farther than mount, check and repair accept in a sound
//! pool.

use crate::common::{fixed, make, options};
use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions, fsck, mkfs};
use ferrite_pm::{Access, Region};
use ferrite_vfs::{
    FallocateMode, FileKind, FileSystem, FsError, Ino, NewNode, OpenMode, ROOT_INO, SYSTEM, SetAttr, XattrMode,
};
use tempfile::TempPath;

const PAGE: usize = 4096;
/// Rings are longest from this size on, so the checkpoint rests longest.
const POOL_BYTES: u64 = 1 << 30;
/// More than the 1,050 or so after which a key came out of reach.
const ROUNDS: usize = 1500;

fn pool_file() -> TempPath {
    let dir = std::path::Path::new("/dev/shm");
    let builder = || tempfile::Builder::new();
    let made = if dir.is_dir() {
        builder().tempfile_in(dir)
    } else {
        builder().tempfile()
    };
    made.unwrap().into_temp_path()
}

fn new_pool(size_bytes: u64, options: &MkfsOptions) -> (TempPath, Engine) {
    let path = pool_file();
    let region = Region::create(&path, size_bytes).unwrap();
    mkfs(&region, options).unwrap();
    (path, Engine::mount(region, &quiet()).unwrap())
}

fn quiet() -> MountOptions {
    MountOptions::default().cleaner(false).merge_read_entries(0)
}

/// The pool as left behind, for example by a crash: sound, and mounted again without findings.
fn check(path: &TempPath) {
    let region = Region::open(path, Access::ReadOnlyPrivate).unwrap();
    let report = fsck(region, &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let region = Region::open(path, Access::ReadOnlyPrivate).unwrap();
    let engine = Engine::mount(region, &quiet()).unwrap();
    assert!(engine.damage().is_empty(), "{:#?}", engine.damage());
}

fn truncate(engine: &Engine, ino: Ino) {
    let size = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    engine.setattr(SYSTEM, ino, &size).unwrap();
}

#[test]
fn one_file_rewritten_for_long_leaves_a_sound_pool() {
    let (path, engine) = new_pool(POOL_BYTES, &options());
    let ino = make(&engine, ROOT_INO, "state");
    for round in 0..ROUNDS {
        truncate(&engine, ino);
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        file.write_at(SYSTEM, 0, &[round as u8; 1500]).unwrap();
    }
    // Without an unmount, as if killed.
    drop(engine);
    check(&path);
    let engine = Engine::mount(Region::open(&path, Access::ReadWrite).unwrap(), &quiet()).unwrap();
    let mut content = [0; PAGE];
    let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
    assert_eq!(file.read_at(SYSTEM, 0, &mut content).unwrap(), 1500);
    assert!(content[..1500].iter().all(|&byte| byte == (ROUNDS - 1) as u8));
    drop(file);
    engine.unmount().unwrap();
    drop(engine);
    check(&path);
}

/// Runs `press` on a small pool of each mapping. The pool must be sound while in use, after a simulated kill, and after
/// the next mount.
fn on_all_mappings(press: impl Fn(&Engine)) {
    for &mapping in Mapping::ALL {
        println!("{mapping}");
        let options = fixed().mapping(mapping).inodes(255).names(512).rings(1);
        let (path, engine) = new_pool(16 << 20, &options);
        press(&engine);
        assert!(engine.scrub(None).unwrap().findings.is_empty());
        drop(engine);
        check(&path);
        let engine = Engine::mount(Region::open(&path, Access::ReadWrite).unwrap(), &quiet()).unwrap();
        engine.unmount().unwrap();
        drop(engine);
        check(&path);
    }
}

/// Entries that a walk follows before it takes a log for a circle; segments that a trailer can count.
#[test]
fn a_page_changed_byte_by_byte_keeps_its_log_in_bounds() {
    on_all_mappings(|engine| {
        let ino = make(engine, ROOT_INO, "log");
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        let mut expected = vec![7; 2 * PAGE];
        file.write_at(SYSTEM, 0, &expected).unwrap();
        let mut state = 1u64;
        for round in 0..4000u64 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(round | 1);
            let at = (state >> 40) as usize % (2 * PAGE - 3000);
            // Mostly one byte, for as many entries as possible; at times the longest entry.
            let len = if round % 61 == 0 { 2500 } else { 1 };
            if round % 7 == 0 {
                let mode = FallocateMode::ZeroRange { keep_size: true };
                file.fallocate(SYSTEM, mode, at as u64, len as u64).unwrap();
                expected[at..at + len].fill(0);
            } else {
                file.write_at(SYSTEM, at as u64, &vec![round as u8; len]).unwrap();
                expected[at..at + len].fill(round as u8);
            }
            if round % 97 == 0 {
                let mut content = vec![0; 2 * PAGE];
                file.read_at(SYSTEM, 0, &mut content).unwrap();
                assert!(content == expected, "round {round}");
            }
        }
        assert!(engine.info().logged_pages > 0, "no log to look at");
    });
}

/// The last page a file can have, on both sides of its end; and one page more.
#[test]
fn the_last_page_of_the_largest_file_is_sound() {
    const END: u64 = 1 << 44;
    on_all_mappings(|engine| {
        let ino = make(engine, ROOT_INO, "large");
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        for round in 0..50u8 {
            assert_eq!(file.write_at(SYSTEM, END - 1, &[round]).unwrap(), 1);
            assert!(matches!(file.write_at(SYSTEM, END, &[1]), Err(FsError::FileTooBig)));
            assert!(matches!(
                file.write_at(SYSTEM, END - 1, &[1, 1]),
                Err(FsError::FileTooBig)
            ));
            let keep_size = FallocateMode::Allocate { keep_size: true };
            file.fallocate(SYSTEM, keep_size, END - 8 * PAGE as u64, 8 * PAGE as u64)
                .unwrap();
            let too_far = file.fallocate(SYSTEM, keep_size, END - 1, 2);
            assert!(matches!(too_far, Err(FsError::FileTooBig)), "{too_far:?}");
            let mut byte = [9];
            assert_eq!(file.read_at(SYSTEM, END - 1, &mut byte).unwrap(), 1);
            assert_eq!(byte[0], round);
            truncate(engine, ino);
            file.fallocate(SYSTEM, keep_size, END - PAGE as u64, PAGE as u64)
                .unwrap();
        }
        assert_eq!(engine.getattr(SYSTEM, ino).unwrap().blocks, PAGE as u64 / 512);
    });
}

/// All inode numbers and all names, allocated and freed again and again; a late caller gets an error.
#[test]
fn inodes_and_names_that_run_out_leave_a_sound_pool() {
    on_all_mappings(|engine| {
        for round in 0..6u32 {
            let mut names = Vec::new();
            let created = |name: &str| {
                let node = NewNode {
                    kind: FileKind::File,
                    mode: 0o644,
                    rdev: 0,
                };
                engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node)
            };
            let first = created("0").unwrap().ino;
            let mut last = None;
            for n in 1.. {
                let name = format!("{round}-{n}-{}", "n".repeat(n % 50));
                // Files until no inode is left, then links until no name is left.
                let made = match last {
                    None => created(&name),
                    Some(_) => engine.link(SYSTEM, first, ROOT_INO, name.as_bytes()),
                };
                match made {
                    Ok(_) => names.push(name),
                    Err(FsError::NoSpace(_)) if last.is_none() => last = Some(n),
                    Err(FsError::NoSpace(_)) => break,
                    Err(error) => panic!("{name}: {error}"),
                }
            }
            assert!(engine.statfs(SYSTEM).unwrap().inodes_free == 0, "{} names", names.len());
            names.push("0".into());
            for (n, name) in names.iter().enumerate() {
                // From both ends, so that the freed numbers lie apart.
                if n % 3 != round as usize % 3 || round == 5 {
                    engine.unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
                }
            }
            for (n, name) in names.iter().enumerate() {
                if n % 3 == round as usize % 3 && round != 5 {
                    engine.unlink(SYSTEM, ROOT_INO, name.as_bytes()).unwrap();
                }
            }
        }
    });
}

/// The block that short attributes share, filled to its last byte and beyond: more take further blocks, and give them
/// back.
#[test]
fn attributes_fill_their_block_and_then_others() {
    const SPACE: usize = 4064;
    on_all_mappings(|engine| {
        let ino = make(engine, ROOT_INO, "file");
        let set = |name: &str, len: usize| engine.setxattr(SYSTEM, ino, name.as_bytes(), &vec![1; len], XattrMode::Any);
        for _ in 0..300 {
            let rest = SPACE - (4 + 6) - (4 + 6);
            set("user.a", rest / 2).unwrap();
            set("user.b", rest - rest / 2).unwrap();
            assert_eq!(engine.getxattr(SYSTEM, ino, b"user.b").unwrap().len(), rest - rest / 2);
            set("user.b", rest - rest / 2 + 1).unwrap();
            assert_eq!(
                engine.getxattr(SYSTEM, ino, b"user.b").unwrap().len(),
                rest - rest / 2 + 1
            );
            engine.removexattr(SYSTEM, ino, b"user.a").unwrap();
            set("user.b", rest + 10).unwrap();
            engine.removexattr(SYSTEM, ino, b"user.b").unwrap();
        }
    });
}
