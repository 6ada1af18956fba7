//! Secrets of 32 random bytes, and their files: keys of servers and their clients, and of encrypted content.
//!
//! A key file is one line, `ferrite-key-1:` and 64 hexadecimal digits. Any user who can read it can do everything that
//! the key allows, so a file that others can read is refused.
//!
//! Invariant: a secret is overwritten before its memory is freed.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;
use zeroize::Zeroizing;

/// The length of a secret.
pub const SECRET_BYTES: usize = 32;
/// The beginning of the line in a file. The number is that of the format.
const PREFIX: &str = "ferrite-key-1:";
/// No key file is as long.
const FILE_BYTES_MAX: u64 = 4096;

/// A secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<[u8; SECRET_BYTES]>);

/// It is not shown.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why no key is available.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file of a new key exists, and stays as it is.
    #[error(
        "{path}: exists already, and is not replaced, since whatever uses its key would lose access; choose another \
         name, or move it away",
        path = path.display()
    )]
    Exists {
        /// Its path.
        path: PathBuf,
    },
    /// The content of the file is not a key.
    #[error(
        "{path}: not a key; its file is one line that begins with `ferrite-key-1:`. `ferrite key FILE` makes one",
        path = path.display()
    )]
    NotKey {
        /// Its path.
        path: PathBuf,
    },
    /// Others can read or change it.
    #[error(
        "{path}: others than its owner can use this key (its mode is {mode:o}); if nobody has, `chmod 600 {path}`, \
         otherwise make a new one",
        path = path.display()
    )]
    Exposed {
        /// Its path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The system has no random numbers.
    #[error("the system gives no random numbers: {0}")]
    NoRandom(io::Error),
}

impl Secret {
    /// A new random secret.
    ///
    /// # Errors
    /// [`KeyError::NoRandom`].
    pub fn generate() -> Result<Secret, KeyError> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        let mut filled = 0;
        while filled < secret.len() {
            let got = getrandom(&mut secret[filled..], GetRandomFlags::empty());
            filled += got.map_err(|error| KeyError::NoRandom(error.into()))?;
        }
        Ok(Secret(secret))
    }

    /// The secret with these bytes.
    pub fn of(bytes: &[u8; SECRET_BYTES]) -> Secret {
        Secret(Zeroizing::new(*bytes))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// Reads the line of a key file. `None` if it is not a key.
    pub fn parse(line: &str) -> Option<Secret> {
        let digits = line.trim().strip_prefix(PREFIX)?.as_bytes();
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        if digits.len() != 2 * SECRET_BYTES {
            return None;
        }
        for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
        }
        Some(Secret(secret))
    }

    /// The line of its file, with its end.
    pub fn line(&self) -> Zeroizing<String> {
        let mut line = Zeroizing::new(String::with_capacity(PREFIX.len() + 2 * SECRET_BYTES + 1));
        line.push_str(PREFIX);
        for byte in &*self.0 {
            for digit in [byte >> 4, byte & 15] {
                line.extend(char::from_digit(digit.into(), 16));
            }
        }
        line.push('\n');
        line
    }

    /// Reads a key file. Blocks.
    ///
    /// # Errors
    /// If it cannot be read, is no key, or others than its owner can read or change it.
    pub fn read(path: &Path) -> Result<Secret, KeyError> {
        let failed = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if found.mode() & 0o077 != 0 && found.is_file() {
            return Err(KeyError::Exposed {
                path: path.to_owned(),
                mode: found.mode() & 0o7777,
            });
        }
        let not_key = || KeyError::NotKey { path: path.to_owned() };
        if !found.is_file() {
            return Err(not_key());
        }
        // The buffer does not grow, which would leave copies behind.
        let mut text = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
        let text = std::str::from_utf8(&text).map_err(|_| not_key())?;
        Secret::parse(text).ok_or_else(not_key)
    }

    /// Writes a new file, which only its owner can read. Blocks; the file is durable when this returns.
    ///
    /// # Errors
    /// If a file of this name exists, or it cannot be written.
    pub fn write_new(&self, path: &Path) -> Result<(), KeyError> {
        let failed = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => KeyError::Exists { path: path.to_owned() },
                _ => failed(error),
            })?;
        let written = file.write_all(self.line().as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|error| {
            // Half a key is of no use, and would obstruct the next attempt.
            let _ = std::fs::remove_file(path);
            failed(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_comes_back_from_its_file_and_others_must_not_see_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = Secret::generate().unwrap();
        key.write_new(&path).unwrap();
        assert_eq!(Secret::read(&path).unwrap(), key);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let another = Secret::generate().unwrap();
        assert!(another != key);
        assert!(matches!(another.write_new(&path), Err(KeyError::Exists { .. })));
        assert_eq!(Secret::read(&path).unwrap(), key, "it was not replaced");
        let secret: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!format!("{key:?}").contains(&secret[..8]));
        for mode in [0o640, 0o604, 0o620, 0o666] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let error = Secret::read(&path).unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, KeyError::Exposed { .. }), "{mode:o}");
            assert!(
                said.contains("chmod 600") && said.contains(&format!("{mode:o}")),
                "{said}"
            );
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).unwrap();
        assert_eq!(Secret::read(&path).unwrap(), key);
        assert!(matches!(Secret::read(dir.path()), Err(KeyError::NotKey { .. })));
        assert!(matches!(
            Secret::read(&dir.path().join("none")),
            Err(KeyError::File { .. })
        ));
    }

    #[test]
    fn only_a_whole_line_is_a_key() {
        let line = Secret::generate().unwrap().line();
        assert!(Secret::parse(&line).is_some() && Secret::parse(line.trim()).is_some());
        let mut long = line.trim().to_owned();
        long.push('0');
        let garbled = line.replacen(':', ":g", 1);
        for text in [
            "",
            "x",
            PREFIX,
            &line[1..],
            &line[..line.len() - 2],
            &long,
            &garbled,
            &line.repeat(2),
        ] {
            assert!(Secret::parse(text).is_none(), "{text}");
        }
    }
}
