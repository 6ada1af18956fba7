//! Quotas of users: they count what a user owns, wherever it is, and what would exceed a limit changes nothing.

use ferrite_vfs::acl::DEFAULT;
use ferrite_vfs::{
    BadArgument, Cred, Ctx, FallocateMode, FsError, Ino, NewNode, QuotaAttribute, QuotaLimits, ROOT_INO, Result,
    SNAPSHOTS_NAME, SYSTEM, SetAttr, UserQuota, UserQuotas, XattrMode,
};

use super::{Case, Harness};
use crate::acl::acl;
use crate::refused;
use crate::rng::pattern;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "user quotas/what there is counts, and what is owned from then on",
        run: counts,
    },
    Case {
        name: "user quotas/limits hold and a refusal changes nothing",
        run: limits,
    },
    Case {
        name: "user quotas/another owner is another quota",
        run: owners,
    },
    Case {
        name: "user quotas/clones count and snapshots do not",
        run: clones,
    },
    Case {
        name: "user quotas/they count beside those of trees",
        run: trees,
    },
    Case {
        name: "user quotas/root sets them, users see their own",
        run: root_sets,
    },
];

const PAGE: u64 = 4096;
const USER: u32 = 1007;
const OTHER: u32 = 1008;

fn set(h: &Harness<'_>, uid: u32, bytes: u64, inodes: u64) -> Result<()> {
    let limits = QuotaLimits { bytes, inodes }.to_string();
    let name = QuotaAttribute::User(uid).name();
    h.fs()
        .setxattr(SYSTEM, ROOT_INO, &name, limits.as_bytes(), XattrMode::Any)
}

fn get(h: &Harness<'_>, uid: u32) -> Option<UserQuota> {
    match h.fs().getxattr(SYSTEM, ROOT_INO, &QuotaAttribute::User(uid).name()) {
        Ok(text) => Some(UserQuota::parse(&text).expect("a quota")),
        Err(FsError::NoAttribute) => None,
        Err(error) => panic!("the quota of user {uid}: {error}"),
    }
}

/// The quotas of all users, as far as the engine has them.
pub(super) fn all(h: &Harness<'_>) -> Vec<UserQuota> {
    let text = h.fs().getxattr(SYSTEM, ROOT_INO, &QuotaAttribute::Users(0).name());
    let text = text.unwrap_or_default();
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.filter_map(UserQuota::parse).collect()
}

/// Gives a user a quota; false if the engine has none.
fn begin(h: &Harness<'_>, bytes: u64, inodes: u64) -> bool {
    match set(h, USER, bytes, inodes) {
        Ok(()) => {
            let name = QuotaAttribute::User(USER).name();
            let text = h
                .fs()
                .getxattr(SYSTEM, ROOT_INO, &name)
                .expect("the quota that was set");
            if UserQuota::parse(&text).is_some() {
                return true;
            }
            // An attribute like any other.
            h.fs().removexattr(SYSTEM, ROOT_INO, &name).expect("removexattr");
        }
        Err(FsError::NotSupported(_)) => {}
        refused @ Err(_) => panic!("setting a quota: {refused:?}"),
    }
    h.skip("no quotas of users");
    false
}

fn used(h: &Harness<'_>, uid: u32) -> (u64, u64) {
    let quota = get(h, uid).expect("a quota");
    (quota.used_bytes, quota.used_inodes)
}

fn give(h: &Harness<'_>, ino: Ino, uid: u32) -> Result<()> {
    let set = SetAttr {
        uid: Some(uid),
        ..SetAttr::default()
    };
    h.fs().setattr(SYSTEM, ino, &set).map(drop)
}

/// A file of so many pages that the user owns.
fn owned(h: &Harness<'_>, path: &str, pages: usize) -> Ino {
    let ino = h.write(path, &pattern(1, pages * PAGE as usize));
    give(h, ino, USER).expect("chown");
    ino
}

fn counts(h: &Harness<'_>) {
    h.mkdir("dir");
    let first = owned(h, "dir/first", 5);
    h.fs()
        .setxattr(SYSTEM, first, b"user.note", &[7; 3000], XattrMode::Any)
        .expect("setxattr");
    h.write("dir/of_root", &pattern(2, 50_000));
    if !begin(h, 0, 0) {
        return;
    }
    assert_eq!(used(h, USER), (6 * PAGE, 1));
    owned(h, "second", 3);
    let link = h.fs().symlink(SYSTEM, ROOT_INO, b"link", b"target").expect("symlink");
    give(h, link.ino, USER).expect("chown");
    assert_eq!(used(h, USER), (9 * PAGE, 3));
    h.truncate(first, PAGE);
    assert_eq!(used(h, USER), (5 * PAGE, 3));
    h.fs().removexattr(SYSTEM, first, b"user.note").expect("removexattr");
    h.rename("dir/first", "moved");
    h.unlink("second");
    h.unlink("link");
    assert_eq!(used(h, USER), (PAGE, 1));
    h.fs()
        .removexattr(SYSTEM, ROOT_INO, &QuotaAttribute::User(USER).name())
        .expect("remove");
    assert_eq!(get(h, USER), None);
    h.write_at(first, PAGE, &pattern(3, 2 * PAGE as usize));
    assert!(begin(h, 0, 0));
    assert_eq!(used(h, USER), (3 * PAGE, 1), "it is counted anew");
}

