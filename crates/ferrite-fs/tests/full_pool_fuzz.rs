//! Random operations on pools with 0 to 64 free blocks, by a user who may only change their own files: operations that
//! free space, or take none, always succeed, and the pool stays writable.
//!
//! After each step the pool is filled until a random number of blocks is free. Removing names and attributes,
//! truncating files and punching holes, and writing over pages that are mapped, whole or in part, must never fail; all
//! else may, for lack of space only. Content is compared, fsck runs at the end, and when all is removed all space is
//! back. `FERRITE_SEED` replays a run; `FERRITE_SOAK=1` makes long ones.

use std::sync::Arc;

use crate::common::{fixed, image_of, make};
use ferrite_fs::{Engine, Mapping, MountOptions, fsck, mkfs};
use ferrite_pm::{Recorder, Region};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::{seed_from_env, two_at_a_time};
use ferrite_vfs::{
    FallocateMode, FileKind, FileSystem, FsError, Ino, NewNode, OpenFile, OpenMode, ROOT_INO, RenameMode, Result,
    SYSTEM, SetAttr, XattrMode,
};

const PAGE: u64 = 4096;
const POOL_BYTES: u64 = 14 << 20;
const FILES: usize = 24;
/// Files that are short enough to have no page.
const SHORT_FILES: u64 = 400;
/// Longest file, in pages.
const FILE_PAGES: u64 = 400;
/// Most pages of one overwrite, punch or reservation.
const SPAN_PAGES: u64 = 24;
/// Pages that the filler frees now and then.
const WAY_PAGES: u64 = 600;

struct File {
    ino: Ino,
    handle: Arc<dyn OpenFile>,
    content: Vec<u8>,
    /// Pages that are certainly mapped.
    mapped: Vec<bool>,
    has_xattr: bool,
}

impl File {
    fn set_size(&mut self, size: u64) {
        self.content.resize(size as usize, 0);
        self.mapped.resize(size.div_ceil(PAGE) as usize, false);
    }

    /// Notes a write that succeeded.
    fn store(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let was_mapped = self.mapped.iter().any(|&mapped| mapped);
        if end > self.content.len() as u64 {
            self.set_size(end);
        }
        self.content[offset as usize..end as usize].copy_from_slice(data);
        // A short file may lie in its inode.
        if was_mapped || end > PAGE {
            let pages = (offset / PAGE) as usize..end.div_ceil(PAGE) as usize;
            self.mapped[pages].fill(true);
        }
    }

    fn zero(&mut self, offset: u64, end: u64) {
        let end = end.min(self.content.len() as u64);
        if offset < end {
            self.content[offset as usize..end as usize].fill(0);
        }
    }

    fn mapped_run(&self, rng: &mut Rng) -> Option<(u64, u64)> {
        let pages: Vec<usize> = (0..self.mapped.len()).filter(|&page| self.mapped[page]).collect();
        if pages.is_empty() {
            return None;
        }
        let first = *rng.pick(&pages);
        let most = 1 + rng.below(SPAN_PAGES) as usize;
        let len = self.mapped[first..]
            .iter()
            .take(most)
            .take_while(|&&mapped| mapped)
            .count();
        Some((first as u64, len as u64))
    }
}

struct Run {
    engine: Engine,
    rng: Rng,
    what: String,
    files: Vec<Option<File>>,
    dirs: Vec<(Ino, u64)>,
    filler: Arc<dyn OpenFile>,
    filled: u64,
    names: u64,
    /// Short files that were made longer.
    grown: u64,
    refused: u64,
}

impl Run {
    fn new(engine: Engine, rng: Rng, what: String) -> Run {
        let filler = make(&engine, ROOT_INO, "filler");
        let filler = engine.open(SYSTEM, filler, OpenMode::read_write()).unwrap();
        for n in 0..SHORT_FILES {
            make(&engine, ROOT_INO, &format!("short{n}"));
        }
        Run {
            engine,
            rng,
            what,
            files: (0..FILES).map(|_| None).collect(),
            dirs: Vec::new(),
            filler,
            filled: 0,
            names: 0,
            grown: 0,
            refused: 0,
        }
    }

