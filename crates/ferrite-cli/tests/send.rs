//! Snapshots sent and received: whole and as differences, cut, damaged, hostile, and to servers. Protects backups.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, UNIX_EPOCH};

use ferrite::{FallocateMode, FileTimes, Fs, NewNode, OpenOptions, XattrMode};
use ferrite_measure::Rng;
use tempfile::TempDir;

use crate::common::{TestPool, fails, ferrite, has_fuse, mkfs, ok, sh, text};

/// A sender's pool and a receiver's, which are not mounted.
struct Pools {
    folder: TempDir,
}

impl Pools {
    fn new() -> Pools {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        for name in ["from", "to"] {
            mkfs(&folder.path().join(name), &["--size", "64M", "--pages-per-block", "4"]);
        }
        let pools = Pools { folder };
        pools.open("to").create_dir("/copy").unwrap();
        pools.open("from").create_dir("/tree").unwrap();
        pools
    }

    fn open(&self, name: &str) -> Fs {
        Fs::open(self.folder.path().join(name)).unwrap()
    }

    fn tree(&self) -> String {
        format!("pm:{}:/tree", self.folder.path().join("from").display())
    }

    fn copy(&self) -> String {
        format!("pm:{}:/copy", self.folder.path().join("to").display())
    }

    fn snapshot(&self, name: &str) {
        ok(ferrite().args(["snapshot", "create", &self.tree(), name]));
    }

    fn send(&self, arguments: &[&str]) -> Vec<u8> {
        let output = ferrite().arg("send").args(arguments).output().unwrap();
        assert!(output.status.success(), "send {arguments:?}: {}", text(&output));
        output.stdout
    }

    /// Receives a stream; on success there is no output.
    fn receive(&self, stream: &[u8]) -> Result<(), String> {
        receive(&self.copy(), stream)
    }

    /// The snapshot is the same on both sides.
    fn check(&self, name: &str) {
        let sent = state_of(&self.open("from"), &format!("/tree/.snapshots/{name}"));
        let got = state_of(&self.open("to"), &format!("/copy/.snapshots/{name}"));
        assert_same(&sent, &got);
    }

    fn fsck(&self) {
        ok(ferrite().arg("fsck").arg(self.folder.path().join("to")));
    }
}

fn receive(at: &str, stream: &[u8]) -> Result<(), String> {
    let mut child = ferrite()
        .args(["receive", at])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end before it has read all.
    let _ = child.stdin.take().unwrap().write_all(stream);
    let output = child.wait_with_output().unwrap();
    match output.status.code() {
        Some(0) => {
            assert_eq!(text(&output), "", "quiet when all is well");
            Ok(())
        }
        Some(1) => Err(text(&output)),
        code => panic!("exit code {code:?}: {}", text(&output)),
    }
}

/// All that there is to know about an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    mode: u32,
    owner: (u32, u32),
    rdev: u64,
    modified: Duration,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    content: Vec<u8>,
    blocks: u64,
    /// The first path of the same inode.
    first: PathBuf,
}

impl State {
    fn with_blocks(&self, blocks: u64) -> State {
        State { blocks, ..self.clone() }
    }
}

fn assert_same(sent: &BTreeMap<PathBuf, State>, got: &BTreeMap<PathBuf, State>) {
    for (path, state) in sent {
        let other = got.get(path);
        // Holes stay holes. Little content may need no block.
        let is_same = |other: &State| other.blocks <= state.blocks && *state == other.with_blocks(state.blocks);
        assert!(
            other.is_some_and(is_same),
            "{}:\nsent {state:?}\ngot {other:?}",
            path.display()
        );
    }
    let more: Vec<_> = got.keys().filter(|path| !sent.contains_key(*path)).collect();
    assert!(more.is_empty(), "{more:?} are too much");
}

