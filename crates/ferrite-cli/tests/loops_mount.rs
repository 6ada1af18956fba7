//! Long, dumb loops of system calls on a real mount: programs do the work of ferrite-testkit's in-process loops. Each
//! runs on the mount and in a directory of tmpfs; both must have equal contents in the end, also after the daemon was
//! killed, or ended cleanly, and fsck must find nothing.
//!
//! 1,500 turns, because the journal's checkpoint moves after some 1,100 rewrites on a pool of 1 GiB. `FERRITE_LOOP`
//! runs a single loop.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::time::Instant;

use crate::common;
use crate::common::{PAGE, TestPool, has_fuse, ok, sh, soak};
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags, fallocate, renameat_with};

/// A loop on a mount.
struct Loop {
    name: &'static str,
    work: Work,
}

enum Work {
    /// One turn with its number, in this directory, by this process.
    Calls(fn(&Path, u64) -> std::io::Result<()>),
    /// All turns by a shell; `$TURNS` is how many.
    Shell(&'static str),
}

/// Mapped writes, which the kernel sends page by page, and syncs.
const MAPPED: &str = "python3 - <<'END'
import mmap, os
turns = int(os.environ['TURNS'])
open('mapped', 'wb').write(bytes(50000))
with open('mapped', 'r+b') as f:
    m = mmap.mmap(f.fileno(), 50000)
    for n in range(turns):
        at = n * 7919 % 49900
        m[at:at + 90] = bytes([n % 251 + 1]) * 90
        page = at // 4096 * 4096
        m.flush(page, min(8192, 50000 - page))
        if n % 100 == 99:
            m.flush()
    m.close()
END";

const LOOPS: &[Loop] = &[
    Loop {
        name: "shell_rewrite",
        work: Work::Shell("for i in $(seq $TURNS); do seq 400 > state; done"),
    },
    Loop {
        name: "truncate_write",
        work: Work::Calls(|dir, n| fs::write(dir.join("state"), text(n, 1492))),
    },
    Loop {
        name: "rename_over",
        work: Work::Calls(|dir, n| {
            fs::write(dir.join("state.new"), text(n, 1492))?;
            fs::rename(dir.join("state.new"), dir.join("state"))
        }),
    },
    Loop {
        name: "unlink_create",
        work: Work::Calls(|dir, n| {
            let state = dir.join("state");
            if n > 0 {
                fs::remove_file(&state)?;
            }
            fs::write(state, text(n, 5000))
        }),
    },
    Loop {
        name: "append_and_truncate_by_others",
        // One process has the file open and appends; others truncate it and append to it.
        work: Work::Shell(
            "exec 3>>log; for i in $(seq $TURNS); do echo line $i >&3; \
             if ((i % 50 == 0)); then truncate -s $((i * 7 % 300)) log; bash -c 'echo other >> log'; fi; done",
        ),
    },
    Loop {
        name: "append_truncate",
        work: Work::Calls(|dir, n| {
            let mut file = OpenOptions::new().append(true).create(true).open(dir.join("log"))?;
            file.write_all(&text(n, 700))?;
            match n % 30 {
                29 => file.set_len(n * 31 % 20_000),
                _ => Ok(()),
            }
        }),
    },
    Loop {
        name: "parts",
        work: Work::Calls(|dir, n| {
            let file = writable(dir, "parts")?;
            file.write_all_at(&text(n, 8 + n as usize * 37 % 2990), n * 7919 % 30_000)
        }),
    },
    Loop {
        name: "punch_fill",
        work: Work::Calls(|dir, n| {
            let file = writable(dir, "holes")?;
            let page = n % 3 * PAGE as u64;
            file.write_all_at(&text(n, PAGE), page)?;
            fallocate(
                &file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                page,
                PAGE as u64,
            )?;
            file.write_all_at(&text(n, 3000), page)
        }),
    },
    Loop {
        name: "sparse_far",
        work: Work::Calls(|dir, n| {
            let file = writable(dir, "sparse")?;
            file.write_all_at(&text(n, 100), n * 0x9e37_79b9 % (1 << 18) * PAGE as u64)?;
            match n % 20 {
                19 => file.set_len(1 << 20),
                _ => Ok(()),
            }
        }),
    },
    Loop {
        name: "mapped",
        work: Work::Shell(MAPPED),
    },
    Loop {
        name: "directories",
        work: Work::Calls(|dir, n| {
            let sub = dir.join(format!("sub{}", n % 40));
            if n % 80 < 40 {
                fs::create_dir(&sub)?;
                File::create(sub.join("x".repeat(1 + n as usize % 200))).map(drop)
            } else {
                fs::remove_dir_all(sub)
            }
        }),
    },
    Loop {
        name: "links",
        work: Work::Calls(|dir, n| {
            if n == 0 {
                fs::write(dir.join("file"), text(n, 5000))?;
            }
            fs::hard_link(dir.join("file"), dir.join("hard"))?;
            symlink("t".repeat(1 + n as usize * 31 % 3000), dir.join("soft"))?;
            fs::remove_file(dir.join("hard"))?;
            fs::remove_file(dir.join("soft"))
        }),
    },
    Loop {
        name: "moves",
        work: Work::Calls(|dir, n| {
            let [left, right] = ["left", "right"].map(|name| dir.join(name));
            if n == 0 {
                fs::create_dir(&left)?;
                fs::create_dir(&right)?;
                fs::create_dir(left.join("dir"))?;
                fs::write(left.join("file"), text(n, 3000))?;
                fs::write(right.join("other"), text(n + 1, 100))?;
            }
            let [from, to] = if n % 2 == 0 { [&left, &right] } else { [&right, &left] };
            fs::rename(from.join("dir"), to.join("dir"))?;
            let (old, new) = (from.join("file"), to.join("file"));
            renameat_with(rustix::fs::CWD, old, rustix::fs::CWD, new, RenameFlags::NOREPLACE)?;
            let [a, b] = [to.join("file"), right.join("other")];
            Ok(renameat_with(
                rustix::fs::CWD,
                a,
                rustix::fs::CWD,
                b,
                RenameFlags::EXCHANGE,
            )?)
        }),
    },
    Loop {
        name: "xattrs",
        work: Work::Calls(|dir, n| {
            let path = dir.join("file");
            if n == 0 {
                File::create(&path)?;
            }
            rustix::fs::setxattr(
                &path,
                "user.large",
                &text(n, n as usize * 31 % 3000),
                XattrFlags::empty(),
            )?;
            match n % 3 {
                0 => Ok(rustix::fs::removexattr(&path, "user.large")?),
                _ => Ok(()),
            }
        }),
    },
];

/// `len` bytes that only turn `n` writes.
fn text(n: u64, len: usize) -> Vec<u8> {
    format!("turn {n};")
        .into_bytes()
        .into_iter()
        .cycle()
        .take(len)
        .collect()
}

fn writable(dir: &Path, name: &str) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join(name))
}

