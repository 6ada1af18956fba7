//! Commands on files in volumes that are not mounted: `cp`, `ls`, `cat`, `stat`, `rm`, `mkdir`, `mv`, `bench`;
//! and `clone`, `snapshot`, `quota`, `send` and `receive`, also on mounts.
//!
//! Contents: [`Operand`], how users name a file: the address of a volume, `:`, and the path in it; [`Volumes`],
//! those that a command has open, as the user who runs it.
//!
//! Invariant: the address ends at the first `:/` behind its scheme. So an export's name may have slashes and the path
//! any byte; only names of exports and pools that contain `:/` cannot be used here.

mod bench;
mod cat;
mod clone;
mod content;
mod cp;
mod folder;
mod ls;
mod names;
mod pairs;
mod place;
mod quota;
mod send;
mod show;
mod snapshot;
mod stat;
mod tree;
mod walk;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::builder::{OsStringValueParser, TypedValueParser};
use ferrite::volume::{Address, Volume};
use ferrite::{Cred, Fs, MountOptions};
use rustix::io::Errno;

use super::{Failure, mounts, opening};

pub(crate) use bench::Bench;
pub(crate) use cat::Cat;
pub(crate) use clone::Clone;
pub(crate) use cp::Cp;
pub(crate) use ls::Ls;
pub(crate) use names::{Mkdir, Mv, Rm};
pub(crate) use quota::Quota;
pub(crate) use send::{Receive, Send};
pub(crate) use snapshot::Snapshot;
pub(crate) use stat::Stat;

use place::Why;

/// The end of the address.
const SEPARATOR: &[u8] = b":/";

/// The syntax of operands, for `--help`.
pub(crate) const OPERANDS: &str = "\
A path in a volume follows the address of the volume and a colon, and begins with a slash:
  tcp://HOST:PORT/EXPORT:/PATH   in an export of a server
  tcp://HOST:PORT:/PATH          in the export without a name
  pm:POOL:/PATH                  in a pool on this machine that is not mounted
The address ends at the first `:/` after its scheme; `?key=FILE` comes before that.";

/// A file that a user names.
#[derive(Debug, Clone)]
pub(crate) enum Operand {
    /// Standard input or output.
    Standard,
    /// A path on this machine.
    Here(PathBuf),
    /// A path in a volume.
    There {
        /// The volume.
        address: Address,
        /// The address as it was written, with the colon.
        prefix: OsString,
        /// Begins with a slash.
        path: PathBuf,
    },
}

impl Operand {
    /// Reads an operand; the error says how to write it.
    pub(crate) fn parse(text: OsString) -> Result<Operand, String> {
        let bytes = text.as_bytes();
        if bytes == b"-" {
            return Ok(Operand::Standard);
        }
        let behind_scheme = match scheme_bytes(bytes) {
            Some(len) => len,
            None => return Ok(Operand::Here(text.into())),
        };
        let found = bytes[behind_scheme..]
            .windows(SEPARATOR.len())
            .position(|part| part == SEPARATOR);
        let address_of = |bytes: &[u8]| Address::parse(OsStr::from_bytes(bytes)).map_err(|error| error.to_string());
        let Some(found) = found else {
            let address = address_of(bytes)?;
            let shown = text.to_string_lossy();
            let shown = shown.trim_end_matches('/');
            return Err(match address.is_remote() {
                true => format!(
                    "no path in the export: the export's name ends at `:/`, as in tcp://HOST:PORT/EXPORT:/PATH; its \
                     root is `{shown}:/`"
                ),
                false => format!("no path in the pool: it follows the pool's after `:`; the root is `{shown}:/`"),
            });
        };
        let (address, path) = bytes.split_at(behind_scheme + found);
        Ok(Operand::There {
            address: address_of(address)?,
            prefix: OsStr::from_bytes(&bytes[..=address.len()]).to_owned(),
            path: OsStr::from_bytes(&path[1..]).into(),
        })
    }

    /// Accepts every operand.
    fn parser() -> impl TypedValueParser<Value = Operand> {
        OsStringValueParser::new().try_map(Operand::parse)
    }