/// Everything below a directory, and it itself.
fn state_of(fs: &Fs, top: &str) -> BTreeMap<PathBuf, State> {
    let (mut states, mut firsts) = (BTreeMap::new(), BTreeMap::new());
    let mut dirs = vec![PathBuf::new()];
    let mut entries = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let mut names: Vec<_> = fs
            .read_dir(Path::new(top).join(&dir))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        for name in names {
            let path = dir.join(name);
            if fs.symlink_metadata(Path::new(top).join(&path)).unwrap().is_dir() {
                dirs.push(path.clone());
            }
            entries.push(path);
        }
    }
    entries.sort();
    for path in entries {
        let at = Path::new(top).join(&path);
        let found = fs.symlink_metadata(&at).unwrap();
        let first = firsts.entry(found.ino()).or_insert_with(|| path.clone()).clone();
        let xattrs = fs.list_xattrs_nofollow(&at).unwrap().into_iter();
        let xattrs = xattrs
            .filter(|name| !name.to_str().unwrap().starts_with("user.ferrite."))
            .map(|name| {
                let value = fs.get_xattr_nofollow(&at, &name).unwrap();
                (name.into_encoded_bytes(), value)
            })
            .collect();
        let content = match () {
            () if found.is_file() => fs.read(&at).unwrap(),
            () if found.is_symlink() => fs.read_link(&at).unwrap().into_os_string().into_encoded_bytes(),
            () => Vec::new(),
        };
        let state = State {
            mode: found.mode(),
            owner: (found.uid(), found.gid()),
            rdev: found.rdev(),
            modified: found.modified().unwrap().duration_since(UNIX_EPOCH).unwrap(),
            xattrs,
            content,
            blocks: if found.is_file() { found.blocks() } else { 0 },
            first,
        };
        states.insert(path, state);
    }
    states
}

fn seed() -> u64 {
    let seed = std::env::var("FERRITE_SEED").map_or_else(|_| std::process::id().into(), |seed| seed.parse().unwrap());
    eprintln!("FERRITE_SEED={seed}");
    seed
}

/// Changes a tree: a few names, so that they meet.
fn change(fs: &Fs, rng: &mut Rng) {
    let name = |rng: &mut Rng| {
        let dir = ["", "a/", "a/b/", "c/"][rng.below(4) as usize];
        format!("/tree/{dir}{}", ["f", "g", "h", "a", "b", "c"][rng.below(6) as usize])
    };
    let (path, other) = (name(rng), name(rng));
    let size = [0, 1, 5000, 40_000, 3 << 20][rng.below(5) as usize];
    let bytes: Vec<u8> = (0..rng.below(9000)).map(|_| rng.below(256) as u8).collect();
    // Most of these fail now and then, which is no matter: the sender says what there is.
    let _ = match rng.below(16) {
        0 | 1 => fs.create_dir(&path),
        2 | 3 => fs.write(&path, &bytes),
        4 => fs.rename(&path, &other),
        5 => fs.hard_link(&path, &other),
        6 => fs.symlink(&other, &path),
        7 => fs.remove_file(&path),
        8 => fs.remove_dir_all(&path),
        9 => fs.truncate(&path, size),
        10 => fs.set_mode(&path, 0o400 + rng.below(0o400) as u32),
        11 => fs.set_xattr(
            &path,
            format!("user.{}", rng.below(3)),
            &bytes[..bytes.len().min(500)],
            XattrMode::Any,
        ),
        12 => fs.remove_xattr(&path, format!("user.{}", rng.below(3))),
        13 => fs.mknod(
            &path,
            &NewNode {
                kind: ferrite::FileKind::Fifo,
                mode: 0o644,
                rdev: 0,
            },
        ),
        14 => fs.set_times(
            &path,
            FileTimes::new().set_modified(UNIX_EPOCH + Duration::new(rng.below(1000), 7)),
        ),
        _ => OpenOptions::new().write(true).open(fs, &path).and_then(|file| {
            let offset = rng.below(3 << 20);
            if rng.below(2) == 0 {
                return file.allocate(FallocateMode::PunchHole, offset, 1 + rng.below(100_000));
            }
            file.write_all_at(&bytes, offset).unwrap();
            Ok(())
        }),
    };
}

/// Whatever happens to a tree between two snapshots, the difference makes the one of the other.
#[test]
fn differences_lead_from_each_snapshot_to_the_next() {
    let seed = seed();
    let rounds = if crate::common::soak() { 100 } else { 8 };
    let mut rng = Rng::new(seed);
    let pools = Pools::new();
    let mut last = None::<String>;
    for round in 0..rounds {
        let fs = pools.open("from");
        for _ in 0..rng.below(60) {
            change(&fs, &mut rng);
        }
        drop(fs);
        let name = format!("s{round}");
        pools.snapshot(&name);
        let stream = match &last {
            Some(last) => pools.send(&["--from", last, &pools.tree(), &name]),
            None => pools.send(&[&pools.tree(), &name]),
        };
        assert_eq!(pools.receive(&stream), Ok(()), "round {round}, seed {seed}");
        pools.check(&name);
        let fs = pools.open("to");
        assert_same(
            &state_of(&fs, &format!("/copy/.snapshots/{name}")),
            &state_of(&fs, "/copy"),
        );
        last = Some(name);
    }
    pools.fsck();
}

