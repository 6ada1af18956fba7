//! Clients of rdma_cm, as stock verbs programs are: they send from and to port 4791, and know the server by its address
//! and a service port.
//!
//! Guarantees under test: a client that the service accepts gets a queue pair on whichever thread, and loses it when it
//! asks to; a refused one gets none.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_rnic::{End, Error, Options, Rnic};
use ferrite_roce::cm::{self, Event, Manager, Offer, Target};
use ferrite_roce::endpoint::{Connection, Endpoint, Taken};
use ferrite_roce::requester::{self, Outcome, Request};
use ferrite_roce::responder;
use ferrite_roce::wire::cm::Mtu;
use ferrite_roce::wire::icrc::{Flow, Ids};
use ferrite_roce::wire::{Psn, Qpn, UDP_PORT};

use crate::support::{Ends, Files, KEY};

const SERVICE: u16 = 7_471;
/// Where the server's packets begin.
const PSN_OF_SERVER: u32 = 100;

/// A loopback address that no other test has, including other runs at the same time.
fn address(index: u8) -> SocketAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    SocketAddr::new([127, 100 + index, high, low.max(1)].into(), UDP_PORT)
}

/// A stock client: one thread, one socket, one connection.
struct Client {
    socket: UdpSocket,
    local: SocketAddr,
    server: SocketAddr,
    endpoint: Endpoint,
    manager: Manager,
    memory: Files,
    qpn: Qpn,
    began: Instant,
}

