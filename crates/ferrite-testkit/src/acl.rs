//! Access control lists for tests, written as for setfacl(1).

/// The bytes of a list such as `u::rw-,u:1001:r--,g::r--,m::r--,o::---`, in the given order, right or wrong.
///
/// # Panics
/// If an entry is not written like this.
pub fn acl(text: &str) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for entry in text.split(',').filter(|entry| !entry.is_empty()) {
        let fields: Vec<&str> = entry.split(':').collect();
        let [class, id, perms] = fields[..] else {
            panic!("{entry}: three fields")
        };
        let tag: u16 = match (class, id) {
            ("u", "") => 0x01,
            ("u", _) => 0x02,
            ("g", "") => 0x04,
            ("g", _) => 0x08,
            ("m", "") => 0x10,
            ("o", "") => 0x20,
            _ => panic!("{entry}: no such class"),
        };
        let bits = perms.bytes().zip([4, 2, 1]);
        let perm: u16 = bits.map(|(byte, bit)| if byte == b'-' { 0 } else { bit }).sum();
        let id: u32 = if id.is_empty() {
            u32::MAX
        } else {
            id.parse().expect(entry)
        };
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// A valid list that depends on `len`: some with further users and groups, some that say no more than a mode.
pub fn acl_of(len: usize) -> Vec<u8> {
    let perms = |shift: usize| ["---", "r--", "-w-", "rw-", "--x", "r-x", "-wx", "rwx"][(len >> shift) % 8];
    let user = format!("u:{}:{},", 1000 + len % 3, perms(2));
    let group = format!("g:{}:{},", 100 + len % 2, perms(3));
    let mask = format!("m::{},", perms(4));
    let (user, group, mask) = match len % 4 {
        0 => ("", "", ""),
        1 => (&user[..], "", &mask[..]),
        2 => ("", &group[..], &mask[..]),
        _ => (&user[..], &group[..], &mask[..]),
    };
    acl(&format!(
        "u::{},{user}g::{},{group}{mask}o::{}",
        perms(0),
        perms(1),
        perms(5)
    ))
}
