//! Errors as C has them: `errno`, and a text of this thread's last error.
//!
//! Contents: [`Failure`]; [`call`], in which every function runs. Invariant: no panic leaves the library; it becomes
//! `EIO`, and a text that says so.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno;

/// Why a function fails.
pub(crate) struct Failure {
    errno: i32,
    text: String,
}

impl Failure {
    pub(crate) fn new(errno: i32, text: impl Into<String>) -> Failure {
        Failure {
            errno,
            text: text.into(),
        }
    }

    fn set(&self) {
        // A zero would end the text for C.
        let text = CString::new(self.text.replace('\0', "?")).unwrap_or_default();
        LAST.with(|last| *last.borrow_mut() = text);
        errno::set(self.errno);
    }
}

impl From<ferrite::Error> for Failure {
    fn from(error: ferrite::Error) -> Failure {
        let errno = error.raw_os_error().unwrap_or(match error.kind() {
            ErrorKind::ResourceBusy => libc::EBUSY,
            ErrorKind::InvalidInput => libc::EINVAL,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::ReadOnlyFilesystem => libc::EROFS,
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::PermissionDenied => libc::EACCES,
            ErrorKind::AlreadyExists => libc::EEXIST,
            ErrorKind::OutOfMemory => libc::ENOMEM,
            ErrorKind::TimedOut => libc::ETIMEDOUT,
            _ => libc::EIO,
        });
        Failure::new(errno, error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(error.raw_os_error().unwrap_or(libc::EIO), error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function. Returns `failed` after an error, which `errno` and `ferrite_error` then show.
pub(crate) fn call<T>(failed: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(
            libc::EIO,
            "a mistake in libferrite; standard error has the place, please report it",
        ),
    };
    failure.set();
    failed
}

/// A handle that must not be NULL.
pub(crate) fn given<T>(handle: Option<T>) -> Result<T, Failure> {
    handle.ok_or_else(|| Failure::new(libc::EFAULT, "the handle is NULL"))
}

/// The text of this thread's last error: what failed, on which path, and why. Empty if there was none.
///
/// The library owns it; it is valid until another function of this library fails in this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn ferrite_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}
