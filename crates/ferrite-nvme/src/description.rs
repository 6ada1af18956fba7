//! The file that describes a pool: locked while a process uses the pool, and replaced as a whole.
//!
//! Invariants: a description is read under its lock, and the lock is that of the file that has the name. A new one is
//! written beside it, synced, and renamed over it, so that a crash leaves the old one or the new one, and never a part.
//! The file beside it is locked, too: two processes that make the same pool do not meet in it. Used by `pool` only.

use std::fs::{File, Metadata};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferrite_pm::holder;
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};
use rustix::fs::{CWD, FlockOperation, RenameFlags};

use crate::config::{Config, Data, DataPlace};
use crate::device::as_data;
use crate::refusal::{Result, invalid, medium, refuse};

/// How long a killed process may take to release its locks.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// How long a child of this process may take to become another program.
const CHILD_BECOMES_ANOTHER: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Which other processes may have the pool open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// None.
    Alone,
    /// Others that only read.
    Inspect,
}

/// A description that is locked.
#[derive(Debug)]
pub(crate) struct Description {
    given: PathBuf,
    pub(crate) text: String,
    file: File,
}

fn same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Locks a file, unless another process has; waits for a process that is exiting.
fn lock(path: &Path, file: &File, share: Share) -> Result<()> {
    let wanted = match share {
        Share::Alone => FlockOperation::NonBlockingLockExclusive,
        Share::Inspect => FlockOperation::NonBlockingLockShared,
    };
    let start = Instant::now();
    while rustix::fs::flock(file, wanted).is_err() {
        let process = holder::of_lock(file);
        // A killed process keeps its locks while the kernel tears it down. A child of this process has them, too, until
        // it has become another program.
        let waited = start.elapsed();
        let is_ours = process == Some(std::process::id());
        if waited < ENDS_WITHIN && process.is_none_or(holder::is_exiting) || is_ours && waited < CHILD_BECOMES_ANOTHER {
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        let by = process.map_or("another process".into(), holder::describe);
        let text = format!(
            "{}: in use by {by}, which has it open; close it there, or end that process",
            path.display()
        );
        return Err(refuse(VolumeErrorKind::InUse { by, process }, text).with_name_in_text());
    }
    Ok(())
}

impl Description {
    /// Locks a description, and reads it then. Blocks while a process that holds it is exiting.
    ///
    /// # Errors
    /// The description is missing or in use; errors of the medium.
    pub(crate) fn open(path: &Path, share: Share) -> Result<Description> {
        let failed = |error: std::io::Error| medium(path, &error).with_errno(error.raw_os_error());
        loop {
            let file = File::open(path).map_err(failed)?;
            lock(path, &file, share)?;
            // The previous holder of the lock may have replaced the file.
            let named = std::fs::metadata(path).map_err(failed)?;
            if same_file(&file.metadata().map_err(failed)?, &named) {
                return Ok(Description {
                    given: path.to_path_buf(),
                    text: std::io::read_to_string(&file).map_err(failed)?,
                    file,
                });
            }
        }
    }

    /// The configuration that it describes. Relative paths start at its directory, by the name that was given.
    ///
    /// # Errors
    /// The text is no description.
    pub(crate) fn config(&self) -> Result<Config> {
        parse(&self.given, &self.text)
    }

    /// The text with one more device, which leaves all that users wrote as it is, where possible.
    pub(crate) fn with_device(&self, config: &Config, device: &Path) -> Result<String> {
        let name = toml::Value::from(device.to_string_lossy().as_ref());
        let gap = if self.text.ends_with('\n') { "" } else { "\n" };
        let text = format!("{}{gap}\n[[data]]\ndevice = {name}\n", self.text);
        self.changed(config, config.devices().len(), as_data(device), text)
    }

    /// The text in which a device was removed, and its place is free.
    pub(crate) fn without_device(&self, config: &Config, index: usize) -> Result<String> {
        let text = in_table(&self.text, index, "removed = true");
        self.changed(config, index, Data::removed(), text)
    }

    /// That nobody has written the file since it was opened.
    ///
    /// # Errors
    /// Somebody has; errors of the medium.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let text = std::fs::read_to_string(&self.given);
        match text.map_err(|error| medium(&self.given, &error))? == self.text {
            true => Ok(()),
            false => {
                let text = format!("{}: it was changed meanwhile; repeat the command", self.given.display());
                Err(invalid(text).with_name_in_text())
            }
        }
    }

    /// A text with which the device at a place is another: `text`, which leaves all that users wrote as it is, if it
    /// says so.
    fn changed(&self, config: &Config, index: usize, data: Data, text: String) -> Result<String> {
        let mut wanted = config.clone();
        let DataPlace::Devices(devices) = &mut wanted.data else {
            return Err(no_devices(&self.given));
        };
        match devices.get_mut(index) {
            Some(device) => *device = data,
            None => devices.push(data),
        }
        match parse(&self.given, &text) {
            Ok(found) if found == wanted => Ok(text),
            // Its devices are in one list, for example.
            _ => checked(&self.given, &wanted),
        }
    }
}

