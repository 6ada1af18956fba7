//! A log against a list: random calls of several users who have it open, with remains of crashes and lost connections
//! in between.
//!
//! Protects: a walk returns the appended data, whole, once, in order, in chunks of the requested size, and nothing
//! else, whatever lies between the records.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrite_log::{Error, FIRST_RECORD_AT, FRAME_BYTES, FileStore, Log, LogOptions, Result, Store};
use ferrite_testkit::rng::{Rng, pattern};
use ferrite_testkit::seed_from_env;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, Ino, NewFile, OpenMode, Position, ROOT_INO, SYSTEM};

/// A file that may append twice, like one whose connection broke.
struct Twice {
    file: FileStore,
    is_due: Arc<AtomicBool>,
}

impl Store for Twice {
    fn size(&self) -> Result<u64> {
        self.file.size()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read(offset, into)
    }

    fn append(&self, data: &[u8]) -> Result<()> {
        if self.is_due.swap(false, Ordering::Relaxed) {
            self.file.append(data)?;
        }
        self.file.append(data)
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<()> {
        self.file.store_word(offset, word)
    }

    fn free(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.file.free(offset, len_bytes)
    }

    fn append_bytes_max(&self) -> u64 {
        self.file.append_bytes_max()
    }

    fn file_bytes_max(&self) -> u64 {
        self.file.file_bytes_max()
    }
}

fn file() -> (Arc<dyn FileSystem>, Ino) {
    let fs: Arc<dyn FileSystem> = Arc::new(MemFs::new());
    let new = NewFile {
        mode: 0o600,
        open: OpenMode::read_write(),
        exclusive: true,
    };
    let ino = fs.create(SYSTEM, ROOT_INO, b"log", &new).unwrap().attr.ino;
    (fs, ino)
}

fn open(fs: &Arc<dyn FileSystem>, ino: Ino, capacity: u64) -> Log<FileStore> {
    let store = FileStore::open(&**fs, SYSTEM, ino, true).unwrap();
    Log::open(store, &LogOptions::default().create(true).capacity(capacity)).unwrap()
}

fn appends<S: Store>(log: &Log<S>) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let walked = log
        .walk_appends(|data| {
            found.push(data.to_vec());
            true
        })
        .unwrap();
    assert_eq!(walked.appends, found.len() as u64);
    found
}

#[test]
fn a_log_is_a_list_of_appends() {
    let first = seed_from_env().unwrap_or(1);
    for seed in first..first + 40 {
        println!("FERRITE_SEED={seed}");
        let (fs, ino) = file();
        let is_due = Arc::new(AtomicBool::new(false));
        let reopened = || {
            let store = Twice {
                file: FileStore::open(&*fs, SYSTEM, ino, true).unwrap(),
                is_due: Arc::clone(&is_due),
            };
            Log::open(store, &LogOptions::default().create(true)).unwrap()
        };
        let mut logs = [reopened(), reopened(), reopened()];
        let raw = fs.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        let mut random = Rng::new(seed);
        let mut model: Vec<Vec<u8>> = Vec::new();
        let mut last: Vec<u8> = Vec::new();
        for number in 0..150 {
            let who = random.below(3) as usize;
            let len = [1, 8, 31, 700, 5_000, 200_000][random.below(6) as usize];
            let data = pattern(number, len);
            match random.below(20) {
                0..9 => {
                    is_due.store(random.chance(20), Ordering::Relaxed);
                    let cut = random.below(len as u64 + 1) as usize;
                    logs[who].appendv(&[&data[..cut], &[], &data[cut..]]).unwrap();
                    is_due.store(false, Ordering::Relaxed);
                    model.push(data);
                }
                9 => logs[who].append(b"").unwrap(),
                10 => logs[who] = reopened(),
                11 if random.chance(30) => {
                    logs[who].rewind().unwrap();
                    model.clear();
                    assert_eq!(logs[who].tell().unwrap(), 0);
                    // The header, and the page where the log continues.
                    let blocks = raw.getattr(SYSTEM).unwrap().blocks;
                    assert!(blocks <= 16, "what was rewound takes {blocks} blocks");
                }
                // The remains of an append after a crash: a part of it, of any length, with zeros or without.
                12 | 13 => {
                    let other = open(&fs, file_of(&fs), 0);
                    other.append(&data).unwrap();
                    let mut torn = vec![0; len + FRAME_BYTES as usize];
                    other.store().read(FIRST_RECORD_AT, &mut torn).unwrap();
                    if random.chance(50) {
                        // Of this log: the frame is right.
                        let end = raw.getattr(SYSTEM).unwrap().size;
                        logs[who].append(&data).unwrap();
                        raw.read_at(SYSTEM, end, &mut torn).unwrap();
                        let set = ferrite_vfs::SetAttr {
                            size: Some(end),
                            ..Default::default()
                        };
                        raw.setattr(SYSTEM, &set).unwrap();
                    }
                    torn.truncate(random.below(torn.len() as u64 - 1) as usize + 1);
                    let zeroed = random.below(torn.len() as u64 + 1) as usize;
                    if random.chance(50) {
                        torn[zeroed..].fill(0);
                    }
                    // Not the whole of it.
                    torn.push(!data.last().unwrap());
                    raw.write(SYSTEM, Position::End.into(), &torn).unwrap();
                }
                // The remains of a reservation by a client that died.
                14 => drop(raw.write(SYSTEM, Position::End.into(), &vec![0; len]).unwrap()),
                // A log in a log.
                15 if !model.is_empty() => {
                    let size = raw.getattr(SYSTEM).unwrap().size;
                    let from = size.saturating_sub(3_000);
                    let mut tail = vec![0; (size - from) as usize];
                    raw.read_at(SYSTEM, from, &mut tail).unwrap();
                    logs[who].append(&tail).unwrap();
                    model.push(tail);
                }
                16 => {
                    assert!(appends(&logs[who]) == model, "walked by appends");
                }
                17 if !model.is_empty() => {
                    let most = random.below(model.len() as u64) + 1;
                    let mut count = 0;
                    let stops = |data: &[u8]| {
                        last = data.to_vec();
                        count += 1;
                        count < most
                    };
                    logs[who].walk_appends(stops).unwrap();
                    assert_eq!((count, &last), (most, &model[most as usize - 1]));
                }
                _ => {
                    let all = model.concat();
                    let chunk = [0, 1_000, 4_096, 70_000, 10_000_000][random.below(5) as usize];
                    let mut chunks: Vec<Vec<u8>> = Vec::new();
                    let walked = logs[who]
                        .walk(chunk, |bytes| {
                            chunks.push(bytes.to_vec());
                            true
                        })
                        .unwrap();
                    assert_eq!((walked.bytes, walked.is_cut_short), (all.len() as u64, false));
                    let wanted: Vec<&[u8]> = match chunk {
                        0 => vec![&all[..]],
                        chunk => all.chunks(chunk).collect(),
                    };
                    assert!(chunks == wanted, "walked by {chunk}");
                }
            }
        }
        for log in &logs {
            assert!(appends(log) == model, "at the end");
        }
    }
}

