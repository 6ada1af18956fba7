//! The sending side: the records that make `newer` of `older`.
//!
//! Hard links: of each file with several names, the first in the order of the walk is sent as a file, the others as
//! links to it. A receiver's file is changed in place only if its own first name that is kept is the same one;
//! otherwise the change would show under names that have another file now.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ferrite::FileKind;

use super::super::content::Watch;
use super::super::folder::{Folder, Thing};
use super::super::pairs::{Entry, Visit, walk};
use super::super::place::{Found, Open, Result, Why, timespec};
use super::super::snapshot::SNAPSHOTS;
use super::is_marker;
use super::stream::{self, DATA_BYTES_MAX, Data, Hole, Record, Time, Writer};
use crate::complain;

/// The unit in which contents are compared.
const BLOCK_BYTES: usize = 4096;

/// First paths of files with several names.
type Firsts = HashMap<(u64, u64), PathBuf>;

struct Sender<'s> {
    writer: Writer<'s>,
    compares_content: bool,
    watch: &'s Watch,
    /// Of files that the receiver keeps.
    kept: Firsts,
    /// Of files of the newer tree.
    sent: Firsts,
    /// Directories whose times the receiver changes as it works in them.
    touched: BTreeSet<PathBuf>,
    buffers: [Vec<u8>; 2],
}

/// Writes the records, and the end.
pub(super) fn send<'s>(
    older: Option<Folder>,
    newer: Folder,
    writer: Writer<'s>,
    compares_content: bool,
    watch: &'s Watch,
) -> Result<()> {
    let mut sender = Sender {
        writer,
        compares_content,
        watch,
        kept: Firsts::new(),
        sent: Firsts::new(),
        touched: BTreeSet::new(),
        buffers: [vec![0; DATA_BYTES_MAX], vec![0; DATA_BYTES_MAX]],
    };
    let tops = [older.as_ref().map(Folder::reopen).transpose()?, Some(newer.reopen()?)];
    walk(older, newer, &mut sender)?;
    for top in tops.into_iter().flatten() {
        if top.itself()?.links == 0 {
            return Err(Why::new("a snapshot was deleted while it was sent"));
        }
    }
    sender.writer.end()
}

impl Visit for Sender<'_> {
    fn entry(&mut self, entry: &Entry<'_>) -> Result<bool> {
        self.watch.check()?;
        if entry.name == SNAPSHOTS {
            // Not a directory of snapshots, which are not listed. A receiver could not make it.
            complain(format_args!(
                "ferrite: {}: is left out, because of its name",
                entry.path.display()
            ));
            return Ok(false);
        }
        self.send_entry(entry).map_err(|why| at(entry.path, why))
    }

    fn is_fixed(&self) -> bool {
        true
    }

    fn leave(&mut self, path: &Path, older: Option<&Folder>, newer: Option<&Folder>) -> Result<()> {
        let is_touched = self.touched.remove(path);
        let Some(newer) = newer else { return Ok(()) };
        let after = newer.itself()?;
        let xattrs = xattrs_of(&newer.thing())?;
        let is_same = match older {
            Some(older) if !is_touched => is_same(&older.itself()?, &after) && xattrs_of(&older.thing())? == xattrs,
            _ => false,
        };
        match is_same {
            true => Ok(()),
            false => self.send_attributes(path, &after, &xattrs),
        }
    }
}

