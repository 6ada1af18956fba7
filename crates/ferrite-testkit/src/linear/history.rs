//! Small random histories of three threads, searched for an order that explains them (Wing and Gong, 1993).
//!
//! Invariants: an operation of a history is exactly one call of the contract, so that it takes effect at one point in
//! time; the model is small enough to be cloned at every step of the search. Content is compared in grains of [`GRAIN`]
//! bytes (not a divisor of a page), each filled with one byte value, so that a torn grain shows at once.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ferrite_vfs::{FileKind, FileSystem, Ino, NewNode, OpenFile, OpenMode, ROOT_INO, RenameMode, SYSTEM, SetAttr};

use super::together;
use crate::rng::Rng;

/// Bytes that one byte of the model stands for.
const GRAIN: usize = 1000;
const NAMES: [&[u8]; 3] = [b"x", b"y", b"z"];
const ROUNDS: u64 = 400;

/// One call. Files 0 and 1 exist from the start, open and named `x` and `y`; names index [`NAMES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Call {
    Mknod(usize),
    Mkdir(usize),
    Unlink(usize),
    Rmdir(usize),
    Lookup(usize),
    Rename(usize, usize, RenameKind),
    Link {
        file: usize,
        name: usize,
    },
    Write {
        file: usize,
        at: usize,
        grains: usize,
        byte: u8,
    },
    Append {
        file: usize,
        grains: usize,
        byte: u8,
    },
    Read {
        file: usize,
        at: usize,
        grains: usize,
    },
    Truncate {
        file: usize,
        grains: usize,
    },
    Getattr {
        file: usize,
    },
    DirLinks,
}

/// [`RenameMode`], hashable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum RenameKind {
    Replace,
    NoReplace,
    Exchange,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Answer {
    Done,
    Refused(i32),
    /// Whether it is a directory, link count, size in grains.
    Attr(bool, u32, usize),
    Links(u32),
    At(usize),
    Grains(Vec<u8>),
}

/// A call, its answer, and the ticks of a global counter between which it ran.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Event {
    pub thread: usize,
    pub call: Call,
    pub answer: Answer,
    pub invoked: u64,
    pub returned: u64,
}

/// The sequential specification.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Model {
    names: BTreeMap<usize, usize>,
    /// Content in grains, or None for a directory; link count.
    nodes: Vec<(Option<Vec<u8>>, u32)>,
}

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;

impl Model {
    /// Two files of two grains each, named `x` and `y`.
    pub fn new() -> Self {
        Model {
            names: BTreeMap::from([(0, 0), (1, 1)]),
            nodes: vec![(Some(vec![1; 2]), 1), (Some(vec![2; 2]), 1)],
        }
    }

    fn attr(&self, node: usize) -> Answer {
        let (content, links) = &self.nodes[node];
        Answer::Attr(content.is_none(), *links, content.as_ref().map_or(0, Vec::len))
    }

    fn drop_name(&mut self, name: usize) {
        if let Some(node) = self.names.remove(&name) {
            let (content, links) = &mut self.nodes[node];
            *links = if content.is_none() { 0 } else { *links - 1 };
        }
    }

