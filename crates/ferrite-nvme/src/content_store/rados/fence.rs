//! The record of owners, and the takeover that fences all of them but one.
//!
//! Contents: [`take_over`], [`leave`], [`last`], and the record (`Record`): the newest epoch, and the instances whose
//! operations may still be under way. It is an xattr of the object `owner.SHARD`, as text that `rados getxattr` shows.
//!
//! Invariant: an instance is in the record before its owner changes anything, and until it is on the blocklist or has
//! no operation under way. The record changes only from a state that its writer has read; epochs only rise.

use std::time::Duration;

use ferrite_rados::{Client, Compare, Error as RadosError, Instance, Pool, ReadOp, WriteOp};

use super::object_name;
use crate::content_store::{Error, Guard, Result};

const XATTR: &str = "owner";
/// The first line of a record.
const VERSION: &str = "ferrite owner 1";
/// Instances in a record. More than one or two are there only if takeovers fail again and again.
const INSTANCES_MAX: usize = 256;
/// The longest record that is read, in bytes.
const RECORD_BYTES_MAX: usize = 32 << 10;
/// How often a change of the record is tried anew because another owner has changed it meanwhile.
const ATTEMPTS: usize = 16;
/// An entry in the blocklist lasts longer than any process with an operation under way.
const BLOCKED: Duration = Duration::from_secs(365 * 86_400);

/// The owners of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    epoch: u64,
    instances: Vec<Instance>,
}

impl Record {
    fn encode(&self) -> String {
        let instances = self.instances.iter().map(|instance| format!("{instance}\n"));
        format!("{VERSION}\n{}\n{}", self.epoch, instances.collect::<String>())
    }

    fn decode(text: &[u8]) -> Option<Record> {
        let text = std::str::from_utf8(text).ok()?;
        let mut lines = text.lines();
        if text.len() > RECORD_BYTES_MAX || lines.next()? != VERSION {
            return None;
        }
        let epoch = lines.next()?.parse().ok()?;
        let instances = lines.map(|line| line.parse().ok()).collect::<Option<Vec<Instance>>>()?;
        Some(Record { epoch, instances })
    }
}

/// The record as it is, with its text; `None` if the shard has no record.
fn read(pool: &Pool, guard: Guard) -> Result<Option<(Vec<u8>, Record)>> {
    let object = object_name::of_owner(guard.shard);
    let reply = match pool.read(&object, &ReadOp::new().xattr(XATTR), &mut []) {
        Err(RadosError::NotFound(_)) => return Ok(None),
        reply => reply.map_err(|error| failed(error, guard.epoch))?,
    };
    let text = reply.xattr(XATTR).unwrap_or_default().to_vec();
    let damaged = || {
        Error::Damaged(format!(
            "the record of owners, object {object} of Ceph pool {} in namespace {}, cannot be read",
            pool.name(),
            pool.namespace()
        ))
    };
    let record = Record::decode(&text).ok_or_else(damaged)?;
    Ok(Some((text, record)))
}

/// The epoch of the last owner, and whether one may still have operations under way; `None` if there was none.
///
/// # Errors
/// [`Error::Damaged`]; errors of the cluster.
pub(super) fn last(pool: &Pool, shard: u64) -> Result<Option<(u64, bool)>> {
    let found = read(pool, Guard { shard, epoch: 0 })?;
    Ok(found.map(|(_, record)| (record.epoch, !record.instances.is_empty())))
}

/// Replaces the record, if it still is `old`; otherwise returns `false`.
fn replace(pool: &Pool, guard: Guard, old: Option<&[u8]>, new: &Record) -> Result<bool> {
    let text = new.encode();
    let op = match old {
        None => WriteOp::new().create_exclusive(),
        Some(old) => WriteOp::new().compare(XATTR, Compare::Equal, old),
    };
    let op = op.set_xattr(XATTR, text.as_bytes());
    match pool.write(&object_name::of_owner(guard.shard), &op) {
        Ok(()) => Ok(true),
        Err(RadosError::Exists(_) | RadosError::Fenced(_) | RadosError::NotFound(_)) => Ok(false),
        Err(error) => Err(failed(error, guard.epoch)),
    }
}

