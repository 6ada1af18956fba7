//! Recovery from the journal: finds the records that a crash left, and applies those that are whole, in order.
//!
//! Invariants: applying is idempotent, so after a crash during recovery it is enough to recover again. The new
//! checkpoint is above *every* record that the crash may have left, including records whose data did not survive, and
//! records that survived only in part. Otherwise a later write of the same bytes to the same place could complete a
//! dead record, and the next recovery would replay it.
//!
//! The remains of a torn record need not contain its number. So the checkpoint moves by more than any record in flight
//! can be ahead ([`IN_FLIGHT_REACH`]).
//!
//! A crash can leave only the newest record of a ring torn or dead: each was fenced before the next was streamed, and
//! each names the previous one. So a record that is named and cannot be replayed was durable once and is damaged; an
//! operation that had returned is lost. No record names the newest: if that one is damaged, it looks like one that a
//! crash tore.
//!
//! A pool that was used with deferred write-back (`durability=fsync`) is different: any of the records since the last
//! sync may be torn, dead or missing, in any order. They are all in one ring, and each names the one before.
//!
//! Recovery replays the longest run of them from the checkpoint on: a prefix of the operations. It drops the rest. Each
//! record states up to which number all were durable when it was streamed; if the run ends before that, one was
//! damaged, and operations that were durable are lost.

use ferrite_checks::fault_injection::{Bug, is_seeded};
use ferrite_pm::Region;
use rustc_hash::FxHashSet;

use crate::error::EngineError;
use crate::format::checksum::Check;
use crate::format::layout::{
    CONTROL_CHECKPOINT, CONTROL_DEFERRED, CONTROL_STATE, LINE_BYTES, SEQ_MAX, STATE_CLEAN, Superblock,
    decode_checkpoint, encode_checkpoint,
};
use crate::format::record::{Header, Item, Link, items_of};
use crate::journal::{DEFERRED_RING, IN_FLIGHT_REACH};

/// The result of recovery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Replay {
    /// The checkpoint after recovery.
    pub(crate) checkpoint: u64,
    /// Records applied.
    pub(crate) records: u64,
    /// Records that were once durable and cannot be replayed, described in words.
    pub(crate) lost: Vec<String>,
}

/// How to treat a journal from which durable records are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Losses {
    /// The checkpoint stays, so that the next program to open the pool finds the same. The pool must not be changed
    /// then.
    Keep,
    /// Nothing more can be recovered: the checkpoint moves past the lost records.
    Accept,
}

/// How the last program that used the pool left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It unmounted: no record is torn, and none is above the checkpoint.
    Cleanly,
    /// It may have been writing records.
    Perhaps,
}

impl Ended {
    /// The state in the control block, as long as no mount has marked the pool as in use again.
    pub(crate) fn of(region: &Region) -> Ended {
        match region.load(CONTROL_STATE) == STATE_CLEAN {
            true => Ended::Cleanly,
            false => Ended::Perhaps,
        }
    }
}

struct Found {
    ring: u32,
    seq: u64,
    link: Link,
    words: Vec<u64>,
}

