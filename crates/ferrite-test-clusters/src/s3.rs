//! [`S3`]: a service that speaks the protocol of S3, with its objects in a temporary folder.
//!
//! It runs in threads of this process (s3s, s3s-fs). s3s-fs is lax about two things, which are checked here: buckets
//! exist, and an object that must not exist does not. It also reads objects in pieces of 4 KiB, each by another thread,
//! and to their end whatever range is wanted, so that measurements would show little else; here a read is one of its
//! range. A test may have it fail: see [`S3::plan`].

use std::convert::Infallible;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::error::{Error, Result};
use crate::folder::Folder;

/// A request, as a plan sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Request {
    /// `GET`, `PUT`, `POST`, `DELETE` or `HEAD`.
    pub method: String,
    /// Bucket and name of the object, after a slash.
    pub path: String,
}

/// How a request goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum S3Fault {
    /// It is answered with this status and this code of an error, and not carried out.
    Refused(u16, &'static str),
    /// It is carried out, and answered with an error of the service.
    AnswerLost,
    /// It is never answered.
    Silent,
}

type Plan = Box<dyn FnMut(&S3Request) -> Option<S3Fault> + Send>;

/// See the head of this module. Dropping it ends it, and removes its objects.
pub struct S3 {
    port: u16,
    folder: Folder,
    plan: Arc<Mutex<Option<Plan>>>,
    runtime: Option<Runtime>,
}

impl Drop for S3 {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl S3 {
    /// The key that it accepts.
    const ACCESS_KEY: &str = "test-access-key";
    /// The secret of the key.
    const SECRET_KEY: &str = "test-secret-key";

    /// Starts one with a bucket.
    ///
    /// # Errors
    ///
    /// The machine has no port, thread or space left.
    pub fn start(bucket: &str) -> Result<S3> {
        let folder = Folder::create("ferrite-s3-")?;
        let failed = |what: String| Error::io(Path::new("a service of S3"), &std::io::Error::other(what));
        std::fs::create_dir(folder.path().join(bucket)).map_err(|error| Error::io(folder.path(), &error))?;
        let files = s3s_fs::FileSystem::new(folder.path()).map_err(|error| failed(format!("{error:?}")))?;
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(S3::ACCESS_KEY, S3::SECRET_KEY));
        let service = builder.build();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("test-s3")
            .enable_all()
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.map_err(|error| failed(error.to_string()))?;
        let port = listener.local_addr().map_err(|error| failed(error.to_string()))?.port();
        let plan: Arc<Mutex<Option<Plan>>> = Arc::default();
        let files = Arc::from(folder.path());
        runtime.spawn(accept(listener, service, files, Arc::clone(&plan)));
        Ok(S3 {
            port,
            folder,
            plan,
            runtime: Some(runtime),
        })
    }

    /// The URL of the service.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The key that it accepts, and the secret of it.
    pub fn key() -> (&'static str, &'static str) {
        (S3::ACCESS_KEY, S3::SECRET_KEY)
    }

    /// A file with its keys, in the form of `~/.aws/credentials`.
    pub fn keys(&self) -> String {
        format!(
            "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n",
            S3::ACCESS_KEY,
            S3::SECRET_KEY
        )
    }

    /// The folder with the buckets, in which objects are files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Asks `plan` for each request from now on whether it goes wrong.
    pub fn plan(&self, plan: impl FnMut(&S3Request) -> Option<S3Fault> + Send + 'static) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(plan));
    }
}

async fn accept(listener: TcpListener, service: S3Service, files: Arc<Path>, plan: Arc<Mutex<Option<Plan>>>) {
    while let Ok((socket, _)) = listener.accept().await {
        let (service, files, plan) = (service.clone(), Arc::clone(&files), Arc::clone(&plan));
        tokio::spawn(async move {
            let answer = hyper::service::service_fn(move |request| {
                answer(request, service.clone(), Arc::clone(&files), Arc::clone(&plan))
            });
            // A client that leaves is no failure.
            let _ = Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(socket), answer)
                .await;
        });
    }
}

fn error(status: u16, code: &str) -> s3s::HttpResponse {
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>a test wants it</Message></Error>");
    let mut response = s3s::HttpResponse::new(s3s::Body::from(text));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// An answer without the server, once all of the request has come.
async fn refuse(request: hyper::Request<hyper::body::Incoming>, status: u16, code: &str) -> s3s::HttpResponse {
    // A client that leaves does not hear it.
    let _ = request.into_body().collect().await;
    error(status, code)
}

async fn answer(
    request: hyper::Request<hyper::body::Incoming>,
    service: S3Service,
    files: Arc<Path>,
    plan: Arc<Mutex<Option<Plan>>>,
) -> std::result::Result<s3s::HttpResponse, Infallible> {
    let seen = S3Request {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    };
    let fault = {
        let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.as_mut().and_then(|plan| plan(&seen))
    };
    match fault {
        Some(S3Fault::Refused(status, code)) => return Ok(refuse(request, status, code).await),
        Some(S3Fault::Silent) => std::future::pending::<()>().await,
        Some(S3Fault::AnswerLost) | None => {}
    }
    let file = files.join(seen.path.trim_start_matches('/'));
    let bucket = file.strip_prefix(&files).ok().and_then(|path| path.iter().next());
    if !bucket.is_some_and(|bucket| files.join(bucket).is_dir()) {
        return Ok(refuse(request, 404, "NoSuchBucket").await);
    }
    if seen.method == "PUT" && request.headers().contains_key("if-none-match") && file.exists() {
        return Ok(refuse(request, 412, "PreconditionFailed").await);
    }
    let answer = hyper::service::Service::call(&service, request).await;
    Ok(match (fault, answer) {
        (None, Ok(answer)) if seen.method == "GET" => with_content(answer, file).await,
        (None, Ok(answer)) => answer,
        _ => error(500, "InternalError"),
    })
}

/// The answer to a permitted read of an object, with its content read at once.
async fn with_content(mut answer: s3s::HttpResponse, file: PathBuf) -> s3s::HttpResponse {
    let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
    let is_whole = answer.status() == hyper::StatusCode::OK;
    let start = match header("content-range") {
        Some(range) => range
            .strip_prefix("bytes ")
            .and_then(|range| range.split('-').next()?.parse().ok()),
        None => is_whole.then_some(0),
    };
    let len = header("content-length").and_then(|len| len.parse().ok());
    let (Some(start), Some(len)) = (start, len) else {
        return answer;
    };
    let read = move || {
        let mut bytes = vec![0; len];
        File::open(file)?.read_exact_at(&mut bytes, start)?;
        std::io::Result::Ok(bytes)
    };
    // Else it is a list, or what the service says is right.
    if let Ok(Ok(bytes)) = tokio::task::spawn_blocking(read).await {
        *answer.body_mut() = s3s::Body::from(bytes);
    }
    answer
}
