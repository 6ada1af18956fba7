//! A server's adapter, and its queue pairs by session.
//!
//! Invariants: a queue pair is attached to its session before its first packet can arrive, and detached when none can
//! any more. A client of rdma_cm gets a queue pair of the session whose pass it has; passes are random, and end with
//! their session.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use ferrite_rnic::{ConnectRequest, End, Options, Peer, Rnic, Service, StartError};
use ferrite_roce::memory::{APPEND_AT, Memory, RESERVE_AT};
use ferrite_roce::requester::{Outcome, Request};
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::icrc::Ids;
use ferrite_roce::wire::{Psn, Qpn, UDP_PORT};
use ferrite_vfs::{FileSystem, FsError, Ino, Result};
use parking_lot::Mutex;

use crate::{KeyWanted, Keys, Rdma};
use ferrite_proto::{BoundFileInfo, GrantedKey, PASS_BYTES, QueuePairInfo, RdmaCounters, UdpPlace};

/// A granted key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The key.
    pub number: u32,
    /// The file's size.
    pub size: u64,
    /// The longest WRITE that is one step, if the key asks for atomic writes.
    pub atomic_bytes_max: u64,
}

/// The files behind keys.
pub trait Files: Keys + 'static {
    /// A thread's access to them.
    type Memory: Memory + Send + 'static;

    /// For another thread.
    fn memory(&self) -> Self::Memory;

    /// Attaches queue pairs of this number to a session.
    fn attach(&self, session: u64, qpn: Qpn);

    /// Detaches a queue pair that is gone, or already refuses everything.
    fn detach(&self, qpn: Qpn);

    /// Binds a file and gives a key. See [`Rdma::bind`].
    ///
    /// # Errors
    /// As there.
    fn bind(&self, wanted: &KeyWanted<'_>) -> Result<Key>;
}

#[derive(Debug, Default)]
struct OfSession {
    pass: [u8; PASS_BYTES],
    queue_pairs: Vec<Qpn>,
}

/// The queue pairs and passes of sessions.
#[derive(Debug, Default)]
struct Sessions {
    sessions: HashMap<u64, OfSession>,
    by_pass: HashMap<[u8; PASS_BYTES], u64>,
}

struct Inside<F> {
    files: Arc<F>,
    sessions: Mutex<Sessions>,
}

impl<F: Files> Service for Inside<F> {
    fn accept(&self, measured: &ConnectRequest<'_>) -> std::result::Result<Vec<u8>, Vec<u8>> {
        let mut sessions = self.sessions.lock();
        let pass = measured.private.first_chunk::<PASS_BYTES>();
        let session = pass.and_then(|pass| sessions.by_pass.get(pass).copied());
        let Some(session) = session else {
            return Err(b"no session has this pass".to_vec());
        };
        if let Some(of_session) = sessions.sessions.get_mut(&session) {
            of_session.queue_pairs.push(measured.qpn);
        }
        drop(sessions);
        self.files.attach(session, measured.qpn);
        Ok(Vec::new())
    }

    fn ended(&self, qpn: Qpn, end: End) {
        tracing::info!(qpn, ?end, "an RDMA queue pair ended");
        let mut sessions = self.sessions.lock();
        for of_session in sessions.sessions.values_mut() {
            of_session.queue_pairs.retain(|one| *one != qpn);
        }
        drop(sessions);
        self.files.detach(qpn);
    }
}

/// An adapter in software, with files behind its keys.
pub struct Adapter<F> {
    // Before what its threads use.
    rnic: Rnic,
    inside: Arc<Inside<F>>,
}

impl<F: Files> Adapter<F> {
    /// Starts an adapter.
    ///
    /// # Errors
    /// If it cannot have its addresses, or threads.
    pub fn start(options: &Options, files: Arc<F>) -> std::result::Result<Adapter<F>, StartError> {
        let inside = Arc::new(Inside {
            files: Arc::clone(&files),
            sessions: Mutex::default(),
        });
        let service = Arc::clone(&inside) as Arc<dyn Service>;
        Ok(Adapter {
            rnic: Rnic::start(options, service, |_| files.memory())?,
            inside,
        })
    }

    /// Sends a request to the peer of a queue pair, as [`Rnic::ask`] does.
    ///
    /// # Errors
    /// As there.
    pub fn ask(&self, qpn: Qpn, request: Request) -> std::result::Result<Outcome, ferrite_rnic::Error> {
        self.rnic.ask(qpn, request)
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.rnic.addresses()
    }
}

/// The client's end of a queue pair, if its description is valid. At the port of RoCE it is an adapter, which counts
/// its IPv4 packets; Ferrite's initiators have ports of their own, and send zeros.
fn peer_of(client: &QueuePairInfo) -> Option<Peer> {
    let ids = match client.place.0.port() {
        UDP_PORT => Ids::Any,
        _ => Ids::Zero,
    };
    Some(Peer {
        address: client.place.0,
        qpn: client.qpn,
        psn: Psn::new(client.psn),
        mtu: Mtu::from_code(client.mtu)?,
        ids,
        local: None,
    })
}

