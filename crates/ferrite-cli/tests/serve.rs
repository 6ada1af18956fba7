//! `ferrite serve`: what is wrong with its arguments is said before anything is opened, and named.

mod common;

use common::{fails, ferrite, mkfs};

#[test]
fn wrong_words_are_refused_before_anything_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    for (listen, said) in [
        ("tcp://0.0.0.0:0", "can be reached from other machines"),
        ("127.0.0.1:1", "begins with tcp://"),
        ("tcp://127.0.0.1", "tcp://HOST:PORT"),
    ] {
        let text = fails(ferrite().arg("serve").arg(&pool).args(["--listen", listen]), 2);
        assert!(text.contains(said) && text.contains(listen), "{text}");
    }
    let text = fails(
        ferrite()
            .arg("serve")
            .arg(&pool)
            .args(["--listen", "tcp://127.0.0.1:0"]),
        1,
    );
    assert!(text.contains("No such file"), "{text}");
    mkfs(&pool, &["--size", "16M"]);
    let text = fails(
        ferrite()
            .arg("serve")
            .arg(&pool)
            .args(["--listen", "tcp://127.0.0.1:0", "--path", "/missing"]),
        1,
    );
    assert!(text.contains("/missing"), "{text}");
}
