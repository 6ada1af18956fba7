//! Path walking and permissions of [`Vfs`], on the reference engine, as root and as others.

use std::sync::Arc;

use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::posix::Access;
use ferrite_vfs::{
    BadArgument, Cred, FsError, OpenFlags, RenameMode, Result, SetAttr, SetTime, Target, Timestamp, Unsupported, Vfs,
    XattrMode,
};

struct World {
    root: Vfs,
    alice: Vfs,
    bob: Vfs,
}

/// A tree with files of every user in it.
fn world() -> World {
    let fs = Arc::new(MemFs::new());
    let user = |uid| Vfs::new(fs.clone(), Cred::new(uid, uid));
    let world = World {
        root: user(0),
        alice: user(1000),
        bob: user(1001),
    };
    let root = &world.root;
    root.mkdir(b"/tmp", 0o1777).unwrap();
    root.mkdir(b"/closed", 0o700).unwrap();
    root.mkdir(b"/alice", 0o755).unwrap();
    let own = SetAttr {
        uid: Some(1000),
        gid: Some(1000),
        ..SetAttr::default()
    };
    root.setattr(b"/alice", &own, true).unwrap();
    file(&world.alice, b"/alice/private", 0o600).unwrap();
    file(&world.alice, b"/alice/public", 0o644).unwrap();
    file(root, b"/closed/secret", 0o666).unwrap();
    file(&world.alice, b"/tmp/hers", 0o666).unwrap();
    world
}

fn file(vfs: &Vfs, path: &[u8], mode: u32) -> Result<()> {
    vfs.open(
        path,
        &OpenFlags {
            write: true,
            create: true,
            exclusive: true,
            mode,
            ..OpenFlags::default()
        },
    )
    .map(drop)
}

fn read(vfs: &Vfs, path: &[u8]) -> Result<()> {
    vfs.open(
        path,
        &OpenFlags {
            read: true,
            ..OpenFlags::default()
        },
    )
    .map(drop)
}

fn write(vfs: &Vfs, path: &[u8]) -> Result<()> {
    vfs.open(
        path,
        &OpenFlags {
            write: true,
            ..OpenFlags::default()
        },
    )
    .map(drop)
}

#[test]
fn permission_bits_decide_who_reads_writes_and_searches() {
    let w = world();
    let denied = Err(FsError::AccessDenied);
    assert_eq!(read(&w.bob, b"/alice/private"), denied);
    assert_eq!(read(&w.alice, b"/alice/private"), Ok(()));
    assert_eq!(read(&w.root, b"/alice/private"), Ok(()));
    assert_eq!(read(&w.bob, b"/alice/public"), Ok(()));
    assert_eq!(write(&w.bob, b"/alice/public"), denied);
    assert_eq!(
        read(&w.bob, b"/closed/secret"),
        denied,
        "no search permission on the way"
    );
    assert_eq!(w.bob.stat(b"/closed/secret", true).map(drop), denied);
    assert_eq!(w.bob.stat(b"/closed", true).map(drop), Ok(()));
    assert_eq!(file(&w.bob, b"/alice/new", 0o644), denied);
    assert_eq!(w.bob.unlink(b"/alice/public"), denied);
    assert_eq!(w.bob.readdir(b"/closed", 0, &mut |_| true), denied);
    assert_eq!(w.bob.access(b"/alice/public", Access::READ), Ok(()));
    assert_eq!(
        w.root.access(b"/alice/public", Access::EXEC),
        denied,
        "root runs nothing that nobody may run"
    );
}

#[test]
fn sticky_directories_keep_names_to_their_owners() {
    let w = world();
    assert_eq!(w.bob.unlink(b"/tmp/hers"), Err(FsError::NotPermitted));
    assert_eq!(
        w.bob.rename(b"/tmp/hers", b"/tmp/mine", RenameMode::Replace),
        Err(FsError::NotPermitted)
    );
    file(&w.bob, b"/tmp/his", 0o666).unwrap();
    assert_eq!(
        w.bob.rename(b"/tmp/his", b"/tmp/hers", RenameMode::Replace),
        Err(FsError::NotPermitted)
    );
    assert_eq!(w.alice.unlink(b"/tmp/hers"), Ok(()));
    assert_eq!(w.root.unlink(b"/tmp/his"), Ok(()));
}

