//! The bucket against the rows.
//!
//! Both sides are read in parts. Objects and rows that come and go meanwhile are no differences: an object without a
//! row is one only if its epoch is over and the rows, read again, still do not have it; a slice without its object,
//! only if its row still names it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ferrite_slices::{Listed, SliceId, SliceMap};

use super::handles;
use super::store::{Store, id_of, of_bucket};
use crate::content_store::{Place, Result};

/// Names of a page of the listing.
const PAGE_NAMES: usize = 1000;

/// How bucket and rows differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Comparison {
    /// Objects that files name, and their bytes.
    pub live: (u64, u64),
    /// Objects of slices that are staged, and their bytes: they are on their way, or their owner died.
    pub pending: (u64, u64),
    /// Objects of dead slices, and their bytes: they are kept for a while.
    pub dead: (u64, u64),
    /// Objects that nothing knows, and their bytes.
    pub leaked: (u64, u64),
    /// Of those, how many are dead from now on, so that they go with the others.
    pub buried: u64,
    /// Slices and blobs about whose names rows were wrong. A repair has mended them.
    pub miscounted: u64,
    /// Blobs with slices whose objects are missing or have another length, with a text for each slice.
    pub damaged: Vec<(Place, String)>,
}

/// The slices that rows have.
#[derive(Default)]
struct Known {
    named: HashMap<SliceId, (Place, u32)>,
    staged: HashSet<SliceId>,
    dead: HashSet<SliceId>,
    /// A row cannot be read, so no object is known to belong to nothing.
    has_unreadable: bool,
}

fn known(store: &Store) -> Result<Known> {
    let mut known = Known::default();
    store.rows.each_state(|id, time| {
        match time {
            Some(_) => known.dead.insert(id),
            None => known.staged.insert(id),
        };
    })?;
    store.rows.each_blob_row(|at, value| {
        let Some((place, Some(chunk))) = at else { return };
        let mut map = SliceMap::default();
        known.has_unreadable |= map.add_chunk(chunk, value).is_none();
        known.named.extend(map.slices().map(|(id, len)| (id, (place, len))));
    })?;
    Ok(known)
}

fn add(to: &mut (u64, u64), bytes: u64) {
    *to = (to.0 + 1, to.1 + bytes);
}

/// All objects.
fn each_object(store: &Store, mut visit: impl FnMut(&Listed)) -> Result<()> {
    let mut after = String::new();
    loop {
        let page = store
            .bucket
            .list_now(&store.folder, &after, PAGE_NAMES)
            .map_err(of_bucket)?;
        let is_last = page.len() < PAGE_NAMES;
        page.iter().for_each(&mut visit);
        match page.last() {
            Some(last) if !is_last && last.name > after => after.clone_from(&last.name),
            _ => return Ok(()),
        }
    }
}

/// How many rows are wrong about the names of slices; mends them if it `repairs`.
pub(super) fn count_names(store: &Arc<Store>, repairs: bool) -> Result<u64> {
    let wrong = store.rows.wrong_names()?;
    if repairs && wrong.count() > 0 {
        store.check_changes()?;
        for &place in &wrong.unflagged {
            if let Some(blob) = handles::known(store, id_of(place)?) {
                blob.state.lock().row.shares = true;
            }
        }
        store.rows.mend_names(&wrong)?;
    }
    Ok(wrong.count())
}

/// Compares the bucket with the rows. If it `repairs`, what nothing knows is dead from now on: a backup of the metadata
/// may know it.
pub(super) fn compare(store: &Arc<Store>, repairs: bool) -> Result<Comparison> {
    let epoch = store.epoch();
    let before = known(store)?;
    let mut found = Comparison::default();
    let mut seen: HashMap<SliceId, u64> = HashMap::new();
    let mut unknown: Vec<(Option<SliceId>, Listed)> = Vec::new();
    each_object(store, |object| {
        let name = object
            .name
            .strip_prefix(&*store.folder)
            .and_then(|name| name.strip_prefix('/'));
        let id = name.and_then(SliceId::parse);
        match id {
            Some(id) if before.named.contains_key(&id) => {
                seen.insert(id, object.bytes);
                add(&mut found.live, object.bytes);
            }
            Some(id) if before.staged.contains(&id) => add(&mut found.pending, object.bytes),
            Some(id) if before.dead.contains(&id) => add(&mut found.dead, object.bytes),
            id => unknown.push((id, object.clone())),
        }
    })?;
    let after = known(store)?;
    let mut leaked = Vec::new();
    for (id, object) in unknown {
        let is_known = id.is_some_and(|id| {
            // The owner of now may have made it since.
            after.has_unreadable
                || epoch.is_some_and(|epoch| id.epoch >= epoch)
                || after.named.contains_key(&id)
                || after.staged.contains(&id)
                || after.dead.contains(&id)
        });
        if !is_known {
            add(&mut found.leaked, object.bytes);
            leaked.extend(id);
        }
    }
    for (id, (place, len)) in &before.named {
        let wrong = match seen.get(id) {
            Some(bytes) if store.objects.object_bytes(*len).contains(bytes) => continue,
            Some(bytes) => {
                let may = store.objects.object_bytes(*len);
                format!(
                    "slice {id} has {bytes} bytes instead of {} to {}",
                    may.start(),
                    may.end()
                )
            }
            None => format!("slice {id} is missing in {}", store.bucket.place()),
        };
        if after.named.contains_key(id) {
            found.damaged.push((*place, wrong));
        }
    }
    found.damaged.sort();
    found.miscounted = count_names(store, repairs)?;
    if repairs && !leaked.is_empty() {
        found.buried = leaked.len() as u64;
        store.rows.bury(&leaked, store.time_of_death(false))?;
    }
    Ok(found)
}
