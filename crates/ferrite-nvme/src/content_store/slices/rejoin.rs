//! A log whose second device was away gets changes again.
//!
//! Once the device is there, and the bucket has everything that the log was kept for, the log begins anew on both, in a
//! new term: so nothing need be copied, and a device that lacks it is known.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ferrite_wal::Joining;

use super::far::Far;
use super::handles;
use super::log_state::ChangeLog;
use super::store::Store;
use crate::content_store::Result;

/// Has a log get changes again whose second device was away, once it is back.
pub(super) fn rejoin(store: &Store) {
    let Some(log) = store.log.as_deref() else { return };
    let Some(far) = log.far.as_ref().filter(|_| log.is_incomplete()) else {
        return;
    };
    if store.is_replaying.load(Ordering::Acquire) {
        return;
    }
    // First: from here on no change is appended, whatever the log says.
    far.lose();
    let blobs = handles::unpublished(store, Duration::ZERO);
    if blobs.iter().any(|blob| blob.state.lock().kept_from().is_some()) || store.is_over() {
        return;
    }
    // Its lock would keep it from being opened again.
    if !far.mirror.part() {
        return;
    }
    let joined = match far.poll(log.wal.owner()) {
        None => return,
        Some(Err(error)) => Err(error),
        Some(Ok(device)) => begin_anew(store, log, far, device).map_err(|error| error.to_string()),
    };
    if !far.is_news(joined.as_ref().err().map_or("", String::as_str)) {
        return;
    }
    match joined {
        Ok(()) => tracing::info!(log = log.name, "fsync waits for the log again, which has both devices"),
        Err(error) => tracing::warn!(log = log.name, error, "the log is not used without its second device"),
    }
}

/// The log has its new term before the rows do, as in `logged::begin`.
fn begin_anew(store: &Store, log: &ChangeLog, far: &Far, device: Joining) -> Result<()> {
    let failed = |error: ferrite_wal::Error| crate::content_store::Error::Failed(error.to_string());
    store.check_changes()?;
    let epoch = store.epoch().unwrap_or_default();
    far.mirror.join(device);
    let term = log.wal.restart(epoch).map_err(failed)?;
    store.rows.put_log_term(log.wal.id(), term)?;
    far.note_there();
    Ok(())
}
