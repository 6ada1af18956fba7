//! Page logs: broken ones are dropped, links to later segments are corrected.

use ferrite_map::{MapEntry, PageWord};

use super::Repair;
use crate::audit::rules::logs::{Met, Segment, is_allowed, walk};
use crate::audit::wrong::{LogWrong, Wrong};
use crate::format::layout::BLOCK_BYTES;
use crate::space::segments::LogSpace;

impl Repair {
    /// Walks every log; drops those that are broken, and fixes links to later segments.
    pub(super) fn logs(&mut self) {
        let mut logged = Vec::new();
        self.map.for_each(&mut |entry| {
            if entry.word.has_log() {
                logged.push(entry);
            }
            true
        });
        let space = LogSpace::new(self.superblock.unit_size);
        for page in logged {
            match self.own_log(&page, &space) {
                Ok(segments) => {
                    if let Err(what) = is_allowed(self.view(), &page) {
                        let mut inode = self.load(page.ino);
                        inode.set_bound(false);
                        self.put(page.ino, &mut inode);
                        self.mended("logs", Wrong::Log { page, what }, "the file is bound no more", false);
                    }
                    for segment in segments {
                        if let Err(what) = segment.link() {
                            self.set(segment.next_offset(), segment.newer);
                            self.mended("logs", Wrong::Log { page, what }, "set right", false);
                        }
                    }
                }
                Err(what) => {
                    let word = PageWord::of_block(self.superblock.page(page.word));
                    let _ = self.set_page(page.ino, page.lblk, Some(word));
                    self.spoiled.insert(page.ino);
                    self.mended("logs", Wrong::Log { page, what }, "dropped", true);
                }
            }
        }
    }

    /// Checks a log and claims its segments: all or none, so that a log that is dropped claims nothing.
    fn own_log(&self, page: &MapEntry, space: &LogSpace) -> Result<Vec<Segment>, LogWrong> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut buffer = [0; BLOCK_BYTES as usize];
        walk(self.view(), page, &mut buffer, &mut |met| {
            if let Met::Segment(segment) = met {
                segments.push(segment);
            }
        })?;
        for (index, segment) in segments.iter().enumerate() {
            segment.may_own(self.view(), space, |block| !self.is_owned(block))?;
            if segments[..index].iter().any(|other| other.overlaps(segment)) {
                return Err(LogWrong::Overlaps {
                    unit: segment.place.header,
                });
            }
        }
        for segment in &segments {
            segment.own(self.view(), space, |block| self.claim(block))?;
        }
        Ok(segments)
    }
}
