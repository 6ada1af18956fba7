//! Changing part of a written page: the choice between log and copy, and the append.
//!
//! Crash argument: the entry goes to units that no word leads to, after the newest entry or in a fresh segment. The
//! record sets the page word (and the link from the old segment to a new one) and holds the checksum of the entry, so
//! it counts only if the entry survived as well: one fence for both. A torn entry leaves the old word, and its units
//! are overwritten later.

use crate::cache::logged::Cause;
use ferrite_map::{MapTx, PageId, PageWord, Resource};
use ferrite_pm::profile::{self, ProfileSpan};
use ferrite_vfs::Result;

use super::{block, scan};
use crate::format::layout::BLOCK_BYTES;
use crate::format::log_entry::{Entry, Header, Trailer};
use crate::format::page_buffer::PageBuffer;
use crate::format::unit::Unit;
use crate::pool::core::{Core, map_error};
use crate::pool::tx::Tx;
use crate::space::blocks::Class;

const PAGE: usize = BLOCK_BYTES as usize;
/// Longest entry. A longer write leaves so little to copy that a copy costs no more than the entry and its merge.
pub(crate) const LOG_BYTES_MAX: usize = 2560;
/// Bytes of the small buffer.
const SMALL_BYTES: usize = 384;
/// The growth of a log leads to segments of at most this part of a block; a longer entry may still need a larger one.
const GROWTH_PART: u32 = 2;

/// New content for part of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part<'a> {
    /// These bytes.
    Data(&'a [u8]),
    /// This many zeros.
    Zero(usize),
}

impl Part<'_> {
    fn len(&self) -> usize {
        match self {
            Part::Data(data) => data.len(),
            Part::Zero(len) => *len,
        }
    }

    fn data(&self) -> &[u8] {
        match self {
            Part::Data(data) => data,
            Part::Zero(_) => &[],
        }
    }
}

/// How to change part of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Add an entry to the log.
    Log,
    /// Merge everything into a new block, without a log.
    Copy,
}

/// Makes the choice, alone. `newest` is the newest entry of the page's log.
fn choose(core: &Core, newest: Option<&Trailer>, within: usize, part: Part<'_>, appends: bool) -> Way {
    let size = core.superblock.unit_size;
    let (len, data_len) = (part.len(), part.data().len());
    let log_units = newest.map_or(0, |newest| u32::from(newest.log_units));
    let fits_tail = newest.is_some_and(|newest| u32::from(newest.space) >= size.units_for(data_len));
    let too_long = log_units >= size.log_units_max() && !fits_tail;
    // An append that ends with the page: nothing will be added to it for a while, so merge it while it is at hand.
    let fills = appends && within + len == PAGE && newest.is_some();
    if core.options.cow_only || !size.allows_logs() || data_len > LOG_BYTES_MAX || too_long || fills {
        Way::Copy
    } else {
        Way::Log
    }
}

