//! A tree of small files, as source code is, that is unpacked from an archive and removed again.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{FAILED, Failure};

/// Directories, and files in each.
const DIRS: usize = 20;
const FILES: usize = 15;

/// Makes the archive.
pub(super) fn archive(dir: &Path) -> Result<PathBuf, Failure> {
    let (tree, archive) = (dir.join("tree"), dir.join("tree.tar"));
    for index in 0..DIRS * FILES {
        let dir = tree.join(format!("dir-{}", index % DIRS));
        std::fs::create_dir_all(&dir)?;
        // Most are short, and some are longer than what is kept with the metadata.
        let bytes = match index % 10 {
            0 => 40_000 + index * 50,
            1..4 => 12_000,
            rest => 500 * rest,
        };
        std::fs::write(dir.join(format!("file-{index}.rs")), vec![index as u8; bytes])?;
    }
    run(Command::new("tar")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(&tree)
        .arg("."))?;
    Ok(archive)
}

fn run(command: &mut Command) -> Result<(), Failure> {
    match command.status()?.success() {
        true => Ok(()),
        false => Err(Failure::new(FAILED, "`tar` failed")),
    }
}

/// Trees on a mount.
pub(super) struct Trees {
    dir: PathBuf,
    archive: PathBuf,
    /// Those that are there to be removed, with the next one.
    made: Cell<u64>,
    removed: Cell<u64>,
}

impl Trees {
    pub(super) fn on(mount: &Path, archive: &Path) -> Result<Trees, Failure> {
        let dir = mount.join("trees");
        std::fs::create_dir(&dir)?;
        Ok(Trees {
            dir,
            archive: archive.to_owned(),
            made: Cell::new(0),
            removed: Cell::new(0),
        })
    }

    fn unpack(&self, name: &str) -> Result<(), Failure> {
        let to = self.dir.join(name);
        std::fs::create_dir(&to)?;
        run(Command::new("tar").arg("-xf").arg(&self.archive).arg("-C").arg(to))
    }

    pub(super) fn extract(&self, n: u64) -> Result<(), Failure> {
        self.unpack(&format!("tree-{n}"))
    }

    /// For [`Self::remove_one`].
    pub(super) fn extract_some(&self, count: u64) -> Result<(), Failure> {
        (0..count).try_for_each(|_| {
            let n = self.made.replace(self.made.get() + 1);
            self.unpack(&format!("removed-{n}"))
        })
    }

    pub(super) fn remove_one(&self) -> Result<(), Failure> {
        let n = self.removed.replace(self.removed.get() + 1);
        Ok(std::fs::remove_dir_all(self.dir.join(format!("removed-{n}")))?)
    }
}
