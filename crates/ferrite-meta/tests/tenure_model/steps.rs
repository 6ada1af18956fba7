//! The steps of the model: which are possible in a state, and what each does.
//!
//! Contents: [`Step`], with [`Model::enabled`] and [`Model::make`].

use ferrite_meta::{Applied, Error, ShardRow, answers_until};

use super::state::{Answer, Batch, Call, Held, NOW, Pending, Process, ReadPhase, Reply, State, Ticks, duration, ticks};
use super::{Mistake, Model};

/// The most processes that a tick can move.
const PROCESSES: usize = 3;

/// One step. Numbers are places in the lists of the state, and `ahead` is where a clock turns out to be that
/// nobody has looked at before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Time passes; then the clocks are that much ahead.
    Tick([Ticks; PROCESSES]),
    /// Sends a request to take the shard, or to prolong the tenure.
    Call {
        process: usize,
        ahead: Ticks,
    },
    /// The request of a process arrives at the database.
    CallArrives(usize),
    ReplyArrives(usize),
    /// The process no longer waits for the reply.
    TimeOut(usize),
    /// A request to take the shard arrives from a process that has died since, or to prolong the tenure of that epoch
    /// from an owner that does not wait for the reply. It was sent earlier, or is there for the second time.
    StrayTakeArrives,
    StrayRenewArrives(u8),
    /// A request to end the tenure of that epoch.
    GiveUpArrives(u8),
    /// A client commits at an owner, which checks that it may answer.
    Commit(usize),
    SendBatch(usize),
    /// Only with a mistake.
    NewNumber(usize),
    /// A batch arrives at the database, for the first time or again.
    BatchArrives(usize),
    /// The owner learns the outcome, and acknowledges it to the client.
    OutcomeArrives(usize),
    /// A client asks an owner, which reads: a client that asked earlier would be content with less.
    Read(usize),
    /// The owner looks whether it may answer, and does.
    Check(usize),
    /// The hand-over begins.
    StopAnswering(usize),
    /// Sends the request to end the tenure.
    GiveUp(usize),
    /// The process ends without a word, or its store does. A new one may take its place.
    Die(usize),
}

impl Model {
    /// The steps that are possible.
    pub(crate) fn enabled(&self, state: &State, steps: &mut Vec<Step>) {
        if self.has_time {
            self.ticks(state, steps);
        }
        for (at, process) in state.processes.iter().enumerate() {
            self.calls(state, at, process, steps);
            if let Some(held) = &process.held {
                self.commits(state, at, held, steps);
                self.reads(state, at, held, steps);
                self.ends(at, process, held, steps);
            }
        }
        let takes = state.epoch() > 0 && state.epoch() < self.epochs;
        steps.extend(takes.then_some(Step::StrayTakeArrives));
        steps.extend((1..=state.epoch()).map(Step::StrayRenewArrives));
        let given_up = (1..=state.epoch()).filter(|&epoch| state.given_up.has(epoch));
        steps.extend(given_up.map(Step::GiveUpArrives));
        steps.extend((0..state.batches.len()).map(Step::BatchArrives));
    }

    /// Every combination of what the clocks may show after the next tick.
    fn ticks(&self, state: &State, steps: &mut Vec<Step>) {
        let mut all = vec![[0; PROCESSES]];
        for (at, process) in state
            .processes
            .iter()
            .enumerate()
            .filter(|(_, process)| process.uses_clock())
        {
            // It never goes back.
            let possible = process.ahead.saturating_sub(1)..=self.drift;
            let with = |mut clocks: [Ticks; PROCESSES], ahead| {
                clocks[at] = ahead;
                clocks
            };
            all = all
                .iter()
                .flat_map(|&clocks| possible.clone().map(move |ahead| with(clocks, ahead)))
                .collect();
        }
        steps.extend(all.into_iter().map(Step::Tick));
    }

