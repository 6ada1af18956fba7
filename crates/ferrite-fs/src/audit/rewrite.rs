//! Carrying out a repair so that a crash in the middle does no harm.
//!
//! Contents: [`Rewrite`], the words that a repair changes, and how they reach the medium:
//! * all of them are written, with a checksum, to the journal area, whose records are applied and dead by then;
//! * one word of the control block records that;
//! * they are stored in place;
//! * that word is cleared.
//!
//! Anything that opens the pool in between completes the repair (`finish`). `repair` decides what to change; mount's
//! own small repairs go through the journal.
//!
//! Invariant: until the control word is durable nothing but the journal area has changed; from then on the words there
//! lead to the repaired pool however often they are stored. A repair of more words than the journal area holds takes
//! several such steps, each of which leaves a pool that can be repaired again.

use ferrite_map::StoredWord;
use ferrite_pm::Region;
use zerocopy::IntoBytes;

use crate::error::EngineError;
use crate::format::checksum::crc32c;
use crate::format::layout::{
    CONTROL_BOOT, CONTROL_CHECKPOINT, CONTROL_MOUNTS, CONTROL_OFFSET, CONTROL_OWNER, CONTROL_REPAIR, LINE_BYTES,
    Superblock,
};
use crate::journal::replay::{self, Ended, Losses};

/// The changes of a repair.
#[derive(Debug, Clone, Default)]
pub struct Rewrite {
    /// The words to store.
    pub(crate) words: Vec<StoredWord>,
    /// The new value of the damaged checkpoint.
    pub(crate) checkpoint: Option<u64>,
    /// The word that names the boot that uses the pool is cleared.
    pub(crate) clear_boot: bool,
    /// The word that names the file in which it is used is cleared, too.
    pub(crate) clear_owner: bool,
    /// The pool as it was examined.
    pub(crate) basis: Basis,
}

/// The words that show whether a pool was used since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Basis {
    checkpoint: u64,
    /// Number of mounts.
    mounts: u64,
}

/// The pool as it is now.
pub(crate) fn basis(region: &Region) -> Basis {
    Basis {
        checkpoint: region.load(CONTROL_CHECKPOINT),
        mounts: region.load(CONTROL_MOUNTS),
    }
}

impl Rewrite {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty() && self.checkpoint.is_none() && !self.clear_boot && !self.clear_owner
    }

    /// Number of words it changes.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Changes the pool in `region`, which must be the one that [`crate::repair`] examined, unchanged since. Durable
    /// when it returns. Blocking.
    pub fn apply(&self, region: &Region) -> Result<(), EngineError> {
        let found = basis(region);
        region.check()?;
        if found != self.basis {
            return Err(EngineError::Options(
                "the pool was used since it was checked; check it again".into(),
            ));
        }
        let superblock = Superblock::find(region)?;
        if finish(region, &superblock).is_err() {
            // It cannot be completed; the words of this repair account for its effects.
            set(region, CONTROL_REPAIR, 0)?;
        }
        if let Some(checkpoint) = self.checkpoint {
            set(region, CONTROL_CHECKPOINT, checkpoint)?;
        }
        replay::replay(region, &superblock, Losses::Accept, Ended::of(region))?;
        let space = space(&superblock);
        for part in self.words.chunks(space) {
            let words: Vec<u64> = part.iter().flat_map(|word| [word.offset, word.value]).collect();
            region.stream(superblock.journal_offset, words.as_bytes());
            region.fence()?;
            let control = part.len() as u64 | u64::from(crc32c(words.as_bytes())) << 32;
            set(region, CONTROL_REPAIR, control)?;
            finish(region, &superblock)?;
        }
        if self.clear_owner {
            set(region, CONTROL_OWNER, 0)?;
        }
        if self.clear_boot {
            // Last: until then the pool must not be mounted.
            set(region, CONTROL_BOOT, 0)?;
        }
        Ok(())
    }
}

/// Words that one step can change.
fn space(superblock: &Superblock) -> usize {
    (u64::from(superblock.rings) * superblock.ring_bytes / 16) as usize
}

fn set(region: &Region, offset: u64, value: u64) -> Result<(), EngineError> {
    region.store(offset, value);
    region.write_back(offset, 8);
    Ok(region.fence()?)
}

/// Completes an interrupted repair. Called by everything that opens a pool, before the journal is replayed.
pub(crate) fn finish(region: &Region, superblock: &Superblock) -> Result<(), EngineError> {
    let control = region.load(CONTROL_REPAIR);
    if control == 0 {
        return Ok(());
    }
    let damaged = |what: &str| Err(EngineError::Damaged(format!("a repair was interrupted, and {what}")));
    let count = control as u32 as usize;
    if count > space(superblock) {
        return damaged("says an impossible number of words");
    }
    let mut bytes = vec![0; count * 16];
    region.read(superblock.journal_offset, &mut bytes);
    if crc32c(&bytes) != (control >> 32) as u32 {
        return damaged("what it was to change is damaged");
    }
    let journal_end = superblock.journal_offset + u64::from(superblock.rings) * superblock.ring_bytes;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    for pair in bytes.chunks_exact(16) {
        let (offset, value) = (word(&pair[..8]), word(&pair[8..]));
        let own = CONTROL_OFFSET..CONTROL_OFFSET + 4096;
        let journal = superblock.journal_offset..journal_end;
        if !offset.is_multiple_of(8)
            || offset >= superblock.size_bytes
            || own.contains(&offset)
            || journal.contains(&offset)
        {
            return damaged("would change what no repair changes");
        }
        region.store(offset, value);
        region.write_back(offset / LINE_BYTES * LINE_BYTES, LINE_BYTES);
    }
    region.fence()?;
    // Records are dead, but their remains are mixed with the words above; no later record may be taken for one of them.
    set(region, CONTROL_REPAIR, 0)
}
