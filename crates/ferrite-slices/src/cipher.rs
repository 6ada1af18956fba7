//! Encryption of slices: the key of a pool's content, and bytes under it.
//!
//! Every object has a key of its own, which HKDF-SHA-256 derives from a secret, 16 random bytes and a label. Its parts
//! are sealed by AES-256-GCM, each with its number as the nonce, so that each can be opened alone. A sealed text is the
//! 16 random bytes, the encrypted bytes and a tag of 16 bytes. Parts are authenticated one by one: should a restored
//! database give an id again to content of the same length, parts of both objects pass.
//!
//! The content of a pool has one random secret. It is kept in the pool's own object, sealed under the secret of a key
//! file: so the file can be replaced without touching the content.

use std::fmt;

use ferrite_secrets::{SECRET_BYTES, Secret};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::error::{Error, Result};

const SALT_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
/// How much longer a text is when it is sealed.
pub(crate) const SEAL_BYTES: usize = SALT_BYTES + TAG_BYTES;
/// Separate the keys of slices and of secrets.
const OF_SLICES: &[u8] = b"ferrite slice 2";
const OF_CONTENT: &[u8] = b"ferrite content key 1";

/// The key of a pool's content.
#[derive(Clone)]
pub struct ContentKey(Secret);

impl fmt::Debug for ContentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContentKey(..)")
    }
}

fn key_of(secret: &Secret, salt: &[u8], label: &[u8]) -> Option<LessSafeKey> {
    let secret = Salt::new(HKDF_SHA256, salt).extract(secret.bytes());
    let label = [label];
    let key = secret.expand(&label, &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(key)))
}

/// A key seals one text for each number.
fn nonce(number: u32) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Random bytes for one object. The same parts may be sealed with them again, and are the same then; never other ones.
#[derive(Clone, Copy)]
pub(crate) struct SealSalt([u8; SALT_BYTES]);

impl SealSalt {
    pub(crate) fn random() -> Option<SealSalt> {
        let mut salt = [0; SALT_BYTES];
        SystemRandom::new().fill(&mut salt).ok()?;
        Some(SealSalt(salt))
    }
}

fn seal(secret: &Secret, label: &[u8], salt: SealSalt, number: u32, about: &[u8], text: &[u8]) -> Option<Vec<u8>> {
    let mut sealed = Vec::with_capacity(text.len() + SEAL_BYTES);
    sealed.extend_from_slice(&salt.0);
    let key = key_of(secret, &sealed, label)?;
    sealed.extend_from_slice(text);
    let tag = key.seal_in_place_separate_tag(nonce(number), Aad::from(about), &mut sealed[SALT_BYTES..]);
    sealed.extend_from_slice(tag.ok()?.as_ref());
    Some(sealed)
}

fn open(secret: &Secret, label: &[u8], number: u32, about: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let (salt, text) = sealed.split_at_checked(SALT_BYTES)?;
    let mut text = text.to_vec();
    let key = key_of(secret, salt, label)?;
    let len = key
        .open_in_place(nonce(number), Aad::from(about), &mut text)
        .ok()?
        .len();
    text.truncate(len);
    Some(text)
}

impl ContentKey {
    /// A new random one.
    ///
    /// # Errors
    /// [`Error::Failed`]: the system has no random numbers.
    pub fn generate() -> Result<ContentKey> {
        Secret::generate()
            .map(ContentKey)
            .map_err(|error| Error::Failed(error.to_string()))
    }

    /// It, sealed under the secret of a key file, for a pool with this id.
    ///
    /// # Errors
    /// [`Error::Failed`]: the system has no random numbers.
    pub fn wrap(&self, under: &Secret, pool: &[u8; 16]) -> Result<Vec<u8>> {
        let salt = SealSalt::random();
        let sealed = salt.and_then(|salt| seal(under, OF_CONTENT, salt, 0, pool, self.0.bytes()));
        sealed.ok_or_else(|| Error::Failed("the content's key cannot be encrypted".into()))
    }

    /// The key that [`Self::wrap`] has sealed. `None`: under another secret, or for another pool.
    pub fn unwrap(wrapped: &[u8], under: &Secret, pool: &[u8; 16]) -> Option<ContentKey> {
        let bytes = Zeroizing::new(open(under, OF_CONTENT, 0, pool, wrapped)?);
        let bytes: &[u8; SECRET_BYTES] = bytes.as_slice().try_into().ok()?;
        Some(ContentKey(Secret::of(bytes)))
    }

    /// The part `number` of an object, sealed. It can be opened only with the same number and `about`.
    pub(crate) fn seal(&self, salt: SealSalt, number: u32, about: &[u8], text: &[u8]) -> Option<Vec<u8>> {
        seal(&self.0, OF_SLICES, salt, number, about, text)
    }

    /// The bytes that [`Self::seal`] was given. `None`: they have changed since.
    pub(crate) fn open(&self, number: u32, about: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        open(&self.0, OF_SLICES, number, about, sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_key_opens_with_its_file_and_pool_alone() {
        let (file, other) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        let key = ContentKey::generate().unwrap();
        let wrapped = key.wrap(&file, &[1; 16]).unwrap();
        let found = ContentKey::unwrap(&wrapped, &file, &[1; 16]).unwrap();
        assert!(found.0 == key.0);
        assert!(ContentKey::unwrap(&wrapped, &other, &[1; 16]).is_none());
        assert!(ContentKey::unwrap(&wrapped, &file, &[2; 16]).is_none());
        for at in 0..wrapped.len() {
            assert!(ContentKey::unwrap(&wrapped[..at], &file, &[1; 16]).is_none());
            let mut changed = wrapped.clone();
            changed[at] ^= 1;
            assert!(ContentKey::unwrap(&changed, &file, &[1; 16]).is_none(), "{at}");
        }
        assert!(wrapped != key.wrap(&file, &[1; 16]).unwrap(), "it is not random");
    }
}
