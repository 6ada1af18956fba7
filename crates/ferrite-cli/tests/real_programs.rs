//! Programs that know nothing of Ferrite, on real mounts of a pool, and of a server's export.

use std::path::Path;
use std::process::Command;

use crate::common::{TestPool, has_fuse, ok, sh, soak};

/// Runs `test`, then unmounts and checks the pool.
fn finished(pool: TestPool, test: impl Fn(&TestPool)) {
    test(&pool);
    pool.finish();
}

#[test]
fn git_clones_and_checks_a_repository_of_over_a_thousand_files() {
    if has_fuse() {
        finished(TestPool::new("256M", &[]), git);
    }
}

#[test]
fn on_a_server_git_clones_and_checks() {
    if has_fuse() {
        finished(TestPool::served("256M"), git);
    }
}

fn git(test: &TestPool) {
    sh(
        &test.dir,
        "export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t
         git init -q origin && cd origin
         for d in $(seq 30); do mkdir d$d; for f in $(seq 40); do echo \"$d $f $RANDOM\" > d$d/f$f; done; done
         git add . && git commit -qm one
         for f in $(seq 40); do echo more >> d1/f$f; done; git commit -qam two && git gc -q
         cd .. && git clone -q origin clone && cd clone && git fsck --strict && test -z \"$(git status --porcelain)\"
         test $(git ls-files | wc -l) = 1200",
    );
}

#[test]
fn an_overlay_keeps_its_changes_on_a_pool() {
    if has_fuse() {
        finished(TestPool::new("256M", &[]), overlay);
    }
}

#[test]
fn on_a_server_an_overlay_keeps_its_changes() {
    if has_fuse() {
        finished(TestPool::served("256M"), overlay);
    }
}

/// As container runtimes use a file system for the writable layer of an image. Where the kernel or the user may not
/// mount overlays, the test says so.
fn overlay(test: &TestPool) {
    let probe = Command::new("unshare").args(["-m", "true"]).status();
    let has_overlay = std::fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.contains("\toverlay"));
    if !has_overlay || !probe.is_ok_and(|status| status.success()) {
        eprintln!("skipped: overlays cannot be mounted here");
        return;
    }
    // The mount of the overlay lives in a namespace of its own, and ends with the shell.
    sh(
        &test.dir,
        "mkdir upper work && low=$(mktemp -d) && merged=$(mktemp -d) && cd /
         mkdir -p $low/etc/conf.d $low/usr/lib $low/var/cache/old && echo one > $low/etc/passwd
         for n in $(seq 200); do echo $n > $low/usr/lib/lib$n.so; done; echo c > $low/var/cache/old/c
         export upper=\"$OLDPWD/upper\" work=\"$OLDPWD/work\" low merged
         cat > $low.sh <<'EOF'
         set -e
         mount -t overlay overlay -o lowerdir=$low,upperdir=$upper,workdir=$work $merged
         cd $merged
         if test \"$1\" = change; then
             echo two >> etc/passwd && rm usr/lib/lib7.so && mv usr/lib/lib8.so usr/lib/lib8.so.old
             rm -r var/cache/old && mkdir var/cache/old && echo new > var/cache/old/n
             for n in $(seq 100 200); do rm usr/lib/lib$n.so; done
             ln etc/passwd etc/passwd.bak && ln -s ../etc usr/etc && chmod 600 etc/passwd
             cp -a usr/lib usr/lib64 && sync -f .
         fi
         test \"$(cat etc/passwd)\" = \"$(printf 'one\\ntwo')\" && test $(stat -c %a etc/passwd) = 600
         test ! -e usr/lib/lib7.so && test ! -e usr/lib/lib8.so && test $(cat usr/lib/lib8.so.old) = 8
         test \"$(ls var/cache/old)\" = n && test $(ls usr/lib | wc -l) = 98 && test $(ls usr/lib64 | wc -l) = 98
         test $(readlink usr/etc) = ../etc && test etc/passwd -ef etc/passwd.bak
         cd / && umount $merged
EOF
         unshare -m sh $low.sh change && unshare -m sh $low.sh
         test \"$(stat -c '%F %t:%T' $upper/usr/lib/lib7.so)\" = 'character special file 0:0'
         rm -r $low $low.sh $merged",
    );
}