#[test]
fn owners_and_root_change_attributes_others_do_not() {
    let w = world();
    let chmod = |vfs: &Vfs, mode| {
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        vfs.setattr(b"/alice/public", &set, true).map(|attr| attr.mode)
    };
    assert_eq!(chmod(&w.bob, 0o777), Err(FsError::NotPermitted));
    assert_eq!(chmod(&w.alice, 0o4755), Ok(0o4755));
    let chown = |vfs: &Vfs, uid, gid| {
        vfs.setattr(
            b"/alice/public",
            &SetAttr {
                uid,
                gid,
                ..SetAttr::default()
            },
            true,
        )
        .map(|attr| attr.mode)
    };
    assert_eq!(
        chown(&w.alice, Some(1001), None),
        Err(FsError::NotPermitted),
        "files are not given away"
    );
    assert_eq!(
        chown(&w.alice, None, Some(1001)),
        Err(FsError::NotPermitted),
        "nor to groups one is not in"
    );
    assert_eq!(
        chown(&w.alice, Some(1000), Some(1000)),
        Ok(0o755),
        "a chown clears setuid"
    );
    let utimes = |vfs: &Vfs, time| {
        vfs.setattr(
            b"/tmp/hers",
            &SetAttr {
                atime: Some(time),
                mtime: Some(time),
                ..SetAttr::default()
            },
            true,
        )
        .map(drop)
    };
    assert_eq!(utimes(&w.bob, SetTime::Now), Ok(()), "whoever may write may say: now");
    assert_eq!(utimes(&w.bob, SetTime::To(Timestamp(5))), Err(FsError::NotPermitted));
    assert_eq!(utimes(&w.alice, SetTime::To(Timestamp(5))), Ok(()));
    let cut = |vfs: &Vfs| {
        vfs.setattr(
            b"/alice/public",
            &SetAttr {
                size: Some(0),
                ..SetAttr::default()
            },
            true,
        )
        .map(drop)
    };
    assert_eq!(cut(&w.bob), Err(FsError::AccessDenied));
    assert_eq!(cut(&w.alice), Ok(()));
}

#[test]
fn links_are_followed_so_far_and_no_further() {
    let w = world();
    let root = &w.root;
    root.symlink(b"alice/public", b"/link").unwrap();
    root.symlink(b"/loop2", b"/loop1").unwrap();
    root.symlink(b"loop1", b"/loop2").unwrap();
    root.symlink(b"/alice", b"/home").unwrap();
    root.symlink(b"made-through-link", b"/dangling").unwrap();
    assert_eq!(read(root, b"/link"), Ok(()));
    assert_eq!(read(root, b"/home/public"), Ok(()));
    assert_eq!(read(root, b"/loop1"), Err(FsError::Loop));
    assert_eq!(root.stat(b"/loop1", false).map(|attr| attr.size), Ok(6));
    assert_eq!(root.readlink(b"/link"), Ok(b"alice/public".to_vec()));
    let create = OpenFlags {
        write: true,
        create: true,
        mode: 0o644,
        ..OpenFlags::default()
    };
    root.open(b"/dangling", &create).unwrap();
    assert!(root.stat(b"/made-through-link", false).is_ok());
    let no_follow = OpenFlags {
        read: true,
        no_follow: true,
        ..OpenFlags::default()
    };
    assert_eq!(root.open(b"/link", &no_follow).map(drop), Err(FsError::Loop));
}

#[test]
fn odd_paths_mean_what_they_should() {
    let w = world();
    let root = &w.root;
    let stat = |path: &[u8]| root.stat(path, true).map(|attr| attr.ino);
    assert_eq!(stat(b""), Err(FsError::NotFound));
    assert_eq!(stat(b"/"), Ok(1));
    assert_eq!(stat(b"//alice/../alice/./"), stat(b"/alice"));
    assert_eq!(stat(b"/.."), Ok(1));
    assert_eq!(stat(b"/alice/public/"), Err(FsError::NotDirectory));
    assert_eq!(stat(b"/alice/public/x"), Err(FsError::NotDirectory));
    assert_eq!(stat(&[b'a'; 256]), Err(FsError::NameTooLong));
    assert_eq!(stat(&b"/a".repeat(2048)), Err(FsError::NameTooLong));
    assert_eq!(root.mkdir(b"/", 0o755).map(drop), Err(FsError::Exists));
    assert_eq!(root.mkdir(b"/new/", 0o755).map(drop), Ok(()));
    assert_eq!(root.rmdir(b"/new/."), Err(FsError::Invalid(BadArgument::DotOrDotDot)));
    assert_eq!(root.rmdir(b"/new/"), Ok(()));
    assert_eq!(root.unlink(b"/alice/public/"), Err(FsError::NotDirectory));
}

