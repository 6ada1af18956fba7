//! The limits of many cores, counted on few: the cache lines that operations of two threads write. Only with the
//! feature `spans`, which has the structures note their stores (`ferrite_pm::line_trace`).
//!
//! Threads take turns, one operation each, so that the count does not depend on the machine: lines that 64 threads
//! share are shared whether or not there are 64 cores.
#![cfg(feature = "spans")]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use ferrite_fs::{Engine, MkfsOptions, MountOptions, mkfs, number_thread};
use ferrite_pm::{Region, line_trace};
use ferrite_vfs::{FileKind, FileSystem, Ino, NewNode, OpenFile, OpenMode, ROOT_INO, SYSTEM};

/// Operations of each thread.
const TURNS: u64 = 200;
const PAGES: u64 = 16;
const NODE: NewNode = NewNode {
    kind: FileKind::File,
    mode: 0o644,
    rdev: 0,
};

/// Shared lines written by an operation, on average, by structure.
type Shared = BTreeMap<&'static str, f64>;

/// Where a thread works.
#[derive(Clone)]
struct Place {
    dir: Ino,
    file: Arc<dyn OpenFile>,
}

/// The file that a thread works on.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Files {
    /// Each has its own, in a directory of its own.
    Own,
    /// All have the same, each with a handle of its own.
    One,
    /// All have the same handle.
    OneHandle,
}

/// Has `threads` threads do `work` in turn.
fn count(threads: usize, files: Files, work: impl Fn(&Engine, &Place, u64) + Sync) -> Shared {
    // Threads of other tests would have slots of the counters that these need.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let region = Region::anonymous(512 << 20).unwrap();
    mkfs(&region, &MkfsOptions::default().rings(16)).unwrap();
    let options = MountOptions::default().cleaner(false);
    let engine = Engine::mount(region, &options).unwrap();
    let mode = OpenMode {
        no_atime: true,
        ..OpenMode::read_write()
    };
    let places: Vec<Place> = (0..if files == Files::Own { threads } else { 1 })
        .map(|n| {
            let dir = engine
                .mkdir(SYSTEM, ROOT_INO, format!("dir{n}").as_bytes(), 0o755)
                .unwrap()
                .ino;
            let ino = engine.mknod(SYSTEM, dir, b"file", &NODE).unwrap().ino;
            let file = engine.open(SYSTEM, ino, mode).unwrap();
            file.write_at(SYSTEM, 0, &vec![1; (PAGES * 4096) as usize]).unwrap();
            Place { dir, file }
        })
        .collect();
    let notes = Mutex::new(Vec::new());
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (engine, places, notes, barrier, work) = (&engine, &places, &notes, &barrier, &work);
            scope.spawn(move || {
                number_thread(thread as u64);
                let mut place = places[thread % places.len()].clone();
                if files == Files::One {
                    place.file = engine.open(SYSTEM, place.file.ino(), mode).unwrap();
                }
                // A first turn, in which a thread finds its purse, its ring and its part of the free maps.
                for round in 0..=TURNS {
                    if round == 1 {
                        line_trace::begin();
                    }
                    // One operation at a time: the test counts the writers of lines, not their waits.
                    let turn = notes.lock().unwrap();
                    work(engine, &place, round * threads as u64 + thread as u64);
                    drop(turn);
                    if round == 0 {
                        barrier.wait();
                    }
                }
                let mine = line_trace::end();
                notes.lock().unwrap().push(mine);
            });
        }
    });
    let notes: Vec<Vec<line_trace::TracedLine>> = notes.into_inner().unwrap();
    let mut writers: HashMap<line_trace::TracedLine, (usize, bool)> = HashMap::new();
    for (thread, lines) in notes.iter().enumerate() {
        for &line in lines {
            let (first, others) = writers.entry(line).or_insert((thread, false));
            *others |= *first != thread;
        }
    }
    let mut shared = Shared::new();
    for line in notes.iter().flatten().filter(|line| writers[line].1) {
        *shared.entry(line.0).or_default() += 1.0 / (TURNS as usize * threads) as f64;
    }
    println!("{threads} threads, {files:?}: {shared:.3?}");
    shared
}

fn overwrite_page(_: &Engine, place: &Place, turn: u64) {
    place
        .file
        .write_at(SYSTEM, turn % PAGES * 4096, &[turn as u8; 4096])
        .unwrap();
}

fn overwrite_bytes(_: &Engine, place: &Place, turn: u64) {
    place
        .file
        .write_at(SYSTEM, turn % PAGES * 4096 + 40, &[turn as u8; 8])
        .unwrap();
}

