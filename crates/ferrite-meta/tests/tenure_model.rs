//! A model of tenures: how servers take a shard, prolong their time, commit, hand over, and take over from one that
//! stopped. Stateright visits every state that the bounds below allow.
//!
//! It follows the words of [`Remote`](ferrite_meta::Remote) and of the modules `owned` and `lease`. Two rules are the
//! product's own functions: [`answers_until`], by which an owner counts its lease, and [`ShardRow`], by which
//! `MemoryRemote` counts tenures and batches. Other databases state the second rule in their own language, and pass the
//! conformance tests of `common/remote.rs` instead.
//!
//! # What is modelled
//!
//! * Processes that take a shard, prolong the tenure, commit, read, hand over, die, and start again. A stopped process
//!   needs no state: any of its steps may come at any later time, or never, while time passes. Checking and sending are
//!   steps of their own, and so are reading and checking. A client asks at the moment of the read: if it asked earlier,
//!   fewer answers would be wrong. The answer leaves with the check: if it is held up, it stays what it is.
//! * Time in ticks. Each process' clock is ahead of the database's by `0..=drift` ticks, and by another such number
//!   after each tick, but never goes back. So over any time, a lease included, the two differ by `drift` at most.
//! * Requests that arrive late, never, or several times, also long after nobody waits for the reply; replies that are
//!   lost. A batch stays in the network until the row refuses it for ever, which includes all repetitions by its owner.
//! * A commit counts as acknowledged as soon as the owner learns the outcome, which is the strictest moment.
//!
//! # Bounds
//!
//! Two batches; three tenures of two processes, or two tenures of three; leases of three ticks with a drift of one, or
//! of four with a drift of two ([`Model::two`], [`Model::three`], [`Model::worse_clocks`]). One read is under way at a
//! time, which loses nothing, since reads change nothing. Moments so long past that no rule can tell them apart are one
//! state, so time itself has no bound.
//!
//! # What is not modelled
//!
//! The cache below a whole shard, pages that are ahead of a commit (`owned/known.rs`), commits that share a batch
//! (`owned/committer.rs`), a database that loses what it acknowledged, and progress: that a shard is ever taken again,
//! or that a repeated batch is acknowledged. `tests/owned.rs` runs the product itself on a failing network.

#[path = "tenure_model/state.rs"]
mod state;
#[path = "tenure_model/steps.rs"]
mod steps;

use std::time::Instant;

use state::{Answer, Held, Process, ReadPhase, State};
use stateright::{Checker, HasDiscoveries, Property};
use steps::Step;

/// A mistake in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The owner answers until its time is over, to the last tick.
    NoMargin,
    /// The lease counts from the arrival of the reply.
    LeaseFromReply,
    /// A read looks at the lease first, and at the data afterwards.
    CheckBeforeRead,
    /// The database does not compare the epoch of a batch.
    BatchWithoutEpoch,
    /// The database does not compare the number of a batch.
    BatchWithoutNumber,
    /// The owner gives the shard up, and stops to answer afterwards.
    GiveUpFirst,
    /// The successor decides by its own clock whether the owner's time is over.
    SuccessorsClock,
    /// The owner repeats a batch with the next number.
    NewNumber,
}

/// The bounds of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    pub processes: usize,
    /// Tenures.
    pub epochs: u8,
    /// Batches.
    pub writes: u8,
    /// Ticks of a tenure.
    pub ttl: u8,
    /// Ticks by which a process' clock may differ from the database's over any time.
    pub drift: u8,
    /// Ticks by which an owner stops earlier.
    pub margin: u8,
    /// Clients read.
    pub has_reads: bool,
    /// Time passes.
    pub has_time: bool,
    /// Owners give the shard up, else they only die.
    pub hands_over: bool,
    pub mistake: Option<Mistake>,
}

impl Model {
    fn two() -> Model {
        Model {
            processes: 2,
            epochs: 3,
            writes: 2,
            ttl: 3,
            drift: 1,
            margin: 1,
            has_reads: true,
            has_time: true,
            hands_over: true,
            mistake: None,
        }
    }

    fn three() -> Model {
        Model {
            processes: 3,
            epochs: 2,
            ..Model::two()
        }
    }

