//! Packet sequence numbers: 24 bits that wrap.
//!
//! Invariant: two numbers are compared by their distance, which is right as long as it is below 2²³. Requester and
//! responder keep outstanding packets far below that.

use std::fmt;

/// How many numbers exist.
const COUNT: u32 = 1 << 24;

/// A packet sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `value`.
    pub fn new(value: u32) -> Psn {
        Psn(value % COUNT)
    }

    /// The number, below 2²⁴.
    pub fn value(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    #[must_use]
    pub fn plus(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// The number before.
    #[must_use]
    pub fn before(self) -> Psn {
        self.plus(COUNT - 1)
    }

    /// How many packets this is later than `other`; negative if it is earlier. From -2²³ to 2²³ - 1.
    pub fn since(self, other: Psn) -> i32 {
        // The sign of 24 bits is that of 32 whose low byte is empty.
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    /// Whether this is one of the `count` numbers from `first` on.
    pub fn is_within(self, first: Psn, count: u32) -> bool {
        u32::try_from(self.since(first)).is_ok_and(|distance| distance < count)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_go_across_the_end() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).before(), last);
        assert_eq!(Psn::new(5).since(last), 6);
        assert_eq!(last.since(Psn::new(5)), -6);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
        assert!(Psn::new(1).is_within(last, 3) && !Psn::new(2).is_within(last, 3));
        assert!(!last.before().is_within(last, 3));
    }
}