    /// The answer that `call` must give now; advances the model.
    pub fn apply(&mut self, call: Call) -> Answer {
        let is_dir = |model: &Model, node: usize| model.nodes[node].0.is_none();
        match call {
            Call::Mknod(name) | Call::Mkdir(name) => {
                if self.names.contains_key(&name) {
                    return Answer::Refused(EEXIST);
                }
                let directory = matches!(call, Call::Mkdir(_));
                self.nodes
                    .push(if directory { (None, 2) } else { (Some(Vec::new()), 1) });
                self.names.insert(name, self.nodes.len() - 1);
                Answer::Done
            }
            Call::Unlink(name) | Call::Rmdir(name) => {
                let Some(&node) = self.names.get(&name) else {
                    return Answer::Refused(ENOENT);
                };
                match (matches!(call, Call::Rmdir(_)), is_dir(self, node)) {
                    (false, true) => return Answer::Refused(EISDIR),
                    (true, false) => return Answer::Refused(ENOTDIR),
                    _ => self.drop_name(name),
                }
                Answer::Done
            }
            Call::Lookup(name) => self
                .names
                .get(&name)
                .map_or(Answer::Refused(ENOENT), |&node| self.attr(node)),
            Call::Rename(from, to, kind) => {
                let Some(&node) = self.names.get(&from) else {
                    return Answer::Refused(ENOENT);
                };
                match (self.names.get(&to).copied(), kind) {
                    (Some(_), RenameKind::NoReplace) => return Answer::Refused(EEXIST),
                    (None, RenameKind::Exchange) => return Answer::Refused(ENOENT),
                    (Some(other), RenameKind::Exchange) => {
                        self.names.insert(from, other);
                        self.names.insert(to, node);
                    }
                    (Some(other), RenameKind::Replace) => {
                        if other == node {
                            return Answer::Done;
                        }
                        match (is_dir(self, node), is_dir(self, other)) {
                            (true, false) => return Answer::Refused(ENOTDIR),
                            (false, true) => return Answer::Refused(EISDIR),
                            _ => self.drop_name(to),
                        }
                        self.names.remove(&from);
                        self.names.insert(to, node);
                    }
                    (None, _) => {
                        self.names.remove(&from);
                        self.names.insert(to, node);
                    }
                }
                Answer::Done
            }
            Call::Link { file, name } => {
                // Both reasons at once: the search must not depend on which of them is returned.
                if self.names.contains_key(&name) {
                    return Answer::Refused(EEXIST);
                }
                if self.nodes[file].1 == 0 {
                    return Answer::Refused(ENOENT);
                }
                self.nodes[file].1 += 1;
                self.names.insert(name, file);
                Answer::Done
            }
            Call::Write { file, at, grains, byte } => {
                self.store(file, at, grains, byte);
                Answer::Done
            }
            Call::Append { file, grains, byte } => {
                let at = self.content(file).len();
                self.store(file, at, grains, byte);
                Answer::At(at)
            }
            Call::Read { file, at, grains } => {
                let content = self.content(file);
                let end = (at + grains).min(content.len());
                Answer::Grains(content[at.min(end)..end].to_vec())
            }
            Call::Truncate { file, grains } => {
                self.content(file).resize(grains, 0);
                Answer::Done
            }
            Call::Getattr { file } => self.attr(file),
            Call::DirLinks => Answer::Links(2 + self.names.values().filter(|&&node| is_dir(self, node)).count() as u32),
        }
    }

    fn content(&mut self, file: usize) -> &mut Vec<u8> {
        self.nodes[file].0.as_mut().expect("files 0 and 1 are no directories")
    }

    fn store(&mut self, file: usize, at: usize, grains: usize, byte: u8) {
        let content = self.content(file);
        content.resize(content.len().max(at + grains), 0);
        content[at..at + grains].fill(byte);
    }

