//! The memory of a receiving directory, in extended attributes of its own: how far it has come with a stream
//! ([`RECEIVING`]), and, in its snapshots, which of the sender's each one is ([`RECEIVED`]).
//!
//! Invariants: a number is noted when the records before it are durable. Each value names the inode of the directory
//! that it is of, so that it means nothing in a clone. Only the receiver that has begun last takes notes, and takes the
//! snapshot.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::super::folder::{Folder, NAMES_MAX};
use super::super::pairs::{Change, Entry, Visit, walk};
use super::super::place::{Result, Why};
use super::super::snapshot;
use super::stream::Begin;
use super::{name_of, snapshot_in};

/// `INODE SENDER ID FROM NUMBER RECEIVER NAME`; FROM is `-` for a whole stream, and NUMBER ends in [`COMPARES`] if the
/// sender compares content. RECEIVER is another one in each run.
const RECEIVING: &str = "user.ferrite.receiving";
/// `INODE ID NAME`.
const RECEIVED: &str = "user.ferrite.received";
const ID_BYTES_MAX: usize = 64;
const COMPARES: char = 'c';

/// How far a receiver has come, for its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    number: Number,
    id: String,
}

/// The number of a record in a stream of one kind or the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    number: u64,
    compares_content: bool,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        match self.compares_content {
            true => write!(f, "{COMPARES}"),
            false => Ok(()),
        }
    }
}

impl Number {
    fn parse(text: &str) -> Option<Number> {
        let number = text.strip_suffix(COMPARES);
        Some(Number {
            number: number.unwrap_or(text).parse().ok()?,
            compares_content: number.is_some(),
        })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.number, self.id)
    }
}

impl Token {
    pub(super) fn parse(text: &str) -> Result<Token, String> {
        let parsed = text.split_once('@').and_then(|(number, id)| {
            Some(Token {
                number: Number::parse(number)?,
                id: check_id(id.as_bytes()).ok()?,
            })
        });
        parsed.ok_or_else(|| "`ferrite receive --token DIR` prints a token".to_owned())
    }

    /// The record to begin with, in a stream of this very snapshot of the sender, and whether content is compared.
    pub(super) fn rest_of(&self, id: &str) -> Result<(u64, bool)> {
        match self.id == id {
            true => Ok((self.number.number, self.number.compares_content)),
            false => Err(Why::new(
                "the token is of another snapshot; name the one that was being sent",
            )),
        }
    }
}

fn check_id(id: &[u8]) -> Result<String> {
    let is_id = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'-';
    match id.len() <= ID_BYTES_MAX && !id.is_empty() && id.iter().all(is_id) {
        true => Ok(id.iter().map(|&byte| char::from(byte)).collect()),
        false => Err(Why::new("the stream names a snapshot in a way that no sender does")),
    }
}

fn attribute(folder: &Folder, name: &str) -> Result<Option<Vec<u8>>> {
    match folder.thing().xattr(OsStr::new(name)) {
        Ok(value) => Ok(Some(value)),
        Err(why) if why.is(Errno::NODATA) || why.is(Errno::OPNOTSUPP) => Ok(None),
        Err(why) => Err(why),
    }
}

fn forget(folder: &Folder, name: &str) -> Result<()> {
    match folder.thing().remove_xattr(OsStr::new(name)) {
        Err(why) if why.is(Errno::NODATA) => Ok(()),
        removed => removed,
    }
}

fn received(dir: &Folder, id: &str, name: &OsStr) -> Result<Vec<u8>> {
    let ino = dir.itself()?.identity.1;
    Ok([format!("{ino} {id} ").as_bytes(), name.as_bytes()].concat())
}

/// The identity that a receiver has given to this snapshot of `dir`.
fn received_id(dir: &Folder, snapshot: &Folder, name: &OsStr) -> Result<Option<String>> {
    let Some(value) = attribute(snapshot, RECEIVED)? else {
        return Ok(None);
    };
    let id = value
        .split(|&byte| byte == b' ')
        .nth(1)
        .and_then(|id| check_id(id).ok());
    Ok(match id {
        Some(id) if received(dir, &id, name)? == value => Some(id),
        _ => None,
    })
}

/// The identity of a snapshot itself.
pub(super) fn own_id_of(snapshot: &Folder) -> Result<String> {
    let found = snapshot.itself()?;
    let taken = found
        .changed
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos());
    Ok(format!("{:x}-{taken:x}", found.identity.1))
}

/// The identity of a snapshot of `dir`: that of the one that was sent first, if it was received, else its own.
pub(super) fn id_of(dir: &Folder, snapshot: &Folder, name: &OsStr) -> Result<String> {
    match received_id(dir, snapshot, name)? {
        Some(id) => Ok(id),
        None => own_id_of(snapshot),
    }
}

