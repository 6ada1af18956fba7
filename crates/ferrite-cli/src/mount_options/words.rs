//! Every word that `mount -o` knows: its setting, its help, and its effect on each kind of mount.
//!
//! Contents: [`WORDS`], from which the parser, the help, the refusals and the warnings come; and [`Kind`].
//!
//! Invariant: a word that is accepted without a message has its effect on that kind of mount, or asks for a state that
//! holds anyway.

use std::path::PathBuf;

use ferrite::{AtimePolicy, Durability};
use ferrite_client::volume::{parse_caching, parse_encrypt};

use super::{Draft, number, rings, wrong};
use crate::{Failure, scrub};

/// Kinds of mounts, as far as options differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A pool in memory.
    Memory,
    /// A pool in a file on a disk.
    Disk,
    /// A pool on devices.
    Devices,
    /// A server's export.
    Export,
    /// The same with `cache=leased`.
    Leased,
}

/// The effect of a word on one kind of mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// As the help says.
    Does,
    /// The requested state always holds.
    Is,
    /// Not as the help says; the user gets this warning.
    Warns(&'static str),
    /// None: a mount with it is refused.
    Refused(&'static str),
}

/// The setting of a word.
pub(super) enum Set {
    Nothing,
    Plain(fn(&mut Draft)),
    /// With the text after the equals sign: the whole word, and the value.
    Value(fn(&mut Draft, &str, &str) -> Result<(), Failure>),
}

/// One word.
pub(super) struct Word {
    /// As written; a name that ends with `=` has a value, one that ends with `*` stands for all that begin so.
    pub(super) name: &'static str,
    /// The word as the help shows it, and its explanation. Without either it is accepted, but not shown.
    pub(super) help: (&'static str, &'static str),
    /// Of several words of one group the last one counts. Empty: each counts.
    pub(super) group: &'static str,
    pub(super) set: Set,
    /// In the order of [`Kind`].
    pub(super) on: [Effect; 5],
}

impl Word {
    pub(super) fn on(&self, kind: Kind) -> Effect {
        self.on[kind as usize]
    }

    /// Why it is refused on every mount.
    pub(super) fn never(&self) -> Option<&'static str> {
        let why = |effect: &Effect| match effect {
            Effect::Refused(why) => Some(*why),
            _ => None,
        };
        let all: Option<Vec<&'static str>> = self.on.iter().map(why).collect();
        all.and_then(|whys| whys.iter().all(|why| *why == whys[0]).then(|| whys[0]))
    }

    /// Whether `text` is this word; with its value, if it has one.
    pub(super) fn matches<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self.name.strip_suffix('*') {
            Some(start) => text.starts_with(start).then_some(""),
            None if self.name.ends_with('=') => text.strip_prefix(self.name),
            None => (text == self.name).then_some(""),
        }
    }
}

use Effect::{Does, Is, Refused, Warns};

const ALL: [Effect; 5] = [Does; 5];
const ANYWAY: [Effect; 5] = [Is; 5];

/// For pools in memory or on a disk; `devices` and `server` give the refusals of the other kinds.
const fn of_pages(does: [Effect; 2], devices: Effect, server: Effect) -> [Effect; 5] {
    let [memory, disk] = does;
    [memory, disk, devices, server, server]
}

/// The same effect on all pools; servers' exports refuse it, or behave so anyway.
const fn of_pools(does: Effect, server: Effect) -> [Effect; 5] {
    [does, does, does, server, server]
}

const NO_LOGS: Effect = Refused("pools on devices have no page logs; omit it");
const SERVERS_POOL: Effect = Refused("it applies where the pool is opened, which is on the server; omit it");
const SERVER_DURABILITY: Effect =
    Refused("the server decides when operations are durable: give it to `ferrite serve`, and omit it here");
const DEVICES_DURABILITY: Effect = Refused("on devices operations are durable when they return; omit it");
const MEMORY_DURABILITY: Effect = Warns("has no effect in memory: operations are as durable as it is when they return");
const SERVER_ATIME: Effect = Refused("the server decides, and updates access times as with `relatime`; omit it");
const ONLY_EXPORTS: Effect = Refused("is for exports of servers, tcp://HOST:PORT/NAME");
const QUOTAS: [Effect; 5] = [Refused("quotas are not supported; omit it"); 5];

