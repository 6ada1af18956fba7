//! Requests for objects below a prefix.
//!
//! Contents: [`Bucket`], which any number of threads share; [`Started`], a request that is under way; [`Requests`], how
//! many there were.
//!
//! Requests run on threads of the bucket's own, some at a time; a caller waits for the ones that it wants. A request
//! ends after [`REQUEST_MAX`], also if the service never answers.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{GetOptions, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::address::Address;
use crate::connect::{self, ConnectOptions};
use crate::error::{Error, Result, of_store, refused_range};
use crate::hedge::Hedge;

/// The longest that a request takes, with its repetitions.
pub const REQUEST_MAX: Duration = Duration::from_secs(120);
/// Requests under way at once of those that readers wait for, and of the others; more wait for their turn.
const READS_MAX: usize = 32;
const CHANGES_MAX: usize = 16;
/// Pauses between attempts to store an object, which repeat the request themselves.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// Attempts of one request to store an object.
const PUTS_MAX: usize = 4;
/// Objects of one request that deletes.
const DELETED_AT_ONCE: usize = 1000;
/// Threads that run requests. Their work is mostly encryption and checksums.
const THREADS: usize = 2;

/// The objects below a prefix. Clones are the same bucket.
#[derive(Clone)]
pub struct Bucket(Arc<Inner>);

struct Inner {
    store: Arc<dyn ObjectStore>,
    place: String,
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
    reads: Semaphore,
    changes: Semaphore,
    /// Objects that are in memory to be stored.
    objects: Semaphore,
    requests: Counters,
    /// Of reads of whole objects, and of parts, which take other times.
    hedge: Hedge,
    parts_hedge: Hedge,
    /// The service does not know conditional requests.
    is_unconditional: AtomicBool,
    /// It does not know requests for ranges.
    has_no_ranges: AtomicBool,
    /// Listings are in the order of names.
    is_ordered: bool,
}

#[derive(Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    deletes: AtomicU64,
    lists: AtomicU64,
    failures: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

/// How many requests there were, and what they carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Objects stored.
    pub puts: u64,
    /// Objects read.
    pub gets: u64,
    /// Reads that were sent a second time, because the first took unusually long; they are among those above.
    pub hedges: u64,
    /// Requests to delete, each of up to 1,000 objects.
    pub deletes: u64,
    /// Pages of names.
    pub lists: u64,
    /// Requests that failed, with all their repetitions.
    pub failures: u64,
    /// Bytes of objects stored.
    pub sent_bytes: u64,
    /// Bytes of objects read.
    pub received_bytes: u64,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name, without the prefix of the bucket's place.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

/// A request that is under way. Dropping it does not end it.
#[derive(Debug)]
pub struct Started<T>(Receiver<Result<T>>);

impl<T> Started<T> {
    /// Waits for it.
    ///
    /// # Errors
    /// Those of the request; [`Error::Failed`] if it was ended with its bucket.
    pub fn wait(self) -> Result<T> {
        // A request has its turn first, and others before it have theirs.
        self.wait_for(REQUEST_MAX * 4)
    }

    /// The same, for this time at most.
    ///
    /// # Errors
    /// Also if it takes longer; it is not ended then.
    pub fn wait_for(self, time: Duration) -> Result<T> {
        match self.0.recv_timeout(time) {
            Ok(done) => done,
            Err(RecvTimeoutError::Timeout) => Err(Error::Failed(
                "the service or requests before this one take too long".into(),
            )),
            Err(RecvTimeoutError::Disconnected) => Err(closed()),
        }
    }

    /// Its outcome, if it has ended. Does not wait; gives the outcome once.
    pub fn ended(&self) -> Option<Result<T>> {
        match self.0.try_recv() {
            Ok(done) => Some(done),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(closed())),
        }
    }
}

fn closed() -> Error {
    Error::Failed("the bucket was closed".into())
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bucket").field(&self.0.place).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The last handle may be dropped by one of its own threads, which must not wait for itself.
            runtime.shutdown_background();
        }
    }
}

