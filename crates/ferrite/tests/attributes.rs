//! Attributes: by path, of a link itself, and by open file.

use std::fs::Permissions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::sync::Barrier;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::on_both;
use ferrite::{Access, Cred, FallocateMode, FileKind, FileTimes, Fs, NewNode, OpenOptions, XattrMode};

fn errno<T: std::fmt::Debug>(result: ferrite::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn times_are_set_as_asked_and_no_others() {
    let at = |seconds: u64| UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    let before_1970 = UNIX_EPOCH - Duration::new(1000, 1);
    on_both(|fs| {
        let start = SystemTime::now() - Duration::from_secs(2);
        fs.write("/f", "x").unwrap();
        fs.symlink("f", "/l").unwrap();
        let stat = || fs.metadata("/f").unwrap();
        assert!(
            stat().created().unwrap() >= start
                && stat().modified().unwrap() >= start
                && stat().accessed().unwrap() >= start
        );

        fs.set_times("/l", FileTimes::new().set_accessed(at(1)).set_modified(at(2)))
            .unwrap();
        assert_eq!((stat().accessed().unwrap(), stat().modified().unwrap()), (at(1), at(2)));
        assert!(stat().changed().unwrap() >= start, "the change of times is one");
        fs.set_times("/f", FileTimes::new().set_modified(before_1970)).unwrap();
        assert_eq!(
            (stat().accessed().unwrap(), stat().modified().unwrap()),
            (at(1), before_1970)
        );
        fs.set_times("/f", FileTimes::new().set_accessed_now()).unwrap();
        assert!(stat().accessed().unwrap() >= start && stat().modified().unwrap() == before_1970);

        fs.set_times_nofollow("/l", FileTimes::new().set_modified(at(3)))
            .unwrap();
        assert_eq!(fs.symlink_metadata("/l").unwrap().modified().unwrap(), at(3));
        assert_eq!(stat().modified().unwrap(), before_1970);

        // Through a handle, however it was opened.
        let file = fs.open_file("/f").unwrap();
        file.set_times(FileTimes::new().set_accessed(at(4)).set_modified_now())
            .unwrap();
        assert!(stat().accessed().unwrap() == at(4) && stat().modified().unwrap() >= start);
        file.set_modified(at(5)).unwrap();
        assert_eq!(file.metadata().unwrap().modified().unwrap(), at(5));
        // A time out of range becomes the nearest valid one.
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1 << 40)).unwrap();
        assert_eq!(
            stat().modified().unwrap(),
            UNIX_EPOCH + Duration::from_nanos(i64::MAX as u64)
        );

        // Any user with write permission may set the present time, only the owner other times.
        fs.set_mode("/f", 0o666).unwrap();
        let other = fs.as_user(Cred::new(1000, 1000));
        other.set_times("/f", FileTimes::now()).unwrap();
        assert_eq!(
            errno(other.set_times("/f", FileTimes::new().set_modified(at(6)))),
            libc::EPERM
        );
        let theirs = other.open_file("/f").unwrap();
        assert_eq!(errno(theirs.set_modified(at(6))), libc::EPERM);
        assert!(stat().modified().unwrap() >= start);
    });
}

