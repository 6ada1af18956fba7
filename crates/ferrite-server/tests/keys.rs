//! Exports with keys: which clients are admitted, what each learns, and the limits of a man in the middle.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::bystander::{Bystander, new_file};
use crate::common::meddler::{Meddler, Side, Trick};
use crate::common::raw::{Raw, hello};
use crate::common::{export, make_pool, mount, serve};
use ferrite_client::{Client, ClientOptions, ConnectError};
use ferrite_server::{Server, ServerOptions};
use ferrite_testkit::rng::Rng;
use ferrite_testkit::seed_from_env;
use ferrite_transport::secure::handshake::{MESSAGE_BYTES, PREAMBLE_BYTES, VERDICT_BYTES, introduce};
use ferrite_transport::secure::{Credentials, Encrypt, Encryption, Key};
use ferrite_transport::{FabricError, HandshakeError};
use ferrite_vfs::memfs::MemFs;
use ferrite_vfs::{FileSystem, FsError, ROOT_INO, SYSTEM};

fn new_key() -> Key {
    Key::generate().unwrap()
}

fn with(key: &Key) -> ClientOptions {
    let timeout = Some(Duration::from_secs(60));
    ClientOptions::default().timeout(timeout).key(Some(key.clone()))
}

/// Why a client is not admitted.
fn refused(address: &str, name: &str, options: &ClientOptions) -> ConnectError {
    match Client::connect(address, name, options) {
        Ok(_) => panic!("`{name}` was opened"),
        Err(error) => error,
    }
}

fn handshake_error(error: ConnectError) -> HandshakeError {
    match error {
        ConnectError::Fabric(FabricError::Handshake { why, .. }) => why,
        other => panic!("{other}"),
    }
}

/// Two exports with a key each, one with both, and one without any.
fn house() -> (Server, String, Key, Key) {
    let (one, two) = (new_key(), new_key());
    let fs = Arc::new(MemFs::new());
    for name in [&b"one"[..], b"two", b"both", b"open"] {
        fs.mkdir(SYSTEM, ROOT_INO, name, 0o777).unwrap();
        let dir = fs.lookup(SYSTEM, ROOT_INO, name).unwrap().ino;
        fs.mkdir(SYSTEM, dir, &[b"in-", name].concat(), 0o777).unwrap();
    }
    let exports = vec![
        export("one").path("/one").keys(vec![one.clone()]),
        export("two").path("/two").keys(vec![two.clone()]),
        export("both").path("/both").keys(vec![one.clone(), two.clone()]),
        export("open").path("/open"),
    ];
    let (server, address) = serve(fs, exports, &ServerOptions::default());
    (server, address, one, two)
}

#[test]
fn a_key_opens_its_exports_and_no_others() {
    let (server, address, one, two) = house();
    let none = ClientOptions::default();
    let cases = [
        (with(&one), vec!["one", "both"]),
        (with(&two), vec!["two", "both"]),
        (none, vec!["open"]),
    ];
    let names = ["one", "two", "both", "open", "missing"];
    for (options, its_own) in &cases {
        let mut said = Vec::new();
        for name in names {
            if its_own.contains(&name) {
                let client = Client::connect(&address, name, options).unwrap();
                client
                    .lookup(SYSTEM, ROOT_INO, format!("in-{name}").as_bytes())
                    .unwrap();
            } else {
                let error = refused(&address, name, options);
                assert!(matches!(error, ConnectError::Refused { .. }), "{name}: {error}");
                said.push(error.to_string().replace(&format!("`{name}`"), "NAME"));
            }
        }
        said.dedup();
        assert_eq!(
            said.len(),
            1,
            "what is not there and what is not his sound alike: {said:?}"
        );
    }
    assert_eq!(server.sessions(), 0);
}