/// Applies all whole records above the checkpoint and moves the checkpoint past them. Blocking. When it returns, the
/// recovered words and the checkpoint are durable.
pub(crate) fn replay(
    region: &Region,
    superblock: &Superblock,
    losses: Losses,
    ended: Ended,
) -> Result<Replay, EngineError> {
    let Some(checkpoint) = decode_checkpoint(region.load(CONTROL_CHECKPOINT)) else {
        return Err(EngineError::Damaged("the journal's checkpoint".into()));
    };
    let mut found = Vec::new();
    for ring in 0..superblock.rings {
        scan_ring(region, superblock, ring, checkpoint, &mut found);
    }
    let newest = found.iter().map(|record| record.seq).fold(checkpoint, u64::max);
    let check = superblock.record_check();
    let lost = match defers_write_back(region) {
        true => keep_prefix(region, check, checkpoint, &mut found),
        false => drop_dead(region, check, checkpoint, &mut found),
    };
    let newest = match is_seeded(Bug::DeadRecordAbove) {
        true => found.iter().map(|record| record.seq).fold(checkpoint, u64::max),
        false => newest,
    };
    if !is_seeded(Bug::ReplayOutOfOrder) {
        found.sort_by_key(|record| record.seq);
    }
    for record in &found {
        for item in items_of(&record.words) {
            if let Item::Words { offset, values } = item {
                if !superblock.may_be_set(offset, values.len() as u64 * 8) {
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
    let new_checkpoint = match losses == Losses::Keep && !lost.is_empty() {
        true => checkpoint,
        false if ended == Ended::Cleanly => newest,
        false if is_seeded(Bug::TornRecordAbove) || is_seeded(Bug::DeadRecordAbove) => newest,
        false => (newest + IN_FLIGHT_REACH).min(SEQ_MAX),
    };
    if new_checkpoint != checkpoint {
        region.store(CONTROL_CHECKPOINT, encode_checkpoint(new_checkpoint));
        region.write_back(CONTROL_CHECKPOINT, 8);
        region.fence()?;
    }
    Ok(Replay {
        checkpoint: new_checkpoint,
        records: found.len() as u64,
        lost,
    })
}

/// Whether the pool was last changed with deferred write-back.
pub(crate) fn defers_write_back(region: &Region) -> bool {
    region.load(CONTROL_DEFERRED) != 0
}

/// Drops the records whose data did not survive; reports those that were durable once and cannot be replayed.
fn drop_dead(region: &Region, check: Check, checkpoint: u64, found: &mut Vec<Found>) -> Vec<String> {
    let named = named(found, checkpoint);
    let mut lost = missing(found, &named);
    found.retain(|record| {
        let survived = data_survived(region, check, record);
        if !survived && named.contains(&record.id()) {
            lost.push(format!(
                "record {} of ring {} was durable, but the data it covers is not what was written: its changes are \
                 lost",
                record.seq, record.ring
            ));
        }
        survived
    });
    lost
}

/// Keeps the records that follow each other from the checkpoint on, up to the first that is missing or dead. Reports
/// that one if it was durable, according to a later record.
fn keep_prefix(region: &Region, check: Check, checkpoint: u64, found: &mut Vec<Found>) -> Vec<String> {
    found.retain(|record| record.ring == DEFERRED_RING);
    found.sort_by_key(|record| record.seq);
    let mut before = None;
    let follows = |record: &&Found| {
        let follows = match (record.link, before) {
            (Link::Before(seq), None) => seq <= checkpoint,
            (Link::Before(seq), Some(before)) => seq == before,
            (Link::Retired, before) => before.is_none(),
            (Link::Unknown, _) => false,
        };
        before = Some(record.seq);
        (follows || is_seeded(Bug::GapInPrefix)) && data_survived(region, check, record)
    };
    let kept = found.iter().take_while(follows).count();
    let durable = found
        .iter()
        .flat_map(|record| items_of(&record.words))
        .filter_map(|item| match item {
            Item::Durable { seq } => Some(seq),
            Item::Words { .. } | Item::Data { .. } => None,
        });
    let durable = durable.fold(checkpoint, u64::max);
    let last = found[..kept].last().map_or(checkpoint, |record| record.seq);
    found.truncate(kept);
    match last < durable {
        true => vec![format!(
            "a record behind number {last} is damaged, and a later one shows that all up to {durable} were durable: \
             the changes of these, and all later ones, are lost"
        )],
        false => Vec::new(),
    }
}

impl Found {
    fn id(&self) -> RecordId {
        RecordId {
            ring: self.ring,
            seq: self.seq,
        }
    }
}

/// The identity of a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct RecordId {
    ring: u32,
    seq: u64,
}

/// The records above the checkpoint that another record names: these were durable.
fn named(found: &[Found], checkpoint: u64) -> FxHashSet<RecordId> {
    let before = |record: &Found| match record.link {
        Link::Before(seq) if seq > checkpoint => Some(RecordId { seq, ..record.id() }),
        // Nothing up to the checkpoint is replayed, and the space of such records may hold others.
        Link::Before(_) | Link::Retired | Link::Unknown => None,
    };
    found.iter().filter_map(before).collect()
}

/// Those of `named` that are missing.
fn missing(found: &[Found], named: &FxHashSet<RecordId>) -> Vec<String> {
    let there: FxHashSet<RecordId> = found.iter().map(Found::id).collect();
    let mut gone: Vec<_> = named.difference(&there).collect();
    gone.sort_unstable();
    gone.into_iter()
        .map(|RecordId { ring, seq }| {
            format!(
                "record {seq} of ring {ring} is damaged, and a later one shows that it was durable: its changes are lost"
            )
        })
        .collect()
}

/// The checkpoint to set when the stored one is damaged: above every record, since it is unknown which of them are
/// stale.
pub(crate) fn checkpoint_above_all(region: &Region, superblock: &Superblock) -> u64 {
    let mut found = Vec::new();
    for ring in 0..superblock.rings {
        scan_ring(region, superblock, ring, 0, &mut found);
    }
    encode_checkpoint(found.iter().map(|record| record.seq).fold(0, u64::max))
}

fn scan_ring(region: &Region, superblock: &Superblock, ring: u32, checkpoint: u64, found: &mut Vec<Found>) {
    let start = superblock.ring_offset(ring);
    let check = superblock.record_check();
    let mut position = 0;
    while position < superblock.ring_bytes {
        let first = region.load(start + position);
        let header = Header::parse(first, region.load(start + position + 8), ring).filter(|header| {
            (header.seq > checkpoint || is_seeded(Bug::StaleReplay))
                && position + header.len as u64 * 8 <= superblock.ring_bytes
        });
        let mut step = LINE_BYTES;
        if let Some(header) = header {
            let mut words: Vec<u64> = (0..header.len as u64)
                .map(|index| region.load(start + position + index * 8))
                .collect();
            if header.verify(&mut words, check, superblock.seed ^ position) || is_seeded(Bug::TornRecord) {
                // The inside of a record is not searched for records.
                step = (header.len as u64 * 8).next_multiple_of(LINE_BYTES);
                found.push(Found {
                    ring,
                    seq: header.seq,
                    link: header.link,
                    words,
                });
            }
        }
        position += step;
    }
}

fn data_survived(region: &Region, how: Check, record: &Found) -> bool {
    let mut bytes = Vec::new();
    let mut items = 0;
    items_of(&record.words).all(|item| match item {
        Item::Words { .. } | Item::Durable { .. } => true,
        Item::Data { .. } if items > 0 && is_seeded(Bug::FirstDataOnly) => true,
        Item::Data {
            offset,
            len_bytes,
            check,
        } => {
            items += 1;
            let in_pool = offset
                .checked_add(u64::from(len_bytes))
                .is_some_and(|end| end <= region.len());
            if in_pool {
                bytes.resize(len_bytes as usize, 0);
                region.read(offset, &mut bytes);
            }
            in_pool && how.data(&bytes) == check
        }
    })
}
