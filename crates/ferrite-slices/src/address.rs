//! Where slices are.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A bucket with a prefix of the names in it, or a directory in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A bucket of S3. Names of objects start with the prefix and a slash, unless it is empty.
    S3 {
        /// The bucket, which exists.
        bucket: String,
        /// The prefix, without slashes at its ends.
        prefix: String,
    },
    /// A directory, by its absolute path: for tests, and for file systems that many machines mount.
    Directory(PathBuf),
}

/// Longest prefix. With the names of slices it stays below the 1,024 bytes that S3 allows.
const PREFIX_BYTES_MAX: usize = 512;

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("file://") {
            return match path.starts_with('/') {
                true => Ok(Address::Directory(path.into())),
                false => Err(format!(
                    "{text}: the path of `file://` is absolute: write file:///DIRECTORY"
                )),
            };
        }
        let rest = text
            .strip_prefix("s3://")
            .ok_or_else(|| format!("{text}: write s3://BUCKET/PREFIX, or file:///DIRECTORY"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(is_name) {
            return Err(format!(
                "{text}: a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens"
            ));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!-_.*'()".contains(&byte);
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(is_plain);
        if prefix.len() > PREFIX_BYTES_MAX || !prefix.is_empty() && !prefix.split('/').all(is_part) {
            return Err(format!(
                "{text}: a prefix has at most {PREFIX_BYTES_MAX} letters, digits and characters of !-_.*'(), in parts \
                 between single slashes"
            ));
        }
        Ok(Address::S3 {
            bucket: bucket.into(),
            prefix: prefix.into(),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Address::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Address::Directory(path) => write!(f, "file://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, again) in [
            ("s3://data", "s3://data"),
            ("s3://data/", "s3://data"),
            ("s3://my.data-1/a/b_c/", "s3://my.data-1/a/b_c"),
            ("file:///srv/slices", "file:///srv/slices"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), again);
            assert_eq!(again.parse(), Ok(address));
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("data", "write s3://BUCKET/PREFIX"),
            ("http://data", "write s3://BUCKET/PREFIX"),
            ("s3://", "3 to 63"),
            ("s3://Data", "3 to 63"),
            ("s3://a_b_c/x", "3 to 63"),
            ("s3://data/a//b", "a prefix has"),
            ("s3://data/../b", "a prefix has"),
            ("s3://data/a b", "a prefix has"),
            ("file://x", "absolute"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
