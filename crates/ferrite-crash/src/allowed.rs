//! The allowed contents of a crash image: the reference engine's trees around the operations in progress, and the
//! changes that clients resend.

use ferrite_testkit::snapshot::Snapshot;

use crate::record::{Recorded, Tree, share, unsettled};
use crate::session::{self, Resend};

/// The allowed contents of an image: for each thread, the tree before and the tree after the operation in progress;
/// with deferred write-back, also each tree since the last one that is certainly durable.
#[derive(Clone)]
pub struct Allowed<'a> {
    states: Vec<&'a [Tree]>,
    /// For each thread: the index of the tree before the operation in progress.
    before: Vec<usize>,
    /// For each thread: whether the runner follows one of the operations with another call, see [`Recorded::settled`].
    settled: Vec<bool>,
    /// The page that an operation in progress writes, if that is all it writes.
    page: Option<&'a [u8]>,
    /// The changes that clients resend.
    resends: Vec<Resend<'a>>,
}

impl<'a> Allowed<'a> {
    /// After `marks`, in the form of [`Recorded::log`].
    pub fn after(recorded: &'a Recorded, marks: &[u64]) -> Self {
        let returned = |thread: usize| -> usize {
            let own = marks.iter().filter(|&&mark| mark >> 32 == thread as u64);
            own.map(|&mark| mark as u32 as usize).max().unwrap_or(0)
        };
        let threads = recorded.states.iter().enumerate();
        let durable = |thread: usize| recorded.durable[thread][returned(thread)];
        let pages = recorded.pages.iter().enumerate();
        Allowed {
            page: pages
                .filter_map(|(thread, pages)| pages.get(returned(thread))?.as_deref())
                .next(),
            states: threads
                .map(|(thread, states)| &states[durable(thread)..states.len().min(returned(thread) + 2)])
                .collect(),
            before: (0..recorded.states.len())
                .map(|thread| returned(thread) - durable(thread))
                .collect(),
            settled: (0..recorded.settled.len())
                .map(|thread| {
                    let settled = recorded.settled[thread].iter().take(returned(thread) + 1);
                    settled.skip(durable(thread)).any(|&settled| settled)
                })
                .collect(),
            resends: session::last(&recorded.sent, returned),
        }
    }

    /// Exactly `tree`.
    pub(crate) fn only(tree: &'a Tree) -> Self {
        Allowed {
            states: vec![std::slice::from_ref(tree)],
            before: vec![0],
            settled: vec![false],
            page: None,
            resends: Vec::new(),
        }
    }

    /// The same once a first recovery may have received the resent changes.
    pub(crate) fn recovered(&self) -> Self {
        let resends = self.resends.iter().map(Resend::recovered).collect();
        Allowed {
            resends,
            ..self.clone()
        }
    }

    /// Whether an operation in progress writes a page, so that its record may be there without the page.
    pub fn is_of_page(&self) -> bool {
        self.page.is_some()
    }

    /// The page that an operation in progress writes, see [`Self::is_of_page`].
    pub(crate) fn page(&self) -> Option<&[u8]> {
        self.page
    }

    /// The number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.states.len()
    }

    /// The changes that clients resend.
    pub(crate) fn resends(&self) -> &[Resend<'a>] {
        &self.resends
    }

    /// The tree after a thread's operation in progress.
    pub(crate) fn tree_after(&self, thread: usize) -> Option<&Tree> {
        self.states[thread].get(self.before[thread] + 1)
    }

    /// The part of `tree` that a thread works on.
    pub(crate) fn share(&self, tree: &Tree, thread: usize) -> Tree {
        share(tree, thread, self.states.len())
    }

    /// Whether a thread's share is that before its operation in progress, and that after it. Both, if it changes
    /// nothing.
    pub(crate) fn is_before_and_after(&self, share: &Tree, thread: usize) -> [bool; 2] {
        let is = |index: usize| {
            let state = self.states[thread].get(index);
            state.is_some_and(|state| self.is_same(state, share, thread))
        };
        [is(self.before[thread]), is(self.before[thread] + 1)]
    }

    fn is_same(&self, state: &Tree, share: &Tree, thread: usize) -> bool {
        match self.settled[thread] {
            true => unsettled(state.clone()) == unsettled(share.clone()),
            false => state == share,
        }
    }

    pub(crate) fn check(&self, tree: &Tree) -> Result<(), String> {
        for (thread, allowed) in self.states.iter().enumerate() {
            let found = self.share(tree, thread);
            if allowed.iter().any(|state| self.is_same(state, &found, thread)) {
                continue;
            }
            let (earlier, allowed) = allowed.split_at(self.before[thread]);
            let mut text = format!("thread {thread}: the tree is none of those allowed");
            if !earlier.is_empty() {
                text += &format!(" (nor one of {} before)", earlier.len());
            }
            for (state, which) in allowed.iter().zip(["before", "after"]) {
                let difference = Snapshot(found.clone()).difference(&Snapshot(state.clone()), ["found", which]);
                text += &format!("\n{which} the operation: {}", difference.unwrap_or_default());
            }
            return Err(text);
        }
        Ok(())
    }
}