const fn shown(name: &'static str, help: &'static str, set: Set, on: [Effect; 5]) -> Word {
    in_group("", name, (name, help), set, on)
}

const fn in_group(
    group: &'static str,
    name: &'static str,
    help: (&'static str, &'static str),
    set: Set,
    on: [Effect; 5],
) -> Word {
    Word {
        name,
        help,
        group,
        set,
        on,
    }
}

/// A word that fstab may have.
const fn silent(name: &'static str, on: [Effect; 5]) -> Word {
    in_group("", name, ("", ""), Set::Nothing, on)
}

fn path(value: &str, word: &str) -> Result<Option<PathBuf>, Failure> {
    match value {
        "" => Err(wrong(word, "give a file")),
        value => Ok(Some(PathBuf::from(value))),
    }
}

/// Words for every engine, or for the kernel.
const GENERAL: &[Word] = &[
    in_group(
        "ro",
        "ro",
        (
            "ro",
            "refuse changes; a crashed pool is recovered in memory, nothing is written",
        ),
        Set::Plain(|draft| draft.engine.read_only = true),
        ALL,
    ),
    // The last one counts: mount(8) puts the requested options after those that the mount has.
    in_group(
        "ro",
        "rw",
        ("", ""),
        Set::Plain(|draft| draft.engine.read_only = false),
        ALL,
    ),
    in_group(
        "",
        "remount",
        (
            "remount,ro",
            "refuse changes on an existing mount; remount,rw: allow them again",
        ),
        Set::Plain(|draft| draft.remount = true),
        ALL,
    ),
    in_group(
        "atime",
        "noatime",
        ("noatime", "never update access times"),
        Set::Plain(|draft| draft.engine.atime = AtimePolicy::Never),
        of_pools(
            Does,
            Warns("holds for files; the server updates the access times of directories that are listed"),
        ),
    ),
    in_group(
        "atime",
        "relatime",
        (
            "relatime",
            "update them if they are older than the last change, or than a day [default]",
        ),
        Set::Plain(|draft| draft.engine.atime = AtimePolicy::Relative),
        [Does, Does, Is, Is, Is],
    ),
    in_group(
        "atime",
        "atime",
        ("", ""),
        Set::Plain(|draft| draft.engine.atime = AtimePolicy::Relative),
        ANYWAY,
    ),
    in_group(
        "atime",
        "strictatime",
        (
            "strictatime",
            "always update them; reads from the kernel's cache never do, nor are they possible with direct_io",
        ),
        Set::Plain(|draft| draft.engine.atime = AtimePolicy::Strict),
        of_pages(
            [Warns("reads that the kernel serves from its cache do not update access times, as on any FUSE mount"); 2],
            Refused("pools on devices update access times as `relatime` says; omit it"),
            SERVER_ATIME,
        ),
    ),
    in_group(
        "diratime",
        "nodiratime",
        ("nodiratime", "do not update access times of directories"),
        Set::Plain(|draft| draft.engine.dir_atime = false),
        of_pages([Does; 2], Is, SERVER_ATIME),
    ),
    in_group(
        "diratime",
        "diratime",
        ("", ""),
        Set::Plain(|draft| draft.engine.dir_atime = true),
        [
            Is,
            Is,
            Warns("listings of pools on devices update no access times"),
            Is,
            Is,
        ],
    ),
    shown(
        "allow_other",
        "allow access by other users [default for root]",
        Set::Plain(|draft| draft.fuse.allow_other = true),
        ALL,
    ),
    in_group(
        "suid",
        "nosuid",
        (
            "nosuid, allow_suid",
            "ignore, or honour, setuid bits and capabilities of files [default: honour those of a pool if root mounts it; \
             ignore those of a server's export, because its other clients may set them]",
        ),
        Set::Plain(|draft| draft.suid = Some(false)),
        ALL,
    ),
    // mount(8) does not pass on `suid` and `dev`, unless `user` is given, too.
    in_group(
        "suid",
        "suid",
        ("", ""),
        Set::Plain(|draft| draft.suid = Some(true)),
        ALL,
    ),
    in_group(
        "suid",
        "allow_suid",
        ("", ""),
        Set::Plain(|draft| draft.suid = Some(true)),
        ALL,
    ),
    in_group(
        "dev",
        "nodev",
        (
            "nodev, allow_dev",
            "ignore, or honour, device files [default: as for setuid bits]",
        ),
        Set::Plain(|draft| draft.dev = Some(false)),
        ALL,
    ),
    in_group("dev", "dev", ("", ""), Set::Plain(|draft| draft.dev = Some(true)), ALL),
    in_group(
        "dev",
        "allow_dev",
        ("", ""),
        Set::Plain(|draft| draft.dev = Some(true)),
        ALL,
    ),
    in_group(
        "exec",
        "noexec",
        ("noexec", "do not execute programs"),
        Set::Plain(|draft| draft.fuse.noexec = true),
        ALL,
    ),
    in_group(
        "exec",
        "exec",
        ("", ""),
        Set::Plain(|draft| draft.fuse.noexec = false),
        ALL,
    ),
];

