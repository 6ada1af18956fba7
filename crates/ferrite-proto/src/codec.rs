//! Numbers, bytes and lists as they cross the wire: [`Encode`], [`Wire`], and [`Reader`], which trusts nothing.
//!
//! Invariant: reading never panics and never allocates more than the received bytes hold.

use thiserror::Error;

/// The received bytes are not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("malformed message: {0}")]
pub struct Malformed(pub &'static str);

/// Reads a message from its first byte to its last.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'m> {
    rest: &'m [u8],
}

impl<'m> Reader<'m> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'m [u8]) -> Reader<'m> {
        Reader { rest: bytes }
    }

    /// The next bytes.
    pub fn take(&mut self, count: usize) -> Result<&'m [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed("it is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next value.
    pub fn get<T: Wire<'m>>(&mut self) -> Result<T, Malformed> {
        T::get(self)
    }

    /// How many bytes are left.
    pub fn len_bytes(&self) -> usize {
        self.rest.len()
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The only value that is left.
    pub fn last<T: Wire<'m>>(mut self) -> Result<T, Malformed> {
        let value = self.get()?;
        match self.is_empty() {
            true => Ok(value),
            false => Err(Malformed("it is too long")),
        }
    }
}

/// A value that can be sent.
pub trait Encode {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
}

/// A value that can be sent and received.
pub trait Wire<'m>: Encode + Sized {
    /// Reads it.
    fn get(from: &mut Reader<'m>) -> Result<Self, Malformed>;
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Encode for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }

        impl Wire<'_> for $type {
            fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let bytes = from.take(size_of::<$type>())?;
                Ok(<$type>::from_le_bytes(bytes.try_into().map_err(|_| Malformed("it is too short"))?))
            }
        })*
    };
}

numbers!(u8, u16, u32, u64, i64);

impl Encode for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }
}

impl Wire<'_> for bool {
    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match from.get::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a truth value is 0 or 1")),
        }
    }
}

impl Encode for () {
    fn put(&self, _: &mut Vec<u8>) {}
}

impl Wire<'_> for () {
    fn get(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(())
    }
}

/// Bytes: their number (32 bits), then the bytes.
impl Encode for &[u8] {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self);
    }
}

impl<'m> Wire<'m> for &'m [u8] {
    fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
        let len = from.get::<u32>()? as usize;
        from.take(len)
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<'m, const N: usize> Wire<'m> for [u8; N] {
    fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
        from.take(N)?.try_into().map_err(|_| Malformed("it is too short"))
    }
}

/// A list: the number of its elements (32 bits), then the elements.
impl<T: Encode> Encode for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|element| element.put(out));
    }
}

impl<'m, T: Wire<'m>> Wire<'m> for Vec<T> {
    fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
        let count = from.get::<u32>()?;
        // It grows with the elements present, not with the announced number.
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(from.get()?);
        }
        Ok(list)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
}

impl<'m, T: Wire<'m>> Wire<'m> for Option<T> {
    fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
        Ok(match from.get::<bool>()? {
            true => Some(from.get()?),
            false => None,
        })
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
}

impl<'m, A: Wire<'m>, B: Wire<'m>> Wire<'m> for (A, B) {
    fn get(from: &mut Reader<'m>) -> Result<Self, Malformed> {
        Ok((from.get()?, from.get()?))
    }
}

/// Implements [`Encode`] and [`Wire`] for a struct: its fields, in declaration order. The server keeps its own records
/// in this form, too.
#[macro_export]
macro_rules! fields {
    ($type:ty { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Encode for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Encode::put(&self.$field, out);)*
            }
        }

        impl<'m> $crate::codec::Wire<'m> for $type {
            fn get(from: &mut $crate::codec::Reader<'m>) -> Result<Self, $crate::codec::Malformed> {
                $(let $field = from.get()?;)*
                Ok(Self { $($field),* })
            }
        }
    };
}

/// Implements [`Encode`] and [`Wire`] for an enum without content: each value is one byte.
macro_rules! values {
    ($type:ty { $($number:literal = $value:path),* $(,)? }) => {
        impl crate::codec::Encode for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let number: u8 = match self {
                    $($value => $number,)*
                };
                crate::codec::Encode::put(&number, out);
            }
        }

        impl<'m> crate::codec::Wire<'m> for $type {
            fn get(from: &mut crate::codec::Reader<'m>) -> Result<Self, crate::codec::Malformed> {
                match from.get::<u8>()? {
                    $($number => Ok($value),)*
                    _ => Err(crate::codec::Malformed(concat!("no ", stringify!($type), " has this number"))),
                }
            }
        }
    };
}

pub(crate) use values;
