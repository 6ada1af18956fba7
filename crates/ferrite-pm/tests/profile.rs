//! The probes of a profiling build: each tick belongs to one span, and each thread has an account of its own.
#![cfg(feature = "spans")]

use ferrite_pm::profile::{ProfileSpan, begin, calibrate, end, turn_to, within};

/// Time outside of every span is rest; a span that interrupts another is not part of it.
#[test]
fn every_tick_belongs_to_one_span() {
    let spin = || (0..2000u64).fold(1u64, |a, b| std::hint::black_box(a.wrapping_mul(31) + b % 2));
    begin();
    spin();
    within(ProfileSpan::Lookup, || {
        spin();
        within(ProfileSpan::Claim, spin);
        turn_to(ProfileSpan::Books);
        spin();
    });
    spin();
    let profile = end();
    let sum: u64 = ProfileSpan::ALL.iter().map(|&span| profile.ticks(span)).sum();
    assert_eq!(sum, profile.whole_ticks);
    for span in [
        ProfileSpan::Rest,
        ProfileSpan::Lookup,
        ProfileSpan::Claim,
        ProfileSpan::Books,
    ] {
        assert!(profile.ticks(span) > 1000, "{span:?} has {}", profile.ticks(span));
    }
    let visits = [
        ProfileSpan::Lookup,
        ProfileSpan::Claim,
        ProfileSpan::Books,
        ProfileSpan::Fence,
    ]
    .map(|span| profile.visits(span));
    assert_eq!(visits, [1, 1, 1, 0]);
    // In and out of each, but for the span that another took the place of.
    let borders = [
        ProfileSpan::Rest,
        ProfileSpan::Lookup,
        ProfileSpan::Claim,
        ProfileSpan::Books,
    ]
    .map(|span| profile.borders(span));
    assert_eq!(borders, [2, 4, 2, 2]);
    assert_eq!(profile.ticks(ProfileSpan::Fence), 0);
}

#[test]
fn a_closed_account_takes_nothing_and_other_threads_have_their_own() {
    within(ProfileSpan::Lock, || {});
    begin();
    std::thread::spawn(|| within(ProfileSpan::Fence, || {}))
        .join()
        .expect("it does not panic");
    let profile = end();
    within(ProfileSpan::Lock, || {});
    assert_eq!(
        [ProfileSpan::Fence, ProfileSpan::Lock].map(|span| profile.visits(span)),
        [0, 0]
    );
}

#[test]
fn a_border_costs_some_nanoseconds() {
    let clock = calibrate();
    let border_ns = clock.border_ticks * clock.ns_per_tick;
    assert!((1.0..1000.0).contains(&border_ns), "{border_ns} ns");
}
