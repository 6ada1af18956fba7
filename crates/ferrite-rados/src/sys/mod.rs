//! The calls of librados. The only module of this crate with `unsafe`.
//!
//! Contents: [`Cluster`], a connection; [`Context`], a pool in it; [`write`], [`read`] and their asynchronous forms,
//! which return a [`Pending`]; [`list`] with its [`Cursor`]. Returned errors are librados': negative numbers of
//! `errno(3)`.
//!
//! Invariants: a context keeps its connection, and all else keeps its context, so that librados closes them in order.
//! A context's settings change only before anybody else has it; librados' handles may then be used by several threads
//! (librados.h, "API"). Memory that librados writes to when an operation completes is owned by that operation, and
//! freed after it completed: [`Pending`] waits for that when it is dropped, and a forgotten one frees nothing.
#![allow(unsafe_code, reason = "librados is a library in C")]

mod calls;
mod list;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, addr_of_mut, null, null_mut};
use std::sync::Arc;

use crate::op::{Compare, ReadOp, Step as OpStep};
use calls::*;

pub(crate) use list::{Cursor, list};

/// Without it, a write to a full pool would wait until there is space.
const OPERATION_FULL_TRY: c_int = 64;
/// A read waits as a write does.
const OPERATION_ORDER_READS_WRITES: c_int = 4;
const CREATE_EXCLUSIVE: c_int = 1;
const CREATE_IDEMPOTENT: c_int = 0;
const EINVAL: c_int = 22;
const ENOMEM: c_int = 12;
/// Xattrs of an object that a read looks through.
const XATTRS_MAX: usize = 4096;

/// The part of connecting that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The name or the configuration file.
    Open,
    /// An option.
    Configure,
    /// The monitors.
    Connect,
}

/// A connection.
pub(crate) struct Cluster(NonNull<c_void>);

