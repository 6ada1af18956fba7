//! An append-only journal on a pool: run it twice, and kill it in between if you like.
//!
//! `cargo run --example journal -- /dev/shm/journal.pool "a line"`

use std::io::ErrorKind;

use ferrite::{Fs, OpenOptions};

fn main() -> ferrite::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let pool = arguments.next().unwrap_or_else(|| "/dev/shm/journal.pool".into());
    let line = arguments.next().unwrap_or_else(|| "hello".into());
    let fs = match Fs::open(&pool) {
        Err(error) if error.kind() == ErrorKind::NotFound => Fs::create(&pool, 64 << 20)?,
        other => other?,
    };
    let journal = OpenOptions::new().append(true).create(true).open(&fs, "/journal")?;
    // Atomic and durable when it returns: there is no flush to forget.
    journal.append(format!("{line}\n").as_bytes())?;
    print!("{}", fs.read_to_string("/journal")?);
    fs.close()
}