    fn worse_clocks() -> Model {
        Model {
            epochs: 2,
            ttl: 4,
            drift: 2,
            margin: 2,
            ..Model::two()
        }
    }

    fn with(mistake: Mistake) -> Model {
        let model = Model::two();
        Model {
            mistake: Some(mistake),
            margin: if mistake == Mistake::NoMargin { 0 } else { model.margin },
            ..model
        }
    }

    pub(crate) fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }
}

const ONE_ANSWERS: &str = "one process at most may answer";
const NEWEST_ANSWERS: &str = "only the owner of the newest epoch may answer";
const READ_WHILE_NEWEST: &str = "an answer is made of what its owner read while its epoch was the newest";
const ONCE_AND_IN_ORDER: &str = "batches are applied once and in order";
const ACKNOWLEDGED_IS_THERE: &str = "the database has what was acknowledged";
const OWNER_KNOWS: &str = "the owner knows what was acknowledged, by itself and before it";
const ANSWER_IS_NOT_OLD: &str = "an answer has what was acknowledged before the question";
/// They fail if an owner still answers when another has taken over.
const TWO_ANSWER: [&str; 4] = [ONE_ANSWERS, NEWEST_ANSWERS, READ_WHILE_NEWEST, ANSWER_IS_NOT_OLD];
const BOTH_COMMIT: &str = "after a takeover, both owners have acknowledged commits";
const SECOND_ANSWERS: &str = "the owner of the second epoch answers";
const LATE_BATCH: &str = "a process learns of the takeover from a batch that it sent afterwards";

fn may_answer(state: &State) -> impl Iterator<Item = &Held> {
    let held = state.processes.iter().filter_map(|process| process.held.as_ref());
    held.filter(|held| held.may_answer())
}

fn is_once_and_in_order(state: &State) -> bool {
    let log = &state.log;
    let is_in_order = log.iter().zip(1..).all(|(batch, number)| batch.seq == number);
    is_in_order && (1..log.len()).all(|i| log[..i].iter().all(|batch| batch.write != log[i].write))
}

fn answers(state: &State) -> impl Iterator<Item = Answer> {
    let read = |process: &Process| match process.held?.read? {
        ReadPhase::Answered(answer) => Some(answer),
        _ => None,
    };
    state.processes.iter().filter_map(read)
}

impl stateright::Model for Model {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.processes)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.enabled(state, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.make(&mut next, step);
        self.forget_what_makes_no_difference(&mut next);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Model>> {
        let always = Property::<Model>::always;
        let sometimes = Property::<Model>::sometimes;
        vec![
            always(ONE_ANSWERS, |_, state| may_answer(state).count() <= 1),
            always(NEWEST_ANSWERS, |_, state| {
                may_answer(state).all(|held| u64::from(held.epoch) == state.row.epoch)
            }),
            always(READ_WHILE_NEWEST, |_, state| {
                answers(state).all(|answer| answer.is_newest)
            }),
            always(ANSWER_IS_NOT_OLD, |_, state| {
                answers(state).all(|answer| !answer.is_old)
            }),
            always(ONCE_AND_IN_ORDER, |_, state| is_once_and_in_order(state)),
            always(ACKNOWLEDGED_IS_THERE, |_, state| {
                state.applied().contains(state.acknowledged)
            }),
            always(OWNER_KNOWS, |_, state| {
                let held = state.processes.iter().filter_map(|process| process.held);
                let mut newest = held.filter(|held| u64::from(held.epoch) == state.row.epoch);
                newest.all(|held| held.known.contains(state.acknowledged))
            }),
            sometimes(BOTH_COMMIT, |_, state| {
                let acknowledged = state.log.iter().filter(|batch| state.acknowledged.has(batch.write));
                let mut epochs: Vec<_> = acknowledged.map(|batch| batch.epoch).collect();
                epochs.dedup();
                epochs.len() > 1
            }),
            sometimes(SECOND_ANSWERS, |_, state| may_answer(state).any(|held| held.epoch == 2)),
            sometimes(LATE_BATCH, |_, state| {
                let batches = state.processes.iter().filter_map(|process| process.held?.batch);
                batches
                    .into_iter()
                    .any(|batch| batch.is_late && batch.is_applied == Some(false))
            }),
        ]
    }
}

