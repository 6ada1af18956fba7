//! Shards in PostgreSQL, with real servers: what a database must do, and what happens when servers die, fall behind, do
//! not answer, or are set up so that commits could be lost.
#![cfg(feature = "postgres")]

#[path = "common/remote.rs"]
mod remote;

use std::net::TcpListener;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ferrite_meta::{Batch, Error, MetaStore, Owned, OwnedOptions, PostgresOptions, PostgresRemote, Remote};
use ferrite_test_clusters::{Postgres, PostgresOptions as Cluster, or_skip};
use remote::{SHARD, TTL, conforms, owner, puts};

/// A server that tests share, which no test harms.
fn shared() -> Option<&'static Postgres> {
    static SERVER: OnceLock<Option<Postgres>> = OnceLock::new();
    SERVER
        .get_or_init(|| or_skip(Postgres::start(&Cluster::default())))
        .as_ref()
}

fn cluster(has_standby: bool, settings: &[(&str, &str)]) -> Option<Postgres> {
    let settings = settings
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()));
    or_skip(Postgres::start(&Cluster {
        has_standby,
        settings: settings.collect(),
    }))
}

fn options(connection: &str, volume: &str) -> PostgresOptions {
    let mut options = PostgresOptions::new(connection, volume);
    options.timeout = Duration::from_secs(2);
    options
}

fn volume(connection: &str, name: &str) -> PostgresRemote {
    PostgresRemote::new(&options(connection, name)).unwrap()
}

/// A new volume with a shard.
fn made(connection: &str) -> PostgresRemote {
    made_with(&options(connection, &new_name()))
}

/// The same for a server that is away for a while, on a busy machine.
fn made_for_outages(connection: &str) -> PostgresRemote {
    let mut options = options(connection, &new_name());
    options.timeout = Duration::from_secs(5);
    made_with(&options)
}

fn new_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("v{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn made_with(options: &PostgresOptions) -> PostgresRemote {
    let remote = PostgresRemote::new(options).unwrap();
    remote.create(SHARD).unwrap();
    remote
}

fn own(remote: PostgresRemote, name: &str) -> Owned<PostgresRemote> {
    let mut options = OwnedOptions::default();
    options.commit_timeout = Duration::from_secs(5);
    Owned::open(remote, SHARD, &owner(name), options).unwrap()
}

/// The same for a server that is away for a while: a busy machine takes long to start it again.
fn own_for_outages(remote: PostgresRemote, name: &str) -> Owned<PostgresRemote> {
    let mut options = OwnedOptions::default();
    options.commit_timeout = Duration::from_secs(60);
    options.ttl = Duration::from_secs(60);
    Owned::open(remote, SHARD, &owner(name), options).unwrap()
}

fn put(store: &dyn MetaStore, key: &[u8], value: &[u8]) -> ferrite_meta::Result<()> {
    let mut txn = store.begin();
    txn.put(key, value)?;
    txn.commit()
}

#[test]
fn it_does_what_a_database_must() {
    let Some(server) = shared() else { return };
    conforms(|| made(&server.connection()));
}

#[test]
fn volumes_are_made_once_and_removed_without_what_is_not_theirs() {
    let Some(server) = shared() else { return };
    let remote = made(&server.connection());
    let tenure = remote.take(SHARD, &owner("a"), TTL).unwrap();
    remote.apply(&tenure, 1, &puts(&[(b"k", b"v")])).unwrap();
    assert!(matches!(remote.create(SHARD), Err(Error::Exists(_))));
    assert!(matches!(remote.take(8, &owner("a"), TTL), Err(Error::Missing(_))));
    let missing = volume(&server.connection(), "nowhere");
    assert!(matches!(missing.take(SHARD, &owner("a"), TTL), Err(Error::Missing(_))));
    remote.remove().unwrap();
    assert!(matches!(remote.take(SHARD, &owner("a"), TTL), Err(Error::Missing(_))));
    server
        .sql("create schema holiday; create table holiday.photos(a int)")
        .unwrap();
    // Not even a table with one of the names is taken for a volume's.
    server
        .sql("create schema lovers; create table lovers.pairs(a int)")
        .unwrap();
    let namesake = volume(&server.connection(), "lovers");
    assert!(matches!(namesake.remove(), Err(Error::Invalid(text)) if text.contains("something else")));
    assert_eq!(server.sql("select count(*) from lovers.pairs").unwrap(), "0\n");
    let other = volume(&server.connection(), "holiday");
    assert!(other.create(SHARD).is_err());
    assert!(other.remove().is_err());
    assert_eq!(server.sql("select count(*) from holiday.photos").unwrap(), "0\n");
}

