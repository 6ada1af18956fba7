//! Requests about RDMA, as calls: where it is, queue pairs, keys of files. Who writes by RDMA is none of this module's
//! business.

use std::net::{IpAddr, SocketAddr};

use ferrite_vfs::regions::Binding;
use ferrite_vfs::{Ctx, Ino, Result, SYSTEM};

use super::Client;
use crate::wire::{GrantedKey, QueuePairTold, RdmaActivity, Request, UdpPlace};

impl Client {
    /// Where the server's RDMA is to be had, the most promising place first; empty if it has none. Blocks as every
    /// call.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn rdma_places(&self) -> Result<Vec<SocketAddr>> {
        let answer = self.ask(SYSTEM, &Request::Rdma {})?;
        let told: Vec<UdpPlace> = answer.result()?;
        let server = self.link.peer();
        let mut places: Vec<SocketAddr> = told
            .into_iter()
            .filter_map(|place| reached_by(place.0, server))
            .collect();
        places.sort_by_key(|place| Some(place.ip()) != server);
        Ok(places)
    }

    /// Opens a queue pair for the client's, at the address that this client connects from.
    ///
    /// # Errors
    /// `NotSupported` if the server has no RDMA; others if it does not want to.
    pub fn open_queue_pair(&self, client: &QueuePairTold) -> Result<QueuePairTold> {
        self.ask(SYSTEM, &Request::OpenQueuePair { client: *client })?.result()
    }

    /// Closes a queue pair, by the server's number.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn close_queue_pair(&self, qpn: u32) -> Result<()> {
        self.ask(SYSTEM, &Request::CloseQueuePair { qpn })?.result()
    }

    /// Gets a key of a file, for queue pairs of this session. `atomic`: each WRITE is one step.
    ///
    /// # Errors
    /// What [`ferrite_vfs::regions::Regions::bind`] says; `NotSupported` if the server has no RDMA; `ReadOnly` if the
    /// export is.
    pub fn bind(&self, ctx: &Ctx, ino: Ino, binding: Binding, atomic: bool) -> Result<GrantedKey> {
        let request = Request::Bind {
            node: self.node(ino)?,
            writable: binding.writable,
            arrange: binding.arrange,
            atomic,
        };
        self.ask(ctx, &request)?.result()
    }

    /// Gives a key back.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn release_key(&self, key: u32) -> Result<()> {
        self.ask(SYSTEM, &Request::ReleaseKey { key })?.result()
    }

    /// Gives a key and a queue pair back without waiting for that.
    pub fn forget_verbs(&self, key: u32, qpn: u32) {
        self.link.post(&Request::ReleaseKey { key });
        self.link.post(&Request::CloseQueuePair { qpn });
    }

    /// Takes all keys of a file from everybody, and makes it an ordinary file again.
    ///
    /// # Errors
    /// `AccessDenied` for who may not write it; what the engine says.
    pub fn unbind(&self, ctx: &Ctx, ino: Ino) -> Result<()> {
        let node = self.node(ino)?;
        self.ask(ctx, &Request::Unbind { node })?.result()
    }

    /// What the server's RDMA does, and which files of the export are bound.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn rdma_activity(&self) -> Result<RdmaActivity> {
        self.ask(SYSTEM, &Request::RdmaActivity {})?.result()
    }
}

/// How a place of the server is reached by who has reached it at this address.
fn reached_by(place: SocketAddr, server: Option<IpAddr>) -> Option<SocketAddr> {
    if !place.ip().is_unspecified() {
        return Some(place);
    }
    let server = server?;
    (server.is_ipv4() == place.is_ipv4()).then(|| SocketAddr::new(server, place.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_the_one_that_was_reached() {
        let server: Option<IpAddr> = Some("10.0.0.1".parse().unwrap());
        let place = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(reached_by(place("0.0.0.0:4791"), server), Some(place("10.0.0.1:4791")));
        assert_eq!(reached_by(place("[::]:4791"), server), None);
        assert_eq!(reached_by(place("10.0.0.2:1"), server), Some(place("10.0.0.2:1")));
        assert_eq!(reached_by(place("0.0.0.0:4791"), None), None);
    }
}
