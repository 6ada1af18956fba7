//! Numbers of open files in use by changes.
//!
//! Contents: [`ChangingFile`]. A change recalls the leases on the file that its number stands for, waits, and is made
//! then, by the number again. From the decisive lookup of the number until the change is answered, the number must not
//! come to stand for another file: [`Session::keep_file`] refuses that ([`Kept::may_stand_for`]).
//!
//! A client that gives each open file a number of its own never meets this. Closing the file is allowed: the change
//! finds no file then.

use ferrite_vfs::Ino;

use super::{Kept, Session};

/// A number that stands for one file as long as this lives, or for none.
pub(crate) struct ChangingFile<'s> {
    session: &'s Session,
    number: u64,
}

impl Drop for ChangingFile<'_> {
    fn drop(&mut self) {
        let mut kept = self.session.kept.lock();
        match kept.changing.get_mut(&self.number) {
            Some((_, users)) if *users > 1 => *users -= 1,
            _ => drop(kept.changing.remove(&self.number)),
        }
    }
}

impl Session {
    /// Begins a change by the number of an open file.
    pub(crate) fn changing_file(&self, number: u64) -> ChangingFile<'_> {
        let mut kept = self.kept.lock();
        let ino = kept.files.get(&number).map(|(file, _)| file.ino());
        // A number in use keeps the meaning that it had when its first use began.
        kept.changing.entry(number).or_insert((ino, 0)).1 += 1;
        ChangingFile { session: self, number }
    }
}

impl Kept {
    /// Whether a number may come to stand for a file.
    pub(super) fn may_stand_for(&self, number: u64, ino: Ino) -> bool {
        self.changing.get(&number).is_none_or(|(is, _)| *is == Some(ino))
    }
}
