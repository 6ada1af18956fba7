//! Pages of the names in a pool.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use super::calls::*;
use super::{Context, ENOMEM, ok};

/// A place between the names of a pool's objects, which are in the order of their hashes.
pub(crate) struct Cursor {
    raw: NonNull<c_void>,
    context: Arc<Context>,
}

// SAFETY: a cursor is a value without ties to a thread, and nothing changes it after `list` made it.
unsafe impl Send for Cursor {}
// SAFETY: as above.
unsafe impl Sync for Cursor {}

impl Drop for Cursor {
    fn drop(&mut self) {
        // SAFETY: the cursor is valid, of this context, and not used again.
        unsafe { rados_object_list_cursor_free(self.context.raw(), self.raw.as_ptr()) };
    }
}

impl Cursor {
    fn new(context: &Arc<Context>, make: unsafe extern "C" fn(Handle) -> Handle) -> Result<Cursor, c_int> {
        // SAFETY: both functions that this is called with take a valid context, and return a cursor or null.
        let raw = unsafe { make(context.raw()) };
        Ok(Cursor {
            raw: NonNull::new(raw).ok_or(-ENOMEM)?,
            context: context.clone(),
        })
    }
}

/// At most `count` names with their namespaces, from `start` or the beginning on, and where to continue.
#[allow(clippy::type_complexity, reason = "a pair of a list of pairs and its end")]
pub(crate) fn list(
    context: &Arc<Context>,
    start: Option<&Cursor>,
    count: usize,
) -> Result<(Vec<(Vec<u8>, Vec<u8>)>, Option<Cursor>), c_int> {
    let begin = Cursor::new(context, rados_object_list_begin)?;
    let end = Cursor::new(context, rados_object_list_end)?;
    // Overwritten in place.
    let next = Cursor::new(context, rados_object_list_begin)?;
    let empty = || ListItem {
        oid_length: 0,
        oid: null_mut(),
        nspace_length: 0,
        nspace: null_mut(),
        locator_length: 0,
        locator: null_mut(),
    };
    let mut items: Vec<ListItem> = (0..count).map(|_| empty()).collect();
    let mut next_raw = next.raw.as_ptr();
    // SAFETY: all cursors are of this context, or of one of the same pool, whose cursors are alike; there are `count`
    // items; no filter is given. librados assigns to the cursor that `next_raw` points to, and does not replace it.
    let listed = unsafe {
        rados_object_list(
            context.raw(),
            start.unwrap_or(&begin).raw.as_ptr(),
            end.raw.as_ptr(),
            count,
            null(),
            0,
            items.as_mut_ptr(),
            &mut next_raw,
        )
    };
    let listed = ok(listed)?;
    let found = items.iter().take(usize::try_from(listed).unwrap_or(0));
    let bytes = |data: *mut c_char, len: usize| match data.is_null() {
        true => Vec::new(),
        // SAFETY: librados filled the first `listed` items: each pointer goes with its length, or is null. The bytes
        // are copied before they are freed.
        false => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec(),
    };
    let names = found.map(|item| (bytes(item.oid, item.oid_length), bytes(item.nspace, item.nspace_length)));
    let names = names.collect();
    // SAFETY: librados allocated what the items point to; those that it did not fill are null, which is allowed.
    unsafe { rados_object_list_free(count, items.as_mut_ptr()) };
    // SAFETY: the cursor is valid and of this context.
    let is_end = unsafe { rados_object_list_is_end(context.raw(), next.raw.as_ptr()) } != 0;
    Ok((names, (!is_end).then_some(next)))
}
