//! How long calls may wait for their answers.
//!
//! Contents: [`Waits`], which all sessions of a remote share; [`Use`], what an answer is good for.
//!
//! Invariants: no call waits longer than the time limit. An answer to an owner is of no use once it may not answer its
//! own clients any more, and whoever waits for one keeps what a successor needs, such as locks on devices: such a call
//! ends then. A renewal may give the owner its right back, so it ends only when the tenure is abandoned.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a call may wait at least, even if its answer comes too late to be of use.
const LEAST: Duration = Duration::from_millis(100);
/// How often a call looks whether its answer is still of use.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The use of the answer of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// The owner's clients, as long as it may answer them.
    Answer,
    /// The right to answer them.
    Tenure,
}

/// See the head of this module.
pub(super) struct Waits {
    timeout: Duration,
    began: Instant,
    /// Until when answers are of use, in milliseconds since `began`; 0: always.
    useful_until_ms: AtomicU64,
    is_abandoned: AtomicBool,
}

impl Waits {
    pub(super) fn new(timeout: Duration) -> Waits {
        Waits {
            timeout,
            began: Instant::now(),
            useful_until_ms: AtomicU64::new(0),
            is_abandoned: AtomicBool::new(false),
        }
    }

    /// The time limit of every call.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Answers to the owner are of use for that long from now on; with [`Duration::MAX`] always.
    pub(super) fn are_useful_for(&self, left: Duration) {
        let until = self.began.elapsed().checked_add(left);
        // Rounded up, so that no call ends before the lease does.
        let until_ms = until.map_or(0, |until| u64::try_from(until.as_millis()).unwrap_or(u64::MAX - 1) + 1);
        self.useful_until_ms.store(until_ms, Ordering::Release);
    }

    /// No answer is of use any more.
    pub(super) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// Until when a call may wait that began at `began`.
    pub(super) fn ends_at(&self, began: Instant, what: Use) -> Instant {
        let most = began + self.timeout;
        let useful_until = match (what, self.useful_until_ms.load(Ordering::Acquire)) {
            _ if self.is_abandoned.load(Ordering::Acquire) => began,
            (Use::Tenure, _) | (Use::Answer, 0) => return most,
            (Use::Answer, until_ms) => match self.began.checked_add(Duration::from_millis(until_ms)) {
                Some(until) => until,
                None => return most,
            },
        };
        most.min(useful_until.max(began + LEAST))
    }

    /// Waits for a future, as long as a call may that began at `began`. `Err`: that was how long.
    pub(super) async fn within<F: Future + Unpin>(
        &self,
        began: Instant,
        what: Use,
        mut future: F,
    ) -> Result<F::Output, Duration> {
        loop {
            let left = self.ends_at(began, what).saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(began.elapsed());
            }
            if let Ok(output) = tokio::time::timeout(left.min(LOOK_EVERY), &mut future).await {
                return Ok(output);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn a_call_waits_as_long_as_its_answer_is_of_use() {
        let (waits, began) = (Waits::new(TIMEOUT), Instant::now());
        let limit = |what| waits.ends_at(began, what) - began;
        assert_eq!((limit(Use::Answer), limit(Use::Tenure)), (TIMEOUT, TIMEOUT));
        waits.are_useful_for(Duration::from_secs(2));
        let answer = limit(Use::Answer);
        assert!(
            answer >= Duration::from_millis(1999) && answer < Duration::from_secs(3),
            "{answer:?}"
        );
        assert_eq!(limit(Use::Tenure), TIMEOUT, "a renewal may still succeed");
        waits.are_useful_for(Duration::ZERO);
        assert!(limit(Use::Answer) >= LEAST && limit(Use::Answer) < TIMEOUT);
        waits.are_useful_for(Duration::from_secs(60));
        assert_eq!(limit(Use::Answer), TIMEOUT, "the lease was renewed");
        waits.are_useful_for(Duration::MAX);
        assert_eq!(limit(Use::Answer), TIMEOUT);
        waits.abandon();
        assert_eq!((limit(Use::Answer), limit(Use::Tenure)), (LEAST, LEAST));
    }

    #[test]
    fn a_call_under_way_notices_that_it_is_of_no_use() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let waits = Waits::new(Duration::from_secs(60));
        let waited = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                waits.abandon();
            });
            runtime.block_on(waits.within(Instant::now(), Use::Tenure, std::future::pending::<()>()))
        });
        assert!(waited.unwrap_err() < Duration::from_secs(10));
    }
}
