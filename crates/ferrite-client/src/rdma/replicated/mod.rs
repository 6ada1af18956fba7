//! One file as several files on several servers: each write goes to all of them.
//!
//! Contents: [`ReplicatedFile`], which opens, writes, appends and reads. A replica and its thread are in `replica`, its
//! knowledge of its set in `view`; bringing one up to date is in `resync`, the results of calls in `outcome`. FileMR
//! (NSDI 2020, section 4.2) proposed it: one verb, sent to several memory regions.
//!
//! Invariants:
//! * One client writes at a time. It holds a lock on each replica that it uses; a replica whose lock is lost refuses
//!   it. If it finds a higher ballot than its own, it has been superseded, and stops.
//! * A client makes writes and appends sequentially, on all replicas in the same order. An append goes to the end that
//!   the client knows, the same on all replicas.
//! * A replica that fails is *left out*: nothing more is written to it before it is resynchronised. The others record
//!   that (`view`) before the write that found it is acknowledged.
//! * A client reads a replica only where it holds everything that all others hold.

mod outcome;
mod ranges;
mod replica;
mod resync;
mod view;

use std::sync::Arc;

use ferrite_checks::ranked::Mutex;
use ferrite_vfs::{BadArgument, FsError};

pub use outcome::{Held, Outcome, ReplicaStatus, ReplicatedError, Resynced, Standing};
pub use replica::Source;
pub use resync::Extent;

use self::ranges::Ranges;
use self::replica::{Found, Replica, Reply, Side};
use self::view::View;
use crate::rdma::RemoteError;
use crate::rdma::lock_order;

/// More than any user needs; each has a thread.
const COPIES_MAX: usize = 16;

/// When a write is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Acknowledge {
    /// When more than half of the replicas hold it.
    #[default]
    Quorum,
    /// When all do.
    All,
}

/// How a replicated file is opened.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ReplicatedOptions {
    /// Also write, not only read.
    pub writable: bool,
    /// When a write is done.
    pub acknowledge: Acknowledge,
}

impl Default for ReplicatedOptions {
    fn default() -> ReplicatedOptions {
        ReplicatedOptions {
            writable: true,
            acknowledge: Acknowledge::default(),
        }
    }
}

impl ReplicatedOptions {
    /// Sets [`Self::writable`].
    #[must_use]
    pub fn writable(self, writable: bool) -> Self {
        ReplicatedOptions { writable, ..self }
    }

    /// Sets [`Self::acknowledge`].
    #[must_use]
    pub fn acknowledge(self, acknowledge: Acknowledge) -> Self {
        ReplicatedOptions { acknowledge, ..self }
    }
}

type Result<T> = std::result::Result<T, ReplicatedError>;

/// The state of a replica.
#[derive(Debug, Clone)]
struct State {
    /// It has the epoch of the set.
    is_in: bool,
    /// It does not, but receives writes all the same, because it is being resynchronised.
    catches_up: bool,
    /// Where it may differ from the replicas that lack nothing there.
    lacks: Ranges,
    /// Why it was left out.
    why: Option<String>,
}

/// The state that a writer uses exclusively.
struct Order {
    view: View,
    size: u64,
    states: Vec<State>,
    next_read: usize,
    /// A replica was left out, and the others have not recorded it yet.
    is_raise_due: bool,
    /// Pending questions to replicas whether they know of another writer.
    polls: Vec<Option<Reply<Option<View>>>>,
    /// The replica that knows of one.
    superseded: Option<String>,
}

/// A change of a range.
enum Change {
    Write(Arc<[u8]>),
    Free(u64),
}

impl Change {
    fn len_bytes(&self) -> u64 {
        match self {
            Change::Write(data) => data.len() as u64,
            Change::Free(len_bytes) => *len_bytes,
        }
    }

