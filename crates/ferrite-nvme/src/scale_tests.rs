//! Pools with many inodes in a real PostgreSQL: how much an opening asks for, and how much memory an owner needs.
//!
//! Rows are written into the database in bulk, by the encoders of `format`, because making a million files one after
//! the other takes longer than the tests may. With `FERRITE_SOAK`, the pools have a million and two million inodes, and
//! times and resident memory count; otherwise counts alone do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrite_blob::device::Memory;
use ferrite_blob::{BlobStore, FormatOptions};
use ferrite_meta::{
    Applied, Batch, BatchLimits, MetaStore, Owned, OwnedOptions, Owner, Page, PostgresOptions, PostgresRemote, Remote,
    ShardStatus, Tally, Tenure, Values, Viewed,
};
use ferrite_test_clusters::{Postgres, PostgresOptions as Cluster, or_skip};
use ferrite_vfs::{FileKind, FileSystem, Ino, ROOT_INO, SYSTEM};

use crate::format::key;
use crate::format::node::{Content, Edge, Node};
use crate::format::pool::PoolRecord;
use crate::names::cookie_of;
use crate::open::{HASH_BITS, assemble, empty_root, format_for, read_record};
use crate::{NvmeFs, Options};

const SHARD: u64 = 1;
const FILES_A_DIR: u64 = 1000;
const HASH_KEY: [u8; 16] = [7; 16];
/// Memory of an owner beside its cache: the engine's inode table, connections, pages of the database on their way.
const BESIDE_CACHE_BYTES: u64 = 96 << 20;

/// A database that counts the requests it gets.
struct Counting {
    remote: PostgresRemote,
    requests: AtomicU64,
}

impl Counting {
    fn one(&self) -> &PostgresRemote {
        self.requests.fetch_add(1, Ordering::Relaxed);
        &self.remote
    }
}

impl Remote for Counting {
    fn is_useful_for(&self, left: Duration) {
        self.remote.is_useful_for(left);
    }

    fn end_calls(&self) {
        self.remote.end_calls();
    }

    fn take(&self, shard: u64, owner: &Owner, ttl: Duration) -> ferrite_meta::Result<Tenure> {
        self.one().take(shard, owner, ttl)
    }

    fn renew(&self, tenure: &Tenure, ttl: Duration) -> ferrite_meta::Result<()> {
        // Time makes them, not the opening.
        self.remote.renew(tenure, ttl)
    }

    fn apply(&self, tenure: &Tenure, seq: u64, batch: &Batch) -> ferrite_meta::Result<Applied> {
        self.one().apply(tenure, seq, batch)
    }

    fn get_many(&self, tenure: &Tenure, keys: &[&[u8]]) -> ferrite_meta::Result<Values> {
        self.one().get_many(tenure, keys)
    }

