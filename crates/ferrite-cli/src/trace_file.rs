//! The file that `mount -o trace=FILE` records writes in: opened before the mount, emptied once nothing can fail.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{FAILED, Failure, about};

/// Opens a file for a trace, and keeps its content until [`empty`] is called. Refuses a file that is not a trace: the
/// name may be a mistake.
pub(crate) fn open(path: &Path) -> Result<File, Failure> {
    let opened = || -> std::io::Result<Option<File>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        let mut start = Vec::new();
        const MARK: &str = "ferrite-trace ";
        (&file).take(MARK.len() as u64).read_to_end(&mut start)?;
        if !start.is_empty() && start != MARK.as_bytes() {
            return Ok(None);
        }
        Ok(Some(file))
    };
    opened().map_err(about(path))?.ok_or_else(|| {
        let path = path.display();
        Failure::new(
            FAILED,
            format!("{path}: exists and holds no trace; choose another name for `trace=`, or remove the file"),
        )
    })
}

/// Empties the file for a new trace.
pub(crate) fn empty(trace: &File) -> std::io::Result<()> {
    trace.set_len(0)?;
    let mut trace = trace;
    trace.rewind()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_trace_replaces_a_trace_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        drop(open(&path).unwrap());
        std::fs::write(&path, "ferrite-trace 1\nf 7 0\n").unwrap();
        let mut trace = open(&path).unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap().len(),
            22,
            "it is there until the mount is"
        );
        empty(&trace).unwrap();
        trace.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        for text in ["root:x:0:0", "ferrite"] {
            std::fs::write(&path, text).unwrap();
            let failure = open(&path).err().unwrap();
            assert!(failure.message.contains("holds no trace"), "{}", failure.message);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert!(open(dir.path()).is_err());
    }
}