    fn must(&self, doing: &str, result: Result<()>) {
        let failed = self.engine.failed();
        assert!(failed.is_none(), "{}: {doing}: the pool stopped: {failed:?}", self.what);
        if let Err(error) = result {
            let free = self.engine.statfs(SYSTEM).unwrap();
            panic!("{}: {doing}: {error}, {} blocks free", self.what, free.blocks_free);
        }
    }

    /// True if it succeeded.
    fn may(&mut self, doing: &str, result: Result<()>) -> bool {
        match result {
            Err(FsError::NoSpace(_)) => {
                self.must(doing, Ok(()));
                self.refused += 1;
                false
            }
            other => {
                self.must(doing, other);
                true
            }
        }
    }

    /// Leaves this many blocks for ordinary use, or fewer.
    fn fill(&mut self) {
        let wanted = self.rng.below(65);
        loop {
            let free = self.engine.statfs(SYSTEM).unwrap().blocks_available;
            if free <= wanted {
                return;
            }
            let count = (free - wanted).min(64);
            let data = vec![self.filled as u8; (count * PAGE) as usize];
            match self.filler.write_at(SYSTEM, self.filled * PAGE, &data) {
                Ok(len) => self.filled += len as u64 / PAGE,
                Err(FsError::NoSpace(_))
                    if count > 1
                        && self
                            .filler
                            .write_at(SYSTEM, self.filled * PAGE, &data[..PAGE as usize])
                            .is_ok() =>
                {
                    self.filled += 1;
                }
                Err(FsError::NoSpace(_)) => return,
                Err(error) => panic!("{}: filling: {error}", self.what),
            }
        }
    }

    fn data(&mut self, len: u64) -> Vec<u8> {
        let byte = self.rng.below(255) as u8 + 1;
        (0..len).map(|at| byte ^ (at >> 5) as u8 | 1).collect()
    }

    /// A name that is not taken, of any length: directories shall grow.
    fn new_name(&mut self) -> String {
        self.names += 1;
        let width = if self.rng.chance(50) { 200 } else { 1 };
        format!("{:0width$}", self.names)
    }

    fn step(&mut self) {
        let at = self.rng.below(FILES as u64) as usize;
        match self.files[at].take() {
            None => self.create(at),
            Some(file) => {
                let kept = self.change(at, file);
                self.files[at] = kept;
            }
        }
        if self.rng.chance(20) {
            self.change_names();
        }
        if self.rng.chance(4) {
            self.make_way();
        }
        if self.rng.chance(3) {
            self.grow_short_files();
        }
    }

    /// Frees space for files of many pages; the rest is filled again.
    fn make_way(&mut self) {
        self.filled = self.filled.saturating_sub(WAY_PAGES);
        let set = SetAttr {
            size: Some(self.filled * PAGE),
            ..SetAttr::default()
        };
        self.must(
            "shrink the filler",
            self.engine.setattr(SYSTEM, self.filler.ino(), &set).map(|_| ()),
        );
        for at in 0..FILES {
            if self.files[at].is_none() {
                self.create(at);
            }
            let offset = self.rng.below(FILE_PAGES - 2 * SPAN_PAGES) * PAGE;
            let len = (1 + self.rng.below(2 * SPAN_PAGES)) * PAGE;
            let data = self.data(len);
            let Some(mut file) = self.files[at].take() else {
                continue;
            };
            let written = file.handle.write_at(SYSTEM, offset, &data).map(|_| ());
            if self.may("write many pages", written) {
                file.store(offset, &data);
            }
            self.files[at] = Some(file);
        }
    }

    /// Takes a page for each short file, for as long as there are any; there are more of them than blocks in the
    /// reserve. It recreates those of the last time first: a file that had a page is no longer short.
    fn grow_short_files(&mut self) {
        for n in 0..std::mem::take(&mut self.grown) {
            let name = format!("short{n}");
            self.must("unlink", self.engine.unlink(SYSTEM, ROOT_INO, name.as_bytes()));
            // Its name and inode are free, so only a directory's block can be missing: that of the name was kept or
            // freed just now.
            self.must("create", self.make_short(&name));
        }
        while self.grown < SHORT_FILES {
            let name = format!("short{}", self.grown);
            let ino = self.engine.lookup(SYSTEM, ROOT_INO, name.as_bytes()).unwrap().ino;
            let file = self.engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
            self.must("write to an inode", file.write_at(SYSTEM, 0, b"short").map(|_| ()));
            let set = SetAttr {
                size: Some(3 * PAGE),
                ..SetAttr::default()
            };
            let grown = self.engine.setattr(SYSTEM, ino, &set).map(|_| ());
            if !self.may("grow a short file", grown) {
                return;
            }
            self.grown += 1;
        }
    }