fn limits(h: &Harness<'_>) {
    let dir = h.mkdir("dir");
    h.fs()
        .setattr(
            SYSTEM,
            dir,
            &SetAttr {
                mode: Some(0o777),
                ..SetAttr::default()
            },
        )
        .expect("chmod");
    if !begin(h, 10 * PAGE, 4) {
        return;
    }
    let file = owned(h, "dir/file", 10);
    let before = (h.stat("dir/file"), get(h, USER));
    let more = h.open(file).write_at(SYSTEM, 10 * PAGE, &pattern(2, PAGE as usize));
    assert_eq!(more, Err(FsError::OverQuota), "whoever writes");
    assert_eq!((h.stat("dir/file"), get(h, USER)), before);
    assert_eq!(
        h.open(file).write_at(SYSTEM, 0, &pattern(3, 8192)),
        Ok(8192),
        "in place"
    );
    let reserve = FallocateMode::Allocate { keep_size: true };
    let reserved = h.open(file).fallocate(SYSTEM, reserve, 10 * PAGE, 9 * PAGE);
    assert!(reserved.is_err(), "space behind the end escapes no quota");
    let user = Ctx::checked(Cred::new(USER, USER));
    let node = NewNode {
        kind: ferrite_vfs::FileKind::File,
        mode: 0o644,
        rdev: 0,
    };
    let make = |name: &[u8]| h.fs().mknod(&user, dir, name, &node).map(drop);
    for name in [b"a", b"b", b"c"] {
        make(name).expect("a file of the user");
    }
    refused!(make(b"d"), OverQuota);
    refused!(h.fs().symlink(&user, dir, b"d", b"target"), OverQuota);
    refused!(h.fs().lookup(SYSTEM, dir, b"d"), NotFound);
    h.file("dir/of_root");
    assert_eq!(used(h, USER), (10 * PAGE, 4));
    set(h, USER, 11 * PAGE, 0).expect("other limits");
    make(b"d").expect("there is no limit for inodes any more");
    h.write_at(file, 10 * PAGE, &pattern(2, PAGE as usize));
}

fn owners(h: &Harness<'_>) {
    if !begin(h, 8 * PAGE, 3) {
        return;
    }
    set(h, OTHER, 4 * PAGE, 0).expect("another user");
    let file = owned(h, "file", 6);
    h.fs()
        .setxattr(SYSTEM, file, b"user.note", &[7; 2000], XattrMode::Any)
        .expect("setxattr");
    let before = (h.stat("file"), all(h));
    refused!(give(h, file, OTHER), OverQuota);
    assert_eq!((h.stat("file"), all(h)), before);
    let smaller = SetAttr {
        uid: Some(OTHER),
        size: Some(3 * PAGE),
        ..SetAttr::default()
    };
    h.fs().setattr(SYSTEM, file, &smaller).expect("an owner and a size");
    assert_eq!((used(h, USER), used(h, OTHER)), ((0, 0), (4 * PAGE, 1)));
    give(h, file, 0).expect("to root");
    assert_eq!((used(h, USER), used(h, OTHER)), ((0, 0), (0, 0)));
    // Directories and links have owners, too.
    let dir = h.mkdir("dir");
    for ino in [dir, h.file("dir/a"), h.file("dir/b")] {
        give(h, ino, USER).expect("chown");
    }
    let third = h.file("dir/c");
    refused!(give(h, third, USER), OverQuota);
    assert_eq!(used(h, USER).1, 3);
}

fn clones(h: &Harness<'_>) {
    let dir = h.mkdir("dir");
    if !begin(h, 12 * PAGE, 10) {
        return;
    }
    owned(h, "dir/file", 5);
    let whole = used(h, USER);
    h.fs().clone_tree(SYSTEM, dir, ROOT_INO, b"clone").expect("a clone");
    assert_eq!(used(h, USER), (2 * whole.0, 2 * whole.1));
    let before = all(h);
    let again = h.fs().clone_tree(SYSTEM, dir, ROOT_INO, b"again");
    refused!(again, OverQuota);
    assert!(!h.exists("again"));
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while all(h) != before && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(all(h), before);
    let snapshots = h.fs().mkdir(SYSTEM, dir, SNAPSHOTS_NAME, 0o755).expect("mkdir").ino;
    h.fs().mkdir(SYSTEM, snapshots, b"one", 0o755).expect("a snapshot");
    assert_eq!(all(h), before, "snapshots");
    h.write_at(h.ino("dir/file"), 0, &pattern(9, 3 * PAGE as usize));
    h.fs().rmdir(SYSTEM, snapshots, b"one").expect("rmdir");
    h.rmdir("dir/.snapshots");
    assert_eq!(all(h), before, "without snapshots");
    // The directory of snapshots counts for nobody, with the lists that it inherits.
    give(h, dir, USER).expect("chown");
    let list = acl("u::rwx,u:1001:rwx,g::rwx,m::rwx,o::rwx");
    h.fs()
        .setxattr(SYSTEM, dir, DEFAULT, &list, XattrMode::Any)
        .expect("a default list");
    let (before, user) = (all(h), Ctx::checked(Cred::new(USER, USER)));
    h.fs().mkdir(&user, dir, SNAPSHOTS_NAME, 0o755).expect("mkdir");
    assert_eq!(all(h), before, "a directory for snapshots");
    h.rmdir("dir/.snapshots");
    assert_eq!(all(h), before, "without it");
}

