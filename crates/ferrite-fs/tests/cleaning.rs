//! The cleaner keeps up: small overwrites of a pool that is 90 % full continue for ever, and leave little behind.
//!
//! `FERRITE_SOAK=1` runs ten minutes (or `FERRITE_SOAK_SECONDS`) and compares latencies, which means something in a
//! release build only.

use std::time::{Duration, Instant};

use crate::common;
use crate::common::make;
use ferrite_fs::{Engine, MountOptions, mkfs};
use ferrite_pm::Region;
use ferrite_vfs::{FileSystem, OpenMode, ROOT_INO, SYSTEM};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

const FILL_PERCENT: u64 = 90;
const CHUNK: usize = 64 << 10;

/// 99.9th percentile over median.
fn tail(mut latencies_ns: Vec<u32>) -> f64 {
    latencies_ns.sort_unstable();
    let at = |share: f64| f64::from(latencies_ns[(latencies_ns.len() as f64 * share) as usize]);
    println!(
        "median {} ns, p99 {}, p99.9 {}, worst {}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.999_999)
    );
    at(0.999) / at(0.5)
}

/// Times `work` for `span`; keeps one of every `keep` latencies.
fn time(span: Duration, keep: u64, mut work: impl FnMut(u64)) -> Vec<u32> {
    let (start, mut latencies, mut n) = (Instant::now(), Vec::new(), 0);
    while start.elapsed() < span {
        for _ in 0..1000 {
            let before = Instant::now();
            work(n);
            if n % keep == 0 {
                latencies.push(before.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
            }
            n += 1;
        }
    }
    latencies
}

#[test]
fn small_overwrites_of_a_nearly_full_pool_never_end() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let (pool_bytes, span) = if soak {
        let seconds = std::env::var("FERRITE_SOAK_SECONDS").map_or(600, |text| text.parse().unwrap());
        (1 << 30, Duration::from_secs(seconds))
    } else {
        (128 << 20, Duration::from_secs(5))
    };
    let seed = std::env::var("FERRITE_SEED").map_or_else(|_| rand::rng().next_u64(), |seed| seed.parse().unwrap());
    eprintln!("FERRITE_SEED={seed}");
    let region = Region::anonymous(pool_bytes).unwrap();
    mkfs(&region, &common::options()).unwrap();
    let engine = Engine::mount(region, &MountOptions::default()).unwrap();
    let file = engine
        .open(SYSTEM, make(&engine, ROOT_INO, "file"), OpenMode::read_write())
        .unwrap();
    let mut end = 0;
    loop {
        let stat = engine.statfs(SYSTEM).unwrap();
        if (stat.blocks - stat.blocks_free) * 100 >= stat.blocks * FILL_PERCENT {
            break;
        }
        file.write_at(SYSTEM, end, &[1; CHUNK]).unwrap();
        end += CHUNK as u64;
    }
    let floor = Region::anonymous(pool_bytes).unwrap();
    floor.stream_zero(0, pool_bytes);
    let mut rng = StdRng::seed_from_u64(seed);
    let keep = if soak { 16 } else { 1 };
    let floor_tail = tail(time(span.min(Duration::from_secs(20)), keep, |_| {
        floor.stream(rng.random_range(0..pool_bytes / 64) * 64, &[1; 64]);
        floor.fence().unwrap();
    }));
    let our_tail = tail(time(span, keep, |n| {
        let len = rng.random_range(1..=64);
        let offset = rng.random_range(0..end - len as u64);
        file.write_at(SYSTEM, offset, &[n as u8; 64][..len])
            .unwrap_or_else(|error| panic!("overwrite {n}: {error}"));
    }));
    println!(
        "p99.9 over median: {our_tail:.1}, floor {floor_tail:.1}; {:?}",
        engine.info().merges
    );
    if soak && !cfg!(debug_assertions) {
        assert!(
            our_tail <= 5.0 * floor_tail,
            "p99.9 over median {our_tail:.1}, of the floor {floor_tail:.1}"
        );
    }
    // Now the cleaner idles.
    let deadline = Instant::now() + Duration::from_secs(60);
    while engine.info().space_amplification >= 1.3 {
        assert!(Instant::now() < deadline, "the cleaner left {:?}", engine.info());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(engine.info().merges.idle + engine.info().merges.low_space > 0);
}
