//! A bucket in memory that outlives its clients, fails on demand, and can be searched.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ferrite_slices::Bucket;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

/// A request, as a plan sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Put,
    Get,
    Delete,
}

/// The fate of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    /// It is not carried out, and fails.
    Lost,
    /// It is carried out, and fails.
    AnswerLost,
    /// It fails as one of a service that refuses the caller.
    Refused,
    /// It waits until the plan changes.
    Held,
}

type Plan = Box<dyn FnMut(Request) -> Fate + Send>;

/// The bucket.
pub(crate) struct Memory {
    inner: InMemory,
    plan: Mutex<Option<Plan>>,
    /// How often the plan has changed.
    plans: Mutex<u64>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a bucket in memory")
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

fn failed(text: &str) -> object_store::Error {
    object_store::Error::Generic {
        store: "memory",
        source: text.into(),
    }
}

impl Memory {
    pub(crate) fn new() -> Arc<Memory> {
        Arc::new(Memory {
            inner: InMemory::new(),
            plan: Mutex::default(),
            plans: Mutex::default(),
        })
    }

    /// A client of its own.
    pub(crate) fn client(self: &Arc<Memory>) -> Bucket {
        Bucket::over(Arc::clone(self) as _, "s3://test").unwrap()
    }

    pub(crate) fn plan(&self, plan: impl FnMut(Request) -> Fate + Send + 'static) {
        *self.plan.lock() = Some(Box::new(plan));
        *self.plans.lock() += 1;
    }

    pub(crate) fn mend(&self) {
        self.plan(|_| Fate::Done);
    }

    /// All objects, with their names.
    pub(crate) fn objects(&self) -> Vec<(String, Vec<u8>)> {
        futures_executor(async {
            let mut found = Vec::new();
            let mut names = self.inner.list(None);
            while let Some(meta) = names.next().await {
                let path = meta.unwrap().location;
                let bytes = self.inner.get(&path).await.unwrap().bytes().await.unwrap();
                found.push((path.to_string(), bytes.to_vec()));
            }
            found
        })
    }

    /// Stores other bytes under a name, or removes them.
    pub(crate) fn replace(&self, name: &str, bytes: Option<Vec<u8>>) {
        futures_executor(async {
            let path = Path::from(name);
            match bytes {
                Some(bytes) => drop(self.inner.put(&path, bytes.into()).await.unwrap()),
                None => self.inner.delete(&path).await.unwrap(),
            }
        });
    }

    async fn fate(&self, request: Request) -> Fate {
        loop {
            let fate = self.plan.lock().as_mut().map_or(Fate::Done, |plan| plan(request));
            if fate != Fate::Held {
                return fate;
            }
            // A thread of the client waits; it has others.
            let before = *self.plans.lock();
            tokio_pause(|| *self.plans.lock() != before).await;
        }
    }
}

/// Waits without a runtime of its own: the client's threads run other requests meanwhile.
async fn tokio_pause(is_over: impl Fn() -> bool) {
    while !is_over() {
        let mut is_first = true;
        std::future::poll_fn(|context| {
            if std::mem::take(&mut is_first) {
                let waker = context.waker().clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(5));
                    waker.wake();
                });
                return std::task::Poll::Pending;
            }
            std::task::Poll::Ready(())
        })
        .await;
    }
}

/// Runs requests that never wait.
fn futures_executor<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(done) = work.as_mut().poll(&mut context) {
            return done;
        }
    }
}

#[async_trait]
impl ObjectStore for Memory {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        match self.fate(Request::Put).await {
            Fate::Lost => Err(failed("the request was lost")),
            Fate::Refused => Err(failed("<Code>InvalidAccessKeyId</Code>")),
            Fate::AnswerLost => {
                self.inner.put_opts(at, payload, options).await?;
                Err(failed("the answer was lost"))
            }
            Fate::Done | Fate::Held => self.inner.put_opts(at, payload, options).await,
        }
    }

    async fn put_multipart_opts(&self, at: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        match self.fate(Request::Get).await {
            Fate::Lost | Fate::AnswerLost => Err(failed("the answer was lost")),
            Fate::Refused => Err(failed("<Code>InvalidAccessKeyId</Code>")),
            Fate::Done | Fate::Held => self.inner.get_opts(at, options).await,
        }
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<bytes::Bytes>> {
        self.inner.get_ranges(at, ranges).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let fate = self
            .plan
            .lock()
            .as_mut()
            .map_or(Fate::Done, |plan| plan(Request::Delete));
        match fate {
            Fate::Done | Fate::Held => self.inner.delete_stream(paths),
            _ => futures_util::stream::once(async { Err(failed("the request was lost")) }).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
