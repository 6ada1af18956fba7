//! The types that cross a border between Rust and C++, as in `include/ferrite/border.h`, in the same order; and how
//! calls cross it.
//!
//! Invariants: all types are plain data; the caller provides the [`Failure`], with kind [`Kind::NONE`]; the target of a
//! [`Bytes`] is borrowed for the length of the call; no panic or exception unwinds from one side into the other
//! ([`guarded`], [`visit`]).

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Kinds of failure. A library uses those that it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Kind(i32);

impl Kind {
    /// Nothing failed.
    pub const NONE: Kind = Kind(0);
    /// Something is not there.
    pub const NOT_FOUND: Kind = Kind(1);
    /// Data differs from what was written.
    pub const CORRUPTION: Kind = Kind(2);
    /// Not supported.
    pub const NOT_SUPPORTED: Kind = Kind(3);
    /// An argument is invalid.
    pub const INVALID: Kind = Kind(4);
    /// Anything else.
    pub const IO: Kind = Kind(5);
    /// No space is left.
    pub const NO_SPACE: Kind = Kind(6);
    /// Another transaction kept a lock for too long.
    pub const TIMED_OUT: Kind = Kind(7);
    /// Transactions wait for each other.
    pub const DEADLOCK: Kind = Kind(8);
    /// It is open already.
    pub const IN_USE: Kind = Kind(9);
}

const TEXT_BYTES: usize = 504;

/// Why something failed.
#[repr(C)]
pub struct Failure {
    /// [`Kind::NONE`] if nothing did.
    pub kind: Kind,
    len_bytes: u32,
    text: [u8; TEXT_BYTES],
}

impl Failure {
    /// Nothing failed.
    pub fn none() -> Failure {
        Failure {
            kind: Kind::NONE,
            len_bytes: 0,
            text: [0; TEXT_BYTES],
        }
    }

    /// Text beyond the field's length is cut off.
    pub fn set(&mut self, kind: Kind, text: &str) {
        let len = text.len().min(TEXT_BYTES);
        self.kind = kind;
        self.len_bytes = len as u32;
        self.text[..len].copy_from_slice(&text.as_bytes()[..len]);
    }

    /// Its text.
    pub fn text(&self) -> String {
        let len = (self.len_bytes as usize).min(TEXT_BYTES);
        String::from_utf8_lossy(&self.text[..len]).into_owned()
    }
}

/// Borrowed for the length of a call.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Bytes {
    data: *const u8,
    len_bytes: usize,
}

impl Bytes {
    /// Those of a slice, which must outlive the call that they are passed to.
    pub fn of(slice: &[u8]) -> Bytes {
        Bytes {
            data: slice.as_ptr(),
            len_bytes: slice.len(),
        }
    }

    /// The bytes themselves.
    ///
    /// # Safety
    /// `self` came from the C++ side in this call, and the result is not used after it.
    pub unsafe fn slice<'a>(self) -> &'a [u8] {
        if self.len_bytes == 0 {
            // The C++ side may pass no address for an empty slice.
            return &[];
        }
        // SAFETY: the C++ side passes the address of that many bytes, which it does not modify during the call.
        unsafe { std::slice::from_raw_parts(self.data, self.len_bytes) }
    }
}

/// Receives data piece by piece; returns false for no more. It is called with the context that came with it, and with
/// bytes that are borrowed for the call.
pub type Sink = unsafe extern "C" fn(context: *mut c_void, first: Bytes, second: Bytes) -> bool;

/// Runs `work` for the C++ side. An error or a panic becomes a failure and the value `otherwise`.
pub fn guarded<T>(failure: &mut Failure, otherwise: T, work: impl FnOnce() -> Result<T, (Kind, String)>) -> T {
    // A panic is a bug in the file system, but it does not poison the locks. It leaves the same state as in any thread
    // of a program that links the library, and the C++ side gets an error for the operation.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => done,
        Ok(Err((kind, text))) => {
            failure.set(kind, &text);
            otherwise
        }
        Err(_) => {
            failure.set(
                Kind::IO,
                "a mistake of the file system (it panicked; its message is on standard error)",
            );
            otherwise
        }
    }
}

/// Gives a value to the C++ side, which returns it to be closed.
pub fn boxed<T>(value: T) -> *mut c_void {
    Box::into_raw(Box::new(value)).cast()
}