/// Words for pools in memory or on a disk.
const PAGES: &[Word] = &[
    in_group(
        "durability",
        "durability=strict",
        ("", ""),
        Set::Plain(|draft| draft.durability = Some(Durability::Strict)),
        [Is, Does, Is, Does, Does],
    ),
    in_group(
        "durability",
        "durability=fsync",
        (
            "durability=fsync",
            "on a disk file: operations stay atomic and in order, and are durable after an fsync of any file or \
             directory, an unmount, or five seconds; after a power loss the whole file system has a consistent earlier \
             state [default: durability=strict, at once]",
        ),
        Set::Plain(|draft| draft.durability = Some(Durability::OnSync)),
        of_pages([MEMORY_DURABILITY, Does], DEVICES_DURABILITY, SERVER_DURABILITY),
    ),
    in_group(
        "durability",
        "durability=process",
        (
            "durability=process",
            "on a disk file: faster still, but survives only killed processes, not power losses",
        ),
        Set::Plain(|draft| draft.durability = Some(Durability::Process)),
        of_pages([MEMORY_DURABILITY, Does], DEVICES_DURABILITY, SERVER_DURABILITY),
    ),
    in_group(
        "",
        "sync",
        ("", ""),
        Set::Plain(|draft| draft.sync = Some("sync")),
        [Is, Does, Is, Does, Does],
    ),
    in_group(
        "",
        "dirsync",
        ("", ""),
        Set::Plain(|draft| draft.sync = Some("dirsync")),
        [Is, Does, Is, Does, Does],
    ),
    shown(
        "accept_power_loss",
        "mount although the machine lost power in that mode",
        Set::Plain(|draft| draft.engine.accept_power_loss = true),
        of_pages(
            [Warns("has no effect in memory, which survives none"), Does],
            Warns("only with `ro`: the pool is then shown as a loss of power left it"),
            SERVERS_POOL,
        ),
    ),
    in_group(
        "",
        "clean_low=",
        (
            "clean_low=N",
            "merge page logs when less than N % of the space is free [default: 5]",
        ),
        Set::Value(|draft, word, value| {
            draft.engine.clean_low_percent = number(word, value, 0, 90)? as u8;
            Ok(())
        }),
        of_pages([Does; 2], NO_LOGS, SERVERS_POOL),
    ),
    in_group(
        "",
        "clean_high=",
        ("clean_high=N", "until N % is free [default: 10]"),
        Set::Value(|draft, word, value| {
            draft.clean_high = Some(number(word, value, 0, 90)? as u8);
            Ok(())
        }),
        of_pages([Does; 2], NO_LOGS, SERVERS_POOL),
    ),
    in_group(
        "",
        "merge_reads=",
        (
            "merge_reads=N",
            "a read that walks N entries of a page's log merges it; 0: never [default: 4]",
        ),
        Set::Value(|draft, word, value| {
            draft.engine.merge_read_entries = number(word, value, 0, 1000)? as u32;
            Ok(())
        }),
        of_pages([Does; 2], NO_LOGS, SERVERS_POOL),
    ),
    in_group(
        "cleaner",
        "cleaner=off",
        (
            "cleaner=off",
            "merge page logs only on writes and reads, and when space runs out",
        ),
        Set::Plain(|draft| draft.engine.cleaner = false),
        of_pages([Does; 2], NO_LOGS, SERVERS_POOL),
    ),
    in_group(
        "cleaner",
        "cleaner=on",
        ("", ""),
        Set::Plain(|draft| draft.engine.cleaner = true),
        of_pages([Does; 2], NO_LOGS, SERVERS_POOL),
    ),
    in_group(
        "logs",
        "logs=off",
        (
            "logs=off",
            "copy a page for every unaligned write instead of logging it",
        ),
        Set::Plain(|draft| draft.engine.cow_only = true),
        of_pages([Does; 2], NO_LOGS, SERVERS_POOL),
    ),
    in_group(
        "logs",
        "logs=on",
        ("", ""),
        Set::Plain(|draft| draft.engine.cow_only = false),
        of_pages([Does; 2], NO_LOGS, SERVERS_POOL),
    ),
];