/// The sender's tree in two states, and the streams of both.
fn two_streams(pools: &Pools) -> (Vec<u8>, Vec<u8>) {
    let fs = pools.open("from");
    fs.create_dir("/tree/dir").unwrap();
    for number in 0..20 {
        fs.write(format!("/tree/dir/f{number}"), format!("content {number}"))
            .unwrap();
    }
    fs.write("/tree/large", vec![7; 3 << 20]).unwrap();
    fs.hard_link("/tree/large", "/tree/dir/link").unwrap();
    drop(fs);
    pools.snapshot("one");
    let fs = pools.open("from");
    let large = OpenOptions::new().write(true).open(&fs, "/tree/large").unwrap();
    large.write_all_at(b"changed", 2 << 20).unwrap();
    drop(large);
    fs.rename("/tree/dir/f3", "/tree/f3").unwrap();
    fs.remove_file("/tree/dir/f4").unwrap();
    drop(fs);
    pools.snapshot("two");
    let tree = pools.tree();
    (
        pools.send(&[&tree, "one"]),
        pools.send(&["--from", "one", &tree, "two"]),
    )
}

/// The token that an error offers.
fn token_in(said: &str) -> Option<&str> {
    let token = said.split_once("--resume ")?.1.split_whitespace().next()?;
    Some(token.trim_end_matches('`'))
}

#[test]
fn a_difference_is_small() {
    let pools = Pools::new();
    let (whole, difference) = two_streams(&pools);
    assert!(
        whole.len() > 3 << 20 && difference.len() < 10_000,
        "{} bytes",
        difference.len()
    );
    // A change that leaves size and time as they were is found only by reading.
    let fs = pools.open("from");
    let modified = fs.metadata("/tree/dir/f5").unwrap().modified().unwrap();
    fs.write("/tree/dir/f5", "CONTENT 5").unwrap();
    fs.set_times("/tree/dir/f5", FileTimes::new().set_modified(modified))
        .unwrap();
    drop(fs);
    pools.snapshot("three");
    let tree = pools.tree();
    let read = pools.send(&["--compare-content", "--from", "two", &tree, "three"]);
    for stream in [&whole, &difference, &read] {
        assert_eq!(pools.receive(stream), Ok(()));
    }
    pools.check("three");
    let quick = pools.send(&["--from", "two", &tree, "three"]);
    assert!(quick.len() < read.len());
}

/// A stream that is cut anywhere continues from there, and the snapshot is there only when it is whole.
#[test]
fn streams_that_were_cut_go_on() {
    let pools = Pools::new();
    let (whole, difference) = two_streams(&pools);
    let tree = pools.tree();
    for (stream, arguments) in [
        (whole, vec![&*tree, "one"]),
        (difference, vec!["--from", "one", &*tree, "two"]),
    ] {
        let name = *arguments.last().unwrap();
        let cuts = [
            0,
            1,
            11,
            stream.len() / 3,
            stream.len() / 2,
            stream.len() - 13,
            stream.len() - 1,
        ];
        let mut rest = stream;
        for cut in cuts {
            let cut = cut.min(rest.len() - 1);
            let said = pools.receive(&rest[..cut]).unwrap_err();
            assert!(said.contains("too early") || said.contains("empty"), "{said}");
            assert!(pools.open("to").metadata(format!("/copy/.snapshots/{name}")).is_err());
            if let Some(token) = token_in(&said) {
                let printed = ok(ferrite().args(["receive", "--token", &pools.copy()]));
                assert_eq!(printed.trim(), token);
                let mut resumed = vec!["--resume", token];
                resumed.extend(&arguments);
                rest = pools.send(&resumed);
            }
        }
        assert_eq!(pools.receive(&rest), Ok(()));
        pools.check(name);
        let none = fails(ferrite().args(["receive", "--token", &pools.copy()]), 1);
        assert!(none.contains("no stream that was cut"), "{none}");
    }
    pools.fsck();
}

