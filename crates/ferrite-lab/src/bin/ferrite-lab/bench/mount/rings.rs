//! A mount on rings compared with the same mount in the classic way, and with tmpfs.
//!
//! Neither client nor daemon is pinned: rings exist so that the daemon answers a request on the CPU that sent it. Both
//! mounts exist at the same time, and take turns.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use ferrite_measure::{median, turns_per_second};
use ferrite_pm::Counters;
use rustix::fs::{Advice, fadvise};

use super::super::threads::SLICE;
use super::super::{Circumstances, Duel, Effort, Output, Row, Work, page, whole};
use super::{Aligned, Daemon, FILE_BYTES, make_file, make_pool, open, open_direct};
use crate::{FAILED, Failure};

/// Names of the rows, beyond those that the group always measures.
pub(super) const NAMES: [&str; 7] = [
    "write_4k_4_threads",
    "write_4k_4_threads_1_file",
    "find",
    "write_1m",
    "read_1m",
    "write_1m_direct_io",
    "read_1m_direct_io",
];
const CLASSIC: &str = "classic";
const TMPFS: &str = "tmpfs";
const THREADS: usize = 4;
/// The tree that `find` searches.
const DIRS: usize = 20;
const FILES: usize = 100;
const CHUNK: usize = 1 << 20;
/// A file of a thread's own.
const OWN_BYTES: u64 = FILE_BYTES / THREADS as u64;

fn circumstances(cache: &'static str, threads: usize) -> Circumstances {
    Circumstances {
        page_bytes: 4096,
        fill_percent: 30,
        cache,
        threads: threads as u32,
        placement: "any".into(),
    }
}

/// Runs this part of the group.
pub(super) fn run(effort: Effort, out: &mut Output, base: &Path) -> Result<(), Failure> {
    if let Err((why, mend)) = ferrite_fuse::rings_offered() {
        crate::complain(format_args!("ferrite: mount group, rings left out: {why}; {mend}"));
        return Ok(());
    }
    let us = crate::ferrite()?;
    let start = |name: &str, option: &str| {
        let (pool, dir) = (base.join(format!("{name}-pool")), base.join(name));
        make_pool(&pool)?;
        let (pool, text) = (pool.display().to_string(), dir.display().to_string());
        let arguments = ["mount", "-f", "-o", option, &pool, &text];
        Daemon::start(None, &us, &arguments, dir)
    };
    let rings = start("rings", "noatime,rings=on")?;
    let classic = start("classic", "noatime,rings=off")?;
    let direct = start("direct", "noatime,rings=on,direct_io")?;
    let tmpfs = base.join("tmpfs");
    std::fs::create_dir_all(&tmpfs)?;
    let dirs: [&Path; 2] = [&rings.dir, &classic.dir];
    let files = [open(dirs[0])?, open(dirs[1])?];
    small(effort, out, dirs, [&files[0], &files[1]])?;
    let own = |n: usize, thread: usize| dirs[n].join(format!("data{thread}"));
    threads(effort, out, NAMES[0], |n, thread| make_file(&own(n, thread), OWN_BYTES))?;
    for thread in 0..THREADS {
        // Absent if the row is not wanted.
        let _ = (
            std::fs::remove_file(own(0, thread)),
            std::fs::remove_file(own(1, thread)),
        );
    }
    threads(effort, out, NAMES[1], |n, _| Ok(files[n].try_clone()?))?;
    find(effort, out, dirs)?;
    let tmpfs = open(&tmpfs)?;
    let classic = (CLASSIC, &files[1]);
    large(
        effort,
        out,
        [NAMES[3], NAMES[4]],
        &files[0],
        &[classic, (TMPFS, &tmpfs)],
    )?;
    let direct = open(&direct.dir)?;
    large(effort, out, [NAMES[5], NAMES[6]], &direct, &[(TMPFS, &tmpfs)])
}

fn duel(
    effort: Effort,
    (name, against): (&'static str, &'static str),
    slower: usize,
    ours: Work<'_>,
    theirs: Work<'_>,
    out: &mut Output,
) -> Result<(), Failure> {
    Duel {
        group: "mount",
        name,
        against,
        rounds: effort.rounds,
        operations: ((effort.operations / 10).max(400) / slower).max(1),
        circumstances: circumstances("kernel's, bypassed by O_DIRECT reads", 1),
        counters: &Counters::default,
        amplification: None,
    }
    .run(ours, theirs, out)
}

fn small(effort: Effort, out: &mut Output, dirs: [&Path; 2], files: [&File; 2]) -> Result<(), Failure> {
    let block = [9; 4096];
    let write = |file: &File, n: u64| Ok(file.write_all_at(&block, page(n, FILE_BYTES))?);
    let (mut ours, mut theirs) = (|n| write(files[0], n), |n| write(files[1], n));
    duel(effort, ("write_4k", CLASSIC), 1, &mut ours, &mut theirs, out)?;
    let direct = [open_direct(dirs[0])?, open_direct(dirs[1])?];
    let mut blocks = [Aligned([0; 4096]), Aligned([0; 4096])];
    let [one, other] = &mut blocks;
    let mut ours = |n| whole(direct[0].read_at(&mut one.0, page(n, FILE_BYTES))?, 4096);
    let mut theirs = |n| whole(direct[1].read_at(&mut other.0, page(n, FILE_BYTES))?, 4096);
    duel(effort, ("read_4k", CLASSIC), 1, &mut ours, &mut theirs, out)?;
    let absent = |dir: &Path, n: u64| {
        let _ = std::fs::symlink_metadata(dir.join(format!("absent{n}")));
        Ok(())
    };
    let (mut ours, mut theirs) = (|n| absent(dirs[0], n), |n| absent(dirs[1], n));
    duel(effort, ("lookup_absent", CLASSIC), 2, &mut ours, &mut theirs, out)?;
    // As mdtest does: a directory, files in it, and all of it gone again.
    let create = |dir: &Path, n: u64| {
        let dir = dir.join(format!("tree{n}"));
        std::fs::create_dir(&dir)?;
        for file in 0..20 {
            File::create(dir.join(format!("{file}")))?;
        }
        Ok(std::fs::remove_dir_all(&dir)?)
    };
    let (mut ours, mut theirs) = (|n| create(dirs[0], n), |n| create(dirs[1], n));
    duel(effort, ("create", CLASSIC), 40, &mut ours, &mut theirs, out)
}

