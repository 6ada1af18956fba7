//! Declarations of librados' functions, as in librados.h of version 16.2.
//!
//! Handles are opaque, and `void *` there, too. `time_t` has 64 bits.

use std::ffi::{c_char, c_int, c_void};

#[repr(C)]
pub(super) struct ListItem {
    pub(super) oid_length: usize,
    pub(super) oid: *mut c_char,
    pub(super) nspace_length: usize,
    pub(super) nspace: *mut c_char,
    pub(super) locator_length: usize,
    pub(super) locator: *mut c_char,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct ClusterStat {
    pub(super) kb: u64,
    pub(super) kb_used: u64,
    pub(super) kb_avail: u64,
    pub(super) num_objects: u64,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct PoolStat {
    pub(super) num_bytes: u64,
    pub(super) num_kb: u64,
    pub(super) num_objects: u64,
    pub(super) num_object_clones: u64,
    pub(super) num_object_copies: u64,
    /// Of objects that lack replicas, of operations, and of compression: eleven numbers.
    pub(super) others: [u64; 11],
}

pub(super) type Handle = *mut c_void;

unsafe extern "C" {
    pub(super) fn rados_create2(
        cluster: *mut Handle,
        cluster_name: *const c_char,
        name: *const c_char,
        flags: u64,
    ) -> c_int;
    pub(super) fn rados_conf_read_file(cluster: Handle, path: *const c_char) -> c_int;
    pub(super) fn rados_conf_set(cluster: Handle, option: *const c_char, value: *const c_char) -> c_int;
    pub(super) fn rados_connect(cluster: Handle) -> c_int;
    pub(super) fn rados_shutdown(cluster: Handle);
    pub(super) fn rados_get_instance_id(cluster: Handle) -> u64;
    pub(super) fn rados_getaddrs(cluster: Handle, addresses: *mut *mut c_char) -> c_int;
    pub(super) fn rados_blocklist_add(cluster: Handle, address: *mut c_char, expire_seconds: u32) -> c_int;
    pub(super) fn rados_wait_for_latest_osdmap(cluster: Handle) -> c_int;
    pub(super) fn rados_cluster_stat(cluster: Handle, result: *mut ClusterStat) -> c_int;
    pub(super) fn rados_buffer_free(buffer: *mut c_char);
    pub(super) fn rados_mon_command(
        cluster: Handle,
        command: *mut *const c_char,
        command_len: usize,
        input: *const c_char,
        input_len: usize,
        output: *mut *mut c_char,
        output_len: *mut usize,
        status: *mut *mut c_char,
        status_len: *mut usize,
    ) -> c_int;

    pub(super) fn rados_ioctx_create(cluster: Handle, pool: *const c_char, context: *mut Handle) -> c_int;
    pub(super) fn rados_ioctx_set_namespace(context: Handle, namespace: *const c_char);
    pub(super) fn rados_ioctx_pool_stat(context: Handle, result: *mut PoolStat) -> c_int;
    pub(super) fn rados_ioctx_destroy(context: Handle);

    pub(super) fn rados_create_write_op() -> Handle;
    pub(super) fn rados_release_write_op(op: Handle);
    pub(super) fn rados_write_op_assert_exists(op: Handle);
    pub(super) fn rados_write_op_cmpxattr(
        op: Handle,
        name: *const c_char,
        operator: u8,
        value: *const c_char,
        len: usize,
    );
    pub(super) fn rados_write_op_create(op: Handle, exclusive: c_int, category: *const c_char);
    pub(super) fn rados_write_op_write(op: Handle, buffer: *const c_char, len: usize, offset: u64);
    pub(super) fn rados_write_op_write_full(op: Handle, buffer: *const c_char, len: usize);
    pub(super) fn rados_write_op_truncate(op: Handle, size: u64);
    pub(super) fn rados_write_op_zero(op: Handle, offset: u64, len: u64);
    pub(super) fn rados_write_op_remove(op: Handle);
    pub(super) fn rados_write_op_setxattr(op: Handle, name: *const c_char, value: *const c_char, len: usize);
    pub(super) fn rados_write_op_operate2(
        op: Handle,
        context: Handle,
        object: *const c_char,
        time: *mut c_void,
        flags: c_int,
    ) -> c_int;
    pub(super) fn rados_aio_write_op_operate(
        op: Handle,
        context: Handle,
        completion: Handle,
        object: *const c_char,
        time: *mut i64,
        flags: c_int,
    ) -> c_int;

    pub(super) fn rados_create_read_op() -> Handle;
    pub(super) fn rados_release_read_op(op: Handle);
    pub(super) fn rados_read_op_assert_exists(op: Handle);
    pub(super) fn rados_read_op_cmpxattr(
        op: Handle,
        name: *const c_char,
        operator: u8,
        value: *const c_char,
        len: usize,
    );
    pub(super) fn rados_read_op_read(
        op: Handle,
        offset: u64,
        len: usize,
        buffer: *mut c_char,
        bytes_read: *mut usize,
        result: *mut c_int,
    );
    pub(super) fn rados_read_op_stat(op: Handle, size: *mut u64, time: *mut i64, result: *mut c_int);
    pub(super) fn rados_read_op_getxattrs(op: Handle, iterator: *mut Handle, result: *mut c_int);
    pub(super) fn rados_read_op_operate(op: Handle, context: Handle, object: *const c_char, flags: c_int) -> c_int;
    pub(super) fn rados_aio_read_op_operate(
        op: Handle,
        context: Handle,
        completion: Handle,
        object: *const c_char,
        flags: c_int,
    ) -> c_int;
    pub(super) fn rados_getxattrs_next(
        iterator: Handle,
        name: *mut *const c_char,
        value: *mut *const c_char,
        len: *mut usize,
    ) -> c_int;
    pub(super) fn rados_getxattrs_end(iterator: Handle);

    pub(super) fn rados_aio_create_completion2(
        argument: *mut c_void,
        complete: Option<extern "C" fn(Handle, *mut c_void)>,
        completion: *mut Handle,
    ) -> c_int;
    pub(super) fn rados_aio_wait_for_complete(completion: Handle) -> c_int;
    pub(super) fn rados_aio_is_complete(completion: Handle) -> c_int;
    pub(super) fn rados_aio_get_return_value(completion: Handle) -> c_int;
    pub(super) fn rados_aio_release(completion: Handle);

    pub(super) fn rados_object_list_begin(context: Handle) -> Handle;
    pub(super) fn rados_object_list_end(context: Handle) -> Handle;
    pub(super) fn rados_object_list_is_end(context: Handle, cursor: Handle) -> c_int;
    pub(super) fn rados_object_list_cursor_free(context: Handle, cursor: Handle);
    pub(super) fn rados_object_list(
        context: Handle,
        start: Handle,
        finish: Handle,
        count: usize,
        filter: *const c_char,
        filter_len: usize,
        results: *mut ListItem,
        next: *mut Handle,
    ) -> c_int;
    pub(super) fn rados_object_list_free(count: usize, results: *mut ListItem);
}
