//! A log on two devices: what one of them has is enough.
//!
//! Everything is written to both at the same time, and counts once both have it; reads are of the near one. A device
//! that fails, or a far one that does not answer in time, fails the log; its owner passes it then, until the far
//! device is [joined](Mirror::join) again and the log [restarted](crate::Wal::restart).
//!
//! # Opening
//!
//! After a crash one device may have a group that the other lacks, and a superblock that is newer; one may have been
//! away while an owner used the other, be empty, or damaged. Of copies with the largest term each has whatever was said
//! to be durable in it, from its head on, unless it was damaged since; so the one that is sound and reaches farther
//! counts. The other is made the same before the log is used, from the head to the end, and its next group is made
//! void: a group that is left there does not come back later. It is no copy of any term while that is under way, and
//! gets its superblocks last, with a generation that neither had.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Arc;
use std::time::Duration;

use ferrite_blob::Result as BlobResult;
use ferrite_blob::device::{Device, Op};
use ferrite_buffers::Pool;
use ferrite_checks::ranked::Mutex;

use crate::bounded::Bounded;
use crate::error::{Error, Result};
use crate::format::{GROUP_BYTES_MAX, PAGE, RING_AT, Superblock, Term, places};
use crate::lock_order;
use crate::log::put;
use crate::memory::{pool, take};
use crate::replay;

/// Two devices with the same log, or one of them while the other is away.
pub struct Mirror {
    near: Arc<dyn Device>,
    far: Mutex<lock_order::Far, Option<Arc<Bounded>>>,
    /// How long the far one may take for an answer.
    limit: Duration,
    name: String,
}

/// A far device that may have the log, once that begins anew.
pub struct Joining(Arc<Bounded>);

impl Mirror {
    /// Both devices, once they are the same. The caller has them exclusively. `limit` bounds each wait for the far one.
    ///
    /// # Errors
    /// [`Error::Conflict`]: they have different logs of the owner. [`Error::Refused`]: one has a log of another owner,
    /// or holds something else, or is too small. [`Error::Damaged`]: both are. [`Error::Failed`].
    pub fn open(near: Arc<dyn Device>, far: Arc<dyn Device>, owner: [u8; 16], limit: Duration) -> Result<Mirror> {
        let far = Bounded::new(far, limit)?;
        let buffers = pool(2 * GROUP_BYTES_MAX)?;
        match (found(&*near, &buffers, owner)?, found(&far, &buffers, owner)?) {
            (None, None) => {}
            (Some(one), Some(other)) if one.id != other.id => {
                return Err(Error::Conflict(format!(
                    "{} and {} have different logs of the pool; empty the one that is not wanted",
                    near.name(),
                    far.name()
                )));
            }
            (Some(one), Some(other)) => make_same((&*near, one), (&far, other), &buffers)?,
            (None, Some(other)) => {
                let end = replay::end(&far, &buffers, &other)?;
                copy(&far, &*near, &buffers, (&other, end))?;
            }
            (Some(one), None) => {
                let end = replay::end(&*near, &buffers, &one)?;
                copy(&*near, &far, &buffers, (&one, end))?;
            }
        }
        let name = format!("{} and {}", near.name(), far.name());
        Ok(Mirror {
            near,
            far: Mutex::new(Some(Arc::new(far))),
            limit,
            name,
        })
    }

    /// One device while the other is away. The log may be read and freed, and not used before [`Self::join`]. With
    /// `is_far`, waits for this device are bounded as well.
    ///
    /// # Errors
    /// [`Error::Failed`]: the machine has no thread or no memory for it.
    pub fn alone(device: Arc<dyn Device>, is_far: bool, limit: Duration) -> Result<Mirror> {
        let near: Arc<dyn Device> = match is_far {
            true => Arc::new(Bounded::new(device, limit)?),
            false => device,
        };
        Ok(Mirror {
            name: near.name().into(),
            near,
            far: Mutex::new(None),
            limit,
        })
    }

    /// Gives up the far device, after it has failed. `false`: it may still carry out a write, and is kept.
    pub fn part(&self) -> bool {
        let mut far = self.far.lock();
        let is_idle = far.as_ref().is_none_or(|far| far.is_idle());
        if is_idle {
            *far = None;
        }
        is_idle
    }

    /// Prepares a far device that was away: it is no copy of any term from then on. Blocks for both devices.
    ///
    /// # Errors
    /// [`Error::Refused`]: it has another log, or a newer one, or holds something else, or is too small;
    /// [`Error::Failed`].
    pub fn prepare(&self, far: Arc<dyn Device>, owner: [u8; 16]) -> Result<Joining> {
        let far = Bounded::new(far, self.limit)?;
        let buffers = pool(GROUP_BYTES_MAX)?;
        let of_near = found(&*self.near, &buffers, owner)?;
        let of_near = of_near.ok_or_else(|| Error::Failed(format!("{}: its log is gone", self.near.name())))?;
        check_size(&far, &of_near)?;
        match found(&far, &buffers, owner)? {
            Some(other) if other.id != of_near.id || other.term > of_near.term => {
                let (far, near) = (far.name(), self.near.name());
                Err(Error::Refused(format!(
                    "{far}: it has another log than {near}, or a newer one"
                )))
            }
            _ => {
                make_void(&far, &buffers, &of_near)?;
                Ok(Joining(Arc::new(far)))
            }
        }
    }

