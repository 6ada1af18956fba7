//! The pool that a namespace belongs to.
//!
//! Contents: [`read`], [`write`] and [`remove`] of the claim: the id of the pool, as text, in an xattr of the object
//! `pool`.
//!
//! Invariant: a namespace without a claim has no content of a pool that was made; one with a claim has that of one pool
//! alone. It changes only while its writer has taken the content over.

use ferrite_rados::{Error as RadosError, Pool, ReadOp, WriteOp};

use crate::content_store::{Error, Result};

const OBJECT: &str = "pool";
const XATTR: &str = "pool";
/// The text before the id.
const VERSION: &str = "ferrite pool 1 ";
/// Bytes of an id.
const ID_BYTES: usize = 16;

/// The id of a pool.
pub(super) type PoolId = [u8; ID_BYTES];

/// Whether an object is the claim.
pub(super) fn is_name(object: &str) -> bool {
    object == OBJECT
}

fn encode(id: PoolId) -> String {
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{VERSION}{digits}")
}

fn decode(text: &[u8]) -> Option<PoolId> {
    let digits = std::str::from_utf8(text).ok()?.strip_prefix(VERSION)?;
    let id = u128::from_str_radix(digits, 16).ok()?.to_be_bytes();
    // Other spellings of the same number are not its text.
    (encode(id).as_bytes() == text).then_some(id)
}

/// The pool that has the namespace, if one has.
///
/// # Errors
/// [`Error::Damaged`]; errors of the cluster.
pub(super) fn read(pool: &Pool, failed: impl Fn(RadosError) -> Error) -> Result<Option<PoolId>> {
    let text = match pool.read(OBJECT, &ReadOp::new().xattr(XATTR), &mut []) {
        Err(RadosError::NotFound(_)) => return Ok(None),
        reply => reply.map_err(failed)?.xattr(XATTR).unwrap_or_default().to_vec(),
    };
    let damaged = || {
        Error::Damaged(format!(
            "object {OBJECT} of Ceph pool {} in namespace {}, which names the pool of Ferrite, cannot be read; use a \
             newer program, or another namespace",
            pool.name(),
            pool.namespace()
        ))
    };
    decode(&text).map(Some).ok_or_else(damaged)
}

/// Gives the namespace to a pool. Durable when it returns.
///
/// # Errors
/// Errors of the cluster.
pub(super) fn write(pool: &Pool, id: PoolId, failed: impl Fn(RadosError) -> Error) -> Result<()> {
    let text = encode(id);
    let op = WriteOp::new().create().set_xattr(XATTR, text.as_bytes());
    pool.write(OBJECT, &op).map_err(failed)
}

/// Takes the namespace from the pool that has it, if one has. Durable when it returns.
///
/// # Errors
/// Errors of the cluster.
pub(super) fn remove(pool: &Pool, failed: impl Fn(RadosError) -> Error) -> Result<()> {
    match pool.write(OBJECT, &WriteOp::new().remove()) {
        Ok(()) | Err(RadosError::NotFound(_)) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_has_one_spelling() {
        let id = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff];
        let text = encode(id);
        assert_eq!(text, "ferrite pool 1 000102030405060708090a0b0c0d0eff");
        assert_eq!(decode(text.as_bytes()), Some(id));
        for other in [
            "",
            "ferrite pool 2 00",
            "ferrite pool 1 ",
            "ferrite pool 1 +1",
            &text[..30],
        ] {
            assert_eq!(decode(other.as_bytes()), None, "{other}");
        }
        assert_eq!(decode(text.to_uppercase().as_bytes()), None);
    }
}
