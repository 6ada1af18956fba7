//! A network that fails, in front of any database: for tests of what stands on [`Remote`].
//!
//! Contents: [`FaultyRemote`], whose calls go wrong as a plan of the test says.

use std::collections::VecDeque;
use std::time::Duration;

use ferrite_checks::ranked::Mutex;

use super::{Applied, Batch, BatchLimits, Owner, Page, Remote, ShardStatus, Tally, Tenure, Values};
use crate::error::{Error, Result};
use crate::lock_order;

/// Which call is about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteCall {
    /// [`Remote::take`].
    Take,
    /// [`Remote::renew`].
    Renew,
    /// [`Remote::apply`].
    Apply,
    /// [`Remote::get_many`] or [`Remote::scan`].
    Read,
}

/// A failure of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    Nothing,
    /// The database cannot be reached; nothing is sent.
    Unreachable,
    /// The request is lost on its way.
    LoseRequest,
    /// The answer is lost on its way.
    LoseAnswer,
    /// There is no answer now, and the request arrives after this number of further calls. Only for batches; others
    /// are lost.
    Late(u32),
    /// All is well, and the request arrives a second time after this number of further calls. Only for batches.
    Twice(u32),
    /// The call takes this long.
    Slow(Duration),
}

/// Decides for each call what goes wrong with it. It may also change the database.
pub type FaultPlan = Box<dyn FnMut(RemoteCall) -> Fault + Send>;

struct OnTheWay {
    calls_left: u32,
    tenure: Tenure,
    seq: u64,
    batch: Batch,
}

struct Network {
    plan: FaultPlan,
    on_the_way: VecDeque<OnTheWay>,
}

/// See the head of this module.
pub struct FaultyRemote<R> {
    inner: R,
    network: Mutex<lock_order::Network, Network>,
}

fn no_answer() -> Error {
    Error::Unknown("the network of a test lost the answer".into())
}

fn unreachable() -> Error {
    Error::Unreachable("the network of a test".into())
}

impl<R: Remote> FaultyRemote<R> {
    /// Puts a network in front of a database.
    pub fn new(inner: R, plan: FaultPlan) -> FaultyRemote<R> {
        FaultyRemote {
            inner,
            network: Mutex::new(Network {
                plan,
                on_the_way: VecDeque::new(),
            }),
        }
    }

    /// The database behind the network.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// Lets everything that is still on the way arrive.
    pub fn deliver_all(&self) {
        self.deliver(u32::MAX);
    }

    /// Lets arrive what is due after so many calls.
    fn deliver(&self, calls: u32) {
        let mut due = Vec::new();
        let mut network = self.network.lock();
        for mut late in std::mem::take(&mut network.on_the_way) {
            match late.calls_left.checked_sub(calls) {
                Some(left) if left > 0 => {
                    late.calls_left = left;
                    network.on_the_way.push_back(late);
                }
                _ => due.push(late),
            }
        }
        drop(network);
        for late in due {
            // Nobody waits for its answer.
            let _ = self.inner.apply(&late.tenure, late.seq, &late.batch);
        }
    }

    fn fault_of(&self, call: RemoteCall) -> Fault {
        self.deliver(1);
        (self.network.lock().plan)(call)
    }

    fn send_later(&self, calls_left: u32, tenure: &Tenure, seq: u64, batch: &Batch) {
        self.network.lock().on_the_way.push_back(OnTheWay {
            calls_left: calls_left.max(1),
            tenure: tenure.clone(),
            seq,
            batch: batch.clone(),
        });
    }

    /// A call whose loss its caller takes for a database that cannot be reached.
    fn plain<T>(&self, call: RemoteCall, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.fault_of(call) {
            Fault::Nothing | Fault::Twice(_) => work(),
            Fault::Slow(time) => {
                std::thread::sleep(time);
                work()
            }
            Fault::LoseAnswer => {
                work()?;
                Err(unreachable())
            }
            Fault::Unreachable | Fault::LoseRequest | Fault::Late(_) => Err(unreachable()),
        }
    }
}

impl<R: Remote> Remote for FaultyRemote<R> {
    fn take(&self, shard: u64, owner: &Owner, ttl: Duration) -> Result<Tenure> {
        self.plain(RemoteCall::Take, || self.inner.take(shard, owner, ttl))
    }

    fn renew(&self, tenure: &Tenure, ttl: Duration) -> Result<()> {
        self.plain(RemoteCall::Renew, || self.inner.renew(tenure, ttl))
    }

    fn apply(&self, tenure: &Tenure, seq: u64, batch: &Batch) -> Result<Applied> {
        match self.fault_of(RemoteCall::Apply) {
            Fault::Nothing => self.inner.apply(tenure, seq, batch),
            Fault::Unreachable => Err(unreachable()),
            Fault::LoseRequest => Err(no_answer()),
            Fault::LoseAnswer => {
                let _ = self.inner.apply(tenure, seq, batch);
                Err(no_answer())
            }
            Fault::Late(calls) => {
                self.send_later(calls, tenure, seq, batch);
                Err(no_answer())
            }
            Fault::Twice(calls) => {
                self.send_later(calls, tenure, seq, batch);
                self.inner.apply(tenure, seq, batch)
            }
            Fault::Slow(time) => {
                std::thread::sleep(time);
                self.inner.apply(tenure, seq, batch)
            }
        }
    }

    fn get_many(&self, tenure: &Tenure, keys: &[&[u8]]) -> Result<Values> {
        self.plain(RemoteCall::Read, || self.inner.get_many(tenure, keys))
    }

    fn scan(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> Result<Page> {
        self.plain(RemoteCall::Read, || self.inner.scan(tenure, from, to, limit))
    }

    fn status(&self, shard: u64) -> Result<ShardStatus> {
        self.plain(RemoteCall::Read, || self.inner.status(shard))
    }

    fn tally(&self, tenure: &Tenure, from: &[u8], to: &[u8], limit: usize) -> Result<Tally> {
        self.plain(RemoteCall::Read, || self.inner.tally(tenure, from, to, limit))
    }

    fn is_useful_for(&self, left: Duration) {
        self.inner.is_useful_for(left);
    }

    fn end_calls(&self) {
        self.inner.end_calls();
    }

    fn limits(&self) -> BatchLimits {
        self.inner.limits()
    }
}
