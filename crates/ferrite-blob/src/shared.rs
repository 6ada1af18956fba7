//! Units that several blobs name, so that a copy of a blob moves nothing.
//!
//! Contents: giving a blob the units of another ([`Blob::share_from`]), and what a blob does before its bytes change in
//! place: it gets units of its own. How many blobs name which units is counted in [`crate::shared_units`].
//!
//! Blobs that share units have the same *group* in their metadata, a number that is not 0. How many blobs name a unit
//! is not stored: an opening counts.
//!
//! Invariants:
//! - The metadata of the blob that had the units says its group, durably, before another blob names them. So of two
//!   blobs that claim a unit and are not of one group, one is damaged (`untangle`).
//! - No byte of a unit is written while two blobs name it. A blob writes what it changes to units of its own, durably,
//!   and then stores the metadata that names these. A name counts until metadata without it is durable.
//! - Only a blob that names a unit passes it on, and under its lock. So the holder of that lock, shared or not, finds
//!   that a unit is its alone only if it stays so.

use std::borrow::Cow;
use std::ops::Range;

use ferrite_checks::fault_injection::{Bug, is_seeded};

use crate::blob::{Added, Blob, in_clusters};
use crate::core::{Core, State};
use crate::device::Op;
use crate::format::{BlobId, Superblock};
use crate::page::Pages;
use crate::{CLUSTER_BYTES, Error, PAGE_BYTES, Result};

/// Longest part of a blob that a change of a byte of it copies.
const GRAIN_BYTES_MAX: u64 = 4 * CLUSTER_BYTES;
/// A blob in fewer pieces is copied unit by unit; each time they double, four times as much is copied at once.
const PIECES_OF_UNITS: usize = 1024;
/// A blob in too many pieces is copied to fewer: so much of it around the change, and if that is not enough, more.
const MERGED_BYTES: u64 = 64 * CLUSTER_BYTES;
const MERGED_MORE: u64 = 16;
/// Fewer are not worth it.
const MERGED_PIECES_MIN: usize = 16;

/// The group of a blob that has none, when another is to share its units. Two may be the same; then damage may pass
/// for sharing.
fn new_group(id: BlobId) -> u32 {
    (id.slot() ^ id.incarnation().rotate_left(16)).wrapping_mul(0x9e37_79b1) | 1
}

/// Parts of the device: the first unit, how many.
type Places = Vec<(u32, u32)>;

/// The units that one blob gives another.
struct Lent {
    group: u32,
    valid_len: u64,
    pieces: Vec<(u32, (u32, u32))>,
}

impl Core {
    /// The parts of a blob between two of its units that other blobs name, too; neighbours as one.
    fn shared_in(&self, state: &State, from: u32, to: u32) -> Vec<Range<u32>> {
        let mut found: Vec<Range<u32>> = Vec::new();
        if state.group == 0 || from >= to || is_seeded(Bug::BlobSharedInPlace) {
            return found;
        }
        let free = self.free.lock();
        for piece in state.pieces_in(&(from..to)) {
            let Some((place, _)) = state.piece(piece.start) else {
                continue;
            };
            for (part, _) in free.shared.of(&(place..place + (piece.end - piece.start))) {
                let part = piece.start + (part.start - place)..piece.start + (part.end - place);
                match found.last_mut() {
                    Some(last) if last.end == part.start => last.end = part.end,
                    _ => found.push(part),
                }
            }
        }
        found
    }

    /// The units with these bytes.
    pub(crate) fn units_of(&self, bytes: &Range<u64>) -> Range<u32> {
        if bytes.is_empty() {
            return 0..0;
        }
        let unit_bytes = self.layout.unit_bytes();
        let clamp = |unit: u64| u32::try_from(unit).unwrap_or(u32::MAX);
        clamp(bytes.start / unit_bytes)..clamp(bytes.end.div_ceil(unit_bytes))
    }

    /// The group that a blob's metadata is to say: none, when it shares nothing any more.
    pub(crate) fn group_of(&self, state: &State) -> u32 {
        let is_alone = || {
            let free = self.free.lock();
            let mut places = state.pieces.values();
            free.shared.is_empty()
                || !places.any(|&(physical, count)| free.shared.has_any(&(physical..physical + count)))
        };
        match state.group {
            0 => 0,
            _ if is_alone() => 0,
            group => group,
        }
    }