/// Words for the mount and its daemon.
const DAEMON: &[Word] = &[
    in_group(
        "locks",
        "locks=engine",
        (
            "locks=engine",
            "the engine keeps locks, not the kernel: they hold against other users of the engine, too; each lock and \
             each close costs a request",
        ),
        Set::Plain(|draft| draft.fuse.engine_locks = true),
        of_pools(Does, Is),
    ),
    in_group(
        "locks",
        "locks=kernel",
        ("", ""),
        Set::Plain(|draft| draft.fuse.engine_locks = false),
        of_pools(
            Is,
            Refused("the server alone knows the locks of other clients; omit it"),
        ),
    ),
    shown(
        "direct_io",
        "the kernel caches no file data: long reads and writes take half the time, and no memory for copies; repeated \
         short reads take longer",
        Set::Plain(|draft| draft.fuse.direct_io = true),
        of_pools(Does, Is),
    ),
    in_group(
        "",
        "scrub=",
        (
            "scrub=MIB",
            "verify all checksums once a day, reading MIB MiB a second; findings go to the log and to `ferrite info`",
        ),
        Set::Value(|draft, word, value| {
            draft.daily = Some(number(word, value, 1, scrub::MIB_MAX as usize)? as u64);
            Ok(())
        }),
        of_pools(
            Does,
            Refused("run `ferrite scrub` on the server's host, and omit it here"),
        ),
    ),
    in_group(
        "",
        "log=",
        ("log=FILE", "as --log"),
        Set::Value(|draft, word, value| {
            draft.log = path(value, word)?;
            Ok(())
        }),
        ALL,
    ),
    in_group(
        "",
        "rings=",
        (
            "rings=on|off|auto",
            "reply to requests on the CPU that issued them, over io_uring; auto: if the kernel offers it (see `ferrite \
             doctor`) and the pool is in memory [default: auto, or the environment variable FERRITE_RINGS]",
        ),
        Set::Value(|draft, word, value| {
            draft.fuse.rings = rings(value).ok_or_else(|| wrong(word, "give on, off or auto"))?;
            Ok(())
        }),
        ALL,
    ),
    in_group(
        "",
        "threads=",
        (
            "threads=N",
            "serve requests with N threads [default: one per CPU]; with rings: those that wait for a device or a \
             server [default: 8, or one per CPU]",
        ),
        Set::Value(|draft, word, value| {
            draft.fuse.threads = number(word, value, 1, 256)?;
            Ok(())
        }),
        ALL,
    ),
    in_group(
        "",
        "trace=",
        (
            "trace=FILE",
            "record which parts of which files programs write (no names, no content); replaces an existing trace",
        ),
        Set::Value(|draft, word, value| {
            draft.trace = path(value, word)?;
            Ok(())
        }),
        ALL,
    ),
    shown(
        "nofail",
        "a missing pool is not an error, nor is a server that cannot be reached",
        Set::Plain(|draft| draft.nofail = true),
        ALL,
    ),
    in_group(
        "",
        "key=",
        (
            "key=FILE",
            "of a server's export: its key, as in tcp://HOST:PORT/NAME?key=FILE",
        ),
        Set::Value(|draft, word, value| {
            draft.key = path(value, word)?;
            Ok(())
        }),
        of_pools(ONLY_EXPORTS, Does),
    ),
    in_group(
        "",
        "encrypt=",
        (
            "encrypt=on|off|auto",
            "encrypt the connection; auto: unless the server is on this host [default: auto]. If the server requires \
             encryption, the connection is always encrypted",
        ),
        Set::Value(|draft, word, value| {
            parse_encrypt(value).ok_or_else(|| wrong(word, "give on, off or auto"))?;
            draft.encrypt = Some(value.to_owned());
            Ok(())
        }),
        of_pools(ONLY_EXPORTS, Does),
    ),
    in_group(
        "",
        "cache=",
        (
            "cache=leased|off",
            "of a server's export: cache attributes, names and data until the server recalls them, which it does before \
             any other client changes them [default: off]",
        ),
        Set::Value(|draft, word, value| {
            parse_caching(value).ok_or_else(|| wrong(word, "give leased or off"))?;
            draft.cache = Some(value.to_owned());
            Ok(())
        }),
        of_pools(ONLY_EXPORTS, Does),
    ),
];