#[test]
fn names_that_are_no_names_are_refused_before_anything_is_sent() {
    for name in ["", "Upper", "a b", "a;drop", "a\"b", "1st"] {
        let made = PostgresRemote::new(&PostgresOptions::new("host=127.0.0.1", name));
        assert!(
            matches!(made.err(), Some(Error::Invalid(text)) if text.contains("name")),
            "{name}"
        );
    }
    let secret = PostgresRemote::new(&PostgresOptions::new("host=127.0.0.1 password=secret", "v"));
    let text = secret.err().unwrap().to_string();
    assert!(text.contains("holds a password") && !text.contains("secret"), "{text}");
    let bad = PostgresRemote::new(&PostgresOptions::new("host=127.0.0.1 colour=red password=secret", "v"));
    let text = bad.err().unwrap().to_string();
    assert!(text.contains("connection string") && !text.contains("secret"), "{text}");
}

#[test]
fn a_server_that_could_lose_commits_is_refused() {
    for (setting, value) in [("fsync", "off"), ("full_page_writes", "off")] {
        let Some(server) = cluster(false, &[(setting, value)]) else {
            return;
        };
        let remote = made(&server.connection());
        let refused = remote.take(SHARD, &owner("a"), TTL).unwrap_err();
        assert!(
            matches!(&refused, Error::Invalid(text) if text.contains(setting)),
            "{refused}"
        );
        // It may also be changed while the volume is in use.
        server
            .sql(&format!("alter system set {setting} = on; select pg_reload_conf()"))
            .unwrap();
    }
    // A session sets synchronous_commit for itself, whatever the default is.
    let Some(server) = cluster(false, &[("synchronous_commit", "off")]) else {
        return;
    };
    let remote = made(&server.connection());
    let tenure = remote.take(SHARD, &owner("a"), 100 * TTL).unwrap();
    remote.apply(&tenure, 1, &puts(&[(b"k", b"v")])).unwrap();
}

#[test]
fn a_server_that_is_away_or_silent_costs_a_bounded_time() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    for port in [port, 1] {
        let remote = volume(&format!("host=127.0.0.1 port={port} user=x dbname=x"), "v");
        let start = Instant::now();
        let away = remote.take(SHARD, &owner("a"), TTL).unwrap_err();
        assert!(matches!(away, Error::Unreachable(_)), "{away}");
        assert!(matches!(remote.examine(SHARD), Err(Error::Unreachable(_))));
        assert!(start.elapsed() < Duration::from_secs(16), "{:?}", start.elapsed());
    }
}

/// Every commit that was acknowledged while the server was killed and started again is there; the store continues.
#[test]
fn a_killed_server_that_comes_back_has_every_acknowledged_commit() {
    let Some(server) = cluster(false, &[]) else { return };
    let store = own_for_outages(made_for_outages(&server.connection()), "a");
    thread::scope(|scope| {
        scope.spawn(|| (1..=400_u64).for_each(|number| put(&store, b"k", &number.to_le_bytes()).unwrap()));
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(50));
            server.primary().kill();
            server.primary().start().unwrap();
        }
    });
    let value = format!("select encode(value, 'hex') from {}.pairs", volumes(&server));
    assert_eq!(server.sql(&value).unwrap(), "9001000000000000\n");
    assert_eq!(store.status().commits, 400);
}