#[test]
fn extended_attributes_of_files_links_and_handles() {
    on_both(|fs| {
        fs.write("/f", "").unwrap();
        fs.symlink("f", "/l").unwrap();
        fs.set_xattr("/l", "user.a", "1", XattrMode::Create).unwrap();
        assert_eq!(fs.get_xattr("/f", "user.a").unwrap(), b"1");
        assert_eq!(
            errno(fs.set_xattr("/f", "user.a", "2", XattrMode::Create)),
            libc::EEXIST
        );
        assert_eq!(
            errno(fs.set_xattr("/f", "user.b", "2", XattrMode::Replace)),
            libc::ENODATA
        );

        // The link's own: not the file's, and none of the namespace for user data.
        fs.set_xattr_nofollow("/l", "trusted.t", "link", XattrMode::Any)
            .unwrap();
        assert_eq!(fs.get_xattr_nofollow("/l", "trusted.t").unwrap(), b"link");
        assert_eq!(fs.list_xattrs_nofollow("/l").unwrap(), ["trusted.t"]);
        assert_eq!(errno(fs.get_xattr("/l", "trusted.t")), libc::ENODATA);
        assert_eq!(
            errno(fs.set_xattr_nofollow("/l", "user.a", "", XattrMode::Any)),
            libc::EPERM
        );
        assert_eq!(fs.list_xattrs("/l").unwrap(), ["user.a"]);
        fs.remove_xattr_nofollow("/l", "trusted.t").unwrap();
        assert!(fs.list_xattrs_nofollow("/l").unwrap().is_empty());

        let file = fs.open_file("/f").unwrap();
        fs.remove_file("/f").unwrap();
        file.set_xattr("user.h", [7, 0, 255], XattrMode::Any).unwrap();
        assert_eq!(file.get_xattr("user.h").unwrap(), [7, 0, 255]);
        let mut names = file.list_xattrs().unwrap();
        names.sort();
        assert_eq!(names, ["user.a", "user.h"]);
        file.remove_xattr("user.a").unwrap();
        assert_eq!(errno(file.remove_xattr("user.a")), libc::ENODATA);

        // A user cannot name attributes that it may not see.
        fs.write("/g", "").unwrap();
        fs.set_xattr("/g", "trusted.t", "root's", XattrMode::Any).unwrap();
        let other = fs.as_user(Cred::new(1000, 1000));
        assert!(other.list_xattrs("/g").unwrap().is_empty());
        assert_eq!(
            errno(other.open_file("/g").unwrap().get_xattr("trusted.t")),
            libc::ENODATA
        );
        assert_eq!(errno(other.set_xattr("/g", "user.x", "", XattrMode::Any)), libc::EACCES);
    });
}

#[test]
fn special_files_are_made_and_told_apart() {
    on_both(|fs| {
        let rdev = libc::makedev(8, 17);
        let node = |kind| NewNode {
            kind,
            mode: 0o640,
            rdev: rdev as u32,
        };
        let device = |kind| matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
        let other = fs.as_user(Cred::new(1000, 1000));
        fs.set_mode("/", 0o777).unwrap();
        for (name, kind) in [
            ("/fifo", FileKind::Fifo),
            ("/socket", FileKind::Socket),
            ("/char", FileKind::CharDevice),
            ("/block", FileKind::BlockDevice),
            ("/file", FileKind::File),
        ] {
            fs.mknod(name, &node(kind)).unwrap();
            let found = fs.metadata(name).unwrap();
            assert_eq!(
                (found.file_type().kind(), found.permissions().mode()),
                (kind, 0o640),
                "as given: there is no umask"
            );
            assert_eq!(found.mode(), kind.mode_bits() | 0o640, "as `st_mode`");
            let is = found.file_type();
            assert_eq!(
                [
                    is.is_fifo(),
                    is.is_socket(),
                    is.is_char_device(),
                    is.is_block_device(),
                    is.is_file()
                ],
                [
                    FileKind::Fifo,
                    FileKind::Socket,
                    FileKind::CharDevice,
                    FileKind::BlockDevice,
                    FileKind::File
                ]
                .map(|one| one == kind)
            );
            if device(kind) {
                assert_eq!((found.rdev(), libc::major(found.rdev())), (rdev, 8));
                assert_eq!(errno(other.mknod("/theirs", &node(kind))), libc::EPERM);
            }
            if kind != FileKind::File {
                assert_eq!(errno(fs.open_file(name)), libc::ENXIO);
            }
            assert_eq!(errno(fs.mknod(name, &node(kind))), libc::EEXIST);
        }
        for kind in [FileKind::Directory, FileKind::Symlink] {
            assert_eq!(errno(fs.mknod("/none", &node(kind))), libc::EINVAL);
        }
    });
}