    fn calls(&self, state: &State, at: usize, process: &Process, steps: &mut Vec<Step>) {
        if let Some(call) = process.call {
            // Epochs and numbers only grow, so the row will refuse these again.
            let may_change = call.renews || state.epoch() < self.epochs;
            steps.extend(may_change.then_some(Step::CallArrives(at)));
            steps.extend(call.reply.map(|_| Step::ReplyArrives(at)));
            steps.push(Step::TimeOut(at));
            return;
        }
        let may_call = match process.held {
            Some(held) => !held.is_stopping && !held.is_given_up,
            None => state.epoch() < self.epochs,
        };
        if may_call {
            let possible = match process.uses_clock() {
                true => process.ahead..=process.ahead,
                false => 0..=self.drift,
            };
            steps.extend(possible.map(|ahead| Step::Call { process: at, ahead }));
        }
    }

    fn commits(&self, state: &State, at: usize, held: &Held, steps: &mut Vec<Step>) {
        match held.batch {
            None if held.may_answer() && state.writes < self.writes => steps.push(Step::Commit(at)),
            None => {}
            Some(batch) => {
                steps.extend((!batch.is_sent).then_some(Step::SendBatch(at)));
                let may_err = self.has(Mistake::NewNumber) && batch.is_sent && batch.seq < held.seq + 2;
                steps.extend(may_err.then_some(Step::NewNumber(at)));
                steps.extend(batch.is_applied.map(|_| Step::OutcomeArrives(at)));
            }
        }
    }

    fn reads(&self, state: &State, at: usize, held: &Held, steps: &mut Vec<Step>) {
        let checks_first = self.has(Mistake::CheckBeforeRead);
        match held.read {
            None => {
                let reads = |process: &Process| process.held.is_some_and(|held| held.read.is_some());
                let is_free = self.has_reads && !state.processes.iter().any(reads);
                let first = if checks_first { Step::Check(at) } else { Step::Read(at) };
                steps.extend(is_free.then_some(first));
            }
            Some(ReadPhase::Checked { .. }) => steps.push(Step::Read(at)),
            Some(ReadPhase::Read(_)) => steps.push(Step::Check(at)),
            Some(ReadPhase::Answered(_)) => {}
        }
    }

    fn ends(&self, at: usize, process: &Process, held: &Held, steps: &mut Vec<Step>) {
        let is_drained = self.hands_over && held.batch.is_none() && process.call.is_none();
        let (stops, gives_up) = match self.has(Mistake::GiveUpFirst) {
            false => (is_drained && !held.is_stopping, held.is_stopping),
            true => (held.is_given_up, is_drained && !held.is_given_up),
        };
        steps.extend(stops.then_some(Step::StopAnswering(at)));
        steps.extend(gives_up.then_some(Step::GiveUp(at)));
        steps.push(Step::Die(at));
    }

    /// Makes a step that is possible.
    pub(crate) fn make(&self, state: &mut State, step: Step) {
        match step {
            Step::Tick(ahead) => self.tick(state, ahead),
            Step::Call { process, ahead } => {
                let process = &mut state.processes[process];
                process.ahead = ahead;
                process.call = Some(Call {
                    renews: process.held.is_some(),
                    sent: NOW,
                    reply: None,
                });
            }
            Step::CallArrives(at) => self.call_arrives(state, at),
            Step::ReplyArrives(at) => self.reply_arrives(state, at),
            Step::TimeOut(at) => state.processes[at].call = None,
            Step::StrayTakeArrives => drop(self.take(state, NOW)),
            Step::StrayRenewArrives(epoch) => drop(self.renew(state, epoch)),
            Step::GiveUpArrives(epoch) => {
                // One that comes too late is refused.
                let _ = state.row.renew(epoch.into(), duration(NOW), duration(0));
            }
            Step::BatchArrives(at) => self.batch_arrives(state, at),
            Step::StopAnswering(at) => match self.has(Mistake::GiveUpFirst) {
                false => held(state, at).is_stopping = true,
                true => state.processes[at].held = None,
            },
            Step::GiveUp(at) => {
                let epoch = held(state, at).epoch;
                state.given_up.add(epoch);
                match self.has(Mistake::GiveUpFirst) {
                    false => state.processes[at].held = None,
                    true => held(state, at).is_given_up = true,
                }
            }
            Step::Die(at) => state.processes[at] = Process::default(),
            Step::Commit(_) | Step::SendBatch(_) | Step::NewNumber(_) | Step::OutcomeArrives(_) => {
                commit_step(state, step);
            }
            Step::Read(at) => read(state, at, self.has(Mistake::CheckBeforeRead)),
            Step::Check(at) => check(state, at),
        }
    }

