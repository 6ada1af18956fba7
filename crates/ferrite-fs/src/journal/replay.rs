//! Recovery from the journal: find the records a crash left, apply those that are whole, in order.
//!
//! Invariants: applying is idempotent, so a crash during recovery is repaired by recovering again. The new mark
//! is above *every* record with a sound checksum, also those whose data did not survive: otherwise a later write of
//! the same bytes to the same block could complete a dead record, and the next recovery would replay it.

use ferrite_pm::Region;

use super::record::{Header, Item, items_of};
use crate::checksum::crc32c;
use crate::error::EngineError;
use crate::layout::{CONTROL_MARK, LINE_BYTES, Superblock, decode_mark, encode_mark};
use crate::planted::{Flaw, planted};

/// What recovery found and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Replay {
    /// The mark now.
    pub(crate) mark: u64,
    /// Records applied.
    pub(crate) records: u64,
}

struct Found {
    seq: u64,
    words: Vec<u64>,
}

/// Applies all whole records above the mark and moves the mark past them. Blocking; after it returns the
/// recovered words and the mark are durable.
pub(crate) fn replay(region: &Region, superblock: &Superblock) -> Result<Replay, EngineError> {
    let Some(mark) = decode_mark(region.load(CONTROL_MARK)) else {
        return Err(EngineError::Damaged("the journal's low-water mark".into()));
    };
    let mut found = Vec::new();
    for ring in 0..superblock.rings {
        scan_ring(region, superblock, ring, mark, &mut found);
    }
    let newest = found.iter().map(|record| record.seq).fold(mark, u64::max);
    found.retain(|record| data_survived(region, record));
    if !planted(Flaw::ReplayOutOfOrder) {
        found.sort_by_key(|record| record.seq);
    }
    for record in &found {
        for item in items_of(&record.words) {
            if let Item::Words { offset, values } = item {
                if !may_be_set(superblock, offset, values.len() as u64 * 8) {
                    return Err(EngineError::Damaged(format!(
                        "journal record {} sets {} words at offset {offset}, outside every table",
                        record.seq,
                        values.len()
                    )));
                }
                region.store_words(offset, values);
                region.write_back(offset, values.len() as u64 * 8);
            }
        }
    }
    region.fence()?;
    if newest != mark {
        region.store(CONTROL_MARK, encode_mark(newest));
        region.write_back(CONTROL_MARK, 8);
        region.fence()?;
    }
    Ok(Replay {
        mark: newest,
        records: found.len() as u64,
    })
}

/// The mark to set when the stored one is damaged: above every record, for it cannot be known which of them are stale.
pub(crate) fn mark_above_all(region: &Region, superblock: &Superblock) -> u64 {
    let mut found = Vec::new();
    for ring in 0..superblock.rings {
        scan_ring(region, superblock, ring, 0, &mut found);
    }
    encode_mark(found.iter().map(|record| record.seq).fold(0, u64::max))
}

fn scan_ring(region: &Region, superblock: &Superblock, ring: u32, mark: u64, found: &mut Vec<Found>) {
    let start = superblock.ring_offset(ring);
    let mut position = 0;
    while position < superblock.ring_bytes {
        let first = region.load(start + position);
        let header = Header::parse(first, region.load(start + position + 8), ring).filter(|header| {
            (header.seq > mark || planted(Flaw::StaleReplay))
                && position + header.len as u64 * 8 <= superblock.ring_bytes
        });
        let mut step = LINE_BYTES;
        if let Some(header) = header {
            let mut words: Vec<u64> = (0..header.len as u64)
                .map(|index| region.load(start + position + index * 8))
                .collect();
            if header.verify(&mut words, superblock.seed ^ position) || planted(Flaw::TornRecord) {
                // What lies inside a record is not looked at as a record.
                step = (header.len as u64 * 8).next_multiple_of(LINE_BYTES);
                found.push(Found { seq: header.seq, words });
            }
        }
        position += step;
    }
}

fn data_survived(region: &Region, record: &Found) -> bool {
    let mut bytes = Vec::new();
    items_of(&record.words).all(|item| match item {
        Item::Words { .. } => true,
        Item::Data { offset, len_bytes, crc } => {
            let in_pool = offset
                .checked_add(u64::from(len_bytes))
                .is_some_and(|end| end <= region.len());
            if in_pool {
                bytes.resize(len_bytes as usize, 0);
                region.read(offset, &mut bytes);
            }
            in_pool && crc32c(&bytes) == crc
        }
    })
}

/// Records set words of the tables and of data blocks, nothing else.
fn may_be_set(superblock: &Superblock, offset: u64, len: u64) -> bool {
    let end = superblock.block_offset((superblock.first_block + superblock.blocks) as u32);
    offset.is_multiple_of(8)
        && offset >= superblock.inode_offset
        && offset.checked_add(len).is_some_and(|last| last <= end)
}
