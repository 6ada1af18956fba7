//! `ferrite cp`, `ls`, `cat`, `stat`, `rm`, `mkdir`, `mv`: files in volumes that are not mounted, on a server and in a
//! pool of this machine.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::common;
use crate::common::server::Server;
use crate::common::{fails, ferrite, mkfs, ok, sh};
use tempfile::TempDir;

/// Where the files of a test are.
enum Volume {
    Server(Server),
    Pool(TempDir, PathBuf),
}

impl Volume {
    /// One of each kind.
    fn all(size: &str) -> [Volume; 2] {
        let dir = tempfile::Builder::new()
            .prefix("ferrite-test-")
            .tempdir_in("/dev/shm")
            .unwrap();
        let pool = dir.path().join("pool");
        mkfs(&pool, &["--size", size]);
        [
            Volume::Server(Server::new(size, &["--no-root-squash"])),
            Volume::Pool(dir, pool),
        ]
    }

    fn at(&self, path: &str) -> String {
        match self {
            Volume::Server(server) => server.at(path),
            Volume::Pool(_, pool) => format!("pm:{}:{path}", pool.display()),
        }
    }

    fn scratch(&self) -> PathBuf {
        match self {
            Volume::Server(server) => server.scratch(),
            Volume::Pool(dir, _) => {
                let path = dir.path().join("scratch");
                fs::create_dir_all(&path).unwrap();
                path
            }
        }
    }
}

fn run(words: &[&str]) -> String {
    ok(ferrite().args(words))
}

fn refused(words: &[&str]) -> String {
    fails(ferrite().args(words), 1)
}

