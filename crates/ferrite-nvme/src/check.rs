//! The check: every structure against every other.
//!
//! Names against nodes, nodes against blobs, blobs against the stores that have them, records against what they are
//! about. It reads the stores as they are; work that records list as pending is no error.
//!
//! Invariant: it changes nothing. Each finding says what a repair can do about it, and `repair` does it.

#[cfg(feature = "rocksdb")]
mod changing;
mod nodes;
mod quotas;
mod small;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::Ordering;

use ferrite_vfs::{FileKind, Ino, ROOT_INO, Result};

use crate::content_store::Place;
use crate::core::Core;
use crate::data::{self, Shows, WRONG};
use crate::format::key;
use crate::format::node::{Content, Edge, Node};
use crate::format::quota::QuotaRecord;
use crate::quotas::Tally;
use crate::rights;
use crate::sharing::decode_sharers;

/// Findings that a report lists.
const FINDINGS_MAX: usize = 10_000;

/// How a repair mends a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mend {
    /// Removes a record whose subject does not exist.
    Drop(Vec<u8>),
    /// Removes a name that leads nowhere.
    Unname { parent: Ino, key: Vec<u8> },
    /// Makes an edge agree with its node.
    Edge { key: Vec<u8>, edge: Edge },
    /// Sets the number of links.
    Links { ino: Ino, nlink: u32 },
    /// Makes a directory record its place.
    Parent { ino: Ino, parent: Ino, name: Vec<u8> },
    /// Gives an inode without a name one in lost+found.
    Adopt(Ino),
    /// Accepts a file's content, and gives the file a name that says what it is.
    Accept {
        ino: Ino,
        place: Place,
        damaged: Vec<Range<u64>>,
    },
    /// Accepts a file's content beside its node, and gives the file a name that says what it is.
    Keep(Ino),
    /// Takes content that cannot be right from a file, and gives the file a name that says so.
    Quarantine(Ino),
    /// Records whether there are extended attributes.
    Xattrs { ino: Ino, has: bool },
    /// Deletes an empty blob that nothing names.
    Detach(Place),
    /// Makes a file of a blob that nothing names, in lost+found.
    Found(Place),
    /// Accepts the older state of a file's blob, and gives the file a name that says what it is.
    Older(Ino, Place),
    /// The same of a blob that does not fit its node.
    Unlike(Ino),
    /// Makes the pool record a number that was allocated.
    Number(Ino),
    /// Removes the record of a blob that a node names.
    Attach(Place),
    /// Makes a part of a snapshot that lies elsewhere an ordinary inode.
    Release(Ino),
    /// Makes a directory count for the quota of the one that it is in.
    Quota { ino: Ino, quota: Ino },
    /// Gives the quota of a directory a record without limits.
    Limits(Ino),
    /// Removes the quotas of users.
    UserQuotas,
    /// Counts anew what quotas count.
    Recount,
    /// Sets the number of nodes that share a blob.
    Sharers { place: Place, count: u64 },
    /// Gives a file copies of what its blob shares with another, and gives it a name that says so.
    Untangle(Ino, Place),
    /// Writes what the node knows to the file's blob.
    Tail(Ino),
    /// Makes a data store rewrite its damaged metadata, from what can be read.
    Store(u16),
}

/// An inconsistency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// In words.
    pub what: String,
    /// How [`crate::NvmeFs::repair`] mends it, in words; `None` if it cannot be mended.
    pub mend: Option<&'static str>,
    /// Mending it loses something for good.
    pub loses: bool,
    pub(crate) way: Option<Mend>,
}

impl Finding {
    /// Objects that no file names and no row knows.
    #[cfg(feature = "s3")]
    pub(crate) fn of_objects(what: String) -> Finding {
        Finding {
            what,
            mend: Some("the objects go once they have been kept for `keep_s`"),
            loses: false,
            way: None,
        }
    }

    /// Changes that only a log which is not here has.
    #[cfg(feature = "s3")]
    pub(crate) fn of_staged(what: String) -> Finding {
        Finding {
            what,
            mend: Some("the pool is opened with this log, or `ferrite fsck --forget-staged` gives the changes up"),
            loses: true,
            way: None,
        }
    }

    /// Metadata that cannot be opened or read as a whole.
    pub fn of_metadata(what: String) -> Finding {
        Finding {
            what,
            mend: Some("what can be read of the metadata takes its place, and blobs without a name go to lost+found"),
            loses: true,
            way: None,
        }
    }

