//! The thread that finalizes bound files without an adapter, as a crash or a failed unbind leaves them.
//!
//! It starts with the mount if such files exist, else when the first file is bound, and sleeps while there are none. It
//! waits until the pool is nearly idle. It takes one file's lock at a time, for as long as reading the file takes. A
//! file that cannot be finalized is retried a few times, at growing intervals ([`crate::cache::bindings`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_vfs::{FsError, SYSTEM};

use crate::background::{Background, Stop};
use crate::file::bind;
use crate::pool::core::Core;

/// Interval between checks: also the time after a start for adapters to come back.
const TICK: Duration = Duration::from_millis(500);
/// Up to this many fences by others in a tick still count as idle.
const IDLE_FENCES: u64 = 8;

/// Starts the thread. It ends after the file in progress.
pub(super) fn start(core: Arc<Core>) -> std::io::Result<Background> {
    let its = Arc::clone(&core);
    let finalizer = Background::start("ferrite-csum", move |stop| run(&its, stop))?;
    core.bindings.has_finalizer(finalizer.waker());
    Ok(finalizer)
}

fn run(core: &Core, stop: &Stop) {
    loop {
        if !core.bindings.awaits_finalizing() {
            if stop.wait_for_work() {
                return;
            }
            continue;
        }
        let fences = core.region.counters().fences;
        if stop.wait(TICK) {
            return;
        }
        let is_idle = core.region.counters().fences - fences <= IDLE_FENCES;
        if is_idle && !core.journal.is_frozen() {
            finalize_due(core, stop);
        }
    }
}

fn finalize_due(core: &Core, stop: &Stop) {
    for ino in core.bindings.due(Instant::now()) {
        if stop.is_set() {
            return;
        }
        match core.told(bind::finalize(core, SYSTEM, &core.inodes.get(ino))) {
            // It has an adapter again, or is gone.
            Ok(()) | Err(FsError::Busy | FsError::Stale) => {}
            Err(error) => {
                let is_final = matches!(error, FsError::Damaged(_));
                match core.bindings.note_failure(ino, Instant::now(), is_final) {
                    true => tracing::info!(ino = ino.get(), %error, "a bound file could not be finalized yet"),
                    false => tracing::warn!(ino = ino.get(), %error, "a file stays bound until the next unmount"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ferrite_pm::Region as Pool;
    use ferrite_vfs::regions::{Adapter, Binding, PageRun, Regions};
    use ferrite_vfs::{Attr, FileKind, FileSystem, NewNode, OpenMode, ROOT_INO};

    use super::*;
    use crate::engine::Engine;
    use crate::options::{MkfsOptions, MountOptions};

    struct Deaf;

    impl Adapter for Deaf {
        fn revoke(&self, _: u32, _: u32) {}
        fn publish(&self, _: &[PageRun]) {}
        fn resize(&self, _: u64) {}
        fn attributes_changed(&self, _: &Attr) {}
        fn unbound(&self) {}
    }

    /// An unbind does not wait for a thaw. The file is finalized after the thaw.
    #[test]
    fn a_file_is_let_go_while_the_pool_is_frozen() {
        let region = Pool::anonymous(64 << 20).unwrap();
        let options = MkfsOptions {
            data_checksum: true,
            ..MkfsOptions::default()
        };
        crate::engine::mkfs(&region, &options).unwrap();
        let engine = Engine::mount(region, &MountOptions::default()).unwrap();
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o600,
            rdev: 0,
        };
        let ino = engine.mknod(SYSTEM, ROOT_INO, b"one", &node).unwrap().ino;
        let how = Binding {
            writable: true,
            defragment: false,
            whole: false,
        };
        let bound = engine.bind(SYSTEM, ino, how, Arc::new(Deaf)).unwrap();
        let file = engine.open(SYSTEM, ino, OpenMode::read_write()).unwrap();
        engine.freeze().unwrap();
        // It keeps the file's lock while it waits.
        let writer = std::thread::spawn(move || file.write_at(SYSTEM, 0, b"later"));
        std::thread::sleep(Duration::from_millis(100));
        let (ended, ends) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || ended.send(bound.unbind().is_err()));
        assert_eq!(
            ends.recv_timeout(Duration::from_secs(20)),
            Ok(true),
            "it waits for the thaw"
        );
        thread.join().unwrap().unwrap();
        assert!(!engine.bound()[0].is_attached);
        engine.thaw().unwrap();
        writer.join().unwrap().unwrap();
        let began = Instant::now();
        while !engine.bound().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(20), "the file stays bound");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A file that an unbind cannot finalize is finalized later, while the pool is in service.
    #[test]
    fn a_file_that_a_failed_unbind_left_is_finalized_without_another_mount() {
        let region = Pool::anonymous(64 << 20).unwrap();
        crate::engine::mkfs(&region, &MkfsOptions::default()).unwrap();
        let engine = Engine::mount(region, &MountOptions::default()).unwrap();
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o600,
            rdev: 0,
        };
        for name in [b"one", b"two"] {
            let ino = engine.mknod(SYSTEM, ROOT_INO, name, &node).unwrap().ino;
            let how = Binding {
                writable: true,
                defragment: false,
                whole: false,
            };
            let region = engine.bind(SYSTEM, ino, how, Arc::new(Deaf)).unwrap();
            let core = engine.core();
            let attached = core.bindings.attached().remove(0);
            assert!(bind::abandon(core, &attached));
            let bound = engine.bound();
            assert_eq!((bound.len(), bound[0].ino, bound[0].is_attached), (1, ino, false));
            assert!(region.unbind().is_ok(), "it has no effect on what has ended");
            let began = Instant::now();
            while !engine.bound().is_empty() {
                assert!(began.elapsed() < Duration::from_secs(20), "the file stays bound");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
