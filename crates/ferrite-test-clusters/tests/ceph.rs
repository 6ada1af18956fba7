//! Ceph starts with its manager, an OSD is stopped and comes back, and nothing is left behind. `ferrite-rados` tests
//! what a client sees of all that.

use std::thread;
use std::time::{Duration, Instant};

use ferrite_test_clusters::{Ceph, CephOptions, Error, or_skip};

/// Calls `is_done` until it returns true, for three minutes at most.
fn wait_for(what: &str, is_done: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < Duration::from_secs(180), "{what}");
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_cluster_starts_and_leaves_nothing_behind() {
    let options = CephOptions {
        has_manager: true,
        pool: "mine".into(),
        settings: vec![("osd max object size".into(), "1048576".into())],
        ..CephOptions::default()
    };
    let Some(ceph) = or_skip(Ceph::start(&options)) else {
        return;
    };
    let seconds = ceph.start_time().as_secs_f64();
    eprintln!("Ceph with one OSD, and a manager that is still starting, started in {seconds:.1} s");
    assert_eq!((ceph.osds(), ceph.pool()), (1, "mine"));
    let set = ceph
        .command(&["tell", "osd.0", "config", "get", "osd_max_object_size"])
        .unwrap();
    assert!(set.contains("1048576"), "{set}");
    assert!(ceph.command(&["osd", "lspools"]).unwrap().contains("mine"));
    let is_up = || ceph.command(&["osd", "stat"]).unwrap().contains("1 up");
    assert!(is_up());
    ceph.stop_osd(0);
    wait_for("the monitor never noticed that the OSD has stopped", || !is_up());
    ceph.start_osd(0).unwrap();
    assert!(is_up());
    wait_for("the manager never became active", || {
        ceph.command(&["mgr", "stat"]).unwrap().contains("\"available\": true")
    });
    // Only a manager answers this.
    assert!(ceph.command(&["df"]).unwrap().contains("mine"));
    let Err(error @ Error::Failed { .. }) = ceph.command(&["osd", "nonsense"]) else {
        panic!("Ceph obeyed nonsense");
    };
    assert!(error.to_string().contains("nonsense"), "{error}");
    let folder = ceph.conf().parent().unwrap().to_owned();
    assert!(folder.join("keyring").exists());
    drop(ceph);
    assert!(!folder.exists(), "{} is still there", folder.display());
}
