//! The guarantees of a region on the media every machine has: tmpfs, an ordinary file, anonymous memory.
//!
//! Only the public API is used. Each test says what it protects. Files lie in a directory of their own that is removed
//! at the end, also after a failure. The tests on tmpfs need `/dev/shm`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use ferrite_pm::{Access, Durability, LINE_BYTES, Medium, PmError, Region};

const MIB: u64 = 1 << 20;
/// Tells a copy of this test program which pool to open.
const POOL_VARIABLE: &str = "FERRITE_PM_TEST_POOL";

struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path, name: &str) -> Scratch {
        let path = parent.join(format!("ferrite-pm-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a scratch directory");
        Scratch(path)
    }

    fn on_tmpfs(name: &str) -> Scratch {
        Scratch::new(Path::new("/dev/shm"), name)
    }

    /// Beside the build, which is no tmpfs on most machines; tests that need an ordinary file check the medium.
    fn on_disk(name: &str) -> Scratch {
        Scratch::new(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 + 7) as u8).collect()
}

/// The medium decides what a fence must do, so its detection must be right, and a pool's content must outlive the
/// region.
#[test]
fn media_are_told_apart_and_keep_their_content() {
    let (tmpfs, disk) = (Scratch::on_tmpfs("media"), Scratch::on_disk("media"));
    assert_eq!(Region::anonymous(MIB).unwrap().medium(), Medium::Anonymous);
    for (scratch, on_tmpfs) in [(&tmpfs, true), (&disk, false)] {
        let region = Region::create(&scratch.pool(), 4 * MIB).unwrap();
        assert_eq!(region.len(), 4 * MIB);
        if on_tmpfs {
            assert_eq!(region.medium(), Medium::NamedDram);
        }
        region.store(4096, 77);
        region.write_back(4096, 8);
        region.stream(8192, &bytes(5000));
        region.fence().unwrap();
        drop(region);
        let region = Region::open(&scratch.pool(), Access::ReadWrite).unwrap();
        let mut found = vec![0; 5000];
        region.read(8192, &mut found);
        assert_eq!((region.load(4096), found), (77, bytes(5000)));
    }
}

/// A stream of any alignment stores its bytes and not one more: its ends take another path than its middle.
#[test]
fn streams_of_any_alignment_store_exactly_their_bytes() {
    let region = Region::anonymous(MIB).unwrap();
    for offset in [0, 1, 7, 8, 63, 64, 65] {
        for len in [0, 1, 7, 8, 63, 64, 65, 127, 128, 4096, 4099] {
            let mut expected = vec![0xAA; 8192];
            region.stream(0, &expected);
            let data = bytes(len);
            region.stream(offset, &data);
            expected[offset as usize..][..len].copy_from_slice(&data);
            let mut found = vec![0; 8192];
            region.read(0, &mut found);
            assert_eq!(found, expected, "{len} bytes at {offset}");
            region.stream_zero(offset, len as u64);
            expected[offset as usize..][..len].fill(0);
            region.read(0, &mut found);
            assert_eq!(found, expected, "{len} zeros at {offset}");
        }
    }
}

/// Two writers on one pool would destroy it. `flock` is per open file, so one process can hit itself, too.
#[test]
fn a_second_opener_in_this_process_is_refused() {
    let scratch = Scratch::on_tmpfs("lock");
    let region = Region::create(&scratch.pool(), MIB).unwrap();
    for access in [Access::ReadWrite, Access::ReadOnlyPrivate] {
        let error = Region::open(&scratch.pool(), access).err().expect("the pool is in use");
        assert!(matches!(error, PmError::InUse { .. }), "{error}");
    }
    drop(region);
    let reader = Region::open(&scratch.pool(), Access::ReadOnlyPrivate).unwrap();
    let second = Region::open(&scratch.pool(), Access::ReadOnlyPrivate).expect("readers share");
    drop((reader, second));
    Region::open(&scratch.pool(), Access::ReadWrite).expect("dropping a region frees its pool");
}

/// Not a separate test: the copy of this program that the next test starts runs it.
#[test]
fn child_that_tries_to_open() {
    let Some(pool) = std::env::var_os(POOL_VARIABLE) else {
        return;
    };
    match Region::open(Path::new(&pool), Access::ReadWrite) {
        Ok(_) => println!("opened"),
        Err(error) => println!("refused: {error}"),
    }
}

/// As above, from another process; the refusal must name the process to stop.
#[test]
fn a_second_process_is_refused_and_told_who_holds_the_pool() {
    let scratch = Scratch::on_tmpfs("lock-process");
    let region = Region::create(&scratch.pool(), MIB).unwrap();
    let attempt = || {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_tries_to_open", "--nocapture"])
            .env(POOL_VARIABLE, scratch.pool())
            .output()
            .unwrap();
        String::from_utf8_lossy(&child.stdout).into_owned()
    };
    let refused = attempt();
    let holder = format!("process {}", std::process::id());
    assert!(refused.contains("refused") && refused.contains(&holder), "{refused}");
    drop(region);
    let opened = attempt();
    assert!(opened.contains("opened"), "{opened}");
}