#[test]
fn access_says_what_the_user_may() {
    on_both(|fs| {
        fs.write("/f", "").unwrap();
        fs.set_permissions("/f", Permissions::from_mode(0o100_754)).unwrap();
        fs.chown("/f", Some(1000), Some(2000)).unwrap();
        let may = |fs: &Fs, want: Access| match fs.access("/f", want) {
            Ok(()) => true,
            error => errno(error) != libc::EACCES,
        };
        let rights = |fs: &Fs| [Access::READ, Access::WRITE, Access::EXEC].map(|want| may(fs, want));
        assert_eq!(rights(fs), [true; 3]);
        assert_eq!(rights(&fs.as_user(Cred::new(1000, 1))), [true; 3]);
        assert_eq!(rights(&fs.as_user(Cred::new(1, 2000))), [true, false, true]);
        assert_eq!(rights(&fs.as_user(Cred::new(1, 1))), [true, false, false]);
        fs.access("/f", Access::default()).unwrap();
        assert_eq!(errno(fs.access("/none", Access::default())), libc::ENOENT);
    });
}

#[test]
fn an_open_file_has_its_attributes_set_whatever_its_name() {
    on_both(|fs| {
        fs.write("/f", "content").unwrap();
        fs.hard_link("/f", "/g").unwrap();
        let file = fs.open_file("/f").unwrap();
        fs.remove_file("/f").unwrap();
        fs.write("/f", "another").unwrap();
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        file.chown(Some(5), Some(6)).unwrap();
        let found = fs.metadata("/g").unwrap();
        let of_name = fs.metadata("/f").unwrap();
        assert_ne!((found.ino(), found.generation()), (of_name.ino(), of_name.generation()));
        assert_eq!(
            (found.permissions().mode(), found.uid(), found.gid(), found.nlink()),
            (0o600, 5, 6, 1)
        );
        assert_eq!(found.permissions().mode(), 0o600);
        assert_eq!((found.ino(), found.len()), (file.metadata().unwrap().ino(), 7));
        let another = fs.metadata("/f").unwrap();
        assert_eq!((another.permissions().mode(), another.uid()), (0o644, 0));
        assert_ne!(another.ino(), found.ino());

        // The user counts, not the mode of opening the file.
        let other = fs.as_user(Cred::new(1000, 1000));
        let theirs = other.open_file("/f").unwrap();
        assert_eq!(errno(theirs.set_mode(0o777)), libc::EPERM);
        assert_eq!(errno(theirs.chown(Some(1000), None)), libc::EPERM);
        // A chown clears the setuid of an executable file.
        fs.set_mode("/f", 0o4755).unwrap();
        theirs.metadata().unwrap();
        fs.chown("/f", Some(9), None).unwrap();
        assert_eq!(fs.metadata("/f").unwrap().permissions().mode(), 0o755);
    });
}

#[test]
fn files_are_truncated_by_path_as_far_as_the_user_may() {
    on_both(|fs| {
        fs.write("/f", "content").unwrap();
        fs.symlink("f", "/l").unwrap();
        fs.truncate("/l", 3).unwrap();
        assert_eq!(fs.read("/f").unwrap(), b"con");
        fs.truncate("/f", 5).unwrap();
        assert_eq!(fs.read("/f").unwrap(), b"con\0\0");
        let other = fs.as_user(Cred::new(1000, 1000));
        assert_eq!(errno(other.truncate("/f", 0)), libc::EACCES);
        assert_eq!(fs.metadata("/f").unwrap().len(), 5);
    });
}

