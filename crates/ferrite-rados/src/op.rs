//! The steps of one atomic operation on one object.
//!
//! Contents: [`WriteOp`], [`ReadOp`] and [`Compare`]. Building an operation sends nothing. Limits are checked when it
//! is submitted, so that builders need no error.

use std::ffi::CString;

/// Bytes that the steps of an operation may carry together. OSDs refuse 90 MiB (`osd_max_write_size`).
pub const OPERATION_BYTES_MAX: usize = 64 << 20;
/// Bytes of the value of an xattr: what BlueStore keeps beside the object.
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// Bytes of the name of an xattr (`osd_max_attr_name_len`).
const XATTR_NAME_BYTES_MAX: usize = 100;
/// Steps of an operation; the protocol has two bytes for their number.
const STEPS_MAX: usize = 1024;
/// The end of the largest object that Ceph allows by default (`osd_max_object_size`).
const OBJECT_BYTES_MAX: u64 = 128 << 20;

/// A condition on the value of an xattr. An xattr that is missing counts as empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// The stored value is this one.
    Equal,
    /// The stored value is this one or lower, byte by byte: big-endian numbers of equal length compare as numbers.
    AtMost,
}

/// One step. Names are C strings by now, or [`None`] if they contain a zero byte.
#[derive(Debug, Clone)]
pub(crate) enum Step<'a> {
    AssertExists,
    Compare(Option<CString>, Compare, Bytes<'a>),
    CreateExclusive,
    Create,
    Write(u64, &'a [u8]),
    WriteFull(&'a [u8]),
    Truncate(u64),
    Zero(u64, u64),
    Remove,
    SetXattr(Option<CString>, Bytes<'a>),
}

/// A value: borrowed, or a number.
#[derive(Debug, Clone)]
pub(crate) enum Bytes<'a> {
    Borrowed(&'a [u8]),
    Number([u8; 8]),
}

impl Bytes<'_> {
    pub(crate) fn get(&self) -> &[u8] {
        match self {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Number(bytes) => bytes,
        }
    }
}

/// Changes of one object: all take effect, in this order, or none does. Compares come first.
///
/// Submitting it copies the data, so that the caller's buffer is free again at once.
#[derive(Debug, Clone, Default)]
pub struct WriteOp<'a> {
    steps: Vec<Step<'a>>,
}

impl<'a> WriteOp<'a> {
    /// An operation without steps, which changes nothing.
    pub fn new() -> WriteOp<'a> {
        WriteOp::default()
    }

    fn with(mut self, step: Step<'a>) -> WriteOp<'a> {
        self.steps.push(step);
        self
    }

    /// Demands that the object exists ([`Error::NotFound`](crate::Error::NotFound)).
    pub fn assert_exists(self) -> WriteOp<'a> {
        self.with(Step::AssertExists)
    }

    /// Demands a value of an xattr ([`Error::Fenced`](crate::Error::Fenced); if the object does not exist,
    /// [`Error::NotFound`](crate::Error::NotFound)).
    pub fn compare(self, xattr: &str, how: Compare, value: &'a [u8]) -> WriteOp<'a> {
        self.with(Step::Compare(CString::new(xattr).ok(), how, Bytes::Borrowed(value)))
    }

    /// Demands that the epoch which [`set_epoch`](Self::set_epoch) stored is `epoch` or lower, as [`compare`] does.
    ///
    /// [`compare`]: Self::compare
    pub fn compare_epoch(self, xattr: &str, epoch: u64) -> WriteOp<'a> {
        let value = Bytes::Number(epoch.to_be_bytes());
        self.with(Step::Compare(CString::new(xattr).ok(), Compare::AtMost, value))
    }

    /// Creates the object; it must not exist ([`Error::Exists`](crate::Error::Exists)).
    pub fn create_exclusive(self) -> WriteOp<'a> {
        self.with(Step::CreateExclusive)
    }

    /// Creates the object if it does not exist. Writes do so, too.
    pub fn create(self) -> WriteOp<'a> {
        self.with(Step::Create)
    }

    /// Writes at an offset, in bytes. A hole before it reads as zeros.
    pub fn write(self, offset: u64, data: &'a [u8]) -> WriteOp<'a> {
        self.with(Step::Write(offset, data))
    }

    /// Replaces the content. Xattrs stay.
    pub fn write_full(self, data: &'a [u8]) -> WriteOp<'a> {
        self.with(Step::WriteFull(data))
    }

    /// Sets the size, in bytes.
    pub fn truncate(self, size: u64) -> WriteOp<'a> {
        self.with(Step::Truncate(size))
    }

    /// Makes a range read as zeros, and gives its space back. A range that reaches the end of the object cuts it at
    /// `offset` instead (`PrimaryLogPG::do_osd_ops`); a [`truncate`](Self::truncate) behind it restores the size.
    /// Beyond the end there is nothing to do.
    pub fn zero(self, offset: u64, len: u64) -> WriteOp<'a> {
        self.with(Step::Zero(offset, len))
    }

    /// Removes the object with its xattrs.
    pub fn remove(self) -> WriteOp<'a> {
        self.with(Step::Remove)
    }

    /// Sets an xattr.
    pub fn set_xattr(self, xattr: &str, value: &'a [u8]) -> WriteOp<'a> {
        self.with(Step::SetXattr(CString::new(xattr).ok(), Bytes::Borrowed(value)))
    }

    /// Sets an xattr to an epoch, for [`compare_epoch`](Self::compare_epoch).
    pub fn set_epoch(self, xattr: &str, epoch: u64) -> WriteOp<'a> {
        self.with(Step::SetXattr(
            CString::new(xattr).ok(),
            Bytes::Number(epoch.to_be_bytes()),
        ))
    }

    pub(crate) fn steps(&self) -> &[Step<'a>] {
        &self.steps
    }

    /// Why it cannot be submitted.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.steps.len() > STEPS_MAX {
            return Err(format!(
                "{} steps in one operation, at most {STEPS_MAX}",
                self.steps.len()
            ));
        }
        let mut bytes = 0;
        for step in &self.steps {
            match step {
                Step::Compare(name, _, value) | Step::SetXattr(name, value) => {
                    bytes += check_xattr(name.as_ref(), value.get())?;
                }
                Step::Write(offset, data) => {
                    check_range(*offset, data.len() as u64)?;
                    bytes += data.len();
                }
                Step::WriteFull(data) => {
                    check_range(0, data.len() as u64)?;
                    bytes += data.len();
                }
                Step::Truncate(size) => check_range(*size, 0)?,
                Step::Zero(offset, len) => check_range(*offset, *len)?,
                Step::AssertExists | Step::CreateExclusive | Step::Create | Step::Remove => {}
            }
        }
        match bytes {
            bytes if bytes > OPERATION_BYTES_MAX => {
                Err(format!("{bytes} bytes in one operation, at most {OPERATION_BYTES_MAX}"))
            }
            _ => Ok(()),
        }
    }
}

