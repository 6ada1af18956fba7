//! The cost of registration and of a packet's guard. No assertion on times: machines differ. `--ignored` prints.

use std::time::Instant;

use ferrite_measure::Rng;
use ferrite_mr::{Options, Run, compare};
use ferrite_roce::memory::Memory;

use crate::double::{fixture, message, read, write};

/// The lines for docs/filemr.md.
#[test]
#[ignore = "a measurement; run it with --release and --nocapture"]
fn registration_and_guards() {
    let pages = 1 << 20;
    let whole = [vec![Run { page: 0, pages }]];
    let both = compare::registration(&whole).unwrap();
    println!("4 GiB, one run: ranges {:?}, pages {:?}", both.ranges, both.pages);
    let scattered = (0..pages / 256).map(|run| Run {
        page: run * 512,
        pages: 256,
    });
    let scattered = [scattered.collect::<Vec<_>>()];
    let both = compare::registration(&scattered).unwrap();
    println!("4 GiB, runs of 1 MiB: ranges {:?}, pages {:?}", both.ranges, both.pages);
    let random = &mut Rng::new(1);
    let mut page = || (0, random.below(u64::from(pages)) as u32);
    let trace: Vec<_> = (0..1_000_000).map(|_| page()).collect();
    for (name, runs) in [("one run", &whole), ("runs of 1 MiB", &scattered)] {
        let both = compare::replay(runs, &trace).unwrap();
        println!(
            "random pages, {name}: {} and {} hits",
            both.ranges.counters.hit_rate(),
            both.pages.counters.hit_rate()
        );
    }
    let fixture = fixture(1 << 20, Options::default());
    let memory = &mut fixture.registrar.memory();
    write(memory, 1, fixture.key, 0, &[1; 4096]).unwrap();
    read(memory, 1, fixture.key, 0, 1).unwrap();
    // A READ's check is everything that a packet does except the copy and the fence.
    let requested = message(1, fixture.key, 0, 1);
    let rounds = 2_000_000;
    let began = Instant::now();
    for _ in 0..rounds {
        memory.may_read(&requested).unwrap();
    }
    println!("key, guard, translation: {} ns", began.elapsed().as_nanos() / rounds);
}