fn at(path: &Path, why: Why) -> Why {
    Why {
        text: format!("{}: {}", path.display(), why.text),
        ..why
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Whether all attributes but the time of the last access, and the extended ones, are the same.
fn is_same(older: &Found, newer: &Found) -> bool {
    let key = |found: &Found| (found.mode, found.uid, found.gid, found.modified);
    key(older) == key(newer)
}

type Xattrs = Vec<(OsString, Vec<u8>)>;

fn xattrs_of(thing: &Thing<'_>) -> Result<Xattrs> {
    let mut xattrs = thing.xattrs()?;
    xattrs.retain(|(name, _)| !is_marker(name));
    xattrs.sort_unstable();
    Ok(xattrs)
}

impl Sender<'_> {
    fn send_entry(&mut self, entry: &Entry<'_>) -> Result<bool> {
        let Some((newer, after)) = &entry.newer else {
            self.remove(entry)?;
            return Ok(false);
        };
        let before = entry.older.as_ref().filter(|(_, before)| before.kind == after.kind);
        if after.kind == FileKind::Directory {
            if before.is_none() {
                self.remove(entry)?;
                self.touch_parent(entry.path);
                self.writer.write(&Record::Directory(bytes(entry.path)))?;
            }
            return Ok(true);
        }
        if let Some(original) = self.first_name(entry.path, after) {
            self.send_link(entry, &original)?;
            return Ok(false);
        }
        let xattrs = xattrs_of(&newer.closed(entry.name, after.kind)?)?;
        let kept = match before {
            Some((older, before)) if !self.is_name_of_another(before) => Some((*older, before)),
            _ => None,
        };
        let is_same = match kept {
            Some((older, before)) => {
                self.keep(entry.path, before);
                let is_changed = match after.kind {
                    FileKind::File => self.send_changes(entry, (older, before), (newer, after))?,
                    _ => self.replace_special(entry, (older, before), (newer, after))?,
                };
                !is_changed && is_same(before, after) && xattrs_of(&older.closed(entry.name, after.kind)?)? == xattrs
            }
            None => {
                self.remove(entry)?;
                self.touch_parent(entry.path);
                match after.kind {
                    FileKind::File => self.send_file(entry.path, newer.open_file(entry.name, after)?)?,
                    _ => self.send_special(entry.path, newer, entry.name, after)?,
                }
                false
            }
        };
        if !is_same {
            self.send_attributes(entry.path, after, &xattrs)?;
        }
        Ok(false)
    }

    /// The first name of a file of the newer tree, if it is not this one.
    fn first_name(&mut self, path: &Path, after: &Found) -> Option<PathBuf> {
        if after.links < 2 {
            return None;
        }
        match self.sent.get(&after.identity) {
            Some(first) => Some(first.clone()),
            None => {
                self.sent.insert(after.identity, path.to_path_buf());
                None
            }
        }
    }

    /// Whether the receiver's file of this name is also that of an earlier one.
    fn is_name_of_another(&self, before: &Found) -> bool {
        before.links > 1 && self.kept.contains_key(&before.identity)
    }

    fn keep(&mut self, path: &Path, before: &Found) {
        if before.links > 1 {
            self.kept.insert(before.identity, path.to_path_buf());
        }
    }

    fn touch_parent(&mut self, path: &Path) {
        self.touched
            .insert(path.parent().unwrap_or(Path::new("")).to_path_buf());
    }

    /// Removes what was there before.
    fn remove(&mut self, entry: &Entry<'_>) -> Result<()> {
        if entry.older.is_none() {
            return Ok(());
        }
        self.touch_parent(entry.path);
        self.writer.write(&Record::Remove(bytes(entry.path)))
    }

    fn send_link(&mut self, entry: &Entry<'_>, original: &Path) -> Result<()> {
        if let Some(before) = entry.found_before()
            && before.links > 1
            && self.kept.get(&before.identity).is_some_and(|first| first == original)
        {
            return Ok(());
        }
        self.remove(entry)?;
        self.touch_parent(entry.path);
        self.writer.write(&Record::Link(stream::Link {
            path: bytes(entry.path),
            original: bytes(original),
        }))
    }

    /// A symbolic link or a special file that is not what it was is made anew. Returns whether it was.
    fn replace_special(
        &mut self,
        entry: &Entry<'_>,
        (older, before): (&Folder, &Found),
        (newer, after): (&Folder, &Found),
    ) -> Result<bool> {
        let is_other = match after.kind {
            FileKind::Symlink => older.read_link(entry.name)? != newer.read_link(entry.name)?,
            _ => before.rdev != after.rdev,
        };
        if is_other {
            // Other names still lead to the old one.
            self.kept.remove(&before.identity);
            self.remove(entry)?;
            self.send_special(entry.path, newer, entry.name, after)?;
        }
        Ok(is_other)
    }

    fn send_special(&mut self, path: &Path, newer: &Folder, name: &std::ffi::OsStr, after: &Found) -> Result<()> {
        match after.kind {
            FileKind::Symlink => {
                let target = newer.read_link(name)?;
                self.writer.write(&Record::Symlink(stream::Symlink {
                    path: bytes(path),
                    target: bytes(&target),
                }))
            }
            _ => self.writer.write(&Record::Node(stream::Node {
                path: bytes(path),
                mode: after.kind.mode_bits() | after.mode,
                rdev: after.rdev,
            })),
        }
    }

    fn send_attributes(&mut self, path: &Path, after: &Found, xattrs: &Xattrs) -> Result<()> {
        let time = |time| -> Time {
            let time = timespec(time);
            (time.tv_sec, time.tv_nsec as u32)
        };
        self.writer.write(&Record::Attributes(stream::Attributes {
            path: bytes(path),
            mode: after.kind.mode_bits() | after.mode,
            uid: after.uid,
            gid: after.gid,
            accessed: time(after.accessed),
            modified: time(after.modified),
            xattrs: xattrs
                .iter()
                .map(|(name, value)| (name.as_bytes(), value.as_slice()))
                .collect(),
        }))
    }

    /// A file that the receiver does not have.
    fn send_file(&mut self, path: &Path, newer: Open) -> Result<()> {
        let len_bytes = newer.look()?;
        self.write_file(path, len_bytes, true)?;
        self.watch.bar.expect(len_bytes);
        let (mut at, mut end) = (0, 0);
        loop {
            if at == end {
                let Some(range) = newer.data_from(end, len_bytes) else {
                    return Ok(());
                };
                (at, end) = range;
            }
            self.watch.check()?;
            let len = (end - at).min(DATA_BYTES_MAX as u64) as usize;
            read_padded(&newer, &mut self.buffers[0][..len], at)?;
            self.writer.write(&Record::Data(Data {
                offset: at,
                bytes: &self.buffers[0][..len],
            }))?;
            self.watch.bar.advance(len as u64);
            at += len as u64;
        }
    }

    fn write_file(&mut self, path: &Path, len_bytes: u64, is_new: bool) -> Result<()> {
        self.writer.write(&Record::File(stream::File {
            path: bytes(path),
            len_bytes,
            is_new,
        }))
    }

    /// The content of a file in so far as it has changed. Returns whether it has.
    fn send_changes(
        &mut self,
        entry: &Entry<'_>,
        (older, before): (&Folder, &Found),
        (newer, after): (&Folder, &Found),
    ) -> Result<bool> {
        let is_same = before.len_bytes == after.len_bytes && before.modified == after.modified;
        if is_same && !self.compares_content {
            return Ok(false);
        }
        let older = older.open_file(entry.name, before)?;
        let newer = newer.open_file(entry.name, after)?;
        let mut is_changed = before.len_bytes != after.len_bytes;
        if is_changed {
            self.write_file(entry.path, after.len_bytes, false)?;
        }
        self.watch.bar.expect(after.len_bytes);
        let mut at = 0;
        loop {
            self.watch.check()?;
            let next = [
                older.data_from(at, before.len_bytes.min(after.len_bytes)),
                newer.data_from(at, after.len_bytes),
            ];
            let next = next.into_iter().flatten().map(|(start, _)| start.max(at)).min();
            let Some(start) = next else { return Ok(is_changed) };
            let start = (start - start % BLOCK_BYTES as u64).max(at);
            let len = (after.len_bytes - start).min(DATA_BYTES_MAX as u64) as usize;
            let mut buffers = std::mem::take(&mut self.buffers);
            read_padded(&older, &mut buffers[0][..len], start)?;
            read_padded(&newer, &mut buffers[1][..len], start)?;
            for run in runs(&buffers[0][..len], &buffers[1][..len]) {
                if !is_changed {
                    is_changed = true;
                    self.write_file(entry.path, after.len_bytes, false)?;
                }
                self.write_run(start, &run, &buffers[1][run.start..run.end])?;
            }
            self.buffers = buffers;
            self.watch.bar.advance(len as u64);
            at = start + len as u64;
        }
    }

    fn write_run(&mut self, start: u64, run: &Run, bytes: &[u8]) -> Result<()> {
        let offset = start + run.start as u64;
        self.writer.write(&match run.is_zero {
            true => Record::Hole(Hole {
                offset,
                len_bytes: bytes.len() as u64,
            }),
            false => Record::Data(Data { offset, bytes }),
        })
    }
}

/// Blocks that follow each other and have changed.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    start: usize,
    end: usize,
    is_zero: bool,
}

