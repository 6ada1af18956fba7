//! Loops that rewrite the content of a file. Their limits: slots and blocks that wait for the checkpoint while the same
//! key comes back, space of page logs, moving content into and out of the inode.

use ferrite_vfs::RenameMode;

use super::{Loop, Pair};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Length of the output of `seq 400`.
const SEQ_400: usize = 1492;

pub(super) const LOOPS: &[Loop] = &[
    Loop {
        name: "truncate_write",
        presses: "distance of a key from its home: one slot waits for each turn",
        threads: 1,
        weight: 1,
        prepare: |pair| pair.create("state"),
        turn: |pair, _| {
            pair.truncate("state", 0);
            pair.write("state", 0, SEQ_400);
        },
    },
    Loop {
        name: "truncate_write_sizes",
        presses: "the same for several pages at once, and records of all lengths",
        threads: 1,
        weight: 4,
        prepare: |pair| pair.create("state"),
        turn: |pair, _| {
            pair.truncate("state", 0);
            let len = 1 + pair.rng.below(60_000);
            pair.write("state", 0, len as usize);
        },
    },
    Loop {
        name: "in_and_out_of_the_inode",
        presses: "content moves between inode and block",
        threads: 1,
        weight: 1,
        prepare: |pair| pair.create("state"),
        turn: |pair, n| {
            pair.truncate("state", 0);
            pair.write("state", 0, 100);
            if n % 2 == 0 {
                pair.append("state", 100);
            }
        },
    },
    Loop {
        name: "truncate_within_a_page",
        presses: "truncates of what lies in the inode or in one page, none of which gives a block back",
        threads: 1,
        weight: 2,
        prepare: |pair| pair.create("state"),
        turn: |pair, n| {
            pair.truncate("state", n * 37 % 300);
            pair.write("state", n * 53 % 250, 40);
        },
    },
    Loop {
        name: "unlink_create",
        presses: "one key again and again, since the inode number comes back at once; name slots",
        threads: 1,
        weight: 2,
        prepare: |pair| pair.create("state"),
        turn: |pair, _| {
            pair.unlink("state");
            pair.create("state");
            pair.write("state", 0, 5000);
        },
    },
    Loop {
        name: "rename_over",
        presses: "two inodes take turns; entries and name slots of two names",
        threads: 1,
        weight: 2,
        prepare: |pair| pair.create("state"),
        turn: |pair, _| {
            pair.create("state.new");
            pair.write("state.new", 0, SEQ_400);
            pair.rename("state.new", "state", RenameMode::Replace);
        },
    },
    Loop {
        name: "append_truncate",
        presses: "space of page logs, the tail of a file, truncates to shorter",
        threads: 1,
        weight: 1,
        prepare: |pair| pair.create("log"),
        turn: |pair, _| {
            pair.append("log", 700);
            if pair.len("log") > 20_000 {
                let len = pair.rng.below(20_000);
                pair.truncate("log", len);
            }
        },
    },
    Loop {
        name: "append_and_start_anew",
        presses: "a file that grows by whole pages and goes at once, as logs that rotate",
        threads: 1,
        weight: 2,
        prepare: |pair| pair.create("log"),
        turn: |pair, n| {
            pair.append("log", 4096 + (n % 3) as usize * 4096);
            if n % 40 == 39 {
                pair.rename("log", "log.1", RenameMode::Replace);
                pair.create("log");
            }
        },
    },
    Loop {
        name: "one_page_over",
        presses: "blocks that wait for the checkpoint",
        threads: 1,
        weight: 1,
        prepare: |pair| {
            pair.create("page");
            pair.write("page", 0, PAGE as usize);
        },
        turn: |pair, _| pair.write("page", 0, PAGE as usize),
    },
    Loop {
        name: "pages_over",
        presses: "blocks that wait for the checkpoint, pages that swing between their home and elsewhere",
        threads: 1,
        weight: 2,
        prepare: |pair| {
            pair.create("pages");
            pair.write("pages", 0, 16 * PAGE as usize);
        },
        turn: |pair, _| {
            let (first, count) = (pair.rng.below(12), 1 + pair.rng.below(4));
            pair.write("pages", first * PAGE, (count * PAGE) as usize);
        },
    },
    Loop {
        name: "parts",
        presses: "log entries and segments of a few pages, and the merges that end them",
        threads: 1,
        weight: 1,
        prepare: |pair| {
            pair.create("parts");
            pair.write("parts", 0, 8 * PAGE as usize);
        },
        turn: |pair, _| {
            let len = part_len(pair);
            let at = pair.rng.below(8 * PAGE - len);
            pair.write("parts", at, len as usize);
        },
    },
    Loop {
        name: "parts_of_one_page",
        presses: "the longest log that a page may have",
        threads: 1,
        weight: 1,
        prepare: |pair| {
            pair.create("page");
            pair.write("page", 0, PAGE as usize);
        },
        turn: |pair, _| {
            let len = 8 + pair.rng.below(56);
            let at = pair.rng.below(PAGE - len);
            pair.write("page", at, len as usize);
        },
    },
    Loop {
        name: "parts_and_pages",
        presses: "logs that a whole page drops, with the word of one page",
        threads: 1,
        weight: 1,
        prepare: |pair| {
            pair.create("page");
            pair.write("page", 0, 2 * PAGE as usize);
        },
        turn: |pair, n| match n % 4 {
            3 => pair.write("page", n / 4 % 2 * PAGE, PAGE as usize),
            _ => {
                let len = part_len(pair);
                let at = pair.rng.below(2 * PAGE - len);
                pair.write("page", at, len as usize);
            }
        },
    },
    Loop {
        name: "parts_and_reads",
        presses: "merges by reads",
        threads: 1,
        weight: 2,
        prepare: |pair| {
            pair.create("page");
            pair.write("page", 0, 4 * PAGE as usize);
        },
        turn: |pair, n| {
            let len = part_len(pair);
            let at = pair.rng.below(4 * PAGE - len);
            pair.write("page", at, len as usize);
            if n % 6 == 5 {
                pair.read("page", 0, 4 * PAGE as usize);
            }
        },
    },
    Loop {
        name: "without_a_name",
        presses: "inodes that live by their handle alone",
        threads: 1,
        weight: 2,
        prepare: |_| {},
        turn: |pair, _| {
            pair.create("gone");
            let file = pair.open("gone");
            pair.write_open(&file, 0, 6000);
            pair.unlink("gone");
            pair.write_open(&file, 3000, 6000);
        },
    },
];

/// 8 to 3000 bytes, short ones more often.
fn part_len(pair: &mut Pair<'_>) -> u64 {
    let most = *pair.rng.pick(&[64, 500, 3000]);
    8 + pair.rng.below(most - 7)
}
