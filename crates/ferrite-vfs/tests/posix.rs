//! The rules of [`ferrite_vfs::posix`], as tables: each row is a case that real programs rely on.

use ferrite_vfs::posix::{
    Access, Guarded, Inherited, check_name, inherit, kill_priv, may_access, may_delete, may_setattr, relatime_due,
};
use ferrite_vfs::{Attr, Cred, FileKind, FsError, SetAttr, SetTime, Timestamp};

use FileKind::{Directory, File};

fn attr(kind: FileKind, mode: u32, uid: u32, gid: u32) -> Attr {
    Attr {
        ino: 2,
        generation: 1,
        kind,
        mode,
        nlink: 1,
        uid,
        gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: Timestamp(0),
        mtime: Timestamp(0),
        ctime: Timestamp(0),
        btime: Timestamp(0),
        change: 0,
    }
}

fn member(uid: u32, gid: u32, group: u32) -> Cred {
    Cred::new(uid, gid).with_groups(&[group])
}

#[test]
fn new_inodes_inherit_group_and_setgid() {
    let user = Cred::new(1000, 100);
    let member = member(1000, 100, 50);
    let root = Cred::root();
    // Mode of the directory (its group is 50), creator, requested mode, is it a directory; resulting group and mode.
    for (dir, cred, mode, is_dir, (gid, bits)) in [
        (0o755, &user, 0o644, false, (100, 0o644)),
        (0o755, &user, 0o2755, true, (100, 0o2755)),
        (0o755, &user, 0o2755, false, (100, 0o2755)),
        (0o2755, &user, 0o644, false, (50, 0o644)),
        (0o2755, &user, 0o755, true, (50, 0o2755)),
        (0o2755, &user, 0o2755, false, (50, 0o755)),
        (0o2755, &member, 0o2755, false, (50, 0o2755)),
        (0o2755, &root, 0o2755, false, (50, 0o2755)),
        (0o2755, &user, 0o2644, false, (50, 0o2644)),
        (0o1755, &user, 0o100_644, false, (100, 0o644)),
    ] {
        let parent = attr(Directory, dir, 0, 50);
        assert_eq!(
            inherit(&parent, cred, mode, is_dir),
            Inherited { gid, mode: bits },
            "{mode:o} by {} in a directory {dir:o}",
            cred.uid
        );
    }
}

#[test]
fn privileges_are_killed_but_not_those_of_directories() {
    for (kind, mode, expected) in [
        (File, 0o4755, 0o755),
        (File, 0o4644, 0o644),
        (File, 0o2755, 0o755),
        (File, 0o2644, 0o2644),
        (File, 0o7777, 0o1777),
        (Directory, 0o6755, 0o6755),
    ] {
        assert_eq!(kill_priv(kind, mode, false), expected, "{kind:?} {mode:o}");
    }
    for (kind, mode, expected) in [
        (File, 0o2644, 0o644),
        (File, 0o6755, 0o755),
        (Directory, 0o2755, 0o2755),
    ] {
        assert_eq!(
            kill_priv(kind, mode, true),
            expected,
            "{kind:?} {mode:o} by another user"
        );
    }
}

#[test]
fn names_are_checked() {
    let long = [b'x'; 256];
    for name in [&b"a"[..], b"...", b".a", b" ", b"\xff\n", &long[..255]] {
        assert_eq!(check_name(name), Ok(()), "{}", name.escape_ascii());
    }
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
        assert!(
            matches!(check_name(name), Err(FsError::Invalid(_))),
            "{}",
            name.escape_ascii()
        );
    }
    assert_eq!(check_name(&long), Err(FsError::NameTooLong));
}

/// The class that fits best decides alone: an owner whom the owner bits refuse gets nothing from the other bits.
#[test]
fn access_goes_by_owner_then_group_then_others() {
    let (owner, group, other, root) = (Cred::new(1, 9), member(2, 9, 10), Cred::new(3, 9), Cred::root());
    let (r, w, x) = (Access::READ, Access::WRITE, Access::EXEC);
    for (kind, mode, cred, want, allowed) in [
        (File, 0o400, &owner, r, true),
        (File, 0o400, &owner, w, false),
        (File, 0o077, &owner, r, false),
        (File, 0o707, &group, r, false),
        (File, 0o040, &group, r, true),
        (File, 0o770, &other, r, false),
        (File, 0o004, &other, r, true),
        (File, 0o002, &other, w, true),
        (File, 0o001, &other, x, true),
        (Directory, 0o300, &owner, Access::WRITE_EXEC, true),
        (Directory, 0o200, &owner, Access::WRITE_EXEC, false),
        (File, 0o000, &other, Access::default(), true),
        (File, 0o000, &root, r, true),
        (File, 0o000, &root, w, true),
        (File, 0o666, &root, x, false),
        (File, 0o001, &root, x, true),
        (Directory, 0o000, &root, x, true),
    ] {
        let result = may_access(&Guarded::by_mode(attr(kind, mode, 1, 10)), cred, want);
        let expected = if allowed { Ok(()) } else { Err(FsError::AccessDenied) };
        assert_eq!(result, expected, "{kind:?} {mode:o}, uid {}, {want:?}", cred.uid);
    }
}

