//! Deliberate mistakes, to show that the crash explorer finds such mistakes.
//!
//! Contents: [`Flaw`], and the switch that turns one on. Without the feature `planted`, the switch is a constant
//! `false`, and all of them compile to nothing.

/// A mistake that a programmer could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A packet is acknowledged before the fence that makes it durable.
    AckBeforeFence = 1,
    /// A guard is released before the fence of what was stored under it.
    GuardBeforeFence,
    /// A translation that threads remember does not become void when the page moves, or disappears in a truncation.
    StaleTranslation,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 3] = [Flaw::AckBeforeFence, Flaw::GuardBeforeFence, Flaw::StaleTranslation];
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Makes the adapter make this mistake from now on, in the whole process; `None` for no mistake.
#[cfg(feature = "planted")]
pub fn plant(flaw: Option<Flaw>) {
    PLANTED.store(flaw.map_or(0, |flaw| flaw as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether to make this mistake.
#[cfg(feature = "planted")]
pub(crate) fn planted(flaw: Flaw) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == flaw as u8
}

/// Whether to make this mistake: never.
#[cfg(not(feature = "planted"))]
pub(crate) const fn planted(_: Flaw) -> bool {
    false
}
