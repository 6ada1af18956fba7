//! Tests of rules that no workload shows: limits of records and numbers, the end of commits, and durability when space
//! is reused.

use std::sync::mpsc::channel;
use std::time::Duration;

use ferrite_pm::{Choice, Recorder};

use super::*;
use crate::engine::Engine;
use crate::format::layout::decode_checkpoint;
use crate::format::record::Header;
use crate::options::{Mapping, MkfsOptions, MountOptions};
use crate::pool::tx::{Purpose, Tx};
use crate::thread::number_thread;
use ferrite_map::{BlockNo, MapTx};

const POOL_BYTES: u64 = 4 << 20;

fn pool(mapping: Mapping) -> Vec<u8> {
    let region = Region::anonymous(POOL_BYTES).unwrap();
    let options = MkfsOptions::default().mapping(mapping).inodes(127).rings(2).seed(42);
    crate::mkfs(&region, &options).unwrap();
    let mut image = vec![0; POOL_BYTES as usize];
    region.read(0, &mut image);
    image
}

/// A mounted pool that is being recorded.
fn engine(mapping: Mapping) -> (Engine, Arc<Recorder>) {
    let image = pool(mapping);
    let recorder = Recorder::new(image.clone());
    let mut region = Region::from_image(&image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let options = MountOptions::default().cleaner(false);
    (Engine::mount(region, &options).unwrap(), recorder)
}

/// Runs `work` with the ring of this number.
fn on_ring<T: Send>(ring: u64, work: impl FnOnce() -> T + Send) -> T {
    let numbered = || {
        number_thread(ring);
        work()
    };
    std::thread::scope(|scope| scope.spawn(numbered).join().unwrap())
}

/// A record of `words` words, all of them in a free block.
fn record(engine: &Engine, words: u64) -> Record {
    let superblock = &engine.core().superblock;
    let offset = superblock.block_offset(BlockNo::new(superblock.first_block as u32 + 100));
    let mut record = Record::new();
    (0..words).for_each(|n| record.set_word(offset + n * 8, n));
    record
}

fn commit(engine: &Engine, record: &mut Record, freed: &[Resource]) -> Result<u64, CommitError> {
    let journal = &engine.core().journal;
    let committed = journal.commit(journal.enter(), record, freed, 0, || {}, || {});
    committed.map(|committed| committed.seq)
}

#[test]
fn a_record_that_no_ring_takes_is_refused_and_harms_nobody() {
    let (engine, recorder) = engine(Mapping::Hashfs);
    let longest = engine.core().journal.max_record_words() as u64;
    let stored = recorder.log().final_image();
    let refused = commit(&engine, &mut record(&engine, longest), &[]);
    assert!(matches!(refused, Err(CommitError::TooLong)), "{refused:?}");
    // The same through a transaction, which has claimed resources.
    let mut tx = Tx::new(engine.core(), Purpose::Change);
    let block = tx.alloc_block().unwrap();
    let offset = engine.core().superblock.block_offset(block);
    let free = engine.core().alloc.free();
    (0..longest).for_each(|n| tx.set_word(offset + n * 8, n));
    let error = tx.commit(&[]).unwrap_err();
    assert!(matches!(error, ferrite_vfs::FsError::NotSupported(_)), "{error}");
    assert_eq!(engine.core().alloc.free(), free + 1, "what it claimed is free again");
    assert!(recorder.log().final_image() == stored, "something was stored");
    assert!(engine.failed().is_none() && !engine.is_read_only());
    // No operation makes longer ones: two of the longest fit in a ring.
    for _ in 0..5 {
        let fits = commit(&engine, &mut record(&engine, longest - 8), &[]);
        if matches!(fits, Err(CommitError::RingFull)) {
            engine.core().reclaim().unwrap();
        }
    }
    engine.core().reclaim().unwrap();
    commit(&engine, &mut record(&engine, 3), &[]).unwrap();
    engine.unmount().unwrap();
}

#[test]
fn a_record_names_none_that_is_too_far_behind() {
    let (engine, _recorder) = engine(Mapping::Hashfs);
    let journal = &engine.core().journal;
    let offset = engine
        .core()
        .superblock
        .block_offset(BlockNo::new(engine.core().superblock.first_block as u32 + 100));
    let first = on_ring(0, || commit(&engine, &mut record(&engine, 1), &[])).unwrap();
    // Merges use up numbers, and no thread moves the checkpoint.
    on_ring(1, || {
        for _ in 0..Link::REACH {
            let seq = journal.newest_seq();
            journal.install(seq, std::iter::empty(), || Some(offset)).unwrap();
        }
    });
    let newest = journal.newest_seq();
    let again = || {
        on_ring(0, || {
            let entered = journal.enter();
            journal.commit(entered, &mut record(&engine, 1), &[], newest, || {}, || {})
        })
    };
    let refused = again();
    assert!(
        matches!(refused, Err(CommitError::RingFull)),
        "record {first} may be replayed: {refused:?}"
    );
    engine.core().reclaim().unwrap();
    again().unwrap();
}

/// Space that a record freed becomes reusable only when a crash would find a checkpoint that has passed the record.
#[test]
fn the_checkpoint_is_durable_when_space_comes_back() {
    let (engine, recorder) = engine(Mapping::Hashfs);
    let block = engine.core().superblock.first_block as u32 + 200;
    let seq = commit(
        &engine,
        &mut record(&engine, 1),
        &[Resource::Block(BlockNo::new(block))],
    )
    .unwrap();
    let durable_checkpoint = || {
        let log = recorder.log();
        let mut cursor = log.cursor();
        while cursor.advance() {}
        let at = CONTROL_CHECKPOINT as usize;
        let word = |image: &[u8]| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
        decode_checkpoint(cursor.with_image(Choice::None, |image| word(image))).unwrap()
    };
    assert!(durable_checkpoint() < seq);
    let mut released = Vec::new();
    let release = &mut |freed| {
        assert!(
            durable_checkpoint() >= seq,
            "freed by record {seq}, which a crash replays still"
        );
        released = freed;
    };
    engine.core().journal.advance(release).unwrap();
    assert_eq!(released, [Resource::Block(BlockNo::new(block))]);
}

/// Numbers given after a move are above the move's, in every ring and however long it has been idle.
#[test]
fn records_after_a_move_have_higher_numbers() {
    for mapping in [Mapping::Leaf, Mapping::Cuckoo] {
        let (engine, _recorder) = engine(mapping);
        let core = engine.core();
        let offset = core
            .superblock
            .block_offset(BlockNo::new(core.superblock.first_block as u32 + 100));
        on_ring(0, || {
            for _ in 0..10 {
                commit(&engine, &mut record(&engine, 1), &[]).unwrap();
            }
        });
        let moved = on_ring(0, || {
            let moving = core.map.move_lock().unwrap().lock_exclusive();
            let mut tx = Tx::moving(core, &moving);
            tx.set_word(offset, 1);
            tx.commit_move().unwrap();
            core.journal.newest_seq()
        });
        let after = on_ring(1, || commit(&engine, &mut record(&engine, 1), &[]).unwrap());
        assert!(
            after > moved,
            "{mapping}: record {after} comes before the move, {moved}"
        );
    }
}

/// A crash leaves the first line of a record. After recovery another record takes its place, whose second line is the
/// same; a crash leaves that line alone. Together they are the first record, which must not be replayed: the data it
/// names may never have been written, or its place may hold other data by now.
#[test]
fn a_torn_record_stays_dead() {
    const WORDS: u64 = 9;
    /// A crash right before the last fence, which leaves one line of the record.
    fn crashed(recorder: &Recorder, kept: usize) -> Vec<u8> {
        let log = recorder.log();
        let mut cursor = log.cursor();
        for _ in 0..log.crash_points() - 2 {
            assert!(cursor.advance());
        }
        assert_eq!(cursor.lines_in_flight(), 2, "the record and nothing else");
        cursor.with_image(Choice::OnlyLine(kept), |image| image.to_vec())
    }
    let mounted = |image: &[u8]| {
        let recorder = Recorder::new(image.to_vec());
        let mut region = Region::from_image(image).unwrap();
        region.attach_recorder(Arc::clone(&recorder));
        let engine = Engine::mount(region, &MountOptions::default().cleaner(false)).unwrap();
        (engine, recorder)
    };
    // Header and head take three words of the first line.
    let commit_one = |engine: &Engine, first: u64| {
        let superblock = &engine.core().superblock;
        let offset = superblock.block_offset(BlockNo::new(superblock.first_block as u32 + 100));
        let mut record = Record::new();
        (0..WORDS).for_each(|n| record.set_word(offset + n * 8, if n == 0 { first } else { n }));
        on_ring(0, || commit(engine, &mut record, &[])).unwrap();
        offset
    };
    let (engine, recorder) = engine(Mapping::Hashfs);
    commit_one(&engine, 0xdead);
    let (engine, recorder) = mounted(&crashed(&recorder, 0));
    let offset = commit_one(&engine, 0xbeef);
    let (engine, _recorder) = mounted(&crashed(&recorder, 1));
    assert_eq!(engine.info().replayed_records, 0);
    assert_eq!(engine.core().region.load(offset), 0, "neither record was durable");
}

#[test]
fn nothing_is_committed_to_a_pool_that_is_unmounted() {
    let (engine, recorder) = engine(Mapping::Hashfs);
    commit(&engine, &mut record(&engine, 1), &[]).unwrap();
    engine.unmount().unwrap();
    let left = recorder.log().final_image();
    // Like an operation that had passed all checks when the unmount began.
    let refused = commit(&engine, &mut record(&engine, 2), &[]);
    assert!(matches!(refused, Err(CommitError::Closed)), "{refused:?}");
    let journal = &engine.core().journal;
    let merge = journal.install(0, std::iter::empty(), || panic!("a merge sets its word"));
    assert_eq!(merge, None);
    let mut tx = Tx::new(engine.core(), Purpose::Change);
    tx.set_word(
        engine
            .core()
            .superblock
            .block_offset(BlockNo::new(engine.core().superblock.first_block as u32)),
        1,
    );
    let error = tx.commit(&[]).unwrap_err();
    assert!(error.to_string().contains("unmounted"), "{error}");
    assert!(recorder.log().final_image() == left, "something was stored");
}

/// Unmount waits for an operation that is about to commit; its record is on the medium before the clean mark.
#[test]
fn an_unmount_waits_for_a_commit_under_way() {
    let (engine, recorder) = engine(Mapping::Hashfs);
    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        let entered = engine.core().journal.enter();
        let unmounting = engine.clone();
        scope.spawn(move || {
            number_thread(1 + thread_number());
            unmounting.unmount().unwrap();
            done.send(()).unwrap();
        });
        let early = is_done.recv_timeout(Duration::from_millis(100));
        assert!(
            early.is_err(),
            "the pool says it is clean, and a record is about to be committed"
        );
        // Either it committed before, or it is refused: in both cases the pool's state is right.
        let committed = engine
            .core()
            .journal
            .commit(entered, &mut record(&engine, 1), &[], 0, || {}, || {});
        assert!(matches!(committed, Ok(_) | Err(CommitError::Closed)), "{committed:?}");
        is_done.recv_timeout(Duration::from_secs(10)).unwrap();
    });
    let mounted = Engine::mount(
        Region::from_image(&recorder.log().final_image()).unwrap(),
        &MountOptions::default(),
    );
    let info = mounted.unwrap().info();
    assert!(
        info.was_clean && info.replayed_records == 0,
        "{} replayed",
        info.replayed_records
    );
}

