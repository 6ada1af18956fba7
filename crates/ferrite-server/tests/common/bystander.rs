//! A client that must notice nothing of other clients' actions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrite_client::{Client, ClientOptions};
use ferrite_vfs::{FileKind, FileSystem, NewFile, NewNode, OpenMode, ROOT_INO, SYSTEM};

/// A client that works all the time, until dropped.
pub(crate) struct Bystander {
    is_over: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    /// On a writable export.
    pub(crate) fn at(address: &str, export: &str) -> Bystander {
        let options = ClientOptions::default().timeout(Some(Duration::from_secs(15)));
        let client = Client::connect(address, export, &options).unwrap();
        let (is_over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (is_over, rounds) = (Arc::clone(&is_over), Arc::clone(&rounds));
            std::thread::spawn(move || {
                let new = new_file(false);
                let file = client.create(SYSTEM, ROOT_INO, b"bystander", &new).unwrap().file;
                let mut back = vec![0; 100_000];
                while !is_over.load(Ordering::Acquire) {
                    let round = rounds.load(Ordering::Relaxed);
                    let data = vec![round as u8; back.len()];
                    assert_eq!(file.write_at(SYSTEM, 0, &data), Ok(data.len()));
                    assert_eq!(file.read_at(SYSTEM, 0, &mut back), Ok(data.len()));
                    assert!(back == data);
                    rounds.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(client.reconnects(), 0, "its connection broke");
            })
        };
        Bystander {
            is_over,
            rounds,
            thread: Some(thread),
        }
    }

    /// It still makes progress.
    pub(crate) fn goes_on(&self) {
        let (before, began) = (self.rounds.load(Ordering::Relaxed), Instant::now());
        while self.rounds.load(Ordering::Relaxed) < before + 2 {
            assert!(began.elapsed() < Duration::from_secs(10), "the bystander is held up");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let result = self.thread.take().expect("dropped once").join();
        assert!(
            result.is_ok() || std::thread::panicking(),
            "the bystander saw something"
        );
    }
}

pub(crate) fn new_file(exclusive: bool) -> NewFile {
    NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive,
    }
}

pub(crate) fn node(kind: FileKind, mode: u32) -> NewNode {
    NewNode { kind, mode, rdev: 0 }
}
