//! Sizes as users write them and read them: those of every engine's files, too.

pub(crate) use ferrite_vfs::volume::{human_bytes as human, parse_bytes as parse};
