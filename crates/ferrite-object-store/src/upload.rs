//! Uploads in parts.
//!
//! Contents: [`Upload`], whose parts go straight to their places in one file; and what all puts do with content.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use ferrite::File;
use object_store::path::Path;
use object_store::{Attributes, Error, MultipartUpload, PutMode, PutPayload, PutResult, Result, UploadPart};

use crate::failure::{self, blocking};
use crate::files::{Files, e_tag};
use crate::publish::Temporary;
use crate::{attributes, files};

/// Bytes that a copy transfers at a time.
pub(crate) const COPY_BYTES: u64 = 8 << 20;

/// The result of a put of this file.
pub(crate) fn result_of(file: &File) -> Result<PutResult> {
    Ok(PutResult {
        e_tag: Some(e_tag(&file.metadata().map_err(failure::generic)?)),
        version: None,
        extensions: Default::default(),
    })
}

/// Writes a payload at an offset.
pub(crate) fn write(file: &File, payload: &PutPayload, mut offset: u64) -> Result<()> {
    for bytes in payload {
        file.write_all_at(bytes, offset).map_err(failure::generic)?;
        offset += bytes.len() as u64;
    }
    Ok(())
}

/// Appends the whole content of `source` at `offset`; returns where it ends.
pub(crate) fn copy(location: &Path, source: &File, target: &File, mut offset: u64) -> Result<u64> {
    let len = source.metadata().map_err(failure::generic)?.len();
    let mut from = 0;
    while from < len {
        let to = len.min(from + COPY_BYTES);
        let bytes = files::read(location, source, from..to)?;
        target.write_all_at(&bytes, offset).map_err(failure::generic)?;
        offset += bytes.len() as u64;
        from = to;
    }
    Ok(offset)
}

/// An upload whose parts come in order.
#[derive(Debug)]
pub(crate) struct Upload {
    location: Path,
    /// `None` after the end.
    open: Option<(Temporary, Arc<File>)>,
    /// Bytes of the parts so far.
    len_bytes: u64,
    /// How many of them are written.
    written: Arc<AtomicU64>,
}

impl Upload {
    /// Begins one. Blocks.
    pub(crate) fn begin(files: &Arc<Files>, location: Path, given: &Attributes) -> Result<Upload> {
        files.file(&location)?;
        let (temporary, file) = Temporary::create(files)?;
        attributes::set(&file, given)?;
        Ok(Upload {
            location,
            open: Some((temporary, Arc::new(file))),
            len_bytes: 0,
            written: Arc::default(),
        })
    }

    fn ended(&self) -> Error {
        failure::generic(format!("{}: the upload has ended", self.location))
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let Some((_, file)) = &self.open else {
            let ended = self.ended();
            return Box::pin(async { Err(ended) });
        };
        let (file, written) = (Arc::clone(file), Arc::clone(&self.written));
        let (offset, len_bytes) = (self.len_bytes, payload.content_length() as u64);
        self.len_bytes += len_bytes;
        Box::pin(blocking(move || {
            write(&file, &payload, offset)?;
            written.fetch_add(len_bytes, Ordering::Relaxed);
            Ok(())
        }))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (mut temporary, file) = self.open.take().ok_or_else(|| self.ended())?;
        let (location, len_bytes) = (self.location.clone(), self.len_bytes);
        let written = self.written.load(Ordering::Relaxed);
        blocking(move || {
            if written != len_bytes {
                let text = format!("{location}: {written} of {len_bytes} bytes are written; await every part first");
                return Err(failure::generic(text));
            }
            let result = result_of(&file)?;
            temporary.publish(&location, &PutMode::Overwrite)?;
            Ok(result)
        })
        .await
    }

    async fn abort(&mut self) -> Result<()> {
        let open = self.open.take().ok_or_else(|| self.ended())?;
        blocking(move || {
            drop(open);
            Ok(())
        })
        .await
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Removing the file blocks.
        if let (Some(open), Ok(runtime)) = (self.open.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn_blocking(move || drop(open));
        }
    }
}
