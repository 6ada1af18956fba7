//! Names of pools, clients and objects, as librados takes them.

use std::ffi::CString;

use crate::error::{Error, Place, Result};

/// Bytes of a name, and of a namespace.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// A name for librados.
pub(crate) fn checked_name(place: &Place, of: &str, name: &str) -> Result<CString> {
    let is_fit = (1..=NAME_BYTES_MAX).contains(&name.len());
    let name = CString::new(name).ok().filter(|_| is_fit);
    name.ok_or_else(|| {
        let why = format!("the name of a {of} has 1 to {NAME_BYTES_MAX} bytes, none of them zero");
        Error::invalid(place, why)
    })
}