fn trees(h: &Harness<'_>) {
    let dir = h.mkdir("dir");
    if !begin(h, 6 * PAGE, 0) {
        return;
    }
    let tree = QuotaAttribute::Tree.name();
    let limit = |bytes: u64| {
        let limits = QuotaLimits { bytes, inodes: 0 }.to_string();
        h.fs()
            .setxattr(SYSTEM, dir, &tree, limits.as_bytes(), XattrMode::Any)
            .expect("the quota of a tree");
    };
    limit(8 * PAGE);
    let file = owned(h, "dir/file", 5);
    let more = |pages: usize| {
        h.open(file)
            .write_at(SYSTEM, 5 * PAGE, &pattern(1, pages * PAGE as usize))
            .map(drop)
    };
    refused!(more(2), OverQuota);
    set(h, USER, 0, 0).expect("no limits");
    refused!(more(8), OverQuota);
    limit(20 * PAGE);
    more(8).expect("both have space");
    assert_eq!(used(h, USER), (13 * PAGE, 1));
}

fn root_sets(h: &Harness<'_>) {
    let dir = h.mkdir("dir");
    if !begin(h, 1 << 20, 5) {
        return;
    }
    let (user, other) = (Ctx::checked(Cred::new(USER, 7)), Ctx::checked(Cred::new(OTHER, 7)));
    let name = QuotaAttribute::User(USER).name();
    let fs = h.fs();
    refused!(
        fs.setxattr(&user, ROOT_INO, &name, b"limit_bytes=1", XattrMode::Any),
        NotPermitted
    );
    refused!(fs.removexattr(&user, ROOT_INO, &name), NotPermitted);
    refused!(fs.getxattr(&other, ROOT_INO, &name), NotPermitted);
    let users = QuotaAttribute::Users(0).name();
    refused!(fs.getxattr(&user, ROOT_INO, &users), NotPermitted);
    refused!(
        fs.setxattr(SYSTEM, ROOT_INO, &users, b"limit_bytes=1", XattrMode::Any),
        NotPermitted
    );
    let own = fs.getxattr(&user, dir, &name).expect("anywhere");
    assert_eq!(UserQuota::parse(&own).map(|quota| quota.limit_bytes), Some(1 << 20));
    refused!(fs.getxattr(SYSTEM, dir, &users), Invalid);
    let place = Err(FsError::Invalid(BadArgument::QuotaPlace));
    assert_eq!(fs.setxattr(SYSTEM, dir, &name, b"limit_bytes=1", XattrMode::Any), place);
    let text = fs.setxattr(SYSTEM, ROOT_INO, &name, b"10G", XattrMode::Any);
    assert_eq!(text, Err(FsError::Invalid(BadArgument::QuotaText)));
    // Nobody goes around them.
    assert!(
        fs.listxattr(SYSTEM, ROOT_INO).expect("listxattr").is_empty(),
        "they are listed"
    );
    let kept = [UserQuotas::NAME, b"0"].concat();
    assert!(fs.getxattr(SYSTEM, ROOT_INO, &kept).is_err());
    refused!(fs.setxattr(SYSTEM, ROOT_INO, &kept, b"", XattrMode::Any), NotPermitted);
    refused!(fs.removexattr(SYSTEM, ROOT_INO, &kept), NotPermitted);
    for uid in (2000..2250).rev() {
        set(h, uid, u64::from(uid) << 30, 0).expect("one of many");
    }
    let mut found = Vec::new();
    while let Ok(text) = fs.getxattr(
        SYSTEM,
        ROOT_INO,
        &QuotaAttribute::Users(found.last().map_or(0, |quota: &UserQuota| quota.uid + 1)).name(),
    ) && !text.is_empty()
    {
        let lines = text[..text.len() - 1].split(|&byte| byte == b'\n');
        found.extend(lines.map(|line| UserQuota::parse(line).expect("a quota")));
    }
    let uids: Vec<u32> = found.iter().map(|quota| quota.uid).collect();
    assert_eq!(uids, std::iter::once(USER).chain(2000..2250).collect::<Vec<_>>());
    assert_eq!(found[5].limit_bytes, u64::from(found[5].uid) << 30);
}
