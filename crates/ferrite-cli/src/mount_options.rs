//! The options that `mount -o` accepts, and those that it refuses with a reason.
//!
//! Contents: [`parse`], [`Options`], and [`Options::settle`], which interprets the words for the kind of mount. The
//! words are in [`words`].

mod words;

use std::fmt::{Display, Write};
use std::path::PathBuf;

use ferrite::volume::Address;
use ferrite::{Durability, MountOptions};
use ferrite_client::volume::{Caching, RemoteAddress};
use ferrite_fuse::{FuseOptions, Rings};

use self::words::{Effect, Word};
use super::{Failure, USAGE, scrub};

pub(crate) use self::words::Kind;

/// The options of a mount, parsed.
pub(crate) struct Options {
    /// Change the existing mount.
    pub(crate) remount: bool,
    /// A missing pool is not a failure.
    pub(crate) nofail: bool,
    pub(crate) engine: MountOptions,
    pub(crate) fuse: FuseOptions,
    /// Whether the words set when operations become durable.
    pub(crate) says_durability: bool,
    /// Bytes a second of a daily scrub.
    pub(crate) scrub: Option<u64>,
    /// File in which writes are recorded.
    pub(crate) trace: Option<PathBuf>,
    /// Destination of the log.
    pub(crate) log: Option<PathBuf>,
    /// File with the key of an export.
    pub(crate) key: Option<PathBuf>,
    /// Whether to encrypt: the word that was given.
    pub(crate) encrypt: Option<String>,
    /// Which replies of a server to cache: the word that was given.
    pub(crate) cache: Option<String>,
    suid: Option<bool>,
    dev: Option<bool>,
    /// The effective words, as given.
    given: Vec<(&'static Word, String)>,
}

/// Options that are being read.
#[derive(Default)]
struct Draft {
    remount: bool,
    nofail: bool,
    engine: MountOptions,
    fuse: FuseOptions,
    suid: Option<bool>,
    dev: Option<bool>,
    durability: Option<Durability>,
    /// The word that asks for strict durability.
    sync: Option<&'static str>,
    clean_high: Option<u8>,
    daily: Option<u64>,
    trace: Option<PathBuf>,
    log: Option<PathBuf>,
    key: Option<PathBuf>,
    encrypt: Option<String>,
    cache: Option<String>,
}

impl Options {
    /// The address of a pool, with the options that determine how to reach a server.
    pub(crate) fn with_key(&self, address: &Address) -> Result<Address, Failure> {
        if self.key.is_none() && self.encrypt.is_none() && self.cache.is_none() {
            return Ok(address.clone());
        }
        let text = address.path();
        let wrong = |why: &dyn Display| Failure::new(USAGE, format!("{}: {why}", text.display()));
        if !address.is_remote() {
            return Err(wrong(
                &"`key`, `encrypt` and `cache` are for exports of servers, tcp://HOST:PORT/NAME",
            ));
        }
        let (key, encrypt, cache) = (self.key.as_deref(), self.encrypt.as_deref(), self.cache.as_deref());
        let with = RemoteAddress::with(&text.to_string_lossy(), key, encrypt, cache);
        with.map(|with| address.at(with)).map_err(|why| wrong(&why))
    }