#[test]
fn archives_and_copies_come_back_identical() {
    if has_fuse() {
        finished(TestPool::new("256M", &[]), archives);
    }
}

#[test]
fn on_a_server_archives_come_back_identical() {
    if has_fuse() {
        finished(TestPool::served("256M"), archives);
    }
}

fn archives(test: &TestPool) {
    // Everything an archive can hold; then out and in again three ways, compared by names, modes, owners, times,
    // links, attributes and content.
    sh(
        &test.dir,
        "mkdir -p src/deep/er && cd src
         head -c 300000 /dev/urandom > random; : > empty; printf x > one; head -c 128 /dev/zero > inline
         ln random hard; ln -s random soft; ln -s /nowhere dangling; mkfifo fifo
         truncate -s 50M sparse; printf end | dd of=sparse bs=1 seek=40000000 conv=notrunc status=none
         chmod 4711 one; chmod 1777 deep; chown 12:34 empty; setfattr -n user.note -v hello random
         touch -d '1999-12-31 23:59:59.987654321' random; touch -h -d '2001-01-01' soft; touch -d '2005-05-05' \
         deep/er deep",
    );
    let list = "find . -printf '%P %y %m %U %G %s %n %T@ %l\\n' | sort; find . -type f -exec sha256sum {} + | sort;
                (getfattr -R -d . 2>/dev/null || true) | sort";
    let expected = sh(&test.path("src"), list);
    for copy in [
        "mkdir tar && tar -C src --xattrs --sparse -cf - . | tar -C tar --xattrs -xpf -",
        "rsync -aHXS --modify-window=-1 src/ rsync",
        "cp -a src cp",
    ] {
        sh(&test.dir, copy);
        let name = copy
            .split([' ', '\n'])
            .find(|word| ["rsync", "cp"].contains(word))
            .unwrap_or("tar");
        let name = if copy.starts_with("mkdir") { "tar" } else { name };
        assert_eq!(sh(&test.path(name), list), expected, "{copy}");
        let used = sh(&test.path(name), "du -k sparse | cut -f1");
        assert!(
            used.trim().parse::<u32>().unwrap() < 1000,
            "{copy}: the hole is gone, {used} KiB"
        );
    }
}

#[test]
fn cargo_builds_with_its_target_folder_on_the_mount() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("512M", &[]);
    sh(
        &test.dir,
        "mkdir -p crate/src && cd crate
         printf '[package]\\nname = \"tiny\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n[workspace]\\n' > Cargo.toml
         echo 'fn main() { println!(\"built on ferrite\"); } #[test] fn t() {}' > src/main.rs
         unset CARGO_TARGET_DIR
         cargo run -q --offline | grep -q 'built on ferrite' && cargo test -q --offline >/dev/null",
    );
    test.finish();
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !has_fuse() {
        return;
    }
    let test = TestPool::new("512M", &[]);
    let seconds = if soak() { 60 } else { 10 };
    sh(
        &test.dir,
        &format!(
            "fio --name=verify --directory=. --size=48M --rw=randrw --bsrange=512-256k --bs_unaligned=1 --numjobs=2 \
             --verify=crc32c --verify_fatal=1 --do_verify=1 --ioengine=psync --runtime={seconds} --time_based=0 \
             --fallocate=none --output=/dev/null
             fio --name=map --directory=. --size=32M --rw=randwrite --bs=4k --ioengine=mmap --verify=crc32c \
             --verify_fatal=1 --fallocate=none --output=/dev/null"
        ),
    );
    test.finish();
}

#[test]
fn stress_ng_finds_nothing() {
    if has_fuse() {
        finished(TestPool::new("512M", &[]), |test| stress(test, 60));
    }
}

#[test]
fn on_a_server_stress_ng_finds_nothing() {
    if has_fuse() {
        finished(TestPool::served("512M"), |test| {
            stress(test, if soak() { 60 } else { 10 })
        });
    }
}

