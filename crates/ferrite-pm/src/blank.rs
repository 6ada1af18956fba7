//! Files that hold nothing, and may therefore become pools without confirmation.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Most bytes that are read to check for zeros.
const ZEROS_READ_MAX: u64 = 64 << 20;

/// Whether nothing was ever written to a file: it is empty, or space was reserved for it. The kernel reports reserved
/// space that was read as data, so its data may be zeros. False where this cannot be determined. Blocking.
pub fn holds_nothing(file: &File) -> bool {
    let mut buffer = vec![0; 1 << 20];
    let (mut at, mut read_bytes) = (0, 0);
    loop {
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(error) => return error == Errno::NXIO,
        };
        let Ok(end) = rustix::fs::seek(file, SeekFrom::Hole(at)) else {
            return false;
        };
        while at < end {
            let part = &mut buffer[..(end - at).min(1 << 20) as usize];
            read_bytes += part.len() as u64;
            if read_bytes > ZEROS_READ_MAX
                || file.read_exact_at(part, at).is_err()
                || part.iter().any(|&byte| byte != 0)
            {
                return false;
            }
            at += part.len() as u64;
        }
    }
}
