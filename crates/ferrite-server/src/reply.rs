//! Replies to requests: the one place that encodes them.
//!
//! Contents: [`put`] and [`put_reply`], for a result that is complete when it is encoded; [`begin_reply`], for a reply
//! whose content goes into its frame piece by piece; results that only a server encodes ([`Bytes`], [`Names`]).

use ferrite_transport::send_queue::{Frame, SendQueue};
use ferrite_vfs::Result;

use super::meter;
use ferrite_proto::{Encode, ReplyHead};

/// The result of a request, and whether the session has a lease on it.
pub(super) struct Reply<T> {
    pub(super) result: Result<T>,
    pub(super) is_leased: bool,
}

/// Appends the reply to the request `id`, whose result the session must not cache.
pub(super) fn put<T: Encode>(out: &mut SendQueue, id: u64, result: Result<T>) {
    let reply = Reply {
        result,
        is_leased: false,
    };
    put_reply(out, id, reply);
}

/// Appends the reply to the request `id`.
pub(super) fn put_reply<T: Encode>(out: &mut SendQueue, id: u64, reply: Reply<T>) {
    let Reply { result, is_leased } = reply;
    let mut frame = out.frame();
    let head = ReplyHead {
        id,
        is_ok: result.is_ok(),
        is_leased,
    };
    head.put(frame.body());
    match result {
        Ok(value) => value.put(frame.body()),
        Err(error) => {
            meter::note_failure();
            error.put(frame.body());
        }
    }
    frame.finish();
}

/// Begins the reply to the request `id`, which has succeeded. The caller appends the result, and finishes the frame;
/// if it drops the frame instead, nothing is sent.
pub(super) fn begin_reply(out: &mut SendQueue, id: u64, is_leased: bool) -> Frame<'_> {
    let mut frame = out.frame();
    let head = ReplyHead {
        is_leased,
        ..ReplyHead::ok(id)
    };
    head.put(frame.body());
    frame
}

/// Bytes, encoded as one value.
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Encode for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        (&self.0[..]).put(out);
    }
}

/// A list of names.
pub(super) struct Names(pub(super) Vec<Vec<u8>>);

impl Encode for Names {
    fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).put(out);
        self.0.iter().for_each(|name| (&name[..]).put(out));
    }
}