    /// Metadata of a dump took the place of a pool's.
    pub fn of_restored(pairs: u64) -> Finding {
        Finding {
            what: format!("the metadata is that of a dump, with {pairs} keys"),
            mend: Some("what was made since is in lost+found, as far as it was in blobs"),
            loses: true,
            way: None,
        }
    }
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The errors found.
    pub findings: Vec<Finding>,
    /// There were more than `findings` lists.
    pub more: bool,
    /// Inodes.
    pub inodes: u64,
    /// Names.
    pub entries: u64,
    /// Blobs in all stores that could be read.
    pub blobs: u64,
    /// Inodes without a name, which the next start frees.
    pub orphans: u64,
    /// Bytes of keys and values that were read.
    pub bytes: u64,
    /// Pages of content that were read and have checksums.
    pub pages: u64,
    /// How many of the findings are damaged content.
    pub data_findings: u64,
    /// Another server changed the pool meanwhile: the findings are those that every one of several checks had.
    pub is_changing: bool,
}

impl Mend {
    fn words(&self) -> (&'static str, bool) {
        match self {
            Mend::Drop(_) => ("the record is removed", false),
            Mend::Unname { .. } => ("the name is removed", true),
            Mend::Edge { .. } => ("the entry is written anew", false),
            Mend::Links { .. } => ("the number of links is set", false),
            Mend::Parent { .. } => ("the directory is told where it is", false),
            Mend::Adopt(_) => ("it is moved to lost+found", false),
            Mend::Accept { .. } => ("it is moved to lost+found as it is", true),
            Mend::Keep(_) => ("it is moved to lost+found as it is", true),
            Mend::Quarantine(_) => ("it is moved to lost+found, without its content", true),
            Mend::Untangle(..) => ("it gets copies of them, and is moved to lost+found as it is", true),
            Mend::Xattrs { .. } => ("the node is written anew", true),
            Mend::Detach(_) => ("the blob is deleted", false),
            Mend::Found(_) => ("it becomes a file in lost+found", true),
            Mend::Older(..) => ("it is moved to lost+found with what the older state has", true),
            Mend::Unlike(_) => ("it is moved to lost+found as it is", true),
            Mend::Number(_) => ("it is never given again", false),
            Mend::Attach(_) => ("the record is removed", false),
            Mend::Release(_) => ("it becomes an ordinary one", false),
            Mend::Quota { .. } => ("it counts for that", false),
            Mend::Limits(_) => ("it has no limits any more", true),
            Mend::UserQuotas => ("no user has a quota any more", true),
            Mend::Recount => ("it is counted anew", false),
            Mend::Sharers { .. } => ("the number is set", false),
            Mend::Tail(_) => ("the blob is told what the node knows", false),
            Mend::Store(_) => ("the store writes what can be read anew", true),
        }
    }
}

impl Report {
    pub(crate) fn found(&mut self, what: impl Into<String>, way: Option<Mend>) {
        if self.findings.len() == FINDINGS_MAX {
            self.more = true;
            return;
        }
        let words = way.as_ref().map(Mend::words);
        self.findings.push(Finding {
            what: what.into(),
            mend: words.map(|words| words.0),
            loses: words.is_some_and(|words| words.1),
            way,
        });
    }
}

/// A name that leads to an inode.
struct Name {
    parent: Ino,
    key: Vec<u8>,
}