    /// Makes it, durably.
    fn job(&self, offset: u64) -> impl FnOnce(&mut Side) -> std::result::Result<(), RemoteError> + Send + use<> {
        let (data, len_bytes) = match self {
            Change::Write(data) => (Some(Arc::clone(data)), 0),
            Change::Free(len_bytes) => (None, *len_bytes),
        };
        move |side: &mut Side| match data {
            Some(data) => side.file()?.write(offset, &data).and_then(|()| side.file()?.flush()),
            None => side.free(offset, len_bytes),
        }
    }
}

/// See the head of this module. Threads may share it.
pub struct ReplicatedFile {
    options: ReplicatedOptions,
    order: Mutex<lock_order::Order, Order>,
    /// One resync at a time. Taken before `order`.
    resync: Mutex<lock_order::Resync, ()>,
    replicas: Vec<Replica>,
}

fn majority(count: usize) -> usize {
    count / 2 + 1
}

impl ReplicatedFile {
    /// Opens the replicas of a file; the caller must name all of them. Their files exist; if they belong to no set yet,
    /// they become one, and must all be there: the content of the first is that of the set. Blocks.
    ///
    /// # Errors
    /// See [`ReplicatedError`].
    pub fn open(sources: Vec<Source>, options: ReplicatedOptions) -> Result<ReplicatedFile> {
        let count = sources.len();
        if !(1..=COPIES_MAX).contains(&count) {
            let most = COPIES_MAX;
            return Err(ReplicatedError::Count { count, most });
        }
        let replicas: std::io::Result<Vec<Replica>> = sources.into_iter().map(Replica::start).collect();
        let replicas = replicas.map_err(ReplicatedError::Thread)?;
        let open = move |side: &mut Side| side.open(options.writable);
        let requested: Vec<_> = replicas.iter().map(|replica| replica.ask(open)).collect();
        let found: Vec<_> = requested.into_iter().map(Reply::wait).collect();
        let order = Order::first(&replicas, &found)?;
        let file = ReplicatedFile {
            options,
            order: Mutex::new(order),
            resync: Mutex::new(()),
            replicas,
        };
        if options.writable {
            file.take(&found)?;
        }
        Ok(file)
    }

