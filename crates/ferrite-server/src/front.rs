//! The connections of a server, and the first message of each.
//!
//! Contents: [`Front`], which the threads of the reactor call; [`Peer`], a connection; how a Hello finds the engines
//! that have its export.
//!
//! Invariants: a connection belongs to one session from its Hello on. No answer leaves after its engines have lost the
//! right to answer: that is checked once the answer is made, before the connection sends it. No connection attaches to
//! engines that are being stopped: the stop is announced first, then all connections are closed, and one that attaches
//! meanwhile sees the announcement.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_proto::{Head, ImmediateRequest, MAGIC, Promises, Reader, Request, ResumeToken, VERSION, Welcome};
use ferrite_transport::reactor::{Close, Data, Link, Origin, Served, Service};
use ferrite_transport::secure::{AdmissionPolicy, KeyId};
use ferrite_transport::send_queue::SendQueue;
use ferrite_transport::source::Source;
use ferrite_vfs::{FsError, Result, Unsynced};

use super::Inner;
use super::admission::Account;
use super::common::Common;
use super::export::{Export, ExportOptions};
use super::meter::Received;
use super::movable::{Found, Place};
use super::reply::put;
use super::session::Session;

/// The demands of all exports on clients.
///
/// # Errors
/// Two have one name.
pub(super) fn policy_of<'e>(exports: impl Iterator<Item = &'e ExportOptions> + Clone) -> Result<AdmissionPolicy> {
    let mut names = std::collections::HashSet::new();
    let mut policy = AdmissionPolicy::new(exports.clone().any(|export| export.keys.is_empty()));
    for options in exports {
        if !names.insert(&options.name) {
            let name = &options.name;
            return Err(FsError::Io(format!(
                "two exports have the name `{name}`; give them different ones"
            )));
        }
        options
            .keys
            .iter()
            .for_each(|key| policy.admit(key, options.encryption));
    }
    Ok(policy)
}

/// A connection: without a session yet, or of one.
pub(super) enum Peer {
    Pending {
        link: Link,
        number: u64,
        account: Account,
        address: SocketAddr,
    },
    Client {
        inner: Arc<Inner>,
        session: Arc<Session>,
        attachment: u64,
    },
}

/// See the head of this module.
pub(super) struct Front {
    pub(super) common: Arc<Common>,
    /// The engines that this server has as long as it runs.
    pub(super) home: Arc<Inner>,
    /// Those that it has from time to time.
    pub(super) places: Vec<Arc<Place>>,
}

/// A client's wish for a session.
struct Hello<'m> {
    export: &'m [u8],
    resume: Option<ResumeToken>,
}

impl<'m> Hello<'m> {
    /// The wish in the first message of a connection.
    fn of(request: &Request<'m>) -> Result<Hello<'m>> {
        let &Request::Immediate(ImmediateRequest::Hello {
            magic,
            version,
            export,
            resume,
        }) = request
        else {
            return Err(FsError::Io("the first message must be a Hello".into()));
        };
        if magic != MAGIC {
            return Err(FsError::Io(
                "this is a Ferrite server, and the client does not speak its protocol; is the port right?".into(),
            ));
        }
        if version != VERSION {
            return Err(FsError::Io(format!(
                "the server speaks version {VERSION} of the protocol, the client version {version}; bring both to the \
                 same version of Ferrite"
            )));
        }
        Ok(Hello { export, resume })
    }

    /// Whether an export is the one. Exports whose keys the client lacks do not exist for it.
    fn means(&self, export: &ExportOptions, key: Option<KeyId>) -> bool {
        export.name.as_bytes() == self.export && export.is_open_to(key)
    }
}

impl Front {
    /// The export that a client wishes, and the engines that have it.
    fn find(&self, hello: &Hello<'_>, key: Option<KeyId>) -> Result<Found> {
        let means = |export: &ExportOptions| hello.means(export, key);
        if let Some(found) = self.home.find_export(means) {
            return Ok(found);
        }
        match self.places.iter().find(|place| place.exports.iter().any(means)) {
            Some(place) => place.find(means),
            None => Err(FsError::Io(format!(
                "the server exports nothing named `{}` {}",
                String::from_utf8_lossy(hello.export),
                match key {
                    Some(_) => "to who has this key; give the key and the name of the same export",
                    None => "to who has no key; is the name right, and does the export need a key (`key=FILE`)?",
                }
            ))),
        }
    }

    fn set_up_session(&self, request: &Request<'_>, account: Account) -> Result<(Arc<Inner>, Arc<Session>, Welcome)> {
        let hello = Hello::of(request)?;
        let (inner, export) = self.find(&hello, account.key)?;
        let (session, welcome) = inner.set_up_session(&export, account, hello.resume)?;
        Ok((inner, session, welcome))
    }

