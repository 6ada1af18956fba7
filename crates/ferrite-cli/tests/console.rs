//! `serve --console`: what it shows, to whom, and that browsers can show it.

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::server::Server;
use crate::common::{fails, ferrite, ok};

/// A server with a console, and the console's address.
fn observed(words: &[&str]) -> (Server, String) {
    let words = [&["--no-root-squash", "--console", "127.0.0.1:0"], words].concat();
    let mut server = Server::new("64M", &words);
    loop {
        let mut line = String::new();
        assert!(
            server.said.read_line(&mut line).unwrap() > 0,
            "the server says of no console"
        );
        if let Some(place) = line.trim().strip_prefix("console at http://") {
            let place = place.trim_end_matches('/').to_owned();
            return (server, place);
        }
    }
}

/// The reply to a request: its head and its body.
fn ask(place: &str, target: &str, headers: &str) -> (String, String) {
    let mut stream = TcpStream::connect(place).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\n{headers}\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn json(place: &str, target: &str) -> serde_json::Value {
    let (head, body) = ask(place, target, &format!("Host: {place}\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}\n{body}");
    assert!(head.contains("Content-Type: application/json"), "{head}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn it_shows_pools_exports_clients_and_space() {
    let (server, place) = observed(&[]);
    let hostile = "<img src=x onerror=alert(1)>\n\"";
    let local = tempfile::tempdir().unwrap();
    let file = local.path().join("file");
    std::fs::write(&file, vec![1; 200_000]).unwrap();
    let root = format!("{}:/", server.address);
    ok(ferrite().arg("mkdir").arg(format!("{root}{hostile}")));
    ok(ferrite().arg("cp").arg(&file).arg(format!("{root}{hostile}/inside")));
    ok(ferrite().arg("cp").arg(&file).arg(format!("{root}beside")));
    let status = json(&place, "/status.json");
    let pool = &status["pools"][0];
    assert!(pool["used_bytes"].as_u64().unwrap() >= 400_000, "{status}");
    assert_eq!((&pool["read_only"], &pool["damage"]), (&false.into(), &0.into()));
    let operations = status["exports"][0]["operations"].as_array().unwrap();
    let made = operations
        .iter()
        .find(|operation| operation["name"] == "Mkdir")
        .unwrap();
    assert_eq!(made["requests"], 1, "{made}");
    let root = json(&place, "/space.json?pool=0&path=/");
    assert_eq!((&root["is_complete"], &root["hidden"]), (&true.into(), &0.into()));
    let children = root["children"].as_array().unwrap();
    let dir = children.iter().find(|child| child["name"] == hostile).unwrap();
    assert!(dir["bytes"].as_u64().unwrap() >= 200_000 && dir["files"] == 1, "{dir}");
    let escaped: String = hostile.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let inside = json(&place, &format!("/space.json?pool=0&path=/{escaped}"));
    assert_eq!(inside["children"][0]["name"], "inside");
    for wrong in [
        "pool=0&path=/none",
        "pool=7&path=/",
        "path=/",
        "pool=0&path=/beside",
        "pool=-1&path=%00",
    ] {
        let (head, _) = ask(&place, &format!("/space.json?{wrong}"), &format!("Host: {place}\r\n"));
        assert!(head.starts_with("HTTP/1.1 404"), "{wrong}: {head}");
    }
    let (head, page) = ask(&place, "/", "");
    assert!(head.contains("Content-Security-Policy: default-src 'none'"), "{head}");
    assert!(
        page.contains("page.js") && !page.contains("://"),
        "it loads something from elsewhere"
    );
}

/// A page of another site may be in the same browser, and other machines on the same network.
#[test]
fn it_gives_nothing_to_other_sites_and_machines() {
    let (server, place) = observed(&[]);
    for (headers, status) in [
        ("Host: 127.0.0.1\r\n", "200"),
        ("Host: localhost:80\r\n", "200"),
        ("Host: [::1]:80\r\n", "200"),
        ("Host: evil.example\r\n", "403"),
        ("Host: 127.0.0.1.evil.example:80\r\n", "403"),
        ("", "403"),
    ] {
        let (head, _) = ask(&place, "/status.json", headers);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {head}");
        assert!(!head.to_ascii_lowercase().contains("access-control"), "{head}");
    }
    drop(server);
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "short\n").unwrap();
    let pool = dir.path().join("pool");
    crate::common::mkfs(&pool, &["--size", "16M"]);
    let serve = |words: &[&str]| {
        let mut command = ferrite();
        command
            .arg("serve")
            .arg(&pool)
            .args(["--listen", "tcp://127.0.0.1:0"])
            .args(words);
        command
    };
    let said = fails(&mut serve(&["--console", "0.0.0.0:0"]), 2);
    assert!(said.contains("--console-token"), "{said}");
    let token_text = token.to_str().unwrap();
    let said = fails(
        &mut serve(&["--console", "127.0.0.1:0", "--console-token", token_text]),
        1,
    );
    assert!(said.contains("openssl rand"), "{said}");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    let (_server, place) = observed(&["--console-token", token_text]);
    for (headers, status) in [
        (
            "Authorization: Bearer 0123456789abcdef\r\nHost: evil.example\r\n",
            "200",
        ),
        ("Authorization: Bearer 0123456789abcdeg\r\n", "401"),
        ("Authorization: Basic 0123456789abcdef\r\n", "401"),
        ("Host: 127.0.0.1\r\n", "401"),
    ] {
        let (head, _) = ask(&place, "/status.json", headers);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {head}");
    }
}

/// Connections that ask nothing, as browsers open them, hold nobody up.
#[test]
fn idle_connections_hold_no_reader_up() {
    let (_server, place) = observed(&[]);
    let idle: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&place).unwrap()).collect();
    let began = Instant::now();
    json(&place, "/status.json");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    drop(idle);
}

