//! The providers of libfabric that Ferrite uses, and its version.
#![allow(unsafe_code, reason = "libfabric is a library in C")]

use std::ffi::{CStr, c_char, c_int};
use std::sync::Once;

use super::lists::LISTS;

unsafe extern "C" {
    fn ferrite_ofi_version() -> u32;
    fn ferrite_ofi_has(provider: *const c_char) -> c_int;
}

/// A way to another host, or to another process of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// Shared memory between processes of one host.
    Shm,
    /// RDMA adapters.
    Verbs,
    /// TCP; for tests.
    Tcp,
}

impl Provider {
    /// All providers, the fastest first.
    pub const ALL: [Provider; 3] = [Provider::Shm, Provider::Verbs, Provider::Tcp];

    /// Its name in addresses.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Shm => "shm",
            Provider::Verbs => "verbs",
            Provider::Tcp => "tcp",
        }
    }

    /// The provider with this name.
    pub fn named(name: &str) -> Option<Provider> {
        Provider::ALL.into_iter().find(|provider| provider.name() == name)
    }

    /// Its name in libfabric.
    pub(super) fn of_library(self) -> &'static CStr {
        match self {
            Provider::Shm => c"shm",
            Provider::Verbs => c"verbs;ofi_rxm",
            Provider::Tcp => c"tcp;ofi_rxm",
        }
    }

    /// Whether this machine has it.
    pub fn is_there(self) -> bool {
        let _alone = LISTS.lock();
        // SAFETY: the text ends with a zero byte and outlives the call.
        unsafe { ferrite_ofi_has(self.of_library().as_ptr()) == 0 }
    }
}

/// Makes the library look for its providers, which it does once in a process. That takes tenths of a second, or seconds
/// on a busy machine: too long while a peer waits.
pub(crate) fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        Provider::Shm.is_there();
    });
}

/// Version of the library: major and minor.
pub fn library_version() -> (u32, u32) {
    // SAFETY: it returns a number.
    let version = unsafe { ferrite_ofi_version() };
    (version >> 16, version & 0xffff)
}
