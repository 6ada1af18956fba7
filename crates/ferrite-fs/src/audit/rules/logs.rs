//! Page logs: checksummed entries, segments that follow each other, and the blocks they lie in.

use ferrite_map::{BlockNo, MapEntry, PageId};
use ferrite_vfs::FsError;

use super::View;
use crate::audit::wrong::{BlockWrong, LogWrong};
use crate::format::layout::BLOCK_BYTES;
use crate::format::unit;
use crate::page::scan;
use crate::space::segments::{LogSpace, SegmentWrong};

/// The steps of a walk, from the newest entry backwards.
pub(crate) enum Met {
    /// An entry, with the bytes of its data.
    Entry { bytes: u64 },
    /// The segment that holds the preceding entries. The step to the next entry reads its header.
    Segment(Segment),
}

/// A segment of a log, as a walk visits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) place: unit::Segment,
    /// The segment that its header names as the next, and the one that really follows; 0 for none.
    pub(crate) next: u64,
    pub(crate) newer: u64,
}

impl Segment {
    /// Where the word lies that names the next segment.
    pub(crate) fn next_offset(&self) -> u64 {
        self.place.header.offset()
    }

    /// A segment names the one that follows it. Mount does not check this: nothing in a mounted pool follows these
    /// words.
    pub(crate) fn link(&self) -> Result<(), LogWrong> {
        let &Segment { place, next, newer } = self;
        let unit = place.header;
        match next == newer {
            true => Ok(()),
            false => Err(LogWrong::Link { unit, next, newer }),
        }
    }

    /// Its block holds nothing else, and no other log has its units there. `space` records all segments so far, `claim`
    /// as in [`View::own`].
    pub(crate) fn own(
        &self,
        view: View<'_>,
        space: &LogSpace,
        claim: impl FnOnce(BlockNo) -> bool,
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
        is_free: impl FnOnce(BlockNo) -> bool,
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
    pub(crate) fn block(&self) -> BlockNo {
        self.place.header.block()
    }
}

/// Pages of bound files have no logs. Mount and scrub do not check this: the page is read with its log, and the next
/// local write copies it with its log.
pub(crate) fn is_allowed(view: View<'_>, page: &MapEntry) -> Result<(), LogWrong> {
    match view.in_use(page.ino).is_some_and(|inode| inode.is_bound()) {
        true => Err(LogWrong::OfBound),
        false => Ok(()),
    }
}

/// Walks the log of a page and verifies all of it: a damaged trailer could pass for one that covers another range. The
/// entries visited before an error are sound.
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
            if entry.is_first() {
                let place = entry.segment();
                let next = view.region.load(place.header.offset());
                met(Met::Segment(Segment { place, next, newer }));
                newer = place.header.number();
            }
            Ok(true)
        },
    );
    walked.map_err(|error| LogWrong::Broken {
        what: match error {
            // The caller knows the page.
            FsError::Damaged(damage) => damage.what,
            other => other.to_string(),
        },
    })
}