    /// The parts of a blob between two of its units that other blobs name, too, taken out of it: where they are.
    pub(crate) fn take_shared(&self, state: &mut State, units: &Range<u32>) -> Vec<(u32, u32)> {
        let shared = self.shared_in(state, units.start, units.end);
        shared
            .iter()
            .flat_map(|part| state.remove(part.start, part.end))
            .collect()
    }

    /// Whether other blobs name some of these bytes, too.
    pub(crate) fn is_shared(&self, state: &State, from: u64, to: u64) -> bool {
        let units = self.units_of(&(from..to));
        !self.shared_in(state, units.start, units.end).is_empty()
    }

    /// How many units of a blob are copied together: more with its pieces, so that they do not become too many.
    fn grain(&self, state: &State) -> u32 {
        let doubled = (state.pieces.len() / PIECES_OF_UNITS + 1).ilog2();
        let most = (GRAIN_BYTES_MAX / self.layout.unit_bytes()).max(1) as u32;
        4_u32.saturating_pow(doubled).min(most)
    }

    /// These bytes, and those beside them that are copied with them: whole units that are shared, `grain` at a time.
    fn widened(&self, state: &State, bytes: &Range<u64>, grain: u32) -> Range<u64> {
        let (unit_bytes, units) = (self.layout.unit_bytes(), self.units_of(bytes));
        let around = units.start / grain * grain..units.end.saturating_add(grain - 1) / grain * grain;
        let mut wide = bytes.clone();
        for part in self.shared_in(state, around.start, around.end) {
            if part.start < units.end && units.start < part.end {
                wide.start = wide.start.min(u64::from(part.start) * unit_bytes);
                wide.end = wide.end.max(u64::from(part.end) * unit_bytes);
            }
        }
        let old_end = state.valid_len.max(bytes.end);
        wide.start..wide.end.min(old_end)
    }

    /// Whether a change of these bytes is one of old bytes in place in a part of them, and not in others.
    fn is_partly_shared(&self, state: &State, bytes: &Range<u64>) -> bool {
        let units = self.units_of(&(bytes.start..bytes.end.min(state.valid_len)));
        let shared = self.shared_in(state, units.start, units.end);
        let is_own = |unit: u32| state.piece(unit).is_some() && !shared.iter().any(|part| part.contains(&unit));
        units.into_iter().any(is_own)
    }

    /// Notes in the superblock that blobs share units, which earlier programs do not know.
    fn allow_sharing(&self) -> Result<()> {
        let mut superblock = self.superblock.lock();
        if superblock.has_shared {
            return Ok(());
        }
        let next = Superblock {
            has_shared: true,
            generation: superblock.generation + 1,
            ..superblock.clone()
        };
        self.put_superblock(&next).map_err(|error| self.stop(error))?;
        *superblock = next;
        Ok(())
    }
}

impl Blob {
    /// Has this blob, which is empty, consist of the bytes before `end` of another one of the store. Moves none: both
    /// name the same units until one of them changes there. One step, as a crash sees it; durable when it returns. The
    /// metadata of neither changes. Blocks until calls that use the other blob have returned.
    ///
    /// `false`: it cannot, and nothing has changed: it is not empty, the other one is of another store or damaged, or
    /// there is no space for the list of its pieces.
    ///
    /// # Errors
    /// [`Error::NotFound`]; errors of the device, after which the store stops.
    pub fn share_from(&self, other: &Blob, end: u64) -> Result<bool> {
        if !std::sync::Arc::ptr_eq(&self.core, &other.core) || self.inner.id == other.inner.id {
            return Ok(false);
        }
        if !self.is_empty()? {
            return Ok(false);
        }
        let Some(lent) = other.lend(end)? else {
            return Ok(false);
        };
        let places: Vec<(u32, u32)> = lent.pieces.iter().map(|&(_, place)| place).collect();
        let taken = self.take(lent);
        // Where it is unknown what the device has, the store has stopped, and the names stay.
        if !matches!(taken, Ok(true)) && self.core.check_running().is_ok() {
            self.core.give_units(&places);
        }
        taken
    }

    /// Whether it has no bytes and no units.
    fn is_empty(&self) -> Result<bool> {
        let state = self.inner.state.read();
        self.alive(&state)?;
        Ok(state.valid_len == 0 && state.pieces.is_empty())
    }

