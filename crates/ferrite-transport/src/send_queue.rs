//! Frames queued to leave a server.
//!
//! Contents: [`SendQueue`], a queue of frames, which keeps small ones together so that one system call sends many, and
//! sends large data from the buffer that holds it. Data borrowed from an engine's memory is sent at once, in
//! place; the rest that the socket does not take is copied into a buffer, and waits there.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use ferrite_buffers::Buffer;
use ferrite_buffers::borrowed::{Borrowed, Sent};

use crate::frame::{Lengths, PREFIX_BYTES};

/// Parts passed to one system call.
const PARTS_MAX: usize = 16;
/// An empty queue keeps no more memory than this.
const KEPT_BYTES: usize = 16 << 10;
/// A thread keeps so many longer ones for the next queues that need one, up to this length each.
const SPARES: usize = 2;
const SPARE_BYTES_MAX: usize = 512 << 10;

thread_local! {
    /// Memory of queues that were sent: allocating it anew would take longer than filling it.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

enum Part {
    Bytes(Vec<u8>),
    /// Data of a frame, and how many bytes of it, at the end of the part before, may still travel apart from it.
    Buffer(
        Buffer,
        #[cfg_attr(not(feature = "fabric"), expect(dead_code, reason = "a stream sends all"))] usize,
    ),
}

/// Where frames are sent.
pub(crate) trait Sink {
    /// Sends as much of the parts as it takes, in order; returns how much that was.
    fn send(&mut self, parts: &[Sent<'_>]) -> io::Result<usize>;
}

/// The next piece to send, for a transport that moves large data on its own.
#[cfg(feature = "fabric")]
pub(crate) enum Next<'o> {
    Nothing,
    Bytes(&'o [u8]),
    /// The beginning of a frame, and its data.
    Bulk(&'o [u8], &'o Buffer),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::Buffer(buffer, _) => buffer.len(),
        }
    }

    /// The part after its first `skipped` bytes.
    fn behind(&self, skipped: usize) -> Sent<'_> {
        match self {
            Part::Bytes(bytes) => Sent::Bytes(&bytes[skipped..]),
            Part::Buffer(buffer, _) => Sent::Bytes(&buffer[skipped..]),
        }
    }
}

/// A queue of frames.
#[derive(Default)]
pub struct SendQueue {
    parts: VecDeque<Part>,
    /// How much of the first part was sent.
    sent: usize,
    queued_bytes: usize,
    /// Bytes that have left.
    gone_bytes: u64,
    /// The stream for borrowed data, which is sent at once.
    stream: Option<Arc<TcpStream>>,
}

impl SendQueue {
    /// The queue of a stream that receives borrowed data at once.
    pub(crate) fn zero_copy(stream: &Arc<TcpStream>) -> SendQueue {
        SendQueue {
            stream: Some(Arc::clone(stream)),
            ..SendQueue::default()
        }
    }

    /// Whether [`Frame::finish_borrowed`] may be used.
    pub fn is_zero_copy(&self) -> bool {
        self.stream.is_some()
    }

    /// From now on all data is copied.
    pub(crate) fn stop_zero_copy(&mut self) {
        self.stream = None;
    }

    /// Bytes that wait to be sent.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Bytes that have left so far.
    pub(crate) fn gone_bytes(&self) -> u64 {
        self.gone_bytes
    }

    /// Bytes that were queued so far.
    pub fn put_bytes(&self) -> u64 {
        self.gone_bytes + self.queued_bytes as u64
    }

