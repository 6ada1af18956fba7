//! Checks of the server's replies before anything on the client's machine uses them.
//!
//! A client trusts a server with the data of the export and with nothing of its own machine: a name becomes part of a
//! local path, a length the size of a buffer, a position the next step of a loop. Contents: [`ReplyBody`], which
//! defines for every type of reply the valid values of its fields, and the types of replies whose meaning depends on
//! the request.
//!
//! Invariant: [`super::message::Reply::result`] is the only way to the content of a reply, and takes only a
//! [`ReplyBody`]. So a new type of reply cannot be used before its author has defined here what it may hold. Entries
//! of listings, which have a reader of their own, are checked by [`Progress`].

use ferrite_vfs::locks::RecordLock;
use ferrite_vfs::{Attr, FsError, Ino, NAME_MAX, PATH_MAX, Position, ROOT_INO, StatFs, WriteMode, Written};
use ferrite_vfs::{XATTR_NAME_MAX, XATTR_SIZE_MAX, posix};

use ferrite_proto::{
    Activity, Encode, Entry, EntryInfo, GrantedKey, LATENCY_CLASSES, Malformed, Node, NodeAttr, OpenedFile, Piece,
    QueuePairInfo, RdmaActivity, Reader, UdpPlace, VERSION, Welcome, Wire,
};

/// The last byte that files can have, here and in the kernel.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// Queue pairs and packets have numbers of 24 bits.
const NUMBER_24_MAX: u32 = 0xff_ffff;

/// The error of a call whose reply is invalid.
pub(super) fn refused(why: Malformed) -> FsError {
    FsError::Io(format!(
        "the server's answer is not used: {}; check that the address leads to the server you mean, and its version",
        why.0
    ))
}

/// A reply, and its valid values.
pub(super) trait ReplyBody<'m>: Wire<'m> {
    /// Refuses a reply that could do more harm here than wrong data.
    fn check(&self) -> Result<(), Malformed>;
}

fn only_if(is_right: bool, else_why: &'static str) -> Result<(), Malformed> {
    match is_right {
        true => Ok(()),
        false => Err(Malformed(else_why)),
    }
}

/// Implements [`ReplyBody`] by an expression for each type.
macro_rules! replies {
    ($($(#[$doc:meta])* $type:ty: |$reply:ident| $check:expr;)*) => {
        $(impl ReplyBody<'_> for $type {
            fn check(&self) -> Result<(), Malformed> {
                let $reply = self;
                $check
            }
        })*
    };
}

replies! {
    (): |_reply| Ok(());
    Attr: |attr| {
        only_if(attr.ino != 0, "no inode has the number 0")?;
        only_if(attr.size <= OFFSET_MAX, "no file is as long")
    };
    NodeAttr: |found| found.attr.check();
    OpenedFile: |opened| opened.node_attr.check();
    Node: |node| only_if(node.ino != 0, "no inode has the number 0");
    StatFs: |space| {
        only_if(space.block_bytes != 0, "blocks have a length")?;
        let is_sum = space.blocks.checked_mul(u64::from(space.block_bytes)).is_some();
        only_if(is_sum, "no space is as large")?;
        let is_part = space.blocks_free <= space.blocks && space.blocks_available <= space.blocks;
        only_if(is_part, "more is free than there is")
    };
    // Its range was checked when it was read.
    Option<RecordLock>: |_reply| Ok(());
    Piece: |_reply| Ok(());
    Welcome: |welcome| {
        only_if(welcome.version == VERSION, "it speaks another version of the protocol")?;
        only_if(welcome.root.ino == ROOT_INO, "the root has another number")?;
        // The client would take each connection for dead at once, and reconnect for ever.
        only_if(welcome.lease_ms != 0, "a session lasts for a time")
    };
    Activity: |activity| {
        let has_classes = activity.operations.iter().all(|kind| kind.latency.len() <= LATENCY_CLASSES);
        only_if(has_classes, "there are fewer classes of latency")?;
        let is_text = |address: &[u8]| address.iter().all(|byte| byte.is_ascii_graphic());
        let are_text = activity.clients.iter().all(|client| is_text(&client.address));
        only_if(are_text, "the address of a client has other characters")
    };
    Vec<UdpPlace>: |_reply| Ok(());
    QueuePairInfo: |pair| {
        let has_numbers = pair.qpn <= NUMBER_24_MAX && pair.psn <= NUMBER_24_MAX;
        only_if(has_numbers, "queue pairs and packets have numbers of 24 bits")?;
        only_if((1..=5).contains(&pair.mtu), "no path MTU has this code")
    };
    GrantedKey: |key| {
        // Messages are split into parts of this length.
        only_if(key.atomic_bytes_max != 0, "a message holds a byte at least")?;
        only_if(key.size <= OFFSET_MAX, "no file is as long")
    };
    // Counters.
    RdmaActivity: |_reply| Ok(());
}

/// Types of replies that are encoded as a plain type, and have a meaning of their own.
macro_rules! meanings {
    ($($(#[$doc:meta])* $name:ident$(<$life:lifetime>)?($inner:ty): |$reply:ident| $check:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub(super) struct $name$(<$life>)?(pub(super) $inner);

            meanings!(@wire $name $($life)? $inner);

            impl<'m> ReplyBody<'m> for meanings!(@of $name $($life)?) {
                fn check(&self) -> Result<(), Malformed> {
                    let $reply = &self.0;
                    $check
                }
            }
        )*
    };
    (@of $name:ident $life:lifetime) => { $name<'m> };
    (@of $name:ident) => { $name };
    (@wire $name:ident $life:lifetime $inner:ty) => {
        impl Encode for $name<'_> {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
        }

        impl<'m> Wire<'m> for $name<'m> {
            fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
                Ok($name(from.get()?))
            }
        }
    };
    (@wire $name:ident $inner:ty) => {
        impl Encode for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
        }

        impl Wire<'_> for $name {
            fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok($name(from.get()?))
            }
        }
    };
}

