//! Errors as C has them: `errno`, and a text of this thread's last error.
//!
//! Contents: [`Failure`]; [`call`], in which every function runs. Invariant: no panic leaves the library; it becomes
//! `EIO`, and a text that says so.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

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

    /// Why a transfer failed, which the library reports as [`std::io`] does, without the path.
    pub(crate) fn of_transfer(action: &str, path: &Path, error: &io::Error) -> Failure {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<ferrite::Error>()) {
            Some(error) => Failure::new(error.closest_os_error(), error.to_string()),
            None => Failure::new(
                error.raw_os_error().unwrap_or(libc::EIO),
                format!("cannot {action} {}: {error}", path.display()),
            ),
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
        Failure::new(error.closest_os_error(), error.to_string())
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