impl<F: Files> Keys for Adapter<F> {
    fn release(&self, session: u64, key: u32) {
        self.inside.files.release(session, key);
    }

    fn end_session(&self, session: u64) {
        let ended = {
            let mut sessions = self.inside.sessions.lock();
            let ended = sessions.sessions.remove(&session);
            sessions.by_pass.retain(|_, of| *of != session);
            ended
        };
        // First, so that a client whose requests fail because of it learns that from a reply.
        self.inside.files.end_session(session);
        for qpn in ended.into_iter().flat_map(|of_session| of_session.queue_pairs) {
            self.rnic.close(qpn);
            self.inside.files.detach(qpn);
        }
    }

    fn unbind(&self, fs: &Arc<dyn FileSystem>, ino: Ino) -> Result<()> {
        self.inside.files.unbind(fs, ino)
    }

    fn files(&self, fs: &Arc<dyn FileSystem>) -> Vec<BoundFileInfo> {
        self.inside.files.files(fs)
    }
}

impl<F: Files> Rdma for Adapter<F> {
    fn places(&self) -> Vec<SocketAddr> {
        self.rnic.addresses().to_vec()
    }

    fn open(&self, session: u64, client: &QueuePairInfo) -> Result<QueuePairInfo> {
        let refused = |why: &dyn std::fmt::Display| FsError::Io(format!("no queue pair: {why}"));
        let peer = peer_of(client).ok_or_else(|| refused(&"there is no such path MTU"))?;
        let mut given = None;
        let opened = self.rnic.open(&peer, |qpn| {
            given = Some(qpn);
            let mut sessions = self.inside.sessions.lock();
            sessions.sessions.entry(session).or_default().queue_pairs.push(qpn);
            drop(sessions);
            self.inside.files.attach(session, qpn);
        });
        match opened {
            Ok(ours) => Ok(QueuePairInfo {
                place: UdpPlace(ours.address),
                qpn: ours.qpn,
                psn: ours.psn.value(),
                mtu: ours.mtu.code(),
            }),
            Err(error) => {
                given.into_iter().for_each(|qpn| self.close(session, qpn));
                Err(refused(&error))
            }
        }
    }

    fn close(&self, session: u64, qpn: u32) {
        if let Some(of_session) = self.inside.sessions.lock().sessions.get_mut(&session) {
            of_session.queue_pairs.retain(|one| *one != qpn);
        }
        self.rnic.close(qpn);
        self.inside.files.detach(qpn);
    }

    fn bind(&self, wanted: &KeyWanted<'_>) -> Result<GrantedKey> {
        let key = self.inside.files.bind(wanted)?;
        Ok(GrantedKey {
            key: key.number,
            size: key.size,
            atomic_bytes_max: key.atomic_bytes_max,
            append_at: APPEND_AT,
            reserve_at: RESERVE_AT,
            pass: self.pass(wanted.session)?,
        })
    }

    fn counters(&self) -> RdmaCounters {
        let counters = self.rnic.counters();
        RdmaCounters {
            queue_pairs: counters.queue_pairs,
            received: counters.received,
            sent: counters.sent,
            executed: counters.executed,
            duplicates: counters.duplicates,
            not_ready: counters.not_ready,
            dropped: counters.dropped,
        }
    }
}

impl<F: Files> Adapter<F> {
    /// The private data that a client of rdma_cm presents for a queue pair of this session.
    fn pass(&self, session: u64) -> Result<[u8; PASS_BYTES]> {
        let mut sessions = self.inside.sessions.lock();
        let sessions = &mut *sessions;
        let of_session = sessions.sessions.entry(session).or_default();
        if of_session.pass == [0; PASS_BYTES] {
            of_session.pass = ferrite_vfs::random()?;
            sessions.by_pass.insert(of_session.pass, session);
        }
        Ok(of_session.pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adapters count their IPv4 packets, which the ICRC covers; an initiator known to send zeros must do so.
    #[test]
    fn adapters_may_count_their_packets() {
        let ids = |place: &str, mtu| {
            let reported = QueuePairInfo {
                place: UdpPlace(place.parse().unwrap()),
                qpn: 17,
                psn: 1,
                mtu,
            };
            peer_of(&reported).map(|peer| peer.ids)
        };
        assert_eq!(ids("10.0.0.1:4791", 3), Some(Ids::Any));
        assert_eq!(ids("[fd00::1]:4791", 3), Some(Ids::Any));
        assert_eq!(ids("10.0.0.1:40000", 3), Some(Ids::Zero));
        assert_eq!(ids("10.0.0.1:4791", 0), None);
    }
}
