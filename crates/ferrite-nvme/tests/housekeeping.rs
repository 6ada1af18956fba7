//! The cost of the housekeeper when it has nothing that it could do. A separate program: it measures threads.

#[path = "faults/pool.rs"]
mod pool;

use std::time::{Duration, Instant};

use ferrite_testkit::rng::pattern;
use pool::{Pool, put, read};

/// Nanoseconds of CPU that housekeepers have taken so far.
fn housekeeping_ns() -> u64 {
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let is_one = std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("ferrite-nvme-ke"));
        if is_one && let Ok(stat) = std::fs::read_to_string(path.join("schedstat")) {
            total += stat.split(' ').next().unwrap().parse::<u64>().unwrap();
        }
    }
    total
}

/// Reading continues after the metadata store has failed. The housekeeper does not retry a failed store all the time.
#[test]
fn housekeeping_rests_when_nothing_can_be_stored() {
    let pool = Pool::new(1, 40, false);
    let fs = pool.open().unwrap();
    for file in 0..600 {
        put(&fs, &format!("f{file}"), 0, &pattern(file, 3000)).unwrap();
    }
    fs.close().unwrap();
    let fs = pool.open().unwrap();
    pool.meta.fail(false);
    put(&fs, "none", 0, b"x").unwrap_err();
    for file in 0..600 {
        assert!(read(&fs, &format!("f{file}")).unwrap() == pattern(file, 3000));
    }
    let (begin, before) = (Instant::now(), housekeeping_ns());
    std::thread::sleep(Duration::from_secs(2));
    let (took, spent) = (begin.elapsed(), housekeeping_ns() - before);
    assert!(spent < took.as_nanos() as u64 / 4, "{spent} ns of CPU in {took:?}");
}
