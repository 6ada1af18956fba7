//! Outgoing small requests, several in one system call.
//!
//! Contents: [`SendBatching`], a queue that sends at once, unless a thread is calling completions: those make new
//! requests, which are sent together afterwards.

use ferrite_checks::ranked::Mutex;
use ferrite_transport::FabricError;
use ferrite_transport::connection::Connection;
use ferrite_transport::frame::Lengths;

use crate::lock_order;

/// A queue with as many bytes is sent, even if held.
const QUEUED_BYTES_MAX: usize = 256 << 10;

#[derive(Default)]
struct Queue {
    frames: Vec<u8>,
    /// How many threads hold it back.
    holders: usize,
}

/// See the head of this module.
#[derive(Default)]
pub(super) struct SendBatching {
    queue: Mutex<lock_order::SendBatching, Queue>,
}

impl SendBatching {
    /// Sends a frame, now or soon. Blocks as [`Connection::send`] does.
    pub(super) fn send(&self, connection: &Connection, body: &[u8], data: &[u8]) -> Result<(), FabricError> {
        let frames = {
            let mut queue = self.queue.lock();
            let prefix = Lengths {
                body_bytes: body.len(),
                data_bytes: data.len(),
            };
            queue.frames.extend_from_slice(&prefix.encode());
            queue.frames.extend_from_slice(body);
            queue.frames.extend_from_slice(data);
            if queue.holders > 0 && queue.frames.len() < QUEUED_BYTES_MAX {
                return Ok(());
            }
            std::mem::take(&mut queue.frames)
        };
        connection.send_frames(&frames)
    }

    /// Holds frames back from now on.
    pub(super) fn hold(&self) {
        self.queue.lock().holders += 1;
    }

    /// The end of [`Self::hold`]: sends the queue, if no other thread holds it.
    pub(super) fn release(&self, connection: &Connection) -> Result<(), FabricError> {
        let frames = {
            let mut queue = self.queue.lock();
            queue.holders -= 1;
            if queue.holders > 0 || queue.frames.is_empty() {
                return Ok(());
            }
            std::mem::take(&mut queue.frames)
        };
        connection.send_frames(&frames)
    }
}
