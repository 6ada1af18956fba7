//! The cost of a packet's guard. No assertion on times: machines differ. `--ignored` prints.

use std::time::Instant;

use ferrite_mr::Options;
use ferrite_roce::memory::Memory;

use crate::double::{fixture, message, read, write};

#[test]
#[ignore = "a measurement; run it with --release and --nocapture"]
fn guards() {
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
