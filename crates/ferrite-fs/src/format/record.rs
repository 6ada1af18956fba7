//! One journal record: how an operation's words are gathered, finished and read back.
//!
//! ```text
//! word 0   check of all that follows (low half) | length in words << 32 | ring number << 48
//! word 1   sequence number | link << 48: how far back the number of the record before it in its ring is
//! then items, each a head word and its body:
//!   words  offset | count << 48              count words to store at offset
//!   data   offset | 1 << 63                  one word: check of the bytes | their length << 32
//!   durable  sequence number | 1 << 63       one word: 0
//! ```
//!
//! Invariants: the check depends on the pool's seed and the record's position, so that neither file content nor the
//! remains of a record elsewhere in a ring can pass for a record. It is a sum of its own ([`Check`]), because records
//! hold words with checksums: remains of an older record at the same place must not make up for missing parts. A record
//! starts on a cache line.
//!
//! The links chain a ring's records together. A ring commits its records one at a time, and each is fenced before the
//! next is streamed. So a record that names the previous one proves that the previous one was durable.

use crate::format::checksum::Check;
use crate::format::layout::SEQ_MAX;
use zerocopy::IntoBytes;

const DATA: u64 = 1 << 63;
const COUNT_SHIFT: u32 = 48;
const OFFSET_MASK: u64 = (1 << COUNT_SHIFT) - 1;
const COUNT_MAX: u64 = (1 << 15) - 1;
const HEADER_WORDS: usize = 2;
/// Words that [`Record::set_durable`] adds.
pub(crate) const DURABLE_WORDS: usize = 2;
const LINE_WORDS: usize = 8;
const LINK_SHIFT: u32 = 48;
/// A link that names no number: the previous record was retired when this one was committed.
const RETIRED: u16 = u16::MAX;
/// Most words a record can have: its length has 16 bits.
pub(crate) const WORDS_MAX: usize = u16::MAX as usize;

/// A record's link to the previous one in its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// Nothing: it was written by a program that knew no links.
    Unknown,
    /// The previous record has this number, which is less than [`Link::REACH`] below that of this record.
    Before(u64),
    /// The checkpoint had passed it.
    Retired,
}

impl Link {
    /// Numbers this far or further below the record's own cannot be encoded.
    pub(crate) const REACH: u64 = RETIRED as u64;

    fn encode(self, seq: u64) -> u64 {
        let distance = match self {
            Link::Unknown => 0,
            Link::Before(before) => seq - before,
            Link::Retired => u64::from(RETIRED),
        };
        debug_assert!(distance <= u64::from(RETIRED));
        seq | distance << LINK_SHIFT
    }

    fn decode(word: u64) -> Link {
        match (word >> LINK_SHIFT) as u16 {
            0 => Link::Unknown,
            RETIRED => Link::Retired,
            distance => Link::Before((word & SEQ_MAX).saturating_sub(u64::from(distance))),
        }
    }
}

/// Gathers the items of one operation. Reusable: [`Record::clear`] keeps its memory.
#[derive(Debug)]
pub(crate) struct Record {
    words: Vec<u64>,
    /// Index of the head word of the last `words` item, 0 if the last item cannot grow.
    open: usize,
    /// Length without padding.
    len: usize,
    /// Index of the `durable` item's head word, 0 without one.
    durable: usize,
    /// Offsets of items whose words reach the medium together with the record itself, so that only replay must set
    /// them.
    streamed: Vec<u64>,
}

/// One item of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    /// Words to store from a pool offset on.
    Words {
        /// Pool offset, 8-aligned.
        offset: u64,
        /// The words to store.
        values: &'a [u64],
    },
    /// Bytes that the record makes reachable and whose checksum it carries.
    Data {
        /// Pool offset.
        offset: u64,
        /// Length.
        len_bytes: u32,
        /// Their check.
        check: u32,
    },
    /// When the record was streamed, every record up to that number was durable.
    Durable {
        /// Sequence number.
        seq: u64,
    },
}

impl Record {
    /// An empty record.
    pub(crate) fn new() -> Self {
        Record {
            words: vec![0; HEADER_WORDS],
            open: 0,
            len: HEADER_WORDS,
            durable: 0,
            streamed: Vec::new(),
        }
    }