    /// Accepts only paths in a volume.
    pub(crate) fn parser_in_volume() -> impl TypedValueParser<Value = Operand> {
        OsStringValueParser::new().try_map(|text| match Operand::parse(text)? {
            Operand::Standard => Err(
                "it must be in a volume: tcp://HOST:PORT/EXPORT:/PATH, pm:POOL:/PATH or nvme:POOL.toml:/PATH"
                    .to_owned(),
            ),
            Operand::Here(path) => Err(not_in_volume(&path)),
            operand => Ok(operand),
        })
    }
}

/// The length of the scheme of an address; `None` for a path of this machine.
fn scheme_bytes(text: &[u8]) -> Option<usize> {
    for scheme in [&b"pm:"[..], b"nvme:"] {
        if text.starts_with(scheme) {
            return Some(scheme.len());
        }
    }
    let end = text.windows(3).position(|part| part == b"://")?;
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    (text[0].is_ascii_alphabetic() && text[..end].iter().all(is_word)).then_some(end + 3)
}

fn not_in_volume(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let pool = bytes
        .windows(SEPARATOR.len())
        .position(|part| part == SEPARATOR)
        .map(|at| Path::new(OsStr::from_bytes(&bytes[..at])));
    if let Some(meant) = Address::of_pool(path).meant_server() {
        return format!("there is no such file; the address of a server is {meant}, and of a file there {meant}:/PATH");
    }
    match pool {
        Some(pool) if pool.is_file() => format!("the address of a pool begins with pm: here: pm:{}", path.display()),
        _ => "it is a path of this machine, for which there are other programs; in a volume it is \
              tcp://HOST:PORT/EXPORT:/PATH or pm:POOL:/PATH"
            .to_owned(),
    }
}

/// A volume that is open.
pub(crate) struct Opened {
    /// Used as the user who runs the command.
    fs: Fs,
    address: Address,
    volume: Arc<dyn Volume>,
}

impl Opened {
    /// Used as the user who runs the command.
    pub(crate) fn fs(&self) -> &Fs {
        &self.fs
    }

    /// The remedy for an error due to the volume being on a server, if any.
    fn hint(&self, why: &Why) -> &'static str {
        if !self.address.is_remote() {
            return "";
        }
        match why {
            why if why.is_refusal() && rustix::process::geteuid().is_root() => {
                "; root of another machine is nobody to a server, unless it was started with --no-root-squash"
            }
            why if why.is(Errno::ROFS) => {
                "; it is in a snapshot, or the export is read-only, which the server's administrator decides"
            }
            why if why.is(Errno::STALE) => {
                "; it was removed, or the server has lost the session meanwhile: run the command again"
            }
            why if why.is(Errno::NOTCONN) => {
                "; the connection was lost: look what was done before you run the command again"
            }
            why if why.is(Errno::TIMEDOUT) => {
                "; the server does not answer: is it running, and does a firewall let its port through?"
            }
            _ => "",
        }
    }
}

/// The volumes that a command has open.
pub(crate) struct Volumes {
    options: MountOptions,
    opened: Vec<Arc<Opened>>,
}

impl Volumes {
    /// For reading only: a pool that crashed is recovered in memory, and nothing is written.
    pub(crate) fn to_read() -> Volumes {
        Volumes {
            options: MountOptions::inspect(),
            opened: Vec::new(),
        }
    }

    /// For reading and changing.
    pub(crate) fn to_change() -> Volumes {
        Volumes {
            options: MountOptions::default(),
            opened: Vec::new(),
        }
    }

    /// The volume at an address; each is opened once.
    pub(crate) fn open(&mut self, address: &Address) -> Result<Arc<Opened>, Failure> {
        if let Some(opened) = self.opened.iter().find(|opened| opened.address == *address) {
            return Ok(Arc::clone(opened));
        }
        let volume = opening::volume(address, &self.options).map_err(|failure| match mounts::find(address.path()) {
            Some(mount) if !address.is_remote() => Failure::new(
                super::FAILED,
                format!(
                    "{}: is mounted on {}; use the files there",
                    address.path().display(),
                    mount.dir.display()
                ),
            ),
            _ => failure,
        })?;
        let opened = Arc::new(Opened {
            fs: Fs::over(volume.fs()).as_user(caller()),
            address: address.clone(),
            volume,
        });
        self.opened.push(Arc::clone(&opened));
        Ok(opened)
    }

