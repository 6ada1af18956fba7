//! Options of volumes: those of another kind of volume are refused by name, and read-only means read-only.

use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

use ferrite::{FileTimes, Fs, MountOptions, VolumeOptions};

use crate::common::{changes, create};

#[test]
fn a_pool_that_is_opened_read_only_is_not_changed() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    let fs = create(&path, 64 << 20);
    changes::prepare(&fs);
    fs.close().unwrap();
    let whole = std::fs::read(&path).unwrap();
    for options in [
        VolumeOptions::new().read_only(true),
        // The order does not matter.
        VolumeOptions::new().read_only(true).pool(MountOptions::default()),
        MountOptions::default().read_only(true).into(),
    ] {
        let fs = Fs::open_volume_with(&path, options).unwrap();
        changes::are_refused(&fs, "a pool");
        fs.close().unwrap();
    }
    assert!(std::fs::read(&path).unwrap() == whole, "not a byte of the file changed");
}

#[test]
fn options_are_read_by_their_names() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    create(&path, 64 << 20).close().unwrap();
    let pairs = [
        ("atime", "strict"),
        ("dir_atime", "false"),
        ("durability", "strict"),
        ("accept_power_loss", "true"),
        ("cleaner", "false"),
        ("clean_low_percent", "7"),
        ("clean_high_percent", "80"),
        ("read_only", "true"),
        ("read_only", "false"),
    ];
    let fs = Fs::open_volume_with(&path, VolumeOptions::parse(pairs).unwrap()).unwrap();
    fs.write("/f", "content").unwrap();
    let accessed = || fs.metadata("/f").unwrap().accessed().unwrap();
    // Later than any change: only `strict` sets it at the next read.
    let later = SystemTime::now() + Duration::from_secs(3600);
    fs.set_times("/f", FileTimes::new().set_accessed(later)).unwrap();
    fs.read("/f").unwrap();
    assert!(accessed() < later, "atime=strict");
    fs.close().unwrap();

    for (name, value, part) in [
        ("read_only", "yes", "`true` or `false`"),
        ("atime", "often", "`relative` or `never` or `strict`"),
        ("clean_low_percent", "300", "`300`"),
        ("merge_reads", "4", "option"),
        ("cow_only", "true", "option"),
    ] {
        let error = VolumeOptions::parse([(name, value)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains(part), "{text}");
    }
}

#[cfg(feature = "net")]
#[test]
fn options_of_clients_are_refused_for_pools() {
    use ferrite::{ClientOptions, Encrypt, Key};

    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool");
    create(&path, 64 << 20).close().unwrap();
    let key = Key::parse(&format!("ferrite-key-1:{}", "7".repeat(64))).unwrap();
    let new = ClientOptions::new;
    let second = Duration::from_secs(1);
    for (name, options) in [
        ("timeout", new().timeout(second)),
        ("connect_timeout", new().connect_timeout(second)),
        ("key", new().key(key)),
        ("encrypt", new().encrypt(Encrypt::Auto)),
        ("cache_bytes", new().cache_bytes(1 << 20)),
        ("changes_in_flight", new().changes_in_flight(1)),
        ("busy_poll", new().busy_poll(second)),
    ] {
        let error = Fs::open_volume_with(&path, options).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("the option `{name}` has no meaning")), "{text}");
        assert!(text.ends_with("; omit it"), "{text}");
        assert_eq!(text.matches(path.to_str().unwrap()).count(), 1, "{text}");
    }
    let both = VolumeOptions::new().client(new().timeout(second).encrypt(Encrypt::On));
    let text = Fs::open_volume_with(&path, both).unwrap_err().to_string();
    assert!(
        text.contains("the options `timeout`, `encrypt` have") && text.ends_with("; omit them"),
        "{text}"
    );
    Fs::open_volume_with(&path, new()).unwrap().close().unwrap();
}

#[cfg(feature = "nvme")]
#[test]
fn a_pool_on_devices_knows_few_options_and_refuses_changes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("pool.toml");
    std::fs::write(&path, "[metadata]\ndirectory = 'meta'\n[[data]]\ndevice = 'data'\n").unwrap();
    let data = std::fs::File::create(dir.path().join("data")).unwrap();
    data.set_len(64 << 20).unwrap();
    ferrite_nvme::make(&path, &ferrite_nvme::MakeOptions::default()).unwrap();
    let address = format!("nvme:{}", path.display());
    let fs = Fs::open_volume(&address).unwrap();
    changes::prepare(&fs);
    fs.close().unwrap();

    let read_only = || VolumeOptions::new().read_only(true);
    for options in [
        read_only(),
        read_only().pool(MountOptions::default().accept_power_loss(true)),
    ] {
        let fs = Fs::open_volume_with(&address, options).unwrap();
        changes::are_refused(&fs, "a pool on devices");
        fs.close().unwrap();
    }
    for (name, options) in [
        ("atime", MountOptions::default().atime(ferrite::AtimePolicy::Never)),
        ("durability", MountOptions::default().process_durability(true)),
        ("cleaner", MountOptions::default().cleaner(false)),
        ("accept_power_loss", MountOptions::default().accept_power_loss(true)),
    ] {
        let error = Fs::open_volume_with(&address, options).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("the option `{name}` has no meaning")), "{text}");
        assert!(text.contains(&address) && text.contains("omit it"), "{text}");
    }
}