/// Changes part of a written page (not a hole, not a reserved one) in `tx`. `appends`: the part ends the file.
pub(crate) fn write_part(
    core: &Core,
    tx: &mut Tx<'_>,
    page: PageId,
    word: PageWord,
    (within, part): (usize, Part<'_>),
    appends: bool,
) -> Result<()> {
    let newest = match word.has_log() {
        true => Some(profile::within(ProfileSpan::Lookup, || scan::newest(core, page, word))?),
        false => None,
    };
    let newest = newest.as_ref();
    if tx.is_bound() {
        return copy(core, tx, page, word, (within, part), Cause::Write);
    }
    if let Some(newest) = newest
        && core.superblock.has_data_checksums()
    {
        // The trailer determines where the next entry goes.
        newest.read(&core.region, &mut PageBuffer::take())?;
    }
    if choose(core, newest.map(|entry| &entry.trailer), within, part, appends) == Way::Log
        && append(core, tx, page, word, newest, (within, part))?
    {
        return Ok(());
    }
    copy(core, tx, page, word, (within, part), Cause::Write)
}

/// Adds an entry; false if there is no space for a segment.
fn append(
    core: &Core,
    tx: &mut Tx<'_>,
    page: PageId,
    word: PageWord,
    newest: Option<&Entry>,
    (within, part): (usize, Part<'_>),
) -> Result<bool> {
    let size = core.superblock.unit_size;
    let (units, unit_bytes) = (size.units_for(part.data().len()), size.bytes() as usize);
    let trailer = Trailer {
        offset: within as u16,
        len: part.len() as u16,
        index: 0,
        space: 0,
        zero: matches!(part, Part::Zero(_)),
        depth: newest.map_or(0, |newest| newest.trailer.depth).saturating_add(1),
        log_units: newest.map_or(0, |newest| newest.trailer.log_units),
    };
    // Clearing a page's worth of stack would cost as much as a small entry does.
    let (mut small, mut large);
    let buffer: &mut [u8] = if (units as usize + 1) * unit_bytes <= SMALL_BYTES {
        small = [0; SMALL_BYTES];
        &mut small
    } else {
        large = [0; PAGE];
        &mut large
    };
    let unit = match newest {
        Some(newest) if u32::from(newest.trailer.space) >= units => {
            extend_segment(tx, page, newest, (trailer, part), buffer)
        }
        _ => match start_segment(core, tx, page, newest, (trailer, part), buffer) {
            Some(unit) => unit,
            None => return Ok(false),
        },
    };
    let PageId { ino, lblk } = page;
    tx.set_class(Class::Replacing);
    let new = core.superblock.logged(core.superblock.page(word), unit);
    profile::within(ProfileSpan::Lookup, || {
        core.map.replace(tx, PageId::new(ino, lblk), new)
    })
    .map_err(map_error)?;
    Ok(true)
}

/// Puts the entry after the newest one, whose segment has space for it.
#[inline]
fn extend_segment(
    tx: &mut Tx<'_>,
    page: PageId,
    newest: &Entry,
    (mut trailer, part): (Trailer, Part<'_>),
    buffer: &mut [u8],
) -> Unit {
    let units = newest.unit.size().units_for(part.data().len());
    trailer.index = newest.trailer.index + units as u8;
    trailer.space = newest.trailer.space - units as u8;
    let unit = newest.unit.plus(units);
    let bytes = &mut buffer[..newest.unit.size().bytes_of(units)];
    profile::within(ProfileSpan::Checksum, || trailer.encode(page, unit, part.data(), bytes));
    tx.stream_log(newest.unit.end(), bytes);
    unit
}

/// Puts the entry into a new segment, which the record links to the one before; `None` if there is no space for it.
#[inline]
fn start_segment(
    core: &Core,
    tx: &mut Tx<'_>,
    page: PageId,
    newest: Option<&Entry>,
    (mut trailer, part): (Trailer, Part<'_>),
    buffer: &mut [u8],
) -> Option<Unit> {
    let size = core.superblock.unit_size;
    let units = size.units_for(part.data().len());
    let most = size.block_units() / GROWTH_PART;
    let grown = newest.map_or(0, |newest| (newest.trailer.segment_units() * 2).min(most));
    let claim = || core.log_space.alloc(&core.alloc, (units + 1).max(grown));
    let segment = profile::within(ProfileSpan::Claim, claim)?;
    tx.claimed(segment.header.segment());
    trailer.index = units as u8;
    trailer.space = (segment.units - 1 - units) as u8;
    trailer.log_units += segment.units as u16;
    let header = Header {
        units: segment.units,
        previous: newest.map(|newest| newest.unit),
    };
    let unit = segment.header.plus(units);
    let bytes = &mut buffer[..size.bytes_of(units + 1)];
    profile::within(ProfileSpan::Checksum, || {
        header.encode(page, bytes);
        trailer.encode(page, unit, part.data(), &mut bytes[size.bytes() as usize..]);
    });
    match newest {
        Some(newest) => {
            tx.set_word(newest.segment().header.offset(), segment.header.number());
        }
        None => profile::within(ProfileSpan::Books, || {
            // This inode is locked here: its words show that, except for pages that this transaction has listed.
            let may_have_log = |other: PageId| match other.ino == page.ino {
                true => core.map.get(other).has_log(),
                false => scan::may_have_log(core, other),
            };
            let lists_first = !tx.streams_log_units();
            core.candidates.add(page, lists_first.then_some(&may_have_log));
        }),
    }
    tx.stream_segment(segment.header.offset(), bytes);
    Some(unit)
}

/// Writes the current page to a new block, without its log.
pub(crate) fn rewrite(core: &Core, tx: &mut Tx<'_>, page: PageId, word: PageWord, cause: Cause) -> Result<()> {
    copy(core, tx, page, word, (0, Part::Zero(0)), cause)
}

/// Writes the merged page to a new block; frees the old block and the log, which counts as a merge for this cause.
fn copy(
    core: &Core,
    tx: &mut Tx<'_>,
    page: PageId,
    word: PageWord,
    (within, part): (usize, Part<'_>),
    cause: Cause,
) -> Result<()> {
    let PageId { ino, lblk } = page;
    // A block that other pages have does not become free.
    tx.set_class(match core.shares.is_shared(core.superblock.page(word)) {
        true => Class::Ordinary,
        false => Class::Replacing,
    });
    let mut merged = PageBuffer::take();
    // The copy gets a new checksum: damage that was not detected here would never be.
    match tx.is_bound() && !word.has_log() {
        true => block::read_bound(core, page, word, 0, &mut merged[..])?,
        false => drop(profile::within(ProfileSpan::Copy, || {
            scan::read(core, page, word, 0, &mut merged[..])
        })?),
    }
    match part {
        Part::Data(data) => merged[within..within + data.len()].copy_from_slice(data),
        Part::Zero(len) => merged[within..within + len].fill(0),
    }
    let fresh = tx.alloc_block().map_err(map_error)?;
    tx.stream_last_page(page, fresh, &merged[..]);
    let new = PageWord::of_block(fresh);
    profile::within(ProfileSpan::Lookup, || {
        core.map.replace(tx, PageId::new(ino, lblk), new)
    })
    .map_err(map_error)?;
    tx.freed(Resource::Block(core.superblock.page(word)));
    scan::free(core, tx, page, word)?;
    if word.has_log() {
        core.merges.count(cause);
    }
    Ok(())
}
