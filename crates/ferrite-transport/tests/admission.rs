//! Admission of clients: floods of connections that say nothing, and the notice to clients that exceed the capacity.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrite_buffers::Pool;
use ferrite_transport::connection::Connection;
use ferrite_transport::reactor::{Close, Data, Link, Options, Origin, Reactors, Served, Service};
use ferrite_transport::secure::Credentials;
use ferrite_transport::send_queue::SendQueue;
use ferrite_transport::{FabricError, HandshakeError};

const LIMIT: Duration = Duration::from_secs(20);

/// Answers nothing.
struct Mute;

impl Service for Mute {
    type Peer = Link;

    fn connected(&self, link: Link, _: Origin) -> Link {
        link
    }

    fn message(&self, _: &mut Link, _: &[u8], _: Data<'_>, _: &mut SendQueue) -> Result<Served, Close> {
        Ok(Served::Yes)
    }

    fn disconnected(&self, _: Link) {}
}

fn serve(connections_max: usize) -> (Reactors, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = Options {
        connections_max,
        ..Options::default()
    };
    let pool = Pool::new(16 << 20).unwrap();
    let reactors = Reactors::start(vec![listener], &Arc::new(Mute), &pool, &options).unwrap();
    (reactors, address)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Once one process held all connections by saying nothing, or by going through the handshake alone.
#[test]
fn who_says_nothing_makes_space_and_who_finds_none_is_told_so() {
    let (reactors, address) = serve(20);
    let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
    until("they are there", || reactors.connections() == 20);
    let open = || Connection::open(&address, &Credentials::default(), LIMIT);
    let mut served: Vec<_> = (0..20).map(|_| open().unwrap()).collect();
    assert_eq!(reactors.connections(), 20);
    for mut stream in silent {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "it was closed");
    }
    let why = match open() {
        Err(FabricError::Handshake { why, .. }) => why,
        other => panic!("{:?}", other.map(|_| "it was let in")),
    };
    assert!(matches!(why, HandshakeError::Full), "{why}");
    assert!(why.to_string().contains("try again"), "{why}");
    drop(served.pop());
    until("one has left", || reactors.connections() < 20);
    served.push(open().unwrap());
}

/// One source cannot push out others' handshakes, and half handshakes have a bound of their own.
#[test]
fn half_handshakes_of_one_source_have_a_bound() {
    let (reactors, address) = serve(16_384);
    let flood: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(&address).unwrap()).collect();
    until("the bound holds", || (1..=256).contains(&reactors.connections()));
    let (connection, _receiver) = Connection::open(&address, &Credentials::default(), LIMIT).unwrap();
    assert!(reactors.connections() <= 257);
    drop((flood, connection));
}
