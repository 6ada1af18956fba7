//! Flags of files as users have them: chattr(1) and lsattr(1) on mounts of pools, devices and servers, and programs
//! that meet what flags forbid.

use crate::common::{TestPool, has_fuse, sh};

fn programs_meet_flags(test: &TestPool) {
    let dir = &test.dir;
    sh(
        dir,
        "mkdir d; echo one > log; echo kept > kept; echo in > d/file; cp log other
         lsattr log | grep -q -- '-- *log' || lsattr -d log
         before=$(stat -c %z kept); chattr +i kept; test \"$(stat -c %z kept)\" != \"$before\"
         chattr +a log; chattr +A other; chattr +i d
         test \"$(lsattr -d kept log other d | cut -d' ' -f1 | tr -d -- - | tr '\\n' ' ')\" = 'i a A i '",
    );
    sh(
        dir,
        "refused() { ! \"$@\" 2> said && grep -q 'not permitted' said || { echo \"$@: $(cat said)\"; exit 1; }; }
         refused rm -f kept; refused mv kept moved; refused ln kept linked; refused chmod 600 kept
         refused touch kept; refused setfattr -n user.x -v 1 kept; refused truncate -s 1 kept
         refused bash -c 'echo more >> kept'; refused bash -c 'echo more > kept'; refused cp other kept
         refused touch d/new; refused rm -f d/file; refused mkdir d/sub; refused mv other d/other
         echo changed > d/file; test $(cat kept) = kept
         echo two >> log; refused truncate -s 1 log; refused bash -c 'echo three > log'; refused rm -f log
         refused dd if=/dev/zero of=log bs=1 count=1 conv=notrunc status=none; refused mv log moved
         test \"$(cat log | tr '\\n' ' ')\" = 'one two '; touch log
         touch -a -d '2001-01-01' other; cat other > /dev/null; test $(stat -c %X other) = $(date -d 2001-01-01 +%s)
         rm -f said",
    );
    if rustix::process::geteuid().is_root() {
        sh(
            dir,
            "chmod 777 .; setpriv --reuid nobody --clear-groups bash -c 'echo own > own; chattr +Ad own
             ! chattr +i own 2> /dev/null; ! chattr +a own 2> /dev/null; ! chattr -i kept 2> /dev/null
             ! setfattr -n ferrite.flags -v i own 2> /dev/null; ! chattr +d kept 2> /dev/null'
             test \"$(lsattr own | cut -d' ' -f1 | tr -d -- -)\" = dA; rm own; chmod 755 .",
        );
    }
    test.remount();
    sh(
        dir,
        "test \"$(lsattr -d kept log d | cut -d' ' -f1 | tr -d -- - | tr '\\n' ' ')\" = 'i a i '
         ! rm -f kept 2> /dev/null; chattr -i kept d; chattr -a log; rm -r kept log d other
         python3 - <<-'END'
\t\timport errno, fcntl, struct
\t\topened = open('f', 'w+')
\t\tflags = lambda: struct.unpack('7I', fcntl.ioctl(opened, 0x801c581f, bytes(28)))[0]
\t\tassert flags() == 0
\t\tfcntl.ioctl(opened, 0x401c5820, struct.pack('7I', 0x40, 0, 0, 0, 0, 0, 0))
\t\tassert flags() == 0x40, flags()
\t\tfor flags in (0x40 | 0x200, 0x400):
\t\t    try:
\t\t        fcntl.ioctl(opened, 0x401c5820, struct.pack('7I', flags, 0, 0, 0, 0, 0, 0))
\t\t        raise SystemExit(f'{flags} was set')
\t\t    except OSError as error:
\t\t        assert error.errno in (errno.EOPNOTSUPP, errno.EINVAL), error
\t\tEND
         rm f",
    );
}

#[test]
fn flags_on_a_mounted_pool() {
    if has_fuse() {
        let test = TestPool::new("64M", &[]);
        programs_meet_flags(&test);
        test.finish();
    }
}

#[cfg(feature = "nvme")]
#[test]
fn flags_on_mounted_devices() {
    if has_fuse() {
        let test = TestPool::on_devices("256M");
        programs_meet_flags(&test);
        test.finish();
    }
}

#[test]
fn flags_on_a_mounted_server() {
    if has_fuse() {
        let test = TestPool::served("64M");
        programs_meet_flags(&test);
        test.finish();
    }
}
