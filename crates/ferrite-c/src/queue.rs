//! Transfers that are submitted, and reaped when they have completed.

use std::ffi::{c_int, c_uint, c_void};
use std::num::NonZeroUsize;
use std::time::Duration;

use ferrite::Queue;

use crate::border::{self, Destination, bytes, bytes_mut};
use crate::failure::{Failure, call, given};
use crate::file::{OpenFile, offset};

/// Transfers under way, and those that have completed.
pub struct Transfers(Queue<Tag>);

/// The caller's tag, and the memory for a read.
struct Tag {
    tag: u64,
    into: Option<Destination>,
}

/// The end of a submitted transfer. Programs have arrays of it, so it never grows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Completion {
    /// The tag that it was submitted with.
    pub tag: u64,
    /// The bytes read or written, or the negative errno.
    pub result: i64,
    /// The offset at which it began; for an append, the one that the file system chose.
    pub offset: u64,
    /// 0.
    pub reserved: u64,
}

/// Makes a queue of at most `depth` transfers, from 1 to 65,536, counted from their submission until they are reaped.
/// Any thread may submit, and any may wait.
///
/// Returns a queue to be closed by `ferrite_queue_close`, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_queue_open(depth: c_uint) -> Option<Box<Transfers>> {
    call(None, || Ok(Some(Box::new(Transfers(Queue::new(depth as usize)?)))))
}

/// Closes a queue. Blocks until no transfer is under way. Completions that were not reaped are lost, and the memory of
/// their reads is not touched. NULL is accepted.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_queue_close(queue: Option<Box<Transfers>>) -> c_int {
    call(-1, || {
        drop(queue);
        Ok(0)
    })
}

/// Submits a read at an offset, of at most 4 MiB. `buffer` must stay as it is until its completion has been reaped, and
/// has the data then. The completion has `tag`.
///
/// Errors: `EAGAIN` if the queue is full; reap completions first. `EINVAL` for a longer read. Errors of the file
/// system come with the completion.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_submit_pread(
    queue: Option<&Transfers>,
    file: Option<&OpenFile>,
    buffer: *mut c_void,
    len: usize,
    at: i64,
    tag: u64,
) -> c_int {
    call(-1, || {
        let (queue, of, at) = (&given(queue)?.0, &given(file)?.file, offset(at)?);
        if of.transfers_at_once() {
            let buffer = bytes_mut(buffer, len, "the buffer")?;
            queue.read_into(of, at, buffer, Tag { tag, into: None })?;
        } else {
            let into = Some(Destination::new(buffer, len, "the buffer")?);
            queue.submit_read(of, at, len, Tag { tag, into })?;
        }
        Ok(0)
    })
}

/// Submits a write at an offset, of at most 4 MiB. `data` may change when this returns. The completion has `tag`, and
/// comes when the write is durable, if the volume was opened with `durability=strict`.
///
/// Errors: as `ferrite_submit_pread`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_submit_pwrite(
    queue: Option<&Transfers>,
    file: Option<&OpenFile>,
    data: *const c_void,
    len: usize,
    at: i64,
    tag: u64,
) -> c_int {
    call(-1, || {
        let data = bytes(data, len, "the data")?;
        let (queue, of) = (&given(queue)?.0, &given(file)?.file);
        queue.submit_write(of, offset(at)?, data, Tag { tag, into: None })?;
        Ok(0)
    })
}

/// Submits an append, of at most 4 MiB. `data` may change when this returns. The completion has `tag` and the offset of
/// the data.
///
/// Errors: as `ferrite_submit_pread`.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_submit_append(
    queue: Option<&Transfers>,
    file: Option<&OpenFile>,
    data: *const c_void,
    len: usize,
    tag: u64,
) -> c_int {
    call(-1, || {
        let data = bytes(data, len, "the data")?;
        let (queue, of) = (&given(queue)?.0, &given(file)?.file);
        queue.submit_append(of, data, Tag { tag, into: None })?;
        Ok(0)
    })
}

/// Reaps completions: blocks until there are `min`, or no more are under way, or `timeout_ms` milliseconds have passed
/// (negative: without end), and stores `max` at most in `completions`. With a `min` of 0 it does not block.
///
/// Returns how many were stored.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_queue_wait(
    queue: Option<&Transfers>,
    completions: *mut Completion,
    min: c_int,
    max: c_int,
    timeout_ms: i64,
) -> c_int {
    call(-1, || {
        let wrong = || {
            Failure::new(
                libc::EINVAL,
                format!("from {min} to {max} completions cannot be reaped"),
            )
        };
        let room = usize::try_from(max)
            .ok()
            .and_then(NonZeroUsize::new)
            .ok_or_else(wrong)?;
        let wanted = usize::try_from(min)
            .ok()
            .filter(|min| *min <= room.get())
            .ok_or_else(wrong)?;
        border::check_room(completions, "the completions")?;
        let timeout = match (NonZeroUsize::new(wanted), u64::try_from(timeout_ms)) {
            (None, _) => Some(Duration::ZERO),
            (Some(_), Ok(ms)) => Some(Duration::from_millis(ms)),
            (Some(_), Err(_)) => None,
        };
        let reaped = given(queue)?
            .0
            .wait_for(NonZeroUsize::new(wanted).unwrap_or(NonZeroUsize::MIN), room, timeout)?;
        for (place, done) in reaped.iter().enumerate() {
            if let Some(into) = &done.tag.into {
                into.fill(done.data());
            }
            let completion = Completion {
                tag: done.tag.tag,
                result: match &done.result {
                    Ok(count) => i64::try_from(*count).unwrap_or(i64::MAX),
                    Err(error) => -i64::from(error.closest_os_error()),
                },
                offset: done.offset,
                reserved: 0,
            };
            border::store_at(completions, place, completion);
        }
        Ok(c_int::try_from(reaped.len()).unwrap_or(c_int::MAX))
    })
}