/// A file cut short under a live mapping must cost the pool, never the process.
#[test]
fn a_truncated_file_poisons_the_region_and_no_other() {
    for scratch in [Scratch::on_tmpfs("truncated"), Scratch::on_disk("truncated")] {
        let region = Region::create(&scratch.pool(), MIB).unwrap();
        let other = Region::create(&scratch.0.join("other"), MIB).unwrap();
        assert!(region.check().is_ok() && region.poisoned().is_none());
        fs::OpenOptions::new()
            .write(true)
            .open(scratch.pool())
            .unwrap()
            .set_len(4096)
            .unwrap();
        assert_eq!(region.load(64 * 1024), 0, "the lost page reads as zeros");
        assert!(matches!(region.check(), Err(PmError::Poisoned(_))));
        assert!(region.poisoned().is_some());
        assert!(other.check().is_ok());
    }
}

/// Recovery of a read-only mount stores into its mapping; nothing of that may reach the file.
#[test]
fn stores_to_a_private_region_stay_out_of_the_file() {
    for scratch in [Scratch::on_tmpfs("private"), Scratch::on_disk("private")] {
        fs::write(scratch.pool(), bytes(MIB as usize)).unwrap();
        let region = Region::open(&scratch.pool(), Access::ReadOnlyPrivate).unwrap();
        region.store(0, 1);
        region.stream(4096, &[0; 4096]);
        region.fence().unwrap();
        assert_eq!(region.load(0), 1);
        drop(region);
        assert_eq!(fs::read(scratch.pool()).unwrap(), bytes(MIB as usize));
    }
}

/// The lab compares structures by these counts, so they must be exact, also with more threads than own shards.
#[test]
fn counters_are_exact_over_many_threads() {
    const THREADS: u64 = 100;
    const ROUNDS: u64 = 200;
    let region = Region::anonymous(MIB).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let region = &region;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    region.store(thread * 4096, 1);
                    region.write_back(thread * 4096 + LINE_BYTES - 8, 16);
                    region.stream(thread * 4096 + 1024, &[1; 128]);
                    region.fence().unwrap();
                }
            });
        }
    });
    let all = THREADS * ROUNDS;
    let counted = region.counters();
    assert_eq!(
        counted.lines_written_back,
        2 * all,
        "a range across a line boundary is two lines"
    );
    assert_eq!(counted.bytes_streamed, 128 * all);
    assert_eq!(counted.fences, all);
}

/// Threads that fence on an ordinary file share syncs; none may hang or miss its data, in either mode.
#[test]
fn fences_of_many_threads_on_a_file() {
    for durability in [Durability::Strict, Durability::Process] {
        let scratch = Scratch::on_disk("fences");
        let mut region = Region::create(&scratch.pool(), MIB).unwrap();
        region.set_durability(durability).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let region = &region;
                scope.spawn(move || {
                    for round in 1..=10 {
                        region.store(thread * 4096, round);
                        region.fence().unwrap();
                    }
                });
            }
        });
        drop(region);
        let content = fs::read(scratch.pool()).unwrap();
        for thread in 0..4 {
            assert_eq!(content[thread * 4096..][..8], 10u64.to_le_bytes());
        }
    }
}

/// Prints what a durable 4 KiB page costs here; no time is asserted, since the machine may be busy.
#[test]
fn print_the_cost_of_a_streamed_page() {
    const ROUNDS: u64 = 20_000;
    let region = Region::anonymous(64 * MIB).unwrap();
    region.stream_zero(0, 64 * MIB);
    let page = bytes(4096);
    let start = Instant::now();
    for round in 0..ROUNDS {
        region.stream(round * 7919 % (64 * MIB / 4096) * 4096, &page);
        region.fence().unwrap();
    }
    println!(
        "4 KiB stream and fence: {} ns",
        start.elapsed().as_nanos() / u128::from(ROUNDS)
    );
}

/// An evicted range keeps its content, and a range that ends inside a line takes the whole line with it.
#[test]
fn eviction_changes_no_content() {
    let region = Region::anonymous(MIB).unwrap();
    for offset in (0..MIB).step_by(8) {
        region.store(offset, offset ^ 0x5a);
    }
    region.evict(8, MIB - 16);
    region.evict(0, 0);
    for offset in (0..MIB).step_by(8) {
        assert_eq!(region.load(offset), offset ^ 0x5a);
    }
}

/// Regions on disk files come and go in some threads while others get memory of their own: none of them ever sees
/// another's.
#[test]
fn regions_of_files_take_no_place_that_is_somebody_elses() {
    let dir = Scratch::on_disk("places");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let path = dir.0.join(format!("pool{thread}"));
            scope.spawn(move || {
                for round in 0..500 {
                    let region = Region::create(&path, 1 << 20).unwrap();
                    let mark = thread << 32 | round;
                    for offset in (0..1 << 20).step_by(4096) {
                        region.store(offset, mark + offset);
                    }
                    let memory = Region::anonymous(1 << 20).unwrap();
                    memory.store(0, mark);
                    std::thread::yield_now();
                    for offset in (0..1 << 20).step_by(4096) {
                        assert_eq!(region.load(offset), mark + offset);
                    }
                    assert_eq!(memory.load(0), mark);
                }
            });
        }
    });
}