    fn tick(&self, state: &mut State, ahead: [Ticks; PROCESSES]) {
        state.row.expires = state.row.expires.saturating_sub(duration(1));
        for (process, ahead) in state.processes.iter_mut().zip(ahead) {
            let elapsed = 1 + ahead - process.ahead.min(1 + ahead);
            process.ahead = ahead;
            if let Some(call) = &mut process.call {
                // From then on, its lease has ended before it begins.
                call.sent = (call.sent - elapsed).max(NOW - self.ttl);
            }
            if let Some(held) = &mut process.held {
                held.until = held.until.saturating_sub(elapsed).max(NOW);
            }
        }
    }

    /// The database handles a request to take the shard; `now` is its clock, except with a mistake.
    fn take(&self, state: &mut State, now: Ticks) -> Option<Reply> {
        state.row.take(duration(now), duration(self.ttl)).ok()?;
        Some(Reply::Taken {
            epoch: state.epoch(),
            seq: state.row.seq as u8,
            content: state.applied(),
        })
    }

    fn renew(&self, state: &mut State, epoch: u8) -> Option<Reply> {
        state.row.renew(epoch.into(), duration(NOW), duration(self.ttl)).ok()?;
        Some(Reply::Renewed)
    }

    fn call_arrives(&self, state: &mut State, at: usize) {
        let process = state.processes[at];
        let Some(call) = process.call else { return };
        let reply = match process.held {
            Some(held) => self.renew(state, held.epoch),
            None if self.has(Mistake::SuccessorsClock) => self.take(state, call.sent + process.ahead),
            None => self.take(state, NOW),
        };
        // The first reply counts.
        state.processes[at].call = Some(Call {
            reply: call.reply.or(reply),
            ..call
        });
    }

    fn reply_arrives(&self, state: &mut State, at: usize) {
        let Some(Call { sent, reply, .. }) = state.processes[at].call else {
            return;
        };
        state.processes[at].call = None;
        let counted_from = match self.has(Mistake::LeaseFromReply) {
            true => NOW,
            false => sent,
        };
        let until = ticks(answers_until(
            duration(counted_from),
            duration(self.ttl),
            duration(self.margin),
        ));
        let process = &mut state.processes[at];
        match (reply, &mut process.held) {
            (Some(Reply::Taken { epoch, seq, content }), held) => {
                *held = Some(Held {
                    epoch,
                    seq,
                    known: content,
                    until,
                    is_stopping: false,
                    is_given_up: false,
                    batch: None,
                    read: None,
                });
            }
            (Some(Reply::Renewed), Some(held)) => held.until = held.until.max(until),
            (Some(Reply::Renewed), None) | (None, _) => {}
        }
    }

    /// The database handles a batch.
    fn apply(&self, row: &mut ShardRow, batch: &Batch) -> ferrite_meta::Result<Applied> {
        let epoch = match self.has(Mistake::BatchWithoutEpoch) {
            true => row.epoch,
            false => batch.epoch.into(),
        };
        let seq = match self.has(Mistake::BatchWithoutNumber) {
            true => row.seq + 1,
            false => batch.seq.into(),
        };
        row.apply(epoch, seq)
    }

    fn batch_arrives(&self, state: &mut State, at: usize) {
        let batch = state.batches[at];
        let applied = self.apply(&mut state.row, &batch);
        if let Ok(Applied::Now) = applied {
            state.log.push(batch);
        }
        let held = state.processes.iter_mut().filter_map(|process| process.held.as_mut());
        for held in held.filter(|held| held.awaits(&batch)) {
            if let Some(pending) = &mut held.batch {
                pending.is_applied = Some(applied.is_ok());
            }
        }
    }

