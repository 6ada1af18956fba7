//! From defects to marks of damage: the reads that a mounted pool fails, and whether it may be changed.

use super::Tables;
use crate::audit::wrong::{PageWrong, Wrong};
use crate::format::data_sum;
use crate::health::marks::Damage;
use ferrite_map::{Inum, PageId};

impl Tables<'_> {
    /// Reports a defect, and marks the inodes it concerns.
    pub(super) fn mark(&self, wrong: &Wrong, damage: &mut Damage) {
        let what = match wrong {
            Wrong::Page { at, what } => {
                format!("{}: {}", data_sum::place(PageId::new(at.ino, at.lblk)), what.reason(at))
            }
            Wrong::Log { page, what } => {
                format!(
                    "{}: {}",
                    data_sum::place(PageId::new(page.ino, page.lblk)),
                    what.reason()
                )
            }
            other => other.to_string(),
        };
        match wrong.hides_owners() {
            true => damage.stop(what),
            false => damage.note(what),
        }
        match *wrong {
            Wrong::Log { page, ref what } => self.spoil(PageId::new(page.ino, page.lblk), &what.reason(), damage),
            // Every access to the inode checks the checksum; these two pass it.
            Wrong::Mode { ino, .. } | Wrong::Size { ino, .. } => damage.spoil_inode(ino, "impossible kind or size"),
            Wrong::PageCount { ino, counted, mapped } => {
                let why = format!("counts {counted} pages, {mapped} are mapped");
                match counted > mapped {
                    true => self.spoil_holes(ino, &why, damage),
                    false => damage.spoil_inode(ino, &why),
                }
            }
            Wrong::DirEntry { dir, .. } | Wrong::Entry { dir, .. } | Wrong::NameCount { dir, .. } => {
                damage.lose_names(dir);
            }
            Wrong::NamedAndFree { ino, .. } => damage.spoil_inode(ino, "has a name, but looks free"),
            Wrong::LastBehindEnd { ino, lblk } => {
                self.spoil_holes(ino, &format!("page {lblk} lies behind its end"), damage);
            }
            Wrong::Page { at, what } => {
                let page = PageId::new(at.ino, at.lblk);
                self.spoil(page, &what.reason(&at), damage);
                match what {
                    PageWrong::Twice | PageWrong::OutOfReach => {
                        self.spoil_holes(at.ino, "another page may be one of its holes", damage);
                    }
                    PageWrong::WrittenAs { other } => {
                        let why = format!("it is mapped as page {}", at.lblk);
                        self.spoil(PageId::new(at.ino, other), &why, damage);
                    }
                    PageWrong::Nobody | PageWrong::Block(_) | PageWrong::BehindEnd => {}
                }
            }
            _ => {}
        }
    }

    /// A hole may have been a page. A directory or link is read as a whole, so all of it is spoiled.
    fn spoil_holes(&self, ino: Inum, why: &str, damage: &mut Damage) {
        if u64::from(ino) < self.superblock.inodes && self.inode(ino).is_file() {
            damage.spoil_holes(ino, why);
        } else {
            damage.spoil_inode(ino, why);
        }
    }

    /// A damaged page of a file does not affect the others; a directory or link is read as a whole.
    pub(super) fn spoil(&self, page: PageId, why: &str, damage: &mut Damage) {
        if u64::from(page.ino) < self.superblock.inodes && self.inode(page.ino).is_file() {
            damage.spoil_page(page, why);
        } else {
            damage.spoil_inode(page.ino, why);
        }
    }
}
