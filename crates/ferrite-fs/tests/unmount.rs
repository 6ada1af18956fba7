//! Unmounting while others work: operations that returned are there, and a pool that is marked clean is clean.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{empty_pool, fixed, pattern};
use ferrite_fs::{Engine, MountOptions, fsck, number_thread};
use ferrite_pm::{Choice, Recorder, Region};
use ferrite_vfs::{FileKind, FileSystem, FsError, NewNode, OpenMode, ROOT_INO, SYSTEM};

const THREADS: u64 = 3;

/// Makes and fills files until the pool is unmounted; returns how many were whole, and the error after them.
fn work(engine: &Engine, thread: u64) -> (usize, FsError) {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let one = |n: usize| -> ferrite_vfs::Result<()> {
        let name = format!("{thread}-{n}");
        let ino = engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node)?.ino;
        let file = engine.open(SYSTEM, ino, OpenMode::read_write())?;
        file.write_at(SYSTEM, 0, &pattern(5000, n as u8))?;
        file.write_at(SYSTEM, 700, b"a part")?;
        Ok(())
    };
    (0..).find_map(|n| one(n).err().map(|error| (n, error))).unwrap()
}

#[test]
fn what_returned_before_an_unmount_is_there_and_the_pool_is_clean() {
    // More than they fill before the unmount, also if that is late.
    let options = fixed().inodes(16_383).rings(2);
    let empty = empty_pool(64 << 20, &options);
    let mut most = 0;
    // On a busy machine threads need longer to get anywhere.
    for round in 0..100u64 {
        if round >= 12 && most > 10 {
            break;
        }
        let recorder = Recorder::new(empty.clone());
        let mut region = Region::from_image(&empty).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        let engine = Engine::mount(region, &MountOptions::default()).unwrap();
        let ended: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let engine = &engine;
                    scope.spawn(move || {
                        number_thread(thread);
                        work(engine, thread)
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_micros(500 * round));
            engine.unmount().unwrap();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        let log = recorder.log();
        let mut cursor = log.cursor();
        while cursor.advance() {}
        let image = cursor.with_image(Choice::None, |image| image.to_vec());
        let report = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
        assert!(report.findings.is_empty(), "round {round}: {:?}", report.findings);
        let engine = Engine::mount(Region::from_image(&image).unwrap(), &MountOptions::default()).unwrap();
        let info = engine.info();
        assert!(info.was_clean, "round {round}: the pool does not say that it is clean");
        assert_eq!(
            info.replayed_records, 0,
            "round {round}: committed behind the clean mark"
        );
        for (thread, (whole, error)) in ended.into_iter().enumerate() {
            most = most.max(whole);
            assert!(error.to_string().contains("unmounted"), "round {round}: {error}");
            for n in 0..whole {
                let name = format!("{thread}-{n}");
                let ino = engine.lookup(SYSTEM, ROOT_INO, name.as_bytes()).unwrap().ino;
                let mut found = vec![0; 5001];
                let file = engine.open(SYSTEM, ino, OpenMode::read_only()).unwrap();
                assert_eq!(
                    file.read_at(SYSTEM, 0, &mut found).unwrap(),
                    5000,
                    "round {round}: {name}"
                );
                let mut expected = pattern(5000, n as u8);
                expected[700..706].copy_from_slice(b"a part");
                assert!(found[..5000] == expected, "round {round}: {name}");
            }
        }
    }
    assert!(
        most > 10,
        "no thread got further than {most} files: the unmounts came too early to mean anything"
    );
}