#[test]
fn a_promoted_standby_goes_on_with_every_acknowledged_commit() {
    let Some(server) = cluster(true, &[]) else { return };
    let store = own_for_outages(made_for_outages(&server.connection()), "a");
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            server.primary().kill();
            server.standby().promote().unwrap();
        });
        for number in 0_u64.. {
            put(&store, &number.to_be_bytes(), b"v").unwrap();
            if start.elapsed() > Duration::from_secs(3) {
                let status = store.status();
                assert_eq!(status.commits, number + 1);
                break;
            }
        }
    });
    let mut found = 0;
    let commits = store.status().commits;
    store
        .scan(b"", b"\xff", &mut |_, _| {
            found += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(found, commits);
}

/// Nobody may call a commit durable that a standby was to have and has not.
#[test]
fn without_its_standby_a_commit_is_unknown_in_bounded_time_and_says_why() {
    let Some(server) = cluster(true, &[]) else { return };
    let store = own(made(&server.connection()), "a");
    put(&store, b"k", b"before").unwrap();
    let looker = volume(&server.connection(), &volumes(&server));
    let state = looker.examine(SHARD).unwrap();
    assert_eq!((state.standbys, state.standbys_synchronous), (1, Some(1)), "{state:?}");
    let owned = state.volume.unwrap();
    assert!(
        owned.owner == "a" && owned.left > Duration::ZERO && owned.epoch == 1,
        "{owned:?}"
    );
    server.standby().stop();
    let start = Instant::now();
    let unknown = put(&store, b"k", b"after").unwrap_err();
    assert!(
        matches!(&unknown, Error::Unknown(text) if text.contains("standby")),
        "{unknown}"
    );
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    let state = looker.examine(SHARD).unwrap();
    assert_eq!((state.standbys, state.standbys_synchronous), (0, Some(0)), "{state:?}");
    assert!(!state.standby_names.is_empty() && !state.is_encrypted, "{state:?}");
    // Only a new tenure can tell what is there.
    assert!(store.get(b"k").is_err());
    drop(store);
    server.standby().start().unwrap();
    let again = volume(&server.connection(), &volumes(&server));
    let store = retake(again);
    let value = store.get(b"k").unwrap().unwrap();
    assert!(value == b"before" || value == b"after");
    put(&store, b"k", b"later").unwrap();
}

/// Statements whose plans were made for a small table, without statistics: what a call reads grows with what it asks
/// for, and not with what is there.
#[test]
fn a_call_reads_no_more_of_a_table_that_has_grown() {
    let Some(server) = cluster(false, &[("autovacuum", "off")]) else {
        return;
    };
    let read = || -> u64 {
        let blocks = server.sql("select blks_hit + blks_read from pg_stat_database where datname = current_database()");
        blocks.unwrap().trim().parse().unwrap()
    };
    let remote = made(&server.connection());
    let tenure = remote.take(SHARD, &owner("a"), 1000 * TTL).unwrap();
    let key = |number: u64| number.to_be_bytes();
    let round = |seq: u64| {
        let new = [1, 2, 3].map(|n| key(10 * seq + n));
        let puts = new.iter().map(|key| (key.to_vec(), vec![7; 100])).collect();
        let deletes = vec![key(10 * (seq / 2) + 3).to_vec()];
        for (seq, puts, deletes) in [(2 * seq - 1, puts, Vec::new()), (2 * seq, Vec::new(), deletes)] {
            remote.apply(&tenure, seq, &Batch { puts, deletes }).unwrap();
        }
        let found = remote.get_many(&tenure, &[&new[1], b"none"]).unwrap().values;
        assert_eq!(found, [Some(vec![7; 100]), None]);
        assert_eq!(remote.scan(&tenure, &new[0], &new[2], 10).unwrap().pairs.len(), 2);
        remote.tally(&tenure, &new[0], &new[2], 10).unwrap();
    };
    // A server may keep a plan after five calls.
    let (small, large) = (20, 200);
    (1..=small).for_each(round);
    let schema = volumes(&server);
    server
        .sql(&format!(
            "insert into {schema}.pairs select {SHARD}, decode('ff' || lpad(to_hex(n), 14, '0'), 'hex'), \
             decode(repeat('07', 100), 'hex') from generate_series(1, 50000) n"
        ))
        .unwrap();
    let before = read();
    (small + 1..=small + large).for_each(round);
    // A connection reports what it has read when it ends, at the latest.
    drop(remote);
    let start = Instant::now();
    let mut blocks = read();
    while blocks - before < 10 * large && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(100));
        blocks = read();
    }
    let a_round = (blocks - before) / large;
    eprintln!("{a_round} blocks a round");
    assert!((10..150).contains(&a_round), "{a_round} blocks a round");
}

/// The volume's schema on a cluster with one.
fn volumes(server: &Postgres) -> String {
    let found = server
        .sql("select nspname from pg_namespace where nspname ~ '^v[0-9]+$'")
        .unwrap();
    found.trim().to_owned()
}

