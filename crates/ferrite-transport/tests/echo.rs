//! A service that echoes, behind real sockets: frames of all sizes come back whole and in order, many connections share
//! one thread, and a client that misbehaves harms itself alone.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ferrite_buffers::Pool;
use ferrite_transport::connection::{Connection, Receiver};
use ferrite_transport::reactor::{Close, Data, Link, Options, Origin, Reactors, Served, Service};
use ferrite_transport::secure::Credentials;
use ferrite_transport::send_queue::SendQueue;

/// Answers each message with itself; body `later` from another thread.
struct Echo;

impl Service for Echo {
    type Peer = Link;

    fn connected(&self, link: Link, _: Origin) -> Link {
        link
    }

    fn message(&self, link: &mut Link, body: &[u8], data: Data<'_>, out: &mut SendQueue) -> Result<Served, Close> {
        if body == b"close" {
            return Err(Close);
        }
        let reply = |out: &mut SendQueue, body: &[u8], data: Data<'_>| {
            let mut frame = out.frame();
            frame.body().extend(body);
            match data {
                Data::Inline(bytes) => frame.finish_with(bytes.len(), |buf| {
                    buf.copy_from_slice(bytes);
                    bytes.len()
                }),
                Data::Buffer(buffer) => frame.finish_from(buffer),
            }
        };
        if body == b"later" {
            let (link, body) = (link.clone(), body.to_vec());
            std::thread::spawn(move || link.send(|out| reply(out, &body, Data::Inline(b"mail"))));
        } else {
            reply(out, body, data);
        }
        Ok(Served::Yes)
    }

    fn disconnected(&self, _: Link) {}
}

fn serve(threads: usize, pool: &Pool) -> (Reactors, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let options = Options {
        threads,
        ..Options::default()
    };
    (
        Reactors::start(vec![listener], &Arc::new(Echo), pool, &options).unwrap(),
        address,
    )
}

fn open(address: &str) -> (Connection, Receiver) {
    Connection::open(address, &Credentials::default(), Duration::from_secs(5)).unwrap()
}

fn receive(receiver: &mut Receiver) -> (Vec<u8>, Vec<u8>) {
    for _ in 0..100 {
        if let Some((body, data_bytes)) = receiver.receive().unwrap() {
            let (body, mut data) = (body.to_vec(), vec![0; data_bytes]);
            receiver.take_data(&mut data).unwrap();
            return (body, data);
        }
    }
    panic!("no reply");
}

#[test]
fn frames_of_all_sizes_come_back_in_order() {
    let pool = Pool::new(32 << 20).unwrap();
    let (_reactors, address) = serve(2, &pool);
    let (connection, mut receiver) = open(&address);
    let sizes = [0, 1, 100, 4096, 32 << 10, (32 << 10) + 1, 1 << 20, 4 << 20];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (index, &size) in sizes.iter().enumerate() {
                let data: Vec<u8> = (0..size).map(|at| (at + index) as u8).collect();
                connection.send(&vec![7; index * 1000], &data).unwrap();
            }
        });
        for (index, &size) in sizes.iter().enumerate() {
            let (body, data) = receive(&mut receiver);
            assert_eq!(body, vec![7; index * 1000]);
            assert!(data.len() == size && data.iter().enumerate().all(|(at, &byte)| byte == (at + index) as u8));
        }
    });
    connection.send(b"later", b"").unwrap();
    assert_eq!(receive(&mut receiver), (b"later".to_vec(), b"mail".to_vec()));
    connection.close();
    assert!(receiver.receive().is_err());
}

/// Neither garbage nor half a frame nor a client that takes no replies blocks other clients, and all buffers come back.
#[test]
fn a_client_that_misbehaves_harms_itself_alone() {
    let pool = Pool::new(16 << 20).unwrap();
    let (reactors, address) = serve(1, &pool);
    let mut garbage = TcpStream::connect(&address).unwrap();
    garbage.write_all(&[0xff; 64]).unwrap();
    let mut half = TcpStream::connect(&address).unwrap();
    half.write_all(&[10, 0, 0, 0, 0, 0]).unwrap();
    // Four of these would need all buffers; the first two never read their replies.
    let glutton = |_| {
        let address = address.clone();
        std::thread::spawn(move || {
            let (connection, _receiver) = open(&address);
            let data = vec![1; 4 << 20];
            while connection.send(b"more", &data).is_ok() {}
        })
    };
    let gluttons: Vec<_> = (0..4).map(glutton).collect();
    std::thread::sleep(Duration::from_millis(200));
    let (connection, mut receiver) = open(&address);
    for _ in 0..100 {
        connection.send(b"small", b"data").unwrap();
        assert_eq!(receive(&mut receiver), (b"small".to_vec(), b"data".to_vec()));
    }
    connection.send(b"close", b"").unwrap();
    while receiver.receive().is_ok() {}
    drop(reactors);
    gluttons.into_iter().for_each(|glutton| glutton.join().unwrap());
    assert_eq!(pool.free_bytes(), pool.len_bytes());
}
