//! Keys and settings in the files of the tools of AWS: `~/.aws/credentials` and `~/.aws/config`.
//!
//! The file with the keys is read again when it changes: keys that are renewed there count from the next request on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use ferrite_checks::ranked::Mutex;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

mod lock_order {
    ferrite_checks::ranks! {
        "ferrite-slices":
        /// Keys as they were read last.
        Keys = 10;
    }
}

/// The files, for one profile.
#[derive(Debug)]
pub(crate) struct Files {
    credentials: PathBuf,
    config: PathBuf,
    profile: String,
    read: Mutex<lock_order::Keys, Option<(SystemTime, Arc<AwsCredential>)>>,
}

fn of_home(variable: &str, name: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(path) if !path.is_empty() => path.into(),
        _ => Path::new(&std::env::var_os("HOME").unwrap_or_default())
            .join(".aws")
            .join(name),
    }
}

fn text(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).ok()?;
    let is_short = found.is_file() && found.len() <= FILE_BYTES_MAX;
    is_short.then(|| std::fs::read_to_string(path).ok()).flatten()
}

/// A value in a section of a file: `[section]`, and then lines `name = value`.
fn value(text: &str, section: &str, name: &str) -> Option<String> {
    let mut is_in = false;
    for line in text.lines().map(str::trim) {
        if let Some(title) = line.strip_prefix('[') {
            is_in = title
                .trim_end()
                .strip_suffix(']')
                .is_some_and(|title| title.trim() == section);
        } else if is_in
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
            && key.trim() == name
        {
            return Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        }
    }
    None
}

impl Files {
    /// This file with keys, or the files that the environment names, or those in the home directory.
    pub(crate) fn of(credentials: Option<&Path>, profile: Option<&str>) -> Files {
        let usual = || of_home("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        Files {
            credentials: credentials.map_or_else(usual, Path::to_path_buf),
            config: of_home("AWS_CONFIG_FILE", "config"),
            profile: profile.unwrap_or("default").into(),
            read: Mutex::default(),
        }
    }

    /// A setting of the profile.
    pub(crate) fn setting(&self, name: &str) -> Option<String> {
        let text = text(&self.config)?;
        let section = match &*self.profile {
            "default" => "default".to_owned(),
            profile => format!("profile {profile}"),
        };
        value(&text, &section, name)
    }

    /// The file with the keys.
    pub(crate) fn path(&self) -> &Path {
        &self.credentials
    }

    pub(crate) fn has_keys(&self) -> bool {
        self.keys().is_some()
    }

    /// The keys as the file has them now.
    fn keys(&self) -> Option<Arc<AwsCredential>> {
        let changed = std::fs::metadata(&self.credentials)
            .and_then(|found| found.modified())
            .ok()?;
        let mut read = self.read.lock();
        if let Some((then, keys)) = &*read
            && *then == changed
        {
            return Some(Arc::clone(keys));
        }
        let text = text(&self.credentials)?;
        let of_profile = |name| value(&text, &self.profile, name);
        let keys = Arc::new(AwsCredential {
            key_id: of_profile("aws_access_key_id")?,
            secret_key: of_profile("aws_secret_access_key")?,
            token: of_profile("aws_session_token"),
        });
        *read = Some((changed, Arc::clone(&keys)));
        Some(keys)
    }
}

#[async_trait]
impl CredentialProvider for Files {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.keys().ok_or_else(|| object_store::Error::Generic {
            store: "S3",
            source: format!(
                "{} has no keys of the profile `{}` any more",
                self.credentials.display(),
                self.profile
            )
            .into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path, profile: &str) -> Files {
        Files {
            credentials: dir.join("credentials"),
            config: dir.join("config"),
            profile: profile.into(),
            read: Mutex::default(),
        }
    }

    #[test]
    fn keys_are_those_of_the_profile_and_of_now() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!files(dir.path(), "default").has_keys());
        let write = |text: &str, seconds: u64| {
            let path = dir.path().join("credentials");
            std::fs::write(&path, text).unwrap();
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds))
                .unwrap();
        };
        write(
            "# keys\n[default]\naws_access_key_id = A\naws_secret_access_key=S\n\n[other]\naws_access_key_id=B\n\
             aws_secret_access_key = T=\naws_session_token= Q\n",
            1,
        );
        let plain = files(dir.path(), "default");
        let keys = plain.keys().unwrap();
        assert_eq!((&*keys.key_id, &*keys.secret_key, &keys.token), ("A", "S", &None));
        let keys = files(dir.path(), "other").keys().unwrap();
        assert_eq!(
            (&*keys.key_id, &*keys.secret_key, keys.token.as_deref()),
            ("B", "T=", Some("Q"))
        );
        assert!(!files(dir.path(), "third").has_keys());
        write("[default]\naws_access_key_id = C\naws_secret_access_key = U\n", 2);
        assert_eq!(plain.keys().unwrap().key_id, "C");
    }

    #[test]
    fn settings_are_those_of_the_profile() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("config"),
            "[default]\nregion = eu-west-1\n[profile test]\nregion = eu-west-2\nendpoint_url =\n",
        )
        .unwrap();
        assert_eq!(
            files(dir.path(), "default").setting("region").as_deref(),
            Some("eu-west-1")
        );
        let test = files(dir.path(), "test");
        assert_eq!(test.setting("region").as_deref(), Some("eu-west-2"));
        assert_eq!(test.setting("endpoint_url"), None);
    }
}