/// Everything that the scans have found, to check each part against the others.
#[derive(Default)]
struct Seen {
    nodes: HashMap<Ino, Node>,
    /// Names by what they lead to.
    names: HashMap<Ino, Vec<Name>>,
    subdirs: HashMap<Ino, u32>,
    orphans: HashSet<Ino>,
    ahead: HashSet<Ino>,
    detached: HashSet<Place>,
    blobs: HashSet<Place>,
    users: HashMap<Place, Vec<Ino>>,
    /// How many nodes say of a blob that they share it.
    sharing: HashMap<Place, u64>,
    /// How many do, by the blob's record.
    sharers: HashMap<Place, u64>,
    /// Data stores that are not available.
    missing: HashSet<u16>,
    /// Data stores that cannot list their blobs.
    unlisted: HashSet<u16>,
    /// Blobs that name what belongs to another.
    tangled: HashSet<Place>,
    /// Blobs of which only an older state is left.
    older: HashSet<Place>,
    /// Records of quotas; `None` for one that cannot be read.
    quotas: HashMap<Ino, Option<QuotaRecord>>,
    /// The usage of quotas by the nodes.
    tally: Tally,
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

impl Core {
    /// Checks everything, and also content that has checksums.
    pub(crate) fn check_with_data(&self, bytes_a_s: Option<u64>, show: Shows<'_>) -> Result<Report> {
        let mut report = self.check()?;
        let found = self.verify_data(bytes_a_s, show)?;
        report.pages = found.pages;
        for (ino, place, damaged) in found.damaged {
            let about = |bytes| format!("inode {ino}, {}", data::bytes_in_words(bytes));
            if !damaged.unreadable.is_empty() {
                // The cause may be the device or its cable; rewriting the bytes may mend them.
                report.found(format!("{}: cannot be read", about(&damaged.unreadable)), None);
                report.data_findings += 1;
            }
            if !damaged.wrong.is_empty() {
                let (what, damaged) = (format!("{}: {WRONG}", about(&damaged.wrong)), damaged.wrong);
                report.found(what, Some(Mend::Accept { ino, place, damaged }));
                report.data_findings += 1;
            }
        }
        Ok(report)
    }

    /// Checks everything. In an engine in use it also finds changes under way.
    pub(crate) fn check(&self) -> Result<Report> {
        let mut report = Report::default();
        let mut seen = Seen::default();
        let before = (self.changes.load(Ordering::Relaxed), self.quotas.settled());
        seen.tally = Tally::of(self.quotas.users(0).into_iter().map(|quota| quota.uid));
        self.read_nodes(&mut report, &mut seen)?;
        self.read_edges(&mut report, &mut seen)?;
        self.read_records(&mut report, &mut seen)?;
        self.read_stores(&mut report, &mut seen)?;
        nodes::judge(self, &mut report, &seen)?;
        small::judge(self, &mut report, &seen)?;
        quotas::judge(self, &mut report, &seen, before);
        Self::judge_sharers(&mut report, &seen);
        self.judge_blobs(&mut report, &seen);
        report.inodes = seen.nodes.len() as u64;
        report.blobs = seen.blobs.len() as u64;
        report.orphans = seen.orphans.len() as u64;
        Ok(report)
    }

    fn read_nodes(&self, report: &mut Report, seen: &mut Seen) -> Result<()> {
        let next_ino = self.pool.lock().next_ino;
        self.each(b'N', |key, value| {
            report.bytes += (key.len() + value.len()) as u64;
            let Some(ino) = key::ino_of(key) else {
                return report.found("a node whose key cannot be read", Some(Mend::Drop(key.to_vec())));
            };
            let Some(node) = Node::decode(value) else {
                // Dropping it would free its blob, which may be whole.
                return report.found(format!("inode {ino}: its node cannot be read"), None);
            };
            if ino >= next_ino {
                report.found(
                    format!("inode {ino}: numbers from {next_ino} on were never given"),
                    Some(Mend::Number(ino)),
                );
            }
            seen.tally.node(ino, &node);
            seen.nodes.insert(ino, node);
        })
    }

    fn read_edges(&self, report: &mut Report, seen: &mut Seen) -> Result<()> {
        self.each(b'E', |key, value| {
            report.bytes += (key.len() + value.len()) as u64;
            report.entries += 1;
            let Some((parent, cookie, name)) = key::parts_of_edge(key) else {
                return report.found("an entry whose key cannot be read", Some(Mend::Drop(key.to_vec())));
            };
            let about = || format!("directory {parent}, entry `{}`", text(name));
            let unname = || {
                let key = key.to_vec();
                Some(Mend::Unname { parent, key })
            };
            let Some(edge) = Edge::decode(value) else {
                return report.found(format!("{}: it cannot be read", about()), unname());
            };
            match seen.nodes.get(&parent) {
                Some(node) if node.is_dir() => {}
                _ => report.found(format!("{}: there is no such directory", about()), unname()),
            }
            let Some(node) = seen.nodes.get(&edge.ino) else {
                return report.found(format!("{}: inode {} is missing", about(), edge.ino), unname());
            };
            let right = Edge::to(edge.ino, node);
            if edge != right {
                let way = Mend::Edge {
                    key: key.to_vec(),
                    edge: right,
                };
                report.found(format!("{}: it differs from inode {}", about(), edge.ino), Some(way));
            }
            if !self.is_place_of(name, cookie) {
                report.found(format!("{}: it is not where it would be looked for", about()), unname());
            }
            if node.is_dir() {
                *seen.subdirs.entry(parent).or_default() += 1;
            }
            let key = key.to_vec();
            seen.names.entry(edge.ino).or_default().push(Name { parent, key });
        })
    }

