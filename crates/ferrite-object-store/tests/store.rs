//! The suite of `object_store` on pools and on the reference engine, and what this store promises beyond it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use ferrite::{Fs, VolumeOptions};
use ferrite_object_store::{FerriteStore, RESERVED};
use futures_util::TryStreamExt;
use object_store::integration as suite;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyOptions, Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    RenameOptions, RenameTargetMode, UpdateVersion,
};

/// A pool in memory, in a file of tmpfs that ends with this value.
struct Pool {
    fs: Fs,
    dir: tempfile::TempDir,
}

impl Pool {
    fn new() -> Pool {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let fs = Fs::create(dir.path().join("pool"), 256 << 20).unwrap();
        Pool { fs, dir }
    }
}

async fn text(store: &FerriteStore, location: &Path) -> String {
    let bytes = store.get(location).await.unwrap().bytes().await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn locations(store: &FerriteStore) -> Vec<String> {
    let mut found: Vec<String> = store
        .list(None)
        .map_ok(|meta| meta.location.to_string())
        .try_collect()
        .await
        .unwrap();
    found.sort();
    found
}

/// All of the suite that concerns a store of this kind.
async fn passes_the_suite(store: FerriteStore) {
    suite::put_get_delete_list(&store).await;
    suite::put_get_attributes(&store).await;
    suite::get_opts(&store).await;
    suite::put_opts(&store, true).await;
    suite::list_uses_directories_correctly(&store).await;
    suite::list_with_delimiter(&store).await;
    suite::list_with_offset_exclusivity(&store).await;
    suite::rename_and_copy(&store).await;
    suite::copy_if_not_exists(&store).await;
    suite::copy_rename_nonexistent_object(&store).await;
    suite::stream_get(&store).await;
    suite::multipart(&store, &store).await;
    suite::multipart_with_opts(&store, &store).await;
    suite::multipart_put_part_out_of_order(&store, &store).await;
    suite::multipart_race_condition(&store, true).await;
    suite::multipart_out_of_order(&store).await;
    let missing = Path::from("nothing/here");
    let error = suite::get_nonexistent_object(&store, Some(missing)).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    // Neither uploads nor their parts are left.
    assert_eq!(store.remove_uploads(Duration::ZERO).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_passes_the_suite() {
    let pool = Pool::new();
    passes_the_suite(FerriteStore::new(pool.fs.clone())).await;
    pool.fs.close().unwrap();
    // The objects are there when the pool is opened again.
    let path = pool.dir.path().join("pool");
    let fs = Fs::open_volume_with(&path, VolumeOptions::new().read_only(true)).unwrap();
    let store = FerriteStore::new(fs.clone());
    assert!(!locations(&store).await.is_empty());
    let refused = store.put(&Path::from("new"), "x".into()).await.unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_the_reference_engine_passes_the_suite() {
    let fs = Fs::memory();
    fs.write("/outside", "untouched").unwrap();
    passes_the_suite(FerriteStore::rooted(fs.clone(), "/objects/here")).await;
    assert_eq!(fs.read_to_string("/outside").unwrap(), "untouched");
    assert_eq!(fs.read_dir("/").unwrap().count(), 2);
}

#[tokio::test]
async fn objects_are_files() {
    let fs = Fs::memory();
    let store = FerriteStore::new(fs.clone());
    let place = Path::parse("a/b c/d%20e").unwrap();
    store.put(&place, "content".into()).await.unwrap();
    assert_eq!(
        fs.read_to_string("/a/b c/d%20e").unwrap(),
        "content",
        "names are as they are"
    );
    fs.write("/a/by-hand", "text").unwrap();
    fs.symlink("by-hand", "/a/link").unwrap();
    let no_text = OsStr::from_bytes(b"/a/\xff");
    fs.write(no_text, "no object can have this name").unwrap();
    assert_eq!(locations(&store).await, ["a/b c/d%20e", "a/by-hand"]);
    assert_eq!(text(&store, &Path::from("a/by-hand")).await, "text");
    for nothing in ["a", "a/link", "a/by-hand/below", "none"] {
        let place = Path::from(nothing);
        for error in [
            store.head(&place).await.unwrap_err(),
            store.delete(&place).await.unwrap_err(),
            store.rename(&place, &Path::from("z")).await.unwrap_err(),
            store.copy(&place, &Path::from("z")).await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::NotFound { .. }), "{nothing}: {error}");
        }
    }
    assert!(
        store.put(&Path::from("a"), "x".into()).await.is_err(),
        "a prefix is no object"
    );
    // Removing an object removes the directories that it leaves empty, and no others.
    store.delete(&place).await.unwrap();
    assert!(!fs.exists("/a/b c") && fs.exists("/a"));
}

#[tokio::test]
async fn the_reserved_directory_is_not_part_of_the_store() {
    let fs = Fs::memory();
    let store = FerriteStore::new(fs.clone());
    store.put(&Path::from("x"), "1".into()).await.unwrap();
    assert!(fs.exists(format!("/{RESERVED}")));
    for location in [RESERVED.to_owned(), format!("{RESERVED}/x")] {
        let place = Path::from(location);
        assert!(matches!(
            store.put(&place, "x".into()).await,
            Err(Error::NotSupported { .. })
        ));
        assert!(matches!(store.get(&place).await, Err(Error::NotSupported { .. })));
        let renamed = store.rename(&Path::from("x"), &place).await;
        assert!(matches!(renamed, Err(Error::NotSupported { .. })));
        assert!(
            store
                .list(Some(&place))
                .try_collect::<Vec<_>>()
                .await
                .unwrap()
                .is_empty()
        );
    }
    assert_eq!(locations(&store).await, ["x"]);
    let top = store.list_with_delimiter(None).await.unwrap();
    assert!(top.common_prefixes.is_empty() && top.objects.len() == 1);
    // Deeper, the name is a name.
    let deeper = Path::from(format!("a/{RESERVED}"));
    store.put(&deeper, "2".into()).await.unwrap();
    assert_eq!(text(&store, &deeper).await, "2");
}

#[tokio::test]
async fn a_rename_moves_no_data_and_a_copy_keeps_attributes() {
    let fs = Fs::memory();
    let store = FerriteStore::new(fs.clone());
    let (one, two, three) = (Path::from("d/one"), Path::from("e/two"), Path::from("three"));
    let mut attributes = Attributes::new();
    attributes.insert(Attribute::ContentType, "text/plain".into());
    store
        .put_opts(&one, "content".into(), attributes.clone().into())
        .await
        .unwrap();
    let ino = |path: &str| fs.metadata(path).unwrap().ino();
    let before = ino("/d/one");
    store.rename(&one, &two).await.unwrap();
    assert_eq!(ino("/e/two"), before);
    assert!(!fs.exists("/d"), "its directory became empty");
    store.copy_opts(&two, &three, CopyOptions::new()).await.unwrap();
    assert_ne!(ino("/three"), before);
    assert_eq!(store.get(&three).await.unwrap().attributes, attributes);
    let create = RenameOptions::new().with_target_mode(RenameTargetMode::Create);
    let taken = store.rename_opts(&two, &three, create).await.unwrap_err();
    assert!(matches!(taken, Error::AlreadyExists { .. }), "{taken}");
    assert_eq!(locations(&store).await, ["e/two", "three"]);
    store.rename(&two, &two).await.unwrap();
    assert_eq!(text(&store, &two).await, "content");
}

/// Two stores over one file system, as two processes have them: of the updates of one version, one succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditional_puts_are_exact_between_stores() {
    let pool = Pool::new();
    let stores = [0, 1].map(|_| FerriteStore::new(pool.fs.clone()));
    let place = Path::from("d/counter");
    stores[0].put(&place, "0".into()).await.unwrap();
    let tasks = [0, 1, 2, 3].map(|task| {
        let (store, place) = (stores[task % 2].clone(), place.clone());
        tokio::spawn(async move {
            let mut done = 0;
            while done < 25 {
                let found = store.get(&place).await.unwrap();
                let version = UpdateVersion {
                    e_tag: found.meta.e_tag.clone(),
                    version: None,
                };
                let number: u64 = String::from_utf8(found.bytes().await.unwrap().to_vec())
                    .unwrap()
                    .parse()
                    .unwrap();
                let next = (number + 1).to_string();
                match store
                    .put_opts(&place, next.into(), PutMode::Update(version).into())
                    .await
                {
                    Ok(_) => done += 1,
                    Err(Error::Precondition { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        })
    });
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(text(&stores[1], &place).await, "100");
    let none = UpdateVersion {
        e_tag: None,
        version: None,
    };
    let vague = stores[0]
        .put_opts(&place, "x".into(), PutMode::Update(none).into())
        .await;
    assert!(vague.unwrap_err().to_string().contains("e_tag"));
}

/// Puts and removals in one directory, which comes and goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_that_come_and_go_lose_no_put() {
    let pool = Pool::new();
    let store = FerriteStore::new(pool.fs.clone());
    let tasks = [0, 1, 2, 3].map(|task| {
        let (store, place) = (store.clone(), Path::from(format!("a/b/c/{task}")));
        tokio::spawn(async move {
            for _ in 0..50 {
                store.put(&place, "x".into()).await.unwrap();
                store.delete(&place).await.unwrap();
            }
        })
    });
    for task in tasks {
        task.await.unwrap();
    }
    assert!(!pool.fs.exists("/a"));
}

#[tokio::test]
async fn an_upload_that_does_not_end_well_leaves_no_object() {
    let fs = Fs::memory();
    let store = FerriteStore::new(fs.clone());
    let place = Path::from("big");
    let left = || fs.read_dir(format!("/{RESERVED}")).unwrap().count();
    store.put(&Path::from("other"), "x".into()).await.unwrap();
    let usual = left();

    let mut upload = store.put_multipart(&place).await.unwrap();
    upload.put_part("part".into()).await.unwrap();
    upload.abort().await.unwrap();
    assert_eq!(left(), usual, "aborted");
    assert!(upload.complete().await.is_err() && upload.put_part("x".into()).await.is_err());

    let mut upload = store.put_multipart(&place).await.unwrap();
    drop(upload.put_part("never awaited".into()));
    let error = upload.complete().await.unwrap_err();
    assert!(error.to_string().contains("0 of 13 bytes"), "{error}");

    let mut upload = store.put_multipart(&place).await.unwrap();
    upload.put_part("part".into()).await.unwrap();
    drop(upload);
    // As a process that was killed leaves it.
    fs.write(format!("/{RESERVED}/0123456789abcdef"), "part").unwrap();
    assert_eq!(store.remove_uploads(Duration::from_secs(3600)).await.unwrap(), 0);
    assert!(store.remove_uploads(Duration::ZERO).await.unwrap() >= 1);
    while left() > usual {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(locations(&store).await, ["other"]);

    use object_store::multipart::MultipartStore;
    let id = store.create_multipart(&place).await.unwrap();
    MultipartStore::put_part(&store, &place, &id, 0, "x".into())
        .await
        .unwrap();
    store.abort_multipart(&place, &id).await.unwrap();
    assert_eq!(left(), usual, "aborted");
    let escape = "../other".to_owned();
    let escaped = store.abort_multipart(&place, &escape).await.unwrap_err();
    assert!(escaped.to_string().contains("not an upload"), "{escaped}");
    let unknown = MultipartStore::put_part(&store, &place, &id, 1, "x".into()).await;
    assert!(unknown.is_err(), "an upload that has ended takes no part");
}

/// A reader keeps the version that it opened.
#[tokio::test]
async fn a_stream_is_of_one_version() {
    let pool = Pool::new();
    let store = FerriteStore::new(pool.fs.clone());
    let place = Path::from("object");
    let old = vec![b'o'; 5 << 20];
    store.put(&place, old.clone().into()).await.unwrap();
    let mut reader = store.get(&place).await.unwrap().into_stream();
    let mut whole = reader.try_next().await.unwrap().unwrap().to_vec();
    store
        .put_opts(&place, vec![b'n'; 5 << 20].into(), PutOptions::default())
        .await
        .unwrap();
    while let Some(bytes) = reader.try_next().await.unwrap() {
        whole.extend_from_slice(&bytes);
    }
    assert!(whole == old);
    let ranges = store.get_ranges(&place, &[0..2, 4..6]).await.unwrap();
    assert_eq!(ranges, ["nn", "nn"]);
    let beyond = (6 << 20)..(7 << 20);
    assert!(store.get_ranges(&place, std::slice::from_ref(&beyond)).await.is_err());
}

/// Without a runtime, calls run where they are made.
#[test]
fn a_store_needs_no_runtime() {
    let store = FerriteStore::new(Fs::memory());
    let place = Path::from("object");
    futures_executor::block_on(async {
        store.put(&place, "content".into()).await.unwrap();
        assert_eq!(text(&store, &place).await, "content");
        let upload: Box<dyn MultipartUpload> = store.put_multipart(&place).await.unwrap();
        drop(upload);
    });
    assert_eq!(store.to_string(), "Ferrite(/)");
}

/// With `durability=fsync`, an operation is durable only after a sync.
#[tokio::test]
async fn changes_are_durable_when_they_return() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("pool");
    Fs::create(&path, 64 << 20).unwrap().close().unwrap();
    let options = VolumeOptions::parse([("durability", "fsync")]).unwrap();
    let fs = Fs::open_volume_with(&path, options).unwrap();
    let store = FerriteStore::new(fs.clone());
    let [one, two, three] = ["one", "two", "three"].map(Path::from);
    if fs.info().unwrap().medium.contains("DRAM") {
        return eprintln!(
            "SKIPPED: {} is memory, where no operation waits for a sync",
            dir.path().display()
        );
    }
    let mut syncs = fs.info().unwrap().file_syncs;
    let mut is_synced = |what: &str| {
        let now = fs.info().unwrap().file_syncs;
        assert!(now > syncs, "{what}");
        syncs = now;
    };
    store.put(&one, "x".into()).await.unwrap();
    is_synced("put");
    store.copy(&one, &two).await.unwrap();
    is_synced("copy");
    store.rename(&two, &three).await.unwrap();
    is_synced("rename");
    let mut upload = store.put_multipart(&two).await.unwrap();
    upload.put_part("part".into()).await.unwrap();
    upload.complete().await.unwrap();
    is_synced("upload");
    store.delete(&three).await.unwrap();
    is_synced("delete");
}

/// A completion that fails takes nothing away: the caller may try again.
#[tokio::test]
async fn a_failed_completion_can_be_repeated() {
    use object_store::multipart::MultipartStore;

    let fs = Fs::memory();
    let store = FerriteStore::new(fs.clone());
    let (place, below) = (Path::from("a"), Path::from("a/b"));
    store.put(&place, "in the way".into()).await.unwrap();
    let id = store.create_multipart(&below).await.unwrap();
    let part = MultipartStore::put_part(&store, &below, &id, 0, "part".into())
        .await
        .unwrap();
    let complete = || store.complete_multipart(&below, &id, vec![part.clone()]);
    assert!(complete().await.is_err());
    store.delete(&place).await.unwrap();
    complete().await.unwrap();
    assert_eq!(text(&store, &below).await, "part");
}