fn read_page(_: &Engine, place: &Place, turn: u64) {
    let mut buffer = [0; 4096];
    place.file.read_at(SYSTEM, turn % PAGES * 4096, &mut buffer).unwrap();
}

fn create(engine: &Engine, place: &Place, turn: u64) {
    let name = format!("new{turn}");
    engine.mknod(SYSTEM, place.dir, name.as_bytes(), &NODE).unwrap();
}

/// An operation may share at most this, by structure; structures that are not listed must not be shared at all.
fn check(shared: &Shared, most: &[(&str, f64)]) {
    for (structure, &lines) in shared {
        let most = most.iter().find(|(name, _)| name == structure);
        let most = most.map_or(0.0, |&(_, most)| most);
        assert!(
            lines <= most + 1e-6,
            "{structure}: {lines:.3} a turn, more than {most}; {shared:.3?}"
        );
    }
}

/// Tokens of blocks come and go in batches of 64.
const TOKENS: (&str, f64) = ("tokens of all", 0.03);
/// A thread takes a slab's worth of log segments at a time; merges count, and each first entry of a log lists its page.
const LOGS: [(&str, f64); 4] = [
    ("log slabs", 0.06),
    ("log purses", 0.12),
    ("logged pages", 0.03),
    ("merges", 0.03),
];
/// Up to 64 threads have a slot of the counters each. The tests' own threads have some of them, so a few of 64 workers
/// share the last one, which an operation writes several times.
const COUNTERS: (&str, f64) = ("counters", 1.5);
/// Words of pages whose files meet in a line of the table: by chance, so more threads meet more often.
const WORDS: (&str, f64) = ("pool words", 0.25);

#[test]
fn reads_write_no_line_that_others_write_but_in_a_handle_that_they_share() {
    for threads in [2, 64] {
        for files in [Files::Own, Files::One] {
            check(&count(threads, files, read_page), &[COUNTERS]);
        }
        // A handle remembers where it has read last: one page, or two when it reads in order.
        let shared = count(threads, Files::OneHandle, read_page);
        check(&shared, &[COUNTERS, ("handles", 2.0)]);
        // How often depends on the order in which the threads get their turns.
        assert!(shared.contains_key("handles"), "{shared:?}");
    }
}

#[test]
fn up_to_16_writers_of_their_own_files_share_hardly_a_line() {
    for threads in [2, 4, 8, 16] {
        check(&count(threads, Files::Own, overwrite_page), &[TOKENS, WORDS]);
        let most: Vec<_> = LOGS.into_iter().chain([TOKENS, WORDS]).collect();
        check(&count(threads, Files::Own, overwrite_bytes), &most);
    }
}

#[test]
fn more_writers_than_rings_share_rings_and_no_more() {
    for threads in [32, 64] {
        let ring = ("rings", 1.0);
        check(
            &count(threads, Files::Own, overwrite_page),
            &[TOKENS, WORDS, COUNTERS, ring],
        );
        let most: Vec<_> = LOGS.into_iter().chain([TOKENS, WORDS, COUNTERS, ring]).collect();
        check(&count(threads, Files::Own, overwrite_bytes), &most);
    }
}

#[test]
fn writers_of_one_file_share_its_inode() {
    for threads in [2, 16, 64] {
        // The words of its pages are in lines of their own for each thread, as long as there are no more than pages.
        let words = ("pool words", 1.1);
        let most: Vec<_> = LOGS
            .into_iter()
            .chain([TOKENS, COUNTERS, words, ("inodes", 1.0), ("rings", 1.0)])
            .collect();
        let shared = count(threads, Files::One, overwrite_page);
        check(&shared, &most);
        assert!(shared["inodes"] > 0.99, "each takes its lock: {shared:?}");
        check(&count(threads, Files::One, overwrite_bytes), &most);
    }
}

#[test]
fn creates_share_the_maps_of_inodes_and_names_and_the_cache() {
    for threads in [2, 16, 64] {
        let most = [
            TOKENS,
            COUNTERS,
            // One bit of an inode, one of a name.
            ("free maps", 2.1),
            // The shards of the directory and of the new inode.
            ("inode cache", 2.1),
            ("pool words", 1.0),
            ("cursors", 1.0),
            ("rings", 1.0),
            // Small entries of neighbours in memory.
            ("inodes", 1.0),
        ];
        check(&count(threads, Files::Own, create), &most);
    }
}
