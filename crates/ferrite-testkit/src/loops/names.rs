//! Loops over names, directories, links and attributes. Their limits: name slots, inode numbers, blocks of directories
//! and space within them, blocks of attributes.

use ferrite_vfs::RenameMode;

use super::Loop;

pub(super) const LOOPS: &[Loop] = &[
    Loop {
        name: "one_name",
        presses: "one name slot, one inode number, one place in a directory",
        threads: 1,
        weight: 1,
        prepare: |_| {},
        turn: |pair, _| {
            pair.create("name");
            pair.unlink("name");
        },
    },
    Loop {
        name: "new_names",
        presses: "name slots and places that move on, since no name comes twice",
        threads: 1,
        weight: 2,
        prepare: |pair| pair.mkdir("dir"),
        turn: |pair, n| {
            pair.create(&format!("dir/{n:x}{}", "-".repeat((n % 40) as usize)));
            if n >= 30 {
                let old = n - 30;
                pair.unlink(&format!("dir/{old:x}{}", "-".repeat((old % 40) as usize)));
            }
        },
    },
    Loop {
        name: "mkdir_rmdir",
        presses: "an empty directory and its first block",
        threads: 1,
        weight: 2,
        prepare: |_| {},
        turn: |pair, _| {
            pair.mkdir("dir");
            pair.create("dir/file");
            pair.unlink("dir/file");
            pair.rmdir("dir");
        },
    },
    Loop {
        name: "grow_and_shrink",
        presses: "blocks of a directory, and what remembers where they have space",
        threads: 1,
        weight: 2,
        prepare: |pair| pair.mkdir("dir"),
        turn: |pair, n| {
            // 300 names of 20 to 220 bytes are added, then removed in another order: some ten blocks.
            let (round, step) = (n / 600, n % 600);
            let name = |k: u64| format!("dir/{k:020}{}", "x".repeat(((k * 67 + round) % 200) as usize));
            if step < 300 {
                pair.create(&name(step));
            } else {
                pair.unlink(&name((step - 300) * 7 % 300));
            }
        },
    },
    Loop {
        name: "churn_in_a_directory",
        presses: "space in a large directory that neither grows nor shrinks",
        threads: 1,
        weight: 2,
        prepare: |pair| {
            pair.mkdir("dir");
            for n in 0..200 {
                pair.create(&churned(n, 0));
            }
        },
        turn: |pair, _| {
            let n = pair.rng.below(200);
            for version in 0..4 {
                if pair.exists(&churned(n, version)) {
                    pair.unlink(&churned(n, version));
                    pair.create(&churned(n, (version + 1) % 4));
                    return;
                }
            }
            unreachable!("one of the versions is there");
        },
    },
    Loop {
        name: "hard_links",
        presses: "entries and name slots of one inode, links that replace each other",
        threads: 1,
        weight: 1,
        prepare: |pair| {
            pair.create("file");
            pair.write("file", 0, 5000);
        },
        turn: |pair, n| match n % 4 {
            0 => pair.link("file", "second"),
            1 => pair.link("second", "third"),
            2 => {
                // Two names of one file: nothing happens.
                pair.rename("second", "third", RenameMode::Replace);
                pair.unlink("second");
            }
            _ => pair.unlink("third"),
        },
    },
    Loop {
        name: "symlinks",
        presses: "targets in the inode and in a block of their own",
        threads: 1,
        weight: 1,
        prepare: |_| {},
        turn: |pair, n| {
            pair.symlink(
                "link",
                if n % 2 == 0 {
                    3 + (n % 120) as usize
                } else {
                    200 + (n * 31 % 3800) as usize
                },
            );
            pair.unlink("link");
        },
    },
    Loop {
        name: "renames",
        presses: "one file under two names in turn",
        threads: 1,
        weight: 1,
        prepare: |pair| {
            pair.create("a");
            pair.write("a", 0, 300);
        },
        turn: |pair, n| {
            let names = ["a", "a longer name, which takes another place"];
            pair.rename(
                names[(n % 2) as usize],
                names[(n as usize + 1) % 2],
                RenameMode::NoReplace,
            );
        },
    },
    Loop {
        name: "moves",
        presses: "entries that go to and fro between two directories, files and directories, swapped and refused",
        threads: 1,
        weight: 1,
        prepare: |pair| {
            for dir in ["left", "right", "left/dir", "right/other"] {
                pair.mkdir(dir);
            }
            for file in ["left/file", "left/x", "right/y", "left/dir/inside"] {
                pair.create(file);
                pair.write(file, 0, 500);
            }
        },
        turn: |pair, n| {
            let [from, to] = if n / 5 % 2 == 0 {
                ["left", "right"]
            } else {
                ["right", "left"]
            };
            match n % 5 {
                0 => {
                    pair.rename(&format!("{from}/file"), &format!("{to}/file"), RenameMode::NoReplace);
                }
                1 => {
                    pair.rename(&format!("{from}/dir"), &format!("{to}/dir"), RenameMode::Replace);
                }
                2 => {
                    pair.rename("left/x", "right/y", RenameMode::Exchange);
                }
                3 => {
                    pair.rename("left/x", "right/y", RenameMode::NoReplace);
                }
                _ => {
                    pair.rename(&format!("{to}/dir"), "right/other", RenameMode::Exchange);
                }
            }
        },
    },
    Loop {
        name: "xattrs",
        presses: "blocks of attributes, values that grow and shrink",
        threads: 1,
        weight: 1,
        prepare: |pair| pair.create("file"),
        turn: |pair, n| {
            let len = *pair.rng.pick(&[0, 5, 100, 900, 3000]);
            match n % 8 {
                5 => pair.remove_xattr("file", "user.large"),
                6 => pair.remove_xattr("file", "user.small"),
                7 => pair.set_xattr("file", "user.small", 8),
                _ => pair.set_xattr("file", "user.large", len),
            }
        },
    },
];

/// A name of the churned directory. Its versions differ in length, so that each needs another place.
fn churned(n: u64, version: usize) -> String {
    format!("dir/{n:04}{}", "=".repeat(version * 23))
}
