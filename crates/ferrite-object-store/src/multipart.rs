//! Uploads by number: [`MultipartStore`].
//!
//! Contents: an upload whose parts come in any order. Each part is a file until the upload is complete, because the
//! lengths of those before it are not known yet.

use std::path::PathBuf;

use async_trait::async_trait;
use ferrite::OpenOptions;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, PutMode, PutMultipartOptions, PutPayload, PutResult, Result};

use crate::attributes;
use crate::failure::{self, blocking};
use crate::files::Files;
use crate::publish::Temporary;
use crate::store::FerriteStore;
use crate::upload::{copy, result_of, write};

/// The file of an upload by number, or of one of its parts.
fn place(files: &Files, id: &MultipartId, part: Option<&str>) -> Result<PathBuf> {
    let is_number = |text: &str| !text.is_empty() && text.len() <= 20 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_number(id) || part.is_some_and(|part| !is_number(part)) {
        return Err(failure::generic(format!("`{id}` is not an upload of this store")));
    }
    Ok(match part {
        Some(part) => files.reserved().join(format!("{id}.{part}")),
        None => files.reserved().join(id),
    })
}

/// Removes an upload and its parts.
fn discard(files: &Files, id: &MultipartId) -> Result<()> {
    let of_upload = place(files, id, None)?;
    let begin = format!("{id}.");
    for entry in files.fs.read_dir(files.reserved()).map_err(failure::generic)? {
        let entry = entry.map_err(failure::generic)?;
        if entry.file_name().as_encoded_bytes().starts_with(begin.as_bytes()) {
            files.fs.remove_file(entry.path()).map_err(failure::generic)?;
        }
    }
    match files.fs.remove_file(of_upload) {
        // It has been published.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(failure::generic),
    }
}

#[async_trait]
impl MultipartStore for FerriteStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.create_multipart_opts(path, PutMultipartOptions::default()).await
    }

    async fn create_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<MultipartId> {
        let (files, path) = (self.files(), path.clone());
        blocking(move || {
            files.file(&path)?;
            let id = files.fresh_name();
            let (temporary, file) = Temporary::create_as(&files, &id)?;
            attributes::set(&file, &options.attributes)?;
            temporary.keep();
            Ok(id)
        })
        .await
    }

    async fn put_part(&self, _: &Path, id: &MultipartId, part_idx: usize, data: PutPayload) -> Result<PartId> {
        let (files, id) = (self.files(), id.clone());
        blocking(move || {
            let content_id = format!("{part_idx:x}");
            let (upload, place) = (place(&files, &id, None)?, place(&files, &id, Some(&content_id))?);
            files.fs.metadata(upload).map_err(failure::generic)?;
            // A part that is sent again takes the place of the first.
            let file = files.fs.create_file(place).map_err(failure::generic)?;
            write(&file, &data, 0)?;
            Ok(PartId { content_id })
        })
        .await
    }

    async fn complete_multipart(&self, path: &Path, id: &MultipartId, parts: Vec<PartId>) -> Result<PutResult> {
        let (files, path, id) = (self.files(), path.clone(), id.clone());
        blocking(move || {
            let whole = place(&files, &id, None)?;
            let mut options = OpenOptions::new();
            // A completion that failed may have left something.
            let file = options.write(true).truncate(true).open(&files.fs, &whole);
            let file = file.map_err(failure::generic)?;
            let mut end = 0;
            for part in &parts {
                let part = place(&files, &id, Some(&part.content_id))?;
                let part = files.fs.open_file(part).map_err(failure::generic)?;
                end = copy(&path, &part, &file, end)?;
            }
            let result = result_of(&file)?;
            let mut whole = Temporary::of(&files, whole);
            let published = whole.publish(&path, &PutMode::Overwrite);
            // After a failure the caller may try again, or abort.
            whole.keep();
            published?;
            // The object is there. `FerriteStore::remove_uploads` finds what stays.
            let _ = discard(&files, &id);
            Ok(result)
        })
        .await
    }

    async fn abort_multipart(&self, _: &Path, id: &MultipartId) -> Result<()> {
        let (files, id) = (self.files(), id.clone());
        blocking(move || discard(&files, &id)).await
    }
}
