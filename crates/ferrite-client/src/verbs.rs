//! Requests about RDMA, as calls: its addresses, queue pairs, keys of files. The writers that use RDMA are outside this
//! module.

use std::net::{IpAddr, SocketAddr};

use ferrite_vfs::regions::Binding;
use ferrite_vfs::{Ctx, Ino, Result, SYSTEM};

use super::Client;
use ferrite_proto::{GrantedKey, QueuePairInfo, RdmaActivity, RdmaRequest, UdpPlace};

impl Client {
    /// The addresses of the server's RDMA, the most promising first; empty if it has none. Blocks as every call.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn rdma_places(&self) -> Result<Vec<SocketAddr>> {
        let reply = self.ask(SYSTEM, RdmaRequest::Rdma {})?;
        let reported: Vec<UdpPlace> = reply.result()?;
        let server = self.link.peer();
        let mut places: Vec<SocketAddr> = reported
            .into_iter()
            .filter_map(|place| reached_by(place.0, server))
            .collect();
        places.sort_by_key(|place| Some(place.ip()) != server);
        Ok(places)
    }

    /// Opens the peer of the client's queue pair, at the address that this client connects from.
    ///
    /// # Errors
    /// `NotSupported` if the server has no RDMA; others if it refuses.
    pub fn open_queue_pair(&self, client: &QueuePairInfo) -> Result<QueuePairInfo> {
        self.ask(SYSTEM, RdmaRequest::OpenQueuePair { client: *client })?
            .result()
    }

    /// Closes a queue pair, by the server's number.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn close_queue_pair(&self, qpn: u32) -> Result<()> {
        self.ask(SYSTEM, RdmaRequest::CloseQueuePair { qpn })?.result()
    }

    /// Gets a key of a file, for queue pairs of this session. `atomic`: each WRITE is one step.
    ///
    /// # Errors
    /// Those of [`ferrite_vfs::regions::Regions::bind`]; `NotSupported` if the server has no RDMA; `ReadOnly` if the
    /// export is.
    pub fn bind(&self, ctx: &Ctx, ino: Ino, binding: Binding, atomic: bool) -> Result<GrantedKey> {
        let request = RdmaRequest::Bind {
            node: self.node(ino)?,
            writable: binding.writable,
            defragment: binding.defragment,
            atomic,
        };
        self.ask(ctx, request)?.result()
    }

    /// Returns a key.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn release_key(&self, key: u32) -> Result<()> {
        self.ask(SYSTEM, RdmaRequest::ReleaseKey { key })?.result()
    }

    /// Returns a key and a queue pair without waiting for the reply.
    pub fn forget_verbs(&self, key: u32, qpn: u32) {
        self.link.post(RdmaRequest::ReleaseKey { key });
        self.link.post(RdmaRequest::CloseQueuePair { qpn });
    }

    /// Revokes all keys of a file from all clients, and makes it an ordinary file again.
    ///
    /// # Errors
    /// `AccessDenied` if the caller may not write it; errors of the engine.
    pub fn unbind(&self, ctx: &Ctx, ino: Ino) -> Result<()> {
        let node = self.node(ino)?;
        self.ask(ctx, RdmaRequest::Unbind { node })?.result()
    }

    /// The counters of the server's RDMA, and the bound files of the export.
    ///
    /// # Errors
    /// If the server cannot be asked.
    pub fn rdma_activity(&self) -> Result<RdmaActivity> {
        self.ask(SYSTEM, RdmaRequest::RdmaActivity {})?.result()
    }
}

/// The address of a server's place for a client that has reached the server at this address.
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
