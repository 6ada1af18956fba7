//! Reading a log: which superblock counts, where the log ends, and its records.

use ferrite_blob::device::{Device, Op};
use ferrite_buffers::Pool;

use crate::error::{Error, Result};
use crate::format::{FRAME_BYTES, GROUP_BYTES_MAX, PAGE, Position, RING_AT, Superblock};
use crate::format::{group_bytes, is_whole, padded, places, records};
use crate::memory::take;

/// Every part of a blank device up to here is zero.
pub(crate) const BLANK_BYTES: u64 = 1 << 20;

fn read(device: &dyn Device, offset: u64, into: &mut [u8]) -> Result<()> {
    let done = device.run(&mut [Op::Read { offset, into }]);
    done.map_err(|error| Error::Failed(error.to_string()))
}

/// The superblock that counts. `None`: the device is blank.
pub(crate) fn superblock(device: &dyn Device, buffers: &Pool) -> Result<Option<Superblock>> {
    let name = device.name();
    if device.len_bytes() < RING_AT {
        return Err(Error::Refused(format!("{name}: it is too small for a log")));
    }
    let mut pages = take(buffers, RING_AT as usize)?;
    read(device, 0, &mut pages)?;
    let newest = pages.chunks(PAGE as usize).filter_map(Superblock::decode);
    let newest = newest.max_by_key(|superblock| superblock.generation);
    let Some(found) = newest else {
        return match is_blank(device, buffers)? {
            true => Ok(None),
            false => Err(Error::Refused(format!("{name}: it holds something that is no log"))),
        };
    };
    match RING_AT + found.ring_bytes <= device.len_bytes() {
        true => Ok(Some(found)),
        false => Err(Error::Damaged(format!(
            "{name}: the log in it is longer than it; give it its size back"
        ))),
    }
}

/// Whether a device begins with zeros, for longer than other programs leave free before their first mark.
fn is_blank(device: &dyn Device, buffers: &Pool) -> Result<bool> {
    let bytes = BLANK_BYTES.min(device.len_bytes() / PAGE * PAGE) as usize;
    let mut part = take(buffers, PAGE as usize)?;
    for at in (0..bytes).step_by(PAGE as usize) {
        read(device, at as u64, &mut part)?;
        if part.iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads a part of the ring.
pub(crate) fn read_ring(device: &dyn Device, ring_bytes: u64, position: u64, into: &mut [u8]) -> Result<()> {
    let [(first_at, first), (rest_at, _)] = places(ring_bytes, position, into.len() as u64);
    let (head, tail) = into.split_at_mut(first as usize);
    read(device, first_at, head)?;
    match tail.is_empty() {
        true => Ok(()),
        false => read(device, rest_at, tail),
    }
}

/// Reads the group at a position. Returns its length without padding; `None`: there is no whole one.
fn read_group(device: &dyn Device, of: &Superblock, position: u64, into: &mut [u8]) -> Result<Option<usize>> {
    read_ring(device, of.ring_bytes, position, &mut into[..PAGE as usize])?;
    let Some(bytes) = group_bytes(of.id, position, into) else {
        return Ok(None);
    };
    let all = padded(bytes) as usize;
    if all > PAGE as usize {
        read_ring(device, of.ring_bytes, position + PAGE, &mut into[PAGE as usize..all])?;
    }
    Ok(is_whole(&into[..bytes]).then_some(bytes))
}

/// The position behind the last whole group.
pub(crate) fn end(device: &dyn Device, buffers: &Pool, of: &Superblock) -> Result<u64> {
    let mut group = take(buffers, GROUP_BYTES_MAX)?;
    let mut position = of.head;
    while position < of.head + of.ring_bytes {
        match read_group(device, of, position, &mut group)? {
            Some(bytes) => position += padded(bytes),
            None => break,
        }
    }
    check_end(device, of, position, &mut group)?;
    Ok(position)
}

/// A torn group is the last one that was written. A whole one behind it means that something else has damaged it.
fn check_end(device: &dyn Device, of: &Superblock, end: u64, group: &mut [u8]) -> Result<()> {
    let last = (end + GROUP_BYTES_MAX as u64).min(of.head + of.ring_bytes - PAGE);
    let mut position = end + PAGE;
    while position <= last {
        if read_group(device, of, position, group)?.is_some() {
            return Err(Error::Damaged(format!(
                "{}: the log is damaged at byte {} of the device; what is behind it is whole, and cannot be used \
                 without it",
                device.name(),
                places(of.ring_bytes, end, PAGE)[0].0
            )));
        }
        position += PAGE;
    }
    Ok(())
}

/// Every record from the head of `of` to `end`.
pub(crate) fn each_record(
    device: &dyn Device,
    buffers: &Pool,
    of: &Superblock,
    end: u64,
    visit: &mut dyn FnMut(Position, &[u8]) -> Result<()>,
) -> Result<()> {
    let damaged = |position: u64, what: &str| {
        let at = places(of.ring_bytes, position, PAGE)[0].0;
        Error::Damaged(format!("{}: the log at byte {at} of the device: {what}", device.name()))
    };
    let mut group = take(buffers, GROUP_BYTES_MAX)?;
    let mut position = of.head;
    while position < end {
        let bytes = read_group(device, of, position, &mut group)?;
        let bytes = bytes.ok_or_else(|| damaged(position, "it has changed since it was opened"))?;
        debug_assert!(bytes >= FRAME_BYTES);
        for record in records(&group[..bytes]) {
            let (at, record) = record.ok_or_else(|| damaged(position, "a record is longer than its group"))?;
            let at = Position {
                group: position,
                record: position + at as u64,
            };
            visit(at, record)?;
        }
        position += padded(bytes);
    }
    Ok(())
}