fn holds(name: &str, model: Model) {
    let start = Instant::now();
    let checker = stateright::Model::checker(model)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    println!(
        "{name}: {} states, {} steps, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f32()
    );
    assert!(checker.is_done());
    checker.assert_properties();
}

/// Whether a property, one that holds sometimes, does with these bounds.
fn happens(property: &'static str, model: Model) -> bool {
    let wanted = HasDiscoveries::AllOf([property].into());
    let checker = stateright::Model::checker(model).finish_when(wanted).spawn_bfs().join();
    checker.discovery(property).is_some()
}

/// Each of the properties must fail.
fn fails(model: Model, properties: &[&'static str]) {
    for &property in properties {
        let start = Instant::now();
        let wanted = HasDiscoveries::AllOf([property].into());
        let checker = stateright::Model::checker(model).finish_when(wanted).spawn_bfs().join();
        let steps = checker.assert_any_discovery(property).into_actions();
        println!(
            "{:?}, drift {}, margin {}: \"{property}\" fails after {} of {} states, {:.1} s: {steps:?}",
            model.mistake,
            model.drift,
            model.margin,
            steps.len(),
            checker.unique_state_count(),
            start.elapsed().as_secs_f32()
        );
    }
}

#[test]
fn the_protocol_holds_with_two_processes() {
    holds("two processes", Model::two());
}

#[test]
fn the_protocol_holds_with_three_processes() {
    holds("three processes", Model::three());
}

#[test]
fn the_protocol_holds_with_clocks_that_differ_more() {
    holds("clocks that differ more", Model::worse_clocks());
}

#[test]
fn a_hand_over_takes_no_time_and_a_takeover_does() {
    let at_once = Model {
        has_time: false,
        ..Model::two()
    };
    assert!(happens(SECOND_ANSWERS, at_once));
    let without_hand_over = Model {
        hands_over: false,
        ..at_once
    };
    assert!(!happens(SECOND_ANSWERS, without_hand_over));
}

#[test]
fn a_takeover_needs_no_hand_over() {
    let without_hand_over = Model {
        hands_over: false,
        ..Model::two()
    };
    assert!(happens(BOTH_COMMIT, without_hand_over));
}

#[test]
fn without_a_margin_clocks_that_drift_let_two_answer() {
    fails(Model::with(Mistake::NoMargin), &TWO_ANSWER);
}

#[test]
fn a_margin_below_the_drift_lets_two_answer() {
    let model = Model {
        margin: 1,
        ..Model::worse_clocks()
    };
    fails(model, &TWO_ANSWER);
}

#[test]
fn a_lease_that_counts_from_the_reply_lets_two_answer() {
    fails(Model::with(Mistake::LeaseFromReply), &TWO_ANSWER);
}

#[test]
fn a_process_that_stops_between_its_check_and_its_read_answers_from_an_old_epoch() {
    fails(Model::with(Mistake::CheckBeforeRead), &[READ_WHILE_NEWEST]);
}

#[test]
fn a_batch_of_an_old_epoch_takes_the_place_of_an_acknowledged_one() {
    let properties = [ACKNOWLEDGED_IS_THERE, OWNER_KNOWS, ANSWER_IS_NOT_OLD];
    fails(Model::with(Mistake::BatchWithoutEpoch), &properties);
}

#[test]
fn a_batch_without_a_number_is_applied_twice() {
    fails(Model::with(Mistake::BatchWithoutNumber), &[ONCE_AND_IN_ORDER]);
}

#[test]
fn an_owner_that_gives_up_before_it_stops_answers_beside_its_successor() {
    fails(Model::with(Mistake::GiveUpFirst), &TWO_ANSWER);
}

#[test]
fn a_successor_that_trusts_its_own_clock_takes_the_shard_too_early() {
    fails(Model::with(Mistake::SuccessorsClock), &TWO_ANSWER);
}

#[test]
fn a_batch_that_is_repeated_with_a_new_number_is_applied_twice() {
    fails(Model::with(Mistake::NewNumber), &[ONCE_AND_IN_ORDER]);
}