    /// Handles the first message of a connection. `None`: it was refused, and may try again.
    fn begin(&self, peer: &Peer, head: &Head, request: &Request<'_>, out: &mut SendQueue) -> Option<Peer> {
        let Peer::Pending {
            link,
            number,
            account,
            address,
        } = peer
        else {
            return None;
        };
        let (inner, session, welcome) = match self.set_up_session(request, *account) {
            Ok(set_up) => set_up,
            Err(error) => {
                put::<()>(out, head.id, Err(error));
                return None;
            }
        };
        self.common.pending_connections.leave(*number);
        session.meter.comes_from(*address);
        let attachment = session.attach(link.clone());
        put(out, head.id, Ok(welcome));
        Some(Peer::Client {
            inner,
            session,
            attachment,
        })
    }
}

impl Inner {
    /// An export of these engines.
    pub(super) fn find_export(self: &Arc<Self>, means: impl Fn(&ExportOptions) -> bool) -> Option<Found> {
        let export = self.exports.iter().find(|export| means(&export.options))?;
        Some((Arc::clone(self), Arc::clone(export)))
    }

    /// Begins a session at an export, or resumes the one of a token.
    fn set_up_session(
        &self,
        export: &Arc<Export>,
        account: Account,
        resume: Option<ResumeToken>,
    ) -> Result<(Arc<Session>, Welcome)> {
        let (session, state) = self.session(export, account, resume)?;
        session.seen(self.now_ms());
        let limits = &export.store.limits;
        let welcome = Welcome {
            version: VERSION,
            instance: self.instance,
            resume_token: session.resume_token,
            state,
            lease_ms: self.lease.as_millis() as u32,
            root: export.root_node(),
            promises: Promises {
                atomic_write_bytes: limits.atomic_write_bytes,
                whole_write_bytes: limits.whole_write_bytes,
                file_bytes_max: limits.file_bytes_max,
                durability: limits.durability,
                // Content is durable before a change of it is answered.
                is_durable_at_once: limits.unsynced != Unsynced::Everything,
                has_slots: export.store.state.has_slots(),
                sync_mode: limits.sync_mode,
            },
        };
        Ok((session, welcome))
    }

    /// Whether an answer that was made before may be sent.
    fn check_may_answer(&self) -> std::result::Result<(), Close> {
        match self.ownership.as_ref().is_none_or(|ownership| ownership.may_answer()) {
            true => Ok(()),
            false => Err(Close),
        }
    }

    /// Handles a message of a session's connection.
    fn message(
        self: &Arc<Self>,
        (session, attachment): (&Arc<Session>, u64),
        (head, request): (Head, Request<'_>),
        (body, data): (&[u8], Data<'_>),
        out: &mut SendQueue,
    ) -> std::result::Result<Served, Close> {
        if !session.is_attached(attachment) {
            return Err(Close);
        }
        if let Err(error) = head.caller.check() {
            put::<()>(out, head.id, Err(error));
            return Ok(Served::Yes);
        }
        let received = Received::new(request.opcode(), body, data, out);
        let measured = received.measured;
        session.seen(measured.since.duration_since(self.began).as_millis() as u64);
        let served = self.dispatch(session, head, request, received, out)?;
        measured.count_if_replied(&session.meter, out);
        Ok(served)
    }
}

impl Service for Front {
    type Peer = Peer;

    fn connected(&self, link: Link, origin: Origin) -> Peer {
        let source = Source::of(origin.address.ip());
        Peer::Pending {
            number: self.common.pending_connections.come(link.clone(), source),
            link,
            account: Account {
                key: origin.key,
                source,
            },
            address: origin.address,
        }
    }

    fn data_bytes_max(&self, peer: &Peer) -> usize {
        match peer {
            // A connection that has no session yet gets no buffers.
            Peer::Pending { .. } => 0,
            Peer::Client { .. } => ferrite_transport::frame::DATA_BYTES_MAX,
        }
    }

    fn is_ready(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Pending { .. } => true,
            Peer::Client { session, .. } => !session.is_busy(),
        }
    }

    fn message(
        &self,
        peer: &mut Peer,
        body: &[u8],
        data: Data<'_>,
        out: &mut SendQueue,
    ) -> std::result::Result<Served, Close> {
        let (head, request) = Reader::new(body).last::<(Head, Request<'_>)>().map_err(|_| Close)?;
        let served = match peer {
            Peer::Pending { .. } => {
                if let Some(client) = self.begin(peer, &head, &request, out) {
                    *peer = client;
                }
                Served::Yes
            }
            Peer::Client {
                inner,
                session,
                attachment,
            } => inner.message((session, *attachment), (head, request), (body, data), out)?,
        };
        if let Peer::Client { inner, .. } = peer {
            // After the session was attached: a stop that missed it comes later than this.
            if inner.stop.load(Ordering::Acquire) {
                return Err(Close);
            }
            inner.check_may_answer()?;
        }
        Ok(served)
    }

    fn disconnected(&self, peer: Peer) {
        match peer {
            Peer::Pending { number, .. } => self.common.pending_connections.leave(number),
            Peer::Client {
                inner,
                session,
                attachment,
            } => inner.end_if_idle(&session, attachment),
        }
    }
}
