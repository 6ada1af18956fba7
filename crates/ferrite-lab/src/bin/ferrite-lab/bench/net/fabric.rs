//! Small reads and writes over shared memory, against the provider alone: messages of the same lengths between two
//! threads of one process on the same cores, without any work on them.

use std::path::Path;
use std::time::Duration;

use ferrite_client::{Client, ClientOptions, Fabric};
use ferrite_transport::{Provider, raw_ping_pong};
use ferrite_vfs::SYSTEM;

use super::{FILE_BYTES, MESSAGE_BYTES, Served, circumstances, filled, page, pin, whole};
use crate::bench::contest::{Contest, timed};
use crate::bench::{Effort, Output};
use crate::{FAILED, Failure, complain};

const READ: &str = "net_read_4k_shm";
const WRITE: &str = "net_write_4k_shm";

pub(super) fn run(
    effort: Effort,
    out: &mut Output,
    base: &Path,
    placement: &'static str,
    server_core: usize,
) -> Result<(), Failure> {
    if !out.wants(READ) && !out.wants(WRITE) {
        return Ok(());
    }
    if !Provider::Shm.is_there() {
        complain(format_args!(
            "ferrite: shared memory left out: libfabric has no provider shm here"
        ));
        return Ok(());
    }
    let server = Served::pool(server_core, base, "fabric://127.0.0.1:0?provider=shm")?;
    let fabric = Fabric {
        provider: Some(Provider::Shm.name().into()),
        ..Fabric::default()
    };
    let options = ClientOptions::default().timeout(Some(Duration::from_secs(20)));
    let client = Client::connect(server.address()?, "", &options.fabric(Some(fabric)))?;
    let file = filled(&client)?;
    let count = effort.operations as u64;
    let mut block = [9; 4096];
    let raw = |there: usize, back: usize| {
        let other = || {
            // If pinning fails, the row is not what it claims, but the figures of both sides suffer alike.
            let _ = pin(server_core);
        };
        let taken = raw_ping_pong::exchange(Provider::Shm, "127.0.0.1", (there, back), count as u32, other);
        let taken = taken.map_err(|error| Failure::new(FAILED, error.to_string()))?;
        Ok(taken.as_nanos() as f64)
    };
    let contest = |name| Contest {
        name,
        against: "raw shm",
        rounds: effort.rounds,
        group: "net",
        contents: None,
        circumstances: circumstances(placement),
    };
    contest(READ).run(
        &mut || {
            timed(count, || {
                (0..count).try_for_each(|n| whole(file.read_at(SYSTEM, page(n, FILE_BYTES), &mut block)?, 4096))
            })
        },
        &mut || raw(MESSAGE_BYTES, MESSAGE_BYTES + 4096),
        out,
    )?;
    contest(WRITE).run(
        &mut || {
            timed(count, || {
                (0..count).try_for_each(|n| whole(file.write_at(SYSTEM, page(n, FILE_BYTES), &[8; 4096])?, 4096))
            })
        },
        &mut || raw(MESSAGE_BYTES + 4096, MESSAGE_BYTES),
        out,
    )
}
