//! Requests to a service that speaks the protocol of S3, and fails.
//!
//! Protected properties: a request is repeated where that helps, and reported at once where it does not, with the mend;
//! a repeated request to store finds what it has stored; no name outside the prefix is touched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use ferrite_slices::{Bucket, ConnectOptions, Error};
use ferrite_test_clusters::{S3, S3Fault};

fn bucket(service: &S3, address: &str) -> Bucket {
    let keys = service.folder().join("keys");
    let unknown = "[unknown]\naws_access_key_id = nobody\naws_secret_access_key = nothing\n";
    let text = service.keys() + unknown;
    std::fs::write(&keys, text).unwrap();
    let options = ConnectOptions {
        endpoint: Some(service.endpoint()),
        region: Some("us-east-1".into()),
        profile: address.contains("unknown").then(|| "unknown".into()),
        credentials: Some(keys),
    };
    Bucket::connect(&address.parse().unwrap(), &options).unwrap()
}

#[test]
fn objects_are_stored_once() {
    let service = &S3::start("bucket").unwrap();
    let one = bucket(service, "s3://bucket/a/one");
    let other = bucket(service, "s3://bucket/a/other");
    one.put_now("x/1", vec![7; 5 << 20].into()).unwrap();
    one.put_now("x/1", vec![7; 5 << 20].into()).unwrap();
    for other in [vec![8; 5 << 20], vec![7; 9]] {
        let refused = one.put_now("x/1", other.into());
        assert!(matches!(refused, Err(Error::Exists(_))), "{refused:?}");
    }
    assert_eq!(one.get_now("x/1", 5 << 20).unwrap(), vec![7; 5 << 20]);
    assert!(matches!(one.get_now("x/1", 5), Err(Error::Damaged(_))));
    assert!(matches!(other.get_now("x/1", 5 << 20), Err(Error::NotFound(_))));
    for number in 0..2500 {
        one.start({
            let one = one.clone();
            async move { one.put(&format!("many/{number:05}"), b"x"[..].into()).await }
        });
    }
    other.put_now("many/1", b"other"[..].into()).unwrap();
    let mut names = Vec::new();
    let until = Instant::now() + std::time::Duration::from_secs(60);
    while names.len() < 2500 {
        assert!(Instant::now() < until, "{} objects", names.len());
        names.clear();
        let mut after = String::new();
        loop {
            let page = one.list_now("many", &after, 700).unwrap();
            let Some(last) = page.last() else { break };
            after.clone_from(&last.name);
            names.extend(page.into_iter().map(|object| object.name));
        }
    }
    let expected: Vec<String> = (0..2500).map(|number| format!("many/{number:05}")).collect();
    assert_eq!(names, expected);
    one.delete_now(names).unwrap();
    assert_eq!(one.list_now("many", "", 10).unwrap(), []);
    assert_eq!(other.get_now("many/1", 10).unwrap(), b"other"[..]);
}

/// A request that is never answered costs a reader a moment, and not the time after which requests are given up.
#[test]
fn a_read_that_hangs_is_sent_again() {
    let service = &S3::start("bucket").unwrap();
    let bucket = bucket(service, "s3://bucket/hanging");
    bucket.put_now("x", b"content"[..].into()).unwrap();
    let is_first = AtomicBool::new(true);
    service.plan(move |request| {
        let hangs = request.method == "GET" && is_first.swap(false, Ordering::Relaxed);
        hangs.then_some(S3Fault::Silent)
    });
    let begun = Instant::now();
    assert_eq!(bucket.get_now("x", 10).unwrap(), b"content"[..]);
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!((bucket.requests().gets, bucket.requests().hedges), (2, 1));
}

#[test]
fn faults_are_repeated() {
    let service = &S3::start("bucket").unwrap();
    for fault in [
        S3Fault::Refused(503, "SlowDown"),
        S3Fault::Refused(500, "InternalError"),
        S3Fault::Refused(429, "TooManyRequests"),
        S3Fault::AnswerLost,
    ] {
        let bucket = bucket(service, "s3://bucket/faults");
        let left = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&left);
        service.plan(move |_| {
            let is_due = counter.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            is_due.ok().map(|_| fault)
        });
        let name = "object".to_owned();
        left.store(2, Ordering::SeqCst);
        bucket
            .put_now(&name, b"content"[..].into())
            .unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        left.store(2, Ordering::SeqCst);
        assert_eq!(bucket.get_now(&name, 10).unwrap(), b"content"[..], "{fault:?}");
        left.store(1, Ordering::SeqCst);
        bucket
            .delete_now(vec![name.clone()])
            .unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        left.store(0, Ordering::SeqCst);
    }
    service.plan(|_| None);
}

#[test]
fn refusals_are_named() {
    let service = &S3::start("bucket").unwrap();
    let begun = Instant::now();
    let missing = bucket(service, "s3://missing/x").put_now("a", b"x"[..].into());
    assert!(
        missing
            .as_ref()
            .is_err_and(|error| error.is_refusal() && error.to_string().contains("no such bucket")),
        "{missing:?}"
    );
    let unknown = bucket(service, "s3://bucket/unknown")
        .put_now("a", b"x"[..].into())
        .unwrap_err();
    assert!(
        unknown.is_refusal() && unknown.to_string().contains("refuses access"),
        "{unknown}"
    );
    for (status, code, said) in [
        (403, "RequestTimeTooSkewed", "set the clock"),
        (400, "ExpiredToken", "have expired"),
        (403, "AccessDenied", "s3:PutObject"),
        (507, "XMinioStorageFull", "no space left"),
    ] {
        service.plan(move |_| Some(S3Fault::Refused(status, code)));
        let refused = bucket(service, "s3://bucket/x").put_now("a", b"x"[..].into());
        let error = refused.unwrap_err();
        assert!(
            error.to_string().contains(said) && error.is_refusal(),
            "{code}: {error}"
        );
    }
    service.plan(|_| None);
    assert!(begun.elapsed().as_secs() < 100, "{:?}", begun.elapsed());
}