/// A file for another log.
fn file_of(fs: &Arc<dyn FileSystem>) -> Ino {
    let new = NewFile {
        mode: 0o600,
        open: OpenMode {
            truncate: true,
            ..OpenMode::read_write()
        },
        exclusive: false,
    };
    fs.create(SYSTEM, ROOT_INO, b"other", &new).unwrap().attr.ino
}

#[test]
fn threads_append_at_once_and_each_keeps_its_order() {
    let (fs, ino) = file();
    let shared = open(&fs, ino, 0);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (fs, shared) = (&fs, &shared);
            scope.spawn(move || {
                let own = open(fs, ino, 0);
                for number in 0..200_u32 {
                    let mut data = pattern(thread, 8 + (number % 50) as usize);
                    data[..4].copy_from_slice(&thread.to_le_bytes());
                    data[4..8].copy_from_slice(&number.to_le_bytes());
                    let log = if thread % 2 == 0 { shared } else { &own };
                    log.append(&data).unwrap();
                    // Its own are there at once.
                    if number % 50 == 0 {
                        assert!(appends(log).contains(&data));
                    }
                }
            });
        }
    });
    let found = appends(&shared);
    assert_eq!(found.len(), 800);
    for thread in 0..4_u32 {
        let of_thread = found.iter().filter(|data| data[..4] == thread.to_le_bytes());
        let numbers = of_thread.map(|data| u32::from_le_bytes(data[4..8].try_into().unwrap()));
        assert!(numbers.eq(0..200), "of {thread}");
    }
}

#[test]
fn a_walk_that_is_rewound_meanwhile_ends_and_mixes_nothing() {
    let (fs, ino) = file();
    let (log, other) = (open(&fs, ino, 0), open(&fs, ino, 0));
    // More than one read returns.
    for number in 0..30 {
        log.append(&pattern(number, 100_000)).unwrap();
    }
    let mut found = Vec::new();
    let walked = log
        .walk_appends(|data| {
            if found.len() == 5 {
                other.rewind().unwrap();
                for number in 100..130 {
                    other.append(&pattern(number, 100_000)).unwrap();
                }
            }
            found.push(data.to_vec());
            true
        })
        .unwrap();
    assert!(walked.is_cut_short && (5..30).contains(&found.len()), "{walked:?}");
    assert!(
        found
            .iter()
            .enumerate()
            .all(|(number, data)| *data == pattern(number as u32, 100_000))
    );
    assert!(
        appends(&log)
            .iter()
            .zip(100..)
            .all(|(data, number)| *data == pattern(number, 100_000))
    );
}

#[test]
fn a_log_is_full_when_it_is_and_says_what_is_no_log() {
    let (fs, ino) = file();
    let store = || FileStore::open(&*fs, SYSTEM, ino, true).unwrap();
    assert!(matches!(Log::open(store(), &LogOptions::default()), Err(Error::Empty)));
    let log = open(&fs, ino, 1_000);
    assert_eq!((log.nbyte(), log.tell().unwrap()), (1_000, 0));
    log.append(&[1; 500]).unwrap();
    assert!(matches!(
        log.append(&[2; 437]),
        Err(Error::Full {
            used: 532,
            capacity: 1_000
        })
    ));
    // Another user who has it open notices, and a capacity belongs to the log.
    open(&fs, ino, 0).append(&[2; 436]).unwrap();
    assert_eq!(log.tell().unwrap(), 1_000);
    assert!(matches!(log.append(b"!"), Err(Error::Full { .. })));
    log.rewind().unwrap();
    log.append(b"again").unwrap();
    assert_eq!(appends(&log), [b"again"]);
    let most = log.append_bytes_max() as usize;
    assert!(matches!(log.append(&vec![0; most + 1]), Err(Error::TooLong { .. })));
    // Not in a log without a bound either.
    let other = open(&fs, file_of(&fs), 0);
    other.append(&vec![7; most]).unwrap();
    assert_eq!(appends(&other), [vec![7; most]]);
    // Something else.
    fs.open(SYSTEM, ino, OpenMode::read_write())
        .unwrap()
        .write(SYSTEM, Position::At(0).into(), b"text")
        .unwrap();
    assert!(matches!(
        Log::open(store(), &LogOptions::default()),
        Err(Error::NotALog)
    ));
}
