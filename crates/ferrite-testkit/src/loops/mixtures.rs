//! Random mixtures with a favourite: nine of ten turns go to one file, one name, one page. They press the limits of all
//! the other loops, in unforeseen orders.

use ferrite_vfs::{FallocateMode, RenameMode};

use super::{Loop, Pair};

const PAGE: u64 = 4096;

pub(super) const LOOPS: &[Loop] = &[
    Loop {
        name: "favourite_page",
        presses: "one key and its word, by everything that changes them",
        threads: 1,
        weight: 1,
        prepare: |pair| pair.create("favourite"),
        turn: |pair, _| change_page(pair, "favourite"),
    },
    Loop {
        name: "favourite_file",
        presses: "one inode among twenty, by everything that changes files",
        threads: 1,
        weight: 2,
        prepare: |pair| (0..20).for_each(|n| pair.create(&format!("f{n}"))),
        turn: |pair, _| {
            let path = match pair.rng.chance(90) {
                true => "f0".to_owned(),
                false => format!("f{}", pair.rng.below(20)),
            };
            change_file(pair, &path);
        },
    },
    Loop {
        name: "favourite_name",
        presses: "one name slot and the inode numbers behind it, by everything that changes names",
        threads: 1,
        weight: 2,
        prepare: |pair| {
            pair.mkdir("a");
            pair.mkdir("b");
        },
        turn: change_names,
    },
];

/// A change of the first page, sometimes of another.
fn change_page(pair: &mut Pair<'_>, path: &str) {
    let at = if pair.rng.chance(90) {
        0
    } else {
        pair.rng.below(4) * PAGE
    };
    match pair.rng.below(8) {
        0 => pair.fallocate(path, FallocateMode::PunchHole, at, PAGE),
        1 => pair.truncate(path, at),
        2 => pair.fallocate(path, FallocateMode::Allocate { keep_size: true }, at, PAGE),
        3 => {
            let len = 8 + pair.rng.below(600);
            let at = at + pair.rng.below(3000);
            pair.write(path, at, len as usize);
        }
        4 => pair.read(path, at, PAGE as usize),
        _ => pair.write(path, at, PAGE as usize),
    }
}

/// Any change of a file's data or attributes.
fn change_file(pair: &mut Pair<'_>, path: &str) {
    match pair.rng.below(10) {
        0 => {
            let len = *pair.rng.pick(&[10, 2000, 3900]);
            pair.set_xattr(path, "user.x", len);
        }
        1 => pair.remove_xattr(path, "user.x"),
        2 => {
            let len = 1 + pair.rng.below(30_000);
            pair.append(path, len as usize);
        }
        3 => {
            let len = pair.rng.below(60_000);
            pair.truncate(path, len);
        }
        4 => pair.unlink(path),
        _ => change_page(pair, path),
    }
    if !pair.exists(path) {
        pair.create(path);
    }
}

/// Any change of names, most of them in the first directory and of one name.
fn change_names(pair: &mut Pair<'_>, n: u64) {
    fn some(pair: &mut Pair<'_>) -> String {
        let dir = if pair.rng.chance(80) { "a" } else { "b" };
        let name = if pair.rng.chance(80) { 0 } else { pair.rng.below(12) };
        format!("{dir}/{name}")
    }
    let (path, other) = (some(pair), some(pair));
    match (pair.exists(&path), pair.rng.below(6)) {
        (false, 0) => pair.symlink(&path, 20 + (n % 300) as usize),
        (false, 1) => pair.symlink(&path, 2000),
        (false, _) => {
            pair.create(&path);
            pair.write(&path, 0, 100 + (n % 5000) as usize);
        }
        (true, 0) if !pair.exists(&other) => pair.link(&path, &other),
        (true, 1) => {
            pair.rename(&path, &other, RenameMode::Exchange);
        }
        (true, 2) => {
            pair.rename(&path, &other, RenameMode::NoReplace);
        }
        (true, 3) => {
            pair.rename(&path, &other, RenameMode::Replace);
        }
        (true, _) => pair.unlink(&path),
    }
}
