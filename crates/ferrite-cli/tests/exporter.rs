//! `ferrite exporter`: metrics of mounts, and the alerts that come with Ferrite.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{TestPool, ferrite, has_fuse, ok};

const RULES: &str = include_str!("../../../dist/prometheus/ferrite.rules.yml");
const DIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/prometheus");

/// An exporter that runs; dropping it ends it.
struct Exporter {
    process: Child,
    place: String,
}

impl Exporter {
    fn start() -> Exporter {
        let mut process = ferrite()
            .args(["exporter", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let said = process.stdout.take().unwrap();
        BufReader::new(said).read_line(&mut line).unwrap();
        let place = line.trim().strip_prefix("metrics at http://").unwrap();
        let place = place.strip_suffix("/metrics").unwrap().to_owned();
        Exporter { process, place }
    }

    fn scrape(&self) -> String {
        let mut stream = TcpStream::connect(&self.place).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The value of a metric of the pool with this path.
fn value(text: &str, name: &str, pool: &str) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| line.split('{').next() == Some(name) && line.contains(&format!("pool=\"{pool}\"")))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Prometheus' checker, where scripts/setup-debian.sh puts it, or an administrator.
fn promtool() -> PathBuf {
    let kept = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/ferrite/tools/bin/promtool"));
    kept.filter(|kept| kept.exists()).unwrap_or_else(|| "promtool".into())
}

/// Prometheus' own program accepts a text, with the names and units in it.
fn checked(text: &str) {
    let checker = Command::new(promtool())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut checker) = checker else {
        eprintln!("SKIPPED: promtool is not installed (scripts/setup-debian.sh test)");
        return;
    };
    checker.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = checker.wait_with_output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn mounts_are_reported_with_their_space_and_health() {
    if !has_fuse() {
        return;
    }
    let pool = TestPool::new("64M", &[]);
    let path = pool.pool.display().to_string();
    std::fs::write(pool.path("file"), vec![1; 1 << 20]).unwrap();
    ok(ferrite().arg("scrub").arg(&pool.dir));
    let text = ok(ferrite().args(["exporter", "--once"]));
    let of = |name: &str| value(&text, name, &path);
    assert_eq!(of("ferrite_pool_up"), Some(1.0), "{text}");
    assert_eq!(
        (of("ferrite_pool_read_only"), of("ferrite_pool_failed")),
        (Some(0.0), Some(0.0))
    );
    let info = pool.info();
    let blocks = |name: &str| info[name].as_u64().unwrap() as f64 * 4096.0;
    assert_eq!(of("ferrite_pool_capacity_bytes"), Some(blocks("blocks")));
    assert!(of("ferrite_pool_used_bytes").unwrap() >= f64::from(1 << 20));
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    let scrubbed = of("ferrite_pool_last_scrub_timestamp_seconds").unwrap();
    assert!((now - 600.0..now + 1.0).contains(&scrubbed), "{scrubbed}");
    assert_eq!(of("ferrite_pool_last_scrub_findings"), Some(0.0));
    assert!(of("ferrite_pool_fences_total").unwrap() > 0.0);
    checked(&text);
    pool.finish();
}

/// The counts of requests to a mount are those of the programs on it, with either transport.
#[test]
fn requests_of_mounts_are_counted_and_timed() {
    if !has_fuse() {
        return;
    }
    for way in crate::common::ways() {
        let pool = TestPool::with("64M", way);
        let path = pool.pool.display().to_string();
        let of = |text: &str, name: &str, operation: &str| -> f64 {
            let is_meant = |line: &&str| {
                line.split('{').next() == Some(name)
                    && line.contains(&format!("pool=\"{path}\""))
                    && line.contains(&format!("operation=\"{operation}\""))
            };
            let found = text.lines().find(is_meant);
            found.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
        };
        for number in 0..10 {
            std::fs::write(pool.path(&format!("file{number}")), vec![1; 5000]).unwrap();
        }
        for _ in 0..3 {
            let missing = rustix::fs::getxattr(pool.path("file0"), "user.none", &mut [0; 8][..]);
            assert_eq!(missing, Err(rustix::io::Errno::NODATA));
        }
        let text = ok(ferrite().args(["exporter", "--once"]));
        let count = |operation| of(&text, "ferrite_mount_request_seconds_count", operation);
        assert_eq!((count("create"), count("write")), (10.0, 10.0), "{way}: {text}");
        assert!(count("getxattr") >= 3.0 && count("lookup") >= 10.0, "{way}: {text}");
        let errors = |operation| of(&text, "ferrite_mount_errors_total", operation);
        assert!(errors("getxattr") >= 3.0 && errors("write") == 0.0, "{way}: {text}");
        let seconds = of(&text, "ferrite_mount_request_seconds_sum", "write");
        assert!(seconds > 0.0 && seconds < 10.0, "{seconds}");
        checked(&text);
        pool.finish();
    }
}

/// A directory's name must not end a line or a label.
#[test]
fn names_of_mounts_forge_nothing() {
    if !has_fuse() {
        return;
    }
    let pool = TestPool::new("16M", &[]);
    pool.umount();
    let dir = pool.scratch().join("a\"} 1\nferrite_forged{x=\"");
    std::fs::create_dir(&dir).unwrap();
    pool.mount_on(&dir, &[]);
    let text = ok(ferrite().args(["exporter", "--once"]));
    crate::common::umount(&dir);
    let path = pool.pool.display().to_string();
    assert_eq!(value(&text, "ferrite_pool_up", &path), Some(1.0), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("ferrite_forged")), "{text}");
    checked(&text);
}

/// A daemon that was stopped costs a scrape a bounded time, and the next ones none.
#[test]
fn a_daemon_that_does_not_answer_is_down_and_holds_nobody_up() {
    if !has_fuse() {
        return;
    }
    let pool = TestPool::new("16M", &[]);
    let path = pool.pool.display().to_string();
    let exporter = Exporter::start();
    let is_up = |text: &str| value(text, "ferrite_pool_up", &path);
    let began = Instant::now();
    while is_up(&exporter.scrape()) != Some(1.0) {
        assert!(began.elapsed() < Duration::from_secs(60), "it is never up");
    }
    let daemon = rustix::process::Pid::from_raw(pool.daemon()).unwrap();
    ferrite_test_clusters::pause(daemon.as_raw_nonzero().get() as u32);
    let text = exporter.scrape();
    assert_eq!(is_up(&text), Some(0.0), "{text}");
    assert_eq!(value(&text, "ferrite_pool_capacity_bytes", &path), None);
    rustix::process::kill_process(daemon, rustix::process::Signal::CONT).unwrap();
    let began = Instant::now();
    while is_up(&exporter.scrape()) != Some(1.0) {
        assert!(began.elapsed() < Duration::from_secs(60), "it is never up again");
    }
    drop(exporter);
    pool.finish();
}

/// Each alert refers to metrics that there are, and fires when it should.
#[test]
fn the_alerts_refer_to_metrics_and_fire() {
    let dashboard = include_str!("../../../dist/grafana/ferrite.json");
    let words = |text: &str| -> BTreeSet<String> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| word.starts_with("ferrite_"))
            .map(str::to_owned)
            .collect()
    };
    // The dashboard's test compares its metrics with those of a server.
    let (used, known) = (words(RULES), words(dashboard));
    assert!(
        used.len() > 10 && used.is_subset(&known),
        "{:?}",
        used.difference(&known)
    );
    for words in [
        ["check", "rules", "ferrite.rules.yml"],
        ["test", "rules", "ferrite.test.yml"],
    ] {
        match Command::new(promtool()).args(words).current_dir(DIST).output() {
            Ok(said) => assert!(said.status.success(), "{said:?}"),
            Err(_) => eprintln!("SKIPPED: promtool is not installed (scripts/setup-debian.sh test)"),
        }
    }
}