fn stress(test: &TestPool, seconds: u32) {
    sh(
        &test.dir,
        &format!(
            "stress-ng --temp-path . --timeout {seconds} --metrics-brief --verify --hdd 1 --hdd-bytes 32M --dentry 1 \
         --dir 1 --rename 1 --link 1 --symlink 1 --fallocate 1 --fallocate-bytes 32M --seek 1 \
         --utime 1 --xattr 1 --chmod 1 --fstat 1 --filename 1 --flock 1 --open 1 --sync-file 1 \
         --sync-file-bytes 16M 2>&1"
        ),
    );
}

#[test]
fn fsx_finds_nothing_in_200_000_operations() {
    if has_fuse() {
        finished(TestPool::new("64M", &[]), |test| fsx(test, 200_000));
    }
}

#[test]
fn on_a_server_fsx_finds_nothing() {
    if has_fuse() {
        finished(TestPool::served("64M"), |test| {
            fsx(test, if soak() { 200_000 } else { 10_000 })
        });
    }
}

/// Operations of one process of fsx.
const FSX_OPERATIONS: u32 = 5_000;

/// Reads, writes, truncates, holes and mappings of one file, mixed at random and checked byte by byte.
fn fsx(test: &TestPool, operations: u32) {
    let tool = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/ferrite/tools/bin/fsx"));
    let Some(fsx) = tool.filter(|tool| tool.exists()) else {
        panic!("no fsx: run `scripts/setup-debian.sh test`");
    };
    let config = test.pool.with_extension("toml");
    // An fallocate of nothing is EINVAL, which fsx takes for "not supported".
    std::fs::write(
        &config,
        "flen = 262144\n[opsize]\nmin = 1\n[weights]\ntruncate = 1\nfsync = 0.1\nfdatasync = 0.1\npunch_hole = 1\n\
         posix_fallocate = 1\ninvalidate = 0.1\n",
    )
    .unwrap();
    let seed = std::env::var("FERRITE_SEED").map_or_else(|_| std::process::id(), |seed| seed.parse().unwrap());
    eprintln!("FERRITE_SEED={seed}");
    // fsx unmaps nothing that it has read, and the kernel looks at all mappings of a file at each msync.
    for part in 0..operations.div_ceil(FSX_OPERATIONS) {
        let count = FSX_OPERATIONS.min(operations - part * FSX_OPERATIONS);
        ok(Command::new(&fsx)
            .args(["-N", &count.to_string(), "-S", &(seed + part).to_string(), "-P"])
            .arg(test.pool.parent().unwrap())
            .arg("-f")
            .arg(&config)
            .arg(test.dir.join("file")));
    }
}

#[test]
fn sqlite_in_both_modes() {
    if has_fuse() {
        finished(TestPool::new("256M", &[]), sqlite);
    }
}

#[test]
fn on_a_server_sqlite_in_both_modes() {
    if has_fuse() {
        finished(TestPool::served("256M"), sqlite);
    }
}

#[test]
fn past_the_kernels_cache_programs_work() {
    if has_fuse() {
        finished(TestPool::with("256M", "direct_io"), |test| {
            git(test);
            archives(test);
            sqlite(test);
            fsx(test, if soak() { 200_000 } else { 20_000 });
        });
    }
}

/// Over libfabric, through shared memory and its own TCP.
#[cfg(feature = "fabric")]
#[test]
fn on_a_server_over_a_fabric_programs_work() {
    for provider in ["shm", "tcp"] {
        if !has_fuse() || !crate::common::fabric::has(provider) {
            continue;
        }
        finished(TestPool::served_on_fabric("256M", provider), |test| {
            git(test);
            archives(test);
            sqlite(test);
            fsx(test, if soak() { 100_000 } else { 5_000 });
        });
    }
}

fn sqlite(test: &TestPool) {
    for mode in ["wal", "delete", "truncate"] {
        let said = sh(
            &test.dir,
            &format!(
                "sqlite3 {mode}.db \"pragma journal_mode={mode}; create table t(n integer primary key, v);
                 with recursive c(x) as (select 1 union all select x+1 from c where x < 20000)
                 insert into t select x, hex(randomblob(50)) from c;
                 update t set v = v || 'x' where n % 3 = 0; delete from t where n % 7 = 0; vacuum;
                 pragma integrity_check; select count(*) from t;\""
            ),
        );
        assert!(said.contains("ok\n17143"), "{mode}: {said}");
    }
}
