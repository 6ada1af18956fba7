//! The packages for Debian that `scripts/packages.sh` makes, of the programs under test: what they have, and that it
//! runs from there. `scripts/test-packages.sh` tries them in a fresh system.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{ok, sh};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts");

/// A folder like that of a release build, as far as there are such builds. `None` without the libraries, which a test
/// of this crate alone does not have.
fn built(into: &Path) -> Option<()> {
    let program = PathBuf::from(std::env::var_os("FERRITE_BIN")?);
    let library = PathBuf::from(std::env::var_os("FERRITE_C_LIBRARY")?);
    let extension = library.with_file_name("lib_ferrite.so");
    for (from, name) in [
        (&program, "ferrite"),
        (&library, "libferrite_c.a"),
        (&extension, "lib_ferrite.so"),
    ] {
        if !from.exists() {
            return None;
        }
        std::os::unix::fs::symlink(std::fs::canonicalize(from).unwrap(), into.join(name)).unwrap();
    }
    Some(())
}

#[test]
fn packages_have_what_they_promise_and_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let build = dir.path().join("build");
    std::fs::create_dir(&build).unwrap();
    let has_tools = Command::new("dpkg-shlibdeps").arg("--version").output().is_ok();
    if !has_tools || built(&build).is_none() {
        eprintln!("SKIPPED: packages need dpkg-dev, FERRITE_BIN and FERRITE_C_LIBRARY, as `make test` sets them");
        return;
    }
    let out = dir.path().join("packages");
    ok(Command::new(format!("{SCRIPTS}/packages.sh"))
        .args([&build, &out])
        .env("FERRITE_COMPRESSION", "none")
        .env(
            "PATH",
            format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()),
        ));
    let root = dir.path().join("root");
    for name in ["ferrite", "libferrite0", "libferrite-dev", "python3-ferrite"] {
        sh(&out, &format!("dpkg-deb -x {name}_*.deb {root}", root = root.display()));
        let fields = sh(&out, &format!("dpkg-deb -f {name}_*.deb Depends Description"));
        assert!(fields.contains("Depends: "), "{fields}");
    }
    let has = |path: &str| {
        let whole = root.join(path);
        assert!(
            std::fs::metadata(&whole).is_ok_and(|found| found.len() > 0),
            "no {path}"
        );
        whole
    };
    for path in [
        "usr/share/man/man1/ferrite-mkfs.1.gz",
        "usr/share/man/man3/ferrite_pread.3.gz",
        "usr/share/man/man3/libferrite.3.gz",
        "usr/lib/systemd/system/ferrite.service",
        "usr/lib/systemd/system/ferrite-snapshot@.service",
        "usr/lib/systemd/system/ferrite-snapshot@.timer",
        "usr/lib/udev/rules.d/60-ferrite.rules",
        "usr/share/bash-completion/completions/ferrite",
        "usr/include/ferrite.h",
        "usr/lib/python3/dist-packages/ferrite/__init__.py",
        "usr/share/doc/ferrite/copyright",
    ] {
        let found = has(path);
        let mode = std::fs::metadata(&found).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "{path}");
    }
    let version = ok(Command::new(has("usr/bin/ferrite")).arg("--version"));
    assert!(version.starts_with("ferrite 0."), "{version}");
    let text = sh(
        dir.path(),
        "PYTHONPATH=root/usr/lib/python3/dist-packages PYTHONDONTWRITEBYTECODE=1 python3 -c '
import ferrite, importlib.metadata
with ferrite.create(\"pool\", 64 << 20) as volume, volume.open(\"/text\", \"w\") as file:
    print(importlib.metadata.version(\"ferrite\"), file=file)
with ferrite.open(\"pool\") as volume:
    print(volume.open(\"/text\").read().decode())'",
    );
    assert_eq!(text.trim(), env!("CARGO_PKG_VERSION"));
}
