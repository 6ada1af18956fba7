//! The order in which workloads are tried.

use ferrite_testkit::generate::Profile;

use crate::source::{Name, Source, pairs, triples};

fn named(source: Source) -> Name {
    Name { source, kept: None }
}

/// Random workloads of a round: one of each kind, and two scenes, which are short and come from four scripts.
const KINDS: u64 = 8;

/// Random workloads: `turn` picks the kind, so that all kinds are tried soon.
fn by_chance(turn: u64, seed: u64) -> Name {
    let profiles = Profile::ALL.len() as u64;
    let round = turn / KINDS;
    let first = seed.wrapping_mul(1_000_003);
    let number = first.wrapping_add(round);
    named(match turn % KINDS {
        kind @ (0 | 1) => Source::Scene(first.wrapping_add(2 * round + kind)),
        2 => Source::Random(round % profiles, number),
        3 => Source::Relay(round % profiles, number),
        4 => Source::Churn(number),
        5 => Source::Crowd(number),
        6 => Source::Reuse(number),
        _ => Source::Threads(number),
    })
}

/// The quick search of `make test`: every pair, a sample of the triples, and a few of each other kind.
pub fn quick(seed: u64) -> impl Iterator<Item = Name> + Send {
    let chance = (0..8 * KINDS).map(move |turn| by_chance(turn, seed));
    let triples = (0..triples()).step_by(16).map(|n| named(Source::Triple(n)));
    let pairs = (0..pairs()).map(|n| named(Source::Pair(n)));
    chance.chain(triples).chain(pairs)
}

/// Random workloads, without end.
pub fn chances(seed: u64) -> impl Iterator<Item = Name> + Send {
    (0..).map(move |turn| by_chance(turn, seed))
}

/// Workloads in which mappings that move entries do so, without end.
pub fn crowds(seed: u64) -> impl Iterator<Item = Name> + Send {
    (0..).map(move |turn| named(Source::Crowd(seed.wrapping_mul(1_000_003).wrapping_add(turn))))
}

/// Everything: all pairs and triples with random workloads between them, then random workloads without end.
pub fn endless(seed: u64) -> impl Iterator<Item = Name> + Send {
    let listed = (0..pairs())
        .map(Source::Pair)
        .chain((0..triples()).map(Source::Triple))
        .map(named);
    let mixed = listed
        .enumerate()
        .flat_map(move |(n, name)| [Some(name), (n % 4 == 0).then(|| by_chance(n as u64 / 4, seed))]);
    let first = pairs() + triples();
    mixed.flatten().chain((first..).map(move |turn| by_chance(turn, seed)))
}