/// Takes back a box from [`boxed`].
///
/// # Safety
/// `pointer` came from `boxed::<T>`, and no code uses it again.
pub unsafe fn unboxed<T>(pointer: *mut c_void) -> Box<T> {
    // SAFETY: the caller guarantees it.
    unsafe { Box::from_raw(pointer.cast()) }
}

/// Drops a value from [`boxed`]; a panic ends here.
///
/// # Safety
/// As [`unboxed`].
pub unsafe fn close<T>(pointer: *mut c_void) {
    // SAFETY: the caller guarantees it.
    let value = unsafe { unboxed::<T>(pointer) };
    guarded(&mut Failure::none(), (), || {
        drop(value);
        Ok(())
    });
}

struct Visitor<'a> {
    each: &'a mut dyn FnMut(&[u8], &[u8]) -> bool,
    panic: Option<Box<dyn Any + Send>>,
}

/// Has the C++ side pass pieces to `each`, until that returns false: `call` passes it the sink with the context, for
/// the length of the call and from this thread only. A panic of `each` resumes in the caller.
pub fn visit(
    each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    call: impl FnOnce(Sink, *mut c_void, &mut Failure),
) -> Failure {
    let mut visitor = Visitor { each, panic: None };
    let mut failure = Failure::none();
    call(show, (&raw mut visitor).cast(), &mut failure);
    if let Some(panic) = visitor.panic {
        resume_unwind(panic);
    }
    failure
}

unsafe extern "C" fn show(visitor: *mut c_void, first: Bytes, second: Bytes) -> bool {
    // SAFETY: `visit` passed its own visitor, which it does not touch meanwhile; the bytes are borrowed for this call.
    let (visitor, first, second) = unsafe { (&mut *visitor.cast::<Visitor<'_>>(), first.slice(), second.slice()) };
    // A panic must not pass through C++: it is kept in the visitor, and the visit ends.
    catch_unwind(AssertUnwindSafe(|| (visitor.each)(first, second))).unwrap_or_else(|panic| {
        visitor.panic = Some(panic);
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_as_a_failure() {
        let mut failure = Failure::none();
        let result = guarded(&mut failure, 7, || panic!("wanted by this test"));
        assert_eq!((result, failure.kind), (7, Kind::IO));
        assert!(failure.text().contains("panicked"));
    }

    #[test]
    fn long_texts_are_truncated() {
        let mut failure = Failure::none();
        failure.set(Kind::INVALID, &"é".repeat(TEXT_BYTES));
        assert_eq!(failure.kind, Kind::INVALID);
        assert!(failure.text().starts_with("éé"));
    }

    /// The C++ side as it is seen from here: pieces until the visitor wants no more.
    #[test]
    fn a_visitor_ends_the_visit_and_its_panic_comes_back() {
        let pieces = |sink: Sink, context: *mut c_void, failure: &mut Failure| {
            let wants_more = |key: &[u8]| {
                // SAFETY: the context came with the sink, in this call; the bytes live as long as this call.
                unsafe { sink(context, Bytes::of(key), Bytes::of(b"")) }
            };
            assert!(wants_more(b"a") && !wants_more(b"b"));
            failure.set(Kind::NOT_FOUND, "the end");
        };
        let mut seen = Vec::new();
        let failure = visit(
            &mut |key, value| {
                assert!(value.is_empty());
                seen.extend_from_slice(key);
                key != b"b"
            },
            pieces,
        );
        assert_eq!((seen, failure.kind), (b"ab".to_vec(), Kind::NOT_FOUND));
        let panicked = catch_unwind(|| visit(&mut |key, _| key != b"b" || panic!("wanted by this test"), pieces));
        assert!(panicked.is_err());
    }

    #[test]
    fn what_is_given_out_is_dropped_once() {
        let value = std::rc::Rc::new(());
        let pointer = boxed(std::rc::Rc::clone(&value));
        assert_eq!(std::rc::Rc::strong_count(&value), 2);
        // SAFETY: it came from `boxed` with this type, and is not used again.
        unsafe { close::<std::rc::Rc<()>>(pointer) };
        assert_eq!(std::rc::Rc::strong_count(&value), 1);
    }
}
