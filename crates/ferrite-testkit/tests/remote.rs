//! Every suite on the reference engine behind a network that delays, reorders and repeats: callers must not notice.

use ferrite_testkit::generate::Profile;
use ferrite_testkit::model::{ReferenceEngine, check_against_reference};
use ferrite_testkit::network::{Conditions, Remote};
use ferrite_testkit::{TestEngine, linear, posix};

fn make(seed: u64) -> impl Fn() -> Box<dyn TestEngine> {
    move || Box::new(Remote::new(ReferenceEngine::new(), Conditions::rough(seed)))
}

#[test]
fn posix_suite() {
    posix::run_all(make(1));
}

#[test]
fn concurrent_suite() {
    linear::run_all(make(2), 1);
}

#[test]
fn random_operations() {
    for profile in Profile::ALL {
        for seed in 0..4 {
            check_against_reference(make(seed), profile, seed, 300);
        }
    }
}
