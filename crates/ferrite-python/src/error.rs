//! Errors of the library as Python's `OSError`, which selects its subclass by the errno.
//!
//! Invariant: every error has an errno, since programs compare it; one that the library has no number for gets the
//! closest.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// An `OSError` with this path.
pub(crate) fn os_error(errno: i32, text: String, path: &Path) -> PyErr {
    PyOSError::new_err((errno, text, path.as_os_str().to_owned()))
}

/// An error of the library.
pub(crate) fn of_library(error: &ferrite::Error) -> PyErr {
    let errno = error.closest_os_error();
    let (text, path) = (error.cause().to_string(), error.path().as_os_str().to_owned());
    match error.new_path() {
        // Windows' error number stands between the two paths.
        Some(new_path) => PyOSError::new_err((errno, text, path, None::<i32>, new_path.as_os_str().to_owned())),
        None => PyOSError::new_err((errno, text, path)),
    }
}

/// An error of the library's implementations of `std::io`, on a file with this path.
pub(crate) fn of_io(error: &io::Error, path: &Path) -> PyErr {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ferrite::Error>());
    match (inner, error.raw_os_error()) {
        (Some(inner), _) => of_library(inner),
        (None, Some(errno)) => {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            os_error(errno, text, path)
        }
        (None, None) => os_error(libc::EIO, error.to_string(), path),
    }
}

/// A number of bytes or an offset that must not be negative.
pub(crate) fn not_negative(value: i64, name: &str, path: &Path) -> PyResult<u64> {
    u64::try_from(value).map_err(|_| os_error(libc::EINVAL, format!("{name} must not be negative, not {value}"), path))
}

/// The path in these bytes.
pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(OsStr::from_bytes(bytes))
}
