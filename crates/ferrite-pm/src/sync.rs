//! Group commit on ordinary files: one `fdatasync` for all threads that wait for one.
//!
//! Invariant: [`GroupSync::sync`] returns only after a sync that *started* after it was called has finished, because
//! only such a sync covers all earlier stores of the caller.

use std::fs::File;
use std::io;

use ferrite_checks::condvar::Condvar;
use parking_lot::Mutex;

#[derive(Default)]
struct State {
    started: u64,
    finished: u64,
    running: bool,
    /// The first failure; permanent, since the kernel reports a lost page only once.
    failed: Option<String>,
}

#[derive(Default)]
pub(crate) struct GroupSync {
    state: Mutex<State>,
    changed: Condvar,
}

impl GroupSync {
    /// Makes all stores before the call durable. Blocks for up to two syncs.
    pub(crate) fn sync(&self, file: &File) -> Result<(), String> {
        self.sync_with(|| file.sync_data())
    }

    fn sync_with(&self, sync: impl Fn() -> io::Result<()>) -> Result<(), String> {
        let mut state = self.state.lock();
        let needed = state.started + 1;
        loop {
            if let Some(failure) = &state.failed {
                return Err(failure.clone());
            }
            if state.finished >= needed {
                return Ok(());
            }
            if state.running {
                self.changed.wait(&mut state);
                continue;
            }
            state.running = true;
            state.started += 1;
            let number = state.started;
            drop(state);
            let result = sync();
            state = self.state.lock();
            state.running = false;
            match result {
                Ok(()) => state.finished = number,
                Err(error) => state.failed = Some(format!("sync failed: {error}")),
            }
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn waiting_threads_share_syncs_that_started_after_they_asked() {
        let group = GroupSync::default();
        let (clock, syncs) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let requested = clock.fetch_add(1, Ordering::SeqCst);
                        let covered = AtomicU64::new(0);
                        group
                            .sync_with(|| {
                                covered.store(clock.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                                syncs.fetch_add(1, Ordering::SeqCst);
                                std::thread::sleep(Duration::from_millis(1));
                                Ok(())
                            })
                            .unwrap();
                        let own = covered.load(Ordering::SeqCst);
                        assert!(own == 0 || own > requested);
                    }
                });
            }
        });
        let syncs = syncs.into_inner();
        assert!(syncs < 160, "{syncs} syncs for 160 requests: nothing was shared");
    }

    #[test]
    fn a_failed_sync_fails_all_that_follow() {
        let group = GroupSync::default();
        assert!(group.sync_with(|| Err(io::Error::other("lost"))).is_err());
        assert!(group.sync_with(|| Ok(())).unwrap_err().contains("lost"));
    }
}
