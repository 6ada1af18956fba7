//! Errors of files as errors of objects, and calls that block.

use ferrite::Error as FileError;
use object_store::path::Path;
use object_store::{Error, Result};
use std::io::ErrorKind;

/// The name of this store in errors.
pub(crate) const STORE: &str = "Ferrite";

/// The error of an operation on the object at a location.
pub(crate) fn of(location: &Path, error: FileError) -> Error {
    let path = location.to_string();
    match error.kind() {
        ErrorKind::NotFound => Error::NotFound {
            path,
            source: Box::new(error),
        },
        ErrorKind::AlreadyExists => Error::AlreadyExists {
            path,
            source: Box::new(error),
        },
        ErrorKind::PermissionDenied => Error::PermissionDenied {
            path,
            source: Box::new(error),
        },
        _ => generic(error),
    }
}

/// The same, of an operation that needs the object: a place that is not a regular file holds no object.
pub(crate) fn of_present(location: &Path, error: FileError) -> Error {
    let is_no_object = matches!(error.kind(), ErrorKind::NotADirectory | ErrorKind::IsADirectory)
        || matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO));
    match is_no_object {
        true => absent(location, error),
        false => of(location, error),
    }
}

/// There is no object at a location.
pub(crate) fn absent(location: &Path, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::NotFound {
        path: location.to_string(),
        source: why.into(),
    }
}

/// An error without a kind of its own.
pub(crate) fn generic(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic {
        store: STORE,
        source: why.into(),
    }
}

/// Runs `f`, which blocks, where that keeps no task of the runtime waiting. Without a runtime, it runs here.
pub(crate) async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(f).await?,
        Err(_) => f(),
    }
}