/// The text with a line in place of those of the table `[[data]]` with this number; comments stay.
fn in_table(text: &str, index: usize, line: &str) -> String {
    let (mut tables, mut is_inside) = (0, false);
    let mut lines: Vec<&str> = Vec::new();
    for old in text.lines() {
        let bare = old.trim();
        if bare.starts_with('[') {
            let is_data = bare.starts_with("[[data]]");
            is_inside = is_data && tables == index;
            tables += usize::from(is_data);
            lines.push(old);
            if is_inside {
                lines.push(line);
            }
        } else if !is_inside || bare.is_empty() || bare.starts_with('#') {
            lines.push(old);
        }
    }
    lines.join("\n") + "\n"
}

fn parse(path: &Path, text: &str) -> Result<Config> {
    let base = path.parent().unwrap_or(Path::new("."));
    Config::parse(text, base).map_err(|text| invalid(format!("{}: {text}", path.display())).with_name_in_text())
}

/// The refusal to give a pool a device that has none.
pub(crate) fn no_devices(path: &Path) -> VolumeError {
    let text = format!(
        "{}: its content is in S3, or in Ceph, which grows by OSDs; no device can be added",
        path.display()
    );
    invalid(text).with_name_in_text()
}

/// A description as text, which reads back as the same configuration.
pub(crate) fn checked(path: &Path, config: &Config) -> Result<String> {
    let text = config.to_text();
    match parse(path, &text)? == *config {
        true => Ok(text),
        false => {
            let text = format!("{}: names that are not UTF-8 cannot be written down", path.display());
            Err(invalid(text).with_name_in_text())
        }
    }
}

/// A description that has no name yet. Dropping it leaves the old one in place.
#[derive(Debug)]
pub(crate) struct Draft {
    file: File,
    beside: PathBuf,
    target: PathBuf,
    is_placed: bool,
}

impl Draft {
    /// Locks the file beside a description, whether the description exists or not.
    ///
    /// # Errors
    /// Another process makes the same pool; errors of the medium.
    pub(crate) fn begin(path: &Path) -> Result<Draft> {
        let failed = |error: std::io::Error| medium(path, &error).with_errno(error.raw_os_error());
        // Behind a link, so that the link stays.
        let target = match std::fs::canonicalize(path) {
            Ok(target) => target,
            Err(_) => std::path::absolute(path).map_err(failed)?,
        };
        let name = target
            .file_name()
            .ok_or_else(|| invalid(format!("{}: it names no file", path.display())).with_name_in_text())?;
        let mut beside = std::ffi::OsString::from(".");
        beside.push(name);
        beside.push(".new");
        let beside = target.with_file_name(beside);
        loop {
            // A file that a crash left is emptied only once it is known that no process writes it.
            let opened = File::options().write(true).create(true).truncate(false).open(&beside);
            let file = opened.map_err(failed)?;
            lock(&beside, &file, Share::Alone)?;
            let is_named = |found: &Metadata| file.metadata().is_ok_and(|own| same_file(&own, found));
            if std::fs::metadata(&beside).is_ok_and(|found| is_named(&found)) {
                return Ok(Draft {
                    file,
                    beside,
                    target,
                    is_placed: false,
                });
            }
        }
    }

    /// Writes the text, and gives it the name: over `old`, or else where no file exists. Durable when it returns. The
    /// lock that comes with the name is held as long as the result lives.
    ///
    /// # Errors
    /// A description has appeared meanwhile; errors of the medium. The old one is then still in place, except that this
    /// is uncertain if the directory could not be synced.
    pub(crate) fn place(mut self, text: &str, old: Option<&Description>) -> Result<File> {
        let failed = |error: std::io::Error| medium(&self.target, &error).with_errno(error.raw_os_error());
        let write = |file: &mut File| -> std::io::Result<()> {
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
            if let Some(old) = old {
                file.set_permissions(old.file.metadata()?.permissions())?;
            }
            file.sync_all()
        };
        let mut file = self.file.try_clone().map_err(failed)?;
        write(&mut file).map_err(failed)?;
        let flags = match old {
            Some(_) => RenameFlags::empty(),
            None => RenameFlags::NOREPLACE,
        };
        let renamed = rustix::fs::renameat_with(CWD, &self.beside, CWD, &self.target, flags);
        renamed.map_err(|error| failed(error.into()))?;
        self.is_placed = true;
        let dir = self.target.parent().unwrap_or(Path::new("/"));
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        Ok(file)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_placed {
            // A file that stays is reused by the next draft.
            let _ = std::fs::remove_file(&self.beside);
        }
    }
}

