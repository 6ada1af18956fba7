//! Devices: a suitable one can hold a pool, mounted or not; on an unsuitable one, not a byte changes.
//!
//! Block devices are loop devices here. `FERRITE_DAX_DEVICES` (devices whose content does not matter, separated by
//! blanks) and `FERRITE_FSDAX_DIR` name device DAX and fs-DAX; `make pmem` runs these tests in a guest that has both.
//! Tests without their device are skipped with a message.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{fails, ferrite, has_fuse, ok, text};
use ferrite_fs::layout;
use ferrite_pm::{Access, Region};

/// A block device over a file; removed when dropped.
struct LoopDevice {
    dir: tempfile::TempDir,
    device: PathBuf,
}

impl LoopDevice {
    /// `None` where there are no loop devices.
    fn new(len_bytes: u64) -> Option<LoopDevice> {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        File::create(dir.path().join("image"))
            .unwrap()
            .set_len(len_bytes)
            .unwrap();
        let made = Command::new("losetup")
            .args(["-f", "--show"])
            .arg(dir.path().join("image"))
            .output();
        let device = match made {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().into(),
            Ok(output) => {
                eprintln!("skipped: no loop device: {}", text(&output).trim());
                return None;
            }
            Err(error) => {
                eprintln!("skipped: losetup: {error}");
                return None;
            }
        };
        Some(LoopDevice { dir, device })
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn content(&self) -> Vec<u8> {
        ok(Command::new("sync").arg(&self.device));
        fs::read(&self.device).unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-q").arg(&self.device).output();
        let _ = Command::new("losetup").arg("-d").arg(&self.device).output();
    }
}

/// The devices of device DAX that tests may use; empty, with a message, if there are none.
fn dax_devices() -> Vec<PathBuf> {
    let names = std::env::var("FERRITE_DAX_DEVICES").unwrap_or_default();
    let devices: Vec<PathBuf> = names.split_whitespace().map(PathBuf::from).collect();
    if devices.is_empty() {
        eprintln!("skipped: FERRITE_DAX_DEVICES names no device; `make pmem` has some in a guest");
    }
    devices
}

/// A checksum that differs for other contents, so that no test keeps a device in memory.
fn sum_of(device: &Path) -> u32 {
    let region = Region::open(device, Access::ReadOnlyPrivate).unwrap();
    let mut part = vec![0; 1 << 20];
    let zeros = part.clone();
    let mut sum = 0;
    for offset in (0..region.len()).step_by(part.len()) {
        part.truncate((region.len() - offset) as usize);
        region.read(offset, &mut part);
        // Most of a device is zeros, and a guest is slow.
        if part != zeros[..part.len()] {
            sum = crc32c::crc32c_append(crc32c::crc32c_append(sum, &offset.to_le_bytes()), &part);
        }
    }
    sum
}

/// `mkfs` in all its ways must fail, say all of `words`, and leave the device as it is.
fn no_pool_on(device: &LoopDevice, words: &[&str]) {
    let before = device.content();
    for more in [&[][..], &["--force"], &["--size", "16M"], &["--size", "16M", "--force"]] {
        let said = fails(ferrite().arg("mkfs").arg(&device.device).args(more), 1);
        for word in words {
            assert!(said.contains(word), "`{word}` missing in: {said}");
        }
    }
    assert!(device.content() == before, "the device has changed");
}

#[test]
fn a_block_device_is_refused_and_stays_as_it_is() {
    let Some(device) = LoopDevice::new(64 << 20) else {
        return;
    };
    no_pool_on(&device, &["a block device", "file system on it", "Nothing was changed"]);
    let whole = File::options().write(true).open(&device.device).unwrap();
    whole.write_all_at(&[7; 8192], 0).unwrap();
    no_pool_on(&device, &["a block device"]);
    for (offset, magic, name) in [
        (0, &b"LUKS\xba\xbe"[..], "LUKS"),
        (512, b"LABELONE", "LVM2"),
        (4086, b"SWAPSPACE2", "swap"),
        (0, b"XFSB", "XFS"),
    ] {
        whole.write_all_at(&[0; 8192], 0).unwrap();
        whole.write_all_at(magic, offset).unwrap();
        no_pool_on(&device, &["a block device", name]);
    }
    for command in ["info", "fsck", "scrub"] {
        let said = text(&ferrite().arg(command).arg(&device.device).output().unwrap());
        assert!(said.contains("a block device"), "{said}");
    }
}

#[test]
fn a_device_in_use_is_named_so_and_its_file_is_safe_from_force() {
    let Some(device) = LoopDevice::new(64 << 20) else {
        return;
    };
    let said = fails(
        ferrite().args(["mkfs", "--force", "--size", "64M"]).arg(device.image()),
        1,
    );
    let name = device.device.to_str().unwrap();
    assert!(said.contains("the content of") && said.contains(name), "{said}");

    let mkfs = Command::new("mkfs.ext4")
        .arg("-q")
        .arg(&device.device)
        .stderr(Stdio::null())
        .status();
    if !mkfs.is_ok_and(|status| status.success()) {
        eprintln!("skipped: mkfs.ext4 is not there, so nothing can be mounted");
        return;
    }
    let dir = device.dir.path().join("mnt");
    fs::create_dir(&dir).unwrap();
    // Read-only, so that the kernel writes nothing on its own while the test compares.
    let mut mount = Command::new("mount");
    let mount = mount.args(["-o", "ro"]).arg(&device.device).arg(&dir).output().unwrap();
    if !mount.status.success() {
        eprintln!("skipped: loop devices cannot be mounted: {}", text(&mount).trim());
        return;
    }
    no_pool_on(&device, &["ext4", "mounted on", dir.to_str().unwrap()]);
    let said = fails(
        ferrite().args(["mkfs", "--force", "--size", "64M"]).arg(device.image()),
        1,
    );
    assert!(said.contains("the content of"), "{said}");
    ok(Command::new("umount").arg(&dir));
    ok(Command::new("e2fsck").args(["-fn"]).arg(&device.device));
}

/// Signatures known to blkid(8) only: at the end of the file, or of a rare kind.
#[test]
fn what_blkid_knows_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    // A RAID's superblock of version 0.90.
    let mut superblock = [0; 4096];
    superblock[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
    superblock[8..12].copy_from_slice(&90u32.to_le_bytes());
    superblock[20..24].copy_from_slice(&1u32.to_le_bytes());
    file.write_all_at(&superblock, (64 << 20) - (64 << 10)).unwrap();
    let knows = Command::new("/usr/sbin/blkid").arg("-p").arg(&path).output();
    if !knows.is_ok_and(|output| text(&output).contains("linux_raid")) {
        eprintln!("skipped: no blkid that knows a RAID of version 0.90");
        return;
    }
    let said = fails(ferrite().arg("mkfs").arg(&path), 1);
    assert!(said.contains("linux_raid_member") && said.contains("--force"), "{said}");
    common::mkfs(&path, &["--force"]);
}

/// A crashed pool is recovered in memory, so a look stores to the view of the device.
#[test]
fn a_device_can_be_inspected_without_being_mounted() {
    for device in dax_devices() {
        let name = device.to_str().unwrap();
        common::mkfs(&device, &["--force"]);
        let len_bytes = Region::open(&device, Access::ReadOnlyPrivate).unwrap().len();
        let said = fails(ferrite().args(["mkfs", name]), 1);
        assert!(said.contains("already holds a Ferrite pool"), "{said}");
        for more in [
            &["--size", "16M"][..],
            &["--size", "16M", "--force"],
            &["--size", "900G", "--force"],
        ] {
            let said = fails(ferrite().args(["mkfs", name]).args(more), 2);
            assert!(
                said.contains(&len_bytes.to_string()) && said.contains("--size"),
                "{said}"
            );
        }
        let info =
            || -> serde_json::Value { serde_json::from_str(&ok(ferrite().args(["info", name, "--json"]))).unwrap() };
        assert_eq!(info()["size_bytes"], len_bytes);
        assert!(info()["medium"].as_str().unwrap().contains("DAX"));
        if has_fuse() {
            crash_with_files(&device);
        }
        let before = sum_of(&device);
        let found = info();
        assert!(!found["was_clean"].as_bool().unwrap() || !has_fuse());
        ok(ferrite().args(["df", name]));
        ok(ferrite().args(["fsck", name]));
        ok(ferrite().args(["scrub", name]));
        if has_fuse() {
            assert!(ok(ferrite().args(["dump", name, "logged"])).contains("page 0"));
            look_through_a_mount(&device);
        }
        assert_eq!(sum_of(&device), before, "{name}: a look has changed the device");
        repair(&device);
    }
}

/// Leaves a pool as a killed daemon does, with work for the journal's replay.
fn crash_with_files(device: &Path) {
    let dir = tempfile::tempdir().unwrap();
    ok(ferrite().arg("mount").arg(device).arg(dir.path()));
    fs::write(dir.path().join("big"), vec![3; 10 << 20]).unwrap();
    fs::write(dir.path().join("logged"), vec![4; 8192]).unwrap();
    let file = File::options().write(true).open(dir.path().join("logged")).unwrap();
    for at in 0..50 {
        file.write_all_at(b"x", at * 3).unwrap();
    }
    for n in 0..50 {
        fs::write(dir.path().join(format!("small{n}")), "content").unwrap();
    }
    let said = text(&ferrite().arg("fsck").arg(device).output().unwrap());
    let pid = said
        .split("process ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .expect("a daemon");
    drop(file);
    ok(Command::new("kill").args(["-9", pid]));
    ok(Command::new("umount").arg("-l").arg(dir.path()));
}

fn look_through_a_mount(device: &Path) {
    let dir = tempfile::tempdir().unwrap();
    ok(ferrite().arg("mount").arg(device).arg(dir.path()).args(["-o", "ro"]));
    assert_eq!(fs::read(dir.path().join("big")).unwrap(), vec![3; 10 << 20]);
    for n in 0..50 {
        assert_eq!(fs::read(dir.path().join(format!("small{n}"))).unwrap(), b"content");
    }
    assert!(fs::write(dir.path().join("new"), "x").is_err());
    ok(ferrite().arg("umount").arg(dir.path()));
}

fn repair(device: &Path) {
    let region = Region::open(device, Access::ReadWrite).unwrap();
    region.store(100 / 8 * 8, 0x5151_5151);
    region.write_back(96, 8);
    region.fence().unwrap();
    drop(region);
    let damaged = sum_of(device);
    let said = fails(ferrite().arg("fsck").arg(device), 4);
    assert!(said.contains("first copy"), "{said}");
    assert_eq!(sum_of(device), damaged, "a check has changed the device");
    let said = fails(ferrite().arg("mkfs").arg(device), 1);
    assert!(said.contains("Ferrite pool"), "{said}");
    fails(ferrite().arg("fsck").arg("--repair").arg(device), 1);
    ok(ferrite().arg("fsck").arg(device));
}

/// Foreign contents of a device of memory: an earlier ext4, or any other kind that blkid(8) knows.
#[test]
fn what_lies_on_a_device_is_not_overwritten() {
    for device in dax_devices() {
        common::mkfs(&device, &["--force"]);
        let store = |offset: u64, bytes: &[u8]| {
            let region = Region::open(&device, Access::ReadWrite).unwrap();
            region.stream(offset, bytes);
            region.fence().unwrap();
            region.len()
        };
        let len_bytes = store(0, &[0; 128 << 10]);
        let said = fails(ferrite().arg("mkfs").arg(&device), 1);
        assert!(said.contains("a damaged Ferrite pool"), "{said}");
        store(len_bytes - 4096, &[0; 4096]);
        store(0x438, b"\x53\xef");
        let before = sum_of(&device);
        let said = fails(ferrite().arg("mkfs").arg(&device), 1);
        assert!(said.contains("ext4"), "{said}");
        assert_eq!(sum_of(&device), before);
        store(0x438, &[0; 2]);
        ok(ferrite().arg("mkfs").arg(&device));
    }
}

#[test]
fn a_pool_on_fs_dax_is_told_from_an_ordinary_file() {
    let Some(dir) = std::env::var_os("FERRITE_FSDAX_DIR") else {
        eprintln!("skipped: FERRITE_FSDAX_DIR is not set; `make pmem` has one in a guest");
        return;
    };
    let dir = tempfile::tempdir_in(dir).unwrap();
    let pool = dir.path().join("pool");
    assert!(ok(ferrite().arg("mkfs").arg(&pool).args(["--size", "64M"])).contains("persistent memory (DAX)"));
    let info = ok(ferrite().arg("info").arg(&pool));
    assert!(
        info.contains("persistent memory (DAX)") && info.contains("power loss"),
        "{info}"
    );
    let doctor = text(&ferrite().arg("doctor").output().unwrap());
    assert!(doctor.contains("mounted with DAX"), "{doctor}");
}

/// The losses of such a pool are unknown, so a mount refuses it; a command that only looks must not report that all is
/// safe.
#[test]
fn info_promises_nothing_of_a_pool_that_mount_refuses() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let pool = dir.path().join("pool");
    common::mkfs(&pool, &["--size", "16M"]);
    if !ok(ferrite().arg("info").arg(&pool)).contains("ordinary file") {
        eprintln!("skipped: /var/tmp is not on a disk");
        return;
    }
    let durability = || {
        let info: serde_json::Value =
            serde_json::from_str(&ok(ferrite().arg("info").arg(&pool).arg("--json"))).unwrap();
        info["durability"].as_str().unwrap().to_string()
    };
    assert!(durability().ends_with("survives a killed process and a power loss"));
    let set = |offset: u64, value: u64| {
        let region = Region::open(&pool, Access::ReadWrite).unwrap();
        region.store(offset, value);
        region.fence().unwrap();
    };
    set(layout::CONTROL_STATE, layout::STATE_IN_USE);
    set(layout::CONTROL_BOOT, 77);
    let said = durability();
    assert!(
        said.contains("refuses") && said.contains("durability=process"),
        "{said}"
    );
    let said = fails(ferrite().arg("mount").arg(&pool).arg(dir.path()), 1);
    assert!(said.contains("durability=process"), "{said}");
}
