//! Round trips of a provider with nothing of ours around them:
//! `cargo run --features fabric --example bare -- shm 4096`.

fn main() {
    let mut arguments = std::env::args().skip(1);
    let provider = arguments.next().unwrap_or_else(|| "shm".into());
    let bytes = arguments
        .next()
        .map_or(4096, |text| text.parse().expect("a number of bytes"));
    let provider = ferrite_fabric::Provider::named(&provider).expect("shm, verbs or tcp");
    match ferrite_fabric::bare::ping_pong(provider, bytes, 20_000) {
        Ok(taken) => println!("{} {bytes} bytes: {taken:?} there and back", provider.name()),
        Err(error) => println!("{error}"),
    }
}
