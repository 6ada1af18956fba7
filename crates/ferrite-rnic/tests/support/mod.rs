//! An adapter with files in memory, and initiators for it, over loopback.

#![allow(dead_code, reason = "each test uses its part")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrite_rnic::{End, Initiator, InitiatorOptions, NoService, Options, Rnic, Service};
use ferrite_roce::memory::{Delivery, Fault, Memory, Message, Part, RESERVE_AT, Received};
use ferrite_roce::wire::Qpn;

/// The key of the writable file.
pub(crate) const KEY: u32 = 7;
/// Both families.
pub(crate) const LOOPBACKS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

/// Files by key, and where messages under way go.
#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) files: HashMap<u32, Vec<u8>>,
    under_way: HashMap<(Qpn, u64), u64>,
    /// So many calls are deferred.
    pub(crate) not_ready: u32,
    pub(crate) abandoned: u32,
}

/// A memory that all threads share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files(pub(crate) Arc<Mutex<Inner>>);

impl Files {
    pub(crate) fn with(len: usize) -> Files {
        let files = Files::default();
        files.0.lock().unwrap().files.insert(KEY, vec![0; len]);
        files
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().files[&KEY].clone()
    }

    pub(crate) fn put_off(&self, calls: u32) {
        self.0.lock().unwrap().not_ready = calls;
    }
}

impl Inner {
    fn range(&mut self, key: u32, at: u64, len: usize) -> Result<&mut [u8], Fault> {
        let file = self.files.get_mut(&key).ok_or(Fault::Access)?;
        let start = usize::try_from(at).map_err(|_| Fault::Access)?;
        let end = start.checked_add(len).ok_or(Fault::Access)?;
        file.get_mut(start..end).ok_or(Fault::Access)
    }

    fn grow(&mut self, key: u32, len: u64) -> Result<u64, Fault> {
        let file = self.files.get_mut(&key).ok_or(Fault::Access)?;
        let end = file.len();
        file.resize(end + len as usize, 0);
        Ok(end as u64)
    }

    fn word(&mut self, key: u32, at: u64, change: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        let bytes = self.range(key, at, 8)?;
        let before = u64::from_le_bytes(bytes.try_into().unwrap());
        bytes.copy_from_slice(&change(before).to_le_bytes());
        Ok(before)
    }
}

impl Memory for Files {
    fn begin(&mut self, message: &Message) -> Result<Delivery, Fault> {
        let mut inner = self.0.lock().unwrap();
        if inner.not_ready > 0 {
            inner.not_ready -= 1;
            return Err(Fault::NotReady { wait_ns: 20_000 });
        }
        let start = match message.is_append() {
            true => inner.grow(message.key, message.len_bytes.into())?,
            false => {
                inner.range(message.key, message.at, message.len_bytes as usize)?;
                message.at
            }
        };
        let before = inner.under_way.insert((message.qpn, message.number), start);
        assert_eq!(before, None, "{message:?} begins twice");
        Ok(Delivery::Parts)
    }

    fn write(&mut self, message: &Message, part: &Part<'_>) -> Result<(), Fault> {
        if message.len_bytes == 0 {
            return Ok(());
        }
        let mut inner = self.0.lock().unwrap();
        let name = (message.qpn, message.number);
        let start = inner.under_way[&name] + u64::from(part.offset_bytes);
        inner
            .range(message.key, start, part.data.len())?
            .copy_from_slice(part.data);
        if part.is_last {
            inner.under_way.remove(&name);
        }
        Ok(())
    }

    fn write_whole(&mut self, _message: &Message, _data: &[u8], _immediate: Option<u32>) -> Result<(), Fault> {
        Err(Fault::Operational)
    }

    fn abandon(&mut self, message: &Message, _arrived_bytes: u32) {
        let mut inner = self.0.lock().unwrap();
        inner.under_way.remove(&(message.qpn, message.number));
        inner.abandoned += 1;
    }

    fn may_read(&mut self, message: &Message) -> Result<(), Fault> {
        let mut inner = self.0.lock().unwrap();
        inner
            .range(message.key, message.at, message.len_bytes as usize)
            .map(drop)
    }

    fn read(&mut self, message: &Message, offset_bytes: u32, into: &mut [u8]) -> Result<(), Fault> {
        let mut inner = self.0.lock().unwrap();
        let at = message.at + u64::from(offset_bytes);
        into.copy_from_slice(inner.range(message.key, at, into.len())?);
        Ok(())
    }

    fn fetch_add(&mut self, _qpn: Qpn, key: u32, at: u64, add: u64) -> Result<u64, Fault> {
        let mut inner = self.0.lock().unwrap();
        match at {
            RESERVE_AT => inner.grow(key, add),
            _ => inner.word(key, at, |word| word.wrapping_add(add)),
        }
    }

    fn compare_swap(&mut self, _qpn: Qpn, key: u32, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        let mut inner = self.0.lock().unwrap();
        if at == RESERVE_AT {
            let end = inner.grow(key, 0)?;
            return match end == compare {
                true => inner.grow(key, swap - compare),
                false => Ok(end),
            };
        }
        inner.word(key, at, |word| if word == compare { swap } else { word })
    }

    fn receive(&mut self, _qpn: Qpn, _received: &Received<'_>) -> Result<(), Fault> {
        Err(Fault::Access)
    }
}

/// A service that remembers which queue pairs ended.
#[derive(Debug, Default)]
pub(crate) struct Ends(pub(crate) Mutex<Vec<(Qpn, End)>>);

impl Service for Ends {
    fn accept(&self, request: &ferrite_rnic::ConnectRequest<'_>) -> Result<Vec<u8>, Vec<u8>> {
        match request.private.starts_with(b"let me in") {
            true => Ok(b"welcome".to_vec()),
            false => Err(b"no".to_vec()),
        }
    }

    fn ended(&self, qpn: Qpn, end: End) {
        self.0.lock().unwrap().push((qpn, end));
    }
}

pub(crate) fn options(listen: &str, threads: usize) -> Options {
    Options {
        listen: vec![listen.parse().unwrap()],
        threads,
        ..Options::default()
    }
}

pub(crate) fn start(listen: &str, threads: usize, files: &Files) -> Rnic {
    Rnic::start(&options(listen, threads), Arc::new(NoService), |_| files.clone()).unwrap()
}

/// Timeouts long enough for a busy machine, but finite.
pub(crate) fn asking() -> InitiatorOptions {
    InitiatorOptions {
        retry_after: Duration::from_millis(100),
        retries: 20,
        ..InitiatorOptions::default()
    }
}

/// An initiator with a queue pair of the adapter; returns its number there, too.
pub(crate) fn connect(rnic: &Rnic, server: SocketAddr, options: InitiatorOptions) -> (Initiator, Qpn) {
    let mut initiator = Initiator::new(server, options).unwrap();
    let queue_pair = rnic.open_queue_pair(&initiator.offer()).unwrap();
    initiator.connect(&queue_pair);
    (initiator, queue_pair.qpn)
}
