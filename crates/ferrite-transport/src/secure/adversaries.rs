//! Adversarial peers that have the key and break the rules, against both ends. Tests alone: the parts of the handshake
//! that they need are not public.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::handshake::{MESSAGE_BYTES, PREAMBLE_BYTES, Progress, Responder, VERDICT_BYTES, introduce, noise};
use super::record::{Opener, Sealer};
use super::{AdmissionPolicy, Credentials, Encrypt, Encryption, Key};
use crate::HandshakeError;

const LIMIT: Duration = Duration::from_secs(20);

/// A server that has the key and says that nothing is encrypted.
fn reply_unencrypted(mut stream: TcpStream, key: &Key, says: u8) {
    let mut opening = [0; PREAMBLE_BYTES + MESSAGE_BYTES];
    stream.read_exact(&mut opening).unwrap();
    let (preamble, message) = opening.split_at(PREAMBLE_BYTES);
    let mut noise = noise(key.secret(), preamble).unwrap().build_responder().unwrap();
    noise.read_message(message, &mut [0; MESSAGE_BYTES]).unwrap();
    let mut reply = [0; MESSAGE_BYTES];
    noise.write_message(&[says], &mut reply).unwrap();
    let mut verdict = [0; VERDICT_BYTES];
    verdict[..8].copy_from_slice(&preamble[..8]);
    verdict[8] = preamble[8];
    // The client may be gone before it has read all of it.
    let _ = stream.write_all(&verdict);
    let _ = stream.write_all(&reply);
    let _ = stream.read(&mut [0; 64]);
}

/// Even a server that has proved to have the key cannot talk a client out of the encryption that it wants.
#[test]
fn a_client_that_wants_encryption_goes_on_with_nothing_else() {
    let key = Key::generate().unwrap();
    for (encrypt, says, is_well) in [
        (Encrypt::On, 0, false),
        (Encrypt::On, 1, true),
        (Encrypt::On, 2, false),
        (Encrypt::Off, 0, true),
        (Encrypt::Off, 1, true),
        (Encrypt::Off, 2, false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let server = {
            let key = key.clone();
            std::thread::spawn(move || reply_unencrypted(accepted, &key, says))
        };
        let credentials = Credentials {
            key: Some(key.clone()),
            encrypt,
        };
        match introduce(&stream, &credentials, Instant::now() + LIMIT) {
            Ok(records) => {
                assert!(is_well, "{encrypt:?} with {says}");
                assert_eq!(records.is_some(), says == 1, "{encrypt:?} with {says}");
            }
            Err(error) => {
                assert!(!is_well, "{encrypt:?} with {says}: {error}");
                assert!(matches!(error, HandshakeError::Unproved { .. }), "{error}");
            }
        }
        drop(stream);
        server.join().unwrap();
    }
}

/// Both ends of an encrypted connection: the sealers and openers of the client and the server.
fn both_ends() -> ((Sealer, Opener), (Sealer, Opener)) {
    let key = Key::generate().unwrap();
    let mut policy = AdmissionPolicy::new(false);
    policy.admit(&key, Encryption::Always);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    let server = std::thread::spawn(move || {
        let mut responder = Responder::default();
        let client = IpAddr::from([127, 0, 0, 1]);
        loop {
            let count = accepted.read(responder.buf()).unwrap();
            let mut out = Vec::new();
            let progress = responder.received(count, &policy, client, &mut out);
            accepted.write_all(&out).unwrap();
            match progress {
                Progress::More => {}
                Progress::Admitted(admitted) => return admitted.records.expect("it encrypts"),
                Progress::Refused | Progress::Foreign => panic!("it was refused"),
            }
        }
    });
    let credentials = Credentials {
        key: Some(key),
        encrypt: Encrypt::On,
    };
    let client = introduce(&stream, &credentials, Instant::now() + LIMIT).unwrap();
    (client.expect("it encrypts"), server.join().unwrap())
}

/// Two records under one nonce reveal the difference of their contents, and the key that authenticates them.
#[test]
fn no_nonce_is_used_twice() {
    let (client, server) = both_ends();
    for ((mut sealer, _), (_, mut opener)) in [(client, server)].into_iter().chain({
        let (client, server) = both_ends();
        [(server, client)]
    }) {
        let content = [0x5a; 64];
        let mut records: Vec<Vec<u8>> = Vec::new();
        for _ in 0..100 {
            let mut record = Vec::new();
            sealer.seal(&content, &mut record).unwrap();
            records.push(record);
        }
        // A record too long is refused, and uses up no nonce.
        assert!(sealer.seal(&vec![0; 1 << 16], &mut Vec::new()).is_err());
        let different: std::collections::BTreeSet<&Vec<u8>> = records.iter().collect();
        assert_eq!(
            different.len(),
            records.len(),
            "equal contents under one nonce look equal"
        );
        let mut buf = [0; 256];
        let first = records[0].clone();
        for (n, record) in records.iter().enumerate() {
            // Neither the previous record nor the following one is the next.
            if n > 0 {
                assert!(opener.open_next(&first, &mut buf).is_err());
                assert!(opener.open_next(&records[n - 1], &mut buf).is_err(), "record {n}");
            }
            if let Some(later) = records.get(n + 1) {
                assert!(opener.open_next(later, &mut buf).is_err(), "record {n}");
            }
            assert_eq!(
                opener.open_next(record, &mut buf).unwrap(),
                (record.len(), content.len())
            );
            assert_eq!(buf[..content.len()], content);
        }
    }
}