/// Takes a shard from an owner that has died.
fn retake(remote: PostgresRemote) -> Owned<PostgresRemote> {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match remote.take(SHARD, &owner("b"), Duration::ZERO) {
            Ok(_) => return own(remote, "c"),
            Err(Error::Owned { .. } | Error::Unreachable(_)) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A standby that was not synchronous is promoted without the last commits.
#[test]
fn a_new_primary_that_is_behind_stops_the_owner() {
    let Some(server) = cluster(true, &[]) else { return };
    let remote = made(&server.connection());
    server.sql("alter system set synchronous_standby_names = ''").unwrap();
    server.sql("select pg_reload_conf()").unwrap();
    let store = own(remote, "a");
    put(&store, b"k", b"both have it").unwrap();
    wait_for_standby(&server);
    server.standby().stop();
    put(&store, b"k", b"one has it").unwrap();
    server.primary().kill();
    server.standby().start().unwrap();
    server.standby().promote().unwrap();
    let behind = put(&store, b"k", b"next").unwrap_err();
    assert!(matches!(behind, Error::WentBack { .. } | Error::Unknown(_)), "{behind}");
    assert!(store.get(b"k").is_err());
    let Err(Error::WentBack { has, wanted }) = store.health() else {
        panic!("{:?}", store.health());
    };
    assert_eq!(wanted, has + 1);
}

fn wait_for_standby(server: &Postgres) {
    let caught_up = "select pg_current_wal_flush_lsn() = flush_lsn from pg_stat_replication";
    for _ in 0..200 {
        if server.primary().sql(caught_up).unwrap().trim() == "t" {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("the standby does not catch up");
}

/// A batch that waited for its standby and was cancelled is on the primary alone; a repetition must not call it durable
/// before the standby has it.
#[test]
fn a_batch_that_was_cancelled_while_it_waited_is_not_called_durable() {
    let Some(server) = cluster(true, &[]) else { return };
    let remote = made(&server.connection());
    let tenure = remote.take(SHARD, &owner("a"), 1000 * TTL).unwrap();
    server.standby().stop();
    let batch = puts(&[(b"k", b"v")]);
    thread::scope(|scope| {
        let first = scope.spawn(|| remote.apply(&tenure, 1, &batch));
        thread::sleep(Duration::from_millis(700));
        let cancel = "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'";
        server.primary().sql(cancel).unwrap();
        let first = first.join().unwrap();
        assert!(matches!(first, Err(Error::Unknown(_))), "{first:?}");
    });
    // It is there, and still on the primary alone.
    assert_eq!(remote.get_many(&tenure, &[b"k"]).unwrap().values, [Some(b"v".to_vec())]);
    let again = remote.apply(&tenure, 1, &batch);
    assert!(matches!(again, Err(Error::Unknown(_))), "{again:?}");
    server.standby().start().unwrap();
    for _ in 0..100 {
        match remote.apply(&tenure, 1, &batch) {
            Ok(_) => {
                assert_eq!(remote.apply(&tenure, 2, &Batch::default()).map(drop), Ok(()));
                return;
            }
            Err(Error::Unknown(_) | Error::Unreachable(_)) => thread::sleep(Duration::from_millis(100)),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the standby is back, and nothing is confirmed");
}

/// An authority (`ca.pem`) and a certificate of it for 127.0.0.1, with its key, in a folder.
fn certificates() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
    for line in [
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=server -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out cert.pem",
    ] {
        let mut openssl = std::process::Command::new("openssl");
        match openssl.args(line.split(' ')).current_dir(dir.path()).output() {
            Ok(made) => assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr)),
            Err(_) => {
                eprintln!("SKIPPED: openssl is not installed");
                return None;
            }
        }
    }
    Some(dir)
}

#[test]
fn connections_are_encrypted_and_the_server_must_be_the_right_one() {
    let (Some(own), Some(other)) = (certificates(), certificates()) else {
        return;
    };
    // The server has both files in its folder, which is its alone.
    let Some(server) = cluster(false, &[]) else { return };
    let read = |name: &str| std::fs::read_to_string(own.path().join(name)).unwrap();
    for (file, content) in [("own.crt", read("cert.pem")), ("own.key", read("key.pem"))] {
        let folder = server.sql("show data_directory").unwrap();
        let path = format!("{}/{file}", folder.trim());
        let lines = format!("select regexp_split_to_table('{}', E'\\n')", content.trim());
        server
            .sql(&format!("copy ({lines}) to program 'umask 077; cat > {path}'"))
            .unwrap();
    }
    server.sql("alter system set ssl_cert_file = 'own.crt'").unwrap();
    server.sql("alter system set ssl_key_file = 'own.key'").unwrap();
    server.sql("alter system set ssl = on").unwrap();
    server.primary().stop();
    server.primary().start().unwrap();
    let connection = format!("{} sslmode=require", server.primary().connection());
    let with = |ca: Option<&tempfile::TempDir>| {
        let mut options = options(&connection, "v");
        options.ca = ca.map(|dir| dir.path().join("ca.pem"));
        PostgresRemote::new(&options).unwrap()
    };
    let remote = with(Some(&own));
    remote.create(SHARD).unwrap();
    remote.take(SHARD, &owner("a"), TTL).unwrap();
    let encrypted = "select count(*) > 0 from pg_stat_ssl join pg_stat_activity using (pid) \
                     where ssl and application_name = 'ferrite'";
    assert_eq!(server.sql(encrypted).unwrap(), "t\n");
    let state = remote.examine(SHARD).unwrap();
    assert!(state.is_encrypted && state.version_major >= 13, "{state:?}");
    for wrong in [with(Some(&other)), with(None)] {
        let refused = wrong.take(SHARD, &owner("b"), TTL).unwrap_err().to_string();
        assert!(refused.contains("certificate"), "{refused}");
    }
    let mut options = options(&connection, "v");
    options.ca = Some("/nowhere".into());
    assert!(matches!(PostgresRemote::new(&options).err(), Some(Error::Invalid(text)) if text.contains("/nowhere")));
}
