//! The stream of `ferrite send`: the records that make one snapshot of another, or of an empty directory
//! (docs/send-stream.md).
//!
//! Contents: [`Record`]; [`Writer`] and [`Reader`], which number and check them.
//!
//! Invariants: the same two snapshots always give the same records, so that their numbers tell how far a receiver has
//! come; a program that would send others needs another [`VERSION`]. Each record may be applied again, together with
//! those that follow. A reader trusts nothing: lengths are bounded before memory is taken, and a record is checked
//! before it is decoded.

use std::io::Read;

use ferrite_proto::{Encode, Malformed, Reader as Decoder, Wire, fields};

use super::super::place::{Result, Why};

const MAGIC: [u8; 8] = *b"FERRSEND";
const VERSION: u32 = 1;
/// Kind, length and checksum.
const HEAD_BYTES: usize = 12;
/// Longest record, without its head.
const RECORD_BYTES_MAX: usize = 4 << 20;
/// Most data in a record.
pub(super) const DATA_BYTES_MAX: usize = 1 << 20;
/// The number of [`Record::Begin`], which stands before the others.
const BEGIN_NUMBER: u64 = u64::MAX;

/// A snapshot, on any machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Snapshot<'r> {
    /// Made of the inode and the time of the snapshot that was sent first.
    pub(super) id: &'r [u8],
    pub(super) name: &'r [u8],
}

/// The beginning of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Begin<'r> {
    pub(super) magic: [u8; 8],
    pub(super) version: u32,
    /// The snapshot that the receiver has.
    pub(super) from: Option<Snapshot<'r>>,
    pub(super) to: Snapshot<'r>,
    /// The sender's own snapshot, which may be a copy of `to`: its records are as its files lie there.
    pub(super) sender: &'r [u8],
    /// The number of the first record that follows.
    pub(super) first: u64,
    /// The file that this record is about, if it needs one.
    pub(super) file: Option<&'r [u8]>,
    /// Whether the sender reads files that seem unchanged: it sends other records then.
    pub(super) compares_content: bool,
}

/// A file whose data follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct File<'r> {
    pub(super) path: &'r [u8],
    pub(super) len_bytes: u64,
    /// It replaces what is there. Otherwise the data changes what is there.
    pub(super) is_new: bool,
}

/// A piece of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Data<'r> {
    pub(super) offset: u64,
    pub(super) bytes: &'r [u8],
}

/// A range of the file without data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
}

/// A symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symlink<'r> {
    pub(super) path: &'r [u8],
    pub(super) target: &'r [u8],
}

/// A device, a pipe or a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node<'r> {
    pub(super) path: &'r [u8],
    /// With the kind, as in `st_mode`.
    pub(super) mode: u32,
    pub(super) rdev: u64,
}

/// Another name of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link<'r> {
    pub(super) path: &'r [u8],
    pub(super) original: &'r [u8],
}

/// Seconds since 1970 and nanoseconds.
pub(super) type Time = (i64, u32);

/// All attributes of something that is complete but for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attributes<'r> {
    pub(super) path: &'r [u8],
    /// With the kind, as in `st_mode`.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) accessed: Time,
    pub(super) modified: Time,
    /// All that it has: names and values.
    pub(super) xattrs: Vec<(&'r [u8], &'r [u8])>,
}

/// As `fields`, for structs that borrow.
macro_rules! borrowed {
    ($($type:ident { $($field:ident),* })*) => {
        $(impl Encode for $type<'_> {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
        }

        impl<'r> Wire<'r> for $type<'r> {
            fn get(from: &mut Decoder<'r>) -> std::result::Result<Self, Malformed> {
                $(let $field = from.get()?;)*
                Ok(Self { $($field),* })
            }
        })*
    };
}

borrowed! {
    Snapshot { id, name }
    Begin { magic, version, from, to, sender, first, file, compares_content }
    File { path, len_bytes, is_new }
    Data { offset, bytes }
    Symlink { path, target }
    Node { path, mode, rdev }
    Link { path, original }
    Attributes { path, mode, uid, gid, accessed, modified, xattrs }
}
fields!(Hole { offset, len_bytes });

