//! What `mount -o` accepts, and what it refuses with a reason.

use std::fmt::Display;
use std::path::PathBuf;

use ferrite::volume::Address;
use ferrite::{AtimePolicy, Durability, MountOptions};
use ferrite_fuse::{FuseOptions, Rings};
use ferrite_net::volume::{RemoteAddress, parse_caching, parse_encrypt};

use super::{Failure, USAGE, scrub};

/// The options of a mount, parsed.
pub(crate) struct Options {
    /// Change the existing mount.
    pub(crate) remount: bool,
    /// A missing pool is not a failure.
    pub(crate) nofail: bool,
    pub(crate) engine: MountOptions,
    pub(crate) fuse: FuseOptions,
    /// It was said when operations are to be durable.
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
    /// What to keep of what a server tells: the word that was given.
    pub(crate) cache: Option<String>,
}

impl Options {
    /// The address of a pool, with what these options say of how a server is reached.
    pub(crate) fn with_key(&self, address: &Address) -> Result<Address, Failure> {
        if self.scrub.is_some() && address.is_remote() {
            let export = address.path().display();
            let text =
                format!("{export}: `scrub` is for pools of this machine; omit it, and scrub on the server's host");
            return Err(Failure::new(USAGE, text));
        }
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
}

impl Options {
    /// Those of the engine, for an export: that no access times are noted is the mount's business then, and `sync` is
    /// compared with what the server promises.
    pub(crate) fn of_export(&self) -> MountOptions {
        let (mut engine, default) = (self.engine, MountOptions::default());
        if engine.atime == AtimePolicy::Never {
            (engine.atime, engine.dir_atime) = (default.atime, default.dir_atime);
        }
        engine
    }
}

/// Where the default of the option `rings` comes from, for all mounts of a service.
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

/// Why an option known from other file systems cannot be honoured here.
fn untrue(word: &str) -> Option<&'static str> {
    Some(match word {
        "acl" | "posixacl" => "access control lists are not supported; omit it",
        "nouser_xattr" => "extended attributes cannot be turned off; omit it",
        "nobarrier" | "barrier=0" => {
            "completed operations are durable; on disk files `durability=fsync` makes only fsync wait for \
            that, and `durability=process` trades power-loss safety for speed"
        }
        "errors=continue" | "errors=panic" => "after a medium failure all changes are always refused; omit it",
        "quota" | "usrquota" | "grpquota" | "prjquota" | "uquota" | "gquota" | "pquota" => {
            "quotas are not supported; omit it"
        }
        _ => return None,
    })
}

