//! The native half of the Python package `ferrite`: volumes and files without buffering, as the module
//! `ferrite._ferrite`. The Python half, in `python/ferrite`, adds what needs Python's own classes: `io`,
//! `os.stat_result`, `fsspec`.
//!
//! Invariants: no call of the engine runs with Python's interpreter lock held. A lock of this crate is only held for
//! moments and never while the interpreter lock is acquired, so neither a fork nor another thread can deadlock on it.
//! Every failure of the engine is an `OSError` with errno, text and path.
#![deny(unsafe_code)]

mod buffer;
mod error;
mod file;
mod stat;
mod volume;

use pyo3::prelude::*;

/// The module `ferrite._ferrite`.
#[pymodule]
fn _ferrite(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<volume::RawVolume>()?;
    module.add_class::<file::RawFile>()
}
