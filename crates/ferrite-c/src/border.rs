//! Pointers and lengths of C, as types of Rust.
//!
//! Invariant: beside `errno`, this is the only module with `unsafe` blocks. Each rests on what the caller promises
//! with every call of a library in C: that a pointer which is not NULL points to as many bytes as the function's
//! description says, valid until it returns, and that nobody else changes them meanwhile.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

use crate::failure::Failure;

/// Longest name, with its zero.
const NAME_BYTES_MAX: usize = 1 << 16;
/// Parts of a vector, as for `preadv`.
const PARTS_MAX: usize = 1024;

fn null(what: &str) -> Failure {
    Failure::new(libc::EFAULT, format!("{what} is NULL"))
}

/// A text that ends with a zero.
pub(crate) fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a OsStr, Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: the pointer is not NULL, so the caller promises a text that ends with a zero; `strnlen` reads no further
    // than that.
    let len = unsafe { libc::strnlen(pointer, NAME_BYTES_MAX) };
    if len == NAME_BYTES_MAX {
        return Err(Failure::new(
            libc::ENAMETOOLONG,
            format!("{what} has {NAME_BYTES_MAX} bytes or more"),
        ));
    }
    // SAFETY: there are `len` bytes and a zero behind them, as was just seen, and the caller keeps them until the
    // function returns, which no reference outlives: results are copied.
    let text = unsafe { CStr::from_ptr(pointer) };
    Ok(OsStr::from_bytes(text.to_bytes()))
}

fn check_len(is_null: bool, len: usize, what: &str) -> Result<(), Failure> {
    match (is_null, isize::try_from(len)) {
        (true, Ok(1..)) => Err(null(what)),
        (_, Err(_)) => Err(Failure::new(
            libc::EINVAL,
            format!("{what} has {len} bytes, more than memory can"),
        )),
        _ => Ok(()),
    }
}

/// Bytes to read.
pub(crate) fn bytes<'a>(pointer: *const c_void, len: usize, what: &str) -> Result<&'a [u8], Failure> {
    check_len(pointer.is_null(), len, what)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the pointer is not NULL and `len` fits into memory; the caller promises that many bytes, which nobody
    // changes until the function returns.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), len) })
}

