//! Quotas as users have them: by the command line, on mounts of pools and of servers, with programs that meet them.

use std::process::Command;

use crate::common::{TestPool, fails, ferrite, has_fuse, ok, sh};

fn quota(arguments: &[&str]) -> Command {
    let mut command = ferrite();
    command.arg("quota").args(arguments);
    command
}

fn programs_meet_limits(test: &TestPool) {
    let dir = &test.dir;
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    sh(
        dir,
        "mkdir -p t/sub; head -c 100000 /dev/urandom > t/sub/old; echo outside > outside",
    );
    ok(&mut quota(&["set", "--size", "2M", "--inodes", "20", &at("t")]));
    sh(
        dir,
        "test $(df --output=size -B1 t | tail -1) = 2097152; test $(df --output=itotal t/sub | tail -1) = 20
         test $(df --output=size -B1 . | tail -1) -gt 100000000
         ! dd if=/dev/zero of=t/large bs=64k count=64 conv=fsync 2> said; grep -q 'Disk quota exceeded' said
         test $(stat -c %s t/large) -lt 2097152; rm t/large
         head -c 1500000 /dev/urandom > t/large; ! fallocate -l 3M t/reserved 2> said; grep -q 'quota' said; rm -f t/reserved
         ! bash -c 'for n in $(seq 30); do : > t/sub/f$n || exit 1; done' 2> said; grep -q 'Disk quota exceeded' said
         rm t/sub/f*; cp t/large copy; mv outside t; mv t/sub/old .; test $(cat t/outside) = outside; test ! -e outside
         ! ln old t/linked 2> said; grep -q 'cross-device' said; mv t/sub t/sub2; rm -r t/sub2
         test $(df --output=used -B1 t | tail -1) -gt 1400000; rm said copy old",
    );
    let shown = ok(&mut quota(&["get", &at("t/large")]));
    assert!(shown.contains("t/large: 1.4 MiB of 2.0 MiB, 3 of 20 inodes"), "{shown}");
    sh(dir, "mkdir -p t/inner u");
    ok(&mut quota(&["set", "-i", "5", &at("t/inner")]));
    let listed = ok(&mut quota(&["list", "--json", dir.to_str().unwrap()]));
    let paths: Vec<_> = listed
        .lines()
        .map(|line| line.split('"').nth(3).unwrap().to_owned())
        .collect();
    assert_eq!(paths, [at("t"), at("t/inner")], "{listed}");
    let refused = |arguments: &[&str], code: i32, said: &str| {
        let failed = fails(&mut quota(arguments), code);
        assert!(failed.contains(said), "{failed}");
    };
    refused(&["get", &at("u")], 1, "has no quota");
    refused(&["remove", &at("u")], 1, "has no quota");
    refused(&["set", &at("u")], 2, "--size");
    refused(&["set", "--size", "0", &at("u")], 2, "out of range");
    refused(&["set", "--inodes", "0", &at("u")], 2, "quota remove");
    refused(&["set", "--inodes", "5", &at("t/large")], 1, "Not a directory");
    if rustix::process::geteuid().is_root() {
        let program = ferrite().get_program().to_str().unwrap().to_owned();
        let said = sh(
            dir,
            &format!(
                "chmod 755 . && chown nobody u && setpriv --reuid nobody --clear-groups {program} quota set -i 5 u 2>&1 \
                 || test $? = 1"
            ),
        );
        assert!(said.contains("only root"), "{said}");
    }
    test.remount();
    let shown = ok(&mut quota(&["get", "--json", &at("t")]));
    assert!(
        shown.contains("\"limit_bytes\":2097152") && shown.contains("\"used_inodes\":4"),
        "{shown}"
    );
    ok(&mut quota(&["remove", &at("t")]));
    sh(
        dir,
        "head -c 3M /dev/zero > t/large; ! : > t/inner/{1,2,3,4,5,6} 2> /dev/null; rm -r t u",
    );
}

#[test]
fn quotas_on_a_mounted_pool() {
    if has_fuse() {
        let test = TestPool::new("128M", &[]);
        programs_meet_limits(&test);
        quotas_are_reported(&test);
        test.finish();
    }
}

/// The daemon says of each quota how much is used.
fn quotas_are_reported(test: &TestPool) {
    let dir = test.path("reported");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("file"), vec![1; 10_000]).unwrap();
    ok(quota(&["set", "--size", "1M"]).arg(&dir));
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&dir).unwrap());
    let text = ok(ferrite().args(["exporter", "--once"]));
    let value = |name: &str| {
        let start = format!("{name}{{");
        let label = format!("inode=\"{inode}\"");
        let line = text
            .lines()
            .find(|line| line.starts_with(&start) && line.contains(&label))?;
        line.rsplit(' ').next()?.parse::<f64>().ok()
    };
    assert_eq!(value("ferrite_quota_limit_bytes"), Some(f64::from(1 << 20)), "{text}");
    assert_eq!(value("ferrite_quota_limit_inodes"), None);
    assert_eq!(value("ferrite_quota_used_inodes"), Some(2.0));
    let used = value("ferrite_quota_used_bytes").unwrap();
    assert!((12_288.0..=16_384.0).contains(&used), "{used}");
    ok(quota(&["remove"]).arg(&dir));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[cfg(feature = "nvme")]
#[test]
fn quotas_on_mounted_devices() {
    if has_fuse() {
        let test = TestPool::on_devices("256M");
        programs_meet_limits(&test);
        quotas_are_reported(&test);
        test.finish();
    }
}

#[test]
fn quotas_on_a_mounted_server() {
    if has_fuse() {
        let test = TestPool::served("128M");
        programs_meet_limits(&test);
        test.finish();
    }
}

/// In a volume that is not mounted; and where there are none.
#[test]
fn quotas_without_a_mount() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = folder.path().join("pool");
    ok(ferrite().args(["mkfs", "--size", "64M"]).arg(&pool));
    let volume = format!("pm:{}:/", pool.display());
    let dir = format!("{volume}dir");
    ok(ferrite().args(["mkdir", &dir]));
    ok(&mut quota(&["set", "--inodes", "2", &dir]));
    std::fs::write(folder.path().join("file"), "text").unwrap();
    let put = |name: &str| {
        let mut command = ferrite();
        command
            .arg("cp")
            .arg(folder.path().join("file"))
            .arg(format!("{dir}/{name}"));
        command
    };
    ok(&mut put("one"));
    let failed = fails(&mut put("two"), 1);
    assert!(failed.contains("disk quota exceeded"), "{failed}");
    assert!(ok(&mut quota(&["list", &volume])).contains("/dir: "));
    ok(&mut quota(&["remove", &dir]));
    ok(&mut put("two"));
    ok(ferrite().arg("fsck").arg(&pool));
    let failed = fails(
        &mut quota(&["set", "--inodes", "2", folder.path().to_str().unwrap()]),
        1,
    );
    assert!(failed.contains("has no quotas"), "{failed}");
}
