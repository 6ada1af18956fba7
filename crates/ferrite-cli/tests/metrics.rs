//! A server's reports about itself: `serve --metrics` to Prometheus, `ferrite top` to its clients.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::server::Server;
use crate::common::{fails, ferrite, ok};

const DASHBOARD: &str = include_str!("../../../dist/grafana/ferrite.json");

/// A server with metrics, and their address.
fn observed(words: &[&str]) -> (Server, String) {
    let mut server = Server::new(
        "64M",
        &[&["--no-root-squash", "--metrics", "127.0.0.1:0"], words].concat(),
    );
    loop {
        let mut line = String::new();
        assert!(
            server.said.read_line(&mut line).unwrap() > 0,
            "the server says of no metrics"
        );
        // If RDMA is offered, its address comes on a separate line.
        if let Some(place) = line.trim().strip_prefix("metrics at http://") {
            let place = place.strip_suffix("/metrics").unwrap().to_owned();
            return (server, place);
        }
    }
}

/// Sends some bytes, and returns the whole reply.
fn ask(place: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(place).unwrap();
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Metrics as they are scraped: `name{labels}` and the value.
struct Scraped {
    types: BTreeMap<String, String>,
    values: BTreeMap<String, f64>,
}

fn scrape(place: &str) -> Scraped {
    let answer = ask(place, b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    let (mut types, mut values) = (BTreeMap::new(), BTreeMap::new());
    for line in body.lines() {
        if let Some(text) = line.strip_prefix("# TYPE ") {
            let (name, kind) = text.split_once(' ').unwrap();
            assert!(
                types.insert(name.to_owned(), kind.to_owned()).is_none(),
                "{line} comes twice"
            );
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let before = values.insert(name.to_owned(), value.parse().unwrap());
            assert!(before.is_none(), "{line} comes twice");
        }
    }
    Scraped { types, values }
}

impl Scraped {
    fn value(&self, name: &str) -> f64 {
        *self
            .values
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {:#?}", self.values))
    }

    /// The names that queries use.
    fn names(&self) -> BTreeSet<String> {
        let suffixed = |(name, kind): (&String, &String)| match kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"]
                .map(|suffix| format!("{name}{suffix}"))
                .to_vec(),
            _ => vec![name.clone()],
        };
        self.types.iter().flat_map(suffixed).collect()
    }
}

#[test]
fn a_scrape_has_what_was_done_and_is_consistent() {
    let (server, place) = observed(&["--name", "da\"ta"]);
    let none = scrape(&place);
    assert_eq!(none.value("ferrite_sessions{export=\"da\\\"ta\"}"), 0.0);
    let at = |path: &str| format!("{}:{path}", server.address);
    let file = server.scratch().join("file");
    std::fs::write(&file, vec![1; 5 << 20]).unwrap();
    ok(ferrite().args(["cp", file.to_str().unwrap(), &at("/file")]));
    ok(ferrite().args(["cat", &at("/file")]));
    fails(ferrite().args(["cat", &at("/none")]), 1);

    let some = scrape(&place);
    let of =
        |name: &str, operation: &str| some.value(&format!("{name}{{export=\"da\\\"ta\",operation=\"{operation}\"}}"));
    assert!(of("ferrite_requests_total", "Write") >= 2.0, "no request is that long");
    let written = of("ferrite_received_bytes_total", "Write");
    assert!((5 << 20..(5 << 20) + 1000).contains(&(written as usize)), "{written}");
    // A long read is sent in pieces.
    let read = of("ferrite_sent_bytes_total", "Read") + of("ferrite_sent_bytes_total", "ReadPiece");
    assert!(read >= f64::from(5 << 20), "{read}");
    assert_eq!(of("ferrite_errors_total", "Write"), 0.0);
    assert_eq!(of("ferrite_errors_total", "OpenPath"), 1.0);
    assert_eq!(some.value("ferrite_sessions_begun_total{export=\"da\\\"ta\"}"), 3.0);
    assert_eq!(some.value("ferrite_buffers_used_bytes"), 0.0);
    assert!(some.value("ferrite_longest_turn_seconds") < 60.0);
    assert!(some.value("ferrite_long_turns_total") >= 0.0);

    // Histograms.
    let mut checked = 0;
    for (name, &count) in some.values.range("ferrite_request_seconds_count".to_owned()..) {
        let Some(labels) = name.strip_prefix("ferrite_request_seconds_count{") else {
            break;
        };
        let labels = labels.strip_suffix('}').unwrap();
        assert_eq!(count, some.value(&format!("ferrite_requests_total{{{labels}}}")));
        let bucket = |limit: &str| some.value(&format!("ferrite_request_seconds_bucket{{{labels},le=\"{limit}\"}}"));
        assert_eq!(count, bucket("+Inf"));
        let mut buckets: Vec<(f64, f64)> = some
            .values
            .iter()
            .filter_map(|(name, &value)| {
                let limit = name.strip_prefix(&format!("ferrite_request_seconds_bucket{{{labels},le=\""))?;
                Some((limit.strip_suffix("\"}")?.parse().unwrap(), value))
            })
            .collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(
            buckets.len() > 20 && buckets.is_sorted_by(|one, other| one.1 <= other.1),
            "{buckets:?}"
        );
        let sum = some.value(&format!("ferrite_request_seconds_sum{{{labels}}}"));
        // No less than if each request took the minimum of its bucket.
        let mut least = 0.0;
        for pair in buckets.windows(2) {
            least += pair[0].0 * (pair[1].1 - pair[0].1);
        }
        assert!(sum >= least && sum < 60.0, "{labels}: {sum} and {least}");
        checked += 1;
    }
    assert!(checked >= 6, "{checked} histograms");

    // Counters grow, and keep the counts of ended sessions.
    let more = scrape(&place);
    for (name, value) in &some.values {
        let family = name.split('{').next().unwrap();
        if family.ends_with("_total") && !family.starts_with("ferrite_client") {
            assert!(more.value(name) >= *value, "{name}");
        }
    }
}

/// A client that stays, as a mount does.
#[test]
fn clients_are_told_apart() {
    let (server, place) = observed(&[]);
    let fs = ferrite::Fs::open_volume(&server.address).unwrap();
    fs.write("/f", "content").unwrap();
    let files: Vec<_> = (0..3).map(|_| fs.open_file("/f").unwrap()).collect();
    let scraped = scrape(&place);
    let of = |family: &str| {
        let found: Vec<f64> = scraped
            .values
            .iter()
            .filter(|(name, _)| name.starts_with(&format!("{family}{{")) && name.contains("client=\"127.0.0.1:"))
            .map(|(_, value)| *value)
            .collect();
        assert_eq!(found.len(), 1, "{family}");
        found[0]
    };
    assert_eq!(of("ferrite_client_open_files"), 3.0);
    assert_eq!(of("ferrite_client_connected"), 1.0);
    assert_eq!(of("ferrite_client_connections_total"), 1.0);
    let all: f64 = scraped
        .values
        .iter()
        .filter(|(name, _)| name.starts_with("ferrite_requests_total"))
        .map(|(_, value)| value)
        .sum();
    assert_eq!(of("ferrite_client_requests_total"), all);

    // The same by the protocol, without the port.
    let said = ok(ferrite().args(["top", "--once", "--json", &server.address]));
    let look: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(look["sessions"], 2, "this one, and the one that asks: {look}");
    let clients = look["clients"].as_array().unwrap();
    let mine = clients
        .iter()
        .find(|client| client["files"] == 3)
        .expect("the one with files");
    assert!(mine["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    let writes = mine["operations"].as_array().unwrap().iter();
    assert_eq!(writes.filter(|row| row["operation"] == "Write").count(), 1);
    let table = ok(ferrite().args(["top", "--once", &server.address]));
    for part in ["operation", "Write", "OpenPath", "127.0.0.1:"] {
        assert!(table.contains(part), "{part} in {table}");
    }
    drop(files);
    fs.close().unwrap();
    fails(ferrite().args(["top", "--once", server.pool.to_str().unwrap()]), 2);
}

#[test]
fn a_restart_shows() {
    let (mut server, _) = observed(&[]);
    let fs = ferrite::Fs::open_volume(&server.address).unwrap();
    fs.write("/f", "content").unwrap();
    server.kill();
    server.start();
    let mut line = String::new();
    server.said.read_line(&mut line).unwrap();
    let place = line
        .trim()
        .strip_prefix("metrics at http://")
        .unwrap()
        .replace("/metrics", "");
    assert_eq!(fs.read("/f").unwrap(), b"content");
    let scraped = scrape(&place);
    assert_eq!(scraped.value("ferrite_sessions_reclaimed_total{export=\"\"}"), 1.0);
    assert_eq!(scraped.value("ferrite_in_grace{export=\"\"}"), 1.0);
    fs.close().unwrap();
}

/// The work of RDMA: files with keys, translated pages, packets.
#[cfg(feature = "rdma")]
#[test]
fn bound_files_and_packets_are_counted() {
    use std::io::{BufReader, Write};
    use std::process::Stdio;

    let (server, place) = observed(&["--rdma=127.0.0.1:0"]);
    let none = scrape(&place);
    assert_eq!(none.value("ferrite_rdma_bound_files{export=\"\"}"), 0.0);
    assert_eq!(none.value("ferrite_rdma_received_packets_total"), 0.0);
    let url = format!("{}:/file", server.address);
    let write = |words: &[&str], data: &[u8]| {
        let mut command = ferrite();
        let mut child = command
            .arg("mr")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(data).unwrap();
        assert!(child.wait().unwrap().success());
    };
    write(&["append", &url], &[1; 20_000]);
    let mut holder = ferrite()
        .args(["mr", "bind", &url, "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    write(&["write", &url], &[2; 20_000]);
    let some = scrape(&place);
    assert_eq!(some.value("ferrite_rdma_bound_files{export=\"\"}"), 1.0);
    let of = |family: &str| {
        let found = some
            .values
            .iter()
            .find(|(name, _)| name.starts_with(&format!("{family}{{export=\"\",inode=")));
        *found.unwrap_or_else(|| panic!("no {family}")).1
    };
    assert_eq!(of("ferrite_rdma_file_keys"), 1.0);
    assert!(of("ferrite_rdma_file_ranges") >= 1.0);
    let (lookups, hits) = (
        of("ferrite_rdma_file_translations_total"),
        of("ferrite_rdma_file_translation_hits_total"),
    );
    assert!(lookups >= 5.0 && hits <= lookups, "{hits} of {lookups}");
    // An append and a write of five packets each, at least.
    assert!(some.value("ferrite_rdma_executed_packets_total") >= 10.0);
    assert!(some.value("ferrite_rdma_received_packets_total") >= some.value("ferrite_rdma_executed_packets_total"));
    assert!(some.value("ferrite_rdma_sent_packets_total") >= 2.0);
    holder.kill().unwrap();
    holder.wait().unwrap();
}

/// Ill-behaved clients of the endpoint harm neither the server nor, for long, each other.
#[test]
fn the_endpoint_survives_its_clients() {
    let (server, place) = observed(&[]);
    assert!(ask(&place, b"GET /other HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(&place, b"POST /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(ask(&place, b"HEAD /metrics HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
    assert!(ask(&place, b"\xff\xfe\x00 \r\n\r\n").starts_with("HTTP/1.1 405"));
    // A request that is too long, and a client that disconnects at once.
    let mut stream = TcpStream::connect(&place).unwrap();
    let _ = stream.write_all(&[b'x'; 100_000]);
    drop(stream);
    drop(TcpStream::connect(&place).unwrap());
    // A silent client: others wait for a bounded time, clients of the server not at all.
    let silent = TcpStream::connect(&place).unwrap();
    let start = Instant::now();
    ok(ferrite().args(["ls", &format!("{}:/", server.address)]));
    assert!(start.elapsed() < Duration::from_secs(3));
    assert!(!scrape(&place).values.is_empty());
    assert!(start.elapsed() < Duration::from_secs(20));
    drop(silent);
    // An unusable address is refused before anything is opened.
    let said = fails(
        ferrite()
            .arg("serve")
            .arg(&server.pool)
            .args(["--listen", "tcp://127.0.0.1:0", "--metrics", &place]),
        1,
    );
    assert!(said.contains("--metrics") && said.contains("cannot listen"), "{said}");
}

#[test]
fn the_dashboard_shows_metrics_that_there_are() {
    let (server, place) = observed(&[]);
    ok(ferrite().args(["ls", &format!("{}:/", server.address)]));
    let names = scrape(&place).names();
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = Vec::new();
    let panels = dashboard["panels"].as_array().unwrap();
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            queries.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        queries.extend(variable["query"]["query"].as_str().map(str::to_owned));
    }
    queries.extend(dashboard["annotations"]["list"][0]["expr"].as_str().map(str::to_owned));
    let mut used = BTreeSet::new();
    for query in &queries {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let found: Vec<&str> = words.filter(|word| word.starts_with("ferrite_")).collect();
        assert!(!found.is_empty(), "{query}");
        used.extend(found.into_iter().map(str::to_owned));
    }
    let unknown: Vec<_> = used.difference(&names).collect();
    assert!(unknown.is_empty(), "the server has no {unknown:?}");
    let unseen: Vec<_> = names.difference(&used).collect();
    assert!(unseen.is_empty(), "the dashboard does not show {unseen:?}");
    assert!(panels.len() >= 12);
}
