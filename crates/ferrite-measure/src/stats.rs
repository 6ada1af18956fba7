//! Means, medians and their intervals.
//!
//! The interval is the distribution-free one by order statistics: with probability 95 % (by the normal approximation of
//! the binomial) the true median lies between the two samples it names. With fewer than six samples it is all of them.

use std::cmp::Ordering;

/// 97.5 % quantile of the normal distribution.
const Z: f64 = 1.96;

/// NaN of nothing.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The value in the middle, or the mean of the two there; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    median_with_interval(&mut values.to_vec()).0
}

/// Sorts and returns the value that 99 of 100 do not exceed.
pub fn p99<T: Copy>(values: &mut [T], compare: impl FnMut(&T, &T) -> Ordering) -> Option<T> {
    values.sort_by(compare);
    values.get((values.len() * 99).div_ceil(100).saturating_sub(1)).copied()
}

/// Sorts and returns the median and the ends of its interval; all NaN of nothing.
pub fn median_with_interval(samples: &mut [f64]) -> (f64, f64, f64) {
    if samples.is_empty() {
        return (f64::NAN, f64::NAN, f64::NAN);
    }
    samples.sort_by(f64::total_cmp);
    let count = samples.len() as f64;
    let reach = Z * count.sqrt() / 2.0;
    let last = samples.len() - 1;
    let low = (count / 2.0 - reach).floor().max(0.0) as usize;
    let high = ((count / 2.0 + reach).ceil() as usize).min(last);
    let middle = samples.len() / 2;
    let median = if samples.len().is_multiple_of(2) {
        (samples[middle - 1] + samples[middle]) / 2.0
    } else {
        samples[middle]
    };
    (median, samples[low], samples[high])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn one_of_a_hundred_may_exceed_p99() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(p99(&mut values, u64::cmp), Some(198));
        assert_eq!(p99(&mut [5, 3], u64::cmp), Some(5));
        assert_eq!(p99(&mut [], u64::cmp), None);
    }

    #[test]
    fn few_samples_are_all_in_the_interval() {
        assert_eq!(median_with_interval(&mut [3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(median_with_interval(&mut [4.0, 2.0]), (3.0, 2.0, 4.0));
        assert!(median_with_interval(&mut []).0.is_nan() && mean(&[]).is_nan());
        assert_eq!((median(&[9.0, 1.0, 2.0]), mean(&[9.0, 1.0, 2.0])), (2.0, 4.0));
    }

    /// About 95 of 100 intervals hold the true median.
    #[test]
    fn intervals_hold_the_true_median_as_often_as_they_say() {
        let mut rng = Rng::new(1);
        let held = (0..2000)
            .filter(|_| {
                let mut samples: Vec<f64> = (0..41).map(|_| rng.unit()).collect();
                let (_, low, high) = median_with_interval(&mut samples);
                low <= 0.5 && 0.5 <= high
            })
            .count();
        assert!((1860..=1980).contains(&held), "{held} of 2000");
    }
}