/// A stream that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    ino: u64,
    /// The identity of the sender's own snapshot, which may be a copy.
    sender: String,
    id: String,
    from: Option<String>,
    compares_content: bool,
    /// Records that were applied.
    pub(super) number: u64,
    receiver: String,
    name: OsString,
}

/// The stream that was cut, if any.
pub(super) fn unfinished(dir: &Folder) -> Result<Option<Arrival>> {
    let Some(arrival) = noted(dir)? else {
        return Ok(None);
    };
    // It may have ended just after the snapshot was taken.
    let id = match snapshot_in(dir, &arrival.name)? {
        Some(snapshot) => received_id(dir, &snapshot, &arrival.name)?,
        None => None,
    };
    Ok((id.as_ref() != Some(&arrival.id)).then_some(arrival))
}

/// The last note of a receiver, in this very directory.
fn noted(dir: &Folder) -> Result<Option<Arrival>> {
    let Some(value) = attribute(dir, RECEIVING)? else {
        return Ok(None);
    };
    let damaged = || Why::new(format!("has an attribute {RECEIVING} that is damaged; remove it"));
    let arrival = Arrival::parse(&value).ok_or_else(damaged)?;
    Ok((arrival.ino == dir.itself()?.identity.1).then_some(arrival))
}

impl Arrival {
    fn parse(value: &[u8]) -> Option<Arrival> {
        let mut parts = value.splitn(7, |&byte| byte == b' ');
        let mut text = || std::str::from_utf8(parts.next()?).ok();
        let (ino, sender, id, from) = (text()?, text()?, text()?, text()?);
        let (number, receiver) = (Number::parse(text()?)?, text()?);
        Some(Arrival {
            ino: ino.parse().ok()?,
            sender: check_id(sender.as_bytes()).ok()?,
            id: check_id(id.as_bytes()).ok()?,
            from: match from {
                "-" => None,
                from => Some(check_id(from.as_bytes()).ok()?),
            },
            compares_content: number.compares_content,
            number: number.number,
            receiver: check_id(receiver.as_bytes()).ok()?,
            name: name_of(parts.next()?),
        })
    }

    fn value(&self) -> Vec<u8> {
        let Arrival {
            ino,
            sender,
            id,
            receiver,
            ..
        } = self;
        let from = self.from.as_deref().unwrap_or("-");
        let text = format!("{ino} {sender} {id} {from} {} {receiver} ", self.number());
        [text.as_bytes(), self.name.as_bytes()].concat()
    }

    pub(super) fn token(&self) -> Token {
        Token {
            number: self.number(),
            id: self.sender.clone(),
        }
    }

    fn number(&self) -> Number {
        Number {
            number: self.number,
            compares_content: self.compares_content,
        }
    }

    /// Whether both are of one stream.
    fn is_same_stream(&self, other: &Arrival) -> bool {
        let key = |arrival: &Arrival| {
            let Arrival { sender, id, from, .. } = arrival;
            (sender.clone(), id.clone(), from.clone(), arrival.name.clone())
        };
        key(self) == key(other) && self.compares_content == other.compares_content
    }

    /// Checks that the directory can receive a stream with this beginning, and takes note of it. Nothing else has
    /// changed then, but that the directory can have snapshots.
    pub(super) fn begin(dir: &Folder, begin: &Begin<'_>) -> Result<Arrival> {
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_nanos());
        let arrival = Arrival {
            ino: dir.itself()?.identity.1,
            sender: check_id(begin.sender)?,
            id: check_id(begin.to.id)?,
            from: begin.from.map(|from| check_id(from.id)).transpose()?,
            compares_content: begin.compares_content,
            number: begin.first,
            receiver: format!("{:x}-{nanos:x}", std::process::id()),
            name: name_of(begin.to.name),
        };
        if snapshot_in(dir, &arrival.name)?.is_some() {
            return Err(Why::new(format!("has a snapshot {} already", arrival.name.display())));
        }
        match unfinished(dir)? {
            Some(old) if old.is_same_stream(&arrival) => {
                if begin.first > old.number {
                    return Err(Why::new(format!(
                        "lacks records before this stream; use `ferrite send --resume {}`",
                        old.token()
                    )));
                }
            }
            _ if begin.first > 0 => {
                return Err(Why::new("has nothing of this stream; send it without --resume"));
            }
            Some(old) if !(begin.from.is_none() && is_empty(dir)?) => return Err(old.in_the_way(begin)),
            _ => check_is_ready(dir, begin)?,
        }
        snapshot::prepare(dir).map_err(snapshot::explained)?;
        arrival.write(dir)?;
        Ok(arrival)
    }

    /// The error of a directory that has a part of this stream, for another.
    fn in_the_way(&self, begin: &Begin<'_>) -> Why {
        let mend = match begin.from {
            Some(from) => format!(
                "use `ferrite snapshot restore --discard DIR {}` first",
                name_of(from.name).display()
            ),
            None => "remove what is in it first".to_owned(),
        };
        Why::new(format!(
            "has a part of the snapshot {}; receive the rest, or {mend}",
            self.name.display()
        ))
    }

    fn write(&self, dir: &Folder) -> Result<()> {
        dir.sync()?;
        dir.thing().set_xattr(OsStr::new(RECEIVING), &self.value())
    }

    /// Takes note of how far it has come, once that is durable.
    ///
    /// # Errors
    /// If another receiver has begun meanwhile.
    pub(super) fn note(&self, dir: &Folder) -> Result<()> {
        match noted(dir)? {
            Some(found) if found.receiver == self.receiver => self.write(dir),
            _ => Err(Why::new(
                "another `ferrite receive` has begun in this directory, so this one ends",
            )),
        }
    }

    /// Takes the snapshot. A crash before leaves a stream to continue, and one after it a note without meaning.
    pub(super) fn finish(&self, dir: &Folder) -> Result<()> {
        self.note(dir)?;
        let received = received(dir, &self.id, &self.name)?;
        dir.thing().set_xattr(OsStr::new(RECEIVED), &received)?;
        let taken = snapshot::take(dir, &self.name).map_err(snapshot::explained);
        forget(dir, RECEIVED)?;
        taken?;
        forget(dir, RECEIVING)
    }
}

