//! The table of names on the device.
//!
//! Invariants: the place that was written last is never the next one to be written; a write that failed is repeated at
//! the same place, so that the other one stays. Used under `files`' lock of names.

use super::blobs::{BlobError, Blobs};
use super::format::{self, HEAD_BYTES, Head, PLACE_BYTES, ROOT, Table};

/// Bytes of a device's page.
pub(super) const PAGE_BYTES: usize = 4096;

/// The place of the table, and which of the two comes next.
#[derive(Debug)]
pub(super) struct Names {
    root: u64,
    /// Of the valid table.
    sequence: u64,
    next_place: u64,
}

impl Names {
    /// Finds the root, and reads the table.
    ///
    /// # Errors
    /// [`BlobError::NotFound`] if there is no root, [`BlobError::Corruption`] if neither place is readable.
    pub(super) fn find(blobs: &dyn Blobs) -> Result<(Names, Table), BlobError> {
        let mut root = None;
        for id in blobs.ids()? {
            if blobs.metadata(id)?.starts_with(ROOT) {
                root = Some(id);
                break;
            }
        }
        let root = root.ok_or(BlobError::NotFound)?;
        let mut newest: Option<(u64, Table, u64)> = None;
        let mut damaged = 0;
        for place in 0..2 {
            match read(blobs, root, place)? {
                Ok(Some((sequence, table))) if newest.as_ref().is_none_or(|(other, ..)| sequence > *other) => {
                    newest = Some((sequence, table, place));
                }
                Ok(_) => {}
                Err(()) => damaged += 1,
            }
        }
        match newest {
            Some((sequence, table, place)) => Ok((
                Names {
                    root,
                    sequence,
                    next_place: 1 - place,
                },
                table,
            )),
            // The first table is written at the first place. If its write was cut off, no other exists.
            None if damaged < 2 => Ok((
                Names {
                    root,
                    sequence: 0,
                    next_place: 0,
                },
                Table::new(),
            )),
            None => Err(BlobError::Corruption(
                "both tables of names are unreadable; restore the device from a copy".into(),
            )),
        }
    }

    /// Makes a root without names.
    pub(super) fn create(blobs: &dyn Blobs) -> Result<Names, BlobError> {
        let root = blobs.create(ROOT)?;
        let mut names = Names {
            root,
            sequence: 0,
            next_place: 0,
        };
        names.write(blobs, &Table::new())?;
        Ok(names)
    }

    /// Writes the table. It is durable when this returns; after an error, either it or the previous one is.
    pub(super) fn write(&mut self, blobs: &dyn Blobs, table: &Table) -> Result<(), BlobError> {
        let mut bytes = format::place(self.sequence + 1, table).ok_or(BlobError::NoSpace)?;
        bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
        blobs.write_at(self.root, &bytes, self.next_place * PLACE_BYTES, None)?;
        self.sequence += 1;
        self.next_place = 1 - self.next_place;
        Ok(())
    }
}

type Place = Result<Option<(u64, Table)>, ()>;

/// The content of a place: a table, nothing, or damage.
fn read(blobs: &dyn Blobs, root: u64, place: u64) -> Result<Place, BlobError> {
    let mut head = [0; HEAD_BYTES];
    blobs.read_at(root, &mut head, place * PLACE_BYTES)?;
    Ok(match format::head(&head) {
        Head::Empty => Ok(None),
        Head::Damaged => Err(()),
        Head::Len(len) => {
            let mut bytes = vec![0; len];
            blobs.read_at(root, &mut bytes, place * PLACE_BYTES)?;
            format::table(&bytes).map(Some).ok_or(())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::blobs::MemoryBlobs;
    use super::*;

    /// A write of the table that was cut off after any sector leaves the table before, or has become the new one.
    #[test]
    fn a_table_that_was_cut_off_leaves_the_one_before() {
        let blobs = MemoryBlobs::new(16 << 20, true);
        let mut names = Names::create(&blobs).unwrap();
        let tables: Vec<Table> = (0..6_u64)
            .map(|round| {
                (0..20 * round)
                    .map(|id| (format!("/db/{id:060}").into_bytes(), id))
                    .collect()
            })
            .collect();
        let mut before = Vec::new();
        for table in &tables {
            before.push(blobs.changes());
            names.write(&blobs, table).unwrap();
        }
        for (round, &changes) in before.iter().enumerate() {
            for sectors in 0..48 {
                let (_, found) = Names::find(&blobs.image(changes, sectors)).unwrap();
                let last = round.checked_sub(1).map_or(Table::new(), |last| tables[last].clone());
                assert!(
                    found == last || found == tables[round],
                    "round {round}, {sectors} sectors"
                );
            }
        }
        assert_eq!(Names::find(&blobs).unwrap().1, tables[5]);
    }

    #[test]
    fn damage_of_one_place_is_survived_and_of_both_is_told() {
        let blobs = MemoryBlobs::new(16 << 20, false);
        let mut names = Names::create(&blobs).unwrap();
        let table: Table = [(b"a".to_vec(), 1)].into();
        names.write(&blobs, &table).unwrap();
        let root = blobs.ids().unwrap()[0];
        blobs.damage(root, 20);
        assert_eq!(Names::find(&blobs).unwrap().1, table);
        blobs.damage(root, PLACE_BYTES + 20);
        assert!(matches!(Names::find(&blobs), Err(BlobError::Corruption(_))));
    }
}
