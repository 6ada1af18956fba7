//! Attacks on the handshake: bytes from a fuzzer as what a peer sends before it is welcome.
//!
//! Contents: [`handshake`], used by the libFuzzer program in `fuzz_targets/` and by the test that replays the
//! corpora on a stable compiler (`crates/ferrite-server/tests/fuzz_corpus.rs`). Either the bytes themselves come to a
//! server, or somebody in between changes what a real client and a real server say to each other, records included.
//!
//! Whatever comes, neither end panics or waits for more than a handshake has. A server believes a client with a key
//! only if every byte of it came as it was sent, and so does a client a server; if nothing was changed, both get on.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ferrite_transport::secure::handshake::{
    Admitted, MESSAGE_BYTES, PREAMBLE_BYTES, Progress, Responder, VERDICT_BYTES, introduce,
};
use ferrite_transport::secure::record::{Opener, Sealer};
use ferrite_transport::secure::{AdmissionPolicy, Credentials, Encrypt, Encryption, Key};

/// Length of the record that ends a handshake.
const PROOF_BYTES: usize = 18;
/// Reserved bytes of a verdict, which a client passes over.
const RESERVED: std::ops::Range<usize> = 10..12;
const TIMEOUT: Duration = Duration::from_secs(20);

fn key(byte: &str) -> Key {
    Key::parse(&format!("ferrite-key-1:{}", byte.repeat(32))).expect("a key")
}

/// What the first two bytes say: who the client is, and what the server demands.
struct Scene {
    is_raw: bool,
    policy: AdmissionPolicy,
    has_open: bool,
    knows_key: bool,
    server_insists: bool,
    credentials: Credentials,
    client_insists: bool,
    address: IpAddr,
}

impl Scene {
    fn of(who: u8, demands: u8) -> Scene {
        let is = |flags: u8, bit: u8| flags >> bit & 1 == 1;
        let (has_open, knows_key, server_insists) = (is(demands, 0), is(demands, 1), is(demands, 2));
        let mut policy = AdmissionPolicy::new(has_open);
        let encryption = match server_insists {
            true => Encryption::Always,
            false => Encryption::Offered,
        };
        if is(demands, 3) {
            policy.admit(&key("c3"), Encryption::Always);
        }
        if knows_key {
            policy.admit(&key("5a"), encryption);
        }
        let client_insists = is(who, 2);
        Scene {
            is_raw: is(who, 0),
            policy,
            has_open,
            knows_key,
            server_insists,
            credentials: Credentials {
                key: is(who, 1).then(|| key("5a")),
                encrypt: if client_insists { Encrypt::On } else { Encrypt::Off },
            },
            client_insists,
            address: match is(demands, 4) {
                true => Ipv4Addr::new(192, 0, 2, 1).into(),
                false => Ipv4Addr::LOCALHOST.into(),
            },
        }
    }

    fn admits_without_key(&self) -> bool {
        self.has_open && self.address.is_loopback()
    }
}

/// Gives a server what a client sends, `step` bytes at a time, as far as it wants it. Returns how it stands, and how
/// many bytes it has taken.
fn give(responder: &mut Responder, scene: &Scene, bytes: &[u8], step: usize, out: &mut Vec<u8>) -> (Progress, usize) {
    let mut taken = 0;
    while taken < bytes.len() {
        let buf = responder.buf();
        assert!(!buf.is_empty(), "the handshake is not over, and has no space");
        let count = buf.len().min(step).min(bytes.len() - taken);
        buf[..count].copy_from_slice(&bytes[taken..taken + count]);
        taken += count;
        match responder.received(count, &scene.policy, scene.address, out) {
            Progress::More => {}
            progress => return (progress, taken),
        }
    }
    (Progress::More, taken)
}

/// What a server has said is a verdict, or a verdict and a message.
fn check_said(progress: &Progress, out: &[u8]) {
    let is_known = |len: usize| [0, VERDICT_BYTES, VERDICT_BYTES + MESSAGE_BYTES].contains(&len);
    assert!(is_known(out.len()), "{} bytes were said", out.len());
    let verdict = out.get(9).copied();
    match progress {
        Progress::Refused => assert!(out.len() == VERDICT_BYTES && verdict != Some(0)),
        Progress::Admitted(_) => assert_eq!(verdict, Some(0)),
        Progress::More | Progress::Foreign => assert!(matches!(verdict, None | Some(0))),
    }
}

/// Somebody who knows no key is let in only where none is needed.
fn raw(scene: &Scene, bytes: &[u8], step: usize) {
    let (mut responder, mut out) = (Responder::default(), Vec::new());
    let (progress, taken) = give(&mut responder, scene, bytes, step, &mut out);
    check_said(&progress, &out);
    assert!(taken <= PREAMBLE_BYTES + MESSAGE_BYTES + PROOF_BYTES);
    if let Progress::Admitted(admitted) = progress {
        assert!(scene.admits_without_key() && taken == PREAMBLE_BYTES);
        assert!(admitted.key.is_none() && admitted.records.is_none());
    }
}

/// Changes of what travels in one direction: at a place, by what.
struct Edits<'e> {
    edits: &'e [[u8; 3]],
    to_server: bool,
    /// Where in its direction the next bytes are.
    at: usize,
}

impl Edits<'_> {
    /// Changes bytes on their way. True if they are not what was sent.
    fn apply(&mut self, bytes: &mut [u8], passed_over: std::ops::Range<usize>) -> bool {
        let sent = bytes.to_vec();
        for &[way, place, by] in self.edits {
            let place = usize::from(place) + (usize::from(way >> 1 & 1) << 8);
            if (way & 1 == 1) == self.to_server
                && let Some(byte) = place.checked_sub(self.at).and_then(|index| bytes.get_mut(index))
            {
                *byte ^= by;
            }
        }
        let is_other = |index: usize| !passed_over.contains(&(self.at + index)) && bytes[index] != sent[index];
        let is_changed = (0..bytes.len()).any(is_other);
        self.at += bytes.len();
        is_changed
    }
}