    fn make_short(&self, name: &str) -> Result<()> {
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        self.engine.mknod(SYSTEM, ROOT_INO, name.as_bytes(), &node).map(|_| ())
    }

    fn name_of(at: usize) -> String {
        format!("file{at}")
    }

    fn create(&mut self, at: usize) {
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        let made = self.engine.mknod(SYSTEM, ROOT_INO, Self::name_of(at).as_bytes(), &node);
        if let Ok(attr) = &made {
            let handle = self.engine.open(SYSTEM, attr.ino, OpenMode::read_write()).unwrap();
            self.files[at] = Some(File {
                ino: attr.ino,
                handle,
                content: Vec::new(),
                mapped: Vec::new(),
                has_xattr: false,
            });
        }
        self.may("create", made.map(|_| ()));
    }

    fn change(&mut self, at: usize, mut file: File) -> Option<File> {
        let size = file.content.len() as u64;
        match self.rng.below(16) {
            0..=3 => {
                if let Some((first, len)) = file.mapped_run(&mut self.rng) {
                    let data = self.data(len * PAGE);
                    self.must(
                        "overwrite",
                        file.handle.write_at(SYSTEM, first * PAGE, &data).map(|_| ()),
                    );
                    file.store(first * PAGE, &data);
                }
            }
            4..=6 => {
                if let Some((page, _)) = file.mapped_run(&mut self.rng) {
                    let within = self.rng.below(PAGE);
                    let most = if self.rng.chance(70) { 200 } else { PAGE };
                    let len = 1 + self.rng.below(most.min(PAGE - within));
                    let data = self.data(len);
                    let offset = page * PAGE + within;
                    self.must(
                        "part of a page",
                        file.handle.write_at(SYSTEM, offset, &data).map(|_| ()),
                    );
                    file.store(offset, &data);
                }
            }
            7 => {
                let offset = self.rng.below(FILE_PAGES * PAGE);
                let data = self.data_of_any_length();
                let written = file
                    .handle
                    .write_at(SYSTEM, offset, &data)
                    .map(|len| assert_eq!(len, data.len()));
                if self.may("write", written) {
                    file.store(offset, &data);
                }
            }
            8 => {
                let data = self.data_of_any_length();
                if size + (data.len() as u64) < FILE_PAGES * PAGE {
                    let appended = file.handle.append(SYSTEM, &data).map(|_| ());
                    if self.may("append", appended) {
                        file.store(size, &data);
                    }
                }
            }
            9 => {
                let size = self.rng.below(size + 1);
                self.must("shrink", self.set_size(&file, size));
                file.set_size(size);
            }
            10 => {
                let bigger = size + self.rng.below(5 * PAGE);
                let result = self.set_size(&file, bigger);
                if self.may("grow", result) {
                    file.set_size(bigger);
                }
            }
            11 => {
                let (offset, end) = self.stretch();
                let punched = file
                    .handle
                    .fallocate(SYSTEM, FallocateMode::PunchHole, offset, end - offset);
                self.must("punch", punched);
                file.zero(offset, end);
                let pages = (offset.div_ceil(PAGE) as usize).min(file.mapped.len())
                    ..((end / PAGE) as usize).min(file.mapped.len());
                if pages.start < pages.end {
                    file.mapped[pages].fill(false);
                }
            }
            12 => {
                let (offset, end) = self.stretch();
                let mode = FallocateMode::ZeroRange { keep_size: true };
                let result = file.handle.fallocate(SYSTEM, mode, offset, end - offset);
                if self.may("zero", result) {
                    file.zero(offset, end);
                }
            }
            13 => {
                let (offset, end) = self.stretch();
                let mode = FallocateMode::Allocate { keep_size: false };
                let result = file.handle.fallocate(SYSTEM, mode, offset, end - offset);
                if self.may("reserve", result) {
                    if end > size {
                        file.set_size(end);
                    }
                    if end > PAGE {
                        let pages = (offset / PAGE) as usize..end.div_ceil(PAGE) as usize;
                        file.mapped[pages].fill(true);
                    }
                }
            }
            14 => {
                let value = self.data(1 + 20 * 8);
                if file.has_xattr && self.rng.chance(50) {
                    self.must("removexattr", self.engine.removexattr(SYSTEM, file.ino, b"user.a"));
                    file.has_xattr = false;
                } else {
                    let had = file.has_xattr;
                    let set = self
                        .engine
                        .setxattr(SYSTEM, file.ino, b"user.a", &value, XattrMode::Any);
                    if had {
                        self.must("setxattr over another", set);
                    } else {
                        file.has_xattr = self.may("setxattr", set);
                    }
                }
            }
            _ => {
                if self.rng.chance(30) {
                    if self.rng.chance(50) {
                        drop(file);
                        self.must(
                            "unlink",
                            self.engine.unlink(SYSTEM, ROOT_INO, Self::name_of(at).as_bytes()),
                        );
                    } else {
                        self.must(
                            "unlink",
                            self.engine.unlink(SYSTEM, ROOT_INO, Self::name_of(at).as_bytes()),
                        );
                        drop(file);
                    }
                    return None;
                }
            }
        }
        if self.rng.chance(20) {
            self.compare(&file);
        }
        Some(file)
    }