// SAFETY: librados' handle of a connection may be used by any thread, and by several at once. Its settings change in
// `connect` only, which has it alone.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    pub(crate) fn connect(name: &CStr, conf: &CStr, settings: &[(&CStr, String)]) -> Result<Cluster, (Step, c_int)> {
        let mut raw = null_mut();
        // SAFETY: all strings end with a zero byte; librados copies them, and writes the handle if it returns 0.
        let created = unsafe { rados_create2(&mut raw, c"ceph".as_ptr(), name.as_ptr(), 0) };
        let cluster = match NonNull::new(raw) {
            Some(raw) if created == 0 => Cluster(raw),
            _ => return Err((Step::Open, created)),
        };
        // SAFETY: the handle is valid, and the path ends with a zero byte.
        ok(unsafe { rados_conf_read_file(cluster.raw(), conf.as_ptr()) }).map_err(|error| (Step::Open, error))?;
        for (option, value) in settings {
            let value = CString::new(value.as_str()).map_err(|_| (Step::Configure, -EINVAL))?;
            // SAFETY: the handle is valid, both strings end with a zero byte, and librados copies them.
            let set = unsafe { rados_conf_set(cluster.raw(), option.as_ptr(), value.as_ptr()) };
            ok(set).map_err(|error| (Step::Configure, error))?;
        }
        // SAFETY: the handle is valid, and not connected yet.
        ok(unsafe { rados_connect(cluster.raw()) }).map_err(|error| (Step::Connect, error))?;
        Ok(cluster)
    }

    fn raw(&self) -> Handle {
        self.0.as_ptr()
    }

    pub(crate) fn instance_id(&self) -> u64 {
        // SAFETY: the handle is valid and connected.
        unsafe { rados_get_instance_id(self.raw()) }
    }

    pub(crate) fn address(&self) -> Result<String, c_int> {
        let mut text: *mut c_char = null_mut();
        // SAFETY: the handle is valid and connected; librados writes a pointer to a string that it allocated.
        ok(unsafe { rados_getaddrs(self.raw(), &mut text) })?;
        if text.is_null() {
            return Err(-EINVAL);
        }
        // SAFETY: on success the string ends with a zero byte, and nobody else has it.
        let address = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: librados allocated it (`strdup`), and it is not used again; this call is `free`.
        unsafe { rados_buffer_free(text) };
        Ok(address)
    }

    /// May wait for ever if the monitors are away.
    pub(crate) fn blocklist(&self, address: CString, expire_seconds: u32) -> Result<(), c_int> {
        let address = address.into_raw();
        // SAFETY: the handle is valid and connected. librados takes the string as `char *`, and only reads it.
        let added = unsafe { rados_blocklist_add(self.raw(), address, expire_seconds) };
        // SAFETY: the pointer is from `into_raw`, and librados keeps none to it.
        drop(unsafe { CString::from_raw(address) });
        ok(added).map(drop)
    }

    /// May wait for ever if the monitors are away.
    pub(crate) fn wait_for_latest_map(&self) -> Result<(), c_int> {
        // SAFETY: the handle is valid and connected.
        ok(unsafe { rados_wait_for_latest_osdmap(self.raw()) }).map(drop)
    }

    /// The answer to a command, at most so many bytes of it. Ends after the timeout of calls of the monitors.
    pub(crate) fn monitor_command(&self, command: &CStr, bytes_max: usize) -> Result<Vec<u8>, c_int> {
        let (mut output, mut len): (*mut c_char, usize) = (null_mut(), 0);
        let mut parts = [command.as_ptr()];
        // SAFETY: the handle is valid and connected, the command is one string that ends with a zero byte, there is no
        // input, and nobody asks for the status. librados writes a pointer to a buffer that it allocated, or null, and
        // the buffer's length.
        let done = unsafe {
            rados_mon_command(
                self.raw(),
                parts.as_mut_ptr(),
                parts.len(),
                null(),
                0,
                &mut output,
                &mut len,
                null_mut(),
                null_mut(),
            )
        };
        if output.is_null() {
            return ok(done).map(|_| Vec::new());
        }
        // SAFETY: librados allocated `len` bytes there and wrote them, and nobody else has them.
        let answer = unsafe { std::slice::from_raw_parts(output.cast::<u8>(), len.min(bytes_max)) }.to_vec();
        // SAFETY: librados allocated it, and it is not used again; this call is `free`.
        unsafe { rados_buffer_free(output) };
        ok(done).map(|_| answer)
    }

    /// All bytes and free bytes of the OSDs. Ends after the timeout of calls of the monitors.
    pub(crate) fn space(&self) -> Result<(u64, u64), c_int> {
        let mut stat = ClusterStat::default();
        // SAFETY: the handle is valid and connected; librados fills the struct, which is its `rados_cluster_stat_t`.
        ok(unsafe { rados_cluster_stat(self.raw(), &mut stat) })?;
        Ok((stat.kb.saturating_mul(1024), stat.kb_avail.saturating_mul(1024)))
    }

    /// A pool in a namespace. May wait for ever if the monitors are away.
    pub(crate) fn pool(self: &Arc<Cluster>, name: &CStr, namespace: &CStr) -> Result<Arc<Context>, c_int> {
        let mut raw = null_mut();
        // SAFETY: the handle is valid and connected; librados writes the context's handle if it returns 0.
        ok(unsafe { rados_ioctx_create(self.raw(), name.as_ptr(), &mut raw) })?;
        let context = Context {
            raw: NonNull::new(raw).ok_or(-EINVAL)?,
            _cluster: self.clone(),
        };
        // SAFETY: nobody else has the context yet; librados copies the string.
        unsafe { rados_ioctx_set_namespace(context.raw(), namespace.as_ptr()) };
        Ok(Arc::new(context))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: every context holds the connection, so none is left. A handle that never connected may be closed.
        unsafe { rados_shutdown(self.raw()) };
    }
}

/// A pool, in a namespace.
pub(crate) struct Context {
    raw: NonNull<c_void>,
    _cluster: Arc<Cluster>,
}

// SAFETY: librados' handle of a pool may be used by any thread, and by several at once, as long as its settings stay as
// they are; `Cluster::pool` sets them before it hands the context out.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn raw(&self) -> Handle {
        self.raw.as_ptr()
    }

    /// Bytes, objects, and copies of objects. Ends after the timeout of calls of the monitors.
    pub(crate) fn usage(&self) -> Result<(u64, u64, u64), c_int> {
        let mut stat = PoolStat::default();
        // SAFETY: the handle is valid; librados fills the struct, which is its `rados_pool_stat_t`.
        ok(unsafe { rados_ioctx_pool_stat(self.raw(), &mut stat) })?;
        Ok((stat.num_bytes, stat.num_objects, stat.num_object_copies))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every operation and cursor holds the context, so none is left.
        unsafe { rados_ioctx_destroy(self.raw()) };
    }
}