/// Parses the words between the commas. With `sloppy` an unknown word is not an error.
pub(crate) fn parse(words: &[String], sloppy: bool) -> Result<Options, Failure> {
    let root = rustix::process::geteuid().is_root();
    let mut engine = MountOptions::default();
    let mut fuse = FuseOptions {
        allow_other: root,
        suid_dev: root,
        rings: rings_default()?,
        ..FuseOptions::default()
    };
    let (mut daily, mut trace, mut log) = (None, None, None);
    let (mut key, mut encrypt, mut cache) = (None, None, None);
    let (mut remount, mut nofail, mut clean_high) = (false, false, None);
    let (mut durability, mut sync) = (None, None);
    for word in words {
        match word.as_str() {
            "ro" => engine.read_only = true,
            // The last one counts: mount(8) puts the requested options after those that the mount has.
            "rw" => engine.read_only = false,
            "remount" => remount = true,
            "noatime" => engine.atime = AtimePolicy::Never,
            "relatime" => engine.atime = AtimePolicy::Relative,
            "strictatime" => engine.atime = AtimePolicy::Strict,
            "allow_other" => fuse.allow_other = true,
            "nosuid" | "nodev" => fuse.suid_dev = false,
            "noexec" => fuse.noexec = true,
            "durability=strict" => durability = Some(Durability::Strict),
            "durability=process" => durability = Some(Durability::Process),
            "durability=fsync" => durability = Some(Durability::OnSync),
            "sync" | "dirsync" => sync = Some(word),
            "accept_power_loss" => engine.accept_power_loss = true,
            "nofail" => nofail = true,
            "nodiratime" => engine.dir_atime = false,
            "diratime" => engine.dir_atime = true,
            // What they ask for is true anyway (a change is durable when it returns, attributes are kept, a failed
            // medium stops changes), or is for mount(8), or is a permission that is not used.
            "user_xattr" | "noacl" | "errors=remount-ro" | "barrier" => {}
            "group" | "owner" | "lazytime" | "nolazytime" | "discard" | "nodiscard" | "silent" | "loud" => {}
            word if let Some(why) = untrue(word) => {
                return Err(Failure::new(USAGE, format!("mount option `{word}`: {why}")));
            }
            "defaults"
            | "_netdev"
            | "auto"
            | "noauto"
            | "user"
            | "nouser"
            | "users"
            | "exec"
            | "suid"
            | "dev"
            | "async"
            | "atime"
            | "default_permissions"
            | "" => {}
            word if word.starts_with("x-") || word.starts_with("comment=") => {}
            // The kernel shows these for a mount, so mount(8) passes them back at a remount.
            word if word.starts_with("user_id=") || word.starts_with("group_id=") => {}
            "cleaner=on" => engine.cleaner = true,
            "cleaner=off" => engine.cleaner = false,
            "logs=off" => engine.cow_only = true,
            "locks=engine" => fuse.engine_locks = true,
            "locks=kernel" => fuse.engine_locks = false,
            "direct_io" => fuse.direct_io = true,
            "logs=on" => engine.cow_only = false,
            word => match word.split_once('=') {
                Some(("threads", value)) => fuse.threads = number(word, value, 1, 256)?,
                Some(("scrub", value)) => daily = Some(number(word, value, 1, scrub::MIB_MAX as usize)? as u64),
                Some(("clean_low", value)) => engine.clean_low_percent = number(word, value, 0, 90)? as u8,
                Some(("clean_high", value)) => clean_high = Some(number(word, value, 0, 90)? as u8),
                Some(("trace", "")) => return Err(Failure::new(USAGE, "`trace=`: give a file")),
                Some(("trace", value)) => trace = Some(PathBuf::from(value)),
                Some(("log", "")) => return Err(Failure::new(USAGE, "`log=`: give a file")),
                Some(("log", value)) => log = Some(PathBuf::from(value)),
                Some(("key", "")) => return Err(Failure::new(USAGE, "`key=`: give a file")),
                Some(("key", value)) => key = Some(PathBuf::from(value)),
                Some(("encrypt", value)) => match parse_encrypt(value) {
                    Some(_) => encrypt = Some(value.to_owned()),
                    None => return Err(Failure::new(USAGE, format!("`{word}`: give on, off or auto"))),
                },
                Some(("cache", value)) => match parse_caching(value) {
                    Some(_) => cache = Some(value.to_owned()),
                    None => return Err(Failure::new(USAGE, format!("`{word}`: give leased or off"))),
                },
                Some(("rings", value)) => match rings(value) {
                    Some(rings) => fuse.rings = rings,
                    None => return Err(Failure::new(USAGE, format!("`{word}`: give on, off or auto"))),
                },
                Some(("fold_reads", value)) => engine.fold_read_entries = number(word, value, 0, 1000)? as u32,
                _ if sloppy => {}
                _ => {
                    return Err(Failure::new(
                        USAGE,
                        format!("unknown mount option `{word}`; see `ferrite mount --help`"),
                    ));
                }
            },
        }
    }
    engine.durability = durability.unwrap_or_default();
    if let (Some(word), Durability::OnSync | Durability::Process) = (sync, engine.durability) {
        return Err(Failure::new(
            USAGE,
            format!("mount option `{word}`: asks for durability=strict, and another durability is asked for as well"),
        ));
    }
    let low = engine.clean_low_percent;
    // If only one was given, the other follows it.
    let high = clean_high.unwrap_or(engine.clean_high_percent.max(low));
    engine.clean_high_percent = high;
    if low > high {
        return Err(Failure::new(
            USAGE,
            format!(
                "clean_low={low} is above clean_high={high}: the cleaner starts below clean_low and stops at clean_high"
            ),
        ));
    }
    fuse.read_only = engine.read_only;
    fuse.noatime = engine.atime == AtimePolicy::Never;
    Ok(Options {
        remount,
        nofail,
        engine,
        fuse,
        says_durability: durability.is_some() || sync.is_some(),
        scrub: daily.map(scrub::bytes),
        trace,
        log,
        key,
        encrypt,
        cache,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(',').map(String::from).collect()
    }

    /// What a mount does itself is not asked of a server, and everything else is passed on, to be refused by name.
    #[test]
    fn options_of_pools_stay_visible_for_exports() {
        let of_export = |text: &str| parse(&words(text), false).unwrap().of_export().given();
        assert!(of_export("rw,noatime,nodiratime,_netdev,sync,threads=2").is_empty());
        assert_eq!(of_export("ro"), ["read_only"]);
        for (word, name) in [
            ("strictatime", "atime"),
            ("nodiratime", "dir_atime"),
            ("durability=fsync", "durability"),
            ("accept_power_loss", "accept_power_loss"),
            ("cleaner=off", "cleaner"),
            ("fold_reads=7", "fold_read_entries"),
            ("logs=off", "cow_only"),
        ] {
            assert_eq!(of_export(word), [name]);
        }
        let address = Address::parse("tcp://host/data").unwrap();
        let failure = parse(&words("scrub=5"), false).unwrap().with_key(&address).unwrap_err();
        assert!(failure.message.contains("scrub"), "{}", failure.message);
    }

    #[test]
    fn fstab_options_are_accepted_and_unknown_ones_named() {
        let options = parse(&words("rw,nofail,x-systemd.automount,noatime,threads=3"), false).unwrap();
        assert_eq!(options.engine.atime, AtimePolicy::Never);
        assert_eq!(options.fuse.threads, 3);
        let common = "defaults,discard,user_xattr,noacl,group,owner,lazytime,dirsync,sync,errors=remount-ro";
        assert!(parse(&words(common), false).is_ok_and(|options| options.engine.dir_atime));
        assert!(!parse(&words("nodiratime"), false).unwrap().engine.dir_atime);
        for lie in ["acl", "nobarrier", "usrquota", "nouser_xattr", "errors=continue"] {
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
}
