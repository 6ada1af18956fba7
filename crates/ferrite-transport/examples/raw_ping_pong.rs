//! Round trips over a provider alone, without this crate's transport:
//! `cargo run --features fabric --example raw_ping_pong -- shm 4096`. A third argument gives their number; a fourth,
//! the address of this host to use.

fn main() {
    let mut arguments = std::env::args().skip(1);
    let provider = arguments.next().unwrap_or_else(|| "shm".into());
    let bytes = arguments
        .next()
        .map_or(4096, |text| text.parse().expect("a number of bytes"));
    let rounds = arguments
        .next()
        .map_or(20_000, |text| text.parse().expect("a number of rounds"));
    let host = arguments.next().unwrap_or_else(|| "127.0.0.1".into());
    let provider = ferrite_transport::Provider::named(&provider).expect("shm, verbs or tcp");
    match ferrite_transport::raw_ping_pong::ping_pong(provider, &host, bytes, rounds) {
        Ok(taken) => println!("{} {bytes} bytes: {taken:?} there and back", provider.name()),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
