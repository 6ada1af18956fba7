//! Floor 5, data pages (HDPM §2): unaligned writes cost about as much as the bytes they carry.
//!
//! A page is a block, with a checksum where data carries them ([`block`]), plus, after unaligned writes, a log: a
//! chain of *segments* that hold *entries*. The page word names the newest entry.
//!
//! Contents, by file: reading backwards ([`scan`]), the choice between log and copy and the append
//! ([`append`]), merging a log back into its page ([`merge`]), the thread that does so in the background ([`cleaner`]),
//! and a view for people ([`dump`]). The bytes of a log are in [`crate::format::log_entry`], its space in
//! [`crate::space::segments`].
//!
//! Invariants:
//! * Entries are only ever added, after the newest; the record that makes one reachable carries its checksum, so that
//!   both share a fence. A crash leaves the word as it was, or with the whole entry.
//! * A page with a log has a block: holes and reserved pages get one with their first write.
//! * Segments are freed by a record that changes the word, or by a merge; both wait for the journal's checkpoint, so
//!   that no replay names them. Their space is not overwritten before that.

pub(crate) mod append;
pub(crate) mod block;
pub(crate) mod cleaner;
pub(crate) mod dump;
pub(crate) mod merge;
pub(crate) mod scan;
