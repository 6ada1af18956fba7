//! The throughput of threads over a period of time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Turns a second that `threads` concurrent threads complete in `length`; `worker` gives each thread the closure that
/// does one turn. A thread that starts late still does one turn.
///
/// # Errors
/// The first error of a turn; the other threads have finished by then.
pub fn turns_per_second<E: Send, W: FnMut() -> Result<(), E>>(
    threads: usize,
    length: Duration,
    worker: impl Fn(usize) -> W + Sync,
) -> Result<f64, E> {
    let (stop, total) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let worker = &worker;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let (mut turn, mut done) = (worker(thread), 0);
                    loop {
                        turn()?;
                        done += 1;
                        if stop.load(Ordering::Relaxed) {
                            total.fetch_add(done, Ordering::Relaxed);
                            return Ok(());
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(total.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_of_all_threads_count_and_an_error_is_handed_on() {
        let counted = AtomicU64::new(0);
        let count = |_: usize| {
            || {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok::<(), String>(())
            }
        };
        let start = Instant::now();
        let rate = turns_per_second(3, Duration::from_millis(20), count).expect("no turn fails");
        let most = counted.load(Ordering::Relaxed) as f64 / 0.02;
        let least = counted.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        assert!((least..=most).contains(&rate), "{least} {rate} {most}");
        // One turn each, however short the time is.
        assert!(turns_per_second(3, Duration::ZERO, count).expect("no turn fails") > 0.0);
        let second_fails = |thread: usize| move || if thread == 1 { Err("second") } else { Ok(()) };
        assert_eq!(turns_per_second(3, Duration::ZERO, second_fails), Err("second"));
    }
}
