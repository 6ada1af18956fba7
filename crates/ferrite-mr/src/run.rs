//! Runs: consecutive pages of memory.
//!
//! Page and length are 32 bits each, as in FileMR: a file of 16 TiB with pages of 4 KiB.

/// A run would go beyond the last page number, or has no pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a run of {pages} pages does not fit at page {at}")]
pub struct OutOfRange {
    /// Where it would begin.
    pub at: u32,
    /// Its length.
    pub pages: u32,
}

/// Consecutive pages of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first page of memory.
    pub page: u32,
    /// How many.
    pub pages: u32,
}

/// A run, and the page of the file at which its content begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placed {
    /// The first page of the file.
    pub at: u32,
    /// The pages of memory.
    pub run: Run,
}

impl Placed {
    /// A run that begins at page `at` of the file.
    ///
    /// # Errors
    /// If it has no pages, or goes beyond the last number of file or memory.
    pub fn new(at: u32, run: Run) -> Result<Placed, OutOfRange> {
        let Run { page, pages } = run;
        for at in [at, page] {
            if pages == 0 || at.checked_add(pages).is_none() {
                return Err(OutOfRange { at, pages });
            }
        }
        Ok(Placed { at, run })
    }

    /// The page of the file behind it.
    pub fn end(&self) -> u32 {
        self.at + self.run.pages
    }

    /// Whether it has this page of the file.
    pub fn contains(&self, page: u32) -> bool {
        (self.at..self.end()).contains(&page)
    }

    /// Whether it has one of the pages from `at` up to `end`.
    pub fn overlaps(&self, at: u32, end: u32) -> bool {
        self.at < end && at < self.end()
    }

    /// The part from page `page` of the file on, which it contains.
    pub(crate) fn from(&self, page: u32) -> Placed {
        let skipped = page - self.at;
        Placed {
            at: page,
            run: Run {
                page: self.run.page + skipped,
                pages: self.run.pages - skipped,
            },
        }
    }

    /// The part before page `page` of the file, which is behind its first.
    pub(crate) fn up_to(&self, page: u32) -> Placed {
        Placed {
            at: self.at,
            run: Run {
                page: self.run.page,
                pages: page.min(self.end()) - self.at,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_touch_do_not_overlap() {
        let placed = Placed::new(10, Run { page: 1, pages: 5 }).unwrap();
        let overlaps = [(9, 10), (9, 11), (14, 15), (15, 16), (0, 99)].map(|(at, end)| placed.overlaps(at, end));
        assert_eq!(overlaps, [false, true, true, false, true]);
        assert_eq!(
            [9, 10, 14, 15].map(|page| placed.contains(page)),
            [false, true, true, false]
        );
        assert_eq!(
            (placed.up_to(12).run.pages, placed.from(12).run),
            (2, Run { page: 3, pages: 3 })
        );
    }
}