#[test]
fn a_key_that_no_export_has_learns_nothing_else() {
    let (_server, address, one, _) = house();
    let bystander = Bystander::at(&address, "open");
    let unknown_key = new_key();
    for name in ["one", "open", "missing", ""] {
        let error = refused(&address, name, &with(&unknown_key));
        let said = error.to_string();
        assert!(
            said.contains("does not accept this key") && said.contains(&address),
            "{said}"
        );
        assert!(matches!(handshake_error(error), HandshakeError::KeyRefused { key } if key == unknown_key.id()));
    }
    // A sender that names an existing key without having it gets the same reply as any other.
    let replies = [
        opening_replied(&address, &opening(&unknown_key, unknown_key.id())),
        opening_replied(&address, &opening(&unknown_key, one.id())),
    ];
    assert_eq!(replies[0], replies[1]);
    assert_eq!(replies[0].len(), VERDICT_BYTES);
    bystander.goes_on();
}

/// The opening of a client with `key` that claims to have the key of this name.
fn opening(key: &Key, says: ferrite_transport::secure::KeyId) -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    let credentials = Credentials {
        key: Some(key.clone()),
        encrypt: Encrypt::Auto,
    };
    stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    // The peer does not answer, but the client has sent its opening.
    assert!(introduce(&stream, &credentials, Instant::now()).is_err());
    let mut opening = vec![0; PREAMBLE_BYTES + MESSAGE_BYTES];
    accepted.read_exact(&mut opening).unwrap();
    let name = format!("{says:?}");
    let bytes = (0..name.len()).step_by(2);
    let bytes = bytes.map(|at| u8::from_str_radix(&name[at..at + 2], 16).unwrap());
    opening[12..12 + name.len() / 2].copy_from_slice(&bytes.collect::<Vec<_>>());
    opening
}

/// The server's reply to such a client before it closes the connection.
fn opening_replied(address: &str, opening: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(opening).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    reply
}

#[test]
fn without_a_key_nobody_reaches_what_has_one() {
    let key = new_key();
    let fs = Arc::new(MemFs::new());
    let (_server, address) = serve(fs, vec![export("").keys(vec![key.clone()])], &ServerOptions::default());
    let error = refused(&address, "", &ClientOptions::default());
    assert!(error.to_string().contains("without a key"), "{error}");
    assert!(matches!(handshake_error(error), HandshakeError::KeyWanted));
    // A client without a handshake gets no reply at all.
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut frame = Vec::new();
    let mut body = Vec::new();
    ferrite_proto::Encode::put(&hello("", None), &mut body);
    frame.extend_from_slice(&common::raw::prefix(body.len(), 0));
    frame.extend_from_slice(&body);
    stream.write_all(&frame).unwrap();
    assert_eq!(stream.read(&mut [0; 100]).unwrap_or(0), 0);
    drop(Client::connect(&address, "", &with(&key)).unwrap());
}

#[test]
fn a_client_with_a_key_wants_a_server_that_proves_it() {
    let fs = Arc::new(MemFs::new());
    let (_server, address) = serve(fs, vec![export("")], &ServerOptions::default());
    let error = handshake_error(refused(&address, "", &with(&new_key())));
    assert!(matches!(error, HandshakeError::KeyRefused { .. }), "{error}");
    // A server that only says welcome.
    let key = new_key();
    for garbage in [0, 1, MESSAGE_BYTES, 1000] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let impostor = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut opening = vec![0; PREAMBLE_BYTES + MESSAGE_BYTES];
            stream.read_exact(&mut opening).unwrap();
            let mut reply = opening[..9].to_vec();
            reply.resize(VERDICT_BYTES + garbage, 0);
            stream.write_all(&reply).unwrap();
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            rest
        });
        let error = handshake_error(refused(&address, "", &with(&key)));
        let expected = match garbage < MESSAGE_BYTES {
            true => matches!(error, HandshakeError::Closed),
            false => matches!(error, HandshakeError::Unproved { .. }),
        };
        assert!(expected, "{garbage}: {error}");
        assert_eq!(impostor.join().unwrap(), b"", "it received something");
    }
    let options = ClientOptions::default().encrypt(Encrypt::On);
    let error = handshake_error(refused(&address, "", &options));
    assert!(matches!(error, HandshakeError::NothingToEncryptWith));
}

