//! Calls of the engine for callbacks: counted, and made at once or later.

use std::sync::Arc;

use super::Bridge;
use crate::service::{Response, Service};
use crate::space::{Change, RetryTimeout, go_on, is_no_space, when_open};
use crate::spare::{Busy, Spare};

impl Bridge {
    /// Makes a change, and replies: at once, when the mount is thawed, when there is space, or on a spare thread
    /// ([`crate::spare`]). The bytes borrowed from the request are copied only if the change has to wait.
    pub(super) fn change<const N: usize, T: Send + 'static>(
        &self,
        opcode: u32,
        borrowed: [&[u8]; N],
        make: impl Fn(&Service, [&[u8]; N]) -> Response<T> + Send + 'static,
        reply: impl FnOnce(Response<T>) + Send + 'static,
    ) {
        let make =
            move |service: &Service, borrowed: [&[u8]; N]| service.meter().counted(opcode, || make(service, borrowed));
        let service = &self.service;
        let busy = service.spare().map(Spare::enter);
        let is_last_reader = busy.as_ref().is_some_and(Busy::is_last);
        let tried = match is_last_reader {
            true => None,
            false => service.freeze_barrier().pass().map(|_passage| make(service, borrowed)),
        };
        let was_tried = match tried {
            Some(made) if !is_no_space(&made) => return reply(made),
            Some(_) => true,
            None => false,
        };
        let owned = borrowed.map(<[u8]>::to_vec);
        let make = move |service: &Service| make(service, owned.each_ref().map(Vec::as_slice));
        let (change, timeout) = (Change::new(tried, make, reply), RetryTimeout::default());
        let later = Arc::clone(service);
        match service.spare() {
            _ if was_tried => go_on(later, change, timeout),
            Some(spare) if is_last_reader => spare.pass_on(move || when_open(later, change, timeout)),
            _ => when_open(later, change, timeout),
        }
    }

    /// Calls the engine, and replies: at once, or on a spare thread. As for [`Self::change`].
    pub(super) fn ask<const N: usize, T>(
        &self,
        opcode: u32,
        borrowed: [&[u8]; N],
        ask: impl FnOnce(&Service, [&[u8]; N]) -> Response<T> + Send + 'static,
        reply: impl FnOnce(Response<T>) + Send + 'static,
    ) {
        let ask =
            move |service: &Service, borrowed: [&[u8]; N]| service.meter().counted(opcode, || ask(service, borrowed));
        match self.service.spare().map(|spare| (spare, spare.enter())) {
            Some((spare, busy)) if busy.is_last() => {
                let owned = borrowed.map(<[u8]>::to_vec);
                let service = Arc::clone(&self.service);
                spare.pass_on(move || reply(ask(&service, owned.each_ref().map(Vec::as_slice))));
            }
            _busy => reply(ask(&self.service, borrowed)),
        }
    }
}