meanings! {
    /// The target of a symbolic link.
    LinkTarget<'m>(&'m [u8]): |target| {
        only_if((1..PATH_MAX).contains(&target.len()), "no link has a target of this length")?;
        only_if(!target.contains(&0), "the target of a link holds a zero byte")
    };
    /// The value of an extended attribute.
    XattrValue<'m>(&'m [u8]): |value| only_if(value.len() <= XATTR_SIZE_MAX, "no attribute is as long");
    /// Names of extended attributes.
    XattrNames<'m>(Vec<&'m [u8]>): |names| {
        let is_name = |name: &&[u8]| (1..=XATTR_NAME_MAX).contains(&name.len()) && !name.contains(&0);
        only_if(names.iter().all(is_name), "no extended attribute has such a name")
    };
    /// The handle MAC of an opened file, which only the server reads.
    FileMac(u64): |_mac| Ok(());
    /// The term of leases, in milliseconds. Zero: no leases.
    LeaseTerm(u32): |_term| Ok(());
    /// The number of a recall, and the inode.
    RecallNotice((u64, u64)): |_recall| Ok(());
    /// The upper half of tokens' numbers, and the slots of tokens.
    SlotsReply((u64, Vec<u32>)): |reported| {
        let (number, slots) = reported;
        // Its lower half would be truncated, and no slot ever be free again.
        only_if(*number <= u64::from(u32::MAX), "the numbers of tokens have 32 bits")?;
        let mut sorted = slots.clone();
        sorted.sort_unstable();
        only_if(sorted.windows(2).all(|two| two[0] != two[1]), "a slot comes twice")
    };
    /// A position in a file, see [`FileOffset::from`].
    FileOffset(u64): |offset| only_if(*offset <= OFFSET_MAX, "no file is as long");
    /// Where data went, and how much of it, see [`WriteReply::of`].
    WriteReply((u64, u64)): |reported| {
        let end = reported.0.checked_add(reported.1);
        only_if(end.is_some_and(|end| end <= OFFSET_MAX), "no file is as long")
    };
}

impl FileOffset {
    /// The position, if a search from `start` can find it. Otherwise a caller that continues there would loop for ever.
    pub(super) fn from(self, start: u64) -> ferrite_vfs::Result<u64> {
        only_if(self.0 >= start, "a search in a file has gone back").map_err(refused)?;
        Ok(self.0)
    }
}

impl WriteReply {
    /// The result of a write of `len` bytes.
    pub(super) fn of(self, mode: WriteMode, len: usize) -> ferrite_vfs::Result<Written> {
        let (mut offset, written) = self.0;
        let is_there = match mode.position {
            // For an empty write an engine need not report a position.
            Position::At(wanted) if written == 0 => {
                offset = wanted;
                true
            }
            Position::At(wanted) => offset == wanted,
            Position::End => true,
        };
        only_if(is_there, "a write went elsewhere").map_err(refused)?;
        match usize::try_from(written) {
            Ok(written) if written <= len => Ok(Written::new(offset, written)),
            _ => Err(refused(Malformed("more was written than there was"))),
        }
    }
}

/// Attributes that were requested for one inode.
pub(super) fn of_inode(attr: Attr, ino: Ino) -> ferrite_vfs::Result<Attr> {
    only_if(attr.ino == ino, "it tells of another inode").map_err(refused)?;
    Ok(attr)
}