/// A record whose fence failed may or may not be there; no later one may name it as durable.
#[test]
fn nothing_follows_a_record_whose_fence_failed() {
    let (engine, recorder) = engine(Mapping::Hashfs);
    commit(&engine, &mut record(&engine, 1), &[]).unwrap();
    recorder.fail_fences_after(0);
    let failed = commit(&engine, &mut record(&engine, 1), &[]);
    assert!(matches!(failed, Err(CommitError::Medium(_))), "{failed:?}");
    recorder.fail_fences_after(u64::MAX);
    let next = commit(&engine, &mut record(&engine, 1), &[]);
    assert!(matches!(next, Err(CommitError::Closed)), "{next:?}");
}

/// A program that knows no links would not recognise records with links, and would lose their changes.
#[test]
fn records_of_an_older_pool_are_what_older_programs_read() {
    use ferrite_vfs::{FileKind, FileSystem, NewNode, ROOT_INO, SYSTEM};

    let mut image = pool(Mapping::default());
    let mut superblock = Superblock::find(&Region::from_image(&image).unwrap()).unwrap();
    assert!(superblock.has_linked_records());
    superblock.features_incompat = 0;
    for offset in [0, superblock.second_copy_offset() as usize] {
        image[offset..offset + 4096].copy_from_slice(&superblock.encode());
    }
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    for round in 0..2 {
        let region = Region::from_image(&image).unwrap();
        let engine = Engine::mount(region, &MountOptions::default()).unwrap();
        for n in 0..round * 20 {
            assert!(
                engine.lookup(SYSTEM, ROOT_INO, format!("{n}").as_bytes()).is_ok(),
                "file {n}"
            );
        }
        for n in round * 20..round * 20 + 20 {
            let name = format!("{n}");
            engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node).unwrap();
        }
        // As a crash leaves it.
        engine.core().region.read(0, &mut image);
        let mut found = 0;
        for ring in 0..superblock.rings {
            let start = superblock.ring_offset(ring) as usize;
            for at in (start..start + superblock.ring_bytes as usize).step_by(64) {
                let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
                let is_header =
                    word(at) >> 48 == u64::from(ring) && word(at) as u32 != 0 && word(at) >> 32 & 0xffff > 2;
                if is_header && Header::parse(word(at), word(at + 8), ring).is_some() {
                    assert!((1..=SEQ_MAX).contains(&word(at + 8)), "record at {at}");
                    found += 1;
                }
            }
        }
        assert!(found >= 20, "{found} records");
    }
}
