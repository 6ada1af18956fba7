//! Blobs in a Ceph cluster, without an engine.

use std::thread;
use std::time::{Duration, Instant};

use ferrite_nvme::content_store::{ContentStore, Error, RadosContent};
use ferrite_rados::{Client, WriteOp};
use ferrite_testkit::rng::Rng;

use crate::pool::{check_holes, content};
use crate::{blob, bytes_of, objects, options, owner, together};

/// Random changes of a blob, against a vector. Another client that opens it finds the same.
#[test]
fn a_blob_is_what_was_written() {
    let Some((ceph, _osds)) = together() else { return };
    const LEN: u64 = 40 << 10;
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let options = options(ceph, 4096, 60);
        let (store, ids) = owner(&options, 1);
        let (place, blob) = blob(&store, &ids);
        let (mut want, mut tail) = (vec![0; LEN as usize], Vec::new());
        let mut overwritten = 0;
        for step in 0..150u64 {
            let offset = rng.below(LEN);
            let most = [100, 5000, LEN][rng.below(3) as usize].min(LEN - offset);
            let len = rng.below(most) + 1;
            let range = offset as usize..(offset + len) as usize;
            let new_tail = (rng.below(2) == 0).then(|| step.to_le_bytes());
            let with = new_tail.as_ref().map(|tail| &tail[..]);
            match rng.below(8) {
                0 => {
                    blob.truncate(offset, with).unwrap();
                    want[range.start..].fill(0);
                }
                1 => {
                    blob.punch(offset, len, with).unwrap();
                    want[range].fill(0);
                }
                2 => {
                    blob.zero(offset, len, with).unwrap();
                    want[range].fill(0);
                }
                3 => blob.reserve(offset, len, with).unwrap(),
                4 => {
                    let data = content(step, len as usize);
                    let mut has_begun = false;
                    let done = blob.overwrite_at(&data, offset, &mut || has_begun = true).unwrap();
                    assert_eq!(done, has_begun, "seed {seed}, step {step}");
                    assert!(!done || blob.valid_len() >= offset + len, "seed {seed}, step {step}");
                    overwritten += u64::from(done);
                    if done {
                        want[range].copy_from_slice(&data);
                    }
                }
                _ => {
                    let data = content(step, len as usize);
                    blob.write_at(&data, offset, with).unwrap();
                    want[range].copy_from_slice(&data);
                }
            }
            if let (Some(new), false) = (new_tail, blob.tail().unwrap() == tail) {
                tail = new.to_vec();
            }
            assert!(blob.tail().unwrap() == tail, "seed {seed}, step {step}");
            let written = want.iter().rposition(|&byte| byte != 0).map_or(0, |at| at as u64 + 1);
            assert!(blob.valid_len() >= written, "seed {seed}, step {step}");
            assert!(bytes_of(&*blob, LEN as usize) == want, "seed {seed}, step {step}");
            check_holes(&*blob, &want, &format!("seed {seed}, step {step}"));
        }
        assert!(overwritten > 0, "seed {seed}");
        let reader = RadosContent::connect(&options).unwrap();
        let read = reader.open(place).unwrap();
        assert!(bytes_of(&*read, LEN as usize) == want && read.tail().unwrap() == tail);
        assert!(read.valid_len() <= blob.valid_len());
        check_holes(&*read, &want, "opened anew");
        assert!(
            matches!(read.set_tail(b"x"), Err(Error::Failed(_))),
            "it did not take over"
        );
        store.delete(place).unwrap();
        for error in [
            store.delete(place),
            store.open(place).map(drop),
            blob.write_at(b"x", 9000, None),
        ] {
            assert_eq!(error, Err(Error::NotFound));
        }
        assert_eq!(store.create(place).map(drop), Ok(()), "nothing of it is left");
        store.delete(place).unwrap();
        store.close().unwrap();
        assert_eq!(objects(&options), ["owner.0"]);
    }
}

