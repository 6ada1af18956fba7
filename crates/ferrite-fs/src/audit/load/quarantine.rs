//! From defects to the quarantine: the reads that a mounted pool fails, and whether it may be changed.

use super::Tables;
use crate::audit::wrong::{PageWrong, Wrong};
use crate::format::data_sum;
use crate::health::quarantine::Quarantine;
use ferrite_map::{Inum, PageId};

impl Tables<'_> {
    /// Reports a defect, and quarantines the inodes it concerns.
    pub(super) fn quarantine(&self, wrong: &Wrong, quarantine: &mut Quarantine) {
        let what = match wrong {
            Wrong::Page { at, what } => {
                format!("{}: {}", data_sum::place(PageId::new(at.ino, at.lblk)), what.reason())
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
            true => quarantine.stop(what),
            false => quarantine.note(what),
        }
        match *wrong {
            Wrong::Log { page, ref what } => self.spoil(PageId::new(page.ino, page.lblk), &what.reason(), quarantine),
            // Every access to the inode checks the checksum; these two pass it.
            Wrong::Mode { ino, .. } | Wrong::Size { ino, .. } => quarantine.spoil_inode(ino, "impossible kind or size"),
            Wrong::PageCount { ino, counted, mapped } => {
                let why = format!("counts {counted} pages, {mapped} are mapped");
                match counted > mapped {
                    true => self.spoil_holes(ino, &why, quarantine),
                    false => quarantine.spoil_inode(ino, &why),
                }
            }
            Wrong::DirEntry { dir, .. } | Wrong::Entry { dir, .. } | Wrong::NameCount { dir, .. } => {
                quarantine.lose_names(dir);
            }
            Wrong::NamedAndFree { ino, .. } => quarantine.spoil_inode(ino, "has a name, but looks free"),
            Wrong::LastBehindEnd { ino, lblk } => {
                self.spoil_holes(ino, &format!("page {lblk} lies behind its end"), quarantine);
            }
            Wrong::Page { at, what } => {
                let page = PageId::new(at.ino, at.lblk);
                self.spoil(page, &what.reason(), quarantine);
                match what {
                    PageWrong::Twice | PageWrong::OutOfReach => {
                        self.spoil_holes(at.ino, "another page may be one of its holes", quarantine);
                    }
                    PageWrong::WrittenAs { other } => {
                        let why = format!("it is mapped as page {}", at.lblk);
                        self.spoil(PageId::new(at.ino, other), &why, quarantine);
                    }
                    PageWrong::Nobody | PageWrong::Block(..) | PageWrong::BehindEnd => {}
                }
            }
            _ => {}
        }
    }

    /// A hole may have been a page. A directory or link is read as a whole, so all of it is spoiled.
    fn spoil_holes(&self, ino: Inum, why: &str, quarantine: &mut Quarantine) {
        if u64::from(ino) < self.superblock.inodes && self.inode(ino).is_file() {
            quarantine.spoil_holes(ino, why);
        } else {
            quarantine.spoil_inode(ino, why);
        }
    }

    /// A damaged page of a file does not affect the others; a directory or link is read as a whole.
    pub(super) fn spoil(&self, page: PageId, why: &str, quarantine: &mut Quarantine) {
        if u64::from(page.ino) < self.superblock.inodes && self.inode(page.ino).is_file() {
            quarantine.spoil_page(page, why);
        } else {
            quarantine.spoil_inode(page.ino, why);
        }
    }
}