/// Words that /etc/fstab may have because other file systems know them.
const FSTAB: &[Word] = &[
    silent("", ANYWAY),
    silent("defaults", ANYWAY),
    silent("_netdev", ANYWAY),
    silent("auto", ANYWAY),
    silent("noauto", ANYWAY),
    silent("user", ANYWAY),
    silent("nouser", ANYWAY),
    silent("users", ANYWAY),
    silent("group", ANYWAY),
    silent("owner", ANYWAY),
    silent("async", ANYWAY),
    silent("silent", ANYWAY),
    silent("loud", ANYWAY),
    silent("default_permissions", ANYWAY),
    silent("user_xattr", ANYWAY),
    silent("acl", ANYWAY),
    silent("errors=remount-ro", ANYWAY),
    silent("barrier", ANYWAY),
    silent("nolazytime", ANYWAY),
    silent("nodiscard", ANYWAY),
    silent("x-*", ANYWAY),
    silent("comment=*", ANYWAY),
    // The kernel shows these for a mount, so mount(8) passes them back at a remount.
    silent("user_id=*", ANYWAY),
    silent("group_id=*", ANYWAY),
    silent(
        "lazytime",
        [Warns("has no effect: times are stored as soon as without it"); 5],
    ),
    silent(
        "discard",
        [Warns("has no effect: what is freed is not reported to the medium"); 5],
    ),
    silent("noacl", [Refused("access control lists are always kept; omit it"); 5]),
    silent(
        "posixacl",
        [Refused("access control lists are not supported; omit it"); 5],
    ),
    silent(
        "nouser_xattr",
        [Refused("extended attributes cannot be turned off; omit it"); 5],
    ),
    silent("nobarrier", NO_BARRIER),
    silent("barrier=0", NO_BARRIER),
    silent("errors=continue", NO_ERRORS),
    silent("errors=panic", NO_ERRORS),
    silent("quota", QUOTAS),
    silent("usrquota", QUOTAS),
    silent("grpquota", QUOTAS),
    silent("prjquota", QUOTAS),
    silent("uquota", QUOTAS),
    silent("gquota", QUOTAS),
    silent("pquota", QUOTAS),
];

const NO_BARRIER: [Effect; 5] = [Refused(
    "completed operations are durable; on disk files `durability=fsync` makes only fsync wait for that, and \
     `durability=process` trades power-loss safety for speed",
); 5];
const NO_ERRORS: [Effect; 5] = [Refused("after a medium failure all changes are always refused; omit it"); 5];

/// All words, in the order of the help.
pub(super) fn all() -> impl Iterator<Item = &'static Word> {
    [GENERAL, PAGES, DAEMON, FSTAB].into_iter().flatten()
}