#[test]
fn sticky_directories_let_owners_delete() {
    let (denied, not_permitted) = (Err(FsError::AccessDenied), Err(FsError::NotPermitted));
    // Mode of the directory (owned by 1), owner of the entry, user that removes it.
    for (mode, victim, uid, expected) in [
        (0o777, 2, 3, Ok(())),
        (0o755, 3, 3, denied.clone()),
        (0o766, 3, 3, denied.clone()),
        (0o1777, 2, 3, not_permitted),
        (0o1777, 3, 3, Ok(())),
        (0o1777, 2, 1, Ok(())),
        (0o1777, 2, 0, Ok(())),
        (0o1755, 3, 3, denied),
    ] {
        let dir = attr(Directory, mode, 1, 1);
        let result = may_delete(
            &Guarded::by_mode(dir),
            &attr(File, 0o644, victim, 1),
            &Cred::new(uid, 9),
        );
        assert_eq!(result, expected, "{mode:o}, {victim}'s, by {uid}");
    }
}

#[test]
fn chmod_is_the_owners_and_setgid_the_members() {
    let chmod = |kind, cred: &Cred, mode| {
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        may_setattr(&Guarded::by_mode(attr(kind, 0o644, 1, 10)), cred, &set, false).map(|set| set.mode)
    };
    assert_eq!(chmod(File, &Cred::new(2, 10), 0o600), Err(FsError::NotPermitted));
    assert_eq!(chmod(File, &Cred::new(1, 9), 0o4755), Ok(Some(0o4755)));
    for kind in [File, Directory] {
        assert_eq!(chmod(kind, &Cred::new(1, 9), 0o6755), Ok(Some(0o4755)), "{kind:?}");
        assert_eq!(chmod(kind, &member(1, 9, 10), 0o6755), Ok(Some(0o6755)));
        assert_eq!(chmod(kind, &Cred::root(), 0o6755), Ok(Some(0o6755)));
    }
}

#[test]
fn files_are_not_given_away() {
    let owner = member(1, 10, 11);
    let chown = |cred: &Cred, uid, gid| {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        may_setattr(&Guarded::by_mode(attr(File, 0o4755, 1, 10)), cred, &set, false).map(|set| set.kill_priv)
    };
    let refused = Err(FsError::NotPermitted);
    for (cred, uid, gid, expected) in [
        (&owner, Some(2), None, refused.clone()),
        (&owner, Some(1), None, Ok(true)),
        (&owner, None, Some(11), Ok(true)),
        (&owner, None, Some(12), refused.clone()),
        (&owner, None, Some(10), Ok(true)),
        (&Cred::new(2, 10), None, Some(10), refused.clone()),
        (&Cred::new(2, 10), Some(2), None, refused),
        (&Cred::root(), Some(7), Some(7), Ok(true)),
    ] {
        assert_eq!(chown(cred, uid, gid), expected, "{uid:?}:{gid:?} by {}", cred.uid);
    }
}

#[test]
fn sizes_and_times_have_their_own_rules() {
    let writer = Cred::new(2, 10);
    let reader = Cred::new(3, 9);
    let owner = Cred::new(1, 9);
    let (now, then) = (Some(SetTime::Now), Some(SetTime::To(Timestamp(5))));
    let set = |cred: &Cred, set: SetAttr| may_setattr(&Guarded::by_mode(attr(File, 0o064, 1, 10)), cred, &set, false);
    let size = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    assert_eq!(set(&reader, size), Err(FsError::AccessDenied));
    assert_eq!(
        set(&owner, size),
        Err(FsError::AccessDenied),
        "his own bits refuse the owner"
    );
    assert_eq!(set(&writer, size).map(|set| set.kill_priv), Ok(true));
    assert_eq!(set(&Cred::root(), size).map(|set| set.kill_priv), Ok(false));
    let denied = Err(FsError::AccessDenied);
    let refused = Err(FsError::NotPermitted);
    for (cred, atime, mtime, expected) in [
        (&owner, then, then, Ok(())),
        (&owner, now, None, Ok(())),
        (&writer, now, now, Ok(())),
        (&writer, now, None, refused.clone()),
        (&writer, None, now, refused.clone()),
        (&writer, then, now, refused.clone()),
        (&writer, then, then, refused.clone()),
        (&reader, now, now, denied),
        (&reader, None, then, refused),
        (&Cred::root(), then, None, Ok(())),
    ] {
        let times = SetAttr {
            atime,
            mtime,
            ..SetAttr::default()
        };
        let result = set(cred, times).map(drop);
        assert_eq!(result, expected, "{atime:?} {mtime:?} by {}", cred.uid);
    }
}

#[test]
fn relatime_moves_what_is_old() {
    const DAY: i64 = 86_400_000_000_000;
    for (atime, mtime, ctime, now, due) in [
        (10, 5, 5, 20, false),
        (10, 10, 5, 20, true),
        (10, 5, 10, 20, true),
        (10, 11, 5, 20, true),
        (10, 5, 5, 9 + DAY, false),
        (10, 5, 5, 10 + DAY, true),
        (i64::MAX, 0, 0, i64::MIN, false),
    ] {
        let [atime_at, mtime_at, ctime_at, now_at] = [atime, mtime, ctime, now].map(Timestamp);
        assert_eq!(
            relatime_due(atime_at, mtime_at, ctime_at, now_at),
            due,
            "{atime} {mtime} {ctime} {now}"
        );
    }
}
