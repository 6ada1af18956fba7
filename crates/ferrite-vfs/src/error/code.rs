//! Errors as numbers, as a wire or a medium keeps them.
//!
//! Invariant: a number never changes its meaning. New causes are added at the end of their list.

use super::{BadArgument, FsError, SessionsOf, SpaceOf, Unsupported};

/// Causes without particulars; number 1 is the first.
const PLAIN: [FsError; 28] = [
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
    FsError::OverQuota,
];

const SPACE: [SpaceOf; 6] = [
    SpaceOf::Blocks,
    SpaceOf::MapEntries,
    SpaceOf::Inodes,
    SpaceOf::Names,
    SpaceOf::Attributes,
    SpaceOf::RecordLocks,
];

const ARGUMENTS: [BadArgument; 28] = [
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
    BadArgument::RegionKind,
    BadArgument::RegionGrows,
    BadArgument::RegionPage,
    BadArgument::NoId,
    BadArgument::AccessControlList,
    BadArgument::CloneOverlap,
    BadArgument::QuotaText,
    BadArgument::QuotaPlace,
    BadArgument::FlagLetters,
];

const UNSUPPORTED: [Unsupported; 10] = [
    Unsupported::AttributeNamespace,
    Unsupported::LinkMode,
    Unsupported::StepSize,
    Unsupported::DedupSlot,
    Unsupported::Region,
    Unsupported::WritableRegion,
    Unsupported::AclVersion,
    Unsupported::Clone,
    Unsupported::CloneUnit,
    Unsupported::ReservedSpace,
];

const SESSIONS: [SessionsOf; 3] = [SessionsOf::Export, SessionsOf::Key, SessionsOf::Address];

/// Numbers of the causes with particulars.
const NO_SPACE: u16 = 0x101;
const INVALID: u16 = 0x102;
const NOT_SUPPORTED: u16 = 0x103;
const TOO_MANY_SESSIONS: u16 = 0x104;

fn place<T: PartialEq>(list: &[T], wanted: &T) -> Option<u16> {
    list.iter().position(|found| found == wanted).map(|at| at as u16)
}

/// An error in numbers that mean the same for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode {
    /// The number of the cause.
    pub cause: u16,
    /// Details of the cause; 0 if it has none.
    pub particulars: u16,
}

impl ErrorCode {
    /// A code of these numbers, which need not belong to an error.
    pub const fn new(cause: u16, particulars: u16) -> Self {
        ErrorCode { cause, particulars }
    }
}

impl FsError {
    /// The error as two numbers; `None` for damage, failures and [`FsError::NotOwner`], which have a text.
    pub fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            FsError::NoSpace(of) => ErrorCode::new(NO_SPACE, place(&SPACE, of)?),
            FsError::Invalid(what) => ErrorCode::new(INVALID, place(&ARGUMENTS, what)?),
            FsError::NotSupported(what) => ErrorCode::new(NOT_SUPPORTED, place(&UNSUPPORTED, what)?),
            FsError::TooManySessions(of) => ErrorCode::new(TOO_MANY_SESSIONS, place(&SESSIONS, of)?),
            plain => ErrorCode::new(place(&PLAIN, plain)? + 1, 0),
        })
    }

    /// The error with these numbers, if there is one.
    pub fn from_code(code: ErrorCode) -> Option<FsError> {
        let ErrorCode { cause, particulars } = code;
        let at = usize::from(particulars);
        Some(match cause {
            NO_SPACE => FsError::NoSpace(*SPACE.get(at)?),
            INVALID => FsError::Invalid(*ARGUMENTS.get(at)?),
            NOT_SUPPORTED => FsError::NotSupported(*UNSUPPORTED.get(at)?),
            TOO_MANY_SESSIONS => FsError::TooManySessions(*SESSIONS.get(at)?),
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
                let code = ErrorCode::new(cause, particulars);
                if let Some(error) = FsError::from_code(code) {
                    assert_eq!(error.code(), Some(code), "{error}");
                    known += 1;
                }
            }
        }
        let expected = PLAIN.len() + SPACE.len() + ARGUMENTS.len() + UNSUPPORTED.len() + SESSIONS.len();
        assert_eq!(known, expected);
        assert_eq!(FsError::Io(String::new()).code(), None);
        assert_eq!(FsError::damaged(1, "").code(), None);
    }

    /// Codes that a pool or a client kept under an earlier release keep their meaning for ever.
    #[test]
    fn numbers_keep_their_meaning() {
        for (error, (cause, particulars)) in [
            (FsError::NotFound, (1, 0)),
            (FsError::Exists, (4, 0)),
            (FsError::Stale, (22, 0)),
            (FsError::Superseded, (27, 0)),
            (FsError::NoSpace(SpaceOf::Blocks), (0x101, 0)),
            (FsError::Invalid(BadArgument::NoToken), (0x102, 18)),
            (FsError::NotSupported(Unsupported::DedupSlot), (0x103, 3)),
        ] {
            assert_eq!(error.code(), Some(ErrorCode::new(cause, particulars)), "{error}");
        }
    }
}
