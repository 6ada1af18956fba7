//! Attacks on a copy: servers that lie, users of honest servers who put links where the next copy goes, and names that
//! are not text.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use crate::common::server::Server;
use crate::common::{fails, ferrite, mkfs, ok, sh, text};
use rustix::fs::{CWD, Mode, OFlags};

fn run(words: &[&str]) -> String {
    ok(ferrite().args(words))
}

fn refused(words: &[&str]) -> String {
    fails(ferrite().args(words), 1)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A hostile server made of an honest one: in all its output it replaces bytes by others, of the same length. Returns
/// its address.
fn rewriting(server: &Server, from: &[u8], to: &[u8]) -> String {
    assert_eq!(from.len(), to.len());
    let (from, to) = (from.to_vec(), to.to_vec());
    let target = server.address.trim_start_matches("tcp://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(&target).unwrap();
            let (client_again, server_again) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || pump(client, server, |_| {}));
            let (from, to) = (from.clone(), to.clone());
            std::thread::spawn(move || {
                pump(server_again, client_again, |bytes| {
                    for at in 0..bytes.len() {
                        if bytes[at..].starts_with(&from) {
                            bytes[at..at + to.len()].copy_from_slice(&to);
                        }
                    }
                });
            });
        }
    });
    address
}

fn pump(mut from: TcpStream, mut to: TcpStream, change: impl Fn(&mut [u8])) {
    let mut buf = vec![0; 1 << 20];
    while let Ok(count @ 1..) = from.read(&mut buf) {
        change(&mut buf[..count]);
        if to.write_all(&buf[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A server once made the client write a file of its own machine, by giving an entry that file's name.
#[test]
fn a_server_does_not_choose_where_files_go() {
    let server = Server::new("64M", &["--no-root-squash"]);
    let scratch = server.scratch();
    let (inside, outside) = (scratch.join("in/copy"), scratch.join("outside"));
    fs::create_dir_all(&inside).unwrap();
    let absolute = path(&outside).to_owned();
    for lie in ["../../outside", "..", ".", &absolute, "a/b", "a\0b", "/"] {
        let honest = "N".repeat(lie.len());
        run(&["mkdir", "-p", &server.at("/tree")]);
        fs::write(scratch.join("file"), "mine").unwrap();
        run(&[
            "cp",
            path(&scratch.join("file")),
            &server.at(&format!("/tree/{honest}")),
        ]);
        // With its length, as in a listing: a single byte may be anywhere, as in the MAC of a handle.
        let listed = |name: &str| [&(name.len() as u32).to_le_bytes()[..], name.as_bytes()].concat();
        let liar = rewriting(&server, &listed(&honest), &listed(lie));
        for words in [
            vec!["cp", "-r", "-p", &format!("{liar}:/tree"), path(&inside)],
            vec!["ls", &format!("{liar}:/tree")],
            vec!["rm", "-r", &format!("{liar}:/tree")],
        ] {
            let said = refused(&words);
            assert!(said.contains("which no entry can have"), "{lie:?}: {words:?}: {said}");
        }
        assert!(!outside.exists(), "{lie:?}");
        let left = sh(&scratch, "find in -type f");
        assert_eq!(left, "", "{lie:?}");
        run(&["rm", "-r", &server.at("/tree")]);
    }
}

/// A user of an honest server once made root's nightly copy write through a link that an earlier copy had brought.
#[test]
fn links_below_the_target_are_not_followed() {
    let server = Server::new("64M", &["--no-root-squash"]);
    let scratch = server.scratch();
    let (victim, backup) = (scratch.join("victim"), scratch.join("backup"));
    for dir in [&victim, &backup] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(victim.join("passwd"), "original").unwrap();
    fs::write(scratch.join("mine"), "mine").unwrap();
    run(&["mkdir", "-p", &server.at("/home/someone")]);
    for (name, leads_to) in [("x", &victim), ("y", &victim.join("passwd"))] {
        let link = scratch.join(name);
        symlink(leads_to, &link).unwrap();
        run(&["cp", "-r", path(&link), &server.at(&format!("/home/someone/{name}"))]);
    }
    run(&["cp", "-r", "-q", &server.at("/home"), path(&backup)]);
    assert!(backup.join("home/someone/x").is_symlink());
    run(&["rm", &server.at("/home/someone/x"), &server.at("/home/someone/y")]);
    run(&["mkdir", &server.at("/home/someone/x")]);
    for name in ["x/passwd", "y"] {
        run(&[
            "cp",
            path(&scratch.join("mine")),
            &server.at(&format!("/home/someone/{name}")),
        ]);
    }
    let said = refused(&["cp", "-r", "-q", &server.at("/home"), path(&backup)]);
    assert!(said.contains("home/someone/x: is a symbolic link"), "{said}");
    assert_eq!(sh(&victim, "ls -A; cat passwd"), "passwd\noriginal");
    // A file replaces the link, not the target of the link.
    assert_eq!(fs::read_to_string(backup.join("home/someone/y")).unwrap(), "mine");
    assert!(!backup.join("home/someone/y").is_symlink());

    // The same in the other direction.
    run(&["cp", "-r", path(&backup.join("home/someone/x")), &server.at("/leads")]);
    run(&["mkdir", "-p", &server.at("/etc"), &server.at("/copy/tree")]);
    symlink("/etc", scratch.join("etc")).unwrap();
    run(&["cp", "-r", path(&scratch.join("etc")), &server.at("/copy/tree/d")]);
    sh(&scratch, "mkdir -p tree/d; echo bad > tree/d/file");
    let said = refused(&["cp", "-r", path(&scratch.join("tree")), &server.at("/copy")]);
    assert!(said.contains("/copy/tree/d: is a symbolic link"), "{said}");
    assert_eq!(run(&["ls", "-a", &server.at("/etc")]), "");
    // The user asked for a link in the named path.
    run(&["cp", path(&scratch.join("tree/d/file")), &server.at("/copy/tree/d")]);
    assert_eq!(run(&["ls", "-a", &server.at("/etc")]), "file\n");
}

/// Without an option, a client accepts no file from a server that has rights on the client's machine.
#[test]
fn files_of_a_server_bring_no_privileges() {
    let server = Server::new("64M", &["--no-root-squash"]);
    let scratch = server.scratch();
    sh(
        &scratch,
        "mkdir d; echo x > d/file; chmod 6755 d/file; mknod d/null c 1 3",
    );
    run(&["cp", "-rp", path(&scratch.join("d")), &server.at("/d")]);
    let said = refused(&["cp", "-rp", &server.at("/d"), path(&scratch.join("plain"))]);
    assert!(
        said.contains("/d/null: is a device") && said.contains("--privileges"),
        "{said}"
    );
    let mode = |name: &str| fs::metadata(scratch.join(name)).unwrap().mode();
    assert_eq!(mode("plain/file") & 0o7777, 0o755);
    assert!(!scratch.join("plain/null").exists());
    run(&[
        "cp",
        "-rp",
        "--privileges",
        &server.at("/d"),
        path(&scratch.join("asked")),
    ]);
    assert_eq!(
        (mode("asked/file") & 0o7777, mode("asked/null") & 0o170_000),
        (0o6755, 0o020_000)
    );
}

/// Levels of a tree that no path reaches.
const LEVELS: usize = 3000;

fn deep(top: &Path) {
    fs::create_dir(top).unwrap();
    let open = |dir: &OwnedFd, name: &str| {
        rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    };
    let mut dir = rustix::fs::openat(CWD, top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..LEVELS {
        rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
        dir = open(&dir, "d");
    }
    rustix::fs::openat(&dir, "end", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
}

fn depth(top: &Path) -> usize {
    let mut dir = rustix::fs::openat(CWD, top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut levels = 0;
    while let Ok(next) = rustix::fs::openat(&dir, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        dir = next;
        levels += 1;
    }
    assert!(
        rustix::fs::statat(&dir, "end", rustix::fs::AtFlags::empty()).is_ok(),
        "{levels} levels"
    );
    levels
}

/// Trees that are deeper than the longest path, with few descriptors.
#[test]
fn deep_trees_are_copied_whole() {
    let base = tempfile::Builder::new()
        .prefix("ferrite-test-")
        .tempdir_in("/dev/shm")
        .unwrap();
    let pool = base.path().join("pool");
    mkfs(&pool, &["--size", "128M"]);
    let there = format!("pm:{}:/deep", pool.display());
    let (from, back) = (base.path().join("from"), base.path().join("back"));
    deep(&from);
    for (from, to) in [(path(&from), &*there), (&there, path(&back))] {
        let program = ferrite().get_program().to_str().unwrap().to_owned();
        sh(base.path(), &format!("ulimit -n 200; {program} cp -rp {from} {to}"));
    }
    assert_eq!(depth(&back), LEVELS);
    // The temporary directory's own removal does not go as deep.
    sh(base.path(), "rm -rf from back");
}

/// Names and texts of servers reach terminals and logs in messages.
#[test]
fn messages_control_no_terminal() {
    let server = Server::new("16M", &["--no-root-squash"]);
    let name = OsStr::from_bytes(b"\x1b]0;title\x07\nferrite: all is well");
    let at = |path: &str| {
        let mut at = std::ffi::OsString::from(server.at(path));
        at.push(name);
        at
    };
    for command in ["cat", "stat", "ls", "rm"] {
        let output = ferrite().arg(command).arg(at("/")).output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(!said.contains('\x1b') && said.contains("title"), "{command}: {said:?}");
        assert!(
            !said.lines().any(|line| line.starts_with("ferrite: all")),
            "{command}: {said}"
        );
    }
    let scratch = server.scratch();
    fs::write(scratch.join(name), "").unwrap();
    ok(ferrite().arg("cp").arg(scratch.join(name)).arg(server.at("/")));
    let json = run(&["ls", "--json", &server.at("/")]);
    assert!(!json.contains('\x1b') && json.lines().count() == 1, "{json}");
}
