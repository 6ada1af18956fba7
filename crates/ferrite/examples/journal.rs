//! An append-only journal on a pool: run it twice, and kill it in between if you like.
//!
//! `cargo run --example journal -- /dev/shm/journal.pool "a line"`

use ferrite::{Fs, OpenOptions};

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let pool = arguments.next().unwrap_or_else(|| "/dev/shm/journal.pool".into());
    let line = arguments.next().unwrap_or_else(|| "hello".into());
    let fs = Fs::open(&pool).or_else(|_| Fs::create(&pool, 64 << 20))?;
    let journal = OpenOptions::new().append(true).create(true).open(&fs, "/journal")?;
    // Atomic and durable when it returns: there is no flush to forget.
    journal.append(format!("{line}\n").as_bytes())?;
    print!("{}", fs.read_to_string("/journal")?);
    fs.close()
}
