//! A test double of the files behind keys: files of any engine, reached by its ordinary calls. So these tests are about
//! rights to queue pairs and keys, and their lifetime, and not about the speed of finding a page.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferrite_proto::BoundFileInfo;
use ferrite_roce::memory::{Delivery, Fault, Memory, Message, Part, RESERVE_AT, Received};
use ferrite_roce::wire::Qpn;
use ferrite_server::rdma::{self, Files};
use ferrite_server::{KeyWanted, Keys};
use ferrite_vfs::{FileSystem, FsError, Ino, OpenFile, OpenMode, Position, Result, SYSTEM, SetAttr, Unsupported};
use parking_lot::Mutex;

struct Key {
    session: u64,
    ino: Ino,
    writable: bool,
    file: Arc<dyn OpenFile>,
}

#[derive(Default)]
struct Inner {
    keys: HashMap<u32, Key>,
    queue_pairs: HashMap<Qpn, u64>,
}

/// See the head of this module.
#[derive(Default)]
pub(crate) struct Double {
    inner: Arc<Mutex<Inner>>,
    next: AtomicU32,
    refuses: Option<Unsupported>,
}

impl Double {
    /// Refuses to bind any file.
    pub(crate) fn refusing(why: Unsupported) -> Double {
        Double {
            refuses: Some(why),
            ..Double::default()
        }
    }

    pub(crate) fn keys(&self) -> usize {
        self.inner.lock().keys.len()
    }

    pub(crate) fn queue_pairs(&self) -> usize {
        self.inner.lock().queue_pairs.len()
    }

    /// As a change of permissions does: keys end while their holders continue.
    pub(crate) fn revoke_all(&self) {
        self.inner.lock().keys.clear();
    }
}

impl Files for Double {
    type Memory = Reach;

    fn memory(&self) -> Reach {
        Reach(Arc::clone(&self.inner))
    }

    fn attach(&self, session: u64, qpn: Qpn) {
        self.inner.lock().queue_pairs.insert(qpn, session);
    }

    fn detach(&self, qpn: Qpn) {
        self.inner.lock().queue_pairs.remove(&qpn);
    }

    fn bind(&self, wanted: &KeyWanted<'_>) -> Result<rdma::Key> {
        if let Some(why) = self.refuses {
            return Err(FsError::NotSupported(why));
        }
        let mode = OpenMode {
            read: true,
            write: wanted.binding.writable,
            ..OpenMode::default()
        };
        let file = wanted.fs.open(wanted.ctx, wanted.ino, mode)?;
        let size = file.getattr(SYSTEM)?.size;
        let number = 0x1000 + self.next.fetch_add(1, Ordering::Relaxed);
        let key = Key {
            session: wanted.session,
            ino: wanted.ino,
            writable: wanted.binding.writable,
            file,
        };
        self.inner.lock().keys.insert(number, key);
        Ok(rdma::Key {
            number,
            size,
            atomic_bytes_max: 4_096,
        })
    }
}

impl Keys for Double {
    fn release(&self, _session: u64, key: u32) {
        self.inner.lock().keys.remove(&key);
    }

    fn end_session(&self, session: u64) {
        self.inner.lock().keys.retain(|_, key| key.session != session);
    }

    fn unbind(&self, _fs: &Arc<dyn FileSystem>, ino: Ino) -> Result<()> {
        self.inner.lock().keys.retain(|_, key| key.ino != ino);
        Ok(())
    }

    fn files(&self, _fs: &Arc<dyn FileSystem>) -> Vec<BoundFileInfo> {
        let inner = self.inner.lock();
        let reported = |key: &Key| BoundFileInfo {
            ino: key.ino,
            size: key.file.getattr(SYSTEM).unwrap().size,
            is_attached: true,
            writable: key.writable,
            keys: 1,
            ..BoundFileInfo::default()
        };
        inner.keys.values().map(reported).collect()
    }
}

/// A thread's way to the files.
pub(crate) struct Reach(Arc<Mutex<Inner>>);

impl Reach {
    fn file(&self, qpn: Qpn, key: u32, write: bool) -> std::result::Result<Arc<dyn OpenFile>, Fault> {
        let inner = self.0.lock();
        let key = inner.keys.get(&key).ok_or(Fault::Access)?;
        let is_its = inner.queue_pairs.get(&qpn) == Some(&key.session);
        (is_its && (key.writable || !write))
            .then(|| Arc::clone(&key.file))
            .ok_or(Fault::Access)
    }

    fn within(file: &dyn OpenFile, at: u64, len: u64) -> std::result::Result<(), Fault> {
        let size = file.getattr(SYSTEM).map_err(|_| Fault::Operational)?.size;
        (at + len <= size).then_some(()).ok_or(Fault::Access)
    }
}

impl Memory for Reach {
    fn begin(&mut self, message: &Message) -> std::result::Result<Delivery, Fault> {
        let file = self.file(message.qpn, message.key, true)?;
        if !message.is_append() {
            Reach::within(&*file, message.at, message.len_bytes.into())?;
        }
        Ok(Delivery::Whole)
    }

    fn write(&mut self, _message: &Message, _part: &Part<'_>) -> std::result::Result<(), Fault> {
        Ok(())
    }

    fn write_whole(&mut self, message: &Message, data: &[u8], _: Option<u32>) -> std::result::Result<(), Fault> {
        let file = self.file(message.qpn, message.key, true)?;
        let position = match message.is_append() {
            true => Position::End,
            false => Position::At(message.at),
        };
        let written = file.write(SYSTEM, position.into(), data);
        written.map(drop).map_err(|_| Fault::Operational)
    }

    fn abandon(&mut self, _message: &Message, _arrived_bytes: u32) {}

    fn may_read(&mut self, message: &Message) -> std::result::Result<(), Fault> {
        let file = self.file(message.qpn, message.key, false)?;
        Reach::within(&*file, message.at, message.len_bytes.into())
    }

    fn read(&mut self, message: &Message, offset_bytes: u32, into: &mut [u8]) -> std::result::Result<(), Fault> {
        let file = self.file(message.qpn, message.key, false)?;
        let count = file.read_at(SYSTEM, message.at + u64::from(offset_bytes), into);
        (count.ok() == Some(into.len())).then_some(()).ok_or(Fault::Operational)
    }

    fn fetch_add(&mut self, qpn: Qpn, key: u32, at: u64, add: u64) -> std::result::Result<u64, Fault> {
        let file = self.file(qpn, key, true)?;
        if at != RESERVE_AT {
            return Err(Fault::Access);
        }
        let zeros = vec![0; add as usize];
        let written = file.write(SYSTEM, Position::End.into(), &zeros);
        written.map(|written| written.offset).map_err(|_| Fault::Operational)
    }

    fn compare_swap(
        &mut self,
        qpn: Qpn,
        key: u32,
        at: u64,
        compare: u64,
        swap: u64,
    ) -> std::result::Result<u64, Fault> {
        let file = self.file(qpn, key, true)?;
        if at != RESERVE_AT {
            return Err(Fault::Access);
        }
        // Other threads may run between these two.
        let _alone = self.0.lock();
        let size = file.getattr(SYSTEM).map_err(|_| Fault::Operational)?.size;
        if size == compare {
            let set = SetAttr {
                size: Some(swap),
                ..SetAttr::default()
            };
            file.setattr(SYSTEM, &set).map_err(|_| Fault::Operational)?;
        }
        Ok(size)
    }

    fn receive(&mut self, _qpn: Qpn, _received: &Received<'_>) -> std::result::Result<(), Fault> {
        Err(Fault::Access)
    }
}