/// Carries out a write; returns when it is durable.
pub(crate) fn write(context: &Context, object: &CStr, steps: &[OpStep<'_>]) -> Result<(), c_int> {
    let op = RawWrite::build(steps)?;
    // SAFETY: the handles are valid; a null time means now; librados copies the name, and returns when it is done.
    let done = unsafe {
        rados_write_op_operate2(
            op.0.as_ptr(),
            context.raw(),
            object.as_ptr(),
            null_mut(),
            OPERATION_FULL_TRY,
        )
    };
    ok(done).map(drop)
}

/// Submits a write.
pub(crate) fn submit_write(context: &Arc<Context>, object: &CStr, steps: &[OpStep<'_>]) -> Result<Pending, c_int> {
    let op = RawWrite::build(steps)?;
    let mut pending = Pending::new(context, None)?;
    // SAFETY: the handles are valid; librados copies the name and takes the steps, so the operation may be released
    // before it completes; `pending` keeps the context and the completion until then.
    let submitted = unsafe {
        rados_aio_write_op_operate(
            op.0.as_ptr(),
            context.raw(),
            pending.completion.as_ptr(),
            object.as_ptr(),
            null_mut(),
            OPERATION_FULL_TRY,
        )
    };
    ok(submitted)?;
    pending.is_submitted = true;
    Ok(pending)
}

/// The steps of a write, in librados' memory.
struct RawWrite(NonNull<c_void>);

impl RawWrite {
    fn build(steps: &[OpStep<'_>]) -> Result<RawWrite, c_int> {
        // SAFETY: it takes nothing, and returns a handle or null.
        let raw = unsafe { rados_create_write_op() };
        let op = RawWrite(NonNull::new(raw).ok_or(-ENOMEM)?);
        for step in steps {
            op.add(step)?;
        }
        Ok(op)
    }

    fn add(&self, step: &OpStep<'_>) -> Result<(), c_int> {
        let op = self.0.as_ptr();
        // SAFETY: the handle is valid, names end with a zero byte, and each pointer goes with the length of its slice.
        // librados copies names and data into buffers of its own (`bufferlist::append`) before a call returns.
        unsafe {
            match step {
                OpStep::AssertExists => rados_write_op_assert_exists(op),
                OpStep::Compare(name, how, value) => {
                    let (name, value) = (name.as_ref().ok_or(-EINVAL)?, value.get());
                    rados_write_op_cmpxattr(op, name.as_ptr(), operator(*how), value.as_ptr().cast(), value.len());
                }
                OpStep::CreateExclusive => rados_write_op_create(op, CREATE_EXCLUSIVE, null()),
                OpStep::Create => rados_write_op_create(op, CREATE_IDEMPOTENT, null()),
                OpStep::Write(offset, data) => rados_write_op_write(op, data.as_ptr().cast(), data.len(), *offset),
                OpStep::WriteFull(data) => rados_write_op_write_full(op, data.as_ptr().cast(), data.len()),
                OpStep::Truncate(size) => rados_write_op_truncate(op, *size),
                OpStep::Zero(offset, len) => rados_write_op_zero(op, *offset, *len),
                OpStep::Remove => rados_write_op_remove(op),
                OpStep::SetXattr(name, value) => {
                    let (name, value) = (name.as_ref().ok_or(-EINVAL)?, value.get());
                    rados_write_op_setxattr(op, name.as_ptr(), value.as_ptr().cast(), value.len());
                }
            }
        }
        Ok(())
    }
}

impl Drop for RawWrite {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and not used again.
        unsafe { rados_release_write_op(self.0.as_ptr()) };
    }
}

/// The operator of a comparison. It is applied as "the value of the request, operator, the stored value".
fn operator(how: Compare) -> u8 {
    match how {
        Compare::Equal => 1,
        Compare::AtMost => 4,
    }
}

/// The parts of a reply.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) bytes_read: usize,
    pub(crate) size: u64,
    pub(crate) time: i64,
    /// Those that were asked for and exist.
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
}

/// Carries out a read, into `buffer`.
pub(crate) fn read(context: &Context, object: &CStr, op: &ReadOp<'_>, buffer: &mut [u8]) -> Result<Reply, c_int> {
    let raw = RawRead::build(op, buffer.as_mut_ptr(), buffer.len())?;
    // SAFETY: the handles are valid. librados writes to the buffer and to the slots of `raw`, which both outlive this
    // call, and to neither after it returns: it drops its references when an operation completes or times out.
    let done = unsafe { rados_read_op_operate(raw.op.as_ptr(), context.raw(), object.as_ptr(), flags(op)) };
    ok(done)?;
    // SAFETY: the operation has completed.
    unsafe { raw.reply(buffer.len()) }
}

/// Submits a read, into `buffer`, which comes back with the reply.
pub(crate) fn submit_read(
    context: &Arc<Context>,
    object: &CStr,
    op: &ReadOp<'_>,
    mut buffer: Vec<u8>,
) -> Result<Pending, c_int> {
    // The bytes of a vector stay where they are when it moves; nobody touches them before the operation completed.
    let raw = RawRead::build(op, buffer.as_mut_ptr(), buffer.len())?;
    let (op, flags) = (raw.op.as_ptr(), flags(op));
    let mut pending = Pending::new(context, Some((raw, buffer)))?;
    // SAFETY: the handles are valid. `pending` owns all that librados writes to, and frees it only after the operation
    // has completed.
    let submitted =
        unsafe { rados_aio_read_op_operate(op, context.raw(), pending.completion.as_ptr(), object.as_ptr(), flags) };
    ok(submitted)?;
    pending.is_submitted = true;
    Ok(pending)
}

fn flags(op: &ReadOp<'_>) -> c_int {
    match op.comes_after_writes {
        true => OPERATION_ORDER_READS_WRITES,
        false => 0,
    }
}

/// Where librados puts the parts of a reply.
struct Slots {
    bytes_read: usize,
    read_result: c_int,
    size: u64,
    time: i64,
    stat_result: c_int,
    xattrs: Handle,
    xattrs_result: c_int,
}

/// A read, with the memory of its reply.
struct RawRead {
    op: NonNull<c_void>,
    /// From a box.
    slots: NonNull<Slots>,
    wanted: Vec<String>,
}

impl RawRead {
    /// `buffer` has `len` bytes, which librados writes when the operation completes.
    fn build(op: &ReadOp<'_>, buffer: *mut u8, len: usize) -> Result<RawRead, c_int> {
        // SAFETY: it takes nothing, and returns a handle or null.
        let raw = NonNull::new(unsafe { rados_create_read_op() }).ok_or(-ENOMEM)?;
        let slots = Box::new(Slots {
            bytes_read: 0,
            read_result: 0,
            size: 0,
            time: 0,
            stat_result: 0,
            xattrs: null_mut(),
            xattrs_result: 0,
        });
        let built = RawRead {
            op: raw,
            slots: NonNull::from(Box::leak(slots)),
            wanted: op.xattrs.iter().map(|&name| name.to_owned()).collect(),
        };
        let (raw, slots) = (raw.as_ptr(), built.slots.as_ptr());
        // SAFETY: the handle is valid, names end with a zero byte, and values are copied. The slots are in a box that
        // `built` frees when it is dropped, which its owner does after the operation completed. The iterator's slot is
        // written before the call returns.
        unsafe {
            rados_read_op_assert_exists(raw);
            for (name, how, value) in &op.compares {
                let (name, value) = (name.as_ref().ok_or(-EINVAL)?, value.get());
                rados_read_op_cmpxattr(raw, name.as_ptr(), operator(*how), value.as_ptr().cast(), value.len());
            }
            if let Some(offset) = op.offset {
                let (bytes_read, result) = (addr_of_mut!((*slots).bytes_read), addr_of_mut!((*slots).read_result));
                rados_read_op_read(raw, offset, len, buffer.cast(), bytes_read, result);
            }
            if op.has_stat {
                let (size, time) = (addr_of_mut!((*slots).size), addr_of_mut!((*slots).time));
                rados_read_op_stat(raw, size, time, addr_of_mut!((*slots).stat_result));
            }
            if !op.xattrs.is_empty() {
                let (iterator, result) = (addr_of_mut!((*slots).xattrs), addr_of_mut!((*slots).xattrs_result));
                rados_read_op_getxattrs(raw, iterator, result);
            }
        }
        Ok(built)
    }

    /// The reply, for a buffer of `len` bytes.
    ///
    /// # Safety
    ///
    /// The operation has completed without an error.
    unsafe fn reply(&self, len: usize) -> Result<Reply, c_int> {
        // SAFETY: the slots are valid until `self` is dropped, and librados is done with them.
        let slots = unsafe { self.slots.as_ref() };
        for result in [slots.read_result, slots.stat_result, slots.xattrs_result] {
            ok(result)?;
        }
        let mut reply = Reply {
            bytes_read: slots.bytes_read.min(len),
            size: slots.size,
            time: slots.time,
            xattrs: Vec::new(),
        };
        let has_iterator = !slots.xattrs.is_null();
        for _ in 0..if has_iterator { XATTRS_MAX } else { 0 } {
            let (mut name, mut value, mut len) = (null(), null(), 0);
            // SAFETY: the iterator is valid until `self` is dropped, and filled by now.
            ok(unsafe { rados_getxattrs_next(slots.xattrs, &mut name, &mut value, &mut len) })?;
            if name.is_null() {
                break;
            }
            // SAFETY: the name ends with a zero byte, and is valid until the next call.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
            if self.wanted.iter().any(|wanted| *wanted == name) {
                let value = match value.is_null() {
                    true => &[][..],
                    // SAFETY: librados gives the length of the value, which is valid until the next call.
                    false => unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) },
                };
                reply.xattrs.push((name.into_owned(), value.to_vec()));
            }
        }
        Ok(reply)
    }
}