/// Each byte counts: a stream with a wrong one is refused at that record.
#[test]
fn damaged_streams_are_refused() {
    let pools = Pools::new();
    let (whole, _) = two_streams(&pools);
    let mut rng = Rng::new(seed());
    for _ in 0..12 {
        let mut damaged = whole.clone();
        let at = rng.below(whole.len() as u64) as usize;
        damaged[at] ^= 1 << rng.below(8);
        let said = pools.receive(&damaged).unwrap_err();
        assert!(
            said.contains("damaged") || said.contains("no stream"),
            "byte {at}: {said}"
        );
        assert!(pools.open("to").metadata("/copy/.snapshots/one").is_err());
        assert_eq!(
            pools.open("to").read_dir("/").unwrap().count(),
            1,
            "something is beside the copy"
        );
    }
    for text in [&b""[..], b"text", &[0; 5000], &[0xff; 5000]] {
        assert!(pools.receive(text).unwrap_err().contains("no stream of `ferrite send`"));
    }
    // The same from its beginning goes through.
    assert_eq!(pools.receive(&whole), Ok(()));
    pools.check("one");
}

/// A directory that is not as the stream takes it to be is left as it is.
#[test]
fn directories_that_do_not_fit_are_refused() {
    let pools = Pools::new();
    let (whole, difference) = two_streams(&pools);
    let refused = |stream: &[u8], said: &str| {
        let failed = pools.receive(stream).unwrap_err();
        assert!(failed.contains(said), "{failed}");
    };
    refused(&difference, "no snapshot one");
    pools.open("to").write("/copy/file", "of somebody").unwrap();
    refused(&whole, "not empty");
    pools.open("to").remove_file("/copy/file").unwrap();
    assert_eq!(pools.receive(&whole), Ok(()));
    refused(&whole, "has a snapshot one already");
    pools.open("to").write("/copy/dir/f1", "changed since").unwrap();
    refused(&difference, "dir/f1 has changed");
    ok(ferrite().args(["snapshot", "restore", "--discard", &pools.copy(), "one"]));
    // Half of one, and then another.
    let said = pools.receive(&difference[..difference.len() / 2]).unwrap_err();
    let token = token_in(&said).unwrap().to_owned();
    pools.snapshot("three");
    let tree = pools.tree();
    let other = pools.send(&["--from", "one", &tree, "three"]);
    refused(&other, "has a part of the snapshot two");
    let said = fails(ferrite().args(["send", "--resume", &token, &tree, "three"]), 1);
    assert!(said.contains("another snapshot"), "{said}");
    ok(ferrite().args(["snapshot", "restore", "--discard", &pools.copy(), "one"]));
    assert_eq!(pools.receive(&other), Ok(()));
    pools.check("three");
    // A snapshot of that name that is another one.
    ok(ferrite().args(["snapshot", "delete", &pools.copy(), "one"]));
    ok(ferrite().args(["snapshot", "create", &pools.copy(), "one"]));
    refused(&difference, "not the one that the sender has");
}

