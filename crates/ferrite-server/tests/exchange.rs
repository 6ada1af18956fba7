//! The exchange of the examples `broker` and `responder` with programs of perftest.
//!
//! Protected property: the exchange continues at each step as perftest 4.5 expects it, byte by byte, and the example
//! returns queue pairs when the program leaves, however that happens.

#[path = "../examples/exchange/mod.rs"]
mod brokering;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use brokering::{Broker, Line, Result};

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Connected(Line, u8),
    Began(usize),
    Ended(usize),
}

struct Double(Sender<Event>);

impl Broker for Double {
    fn mtu(&mut self, wanted: u8) -> Result<u8> {
        Ok(wanted.min(3))
    }

    fn connect(&mut self, theirs: &Line, mtu: u8) -> Result<Line> {
        self.0.send(Event::Connected(*theirs, mtu))?;
        if theirs.qpn == 0x99 {
            return Err("no more".into());
        }
        Ok(Line {
            qpn: theirs.qpn + 0x0010_0000,
            psn: 7,
            key: 0xfeed_f00d,
            at: 0,
            ip: "10.98.0.1".parse()?,
        })
    }

    fn begin(&mut self, pairs: &[(Line, Line)]) {
        self.0.send(Event::Began(pairs.len())).unwrap();
    }

    fn end(&mut self, pairs: &[(Line, Line)]) {
        self.0.send(Event::Ended(pairs.len())).unwrap();
    }
}

const GID: &str = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:62:00:02";

fn line(qpn: u32) -> Vec<u8> {
    let text = format!("0000:0010:{qpn:06x}:a1b2c3:000004d2:000055d0c0de0000:{GID}:00000000:\0");
    assert_eq!(text.len(), 108);
    text.into_bytes()
}

fn reply_to(qpn: u32) -> Vec<u8> {
    let gid = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:62:00:01";
    let qpn = qpn + 0x0010_0000;
    format!("0000:0010:{qpn:06x}:000007:feedf00d:0000000000000000:{gid}:00000000:\0").into_bytes()
}

fn start() -> (TcpStream, Receiver<Event>) {
    let (sender, events) = channel();
    let listener = brokering::port("0").unwrap();
    let address = ("127.0.0.1", listener.local_addr().unwrap().port());
    std::thread::spawn(move || brokering::listen(&listener, || Double(sender.clone())));
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    (stream, events)
}

fn trade(stream: &mut TcpStream, ours: &[u8], theirs: &[u8]) {
    stream.write_all(ours).unwrap();
    let mut got = vec![0; theirs.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, theirs, "{}", String::from_utf8_lossy(&got));
}

fn begin(stream: &mut TcpStream) {
    let version = *b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
    trade(stream, &version, &version);
    trade(stream, &4_096_u32.to_be_bytes(), &4_096_u32.to_be_bytes());
    trade(stream, &64_u32.to_be_bytes(), &64_u32.to_be_bytes());
    trade(stream, b"5\0", b"3\0");
}

fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(Duration::from_secs(30)).unwrap()
}

#[test]
fn a_test_of_bandwidth_with_two_queue_pairs() {
    let (mut stream, events) = start();
    begin(&mut stream);
    for qpn in [0x11, 0x12] {
        trade(&mut stream, &line(qpn), &reply_to(qpn));
        let theirs = Line {
            qpn,
            psn: 0x00a1_b2c3,
            key: 0x4d2,
            at: 0x55d0_c0de_0000,
            ip: "10.98.0.2".parse().unwrap(),
        };
        assert_eq!(next(&events), Event::Connected(theirs, 3));
    }
    // Ready; begun; done; results; goodbye.
    trade(&mut stream, &line(0x11), &reply_to(0x11));
    assert_eq!(next(&events), Event::Began(2));
    trade(&mut stream, &line(0x11), &reply_to(0x11));
    for number in [
        65_536_u64.to_be_bytes(),
        500_u64.to_be_bytes(),
        1.5_f64.to_be_bytes(),
        [0xff; 8],
        [0; 8],
    ] {
        trade(&mut stream, &number, &number);
    }
    trade(&mut stream, &line(0x11), &reply_to(0x11));
    stream.write_all(b"done\0").unwrap();
    assert_eq!(next(&events), Event::Ended(2));
}

#[test]
fn what_is_refused_or_makes_no_sense_ends_the_exchange() {
    let (mut stream, events) = start();
    begin(&mut stream);
    trade(&mut stream, &line(0x11), &reply_to(0x11));
    assert!(matches!(next(&events), Event::Connected(..)));
    stream.write_all(&line(0x99)).unwrap();
    assert!(matches!(next(&events), Event::Connected(..)));
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "it is closed");
    assert_eq!(next(&events), Event::Ended(1));

    let (mut stream, events) = start();
    begin(&mut stream);
    let mut wrong = line(0x11);
    wrong[60] = b'x';
    stream.write_all(&wrong).unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "it is closed");
    assert_eq!(next(&events), Event::Ended(0));

    let (mut stream, events) = start();
    begin(&mut stream);
    trade(&mut stream, &line(0x12), &reply_to(0x12));
    assert!(matches!(next(&events), Event::Connected(..)));
    drop(stream);
    assert_eq!(next(&events), Event::Ended(1));
}
