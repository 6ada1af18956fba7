//! The order of events, by a seed.
//!
//! Contents: [`record`], which plays a scene on a recorded pool.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ferrite_fs::{Engine, MkfsOptions, MountOptions, Superblock, mkfs};
use ferrite_mr::{Options, Registrar, Rights, SessionId};
use ferrite_pm::{Log, Recorder, Region as Pool};
use ferrite_roce::memory::{APPEND_AT, RESERVE_AT};
use ferrite_roce::requester::Request;
use ferrite_roce::wire::Qpn;
use ferrite_roce::wire::cm::Mtu;
use ferrite_testkit::rng::pattern;
use ferrite_vfs::regions::Binding;
use ferrite_vfs::{FileKind, FileSystem, NewNode, ROOT_INO, SYSTEM};

use super::effects::{Book, Effect, Moment, State, word_at};
use super::scene::{Act, Scene, Watched};
use super::seam::Seam;
use super::support::{Hosts, NetworkFaults};

pub(crate) const POOL_BYTES: u64 = 4 << 20;
/// The name of the file that is not bound.
pub(crate) const OTHER: &str = "other";
const SESSION: SessionId = SessionId(1);
/// The first queue pair stores before this, the second from here on.
const MIDDLE: usize = 3 * 4096;
const LONGEST: usize = 32_000;
/// Events of the network that suffice for everything under way.
const STEPS_MAX: u64 = 3_000;

/// A scene after its run.
pub(crate) struct Recorded {
    #[cfg_attr(not(feature = "seeded-bugs"), allow(dead_code, reason = "only omissions need it"))]
    pub(crate) superblock: Superblock,
    pub(crate) log: Log,
    pub(crate) moments: Vec<Moment>,
    /// Local calls that waited for a packet, and packets in the middle of other calls.
    pub(crate) waited: u64,
    pub(crate) between: u64,
}

struct Script {
    scene: Arc<Scene>,
    seam: Arc<Seam>,
    shared: Arc<dyn FileSystem>,
    first: Hosts<Watched>,
    pairs: [[Qpn; 2]; 2],
    /// A key, and one of atomic mode.
    keys: Option<[u32; 2]>,
    posted: [u64; 2],
    mtu: Mtu,
}

fn network_faults() -> NetworkFaults {
    NetworkFaults {
        loss: 3,
        duplication: 5,
        reordering: 5,
        corruption: 2,
    }
}

/// Plays a scene of `steps` steps. With `is_checked` it panics if a reply is wrong.
pub(crate) fn record(options: &MkfsOptions, seed: u64, steps: u64, is_checked: bool) -> Recorded {
    let region = Pool::anonymous(POOL_BYTES).unwrap();
    mkfs(&region, options).unwrap();
    let mut empty = vec![0; POOL_BYTES as usize];
    region.read(0, &mut empty);
    let recorder = Recorder::new(empty.clone());
    let mut region = Pool::from_image(&empty).unwrap();
    region.attach_recorder(Arc::clone(&recorder));
    let engine = Engine::mount(region, &MountOptions::default().cleaner(false)).unwrap();
    let scene = Scene::new(Arc::new(engine), Book::new(&recorder), seed, is_checked);
    let seam = Arc::new(Seam::new(Arc::clone(&scene.engine), Arc::clone(&scene) as _));
    let options = Options {
        fault_threads: 1,
        ..Options::default()
    };
    let registrar = Arc::new(Registrar::new(options).unwrap());
    scene.registrar.set(Arc::clone(&registrar)).ok().unwrap();
    let hosts = |seed| {
        let memories = [registrar.memory(), registrar.memory()];
        let mut hosts = Hosts::with(memories.map(|memory| Watched::new(&scene, memory)), seed, true);
        hosts.network_faults = network_faults();
        hosts
    };
    let first = hosts(seed);
    *scene.second.lock() = Some(hosts(seed ^ 0xff));
    let mut script = Script {
        shared: Arc::clone(&seam) as _,
        seam,
        first,
        pairs: [[0; 2]; 2],
        keys: None,
        posted: [0; 2],
        mtu: Mtu::ALL[seed as usize % Mtu::ALL.len()],
        scene: Arc::clone(&scene),
    };
    script.set_up();
    (0..steps).for_each(|_| script.step());
    script.local(&Effect::Nothing("sync"));
    if is_checked {
        script.check();
    }
    script.unbind();
    let recorded = Recorded {
        superblock: Superblock::find(&Pool::from_image(&empty).unwrap()).unwrap(),
        log: recorder.log(),
        moments: scene.book.moments(),
        waited: scene.waited.load(SeqCst),
        between: scene.between.load(SeqCst),
    };
    // They hold each other.
    drop(script);
    *scene.second.lock() = None;
    *scene.region.lock() = None;
    drop(registrar);
    recorded
}

