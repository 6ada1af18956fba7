//! Logs as their callers see them.

mod log;
mod mirror;
