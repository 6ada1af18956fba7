//! Exports of servers as the library opens them: the meaning of options for them.

use std::net::TcpListener;
use std::sync::Arc;

use ferrite::volume::Address;
use ferrite::{AtimePolicy, Durability, FallocateMode, FileTimes, Fs, MountOptions, NewNode, OpenOptions, XattrMode};
use ferrite_server::{ExportOptions, Server, ServerOptions};
use ferrite_vfs::memfs::MemFs;

/// A server with two exports, `data` and, read-only, `frozen`, of the same files.
fn serve() -> (Server, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let export = |name: &str| ExportOptions::new(name).root_squash(false);
    let exports = vec![export("data"), export("frozen").read_only(true)];
    let engine = Arc::new(MemFs::new());
    let server = Server::start(vec![listener], vec![(engine, exports)], &ServerOptions::default()).unwrap();
    let fs = Fs::open_volume(format!("{address}/data")).unwrap();
    fs.create_dir("/dir").unwrap();
    fs.write("/file", "text").unwrap();
    fs.symlink("file", "/link").unwrap();
    fs.set_xattr("/file", "user.a", "value", XattrMode::Any).unwrap();
    (server, address)
}

type Try = fn(&Fs) -> ferrite::Result<()>;

/// One call for each kind of change.
const CHANGES: [(&str, Try); 20] = [
    ("remove_file", |fs| fs.remove_file("/file")),
    ("remove_dir", |fs| fs.remove_dir("/dir")),
    ("remove_dir_all", |fs| fs.remove_dir_all("/dir")),
    ("create_dir", |fs| fs.create_dir("/new")),
    ("create_file", |fs| fs.create_file("/new").map(drop)),
    ("truncating open", |fs| fs.create_file("/file").map(drop)),
    ("open for writing", |fs| {
        OpenOptions::new().write(true).open(fs, "/file").map(drop)
    }),
    ("open to append", |fs| {
        OpenOptions::new().append(true).open(fs, "/file").map(drop)
    }),
    ("open that makes", |fs| {
        OpenOptions::new().read(true).create(true).open(fs, "/new").map(drop)
    }),
    ("mknod", |fs| {
        let node = NewNode {
            kind: ferrite::FileKind::Fifo,
            mode: 0o600,
            rdev: 0,
        };
        fs.mknod("/new", &node)
    }),
    ("symlink", |fs| fs.symlink("file", "/new")),
    ("hard_link", |fs| fs.hard_link("/file", "/new")),
    ("rename", |fs| fs.rename("/file", "/new")),
    ("set_mode", |fs| fs.set_mode("/file", 0o600)),
    ("lchown", |fs| fs.lchown("/link", Some(1), Some(1))),
    ("set_times", |fs| fs.set_times("/file", FileTimes::now())),
    ("truncate", |fs| fs.truncate("/file", 1)),
    ("set_xattr", |fs| {
        fs.set_xattr("/file", "user.b", "value", XattrMode::Any)
    }),
    ("remove_xattr", |fs| fs.remove_xattr("/file", "user.a")),
    ("a change of an open file", |fs| {
        fs.open_file("/file")?
            .allocate(FallocateMode::Allocate { keep_size: false }, 0, 10)
    }),
];

#[test]
fn an_export_that_is_opened_read_only_is_not_changed() {
    let (_server, address) = serve();
    let read_only = MountOptions::default().read_only(true);
    for (name, options) in [
        ("data", read_only),
        ("data", MountOptions::look()),
        ("frozen", MountOptions::default()),
    ] {
        let export = format!("{address}/{name}");
        let fs = Fs::open_volume_with(&export, &options).unwrap();
        for (what, change) in CHANGES {
            let error = change(&fs).expect_err(what);
            let wanted = match what {
                // As on any file system, the descriptor is checked first.
                "a change of an open file" => [Some(libc::EROFS), Some(libc::EBADF)],
                _ => [Some(libc::EROFS), Some(libc::EROFS)],
            };
            assert!(wanted.contains(&error.raw_os_error()), "{name}: {what}: {error}");
        }
        assert_eq!(fs.read_to_string("/link").unwrap(), "text");
        assert_eq!(fs.read_dir("/").unwrap().count(), 3);
        let opened = OpenOptions::new().read(true).create(name == "data").open(&fs, "/file");
        opened.unwrap_or_else(|error| panic!("a file that is there: {error}"));
        let file = fs.open_file("/file").unwrap();
        file.lock_shared().unwrap();
        file.unlock().unwrap();
        // On an export for reading alone, an exclusive lock would block those who may write.
        let refused = file.lock().err().and_then(|error| error.raw_os_error());
        assert_eq!(refused, (name == "frozen").then_some(libc::EROFS), "{name}");
        let volume = Address::parse(&export).unwrap().open(&options).unwrap();
        assert!(volume.is_read_only(), "{name}");
    }
    let volume = Address::parse(format!("{address}/data")).unwrap();
    assert!(!volume.open(&MountOptions::default()).unwrap().is_read_only());
}

/// An option without effect is refused, and named.
#[test]
fn options_of_pools_are_refused() {
    let (_server, address) = serve();
    let default = MountOptions::default;
    for (name, options) in [
        ("atime", default().atime(AtimePolicy::Never)),
        ("dir_atime", default().dir_atime(false)),
        ("durability", default().durability(Durability::OnSync)),
        ("accept_power_loss", default().accept_power_loss(true)),
        ("cleaner", default().cleaner(false)),
        ("clean_low_percent", default().clean_low_percent(7)),
        ("clean_high_percent", default().clean_high_percent(80)),
        ("fold_read_entries", default().fold_read_entries(9)),
        ("cow_only", default().cow_only(true)),
        ("keep_orphans", default().keep_orphans(true)),
    ] {
        let error = Fs::open_volume_with(format!("{address}/data"), &options).expect_err(name);
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
        let said = error.to_string();
        assert!(said.contains(name) && said.contains("omit"), "{said}");
    }
    Fs::open_volume_with(format!("{address}/data"), &MountOptions::look()).unwrap();
}
