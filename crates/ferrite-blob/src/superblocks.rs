//! The two superblocks: two equal pages, at both ends of the device.
//!
//! The first is written, durably, and then the last. So a crash leaves the same in both; or a newer one in the first,
//! by one generation; or one of the two torn. Anything else is damage. The newer one is enough, and an opening for
//! changes rewrites both, so damage of one of them is named, and loses nothing.
//!
//! The last page of the device is written here alone. Where it does not hold the last write, the device has been cut
//! off, or overwritten, behind the store's back: then the store stops, and is not marked as closed. A write would give
//! a file its length back, and hide that the part in between is gone.

use crate::core::Core;
use crate::device::{Device, Op};
use crate::format::Superblock;
use crate::page::Pages;
use crate::{Error, PAGE_BYTES, Result};

/// The superblocks in the two places.
pub(crate) struct Pair {
    first: Option<Superblock>,
    last: Option<Superblock>,
}

fn at(device: &dyn Device, page: u64) -> Result<Option<Superblock>> {
    let mut buf = Pages::zeroed(1);
    device.run(&mut [Op::Read {
        offset: page * PAGE_BYTES as u64,
        into: buf.bytes_mut(),
    }])?;
    Superblock::decode(buf.bytes())
}

/// Reads both superblocks of a device. One that can be read is enough.
pub(crate) fn read(device: &dyn Device) -> Result<Pair> {
    let pages = device.len_bytes() / PAGE_BYTES as u64;
    let none = Pair {
        first: None,
        last: None,
    };
    if pages == 0 {
        return Ok(none);
    }
    // The first one gives the place of the second, or else the size of the device does.
    let first = at(device, 0);
    let named = first.as_ref().ok().and_then(Option::as_ref);
    let end = named.map(|found| found.layout.pages.saturating_sub(1));
    let last = at(device, end.filter(|&end| end < pages).unwrap_or(pages - 1));
    match (first, last) {
        (Err(error @ Error::Refused(_)), _) | (_, Err(error @ Error::Refused(_))) => Err(error),
        (Err(error), Ok(None) | Err(_)) | (Ok(None), Err(error)) => Err(error),
        (first, last) => Ok(Pair {
            first: first.unwrap_or(None),
            last: last.unwrap_or(None),
        }),
    }
}

impl Pair {
    /// The newer one. `None`: the device has no store.
    pub(crate) fn newer(self) -> Option<Superblock> {
        match (self.first, self.last) {
            (Some(first), Some(last)) if last.generation > first.generation => Some(last),
            (Some(first), _) => Some(first),
            (None, last) => last,
        }
    }

    /// Damage that no crash leaves. After a close, an unreadable copy counts as such.
    pub(crate) fn damage(&self) -> Option<String> {
        let which = match (&self.first, &self.last) {
            (Some(first), Some(last)) if last.generation > first.generation => "first",
            (Some(first), Some(last)) if first.generation > last.generation + 1 => "last",
            (Some(first), None) if first.is_clean => "last",
            (None, Some(last)) if last.is_clean => "first",
            _ => return None,
        };
        Some(format!(
            "the {which} of its two superblocks is damaged; nothing is lost, and opening the store for changes writes \
             both anew"
        ))
    }
}

impl Core {
    /// Writes both superblocks, one after the other.
    pub(crate) fn put_superblock(&self, superblock: &Superblock) -> Result<()> {
        let page = superblock.encode();
        self.write_page(0, &page)?;
        self.write_page(self.layout.pages - 1, &page)
    }

    /// Whether the device still has its last page, as it was written last.
    fn check_end(&self, superblock: &Superblock) -> Result<()> {
        let device = self.metadata();
        if device.is_cut_off() {
            return self.lost_its_end(superblock, "the device is shorter than it was");
        }
        match at(device, self.layout.pages - 1) {
            Ok(Some(last)) if last.generation == superblock.generation => Ok(()),
            // One superblock is enough, and this one is not known to be gone.
            Err(Error::Device { .. }) => Ok(()),
            _ => self.lost_its_end(superblock, "it holds something else"),
        }
    }

    fn lost_its_end(&self, superblock: &Superblock, why: &str) -> Result<()> {
        let device = self.device.name();
        let error = Error::Damaged(format!(
            "{device}: its last page is gone ({why}): the device was truncated or overwritten while it was in use; give \
             it its size back, and run `ferrite fsck`"
        ));
        // Only the first page: the other one would give a file its length back.
        let noted = Superblock {
            is_clean: false,
            digest: None,
            has_older: true,
            generation: superblock.generation + 1,
            ..superblock.clone()
        };
        if let Err(error) = self.write_page(0, &noted.encode()) {
            tracing::warn!(%error, "it could not be noted that a device was cut off");
        }
        Err(self.stop(error))
    }

    /// Records whether the store is closed, with the proof of that.
    pub(crate) fn set_clean(&self, is_clean: bool) -> Result<()> {
        let digest = self.free.lock().digest;
        let mut superblock = self.superblock.lock();
        if is_clean {
            self.check_end(&superblock)?;
        }
        let next = Superblock {
            is_clean,
            digest: is_clean.then_some(digest),
            generation: superblock.generation + 1,
            ..superblock.clone()
        };
        self.put_superblock(&next)?;
        *superblock = next;
        Ok(())
    }
}