    fn data_of_any_length(&mut self) -> Vec<u8> {
        let most = *self.rng.pick(&[100, 300, PAGE, 4 * PAGE]);
        let len = 1 + self.rng.below(most);
        self.data(len)
    }

    fn stretch(&mut self) -> (u64, u64) {
        let offset = self.rng.below(FILE_PAGES * PAGE);
        let len = 1 + self.rng.below(SPAN_PAGES * PAGE);
        match self.rng.chance(50) {
            true => (offset / PAGE * PAGE, (offset / PAGE + len.div_ceil(PAGE)) * PAGE),
            false => (offset, offset + len),
        }
    }

    fn set_size(&self, file: &File, size: u64) -> Result<()> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.engine.setattr(SYSTEM, file.ino, &set).map(|_| ())
    }

    /// Names in directories of their own, which are made and removed as well.
    fn change_names(&mut self) {
        if self.dirs.len() < 4 {
            let name = format!("dir{}", self.names);
            self.names += 1;
            if let Ok(attr) = self.engine.mkdir(SYSTEM, ROOT_INO, name.as_bytes(), 0o755) {
                self.dirs.push((attr.ino, self.names - 1));
            }
        }
        if self.dirs.is_empty() {
            return;
        }
        let which = self.rng.below(self.dirs.len() as u64) as usize;
        let (dir, number) = self.dirs[which];
        let mut there = Vec::new();
        let listed = self.engine.readdir(SYSTEM, dir, 0, &mut |entry| {
            there.push((entry.name.to_vec(), entry.ino));
            true
        });
        self.must("readdir", listed);
        match self.rng.below(8) {
            0..=2 => {
                for _ in 0..self.rng.below(12) {
                    let name = self.new_name();
                    let target = if self.rng.chance(20) {
                        "t".repeat(300)
                    } else {
                        "t".into()
                    };
                    let made = self.engine.symlink(SYSTEM, dir, name.as_bytes(), target.as_bytes());
                    if !self.may("symlink", made.map(|_| ())) {
                        break;
                    }
                }
            }
            3 => {
                for (name, _) in there.iter().step_by(2) {
                    self.must("unlink", self.engine.unlink(SYSTEM, dir, name));
                }
            }
            4 => {
                for (name, _) in &there {
                    self.must("unlink", self.engine.unlink(SYSTEM, dir, name));
                }
                if self.rng.chance(50) {
                    let name = format!("dir{number}");
                    self.must("rmdir", self.engine.rmdir(SYSTEM, ROOT_INO, name.as_bytes()));
                    self.dirs.swap_remove(which);
                }
            }
            5 => {
                let (to, _) = *self.rng.pick(&self.dirs);
                for (name, _) in there.iter().take(10) {
                    let other = self.new_name();
                    let moved = self
                        .engine
                        .rename(SYSTEM, dir, name, to, other.as_bytes(), RenameMode::NoReplace);
                    self.may("rename", moved);
                }
            }
            6 => {
                for pair in there.chunks(2) {
                    if let [(from, _), (over, _)] = pair {
                        let replaced = self.engine.rename(SYSTEM, dir, from, dir, over, RenameMode::Replace);
                        self.must("rename over another", replaced);
                    }
                }
            }
            _ => {
                if let Some((_, ino)) = there.first() {
                    let name = self.new_name();
                    let linked = self.engine.link(SYSTEM, *ino, dir, name.as_bytes());
                    self.may("link", linked.map(|_| ()));
                }
            }
        }
    }

    fn compare(&self, file: &File) {
        let mut there = vec![0xee; file.content.len() + 1];
        let len = file.handle.read_at(SYSTEM, 0, &mut there).unwrap();
        assert_eq!(len, file.content.len(), "{}: size of {}", self.what, file.ino);
        let differs = (0..len).find(|&at| there[at] != file.content[at]);
        assert_eq!(differs, None, "{}: content of {}", self.what, file.ino);
    }

    fn remove_all(&mut self) {
        for (at, file) in std::mem::take(&mut self.files).into_iter().enumerate() {
            if let Some(file) = file {
                self.compare(&file);
                self.must(
                    "unlink",
                    self.engine.unlink(SYSTEM, ROOT_INO, Self::name_of(at).as_bytes()),
                );
            }
        }
        for (dir, number) in std::mem::take(&mut self.dirs) {
            let mut there = Vec::new();
            self.engine
                .readdir(SYSTEM, dir, 0, &mut |entry| {
                    there.push(entry.name.to_vec());
                    true
                })
                .unwrap();
            for name in there {
                self.must("unlink", self.engine.unlink(SYSTEM, dir, &name));
            }
            self.must(
                "rmdir",
                self.engine.rmdir(SYSTEM, ROOT_INO, format!("dir{number}").as_bytes()),
            );
        }
        for n in 0..SHORT_FILES {
            self.must(
                "unlink",
                self.engine.unlink(SYSTEM, ROOT_INO, format!("short{n}").as_bytes()),
            );
        }
        self.must("unlink", self.engine.unlink(SYSTEM, ROOT_INO, b"filler"));
    }
}