    fn scan(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> ferrite_meta::Result<Page> {
        self.one().scan(tenure, from, to, limit)
    }

    fn status(&self, shard: u64) -> ferrite_meta::Result<ShardStatus> {
        self.one().status(shard)
    }

    fn tally(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> ferrite_meta::Result<Tally> {
        self.one().tally(tenure, from, to, limit)
    }

    fn limits(&self) -> BatchLimits {
        self.remote.limits()
    }
}

fn owner(name: &str) -> Owner {
    Owner {
        name: name.into(),
        address: "here".into(),
    }
}

/// A pool in a database, with directories of [`FILES_A_DIR`] empty files each, as a killed owner leaves it.
struct Pool {
    database: Arc<Counting>,
    device: Arc<Memory>,
    dirs: u64,
    server: Postgres,
}

impl Pool {
    fn new(dirs: u64) -> Option<Pool> {
        let server = or_skip(Postgres::start(&Cluster::default()))?;
        let remote = PostgresRemote::new(&PostgresOptions::new(&server.connection(), "many")).unwrap();
        remote.create(SHARD).unwrap();
        let database = Arc::new(Counting {
            remote,
            requests: AtomicU64::new(0),
        });
        let device = Arc::new(Memory::new(64 << 20));
        let options = FormatOptions {
            store: [1; 16],
            pool: [2; 16],
            index: 0,
            checksums: false,
            shares_clusters: true,
        };
        BlobStore::format(&device, &options).unwrap();
        let pool = Pool {
            database,
            device,
            dirs,
            server,
        };
        pool.fill();
        Some(pool)
    }

    fn inodes(&self) -> u64 {
        1 + self.dirs + self.dirs * FILES_A_DIR
    }

    fn dir(number: u64) -> Ino {
        ROOT_INO + 1 + number
    }

    fn file(&self, dir: u64, number: u64) -> Ino {
        ROOT_INO + 1 + self.dirs + dir * FILES_A_DIR + number
    }

    /// Writes the rows.
    fn fill(&self) {
        let store = Owned::open(
            Arc::clone(&self.database),
            SHARD,
            &owner("mkfs"),
            OwnedOptions::default(),
        )
        .unwrap();
        format_for(&store, [2; 16], HASH_KEY, (1, false), (0, 0)).unwrap();
        let record = read_record(&store).unwrap();
        drop(store);
        let tenure = self
            .database
            .take(SHARD, &owner("fill"), Duration::from_secs(3600))
            .unwrap();
        let mut seq = tenure.seq;
        let mut apply = |puts: Vec<(Vec<u8>, Vec<u8>)>| {
            seq += 1;
            let batch = Batch {
                puts,
                deletes: Vec::new(),
            };
            self.database.apply(&tenure, seq, &batch).unwrap();
        };
        let named = |parent: Ino, name: &str, ino: Ino, node: &Node| {
            let name = name.as_bytes();
            let cookie = cookie_of(&HASH_KEY, HASH_BITS, name, 0);
            let edge = (key::edge(parent, cookie, name), Edge::to(ino, node).encode());
            [edge, (key::node(ino).to_vec(), node.encode())]
        };
        let template = empty_root(0, 0);
        for number in 0..self.dirs {
            let (dir, name) = (Pool::dir(number), format!("d{number}"));
            let node = Node {
                content: Content::Inline(name.clone().into_bytes()),
                ..template.clone()
            };
            let mut puts = named(ROOT_INO, &name, dir, &node).to_vec();
            let file = Node {
                kind: FileKind::File,
                mode: 0o644,
                nlink: 1,
                content: Content::Inline(Vec::new()),
                ..template.clone()
            };
            for number_of_file in 0..FILES_A_DIR {
                let ino = self.file(number, number_of_file);
                puts.extend(named(dir, &format!("file-{number_of_file}"), ino, &file));
            }
            apply(puts);
        }
        let root = Node {
            nlink: 2 + self.dirs as u32,
            ..template
        };
        let record = PoolRecord {
            epoch: 1,
            next_ino: self.file(self.dirs, 0),
            is_clean: false,
            ..record
        };
        apply(vec![
            (key::node(ROOT_INO).to_vec(), root.encode()),
            (key::POOL.to_vec(), record.encode()),
        ]);
        self.database.renew(&tenure, Duration::ZERO).unwrap();
        // As the server's own housekeeping does in time.
        self.server.sql("VACUUM ANALYZE many.pairs").unwrap();
    }

    fn options(cache_bytes: usize) -> OwnedOptions {
        let mut options = OwnedOptions::default();
        options.cache_bytes = cache_bytes;
        options
    }

    fn store(&self) -> BlobStore {
        BlobStore::open(Box::new(Arc::clone(&self.device)), false).unwrap()
    }

    fn open(&self, owned: &Arc<Owned<Arc<Counting>>>) -> NvmeFs {
        let store = Shared(Arc::clone(owned));
        assemble(Box::new(store), vec![Some(self.store())], Options::default()).unwrap()
    }

    fn take(&self, cache_bytes: usize) -> Arc<Owned<Arc<Counting>>> {
        let owned = Owned::open(
            Arc::clone(&self.database),
            SHARD,
            &owner("server"),
            Pool::options(cache_bytes),
        );
        Arc::new(owned.unwrap())
    }
}

/// A store that the test sees, too.
struct Shared(Arc<Owned<Arc<Counting>>>);

impl MetaStore for Shared {
    fn begin(&self) -> Box<dyn ferrite_meta::Transaction + '_> {
        self.0.begin()
    }

    fn get(&self, key: &[u8]) -> ferrite_meta::Result<Option<Vec<u8>>> {
        self.0.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: ferrite_meta::Visit<'_>) -> ferrite_meta::Result<()> {
        self.0.scan(from, to, visit)
    }

    fn sync(&self) -> ferrite_meta::Result<()> {
        self.0.sync()
    }

    fn tally(&self, from: &[u8], to: &[u8]) -> ferrite_meta::Result<Option<(u64, u64)>> {
        self.0.tally(from, to)
    }

    fn may_answer(&self) -> ferrite_meta::Result<()> {
        MetaStore::may_answer(&*self.0)
    }

    fn lease_left(&self) -> std::time::Duration {
        self.0.lease_left()
    }

    fn lease_length(&self) -> std::time::Duration {
        self.0.lease_length()
    }

    fn give_up(&self) {
        self.0.give_up();
    }

    fn abandon(&self) {
        self.0.abandon();
    }
}

fn is_soak() -> bool {
    std::env::var_os("FERRITE_SOAK").is_some()
}

fn inodes_in_memory(fs: &NvmeFs) -> usize {
    fs.0.table.shards.iter().map(|shard| shard.lock().inodes.len()).sum()
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

/// A killed owner's pool with a million inodes is open in 5 s; its opening asks the database no more than it would for
/// a small one, apart from the counts.
#[test]
fn a_takeover_asks_for_little_however_many_inodes_there_are() {
    let dirs = if is_soak() { 1000 } else { 20 };
    let Some(pool) = Pool::new(dirs) else { return };
    let before = pool.database.requests.load(Ordering::Relaxed);
    let start = Instant::now();
    let owned = pool.take(64 << 20);
    let fs = pool.open(&owned);
    let opened = start.elapsed();
    let requests = pool.database.requests.load(Ordering::Relaxed) - before;
    let found = fs.lookup(SYSTEM, Pool::dir(dirs - 1), b"file-999").unwrap();
    assert_eq!(found.ino, pool.file(dirs - 1, 999));
    let space = fs.statfs(SYSTEM).unwrap();
    assert_eq!(space.inodes - space.inodes_free, pool.inodes());
    println!(
        "{} inodes: open after {opened:?} and {requests} requests, first lookup after {:?}",
        pool.inodes(),
        start.elapsed()
    );
    // Each 250,000 nodes are counted by one request.
    let counts = pool.inodes() / 250_000;
    assert!(requests <= 10 + counts, "{requests} requests");
    if is_soak() {
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    fs.close().unwrap();
}

/// A walk over everything, by lookups and listings, leaves no more in memory than the cache may have.
#[test]
fn a_walk_over_all_inodes_keeps_to_the_cache() {
    let (dirs, cache_bytes) = if is_soak() { (2000, 64 << 20) } else { (20, 1 << 20) };
    let Some(pool) = Pool::new(dirs) else { return };
    let owned = pool.take(cache_bytes);
    let fs = pool.open(&owned);
    let before = resident_bytes();
    let (mut seen, mut most, mut most_cached) = (0, 0, 0);
    for dir in 0..dirs {
        let ino = fs.lookup(SYSTEM, ROOT_INO, format!("d{dir}").as_bytes()).unwrap().ino;
        let mut names = Vec::new();
        fs.readdir_plus(SYSTEM, ino, 0, &mut |entry, attr| {
            assert_eq!(attr.unwrap().ino, entry.ino);
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
        for name in names.iter().step_by(if is_soak() { 10 } else { 1 }) {
            fs.lookup(SYSTEM, ino, name).unwrap();
        }
        seen += names.len() as u64;
        most = most.max(resident_bytes());
        most_cached = most_cached.max(owned.status().cache_bytes);
        let in_table = inodes_in_memory(&fs);
        assert!(in_table <= 8192, "{in_table} inodes in memory");
    }
    assert_eq!(seen, dirs * FILES_A_DIR);
    println!(
        "{seen} files: at most {most_cached} bytes cached of {cache_bytes}, {} MiB more resident than at the start",
        (most - before) >> 20
    );
    assert!(most_cached <= cache_bytes as u64, "{most_cached} bytes in the cache");
    if is_soak() {
        let limit = cache_bytes as u64 + BESIDE_CACHE_BYTES;
        assert!(most - before < limit, "{} bytes more resident", most - before);
    }
    fs.close().unwrap();
}

/// The rows are those of a sound pool, also for a check by somebody who does not own it.
#[test]
fn a_look_finds_a_pool_that_is_owned_sound_and_changes_nothing() {
    let Some(pool) = Pool::new(3) else { return };
    let owned = pool.take(16 << 20);
    let fs = pool.open(&owned);
    let mut options = Options::default();
    (options.read_only, options.inspect, options.look) = (true, true, true);
    let viewed = Viewed::open(Arc::clone(&pool.database), SHARD).unwrap();
    let look = assemble(Box::new(viewed), vec![None], options).unwrap();
    let space = look.statfs(SYSTEM).unwrap();
    assert_eq!(space.inodes - space.inodes_free, pool.inodes());
    let before = owned.status();
    let report = look.0.check_while_it_changes().unwrap();
    assert_eq!(report.findings, []);
    assert!(!report.is_changing);
    assert_eq!(report.inodes, pool.inodes());
    assert_eq!((owned.status().epoch, owned.status().seq), (before.epoch, before.seq));
    // While it changes: nothing that is merely newer counts.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (dir, name) = (Pool::dir(number % 3), format!("new-{number}"));
                fs.mkdir(SYSTEM, dir, name.as_bytes(), 0o755).unwrap();
                if number % 2 == 0 {
                    fs.rmdir(SYSTEM, dir, name.as_bytes()).unwrap();
                }
            }
        });
        for _ in 0..5 {
            let report = look.0.check_while_it_changes().unwrap();
            assert_eq!(report.findings, []);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Damage stays, and is found whatever else changes.
    let lost = key::node(pool.file(1, 5));
    let mut txn = owned.begin();
    txn.delete(&lost).unwrap();
    txn.commit().unwrap();
    let report = look.0.check_while_it_changes().unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert!(report.findings[0].what.contains("is missing"), "{:?}", report.findings);
    drop(look);
    fs.mkdir(SYSTEM, ROOT_INO, b"still", 0o755).unwrap();
    fs.close().unwrap();
}
