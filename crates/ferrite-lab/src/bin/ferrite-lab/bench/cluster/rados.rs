//! Content in Ceph, compared with librados alone: the same bytes at the same places of objects of the same size.
//!
//! A Ceph of this group's own, on loopback, with one OSD, holds the objects of both sides. The engine adds to a write
//! the file's size and times, in the same atomic operation, and the fence of the owner's client.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use ferrite_buffers::Buffer;
use ferrite_lab::peers::{FILE_BYTES, page};
use ferrite_nvme::{DataPlace, Rados};
use ferrite_rados::{Client, Options, Pool, ReadOp, WriteOp};
use ferrite_test_clusters::{Ceph, CephOptions, Postgres};

use super::super::{Effort, Output, whole};
use super::{LARGE_BYTES, Operation, Side, THREADS, buffers, contest, large, on_database, round};
use crate::Failure;

/// Names of the rows: each operation from one thread, and from [`THREADS`].
pub(super) const NAMES: &[&str] = &[
    "cluster_rados_write_4k",
    "cluster_rados_write_4k_16_threads",
    "cluster_rados_read_4m",
    "cluster_rados_read_4m_16_threads",
    "cluster_rados_write_4m",
    "cluster_rados_write_4m_16_threads",
];
const OPERATIONS: [Operation; 3] = [Operation::Write4k, Operation::Read4m, Operation::Write4m];

/// Runs the rows that are wanted.
pub(super) fn run(effort: Effort, out: &mut Output, database: &Postgres, dir: &Path) -> Result<(), Failure> {
    if !NAMES.iter().any(|name| out.wants(name)) {
        return Ok(());
    }
    let ceph = Ceph::start(&CephOptions {
        osd_bytes: 8 << 30,
        ..CephOptions::default()
    })?;
    let ours = Side::make(dir, "ceph", |config| {
        on_database(config, database, "content");
        config.data = DataPlace::Rados(Rados {
            pool: ceph.pool().to_owned(),
            conf: ceph.conf(),
            client: "client.admin".into(),
            keyring: None,
            namespace: None,
        });
    })?;
    let theirs = Raw::connect(&ceph)?;
    for (operation, names) in OPERATIONS.into_iter().zip(NAMES.chunks(2)) {
        for (&name, threads) in names.iter().zip([1, THREADS]) {
            if !out.wants(name) {
                continue;
            }
            let count = (operation.count(effort, threads) / 4).max(2);
            let (mut mine, mut other) = (buffers(operation, threads)?, buffers(operation, threads)?);
            let ours = &mut || ours.round(operation, count, &mut mine);
            let theirs = &mut || theirs.round(operation, count, &mut other);
            contest(effort, name, "librados", "goal at most 1.2", threads).run(ours, theirs, out)?;
        }
    }
    Ok(())
}

/// Objects that librados alone reads and writes.
struct Raw {
    // Before the client, to which it belongs.
    pool: Pool,
    _client: Client,
    next: AtomicU64,
}

impl Raw {
    /// Makes the objects, with content.
    fn connect(ceph: &Ceph) -> Result<Raw, Failure> {
        let client = Client::connect(&ceph.conf(), "client.admin", Options::default())?;
        let pool = client.pool_in(ceph.pool(), "raw")?;
        let content = vec![1; LARGE_BYTES];
        for at in (0..FILE_BYTES).step_by(LARGE_BYTES) {
            pool.write(&object(at), &WriteOp::new().write(0, &content))?;
        }
        Ok(Raw {
            pool,
            _client: client,
            next: AtomicU64::new(0),
        })
    }

    /// As [`Side::round`] does.
    fn round(&self, operation: Operation, count: u64, buffers: &mut [Buffer]) -> Result<f64, Failure> {
        round(&self.next, count, buffers, |turn, buffer| {
            self.operate(operation, turn.number, buffer)
        })
    }

    fn operate(&self, operation: Operation, n: u64, buffer: &mut Buffer) -> Result<(), Failure> {
        let at = match operation {
            Operation::Write4k => page(n, FILE_BYTES),
            _ => large(n),
        };
        let (name, offset) = (object(at), at % LARGE_BYTES as u64);
        if operation == Operation::Read4m {
            let len = buffer.len();
            return whole(self.pool.read(&name, &ReadOp::new().read(offset), buffer)?.len, len);
        }
        Ok(self.pool.write(&name, &WriteOp::new().write(offset, buffer))?)
    }
}

/// The object with the byte at an offset of the whole.
fn object(at: u64) -> String {
    format!("object-{}", at / LARGE_BYTES as u64)
}
