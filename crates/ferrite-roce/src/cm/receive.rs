//! Incoming messages of a connection.
//!
//! Invariant: a message counts only if it comes from the connection's peer and names the connection as both ends do.

use std::net::{IpAddr, SocketAddr};

use crate::wire::cm::{Mtu, Names, REJ_PRIVATE_BYTES, Reason, Rej, Rep, Repr, Req};
use crate::wire::mad;

use super::{Event, Id, Ignored, Manager, State, timeout_code, timeout_ns};

/// Kinds of service: the reliable connection.
const RELIABLE: u8 = 0;

impl Manager {
    /// Takes a datagram that came from `peer` to `local`. Events and outgoing datagrams may follow.
    ///
    /// # Errors
    /// Why it was ignored.
    pub fn handle(&mut self, now_ns: u64, local: SocketAddr, peer: IpAddr, datagram: &[u8]) -> Result<(), Ignored> {
        let packet = mad::Packet::new_checked(datagram).map_err(Ignored::Malformed)?;
        let (transaction, message) = Repr::parse(&packet).map_err(Ignored::Malformed)?;
        match message {
            Repr::Req(request) => self.hear_request(now_ns, local, peer, transaction, request),
            Repr::Rep(reply) => self.hear_reply(local, peer, transaction, reply),
            Repr::Rtu(names) => {
                let id = self.named(peer, names)?;
                self.in_state(id, &[State::ReplySent]).map_err(|_| Ignored::State)?;
                self.established(id);
                self.events.push_back(Event::Established { id });
                Ok(())
            }
            Repr::Rej(rejection) => self.hear_rejection(peer, rejection),
            Repr::Mra { names, timeout, .. } => {
                let id = names.remote;
                let connection = self.connections.get(&id).ok_or(Ignored::Unknown)?;
                if connection.peer != peer {
                    return Err(Ignored::Unknown);
                }
                self.in_state(id, &[State::RequestSent, State::ReplySent])
                    .map_err(|_| Ignored::State)?;
                let longer_ns = timeout_ns(timeout).saturating_add(self.config.response_timeout_ns);
                self.wait_until(id, now_ns.saturating_add(longer_ns));
                Ok(())
            }
            Repr::Dreq { names, .. } => self.hear_farewell(now_ns, local, peer, transaction, names),
            Repr::Drep(names) => {
                let id = self.named(peer, names)?;
                self.in_state(id, &[State::DisconnectSent])
                    .map_err(|_| Ignored::State)?;
                self.events.push_back(Event::Closed { id });
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.message = None;
                }
                self.end(id, now_ns);
                Ok(())
            }
        }
    }

    /// The connection that both ends name so.
    fn named(&self, peer: IpAddr, names: Names) -> Result<Id, Ignored> {
        match self.connections.get(&names.remote) {
            Some(connection) if connection.peer == peer && connection.remote == names.local => Ok(names.remote),
            _ => Err(Ignored::Unknown),
        }
    }

    fn hear_request(
        &mut self,
        now_ns: u64,
        local: SocketAddr,
        peer: IpAddr,
        transaction: u64,
        request: Box<Req>,
    ) -> Result<(), Ignored> {
        let name = (peer, request.local);
        if let Some(&id) = self.by_remote.get(&name)
            && let Some(connection) = self.connections.get(&id)
        {
            if connection.transaction == transaction {
                return self.hear_request_again(id, transaction);
            }
            // Another connection under the same name: the peer has forgotten the first.
            if connection.state != State::Ended {
                self.events.push_back(Event::Closed { id });
            }
            self.forget(id);
        }
        let reason = if !self.services.contains(&request.service) {
            Some(Reason::INVALID_SERVICE)
        } else if request.transport != RELIABLE {
            Some(Reason::INVALID_TRANSPORT)
        } else if Mtu::from_code(request.mtu).is_none() {
            Some(Reason::INVALID_MTU)
        } else {
            None
        };
        let added = match reason {
            Some(reason) => Err(reason),
            None => self
                .add(State::RequestReceived, local, peer)
                .ok_or(Reason::NO_RESOURCES),
        };
        let id = match added {
            Ok(id) => id,
            Err(reason) => {
                self.refuse(local, peer, transaction, request.local, 0, reason);
                return Ok(());
            }
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.remote = request.local;
            connection.remote_qpn = request.qpn;
            connection.transaction = transaction;
        }
        self.by_remote.insert(name, id);
        self.wait_until(id, now_ns.saturating_add(self.config.accept_timeout_ns));
        self.events.push_back(Event::Requested { id, peer, request });
        Ok(())
    }

    /// The reply was lost, or the program has not given one.
    fn hear_request_again(&mut self, id: Id, transaction: u64) -> Result<(), Ignored> {
        let connection = self.connections.get(&id).ok_or(Ignored::Unknown)?;
        match connection.state {
            State::RequestReceived => {
                let receipt = Repr::Mra {
                    names: Names {
                        local: id,
                        remote: connection.remote,
                    },
                    answered: 0,
                    timeout: timeout_code(self.config.accept_timeout_ns),
                };
                let message = receipt.emit(transaction);
                self.send(connection.local, connection.peer, message);
                Ok(())
            }
            // Ended: with a refusal, or with a reply to a DREQ, which a REQ does not ask for.
            State::ReplySent | State::Ended => {
                self.repeat(id);
                Ok(())
            }
            _ => Err(Ignored::State),
        }
    }

    fn hear_reply(
        &mut self,
        local: SocketAddr,
        peer: IpAddr,
        transaction: u64,
        reply: Box<Rep>,
    ) -> Result<(), Ignored> {
        let id = reply.remote;
        let Some(connection) = self
            .connections
            .get_mut(&id)
            .filter(|connection| connection.peer == peer)
        else {
            self.refuse(local, peer, transaction, reply.local, 1, Reason::INVALID_CONNECTION);
            return Err(Ignored::Unknown);
        };
        match connection.state {
            State::RequestSent if connection.transaction == transaction => {
                connection.remote = reply.local;
                connection.remote_qpn = reply.qpn;
                self.established(id);
                let ready = Repr::Rtu(Names {
                    local: id,
                    remote: reply.local,
                });
                self.answer(id, &ready);
                self.by_remote.insert((peer, reply.local), id);
                self.events.push_back(Event::Connected { id, reply });
                Ok(())
            }
            State::Established if connection.remote == reply.local => {
                self.repeat(id);
                Ok(())
            }
            _ => Err(Ignored::State),
        }
    }

    fn hear_rejection(&mut self, peer: IpAddr, rejection: Box<Rej>) -> Result<(), Ignored> {
        let id = match rejection.remote {
            // A peer that gave up before it learned this end's name knows its own.
            0 => *self.by_remote.get(&(peer, rejection.local)).ok_or(Ignored::Unknown)?,
            id => id,
        };
        let connection = self.connections.get(&id).ok_or(Ignored::Unknown)?;
        let is_ours = match connection.state {
            State::RequestSent => true,
            State::RequestReceived | State::ReplySent => connection.remote == rejection.local,
            _ => return Err(Ignored::State),
        };
        if connection.peer != peer || !is_ours {
            return Err(Ignored::Unknown);
        }
        self.forget(id);
        self.events.push_back(Event::Rejected { id, rejection });
        Ok(())
    }

    fn hear_farewell(
        &mut self,
        now_ns: u64,
        local: SocketAddr,
        peer: IpAddr,
        transaction: u64,
        names: Names,
    ) -> Result<(), Ignored> {
        let answer = Repr::Drep(Names {
            local: names.remote,
            remote: names.local,
        });
        let Ok(id) = self.named(peer, names) else {
            // Also for a forgotten connection, or the other end waits in vain.
            self.send(local, peer, answer.emit(transaction));
            return Err(Ignored::Unknown);
        };
        let Some(connection) = self.connections.get_mut(&id) else {
            return Err(Ignored::Unknown);
        };
        match connection.state {
            State::Established | State::ReplySent | State::DisconnectSent => {
                connection.message = None;
                self.events.push_back(Event::Closed { id });
                self.send(local, peer, answer.emit(transaction));
                self.end(id, now_ns);
                Ok(())
            }
            State::Ended => {
                self.send(local, peer, answer.emit(transaction));
                Ok(())
            }
            State::RequestSent | State::RequestReceived => Err(Ignored::State),
        }
    }

    /// Refuses a message without a connection.
    fn refuse(&mut self, local: SocketAddr, peer: IpAddr, transaction: u64, remote: u32, refused: u8, reason: Reason) {
        let rejection = Repr::Rej(Box::new(Rej {
            local: 0,
            remote,
            refused,
            reason,
            guid: None,
            private: [0; REJ_PRIVATE_BYTES],
        }));
        self.send(local, peer, rejection.emit(transaction));
    }
}
