//! A client that need not behave: it sends what a test wants, and takes any reply.

use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ferrite_proto::{
    Caller, Encode, FsRequest, Head, ImmediateRequest, MAGIC, Node, Reader, ReplyHead, ResumeToken, VERSION, Welcome,
    Wire,
};
use ferrite_transport::frame::{Lengths, PREFIX_BYTES};
use ferrite_transport::secure::{Credentials, handshake};
use ferrite_vfs::{DedupToken, FsError, ROOT_INO};

/// A connection without rules.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    next: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) check: bool,
    pub(crate) pins: bool,
    pub(crate) token: Option<DedupToken>,
    /// Whether the last reply came with a lease.
    pub(crate) was_leased: bool,
}

/// The outcome: the body behind its head, or the error; and data.
pub(crate) type Came = Result<(Vec<u8>, Vec<u8>), FsError>;

impl Raw {
    pub(crate) fn connect(address: &str) -> Raw {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        // As a client without a key.
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        handshake::introduce(&stream, &Credentials::default(), deadline).unwrap();
        Raw {
            stream,
            next: 1,
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            check: false,
            pins: false,
            token: None,
            was_leased: false,
        }
    }

    /// Connects and says hello, correctly.
    pub(crate) fn with_session(address: &str, export: &str) -> (Raw, Welcome) {
        let mut raw = Raw::connect(address);
        let welcome = raw.set_up_session(export, None).unwrap();
        (raw, welcome)
    }

    pub(crate) fn set_up_session(&mut self, export: &str, resume: Option<ResumeToken>) -> Result<Welcome, FsError> {
        let (body, _) = self.ask(&hello(export, resume)).expect("a reply")?;
        Ok(Reader::new(&body).last().unwrap())
    }

    /// The number of the last request.
    pub(crate) fn number(&self) -> u64 {
        self.next
    }

    /// The next request has the number behind this one.
    pub(crate) fn next_is(&mut self, last: u64) {
        self.next = last;
    }

    pub(crate) fn head(&mut self) -> Head {
        self.next += 1;
        Head {
            id: self.next,
            settled_below: 0,
            pins: self.pins,
            check: self.check,
            token: self.token,
            caller: Caller {
                uid: self.uid,
                gid: self.gid,
                groups: self.groups.clone(),
            },
        }
    }

    pub(crate) fn body(&mut self, request: &impl Encode) -> Vec<u8> {
        let mut body = Vec::new();
        self.head().put(&mut body);
        request.put(&mut body);
        body
    }

    /// Sends a frame; false if the server has closed the connection.
    pub(crate) fn send(&mut self, body: &[u8], data: &[u8]) -> bool {
        let mut frame = prefix(body.len(), data.len()).to_vec();
        frame.extend_from_slice(body);
        frame.extend_from_slice(data);
        self.stream.write_all(&frame).is_ok()
    }

    /// The next reply; `None` if the server has closed the connection. A silent server fails the test.
    pub(crate) fn receive(&mut self) -> Option<(u64, Came)> {
        let mut prefix = [0; PREFIX_BYTES];
        match self.stream.read_exact(&mut prefix) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock) => {
                panic!("the server neither answers nor closes the connection")
            }
            Err(_) => return None,
        }
        let lengths = Lengths::decode(&prefix).unwrap().unwrap();
        let (mut body, mut data) = (vec![0; lengths.body_bytes], vec![0; lengths.data_bytes]);
        self.stream.read_exact(&mut body).ok()?;
        self.stream.read_exact(&mut data).ok()?;
        let mut reader = Reader::new(&body);
        let head: ReplyHead = reader.get().unwrap();
        self.was_leased = head.is_leased;
        let rest = body[9..].to_vec();
        Some(match head.is_ok {
            true => (head.id, Ok((rest, data))),
            false => (head.id, Err(reader.last().unwrap())),
        })
    }

    /// Sends a request and waits; `None` if the connection was closed.
    pub(crate) fn ask(&mut self, request: &impl Encode) -> Option<Came> {
        self.ask_with(request, &[])
    }

    pub(crate) fn ask_with(&mut self, request: &impl Encode, data: &[u8]) -> Option<Came> {
        let body = self.body(request);
        if !self.send(&body, data) {
            return None;
        }
        let id = self.next;
        loop {
            let (replied, came) = self.receive()?;
            if replied == id {
                return Some(came);
            }
        }
    }

    /// Sends a request that must fail, and returns the error.
    pub(crate) fn refused(&mut self, request: &(impl Encode + Debug)) -> FsError {
        match self.ask(request) {
            Some(Err(error)) => error,
            Some(Ok(_)) => panic!("{request:?} was done"),
            None => panic!("{request:?} cost the connection"),
        }
    }

    /// Sends a request that must succeed.
    pub(crate) fn done<T: for<'m> Wire<'m>>(&mut self, request: &(impl Encode + Debug)) -> T {
        let (body, _) = self.ask(request).expect("a reply").unwrap_or_else(|error| {
            panic!("{request:?}: {error}");
        });
        Reader::new(&body).last().unwrap()
    }
}

pub(crate) fn prefix(body_bytes: usize, data_bytes: usize) -> [u8; PREFIX_BYTES] {
    Lengths { body_bytes, data_bytes }.encode()
}

pub(crate) fn hello(export: &str, resume: Option<ResumeToken>) -> ImmediateRequest<'_> {
    ImmediateRequest::Hello {
        magic: MAGIC,
        version: VERSION,
        export: export.as_bytes(),
        resume,
    }
}

/// A node with a forged MAC.
pub(crate) fn invented(ino: u64) -> Node {
    Node {
        ino,
        generation: 0,
        mac: 0x1234_5678_9abc_def0 ^ ino,
    }
}

/// The root without a valid MAC.
pub(crate) fn root_without_mac() -> Node {
    invented(ROOT_INO)
}

/// Clones something to a new name.
pub(crate) fn clone_tree(node: Node, parent: Node, name: &[u8]) -> FsRequest<'_> {
    FsRequest::CloneTree { node, parent, name }
}
