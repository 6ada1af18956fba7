//! Arguments in transit: the sender copies them, the engine borrows them from the receiver.

use ferrite_vfs::locks::{LockOwner, RecordLock, Unlock};
use ferrite_vfs::{
    CloneRange, Ctx, FallocateMode, NewFile, NewNode, OpenFlags, OpenMode, RenameMode, SetAttr, Start, WriteMode,
    XattrMode,
};

/// An argument as it crosses the network: nothing in it belongs to the caller.
pub trait Parcel: 'static {
    /// The argument in the form of the traits.
    type Argument<'a>;

    /// Copies it.
    fn pack(argument: Self::Argument<'_>) -> Self;

    /// Borrows it for the engine.
    fn unpack(&self) -> Self::Argument<'_>;
}

macro_rules! borrowed {
    ($($type:ty),*) => {
        $(impl Parcel for $type {
            type Argument<'a> = &'a $type;

            fn pack(argument: &$type) -> $type {
                argument.clone()
            }

            fn unpack(&self) -> &$type {
                self
            }
        })*
    };
}

macro_rules! passed {
    ($($type:ty),*) => {
        $(impl Parcel for $type {
            type Argument<'a> = $type;

            fn pack(argument: $type) -> $type {
                argument
            }

            fn unpack(&self) -> $type {
                *self
            }
        })*
    };
}

borrowed!(CloneRange, Ctx, RecordLock, SetAttr, NewNode, NewFile, Start, OpenFlags);
passed!(
    LockOwner,
    Unlock,
    u32,
    u64,
    bool,
    OpenMode,
    RenameMode,
    XattrMode,
    WriteMode,
    FallocateMode
);

impl Parcel for Vec<u8> {
    type Argument<'a> = &'a [u8];

    /// Copies it.
    fn pack(argument: &[u8]) -> Vec<u8> {
        argument.to_vec()
    }

    fn unpack(&self) -> &[u8] {
        self
    }
}
