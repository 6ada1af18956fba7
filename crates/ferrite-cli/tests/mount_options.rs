//! The effects of mount options, on a pool in memory, on a pool in a disk file, on a pool on devices, and on a server's
//! export, with and without leases: those that the kernel shows, those of access times, and options without effect,
//! which no mount accepts in silence.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::server::Server;
use crate::common::{ferrite, has_fuse, ok, text};
use tempfile::TempDir;

/// The kinds of mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Disk,
    #[cfg(feature = "nvme")]
    Devices,
    Export,
    Leased,
}

const KINDS: &[Kind] = &[
    Kind::Memory,
    Kind::Disk,
    #[cfg(feature = "nvme")]
    Kind::Devices,
    Kind::Export,
    Kind::Leased,
];

struct Mount {
    base: TempDir,
    address: String,
    /// Options that it always has.
    options: &'static str,
    /// The server must outlive this.
    _server: Option<Server>,
}

impl Mount {
    fn new(kind: Kind) -> Mount {
        let place = if kind == Kind::Disk { "/var/tmp" } else { "/dev/shm" };
        let base = tempfile::Builder::new()
            .prefix("ferrite-test-")
            .tempdir_in(place)
            .unwrap();
        std::fs::create_dir(base.path().join("mnt")).unwrap();
        let pool = base.path().join("pool");
        let mut server = None;
        let address = match kind {
            Kind::Memory | Kind::Disk => {
                common::mkfs(&pool, &["--size", "32M"]);
                pool.display().to_string()
            }
            #[cfg(feature = "nvme")]
            Kind::Devices => {
                let words = [
                    "mkfs",
                    "nvme:pool.toml",
                    "--meta",
                    "meta",
                    "--data",
                    "data",
                    "--size",
                    "64M",
                ];
                ok(ferrite().current_dir(base.path()).args(words));
                format!("nvme:{}/pool.toml", base.path().display())
            }
            Kind::Export | Kind::Leased => server.insert(Server::new("32M", &["--no-root-squash"])).address.clone(),
        };
        Mount {
            base,
            address,
            options: if kind == Kind::Leased { "cache=leased" } else { "rw" },
            _server: server,
        }
    }

    fn dir(&self) -> PathBuf {
        self.base.path().join("mnt")
    }

    /// Mounts it; returns the output, and whether that worked.
    fn try_with(&self, options: &str) -> (bool, String) {
        let options = format!("{},{options}", self.options);
        let mount = ferrite()
            .arg("mount")
            .arg(&self.address)
            .arg(self.dir())
            .args(["-o", &options])
            .output()
            .unwrap();
        (mount.status.success(), text(&mount))
    }

    fn with<T>(&self, options: &str, work: impl FnOnce(&Path) -> T) -> T {
        let (is_mounted, said) = self.try_with(options);
        assert!(is_mounted, "{}: {options}: {said}", self.address);
        let made = work(&self.dir());
        ok(ferrite().arg("umount").arg(self.dir()));
        made
    }

    /// The flags that the kernel shows.
    fn flags(&self) -> Vec<String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let dir = format!(" {} ", self.dir().display());
        let line = mounts.lines().find(|line| line.contains(&dir)).unwrap();
        line.split(' ').nth(3).unwrap().split(',').map(str::to_owned).collect()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir()).output();
    }
}

/// Any client of a server can make a setuid file, of any user but root, and a hostile server one of root.
#[test]
fn what_comes_from_a_server_gives_no_privileges() {
    if !has_fuse() {
        return;
    }
    for &kind in KINDS {
        let mount = Mount::new(kind);
        let is_servers = matches!(kind, Kind::Export | Kind::Leased);
        for (options, suid, dev) in [
            ("rw", !is_servers, !is_servers),
            ("nosuid", false, !is_servers),
            ("nodev", !is_servers, false),
            ("suid,dev", true, true),
            ("allow_suid", true, !is_servers),
            ("nosuid,nodev,allow_dev", false, true),
        ] {
            mount.with(options, |dir| {
                let flags = mount.flags();
                let has = |flag: &str| flags.iter().any(|shown| shown == flag);
                assert_eq!(
                    (!has("nosuid"), !has("nodev")),
                    (suid, dev),
                    "{kind:?}: {options}: {flags:?}"
                );
                if options != "rw" {
                    return;
                }
                let script = "cp /usr/bin/id id; chmod 4755 id; setpriv --reuid 1234 --clear-groups ./id -u";
                assert_eq!(
                    common::sh(dir, script).trim(),
                    if suid { "0" } else { "1234" },
                    "{kind:?}"
                );
                common::sh(dir, "mknod zero c 1 5");
                assert_eq!(std::fs::File::open(dir.join("zero")).is_ok(), dev, "{kind:?}");
            });
        }
    }
}