    fn read_records(&self, report: &mut Report, seen: &mut Seen) -> Result<()> {
        for (kind, what) in [(b'O', "an orphan"), (b'D', "one that may be behind its blob")] {
            self.each(kind, |key, _| {
                let drop = || Some(Mend::Drop(key.to_vec()));
                let ino = key::ino_of(key).filter(|ino| seen.nodes.contains_key(ino));
                let Some(ino) = ino else {
                    return report.found(format!("the record of {what} is about no inode"), drop());
                };
                match kind {
                    b'O' => seen.orphans.insert(ino),
                    _ => seen.ahead.insert(ino),
                };
            })?;
        }
        self.each(b'A', |key, value| {
            report.bytes += (key.len() + value.len()) as u64;
            let node = key::ino_of(key).and_then(|ino| seen.nodes.get(&ino));
            if node.is_none_or(|node| !node.has_xattrs) {
                report.found("extended attributes of no inode", Some(Mend::Drop(key.to_vec())));
            }
            if let Some(ino) = key::ino_of(key) {
                seen.tally.xattrs(ino, value.len() as u64);
                if ino == ROOT_INO && rights::user_quotas_in(value).is_none() {
                    report.found("the quotas of users cannot be read", Some(Mend::UserQuotas));
                } else if !rights::are_readable(value) {
                    let what = format!("inode {ino}: its extended attributes cannot be read");
                    report.found(what, Some(Mend::Drop(key.to_vec())));
                }
            }
        })?;
        self.each(b'C', |key, _| {
            let parent = key
                .get(1..9)
                .and_then(|ino| ino.try_into().ok())
                .map(u64::from_be_bytes);
            if parent.is_none_or(|parent| !seen.nodes.contains_key(&parent)) {
                report.found("the mark of a place in no directory", Some(Mend::Drop(key.to_vec())));
            }
        })?;
        self.each(b'Q', |key, value| match key::ino_of(key) {
            Some(dir) => drop(seen.quotas.insert(dir, QuotaRecord::decode(value))),
            None => report.found("a record of a quota cannot be read", Some(Mend::Drop(key.to_vec()))),
        })?;
        self.each(b'X', |key, _| match key::place_of(key) {
            Some(place) => drop(seen.detached.insert(place)),
            None => report.found("a record of a blob cannot be read", Some(Mend::Drop(key.to_vec()))),
        })?;
        self.each(b'R', |key, value| match key::place_of(key) {
            Some(place) => drop(seen.sharers.insert(place, decode_sharers(value).unwrap_or(0))),
            None => report.found(
                "a record of a shared blob cannot be read",
                Some(Mend::Drop(key.to_vec())),
            ),
        })
    }

    fn read_stores(&self, report: &mut Report, seen: &mut Seen) -> Result<()> {
        for number in 0..self.content.stores() {
            if self.content.space(number).is_err() {
                // A look does not open the content of a pool that a server owns.
                if !self.looks {
                    report.found(
                        format!("data store {number} is not available; its files were not checked"),
                        None,
                    );
                }
                seen.missing.insert(number);
                continue;
            }
            let survey = self.content.survey(number)?;
            for what in survey.damage {
                report.found(format!("data store {number}: {what}"), Some(Mend::Store(number)));
            }
            match survey.blobs {
                Some(blobs) => seen.blobs.extend(blobs),
                None => drop(seen.unlisted.insert(number)),
            }
            seen.tangled.extend(survey.tangled);
            seen.older.extend(survey.older);
        }
        seen.find_users(report);
        Ok(())
    }