/// The names that `ls` prints.
fn names(volume: &Volume, path: &str) -> Vec<String> {
    run(&["ls", "-a", &volume.at(path)])
        .lines()
        .map(str::to_owned)
        .collect()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_tree_goes_there_and_back() {
    for volume in Volume::all("256M") {
        let (scratch, tree) = (volume.scratch(), Path::new("..").canonicalize().unwrap());
        run(&["cp", "-r", path(&tree), &volume.at("/tree")]);
        let back = scratch.join("back");
        run(&["cp", "-r", "-p", &volume.at("/tree"), path(&back)]);
        sh(&scratch, &format!("diff -r {} back", tree.display()));
        // Within the volume, into a directory that is there, under its own name.
        run(&["mkdir", &volume.at("/other")]);
        run(&["cp", "-r", &volume.at("/tree/ferrite-cli"), &volume.at("/other")]);
        run(&["cp", "-r", &volume.at("/other/ferrite-cli"), path(&scratch.join("cli"))]);
        sh(&scratch, &format!("diff -r {} cli", tree.join("ferrite-cli").display()));
        // Again, over existing files; and the entries of a root, into a directory.
        run(&["cp", "-r", &volume.at("/"), path(&scratch.join("all"))]);
        run(&["cp", "-r", &volume.at("/"), path(&scratch.join("all"))]);
        sh(&scratch, &format!("diff -r {} all/tree", tree.display()));
        run(&["rm", "-r", &volume.at("/tree"), &volume.at("/other")]);
        assert!(names(&volume, "/").is_empty());
    }
}

#[test]
fn everything_that_a_file_has_is_kept_on_request() {
    for volume in Volume::all("64M") {
        let scratch = volume.scratch();
        sh(
            &scratch,
            "mkdir -m 750 d; echo text > d/file; chmod 4711 d/file; ln -s file d/link; ln -s nowhere d/dangling
             mkfifo -m 640 d/fifo; touch -d '2001-02-03 04:05:06.789' d/file; touch -hd 2002-01-01 d/link
             truncate -s 100M d/sparse; touch -d 1969-12-31T23:59:58.5Z d/old; chmod 0 d/old; touch -d 1999-01-01 d
             mkdir d/sticky; chmod 1777 d/sticky; touch -d 2003-01-01 d/sticky",
        );
        fs::File::options()
            .write(true)
            .open(scratch.join("d/sparse"))
            .unwrap()
            .write_all_at(b"island", 50 << 20)
            .unwrap();
        let has_xattrs = rustix::fs::setxattr(
            scratch.join("d/old"),
            "user.note",
            b"\0value\xff",
            rustix::fs::XattrFlags::empty(),
        );
        if let Err(error) = has_xattrs {
            eprintln!(
                "skipped: extended attributes of files in {}: {error}",
                scratch.display()
            );
        }
        run(&["cp", "-rp", path(&scratch.join("d")), &volume.at("/d")]);
        run(&[
            "cp",
            "-rp",
            "--privileges",
            &volume.at("/d"),
            path(&scratch.join("back")),
        ]);
        let list = |dir: &str| {
            sh(
                &scratch.join(dir),
                "find . -printf '%p %M %U %G %y %l %T@\n' | sort; md5sum file old sparse",
            )
        };
        assert_eq!(list("d"), list("back"));
        let sparse = fs::metadata(scratch.join("back/sparse")).unwrap();
        assert!(
            sparse.len() == 100 << 20 && sparse.blocks() * 512 < 5 << 20,
            "{}",
            sparse.blocks()
        );
        let json = |name: &str| -> serde_json::Value {
            serde_json::from_str(&run(&["stat", "--json", &volume.at(name)])).unwrap()
        };
        assert!(json("/d/sparse")["allocated_bytes"].as_u64().unwrap() < 5 << 20);
        assert_eq!(
            json("/d/file")["modified"].as_str().unwrap().len(),
            "2001-02-03T04:05:06.789Z".len()
        );
        assert_eq!(json("/d/link")["target"], "file");
        if has_xattrs.is_ok() {
            let mut value = [0; 100];
            let len = rustix::fs::getxattr(scratch.join("back/old"), "user.note", &mut value[..]).unwrap();
            assert_eq!(&value[..len], b"\0value\xff");
        }
        // Without the option: the umask's permissions, and now.
        let before = SystemTime::now() - Duration::from_secs(1);
        let mut cp = ferrite();
        cp.args(["cp", path(&scratch.join("d/file")), &volume.at("/plain")]);
        sh(&scratch, &format!("umask 027; {}", words(&cp)));
        let json = json("/plain");
        assert_eq!(json["mode"], "0710", "{json}");
        run(&["cp", &volume.at("/plain"), path(&scratch.join("plain"))]);
        assert!(fs::metadata(scratch.join("plain")).unwrap().modified().unwrap() >= before);
    }
}

/// A command as a shell takes it.
fn words(command: &Command) -> String {
    let quoted = |word: &OsStr| format!("'{}'", word.to_str().unwrap());
    let all: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(quoted)
        .collect();
    all.join(" ")
}

#[test]
fn files_are_replaced_whole_or_not_at_all() {
    for volume in Volume::all("16M") {
        let scratch = volume.scratch();
        let (old, new) = (scratch.join("old"), scratch.join("new"));
        fs::write(&old, "old content").unwrap();
        fs::write(&new, "new").unwrap();
        let there = volume.at("/file");
        run(&["cp", path(&old), &there]);
        run(&["cp", "-n", path(&new), &there]);
        assert_eq!(run(&["cat", &there]), "old content");
        run(&["cp", path(&new), &there]);
        assert_eq!(run(&["cat", &there]), "new");
        // A full device, in either direction.
        let large = scratch.join("large");
        fs::File::create(&large).unwrap().write_all(&vec![7; 20 << 20]).unwrap();
        let said = refused(&["cp", path(&large), &there]);
        assert!(said.contains("/file: No space"), "{said}");
        assert_eq!(run(&["cat", &there]), "new");
        assert_eq!(names(&volume, "/"), ["file"], "nothing else is left");
        let said = refused(&["cp", &there, "/dev/full"]);
        assert!(said.contains("give `-`"), "{said}");
        let mut cat = ferrite();
        cat.args(["cat", &there])
            .stdout(fs::File::options().write(true).open("/dev/full").unwrap());
        assert!(fails(&mut cat, 1).contains("standard output"));
        // A copy replaces a link, and its target stays.
        sh(&scratch, "ln -s old link; ln -s nowhere dangling");
        run(&["cp", &there, path(&scratch.join("link"))]);
        run(&["cp", &there, path(&scratch.join("dangling"))]);
        assert_eq!(
            sh(&scratch, "cat old link dangling; test ! -L link; test ! -e nowhere"),
            "old contentnewnew"
        );
        for (words, why) in [
            (vec!["cp", &there, &there], "is the file itself"),
            (vec!["cp", path(&scratch), &volume.at("/d")], "give -r"),
            (vec!["cp", "-r", path(&scratch), &there], "is no directory"),
            (vec!["cp", path(&old), &volume.at("/none/file")], "/none/file: "),
            (vec!["cp", path(&old), path(&new), &there], "several sources"),
            (vec!["cp", &volume.at("/none"), path(&new)], "/none: "),
            (vec!["cp", path(&old), &volume.at("/new/")], "/new/: "),
        ] {
            let said = refused(&words);
            assert!(said.contains(why), "{words:?}: {said}");
        }
        // A copy continues past what it cannot copy.
        refused(&[
            "cp",
            path(&old),
            path(&scratch.join("none")),
            path(&new),
            &volume.at("/"),
        ]);
        assert_eq!(names(&volume, "/"), ["file", "new", "old"]);
        // The copy of a tree into itself is refused before any change.
        run(&["mkdir", "-p", &volume.at("/a/b/c")]);
        for to in ["/a/b", "/a/b/new", "/a/b/c"] {
            let said = refused(&["cp", "-r", &volume.at("/a"), &volume.at(to)]);
            assert!(said.contains("the copy would hold itself"), "{said}");
        }
        assert!(refused(&["cp", "-r", &volume.at("/"), &volume.at("/a")]).contains("would hold itself"));
        assert_eq!(
            run(&["ls", "-R", "-a", &volume.at("/a")])
                .lines()
                .filter(|line| !line.is_empty())
                .count(),
            5
        );
    }
}

#[test]
fn standard_input_and_output_are_dashes() {
    for volume in Volume::all("64M") {
        let scratch = volume.scratch();
        let content: Vec<u8> = (0..9_000_001u32).map(|n| (n / 3) as u8).collect();
        fs::write(scratch.join("content"), &content).unwrap();
        let mut from = ferrite();
        from.args(["cp", "-", &volume.at("/piped")]);
        let mut to = ferrite();
        to.args(["cp", &volume.at("/piped"), "-"]);
        sh(
            &scratch,
            &format!("cat content | {}; {} | cmp - content", words(&from), words(&to)),
        );
        // A reader that has enough ends it without a message.
        sh(
            &scratch,
            &format!(
                "set +o pipefail; {} 2> said | head -c 10 > /dev/null; test ! -s said",
                words(&to)
            ),
        );
        let said = fails(ferrite().args(["cp", "-", &volume.at("/")]).stdin(Stdio::null()), 1);
        assert!(said.contains("needs a name"), "{said}");
        // A device or a pipe is read, not made again.
        run(&["cp", "/dev/null", &volume.at("/empty")]);
        assert_eq!(run(&["cat", &volume.at("/empty")]), "");
    }
}

#[test]
fn names_are_any_bytes() {
    for volume in Volume::all("16M") {
        let scratch = volume.scratch();
        let odd: [&[u8]; 4] = [
            b"new\nline",
            b"\xff\xfe",
            b"a:/b\\c".split(|&b| b == b'/').next().unwrap(),
            b" -x *",
        ];
        let dir = scratch.join("d");
        fs::create_dir(&dir).unwrap();
        for (n, name) in odd.into_iter().enumerate() {
            fs::write(dir.join(OsStr::from_bytes(name)), n.to_string()).unwrap();
        }
        run(&["cp", "-r", path(&dir), &volume.at("/d")]);
        run(&["cp", "-r", &volume.at("/d"), path(&scratch.join("back"))]);
        sh(&scratch, "diff -r d back");
        for (n, name) in odd.into_iter().enumerate() {
            let mut operand = volume.at("/d/").into_bytes();
            operand.extend(name);
            let operand = OsStr::from_bytes(&operand);
            assert_eq!(ok(ferrite().arg("cat").arg(operand)), n.to_string());
            let listed = ferrite().arg("ls").arg("--json").arg(operand).output().unwrap();
            let json: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
            assert_eq!(
                json["path_bytes"].is_string(),
                std::str::from_utf8(name).is_err(),
                "{json}"
            );
            ok(ferrite().args(["rm"]).arg(operand));
        }
        // Behind the first `:/`, the path may hold another.
        run(&["mkdir", &volume.at("/x:")]);
        run(&["cp", path(&dir.join(" -x *")), &volume.at("/x:/y")]);
        assert_eq!(run(&["cat", &volume.at("/x:/y")]), "3");
    }
}

#[test]
fn names_are_listed_made_renamed_and_removed_as_users_know_it() {
    for volume in Volume::all("16M") {
        let at = |path: &str| volume.at(path);
        run(&["mkdir", "-p", "-m", "700", &at("/a/b/c"), &at("/a/b/c")]);
        assert!(refused(&["mkdir", &at("/a")]).contains("/a: "));
        refused(&["mkdir", &at("/none/x")]);
        sh(&volume.scratch(), "echo text > f; ln -s f link; echo hidden > .hidden");
        run(&["cp", "-r", path(&volume.scratch()), &at("/a/s")]);
        assert_eq!(run(&["ls", &at("/a")]), "b\ns\n");
        assert_eq!(names(&volume, "/a/s"), [".hidden", "f", "link"]);
        let long = run(&["ls", "-l", &at("/a/s")]);
        let lines: Vec<&str> = long.lines().collect();
        assert!(
            lines[0].starts_with("-rw") && lines[0].ends_with(" f") && lines[0].contains(" 5 "),
            "{long}"
        );
        assert!(
            lines[1].starts_with("lrwxrwxrwx") && lines[1].ends_with(" link -> f"),
            "{long}"
        );
        let deep = run(&["ls", "-R", &at("/a")]);
        let found: Vec<&str> = deep.lines().filter(|line| line.ends_with(':')).collect();
        let wanted = ["/a:", "/a/b:", "/a/b/c:", "/a/s:"].map(&at);
        assert_eq!(found, wanted, "{deep}");
        let json = run(&["ls", "-R", "--json", &at("/a")]);
        let sizes = json
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        assert_eq!(sizes.filter(|file| file["kind"] == "regular file").count(), 1);
        assert!(run(&["stat", &at("/a/b/c")]).contains("(0700/drwx------)"));
        assert!(refused(&["ls", &at("/none"), &at("/a")]).contains("/none: "));

        run(&["mv", &at("/a/s/f"), &at("/a/s/.hidden"), &at("/a/b")]);
        assert_eq!(names(&volume, "/a/b"), [".hidden", "c", "f"]);
        run(&["mv", &at("/a/b/f"), &at("/a/b/g")]);
        run(&["mv", "-n", &at("/a/b/.hidden"), &at("/a/b/g")]);
        assert_eq!(run(&["cat", &at("/a/b/g"), &at("/a/b/.hidden")]), "text\nhidden\n");
        refused(&["mv", &at("/a"), &at("/a/b/c")]);

        assert!(refused(&["rm", &at("/a")]).contains("give -r"));
        assert!(refused(&["rm", "-r", &at("/")]).contains("root"));
        assert!(refused(&["rm", &at("/none")]).contains("/none: "));
        run(&["rm", "-f", &at("/none")]);
        run(&["rm", "-r", &at("/a")]);
        assert!(names(&volume, "/").is_empty());
    }
}

#[test]
fn wrong_operands_are_refused_with_the_remedy() {
    let server = Server::new("16M", &[]);
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    mkfs(&pool, &["--size", "16M"]);
    let bare = format!("{}:/x", pool.display());
    let missing = format!("{}/data/x", server.address);
    for (words, code, remedy) in [
        (vec!["ls", "/etc"], 2, "paths of this machine|path of this machine"),
        (vec!["ls", &bare], 2, "pm:"),
        (vec!["ls", &missing], 2, "tcp://HOST:PORT/EXPORT:/PATH"),
        (vec!["cat", path(&pool)], 2, "path of this machine"),
        (vec!["cp", "/etc/passwd", "/tmp/x"], 2, "cp(1)"),
        (vec!["cp", "/etc/passwd"], 2, "2 values required|required"),
        (vec!["mkdir", "-m", "999", &server.at("/x")], 2, "octal"),
        (vec!["stat", &server.address], 2, ":/`"),
        #[cfg(not(feature = "nvme"))]
        (vec!["ls", "nvme:/etc/drives:/x"], 2, "no engine for"),
        #[cfg(feature = "nvme")]
        (vec!["ls", "nvme:/etc/drives:/x"], 1, "/etc/drives"),
        #[cfg(not(feature = "fabric"))]
        (vec!["ls", "fabric://h/e:/x"], 2, "no engine for"),
        #[cfg(feature = "fabric")]
        (vec!["ls", "fabric://127.0.0.1:1/e:/x"], 1, "is the server running"),
    ] {
        let said = fails(ferrite().args(&words), code);
        assert!(remedy.split('|').any(|part| said.contains(part)), "{words:?}: {said}");
    }
    let none = format!("{}/none:/x", server.address);
    assert!(refused(&["ls", &none]).contains("exports nothing named `none`"));
    let other = format!("pm:{}:/x", pool.display());
    let said = refused(&["mv", &server.at("/"), &other]);
    assert!(said.contains("cp -r -p"), "{said}");
    // A pool that is served is in use.
    let said = refused(&["ls", &format!("pm:{}:/", server.pool.display())]);
    assert!(said.contains("in use by"), "{said}");
}

/// The text after the export's name is part of the address, with slashes of its own.
#[test]
fn a_key_stands_before_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    ok(ferrite().arg("key").arg(&key));
    let server = Server::new("16M", &["--no-root-squash", "--name", "a/b", "--key", path(&key)]);
    let file = dir.path().join("file");
    fs::write(&file, "secret").unwrap();
    for encrypt in ["", "&encrypt=on"] {
        let at = |path: &str| format!("{}?key={}{encrypt}:{path}", server.address, key.display());
        run(&["cp", path(&file), &at("/file")]);
        assert_eq!(run(&["cat", &at("/file")]), "secret");
    }
    let said = refused(&["ls", &server.at("/")]);
    assert!(said.contains("key"), "{said}");
    let said = fails(
        ferrite()
            .arg("ls")
            .arg(format!("{}?key={}", server.address, key.display())),
        2,
    );
    assert!(said.contains(":/`"), "{said}");
}

