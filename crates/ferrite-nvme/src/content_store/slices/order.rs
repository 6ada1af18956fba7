//! Readers in order: which parts of a blob to fetch before somebody asks.
//!
//! Reads of one reader come nearly in order: the kernel sends several at once. Several readers may be at different
//! places of a blob. So there are some *streams*, each with the place that it has reached; a read that begins near
//! this place continues it. Reads at a constant distance are another order.

use std::ops::Range;

use ferrite_slices::BLOCK_BYTES;

/// Readers of a blob that are known, each by its place.
const STREAMS_MAX: usize = 16;
/// A read continues a stream if it begins no further from its place, or from twice its own length.
const NEAR_BYTES: u64 = 1 << 20;
/// Reads after which a stream is in order.
const READS_IN_ORDER: u32 = 2;
/// Reads at a constant distance for which is fetched ahead.
const STRIDES_AHEAD: u64 = 4;

#[derive(Debug, Default)]
pub(super) struct Order {
    streams: Vec<Stream>,
    /// Where the last reads began, the last one first.
    begun: [Option<u64>; 2],
    reads: u64,
}

#[derive(Debug)]
struct Stream {
    /// The place that it has reached.
    until: u64,
    fetched_until: u64,
    reads: u32,
    /// The number of its last read.
    used: u64,
}

impl Order {
    /// Notes a read. Returns the parts to fetch, of which some may be here.
    pub(super) fn note(&mut self, read: &Range<u64>, ahead_bytes: u64) -> Vec<Range<u64>> {
        self.reads += 1;
        let near = NEAR_BYTES.max(2 * (read.end - read.start));
        let used = self.reads;
        let earlier = self.begun;
        self.begun = [Some(read.start), earlier[0]];
        let found = self
            .streams
            .iter_mut()
            .find(|stream| stream.until.abs_diff(read.start) <= near);
        let Some(stream) = found else {
            self.begin(read);
            return strides(read, earlier);
        };
        stream.used = used;
        stream.reads = stream.reads.saturating_add(1);
        stream.until = stream.until.max(read.end);
        if stream.reads < READS_IN_ORDER {
            return Vec::new();
        }
        let until = stream.until + ahead_bytes;
        let from = stream.fetched_until.max(stream.until);
        // A block at a time, not for each read.
        if until < from + BLOCK_BYTES {
            return Vec::new();
        }
        stream.fetched_until = until;
        std::iter::once(from..until).collect()
    }

    fn begin(&mut self, read: &Range<u64>) {
        let stream = Stream {
            until: read.end,
            fetched_until: read.end,
            // Somebody who begins at the beginning continues, as a rule.
            reads: u32::from(read.start == 0),
            used: self.reads,
        };
        if self.streams.len() < STREAMS_MAX {
            return self.streams.push(stream);
        }
        if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = stream;
        }
    }
}

/// The next reads of a reader that reads at a constant distance.
fn strides(read: &Range<u64>, earlier: [Option<u64>; 2]) -> Vec<Range<u64>> {
    let [Some(last), Some(before)] = earlier else {
        return Vec::new();
    };
    let stride = read.start.wrapping_sub(last);
    let is_constant = read.start > last && last > before && last - before == stride;
    if !is_constant {
        return Vec::new();
    }
    let next = |count: u64| {
        let start = stride.checked_mul(count)?.checked_add(read.start)?;
        Some(start..start.checked_add(read.end - read.start)?)
    };
    (1..=STRIDES_AHEAD).map_while(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: u64 = 4 * BLOCK_BYTES;
    const READ: u64 = 128 << 10;

    /// The parts that are fetched for reads that begin at these offsets.
    fn fetched(order: &mut Order, begins: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let notes = begins
            .into_iter()
            .flat_map(|start| order.note(&(start..start + READ), AHEAD));
        notes.collect()
    }

    /// Protects readers: each byte is fetched once, before it is read.
    #[test]
    fn a_reader_in_order_is_served_ahead() {
        let mut order = Order::default();
        let parts = fetched(&mut order, (0..512).map(|read| read * READ));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
        assert!(parts[0].start <= 2 * READ && parts.last().unwrap().end >= 512 * READ + AHEAD - BLOCK_BYTES);
        assert!(parts.len() <= 20, "{}", parts.len());
    }

    #[test]
    fn reads_that_overtake_each_other_and_many_readers_are_in_order_too() {
        let mut order = Order::default();
        // Pairs that have changed places, by eight readers in turn, each in a part of its own.
        let turns = (0..64_u64).flat_map(|read| (30..38).map(move |reader| (1 << reader) + (read ^ 1) * READ));
        let parts = fetched(&mut order, turns);
        for reader in 30..38 {
            let own: Vec<_> = parts.iter().filter(|part| part.start.ilog2() == reader).collect();
            assert!(own.windows(2).all(|pair| pair[0].end == pair[1].start), "{own:?}");
            assert!(own.last().unwrap().end >= (1 << reader) + 64 * READ, "{own:?}");
        }
    }

    #[test]
    fn reads_at_a_constant_distance_are_served_ahead() {
        let mut order = Order::default();
        let stride = 10 << 20;
        let parts = fetched(&mut order, (0..3).map(|read| (1 << 20) + read * stride));
        let next = |count: u64| (1 << 20) + count * stride..(1 << 20) + count * stride + READ;
        assert_eq!(parts, (3..7).map(next).collect::<Vec<_>>());
    }

    /// Protects the bucket: whoever reads here and there gets what was asked for, and no more.
    #[test]
    fn nothing_is_fetched_ahead_for_random_reads() {
        let mut rng = ferrite_testkit::rng::Rng::new(7);
        let mut order = Order::default();
        let parts = fetched(&mut order, (0..1000).map(|_| rng.below(1 << 40)));
        assert!(parts.is_empty(), "{parts:?}");
        assert!(order.streams.len() <= STREAMS_MAX);
        // Offsets at the end of what there can be.
        let end = i64::MAX as u64 - READ;
        fetched(&mut order, [end - 2 * (1 << 62) / 4, end - (1 << 60), end]);
    }
}