/// Several names of one link lead to the new one; a name that no receiver could make is left out, and the rest is sent.
#[test]
fn linked_links_and_reserved_names() {
    let pools = Pools::new();
    let link = |target: &str| {
        let fs = pools.open("from");
        for name in ["/tree/one", "/tree/two"] {
            let _ = fs.remove_file(name);
        }
        fs.symlink(target, "/tree/one").unwrap();
        fs.hard_link("/tree/one", "/tree/two").unwrap();
    };
    let tree = pools.tree();
    link("old");
    pools.snapshot("one");
    assert_eq!(pools.receive(&pools.send(&[&tree, "one"])), Ok(()));
    link("new");
    pools.snapshot("two");
    assert_eq!(pools.receive(&pools.send(&["--from", "one", &tree, "two"])), Ok(()));
    pools.check("two");
    let fs = pools.open("from");
    fs.create_dir("/tree/dir").unwrap();
    fs.write("/tree/dir/.snapshots", "a file").unwrap();
    fs.write("/tree/dir/file", "text").unwrap();
    drop(fs);
    pools.snapshot("three");
    let sent = ferrite()
        .args(["send", "--from", "two", &tree, "three"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&sent.stderr);
    assert!(
        sent.status.success() && said.contains("dir/.snapshots: is left out"),
        "{said}"
    );
    assert_eq!(pools.receive(&sent.stdout), Ok(()));
    let got = pools.open("to");
    assert_eq!(got.read("/copy/.snapshots/three/dir/file").unwrap(), b"text");
    assert!(got.symlink_metadata("/copy/dir/.snapshots").is_err());
}

/// A clone of what was received is not taken for it, whatever attributes it has.
#[test]
fn clones_are_no_receivers() {
    let pools = Pools::new();
    let (whole, difference) = two_streams(&pools);
    assert_eq!(pools.receive(&whole), Ok(()));
    let at = |path: &str| format!("pm:{}:{path}", pools.folder.path().join("to").display());
    ok(ferrite().args(["clone", &at("/copy/.snapshots/one"), &at("/clone")]));
    pools.open("to").write("/clone/extra", "of somebody").unwrap();
    let refused = |stream: &[u8], said: &str| {
        let failed = receive(&at("/clone"), stream).unwrap_err();
        assert!(failed.contains(said), "{failed}");
    };
    refused(&whole, "not empty");
    refused(&difference, "no snapshot one");
    ok(ferrite().args(["snapshot", "create", &at("/clone"), "one"]));
    refused(&difference, "not the one that the sender has");
}

/// Records as docs/send-stream.md describes them, written by hand.
struct Stream(Vec<u8>, u64);

impl Stream {
    fn new() -> Stream {
        let mut begin = b"FERRSEND".to_vec();
        begin.extend(1u32.to_le_bytes());
        begin.push(0);
        begin.extend(bytes(b"1f-2a"));
        begin.extend(bytes(b"s"));
        begin.extend(bytes(b"3-4"));
        begin.extend(0u64.to_le_bytes());
        begin.extend([0, 0]);
        let mut stream = Stream(Vec::new(), u64::MAX);
        stream.put(1, &begin);
        stream.1 = 0;
        stream
    }

    fn put(&mut self, kind: u32, payload: &[u8]) {
        let mut head = kind.to_le_bytes().to_vec();
        head.extend((payload.len() as u32).to_le_bytes());
        let checked = [&self.1.to_le_bytes()[..], &head, payload].concat();
        head.extend(crc32c::crc32c(&checked).to_le_bytes());
        self.0.extend(head);
        self.0.extend(payload);
        self.1 = self.1.wrapping_add(1);
    }

    /// With one record, and its end.
    fn of(records: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let mut stream = Stream::new();
        for (kind, payload) in records {
            stream.put(*kind, payload);
        }
        stream.put(11, &stream.1.to_le_bytes());
        stream.0
    }
}

/// Bytes after their number.
fn bytes(text: &[u8]) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend(text);
    bytes
}

fn file(path: &[u8]) -> (u32, Vec<u8>) {
    (4, [bytes(path), 5u64.to_le_bytes().to_vec(), vec![1]].concat())
}

fn symlink(path: &[u8], target: &[u8]) -> (u32, Vec<u8>) {
    (7, [bytes(path), bytes(target)].concat())
}

