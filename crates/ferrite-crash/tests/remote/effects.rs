//! The allowed states after a crash while packets and local calls change a bound file.
//!
//! Contents: [`Effect`], the change that an event makes to the [`State`] of the pool; [`Book`], which records returned
//! and pending effects; [`Allowed`], the allowed contents of an image at a moment.
//!
//! Invariant: a state is the result of all effects that have returned, so it is there after a crash. A pending effect
//! may be there: a store of a packet by aligned words, everything else whole or not at all, in any order.

use std::sync::Arc;

use ferrite_pm::Recorder;
use parking_lot::Mutex;

/// The contents of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// The name of the bound file; `None`: it was unlinked.
    pub(crate) name: Option<String>,
    /// Its content.
    pub(crate) content: Vec<u8>,
    /// The content of another file, which takes the blocks that the bound one frees.
    pub(crate) other: Vec<u8>,
}

/// The effect of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A packet of a WRITE, below the end.
    Store {
        at: usize,
        data: Vec<u8>,
    },
    /// FETCH_ADD, and COMPARE_SWAP that swapped.
    Word {
        at: usize,
        add: u64,
    },
    Append(Vec<u8>),
    Reserve(usize),
    /// Moves the end if it is at `from`.
    Extend {
        from: usize,
        to: usize,
    },
    /// A local write, or a WRITE of atomic mode.
    Write {
        at: usize,
        data: Vec<u8>,
    },
    Truncate(usize),
    /// Of existing bytes; it does not grow.
    Zero {
        at: usize,
        len: usize,
    },
    Rename(String),
    Unlink,
    Create(String),
    OtherWrite {
        at: usize,
        data: Vec<u8>,
    },
    OtherTruncate(usize),
    /// Changes no content: the text names the event.
    Nothing(&'static str),
}

fn put(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    if content.len() < at + data.len() {
        content.resize(at + data.len(), 0);
    }
    content[at..at + data.len()].copy_from_slice(data);
}

impl Effect {
    /// Whether aligned words of it may be there alone.
    fn is_torn(&self) -> bool {
        matches!(self, Effect::Store { .. } | Effect::Word { .. })
    }

    fn apply(&self, state: &mut State) {
        let content = &mut state.content;
        match self {
            // Below the end, even if that has moved.
            Effect::Store { at, data } if *at < content.len() => {
                let data = &data[..data.len().min(content.len() - at)];
                put(content, *at, data);
            }
            Effect::Word { at, add } if at + 8 <= content.len() => {
                let word = word_at(content, *at).wrapping_add(*add);
                put(content, *at, &word.to_le_bytes());
            }
            Effect::Extend { from, to } if content.len() == *from => content.resize(*to, 0),
            Effect::Store { .. } | Effect::Word { .. } | Effect::Extend { .. } | Effect::Nothing(_) => {}
            Effect::Append(data) => content.extend(data),
            Effect::Reserve(len) => content.resize(content.len() + len, 0),
            Effect::Write { at, data } => put(content, *at, data),
            Effect::Truncate(len) => content.resize(*len, 0),
            Effect::Zero { at, len } => {
                let end = (at + len).min(content.len());
                content[(*at).min(end)..end].fill(0);
            }
            Effect::Rename(name) => state.name = Some(name.clone()),
            Effect::Unlink => state.name = None,
            Effect::Create(name) => {
                state.name = Some(name.clone());
                content.clear();
            }
            Effect::OtherWrite { at, data } => put(&mut state.other, *at, data),
            Effect::OtherTruncate(len) => state.other.resize(*len, 0),
        }
    }
}

/// The 8 bytes there.
pub(crate) fn word_at(content: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(content[at..at + 8].try_into().unwrap())
}

/// The returned and the pending effects at a point of the recording.
#[derive(Debug, Clone)]
pub(crate) struct Moment {
    pub(crate) state: Arc<State>,
    pub(crate) pending: Vec<Effect>,
}

#[derive(Default)]
struct Pages {
    state: Arc<State>,
    pending: Vec<(u64, Effect)>,
    next: u64,
    moments: Vec<Moment>,
}

/// Records all moments, and marks them in the recording.
pub(crate) struct Book {
    recorder: Arc<Recorder>,
    pages: Mutex<Pages>,
}

impl Book {
    pub(crate) fn new(recorder: &Arc<Recorder>) -> Book {
        Book {
            recorder: Arc::clone(recorder),
            pages: Mutex::default(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Pages)) {
        let mut pages = self.pages.lock();
        change(&mut pages);
        let moment = Moment {
            state: Arc::clone(&pages.state),
            pending: pages.pending.iter().map(|(_, effect)| effect.clone()).collect(),
        };
        pages.moments.push(moment);
        self.recorder.mark(pages.moments.len() as u64 - 1);
    }

    /// An effect is about to begin.
    pub(crate) fn begin(&self, effect: Effect) -> u64 {
        let mut id = 0;
        self.change(|pages| {
            id = pages.next;
            pages.next += 1;
            pages.pending.push((id, effect));
        });
        id
    }

    /// It has happened, or was refused without effect.
    pub(crate) fn end(&self, id: u64, has_happened: bool) {
        self.change(|pages| {
            let index = pages.pending.iter().position(|(other, _)| *other == id).unwrap();
            let (_, effect) = pages.pending.remove(index);
            if has_happened {
                effect.apply(Arc::make_mut(&mut pages.state));
            }
        });
    }

    /// The result of all returned effects.
    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.pages.lock().state)
    }

    /// Whether a packet of another call is under way.
    pub(crate) fn has_stores(&self) -> bool {
        self.pages.lock().pending.iter().any(|(_, effect)| effect.is_torn())
    }

    pub(crate) fn moments(&self) -> Vec<Moment> {
        self.pages.lock().moments.clone()
    }
}

