//! [`FerriteStore`], an [`ObjectStore`].

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use ferrite::{File, Fs, RenameMode};
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, RenameTargetMode,
    Result,
};

use crate::attributes;
use crate::failure::{self, blocking};
use crate::files::{self, Files};
use crate::list::{self, Walk};
use crate::publish::Temporary;
use crate::upload::{self, Upload};

/// Bytes of an object that a stream reads at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Objects that a stream of removals removes at the same time.
const REMOVALS: usize = 8;

/// Files of a file system as objects. Cheap to clone; clones are the same store.
///
/// Beyond what every store has: `put` with `Create` and `Update` is exact; `rename` and `rename_if_not_exists` are
/// atomic, and move no data; attributes of objects are kept, as extended attributes; removing an object also removes
/// the directories that it leaves empty. Tags are ignored.
#[derive(Clone)]
pub struct FerriteStore(Arc<Files>);

impl FerriteStore {
    /// The objects below the root of `fs`.
    pub fn new(fs: Fs) -> FerriteStore {
        FerriteStore::rooted(fs, "/")
    }

    /// The objects below a directory, which is created with the first object if it is missing.
    pub fn rooted(fs: Fs, dir: impl Into<PathBuf>) -> FerriteStore {
        FerriteStore(Arc::new(Files::new(fs, dir.into())))
    }

    pub(crate) fn files(&self) -> Arc<Files> {
        Arc::clone(&self.0)
    }

    /// Removes what uploads have left that began at least `age` ago and were neither completed nor aborted, because
    /// their process ended or the server was away. Returns the number of files. Call it now and then, with an age that
    /// no upload reaches.
    ///
    /// # Errors
    /// Those of the file system.
    pub async fn remove_uploads(&self, age: Duration) -> Result<usize> {
        let files = self.files();
        blocking(move || {
            let entries = match files.fs.read_dir_with_metadata(files.reserved()) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
                other => other.map_err(failure::generic)?,
            };
            let mut removed = 0;
            for entry in entries {
                let entry = entry.map_err(failure::generic)?;
                let (name, path) = (entry.file_name(), entry.path());
                // The names of uploads are numbers.
                if !name.as_encoded_bytes()[0].is_ascii_hexdigit() {
                    continue;
                }
                let changed = entry.metadata().and_then(|found| found.modified());
                let is_old = |time| SystemTime::now().duration_since(time).is_ok_and(|since| since >= age);
                if changed.is_ok_and(is_old) && files.fs.remove_file(path).is_ok() {
                    removed += 1;
                }
            }
            Ok(removed)
        })
        .await
    }
}

impl fmt::Display for FerriteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ferrite({})", self.0.root.display())
    }
}

impl fmt::Debug for FerriteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FerriteStore")
            .field("fs", &self.0.fs)
            .field("root", &self.0.root)
            .finish_non_exhaustive()
    }
}

/// Reads a range of an object piece by piece.
fn stream(location: Path, file: File, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
    let file = Arc::new(file);
    stream::try_unfold((file, range.start), move |(file, start)| {
        let (location, end) = (location.clone(), range.end);
        async move {
            if start >= end {
                return Ok(None);
            }
            let next = end.min(start + CHUNK_BYTES);
            let source = Arc::clone(&file);
            let bytes = blocking(move || files::read(&location, &source, start..next)).await?;
            Ok(Some((bytes, (file, next))))
        }
    })
    .boxed()
}

#[async_trait]
impl ObjectStore for FerriteStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let (files, location) = (self.files(), location.clone());
        blocking(move || {
            files.file(&location)?;
            let (mut temporary, file) = Temporary::create(&files)?;
            attributes::set(&file, &options.attributes)?;
            upload::write(&file, &payload, 0)?;
            let result = upload::result_of(&file)?;
            temporary.publish(&location, &options.mode)?;
            Ok(result)
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (files, location) = (self.files(), location.clone());
        let upload = blocking(move || Upload::begin(&files, location, &options.attributes)).await?;
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (files, place) = (self.files(), location.clone());
        let (file, meta, attributes, range) = blocking(move || {
            let (file, found) = files.open(&place)?;
            let meta = files::meta(place, &found)?;
            options.check_preconditions(&meta)?;
            let range = match &options.range {
                Some(range) => range.as_range(meta.size).map_err(failure::generic)?,
                None => 0..meta.size,
            };
            let attributes = attributes::get(&file)?;
            let range = if options.head { 0..0 } else { range };
            Ok((file, meta, attributes, range))
        })
        .await?;
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream(location.clone(), file, range.clone())),
            meta,
            range,
            attributes,
            extensions: Default::default(),
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (files, location, ranges) = (self.files(), location.clone(), ranges.to_vec());
        blocking(move || {
            let (file, found) = files.open(&location)?;
            let read = |range: Range<u64>| {
                let range = object_store::GetRange::Bounded(range).as_range(found.len());
                files::read(&location, &file, range.map_err(failure::generic)?)
            };
            ranges.into_iter().map(read).collect()
        })
        .await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let files = self.files();
        locations
            .map(move |location| {
                let files = Arc::clone(&files);
                async move {
                    let location = location?;
                    blocking(move || {
                        files.remove(&location)?;
                        Ok(location)
                    })
                    .await
                }
            })
            .buffered(REMOVALS)
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let walk = Walk::new(self.files(), prefix.cloned().unwrap_or_default());
        stream::try_unfold(walk, |mut walk| {
            blocking(move || {
                let batch = walk.batch()?;
                Ok((!batch.is_empty()).then_some((batch, walk)))
            })
        })
        .map_ok(|batch| stream::iter(batch.into_iter().map(Ok)))
        .try_flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (files, prefix) = (self.files(), prefix.cloned().unwrap_or_default());
        blocking(move || list::one_level(&files, &prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (files, from, to) = (self.files(), from.clone(), to.clone());
        blocking(move || {
            let (source, _) = files.open(&from)?;
            files.file(&to)?;
            let (mut temporary, target) = Temporary::create(&files)?;
            attributes::set(&target, &attributes::get(&source)?)?;
            upload::copy(&from, &source, &target, 0)?;
            let mode = match options.mode {
                CopyMode::Overwrite => PutMode::Overwrite,
                CopyMode::Create => PutMode::Create,
            };
            temporary.publish(&to, &mode)
        })
        .await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let (files, from, to) = (self.files(), from.clone(), to.clone());
        let how = match options.target_mode {
            RenameTargetMode::Overwrite => RenameMode::Replace,
            RenameTargetMode::Create => RenameMode::NoReplace,
        };
        blocking(move || files.rename(&from, &to, how)).await
    }
}
