//! Page logs: entries that their checksums vouch for, segments that follow each other, and what those lie in.

use ferrite_map::{MapEntry, PageId};
use ferrite_vfs::FsError;

use super::View;
use crate::audit::wrong::{BlockWrong, LogWrong};
use crate::format::layout::BLOCK_BYTES;
use crate::format::unit;
use crate::page::scan;
use crate::space::segments::{LogSpace, SegmentWrong};

/// What a walk meets, from the newest entry backwards.
pub(crate) enum Met {
    /// An entry, with the bytes of its data.
    Entry { bytes: u64 },
    /// The segment that the entries before this lie in. Its header is read by the step to the next entry.
    Segment(Segment),
}

/// A segment of a log, as a walk meets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) place: unit::Segment,
    /// What its header names as the next segment, and what that is; 0 for none.
    pub(crate) next: u64,
    pub(crate) newer: u64,
}

impl Segment {
    /// Where the word lies that names the next one.
    pub(crate) fn next_offset(&self) -> u64 {
        self.place.header.offset()
    }

    /// A segment names the one that follows it. Mount does not ask: nothing in a mounted pool follows these words.
    pub(crate) fn link(&self) -> Result<(), LogWrong> {
        let &Segment { place, next, newer } = self;
        let unit = place.header;
        match next == newer {
            true => Ok(()),
            false => Err(LogWrong::Link { unit, next, newer }),
        }
    }

    /// Its block, and its units there, are no other log's, and nobody else's. `space` is the book of all segments so
    /// far, `claim` as in [`View::own`].
    pub(crate) fn own(
        &self,
        view: View<'_>,
        space: &LogSpace,
        claim: impl FnOnce(u32) -> bool,
    ) -> Result<(), LogWrong> {
        let mut what = BlockWrong::Taken;
        let claim = |block| view.own(block, claim).map_err(|wrong| what = wrong).is_ok();
        self.wrong(space.set_used(claim, self.place), what)
    }

    /// As [`Self::own`], before anything is claimed.
    pub(crate) fn may_own(
        &self,
        view: View<'_>,
        space: &LogSpace,
        is_free: impl FnOnce(u32) -> bool,
    ) -> Result<(), LogWrong> {
        let mut what = BlockWrong::Taken;
        let is_free = |block| view.own(block, is_free).map_err(|wrong| what = wrong).is_ok();
        self.wrong(space.fits(is_free, self.place), what)
    }

    fn wrong(&self, outcome: Result<(), SegmentWrong>, what: BlockWrong) -> Result<(), LogWrong> {
        let unit = self.place.header;
        outcome.map_err(|wrong| match wrong {
            SegmentWrong::Block => LogWrong::Block { unit, what },
            SegmentWrong::Overlaps => LogWrong::Overlaps { unit },
        })
    }

    /// Whether two segments of one log share units.
    pub(crate) fn overlaps(&self, other: &Segment) -> bool {
        self.block() == other.block() && self.place.bits() & other.place.bits() != 0
    }

    /// The block it lies in.
    pub(crate) fn block(&self) -> u32 {
        self.place.header.block()
    }
}

/// Walks the log of a page and verifies all of it: a damaged trailer could pass for one that covers something else.
/// What was met before an error was sound so far.
pub(crate) fn walk(
    view: View<'_>,
    at: &MapEntry,
    buffer: &mut [u8; BLOCK_BYTES as usize],
    met: &mut dyn FnMut(Met),
) -> Result<(), LogWrong> {
    let mut newer = 0;
    let walked = scan::entries(
        (view.region, view.superblock),
        PageId::new(at.ino, at.lblk),
        at.word,
        &mut |entry| {
            let bytes = entry.read(view.region, buffer)?.len() as u64;
            met(Met::Entry { bytes });
            if entry.trailer.is_first() {
                let place = entry.segment();
                let next = view.region.load(place.header.offset());
                met(Met::Segment(Segment { place, next, newer }));
                newer = u64::from(place.header.0);
            }
            Ok(true)
        },
    );
    walked.map_err(|error| LogWrong::Broken {
        what: match error {
            // Of whose page is known.
            FsError::Damaged(damage) => damage.what,
            other => other.to_string(),
        },
    })
}
