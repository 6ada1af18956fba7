//! A file of an engine in memory, bound, with an adapter in front of it and clients that poll without sleeping.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ferrite_fs::{Engine, Mapping, MkfsOptions, MountOptions};
use ferrite_mr::{FileMemory, Options, Registrar, Rights, SessionId};
use ferrite_rnic::{Initiator, InitiatorOptions, NoService, Peer, QueuePair, Rnic};
use ferrite_roce::requester::Request;
use ferrite_roce::wire::Qpn;
use ferrite_vfs::regions::Binding;
use ferrite_vfs::{FileSystem, Ino, SYSTEM};

use super::{failed, layout};
use crate::engine::engine_in_memory;
use crate::error::LabError;

/// Both ends poll this long before they sleep: longer than an answer takes, and shorter than other measurements.
const BUSY_POLL: Duration = Duration::from_millis(1);
/// Writes under way for a client that does not wait for each.
const UNDER_WAY: usize = 64;
const SESSION: SessionId = SessionId(1);

/// See the module's head.
pub struct Served {
    // In this order: the adapter's threads use the fields below.
    rnic: Rnic,
    registrar: Registrar,
    engine: Engine,
    ino: Ino,
    key: u32,
    file_bytes: u64,
}

impl Served {
    /// A file of `file_bytes`, fully written, in a pool with this mapping.
    ///
    /// # Errors
    /// Too little memory; no socket or thread.
    pub fn new(mapping: Mapping, file_bytes: u64) -> Result<Served, LabError> {
        let mkfs = MkfsOptions::default().mapping(mapping).seed(1);
        let engine = engine_in_memory(
            file_bytes + file_bytes / 4 + (64 << 20),
            &mkfs,
            &MountOptions::default(),
        )?;
        let ino = layout::written(&engine, "data", file_bytes)?;
        let registrar = Registrar::new(Options::default())?;
        let fs: Arc<dyn FileSystem> = Arc::new(engine.clone());
        let binding = Binding {
            writable: true,
            defragment: false,
            whole: true,
        };
        let key = registrar.bind(&fs, SYSTEM, ino, binding, SESSION, Rights::ALL)?.key;
        let options = ferrite_rnic::Options {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            busy_poll: BUSY_POLL,
            ..ferrite_rnic::Options::default()
        };
        let rnic = Rnic::start(&options, Arc::new(NoService), |_| registrar.memory()).map_err(failed)?;
        Ok(Served {
            rnic,
            registrar,
            engine,
            ino,
            key,
            file_bytes,
        })
    }

    /// The engine that has the file.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The file.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The file's key.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The file's length.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub(super) fn address(&self) -> Result<SocketAddr, LabError> {
        let first = self.rnic.addresses().first().copied();
        first.ok_or_else(|| failed("the adapter listens nowhere"))
    }

    /// A queue pair that may use the key.
    pub(super) fn open(&self, peer: &Peer) -> Result<QueuePair, LabError> {
        let attach = |qpn| self.registrar.attach(SESSION, qpn);
        self.rnic.open(peer, attach).map_err(failed)
    }

    pub(super) fn close(&self, qpn: Qpn) {
        self.rnic.close(qpn);
        self.registrar.detach(qpn);
    }

    /// The file memory of the adapter's threads, for callers that use it directly, and a queue pair that may use the
    /// key.
    pub fn memory(&self) -> (FileMemory, Qpn) {
        // The adapter never assigns a number of more than 24 bits.
        let qpn = 1 << 24;
        self.registrar.attach(SESSION, qpn);
        (self.registrar.memory(), qpn)
    }

    /// A client with a queue pair.
    ///
    /// # Errors
    /// No socket, or too many queue pairs.
    pub fn initiator(&self) -> Result<Initiator, LabError> {
        let options = InitiatorOptions {
            busy_poll: BUSY_POLL,
            ..InitiatorOptions::default()
        };
        let mut initiator = Initiator::new(self.address()?, options).map_err(failed)?;
        let queue_pair = self.open(&initiator.offer())?;
        initiator.connect(&queue_pair);
        Ok(initiator)
    }

    /// Writes 4 KiB to pages in sequence, `count` times, with many under way.
    ///
    /// # Errors
    /// A write that failed.
    pub fn write_pages(&self, initiator: &mut Initiator, count: u64) -> Result<(), LabError> {
        let data = vec![7; 4096];
        let mut under_way = VecDeque::new();
        for number in 0..count {
            let request = Request::Write {
                key: self.key,
                at: number * 4096 % self.file_bytes,
                data: data.clone(),
                immediate: None,
            };
            under_way.push_back(initiator.post(request).map_err(failed)?);
            if under_way.len() > UNDER_WAY
                && let Some(first) = under_way.pop_front()
            {
                initiator.wait(first).map_err(failed)?;
            }
        }
        for ticket in under_way {
            initiator.wait(ticket).map_err(failed)?;
        }
        Ok(())
    }
}