/// Bytes to fill.
pub(crate) fn bytes_mut<'a>(pointer: *mut c_void, len: usize, what: &str) -> Result<&'a mut [u8], Failure> {
    check_len(pointer.is_null(), len, what)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `bytes`; the caller also promises that nobody reads them meanwhile. Memory of C has some value in
    // each byte as far as Rust can tell, since it was not allocated here.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

fn parts<'a>(pointer: *const libc::iovec, count: i32) -> Result<&'a [libc::iovec], Failure> {
    let count = usize::try_from(count).ok().filter(|count| *count <= PARTS_MAX);
    let count = count.ok_or_else(|| Failure::new(libc::EINVAL, format!("a vector has 0 to {PARTS_MAX} parts")))?;
    if pointer.is_null() && count > 0 {
        return Err(null("the vector"));
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the pointer is not NULL, and the caller promises that many parts.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// The parts of a vector, to read, and their length in all.
pub(crate) fn gathered<'a>(pointer: *const libc::iovec, count: i32) -> Result<(Vec<&'a [u8]>, usize), Failure> {
    let parts = parts(pointer, count)?.iter();
    let parts: Vec<&[u8]> = parts
        .map(|part| bytes(part.iov_base, part.iov_len, "a part of the vector"))
        .collect::<Result<_, _>>()?;
    let len = length(parts.iter().map(|part| part.len()))?;
    Ok((parts, len))
}

/// The parts of a vector, to fill, and their length in all.
pub(crate) fn scattered<'a>(pointer: *const libc::iovec, count: i32) -> Result<(Vec<&'a mut [u8]>, usize), Failure> {
    let parts = parts(pointer, count)?.iter();
    let parts: Vec<&mut [u8]> = parts
        .map(|part| bytes_mut(part.iov_base, part.iov_len, "a part of the vector"))
        .collect::<Result<_, _>>()?;
    let len = length(parts.iter().map(|part| part.len()))?;
    Ok((parts, len))
}

fn length(mut parts: impl Iterator<Item = usize>) -> Result<usize, Failure> {
    let sum = parts.try_fold(0usize, |sum, part| sum.checked_add(part));
    sum.filter(|sum| isize::try_from(*sum).is_ok())
        .ok_or_else(|| Failure::new(libc::EINVAL, "the vector has more bytes than memory can"))
}

/// A struct that the library may fill: plain numbers, in the order of C, its size first.
///
/// # Safety
/// Every byte of a value can be copied: the type has no padding, no pointers and no destructor.
pub(crate) unsafe trait Grows: Copy {}

/// Fills a struct of the caller's, as much of it as the caller's size says.
pub(crate) fn fill<T: Grows>(pointer: *mut T, value: &T, what: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: the pointer is not NULL, and every such struct begins with its size, which the caller has set.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if size < 2 * size_of::<usize>() || size > 4096 {
        let text = format!("the size in {what} is {size}; set it to the size of the struct");
        return Err(Failure::new(libc::EINVAL, text));
    }
    let (skipped, end) = (size_of::<usize>(), size.min(size_of::<T>()));
    // SAFETY: the caller's struct has `size` bytes, the value has `size_of::<T>()`, and the range from behind the size
    // up to `end` lies in both. They do not overlap, since the value is this library's. Bytes may be copied, as the
    // trait promises.
    unsafe {
        let from = std::ptr::from_ref(value).cast::<u8>().add(skipped);
        std::ptr::copy_nonoverlapping(from, pointer.cast::<u8>().add(skipped), end - skipped);
    }
    Ok(())
}

/// Stores a number of the caller's; NULL: the caller does not want it.
pub(crate) fn store(pointer: *mut u64, value: u64) {
    if !pointer.is_null() {
        // SAFETY: the pointer is not NULL, so the caller promises room for a number.
        unsafe { pointer.write_unaligned(value) };
    }
}

/// A value of the caller's.
pub(crate) fn load<T: Copy>(pointer: *const T, what: &str) -> Result<T, Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: the pointer is not NULL, so the caller promises a value, and any bytes are one: only structs of plain
    // numbers are loaded.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Memory of the caller's that a submitted read fills later.
pub(crate) struct Destination {
    /// The address: nothing is done with it until the function in which [`Self::fill`] runs.
    address: usize,
    len: usize,
}

impl Destination {
    pub(crate) fn new(pointer: *mut c_void, len: usize, what: &str) -> Result<Destination, Failure> {
        check_len(pointer.is_null(), len, what)?;
        Ok(Destination {
            address: pointer.expose_provenance(),
            len,
        })
    }

    /// Copies the bytes that were read, as many as fit.
    pub(crate) fn fill(&self, data: &[u8]) {
        let len = data.len().min(self.len);
        if len == 0 {
            return;
        }
        let pointer = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: `len` is not 0 and not more than the caller's length, so the pointer was not NULL. The caller
        // promises to keep the memory until the completion has been reaped, which happens in the function that calls
        // this. The data is the library's own, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), pointer, len) };
    }
}

/// Refuses a pointer to no array.
pub(crate) fn check_room<T>(pointer: *mut T, what: &str) -> Result<(), Failure> {
    if pointer.is_null() { Err(null(what)) } else { Ok(()) }
}

/// Stores an element of the caller's array, which was seen not to be NULL and has more than `place` elements.
pub(crate) fn store_at<T: Copy>(pointer: *mut T, place: usize, value: T) {
    // SAFETY: the caller promises an array of as many elements as the function's description says.
    unsafe { pointer.add(place).write_unaligned(value) };
}
