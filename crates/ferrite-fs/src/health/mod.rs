//! Floor 2, damage: found by the mount, or met by operations since.

pub(crate) mod quarantine;
pub(crate) mod runtime_errors;