/// Two ends of a connection.
fn connection() -> (TcpStream, TcpStream) {
    static LISTENER: OnceLock<TcpListener> = OnceLock::new();
    let listener = LISTENER.get_or_init(|| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let far = listener.accept().expect("the other end").0;
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream.set_nodelay(true).expect("without delay");
    }
    (near, far)
}

/// What became of it at the server.
struct Met {
    progress: Progress,
    /// Of what the client sent, something was changed; and of what the server sent.
    is_changed: bool,
    reply_is_changed: bool,
}

/// The server, and who changes what is sent.
fn serve(mut stream: TcpStream, scene: &Scene, edits: &mut [Edits<'_>; 2], step: usize) -> Met {
    let (mut responder, mut reported) = (Responder::default(), 0);
    let mut met = Met {
        progress: Progress::More,
        is_changed: false,
        reply_is_changed: false,
    };
    let first = PREAMBLE_BYTES + scene.credentials.key.as_ref().map_or(0, |_| MESSAGE_BYTES);
    let mut out = Vec::new();
    for len in [first, PROOF_BYTES] {
        let mut bytes = vec![0; len];
        if stream.read_exact(&mut bytes).is_err() {
            break;
        }
        met.is_changed |= edits[0].apply(&mut bytes, 0..0);
        let (progress, _) = give(&mut responder, scene, &bytes, step, &mut out);
        check_said(&progress, &out);
        let mut reply = out[reported..].to_vec();
        reported = out.len();
        met.reply_is_changed |= edits[1].apply(&mut reply, RESERVED);
        let is_sent = stream.write_all(&reply).is_ok();
        met.progress = progress;
        // Without a reply the client has nothing more to say.
        if !is_sent || reply.is_empty() || !matches!(met.progress, Progress::More) {
            break;
        }
    }
    // If more was expected of either end, it is not to come.
    let _ = stream.shutdown(Shutdown::Both);
    met
}

/// The content of records that were changed on their way is what was sent, up to the change, or nothing.
fn exchange(mut sealer: Sealer, mut opener: Opener, content: &[u8], edits: &mut Edits<'_>) {
    let (first, second) = content.split_at(content.len() / 2);
    let mut sealed = Vec::new();
    for part in [first, second].into_iter().filter(|part| !part.is_empty()) {
        sealer.seal(part, &mut sealed).expect("sealed");
    }
    let is_changed = edits.apply(&mut sealed, 0..0);
    let mut buf = vec![0; content.len()];
    match opener.open(&sealed, &mut buf) {
        Ok((_, opened)) => {
            assert!(content.starts_with(&buf[..opened]), "what was opened was not sent");
            assert!(is_changed || opened == content.len());
        }
        Err(_) => assert!(is_changed, "records that nobody changed"),
    }
}

/// A real client and a real server, with somebody in between.
fn between(scene: &Scene, edits: &[[u8; 3]], step: usize, content: &[u8]) {
    let mut ways = [true, false].map(|to_server| Edits {
        edits,
        to_server,
        at: 0,
    });
    let (near, far) = connection();
    let (introduced, met) = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let introduced = introduce(&near, &scene.credentials, Instant::now() + TIMEOUT);
            // The server does not wait for more.
            let _ = near.shutdown(Shutdown::Write);
            introduced
        });
        let met = serve(far, scene, &mut ways, step);
        (client.join().expect("the client survives"), met)
    });
    let has_key = scene.credentials.key.is_some();
    match (&met.progress, &introduced) {
        (Progress::Admitted(admitted), _) if admitted.key.is_some() => {
            assert!(has_key && scene.knows_key && !met.is_changed);
            let Admitted { key, records } = &**admitted;
            assert!(*key == scene.credentials.key.as_ref().map(Key::id));
            assert_eq!(records.is_some(), scene.client_insists || scene.server_insists);
        }
        (Progress::Admitted(admitted), _) => {
            assert!(scene.admits_without_key() && admitted.records.is_none());
        }
        _ => {}
    }
    if has_key && introduced.is_ok() {
        // Its proof may have been changed after that.
        assert!(
            scene.knows_key && !met.reply_is_changed,
            "a server without the key was believed"
        );
    }
    if !met.is_changed && !met.reply_is_changed {
        let is_welcome = if has_key {
            scene.knows_key
        } else {
            scene.admits_without_key()
        };
        assert_eq!(introduced.is_ok(), is_welcome, "{introduced:?}");
        assert_eq!(matches!(met.progress, Progress::Admitted(_)), is_welcome);
    }
    if let (Progress::Admitted(admitted), Ok(Some((sealer, _)))) = (met.progress, introduced)
        && let Some((_, opener)) = admitted.records
    {
        exchange(sealer, opener, content, &mut ways[0]);
    }
}

/// Who the client is, what the server demands, how many bytes come at once, how many changes there are, changes of
/// three bytes each (direction, place, by what); then what is sent.
pub(crate) fn handshake(data: &[u8]) {
    let Some((&[who, demands, step, changes], rest)) = data.split_first_chunk::<4>() else {
        return;
    };
    let (scene, step) = (Scene::of(who, demands), usize::from(step).max(1));
    if scene.is_raw {
        return raw(&scene, rest, step);
    }
    let (edits, _) = rest.as_chunks::<3>();
    let edits = &edits[..edits.len().min(usize::from(changes))];
    between(&scene, edits, step, &rest[edits.len() * 3..]);
}
