//! Directory handles: the same directory whatever happens to its name, and every operation relative to it.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirEntryExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::common::on_both;
use ferrite::{Access, Cred, Dir, FileKind, FileTimes, Fs, NewNode, OpenOptions, RenameMode, XattrMode};

fn names(listing: ferrite::ReadDir) -> Vec<String> {
    let mut names: Vec<String> = listing
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn operations_start_from_the_directory() {
    on_both(|fs| {
        fs.create_dir("/d").unwrap();
        let dir = fs.open_dir("/d").unwrap();
        assert_eq!(dir.path(), Path::new("/d"));
        dir.create_file("made").unwrap().write_all(b"content").unwrap();
        let mut text = String::new();
        dir.open_file("made").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        let log = dir.open_with("log", OpenOptions::new().append(true).create(true).mode(0o600));
        log.unwrap().append(b"line").unwrap();
        assert_eq!(dir.metadata("log").unwrap().permissions().mode(), 0o600);
        dir.write("whole", "w").unwrap();
        assert_eq!(dir.read("whole").unwrap(), b"w");
        assert_eq!(dir.copy("whole", "copy").unwrap(), 1);
        assert_eq!(dir.read_to_string("copy").unwrap(), "w");
        dir.create_dir("sub").unwrap();
        dir.create_dir_with("private", 0o700).unwrap();
        assert_eq!(dir.metadata("private").unwrap().permissions().mode(), 0o700);
        dir.create_dir_all("deep/er/still").unwrap();
        dir.symlink("whole", "link").unwrap();
        assert_eq!(dir.read_link("link").unwrap(), PathBuf::from("whole"));
        assert!(dir.symlink_metadata("link").unwrap().is_symlink());
        assert!(dir.metadata("link").unwrap().is_file());
        dir.mknod(
            "fifo",
            &NewNode {
                kind: FileKind::Fifo,
                mode: 0o640,
                rdev: 0,
            },
        )
        .unwrap();
        assert_eq!(dir.metadata("fifo").unwrap().file_type().kind(), FileKind::Fifo);
        dir.truncate("whole", 5).unwrap();
        assert_eq!(dir.read("whole").unwrap(), b"w\0\0\0\0");
        dir.set_mode("whole", 0o640).unwrap();
        dir.chown("whole", Some(7), None).unwrap();
        dir.lchown("link", Some(8), Some(9)).unwrap();
        let found = dir.metadata("whole").unwrap();
        assert_eq!((found.permissions().mode(), found.uid(), found.gid()), (0o640, 7, 0));
        assert_eq!(dir.symlink_metadata("link").unwrap().uid(), 8);
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
        dir.set_times("whole", FileTimes::new().set_modified(then)).unwrap();
        assert_eq!(dir.metadata("whole").unwrap().modified().unwrap(), then);
        dir.set_xattr("whole", "user.x", "value", XattrMode::Create).unwrap();
        assert_eq!(dir.get_xattr("whole", "user.x").unwrap(), b"value");
        assert_eq!(dir.list_xattrs("whole").unwrap(), ["user.x"]);
        dir.remove_xattr("whole", "user.x").unwrap();
        dir.access("whole", Access::READ).unwrap();
        assert!(dir.exists("whole") && !dir.try_exists("none").unwrap());

        let all = ["copy", "deep", "fifo", "link", "log", "made", "private", "sub", "whole"];
        assert_eq!(names(dir.entries().unwrap()), all);
        assert_eq!(names(dir.read_dir(".").unwrap()), all);
        assert_eq!(names(fs.read_dir("/d").unwrap()), all);
        dir.remove_file("copy").unwrap();
        dir.remove_dir("sub").unwrap();
        dir.remove_dir_all("deep").unwrap();
        assert_eq!(names(fs.read_dir("/").unwrap()), ["d"], "nothing was made elsewhere");
        // Out of it, as with openat(2).
        assert!(dir.exists("/d/made") && dir.exists("../d/made"));
    });
}

#[test]
fn a_directory_stays_the_same_one() {
    on_both(|fs| {
        fs.create_dir_all("/a/sub").unwrap();
        let dir = fs.open_dir("/a").unwrap();
        let sub = dir.open_dir("sub").unwrap();
        fs.rename("/a", "/moved").unwrap();
        fs.create_dir_all("/a/sub").unwrap();
        dir.write("f", "1").unwrap();
        sub.write("g", "2").unwrap();
        assert_eq!(fs.read("/moved/f").unwrap(), b"1");
        assert_eq!(fs.read("/moved/sub/g").unwrap(), b"2");
        // A listing's paths are valid for the handle that returned it, and so is a removal of everything below.
        dir.create_dir("sub/more").unwrap();
        for entry in dir.read_dir("sub").unwrap() {
            let path = entry.unwrap().path();
            assert!(path.starts_with("sub") && dir.exists(&path), "{path:?}");
        }
        for entry in sub.entries().unwrap() {
            assert!(sub.exists(entry.unwrap().path()));
        }
        dir.remove_dir_all("sub").unwrap();
        assert!(!fs.exists("/moved/sub") && fs.exists("/a/sub"));

        // Without a name: empty, and nothing can be made in it; and no other inode has the number.
        let ino = sub.dir_metadata().unwrap().ino();
        for n in 0..100 {
            fs.create_dir(format!("/new-{n}")).unwrap();
            assert_ne!(fs.metadata(format!("/new-{n}")).unwrap().ino(), ino);
        }
        assert_eq!(names(sub.entries().unwrap()), [""; 0]);
        assert_eq!(sub.dir_metadata().unwrap().nlink(), 0);
        assert_eq!(sub.write("x", "").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(sub.create_dir("x").unwrap_err().raw_os_error(), Some(libc::ENOENT));
    });
}

#[test]
fn names_go_from_directory_to_directory() {
    on_both(|fs| {
        fs.create_dir("/a").unwrap();
        fs.create_dir("/b").unwrap();
        let open = |path: &str| -> Dir { fs.open_dir(path).unwrap() };
        let (a, b) = (open("/a"), open("/b"));
        a.write("f", "1").unwrap();
        a.rename("f", &b, "g").unwrap();
        assert_eq!((a.exists("f"), b.read("g").unwrap()), (false, b"1".to_vec()));
        b.hard_link("g", &a, "h").unwrap();
        assert_eq!(a.metadata("h").unwrap().nlink(), 2);
        a.write("other", "2").unwrap();
        let refused = a.rename_with("other", &b, "g", RenameMode::NoReplace).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        a.rename_with("other", &b, "g", RenameMode::Exchange).unwrap();
        assert_eq!(
            (a.read("other").unwrap(), b.read("g").unwrap()),
            (b"1".to_vec(), b"2".to_vec())
        );
        // A directory whose way changed, below itself.
        fs.rename("/b", "/a/b").unwrap();
        let below = open("/").rename("a", &b, "a").unwrap_err();
        assert_eq!(below.raw_os_error(), Some(libc::EINVAL));
        b.rename("g", &b, "same").unwrap();
        assert_eq!(fs.read("/a/b/same").unwrap(), b"2");
    });
}

#[test]
fn a_handle_is_its_users() {
    on_both(|fs| {
        fs.create_dir_with("/private", 0o700).unwrap();
        fs.write("/private/f", "secret").unwrap();
        let other = fs.as_user(Cred::new(1000, 1000));
        let denied = |error: ferrite::Error| assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{error}");
        denied(other.open_dir("/private").unwrap_err());
        // The handle gives no right that the user lacks, except for the listing that root was allowed.
        let dir = fs.open_dir("/private").unwrap().as_user(Cred::new(1000, 1000));
        denied(dir.read("f").unwrap_err());
        denied(dir.write("new", "").unwrap_err());
        denied(dir.metadata("f").unwrap_err());
        assert_eq!(names(dir.entries().unwrap()), ["f"]);
        fs.set_mode("/private", 0o777).unwrap();
        dir.write("new", "").unwrap();
        assert_eq!(fs.metadata("/private/new").unwrap().uid(), 1000);
    });
}

#[test]
fn a_directory_is_freed_when_its_last_handle_goes() {
    on_both(|fs| {
        let free = |fs: &Fs| fs.statfs().unwrap().inodes_free;
        let before = free(fs);
        fs.create_dir("/d").unwrap();
        let dir = fs.open_dir("/d").unwrap();
        let clone = dir.clone();
        let listing = clone.entries().unwrap();
        fs.remove_dir("/d").unwrap();
        assert_eq!(free(fs), before - 1, "somebody has it open");
        drop((dir, clone));
        assert_eq!(free(fs), before - 1, "a listing has it open");
        drop(listing);
        assert_eq!(free(fs), before);
    });
}

#[test]
fn a_listing_with_attributes_has_those_of_each_entry() {
    on_both(|fs| {
        fs.write("/f", "content").unwrap();
        fs.create_dir_with("/d", 0o711).unwrap();
        fs.symlink("f", "/link").unwrap();
        for n in 0..300 {
            fs.write(format!("/d/{n}"), "x".repeat(n)).unwrap();
        }
        let root: Vec<_> = fs.read_dir_with_metadata("/").unwrap().map(Result::unwrap).collect();
        assert_eq!(root.len(), 3);
        for entry in root {
            let found = fs.symlink_metadata(entry.path()).unwrap();
            assert_eq!(entry.metadata().unwrap(), found);
            assert_eq!(
                (entry.ino(), entry.file_type().unwrap()),
                (found.ino(), found.file_type())
            );
        }
        let below = fs.open_dir("/d").unwrap().read_dir_with_metadata(".").unwrap();
        let lengths: u64 = below.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert_eq!(lengths, 299 * 300 / 2);
        // A plain listing has none; each entry asks for its own, in the directory that was listed.
        let mut plain: Vec<_> = fs.read_dir("/d").unwrap().map(Result::unwrap).collect();
        fs.rename("/d", "/moved").unwrap();
        fs.create_dir("/d").unwrap();
        plain.sort_unstable_by_key(|entry| entry.file_name().to_str().unwrap().parse::<u64>().unwrap());
        fs.write("/moved/7", "longer than it was").unwrap();
        fs.remove_file("/moved/8").unwrap();
        assert_eq!(plain[7].metadata().unwrap().len(), 18);
        let gone = plain[8].metadata().unwrap_err();
        assert_eq!((gone.kind(), gone.path()), (ErrorKind::NotFound, Path::new("/d/8")));
        assert_eq!(format!("{:?}", plain[8]), "DirEntry(\"/d/8\")");
        let sum: u64 = plain
            .iter()
            .filter_map(|entry| entry.metadata().ok())
            .map(|found| found.len())
            .sum();
        assert_eq!(sum, 299 * 300 / 2 - 7 - 8 + 18);
    });
}

/// Threads that create the same directories at once all succeed.
#[test]
fn the_same_directories_can_be_created_by_several_threads_at_once() {
    on_both(|fs| {
        for round in 0..100 {
            let path = format!("/{round}/a/b/c");
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| fs.create_dir_all(&path).unwrap());
                }
            });
        }
    });
}