/// The progress of a listing: each entry has a name, and each reply that is not the last advances. Otherwise a server
/// could keep a client listing for ever, without a single entry.
pub(super) struct Progress {
    cookie: u64,
    /// Since the last request.
    has_entry: bool,
}

impl Progress {
    /// The progress of a listing that begins after `cookie`.
    pub(super) fn behind(cookie: u64) -> Progress {
        Progress {
            cookie,
            has_entry: false,
        }
    }

    /// Where the next request begins.
    pub(super) fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Takes an entry.
    pub(super) fn entry(&mut self, entry: &Entry<'_>) -> ferrite_vfs::Result<()> {
        if posix::check_name(entry.name).is_err() {
            let shown = entry.name[..entry.name.len().min(NAME_MAX)].escape_ascii();
            return Err(FsError::Io(format!(
                "the server sent `{shown}` as the name of an entry, which no entry can have; do not trust this server, \
                 and have its export checked"
            )));
        }
        let reported = match &entry.info {
            EntryInfo::Attributes(reported) => reported.check(),
            EntryInfo::Node(node) => node.check(),
            EntryInfo::Nothing(_) => Ok(()),
        };
        reported
            .and_then(|()| only_if(entry.ino != 0, "no inode has the number 0"))
            .and_then(|()| only_if(entry.next_cookie != self.cookie, "a listing does not proceed"))
            .map_err(refused)?;
        self.cookie = entry.next_cookie;
        self.has_entry = true;
        Ok(())
    }

    /// Notes that more replies follow.
    pub(super) fn goes_on(&mut self) -> ferrite_vfs::Result<()> {
        let has_entry = std::mem::take(&mut self.has_entry);
        only_if(has_entry, "a listing does not proceed").map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrite_vfs::FileKind;

    fn entry(name: &[u8], next_cookie: u64) -> Entry<'_> {
        Entry {
            ino: 2,
            kind: FileKind::File,
            next_cookie,
            name,
            info: EntryInfo::Nothing(FsError::Stale),
        }
    }

    #[test]
    fn only_names_that_entries_can_have_pass() {
        let long = [b'x'; NAME_MAX + 1];
        for name in [&b""[..], b".", b"..", b"/etc/passwd", b"../x", b"a/b", b"a\0b", &long] {
            let refused = Progress::behind(0).entry(&entry(name, 1));
            assert!(refused.is_err(), "{}", name.escape_ascii());
        }
        let forged = Progress::behind(0)
            .entry(&entry(b"\x1b]0;x\x07/", 1))
            .unwrap_err()
            .to_string();
        assert!(!forged.contains('\x1b') && forged.contains("\\x1b"), "{forged}");
        for name in [&b"..."[..], b".x", b"\xff\n", &long[1..]] {
            Progress::behind(0).entry(&entry(name, 1)).unwrap();
        }
    }

    #[test]
    fn a_listing_proceeds_or_fails() {
        let mut progress = Progress::behind(0);
        assert!(progress.goes_on().is_err(), "no entry");
        assert!(progress.entry(&entry(b"a", 0)).is_err(), "from the start again");
        progress.entry(&entry(b"a", 5)).unwrap();
        progress.goes_on().unwrap();
        assert!(progress.goes_on().is_err(), "no entry in this one");
        assert!(progress.entry(&entry(b"b", 5)).is_err(), "the same place");
        assert_eq!(progress.cookie(), 5);
    }

    #[test]
    fn positions_and_lengths_are_those_of_the_request() {
        assert_eq!(FileOffset(7).from(7).unwrap(), 7);
        assert!(FileOffset(6).from(7).is_err());
        assert!(FileOffset(u64::MAX).check().is_err());
        let mode = |position| WriteMode {
            position,
            kill_priv: false,
        };
        let at = mode(Position::At(9));
        assert_eq!(WriteReply((9, 3)).of(at, 3).unwrap().end(), 12);
        assert_eq!(WriteReply((0, 0)).of(at, 0).unwrap().end(), 9);
        assert!(WriteReply((9, 4)).of(at, 3).is_err() && WriteReply((8, 3)).of(at, 3).is_err());
        assert!(WriteReply((8, 3)).of(mode(Position::End), 3).is_ok());
        assert!(WriteReply((u64::MAX, 1)).check().is_err());
    }

    #[test]
    fn slots_are_few_and_each_is_another() {
        assert!(SlotsReply((1, vec![3, 1, 2])).check().is_ok());
        assert!(SlotsReply((1, vec![3, 1, 3])).check().is_err());
        assert!(SlotsReply((1 << 63, vec![])).check().is_err());
    }
}