/// A command as the user `nobody`, who is in the group 4000.
fn as_nobody(words: &[&str]) -> Command {
    let mut command = ferrite();
    let program = command.get_program().to_owned();
    command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--groups", "4000"])
        .arg(program)
        .args(words);
    command
}

#[test]
fn the_user_is_the_caller_with_his_groups() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: other users need root");
        return;
    }
    let server = Server::new("16M", &["--no-root-squash"]);
    fs::write(server.scratch().join("f"), "secret").unwrap();
    let file = path(&server.scratch().join("f")).to_owned();
    run(&["mkdir", "-m", "777", &server.at("/open")]);
    run(&["cp", &file, &server.at("/open/f")]);
    let nobody = |words: &[&str]| fails(&mut as_nobody(words), 1);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    run(&["cp", "-p", &file, &server.at("/open/secret")]);
    assert!(nobody(&["cat", &server.at("/open/secret")]).contains("/open/secret: "));
    nobody(&["mkdir", &server.at("/here")]);
    run(&["mkdir", "-p", "-m", "755", &server.at("/closed/d")]);
    nobody(&["rm", "-r", &server.at("/closed")]);
    ok(&mut as_nobody(&["mkdir", &server.at("/open/mine")]));
    let found: serde_json::Value = serde_json::from_str(&run(&["stat", "--json", &server.at("/open/mine")])).unwrap();
    assert_eq!((&found["uid"], &found["gid"]), (&65534.into(), &65534.into()));
    // By a supplementary group.
    std::os::unix::fs::chown(&file, Some(0), Some(4000)).unwrap();
    run(&["cp", "-p", "-f", &file, &server.at("/open/secret")]);
    assert_eq!(ok(&mut as_nobody(&["cat", &server.at("/open/secret")])), "secret");
    // A file that the user may not write is replaced only on request; the user then owns it.
    let dir = server.scratch().join("his");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("new"), "new").unwrap();
    Command::new("chmod")
        .arg("755")
        .arg(server.scratch().parent().unwrap())
        .status()
        .unwrap();
    let new = path(&dir.join("new")).to_owned();
    assert!(nobody(&["cp", &new, &server.at("/open/f")]).contains("give -f"));
    ok(&mut as_nobody(&["cp", "-f", &new, &server.at("/open/f")]));
    assert_eq!(run(&["cat", &server.at("/open/f")]), "new");
    // Root is nobody, if the server squashes it, and the message says so.
    let squashed = Server::new("16M", &[]);
    let said = refused(&["mkdir", &squashed.at("/d")]);
    assert!(said.contains("--no-root-squash"), "{said}");
}