    /// Writes at `offset`. A write behind the end extends the file with zeros.
    ///
    /// # Errors
    /// See [`ReplicatedError`]. After `TooFew`, and the first `Superseded`, some replicas may hold it, and readers may
    /// see it.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<Outcome> {
        self.change(Some(offset), &Change::Write(data.into()))
    }

    /// Writes behind the end, at the same offset on all replicas.
    ///
    /// # Errors
    /// As [`Self::write`]. After `TooFew` the space is used up, and zeros may be there.
    pub fn append(&self, data: &[u8]) -> Result<Outcome> {
        self.change(None, &Change::Write(data.into()))
    }

    /// Punches a hole on all replicas: the range reads as zeros, and the size stays.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn free(&self, offset: u64, len_bytes: u64) -> Result<Outcome> {
        if len_bytes == 0 {
            return Err(RemoteError::from(FsError::Invalid(BadArgument::NoLength)).into());
        }
        self.change(Some(offset), &Change::Free(len_bytes))
    }

    /// Reads at `offset`, from a replica that holds the writes there; fewer bytes than `into` holds only at the end.
    ///
    /// # Errors
    /// `NoSource`.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let len = into.len();
        let holders = self.order.lock().holders(offset, offset.saturating_add(len as u64));
        let read = self.ask_each(&holders, move |side| read_from(side, offset, len))?;
        into[..read.len()].copy_from_slice(&read);
        Ok(read.len())
    }

    /// The size. A writer knows it; a reader asks a replica.
    ///
    /// # Errors
    /// `NoSource`.
    pub fn size(&self) -> Result<u64> {
        if self.options.writable {
            return Ok(self.order.lock().size);
        }
        let holders = self.order.lock().holders(0, u64::MAX);
        self.ask_each(&holders, |side| side.file()?.size())
    }

    /// The states of the replicas, in the order of [`Self::open`].
    pub fn status(&self) -> Vec<ReplicaStatus> {
        let order = self.order.lock();
        let states = self.replicas.iter().zip(&order.states);
        let report = states.map(|(replica, state)| ReplicaStatus {
            name: replica.name.to_string(),
            standing: match (state.is_in, state.lacks.is_empty()) {
                (true, true) => Standing::Current,
                (true, false) => Standing::InDoubt,
                (false, _) if state.catches_up => Standing::CatchingUp,
                (false, _) => Standing::Behind,
            },
            lacks_bytes: state.lacks.len_within(order.size),
            why: state.why.clone(),
        });
        report.collect()
    }

    /// Replicas that have to hold a write.
    pub fn needed(&self) -> usize {
        match self.options.acknowledge {
            Acknowledge::Quorum => majority(self.replicas.len()),
            Acknowledge::All => self.replicas.len(),
        }
    }

    /// The longest file that all replicas may hold, of those that are open.
    pub fn bytes_max(&self) -> u64 {
        let replies = self
            .replicas
            .iter()
            .map(|replica| replica.ask(|side| Ok(side.file()?.limits().file_bytes_max)));
        let replies: Vec<_> = replies.collect();
        let report = replies.into_iter().filter_map(|reply| reply.wait().ok());
        report.min().unwrap_or(u64::MAX)
    }

    /// Records on the replicas that the writer has finished, and releases them. Otherwise the next client that opens
    /// them takes the last writes to be in doubt.
    ///
    /// # Errors
    /// `TooFew` if too few replicas could record it; `Superseded`.
    pub fn close(self) -> Result<()> {
        if !self.options.writable {
            return Ok(());
        }
        let mut order = self.order.lock();
        order.check_own()?;
        if order.is_raise_due || order.states.iter().any(|state| state.is_in && !state.lacks.is_empty()) {
            // The doubt stays.
            return Ok(());
        }
        order.view.is_written = false;
        let noted = self.note(&order).into_iter().zip(&order.states);
        let replicas: Vec<Held> = noted.map(|(report, state)| held(report, state)).collect();
        let (outcome, needed) = (Outcome { offset: 0, replicas }, majority(self.replicas.len()));
        match outcome.holders() >= needed {
            true => Ok(()),
            false => Err(ReplicatedError::TooFew { outcome, needed }),
        }
    }

    /// Becomes the writer: records a new ballot on a majority, and a new epoch on the replicas that hold everything.
    fn take(&self, found: &[std::result::Result<Found, RemoteError>]) -> Result<()> {
        let mut order = self.order.lock();
        let order = &mut *order;
        let views = || found.iter().flatten().filter_map(|found| found.view);
        let highest = views().map(|view| view.ballot.max(view.epoch.0)).max().unwrap_or(0);
        order.view.ballot = highest + 1;
        order.view.epoch = (highest + 1, 0);
        order.view.is_written = true;
        let replies: Vec<_> = (0..self.replicas.len())
            .map(|index| {
                let found = found[index].as_ref().ok()?;
                let mut view = order.view;
                if !order.states[index].is_in {
                    view.epoch = found.view.map_or((0, 0), |view| view.epoch);
                }
                Some(self.replicas[index].ask(move |side| side.note(&view)))
            })
            .collect();
        let (mut reached, mut whys) = (0, Vec::new());
        for (index, reply) in replies.into_iter().enumerate() {
            match reply.map(|reply| reply.wait()) {
                Some(Ok(())) => reached += 1,
                Some(Err(error)) => {
                    whys.push(format!("{}: {error}", self.replicas[index].name));
                    order.leave_out(index, error.to_string());
                }
                None => {}
            }
        }
        let (count, needed) = (self.replicas.len(), majority(self.replicas.len()));
        if reached < needed {
            let why = whys.join("; ");
            return Err(ReplicatedError::Unreachable {
                reached,
                count,
                needed,
                why,
            });
        }
        self.raise(order);
        Ok(())
    }

    fn change(&self, offset: Option<u64>, change: &Change) -> Result<Outcome> {
        if !self.options.writable {
            return Err(ReplicatedError::ReadOnly);
        }
        let mut order = self.order.lock();
        let order = &mut *order;
        order.check_own()?;
        let offset = offset.unwrap_or(order.size);
        let end = offset.checked_add(change.len_bytes());
        let end = end.ok_or(ReplicatedError::Remote(FsError::FileTooBig.into()))?;
        let requested = self.replicas.iter().zip(&order.states);
        let requested = requested
            .map(|(replica, state)| (state.is_in || state.catches_up).then(|| replica.ask(change.job(offset))));
        let results = wait_for_all(requested.collect());
        if matches!(change, Change::Write(_)) {
            order.size = order.size.max(end);
        }
        let outcome = Outcome {
            offset,
            replicas: self.settle(order, (offset, end), results),
        };
        let needed = self.needed();
        if outcome.holders() >= needed {
            return Ok(outcome);
        }
        match self.look_for_another(order) {
            Some(name) => Err(ReplicatedError::Superseded { name }),
            None => Err(ReplicatedError::TooFew { outcome, needed }),
        }
    }

    /// The name of a replica that knows of a later writer, as far as replies have come. Asks replicas that have no
    /// pending question, without waiting for them: they may be away.
    fn look_for_another(&self, order: &mut Order) -> Option<String> {
        let own = order.view;
        for (index, replica) in self.replicas.iter().enumerate() {
            let poll = order.polls[index].get_or_insert_with(|| replica.ask(|side| side.view()));
            let Some(reply) = poll.poll() else {
                continue;
            };
            order.polls[index] = None;
            if let Ok(Some(view)) = reply
                && view.set == own.set
                && view.ballot > own.ballot
            {
                order.superseded = Some(replica.name.to_string());
            }
        }
        order.superseded.clone()
    }

    /// Updates the states of the replicas after a write to this range.
    fn settle(&self, order: &mut Order, (from, to): (u64, u64), results: Vec<Report>) -> Vec<Held> {
        let holds = |(state, result): (&State, &Report)| state.is_in && matches!(result, Some(Ok(())));
        let is_held = order.states.iter().zip(&results).any(holds);
        let source = order.source();
        let mut replicas = Vec::with_capacity(results.len());
        for (index, result) in results.into_iter().enumerate() {
            let state = &mut order.states[index];
            match (is_held, &result) {
                (true, Some(Ok(()))) => state.lacks.remove(from, to),
                // No replica is ahead then. One of them defines the content from now on.
                (false, _) if Some(index) == source => {}
                _ => state.lacks.add(from, to),
            }
            if is_held && let Some(Err(error)) = &result {
                order.leave_out(index, error.to_string());
            }
            replicas.push(held(result, &order.states[index]));
        }
        if !self.raise(order) {
            // The replicas that hold it do not know which ones are left out.
            let why = "what the other replicas lack could not be noted";
            let holders = replicas.iter_mut().filter(|held| **held == Held::Yes);
            holders.for_each(|held| *held = Held::Unknown { why: why.into() });
        }
        for (held, state) in replicas.iter_mut().zip(&order.states) {
            if *held == Held::Yes && !state.is_in {
                let why = state.why.clone().unwrap_or_default();
                *held = Held::Unknown { why };
            }
        }
        replicas
    }

    /// Moves the replicas that are in to a new epoch, if one was left out, so that the old epoch of that replica shows
    /// it. False: none of them recorded it, and it is still due.
    fn raise(&self, order: &mut Order) -> bool {
        while order.is_raise_due {
            order.view.epoch.1 += 1;
            let noted = self.note(order);
            if !noted.iter().any(|report| matches!(report, Some(Ok(())))) {
                return false;
            }
            order.is_raise_due = false;
            for (index, report) in noted.into_iter().enumerate() {
                if let Some(Err(error)) = report {
                    // It may have recorded the epoch all the same; so the others need another.
                    order.leave_out(index, error.to_string());
                }
            }
        }
        true
    }

    /// Records the view on all replicas that are in.
    fn note(&self, order: &Order) -> Vec<Report> {
        let view = order.view;
        let requested = self.replicas.iter().zip(&order.states);
        let requested =
            requested.map(|(replica, state)| state.is_in.then(|| replica.ask(move |side| side.note(&view))));
        wait_for_all(requested.collect())
    }

    /// Asks these replicas, one at a time, until one replies.
    fn ask_each<T: Send + 'static>(
        &self,
        candidates: &[usize],
        what: impl Fn(&mut Side) -> std::result::Result<T, RemoteError> + Clone + Send + 'static,
    ) -> Result<T> {
        let mut whys = Vec::new();
        for index in candidates {
            match self.replicas[*index].ask(what.clone()).wait() {
                Ok(reply) => return Ok(reply),
                Err(error) => whys.push(format!("{}: {error}", self.replicas[*index].name)),
            }
        }
        let why = match whys.is_empty() {
            true => "none is known to hold all of it".into(),
            false => whys.join("; "),
        };
        Err(ReplicatedError::NoSource { why })
    }
}

