//! Exports of servers as the library opens them: the meaning of options for them.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use ferrite::volume::Address;
use ferrite::{AtimePolicy, ClientOptions, Durability, Encrypt, Fs, Key, MountOptions, OpenOptions, VolumeOptions};
use ferrite_server::{ExportOptions, Server, ServerOptions};
use ferrite_vfs::memfs::MemFs;

use crate::common::changes;

/// A server with two exports, `data` and, read-only, `frozen`, of the same files.
fn serve() -> (Server, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let export = |name: &str| ExportOptions::new(name).root_squash(false);
    let exports = vec![export("data"), export("frozen").read_only(true)];
    let engine = Arc::new(MemFs::new());
    let server = Server::start(vec![listener], vec![(engine, exports)], &ServerOptions::default()).unwrap();
    let fs = Fs::open_volume(format!("{address}/data")).unwrap();
    changes::prepare(&fs);
    (server, address)
}

#[test]
fn an_export_that_is_opened_read_only_is_not_changed() {
    let (_server, address) = serve();
    for (name, options) in [
        ("data", VolumeOptions::new().read_only(true)),
        ("data", MountOptions::default().read_only(true).into()),
        ("data", MountOptions::inspect().into()),
        ("data", VolumeOptions::parse([("read_only", "true")]).unwrap()),
        ("frozen", VolumeOptions::new()),
    ] {
        let export = format!("{address}/{name}");
        let fs = Fs::open_volume_with(&export, &options).unwrap();
        changes::are_refused(&fs, name);
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
    assert!(!volume.open(MountOptions::default()).unwrap().is_read_only());
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
        ("merge_read_entries", default().merge_read_entries(9)),
        ("cow_only", default().cow_only(true)),
        ("keep_orphans", default().keep_orphans(true)),
    ] {
        let error = Fs::open_volume_with(format!("{address}/data"), options).expect_err(name);
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
        let said = error.to_string();
        assert!(said.contains(name) && said.contains("omit"), "{said}");
    }
    Fs::open_volume_with(format!("{address}/data"), MountOptions::inspect()).unwrap();
}

/// A key is as good in the options as in the address, and no option is given in both.
#[test]
fn options_of_clients_reach_the_client() {
    let key = || ferrite_client::secure::Key::parse(&format!("ferrite-key-1:{}", "7".repeat(64)));
    let text = key().expect("a key").line();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}/data", listener.local_addr().unwrap());
    let exports = vec![ExportOptions::new("data").root_squash(false).keys(vec![key().unwrap()])];
    let engine = Arc::new(MemFs::new());
    let server = Server::start(vec![listener], vec![(engine, exports)], &ServerOptions::default()).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    std::fs::write(&file, &text).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let exposed = Key::read(&file).unwrap_err();
    assert_eq!(
        (exposed.path(), exposed.to_string().matches("key:").count()),
        (&*file, 1),
        "{exposed}"
    );
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(Key::read(&file).unwrap(), Key::parse(&text).unwrap());

    assert!(Fs::open_volume(&address).is_err(), "without the key");
    let with_key = ClientOptions::new().key(Key::read(&file).unwrap());
    let encryption = |options: ClientOptions| {
        let volume = Address::parse(&address).unwrap().open(options).unwrap();
        volume.fs().statfs(ferrite_vfs::SYSTEM).unwrap();
        let lines = volume.info().unwrap().lines;
        lines.into_iter().find(|line| line.name == "encryption").unwrap().value
    };
    assert_eq!(encryption(with_key.clone().encrypt(Encrypt::Off)), "off");
    assert_eq!(
        encryption(with_key.clone().encrypt(Encrypt::On).cache_bytes(1 << 20)),
        "on"
    );

    for (in_address, options) in [
        (format!("key={}", file.display()), with_key.clone()),
        ("encrypt=off".to_owned(), with_key.clone().encrypt(Encrypt::On)),
        ("cache=leased".to_owned(), with_key.clone().cache_bytes(1 << 20)),
    ] {
        let twice = Fs::open_volume_with(format!("{address}?{in_address}"), options).unwrap_err();
        assert_eq!(twice.kind(), std::io::ErrorKind::InvalidInput, "{twice}");
        assert!(twice.to_string().contains("give it once"), "{twice}");
    }

    // A call ends when its time is up.
    let pairs = [
        ("key", file.to_str().unwrap()),
        ("timeout_ms", "200"),
        ("connect_timeout_ms", "5000"),
        ("changes_in_flight", "3"),
        ("busy_poll_us", "0"),
    ];
    let fs = Fs::open_volume_with(&address, VolumeOptions::parse(pairs).unwrap()).unwrap();
    fs.write("/f", "content").unwrap();
    drop(server);
    let late = fs.write("/f", "other").unwrap_err();
    assert_eq!(late.raw_os_error(), Some(libc::ETIMEDOUT), "{late}");
}