/// Writers at the same time, each through what `open` returns for the mount with that number. Writers of one file take
/// turns in the kernel, on either kind of mount.
fn threads(
    effort: Effort,
    out: &mut Output,
    name: &'static str,
    open: impl Fn(usize, usize) -> Result<File, Failure>,
) -> Result<(), Failure> {
    if !out.wants(name) {
        return Ok(());
    }
    let block = [7; 4096];
    let files = |n| {
        (0..THREADS)
            .map(|thread| open(n, thread))
            .collect::<Result<Vec<_>, _>>()
    };
    let (ours, theirs) = (files(0)?, files(1)?);
    let rate = |files: &[File]| {
        turns_per_second(THREADS, SLICE, |thread| {
            let (file, mut next) = (&files[thread], (thread as u64) << 40..);
            move || {
                let at = page(next.next().unwrap_or_default(), OWN_BYTES);
                Ok::<(), Failure>(file.write_all_at(&block, at)?)
            }
        })
    };
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..effort.rounds {
        let (our, their) = (1e9 / rate(&ours)?, 1e9 / rate(&theirs)?);
        for (times, time) in times.iter_mut().zip([our, their, our / their]) {
            times.push(time);
        }
    }
    let [ours, theirs, ratios] = &times;
    out.row(&row(name, [ours, theirs, ratios], circumstances("kernel's", THREADS)))
}

fn row(name: &'static str, [ours, theirs, ratios]: [&[f64]; 3], circumstances: Circumstances) -> Row {
    Row {
        group: "mount",
        name,
        against: CLASSIC,
        ratio: median(ratios),
        median_ns: median(ours),
        against_median_ns: median(theirs),
        fences: 0.0,
        lines_written_back: 0.0,
        bytes_streamed: 0.0,
        medium_bytes_per_byte: None,
        contents: None,
        circumstances,
    }
}

/// Each name and its attributes, which the kernel does not know yet.
fn find(effort: Effort, out: &mut Output, dirs: [&Path; 2]) -> Result<(), Failure> {
    const NAME: &str = NAMES[2];
    if !out.wants(NAME) {
        return Ok(());
    }
    for dir in dirs {
        for number in 0..DIRS {
            let dir = dir.join(format!("find{number}"));
            std::fs::create_dir(&dir)?;
            (0..FILES).try_for_each(|file| File::create(dir.join(format!("{file}"))).map(drop))?;
        }
    }
    let look = |dir: &Path| {
        let (start, mut seen) = (Instant::now(), 0);
        for number in 0..DIRS {
            for entry in std::fs::read_dir(dir.join(format!("find{number}")))? {
                seen += usize::from(entry?.metadata()?.ino() != 0);
            }
        }
        whole(seen, DIRS * FILES)?;
        Ok::<f64, Failure>(start.elapsed().as_nanos() as f64 / seen as f64)
    };
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        std::fs::write("/proc/sys/vm/drop_caches", "2")
            .map_err(|error| Failure::new(FAILED, format!("/proc/sys/vm/drop_caches: {error}")))?;
        let times = (look(dirs[0])?, look(dirs[1])?);
        ours.push(times.0);
        theirs.push(times.1);
        ratios.push(times.0 / times.1);
    }
    out.row(&row(
        NAME,
        [&ours, &theirs, &ratios],
        circumstances("no names, no attributes", 1),
    ))
}

fn large(
    effort: Effort,
    out: &mut Output,
    [written, read_in_order]: [&'static str; 2],
    file: &File,
    rivals: &[(&'static str, &File)],
) -> Result<(), Failure> {
    let chunk = vec![3; CHUNK];
    let at = |n: u64| n % (FILE_BYTES / CHUNK as u64) * CHUNK as u64;
    let write = |file: &File, n: u64| Ok(file.write_all_at(&chunk, at(n))?);
    for (against, their) in rivals {
        let (mut ours, mut theirs) = (|n| write(file, n), |n| write(their, n));
        duel(effort, (written, against), 20, &mut ours, &mut theirs, out)?;
    }
    // From the daemon, in order, with the kernel's read-ahead; tmpfs has no other source to read from.
    let read = |file: &File, n: u64, into: &mut [u8]| {
        if at(n) == 0 {
            fadvise(file, 0, None, Advice::DontNeed)?;
        }
        whole(file.read_at(into, at(n))?, CHUNK)
    };
    let (mut one, mut other) = (vec![0; CHUNK], vec![0; CHUNK]);
    for (against, their) in rivals {
        let mut ours = |n| read(file, n, &mut one);
        let mut theirs = |n| read(their, n, &mut other);
        duel(effort, (read_in_order, against), 20, &mut ours, &mut theirs, out)?;
    }
    Ok(())
}