    /// Closes all volumes, which leaves pools clean.
    pub(crate) fn close(self) -> Result<(), Failure> {
        for opened in &self.opened {
            opened.volume.close()?;
        }
        Ok(())
    }
}

/// The user who runs the command, with all groups.
pub(crate) fn caller() -> Cred {
    let groups = rustix::process::getgroups().unwrap_or_default();
    let groups: Vec<u32> = groups.iter().map(|group| group.as_raw()).collect();
    Cred::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()).with_groups(&groups)
}

/// The permission bits that new files of this process do not get.
pub(crate) fn umask() -> u32 {
    // A process can only read it by setting it; commands call this while they have one thread.
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.as_raw_mode() & 0o777
}

/// `path` as it is written, behind the address of its volume.
fn shown(prefix: &OsStr, path: &Path) -> OsString {
    OsString::from_vec([prefix.as_bytes(), path.as_os_str().as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(text: &[u8]) -> (String, PathBuf) {
        match Operand::parse(OsString::from_vec(text.to_vec())) {
            Ok(Operand::There { address, path, .. }) => (format!("{address:?}"), path),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_address_ends_at_the_first_colon_and_slash() {
        for (text, address, path) in [
            ("tcp://h:1/data:/a/b", "tcp://h:1/data", "/a/b"),
            ("tcp://h:1/a/b:/c:/d", "tcp://h:1/a/b", "/c:/d"),
            ("tcp://h:1/:/x", "tcp://h:1/", "/x"),
            ("tcp://h:1:/x", "tcp://h:1", "/x"),
            ("tcp://h:/x", "tcp://h", "/x"),
            ("tcp://[::1]:9/e:/", "tcp://[::1]:9/e", "/"),
            ("tcp://[::1]:/x", "tcp://[::1]", "/x"),
            ("tcp://a:1,b,[::1]:9/e:/x,y", "tcp://a:1,b,[::1]:9/e", "/x,y"),
            ("tcp://a:1,b:/x", "tcp://a:1,b", "/x"),
            ("tcp://h:1/e?key=/k/f:/x", "tcp://h:1/e?key=/k/f", "/x"),
        ] {
            assert_eq!(
                there(text.as_bytes()),
                (format!("{:?}", Address::parse(address).unwrap()), path.into()),
                "{text}"
            );
        }
        let pool = format!("{:?}", Address::of_pool("/d/a:b"));
        assert_eq!(there(b"pm:/d/a:b:/x"), (pool, "/x".into()));
        let odd = Path::new(OsStr::from_bytes(b"/\xff\n"));
        assert_eq!(there(b"tcp://h:1/e:/\xff\n").1, odd);
    }

    #[test]
    fn everything_without_a_scheme_is_of_this_machine() {
        for text in ["a", "/x/y", "./pm:x:/y", "a:/b", "/x://y", "host:file", "./-"] {
            assert!(
                matches!(Operand::parse(text.into()), Ok(Operand::Here(path)) if path == Path::new(text)),
                "{text}"
            );
        }
        assert!(matches!(Operand::parse("-".into()), Ok(Operand::Standard)));
    }

    #[test]
    fn what_is_missing_is_said() {
        for (text, remedy) in [
            ("tcp://h:1/data", "`tcp://h:1/data:/`"),
            ("tcp://h:1/data/dir/", "tcp://HOST:PORT/EXPORT:/PATH"),
            ("pm:/d/pool", "`pm:/d/pool:/`"),
            ("tcp://h:x/e:/p", "tcp://HOST:PORT"),
            ("nfs://h/e:/p", "not a scheme"),
        ] {
            let said = Operand::parse(text.into()).unwrap_err();
            assert!(said.contains(remedy), "{text}: {said}");
        }
    }
}
