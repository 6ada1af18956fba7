//! Servers with keys and with a configuration: several pools and exports, access by key, and messages about a wrong
//! file.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common;
use crate::common::{fails, ferrite, has_fuse, mkfs, ok, sh};
use tempfile::TempDir;

const EXAMPLE: &str = include_str!("../../../dist/server.toml");

/// A running server, and its address. Killed when dropped.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    /// Starts `ferrite serve` with these words. It may listen at port 0.
    fn start(words: &[&str], environment: &[(&str, &Path)]) -> Running {
        let mut child = ferrite()
            .arg("serve")
            .args(words)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        let address = line.split("tcp://").nth(1).and_then(|rest| rest.split('/').next());
        let Some(address) = address.map(|address| address.replace("0.0.0.0", "127.0.0.1")) else {
            let _ = child.kill();
            panic!("{words:?} says `{line}` instead of where it listens");
        };
        Running { child, address }
    }

    fn stop(mut self) {
        ok(Command::new("kill").arg(self.child.id().to_string()));
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Site {
    dir: TempDir,
}

impl Site {
    fn new() -> Site {
        let dir = tempfile::Builder::new()
            .prefix("ferrite-test-")
            .tempdir_in("/dev/shm")
            .unwrap();
        Site { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn pool(&self, name: &str) {
        mkfs(&self.path(name), &["--size", "32M"]);
    }

    fn key(&self, name: &str) {
        ok(ferrite().arg("key").arg(self.path(name)));
    }

    fn config(&self, text: &str) -> String {
        std::fs::write(self.path("server.toml"), text).unwrap();
        self.text("server.toml")
    }

    fn mount(&self, address: &str, name: &str, words: &[&str]) -> Mounted {
        let dir = self.path(name);
        std::fs::create_dir_all(&dir).unwrap();
        ok(ferrite().arg("mount").arg(address).arg(&dir).args(words));
        Mounted(dir)
    }
}

/// A mount that is removed when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = ferrite().arg("umount").arg(&self.0).output();
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_key_is_made_once_and_is_its_owners() {
    let site = Site::new();
    let said = ok(ferrite().arg("key").arg(site.path("key")));
    assert!(said.contains(&site.text("key")), "{said}");
    let made = std::fs::read_to_string(site.path("key")).unwrap();
    assert!(
        made.starts_with("ferrite-key-1:") && !said.contains(&made[14..30]),
        "{said}"
    );
    let mode = std::fs::metadata(site.path("key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let said = fails(ferrite().arg("key").arg(site.path("key")), 1);
    assert!(said.contains("exists already"), "{said}");
    assert_eq!(std::fs::read_to_string(site.path("key")).unwrap(), made);
    let printed = ok(ferrite().arg("key"));
    assert!(printed.starts_with("ferrite-key-1:") && printed.lines().count() == 1);
    assert_ne!(printed, made);
}

#[test]
fn other_machines_want_a_key() {
    let site = Site::new();
    site.pool("pool");
    site.key("key");
    let (pool, key) = (site.text("pool"), site.text("key"));
    // Not for ever, in case it serves.
    let mut serve = Command::new("timeout");
    serve.arg("20").arg(ferrite().get_program());
    let said = fails(serve.args(["serve", &pool, "--listen", "tcp://0.0.0.0:0"]), 2);
    for word in ["tcp://0.0.0.0:0", "other machines", "ferrite key", "--key"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let server = Running::start(
        &[&pool, "--listen", "tcp://0.0.0.0:0", "--name", "data", "--key", &key],
        &[],
    );
    let address = format!("tcp://{}/data", server.address);
    let info = |address: &str| ferrite().args(["info", address]).output().unwrap();
    assert!(ok(ferrite().args(["info", &format!("{address}?key={key}")])).contains("encryption"));
    // The message to each client: without a key, with another, with one that other users can read.
    for (query, words) in [
        ("", &["without a key", "key=FILE"][..]),
        (&format!("?key={}", site.text("other")), &["does not accept this key"]),
        (
            &format!("?key={}", site.text("shown")),
            &["chmod 600", "others than its owner"],
        ),
        (&format!("?key={}", site.text("none")), &["No such file"]),
        ("?encrypt=on", &["encryption needs a key"]),
    ] {
        if !site.path("other").exists() {
            site.key("other");
            site.key("shown");
            std::fs::set_permissions(site.path("shown"), PermissionsExt::from_mode(0o644)).unwrap();
        }
        let output = info(&format!("{address}{query}"));
        assert_eq!(output.status.code(), Some(1), "{query}");
        let said = common::text(&output);
        for word in words {
            assert!(said.contains(word), "{query}: `{word}` is missing in: {said}");
        }
    }
    let said = fails(ferrite().args(["info", &format!("{address}?key={key}&colour=red")]), 2);
    assert!(said.contains("colour=red"), "{said}");
    server.stop();
    ok(ferrite().args(["fsck", &pool]));
}

#[test]
fn a_file_with_two_pools_is_served_to_who_has_the_keys() {
    if !has_fuse() {
        return;
    }
    let site = Site::new();
    site.pool("one");
    site.pool("two");
    site.key("first.key");
    site.key("second.key");
    let config = site.config(
        "listen = [\"tcp://0.0.0.0:0\"]\nthreads = 2\nlease = 20\n[keys]\nfirst = \"first.key\"\nsecond = \
         \"second.key\"\n[[pool]]\npath = \"one\"\n[[pool.export]]\nname = \"one\"\nkeys = [\"first\"]\nroot_squash = \
         false\n[[pool.export]]\nname = \"look\"\nkeys = [\"first\", \"second\"]\nread_only = true\nencryption = \
         \"always\"\n[[pool]]\npath = \"two\"\n[[pool.export]]\nname = \"two\"\nkeys = [\"second\"]\nroot_squash = \
         false\n",
    );
    assert_eq!(ok(ferrite().args(["serve", "--check", "--config", &config])), "");
    let (first, second) = (site.text("first.key"), site.text("second.key"));
    let server = Running::start(&["--config", &config], &[]);
    let address = &server.address;
    // Also while it runs.
    assert_eq!(ok(ferrite().args(["serve", "--check", "--config", &config])), "");
    let one = site.mount(&format!("tcp://{address}/one?key={first}&encrypt=on"), "mnt-one", &[]);
    let two = site.mount(
        &format!("tcp://{address}/two"),
        "mnt-two",
        &["-o", &format!("_netdev,nofail,key={second}")],
    );
    let look = site.mount(
        &format!("tcp://{address}/look"),
        "mnt-look",
        &["-o", &format!("ro,key={second}")],
    );
    sh(&one.0, "echo first > file");
    sh(&two.0, "test ! -e file; echo second > file");
    sh(&look.0, "test \"$(cat file)\" = first; ! touch new");
    // The key of the other.
    let dir = site.path("none");
    std::fs::create_dir(&dir).unwrap();
    let mut mount = ferrite();
    mount
        .arg("mount")
        .arg(format!("tcp://{address}/two?key={first}"))
        .arg(&dir);
    let said = fails(&mut mount, 1);
    assert!(said.contains("nothing named `two`"), "{said}");
    drop((one, two, look));
    server.stop();
    for pool in ["one", "two"] {
        ok(ferrite().arg("fsck").arg(site.path(pool)));
    }
}

#[test]
fn nofail_mounts_go_on_without_a_server() {
    let site = Site::new();
    site.key("key");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}/data", listener.local_addr().unwrap());
    drop(listener);
    let key = site.text("key");
    let dir = site.path("mnt");
    std::fs::create_dir(&dir).unwrap();
    let mut mount = ferrite();
    mount.args(["mount", &address]).arg(&dir);
    let output = mount.args(["-o", &format!("nofail,key={key}")]).output().unwrap();
    let said = common::text(&output);
    assert!(output.status.success() && said.contains("cannot be reached"), "{said}");
    // A pool has no key.
    site.pool("pool");
    let mut mount = ferrite();
    mount.arg("mount").arg(site.path("pool")).arg(&dir);
    let said = fails(mount.args(["-o", &format!("key={key}")]), 2);
    assert!(said.contains("exports of servers"), "{said}");
}

/// One mistake each: its message, the line, and the exit code.
#[test]
fn a_check_names_each_mistake_and_its_line() {
    let site = Site::new();
    site.pool("pool");
    site.key("key");
    site.key("shown");
    std::fs::set_permissions(site.path("shown"), PermissionsExt::from_mode(0o640)).unwrap();
    std::fs::write(site.path("text"), "no key and no pool").unwrap();
    std::fs::set_permissions(site.path("text"), PermissionsExt::from_mode(0o600)).unwrap();
    let good = "listen = [\"tcp://127.0.0.1:0\"]\nthreads = 1\nlease = 30\n[keys]\nk = \"key\"\n[[pool]]\npath = \
                \"pool\"\n[[pool.export]]\nname = \"a\"\nkeys = [\"k\"]\npath = \"/\"\n";
    let check = |text: &str| {
        let config = site.config(text);
        ferrite()
            .args(["serve", "--check", "--config", &config])
            .output()
            .unwrap()
    };
    assert!(check(good).status.success(), "{}", common::text(&check(good)));
    let with = |old: &str, new: &str| {
        assert!(good.contains(old), "{old}");
        good.replace(old, new)
    };
    for (text, code, line, words) in [
        (with("threads = 1", "threads = "), 2, 2, &[][..]),
        (
            with("threads = 1", "treads = 1"),
            2,
            2,
            &["unknown field `treads`", "threads"],
        ),
        (
            with("path = \"/\"", "squash = true"),
            2,
            11,
            &["unknown field `squash`", "root_squash"],
        ),
        (with("threads = 1", "threads = 0"), 2, 2, &["from 1 to 256"]),
        (with("threads = 1", "threads = \"two\""), 2, 2, &["string \"two\""]),
        (with("lease = 30", "lease = 86400"), 2, 3, &["from 1 to 3600"]),
        (with("tcp://127.0.0.1:0", "127.0.0.1:0"), 2, 1, &["begins with tcp://"]),
        (with("tcp://127.0.0.1:0", "tcp://127.0.0.1"), 2, 1, &["tcp://HOST:PORT"]),
        (
            with("tcp://127.0.0.1:0", "tcp://no.such.host.invalid:1"),
            2,
            1,
            &["no.such.host.invalid"],
        ),
        (with("[\"tcp://127.0.0.1:0\"]", "[]"), 2, 0, &["at least one address"]),
        (with("\"key\"", "\"missing\""), 1, 5, &["missing", "No such file"]),
        (with("\"key\"", "\"text\""), 1, 5, &["not a key", "ferrite key"]),
        (with("\"key\"", "\"shown\""), 1, 5, &["chmod 600", "640"]),
        (with("[\"k\"]", "[\"x\"]"), 2, 10, &["no key `x`", "[keys]"]),
        (
            with("path = \"pool\"", "path = \"missing\""),
            1,
            7,
            &["missing", "No such file"],
        ),
        (with("path = \"pool\"", "path = \"text\""), 1, 7, &["text"]),
        (
            with("path = \"pool\"", "path = \"tcp://h/x\""),
            2,
            7,
            &["is on a server"],
        ),
        (
            with("path = \"pool\"", "path = \"nfs://h/x\""),
            2,
            7,
            &["`nfs` is not a scheme"],
        ),
        (
            with("path = \"/\"", "path = \"/missing\""),
            1,
            9,
            &["/missing", "no such file"],
        ),
        (with("name = \"a\"\n", ""), 2, 8, &["missing field `name`"]),
        (
            format!("{good}[[pool.export]]\nname = \"a\"\nkeys = [\"k\"]\n"),
            2,
            13,
            &["`a` is in line 9 already"],
        ),
        (
            format!("{good}[[pool]]\npath = \"./pool\"\n[[pool.export]]\nname = \"b\"\n"),
            2,
            13,
            &["the pool is in line 7 already"],
        ),
        (
            format!("{good}[[pool]]\npath = \"other\"\n"),
            2,
            13,
            &["no export", "[[pool.export]]"],
        ),
        (
            good[..good.find("[[pool]]").unwrap()].to_owned(),
            2,
            0,
            &["no pool", "[[pool]]"],
        ),
        (
            with("tcp://127.0.0.1:0", "tcp://0.0.0.0:0").replace("keys = [\"k\"]\n", ""),
            2,
            9,
            &["other machines", "`a` has no key", "127.0.0.1"],
        ),
        (
            with("keys = [\"k\"]", "encryption = \"some\""),
            2,
            10,
            &["unknown variant `some`", "always"],
        ),
    ] {
        let output = check(&text);
        let said = common::text(&output);
        assert_eq!(output.status.code(), Some(code), "{text}\n{said}");
        let place = match line {
            0 => "server.toml: ".to_owned(),
            line => format!("server.toml:{line}: "),
        };
        for word in words.iter().chain(&[&*place]) {
            assert!(said.contains(word), "`{word}` is missing in: {said}\n{text}");
        }
        assert_eq!(said.lines().count(), 1, "a line for a mistake: {said}");
        // Nor is it served; the server looks for pools and paths only when it opens them.
        let mut serve = ferrite();
        serve.args(["serve", "--config", &site.text("server.toml")]);
        fails(&mut serve, code);
    }
    // All at once.
    let output = check(
        &with("lease = 30", "lease = 0")
            .replace("\"key\"", "\"missing\"")
            .replace("[\"k\"]", "[\"x\"]"),
    );
    assert_eq!(common::text(&output).lines().count(), 3, "{}", common::text(&output));
    for words in [
        &["serve"][..],
        &["serve", "--check"],
        &["serve", "pool", "--config", "x"],
        &["serve", "--config", "x", "--threads", "2"],
    ] {
        fails(ferrite().args(words), 2);
    }
    let said = fails(
        ferrite().args(["serve", "--check", "--config", &site.text("none.toml")]),
        1,
    );
    assert!(said.contains("none.toml") && said.contains("No such file"), "{said}");
}

/// The installed example file is right, except for its paths, and shows the defaults.
#[test]
fn the_example_passes_its_check() {
    let site = Site::new();
    site.pool("data.pool");
    site.key("data.key");
    let base = site.dir.path().to_str().unwrap();
    let example = EXAMPLE.replace("/etc/ferrite/", &format!("{base}/"));
    let example = example.replace("/var/lib/ferrite/", &format!("{base}/"));
    let config = site.config(&example);
    assert_eq!(ok(ferrite().args(["serve", "--check", "--config", &config])), "");
    // The lines after a single # are right, too.
    let word = |line: &str| line.split(" = ").next().unwrap().trim_start_matches("# ").to_owned();
    let known = [
        "threads",
        "lease",
        "busy_poll",
        "read_only",
        "durability",
        "path",
        "root_squash",
        "encryption",
    ];
    let mut shown = 0;
    let lines = example
        .lines()
        .map(|line| match line.contains(" = ") && known.contains(&&*word(line)) {
            true if line.starts_with("# ") => {
                shown += 1;
                line[2..].to_owned()
            }
            _ => line.to_owned(),
        });
    let all: Vec<String> = lines.collect();
    assert_eq!(shown, 9);
    let config = site.config(&all.join("\n"));
    assert_eq!(ok(ferrite().args(["serve", "--check", "--config", &config])), "");
}

#[test]
fn systemd_takes_the_unit_and_is_told_when_it_is_ready() {
    let site = Site::new();
    site.pool("pool");
    let socket = site.path("notify");
    let notified = UnixDatagram::bind(&socket).unwrap();
    notified.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let hear = || {
        let mut buf = [0; 100];
        let count = notified.recv(&mut buf).unwrap();
        String::from_utf8(buf[..count].to_vec()).unwrap()
    };
    let pool = site.text("pool");
    let server = Running::start(&[&pool, "--listen", "tcp://127.0.0.1:0"], &[("NOTIFY_SOCKET", &socket)]);
    assert_eq!(hear(), "READY=1");
    server.stop();
    assert_eq!(hear(), "STOPPING=1");

    let Ok(found) = Command::new("systemd-analyze").arg("--version").output() else {
        eprintln!("skipped: there is no systemd-analyze that could look at the unit");
        return;
    };
    assert!(found.status.success());
    // With the program's path on this machine.
    let unit = include_str!("../../../dist/systemd/ferrite.service");
    let program = std::fs::canonicalize(ferrite().get_program()).unwrap();
    std::fs::write(
        site.path("ferrite.service"),
        unit.replace("/usr/local/bin/ferrite", program.to_str().unwrap()),
    )
    .unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(site.path("ferrite.service"));
    let output = verify.output().unwrap();
    let said = common::text(&output);
    let about_it: Vec<&str> = said.lines().filter(|line| line.contains("ferrite")).collect();
    assert!(output.status.success() && about_it.is_empty(), "{said}");
}

/// Protects those who share a server: an export takes no more than it was given, whatever its clients do.
#[test]
fn an_export_has_a_quota() {
    let site = Site::new();
    site.pool("pool");
    let at = |path: &str| format!("pm:{}:{path}", site.text("pool"));
    ok(ferrite().args(["mkdir", &at("/a"), &at("/b")]));
    let config = |quota: &str| {
        let export = |name: &str, quota: &str| format!("[[pool.export]]\nname = '{name}'\npath = '/{name}'\n{quota}\n");
        site.config(&format!(
            "listen = ['tcp://127.0.0.1:0']\n[[pool]]\npath = 'pool'\n{}root_squash = false\n{}root_squash = false\n",
            export("a", quota),
            export("b", "")
        ))
    };
    let serve = |quota: &str| Running::start(&["--config", &config(quota)], &[]);
    let store = |server: &Running, name: &str, bytes: usize| {
        std::fs::write(site.path("content"), vec![7; bytes]).unwrap();
        let to = format!("tcp://{}/{name}:/file", server.address);
        let mut command = ferrite();
        command.arg("cp").arg("--force").arg(site.path("content")).arg(to);
        command
    };
    let server = serve("quota = '2M'\nquota_inodes = 3");
    ok(&mut store(&server, "a", 1 << 20));
    assert!(fails(&mut store(&server, "a", 3 << 20), 1).contains("quota"));
    ok(&mut store(&server, "b", 3 << 20));
    // A directory, a file, and one more.
    let dir = |n: u8| format!("tcp://{}/a:/dir{n}", server.address);
    ok(ferrite().args(["mkdir", &dir(1)]));
    assert!(fails(ferrite().args(["mkdir", &dir(2)]), 1).contains("quota"));
    ok(ferrite().args(["rm", "-r", &dir(1)]));
    if has_fuse() {
        let mount = site.mount(&format!("tcp://{}/a", server.address), "mnt", &[]);
        let df = sh(&mount.0, "df --output=size,itotal -B1 . | tail -n 1");
        assert_eq!(df.split_whitespace().collect::<Vec<_>>(), ["2097152", "3"]);
    }
    server.stop();

    // The limit that the file does not name stays.
    let server = serve("quota = '4M'");
    ok(&mut store(&server, "a", 2 << 20));
    assert!(fails(&mut store(&server, "a", 5 << 20), 1).contains("quota"));
    server.stop();
    // Without the word the directory keeps what it has.
    let server = serve("");
    assert!(fails(&mut store(&server, "a", 5 << 20), 1).contains("quota"));
    server.stop();
    let listed = ok(ferrite().args(["quota", "list", "--json", &at("/")]));
    assert!(
        listed.contains("\"limit_bytes\":4194304,") && listed.contains("\"limit_inodes\":3,"),
        "{listed}"
    );
    assert_eq!(listed.lines().count(), 1, "{listed}");
    ok(ferrite().args(["fsck", site.path("pool").to_str().unwrap()]));
}