/// The error for a description that exists already.
pub(crate) fn exists(path: &Path) -> VolumeError {
    let text = format!(
        "{}: it exists; without --meta and --data a pool is made of what it names, with --force it is overwritten",
        path.display()
    );
    invalid(text).with_name_in_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# mine\n[metadata]\ndirectory = 'm' # fast\n[[data]]\ndevice = 'a'";

    fn described(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.toml");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    fn add(path: &Path, device: &str) -> Config {
        let old = Description::open(path, Share::Alone).unwrap();
        let config = old.config().unwrap();
        let text = old.with_device(&config, Path::new(device)).unwrap();
        Draft::begin(path).unwrap().place(&text, Some(&old)).unwrap();
        drop(old);
        Description::open(path, Share::Alone).unwrap().config().unwrap()
    }

    /// The text that users wrote stays, whichever way they name devices, and also behind a link.
    #[test]
    fn a_device_is_added_and_comments_stay() {
        let (dir, path) = described(TEXT);
        let link = dir.path().join("link.toml");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let config = add(&link, "/dev/\"b\"");
        assert_eq!(config.devices()[1].device, Path::new("/dev/\"b\""));
        assert!(link.is_symlink());
        assert!(std::fs::read_to_string(&path).unwrap().starts_with(TEXT));
        let (_dir, path) = described("data = [{ device = 'a' }]\n[metadata]\ndirectory = 'm'\n");
        assert_eq!(add(&path, "/b").devices().len(), 2);
    }

    /// So does it when one is removed, and when another is added then.
    #[test]
    fn a_device_is_removed_and_comments_stay() {
        let text = "# mine\n[[data]] # slow\n# old\ndevice = 'a'\nwhole_pages = true\n\n[[data]]\ndevice = 'b'\n\
                    [metadata]\ndirectory = 'm'\n";
        let (_dir, path) = described(text);
        let old = Description::open(&path, Share::Inspect).unwrap();
        let config = old.config().unwrap();
        let without = old.without_device(&config, 0).unwrap();
        let wanted = "# mine\n[[data]] # slow\nremoved = true\n# old\n\n[[data]]\ndevice = 'b'\n\
                      [metadata]\ndirectory = 'm'\n";
        assert_eq!(without, wanted);
        let (_dir, path) = described(&without);
        let old = Description::open(&path, Share::Inspect).unwrap();
        let config = old.config().unwrap();
        assert_eq!(config.present().map(|(number, _)| number).collect::<Vec<_>>(), [1]);
        let with = old.with_device(&config, Path::new("/c")).unwrap();
        assert_eq!(with, format!("{wanted}\n[[data]]\ndevice = \"/c\"\n"));
        let (_dir, path) = described("data = [{ device = 'a' }, { device = 'b' }]\n[metadata]\ndirectory = 'm'\n");
        let old = Description::open(&path, Share::Inspect).unwrap();
        let without = old.without_device(&old.config().unwrap(), 1).unwrap();
        assert!(parse(&path, &without).unwrap().devices()[1].removed, "{without}");
    }

    /// A crash before the new one has its name leaves the old one, and a harmless file beside it.
    #[test]
    fn one_that_was_cut_off_leaves_the_old_one() {
        let (dir, path) = described(TEXT);
        let beside = dir.path().join(".p.toml.new");
        std::fs::write(&beside, "[metadata]\ndirec").unwrap();
        assert_eq!(
            Description::open(&path, Share::Alone)
                .unwrap()
                .config()
                .unwrap()
                .devices()
                .len(),
            1
        );
        assert_eq!(add(&path, "/b").devices().len(), 2);
        assert!(!beside.exists());
        drop(Draft::begin(&path).unwrap());
        assert!(!beside.exists(), "one that is given up goes");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// A process that waited for the lock of a file that was replaced meanwhile reads the new one.
    #[test]
    fn a_description_is_read_under_its_lock() {
        let (_dir, path) = described(TEXT);
        let old = Description::open(&path, Share::Alone).unwrap();
        let config = old.config().unwrap();
        let text = old.with_device(&config, Path::new("/b")).unwrap();
        let new = Draft::begin(&path).unwrap().place(&text, Some(&old)).unwrap();
        let error = Description::open(&path, Share::Inspect).unwrap_err();
        let own = Some(std::process::id());
        assert!(matches!(error.kind(), VolumeErrorKind::InUse { process, .. } if *process == own));
        drop((old, new));
        let looks = [(); 2].map(|()| Description::open(&path, Share::Inspect).unwrap());
        assert_eq!(looks[1].config().unwrap().devices().len(), 2);
        assert!(Description::open(&path, Share::Alone).is_err());
    }

    #[test]
    fn a_new_one_takes_nobodys_name() {
        let (dir, path) = described(TEXT);
        assert!(Draft::begin(&path).unwrap().place("x", None).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TEXT);
        let other = dir.path().join("other.toml");
        Draft::begin(&other).unwrap().place("x", None).unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "x");
    }
}
