//! Floor 2, what is wrong: damage that the mount found, and what operations met since.

pub(crate) mod incidents;
pub(crate) mod marks;
