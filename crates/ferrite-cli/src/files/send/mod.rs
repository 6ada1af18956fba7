//! `ferrite send` and `ferrite receive`: snapshots as streams, whole or as the difference of two; on mounts and in
//! volumes.
//!
//! Contents: the commands; [`stream`], the format; [`sender`] and [`receiver`]; [`progress`], what a receiving
//! directory remembers between runs.

pub(super) mod progress;
mod receiver;
mod sender;
mod stream;

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, Instant};

use super::content::Watch;
use super::folder::Folder;
use super::place::{Result as Tried, Why};
use super::snapshot;
use super::{OPERANDS, Operand, Volumes};
use crate::progress::Bytes;
use crate::{FAILED, Failure, Outcome, USAGE, output};

use progress::{Arrival, Token};
use receiver::Receiver;
use stream::{Begin, Reader, Record, Writer};

/// Attributes with this beginning are a receiver's own.
const MARKERS: &str = "user.ferrite.receiv";
/// A receiver takes note of how far it has come after so many records, or after this time.
const RECORDS_PER_NOTE: u64 = 4096;
const NOTE_EVERY: Duration = Duration::from_secs(5);

fn is_marker(name: &OsStr) -> bool {
    name.as_bytes().starts_with(MARKERS.as_bytes())
}

/// Write a snapshot, or what changed since an older one, to standard output
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{OPERANDS}

Examples:
  ferrite snapshot create /mnt/data monday
  ferrite send /mnt/data monday | ssh backup ferrite receive /mnt/backup
  ferrite snapshot create /mnt/data tuesday
  ferrite send --from monday /mnt/data tuesday | ferrite receive /mnt/backup
  ferrite send /mnt/data monday | zstd > monday.zst

A stream holds names, content, hard links, owners, modes, times and extended attributes, and is checked as it is read. \
Of files that have changed it has the blocks that differ. A file whose size and time of modification are those of the \
older snapshot counts as unchanged, unless --compare-content is given. A file that was renamed is sent again.

If the stream is cut, `ferrite receive` says how to go on: `ferrite send --resume TOKEN` with the same snapshots."))]
pub(crate) struct Send {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// The snapshot to send
    name: OsString,
    /// Send what changed since this snapshot, which the receiver has
    #[arg(long, value_name = "OLDER")]
    from: Option<OsString>,
    /// Leave out what the receiver has of a stream that was cut
    #[arg(long, value_name = "TOKEN", value_parser = Token::parse)]
    resume: Option<Token>,
    /// Read files even if their size and time of modification have not changed
    #[arg(long, conflicts_with = "resume")]
    compare_content: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

impl Send {
    pub(crate) fn run(self) -> Outcome {
        if std::io::stdout().is_terminal() {
            return Err(Failure::new(
                USAGE,
                "a stream is not for a terminal; send it to a file, or to `ferrite receive`",
            ));
        }
        let mut volumes = Volumes::to_read();
        let place = snapshot::place_of(&self.dir, &mut volumes)?;
        let sent = Folder::open(&place).and_then(|dir| self.send(&dir));
        volumes.close()?;
        sent.map_err(|why| Failure::new(FAILED, place.message(&why)))?;
        Ok(0)
    }