/// The lock ends with the region, also while a child that another thread has forked still has the pool's open file:
/// otherwise the pool would be reported as in use until the child reaches its exec.
#[test]
fn a_dropped_region_gives_its_lock_up_whoever_shares_its_file() {
    let scratch = Scratch::on_tmpfs("given-up");
    let pool = scratch.0.join("pool");
    let region = Region::create(&pool, MIB).unwrap();
    // Opening the target of the link in /proc would make a new open file; a child inherits the old one.
    let number = fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap())
        .find(|entry| fs::metadata(entry.path()).is_ok_and(|file| file.ino() == fs::metadata(&pool).unwrap().ino()))
        .map(|entry| entry.file_name().into_string().unwrap().parse().unwrap())
        .expect("the region has its file open");
    // SAFETY: the region has it open until after the copy.
    let shared = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) }
        .try_clone_to_owned()
        .unwrap();
    assert!(matches!(
        Region::open(&pool, Access::ReadWrite),
        Err(PmError::InUse { .. })
    ));
    drop(region);
    Region::open(&pool, Access::ReadWrite).expect("nobody has the pool");
    drop(shared);
}

/// A device that is not there is no reason to make a file: it would lie in DRAM, among the devices.
#[test]
fn a_device_that_is_not_there_becomes_no_file() {
    let scratch = Scratch::on_tmpfs("no-device");
    let link = scratch.0.join("link");
    let names = ["/dev/dax77.7", "/dev/../dev/dax77.7"].map(PathBuf::from);
    std::os::unix::fs::symlink("/dev/dax77.7", &link).unwrap();
    for path in names.iter().chain([&link]) {
        let error = Region::create(path, 4 * MIB).err().expect("no such device").to_string();
        assert!(error.contains("no such device"), "{error}");
        assert!(!Path::new("/dev/dax77.7").exists());
    }
    assert!(link.is_symlink());
}

/// Streams are in the file at once, stores only when they are let out; the view has both.
#[test]
fn deferred_stores_reach_the_file_when_they_are_written_back() {
    let scratch = Scratch::on_disk("deferred");
    let mut region = Region::create(&scratch.pool(), MIB).unwrap();
    region.store(8192, 1);
    region.set_durability(Durability::OnSync).unwrap();
    assert!(region.defers_write_back());
    let in_file = |offset: usize| fs::read(scratch.pool()).unwrap()[offset..][..8].to_vec();
    let word = |value: u64| value.to_ne_bytes().to_vec();

    region.store(4096, 2);
    region.stream(4096 + 64, &[3; 64]);
    region.stream(20480 - 32, &[4; 64]);
    region.fence().unwrap();
    assert_eq!((region.load(4096), region.load(8192)), (2, 1));
    assert_eq!(
        region.load(4096 + 64),
        u64::from_ne_bytes([3; 8]),
        "in a page that was stored to"
    );
    assert_eq!(
        region.load(20480),
        u64::from_ne_bytes([4; 8]),
        "and in one that was not"
    );
    assert_eq!(in_file(4096), word(0), "its write-back is deferred");
    assert_eq!((in_file(4096 + 64), in_file(20480 - 32)), (vec![3; 8], vec![4; 8]));

    region.store(20480, 5);
    region.store(4096, 6);
    region.let_out(4096, &[2]);
    region.write_back(20480, 8);
    region.sync().unwrap();
    assert_eq!((in_file(4096), in_file(20480)), (word(2), word(5)));
    assert_eq!(region.load(4096), 6, "what was stored since stays where it is");
    assert_eq!(in_file(20480 + 8), vec![4; 8]);
    assert!(
        Region::open(&scratch.pool(), Access::ReadWrite).is_err(),
        "it still has the lock"
    );
}

/// Streams and stores of several threads to the same pages: the view misses none.
#[test]
fn a_deferred_view_has_what_was_streamed_while_its_pages_were_copied() {
    for round in 0..40u64 {
        let scratch = Scratch::on_disk("deferred-race");
        let mut region = Region::create(&scratch.pool(), MIB).unwrap();
        region.set_durability(Durability::OnSync).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let region = &region;
                scope.spawn(move || {
                    for page in 0..200 {
                        let at = page * 4096 + thread * 64;
                        match (thread + round) % 2 {
                            0 => region.stream(at, &[thread as u8 + 1; 64]),
                            _ => region.store_words(at, &[u64::from_ne_bytes([thread as u8 + 1; 8]); 8]),
                        }
                    }
                });
            }
        });
        for at in (0..200).flat_map(|page| (0..4).map(move |thread| page * 4096 + thread * 64)) {
            let expected = u64::from_ne_bytes([(at % 4096 / 64) as u8 + 1; 8]);
            assert_eq!((region.load(at), region.load(at + 56)), (expected, expected), "{at}");
        }
    }
}
