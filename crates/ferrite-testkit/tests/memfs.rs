//! Every suite on the in-memory reference engine: shows that a sound engine passes, and how an engine's own
//! `tests/` folder calls the suites.

use ferrite_testkit::generate::Profile;
use ferrite_testkit::loops::{self, Effort, Progress};
use ferrite_testkit::model::{ReferenceEngine, check_against_reference};
use ferrite_testkit::{TestEngine, linear, posix};

fn make() -> Box<dyn TestEngine> {
    Box::new(ReferenceEngine::new())
}

#[test]
fn posix_suite() {
    posix::run_all(make);
}

#[test]
fn concurrent_suite() {
    linear::run_all(make, 1);
}

/// The reference against itself: any difference here is a fault of the suite (or randomness in the reference).
#[test]
fn random_operations() {
    for profile in Profile::ALL {
        for seed in 0..20 {
            check_against_reference(make, profile, seed, 400);
        }
    }
}

/// Each loop, over its first turns: a failure here is a loop that asks for the impossible.
#[test]
fn loops_mean_something() {
    let effort = Effort {
        moves: 1,
        turns_min: 700,
        turns_max: 700,
    };
    for of in loops::all() {
        let progress = Progress::default();
        println!("{}", of.name);
        loops::run(&mut ReferenceEngine::new(), of, 7, effort, &progress);
    }
}