    /// Takes a far device in. It has the log from [`crate::Wal::restart`] on. Does not block.
    pub fn join(&self, far: Joining) {
        *self.far.lock() = Some(far.0);
    }
}

/// The superblock of a device, which may have a log of this owner only.
fn found(device: &dyn Device, buffers: &Pool, owner: [u8; 16]) -> Result<Option<Superblock>> {
    let found = replay::superblock(device, buffers)?;
    match found {
        Some(found) if found.owner != owner => {
            let place = device.name();
            Err(Error::Refused(format!(
                "{place}: it has the log of another pool; name another device"
            )))
        }
        found => Ok(found),
    }
}

/// Makes two copies of a log the same.
fn make_same(
    (near, one): (&dyn Device, Superblock),
    (far, other): (&dyn Device, Superblock),
    buffers: &Pool,
) -> Result<()> {
    let newest = one.generation.max(other.generation);
    let (of_near, of_far) = match one.term.cmp(&other.term) {
        Greater => (Some(replay::end(near, buffers, &one)), None),
        Less => (None, Some(replay::end(far, buffers, &other))),
        Equal => (
            Some(replay::end(near, buffers, &one)),
            Some(replay::end(far, buffers, &other)),
        ),
    };
    let next = |of: Superblock| {
        // The first of the two superblocks to come goes where the source has its older one.
        let generation = newest + 2 + (newest + of.generation) % 2;
        Superblock { generation, ..of }
    };
    match (of_near, of_far) {
        (Some(Ok(end)), None | Some(Err(_))) => copy(near, far, buffers, (&next(one), end)),
        (None | Some(Err(_)), Some(Ok(end))) => copy(far, near, buffers, (&next(other), end)),
        (Some(Ok(end)), Some(Ok(other_end))) if end >= other_end => copy(near, far, buffers, (&next(one), end)),
        (Some(Ok(_)), Some(Ok(end))) => copy(far, near, buffers, (&next(other), end)),
        (Some(Err(error)), _) | (_, Some(Err(error))) => Err(error),
        (None, None) => Ok(()),
    }
}

fn check_size(device: &dyn Device, of: &Superblock) -> Result<()> {
    match device.len_bytes() < RING_AT + of.ring_bytes {
        true => Err(Error::Refused(format!(
            "{}: it has {} MiB; the log needs {} MiB",
            device.name(),
            device.len_bytes() >> 20,
            (RING_AT + of.ring_bytes).div_ceil(1 << 20)
        ))),
        false => Ok(()),
    }
}

fn run(device: &dyn Device, batch: &mut [Op<'_>]) -> Result<()> {
    let done = device.run(batch);
    done.map_err(|error| Error::Failed(error.to_string()))
}

/// Has a device be a copy of a log that lacks everything, and that any other copy is newer than.
fn make_void(device: &dyn Device, buffers: &Pool, of: &Superblock) -> Result<()> {
    for generation in [1, 2] {
        let void = Superblock {
            generation,
            head: 0,
            term: Term::default(),
            ..of.clone()
        };
        put(device, buffers, &void)?;
    }
    Ok(())
}

/// Makes one device the same as another, whose log is to have this superblock and ends here.
fn copy(from: &dyn Device, to: &dyn Device, buffers: &Pool, (of, end): (&Superblock, u64)) -> Result<()> {
    check_size(to, of)?;
    make_void(to, buffers, of)?;
    let mut part = take(buffers, GROUP_BYTES_MAX)?;
    let mut position = of.head;
    while position < end {
        let bytes = (end - position).min(GROUP_BYTES_MAX as u64);
        for (offset, bytes) in places(of.ring_bytes, position, bytes) {
            let part = &mut part[..bytes as usize];
            if !part.is_empty() {
                run(from, &mut [Op::Read { offset, into: part }])?;
                write(to, offset, part)?;
            }
        }
        position += bytes;
    }
    if end < of.head + of.ring_bytes {
        part[..PAGE as usize].fill(0);
        write(to, places(of.ring_bytes, end, PAGE)[0].0, &part[..PAGE as usize])?;
    }
    // The copy counts when it has the second one; the source has been no worse until it has its own.
    let older = Superblock {
        generation: of.generation.saturating_sub(1),
        ..of.clone()
    };
    for device in [to, from] {
        put(device, buffers, &older)?;
        put(device, buffers, of)?;
    }
    Ok(())
}

fn write(to: &dyn Device, offset: u64, from: &[u8]) -> Result<()> {
    let durable = true;
    run(to, &mut [Op::Write { offset, from, durable }])
}

impl Device for Mirror {
    fn name(&self) -> &str {
        &self.name
    }

    fn len_bytes(&self) -> u64 {
        let far = self.far.lock().clone();
        far.map_or(u64::MAX, |far| far.len_bytes()).min(self.near.len_bytes())
    }

    fn writes_whole_pages(&self) -> bool {
        let far = self.far.lock().clone();
        self.near.writes_whole_pages() && far.is_none_or(|far| far.writes_whole_pages())
    }

    fn run(&self, batch: &mut [Op<'_>]) -> BlobResult<()> {
        let Some(far) = self.far.lock().clone() else {
            return self.near.run(batch);
        };
        if batch.iter().all(|op| matches!(op, Op::Read { .. })) {
            return self.near.run(batch).or_else(|_| far.run(batch));
        }
        let running = far.start_writes(batch)?;
        let near = self.near.run(batch);
        near.and(far.finish(&running))
    }

    fn is_cut_off(&self) -> bool {
        self.near.is_cut_off()
    }
}