/// The blocks of `newer` that differ from those of `older`.
fn runs(older: &[u8], newer: &[u8]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    if older == newer {
        return runs;
    }
    let blocks = older.chunks(BLOCK_BYTES).zip(newer.chunks(BLOCK_BYTES));
    for (number, (before, after)) in blocks.enumerate() {
        if before == after {
            continue;
        }
        let (start, is_zero) = (number * BLOCK_BYTES, after.iter().all(|&byte| byte == 0));
        let end = start + after.len();
        match runs.last_mut() {
            Some(last) if last.end == start && last.is_zero == is_zero => last.end = end,
            _ => runs.push(Run { start, end, is_zero }),
        }
    }
    runs
}

/// Reads all of a buffer; behind the end of the file are zeros.
fn read_padded(file: &Open, buffer: &mut [u8], offset: u64) -> Result<()> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64)? {
            0 => break,
            count => read += count,
        }
    }
    buffer[read..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_differs() {
        let older = vec![1; 5 * BLOCK_BYTES + 10];
        let mut newer = older.clone();
        assert_eq!(runs(&older, &newer), []);
        newer[BLOCK_BYTES + 7] = 2;
        newer[2 * BLOCK_BYTES..4 * BLOCK_BYTES].fill(0);
        newer[5 * BLOCK_BYTES + 9] = 3;
        let run = |start: usize, end, is_zero| Run {
            start: start * BLOCK_BYTES,
            end,
            is_zero,
        };
        assert_eq!(
            runs(&older, &newer),
            [
                run(1, 2 * BLOCK_BYTES, false),
                run(2, 4 * BLOCK_BYTES, true),
                run(5, 5 * BLOCK_BYTES + 10, false),
            ]
        );
    }
}