/// Questions to one object: all are answered from the same state of it.
#[derive(Debug, Clone, Default)]
pub struct ReadOp<'a> {
    pub(crate) offset: Option<u64>,
    pub(crate) has_stat: bool,
    pub(crate) comes_after_writes: bool,
    pub(crate) xattrs: Vec<&'a str>,
    pub(crate) compares: Vec<(Option<CString>, Compare, Bytes<'a>)>,
}

impl<'a> ReadOp<'a> {
    /// Asks whether the object exists, and nothing else.
    pub fn new() -> ReadOp<'a> {
        ReadOp::default()
    }

    /// Asks for the bytes from `offset` on, as many as the caller's buffer holds. Asking twice counts once.
    pub fn read(mut self, offset: u64) -> ReadOp<'a> {
        self.offset = Some(offset);
        self
    }

    /// Asks for the size and the time of the last change.
    pub fn stat(mut self) -> ReadOp<'a> {
        self.has_stat = true;
        self
    }

    /// Waits for all writes to the object that were sent before, also those that timed out. Without it, a read may pass
    /// a write that waits until the object has all its replicas again (`PrimaryLogPG::do_op`, "write_ordered"). With
    /// it, reads of the same object take turns.
    pub fn after_writes(mut self) -> ReadOp<'a> {
        self.comes_after_writes = true;
        self
    }

    /// Asks for an xattr.
    pub fn xattr(mut self, name: &'a str) -> ReadOp<'a> {
        self.xattrs.push(name);
        self
    }

    /// Demands a value of an xattr, as [`WriteOp::compare`] does.
    pub fn compare(mut self, xattr: &str, how: Compare, value: &'a [u8]) -> ReadOp<'a> {
        let name = CString::new(xattr).ok();
        self.compares.push((name, how, Bytes::Borrowed(value)));
        self
    }

    /// Demands an epoch, as [`WriteOp::compare_epoch`] does.
    pub fn compare_epoch(mut self, xattr: &str, epoch: u64) -> ReadOp<'a> {
        let name = CString::new(xattr).ok();
        let value = Bytes::Number(epoch.to_be_bytes());
        self.compares.push((name, Compare::AtMost, value));
        self
    }

    /// Why it cannot be submitted with a buffer of `len` bytes.
    pub(crate) fn check(&self, len: usize) -> Result<(), String> {
        if self.compares.len() + self.xattrs.len() > STEPS_MAX {
            return Err(format!("more than {STEPS_MAX} steps in one operation"));
        }
        if len > OPERATION_BYTES_MAX {
            return Err(format!("{len} bytes in one operation, at most {OPERATION_BYTES_MAX}"));
        }
        for (name, _, value) in &self.compares {
            check_xattr(name.as_ref(), value.get())?;
        }
        match self.offset {
            Some(offset) if offset.checked_add(len as u64).is_none() => Err(format!("offset {offset} is too large")),
            _ => Ok(()),
        }
    }
}

/// Checks the name and the value of an xattr; returns their bytes.
fn check_xattr(name: Option<&CString>, value: &[u8]) -> Result<usize, String> {
    let name_len = name.map_or(0, |name| name.as_bytes().len());
    if !(1..=XATTR_NAME_BYTES_MAX).contains(&name_len) {
        return Err(format!(
            "the name of an xattr has 1 to {XATTR_NAME_BYTES_MAX} bytes, none of them zero"
        ));
    }
    if value.len() > XATTR_BYTES_MAX {
        return Err(format!("an xattr of {} bytes, at most {XATTR_BYTES_MAX}", value.len()));
    }
    Ok(name_len + value.len())
}

fn check_range(offset: u64, len: u64) -> Result<(), String> {
    match offset.checked_add(len) {
        Some(end) if end <= OBJECT_BYTES_MAX => Ok(()),
        _ => Err(format!(
            "{len} bytes at offset {offset} end beyond {OBJECT_BYTES_MAX} bytes, the largest object"
        )),
    }
}