// SAFETY: the handles belong to no thread, and one thread at a time has a `RawRead`.
unsafe impl Send for RawRead {}

impl Drop for RawRead {
    fn drop(&mut self) {
        // SAFETY: the operation has completed, or was never submitted, so that librados has no pointer to the slots.
        // The box is `self`'s, and is not used again. An iterator exists from `build` on.
        unsafe {
            rados_release_read_op(self.op.as_ptr());
            let slots = Box::from_raw(self.slots.as_ptr());
            if !slots.xattrs.is_null() {
                rados_getxattrs_end(slots.xattrs);
            }
        }
    }
}

/// An operation in progress. Dropping it waits for its end.
pub(crate) struct Pending {
    completion: NonNull<c_void>,
    is_submitted: bool,
    read: Option<(RawRead, Vec<u8>)>,
    _context: Arc<Context>,
}

// SAFETY: librados' handle of a completion may be used by any thread, and by several at once.
unsafe impl Send for Pending {}
// SAFETY: by reference it can only be asked whether it is complete.
unsafe impl Sync for Pending {}

impl Pending {
    fn new(context: &Arc<Context>, read: Option<(RawRead, Vec<u8>)>) -> Result<Pending, c_int> {
        let mut raw = null_mut();
        // SAFETY: without a function to call there is no argument to keep alive; librados writes the handle.
        ok(unsafe { rados_aio_create_completion2(null_mut(), None, &mut raw) })?;
        Ok(Pending {
            completion: NonNull::new(raw).ok_or(-ENOMEM)?,
            is_submitted: false,
            read,
            _context: context.clone(),
        })
    }