    /// Forgets all items.
    pub(crate) fn clear(&mut self) {
        self.words.truncate(HEADER_WORDS);
        self.open = 0;
        self.len = HEADER_WORDS;
        self.durable = 0;
        self.streamed.clear();
    }

    /// Whether it has no items.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == HEADER_WORDS
    }

    /// Length so far, in words.
    pub(crate) fn len_words(&self) -> usize {
        self.len
    }

    /// Space it takes in a ring: whole cache lines.
    pub(crate) fn len_bytes(&self) -> u64 {
        (self.len.next_multiple_of(LINE_WORDS) * 8) as u64
    }

    /// Adds a word to set. Adjacent words share an item.
    pub(crate) fn set_word(&mut self, offset: u64, value: u64) {
        debug_assert!(offset.is_multiple_of(8) && offset <= OFFSET_MASK);
        self.words.truncate(self.len);
        if self.open != 0 {
            let head = self.words[self.open];
            let count = head >> COUNT_SHIFT;
            if (head & OFFSET_MASK) + count * 8 == offset && count < COUNT_MAX {
                self.words[self.open] = head + (1 << COUNT_SHIFT);
                self.words.push(value);
                self.len += 1;
                return;
            }
        }
        self.open = self.words.len();
        self.words.push(offset | 1 << COUNT_SHIFT);
        self.words.push(value);
        self.len += 2;
    }

    /// Adds a word that is streamed to its place together with the record, under the same fence. Whether or not the
    /// stream survives a crash, replay leaves the word set.
    pub(crate) fn set_streamed_word(&mut self, offset: u64, value: u64) {
        self.open = 0;
        self.set_word(offset, value);
        self.open = 0;
        self.streamed.push(offset);
    }

    /// Whether the words at `offset` need not be set when the record is applied.
    pub(crate) fn is_streamed(&self, offset: u64) -> bool {
        self.streamed.contains(&offset)
    }

    /// Adds the check ([`Check::data`]) of bytes that were already streamed to `offset`.
    pub(crate) fn add_data(&mut self, offset: u64, len_bytes: u32, check: u32) {
        debug_assert!(len_bytes > 0);
        self.words.truncate(self.len);
        self.open = 0;
        self.words.push(offset | DATA);
        self.words.push(u64::from(check) | u64::from(len_bytes) << 32);
        self.len += 2;
    }

    /// States that every record up to `seq` is durable; called again if a commit is retried.
    pub(crate) fn set_durable(&mut self, seq: u64) {
        if self.durable == 0 {
            self.words.truncate(self.len);
            self.open = 0;
            self.durable = self.words.len();
            self.words.extend([0; DURABLE_WORDS]);
            self.len += DURABLE_WORDS;
        }
        self.words[self.durable] = seq | DATA;
    }

    /// Completes header and check; returns the bytes to store, padded to whole lines.
    pub(crate) fn finish(&mut self, seq: u64, link: Link, ring: u32, check: Check, seed: u64) -> &[u8] {
        self.words.truncate(self.len);
        self.words.resize(self.len.next_multiple_of(LINE_WORDS), 0);
        self.words[0] = (self.len as u64) << 32 | u64::from(ring) << 48;
        self.words[1] = link.encode(seq);
        for word in &mut self.words {
            *word = word.to_le();
        }
        let sum = check.record(seed, self.words[..self.len].as_bytes());
        self.words[0] |= u64::from(sum).to_le();
        self.words.as_bytes()
    }

    /// The items, in the order they were added.
    pub(crate) fn items(&self) -> Items<'_> {
        Items {
            words: &self.words[HEADER_WORDS..self.len],
        }
    }
}

/// A header as found in a ring, before its check is verified.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    sum: u32,
    /// Length in words.
    pub(crate) len: usize,
    /// Sequence number.
    pub(crate) seq: u64,
    /// The previous record.
    pub(crate) link: Link,
}