    /// Whether some of the queue lies in buffers.
    pub fn has_buffers(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Buffer(..)))
    }

    /// Begins a frame; its body is everything appended to [`Frame::body`].
    pub fn frame(&mut self) -> Frame<'_> {
        if !matches!(self.parts.back(), Some(Part::Bytes(_))) {
            self.parts.push_back(Part::Bytes(Vec::new()));
        }
        let Some(Part::Bytes(bytes)) = self.parts.back_mut() else {
            unreachable!("the last part was made to be bytes")
        };
        if bytes.capacity() == 0
            && let Some(spare) = SPARE.with_borrow_mut(Vec::pop)
        {
            *bytes = spare;
        }
        let start = bytes.len();
        bytes.resize(start + PREFIX_BYTES, 0);
        Frame {
            send_queue: self,
            start,
        }
    }

    /// Appends the frames of another queue.
    pub fn append(&mut self, other: &mut SendQueue) {
        debug_assert_eq!(other.sent, 0, "only a connection's own queue is sent from");
        self.queued_bytes += std::mem::take(&mut other.queued_bytes);
        self.parts.append(&mut other.parts);
    }

    /// Sends as much as `sink` takes. True if the queue is empty.
    pub(crate) fn send(&mut self, sink: &mut impl Sink) -> io::Result<bool> {
        while self.queued_bytes > 0 {
            let mut sent: [Sent<'_>; PARTS_MAX] = std::array::from_fn(|_| Sent::Bytes(&[]));
            let mut count = 0;
            for (sent, part) in sent.iter_mut().zip(&self.parts) {
                *sent = part.behind(if count == 0 { self.sent } else { 0 });
                count += 1;
            }
            match sink.send(&sent[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Sends the queue and then `data`, as much as the stream takes; returns how much of `data` that was.
    fn send_with(&mut self, data: &Borrowed) -> usize {
        let Some(stream) = self.stream.clone() else {
            return 0;
        };
        let mut sent = 0;
        while sent < data.len() {
            let mut content: [Sent<'_>; PARTS_MAX] = std::array::from_fn(|_| Sent::Bytes(&[]));
            let mut count = 0;
            let behind = self.parts.iter().enumerate();
            let behind = behind.map(|(index, part)| part.behind(if index == 0 { self.sent } else { 0 }));
            for (content, part) in content.iter_mut().zip(behind.take(PARTS_MAX - 1)) {
                *content = part;
                count += 1;
            }
            if count == self.parts.len() {
                content[count] = Sent::Borrowed(data, sent);
                count += 1;
            }
            match (&*stream).send(&content[..count]) {
                Ok(0) => break,
                Ok(taken) => {
                    let queued = taken.min(self.queued_bytes);
                    self.advance(queued);
                    self.gone_bytes += (taken - queued) as u64;
                    sent += taken - queued;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Full, or broken; the owner learns which when it sends the rest.
                Err(_) => break,
            }
        }
        sent
    }

    /// The next piece to send.
    #[cfg(feature = "fabric")]
    pub(crate) fn next(&mut self) -> Next<'_> {
        while self.parts.len() > 1 && self.parts[0].len() == self.sent {
            self.parts.pop_front();
            self.sent = 0;
        }
        let Some(first) = self.parts.front() else {
            return Next::Nothing;
        };
        let bytes: &[u8] = match first {
            Part::Bytes(bytes) => bytes,
            Part::Buffer(buffer, _) => buffer,
        };
        match self.parts.get(1) {
            Some(Part::Buffer(data, head_bytes)) if *head_bytes > 0 => match bytes.len() - head_bytes {
                begins if self.sent == begins => Next::Bulk(&bytes[begins..], data),
                begins => Next::Bytes(&bytes[self.sent..begins]),
            },
            _ if self.sent == bytes.len() => Next::Nothing,
            _ => Next::Bytes(&bytes[self.sent..]),
        }
    }

    /// Counts so many of the next bytes as sent.
    #[cfg(feature = "fabric")]
    pub(crate) fn sent(&mut self, count: usize) {
        self.advance(count);
    }

    /// Takes the next bulk data, and the beginning of its frame.
    #[cfg(feature = "fabric")]
    pub(crate) fn take_bulk(&mut self) -> Option<(Vec<u8>, Buffer)> {
        let Next::Bulk(head, _) = self.next() else {
            return None;
        };
        let head = head.to_vec();
        self.parts.pop_front();
        self.sent = 0;
        match self.parts.pop_front() {
            Some(Part::Buffer(data, _)) => {
                self.queued_bytes -= head.len() + data.len();
                self.gone_bytes += (head.len() + data.len()) as u64;
                Some((head, data))
            }
            _ => unreachable!("it was there a moment ago"),
        }
    }

    /// Sends the next bulk data within its frame.
    #[cfg(feature = "fabric")]
    pub(crate) fn stream_bulk(&mut self) {
        if let Some(Part::Buffer(_, head_bytes)) = self.parts.get_mut(1) {
            *head_bytes = 0;
        }
    }

    /// Appends a whole frame without data.
    #[cfg(feature = "fabric")]
    pub(crate) fn push(&mut self, frame: &[u8]) {
        self.queued_bytes += frame.len();
        match self.parts.back_mut() {
            Some(Part::Bytes(bytes)) => bytes.extend_from_slice(frame),
            _ => self.parts.push_back(Part::Bytes(frame.to_vec())),
        }
    }

    fn advance(&mut self, sent: usize) {
        self.queued_bytes -= sent;
        self.gone_bytes += sent as u64;
        self.sent += sent;
        while let Some(first) = self.parts.front() {
            let len = first.len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            match self.parts.pop_front() {
                // The next reply probably needs as much again.
                Some(Part::Bytes(mut bytes)) if self.parts.is_empty() && bytes.capacity() <= KEPT_BYTES => {
                    bytes.clear();
                    self.parts.push_back(Part::Bytes(bytes));
                    return;
                }
                Some(Part::Bytes(mut bytes)) if (KEPT_BYTES..=SPARE_BYTES_MAX).contains(&bytes.capacity()) => {
                    bytes.clear();
                    SPARE.with_borrow_mut(|spares| {
                        if spares.len() < SPARES {
                            spares.push(bytes);
                        }
                    });
                }
                _ => {}
            }
        }
    }
}

/// A frame that is being written. It ends with [`Self::finish`] or a variant of it; if dropped before, it leaves
/// nothing.
pub struct Frame<'o> {
    send_queue: &'o mut SendQueue,
    start: usize,
}

impl Frame<'_> {
    fn bytes(&mut self) -> &mut Vec<u8> {
        match self.send_queue.parts.back_mut() {
            Some(Part::Bytes(bytes)) => bytes,
            _ => unreachable!("a frame is made in bytes"),
        }
    }

    /// The body. The caller must not remove anything that was in it at first.
    pub fn body(&mut self) -> &mut Vec<u8> {
        self.bytes()
    }

    /// Length of the body so far.
    pub fn body_bytes(&mut self) -> usize {
        let start = self.start;
        self.bytes().len() - start - PREFIX_BYTES
    }

    /// Truncates the body to its first `len_bytes`.
    pub fn truncate_body(&mut self, len_bytes: usize) {
        let len = self.start + PREFIX_BYTES + len_bytes;
        self.bytes().truncate(len);
    }

    /// Appends the frame, without data.
    pub fn finish(self) {
        self.finish_with(0, |_| 0);
    }

    /// Appends the frame with data in the same bytes: `fill` gets space for `most_bytes`, and returns how many it used.
    pub fn finish_with(self, most_bytes: usize, fill: impl FnOnce(&mut [u8]) -> usize) {
        let Ok(()) = self.try_finish_with(most_bytes, |buf| Ok::<usize, Infallible>(fill(buf)));
    }

    /// The same, unless `fill` fails: then no frame is sent.
    pub fn try_finish_with<E>(
        mut self,
        most_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let start = self.start;
        let body_bytes = self.body_bytes();
        let bytes = self.bytes();
        let from = bytes.len();
        bytes.resize(from + most_bytes, 0);
        let data_bytes = fill(&mut bytes[from..])?.min(most_bytes);
        bytes.truncate(from + data_bytes);
        let lengths = Lengths { body_bytes, data_bytes };
        bytes[start..start + PREFIX_BYTES].copy_from_slice(&lengths.encode());
        self.start = bytes.len();
        self.send_queue.queued_bytes += PREFIX_BYTES + body_bytes + data_bytes;
        Ok(())
    }

    /// Appends the frame with the content of `data`, which is sent in place.
    pub fn finish_from(self, data: Buffer) {
        self.finish_with_part(data.len(), |head_bytes| Part::Buffer(data, head_bytes));
    }

    /// Sends all frames and this one with data borrowed from an engine, as much as the stream takes now. The rest of
    /// the data goes into `rest`, which has space for all of it. Only if [`SendQueue::is_zero_copy`].
    pub fn finish_borrowed(mut self, data: &Borrowed, mut rest: Buffer) {
        let start = self.start;
        let body_bytes = self.body_bytes();
        let data_bytes = data.len();
        let lengths = Lengths { body_bytes, data_bytes };
        self.bytes()[start..start + PREFIX_BYTES].copy_from_slice(&lengths.encode());
        self.send_queue.queued_bytes += PREFIX_BYTES + body_bytes;
        // Dropping the frame looks for unfinished bytes.
        self.start = self.bytes().len();
        let sent = self.send_queue.send_with(data);
        if sent < data_bytes {
            rest.set_len(data_bytes - sent);
            data.copy(sent, &mut rest);
            self.send_queue.queued_bytes += rest.len();
            self.send_queue.parts.push_back(Part::Buffer(rest, 0));
            self.send_queue.parts.push_back(Part::Bytes(Vec::new()));
            self.start = 0;
        } else if self.send_queue.parts.is_empty() {
            self.send_queue.parts.push_back(Part::Bytes(Vec::new()));
            self.start = 0;
        }
    }

    /// Appends the frame and its data, a part of its own that `part` makes from the length before it.
    fn finish_with_part(mut self, data_bytes: usize, part: impl FnOnce(usize) -> Part) {
        let start = self.start;
        let body_bytes = self.body_bytes();
        let lengths = Lengths { body_bytes, data_bytes };
        let bytes = self.bytes();
        bytes[start..start + PREFIX_BYTES].copy_from_slice(&lengths.encode());
        self.start = bytes.len();
        self.send_queue.queued_bytes += PREFIX_BYTES + body_bytes + data_bytes;
        // Dropping the frame looks for bytes at the back.
        self.send_queue.parts.push_back(part(PREFIX_BYTES + body_bytes));
        self.send_queue.parts.push_back(Part::Bytes(Vec::new()));
        self.start = 0;
    }
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        let start = self.start;
        self.bytes().truncate(start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrite_buffers::Pool;

    /// Takes a few bytes at a time.
    struct Slow(Vec<u8>, usize);

    impl Sink for Slow {
        fn send(&mut self, parts: &[Sent<'_>]) -> io::Result<usize> {
            let Some(Sent::Bytes(bytes)) = parts.iter().find(|part| !matches!(part, Sent::Bytes([]))) else {
                panic!("nothing to be sent")
            };
            let taken = bytes.len().min(self.1);
            self.0.extend(&bytes[..taken]);
            Ok(taken)
        }
    }

    #[test]
    fn frames_leave_in_order_whatever_the_stream_takes() {
        let pool = Pool::new(1 << 20).unwrap();
        for step in [1, 3, 7, 64, 1 << 20] {
            let mut send_queue = SendQueue::default();
            let mut frame = send_queue.frame();
            frame.body().extend(b"one");
            frame.finish();
            let mut frame = send_queue.frame();
            frame.body().extend(b"dropped");
            drop(frame);
            let mut frame = send_queue.frame();
            frame.body().extend(b"two, cut");
            frame.truncate_body(3);
            frame.finish_with(10, |buf| {
                buf[..4].copy_from_slice(b"data");
                4
            });
            let mut buffer = pool.take(5).unwrap();
            buffer.copy_from_slice(b"bulky");
            let mut frame = send_queue.frame();
            frame.body().extend(b"3");
            frame.finish_from(buffer);
            let mut frame = send_queue.frame();
            frame.body().extend(b"four");
            frame.finish();
            let mut slow = Slow(Vec::new(), step);
            assert!(send_queue.send(&mut slow).unwrap());
            assert_eq!(send_queue.queued_bytes(), 0);
            let expected = [
                &[3, 0, 0, 0, 0, 0, 0, 0][..],
                b"one",
                &[3, 0, 0, 0, 4, 0, 0, 0],
                b"twodata",
                &[1, 0, 0, 0, 5, 0, 0, 0],
                b"3bulky",
                &[4, 0, 0, 0, 0, 0, 0, 0],
                b"four",
            ];
            assert_eq!(slow.0, expected.concat(), "{step} bytes at a time");
        }
        assert_eq!(pool.free_bytes(), pool.len_bytes());
    }
}
