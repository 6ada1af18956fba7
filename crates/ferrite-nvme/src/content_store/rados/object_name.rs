//! Names of objects: `SHARD.EPOCH.NUMBER.CHUNK` for a chunk of a blob, `owner.SHARD` for the record of owners, `pool`
//! for the claim. Numbers are hexadecimal, without zeros in front.

use super::super::UniqueId;

/// The name of a chunk's object.
pub(super) fn of_chunk(id: UniqueId, chunk: u64) -> String {
    format!("{:x}.{:x}.{:x}.{chunk:x}", id.shard, id.epoch, id.number)
}

/// The name of the object that records the owners of a shard.
pub(super) fn of_owner(shard: u64) -> String {
    format!("owner.{shard:x}")
}

/// Whether a name is that of a record of owners.
pub(super) fn is_of_owner(name: &str) -> bool {
    let shard = name.strip_prefix("owner.");
    shard.is_some_and(|shard| u64::from_str_radix(shard, 16).is_ok_and(|shard| of_owner(shard) == name))
}

/// The blob and the chunk of a name, if it is that of a chunk.
pub(super) fn parse(name: &str) -> Option<(UniqueId, u64)> {
    let mut numbers = [0; 4];
    let mut parts = name.split('.');
    for number in &mut numbers {
        *number = u64::from_str_radix(parts.next()?, 16).ok()?;
    }
    let [shard, epoch, number, chunk] = numbers;
    let id = UniqueId { shard, epoch, number };
    // Other spellings of the same numbers are not its name.
    (of_chunk(id, chunk) == name).then_some((id, chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        let id = UniqueId {
            shard: 0,
            epoch: 0xab,
            number: u64::MAX,
        };
        let name = of_chunk(id, 17);
        assert_eq!(name, "0.ab.ffffffffffffffff.11");
        assert_eq!(parse(&name), Some((id, 17)));
        for other in [
            "owner.0",
            "0.AB.1.1",
            "0.0ab.1.1",
            "0.ab.1",
            "0.ab.1.1.1",
            "0.ab.+1.1",
            "0.ab.1.",
            "",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
        assert!(is_of_owner("owner.0") && is_of_owner(&of_owner(u64::MAX)));
        for other in ["owner.", "owner.00", "owner.+1", "owner.G", &name] {
            assert!(!is_of_owner(other), "{other}");
        }
    }
}
