//! Access control lists, as setfacl(1), getfacl(1), tar and other users meet them: what a shell prints on a mount is
//! what it prints on tmpfs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{TestPool, has_fuse, sh};

const SCRIPT: &str = r#"
as() { (exec setpriv --reuid=$1 --regid=$1 --groups=$2 -- sh -c "$3" 2>&1) || echo "user $1: failed"; }
each() { for f in $(find "$1" | sort); do getfacl -n "$f"; stat -c '%n %a' "$f"; done; }
umask 022
echo == files
mkdir d && echo content > d/f && chmod 755 d && each d
setfacl -m u:1001:r d/f && each d/f
chmod 604 d/f && each d/f
setfacl -m g:1005:rw,o::- d/f && each d/f
setfacl -m m::r d/f && each d/f
setfacl -x u:1001 d/f && each d/f
setfacl -b d/f && each d/f
setfacl -m u:1001:rwx d/f && setfacl -n -m u:1002:x,m::w d/f && each d/f
setfacl --set u::rw,g::r,o::- d/f && each d/f
setfacl -d -m u:1:r d/f 2>&1 || echo refused
ln -s f d/l && setfacl -h -m u:1:r d/l 2>&1 || true
echo == inheritance
setfacl -d -m u:1001:rwx,g:1005:rx d && each d
(umask 077; touch d/g; mkdir d/s; mkfifo d/p; touch d/s/deep; mkdir -m 700 d/s/t) && each d
install -m 640 /dev/null d/i && each d/i
(umask 0; mkdir -p e/x; touch e/x/y) && each e
setfacl -k d && mkdir d/plain && each d/plain
echo == copies
cp -a d copy && each copy
tar --acls -cf t.tar d && mkdir x && tar --acls -xpf t.tar -C x && each x
mv d/g d/s/g && ln d/s/g d/again && each d/s
chown 1000:1000 d/s/g && chmod 660 d/s/g && each d/s/g
echo == users
mkdir u && echo secret > u/f && chown -R 1000:1000 u && chmod 700 u && chmod 600 u/f
as 1001 1005 'cat u/f'
setfacl -m u:1001:x u && as 1001 1005 'cat u/f'
setfacl -m u:1001:r u/f && as 1001 1005 'cat u/f; ls u; echo more >> u/f; touch u/new'
setfacl -m u:1001:-,g:1005:rw u/f && as 1001 1005 'cat u/f; echo more >> u/f'
setfacl -m g:1005:rwx u && as 1002 1005 'cat u/f; echo more >> u/f; touch u/new; ls u; rm u/new'
as 1001 1005 'setfacl -m u:1001:rwx u/f' ; as 1001 1005 'chmod 777 u/f'
as 1000 1000 'setfacl -m m::r u/f; setfacl -m u:1009:rw u/f; chmod g-w u/f' ; each u
as 1009 1 'cat u/f; test -w u/f' ; setfacl -m u:1009:rx u && as 1009 1 'cat u/f; test -w u/f && echo writable; ls u'
echo '#!/bin/sh
echo ran' > u/run && chmod 700 u/run && setfacl -m u:1009:rx u/run && as 1009 1 './u/run'
chmod 2770 u && setfacl -m u:1:rx u && as 1000 1000 'setfacl -m u:2:rx u' ; each u
"#;

fn run(dir: &Path) -> String {
    fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    sh(dir, SCRIPT)
}

fn same_as_tmpfs(test: TestPool) {
    let peer = tempfile::tempdir_in("/dev/shm").unwrap();
    let probe = "touch f && setfacl -m u:1:r f 2> /dev/null && echo yes || echo no; rm -f f";
    if sh(peer.path(), probe).trim() != "yes" {
        eprintln!("skipped: the tmpfs here keeps no access control lists");
        return test.finish();
    }
    let expected = run(peer.path());
    fs::set_permissions(test.dir.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let found = run(&test.dir);
    let differing = expected
        .lines()
        .zip(found.lines())
        .find(|(expected, found)| expected != found);
    assert!(expected == found, "{differing:?}\n{found}");
    // The listing of the next mount is that of the last one.
    let listing = "getfacl -nR . | grep -v '^$'";
    let before = sh(&test.dir, listing);
    test.remount();
    assert_eq!(sh(&test.dir, listing), before);
    test.finish();
}

#[test]
fn on_a_pool_they_are_as_on_tmpfs() {
    if has_fuse() {
        same_as_tmpfs(TestPool::new("64M", &[]));
    }
}

#[test]
fn on_a_server_they_are_as_on_tmpfs() {
    if has_fuse() {
        same_as_tmpfs(TestPool::served("64M"));
    }
}