    /// Interprets the words for this kind of mount; returns the warnings. Refuses words without effect there.
    pub(crate) fn settle(&mut self, kind: Kind, is_root: bool) -> Result<Vec<String>, Failure> {
        let mut warnings = Vec::new();
        for (word, given) in &self.given {
            match word.on(kind) {
                Effect::Does | Effect::Is => {}
                Effect::Warns(why) => warnings.push(format!("mount option `{given}`: {why}")),
                Effect::Refused(why) => return Err(wrong_option(given, why)),
            }
        }
        let is_servers = matches!(kind, Kind::Export | Kind::Leased);
        // Another client may have made the files, or the server.
        let default = is_root && !is_servers;
        for (word, wanted, on) in [
            ("suid", self.suid, &mut self.fuse.suid),
            ("dev", self.dev, &mut self.fuse.dev),
        ] {
            if wanted == Some(true) && !is_root {
                return Err(wrong_option(word, "needs root; omit it"));
            }
            *on = wanted.unwrap_or(default);
        }
        // Only the server knows other clients' locks.
        self.fuse.engine_locks |= is_servers;
        Ok(warnings)
    }
}

/// The kind of mount for an address; `may_block`: a pool may wait for a disk.
pub(crate) fn kind_of(address: &Address, may_block: bool) -> Kind {
    let text = address.path().to_string_lossy();
    let is_leased = || RemoteAddress::parse(&text).is_ok_and(|remote| remote.cache == Some(Caching::Leased));
    match address.is_remote() {
        true if is_leased() => Kind::Leased,
        true => Kind::Export,
        false if address.scheme() != Address::of_pool("").scheme() => Kind::Devices,
        false if may_block => Kind::Disk,
        false => Kind::Memory,
    }
}

/// The words, for `ferrite mount --help`.
pub(crate) fn help() -> String {
    /// Where the explanations begin, and how wide the text is.
    const INDENT: usize = 23;
    const WIDTH: usize = 100;
    let mut text = String::from("Options for -o:\n");
    let silent: Vec<&str> = words::all()
        .filter(|word| word.help.0.is_empty() && word.never().is_none() && word.group.is_empty())
        .map(|word| word.name)
        .filter(|name| !name.is_empty() && !name.contains("_id="))
        .collect();
    for Word { help: (name, says), .. } in words::all().filter(|word| !word.help.0.is_empty()) {
        let mut line = format!("  {name:<width$}", width = INDENT - 3);
        for part in says.split_whitespace() {
            if line.len() + 1 + part.len() > WIDTH {
                let _ = writeln!(text, "{}", line.trim_end());
                line = " ".repeat(INDENT - 1);
            }
            let _ = write!(line, " {part}");
        }
        let _ = writeln!(text, "{line}");
    }
    let _ = write!(
        text,
        "\nAlso accepted, as /etc/fstab may have them: {}\n\nIn /etc/fstab:\n  /var/lib/data.pool      /data    ferrite  \
         noatime  0 0\n  tcp://server:7447/data  /shared  ferrite  _netdev,nofail,key=/etc/ferrite/data.key  0 0",
        silent.join(", ")
    );
    text
}

impl Options {
    /// The engine's options as far as they concern a volume of this kind; the library refuses others. The rest is the
    /// kernel's, and [`Options::settle`] refuses words without effect.
    pub(crate) fn of_engine(&self, address: &Address) -> MountOptions {
        let read_only = self.engine.read_only;
        let common = MountOptions::default().read_only(read_only);
        match address.scheme() == Address::of_pool("").scheme() {
            true => self.engine,
            false if address.is_remote() => common,
            false => common.accept_power_loss(read_only && self.engine.accept_power_loss),
        }
    }
}

/// The source of the default of the option `rings`, for all mounts of a service.
const RINGS: &str = "FERRITE_RINGS";

fn rings(value: &str) -> Option<Rings> {
    Some(match value {
        "on" => Rings::On,
        "off" => Rings::Off,
        "auto" => Rings::Auto,
        _ => return None,
    })
}

/// The default of the option `rings`.
fn rings_default() -> Result<Rings, Failure> {
    let Some(value) = std::env::var_os(RINGS) else {
        return Ok(Rings::default());
    };
    rings(&value.to_string_lossy())
        .ok_or_else(|| Failure::new(USAGE, format!("the environment's {RINGS}: it is on, off or auto")))
}

/// The value of an option that is a number within limits.
fn number(word: &str, value: &str, least: usize, most: usize) -> Result<usize, Failure> {
    value
        .parse()
        .ok()
        .filter(|n| (least..=most).contains(n))
        .ok_or_else(|| Failure::new(USAGE, format!("`{word}`: give a number from {least} to {most}")))
}

fn wrong(word: &str, mend: &str) -> Failure {
    Failure::new(USAGE, format!("`{word}`: {mend}"))
}

fn wrong_option(word: &str, why: &str) -> Failure {
    Failure::new(USAGE, format!("mount option `{word}`: {why}"))
}

/// An option that is not known, or one that is, with a value that is not.
fn unknown(text: &str) -> Failure {
    let name = text.split('=').next().unwrap_or_default();
    let same_name = words::all().filter(|word| word.name.split('=').next() == Some(name));
    let values: Vec<&str> = same_name
        .filter_map(|word| Some(word.name.split_once('=')?.1))
        .collect();
    let message = match &values[..] {
        [] => format!("unknown mount option `{text}`; see `ferrite mount --help`"),
        values if values.contains(&"") => {
            format!("mount option `{text}`: it needs a value; see `ferrite mount --help`")
        }
        values => format!("mount option `{text}`: its values are {}", values.join(", ")),
    };
    Failure::new(USAGE, message)
}

/// Parses the words between the commas. With `sloppy` an unknown word is not an error.
pub(crate) fn parse(texts: &[String], sloppy: bool) -> Result<Options, Failure> {
    let mut draft = Draft::default();
    draft.fuse.allow_other = rustix::process::geteuid().is_root();
    draft.fuse.rings = rings_default()?;
    let mut given: Vec<(&'static Word, String)> = Vec::new();
    for text in texts {
        let Some((word, value)) = words::all().find_map(|word| Some((word, word.matches(text)?))) else {
            if sloppy {
                continue;
            }
            return Err(unknown(text));
        };
        if let Some(why) = word.never() {
            return Err(wrong_option(text, why));
        }
        match word.set {
            words::Set::Nothing => {}
            words::Set::Plain(set) => set(&mut draft),
            words::Set::Value(set) => set(&mut draft, text, value)?,
        }
        // A later word of the same group takes its place.
        given.retain(|(before, _)| word.group.is_empty() || before.group != word.group);
        given.push((word, text.clone()));
    }
    draft.finish(given)
}

impl Draft {
    fn finish(self, given: Vec<(&'static Word, String)>) -> Result<Options, Failure> {
        let (mut engine, mut fuse) = (self.engine, self.fuse);
        engine.durability = self.durability.unwrap_or_default();
        if let (Some(word), Durability::OnSync | Durability::Process) = (self.sync, engine.durability) {
            return Err(wrong_option(
                word,
                "asks for durability=strict, and another durability is asked for as well",
            ));
        }
        let low = engine.clean_low_percent;
        // If only one was given, the other follows.
        let high = self.clean_high.unwrap_or(engine.clean_high_percent.max(low));
        engine.clean_high_percent = high;
        if low > high {
            return Err(Failure::new(
                USAGE,
                format!(
                    "clean_low={low} is above clean_high={high}: the cleaner starts below clean_low and stops at \
                     clean_high"
                ),
            ));
        }
        fuse.read_only = engine.read_only;
        fuse.noatime = engine.atime == ferrite::AtimePolicy::Never;
        Ok(Options {
            remount: self.remount,
            nofail: self.nofail,
            engine,
            fuse,
            says_durability: self.durability.is_some() || self.sync.is_some(),
            scrub: self.daily.map(scrub::bytes),
            trace: self.trace,
            log: self.log,
            key: self.key,
            encrypt: self.encrypt,
            cache: self.cache,
            suid: self.suid,
            dev: self.dev,
            given,
        })
    }
}

#[cfg(test)]
mod tests {
    use ferrite::AtimePolicy;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(',').map(String::from).collect()
    }

    /// No option of a pool reaches a server, and none is dropped in silence.
    #[test]
    fn options_of_pools_are_refused_for_exports() {
        let export = Address::parse("tcp://host/data").unwrap();
        let of_export = |text: &str| parse(&words(text), false).unwrap().of_engine(&export).given();
        assert!(of_export("rw,noatime,_netdev,sync,threads=2").is_empty());
        assert_eq!(of_export("ro"), ["read_only"]);
        for word in [
            "strictatime",
            "durability=fsync",
            "accept_power_loss",
            "cleaner=off",
            "merge_reads=7",
            "logs=off",
            "scrub=5",
        ] {
            assert!(of_export(word).is_empty());
            let refused = parse(&words(word), false).unwrap().settle(Kind::Export, true);
            let name = word.split('=').next().unwrap();
            let failure = refused.expect_err(word);
            assert!(failure.message.contains(name), "{}", failure.message);
        }
    }

    #[test]
    fn fstab_options_are_accepted_and_unknown_ones_named() {
        let options = parse(&words("rw,nofail,x-systemd.automount,noatime,threads=3"), false).unwrap();
        assert_eq!(options.engine.atime, AtimePolicy::Never);
        assert_eq!(options.fuse.threads, 3);
        let common = "defaults,discard,user_xattr,acl,group,owner,lazytime,dirsync,sync,errors=remount-ro";
        assert!(parse(&words(common), false).is_ok_and(|options| options.engine.dir_atime));
        assert!(!parse(&words("nodiratime"), false).unwrap().engine.dir_atime);
        for lie in ["noacl", "nobarrier", "usrquota", "nouser_xattr", "errors=continue"] {
            for sloppy in [false, true] {
                let failure = parse(&words(lie), sloppy).err().unwrap();
                assert!(
                    failure.message.contains(lie) && failure.message.contains(": "),
                    "{}",
                    failure.message
                );
                assert!(!failure.message.contains("unknown"), "{}", failure.message);
            }
        }
        assert_eq!(
            parse(&words("durability=fsync"), false).unwrap().engine.durability,
            Durability::OnSync
        );
        let failure = parse(&words("dirsync,durability=fsync"), false).err().unwrap();
        assert!(failure.message.contains("dirsync"), "{}", failure.message);
        let failure = parse(&words("ro,colour=red"), false).err().unwrap();
        assert!(failure.message.contains("colour=red"));
        assert_eq!(failure.code, USAGE);
        assert!(parse(&words("threads=0"), false).is_err());
        assert!(parse(&words("direct_io"), false).is_ok_and(|options| options.fuse.direct_io));
        for (value, chosen) in [("on", Rings::On), ("off", Rings::Off), ("auto", Rings::Auto)] {
            let options = parse(&words(&format!("rings={value}")), false).unwrap();
            assert_eq!(options.fuse.rings, chosen);
        }
        assert!(parse(&words("rings=maybe"), true).is_err_and(|failure| failure.message.contains("rings=maybe")));
        assert!(parse(&words("colour=red"), true).is_ok(), "mount -s tolerates it");
        assert!(parse(&words("trace="), true).is_err());
        assert_eq!(
            parse(&words("log=/var/log/ferrite"), false).unwrap().log,
            Some("/var/log/ferrite".into())
        );
        assert!(parse(&words("log="), true).is_err());
        let options = parse(&words("_netdev,nofail,key=/etc/ferrite/data.key,encrypt=off"), false).unwrap();
        assert_eq!(options.key.as_deref(), Some("/etc/ferrite/data.key".as_ref()));
        assert_eq!(options.encrypt.as_deref(), Some("off"));
        assert_eq!(
            parse(&words("cache=leased"), false).unwrap().cache.as_deref(),
            Some("leased")
        );
        assert!(parse(&words("cache=on"), true).is_err());
        assert!(parse(&words("key="), true).is_err() && parse(&words("encrypt=maybe"), true).is_err());
        let failure = parse(&words("clean_low=20,clean_high=10"), true).err().unwrap();
        assert!(failure.message.contains("clean_low=20") && failure.message.contains("clean_high=10"));
        assert_eq!(
            parse(&words("clean_low=11"), false).unwrap().engine.clean_high_percent,
            11
        );
        assert!(parse(&words("clean_high=4"), false).is_err(), "the other one is 5");
        assert!(parse(&words("clean_low=10,clean_high=10"), false).is_ok());
        let options = parse(&words("rw,relatime,user_id=0,group_id=0,allow_other,remount,ro"), false).unwrap();
        assert!(options.remount && options.engine.read_only);
        assert!(!parse(&words("ro,remount,rw"), false).unwrap().engine.read_only);
    }

    const KINDS: [Kind; 5] = [Kind::Memory, Kind::Disk, Kind::Devices, Kind::Export, Kind::Leased];

    /// A word as a user may write it.
    fn sample(word: &Word) -> String {
        let value = match word.name {
            "encrypt=" | "rings=" => "auto",
            "cache=" => "off",
            "key=" | "log=" | "trace=" => "/file",
            name if name.ends_with('=') => "7",
            _ => "",
        };
        format!("{}{value}", word.name.trim_end_matches('*'))
    }

    /// No word is accepted in silence where it does nothing: each has its effect, asks for the present state, warns, or
    /// is refused, on every kind of mount; and the message names it.
    #[test]
    fn each_word_has_an_effect_or_a_message_on_each_kind_of_mount() {
        for word in words::all() {
            let text = sample(word);
            let parsed = parse(std::slice::from_ref(&text), false);
            if let Some(why) = word.never() {
                let failure = parsed.err().unwrap();
                assert!(failure.code == USAGE && failure.message.contains(&text) && failure.message.contains(why));
                continue;
            }
            drop(parsed);
            for kind in KINDS {
                let mut options = parse(std::slice::from_ref(&text), false).unwrap();
                let settled = options.settle(kind, true).map_err(|failure| failure.message);
                let said = match (word.on(kind), &settled) {
                    (Effect::Does | Effect::Is, Ok(warnings)) => {
                        assert!(warnings.is_empty(), "{text} on {kind:?}: {warnings:?}");
                        continue;
                    }
                    (Effect::Warns(_), Ok(warnings)) => warnings.concat(),
                    (Effect::Refused(_), Err(message)) => message.clone(),
                    (effect, settled) => panic!("{text} on {kind:?}: {effect:?}, but {settled:?}"),
                };
                assert!(said.contains(&text) && said.contains(": "), "{said}");
            }
        }
    }

    /// A word that sets nothing never claims an effect; a word in the help has an explanation.
    #[test]
    fn words_say_what_they_do() {
        for word in words::all() {
            let sets_nothing = matches!(word.set, words::Set::Nothing);
            assert!(
                !(sets_nothing && KINDS.iter().any(|&kind| word.on(kind) == Effect::Does)),
                "{}",
                word.name
            );
            let (name, says) = word.help;
            assert_eq!(name.is_empty(), says.is_empty(), "{}", word.name);
            assert!(name.is_empty() || help().contains(name), "{name}");
            let same: Vec<&str> = words::all()
                .filter(|other| other.name == word.name)
                .map(|it| it.name)
                .collect();
            assert_eq!(same.len(), 1, "{} is listed twice", word.name);
        }
        assert!(
            help()
                .lines()
                .filter(|line| !line.starts_with("Also"))
                .all(|line| line.len() <= 100)
        );
    }

    #[test]
    fn of_words_that_contradict_each_other_the_last_one_counts() {
        let mut options = parse(&words("strictatime,locks=kernel,noatime,locks=engine"), false).unwrap();
        assert!(
            options
                .settle(Kind::Export, true)
                .is_ok_and(|warnings| warnings.len() == 1)
        );
        assert!(
            parse(&words("noatime,strictatime"), false)
                .unwrap()
                .settle(Kind::Devices, true)
                .is_err()
        );
    }

    /// Any client of a server with its key, and the server itself, can make a setuid file of any user.
    #[test]
    fn what_a_server_has_made_gives_no_privileges_unless_that_is_asked_for() {
        let settled = |text: &str, kind, is_root| {
            let mut options = parse(&words(text), false).unwrap();
            options
                .settle(kind, is_root)
                .map(|_| (options.fuse.suid, options.fuse.dev))
                .ok()
        };
        for kind in [Kind::Export, Kind::Leased] {
            assert_eq!(settled("rw", kind, true), Some((false, false)));
            assert_eq!(settled("suid", kind, true), Some((true, false)));
            assert_eq!(settled("allow_suid,allow_dev", kind, true), Some((true, true)));
            assert_eq!(settled("nosuid,suid,dev", kind, true), Some((true, true)));
            assert_eq!(settled("suid,dev,nosuid", kind, true), Some((false, true)));
        }
        for kind in [Kind::Memory, Kind::Disk, Kind::Devices] {
            assert_eq!(settled("rw", kind, true), Some((true, true)));
            assert_eq!(settled("nosuid", kind, true), Some((false, true)));
            assert_eq!(settled("nodev", kind, true), Some((true, false)));
        }
        for kind in KINDS {
            assert_eq!(settled("rw", kind, false), Some((false, false)));
            assert_eq!(settled("suid", kind, false), None);
        }
    }
}