    /// Brings states that behave the same into one form.
    pub(crate) fn forget_what_makes_no_difference(&self, state: &mut State) {
        let row = state.row;
        let is_over = |epoch: u8| { row }.renew(epoch.into(), duration(NOW), duration(0)).is_err();
        let lease = |sent: Ticks| answers_until(duration(sent), duration(self.ttl), duration(self.margin));
        state.row.expires = state.row.expires.max(duration(NOW));
        for process in &mut state.processes {
            if let (Some(call), Some(held)) = (&process.call, &process.held) {
                let is_lost = is_over(held.epoch) && call.reply.is_none();
                let is_useless = !self.has(Mistake::LeaseFromReply) && ticks(lease(call.sent)) <= held.until;
                if is_lost || is_useless {
                    process.call = None;
                }
            }
            // All that it can do is to learn of its end.
            let has_ended =
                |held: Held| is_over(held.epoch) && !held.may_answer() && held.batch.is_none() && held.read.is_none();
            if process.call.is_none() && process.held.is_some_and(has_ended) {
                process.held = None;
            }
            if !process.uses_clock() {
                process.ahead = 0;
            }
        }
        let given_up = std::mem::take(&mut state.given_up);
        let still = (1..=state.epoch()).filter(|&epoch| given_up.has(epoch) && !is_over(epoch));
        still.for_each(|epoch| state.given_up.add(epoch));
        // Epochs and numbers only grow, so the row will refuse these again.
        let may_change = |batch: &Batch| match self.apply(&mut { row }, batch) {
            Ok(_) => true,
            Err(Error::WentBack { has, .. }) => has < batch.seq.into(),
            _ => false,
        };
        let batches = std::mem::take(&mut state.batches);
        let remain = batches
            .into_iter()
            .filter(|batch| may_change(batch) || state.is_awaited(batch));
        state.batches = remain.collect();
        state.processes.sort_unstable();
    }
}

fn held(state: &mut State, at: usize) -> &mut Held {
    state.processes[at].held.as_mut().expect("only owners make this step")
}

fn is_newest(state: &State, at: usize) -> bool {
    state.processes[at]
        .held
        .is_some_and(|held| u64::from(held.epoch) == state.row.epoch)
}

fn commit_step(state: &mut State, step: Step) {
    match step {
        Step::Commit(at) => {
            let write = state.writes;
            state.writes += 1;
            let held = held(state, at);
            held.batch = Some(Pending {
                seq: held.seq + 1,
                write,
                is_sent: false,
                is_late: false,
                is_applied: None,
            });
        }
        Step::SendBatch(at) => {
            let is_late = !is_newest(state, at);
            let held = held(state, at);
            let epoch = held.epoch;
            let Some(pending) = &mut held.batch else { return };
            pending.is_sent = true;
            pending.is_late = is_late;
            let (seq, write) = (pending.seq, pending.write);
            state.batches.push(Batch { epoch, seq, write });
            state.batches.sort_unstable();
        }
        Step::NewNumber(at) => {
            if let Some(pending) = &mut held(state, at).batch {
                pending.seq += 1;
                pending.is_sent = false;
                pending.is_applied = None;
            }
        }
        Step::OutcomeArrives(at) => {
            let held = held(state, at);
            match held.batch.take() {
                Some(Pending {
                    seq,
                    write,
                    is_applied: Some(true),
                    ..
                }) => {
                    held.seq = seq;
                    held.known.add(write);
                    state.acknowledged.add(write);
                }
                _ => state.processes[at] = Process::default(),
            }
        }
        _ => {}
    }
}

fn read(state: &mut State, at: usize, is_checked: bool) {
    let is_newest = is_newest(state, at);
    let now = state.acknowledged;
    let held = held(state, at);
    let acknowledged = match held.read {
        Some(ReadPhase::Checked { acknowledged }) => acknowledged,
        _ => now,
    };
    let answer = Answer {
        is_newest,
        is_old: !held.known.contains(acknowledged),
    };
    held.read = match is_checked {
        true => answered(answer),
        false => Some(ReadPhase::Read(answer)),
    };
}

fn check(state: &mut State, at: usize) {
    let acknowledged = state.acknowledged;
    let held = held(state, at);
    held.read = match held.read {
        // The client gets an error.
        _ if !held.may_answer() => None,
        Some(ReadPhase::Read(answer)) => answered(answer),
        _ => Some(ReadPhase::Checked { acknowledged }),
    };
}

fn answered(answer: Answer) -> Option<ReadPhase> {
    let is_right = answer.is_newest && !answer.is_old;
    (!is_right).then_some(ReadPhase::Answered(answer))
}