fn fuzz(mapping: Mapping, seed: u64, steps: u64) {
    let data_checksum = seed % 2 == 1;
    let what = format!("{mapping:?}, data checksums {data_checksum}, {steps} steps, FERRITE_SEED={seed}");
    let blank = Region::anonymous(POOL_BYTES).unwrap();
    let options = fixed().mapping(mapping).data_checksum(data_checksum).inodes(1000);
    mkfs(&blank, &options).unwrap();
    let image = image_of(&blank);
    let recorder = Recorder::new(image.clone());
    let mut region = Region::from_image(&image).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let mut rng = Rng::new(seed);
    let options = MountOptions::default()
        .cleaner(false)
        .merge_read_entries(rng.below(5) as u32);
    let engine = Engine::mount(region, &options).unwrap();
    let empty = engine.statfs(SYSTEM).unwrap();
    let mut run = Run::new(engine.clone(), rng, what.clone());
    run.make_way();
    for _ in 0..steps {
        run.fill();
        run.step();
    }
    assert!(run.refused > 0, "{what}: the pool was never full");
    check_image(&recorder, &what);
    run.remove_all();
    drop(run);
    let left = engine.statfs(SYSTEM).unwrap();
    assert_eq!(left.blocks_free, empty.blocks_free, "{what}: blocks did not come back");
    assert_eq!(left.inodes_free, empty.inodes_free, "{what}: inodes did not come back");
    engine.unmount().unwrap();
    check_image(&recorder, &what);
}

fn check_image(recorder: &Recorder, what: &str) {
    let image = recorder.log().final_image();
    let report = fsck(Region::from_image(&image).unwrap(), &mut |_, _, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
}

#[test]
fn a_full_pool_goes_on() {
    let soak = std::env::var_os("FERRITE_SOAK").is_some();
    let (seeds, steps) = if soak { (150, 1500) } else { (3, 250) };
    // Some that are always tried, and one of the moment.
    let moment = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seeds = match seed_from_env() {
        Some(seed) => vec![seed],
        None if soak => (0..seeds).map(|round| moment + round).collect(),
        None => (1..seeds).chain([moment]).collect(),
    };
    let runs: Vec<(u64, Mapping)> = seeds
        .iter()
        .flat_map(|&seed| Mapping::ALL.iter().map(move |&mapping| (seed, mapping)))
        .collect();
    two_at_a_time(&runs, |&(seed, mapping)| fuzz(mapping, seed, steps));
}
