//! Reads that take unusually long are sent a second time; the first answer counts.
//!
//! Unusual is twice what 95 of 100 reads took lately. So that a service which is slow for everybody does not get twice
//! the requests, a twentieth of all reads may be sent again, and a few more after a quiet time.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};

const DELAY_MIN: Duration = Duration::from_millis(50);
const DELAY_MAX: Duration = Duration::from_secs(10);
/// Before anything is known.
const FIRST_US: u64 = 500_000;
/// Hundredths of a second request: for each read, for each second request, and at most.
const A_READ: i64 = 5;
const A_SECOND: i64 = 100;
const CREDIT_MAX: i64 = 1000;

/// An estimate of the time that reads take.
#[derive(Debug)]
pub(crate) struct Hedge {
    /// About the 95th percentile, in microseconds.
    usual_us: AtomicU64,
    credit: AtomicI64,
    /// Reads that were sent a second time.
    seconds: AtomicU64,
}

impl Default for Hedge {
    fn default() -> Hedge {
        Hedge {
            usual_us: AtomicU64::new(FIRST_US),
            credit: AtomicI64::new(CREDIT_MAX),
            seconds: AtomicU64::new(0),
        }
    }
}

impl Hedge {
    /// How many reads were sent a second time.
    pub(crate) fn seconds(&self) -> u64 {
        self.seconds.load(Ordering::Relaxed)
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.usual_us.load(Ordering::Relaxed) * 2).clamp(DELAY_MIN, DELAY_MAX)
    }

    /// A read has ended. The estimate moves up as far for one read above it as down for nineteen below.
    fn note(&self, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let usual_us = self.usual_us.load(Ordering::Relaxed);
        let step = (usual_us / 100).max(1);
        let moved = match took_us > usual_us {
            true => usual_us.saturating_add(step * 19).min(took_us),
            false => usual_us.saturating_sub(step).max(1),
        };
        // Two threads may move it at once; one of the moves is enough.
        self.usual_us.store(moved, Ordering::Relaxed);
        let credit = self.credit.fetch_add(A_READ, Ordering::Relaxed);
        if credit + A_READ > CREDIT_MAX {
            self.credit.fetch_sub(A_READ, Ordering::Relaxed);
        }
    }

    fn may_send_again(&self) -> bool {
        let had = self.credit.fetch_sub(A_SECOND, Ordering::Relaxed);
        let may = had >= A_SECOND;
        if !may {
            self.credit.fetch_add(A_SECOND, Ordering::Relaxed);
        }
        may
    }

    /// The answer to a read, which is sent a second time if it takes long. A failure counts only if both fail.
    pub(crate) async fn read<T, E, F: Future<Output = Result<T, E>>>(&self, send: impl Fn() -> F) -> Result<T, E> {
        let begun = Instant::now();
        let first = pin!(send());
        let answer = match select(first, pin!(tokio::time::sleep(self.delay()))).await {
            Either::Left((answer, _)) => answer,
            Either::Right((_, first)) if self.may_send_again() => {
                self.seconds.fetch_add(1, Ordering::Relaxed);
                match select(first, pin!(send())).await {
                    Either::Left((Err(_), other)) => other.await,
                    Either::Right((Err(_), other)) => other.await,
                    Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
                }
            }
            Either::Right((_, first)) => first.await,
        };
        if answer.is_ok() {
            self.note(begun.elapsed());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(work)
    }

    /// Protects readers: a request that is never answered costs one delay.
    #[test]
    fn a_request_that_hangs_is_sent_again() {
        let hedge = Hedge::default();
        for _ in 0..300 {
            hedge.note(Duration::from_millis(5));
        }
        assert_eq!(hedge.delay(), DELAY_MIN);
        let sent = AtomicU64::new(0);
        let answer = run(hedge.read(|| {
            let number = sent.fetch_add(1, Ordering::Relaxed);
            async move {
                if number == 0 {
                    std::future::pending::<()>().await;
                }
                Ok::<u64, ()>(number)
            }
        }));
        assert_eq!((answer, hedge.seconds()), (Ok(1), 1));
    }

    /// One of two may fail; both, or the only one, may not.
    #[test]
    fn the_first_good_answer_counts() {
        let hedge = Hedge::default();
        hedge.usual_us.store(1, Ordering::Relaxed);
        for (fails, wanted) in [([true, false], Ok(1)), ([false, true], Ok(0)), ([true, true], Err(1))] {
            let sent = AtomicU64::new(0);
            let answer = run(hedge.read(|| {
                let number = sent.fetch_add(1, Ordering::Relaxed);
                async move {
                    tokio::time::sleep(Duration::from_millis(80 + 40 * number)).await;
                    match fails[number as usize] {
                        true => Err(number),
                        false => Ok(number),
                    }
                }
            }));
            assert_eq!(answer, wanted, "{fails:?}");
        }
        let quick = run(hedge.read(|| async { Err::<(), u64>(7) }));
        assert_eq!((quick, hedge.seconds()), (Err(7), 3));
    }

    /// Protects the service: when all reads are slow, few are sent again.
    #[test]
    fn few_reads_are_sent_again() {
        let hedge = Hedge::default();
        let again = (0..1000).filter(|_| {
            hedge.note(Duration::from_secs(1));
            hedge.may_send_again()
        });
        let again = again.count();
        assert!((50..70).contains(&again), "{again}");
        assert!(hedge.delay() > Duration::from_millis(1900), "{:?}", hedge.delay());
        for _ in 0..1000 {
            hedge.note(Duration::from_millis(10));
        }
        assert!(hedge.delay() < Duration::from_millis(60), "{:?}", hedge.delay());
    }
}
