//! A pool's content as text, one line per name: the list beside an image.
//!
//! A file with several names is described at the first, and pages of zeros count as holes, so that the list does not
//! depend on which of them have blocks.

use std::collections::BTreeMap;

use ferrite_vfs::{Attr, FileKind, FileSystem, FsError, Ino, OpenMode, ROOT_INO, SYSTEM};

const PAGE: u64 = 4096;

/// All names, in the order of the alphabet.
pub(crate) fn list(fs: &dyn FileSystem) -> String {
    let mut names = BTreeMap::from([("/".to_string(), ROOT_INO)]);
    walk(fs, ROOT_INO, "", &mut names);
    let mut first_names = BTreeMap::new();
    let mut text = String::new();
    for (path, ino) in &names {
        let first = first_names.entry(ino).or_insert(path);
        text += &match *first == path {
            true => format!("{path} {}\n", describe(fs, *ino, path)),
            false => format!("{path} = {first}\n"),
        };
    }
    text
}

fn walk(fs: &dyn FileSystem, dir: Ino, path: &str, names: &mut BTreeMap<String, Ino>) {
    let mut entries = Vec::new();
    fs.readdir(SYSTEM, dir, 0, &mut |entry| {
        entries.push((entry.name.to_vec(), entry.ino));
        true
    })
    .unwrap_or_else(|error| panic!("{path}: {error}"));
    for (name, ino) in entries {
        let path = format!("{path}/{}", name.escape_ascii());
        let found = fs
            .lookup(SYSTEM, dir, &name)
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(found.ino, ino, "{path}: listing and lookup differ");
        if found.kind == FileKind::Directory {
            walk(fs, ino, &path, names);
        }
        assert!(names.insert(path, ino).is_none(), "listed twice");
    }
}

fn describe(fs: &dyn FileSystem, ino: Ino, path: &str) -> String {
    let attr = fs
        .getattr(SYSTEM, ino)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut text = format!(
        "{:?} {:04o} {}:{} links {} size {} mtime {}",
        attr.kind, attr.mode, attr.uid, attr.gid, attr.nlink, attr.size, attr.mtime.0,
    );
    match attr.kind {
        FileKind::File => text += &content(fs, &attr, path),
        FileKind::Symlink => {
            let target = fs
                .readlink(SYSTEM, ino)
                .unwrap_or_else(|error| panic!("{path}: {error}"));
            text += &format!(" to {}", summary(&target));
        }
        FileKind::CharDevice | FileKind::BlockDevice => text += &format!(" device {}", attr.rdev),
        FileKind::Directory | FileKind::Fifo | FileKind::Socket => {}
    }
    let mut names = fs
        .listxattr(SYSTEM, ino)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    names.sort();
    for name in names {
        let value = fs
            .getxattr(SYSTEM, ino, &name)
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        text += &format!(" {}={}", name.escape_ascii(), summary(&value));
    }
    text
}

/// Short byte strings verbatim, others as checksums.
fn summary(bytes: &[u8]) -> String {
    if bytes.len() <= 40 {
        format!("'{}'", bytes.escape_ascii())
    } else {
        format!("{} bytes {:08x}", bytes.len(), crc32c::crc32c(bytes))
    }
}

/// Pages that are not zeros: where, and the checksum of their numbers and bytes.
fn content(fs: &dyn FileSystem, attr: &Attr, path: &str) -> String {
    let mode = OpenMode {
        no_atime: true,
        ..OpenMode::read_only()
    };
    let file = fs
        .open(SYSTEM, attr.ino, mode)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    let (mut ranges, mut sum, mut at) = (Vec::<(u64, u64)>::new(), 0, 0);
    loop {
        let start = match file.seek_data(SYSTEM, at) {
            Ok(start) => start / PAGE * PAGE,
            Err(FsError::NoSuchAddress) => break,
            Err(error) => panic!("{path}: {error}"),
        };
        let end = file
            .seek_hole(SYSTEM, start.max(at))
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        for offset in (start..end).step_by(PAGE as usize) {
            let mut page = [0; PAGE as usize];
            let count = file
                .read_at(SYSTEM, offset, &mut page)
                .unwrap_or_else(|error| panic!("{path} at {offset}: {error}"));
            assert_eq!(
                count as u64,
                PAGE.min(attr.size - offset),
                "{path}: short read at {offset}"
            );
            let page = &page[..count];
            if page.iter().any(|&byte| byte != 0) {
                sum = crc32c::crc32c_append(sum, &offset.to_le_bytes());
                sum = crc32c::crc32c_append(sum, page);
                match ranges.last_mut() {
                    Some(last) if last.1 == offset / PAGE => last.1 += 1,
                    _ => ranges.push((offset / PAGE, offset / PAGE + 1)),
                }
            }
        }
        at = end.next_multiple_of(PAGE);
        if at >= attr.size {
            break;
        }
    }
    let ranges: Vec<String> = match ranges.len() {
        0..=8 => ranges.iter().map(|(from, to)| format!("{from}-{}", to - 1)).collect(),
        many => vec![format!("{many} ranges")],
    };
    format!(" pages [{}] {sum:08x}", ranges.join(" "))
}
