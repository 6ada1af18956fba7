//! The number of this thread's last error, where C looks for it.

/// Sets this thread's `errno`.
pub(crate) fn set(errno: i32) {
    // SAFETY: the location is this thread's own, and valid as long as the thread.
    unsafe { *libc::__errno_location() = errno };
}