/// Keys are rotated without downtime: the new one is added, clients change, the old one goes.
#[test]
fn an_export_may_have_an_old_and_a_new_key() {
    let (old, new) = (new_key(), new_key());
    let fs = Arc::new(MemFs::new());
    for (keys, opened_by_old) in [
        (vec![old.clone()], true),
        (vec![old.clone(), new.clone()], true),
        (vec![new.clone()], false),
    ] {
        let has_new = keys.contains(&new);
        let (_server, address) = serve(fs.clone(), vec![export("").keys(keys)], &ServerOptions::default());
        assert_eq!(Client::connect(&address, "", &with(&old)).is_ok(), opened_by_old);
        assert_eq!(Client::connect(&address, "", &with(&new)).is_ok(), has_new);
    }
}

/// A refusal proves nothing: any peer at the server's address can send it. So a client that was admitted before waits,
/// as for an unreachable server.
#[test]
fn a_client_whose_key_was_taken_away_waits_for_it() {
    let (mine, other) = (new_key(), new_key());
    let fs = Arc::new(MemFs::new());
    let exports = |key: &Key| vec![export("").keys(vec![key.clone()])];
    let (server, address) = serve(fs.clone(), exports(&mine), &ServerOptions::default());
    let options = ClientOptions::default().timeout(Some(Duration::from_millis(500)));
    let client = Client::connect(&address, "", &options.key(Some(mine.clone()))).unwrap();
    drop(server);
    let again = |key| {
        let began = Instant::now();
        let listener = loop {
            match std::net::TcpListener::bind(&address) {
                Ok(listener) => break listener,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let engine: Arc<dyn FileSystem> = fs.clone();
        Server::start(vec![listener], vec![(engine, exports(key))], &ServerOptions::default()).unwrap()
    };
    let server = again(&other);
    let reply = client.getattr(SYSTEM, ROOT_INO).map(|attr| attr.ino);
    assert_eq!(reply, Err(FsError::TimedOut));
    drop(server);
    let _server = again(&mine);
    let began = Instant::now();
    while client.getattr(SYSTEM, ROOT_INO).is_err() {
        assert!(began.elapsed() < Duration::from_secs(10), "it has given up");
    }
}

#[test]
fn both_ends_encrypt_if_one_wants_it() {
    let key = new_key();
    for (encryption, encrypt, expected) in [
        // Both ends are on one host.
        (Encryption::Remote, Encrypt::Auto, false),
        (Encryption::Remote, Encrypt::On, true),
        (Encryption::Remote, Encrypt::Off, false),
        (Encryption::Always, Encrypt::Auto, true),
        (Encryption::Always, Encrypt::Off, true),
        (Encryption::Offered, Encrypt::Auto, false),
        (Encryption::Offered, Encrypt::On, true),
    ] {
        let exports = vec![export("").keys(vec![key.clone()]).encryption(encryption)];
        let (_server, address) = serve(Arc::new(MemFs::new()), exports, &ServerOptions::default());
        let network = Meddler::listening(&address);
        let client = Client::connect(&network.address, "", &with(&key).encrypt(encrypt)).unwrap();
        client.mkdir(SYSTEM, ROOT_INO, b"a-name-to-look-for", 0o755).unwrap();
        assert_eq!(client.is_encrypted(), Some(expected), "{encryption:?}, {encrypt:?}");
        let heard = network.heard().concat();
        let is_readable = heard.windows(18).any(|bytes| bytes == b"a-name-to-look-for");
        assert_eq!(is_readable, !expected, "{encryption:?}, {encrypt:?}");
    }
}

/// Names alone decide between exports; two of one name would be ambiguous.
#[test]
fn two_exports_of_one_name_are_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let exports = vec![export("a").keys(vec![new_key()]), export("a")];
    let engines: Vec<(Arc<dyn FileSystem>, _)> = vec![(Arc::new(MemFs::new()), exports)];
    let error = Server::start(vec![listener], engines, &ServerOptions::default())
        .err()
        .unwrap();
    assert!(matches!(&error, FsError::Io(text) if text.contains("`a`")), "{error}");
}

/// An attacker that can change traffic gets no further than one that can cut it: changes happen once, and in order.
#[test]
fn records_that_were_changed_on_their_way_end_the_connection_only() {
    let seed = seed_from_env().unwrap_or_else(|| u64::from(std::process::id()));
    println!("FERRITE_SEED={seed}");
    let mut random = Rng::new(seed);
    let key = new_key();
    let path = make_pool(64 << 20, 1000);
    let engine = mount(&path);
    let exports = vec![export("").keys(vec![key.clone()])];
    // Clients that miss a reply find out by their next sign of life, a quarter of a lease later.
    let options = ServerOptions::default().threads(2).lease(Duration::from_secs(6));
    let (_server, address) = serve(Arc::new(engine.clone()), exports, &options);
    let network = Meddler::new(&address);
    let client = Client::connect(&network.address, "", &with(&key).encrypt(Encrypt::On)).unwrap();
    let is_over = AtomicBool::new(false);
    let names = ["a", "b", "c"];
    let counts = std::thread::scope(|scope| {
        // Several, so that there is always a next record.
        let counters = names.map(|name| {
            let (client, is_over) = (&client, &is_over);
            scope.spawn(move || {
                let file = client
                    .create(SYSTEM, ROOT_INO, name.as_bytes(), &new_file(true))
                    .unwrap()
                    .file;
                let mut count = 0u64;
                while !is_over.load(Ordering::Relaxed) {
                    file.append(SYSTEM, &count.to_le_bytes()).unwrap();
                    count += 1;
                    let mut back = [0; 8];
                    file.read_at(SYSTEM, (count - 1) * 8, &mut back).unwrap();
                    assert_eq!(u64::from_le_bytes(back), count - 1);
                }
                count
            })
        });
        for side in [Side::Client, Side::Server] {
            for trick in [
                Trick::Flip(random.below(1 << 16) as usize),
                Trick::Replay,
                Trick::Drop,
                Trick::Swap,
                Trick::Shorten,
            ] {
                // The first record of a client is the end of the handshake, the second its hello.
                network.plan(side, trick, 3 + random.below(40) as usize);
                // Another connection counts its records anew.
                client.disconnect();
                let began = Instant::now();
                while !network.is_done() {
                    if began.elapsed() > Duration::from_secs(30) {
                        is_over.store(true, Ordering::Relaxed);
                        panic!("{side:?} {trick:?} did not end the connection");
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
        counters.map(|counter| counter.join().unwrap())
    });
    for (name, count) in names.iter().zip(counts) {
        assert!(count > 0);
        let ino = engine.lookup(SYSTEM, ROOT_INO, name.as_bytes()).unwrap().ino;
        let file = engine.open(SYSTEM, ino, ferrite_vfs::OpenMode::read_only()).unwrap();
        let mut bytes = vec![0; count as usize * 8 + 8];
        let read = file.read_at(SYSTEM, 0, &mut bytes).unwrap();
        assert_eq!(read as u64, count * 8, "{name}: each append once");
        for (at, number) in bytes[..read].chunks_exact(8).enumerate() {
            assert_eq!(number, (at as u64).to_le_bytes());
        }
    }
}

/// The bytes that open a connection, changed one by one: no client continues, none continues without the encryption
/// that it wants, and the server serves others.
#[test]
fn nobody_in_between_turns_proof_or_encryption_off() {
    let key = new_key();
    let fs = Arc::new(MemFs::new());
    let exports = vec![export("keyed").keys(vec![key.clone()]), export("open")];
    let (server, address) = serve(fs, exports, &ServerOptions::default());
    let bystander = Bystander::at(&address, "open");
    let network = Meddler::new(&address);
    let options = with(&key).encrypt(Encrypt::On);
    let kind = 9;
    network.rewrite(Some((Side::Client, kind, 1)));
    for name in ["keyed", "open"] {
        let error = handshake_error(refused(&network.address, name, &options));
        assert!(
            matches!(error, HandshakeError::Closed | HandshakeError::Unproved { .. }),
            "{error}"
        );
    }
    let (of_client, of_server) = (PREAMBLE_BYTES + MESSAGE_BYTES, VERDICT_BYTES + MESSAGE_BYTES);
    for (side, bytes) in [(Side::Client, of_client), (Side::Server, of_server)] {
        for at in 0..bytes {
            // Two bytes of a verdict have no meaning.
            if side == Side::Server && (10..12).contains(&at) {
                continue;
            }
            network.rewrite(Some((side, at, 0xa5)));
            if let Ok(client) = Client::connect(&network.address, "keyed", &options) {
                panic!("{side:?}, byte {at}; encrypted: {:?}", client.is_encrypted());
            }
        }
    }
    network.rewrite(None);
    let client = Client::connect(&network.address, "keyed", &options).unwrap();
    assert_eq!(client.is_encrypted(), Some(true));
    bystander.goes_on();
    drop((client, bystander));
    assert_eq!(server.sessions(), 0);
}

/// A recording of a client's traffic is useless to an attacker, even without encryption.
#[test]
fn what_was_recorded_cannot_be_sent_again() {
    let key = new_key();
    let fs = Arc::new(MemFs::new());
    let exports = vec![export("").keys(vec![key.clone()])];
    let (server, address) = serve(fs.clone(), exports, &ServerOptions::default());
    for encrypt in [Encrypt::Off, Encrypt::On] {
        let network = Meddler::listening(&address);
        let client = Client::connect(&network.address, "", &with(&key).encrypt(encrypt)).unwrap();
        client.mkdir(SYSTEM, ROOT_INO, b"made-once", 0o755).unwrap();
        drop(client);
        fs.rmdir(SYSTEM, ROOT_INO, b"made-once").unwrap();
        let heard = network.heard();
        assert_eq!(heard.len(), 1);
        let reply = {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(&heard[0]).unwrap();
            let mut reply = Vec::new();
            let _ = stream.read_to_end(&mut reply);
            reply
        };
        assert!(reply.len() <= VERDICT_BYTES + MESSAGE_BYTES, "{} bytes", reply.len());
        assert_eq!(
            fs.lookup(SYSTEM, ROOT_INO, b"made-once").map(|attr| attr.ino),
            Err(FsError::NotFound)
        );
        assert_eq!(server.sessions(), 0);
    }
}

/// Handshakes that are invalid, that stop, or that trickle, while others work.
#[test]
fn garbage_and_half_handshakes_hold_nobody_up() {
    let seed = seed_from_env().unwrap_or_else(|| u64::from(std::process::id()));
    println!("FERRITE_SEED={seed}");
    let mut random = Rng::new(seed);
    let (server, address, one, _) = house();
    let bystander = Bystander::at(&address, "open");
    let whole = opening(&one, one.id());
    for _ in 0..300 {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut bytes = whole.clone();
        match random.below(3) {
            0 => bytes.iter_mut().for_each(|byte| *byte = random.next_u64() as u8),
            1 => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            // A record that is no proof, and bytes like a frame behind it.
            _ => bytes.extend((0..random.below(100)).map(|_| random.next_u64() as u8)),
        }
        // The server may close before all is sent.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        assert!(reply.len() <= VERDICT_BYTES + MESSAGE_BYTES);
    }
    bystander.goes_on();
    let slow: Vec<TcpStream> = (0..whole.len() + 40)
        .map(|sent| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.write_all(&whole[..sent.min(whole.len())]).unwrap();
            stream
        })
        .collect();
    let mut trickle = TcpStream::connect(&address).unwrap();
    bystander.goes_on();
    // The server's limit of ten seconds counts from the beginning: no byte extends it. All bytes would take three times
    // as long, so that a server on a busy machine still ends the handshake first.
    let pause = Duration::from_secs(30) / whole.len() as u32;
    let refused = whole.iter().position(|byte| {
        std::thread::sleep(pause);
        trickle.write_all(&[*byte]).is_err()
    });
    assert!(refused.is_some(), "the server never refuses a handshake that trickles");
    for mut stream in slow {
        // Clients that have sent everything have the server's reply before the end.
        if let Err(error) = stream.read_to_end(&mut Vec::new()) {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "half a handshake stays");
        }
    }
    bystander.goes_on();
    drop(bystander);
    assert_eq!(server.sessions(), 0);
}

/// A client that is not encrypted, and has proved its key, is served as any other; a second handshake is not a valid
/// message.
#[test]
fn a_handshake_comes_once() {
    let (_server, address, one, _) = house();
    let (mut raw, _) = Raw::with_session(&address, "open");
    raw.stream.write_all(&opening(&one, one.id())).unwrap();
    assert!(raw.receive().is_none());
}