impl Header {
    /// Reads the first two words of a possible record of ring `ring`.
    pub(crate) fn parse(first: u64, second: u64, ring: u32) -> Option<Header> {
        let len = (first >> 32 & 0xffff) as usize;
        let header = Header {
            sum: first as u32,
            len,
            seq: second & SEQ_MAX,
            link: Link::decode(second),
        };
        (len > HEADER_WORDS && first >> 48 == u64::from(ring) && header.seq != 0).then_some(header)
    }

    /// Whether `words` (the whole record) is the finished record.
    pub(crate) fn verify(&self, words: &mut [u64], check: Check, seed: u64) -> bool {
        let first = words[0];
        words[0] &= !u64::from(u32::MAX);
        let sound = check.record(seed, words.as_bytes()) == self.sum;
        words[0] = first;
        sound
    }
}

/// Items of a complete, verified record.
pub(crate) fn items_of(words: &[u64]) -> Items<'_> {
    Items {
        words: &words[HEADER_WORDS..],
    }
}

/// Iterates over items; ends early if the last one claims more words than there are.
pub(crate) struct Items<'a> {
    words: &'a [u64],
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        let (&head, rest) = self.words.split_first()?;
        let offset = head & OFFSET_MASK;
        if head & DATA != 0 {
            let (&body, rest) = rest.split_first()?;
            self.words = rest;
            if body == 0 {
                return Some(Item::Durable { seq: offset });
            }
            return Some(Item::Data {
                offset,
                len_bytes: (body >> 32) as u32,
                check: body as u32,
            });
        }
        let count = (head >> COUNT_SHIFT) as usize;
        let (values, rest) = rest.split_at_checked(count)?;
        self.words = rest;
        Some(Item::Words { offset, values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_words_share_an_item_and_everything_reads_back() {
        let mut record = Record::new();
        record.set_word(4096, 1);
        record.set_word(4104, 2);
        record.set_word(64, 3);
        record.add_data(8192, 4096, 77);
        record.set_word(72, 4);
        let items: Vec<_> = record.items().collect();
        assert_eq!(
            items,
            [
                Item::Words {
                    offset: 4096,
                    values: &[1, 2]
                },
                Item::Words {
                    offset: 64,
                    values: &[3]
                },
                Item::Data {
                    offset: 8192,
                    len_bytes: 4096,
                    check: 77
                },
                Item::Words {
                    offset: 72,
                    values: &[4]
                },
            ]
        );
        assert_eq!(record.len_words(), 2 + 3 + 2 + 2 + 2);
    }

    #[test]
    fn a_finished_record_verifies_only_at_its_place_and_whole() {
        [Check::Crc32c, Check::Apart].into_iter().for_each(verifies_only_whole);
    }

    fn verifies_only_whole(check: Check) {
        let mut record = Record::new();
        record.set_word(4096, 0xdead);
        let bytes = record.finish(9, Link::Before(7), 3, check, 42).to_vec();
        let words: Vec<u64> = bytes
            .chunks(8)
            .map(|c| u64::from_le_bytes(c.try_into().unwrap()))
            .collect();
        let header = Header::parse(words[0], words[1], 3).expect("a header");
        assert_eq!((header.len, header.seq, header.link), (4, 9, Link::Before(7)));
        assert!(Header::parse(words[0], words[1], 2).is_none(), "another ring's record");
        let mut body = words[..4].to_vec();
        assert!(header.verify(&mut body, check, 42));
        assert!(
            !header.verify(&mut body, check, 43),
            "the same bytes at another position"
        );
        body[3] ^= 1;
        assert!(!header.verify(&mut body, check, 42), "a torn word");
    }

    #[test]
    fn links_read_back_next_to_the_largest_numbers() {
        let last = SEQ_MAX;
        let links = [
            Link::Unknown,
            Link::Retired,
            Link::Before(last - 1),
            Link::Before(last + 1 - Link::REACH),
        ];
        for link in links {
            let word = link.encode(last);
            assert_eq!((word & SEQ_MAX, Link::decode(word)), (last, link));
        }
        assert_eq!(
            Link::decode(3 | 10 << LINK_SHIFT),
            Link::Before(0),
            "what no engine writes"
        );
    }
}