/// The allowed contents of an image at a moment.
pub(crate) struct Allowed {
    /// Groups of states of one length that differ in the parts that may be torn.
    groups: Vec<Vec<State>>,
}

impl Allowed {
    pub(crate) fn at(moment: &Moment) -> Allowed {
        let mut groups: Vec<(Vec<usize>, Vec<State>)> = Vec::new();
        let mut order = Vec::new();
        collect(moment, &mut order, &mut groups);
        Allowed {
            groups: groups.into_iter().map(|(_, states)| states).collect(),
        }
    }

    /// The reason why it may not hold this, if so.
    pub(crate) fn wrong(&self, found: &State) -> Option<String> {
        let wrongs = self.groups.iter().map(|states| wrong_in(states, found));
        let wrongs: Vec<String> = wrongs.map_while(|wrong| wrong).collect();
        (wrongs.len() == self.groups.len()).then(|| wrongs.join("; or "))
    }
}

/// Collects the results of all pending effects, in any order and any part of them.
fn collect(moment: &Moment, order: &mut Vec<usize>, groups: &mut Vec<(Vec<usize>, Vec<State>)>) {
    let mut state = (*moment.state).clone();
    order.iter().for_each(|index| moment.pending[*index].apply(&mut state));
    let whole: Vec<usize> = order
        .iter()
        .copied()
        .filter(|&index| !moment.pending[index].is_torn())
        .collect();
    match groups.iter_mut().find(|(key, _)| *key == whole) {
        Some((_, states)) => states.push(state),
        None => groups.push((whole, vec![state])),
    }
    for next in 0..moment.pending.len() {
        if !order.contains(&next) {
            order.push(next);
            collect(moment, order, groups);
            order.pop();
        }
    }
}

fn wrong_in(states: &[State], found: &State) -> Option<String> {
    let first = &states[0];
    if found.name != first.name {
        return Some(format!("it is called {:?} and not {:?}", found.name, first.name));
    }
    if found.other != first.other {
        let at = found.other.iter().zip(&first.other).position(|(a, b)| a != b);
        let (is, was) = (found.other.len(), first.other.len());
        return Some(format!("the other file differs at {at:?}, {is} bytes, not {was}"));
    }
    if found.name.is_none() || states.iter().any(|state| state.content == found.content) {
        return None;
    }
    if found.content.len() != first.content.len() {
        return Some(format!("{} bytes, not {}", found.content.len(), first.content.len()));
    }
    let is_right =
        |(index, word): &(usize, &[u8])| states.iter().any(|s| s.content[index * 8..][..word.len()] == **word);
    let mut words = found.content.chunks(8).enumerate();
    let (index, word) = words.find(|word| !is_right(word))?;
    let known: Vec<&[u8]> = states.iter().map(|s| &s.content[index * 8..][..word.len()]).collect();
    Some(format!("the word at {} is {word:x?}, not of {known:x?}", index * 8))
}

#[test]
fn what_may_be_torn_is_told_from_what_may_not() {
    let before = State {
        name: Some("file".into()),
        content: vec![0; 32],
        other: Vec::new(),
    };
    let mut torn = before.clone();
    torn.content[8..16].fill(1);
    let data = vec![1; 32];
    let moment = |effect| Moment {
        state: Arc::new(before.clone()),
        pending: vec![effect],
    };
    let stored = Allowed::at(&moment(Effect::Store {
        at: 0,
        data: data.clone(),
    }));
    let written = Allowed::at(&moment(Effect::Write { at: 0, data }));
    assert_eq!(stored.wrong(&torn), None);
    assert!(written.wrong(&torn).is_some());
    // Not even a store may tear a word, or spill outside its range.
    torn.content[8] = 0;
    assert!(stored.wrong(&torn).is_some());
    let both = Moment {
        state: Arc::new(before.clone()),
        pending: vec![
            Effect::Truncate(16),
            Effect::Store {
                at: 8,
                data: vec![1; 16],
            },
        ],
    };
    let allowed = Allowed::at(&both);
    let mut cut = before.clone();
    cut.content.truncate(16);
    assert_eq!(allowed.wrong(&cut), None);
    cut.content[8..16].fill(1);
    assert_eq!(allowed.wrong(&cut), None);
    cut.content[0..8].fill(1);
    assert!(allowed.wrong(&cut).is_some());
}