impl Bucket {
    /// The bucket at an address. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Refused`]: the options cannot be used, or the directory does not exist.
    pub fn connect(address: &Address, options: &ConnectOptions) -> Result<Bucket> {
        let place = address.to_string();
        match address {
            Address::S3 { bucket, prefix } => {
                let store = connect::client(&place, bucket, options)?;
                match prefix.is_empty() {
                    true => Bucket::over(Arc::new(store), &place),
                    false => Bucket::over(Arc::new(PrefixStore::new(store, prefix.as_str())), &place),
                }
            }
            Address::Directory(path) => {
                let store = object_store::local::LocalFileSystem::new_with_prefix(path)
                    .map_err(|error| Error::Refused(format!("{place}: {error}; make the directory first")))?;
                Bucket::of(
                    Arc::new(store.with_fsync(true).with_automatic_cleanup(true)),
                    &place,
                    false,
                )
            }
        }
    }

    /// Any store; `place` is its name in messages.
    ///
    /// # Errors
    /// [`Error::Failed`]: the machine has no threads for requests.
    pub fn over(store: Arc<dyn ObjectStore>, place: &str) -> Result<Bucket> {
        Bucket::of(store, place, true)
    }

    fn of(store: Arc<dyn ObjectStore>, place: &str, is_ordered: bool) -> Result<Bucket> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("ferrite-s3")
            .enable_all()
            .build()
            .map_err(|error| Error::Failed(format!("{place}: no threads for requests: {error}")))?;
        Ok(Bucket(Arc::new(Inner {
            store,
            place: place.into(),
            runtime: Some(runtime),
            reads: Semaphore::new(READS_MAX),
            changes: Semaphore::new(CHANGES_MAX),
            objects: Semaphore::new(CHANGES_MAX),
            requests: Counters::default(),
            hedge: Hedge::default(),
            parts_hedge: Hedge::default(),
            is_unconditional: AtomicBool::new(false),
            has_no_ranges: AtomicBool::new(false),
            is_ordered,
        })))
    }

    /// Its name in messages.
    pub fn place(&self) -> &str {
        &self.0.place
    }

    /// The requests so far.
    pub fn requests(&self) -> Requests {
        let of = &self.0.requests;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Requests {
            puts: get(&of.puts),
            gets: get(&of.gets),
            hedges: self.0.hedge.seconds() + self.0.parts_hedge.seconds(),
            deletes: get(&of.deletes),
            lists: get(&of.lists),
            failures: get(&of.failures),
            sent_bytes: get(&of.sent_bytes),
            received_bytes: get(&of.received_bytes),
        }
    }

    /// Runs a request on the bucket's threads.
    pub fn start<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Started<T> {
        let (done, wait) = sync_channel(1);
        if let Some(runtime) = &self.0.runtime {
            runtime.spawn(async move {
                let _ = done.send(work.await);
            });
        }
        Started(wait)
    }

    /// Sends one request, when it has its turn, and ends it when its time is over.
    async fn send<T>(
        &self,
        turns: &Semaphore,
        what: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let place = self.place();
        let turn = turns.acquire().await;
        let _turn = turn.map_err(|_| Error::Failed(format!("{place}: closed")))?;
        let done = match tokio::time::timeout(REQUEST_MAX, request).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => of_store(place, what, &error),
            Err(_) => Error::Failed(format!(
                "{place}: no answer within {} s ({what})",
                REQUEST_MAX.as_secs()
            )),
        };
        if !matches!(done, Error::NotFound(_) | Error::Exists(_)) {
            self.0.requests.failures.fetch_add(1, Ordering::Relaxed);
        }
        Err(done)
    }

    /// Stores an object that does not exist, or exists with the same bytes already. Durable when it returns.
    ///
    /// # Errors
    /// [`Error::Exists`]: it has other bytes. After all others it may be there, or come.
    pub async fn put(&self, name: &str, object: PutPayload) -> Result<()> {
        let mut pause = PAUSE_MIN;
        for _ in 1..PUTS_MAX {
            match self.put_once(name, object.clone()).await {
                // A connection that broke: the client does not repeat a conditional request, which finds here what it
                // has stored.
                Err(Error::Failed(why)) => tracing::debug!(name, why, "an object is sent again"),
                done => return done,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.put_once(name, object).await
    }

    async fn put_once(&self, name: &str, object: PutPayload) -> Result<()> {
        let path = Path::from(name);
        self.0.requests.puts.fetch_add(1, Ordering::Relaxed);
        self.0
            .requests
            .sent_bytes
            .fetch_add(object.content_length() as u64, Ordering::Relaxed);
        if !self.0.is_unconditional.load(Ordering::Relaxed) {
            let create = self.0.store.put_opts(&path, object.clone(), PutMode::Create.into());
            let done = self.send(&self.0.changes, name, async {
                match create.await {
                    Err(
                        error @ (object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. }),
                    ) => {
                        tracing::warn!(place = self.place(), %error, "the service has no conditional requests");
                        Ok(false)
                    }
                    done => done.map(|_| true),
                }
            });
            match done.await {
                Ok(true) => return Ok(()),
                Ok(false) => self.0.is_unconditional.store(true, Ordering::Relaxed),
                // A request that was repeated finds what it has stored.
                Err(error @ Error::Exists(_)) => {
                    let found = self.get(name, object.content_length() as u64).await;
                    return match found {
                        Ok(found) if found == Bytes::from(object) => Ok(()),
                        Ok(_) | Err(Error::Damaged(_)) => Err(error),
                        Err(other) => Err(other),
                    };
                }
                Err(error) => return Err(error),
            }
        }
        let put = self.0.store.put(&path, object);
        self.send(&self.0.changes, name, put).await.map(drop)
    }

    /// Stores an object as [`Self::put`] does, again and again until that succeeds. `object` gives it when it has its
    /// turn, so only some objects are in memory because they are sent; `None` ends the attempts. `heard` gets the
    /// outcome of each attempt, and says whether to try again after a failure.
    pub(crate) fn keep_putting(
        &self,
        name: String,
        object: impl Fn() -> Result<Option<PutPayload>> + Send + Sync + 'static,
        mut heard: impl FnMut(Result<()>) -> bool + Send + 'static,
    ) {
        let bucket = self.clone();
        self.start(async move {
            let mut pause = PAUSE_MIN;
            while let Some(done) = bucket.put_in_turn(&name, &object).await {
                let is_done = done.is_ok();
                if !heard(done) || is_done {
                    break;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Ok(())
        });
    }

    /// `None`: there is no object any more.
    async fn put_in_turn(
        &self,
        name: &str,
        object: &(impl Fn() -> Result<Option<PutPayload>> + Sync),
    ) -> Option<Result<()>> {
        let Ok(_turn) = self.0.objects.acquire().await else {
            return Some(Err(Error::Failed(format!("{}: closed", self.place()))));
        };
        match tokio::task::block_in_place(object) {
            Ok(Some(object)) => Some(self.put(name, object).await),
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Reads an object of at most so many bytes. One that takes unusually long is read twice at once.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Damaged`]: it is longer; errors of the service.
    pub async fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        let path = Path::from(name);
        let read = self.0.hedge.read(|| self.read_once(&path, bytes_max));
        let Some(object) = self.send(&self.0.reads, name, read).await? else {
            return Err(Error::Damaged(format!(
                "{}/{name} is longer than {bytes_max} bytes",
                self.place()
            )));
        };
        self.0
            .requests
            .received_bytes
            .fetch_add(object.len() as u64, Ordering::Relaxed);
        Ok(object)
    }

    /// `None`: it is longer.
    async fn read_once(&self, path: &Path, bytes_max: u64) -> object_store::Result<Option<Bytes>> {
        self.0.requests.gets.fetch_add(1, Ordering::Relaxed);
        let found = self.0.store.get(path).await?;
        let size = found.meta.size;
        body(found, size, bytes_max).await
    }

    /// `None`: the object has no such bytes, or the service does not know ranges.
    async fn read_range_once(&self, path: &Path, bytes: Range<u64>) -> object_store::Result<Option<Bytes>> {
        self.0.requests.gets.fetch_add(1, Ordering::Relaxed);
        let wanted = bytes.end - bytes.start;
        let options = GetOptions::new().with_range(Some(bytes));
        match self.0.store.get_opts(path, options).await {
            Ok(found) => body(found, wanted, wanted).await,
            Err(error) => match refused_range(&error) {
                None => Err(error),
                Some(is_for_ever) => {
                    if is_for_ever && !self.0.has_no_ranges.swap(true, Ordering::Relaxed) {
                        tracing::warn!(place = self.place(), %error, "the service has no ranges of objects");
                    }
                    Ok(None)
                }
            },
        }
    }

    /// Whether parts of objects can be read, as far as is known.
    pub(crate) fn has_ranges(&self) -> bool {
        !self.0.has_no_ranges.load(Ordering::Relaxed)
    }

    /// Reads these bytes of an object. One that takes unusually long is read twice at once.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Damaged`]: the object is shorter; errors of the service.
    pub async fn get_range(&self, name: &str, bytes: Range<u64>) -> Result<Bytes> {
        let path = Path::from(name);
        let read = self.0.parts_hedge.read(|| self.read_range_once(&path, bytes.clone()));
        let found = self.send(&self.0.reads, name, read).await?;
        let found = found.filter(|found| found.len() as u64 == bytes.end - bytes.start);
        let Some(found) = found else {
            return Err(Error::Damaged(format!(
                "{}/{name} has no bytes {} to {}",
                self.place(),
                bytes.start,
                bytes.end
            )));
        };
        self.0
            .requests
            .received_bytes
            .fetch_add(found.len() as u64, Ordering::Relaxed);
        Ok(found)
    }

    /// Deletes objects, some at a time. One that does not exist is as good as deleted.
    ///
    /// # Errors
    /// Errors of the service: any of them may be left.
    pub async fn delete(&self, names: &[String]) -> Result<()> {
        for names in names.chunks(DELETED_AT_ONCE) {
            self.0.requests.deletes.fetch_add(1, Ordering::Relaxed);
            let paths: Vec<_> = names.iter().map(|name| Ok(Path::from(name.as_str()))).collect();
            let delete = async {
                let mut done = self.0.store.delete_stream(futures_util::stream::iter(paths).boxed());
                while let Some(one) = done.next().await {
                    match one {
                        Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            };
            self.send(&self.0.changes, "a request to delete", delete).await?;
        }
        Ok(())
    }

    /// Up to `count` objects whose names begin with `folder` and a slash, or all of them if it is empty: those behind
    /// the name `after`, in the order of their names.
    ///
    /// # Errors
    /// Errors of the service.
    pub async fn list(&self, folder: &str, after: &str, count: usize) -> Result<Vec<Listed>> {
        self.0.requests.lists.fetch_add(1, Ordering::Relaxed);
        let prefix = (!folder.is_empty()).then(|| Path::from(folder));
        let list = async {
            let names = self.0.store.list_with_offset(prefix.as_ref(), &Path::from(after));
            if self.0.is_ordered {
                return names.take(count).try_collect().await;
            }
            let mut found: Vec<_> = names.try_collect().await?;
            found.sort_by(|one, other| one.location.cmp(&other.location));
            found.truncate(count);
            Ok(found)
        };
        let found = self.send(&self.0.changes, "a listing", list).await?;
        let listed = |meta: object_store::ObjectMeta| Listed {
            name: meta.location.as_ref().to_owned(),
            bytes: meta.size,
        };
        Ok(found.into_iter().map(listed).collect())
    }

    /// [`Self::put`], waited for.
    ///
    /// # Errors
    /// As of [`Self::put`].
    pub fn put_now(&self, name: &str, object: Bytes) -> Result<()> {
        let (bucket, name) = (self.clone(), name.to_owned());
        self.start(async move { bucket.put(&name, object.into()).await }).wait()
    }

    /// [`Self::get`], waited for.
    ///
    /// # Errors
    /// As of [`Self::get`].
    pub fn get_now(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        let (bucket, name) = (self.clone(), name.to_owned());
        self.start(async move { bucket.get(&name, bytes_max).await }).wait()
    }

    /// [`Self::delete`], begun.
    pub fn start_delete(&self, names: Vec<String>) -> Started<()> {
        let bucket = self.clone();
        self.start(async move { bucket.delete(&names).await })
    }

    /// [`Self::delete`], waited for.
    ///
    /// # Errors
    /// As of [`Self::delete`].
    pub fn delete_now(&self, names: Vec<String>) -> Result<()> {
        self.start_delete(names).wait()
    }

    /// [`Self::list`], waited for.
    ///
    /// # Errors
    /// As of [`Self::list`].
    pub fn list_now(&self, folder: &str, after: &str, count: usize) -> Result<Vec<Listed>> {
        let (bucket, folder, after) = (self.clone(), folder.to_owned(), after.to_owned());
        self.start(async move { bucket.list(&folder, &after, count).await })
            .wait()
    }
}

/// The bytes of an answer of about `expected` bytes. `None`: it has more than `bytes_max`.
async fn body(found: GetResult, expected: u64, bytes_max: u64) -> object_store::Result<Option<Bytes>> {
    let mut object = BytesMut::with_capacity(expected.min(bytes_max) as usize);
    let mut parts = found.into_stream();
    while let Some(part) = parts.try_next().await? {
        if (object.len() + part.len()) as u64 > bytes_max {
            return Ok(None);
        }
        object.extend_from_slice(&part);
    }
    Ok(Some(object.freeze()))
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn buckets() -> (tempfile::TempDir, Vec<Bucket>) {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("file://{}", dir.path().display()).parse().unwrap();
        let local = Bucket::connect(&address, &ConnectOptions::default()).unwrap();
        let memory = Bucket::over(Arc::new(InMemory::new()), "memory").unwrap();
        (dir, vec![local, memory])
    }

    #[test]
    fn objects_are_stored_once_read_listed_and_deleted() {
        for bucket in buckets().1 {
            bucket.put_now("a/1", b"one"[..].into()).unwrap();
            bucket.put_now("a/2", b"two!"[..].into()).unwrap();
            bucket.put_now("b", Bytes::new()).unwrap();
            bucket.put_now("a/1", b"one"[..].into()).unwrap();
            let other = bucket.put_now("a/1", b"other"[..].into()).unwrap_err();
            assert!(matches!(other, Error::Exists(_)), "{other}");
            assert_eq!(bucket.get_now("a/1", 3).unwrap(), b"one"[..]);
            assert!(matches!(bucket.get_now("a/2", 3), Err(Error::Damaged(_))));
            assert!(matches!(bucket.get_now("c", 3), Err(Error::NotFound(_))));
            let part = |name: &'static str, bytes: Range<u64>| {
                let own = bucket.clone();
                bucket.start(async move { own.get_range(name, bytes).await }).wait()
            };
            assert_eq!(part("a/2", 1..3).unwrap(), b"wo"[..]);
            for beyond in [2..5, 4..5, 7..8] {
                assert!(matches!(part("a/2", beyond), Err(Error::Damaged(_))));
            }
            assert!(matches!(part("c", 0..3), Err(Error::NotFound(_))));
            let listed = |after, count| {
                let names = bucket.list_now("a", after, count).unwrap();
                names.into_iter().map(|one| (one.name, one.bytes)).collect::<Vec<_>>()
            };
            let (one, two) = (("a/1".to_owned(), 3), ("a/2".to_owned(), 4));
            assert_eq!(listed("", 10), [one, two.clone()]);
            assert_eq!(listed("a/1", 10), [two]);
            assert_eq!(listed("", 1).len(), 1);
            assert_eq!(bucket.list_now("", "", 10).unwrap().len(), 3);
            bucket
                .delete_now(vec!["a/1".into(), "missing".into(), "b".into()])
                .unwrap();
            assert_eq!(bucket.list_now("", "", 10).unwrap().len(), 1);
            assert_eq!(bucket.requests().failures, 0);
        }
    }

    /// A thread of any other runtime may wait, and the last handle may go on one of the bucket's own threads.
    #[test]
    fn buckets_work_inside_other_runtimes_and_end_anywhere() {
        let bucket = Bucket::over(Arc::new(InMemory::new()), "memory").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { bucket.put_now("x", b"1"[..].into()).unwrap() });
        let own = bucket.clone();
        let started = bucket.start(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(own);
            Ok(())
        });
        drop(bucket);
        let _ = started.wait();
    }

    #[test]
    fn a_missing_directory_is_named() {
        let address = "file:///nowhere/at/all".parse().unwrap();
        let error = Bucket::connect(&address, &ConnectOptions::default()).unwrap_err();
        assert!(error.to_string().contains("make the directory first"), "{error}");
    }
}