/// The server is killed again and again while a copy runs, in both directions.
#[test]
fn a_copy_goes_on_when_the_server_comes_back() {
    let mut server = Server::new("256M", &["--no-root-squash"]);
    let scratch = server.scratch();
    let content: Vec<u8> = (0..60_000_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::create_dir(scratch.join("d")).unwrap();
    fs::write(scratch.join("d/large"), &content).unwrap();
    for n in 0..300 {
        fs::write(scratch.join(format!("d/small-{n}")), n.to_string()).unwrap();
    }
    for (from, to) in [
        (path(&scratch.join("d")).to_owned(), server.at("/d")),
        (server.at("/d"), path(&scratch.join("back")).to_owned()),
    ] {
        let mut copy = ferrite().args(["cp", "-r", &from, &to]).spawn().unwrap();
        let id = copy.id().to_string();
        let signal = |name: &str| ok(Command::new("kill").args([name, &id]));
        let start = Instant::now();
        // Once it has connected; without a connection it does not wait for the server. It is stopped during each look,
        // so that it cannot end before the first kill, however fast the machine copies.
        loop {
            signal("-STOP");
            let listed = ferrite().args(["ls", "-a", &server.at("/d")]).output().unwrap().stdout;
            if !listed.is_empty() && (!to.starts_with('/') || Path::new(&to).exists()) {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "it has not begun");
            signal("-CONT");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(
            copy.try_wait().unwrap().is_none(),
            "it ended before the server was killed"
        );
        server.kill();
        signal("-CONT");
        server.start();
        let mut kills = 1;
        while copy.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(30));
            server.kill();
            server.start();
            kills += 1;
        }
        assert!(copy.wait().unwrap().success(), "{kills} restarts");
        eprintln!("{kills} restarts in {:?}", start.elapsed());
    }
    sh(&scratch, "diff -r d back");
    let listed = run(&["ls", "-a", "-R", &server.at("/")]);
    assert!(!listed.contains(".ferrite-cp-"), "{listed}");
}

#[test]
fn an_interrupted_copy_leaves_no_half_file() {
    let server = Server::new("256M", &["--no-root-squash"]);
    // An endless source, so that the signal always comes in the middle.
    let mut copy = ferrite();
    copy.args(["cp", "-", &server.at("/endless")])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let mut copy = copy.spawn().unwrap();
    let mut pipe = copy.stdin.take().unwrap();
    pipe.write_all(&vec![1; 9 << 20]).unwrap();
    let start = Instant::now();
    while !run(&["ls", "-a", &server.at("/")]).starts_with(".ferrite-cp-") {
        assert!(start.elapsed() < Duration::from_secs(20), "it has not begun");
    }
    ok(Command::new("kill").args(["-INT", &copy.id().to_string()]));
    drop(pipe);
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", common::text(&output));
    assert!(
        common::text(&output).contains("interrupted"),
        "{}",
        common::text(&output)
    );
    assert_eq!(run(&["ls", "-a", &server.at("/")]), "");
}
