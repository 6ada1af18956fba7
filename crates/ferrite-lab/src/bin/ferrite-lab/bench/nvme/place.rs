//! The devices that are measured: loop devices with direct transfers over files in memory, all alike, or, for users who
//! may not make those, files in memory. All of it is removed at the end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::bench::operations::TmpfsDir;
use crate::{FAILED, Failure, complain};

/// Size of each; the first write to a part takes its memory.
pub(super) const DEVICE_BYTES: u64 = 4 << 30;

/// A device.
pub(super) struct Device {
    pub(super) path: PathBuf,
    /// The kernel removes a loop device when its last user closes it, so none outlives this process, however it ends.
    _held: Option<File>,
}

/// See the module's head.
pub(super) struct Place {
    dir: TmpfsDir,
    /// Whether devices are loop devices.
    pub(super) has_loops: bool,
}

/// Runs a command and returns its output.
fn run(command: &mut Command) -> Result<String, Failure> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::new(FAILED, format!("{}: {error}", command.get_program().display())))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let text = format!("{}: {}", command.get_program().display(), said.trim());
            Err(Failure::new(FAILED, text))
        }
    }
}

impl Place {
    pub(super) fn new() -> Result<Place, Failure> {
        let mut place = Place {
            dir: TmpfsDir::new()?,
            has_loops: rustix::process::geteuid().is_root(),
        };
        place.has_loops = place.has_loops && place.device("probe").is_ok();
        Ok(place)
    }

    /// The text of the rows about it.
    pub(super) fn describe(&self) -> &'static str {
        match self.has_loops {
            true => "loop devices over memory",
            false => "files in memory",
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir.0
    }

    /// A new device.
    pub(super) fn device(&self, name: &str) -> Result<Device, Failure> {
        let file = self.dir.0.join(name);
        File::create(&file)?.set_len(DEVICE_BYTES)?;
        if !self.has_loops {
            return Ok(Device {
                path: file,
                _held: None,
            });
        }
        let mut losetup = Command::new("losetup");
        losetup
            .args(["-f", "--show", "-b", "4096", "--direct-io=on"])
            .arg(&file);
        let path = PathBuf::from(run(&mut losetup)?);
        let held = File::open(&path);
        // From here on device and file live only as long as they are open.
        run(Command::new("losetup").arg("-d").arg(&path))?;
        std::fs::remove_file(&file)?;
        Ok(Device {
            path,
            _held: Some(held?),
        })
    }

    /// An ext4 on a device of its own. `None` without loop devices, or if such a mount is impossible here.
    pub(super) fn ext4(&self, name: &str) -> Option<Ext4> {
        if !self.has_loops {
            return None;
        }
        let mounted = self.mounted(name);
        let told = |failure: &Failure| complain(format_args!("ferrite: ext4 left out: {}", failure.message));
        mounted.inspect_err(told).ok()
    }

    fn mounted(&self, name: &str) -> Result<Ext4, Failure> {
        let device = self.device(name)?;
        let dir = self.dir.0.join(format!("{name}-mount"));
        std::fs::create_dir(&dir)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&device.path))?;
        run(Command::new("mount").arg(&device.path).arg(&dir))?;
        Ok(Ext4 { dir, device })
    }
}

impl Device {
    /// The number of reads of it. `None` if the system does not count them.
    pub(super) fn reads(&self) -> Option<u64> {
        let name = self.path.file_name()?.to_str()?;
        let counts = std::fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?;
        counts.split_whitespace().next()?.parse().ok()
    }
}

/// A mounted ext4.
pub(super) struct Ext4 {
    pub(super) dir: PathBuf,
    pub(super) device: Device,
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(&self.dir));
    }
}
