//! The bytes of a frozen pool are those of a cleanly unmounted one; and a freeze loses nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{capture, empty_pool, fixed, make, pattern, write};
use ferrite_fs::layout::{CONTROL_STATE, STATE_CLEAN};
use ferrite_fs::{Engine, MkfsOptions, MountOptions, fsck, is_clean, number_thread};
use ferrite_pm::{Choice, Recorder, Region};
use ferrite_vfs::{FileSystem, OpenMode, ROOT_INO, SYSTEM};

const THREADS: u64 = 3;
const FREEZES: usize = 6;

fn options() -> MkfsOptions {
    fixed().inodes(127).rings(2)
}

/// Waits until every thread has written once more. A freeze that starves a writer for good fails here; a machine that
/// gives one thread little time does not.
fn wait_for_progress(written: &[AtomicU64]) {
    let before: Vec<_> = written.iter().map(|n| n.load(Ordering::SeqCst)).collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    while written
        .iter()
        .zip(&before)
        .any(|(n, before)| n.load(Ordering::SeqCst) == *before)
    {
        assert!(
            Instant::now() < deadline,
            "a thread wrote nothing for a minute: {before:?} {written:?}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Threads write to files without a pause. Whatever image the medium may hold, if it is marked clean there is nothing
/// to replay and nothing is wrong; and operations that returned before a freeze are in the frozen image.
#[test]
fn what_is_frozen_is_clean_and_holds_what_returned() {
    let empty = empty_pool(8 << 20, &options());
    let recorder = Recorder::new(empty.clone());
    let mut region = Region::from_image(&empty).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &MountOptions::default()).unwrap();
    let files: Vec<_> = (0..THREADS).map(|n| make(&engine, ROOT_INO, &n.to_string())).collect();
    let written: Vec<_> = files.iter().map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let mut frozen = Vec::new();
    std::thread::scope(|scope| {
        for (thread, (&ino, written)) in files.iter().zip(&written).enumerate() {
            let (engine, stop) = (&engine, &stop);
            scope.spawn(move || {
                number_thread(thread as u64);
                for n in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // Whole pages and parts of them, so that there are logs and merges.
                    write(engine, ino, 4096, &pattern(8000, n as u8));
                    write(engine, ino, 0, &u64::to_le_bytes(n));
                    written.store(n, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..FREEZES {
            wait_for_progress(&written);
            let least: Vec<_> = written.iter().map(|n| n.load(Ordering::SeqCst)).collect();
            engine.freeze().unwrap();
            assert!(engine.is_frozen());
            assert!(engine.freeze().unwrap_err().to_string().contains("frozen already"));
            let image = recorder.log().final_image();
            std::thread::sleep(Duration::from_millis(2));
            let later = recorder.log().final_image();
            // Pages of operations that wait may be on their way to free blocks; no structure refers to them.
            frozen.push((least.clone(), image));
            frozen.push((least, later));
            engine.thaw().unwrap();
            assert!(!engine.is_frozen());
        }
        stop.store(true, Ordering::Relaxed);
    });
    for (round, (least, image)) in frozen.into_iter().enumerate() {
        assert!(is_clean(&Region::from_image(&image).unwrap()), "round {round}");
        let report = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
        assert!(report.findings.is_empty(), "round {round}: {:?}", report.findings);
        assert_eq!(report.replayed_records, 0, "round {round}");
        let copy = common::mount(&image);
        for (&ino, least) in files.iter().zip(least) {
            let mut found = [0; 8];
            let file = copy.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
            assert!(
                least == 0 || file.read_at(SYSTEM, 0, &mut found).unwrap() == 8,
                "round {round}"
            );
            assert!(
                u64::from_le_bytes(found) >= least,
                "round {round}: older than what had returned"
            );
        }
    }
    let tree = capture(&engine);
    engine.unmount().unwrap();
    let log = recorder.log();
    assert_eq!(capture(&common::mount(&log.final_image())), tree);
    // A crash at any fence.
    let mut cursor = log.cursor();
    let mut clean = 0;
    while cursor.advance() {
        let clean_here = cursor.with_image(Choice::None, |image| {
            let state = CONTROL_STATE as usize;
            let clean = image[state..state + 8] == STATE_CLEAN.to_le_bytes();
            if clean {
                let region = Region::from_image(image).unwrap();
                let report = fsck(region, &mut |_, _, _| {}).unwrap();
                assert_eq!(report.replayed_records, 0, "committed behind the clean mark");
                assert!(report.findings.is_empty(), "{:?}", report.findings);
            }
            clean
        });
        clean += usize::from(clean_here);
    }
    assert!(clean >= FREEZES, "{clean} clean images");
}

/// Changes wait; reads do not, and move no access time.
#[test]
fn changes_wait_and_reads_do_not() {
    let engine = common::mount(&empty_pool(8 << 20, &options()));
    let ino = make(&engine, ROOT_INO, "f");
    write(&engine, ino, 0, b"before");
    engine.freeze().unwrap();
    let returned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ino = make(&engine, ROOT_INO, "g");
            write(&engine, ino, 0, b"after");
            returned.store(true, Ordering::SeqCst);
        });
        let atime = engine.getattr(SYSTEM, ino).unwrap().atime;
        let mut found = [0; 6];
        let file = engine.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
        assert_eq!(file.read_at(SYSTEM, 0, &mut found).unwrap(), 6);
        assert_eq!(&found, b"before");
        assert_eq!(engine.getattr(SYSTEM, ino).unwrap().atime, atime);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!returned.load(Ordering::SeqCst), "a change went through a frozen pool");
        engine.thaw().unwrap();
    });
    assert!(engine.lookup(SYSTEM, ROOT_INO, b"g").is_ok());
    engine.thaw().unwrap();
    engine.unmount().unwrap();
    assert!(engine.freeze().unwrap_err().to_string().contains("unmounted"));
}

/// An unmount ends a freeze; waiting callers get an error.
#[test]
fn a_frozen_pool_can_be_unmounted() {
    let empty = empty_pool(8 << 20, &options());
    let recorder = Recorder::new(empty.clone());
    let mut region = Region::from_image(&empty).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &MountOptions::default()).unwrap();
    let ino = make(&engine, ROOT_INO, "f");
    engine.freeze().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            engine
                .open(SYSTEM, ino, OpenMode::read_write())
                .unwrap()
                .write_at(SYSTEM, 0, b"late")
        });
        std::thread::sleep(Duration::from_millis(50));
        engine.unmount().unwrap();
        assert!(waits.join().unwrap().unwrap_err().to_string().contains("unmounted"));
    });
    let image = recorder.log().final_image();
    assert!(is_clean(&Region::from_image(&image).unwrap()));
    assert_eq!(common::mount(&image).getattr(SYSTEM, ino).unwrap().size, 0);
}
