//! The order in which workloads are tried.

use ferrite_testkit::generate::Profile;

use crate::source::{Name, Source, alphabet, pairs, triples};

/// Random workloads of a round without tokens: one of each kind, and two scenes, which are short and come from four
/// scripts.
const KINDS: u64 = 9;
/// Two of them come again with tokens, different ones in each round.
const TOKENS: u64 = 2;
const ROUND: u64 = KINDS + TOKENS;
/// One in this many pairs and triples comes with tokens in a quick search.
const TOKENS_EVERY: usize = 24;

/// Random workloads: `turn` picks the kind, so that all kinds occur soon.
fn by_chance(turn: u64, seed: u64) -> Name {
    let profiles = Profile::ALL.len() as u64;
    let (round, turn) = (turn / ROUND, turn % ROUND);
    let first = seed.wrapping_mul(1_000_003);
    let number = first.wrapping_add(round);
    let of_kind = |kind: u64| {
        Name::from(match kind {
            0 | 1 => Source::Scene(first.wrapping_add(2 * round + kind)),
            2 => Source::Random(round % profiles, number),
            3 => Source::Relay(round % profiles, number),
            4 => Source::Churn(number),
            5 => Source::Crowd(number),
            6 => Source::Reuse(number),
            7 => Source::Threads(number),
            _ => Source::Clones(number),
        })
    };
    match turn.checked_sub(KINDS) {
        None => of_kind(turn),
        // Scenes come last: they test other rules.
        Some(nth) => of_kind((TOKENS * round + nth + 2) % KINDS).with_tokens(round),
    }
}

/// Short workloads with tokens: each operation alone, and one in `every` pairs and triples.
fn short_with_tokens(seed: u64, every: usize) -> impl Iterator<Item = Name> + Send {
    let singles = alphabet().len() as u64;
    let alone = (0..singles).map(move |n| Name::from(Source::Pair(n)).with_tokens(2 * seed));
    let skipped = (seed % every as u64) as usize;
    let pairs = (singles..pairs()).map(Source::Pair);
    let triples = (0..triples()).map(Source::Triple);
    let longer = pairs.chain(triples).skip(skipped).step_by(every);
    alone.chain(longer.map(move |source| Name::from(source).with_tokens(seed)))
}

/// The quick search of `make test`: every pair, a sample of the triples, a few of each other kind, and a sample of all
/// with tokens.
pub fn quick(seed: u64) -> impl Iterator<Item = Name> + Send {
    let chance = (0..8 * ROUND).map(move |turn| by_chance(turn, seed));
    let triples = (0..triples()).step_by(16).map(|n| Source::Triple(n).into());
    let pairs = (0..pairs()).map(|n| Source::Pair(n).into());
    chance
        .chain(triples)
        .chain(short_with_tokens(seed, TOKENS_EVERY))
        .chain(pairs)
}

/// Random workloads, without end.
pub fn chances(seed: u64) -> impl Iterator<Item = Name> + Send {
    (0..).map(move |turn| by_chance(turn, seed))
}

/// Workloads in which mappings that move entries do so, without end.
pub fn crowds(seed: u64) -> impl Iterator<Item = Name> + Send {
    (0..).map(move |turn| Source::Crowd(seed.wrapping_mul(1_000_003).wrapping_add(turn)).into())
}

/// Workloads of files that share blocks, without end.
pub fn clones(seed: u64) -> impl Iterator<Item = Name> + Send {
    (0..).map(move |turn| Source::Clones(seed.wrapping_mul(1_000_003).wrapping_add(turn)).into())
}

/// Everything: all pairs and triples with random workloads between them, then random workloads without end.
pub fn endless(seed: u64) -> impl Iterator<Item = Name> + Send {
    let listed = (0..pairs())
        .map(Source::Pair)
        .chain((0..triples()).map(Source::Triple))
        .map(Name::from);
    let mixed = listed.enumerate().flat_map(move |(n, name)| {
        let with_tokens = (n % 8 == 4).then(|| name.clone().with_tokens(seed));
        [
            Some(name),
            with_tokens,
            (n % 4 == 0).then(|| by_chance(n as u64 / 4, seed)),
        ]
    });
    let first = pairs() + triples();
    mixed.flatten().chain((first..).map(move |turn| by_chance(turn, seed)))
}

/// The same for pools that hold stores back: without tokens, because an outcome must be durable before the client
/// learns of it.
pub fn deferred(seed: u64) -> impl Iterator<Item = Name> + Send {
    let listed = (0..pairs()).step_by(7).map(|n| Source::Pair(n).into());
    let chances = chances(seed).filter(|name| name.tokens.is_none());
    let mut listed = listed.into_iter();
    chances.flat_map(move |name| [Some(name), listed.next()].into_iter().flatten())
}
