//! The object that names a pool in a bucket: the pool's id, and the key of its content if that is encrypted.
//!
//! It is JSON: `ferrite` is the version, 2 if there is a key; `pool` the id, and `key` the content's key, which is
//! encrypted itself: with the secret of the file `encryption_key`, and for this pool. Numbers are hexadecimal.
//!
//! The metadata has the encrypted key as well, and that one counts: the loss of the object is not the loss of the key,
//! and nobody who can write to the bucket can say that content is not encrypted.
//!
//! Used by `s3`.

use std::path::Path;

use ferrite_secrets::Secret;
use ferrite_slices::{Bucket, Codec, ContentKey, Error};
use ferrite_vfs::volume::{VolumeError, VolumeErrorKind};
use serde::{Deserialize, Serialize};

use crate::config::{Compression, S3};
use crate::refusal::{Result, invalid, refuse};

/// Its name.
pub(crate) const NAME: &str = "pool.json";
/// It is shorter.
const BYTES_MAX: u64 = 4096;

/// The object.
pub(crate) struct PoolObject {
    /// The pool's id.
    pub(crate) pool: [u8; 16],
    /// The content's key, encrypted.
    key: Option<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct Text {
    ferrite: u64,
    pool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

pub(crate) fn failed(error: &Error) -> VolumeError {
    let kind = match error {
        Error::Damaged(_) => VolumeErrorKind::Damaged,
        _ => VolumeErrorKind::Medium,
    };
    refuse(kind, error.to_string()).with_name_in_text()
}

fn wrong(text: String) -> VolumeError {
    invalid(text).with_name_in_text()
}

fn secret(file: &Path) -> Result<Secret> {
    Secret::read(file).map_err(|error| wrong(error.to_string()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return None;
    };
    let byte = |&[high, low]: &[u8; 2]| u8::try_from(digit(high)? << 4 | digit(low)?).ok();
    pairs.iter().map(byte).collect()
}

impl PoolObject {
    /// That of a new pool, with a new key if its content is to be encrypted.
    ///
    /// # Errors
    /// The file with the secret cannot be used.
    pub(crate) fn new(pool: [u8; 16], s3: &S3) -> Result<PoolObject> {
        let key = match &s3.encryption_key {
            None => None,
            Some(file) => {
                let secret = secret(file)?;
                let wrapped = ContentKey::generate().and_then(|key| key.wrap(&secret, &pool));
                Some(wrapped.map_err(|error| failed(&error))?)
            }
        };
        Ok(PoolObject { pool, key })
    }

    /// The one that is there, if one is.
    ///
    /// # Errors
    /// It is of another version, or damaged; errors of the bucket.
    pub(crate) fn read(bucket: &Bucket) -> Result<Option<PoolObject>> {
        let object = match bucket.get_now(NAME, BYTES_MAX) {
            Ok(object) => object,
            Err(Error::NotFound(_)) => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        match PoolObject::parse(&object) {
            Some(found) => Ok(Some(found)),
            None => {
                let text = format!(
                    "{}/{NAME}: it is not of this version of Ferrite; name another prefix",
                    bucket.place()
                );
                Err(refuse(VolumeErrorKind::Foreign, text).with_name_in_text())
            }
        }
    }

    fn parse(object: &[u8]) -> Option<PoolObject> {
        let found: Text = serde_json::from_slice(object).ok()?;
        let key = found.key.as_deref().map(of_hex);
        let is_known = found.ferrite == if key.is_some() { 2 } else { 1 };
        Some(PoolObject {
            pool: of_hex(&found.pool)?.try_into().ok()?,
            key: match key {
                Some(key) => Some(key?),
                None => None,
            },
        })
        .filter(|_| is_known)
    }

    fn text(&self) -> String {
        let text = Text {
            ferrite: if self.key.is_some() { 2 } else { 1 },
            pool: hex(&self.pool),
            key: self.key.as_deref().map(hex),
        };
        // Text always serializes.
        serde_json::to_string(&text).unwrap_or_default() + "\n"
    }

    /// Stores it. It is durable when this returns.
    ///
    /// # Errors
    /// Errors of the bucket.
    pub(crate) fn store(&self, bucket: &Bucket) -> Result<()> {
        let stored = bucket.put_now(NAME, self.text().into());
        stored.map_err(|error| failed(&error))
    }

    /// The content's key, encrypted, if it has one.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    /// The same with the key that the metadata has, if it has one. Metadata that was mended may have lost it; the
    /// object's own opens with the right file alone, and for this pool.
    pub(crate) fn with_key(self, key: Option<Vec<u8>>) -> PoolObject {
        PoolObject {
            key: key.or(self.key),
            ..self
        }
    }

    /// Whether the content is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.key.is_some()
    }

    /// How the pool's objects are made and read.
    ///
    /// # Errors
    /// The content is encrypted, and the file with the secret is not this one, or none is named; it is not encrypted,
    /// and one is named.
    pub(crate) fn codec(&self, bucket: &Bucket, s3: &S3) -> Result<Codec> {
        let place = bucket.place();
        let key = match (&self.key, &s3.encryption_key) {
            (None, None) => None,
            (Some(_), None) => {
                return Err(wrong(format!(
                    "{place}: its content is encrypted; name the file with its key as `encryption_key` in `[data]`"
                )));
            }
            (None, Some(_)) => {
                return Err(wrong(format!(
                    "{place}: its content is not encrypted, and cannot be from now on; copy the files to a pool that is \
                     made with `encryption_key`, or leave it out"
                )));
            }
            (Some(wrapped), Some(file)) => {
                let key = ContentKey::unwrap(wrapped, &secret(file)?, &self.pool);
                let text = || {
                    format!(
                        "{}: the content of {place} is encrypted with another key",
                        file.display()
                    )
                };
                Some(key.ok_or_else(|| wrong(text()))?)
            }
        };
        Ok(Codec {
            compresses: s3.compression == Compression::Zstd,
            key,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;

    fn bucket() -> Bucket {
        Bucket::over(Arc::new(InMemory::new()), "s3://test").unwrap()
    }

    #[test]
    fn a_pool_is_found_again_and_opens_with_its_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["one", "other"].map(|name| dir.path().join(name));
        for file in &files {
            Secret::generate().unwrap().write_new(file).unwrap();
        }
        let clear = S3::at("s3://test");
        let [one, other] = files.map(|file| S3 {
            encryption_key: Some(file),
            ..clear.clone()
        });
        let said = |object: &PoolObject, s3: &S3| match object.codec(&bucket(), s3) {
            Ok(codec) => codec.key.is_some().to_string(),
            Err(error) => error.to_string(),
        };
        for (s3, wanted) in [
            (&clear, ["false", "is not encrypted", "is not encrypted"]),
            (&one, ["name the file", "true", "with another key"]),
        ] {
            let there = bucket();
            assert!(PoolObject::read(&there).unwrap().is_none());
            PoolObject::new([7; 16], s3).unwrap().store(&there).unwrap();
            let found = PoolObject::read(&there).unwrap().unwrap();
            // The metadata's key counts; without one there, the object's.
            let forged = PoolObject {
                pool: [7; 16],
                key: None,
            };
            let found = match found.key().map(<[u8]>::to_vec) {
                Some(key) => forged.with_key(Some(key)).with_key(None),
                None => found,
            };
            assert_eq!(
                (found.pool, found.is_encrypted()),
                ([7; 16], s3.encryption_key.is_some())
            );
            for (s3, wanted) in [&clear, &one, &other].into_iter().zip(wanted) {
                let said = said(&found, s3);
                assert!(said.contains(wanted), "{said}");
            }
        }
    }

    #[test]
    fn other_objects_are_refused() {
        let id = "07".repeat(16);
        assert!(PoolObject::parse(format!("{{\"ferrite\": 1, \"pool\": \"{id}\"}}").as_bytes()).is_some());
        for text in [
            String::new(),
            "{}".into(),
            format!("{{\"ferrite\": 3, \"pool\": \"{id}\"}}"),
            format!("{{\"ferrite\": 2, \"pool\": \"{id}\"}}"),
            format!("{{\"ferrite\": 1, \"pool\": \"{id}\", \"key\": \"00\"}}"),
            format!("{{\"ferrite\": 2, \"pool\": \"{id}\", \"key\": \"0\"}}"),
            format!("{{\"ferrite\": 1, \"pool\": \"{id}00\"}}"),
            "{\"ferrite\": 1, \"pool\": \"x\"}".into(),
        ] {
            assert!(PoolObject::parse(text.as_bytes()).is_none(), "{text}");
        }
    }
}
