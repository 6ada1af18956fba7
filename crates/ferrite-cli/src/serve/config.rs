//! The configuration file of a server: TOML, read whole before anything is opened.
//!
//! Relative paths in it start at its directory. Unknown words are refused: a misspelt one might be the one that
//! restricts access.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferrite::volume::Address;
use ferrite::{Durability, MountOptions};
use ferrite_client::secure::Key;
use ferrite_server::{Bounds, ExportOptions, ExportQuota, ServerOptions};
use ferrite_vfs::volume::unquoted;
use serde::Deserialize;
use toml::Spanned;

use super::Insistence;
use super::plan::{self, Export, Listen, Plan, Pool, Problem};
use crate::{Failure, USAGE, about, size};

/// The largest limit of sessions: as many as connections.
const SESSIONS_MAX: u64 = 16_384;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    listen: Option<Vec<Spanned<String>>>,
    threads: Option<Spanned<u64>>,
    lease: Option<Spanned<u64>>,
    busy_poll: Option<u64>,
    sessions_per_key: Option<Spanned<u64>>,
    sessions_per_address: Option<Spanned<u64>>,
    metrics: Option<String>,
    console: Option<String>,
    console_token: Option<PathBuf>,
    advertise: Option<String>,
    #[serde(default)]
    rdma: Vec<Spanned<String>>,
    #[serde(default)]
    rdma_unprotected: bool,
    #[serde(default)]
    keys: BTreeMap<String, Spanned<PathBuf>>,
    #[serde(default, rename = "pool")]
    pools: Vec<PoolText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolText {
    path: Spanned<String>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    durability: DurabilityText,
    #[serde(default, rename = "export")]
    exports: Vec<ExportText>,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum DurabilityText {
    #[default]
    Strict,
    Fsync,
    Process,
}

impl From<DurabilityText> for Durability {
    fn from(text: DurabilityText) -> Durability {
        match text {
            DurabilityText::Strict => Durability::Strict,
            DurabilityText::Fsync => Durability::OnSync,
            DurabilityText::Process => Durability::Process,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportText {
    name: Spanned<String>,
    #[serde(default = "root")]
    path: String,
    #[serde(default)]
    keys: Vec<Spanned<String>>,
    #[serde(default = "remote")]
    encryption: Insistence,
    #[serde(default)]
    read_only: bool,
    /// By default: unless it is read-only.
    leases: Option<bool>,
    #[serde(default = "yes")]
    root_squash: bool,
    sessions: Option<Spanned<u64>>,
    #[serde(default)]
    handle_epoch: u64,
    quota: Option<Spanned<String>>,
    quota_inodes: Option<Spanned<u64>>,
}

fn root() -> String {
    "/".into()
}

fn remote() -> Insistence {
    Insistence::Remote
}

fn yes() -> bool {
    true
}

/// Reads the file. Returns the problems along with the plan from the valid rest. Blocks.
///
/// # Errors
/// If it cannot be read.
pub(super) fn read(path: &Path) -> Result<(Plan, Vec<Problem>), Failure> {
    let text = std::fs::read_to_string(path).map_err(about(path))?;
    let mut reading = Reading {
        base: path.parent().unwrap_or(Path::new("")),
        text: &text,
        problems: Vec::new(),
        keys: HashMap::new(),
    };
    let plan = match toml::from_str::<FileText>(&text) {
        Ok(file) => reading.plan(file),
        Err(error) => {
            let line = error.span().map(|span| reading.line(span.start));
            let unquoted = error.span().and_then(|span| unquoted(&text, span.start));
            let why = unquoted.unwrap_or_else(|| error.message().trim().replace('\n', "; "));
            let problem = Problem::new(USAGE, line, why);
            reading.problems.push(problem);
            reading.plan(FileText {
                listen: None,
                threads: None,
                lease: None,
                busy_poll: None,
                sessions_per_key: None,
                sessions_per_address: None,
                metrics: None,
                console: None,
                console_token: None,
                advertise: None,
                rdma: Vec::new(),
                rdma_unprotected: false,
                keys: BTreeMap::new(),
                pools: Vec::new(),
            })
        }
    };
    Ok((plan, reading.problems))
}

struct Reading<'t> {
    base: &'t Path,
    text: &'t str,
    problems: Vec<Problem>,
    /// By their names in the file; `None` for a key with a problem.
    keys: HashMap<String, Option<Key>>,
}

impl Reading<'_> {
    fn line(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        1 + before.iter().filter(|&&byte| byte == b'\n').count()
    }

    fn line_of<T>(&self, spanned: &Spanned<T>) -> Option<usize> {
        Some(self.line(spanned.span().start))
    }

    fn wrong(&mut self, line: Option<usize>, text: impl Into<String>) {
        self.problems.push(Problem::new(USAGE, line, text));
    }

    fn plan(&mut self, file: FileText) -> Plan {
        // If the text is wrong, its pools are unknown.
        if file.pools.is_empty() && self.problems.is_empty() {
            self.wrong(None, "no pool; each begins with a line `[[pool]]`, and has a `path`");
        }
        for (name, path) in &file.keys {
            let line = self.line_of(path);
            let key = match plan::key(&self.base.join(path.get_ref())) {
                Ok(key) => Some(key),
                Err(problem) => {
                    self.problems.push(Problem { line, ..problem });
                    None
                }
            };
            self.keys.insert(name.clone(), key);
        }
        let threads = self.number("threads", file.threads, u64::from(plan::THREADS), 256);
        let lease = self.number("lease", file.lease, plan::LEASE_SECONDS, 3600);
        let mut bounds = Bounds::default();
        for (name, given, bound) in [
            ("sessions_per_key", file.sessions_per_key, &mut bounds.sessions_per_key),
            (
                "sessions_per_address",
                file.sessions_per_address,
                &mut bounds.sessions_per_address,
            ),
        ] {
            *bound = self.number(name, given, *bound as u64, SESSIONS_MAX) as usize;
        }
        let plan = Plan {
            listen: self.listen(file.listen),
            options: ServerOptions::default()
                .threads(threads as usize)
                .lease(Duration::from_secs(lease))
                .bounds(bounds)
                .busy_poll(Duration::from_micros(file.busy_poll.unwrap_or(plan::BUSY_POLL_US))),
            metrics: file.metrics,
            console: file.console,
            console_token: file.console_token,
            advertise: file.advertise,
            rdma: self.rdma(file.rdma, file.rdma_unprotected),
            pools: self.pools(file.pools),
        };
        let unreachable = plan.unreachable().into_iter().map(|problem| Problem {
            text: format!("{}; give it `keys`, or listen on 127.0.0.1", problem.text),
            ..problem
        });
        // For an export with wrong keys a problem is already reported.
        if self.problems.is_empty() {
            self.problems.extend(unreachable);
        }
        plan
    }

    fn number(&mut self, name: &str, given: Option<Spanned<u64>>, default: u64, most: u64) -> u64 {
        let Some(given) = given else { return default };
        let number = *given.get_ref();
        if !(1..=most).contains(&number) {
            let line = self.line_of(&given);
            self.wrong(line, format!("{name} = {number}: give a number from 1 to {most}"));
        }
        number
    }

    fn listen(&mut self, given: Option<Vec<Spanned<String>>>) -> Vec<Listen> {
        let Some(given) = given else {
            return Listen::parse(plan::LISTEN).into_iter().collect();
        };
        if given.is_empty() {
            self.wrong(None, "listen = []: give at least one address, tcp://HOST:PORT");
        }
        let mut listen = Vec::new();
        for text in given {
            match Listen::parse(text.get_ref()) {
                Ok(parsed) => listen.push(parsed),
                Err(why) => self.wrong(self.line_of(&text), format!("{}: {why}", text.get_ref())),
            }
        }
        listen
    }

    fn rdma(&mut self, given: Vec<Spanned<String>>, is_allowed: bool) -> Vec<SocketAddr> {
        let mut addresses = Vec::new();
        for text in given {
            let checked = plan::rdma_address(text.get_ref()).and_then(|address| {
                plan::check_rdma(address, is_allowed)
                    .map_err(|why| format!("{why}; `rdma_unprotected = true` allows it"))?;
                Ok(address)
            });
            match checked {
                Ok(address) => addresses.push(address),
                Err(why) => self.wrong(self.line_of(&text), format!("rdma = \"{}\": {why}", text.get_ref())),
            }
        }
        addresses
    }

    fn pools(&mut self, given: Vec<PoolText>) -> Vec<Pool> {
        let (mut pools, mut paths, mut names) = (Vec::<Pool>::new(), HashMap::new(), HashMap::new());
        for pool in given {
            let line = self.line_of(&pool.path);
            let address = match Address::parse(pool.path.get_ref()) {
                Ok(address) if !address.is_remote() => address.at(self.base.join(address.path())),
                Ok(_) => {
                    self.wrong(
                        line,
                        format!("{}: is on a server; it must be served there", pool.path.get_ref()),
                    );
                    continue;
                }
                Err(error) => {
                    self.wrong(line, format!("{}: {error}", pool.path.get_ref()));
                    continue;
                }
            };
            let path = std::fs::canonicalize(address.path()).unwrap_or_else(|_| address.path().to_owned());
            if let Some(Some(first)) = paths.insert(path, line) {
                let text = format!("the pool is in line {first} already; list all its exports there");
                self.wrong(line, text);
            }
            if pool.exports.is_empty() {
                self.wrong(
                    line,
                    "the pool has no export; each begins with `[[pool.export]]`, and has a `name`",
                );
            }
            let (mut exports, mut quotas) = (Vec::new(), HashMap::new());
            for export in pool.exports {
                let line = self.line_of(&export.name);
                if let Some(Some(first)) = names.insert(export.name.get_ref().clone(), line) {
                    let text = format!("the name `{}` is in line {first} already", export.name.get_ref());
                    self.wrong(line, text);
                }
                let export = self.export(export, pool.read_only);
                let quota = export.options.quota;
                if quota != ExportQuota::default()
                    && let Some((other, first)) = quotas.insert(names_in(&export.options.path), (quota, line))
                    && other != quota
                {
                    let first = first.unwrap_or_default();
                    self.wrong(
                        line,
                        format!("the export in line {first} gives this directory another quota"),
                    );
                }
                exports.push(export);
            }
            pools.push(Pool {
                address,
                options: MountOptions::default()
                    .read_only(pool.read_only)
                    .durability(pool.durability.into()),
                exports,
                line,
            });
        }
        pools
    }

    fn export(&mut self, export: ExportText, is_read_only: bool) -> Export {
        let line = self.line_of(&export.name);
        let keys = self.keys_of(&export.keys);
        let options = ExportOptions::new(export.name.into_inner());
        let usual = options.sessions_max as u64;
        let sessions = self.number("sessions", export.sessions, usual, SESSIONS_MAX);
        let quota = self.quota(export.quota, export.quota_inodes);
        let options = options
            .path(export.path)
            .sessions_max(sessions as usize)
            .handle_epoch(export.handle_epoch)
            .read_only(export.read_only || is_read_only)
            .leases(export.leases)
            .root_squash(export.root_squash)
            .keys(keys)
            .encryption(export.encryption.into())
            .quota(quota);
        Export { options, line }
    }

    fn quota(&mut self, bytes: Option<Spanned<String>>, inodes: Option<Spanned<u64>>) -> ExportQuota {
        let mut quota = ExportQuota::default();
        if inodes.is_some() {
            quota.inodes = Some(self.number("quota_inodes", inodes, 0, u64::from(u32::MAX)));
        }
        if let Some(text) = bytes {
            match size::parse(text.get_ref()) {
                Ok(bytes) => quota.bytes = Some(bytes),
                Err(why) => self.wrong(self.line_of(&text), format!("quota = \"{}\": {why}", text.get_ref())),
            }
        }
        quota
    }

    fn keys_of(&mut self, names: &[Spanned<String>]) -> Vec<Key> {
        let mut keys = Vec::new();
        for name in names {
            match self.keys.get(name.get_ref()) {
                Some(key) => keys.extend(key.clone()),
                None => {
                    let text = format!("there is no key `{0}`; give `{0} = \"FILE\"` in [keys]", name.get_ref());
                    self.wrong(self.line_of(name), text);
                }
            }
        }
        keys
    }
}

/// The names in a path.
fn names_in(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&byte| byte == b'/');
    let names = names.filter(|name| !name.is_empty() && *name != b".");
    names.map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FAILED;

    fn read_text(dir: &Path, text: &str) -> (Plan, Vec<String>) {
        let path = dir.join("server.toml");
        std::fs::write(&path, text).unwrap();
        let (plan, problems) = read(&path).unwrap();
        let said = problems.iter().map(|problem| format!("{}{problem}", problem.code));
        (plan, said.collect())
    }

    #[test]
    fn what_is_not_said_is_the_careful_choice() {
        let dir = tempfile::tempdir().unwrap();
        let (plan, problems) = read_text(dir.path(), "[[pool]]\npath = \"a\"\n[[pool.export]]\nname = \"x\"\n");
        assert_eq!(problems, Vec::<String>::new());
        let pool = &plan.pools[0];
        assert_eq!(pool.address.path(), dir.path().join("a"), "relative to the file");
        let export = &pool.exports[0].options;
        assert!(export.root_squash && !export.read_only && export.keys.is_empty());
        assert_eq!(export.path, b"/");
        assert_eq!(export.encryption, ferrite_client::secure::Encryption::Remote);
        assert_eq!(plan.options.lease, Duration::from_secs(plan::LEASE_SECONDS));
        assert!(plan.unreachable().is_empty());
    }

    #[test]
    fn leases_are_off_on_what_is_read_only_unless_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let leases = |pool: &str, export: &str| {
            let text = format!("[[pool]]\npath = \"a\"\n{pool}\n[[pool.export]]\nname = \"x\"\n{export}\n");
            let (plan, problems) = read_text(dir.path(), &text);
            assert_eq!(problems, Vec::<String>::new());
            plan.pools[0].exports[0].options.gives_leases()
        };
        assert!(leases("", "") && leases("", "leases = true") && !leases("", "leases = false"));
        assert!(!leases("", "read_only = true") && !leases("read_only = true", ""));
        assert!(leases("read_only = true", "leases = true") && leases("", "read_only = true\nleases = true"));
    }

    #[test]
    fn bounds_of_sessions_are_read_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let with = |top: &str, export: &str| {
            let text = format!("{top}\n[[pool]]\npath = \"a\"\n[[pool.export]]\nname = \"x\"\n{export}\n");
            read_text(dir.path(), &text)
        };
        let (plan, problems) = with(
            "sessions_per_key = 7\nsessions_per_address = 8",
            "sessions = 9\nhandle_epoch = 3",
        );
        assert_eq!(problems, Vec::<String>::new());
        let (bounds, export) = (&plan.options.bounds, &plan.pools[0].exports[0].options);
        assert_eq!((bounds.sessions_per_key, bounds.sessions_per_address), (7, 8));
        assert_eq!((export.sessions_max, export.handle_epoch), (9, 3));
        for (top, export) in [
            ("sessions_per_key = 0", ""),
            ("sessions_per_address = 16385", ""),
            ("", "sessions = 0"),
        ] {
            let (_, problems) = with(top, export);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains("give a number from 1 to 16384"), "{problems:?}");
        }
    }

    #[test]
    fn quotas_are_read_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let with = |first: &str, second: &str| {
            let text = format!(
                "[[pool]]\npath = 'a'\n[[pool.export]]\nname = 'x'\n{first}\n[[pool.export]]\nname = 'y'\n{second}\n"
            );
            read_text(dir.path(), &text)
        };
        let (plan, problems) = with("quota = '1.5G'\nquota_inodes = 9", "quota = '1.5G'\nquota_inodes = 9");
        assert_eq!(problems, Vec::<String>::new());
        let quotas = plan.pools[0].exports.iter().map(|export| export.options.quota);
        let both = ExportQuota {
            bytes: Some(3 << 29),
            inodes: Some(9),
        };
        assert_eq!(quotas.collect::<Vec<_>>(), [both; 2]);
        let (plan, _) = with("quota_inodes = 9", "path = '/b'");
        let quotas = plan.pools[0].exports.iter().map(|export| export.options.quota);
        let inodes = ExportQuota {
            bytes: None,
            inodes: Some(9),
        };
        assert_eq!(quotas.collect::<Vec<_>>(), [inodes, ExportQuota::default()]);
        for (first, second, said) in [
            ("quota = '1X'", "", "2:5: quota = \"1X\": `X` is not a size suffix"),
            ("quota = '0'", "", "2:5: quota = \"0\""),
            ("quota_inodes = 0", "", "give a number from 1 to"),
            (
                "path = '/d/'\nquota = '1G'",
                "path = 'd/.'\nquota = '2G'",
                "the export in line 4 gives this directory another quota",
            ),
        ] {
            let (_, problems) = with(first, second);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains(said), "{problems:?}");
        }
    }

    #[test]
    fn a_key_that_is_wrong_is_said_once() {
        let dir = tempfile::tempdir().unwrap();
        let text = "listen = [\"tcp://0.0.0.0:0\"]\n[keys]\na = \"none\"\n[[pool]]\npath = \"a\"\n[[pool.export]]\n\
                    name = \"x\"\nkeys = [\"a\"]\n";
        let (_, problems) = read_text(dir.path(), text);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with(&format!("{FAILED}:3: ")), "{problems:?}");
    }
}