/// The reply of a replica, if it was asked.
type Report = Option<std::result::Result<(), RemoteError>>;

fn wait_for_all<T>(requested: Vec<Option<Reply<T>>>) -> Vec<Option<std::result::Result<T, RemoteError>>> {
    let wait = |reply: Option<Reply<T>>| reply.map(Reply::wait);
    requested.into_iter().map(wait).collect()
}

fn held(report: Report, state: &State) -> Held {
    match report {
        Some(Ok(())) if state.is_in => Held::Yes,
        Some(Ok(())) => Held::CatchingUp,
        Some(Err(error)) => Held::Unknown { why: error.to_string() },
        None => Held::No {
            why: state.why.clone().unwrap_or_default(),
        },
    }
}

fn read_from(side: &Side, offset: u64, len: usize) -> std::result::Result<Vec<u8>, RemoteError> {
    let mut bytes = vec![0; len];
    let count = side.file()?.read(offset, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

impl Order {
    /// The initial states of the replicas by their views, before any write.
    fn first(replicas: &[Replica], found: &[std::result::Result<Found, RemoteError>]) -> Result<Order> {
        let (count, needed) = (replicas.len(), majority(replicas.len()));
        let with_name = || replicas.iter().map(|replica| &replica.name).zip(found);
        let locked = with_name().find(|(_, found)| matches!(found, Err(RemoteError::Fs(FsError::WouldBlock))));
        if let Some((name, _)) = locked {
            return Err(ReplicatedError::Locked { name: name.to_string() });
        }
        let views = || with_name().filter_map(|(name, found)| Some((name, found.as_ref().ok()?.view?)));
        let known = views().max_by_key(|(_, view)| view.epoch);
        // A new set must not be made without all of its replicas: the missing ones may belong to one.
        let needed = if known.is_some() { needed } else { count };
        let reached = found.iter().flatten().count();
        if reached < needed {
            let whys = with_name().filter_map(|(name, found)| Some(format!("{name}: {}", found.as_ref().err()?)));
            let why = whys.collect::<Vec<_>>().join("; ");
            return Err(ReplicatedError::Unreachable {
                reached,
                count,
                needed,
                why,
            });
        }
        if let Some((first, one)) = known {
            for (name, view) in views() {
                let name = name.to_string();
                if view.set != one.set {
                    let first = first.to_string();
                    return Err(ReplicatedError::OtherSet { name, first });
                }
                if view.replicas as usize != count {
                    let (of, given) = (view.replicas, count);
                    return Err(ReplicatedError::OtherCount { name, of, given });
                }
            }
        }
        Self::of_view(known.map(|(_, view)| view), found)
    }

    /// The states of the replicas under the newest view known, or under a new one.
    fn of_view(known: Option<View>, found: &[std::result::Result<Found, RemoteError>]) -> Result<Order> {
        let count = found.len();
        let view = match known {
            Some(view) => view,
            None => View {
                set: ferrite_vfs::random().map_err(RemoteError::from)?,
                ballot: 0,
                epoch: (0, 0),
                replicas: count as u32,
                is_written: false,
            },
        };
        let sizes: Vec<u64> = found.iter().flatten().map(|found| found.size).collect();
        let is_empty = known.is_none() && sizes.iter().all(|size| *size == 0);
        let states = found.iter().enumerate().map(|(index, found)| {
            let (is_in, why) = match found {
                Err(error) => (false, Some(error.to_string())),
                Ok(found) => match found.view {
                    Some(own) => (own.epoch == view.epoch, Some("it was left out before".to_owned())),
                    None if known.is_some() => (false, Some("it is new".to_owned())),
                    None => (is_empty || index == 0, Some("the set is new".to_owned())),
                },
            };
            State {
                is_in,
                catches_up: false,
                lacks: if is_in { Ranges::default() } else { Ranges::everything() },
                why: why.filter(|_| !is_in),
            }
        });
        let mut order = Order {
            view,
            size: 0,
            states: states.collect(),
            next_read: 0,
            is_raise_due: false,
            polls: found.iter().map(|_| None).collect(),
            superseded: None,
        };
        let size_of = |index: usize| found[index].as_ref().map_or(0, |found| found.size);
        let is_in_doubt = |index: usize| {
            found[index]
                .as_ref()
                .is_ok_and(|found| found.view.is_some_and(|v| v.is_written))
        };
        let ins: Vec<usize> = (0..count).filter(|index| order.states[*index].is_in).collect();
        let source = ins.first().copied().unwrap_or_default();
        order.size = size_of(source);
        let all_in_doubt = ins.iter().any(|index| is_in_doubt(*index));
        for index in ins.into_iter().skip(1) {
            if all_in_doubt || size_of(index) != order.size {
                order.states[index].lacks = Ranges::everything();
            }
        }
        Ok(order)
    }

    /// Whether this client is still the writer, as far as it knows.
    fn check_own(&self) -> Result<()> {
        match self.superseded.clone() {
            Some(name) => Err(ReplicatedError::Superseded { name }),
            None => Ok(()),
        }
    }

    /// Leaves a replica out: nothing more is written to it.
    fn leave_out(&mut self, index: usize, why: String) {
        let state = &mut self.states[index];
        self.is_raise_due |= state.is_in;
        state.is_in = false;
        state.catches_up = false;
        state.why = Some(why);
        // One of the replicas that are in has to define the content.
        let mut ins = self.states.iter_mut().filter(|state| state.is_in);
        if ins.any(|state| state.lacks.is_empty()) {
            return;
        }
        let mut ins = self.states.iter_mut().filter(|state| state.is_in);
        let doubt = ins.next().map(|state| std::mem::take(&mut state.lacks));
        let doubt = doubt.unwrap_or_default();
        ins.for_each(|state| state.lacks.add_all(&doubt));
    }

    /// A replica that defines the content where others are in doubt.
    fn source(&self) -> Option<usize> {
        self.states
            .iter()
            .position(|state| state.is_in && state.lacks.is_empty())
    }

    /// Replicas that hold a range, starting with another one each time.
    fn holders(&mut self, from: u64, to: u64) -> Vec<usize> {
        let holds = |state: &State| state.is_in && !state.lacks.overlaps(from, to);
        let mut holders: Vec<usize> = (0..self.states.len())
            .filter(|index| holds(&self.states[*index]))
            .collect();
        self.next_read = self.next_read.wrapping_add(1);
        let turn = self.next_read.checked_rem(holders.len()).unwrap_or_default();
        holders.rotate_left(turn);
        holders
    }
}
