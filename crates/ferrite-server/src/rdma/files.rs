//! Files behind keys: [`ferrite_mr`]'s, for the adapter of a server.

use std::sync::{Arc, Weak};

use ferrite_mr::{FileMemory, Listed, Options, Registrar, Rights, SessionId};
use ferrite_roce::wire::Qpn;
use ferrite_vfs::{FileSystem, FsError, Ino, Result, SYSTEM, posix, walk};

use super::adapter::{Files, Key};
use crate::{KeyWanted, Keys};
use ferrite_proto::BoundFileInfo;

/// Bound files of any number of engines, and their keys.
pub struct BoundFiles {
    registrar: Registrar,
}

impl BoundFiles {
    /// Without any files.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn new() -> std::io::Result<BoundFiles> {
        Ok(BoundFiles {
            registrar: Registrar::new(Options::default())?,
        })
    }
}

/// Logs an error that has no recipient.
fn note(what: &str, result: Result<()>) {
    match result {
        Ok(()) | Err(FsError::NotFound) => {}
        Err(error) => tracing::warn!("{what}: {error}"),
    }
}

fn is_of(listed: &Listed, fs: &Arc<dyn FileSystem>) -> bool {
    Weak::ptr_eq(&listed.engine, &Arc::downgrade(fs))
}

impl Files for BoundFiles {
    type Memory = FileMemory;

    fn memory(&self) -> FileMemory {
        self.registrar.memory()
    }

    fn attach(&self, session: u64, qpn: Qpn) {
        self.registrar.attach(SessionId(session), qpn);
    }

    fn detach(&self, qpn: Qpn) {
        self.registrar.detach(qpn);
    }

    fn bind(&self, wanted: &KeyWanted<'_>) -> Result<Key> {
        let &KeyWanted {
            session,
            fs,
            ctx,
            ino,
            binding,
            atomic,
        } = wanted;
        let rights = match binding.writable {
            true => Rights {
                atomic_writes: atomic,
                ..Rights::ALL
            },
            false => Rights::READ,
        };
        let bind = || self.registrar.bind(fs, ctx, ino, binding, SessionId(session), rights);
        let granted = match bind() {
            // Bound for reading alone. Its readers get other keys when they ask again.
            Err(FsError::Busy) if binding.writable => {
                if ctx.check {
                    let attr = fs.getattr(ctx, ino)?;
                    posix::may_access(&walk::guarded(&**fs, attr, &ctx.cred)?, &ctx.cred, rights.access())?;
                }
                note("a file could not be sealed", self.registrar.unbind_file(fs, ino));
                bind()?
            }
            granted => granted?,
        };
        Ok(Key {
            number: granted.key,
            size: granted.size,
            atomic_bytes_max: granted.atomic_bytes_max,
        })
    }
}

impl Keys for BoundFiles {
    fn release(&self, session: u64, key: u32) {
        note(
            "a file could not be sealed",
            self.registrar.release(SessionId(session), key),
        );
    }

    fn end_session(&self, session: u64) {
        note(
            "a file could not be sealed",
            self.registrar.end_session(SessionId(session)),
        );
    }

    fn unbind(&self, fs: &Arc<dyn FileSystem>, ino: Ino) -> Result<()> {
        match self.registrar.unbind_file(fs, ino) {
            // A file that was still bound when the server ended, if any.
            Err(FsError::NotFound) => fs.regions().map_or(Ok(()), |regions| regions.finalize(SYSTEM, ino)),
            result => result,
        }
    }

    fn files(&self, fs: &Arc<dyn FileSystem>) -> Vec<BoundFileInfo> {
        let listed = self.registrar.list();
        let bound = fs.regions().map(|regions| regions.bound()).unwrap_or_default();
        let reported = bound.into_iter().map(|file| {
            let Some(known) = listed.iter().find(|one| one.ino == file.ino && is_of(one, fs)) else {
                return BoundFileInfo {
                    ino: file.ino,
                    is_attached: file.is_attached,
                    entries: file.runs,
                    ..BoundFileInfo::default()
                };
            };
            let total = known.status.total;
            BoundFileInfo {
                ino: file.ino,
                size: known.status.size,
                is_attached: true,
                writable: known.binding.writable,
                keys: known.holders.len() as u32,
                entries: known.status.ranges,
                lookups: total.cache_hits + total.cache_misses,
                hits: total.cache_hits,
            }
        });
        reported.collect()
    }
}
