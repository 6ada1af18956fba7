//! The assignment of a workload's operations to threads, and so of their records to rings.

/// The assignment of a single sequence of operations to two threads, and so to two rings.
#[derive(Debug, Clone)]
pub enum Turns {
    /// One thread does all.
    One,
    /// The other one does every other operation.
    Alternate,
    /// For each operation: whether the other thread does it.
    Each(Vec<bool>),
}

impl Turns {
    /// Whether the other thread does the operation of this index.
    pub fn is_elsewhere(&self, index: usize) -> bool {
        match self {
            Turns::One => false,
            Turns::Alternate => index % 2 == 1,
            Turns::Each(elsewhere) => elsewhere.get(index) == Some(&true),
        }
    }

    /// Drops the turns of all operations except these.
    pub fn keep(&mut self, kept: &[usize]) {
        if let Turns::Each(elsewhere) = self {
            let mut index = 0;
            elsewhere.retain(|_| {
                index += 1;
                kept.contains(&(index - 1))
            });
        }
    }

    pub(super) fn alternate_if(condition: bool) -> Self {
        if condition { Turns::Alternate } else { Turns::One }
    }
}