    /// Counts one more name of the units before `end`, and makes the blob say its group.
    fn lend(&self, end: u64) -> Result<Option<Lent>> {
        let mut state = self.changeable(None)?;
        let valid_len = end.min(state.valid_len);
        let last = self.core.units_of(&(0..valid_len)).end;
        if self.check_tangle(&state, 0, valid_len).is_err() {
            return Ok(None);
        }
        let pieces: Vec<(u32, (u32, u32))> = state
            .pieces
            .range(..last)
            .map(|(&logical, &(physical, count))| (logical, (physical, count.min(last - logical))))
            .collect();
        if pieces.is_empty() {
            return Ok(Some(Lent {
                group: 0,
                valid_len,
                pieces,
            }));
        }
        self.core.allow_sharing()?;
        let mut free = self.core.free.lock();
        for &(_, (physical, count)) in &pieces {
            free.shared.add_name(physical..physical + count);
        }
        drop(free);
        if state.group == 0 {
            state.group = new_group(self.inner.id);
            if !is_seeded(Bug::BlobShareUnsaid) {
                self.core.store(self.inner.id, &mut state, false)?;
            }
        }
        Ok(Some(Lent {
            group: state.group,
            valid_len,
            pieces,
        }))
    }

    fn take(&self, lent: Lent) -> Result<bool> {
        let mut state = self.changeable(None)?;
        let is_tangled = self.check_tangle(&state, 0, 0).is_err();
        if is_tangled || state.valid_len > 0 || !state.pieces.is_empty() {
            return Ok(false);
        }
        (state.group, state.valid_len) = (lent.group, lent.valid_len);
        state.pieces = lent.pieces.into_iter().collect();
        let stored = self.core.store(self.inner.id, &mut state, true);
        if stored.is_err() {
            (state.group, state.valid_len) = (0, 0);
            state.pieces.clear();
        }
        match stored {
            Err(Error::TooManyPieces) => Ok(false),
            stored => stored.map(|()| true),
        }
    }

    /// [`Self::write_at`] where other blobs name some of the units: these get all bytes anew, in units of this blob's
    /// own. The caller holds the state.
    ///
    /// Crash argument: that of a write of new bytes. Until the metadata names the new units, durably, the blob has the
    /// old ones, which no one has changed; and then they count one name less.
    pub(crate) fn write_shared(
        &self,
        state: &mut State,
        data: &[u8],
        offset: u64,
        metadata: Option<&[u8]>,
    ) -> Result<()> {
        let bytes = offset..offset + data.len() as u64;
        // A write behind the end zeros from there on.
        self.unshare(state, state.valid_len..offset)?;
        // Both parts of a small one are old or new together.
        if data.len() <= PAGE_BYTES && self.core.is_partly_shared(state, &bytes) {
            self.unshare(state, bytes)?;
            return self.write_range(state, data, offset, metadata);
        }
        let (from, all) = self.widened_write(state, data, offset)?;
        let units = self.core.units_of(&(from..from + all.len() as u64));
        let before = state.before();
        let freed = self.core.take_shared(state, &units);
        match self.write_range(state, &all, from, metadata) {
            Ok(()) => {
                self.core.give_units(&freed);
                Ok(())
            }
            Err(Error::TooManyPieces) => {
                state.restore(before);
                self.merge_around(state, &bytes)?;
                self.write_range(state, data, offset, metadata)
            }
            Err(error) => {
                state.restore(before);
                Err(error)
            }
        }
    }

