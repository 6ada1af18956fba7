//! Files without a name: their creation, and the names that they get.

use ferrite_vfs::{NO_NAME, NewFile, OpenMode, SYSTEM};

use super::{Outcome, Runner, Slot, Step, Stop};
use crate::ops::Op;

impl Runner<'_> {
    pub(super) fn nameless(&mut self, op: &Op) -> Step<Outcome> {
        match op {
            Op::CreateNameless {
                dir,
                slot,
                mode,
                is_final,
            } => {
                let new = NewFile {
                    mode: *mode,
                    open: OpenMode::read_write(),
                    exclusive: *is_final,
                };
                let dir = self.resolve(dir)?.ino;
                let opened = self.fs.create(SYSTEM, dir, NO_NAME, &new)?;
                demand!(
                    opened.created && opened.attr.nlink == 0 && opened.file.ino() == opened.attr.ino,
                    "a file without a name: {:?}",
                    opened.attr
                );
                // Where there was no space, the slot stays as it is.
                self.close(*slot);
                self.slots[*slot as usize] = Slot::File(opened.file, SYSTEM);
                Ok(Outcome::Attr((&opened.attr).into()))
            }
            Op::LinkOpen { slot, to } => {
                let ino = match &self.slots[*slot as usize] {
                    Slot::File(file, _) => file.ino(),
                    Slot::Pinned(ino) => *ino,
                    Slot::Empty => return Ok(Outcome::Skipped),
                };
                self.create(to, |fs, dir, name| fs.link(SYSTEM, ino, dir, name))
            }
            other => unreachable!("{other:?} is about no file without a name"),
        }
    }
}