/// The page as a browser shows it, at two widths: with numbers, with hostile names as text, and once the server is
/// away.
#[test]
fn a_browser_shows_it() {
    let browser = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| {
            Command::new(name)
                .arg("--version")
                .output()
                .is_ok_and(|said| said.status.success())
        });
    let Some(browser) = browser else {
        eprintln!("SKIPPED: no Chromium is installed (Debian package chromium)");
        return;
    };
    let (server, place) = observed(&[]);
    ok(ferrite().arg("mkdir").arg(format!("{}:/<b>name", server.address)));
    let shots = tempfile::tempdir().unwrap();
    let page = |width: u32, address: &str| {
        let said = Command::new(browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--virtual-time-budget=5000",
                "--dump-dom",
            ])
            .arg(format!("--user-data-dir={}", shots.path().display()))
            .arg(format!("--window-size={width},900"))
            .arg(address)
            .output()
            .unwrap();
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    for width in [400, 1300] {
        let shown = page(width, &format!("http://{place}/"));
        assert!(shown.contains("healthy") && shown.contains("in use"), "{shown}");
        assert!(shown.contains(">live<"), "{shown}");
    }
    drop(server);
    assert!(!page(400, &format!("http://{place}/")).contains("healthy"));
}

/// Each of a thousand clients counts; the busiest are named, so that a page stays one that a browser can show.
#[test]
fn a_thousand_clients_are_counted_and_the_busiest_are_named() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const CLIENTS: usize = 1000;
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    if limit.maximum.is_some_and(|most| most < 4 * CLIENTS as u64) {
        eprintln!("SKIPPED: {limit:?} allows too few connections for {CLIENTS} clients");
        return;
    }
    // Before the server starts, which inherits the limit.
    let (server, place) = observed(&[]);
    let open = |_| ferrite::Fs::open_volume(format!("{}/", server.address)).unwrap();
    let clients: Vec<ferrite::Fs> = (0..CLIENTS).map(open).collect();
    for _ in 0..50 {
        clients[CLIENTS / 2].metadata("/").unwrap();
    }
    let began = Instant::now();
    let (head, body) = ask(&place, "/status.json", &format!("Host: {place}\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(body.len() < 256 << 10, "{} bytes", body.len());
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    let export = &status["exports"][0];
    assert_eq!(export["sessions"], CLIENTS, "{}", export["sessions"]);
    let named = export["clients"].as_array().unwrap();
    assert_eq!(named.len(), 50);
    assert!(named[0]["requests"].as_u64().unwrap() >= 50, "{}", named[0]);
}