/// Large writes of several objects, of more than are under way at once, and files that begin far behind.
#[test]
fn long_and_sparse_blobs() {
    let Some((ceph, _osds)) = together() else { return };
    let options = options(ceph, 64 << 10, 60);
    let (store, ids) = owner(&options, 1);
    let (place, blob) = blob(&store, &ids);
    let data = content(1, 3 << 20);
    blob.write_at(&data, 1000, Some(b"tail")).unwrap();
    assert_eq!(
        (blob.valid_len(), blob.tail().unwrap()),
        ((3 << 20) + 1000, b"tail".to_vec())
    );
    assert!(bytes_of(&*blob, (3 << 20) + 1000)[1000..] == data);
    let far = 1 << 40;
    blob.write_at(b"far", far, None).unwrap();
    assert_eq!(blob.next_data(4 << 20).unwrap(), Some(far));
    assert!(blob.allocated_bytes() <= 5 << 20, "{}", blob.allocated_bytes());
    let again = RadosContent::connect(&options).unwrap().open(place).unwrap();
    assert_eq!(again.valid_len(), far + 3);
    blob.reserve(0, 1 << 41, None).unwrap();
    assert!(blob.allocated_bytes() >= 1 << 41);
    assert_eq!(blob.reserve(0, 1 << 52, None), Err(Error::NoSpace));
    blob.truncate(5, None).unwrap();
    assert_eq!(blob.allocated_bytes(), 5);
    assert_eq!(objects(&options).len(), 2, "the first object, and the owner's");
    store.delete(place).unwrap();
    assert_eq!(store.space(0).unwrap().free_bytes, store.space(0).unwrap().bytes);
}

/// Reads see an overwrite of several objects whole or not at all.
#[test]
fn reads_see_whole_overwrites() {
    let Some((ceph, _osds)) = together() else { return };
    let (store, ids) = owner(&options(ceph, 4096, 60), 1);
    let (_, blob) = blob(&store, &ids);
    blob.write_at(&[0; 20_000], 0, None).unwrap();
    let end = Instant::now() + Duration::from_millis(700);
    thread::scope(|scope| {
        for writer in 1..3 {
            let blob = &blob;
            scope.spawn(move || {
                while Instant::now() < end {
                    assert!(blob.overwrite_at(&[writer; 15_000], 2000, &mut || {}).unwrap());
                }
            });
        }
        let mut states = [0u64; 3];
        while Instant::now() < end {
            let mut bytes = vec![9; 15_000];
            blob.read_at(&mut bytes, 2000).unwrap();
            assert!(bytes.iter().all(|&byte| byte == bytes[0]), "parts of two overwrites");
            states[bytes[0] as usize] += 1;
        }
        assert!(states[1] > 0 || states[2] > 0);
    });
}

/// A check lists the shard's blobs, and mends what belongs to none.
#[test]
fn objects_of_no_blob_are_found_and_removed() {
    let Some((ceph, _osds)) = together() else { return };
    let options = options(ceph, 4096, 60);
    let (store, ids) = owner(&options, 1);
    let (place, kept) = blob(&store, &ids);
    kept.write_at(&[1; 9000], 0, None).unwrap();
    let client = Client::connect(&options.conf, &options.client, options.timeouts).unwrap();
    let pool = client.pool_in(&options.pool, &options.namespace).unwrap();
    // A chunk without the first one; another shard's; one that no volume makes.
    for name in ["0.1.77.5", "8.1.0.3", "foreign"] {
        pool.write(name, &WriteOp::new().write_full(b"x")).unwrap();
    }
    let survey = store.survey(0).unwrap();
    assert_eq!(survey.blobs, Some(vec![place]));
    assert_eq!(survey.damage, ["1 objects or more belong to no blob, such as 0.1.77.5"]);
    store.mend(0).unwrap();
    assert_eq!(store.survey(0).unwrap().damage, [""; 0]);
    assert_eq!(
        objects(&options),
        ["0.1.0.0", "0.1.0.1", "0.1.0.2", "8.1.0.3", "foreign", "owner.0"]
    );
    assert!(bytes_of(&*kept, 9000) == [1; 9000]);
}
