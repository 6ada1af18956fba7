//! The peer: io_uring itself, one ring and one thread, with requests of one length at random places.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ferrite_buffers::{Buffer, Pool};
use ferrite_lab::peers::page;
use io_uring::{IoUring, opcode, types};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;

use crate::{FAILED, Failure};

/// Most requests under way.
pub(super) const DEPTH_MAX: usize = 16;

/// A ring on a device; it uses the first bytes of the device, as many as the file has.
pub(super) struct Raw {
    ring: IoUring,
    _file: File,
    buffers: Vec<Buffer>,
    span_bytes: u64,
    next: u64,
}

impl Raw {
    /// The device has been written to as far as `span_bytes`.
    pub(super) fn open(device: &Path, span_bytes: u64, len: usize) -> Result<Raw, Failure> {
        let direct = File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(device);
        // A file system in memory has no direct transfers, and needs none.
        let file = match direct {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                File::options().read(true).write(true).open(device)?
            }
            other => other?,
        };
        let ring = IoUring::new(64)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        let no_memory = || Failure::new(FAILED, "no memory for buffers");
        let pool = Pool::new(DEPTH_MAX * len).ok_or_else(no_memory)?;
        let buffers = (0..DEPTH_MAX).map_while(|_| pool.take(len)).collect();
        Ok(Raw {
            ring,
            _file: file,
            buffers,
            span_bytes,
            next: 0,
        })
    }

    /// Runs `count` requests, `depth` of them at a time. Writes are durable.
    pub(super) fn run(&mut self, writes: bool, depth: usize, count: u64) -> Result<(), Failure> {
        let mut free: Vec<usize> = (0..depth.min(self.buffers.len())).collect();
        let (mut begun, mut ended) = (0, 0);
        let (mut wanted, mut failed) = (count, None);
        while ended < wanted {
            while begun < wanted
                && let Some(index) = free.pop()
            {
                self.next += 1;
                let buffer = &mut self.buffers[index];
                let len = buffer.len() as u32;
                let places = self.span_bytes / u64::from(len);
                let at = match len {
                    4096 => page(self.next, self.span_bytes),
                    _ => self.next % places * u64::from(len),
                };
                let file = types::Fixed(0);
                let entry = match writes {
                    true => opcode::Write::new(file, buffer.as_ptr(), len)
                        .offset(at)
                        .rw_flags(ReadWriteFlags::DSYNC.bits() as i32)
                        .build(),
                    false => opcode::Read::new(file, buffer.as_mut_ptr(), len).offset(at).build(),
                };
                // SAFETY: the buffer lives as long as this; it is used again only when its request has ended, and
                // this returns only when all have.
                let pushed = unsafe { self.ring.submission().push(&entry.user_data(index as u64)) };
                pushed.map_err(|error| Failure::new(FAILED, error.to_string()))?;
                begun += 1;
            }
            self.ring.submit_and_wait(1)?;
            for completion in self.ring.completion() {
                let index = completion.user_data() as usize;
                if completion.result() != self.buffers[index].len() as i32 {
                    failed = Some(completion.result());
                    // Requests under way must end before their buffers are freed.
                    wanted = begun;
                }
                free.push(index);
                ended += 1;
            }
        }
        match failed {
            None => Ok(()),
            Some(result @ ..0) => Err(std::io::Error::from_raw_os_error(-result).into()),
            Some(count) => Err(Failure::new(FAILED, format!("a transfer ended after {count} bytes"))),
        }
    }
}