    /// Judges what records and nodes say about blobs of several files.
    fn judge_sharers(report: &mut Report, seen: &Seen) {
        let mut places: Vec<&Place> = seen.sharing.keys().chain(seen.sharers.keys()).collect();
        places.sort_unstable();
        places.dedup();
        for &place in places {
            let (found, says) = (seen.sharing.get(&place), seen.sharers.get(&place));
            match (found, says) {
                (Some(found), Some(says)) if found == says => {}
                (Some(&count), _) => {
                    let says = says.map_or("no record has their number".into(), |says| {
                        format!("the record says {says}")
                    });
                    let what = format!("{count} files share {place}, {says}");
                    report.found(what, Some(Mend::Sharers { place, count }));
                }
                (None, _) => {
                    let way = Some(Mend::Drop(key::sharers(place)));
                    report.found(format!("no file shares {place}, and a record says so"), way);
                }
            }
        }
    }

    fn judge_blobs(&self, report: &mut Report, seen: &Seen) {
        for &place in &seen.tangled {
            for &ino in seen.users_of(place) {
                let what = format!("inode {ino}: its blob names clusters of another; what they hold may be either's");
                report.found(what, Some(Mend::Untangle(ino, place)));
            }
        }
        for &place in &seen.older {
            for &ino in seen.users_of(place) {
                let what = format!("inode {ino}: what was written last to it is lost with metadata of its blob");
                report.found(what, Some(Mend::Older(ino, place)));
            }
        }
        for &place in &seen.blobs {
            match (seen.users.contains_key(&place), seen.detached.contains(&place)) {
                (true, false) | (false, true) => {}
                (true, true) => report.found(
                    format!("{place} is named by a node, and a record says it is not"),
                    Some(Mend::Attach(place)),
                ),
                (false, false) => {
                    let what = format!("nothing names {place}, and no record tells of it");
                    report.found(what, Some(self.mend_nameless(place)));
                }
            }
        }
    }
}

impl Seen {
    /// Finds which node names which blob, and blobs that several name although one of them says that it is its own.
    fn find_users(&mut self, report: &mut Report) {
        let mut inos: Vec<Ino> = self.nodes.keys().copied().collect();
        inos.sort_unstable();
        for ino in inos {
            let node = &self.nodes[&ino];
            let Content::Blob(place) = node.content else { continue };
            let is_shared = node.marks.is_shared;
            *self.sharing.entry(place).or_default() += u64::from(is_shared);
            let users = self.users.entry(place).or_default();
            users.push(ino);
            let &[.., other, _] = &users[..] else { continue };
            if !(is_shared && self.nodes[&other].marks.is_shared) {
                let unshared = if is_shared { other } else { ino };
                report.found(
                    format!("inodes {other} and {ino} both name {place}"),
                    Some(Mend::Quarantine(unshared)),
                );
            }
        }
        self.sharing.retain(|_, &mut count| count > 0);
    }

    fn users_of(&self, place: Place) -> &[Ino] {
        self.users.get(&place).map_or(&[], Vec::as_slice)
    }

    /// Whether an inode lies in a snapshot, or in a tree that is being removed, as far as its first name tells.
    fn is_below_snapshots(&self, ino: Ino) -> bool {
        let mut at = ino;
        for _ in 0..=self.nodes.len() {
            let Some(name) = self.names.get(&at).and_then(|names| names.first()) else {
                return self.orphans.contains(&at);
            };
            at = name.parent;
            if self.nodes.get(&at).is_some_and(|node| node.marks.holds_snapshots) {
                return true;
            }
        }
        false
    }

    /// The end of the chain of parents of a directory.
    fn top_of(&self, dir: Ino) -> Top {
        let mut at = dir;
        for _ in 0..=self.nodes.len() {
            if at == ROOT_INO {
                return Top::Root;
            }
            match self.names.get(&at).and_then(|names| names.first()) {
                Some(name) => at = name.parent,
                None if self.is_orphan_tree(at) => return Top::Orphan,
                None => return Top::Unknown,
            }
        }
        Top::Unknown
    }

    /// Whether a directory is the top of a tree that the next start removes.
    fn is_orphan_tree(&self, dir: Ino) -> bool {
        let marks = self.nodes.get(&dir).map(|node| node.marks);
        self.orphans.contains(&dir) && marks.is_some_and(|marks| marks.is_orphan_tree)
    }
}

/// The directory that a directory is below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Top {
    Root,
    /// A tree that is being removed.
    Orphan,
    /// None, or itself.
    Unknown,
}

/// Kinds whose content lies in the node alone.
fn has_no_blob(kind: FileKind) -> bool {
    kind != FileKind::File
}
