//! Floor 5, data pages (HDPM §2): unaligned writes cost what they carry.
//!
//! A page is a block, with a checksum where data carries them ([`block`]), plus, after unaligned writes, a log: a chain
//! of *segments* that hold *entries*, the newest of which the page word names. What lives here, by file: reading
//! backwards ([`scan`]), the choice between log and copy and the append ([`append`]), folding a log back into its page
//! ([`fold`]), the thread that does so in the background ([`cleaner`]), and a view for people ([`dump`]). The bytes of
//! a log are in [`crate::format::log_entry`], its space in [`crate::space::segments`].
//!
//! Invariants:
//! * Entries are only ever added, behind the newest; the record that makes one reachable vouches for it by checksum,
//!   so that both share a fence. A crash leaves the word as it was, or with the whole entry.
//! * A page with a log has a block: holes and reserved pages get one by their first write.
//! * Segments are freed by a record that changes the word, or by a fold; both wait for the journal's mark, so that no
//!   replay names them. Their space is not written again before.

pub(crate) mod append;
pub(crate) mod block;
pub(crate) mod cleaner;
pub(crate) mod dump;
pub(crate) mod fold;
pub(crate) mod scan;