#[test]
fn attribute_namespaces_have_their_rules() {
    let w = world();
    let set = |vfs: &Vfs, path: &[u8], name: &[u8]| vfs.setxattr(path, name, b"v", XattrMode::Any);
    assert_eq!(set(&w.alice, b"/alice/public", b"user.x"), Ok(()));
    assert_eq!(set(&w.bob, b"/alice/public", b"user.x"), Err(FsError::AccessDenied));
    assert_eq!(
        set(&w.alice, b"/alice/public", b"trusted.x"),
        Err(FsError::NotPermitted)
    );
    assert_eq!(set(&w.root, b"/alice/public", b"trusted.x"), Ok(()));
    assert_eq!(
        set(&w.root, b"/alice/public", b"odd.x"),
        Err(FsError::NotSupported(Unsupported::AttributeNamespace))
    );
    assert_eq!(
        w.bob.listxattr(b"/alice/public"),
        Ok(vec![b"user.x".to_vec()]),
        "trusted names are root's to see"
    );
    assert_eq!(
        w.bob.getxattr(b"/alice/public", b"trusted.x"),
        Err(FsError::NoAttribute)
    );
}

#[test]
fn what_is_open_is_changed_by_the_rules_of_its_path() {
    let World { root, alice, bob } = world();
    let open = Target::Open(root.stat(b"/alice/private", true).unwrap().ino);
    let mode = |mode| SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    let set = |vfs: &Vfs| vfs.setxattr_of(open, b"user.x", b"1", XattrMode::Any);
    assert_eq!(bob.setattr_of(open, &mode(0o666)), Err(FsError::NotPermitted));
    assert_eq!(set(&bob), Err(FsError::AccessDenied));
    assert_eq!(alice.setattr_of(open, &mode(0o666)).unwrap().mode, 0o666);
    assert_eq!(set(&bob), Ok(()));
    assert_eq!(bob.getxattr_of(open, b"user.x").unwrap(), b"1");
    root.setxattr_of(open, b"trusted.t", b"1", XattrMode::Any).unwrap();
    assert_eq!(alice.listxattr_of(open).unwrap(), [b"user.x"]);
    assert_eq!(bob.removexattr_of(open, b"trusted.t"), Err(FsError::NotPermitted));
    bob.removexattr_of(open, b"user.x").unwrap();

    alice.symlink(b"private", b"/alice/link").unwrap();
    let link = Target::Link(b"/alice/link");
    assert!(matches!(
        alice.setattr_of(link, &mode(0o777)),
        Err(FsError::NotSupported(_))
    ));
    assert_eq!(
        root.setxattr_of(link, b"user.x", b"1", XattrMode::Any),
        Err(FsError::NotPermitted)
    );
    root.setxattr_of(link, b"trusted.l", b"1", XattrMode::Any).unwrap();
    assert_eq!(root.listxattr_of(link).unwrap(), [b"trusted.l"]);
    assert_eq!(root.listxattr(b"/alice/link").unwrap(), [b"trusted.t"]);
}

#[test]
fn names_go_from_one_open_directory_to_another_as_far_as_both_allow() {
    let World { root, alice, bob } = world();
    let ino = |path: &[u8]| root.stat(path, true).unwrap().ino;
    let (hers, tmp, closed) = (ino(b"/alice"), ino(b"/tmp"), ino(b"/closed"));
    let rename = |vfs: &Vfs, from, old: &[u8], to, new: &[u8]| {
        let base = vfs.at(from);
        base.rename_at(old, to, new, RenameMode::NoReplace)
    };
    assert_eq!(rename(&bob, hers, b"public", tmp, b"x"), Err(FsError::AccessDenied));
    assert_eq!(
        rename(&alice, hers, b"public", closed, b"x"),
        Err(FsError::AccessDenied)
    );
    assert_eq!(
        alice.at(hers).link_at(b"public", closed, b"x"),
        Err(FsError::AccessDenied)
    );
    assert_eq!(rename(&alice, hers, b"public", tmp, b"hers"), Err(FsError::Exists));
    rename(&alice, hers, b"public", tmp, b"x").unwrap();
    // The rules of sticky directories hold for handles, too; and an absolute path needs no start.
    assert_eq!(rename(&bob, tmp, b"x", tmp, b"y"), Err(FsError::NotPermitted));
    alice.at(tmp).link_at(b"x", hers, b"back").unwrap();
    rename(&alice, tmp, b"/tmp/x", hers, b"/tmp/y").unwrap();
    assert_eq!(ino(b"/tmp/y"), ino(b"/alice/back"));
    assert_eq!(root.stat(b"/alice/public", true), Err(FsError::NotFound));
}