/// Streams of a sender that means harm change nothing but the directory, and what they do there is undone by removing
/// it.
#[test]
fn hostile_streams_reach_nothing_else() {
    let pools = Pools::new();
    pools.open("to").write("/secret", "secret").unwrap();
    pools.open("to").create_dir("/dir").unwrap();
    let long = vec![b'x'; 70_000];
    let hostile: Vec<Vec<(u32, Vec<u8>)>> = vec![
        vec![file(b"../secret")],
        vec![file(b"/secret")],
        vec![file(b"..")],
        vec![file(b"")],
        vec![file(b".")],
        vec![file(b"a/../../secret")],
        vec![file(b"a\0b")],
        vec![file(&long)],
        vec![(3, bytes(b".snapshots"))],
        vec![(3, bytes(b".snapshots/x"))],
        vec![(2, bytes(b".."))],
        vec![(2, bytes(b"../dir"))],
        vec![(2, bytes(b""))],
        vec![symlink(b"link", b"../dir"), file(b"link/file")],
        vec![symlink(b"link", b".."), (2, bytes(b"link/secret"))],
        vec![
            symlink(b"link", b"../secret"),
            (4, [bytes(b"link"), 0u64.to_le_bytes().to_vec(), vec![0]].concat()),
        ],
        vec![(9, [bytes(b"linked"), bytes(b"../secret")].concat())],
        vec![(5, [0u64.to_le_bytes().to_vec(), bytes(b"data")].concat())],
        vec![
            file(b"f"),
            (5, [u64::MAX.to_le_bytes().to_vec(), bytes(b"data")].concat()),
        ],
        vec![file(b"f"), (6, [1u64.to_le_bytes(), u64::MAX.to_le_bytes()].concat())],
        vec![(4, [bytes(b"f"), u64::MAX.to_le_bytes().to_vec(), vec![1]].concat())],
        vec![(8, [bytes(b"n"), vec![0xff; 12]].concat())],
        vec![(11, 7u64.to_le_bytes().to_vec())],
        vec![(77, Vec::new())],
        vec![(1, Vec::new())],
        vec![(3, vec![0xff; 4])],
    ];
    for records in hostile {
        let said = pools.receive(&Stream::of(&records)).expect_err(&format!("{records:?}"));
        assert!(said.starts_with("ferrite: pm:"), "{said}");
        let fs = pools.open("to");
        assert_eq!(fs.read("/secret").unwrap(), b"secret", "{records:?}");
        assert_eq!(fs.read_dir("/dir").unwrap().count(), 0, "{records:?}");
        assert_eq!(fs.metadata("/secret").unwrap().nlink(), 1);
        assert!(fs.metadata("/copy/.snapshots/s").is_err(), "{records:?}");
        let _ = fs.remove_dir("/copy/.snapshots");
        fs.remove_dir_all("/copy").unwrap();
        fs.create_dir("/copy").unwrap();
    }
    assert_eq!(pools.receive(&Stream::of(&[file(b"f")])), Ok(()));
    assert_eq!(pools.open("to").read("/copy/.snapshots/s/f").unwrap(), [0; 5]);
    pools.fsck();
}

/// As an administrator uses it: from a mount to a mount and to a server, with programs that read both.
#[test]
fn mounts_and_servers_receive() {
    if !has_fuse() {
        return;
    }
    let (from, to) = (TestPool::new("128M", &[]), TestPool::served("128M"));
    let program = ferrite().get_program().to_str().unwrap().to_owned();
    let receiver = to.dir.display();
    sh(
        &from.dir,
        &format!(
            "PATH={}:$PATH; mkdir {receiver}/backup
             mkdir -p t/a; for n in $(seq 50); do echo $n > t/a/f$n; done; ln t/a/f1 t/link; mkfifo t/pipe
             head -c 2M /dev/urandom > t/large; truncate -s 64M t/large; setfattr -n user.note -v text t/a
             ferrite snapshot create t one; ferrite send t one | ferrite receive {receiver}/backup
             diff -r --no-dereference -x pipe t {receiver}/backup; test -p {receiver}/backup/pipe
             test $(du -m {receiver}/backup/large | cut -f1) -lt 10
             test {receiver}/backup/link -ef {receiver}/backup/a/f1
             echo x > t/a/f1; rm t/a/f2; dd if=/dev/urandom of=t/large bs=4k count=1 seek=100 conv=notrunc status=none
             ferrite snapshot create t two; ferrite send --from one t two > two.stream
             test $(stat -c %s two.stream) -lt 20000; ferrite receive {receiver}/backup < two.stream
             diff -r -x pipe t {receiver}/backup/.snapshots/two; test $(ls {receiver}/backup/.snapshots | wc -l) = 2
             test $(getfattr --only-values -n user.note {receiver}/backup/a) = text
             # A third directory gets a copy of the copy, and then differences from the original.
             mkdir third; ferrite send {receiver}/backup two | ferrite receive third
             echo y > t/a/f3; ferrite snapshot create t three
             ferrite send --from two t three | ferrite receive third; diff -r -x pipe t third
             echo wrong > third/a/f3; ferrite snapshot restore --discard third three; diff -r -x pipe t third",
            Path::new(&program).parent().unwrap().display(),
        ),
    );
    let said = sh(
        &from.dir,
        &format!("({program} send t one || test $? = 1) | head -c 100 | wc -c"),
    );
    assert_eq!(said.trim(), "100");
    from.finish();
    to.finish();
}
