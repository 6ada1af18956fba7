//! The reference engine behind a writer of traces: it must pass every suite that it passes alone, and its trace must be
//! readable.

use std::io;
use std::sync::{Arc, Mutex};

use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::check_against_reference;
use ferrite_testkit::rng::Rng;
use ferrite_testkit::{TestEngine, linear, posix};
use ferrite_vfs::FileSystem;
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::trace::{Event, TraceWriter, Traced, parse};

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("never poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn events(&self) -> Vec<Event> {
        let text = String::from_utf8(self.0.lock().expect("never poisoned").clone()).expect("text");
        parse(&text).expect("a trace")
    }
}

struct TracedEngine {
    fs: Traced<MemFs>,
    writer: Arc<TraceWriter>,
    trace: Shared,
}

impl TracedEngine {
    fn new() -> TracedEngine {
        let trace = Shared::default();
        let writer = Arc::new(TraceWriter::new(Box::new(trace.clone())));
        TracedEngine {
            fs: Traced::new(MemFs::new(), Arc::clone(&writer)),
            writer,
            trace,
        }
    }
}

impl TestEngine for TracedEngine {
    fn fs(&self) -> &dyn FileSystem {
        &self.fs
    }

    fn remount(&mut self) {}

    fn check(&self) {
        self.writer.finish().expect("memory takes everything");
        self.trace.events();
    }
}

fn make() -> Box<dyn TestEngine> {
    Box::new(TracedEngine::new())
}

#[test]
fn suites() {
    posix::run_all(make);
    linear::run_all(make, 1);
}

#[test]
fn random_operations() {
    for profile in Profile::ALL {
        for seed in 0..5 {
            check_against_reference(make, profile, seed, 400);
        }
    }
}

/// All recorded events can be read back, in order, whichever fields the lines omit.
#[test]
fn events_survive_the_text() {
    let seed = ferrite_testkit::seed_from_env().unwrap_or(1);
    let mut rng = Rng::new(seed);
    for _ in 0..200 {
        let trace = Shared::default();
        let writer = TraceWriter::new(Box::new(trace.clone()));
        let mut end = 0;
        let events: Vec<Event> = (0..rng.below(300))
            .map(|_| {
                let ino = 1 + rng.below(3);
                let bits = rng.below(44);
                let len_bytes = rng.below(1 << bits);
                let offset_bytes = if rng.chance(50) { end } else { rng.below(1 << 43) };
                match rng.below(6) {
                    0 => Event::File { ino, len_bytes },
                    1 => Event::Truncate { ino, len_bytes },
                    _ => {
                        let len_bytes = 1 + len_bytes % (1 << 20);
                        end = (offset_bytes + len_bytes) % (1 << 43);
                        Event::Write {
                            ino,
                            offset_bytes,
                            len_bytes,
                        }
                    }
                }
            })
            .collect();
        events.iter().for_each(|&event| writer.record(event));
        writer.finish().expect("memory takes everything");
        assert_eq!(trace.events(), events, "FERRITE_SEED={seed}");
    }
}