#[test]
fn holes_are_found_without_moving_the_position() {
    const PAGE: u64 = 4096;
    on_both(|fs| {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .open(fs, "/f")
            .unwrap();
        // Too large to lie in the inode.
        file.write_all_at(&[1; PAGE as usize], 4 * PAGE).unwrap();
        file.set_len(10 * PAGE).unwrap();
        file.seek(SeekFrom::Start(7)).unwrap();
        assert_eq!(file.seek_data(0).unwrap(), 4 * PAGE);
        assert_eq!(file.seek_hole(4 * PAGE).unwrap(), 5 * PAGE);
        assert_eq!(file.seek_hole(0).unwrap(), 0);
        assert_eq!(errno(file.seek_data(5 * PAGE)), libc::ENXIO);
        assert_eq!(file.stream_position().unwrap(), 7);
        let blocks = file.metadata().unwrap().blocks();
        file.allocate(FallocateMode::PunchHole, 4 * PAGE, PAGE).unwrap();
        assert_eq!(errno(file.seek_data(0)), libc::ENXIO);
        assert_eq!(file.metadata().unwrap().blocks(), blocks - PAGE / 512);
    });
}

/// Aligned and not, within a file system and between two.
#[test]
fn ranges_are_copied() {
    const PAGE: u64 = 4096;
    on_both(|fs| {
        let content: Vec<u8> = (0..40_000u32).map(|n| (n * 7 / 5) as u8).collect();
        fs.write("/source", &content).unwrap();
        let other = Fs::memory();
        other.write("/source", &content).unwrap();
        for from in [fs, &other] {
            let source = from.open_file("/source").unwrap();
            for (source_offset, offset, len) in [
                (0, 0, u64::MAX),
                (0, 3 * PAGE, 9000),
                (100, PAGE + 100, 3 * PAGE),
                (1, 0, 8 * PAGE),
                (39_999, 0, 5),
                (50_000, 0, 5),
            ] {
                fs.write("/file", [9; 5000]).unwrap();
                let file = OpenOptions::new().write(true).open(fs, "/file").unwrap();
                let copied = file.copy_range(&source, source_offset, offset, len).unwrap();
                let copied_part = &content[(source_offset as usize).min(content.len())..];
                let copied_part = &copied_part[..copied_part.len().min(usize::try_from(len).unwrap_or(usize::MAX))];
                assert_eq!(copied, copied_part.len() as u64);
                let mut expected = vec![9; 5000];
                let end = offset as usize + copied_part.len();
                if !copied_part.is_empty() {
                    expected.resize(expected.len().max(end), 0);
                    expected[offset as usize..end].copy_from_slice(copied_part);
                }
                assert!(
                    fs.read("/file").unwrap() == expected,
                    "{source_offset} to {offset}, {len}"
                );
                assert_eq!(errno(source.copy_range(&file, 0, 0, 1)), libc::EBADF);
            }
        }
        let file = OpenOptions::new().read(true).write(true).open(fs, "/source").unwrap();
        assert_eq!(errno(file.copy_range(&file, 0, PAGE, 2 * PAGE)), libc::EINVAL);
    });
}

#[test]
fn clones_of_a_file_share_its_position() {
    on_both(|fs| {
        fs.write("/f", "0123456789").unwrap();
        let file = fs.open_file("/f").unwrap();
        let mut clone = file.try_clone().unwrap();
        let mut buffer = [0; 4];
        (&file).read_exact(&mut buffer).unwrap();
        clone.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"4567");
        fs.remove_file("/f").unwrap();
        drop(file);
        let mut rest = String::new();
        clone.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "89", "open as long as one clone is");

        // Threads that write at a shared position take turns.
        const WRITES: usize = 2000;
        let shared = fs.create_file("/shared").unwrap();
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            for byte in 0..4 {
                let (shared, start) = (&shared, &start);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..WRITES {
                        let mut file = shared;
                        assert_eq!(file.write(&[byte; 100]).unwrap(), 100);
                    }
                });
            }
        });
        let content = fs.read("/shared").unwrap();
        assert_eq!(content.len(), 4 * WRITES * 100);
        assert!(content.chunks(100).all(|record| record == [record[0]; 100]));
    });
}