/// The meaning of an error for the owner with this epoch.
fn failed(error: RadosError, epoch: u64) -> Error {
    match error {
        // A later owner has found this one in the record.
        RadosError::Blocklisted(_) => Error::Fenced {
            epoch: epoch.saturating_add(1),
        },
        RadosError::TimedOut { .. } => Error::Unknown(error.to_string()),
        RadosError::NoSpace(_) => Error::NoSpace,
        _ if error.is_denied() => Error::Failed(format!(
            "{error}; the client needs the capabilities `allow r, allow command \"osd blocklist\"` on the monitors and \
             `allow rwx` on the pool (`ceph auth caps`)"
        )),
        other => Error::Failed(other.to_string()),
    }
}

/// Makes `client` the owner: no operation of an earlier one has an effect that it has not seen. It has no operation
/// under way.
///
/// # Errors
/// [`Error::Fenced`] if the record has this epoch, or a later one; errors of the cluster.
pub(super) fn take_over(client: &Client, pool: &Pool, guard: Guard) -> Result<()> {
    let (mine, earlier) = register(client, pool, guard)?;
    let fenced = fence(client, &earlier, guard.epoch).and_then(|()| {
        let alone = Record {
            epoch: guard.epoch,
            instances: vec![client.instance().clone()],
        };
        replace(pool, guard, Some(mine.encode().as_bytes()), &alone)
    });
    match fenced {
        Ok(true) => Ok(()),
        Ok(false) => {
            let found = read(pool, guard)?;
            let epoch = found.map_or(guard.epoch, |(_, record)| record.epoch);
            Err(Error::Fenced { epoch })
        }
        Err(error) => {
            // It has changed nothing, so that the next owner need not fence it. If this fails, that one does.
            let without = Record {
                epoch: guard.epoch,
                instances: earlier,
            };
            let _ = replace(pool, guard, Some(mine.encode().as_bytes()), &without);
            Err(error)
        }
    }
}

/// Adds the client to the record; returns that, and the instances that it had before.
fn register(client: &Client, pool: &Pool, guard: Guard) -> Result<(Record, Vec<Instance>)> {
    for _ in 0..ATTEMPTS {
        let found = read(pool, guard)?;
        let old = found.as_ref().map(|(text, _)| text.as_slice());
        let earlier = match &found {
            Some((_, record)) if record.epoch >= guard.epoch => return Err(Error::Fenced { epoch: record.epoch }),
            Some((_, record)) => record.instances.clone(),
            None => Vec::new(),
        };
        if earlier.len() >= INSTANCES_MAX {
            return Err(Error::Failed(format!(
                "{INSTANCES_MAX} takeovers of Ceph pool {} have failed, and the next one would not be recorded; put \
                 the instances that object {} lists on the blocklist, and remove it",
                pool.name(),
                object_name::of_owner(guard.shard)
            )));
        }
        let mut mine = Record {
            epoch: guard.epoch,
            instances: earlier.clone(),
        };
        mine.instances.push(client.instance().clone());
        if replace(pool, guard, old, &mine)? {
            return Ok((mine, earlier));
        }
    }
    Err(Error::Failed(format!(
        "other servers take over Ceph pool {} at the same time; let only one open it",
        pool.name()
    )))
}

fn fence(client: &Client, earlier: &[Instance], epoch: u64) -> Result<()> {
    for instance in earlier {
        let blocked = client.blocklist(instance, BLOCKED);
        blocked.map_err(|error| failed(error, epoch))?;
    }
    // Other owners may have made entries after this client connected.
    client.wait_for_latest_map().map_err(|error| failed(error, epoch))
}

/// Takes the client out of the record, when it has no operation under way. The next owner then has to fence nothing.
pub(super) fn leave(client: &Client, pool: &Pool, guard: Guard) -> Result<()> {
    let alone = Record {
        epoch: guard.epoch,
        instances: vec![client.instance().clone()],
    };
    let nobody = Record {
        epoch: guard.epoch,
        instances: Vec::new(),
    };
    // If another owner has changed it, that one has fenced this client.
    replace(pool, guard, Some(alone.encode().as_bytes()), &nobody).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one() {
        let record = Record {
            epoch: 7,
            instances: ["127.0.0.1:0/5", "v2:10.0.0.1:3300/1"]
                .map(|text| text.parse().unwrap())
                .into(),
        };
        assert_eq!(Record::decode(record.encode().as_bytes()), Some(record));
        for other in [
            "",
            "ferrite owner 2\n7\n",
            "ferrite owner 1\n",
            "ferrite owner 1\n7\n10.0.0.1\n",
        ] {
            assert_eq!(Record::decode(other.as_bytes()), None, "{other}");
        }
    }
}