    fn send(&self, dir: &Folder) -> Tried<()> {
        let snapshots = snapshot::snapshots_of(dir)?;
        let newer = snapshot::enter(snapshots.as_ref(), &self.name)?;
        let to = progress::id_of(dir, &newer, &self.name)?;
        let own = progress::own_id_of(&newer)?;
        let (mut older, mut from_id) = (None, None);
        if let Some(name) = &self.from {
            let folder = snapshot::enter(snapshots.as_ref(), name)?;
            from_id = Some((progress::id_of(dir, &folder, name)?, name));
            older = Some(folder);
        }
        let (first, compares_content) = match &self.resume {
            Some(token) => token.rest_of(&own)?,
            None => (0, self.compare_content),
        };
        let watch = Watch::until_signal(Bytes::new(self.quiet))?;
        let mut write = |bytes: &[u8]| match output::write(bytes) {
            true => Ok(()),
            false => Err(Why::new("nobody reads the stream any more")),
        };
        let from = from_id.as_ref().map(|(id, name)| stream::Snapshot {
            id: id.as_bytes(),
            name: name.as_bytes(),
        });
        let to = stream::Snapshot {
            id: to.as_bytes(),
            name: self.name.as_bytes(),
        };
        let begin = Begin {
            first,
            ..Begin::new(from, to, own.as_bytes(), compares_content)
        };
        let writer = Writer::new(&mut write, begin);
        sender::send(older, newer, writer, compares_content, &watch)
    }
}

/// Make a directory what a stream on standard input says, and take the snapshot in it
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{OPERANDS}

The first stream needs an empty directory. One that was sent with --from needs the older snapshot, received before, and \
the directory as it was then (`ferrite snapshot restore DIR OLDER`). While data arrives, the directory is between the \
two; its snapshots are always whole.

The stream may change what is in the directory, and nothing else. Its files get the owners, set-user-ID bits and \
devices of the sender's, which only root can do: receive as root, from senders that you trust, and in a directory that \
nobody else can reach or change meanwhile.

Examples:
  zstd -d < monday.zst | ferrite receive /mnt/backup
  ferrite send /mnt/data monday | ferrite receive tcp://backup:7447/data:/
  token=$(ferrite receive --token /mnt/backup)
  ferrite send --resume $token /mnt/data monday > rest.stream"))]
pub(crate) struct Receive {
    /// The directory
    #[arg(value_parser = Operand::parser(), value_hint = clap::ValueHint::DirPath)]
    dir: Operand,
    /// Receive nothing; print the token to go on with after a stream that was cut
    #[arg(long)]
    token: bool,
}

impl Receive {
    pub(crate) fn run(self) -> Outcome {
        let mut volumes = Volumes::to_change();
        let place = snapshot::place_of(&self.dir, &mut volumes)?;
        let received = Folder::open(&place).and_then(|dir| match self.token {
            true => print_token(&dir),
            false => receive(&dir),
        });
        volumes.close()?;
        received.map_err(|why| Failure::new(FAILED, place.message(&why)))?;
        Ok(0)
    }
}

fn print_token(dir: &Folder) -> Tried<()> {
    match progress::unfinished(dir)? {
        Some(arrival) => output::say(arrival.token()),
        None => return Err(Why::new("has no stream that was cut")),
    }
    Ok(())
}

fn receive(dir: &Folder) -> Tried<()> {
    let watch = Watch::until_signal(Bytes::new(true))?;
    dir.lock_alone()?;
    let mut reader = Reader::new(std::io::BufReader::with_capacity(1 << 20, std::io::stdin().lock()));
    let begin = reader.begin()?;
    let mut receiver = Receiver::new(dir);
    let (mut arrival, file) = (Arrival::begin(dir, &begin)?, begin.file.map(<[u8]>::to_vec));
    let applied = file
        .map_or(Ok(()), |file| receiver.reopen(&file))
        .and_then(|()| apply_all(dir, &mut reader, &mut receiver, &mut arrival, &watch));
    drop(receiver);
    if let Err(why) = applied {
        // Records that are not noted are received again.
        let noted = arrival.note(dir);
        return Err(match noted {
            Ok(()) if arrival.number > 0 => Why {
                text: format!(
                    "{}; to go on, use `ferrite send --resume {}`",
                    why.text,
                    arrival.token()
                ),
                ..why
            },
            _ => why,
        });
    }
    arrival.finish(dir)
}

/// Applies the records up to the end.
fn apply_all(
    dir: &Folder,
    reader: &mut Reader<impl Read>,
    receiver: &mut Receiver<'_>,
    arrival: &mut Arrival,
    watch: &Watch,
) -> Tried<()> {
    let mut noted = (arrival.number, Instant::now());
    loop {
        watch.check()?;
        let (number, record) = reader.next()?;
        match record {
            Record::End(count) if count == number => return Ok(()),
            record => receiver.apply(&record)?,
        }
        arrival.number = number + 1;
        if arrival.number - noted.0 >= RECORDS_PER_NOTE || noted.1.elapsed() >= NOTE_EVERY {
            arrival.note(dir)?;
            noted = (arrival.number, Instant::now());
        }
    }
}

fn name_of(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

/// The snapshot of this name in a directory.
fn snapshot_in(dir: &Folder, name: &OsStr) -> Tried<Option<Folder>> {
    match snapshot::snapshots_of(dir)? {
        Some(snapshots) => match snapshots.look_for(name)? {
            Some(_) => snapshots.enter(name).map(Some),
            None => Ok(None),
        },
        None => Ok(None),
    }
}
