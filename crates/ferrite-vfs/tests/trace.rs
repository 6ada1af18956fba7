//! Traces: the recorded events, their format, and refused input.

use std::io::{self, Write};
use std::sync::Arc;

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::trace::{Event, TraceError, TraceWriter, Traced, parse};
use ferrite_vfs::{FallocateMode, FileKind, FileSystem, NewNode, OpenMode, ROOT_INO, SYSTEM, SetAttr};
use parking_lot::Mutex;

/// The bytes written to it, for all of its clones.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn file(fs: &dyn FileSystem, name: &[u8]) -> u64 {
    let node = NewNode {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    fs.mknod(SYSTEM, ROOT_INO, name, &node).unwrap().ino
}

/// The text is part of the format: old traces must stay readable.
#[test]
fn what_succeeds_is_recorded_and_only_that() {
    let memory = MemFs::new();
    let [old, cut] = [b"old", b"cut"].map(|name| file(&memory, name));
    memory
        .open(SYSTEM, old, OpenMode::read_write())
        .unwrap()
        .write_at(SYSTEM, 0, &[1; 9000])
        .unwrap();
    let shared = Shared::default();
    let writer = Arc::new(TraceWriter::new(Box::new(shared.clone())));
    let fs = Traced::new(memory, Arc::clone(&writer));
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    // Looking at it is not recorded, nor is what fails or changes no content.
    fs.open(SYSTEM, old, OpenMode::read_only())
        .unwrap()
        .read_at(SYSTEM, 0, &mut [0; 10])
        .unwrap();
    fs.mkdir(SYSTEM, ROOT_INO, b"dir", 0o755).unwrap();
    fs.setattr(SYSTEM, old, &SetAttr::default()).unwrap();
    assert!(fs.setattr(SYSTEM, ROOT_INO, &size(0)).is_err());
    let log = file(&fs, b"log");
    let handle = fs.open(SYSTEM, log, OpenMode::read_write()).unwrap();
    handle.append(SYSTEM, b"first").unwrap();
    handle.append(SYSTEM, b"and second").unwrap();
    let other = fs.open(SYSTEM, old, OpenMode::read_write()).unwrap();
    other.write_at(SYSTEM, 4096, &[2; 4096]).unwrap();
    handle.append(SYSTEM, b"third").unwrap();
    other.write_at(SYSTEM, 8192, &[2; 4096]).unwrap();
    other.write_at(SYSTEM, 7, b"").unwrap();
    assert!(other.write_at(SYSTEM, u64::MAX - 1, b"x").is_err());
    other
        .fallocate(SYSTEM, FallocateMode::Allocate { keep_size: true }, 0, 1 << 20)
        .unwrap();
    drop(fs.open(SYSTEM, old, OpenMode::read_write()).unwrap());
    fs.setattr(SYSTEM, log, &size(3)).unwrap();
    handle.append(SYSTEM, b"4").unwrap();
    fs.setattr(SYSTEM, cut, &size(77)).unwrap();
    // Nothing opens it, but its number may have been another file's before.
    let empty = file(&fs, b"empty");
    assert_eq!(shared.text(), "", "it is passed on late");
    writer.finish().unwrap();
    let text = format!(
        "ferrite-trace 1\nf {log} 0\n5\n10\nf {old} 9000\n4096@4096\n{log}:5\n{old}:4096\nt {log} 3\n1\nf {cut} 0\nt \
         {cut} 77\nf {empty} 0\n"
    );
    assert_eq!(shared.text(), text);
    assert_eq!(parse(&text).unwrap().len(), 12);
}

#[test]
fn lines_may_be_short_or_long() {
    let text = "ferrite-trace 1\n# a remark\n\nf 7 100\n7:3@100\n2\n9:1@5\n7:1\n1@0\n";
    let write = |ino, offset_bytes, len_bytes| Event::Write {
        ino,
        offset_bytes,
        len_bytes,
    };
    let events = [
        Event::File { ino: 7, len_bytes: 100 },
        write(7, 100, 3),
        write(7, 103, 2),
        write(9, 5, 1),
        write(7, 105, 1),
        write(7, 0, 1),
    ];
    assert_eq!(parse(text).unwrap(), events);
    // Any whole lines from the beginning are a trace.
    let lines: Vec<_> = text.lines().collect();
    for count in 1..lines.len() {
        assert!(parse(&lines[..count].join("\n")).is_ok());
    }
}

#[test]
fn malformed_traces_are_refused_with_line_and_mend() {
    assert_eq!(parse(""), Err(TraceError::NoTrace));
    assert_eq!(parse("root:x:0:0\n"), Err(TraceError::NoTrace));
    let newer = parse("ferrite-trace 2\n").unwrap_err().to_string();
    assert!(
        newer.contains("version 2") && newer.contains("newer Ferrite"),
        "{newer}"
    );
    for (line, why) in [
        ("5@0", "no line before it has one"),
        ("7:5", "leaves out the offset"),
        ("7:0@0", "1 byte at least"),
        ("7:+5@0", "decimal"),
        ("7:5@", "decimal"),
        ("7:5@0@0", "decimal"),
        (":5@0", "decimal"),
        ("0:5@0", "no file's number"),
        ("7:99999999999999999999@0", "decimal"),
        ("7:5@17592186044412", "16 TiB"),
        ("7:17592186044417@0", "16 TiB"),
        ("f 7", "missing"),
        ("f 7 1 2", "decimal"),
        ("t 0 5", "no file's number"),
        ("t 7 17592186044417", "16 TiB"),
        ("x 7 5", "no line before it has one"),
        (" 7:5@0", "decimal"),
        ("é", "no line before it has one"),
    ] {
        let error = parse(&format!("ferrite-trace 1\n# a remark\n{line}\n"))
            .unwrap_err()
            .to_string();
        let wanted = ["line 3", line, why, "head -n 2"];
        assert!(wanted.iter().all(|part| error.contains(part)), "{line}: {error}");
    }
}

/// A disk that is full.
struct Full;

impl Write for Full {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_trace_that_cannot_be_written_disturbs_nobody() {
    let writer = Arc::new(TraceWriter::new(Box::new(Full)));
    let fs = Traced::new(MemFs::new(), Arc::clone(&writer));
    let handle = fs.open(SYSTEM, file(&fs, b"f"), OpenMode::read_write()).unwrap();
    for offset in 0..50_000 {
        assert_eq!(handle.write_at(SYSTEM, offset * 3, b"x"), Ok(1));
    }
    assert_eq!(writer.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(writer.finish().is_ok(), "said once");
}