impl Script {
    fn below(&self, bound: usize) -> usize {
        self.scene.random.lock().below(bound.max(1) as u64) as usize
    }

    fn data(&self, longest: usize) -> Vec<u8> {
        let len = 1 + self.below(longest);
        let fill = 1 + self.below(1 << 30) as u32;
        pattern(fill, len)
    }

    fn set_up(&mut self) {
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
        };
        let engine = Arc::clone(&self.scene.engine);
        let other = engine.mknod(SYSTEM, ROOT_INO, OTHER.as_bytes(), &node).unwrap();
        self.scene.other.store(other.ino, SeqCst);
        self.local(&Effect::Create("file".into()));
        self.local(&Effect::Write {
            at: 0,
            data: pattern(1, 20_000),
        });
        self.local(&Effect::OtherWrite {
            at: 0,
            data: pattern(2, 9_000),
        });
        self.bind();
        (0..2).for_each(|number| self.connect(number));
    }

    fn connect(&mut self, number: usize) {
        let registrar = Arc::clone(self.scene.registrar.get().unwrap());
        let mut second = self.scene.second.lock();
        let hosts = match number {
            0 => &mut self.first,
            _ => second.as_mut().unwrap(),
        };
        let [ours, theirs] = self.pairs[number];
        hosts.ends[0].remove(ours, &mut hosts.memories[0]);
        hosts.ends[1].remove(theirs, &mut hosts.memories[1]);
        // Queue pairs of both have numbers of their own, for the registrar.
        while hosts.ends[1].allocate() % 2 != number as u32 {}
        registrar.detach(theirs);
        let mut pair = hosts.connect(self.mtu, [7, 0xff_fffe]);
        while pair[1] % 2 != number as u32 {
            hosts.ends[0].remove(pair[0], &mut hosts.memories[0]);
            hosts.ends[1].remove(pair[1], &mut hosts.memories[1]);
            pair = hosts.connect(self.mtu, [7, 0xff_fffe]);
        }
        registrar.attach(SESSION, pair[1]);
        self.pairs[number] = pair;
        self.posted[number] = 0;
    }

    fn bind(&mut self) {
        let id = self.scene.book.begin(Effect::Nothing("bind"));
        let defragment = self.below(4) == 0;
        let binding = Binding {
            writable: true,
            defragment,
            whole: false,
        };
        let atomic = Rights {
            atomic_writes: true,
            ..Rights::ALL
        };
        let registrar = self.scene.registrar.get().unwrap();
        let ino = self.scene.ino.load(SeqCst);
        let keys = [Rights::ALL, atomic].map(|rights| {
            let granted = registrar.bind(&self.shared, SYSTEM, ino, binding, SESSION, rights);
            granted.unwrap().key
        });
        *self.scene.region.lock() = self.seam.take_region();
        self.keys = Some(keys);
        self.scene.book.end(id, true);
    }

    fn unbind(&mut self) {
        let id = self.scene.book.begin(Effect::Nothing("unbind_file"));
        let ino = self.scene.ino.load(SeqCst);
        // The binding may have ended on its own.
        let _ = self.scene.registrar.get().unwrap().unbind_file(&self.shared, ino);
        *self.scene.region.lock() = None;
        self.keys = None;
        self.scene.book.end(id, true);
    }

    /// The pool holds the data that all replies promised.
    fn check(&self) {
        let state = self.scene.book.state();
        let found = read_state(&self.scene.engine).unwrap();
        assert_eq!((&found.name, &found.other), (&state.name, &state.other));
        assert!(
            found.name.is_none() || found.content == state.content,
            "while it was recorded"
        );
    }

    /// A local call that no other thread waits for.
    fn local(&self, effect: &Effect) {
        self.scene.local(effect, true);
        self.scene.settle();
    }

    /// A random change by a program.
    fn something_local(&self) -> Effect {
        let state = self.scene.book.state();
        let at = self.below(LONGEST);
        let other = match self.below(2) {
            0 => Effect::OtherTruncate(self.below(20_000)),
            _ => Effect::OtherWrite {
                at: self.below(12_000),
                data: self.data(9_000),
            },
        };
        let Some(name) = &state.name else {
            return match self.below(3) {
                0 => Effect::Nothing("sync"),
                _ => other,
            };
        };
        match self.below(20) {
            0..6 => Effect::Write {
                at,
                data: self.data([8, 100, 4096, 9_000][self.below(4)]),
            },
            6..9 => Effect::Truncate(self.below(state.content.len() + 100)),
            9 => Effect::Truncate(at),
            10..13 => Effect::Zero {
                at,
                len: 1 + self.below(9_000),
            },
            13 => Effect::Rename(if name == "file" { "moved" } else { "file" }.into()),
            14 if self.below(3) == 0 => Effect::Unlink,
            15 if self.below(2) == 0 => Effect::Nothing("unbind"),
            16 => Effect::Nothing("stat"),
            17 => Effect::Nothing("chmod"),
            18 => Effect::Nothing("sync"),
            _ => other,
        }
    }

    /// A random request of a queue pair; `in_place`: none that needs the engine.
    fn request(&self, number: usize, keys: [u32; 2], in_place: bool) -> Option<Request> {
        let [key, atomic] = keys;
        let len = self.scene.book.state().content.len();
        let half = match number {
            0 => 0..len.min(MIDDLE),
            _ => MIDDLE.min(len)..len,
        };
        let append = || Request::Write {
            key,
            at: APPEND_AT,
            data: self.data(6_000),
            immediate: None,
        };
        if half.len() < 16 && in_place {
            return None;
        }
        if half.len() < 16 || (!in_place && self.below(6) == 0 && len < LONGEST) {
            return Some(match self.below(5) {
                0 => Request::FetchAdd {
                    key,
                    at: RESERVE_AT,
                    add: self.below(5_000) as u64,
                },
                // Also at a wrong offset for the end.
                1 => {
                    let compare = len.saturating_sub([0, 0, 0, 100][self.below(4)]) as u64;
                    Request::CompareSwap {
                        key,
                        at: RESERVE_AT,
                        compare,
                        swap: compare + self.below(5_000) as u64,
                    }
                }
                _ => append(),
            });
        }
        let at = half.start + self.below(half.len() - 8);
        let longest = (half.end - at).min([8, 500, 4096, 9_000][self.below(4)]);
        let word = at / 8 * 8;
        Some(match self.below(10) {
            0..6 => Request::Write {
                key,
                at: at as u64,
                data: self.data(longest),
                immediate: None,
            },
            6 => Request::FetchAdd {
                key,
                at: word as u64,
                // No two values are the same.
                add: self.scene.random.lock().next_u64() | 1,
            },
            7 => Request::CompareSwap {
                key,
                at: word as u64,
                compare: word_at(&self.scene.book.state().content, word),
                swap: self.scene.random.lock().next_u64(),
            },
            // Whole, so it counts as a local write, and need not keep to its half.
            8 if number == 0 => Request::Write {
                key: atomic,
                at: at as u64,
                data: self.data(longest),
                immediate: None,
            },
            _ => Request::Read {
                key,
                at: at as u64,
                len_bytes: longest as u32,
            },
        })
    }

    fn post(&mut self, number: usize, count: usize, in_place: bool) {
        let Some(keys) = self.keys else {
            return;
        };
        for _ in 0..count {
            let Some(request) = self.request(number, keys, in_place) else {
                return;
            };
            let qpn = self.pairs[number][0];
            let mut second = self.scene.second.lock();
            let hosts = match number {
                0 => &mut self.first,
                _ => second.as_mut().unwrap(),
            };
            let id = self.posted[number];
            if hosts.ends[0].post(qpn, id, request).is_ok() {
                self.posted[number] += 1;
            }
        }
    }

    /// Takes finished requests; true if the connection is broken.
    fn poll(&mut self, number: usize) -> bool {
        let qpn = self.pairs[number][0];
        let mut second = self.scene.second.lock();
        let hosts = match number {
            0 => &mut self.first,
            _ => second.as_mut().unwrap(),
        };
        let mut is_broken = false;
        while let Some(completion) = hosts.ends[0].poll_completion(qpn) {
            is_broken |= completion.result.is_err();
            self.posted[number] -= 1;
        }
        is_broken
    }

    /// Runs the first queue pair until everything is finished.
    fn run_first(&mut self) {
        for _ in 0..STEPS_MAX {
            if self.poll(0) {
                return self.connect(0);
            }
            if self.posted[0] == 0 || !self.first.step() {
                return;
            }
        }
        panic!("a queue pair hangs");
    }

    fn step(&mut self) {
        if self.keys.is_some() && self.scene.region.lock().is_none() {
            // A local call has ended the binding.
            self.unbind();
        }
        let is_gone = self.scene.book.state().name.is_none();
        if is_gone && (self.keys.is_none() || self.below(3) == 0) {
            self.unbind();
            self.local(&Effect::Create("file".into()));
            let data = self.data(20_000);
            self.local(&Effect::Write { at: 0, data });
        }
        if self.keys.is_none() {
            self.bind();
            (0..2).for_each(|number| self.connect(number));
        }
        let count = 1 + self.below(3);
        match self.below(10) {
            0..6 => {
                self.post(1, 1, true);
                self.post(0, count, false);
                let act = match self.below(4) {
                    0 => Act::Second,
                    _ => Act::Local(self.something_local()),
                };
                *self.scene.trap.lock() = Some((self.below(8) as u64, act));
                self.run_first();
                *self.scene.trap.lock() = None;
            }
            6..9 => {
                self.post(1, count, true);
                let effect = self.something_local();
                self.local(&effect);
            }
            _ => {
                self.post(1, count, false);
                self.scene.run_second_alone(STEPS_MAX);
            }
        }
        self.scene.settle();
        if self.poll(1) {
            self.connect(1);
        }
    }
}

/// The contents of a pool.
pub(crate) fn read_state(engine: &Engine) -> Result<State, String> {
    let mut state = State::default();
    let mut names = Vec::new();
    let listed = engine.readdir(SYSTEM, ROOT_INO, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    });
    listed.map_err(|error| format!("readdir: {error}"))?;
    for name in names.into_iter().filter(|name| name != "." && name != "..") {
        let content = read_file(engine, &name).map_err(|error| format!("{name}: {error}"))?;
        if name == OTHER {
            state.other = content;
        } else if state.name.is_none() {
            (state.name, state.content) = (Some(name), content);
        } else {
            return Err(format!("{name} is there as well"));
        }
    }
    Ok(state)
}

fn read_file(engine: &Engine, name: &str) -> ferrite_vfs::Result<Vec<u8>> {
    let attr = engine.lookup(SYSTEM, ROOT_INO, name.as_bytes())?;
    let file = engine.open(SYSTEM, attr.ino, ferrite_vfs::OpenMode::read_only())?;
    let mut content = vec![0; attr.size as usize];
    let count = file.read_at(SYSTEM, 0, &mut content)?;
    content.truncate(count);
    Ok(content)
}
