//! PostgreSQL starts, survives its death, fails over to its standby, and leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ferrite_test_clusters::{Error, Postgres, PostgresOptions, or_skip};

/// Set in the process that is killed with a server running.
const VICTIM: &str = "FERRITE_TEST_VICTIM";

#[test]
fn a_row_survives_kills_and_restarts() {
    let began = Instant::now();
    let Some(postgres) = or_skip(Postgres::start(&PostgresOptions::default())) else {
        return;
    };
    eprintln!("PostgreSQL started in {:.1} s", began.elapsed().as_secs_f64());
    postgres.sql("create table t(a int); insert into t values (7)").unwrap();
    postgres.primary().kill();
    assert!(postgres.sql("select a from t").is_err(), "nobody is there to answer");
    postgres.primary().start().unwrap();
    assert_eq!(postgres.sql("select a from t").unwrap(), "7\n");
    postgres.primary().stop();
    postgres.primary().start().unwrap();
    assert_eq!(postgres.sql("select a from t").unwrap(), "7\n");
    let refused = postgres.sql("select nothing").unwrap_err();
    assert!(
        refused.to_string().contains("column \"nothing\" does not exist"),
        "{refused}"
    );
}

#[test]
fn a_promoted_standby_has_every_committed_row() {
    let options = PostgresOptions {
        has_standby: true,
        settings: vec![("fsync".into(), "off".into())],
    };
    let began = Instant::now();
    let Some(postgres) = or_skip(Postgres::start(&options)) else {
        return;
    };
    eprintln!(
        "PostgreSQL with a standby started in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    assert_eq!(postgres.sql("show fsync").unwrap(), "off\n");
    postgres.sql("create table t(a int)").unwrap();
    for a in 0..10 {
        postgres.sql(&format!("insert into t values ({a})")).unwrap();
    }
    let refused = postgres.standby().sql("insert into t values (10)").unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
    assert!(postgres.primary().promote().is_err(), "a primary cannot be promoted");
    postgres.primary().kill();
    postgres.standby().promote().unwrap();
    // The same string leads to the new primary.
    assert_eq!(postgres.sql("select count(*), sum(a) from t").unwrap(), "10|45\n");
    postgres.sql("insert into t values (10)").unwrap();
    assert_eq!(postgres.sql("select count(*) from t").unwrap(), "11\n");
}

#[test]
fn an_error_carries_the_end_of_the_log() {
    let options = PostgresOptions {
        settings: vec![("shared_buffers".into(), "nonsense".into())],
        ..PostgresOptions::default()
    };
    match Postgres::start(&options) {
        Err(error @ Error::Failed { .. }) => assert!(error.to_string().contains("shared_buffers"), "{error}"),
        started => drop(or_skip(started.map(|_| panic!("it started with nonsense")))),
    }
}

/// The body of the process that [`nothing_outlives_a_killed_process`] kills.
#[test]
fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let Some(postgres) = or_skip(Postgres::start(&PostgresOptions::default())) else {
        return;
    };
    let folder = postgres.sql("show data_directory").unwrap();
    println!("\nstarted {} {}", postgres.primary().port(), folder.trim());
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn nothing_outlives_a_killed_process() {
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", "victim", "--nocapture"]).env(VICTIM, "1");
    let mut victim = victim.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let Some(line) = lines.find(|line| line.starts_with("started ")) else {
        // It has printed why it skips; anything else is an error of its own.
        return assert!(victim.wait().unwrap().success());
    };
    let (port, data) = line.strip_prefix("started ").unwrap().split_once(' ').unwrap();
    let (port, folder): (u16, _) = (port.parse().unwrap(), Path::new(data).parent().unwrap());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok() && folder.exists());
    victim.kill().unwrap();
    victim.wait().unwrap();
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_ok() || folder.exists() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{} is still there",
            folder.display()
        );
        thread::sleep(Duration::from_millis(50));
    }
}
