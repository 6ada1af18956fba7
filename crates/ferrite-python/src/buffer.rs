//! Memory of Python objects, by the buffer protocol, for the engine to read and write without the interpreter lock.
//!
//! Invariant: the object exports its memory for as long as the engine uses it. An exporter neither moves nor frees
//! exported memory: `bytearray` refuses to be resized, `memoryview.release` and `mmap.close` refuse to work.
#![allow(unsafe_code)]

use std::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

fn contiguous(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object)?;
    match buffer.is_c_contiguous() {
        true => Ok(buffer),
        false => Err(PyBufferError::new_err(
            "the bytes of the buffer are not contiguous; copy it first",
        )),
    }
}

/// Calls `f` with the bytes of `object`, without the interpreter lock.
///
/// # Errors
/// `TypeError` for an object without a buffer, `BufferError` for one that is not contiguous.
pub(crate) fn read<T: Send>(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    f: impl FnOnce(&[u8]) -> T + Send,
) -> PyResult<T> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        return Ok(py.detach(|| f(bytes)));
    }
    let buffer = contiguous(object)?;
    let bytes: &[u8] = match buffer.len_bytes() {
        0 => &[],
        // SAFETY: `buffer` is contiguous, of this length, and exported until it is released below, so the memory stays
        // where it is. Another thread of the program may store to it meanwhile, as with any file object of Python:
        // docs/python.md forbids that. The engine copies the bytes, and no decision about memory depends on their
        // values.
        len => unsafe { slice::from_raw_parts(buffer.buf_ptr().cast(), len) },
    };
    let result = py.detach(|| f(bytes));
    buffer.release(py);
    Ok(result)
}

/// Calls `f` with the bytes of `object`, to be changed, without the interpreter lock.
///
/// # Errors
/// As [`read`], and `TypeError` for a buffer that is read-only.
pub(crate) fn write<T: Send>(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    f: impl FnOnce(&mut [u8]) -> T + Send,
) -> PyResult<T> {
    let buffer = contiguous(object)?;
    if buffer.readonly() {
        return Err(PyTypeError::new_err(
            "the buffer is read-only; a bytearray, for example, is not",
        ));
    }
    let bytes: &mut [u8] = match buffer.len_bytes() {
        0 => &mut [],
        // SAFETY: as in `read`. The buffer is not read-only, so its exporter allows stores; that no other thread uses
        // the bytes meanwhile is the caller's duty, as with `io.RawIOBase.readinto`.
        len => unsafe { slice::from_raw_parts_mut(buffer.buf_ptr().cast(), len) },
    };
    let result = py.detach(|| f(bytes));
    buffer.release(py);
    Ok(result)
}
