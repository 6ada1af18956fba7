//! Loops over holes and reservations. Their limits: the same keys added and removed one by one, mappings with few pages
//! far apart, nodes of trees that come and go with one page.

use ferrite_vfs::FallocateMode;

use super::{Loop, NEIGHBOURS};

const PAGE: u64 = 4096;
const KEEP: FallocateMode = FallocateMode::Allocate { keep_size: true };
const GROW: FallocateMode = FallocateMode::Allocate { keep_size: false };
const ZERO: FallocateMode = FallocateMode::ZeroRange { keep_size: true };
const ZERO_AND_GROW: FallocateMode = FallocateMode::ZeroRange { keep_size: false };

pub(super) const LOOPS: &[Loop] = &[
    Loop {
        name: "punch_fill",
        presses: "distance of one key from its home, with nothing else in the record",
        threads: 1,
        weight: 1,
        prepare: |pair| {
            pair.create("holes");
            pair.write("holes", 0, PAGE as usize);
        },
        turn: |pair, _| {
            pair.fallocate("holes", FallocateMode::PunchHole, 0, PAGE);
            pair.write("holes", 0, PAGE as usize);
        },
    },
    Loop {
        name: "punch_fill_many",
        presses: "the same for sixteen keys in turn, ranges that begin and end within a page",
        threads: 1,
        weight: 2,
        prepare: |pair| {
            pair.create("holes");
            pair.write("holes", 0, 16 * PAGE as usize);
        },
        turn: |pair, n| {
            let page = n % 13 * PAGE;
            pair.fallocate("holes", FallocateMode::PunchHole, page + n % 3 * 700, 3 * PAGE);
            pair.write("holes", page + n % 5 * 500, 3 * PAGE as usize);
        },
    },
    Loop {
        name: "sparse_far",
        presses: "keys that were never there, trees of full height for one page, truncates of what is nearly empty",
        threads: 1,
        weight: 4,
        prepare: |pair| pair.create("sparse"),
        turn: |pair, n| {
            // Less than 16 TiB, and a different page each time.
            pair.write("sparse", n * 0x9e37_79b9 % (1 << 31) * PAGE + n % 4000, 100);
            if n % 8 == 7 {
                let len = pair.rng.below(1 << 20);
                pair.truncate("sparse", len);
            }
        },
    },
    Loop {
        name: "truncate_anywhere",
        presses: "truncates of a sparse file, up and down",
        threads: 1,
        weight: 4,
        prepare: |pair| pair.create("sparse"),
        turn: |pair, _| {
            let len = pair.rng.below(256 << 20);
            pair.truncate("sparse", len);
            let at = pair.rng.below(256 << 20);
            pair.write("sparse", at, 100);
        },
    },
    Loop {
        name: "neighbours",
        presses: "one home slot: pages of one file that the engine holds close together, each taken away and put back",
        threads: 1,
        weight: 4,
        prepare: |pair| pair.create(NEIGHBOURS),
        turn: |pair, _| {
            let [away, back] = [pair.rng.below(48), pair.rng.below(48)].map(|n| pair.neighbour(n));
            pair.fallocate(NEIGHBOURS, FallocateMode::PunchHole, away, PAGE);
            pair.write(NEIGHBOURS, back, PAGE as usize);
        },
    },
    Loop {
        name: "reserve_and_release",
        presses: "reserved pages, beyond the end as well",
        threads: 1,
        weight: 2,
        prepare: |pair| pair.create("reserved"),
        turn: |pair, n| match n % 5 {
            0 => pair.fallocate("reserved", KEEP, 0, 9 * PAGE),
            1 => pair.write("reserved", 3000, 5000),
            2 => pair.fallocate("reserved", FallocateMode::PunchHole, PAGE, 2 * PAGE),
            3 => pair.fallocate("reserved", GROW, 4 * PAGE, 7 * PAGE + 11),
            _ => pair.truncate("reserved", 0),
        },
    },
    Loop {
        name: "zero_and_fill",
        presses: "ranges that are zeroed in place and written again, which moves the checkpoint by itself",
        threads: 1,
        weight: 4,
        prepare: |pair| {
            pair.create("zeroed");
            pair.write("zeroed", 0, 8 * PAGE as usize);
        },
        turn: |pair, n| {
            let at = pair.rng.below(5 * PAGE);
            let mode = if n % 3 == 0 { ZERO_AND_GROW } else { ZERO };
            pair.fallocate("zeroed", mode, at, 3 * PAGE + n % 700);
            let at = pair.rng.below(7 * PAGE);
            pair.write("zeroed", at, 2000);
            if n % 16 == 15 {
                pair.truncate("zeroed", 2 * PAGE);
            }
        },
    },
    Loop {
        name: "grow_and_empty",
        presses: "a file of several hundred pages that comes and goes: long records, intents, nodes of trees",
        threads: 1,
        weight: 32,
        prepare: |pair| pair.create("large"),
        turn: |pair, n| {
            pair.write("large", 0, 700 * PAGE as usize);
            pair.truncate("large", n % 2 * 350 * PAGE);
        },
    },
];