impl Loop {
    fn run(&self, dir: &Path, turns: u64) {
        match self.work {
            Work::Calls(turn) => (0..turns).for_each(|n| {
                turn(dir, n).unwrap_or_else(|error| panic!("{}, turn {n} in {}: {error}", self.name, dir.display()));
            }),
            Work::Shell(script) => drop(sh(dir, &format!("export TURNS={turns}\n{script}"))),
        }
    }
}

/// The file at a path.
#[derive(PartialEq, Eq)]
struct Node {
    kind: u32,
    /// 0 for a directory: file systems report its links differently.
    links: u64,
    /// Or a link's target.
    content: Vec<u8>,
    attribute: Option<Vec<u8>>,
}

/// The files below a directory, by path.
fn tree(dir: &Path) -> BTreeMap<String, Node> {
    let mut found = BTreeMap::new();
    let mut pending = vec![dir.to_path_buf()];
    while let Some(below) = pending.pop() {
        for entry in fs::read_dir(&below).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = if metadata.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if metadata.is_file() {
                fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            } else {
                pending.push(path.clone());
                Vec::new()
            };
            let mut value = vec![0; 4096];
            let attribute = rustix::fs::lgetxattr(&path, "user.large", &mut value[..]).ok();
            let attribute = attribute.map(|len| value[..len].to_vec());
            let links = if metadata.is_dir() { 0 } else { metadata.nlink() };
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            let kind = metadata.mode() & 0o170_000;
            found.insert(
                name,
                Node {
                    kind,
                    links,
                    content,
                    attribute,
                },
            );
        }
    }
    found
}

fn compare(ours: &Path, theirs: &Path, what: &str) {
    let [ours, theirs] = [ours, theirs].map(tree);
    let names: Vec<_> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        let lengths = [&ours, &theirs].map(|tree| tree.get(name).map(|node| node.content.len()));
        assert!(
            ours.get(name) == theirs.get(name),
            "{what}: {name} differs; lengths {lengths:?}"
        );
    }
}

#[test]
fn long_loops_on_a_mount() {
    if !has_fuse() {
        return;
    }
    let only = std::env::var("FERRITE_LOOP").ok();
    let test = TestPool::new("1G", &[]);
    let twin = test.scratch();
    let (turns, rounds) = if soak() { (6_000, 4) } else { (1_500, 1) };
    let started = Instant::now();
    for round in 0..rounds {
        for (number, of) in LOOPS.iter().enumerate() {
            if only.as_deref().is_some_and(|only| only != of.name) {
                continue;
            }
            let what = format!("FERRITE_LOOP={} (round {round})", of.name);
            let name = format!("{}-{round}", of.name);
            let [ours, theirs] = [test.path(&name), twin.join(&name)];
            for dir in [&ours, &theirs] {
                fs::create_dir(dir).unwrap();
                of.run(dir, turns);
            }
            compare(&ours, &theirs, &what);
            let scrubbed = ok(common::ferrite().arg("scrub").arg(&test.dir));
            assert!(scrubbed.contains("sound"), "{what}: {scrubbed}");
            // One half ends by a crash, the other cleanly.
            if (number + round) % 2 == 0 {
                test.kill();
            } else {
                test.umount();
            }
            test.fsck();
            test.mount(&[]);
            compare(&ours, &theirs, &what);
            println!("{what}: {} s", started.elapsed().as_secs());
        }
    }
    compare(&test.dir, &twin, "all of it");
    test.remount();
    compare(&test.dir, &twin, "all of it, mounted again");
    test.finish();
}
