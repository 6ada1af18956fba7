//! Turns of connections on a fabric.
//!
//! Contents: a thread's reaction when a message or bulk data has come over a fabric, when the connection beside it
//! rings, and when a client introduces itself. [`super::Fabrics`] has the endpoints.
//!
//! Invariant: a connection with unsent data is in `blocked`, and has a turn soon.

use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::{Event, Fabrics, Held, KEPT_BYTES, POLLS, POLLS_MAX};
use crate::fabric::{Reply, mark_apart};
use crate::reactor::connection::Connection;
use crate::reactor::{Close, Data, QUEUED_BYTES_MAX, Reactor, Service};

impl<S: Service> Reactor<S> {
    /// Polls the fabrics, a number of times if they have users, and serves the arrivals. False if more may have come.
    pub(in crate::reactor) fn poll(&mut self) -> bool {
        if !self.fabrics.is_used() {
            return true;
        }
        let mut idle = 0;
        for _ in 0..POLLS_MAX {
            let mut events = Vec::new();
            let has_worked = self.fabrics.poll(&mut events);
            let mut touched = std::mem::take(&mut self.fabrics.blocked);
            for event in events {
                self.handle(event, &mut touched);
            }
            touched.sort_unstable();
            touched.dedup();
            for number in touched {
                self.serve(number, EventFlags::empty());
            }
            idle = if has_worked { 0 } else { idle + 1 };
            if idle >= POLLS {
                return true;
            }
            if !has_worked {
                // The client that should send something may need this very core.
                std::thread::yield_now();
            }
        }
        false
    }

    fn handle(&mut self, event: Event, touched: &mut Vec<u64>) {
        let number = match event {
            Event::Message { connection, .. }
            | Event::Fetched { connection, .. }
            | Event::Put { connection, .. }
            | Event::Failed { connection } => connection,
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            // An earlier event of this batch has closed the connection.
            if let Event::Message { end, message, .. } = event {
                self.fabrics.unused(end, message);
            }
            return;
        };
        let Some(on_fabric) = &mut connection.on_fabric else {
            return;
        };
        let handled = match event {
            Event::Message { message, .. } => self.fabrics.accept(on_fabric, message, &mut connection.received),
            Event::Fetched { body, data, .. } => {
                on_fabric.ends_bulk();
                let served = self
                    .service
                    .message(&mut connection.peer, &body, Data::Buffer(data), &mut connection.out);
                served.map(drop)
            }
            Event::Put { mut head, .. } => {
                on_fabric.ends_bulk();
                connection.took = Instant::now();
                mark_apart(&mut head);
                connection.out.push(&head);
                Ok(())
            }
            Event::Failed { .. } => Err(Close),
        };
        match handled {
            Ok(()) => touched.push(number),
            Err(Close) => self.drop_connection(number),
        }
    }

    /// Answers a client's introduction, and moves it to a fabric if possible.
    pub(in crate::reactor) fn introduce(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let body = connection.introduction.take().unwrap_or_default();
        let (reply, on_fabric) = match connection.is_sealed() {
            // Traffic over a fabric is not encrypted, and this client or the export demands encryption.
            true => (
                Reply::Refused("this connection is encrypted, and fabrics are not".into()),
                None,
            ),
            false => self.fabrics.introduce(number, &connection.stream, &body),
        };
        let mut frame = connection.out.frame();
        frame.body().extend(reply.encode());
        frame.finish();
        // Nothing else is in flight, so the socket has space for this.
        let is_sent = matches!(connection.send(), Ok(true));
        connection.on_fabric = on_fabric;
        if !is_sent {
            self.drop_connection(number);
        }
    }

    /// A turn of a connection on a fabric.
    pub(in crate::reactor) fn serve_wired(&mut self, number: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let mut served = match connection.link.is_closed() {
            true => Err(Close),
            false if flags.is_empty() => Ok(()),
            false => self.fabrics.hear_bell(&connection.stream),
        };
        connection.link.take_pending(&mut connection.out);
        while served.is_ok() {
            served = serve_stream(&*self.service, number, connection, &mut self.fabrics);
            let Some(on_fabric) = &mut connection.on_fabric else {
                return;
            };
            let queued_bytes = connection.out.queued_bytes();
            if served.is_err() {
                break;
            }
            let (stream, out) = (&connection.stream, &mut connection.out);
            let sent = self.fabrics.send(number, on_fabric, stream, out);
            if connection.out.queued_bytes() != queued_bytes {
                connection.took = Instant::now();
            }
            match sent {
                Err(Close) => served = Err(Close),
                // The messages that the full queue held back can be served now.
                Ok(true) if queued_bytes > QUEUED_BYTES_MAX => {}
                Ok(true) => break,
                Ok(false) => {
                    self.fabrics.blocked.push(number);
                    break;
                }
            }
        }
        if served.is_err() || connection.link.is_closed() {
            self.drop_connection(number);
        } else if connection.waits_for_turn() {
            self.waiting.push(number);
        }
    }
}

fn serve_stream<S: Service>(
    service: &S,
    number: u64,
    connection: &mut Connection<S::Peer>,
    fabrics: &mut Fabrics,
) -> Result<(), Close> {
    let Some(on_fabric) = &mut connection.on_fabric else {
        return Ok(());
    };
    let mut received = std::mem::take(&mut connection.received);
    let peer = (service, &mut connection.peer);
    let (at, held) = fabrics.serve(number, on_fabric, peer, &received, &mut connection.out)?;
    received.drain(..at);
    if !received.is_empty() || received.capacity() <= KEPT_BYTES {
        connection.received = received;
    }
    connection.is_starved = held == Held::Starved;
    connection.is_cut_short = held == Held::CutShort;
    connection.is_held = held == Held::ByService;
    Ok(())
}