    /// A name that is taken and a file without names: an engine may return either error.
    fn explains(&self, call: Call, wanted: &Answer, answer: &Answer) -> bool {
        let both = |file: usize, name: usize| self.names.contains_key(&name) && self.nodes[file].1 == 0;
        wanted == answer
            || matches!(call, Call::Link { file, name } if both(file, name))
                && matches!(answer, Answer::Refused(ENOENT | EEXIST))
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether some order of `events` that respects their times explains every answer.
pub fn linearizable(events: &[Event]) -> bool {
    fn search(events: &[Event], done: u64, model: &Model, tried: &mut HashSet<(u64, u64)>) -> bool {
        if done.count_ones() as usize == events.len() {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        model.hash(&mut hasher);
        if !tried.insert((done, hasher.finish())) {
            return false;
        }
        let pending = || events.iter().enumerate().filter(|(index, _)| done >> index & 1 == 0);
        let first_return = pending().map(|(_, event)| event.returned).min().unwrap_or(u64::MAX);
        // Only calls invoked before the first pending return can be next.
        pending()
            .filter(|(_, event)| event.invoked < first_return)
            .any(|(index, event)| {
                let mut next = model.clone();
                let wanted = next.apply(event.call);
                model.explains(event.call, &wanted, &event.answer) && search(events, done | 1 << index, &next, tried)
            })
    }
    assert!(events.len() < 64, "the search is for small histories");
    search(events, 0, &Model::new(), &mut HashSet::new())
}

fn random_call(rng: &mut Rng, byte: u8, data: bool) -> Call {
    let (file, name, other) = (rng.below(2) as usize, rng.below(3) as usize, rng.below(3) as usize);
    let (at, grains) = (rng.below(8) as usize, 1 + rng.below(8) as usize);
    if data {
        return match rng.below(10) {
            0..=2 => Call::Write {
                file: 0,
                at,
                grains,
                byte,
            },
            3 => Call::Append { file: 0, grains, byte },
            4..=6 => Call::Read {
                file: 0,
                at: 0,
                grains: 20,
            },
            7 => Call::Read { file: 0, at, grains },
            8 => Call::Truncate { file: 0, grains: at },
            _ => Call::Getattr { file: 0 },
        };
    }
    let kind = *rng.pick(&[RenameKind::Replace, RenameKind::NoReplace, RenameKind::Exchange]);
    match rng.below(20) {
        0 | 1 => Call::Mknod(name),
        2 => Call::Mkdir(name),
        3 | 4 => Call::Unlink(name),
        5 => Call::Rmdir(name),
        6 | 7 => Call::Lookup(name),
        8..=11 => Call::Rename(name, other, kind),
        12 | 13 => Call::Link { file, name },
        14 => Call::Write { file, at, grains, byte },
        15 => Call::Append { file, grains, byte },
        16 => Call::Read {
            file,
            at: 0,
            grains: 20,
        },
        17 | 18 => Call::Getattr { file },
        _ => Call::DirLinks,
    }
}

fn perform(fs: &dyn FileSystem, dir: Ino, files: &[Arc<dyn OpenFile>], call: Call) -> Answer {
    let result = match call {
        Call::Mknod(name) => {
            let node = NewNode {
                kind: FileKind::File,
                mode: 0o644,
                rdev: 0,
            };
            fs.mknod(SYSTEM, dir, NAMES[name], &node).map(|_| Answer::Done)
        }
        Call::Mkdir(name) => fs.mkdir(SYSTEM, dir, NAMES[name], 0o755).map(|_| Answer::Done),
        Call::Unlink(name) => fs.unlink(SYSTEM, dir, NAMES[name]).map(|()| Answer::Done),
        Call::Rmdir(name) => fs.rmdir(SYSTEM, dir, NAMES[name]).map(|()| Answer::Done),
        Call::Lookup(name) => fs.lookup(SYSTEM, dir, NAMES[name]).map(|attr| told(&attr)),
        Call::Rename(from, to, kind) => {
            let mode = match kind {
                RenameKind::Replace => RenameMode::Replace,
                RenameKind::NoReplace => RenameMode::NoReplace,
                RenameKind::Exchange => RenameMode::Exchange,
            };
            fs.rename(SYSTEM, dir, NAMES[from], dir, NAMES[to], mode)
                .map(|()| Answer::Done)
        }
        Call::Link { file, name } => fs
            .link(SYSTEM, files[file].ino(), dir, NAMES[name])
            .map(|_| Answer::Done),
        Call::Write { file, at, grains, byte } => {
            let data = vec![byte; grains * GRAIN];
            files[file].write_at(SYSTEM, (at * GRAIN) as u64, &data).map(|count| {
                assert_eq!(count, data.len());
                Answer::Done
            })
        }
        Call::Append { file, grains, byte } => files[file].append(SYSTEM, &vec![byte; grains * GRAIN]).map(|written| {
            let at = written.offset as usize;
            assert_eq!(
                (at % GRAIN, written.len_bytes),
                (0, grains * GRAIN),
                "an append tore a grain"
            );
            Answer::At(at / GRAIN)
        }),
        Call::Read { file, at, grains } => {
            let mut buffer = vec![0; grains * GRAIN];
            files[file]
                .read_at(SYSTEM, (at * GRAIN) as u64, &mut buffer)
                .map(|count| {
                    assert_eq!(count % GRAIN, 0, "a read of {count} bytes: a size that never was");
                    let grain = |bytes: &[u8]| {
                        assert!(
                            bytes.iter().all(|&byte| byte == bytes[0]),
                            "a grain with bytes of two writes"
                        );
                        bytes[0]
                    };
                    Answer::Grains(buffer[..count].chunks(GRAIN).map(grain).collect())
                })
        }
        Call::Truncate { file, grains } => {
            let set = SetAttr {
                size: Some((grains * GRAIN) as u64),
                ..SetAttr::default()
            };
            fs.setattr(SYSTEM, files[file].ino(), &set).map(|_| Answer::Done)
        }
        Call::Getattr { file } => files[file].getattr(SYSTEM).map(|attr| told(&attr)),
        Call::DirLinks => fs.getattr(SYSTEM, dir).map(|attr| Answer::Links(attr.nlink)),
    };
    result.unwrap_or_else(|error| Answer::Refused(error.errno()))
}

fn told(attr: &ferrite_vfs::Attr) -> Answer {
    let directory = attr.kind == FileKind::Directory;
    Answer::Attr(
        directory,
        attr.nlink,
        if directory { 0 } else { attr.size as usize / GRAIN },
    )
}

/// Runs [`ROUNDS`] histories of three threads with four to six calls each.
pub(super) fn histories(fs: &dyn FileSystem, seed: u64) {
    for round in 0..ROUNDS {
        let mut rng = Rng::new(seed.wrapping_add(round));
        let name = format!("round {round}").into_bytes();
        let dir = fs.mkdir(SYSTEM, ROOT_INO, &name, 0o755).expect("mkdir").ino;
        let files: Vec<_> = (0..2)
            .map(|index: usize| {
                let ino = super::data::make_file(fs, dir, if index == 0 { "x" } else { "y" });
                let file = fs.open(SYSTEM, ino, OpenMode::read_write()).expect("open");
                file.write_at(SYSTEM, 0, &[index as u8 + 1; 2 * GRAIN]).expect("write");
                file
            })
            .collect();
        let data = round % 2 == 0;
        let mut byte = 2;
        let plans: Vec<Vec<Call>> = (0..3)
            .map(|_| {
                let mut call = || {
                    byte += 1;
                    random_call(&mut rng, byte, data)
                };
                let count = 4 + (round % 3);
                (0..count).map(|_| call()).collect()
            })
            .collect();
        let (clock, events) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        together(3, |thread| {
            let mut own = Vec::new();
            for &call in &plans[thread] {
                let invoked = clock.fetch_add(1, Ordering::SeqCst);
                let answer = perform(fs, dir, &files, call);
                let returned = clock.fetch_add(1, Ordering::SeqCst);
                own.push(Event {
                    thread,
                    call,
                    answer,
                    invoked,
                    returned,
                });
            }
            events.lock().expect("no thread panicked").extend(own);
        });
        let mut events = events.into_inner().expect("no thread panicked");
        events.sort_by_key(|event| event.invoked);
        if !linearizable(&events) {
            let lines: String = events.iter().map(|event| format!("  {event:?}\n")).collect();
            panic!("round {round}: no order explains this history (FERRITE_SEED={seed}):\n{lines}");
        }
        drop(files);
        for name in NAMES {
            let _ = fs.unlink(SYSTEM, dir, name).or_else(|_| fs.rmdir(SYSTEM, dir, name));
        }
        fs.rmdir(SYSTEM, ROOT_INO, &name).expect("rmdir");
    }
}