/// Which access times reads moved: of a file, of a directory that is listed. (Those of a symbolic link never move.)
fn moved(mount: &Mount, options: &str) -> [bool; 2] {
    const NAMES: [&str; 2] = ["file", "dir"];
    let access = |dir: &Path| {
        NAMES.map(|name| {
            ok(Command::new("stat")
                .args(["-c", "%x"])
                .arg(dir.join(name))
                .env("TZ", "UTC"))
        })
    };
    // Older than their last change, so that `relatime` moves them.
    mount.with("rw", |dir| {
        common::sh(
            dir,
            "rm -rf file dir; echo text > file; mkdir dir; touch dir/x; touch -a -d 2001-01-01T00:00:00Z file dir",
        );
    });
    let read = |dir: &Path| {
        let before = access(dir);
        common::sh(dir, "cat file; ls -f dir");
        before
    };
    let before = mount.with(options, read);
    let after = mount.with("rw,noatime", access);
    std::array::from_fn(|index| before[index] != after[index])
}

#[test]
fn access_times_move_as_the_options_say() {
    if !has_fuse() {
        return;
    }
    for &kind in KINDS {
        let mount = Mount::new(kind);
        let is_servers = matches!(kind, Kind::Export | Kind::Leased);
        #[cfg(feature = "nvme")]
        let lists = kind != Kind::Devices;
        #[cfg(not(feature = "nvme"))]
        let lists = true;
        for (options, expected) in [
            ("relatime", [true, lists]),
            // A server has no request to list without updating times; the mount says so.
            ("noatime", [false, is_servers]),
            ("ro", [false, is_servers]),
        ] {
            assert_eq!(moved(&mount, options), expected, "{kind:?}: {options}");
        }
        if !is_servers && lists {
            assert_eq!(moved(&mount, "nodiratime"), [true, false], "{kind:?}");
        }
    }
}

/// The messages themselves are checked word by word in the program (`mount_options`).
#[test]
fn an_option_without_effect_is_refused_or_warned_of() {
    if !has_fuse() {
        return;
    }
    for &kind in KINDS {
        let mount = Mount::new(kind);
        let is_page = matches!(kind, Kind::Memory | Kind::Disk);
        let is_servers = matches!(kind, Kind::Export | Kind::Leased);
        for (option, is_mounted, is_silent) in [
            ("noatime", true, !is_servers),
            ("strictatime", is_page, false),
            ("nodiratime", !is_servers, !is_servers),
            ("durability=process", is_page, kind == Kind::Disk),
            ("logs=off", is_page, is_page),
            ("clean_low=6", is_page, is_page),
            ("scrub=100", !is_servers, !is_servers),
            ("locks=kernel", !is_servers, !is_servers),
            ("discard", true, false),
            ("acl", true, true),
            ("noacl", false, false),
        ] {
            let (mounted, said) = mount.try_with(&format!("{option},nosuid"));
            assert_eq!(mounted, is_mounted, "{kind:?}: {option}: {said}");
            let is_named = said.contains(&format!("`{option}`"));
            assert_eq!(is_named, !is_silent, "{kind:?}: {option}: {said}");
            if mounted {
                ok(ferrite().arg("umount").arg(mount.dir()));
            }
        }
    }
}

/// Under the name by which mount(8) calls it, with the words that mount(8) passes on: it does not pass on `suid` and
/// `dev`.
#[test]
fn mount_8_passes_on_what_a_server_is_trusted_with() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(Kind::Export);
    let helper = mount.base.path().join("mount.ferrite");
    std::os::unix::fs::symlink(ferrite().get_program(), &helper).unwrap();
    for (options, is_trusted) in [("rw", false), ("rw,allow_suid,allow_dev", true)] {
        ok(Command::new(&helper)
            .arg(&mount.address)
            .arg(mount.dir())
            .args(["-o", options]));
        let flags = mount.flags();
        for flag in ["nosuid", "nodev"] {
            assert_eq!(
                !flags.iter().any(|shown| shown == flag),
                is_trusted,
                "{options}: {flags:?}"
            );
        }
        ok(ferrite().arg("umount").arg(mount.dir()));
    }
}