/// Removes all that receivers have noted in a directory, which becomes what it was earlier.
pub(in super::super) fn forget_all(dir: &Folder) -> Result<()> {
    [RECEIVING, RECEIVED].into_iter().try_for_each(|name| forget(dir, name))
}

fn is_empty(dir: &Folder) -> Result<bool> {
    Ok(dir.names(NAMES_MAX, &|| Ok(()))?.is_empty())
}

/// Refuses a directory that is not as the sender takes it to be.
fn check_is_ready(dir: &Folder, begin: &Begin<'_>) -> Result<()> {
    let Some(from) = begin.from else {
        return match is_empty(dir)? {
            true => Ok(()),
            false => Err(Why::new(
                "is not empty; a whole snapshot is received in an empty directory, and another one with \
                 `ferrite send --from`",
            )),
        };
    };
    let name = name_of(from.name);
    let Some(older) = snapshot_in(dir, &name)? else {
        return Err(Why::new(format!(
            "has no snapshot {}, from which the stream leads; receive that one first",
            name.display()
        )));
    };
    if id_of(dir, &older, &name)? != check_id(from.id)? {
        return Err(Why::new(format!(
            "has a snapshot {} that is not the one that the sender has",
            name.display()
        )));
    }
    let mut first = First(None);
    walk(Some(older), dir.reopen()?, &mut first)?;
    match first.0 {
        None => Ok(()),
        Some(path) => Err(Why::new(format!(
            "is not as it was in the snapshot {}: {path} has changed; use `ferrite snapshot restore DIR {0}`",
            name.display()
        ))),
    }
}

/// The first change.
struct First(Option<String>);

impl Visit for First {
    fn entry(&mut self, entry: &Entry<'_>) -> Result<bool> {
        if self.0.is_none() && Change::between(entry.found_before(), entry.found_after()).is_some() {
            self.0 = Some(entry.path.display().to_string());
        }
        Ok(!self.is_done())
    }

    fn leave(&mut self, _: &Path, _: Option<&Folder>, _: Option<&Folder>) -> Result<()> {
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_notes_come_back() {
        let arrival = Arrival::parse(b"9 b-c 1f-2a - 77 d-e a name with spaces").unwrap();
        assert_eq!(Arrival::parse(&arrival.value()), Some(arrival));
        let arrival = Arrival::parse(b"9 b-c 1f-2a 3-4 8c d-e n").unwrap();
        assert_eq!((arrival.number, arrival.from.as_deref()), (8, Some("3-4")));
        let token = arrival.token();
        assert_eq!(
            (token.to_string().as_str(), token.rest_of("b-c").unwrap()),
            ("8c@b-c", (8, true))
        );
        assert!(token.rest_of("1f-2a").is_err());
        assert_eq!(Token::parse(&token.to_string()), Ok(token));
        for text in ["", "77", "@1f", "77@", "77@x y", "-1@1f"] {
            assert!(Token::parse(text).is_err(), "{text}");
        }
        for note in [
            &b"9 b-c 1f - 77 d-e"[..],
            b"",
            b"9 b-c 1f - x d-e name",
            b"9 b-c / - 1 d-e name",
        ] {
            assert_eq!(Arrival::parse(note), None);
        }
    }
}