    pub(crate) fn is_complete(&self) -> bool {
        // SAFETY: the handle is valid.
        self.is_submitted && unsafe { rados_aio_is_complete(self.completion.as_ptr()) } != 0
    }

    /// Waits for the end of a write.
    pub(crate) fn wait(self) -> Result<(), c_int> {
        self.complete()
    }

    /// Waits for the end of a read; returns its buffer, too.
    pub(crate) fn wait_read(mut self) -> (Vec<u8>, Result<Reply, c_int>) {
        let done = self.complete();
        let Some((raw, buffer)) = self.read.take() else {
            return (Vec::new(), Err(-EINVAL));
        };
        // SAFETY: the operation has completed.
        let reply = done.and_then(|()| unsafe { raw.reply(buffer.len()) });
        (buffer, reply)
    }

    fn complete(&self) -> Result<(), c_int> {
        let completion = self.completion.as_ptr();
        // SAFETY: the handle is valid. An operation that was submitted completes: at the latest, with a timeout.
        let done = unsafe {
            rados_aio_wait_for_complete(completion);
            rados_aio_get_return_value(completion)
        };
        ok(done).map(drop)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_submitted {
            let _ = self.complete();
        }
        // SAFETY: the handle is valid, and not used again. The operation is complete or was never submitted, so that
        // what `read` has may be freed next.
        unsafe { rados_aio_release(self.completion.as_ptr()) };
    }
}

fn ok(returned: c_int) -> Result<c_int, c_int> {
    if returned < 0 { Err(returned) } else { Ok(returned) }
}
