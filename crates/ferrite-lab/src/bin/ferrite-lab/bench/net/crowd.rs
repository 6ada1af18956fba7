//! Busy clients beside many idle ones: 16 that read all the time, on a server with 1,000 further sessions, and on a
//! server without them.
//!
//! The idle clients live in this process, and keep their sessions as any client does: that costs the same cores.

use std::path::Path;
use std::sync::Arc;

use ferrite_client::Client;
use ferrite_lab::peers::{FILE_BYTES, page};
use ferrite_vfs::{FileSystem, OpenMode, ROOT_INO, SYSTEM};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Served, circumstances, connect, filled};
use crate::bench::contest::{Contest, timed};
use crate::bench::{Circumstances, Effort, Output, whole};
use crate::{FAILED, Failure};

const BUSY: usize = 16;
const IDLE: usize = 1000;
/// Files that a client has open, with a margin.
const FILES_EACH: u64 = 4;

pub(super) const NAME: &str = "net_read_4k_16_busy_1000_idle";

/// A server, and clients that will be busy with it.
struct Site {
    server: Served,
    busy: Vec<Arc<Client>>,
}

impl Site {
    fn new(core: usize, base: &Path) -> Result<Site, Failure> {
        std::fs::create_dir_all(base)?;
        let server = Served::pool(core, base, "tcp://127.0.0.1:0")?;
        drop(filled(&*connect(server.address()?)?)?);
        let busy = (0..BUSY).map(|_| connect(server.address()?));
        Ok(Site {
            busy: busy.collect::<Result<_, _>>()?,
            server,
        })
    }

    /// Each client reads this many times, all at once; returns the nanoseconds that one of them waits for a read.
    fn work(&self, each: u64) -> Result<f64, Failure> {
        timed(each, || {
            std::thread::scope(|scope| {
                let start = |client: &Arc<Client>| {
                    let client = Arc::clone(client);
                    scope.spawn(move || read(&client, each))
                };
                let threads: Vec<_> = self.busy.iter().map(start).collect();
                threads.into_iter().try_for_each(|thread| {
                    let ended = thread.join();
                    ended.unwrap_or_else(|_| Err(Failure::new(FAILED, "a client of the benchmark has failed")))
                })
            })
        })
    }
}

fn read(client: &Client, count: u64) -> Result<(), Failure> {
    let ino = client.lookup(SYSTEM, ROOT_INO, b"data")?.ino;
    let file = client.open(SYSTEM, ino, OpenMode::read_write())?;
    let mut block = [0; 4096];
    (0..count).try_for_each(|n| whole(file.read_at(SYSTEM, page(n, FILE_BYTES), &mut block)?, 4096))
}

/// Runs it, where that many files may be open.
pub(super) fn run(
    effort: Effort,
    out: &mut Output,
    base: &Path,
    placement: &'static str,
    core: usize,
) -> Result<(), Failure> {
    if !out.wants(NAME) {
        return Ok(());
    }
    // The servers inherit the limit.
    let limit = getrlimit(Resource::Nofile);
    let wanted = FILES_EACH * IDLE as u64;
    if limit.current.is_some_and(|current| current < wanted) {
        let current = limit.maximum.map_or(wanted, |most| most.min(wanted));
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(current),
                ..limit
            },
        )?;
    }
    let (crowded, quiet) = (
        Site::new(core, &base.join("crowded"))?,
        Site::new(core, &base.join("quiet"))?,
    );
    let idle = (0..IDLE).map(|_| connect(crowded.server.address()?));
    let idle = idle.collect::<Result<Vec<_>, _>>()?;
    let contest = Contest {
        group: "net",
        name: NAME,
        against: "no idle sessions",
        rounds: effort.rounds,
        contents: None,
        circumstances: Circumstances {
            threads: BUSY as u32,
            ..circumstances(placement)
        },
    };
    let each = (effort.operations / BUSY).max(20) as u64;
    contest.run(&mut || crowded.work(each), &mut || quiet.work(each), out)?;
    drop(idle);
    Ok(())
}