    /// A write with the bytes beside it that are to be copied with it.
    fn widened_write<'d>(&self, state: &State, data: &'d [u8], offset: u64) -> Result<(u64, Cow<'d, [u8]>)> {
        let bytes = offset..offset + data.len() as u64;
        let read = |grain| -> Result<(u64, Cow<'d, [u8]>)> {
            let wide = self.core.widened(state, &bytes, grain);
            if wide == bytes {
                return Ok((offset, Cow::Borrowed(data)));
            }
            let mut all = vec![0; (wide.end - wide.start) as usize];
            let (before, rest) = all.split_at_mut((offset - wide.start) as usize);
            let (own, behind) = rest.split_at_mut(data.len());
            self.read_old(state, before, wide.start)?;
            own.copy_from_slice(data);
            self.read_old(state, behind, bytes.end)?;
            Ok((wide.start, Cow::Owned(all)))
        };
        match self.core.grain(state) {
            1 => read(1),
            // Damage farther away does not concern this write.
            grain => read(grain).or_else(|_| read(1)),
        }
    }

    /// Gives the blob units of its own for these bytes, where other blobs name them, too. The caller holds the state;
    /// no content changes. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooManyPieces`], [`Error::Damaged`], and nothing has changed; errors of the device.
    pub(crate) fn unshare(&self, state: &mut State, bytes: Range<u64>) -> Result<()> {
        let units = self.core.units_of(&bytes);
        let shared = self.core.shared_in(state, units.start, units.end);
        if shared.is_empty() {
            return Ok(());
        }
        match self.move_out_of(state, &shared) {
            Err(Error::TooManyPieces) => self.merge_around(state, &bytes),
            moved => moved,
        }
    }

    /// Copies the blob around these bytes to new units in few pieces, so that it can have some more of them.
    fn merge_around(&self, state: &mut State, bytes: &Range<u64>) -> Result<()> {
        let mut span = MERGED_BYTES;
        loop {
            let around = bytes.start / span * span..bytes.end.checked_next_multiple_of(span).unwrap_or(u64::MAX);
            let parts = state.pieces_in(&self.core.units_of(&around));
            let is_all = parts.len() == state.pieces.len();
            if is_all || parts.len() >= MERGED_PIECES_MIN {
                match self.move_out_of(state, &parts) {
                    Err(Error::TooManyPieces) if !is_all => {}
                    merged => return merged,
                }
            }
            span = span.saturating_mul(MERGED_MORE);
        }
    }

    /// Gives the blob new units for these, and stores that. Copies nothing if it would end in too many pieces.
    ///
    /// Crash argument: the content is the same before and after. The copies are durable before the blob's page names
    /// them, and the old units count one name less when that page is durable.
    fn move_out_of(&self, state: &mut State, parts: &[Range<u32>]) -> Result<()> {
        let before = state.before();
        let old = state.pieces.clone();
        let (freed, taken) = self.move_to_own(state, parts)?;
        let copied = self.core.store_pieces(state).and_then(|overflow| {
            let new = std::mem::replace(&mut state.pieces, old);
            let copied = taken.iter().try_for_each(|added| self.copy_units(state, added));
            state.pieces = new;
            self.or_give_overflow(Some(overflow), copied)
        });
        match copied.and_then(|overflow| self.core.store_head(self.inner.id, state, overflow)) {
            Ok(()) => {
                self.core.give_units(&freed);
                Ok(())
            }
            Err(error) => {
                state.restore(before);
                // Otherwise the device may name them.
                if self.core.check_running().is_ok() {
                    let taken: Vec<(u32, u32)> = taken.iter().map(|&(_, place, count)| (place, count)).collect();
                    self.core.give_units(&taken);
                }
                Err(error)
            }
        }
    }

    /// Gives the blob new units for these parts in memory. Returns the old ones and these.
    fn move_to_own(&self, state: &mut State, parts: &[Range<u32>]) -> Result<(Places, Vec<Added>)> {
        let mut rows: Vec<(u32, u32)> = Vec::new();
        for part in parts {
            match rows.last_mut() {
                Some((first, count)) if *first + *count == part.start => *count += part.end - part.start,
                _ => rows.push((part.start, part.end - part.start)),
            }
        }
        let rows = in_clusters(&rows, self.core.layout.units_per_cluster());
        let counts: Vec<u32> = rows.iter().map(|(_, count)| *count).collect();
        let given = self.core.take_units(None, &counts)?;
        let (mut freed, mut taken) = (Vec::new(), Vec::new());
        for ((mut logical, _), places) in rows.into_iter().zip(given) {
            for (place, count) in places {
                freed.extend(state.remove(logical, logical + count));
                state.add(logical, place, count);
                taken.push((logical, place, count));
                logical += count;
            }
        }
        Ok((freed, taken))
    }

    /// Copies old bytes of some units of the blob, as `state` has them, to others. Durable when it returns.
    fn copy_units(&self, state: &State, &(logical, place, count): &Added) -> Result<()> {
        let unit_bytes = self.core.layout.unit_bytes();
        let begins = u64::from(logical) * unit_bytes;
        let end = state.valid_len.min(begins + u64::from(count) * unit_bytes);
        let mut at = begins;
        while at < end {
            let len = (end - at).min(CLUSTER_BYTES);
            let mut pages = Pages::zeroed((len as usize).div_ceil(PAGE_BYTES));
            self.read_old(state, &mut pages.bytes_mut()[..len as usize], at)?;
            self.core.device.run(&mut [Op::Write {
                offset: self.core.layout.unit(place) * PAGE_BYTES as u64 + (at - begins),
                from: pages.bytes(),
                durable: true,
            }])?;
            at += len;
        }
        Ok(())
    }
}
