//! A pool behaves as its file's settings say.
use std::path::Path;

use ferrite_nvme::{MakeOptions, NvmeVolume, Options, make};
use ferrite_vfs::volume::Volume;
use ferrite_vfs::{NewFile, OpenMode, ROOT_INO, SYSTEM};

fn describe(path: &Path, setting: &str) {
    let text = format!("[metadata]\ndirectory = 'meta'\n{setting}\n[[data]]\ndevice = 'data'\n");
    std::fs::write(path, text).unwrap();
}

fn small_files(volume: &NvmeVolume) -> String {
    let info = volume.info().unwrap();
    let line = info.lines.into_iter().find(|line| line.name == "small files");
    line.unwrap().value
}

/// A file that is new, or rewritten from its beginning.
fn write(volume: &NvmeVolume, name: &str, len: usize) {
    let fs = volume.fs();
    let new = NewFile {
        mode: 0o644,
        open: OpenMode::read_write(),
        exclusive: false,
    };
    let created = fs.create(SYSTEM, ROOT_INO, name.as_bytes(), &new).unwrap();
    created.file.write_at(SYSTEM, 0, &vec![7; len]).unwrap();
}

#[test]
fn the_bound_of_small_files_is_a_setting() {
    let dir = tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempdir_in("/dev/shm")
        .unwrap();
    let path = dir.path().join("pool.toml");
    std::fs::File::create(dir.path().join("data"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    describe(&path, "");
    make(&path, &MakeOptions::default()).unwrap();
    let open = || NvmeVolume::open(&path, Options::default());
    let volume = open().unwrap();
    for (name, len) in [("a", 8000), ("b", 32 << 10), ("c", 33 << 10)] {
        write(&volume, name, len);
    }
    assert_eq!(
        small_files(&volume),
        "2 with 39.8 KiB in the metadata; files up to 32.0 KiB are"
    );
    volume.close().unwrap();
    drop(volume);

    // Existing content stays until it is written; new content follows the new bound.
    describe(&path, "small_files = '5000'");
    let volume = open().unwrap();
    write(&volume, "d", 8000);
    write(&volume, "e", 5000);
    assert_eq!(
        small_files(&volume),
        "3 with 44.7 KiB in the metadata; files up to 4.9 KiB are"
    );
    write(&volume, "a", 10);
    assert_eq!(
        small_files(&volume),
        "2 with 36.9 KiB in the metadata; files up to 4.9 KiB are"
    );
    let json: serde_json::Value = serde_json::from_str(&volume.info().unwrap().json).unwrap();
    assert_eq!(json["small_file_bytes_max"], 5000);
    volume.close().unwrap();
    drop(volume);

    describe(&path, "small_files = '1M'");
    let volume = open().unwrap();
    write(&volume, "f", 1 << 20);
    assert_eq!(
        small_files(&volume),
        "3 with 1.0 MiB in the metadata; files up to 1.0 MiB are"
    );
    volume.close().unwrap();
    drop(volume);

    describe(&path, "small_files = '2M'");
    let refused = open().err().unwrap().to_string();
    assert!(refused.contains("`small_files` is 2.0 MiB"), "{refused}");
}