/// Defines the records, by kind.
macro_rules! records {
    ($($(#[$doc:meta])* $number:literal = $record:ident($type:ty),)*) => {
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(super) enum Record<'r> {
            $($(#[$doc])* $record($type),)*
        }

        impl<'r> Record<'r> {
            fn kind(&self) -> u32 {
                match self {
                    $(Record::$record(_) => $number,)*
                }
            }

            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Record::$record(record) => record.put(out),)*
                }
            }

            fn get(kind: u32, payload: &'r [u8]) -> std::result::Result<Record<'r>, Malformed> {
                let payload = Decoder::new(payload);
                match kind {
                    $($number => payload.last().map(Record::$record),)*
                    _ => Err(Malformed("its kind is unknown")),
                }
            }
        }
    };
}

records! {
    /// See [`Begin`].
    1 = Begin(Begin<'r>),
    /// Nothing has this path, and nothing is below it.
    2 = Remove(&'r [u8]),
    /// A directory has this path.
    3 = Directory(&'r [u8]),
    /// See [`File`].
    4 = File(File<'r>),
    /// See [`Data`].
    5 = Data(Data<'r>),
    /// See [`Hole`].
    6 = Hole(Hole),
    /// See [`Symlink`].
    7 = Symlink(Symlink<'r>),
    /// See [`Node`].
    8 = Node(Node<'r>),
    /// See [`Link`].
    9 = Link(Link<'r>),
    /// See [`Attributes`].
    10 = Attributes(Attributes<'r>),
    /// The snapshot is complete. The number of records before this one.
    11 = End(u64),
}

fn checksum(number: u64, head: &[u8], payload: &[u8]) -> u32 {
    let checksum = crc32c::crc32c(&number.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(checksum, head), payload)
}

/// Writes records, from a certain one on.
pub(super) struct Writer<'w> {
    write: &'w mut dyn FnMut(&[u8]) -> Result<()>,
    begin: Begin<'w>,
    number: u64,
    /// The file of the last such record.
    file: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'w> Writer<'w> {
    /// Leaves out the records before `begin.first`.
    pub(super) fn new(write: &'w mut dyn FnMut(&[u8]) -> Result<()>, begin: Begin<'w>) -> Writer<'w> {
        Writer {
            write,
            begin,
            number: 0,
            file: Vec::new(),
            buffer: Vec::new(),
        }
    }

    pub(super) fn write(&mut self, record: &Record<'_>) -> Result<()> {
        if self.number == self.begin.first {
            let needs_file = matches!(record, Record::Data(_) | Record::Hole(_) | Record::Attributes(_));
            let file = std::mem::take(&mut self.file);
            let begin = Begin {
                file: (needs_file && !file.is_empty()).then_some(&file),
                ..self.begin
            };
            self.emit(BEGIN_NUMBER, &Record::Begin(begin))?;
            self.file = file;
        }
        match record {
            Record::File(file) => self.file = file.path.to_vec(),
            Record::Data(_) | Record::Hole(_) => {}
            _ => self.file.clear(),
        }
        if self.number >= self.begin.first {
            self.emit(self.number, record)?;
        }
        self.number += 1;
        Ok(())
    }

    /// Ends the stream.
    pub(super) fn end(mut self) -> Result<()> {
        if self.number < self.begin.first {
            return Err(Why::new(format!(
                "the stream has {} records, and the token of --resume names a later one: it is of another stream",
                self.number
            )));
        }
        self.write(&Record::End(self.number))
    }

    fn emit(&mut self, number: u64, record: &Record<'_>) -> Result<()> {
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; HEAD_BYTES]);
        record.put(&mut self.buffer);
        let (head, payload) = self.buffer.split_at_mut(HEAD_BYTES);
        if payload.len() > RECORD_BYTES_MAX {
            return Err(Why::new("has more extended attributes than a stream can carry"));
        }
        head[..4].copy_from_slice(&record.kind().to_le_bytes());
        head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        let checksum = checksum(number, &head[..8], payload);
        head[8..].copy_from_slice(&checksum.to_le_bytes());
        (self.write)(&self.buffer)
    }
}

/// Reads the records of a stream.
pub(super) struct Reader<R> {
    from: R,
    number: u64,
    buffer: Vec<u8>,
}

impl<'r> Begin<'r> {
    /// The beginning of a whole stream.
    pub(super) fn new(
        from: Option<Snapshot<'r>>,
        to: Snapshot<'r>,
        sender: &'r [u8],
        compares_content: bool,
    ) -> Begin<'r> {
        Begin {
            magic: MAGIC,
            version: VERSION,
            from,
            to,
            sender,
            first: 0,
            file: None,
            compares_content,
        }
    }
}

impl<R: Read> Reader<R> {
    pub(super) fn new(from: R) -> Reader<R> {
        Reader {
            from,
            number: BEGIN_NUMBER,
            buffer: Vec::new(),
        }
    }

    /// The beginning.
    ///
    /// # Errors
    /// If this is no such stream, or one that this program does not know.
    pub(super) fn begin(&mut self) -> Result<Begin<'_>> {
        let no_stream = || Why::new("the input is no stream of `ferrite send`");
        self.fill()?;
        let Ok(Record::Begin(begin)) = self.decode() else {
            return Err(no_stream());
        };
        if begin.magic != MAGIC {
            return Err(no_stream());
        }
        if begin.version != VERSION {
            return Err(Why::new(format!(
                "the stream has version {}, and this program reads version {VERSION}; use the program of the sender",
                begin.version
            )));
        }
        self.number = begin.first;
        // Decoded again, for its lifetime.
        match self.decode() {
            Ok(Record::Begin(begin)) => Ok(begin),
            _ => Err(no_stream()),
        }
    }

    /// The next record, and its number.
    pub(super) fn next(&mut self) -> Result<(u64, Record<'_>)> {
        self.fill()?;
        let number = self.number;
        self.number += 1;
        let record = self.decode();
        let malformed = |error: Malformed| Why::new(format!("record {number} of the stream: {error}"));
        Ok((number, record.map_err(malformed)?))
    }

    /// Reads a record, and checks it.
    fn fill(&mut self) -> Result<()> {
        let is_begin = self.number == BEGIN_NUMBER;
        self.buffer.resize(HEAD_BYTES, 0);
        self.read(0)?;
        let len_bytes = word(&self.buffer[4..8]) as usize;
        if len_bytes > RECORD_BYTES_MAX {
            return Err(match is_begin {
                true => Why::new("the input is no stream of `ferrite send`"),
                false => self.damaged(),
            });
        }
        self.buffer.resize(HEAD_BYTES + len_bytes, 0);
        self.read(HEAD_BYTES)?;
        let (head, payload) = self.buffer.split_at(HEAD_BYTES);
        match checksum(self.number, &head[..8], payload) == word(&head[8..]) {
            true => Ok(()),
            false if is_begin => Err(Why::new("the input is no stream of `ferrite send`")),
            false => Err(self.damaged()),
        }
    }

    fn read(&mut self, from: usize) -> Result<()> {
        match self.from.read_exact(&mut self.buffer[from..]) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(match self.number {
                BEGIN_NUMBER => Why::new("the input is empty, or no stream of `ferrite send`"),
                _ => Why::new("the stream ends too early"),
            }),
            read => Ok(read?),
        }
    }

    fn damaged(&self) -> Why {
        Why::new(format!("record {} of the stream is damaged, or missing", self.number))
    }

    fn decode(&self) -> std::result::Result<Record<'_>, Malformed> {
        Record::get(word(&self.buffer[..4]), &self.buffer[HEAD_BYTES..])
    }
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}