impl Client {
    fn new(local: SocketAddr, server: SocketAddr) -> Client {
        let socket = UdpSocket::bind(local).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut endpoint = Endpoint::new(Ids::Any, 77);
        Client {
            socket,
            local,
            server,
            qpn: endpoint.allocate(),
            endpoint,
            manager: Manager::new(cm::Config {
                seed: 5,
                ..cm::Config::default()
            }),
            memory: Files::default(),
            began: Instant::now(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64 + 1
    }

    fn ask(&mut self, private: &[u8]) -> cm::Id {
        let target = Target {
            local: self.local,
            peer: self.server.ip(),
            port: SERVICE,
            mtu: Mtu::B1024,
            retry_count: 7,
            ack_timeout: 14,
        };
        let offer = Offer {
            qpn: self.qpn,
            psn: Psn::new(PSN_OF_SERVER),
            responder_resources: 4,
            initiator_depth: 4,
            rnr_retry_count: 7,
            private,
        };
        self.manager.connect(self.now_ns(), &target, &offer).unwrap()
    }

    fn turn(&mut self) {
        let now_ns = self.now_ns();
        self.manager.handle_timeout(now_ns);
        self.endpoint.handle_timeout(now_ns);
        while let Some((local, peer, datagram)) = self.manager.poll_transmit() {
            self.endpoint.send_management(local, peer, datagram);
        }
        let mut out = Vec::new();
        while let Some(flow) = self.endpoint.poll_transmit(now_ns, &mut self.memory, &mut out) {
            self.socket.send_to(&out, flow.destination).unwrap();
        }
        let mut buf = [0; 5_000];
        while let Ok((len, source)) = self.socket.recv_from(&mut buf) {
            let flow = Flow {
                source,
                destination: self.local,
            };
            let taken = self.endpoint.receive(now_ns, &flow, &buf[..len], &mut self.memory);
            if let Ok(Taken::Management { datagram }) = taken {
                let peer: IpAddr = source.ip();
                let _ = self.manager.handle(now_ns, self.local, peer, datagram);
            }
        }
    }

    fn event(&mut self) -> Event {
        let began = Instant::now();
        loop {
            if let Some(event) = self.manager.poll_event() {
                return event;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "nothing happens");
            self.turn();
        }
    }

    fn connect(&mut self, private: &[u8]) -> (cm::Id, Qpn) {
        let id = self.ask(private);
        let Event::Connected { reply, .. } = self.event() else {
            panic!("not connected");
        };
        assert!(reply.private.starts_with(b"welcome"));
        self.endpoint
            .connect(Connection {
                local: self.local,
                peer: self.server,
                ids: Ids::Any,
                // Each end announces where the packets of the other begin.
                requester: requester::Config::new(reply.qpn, Mtu::B1024, reply.psn),
                responder: responder::Config::new(self.qpn, reply.qpn, Mtu::B1024, Psn::new(PSN_OF_SERVER)),
            })
            .unwrap();
        (id, reply.qpn)
    }

    fn run(&mut self, request: Request) -> Outcome {
        self.endpoint.post(self.qpn, 1, request).unwrap();
        let began = Instant::now();
        loop {
            self.turn();
            if let Some(completion) = self.endpoint.poll_completion(self.qpn) {
                return completion.result.unwrap();
            }
            assert!(began.elapsed() < Duration::from_secs(30), "nothing completes");
        }
    }
}

fn server(index: u8, threads: usize, files: &Files, ends: &Arc<Ends>) -> (Rnic, SocketAddr) {
    let address = address(index);
    let options = Options {
        listen: vec![address],
        threads,
        service_port: Some(SERVICE),
        ..Options::default()
    };
    let service = Arc::clone(ends);
    (Rnic::start(&options, service, |_| files.clone()).unwrap(), address)
}

fn write(data: &[u8]) -> Request {
    Request::Write {
        key: KEY,
        at: 0,
        data: data.to_vec(),
        immediate: None,
    }
}

fn await_end(ends: &Ends, count: usize) -> Vec<(Qpn, End)> {
    let began = Instant::now();
    loop {
        let seen = ends.0.lock().unwrap().clone();
        if seen.len() >= count {
            return seen;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "the service hears of no end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_connects_works_and_leaves() {
    let (files, ends) = (Files::with(4_096), Arc::new(Ends::default()));
    let (rnic, server) = server(0, 3, &files, &ends);
    let mut threads = std::collections::HashSet::new();
    for round in 0..3 {
        let mut client = Client::new(address(1), server);
        // Ended connections are remembered, so each has its own name.
        client.manager = Manager::new(cm::Config {
            seed: 100 * (round + 1),
            ..cm::Config::default()
        });
        let (id, theirs) = client.connect(b"let me in");
        threads.insert(theirs % 3);
        let data = vec![round as u8; 3_000];
        assert_eq!(client.run(write(&data)), Outcome::Done);
        assert_eq!(files.bytes()[..3_000], data);
        let read = Request::Read {
            key: KEY,
            at: 0,
            len_bytes: 3_000,
        };
        assert_eq!(client.run(read), Outcome::Read(data));
        client.manager.disconnect(client.now_ns(), id).unwrap();
        assert_eq!(client.event(), Event::Closed { id });
        let seen = await_end(&ends, round as usize + 1);
        assert_eq!(seen[round as usize], (theirs, End::Closed));
        assert_eq!(rnic.counters().queue_pairs, 0);
    }
    assert_eq!(threads.len(), 3, "queue pairs are spread");
}

#[test]
fn who_is_not_wanted_gets_no_queue_pair() {
    let (files, ends) = (Files::with(4_096), Arc::new(Ends::default()));
    let (rnic, server) = server(2, 1, &files, &ends);
    let mut client = Client::new(address(3), server);
    let id = client.ask(b"please");
    match client.event() {
        Event::Rejected {
            id: rejected,
            rejection,
        } => {
            assert_eq!(rejected, id);
            assert!(rejection.private.starts_with(b"no"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(rnic.counters().queue_pairs, 0);
    assert!(ends.0.lock().unwrap().is_empty());
}

/// The program removes a queue pair; its client learns of it by rdma_cm.
#[test]
fn a_client_hears_that_its_queue_pair_was_closed() {
    let (files, ends) = (Files::with(4_096), Arc::new(Ends::default()));
    let (rnic, server) = server(4, 2, &files, &ends);
    let mut client = Client::new(address(5), server);
    let (id, theirs) = client.connect(b"let me in");
    assert_eq!(client.run(write(b"before")), Outcome::Done);
    rnic.close(theirs);
    assert_eq!(client.event(), Event::Closed { id });
    assert_eq!(rnic.counters().queue_pairs, 0);
    assert!(ends.0.lock().unwrap().is_empty(), "who closes it needs not be told");
}

/// A server may send requests to its clients, too: each queue pair works both ways.
#[test]
fn a_server_writes_and_reads_memory_that_a_client_exposes() {
    let (files, ends) = (Files::with(4_096), Arc::new(Ends::default()));
    let (rnic, server) = server(6, 2, &files, &ends);
    let mut client = Client::new(address(7), server);
    client.memory = Files::with(10_000);
    let (_, theirs) = client.connect(b"let me in");
    let ask = |client: &mut Client, request: Request| {
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| rnic.ask(theirs, request));
            while !asking.is_finished() {
                client.turn();
            }
            asking.join().unwrap()
        })
    };
    let data: Vec<u8> = (0..9_000_u32).map(|index| index as u8).collect();
    let put = Request::Write {
        key: KEY,
        at: 500,
        data: data.clone(),
        immediate: None,
    };
    assert!(matches!(ask(&mut client, put), Ok(Outcome::Done)));
    assert_eq!(client.memory.bytes()[500..9_500], data);
    let get = Request::Read {
        key: KEY,
        at: 500,
        len_bytes: 9_000,
    };
    match ask(&mut client, get) {
        Ok(Outcome::Read(read)) => assert_eq!(read, data),
        other => panic!("{other:?}"),
    }
    // It still sends requests itself.
    assert_eq!(client.run(write(b"mine")), Outcome::Done);
    assert_eq!(files.bytes()[..4], *b"mine");
    // A refusal by the client ends the queue pair, for later requests as well.
    let foreign = || Request::FetchAdd {
        key: KEY + 1,
        at: 0,
        add: 1,
    };
    assert!(matches!(ask(&mut client, foreign()), Err(Error::Access)));
    assert_eq!(await_end(&ends, 1), [(theirs, End::Lost)]);
    assert!(matches!(rnic.ask(theirs, foreign()), Err(Error::Ended)));
    assert!(matches!(rnic.ask(theirs + 1, foreign()), Err(Error::Ended)));
}

/// A server's request reveals that a client has died.
#[test]
fn who_asks_the_dead_hears_of_it() {
    let (files, ends) = (Files::with(4_096), Arc::new(Ends::default()));
    let (rnic, server) = server(8, 1, &files, &ends);
    let mut client = Client::new(address(9), server);
    let (_, theirs) = client.connect(b"let me in");
    drop(client);
    match rnic.ask(theirs, write(b"anybody?")) {
        Err(Error::NoAnswer { peer }) => assert_eq!(peer, address(9)),
        other => panic!("{other:?}"),
    }
    assert_eq!(await_end(&ends, 1), [(theirs, End::Lost)]);
}
