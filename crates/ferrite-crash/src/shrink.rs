//! The shortest workload that still fails.

use std::time::{Duration, Instant};

use crate::explore::{Effort, Failure, Search};
use crate::source::{Name, Source};

/// Drops ever smaller parts of the workload as long as some image of the rest is wrong (delta debugging). Does not
/// shrink workloads of several threads: they do not run the same way twice.
pub fn shrink(first: Failure, effort: Effort, limit: Duration) -> Failure {
    if matches!(first.name.source, Source::Threads(_)) {
        return first;
    }
    let started = Instant::now();
    let mut best = first;
    let all: usize = best.name.workload().threads.iter().map(Vec::len).sum();
    let mut kept: Vec<usize> = best.name.kept.clone().unwrap_or_else(|| (0..all).collect());
    let mut chunk = kept.len().div_ceil(2);
    while chunk > 0 {
        let (mut at, mut dropped) = (0, false);
        while at < kept.len() && started.elapsed() < limit {
            let mut fewer = kept.clone();
            fewer.drain(at..(at + chunk).min(kept.len()));
            let name = Name {
                kept: Some(fewer.clone()),
                ..best.name.clone()
            };
            match Search::new(best.variant, effort).workload(&name) {
                Err(failure) => {
                    (best, kept, dropped) = (*failure, fewer, true);
                }
                Ok(()) => at += chunk,
            }
        }
        if started.elapsed() >= limit {
            break;
        }
        chunk = if dropped && chunk == 1 { 1 } else { chunk / 2 };
    }
    best
}
