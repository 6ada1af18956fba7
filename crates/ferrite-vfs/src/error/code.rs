//! Errors as numbers, as a wire or a medium keeps them.
//!
//! Invariant: a number never changes its meaning. New causes are added at the end of their list.

use super::{BadArgument, FsError, SpaceOf, Unsupported};

/// Causes without particulars; number 1 is the first.
const PLAIN: [FsError; 27] = [
    FsError::NotFound,
    FsError::AccessDenied,
    FsError::NotPermitted,
    FsError::Exists,
    FsError::NotDirectory,
    FsError::IsDirectory,
    FsError::NotEmpty,
    FsError::NameTooLong,
    FsError::TooManyLinks,
    FsError::CrossDevice,
    FsError::ReadOnly,
    FsError::NoAttribute,
    FsError::Range,
    FsError::ValueTooLong,
    FsError::FileTooBig,
    FsError::NoSuchAddress,
    FsError::Loop,
    FsError::Busy,
    FsError::BadHandle,
    FsError::WouldBlock,
    FsError::Deadlock,
    FsError::Stale,
    FsError::TimedOut,
    FsError::Disconnected,
    FsError::Interrupted,
    FsError::TooManyOpen,
    FsError::Superseded,
];

const SPACE: [SpaceOf; 6] = [
    SpaceOf::Blocks,
    SpaceOf::MapEntries,
    SpaceOf::Inodes,
    SpaceOf::Names,
    SpaceOf::Attributes,
    SpaceOf::RecordLocks,
];

const ARGUMENTS: [BadArgument; 19] = [
    BadArgument::ReservedName,
    BadArgument::NameBytes,
    BadArgument::PathBytes,
    BadArgument::DotOrDotDot,
    BadArgument::BelowItself,
    BadArgument::NoSize,
    BadArgument::NoLength,
    BadArgument::NotLink,
    BadArgument::NodeKind,
    BadArgument::EmptyTarget,
    BadArgument::EmptyAttributeName,
    BadArgument::BareNamespace,
    BadArgument::NotWritable,
    BadArgument::BeforeStart,
    BadArgument::SeekKind,
    BadArgument::EmptyLock,
    BadArgument::LockRange,
    BadArgument::SameFile,
    BadArgument::NoToken,
];

const UNSUPPORTED: [Unsupported; 4] = [
    Unsupported::AttributeNamespace,
    Unsupported::LinkMode,
    Unsupported::StepSize,
    Unsupported::OnceSlot,
];

/// Numbers of the causes with particulars.
const NO_SPACE: u16 = 0x101;
const INVALID: u16 = 0x102;
const NOT_SUPPORTED: u16 = 0x103;

fn place<T: PartialEq>(list: &[T], wanted: &T) -> Option<u16> {
    list.iter().position(|found| found == wanted).map(|at| at as u16)
}

impl FsError {
    /// The error as two numbers, its cause and its particulars; `None` for damage and failures, which have a text.
    pub fn code(&self) -> Option<(u16, u16)> {
        Some(match self {
            FsError::NoSpace(of) => (NO_SPACE, place(&SPACE, of)?),
            FsError::Invalid(what) => (INVALID, place(&ARGUMENTS, what)?),
            FsError::NotSupported(what) => (NOT_SUPPORTED, place(&UNSUPPORTED, what)?),
            plain => (place(&PLAIN, plain)? + 1, 0),
        })
    }

    /// The error with these numbers, if there is one.
    pub fn from_code(cause: u16, particulars: u16) -> Option<FsError> {
        let at = usize::from(particulars);
        Some(match cause {
            NO_SPACE => FsError::NoSpace(*SPACE.get(at)?),
            INVALID => FsError::Invalid(*ARGUMENTS.get(at)?),
            NOT_SUPPORTED => FsError::NotSupported(*UNSUPPORTED.get(at)?),
            _ if particulars != 0 => return None,
            plain => PLAIN.get(usize::from(plain).checked_sub(1)?)?.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_errors() {
        let mut known = 0;
        for cause in 0..0x200 {
            for particulars in 0..64 {
                if let Some(error) = FsError::from_code(cause, particulars) {
                    assert_eq!(error.code(), Some((cause, particulars)), "{error}");
                    known += 1;
                }
            }
        }
        assert_eq!(known, PLAIN.len() + SPACE.len() + ARGUMENTS.len() + UNSUPPORTED.len());
        assert_eq!(FsError::Io(String::new()).code(), None);
        assert_eq!(FsError::damaged(1, "").code(), None);
    }

    /// What a pool or a client of an earlier program has kept means the same for ever.
    #[test]
    fn numbers_keep_their_meaning() {
        for (error, code) in [
            (FsError::NotFound, (1, 0)),
            (FsError::Exists, (4, 0)),
            (FsError::Stale, (22, 0)),
            (FsError::Superseded, (27, 0)),
            (FsError::NoSpace(SpaceOf::Blocks), (0x101, 0)),
            (FsError::Invalid(BadArgument::NoToken), (0x102, 18)),
            (FsError::NotSupported(Unsupported::OnceSlot), (0x103, 3)),
        ] {
            assert_eq!(error.code(), Some(code), "{error}");
        }
    }
}
