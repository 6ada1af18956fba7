//! The engine as [`Volume`]: the administrator's side.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrite_meta::{ShardStatus, Statistics};
use ferrite_vfs::volume::{
    DumpedPiece, InfoLine, Ownership, Progress, ScrubReport, Volume, VolumeError, VolumeErrorKind, VolumeInfo,
    human_bytes,
};
use ferrite_vfs::{FileSystem, FsError, Ino, QUOTAS_LISTED_MAX, SYSTEM};

use crate::ceph;
use crate::config::Data;
use crate::content_store::{self, BlobName, Placement};
use crate::core::Core;
use crate::format::node::Content;
use crate::info::line;
use crate::metadata::of_meta;
use crate::open::Options;
use crate::ownership::Answering;
use crate::ownership_info;
use crate::pool::{self, Parts};
use crate::refusal::refuse;
use crate::s3;
#[cfg(feature = "s3")]
use crate::s3_info::info_of_s3;
use crate::{Finding, Repaired, Report};

/// Scheme of the addresses of these pools.
const SCHEME: &str = "nvme";
const DURABILITY: &str = "completed operations survive a loss of power";
/// The same of content in S3.
const DURABILITY_IN_S3: &str =
    "completed operations survive the loss of this machine with the metadata; content does, too, after fsync";

/// An open pool.
pub struct NvmeVolume {
    path: PathBuf,
    parts: Parts,
}

fn failed(error: FsError) -> VolumeError {
    let errno = error.errno();
    let kind = match &error {
        FsError::Damaged { .. } => VolumeErrorKind::Damaged,
        _ => VolumeErrorKind::Medium,
    };
    VolumeError::new(kind, error).with_errno(Some(errno))
}

impl NvmeVolume {
    /// Opens the pool that a file describes. A pool that was not closed is recovered first. Blocks.
    ///
    /// # Errors
    /// Parts that are missing, in use, another pool's or in another's place; damage; errors of the media.
    pub fn open(path: &Path, options: Options) -> Result<NvmeVolume, VolumeError> {
        Ok(NvmeVolume {
            path: path.to_path_buf(),
            parts: pool::open(path, options)?,
        })
    }

    /// The server that owned the pool when it was opened with [`Options::look`].
    pub fn owned_by(&self) -> Option<&ShardStatus> {
        self.parts.owned_by.as_ref()
    }

    /// Counters of its metadata store.
    pub fn metadata_statistics(&self) -> Statistics {
        self.parts.fs.0.meta.statistics()
    }

    /// The bytes and requests of its content in S3, if it is there.
    #[cfg(feature = "s3")]
    pub fn s3_usage(&self) -> Option<crate::content_store::SlicesUsage> {
        crate::s3_info::usage(&self.parts)
    }

    /// The file that describes it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks every structure against every other. The pool should be idle. One that was opened with [`Options::look`]
    /// may be in use elsewhere: then findings are those that stay, and content is not checked.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn check(&self) -> Result<Report, VolumeError> {
        if self.parts.fs.0.looks && self.parts.config.metadata.postgres.is_some() {
            return self.parts.fs.0.check_while_it_changes().map_err(failed);
        }
        let mut report = self.parts.fs.check().map_err(failed)?;
        report.findings.extend(self.staged_elsewhere()?);
        Ok(report)
    }

    /// The same, and mends what can be mended. The pool must be idle.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn repair(&self) -> Result<Repaired, VolumeError> {
        let names = self.mended_names()?;
        let mut repaired = self.parts.fs.repair().map_err(failed)?;
        repaired.after.findings.extend(self.staged_elsewhere()?);
        repaired.mended.extend(names);
        Ok(repaired)
    }

    /// Gives changes up that are in a log which is not here. Returns how many files have lost some. Durable when it
    /// returns; the pool must be closed next.
    ///
    /// # Errors
    /// Content is not in S3; errors of the metadata store.
    #[cfg(feature = "s3")]
    pub fn forget_staged(&self) -> Result<u64, VolumeError> {
        let Some(content) = &self.parts.s3 else {
            let text = "only content in S3 has changes that are staged";
            return Err(refuse(VolumeErrorKind::Invalid, text.into()));
        };
        let staged = content.staged_elsewhere().map_err(|error| failed(error.into()))?;
        let given_up = crate::staged::give_up(&self.parts.fs.0, &staged, |place| content.give_up(place));
        let files = given_up.map_err(failed)?;
        // Files have other sizes.
        self.parts.fs.0.load_quotas(false).map_err(failed)?;
        content.forget_staged().map_err(|error| failed(error.into()))?;
        Ok(files)
    }

    /// Files with changes in a log that is not here.
    #[cfg(feature = "s3")]
    fn staged_elsewhere(&self) -> Result<Vec<Finding>, VolumeError> {
        let Some(content) = &self.parts.s3 else {
            return Ok(Vec::new());
        };
        let staged = content.staged_elsewhere().map_err(|error| failed(error.into()))?;
        crate::staged::findings(&self.parts.fs.0, &staged).map_err(failed)
    }

    #[cfg(not(feature = "s3"))]
    fn staged_elsewhere(&self) -> Result<Vec<Finding>, VolumeError> {
        Ok(Vec::new())
    }

    /// As [`Self::check`], and reads all content that has checksums. `show` gets the bytes read so far and the bytes in
    /// all.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn check_with_data(&self, show: &mut dyn FnMut(u64, u64)) -> Result<Report, VolumeError> {
        let mut report = self.parts.fs.check_with_data(None, show).map_err(failed)?;
        report.findings.extend(self.staged_elsewhere()?);
        report.findings.extend(self.findings_of_bucket(false)?);
        Ok(report)
    }

    /// As [`Self::repair`], and moves files whose content is damaged to `lost+found` as they are.
    ///
    /// # Errors
    /// Errors of the stores.
    pub fn repair_with_data(&self, show: &mut dyn FnMut(u64, u64)) -> Result<Repaired, VolumeError> {
        let names = self.mended_names()?;
        let mut repaired = self.parts.fs.repair_with_data(show).map_err(failed)?;
        repaired.after.findings.extend(self.staged_elsewhere()?);
        repaired.mended.extend(names);
        repaired.mended.extend(self.findings_of_bucket(true)?);
        Ok(repaired)
    }

    /// Writes a copy of the metadata to a directory that does not exist yet, for [`crate::restore_metadata`]. Returns
    /// the number of its keys. Durable when it returns; the pool may be in use meanwhile.
    ///
    /// # Errors
    /// The directory is not empty; errors of the stores.
    pub fn dump_metadata(&self, to: &Path) -> Result<u64, VolumeError> {
        ferrite_meta::dump(&*self.parts.fs.0.meta, to).map_err(|error| of_meta(&to.display().to_string(), &error))
    }

    /// Objects in S3 that belong to nothing, which are deleted if it `repairs`, and slices whose names are counted
    /// wrong.
    #[cfg(feature = "s3")]
    fn findings_of_bucket(&self, repairs: bool) -> Result<Vec<Finding>, VolumeError> {
        let Some(content) = &self.parts.s3 else {
            return Ok(Vec::new());
        };
        let found = content.compare(repairs).map_err(|error| failed(error.into()))?;
        let (objects, bytes) = found.leaked;
        let place = self.parts.config.content_place();
        let leaked = format!(
            "{place}: {objects} objects with {} belong to nothing",
            human_bytes(bytes)
        );
        let leaked = (objects > 0).then(|| Finding::of_objects(leaked));
        Ok(leaked.into_iter().chain(self.miscounted(found.miscounted)).collect())
    }

    /// Mends rows about slices that several files have, before a repair deletes anything that relies on them.
    #[cfg(feature = "s3")]
    fn mended_names(&self) -> Result<Option<Finding>, VolumeError> {
        let count = self.parts.s3.as_ref().map(|content| content.count_names(true));
        let count = count.transpose().map_err(|error| failed(error.into()))?;
        Ok(self.miscounted(count.unwrap_or(0)))
    }

    #[cfg(feature = "s3")]
    fn miscounted(&self, count: u64) -> Option<Finding> {
        let place = self.parts.config.content_place();
        let what = || format!("{place}: {count} records of slices that several files have were wrong");
        (count > 0).then(|| Finding::of_objects(what()))
    }

    #[cfg(not(feature = "s3"))]
    fn mended_names(&self) -> Result<Option<Finding>, VolumeError> {
        Ok(None)
    }

    #[cfg(not(feature = "s3"))]
    fn findings_of_bucket(&self, _repairs: bool) -> Result<Vec<Finding>, VolumeError> {
        Ok(Vec::new())
    }

    /// Whether its data has checksums.
    pub fn has_data_checksums(&self) -> bool {
        if self.parts.config.s3().is_some() {
            return true;
        }
        let mut stores = self.parts.stores.iter().flatten();
        stores.any(ferrite_blob::BlobStore::has_checksums)
    }

    fn stores(&self) -> Vec<(String, Option<ferrite_blob::BlobStore>)> {
        let devices = self.parts.config.present();
        let with_store = |(number, data): (u16, &Data)| {
            let store = self.parts.stores.get(usize::from(number)).cloned().flatten();
            (data.device.display().to_string(), store)
        };
        devices.map(with_store).collect()
    }

    /// The devices for programs; appends their lines.
    fn info_of_devices(&self, lines: &mut Vec<InfoLine>) -> Vec<serde_json::Value> {
        let mut devices = Vec::new();
        for (name, store) in self.stores() {
            if self.parts.owned_by.is_some() {
                lines.push(line("data device", format!("{name}: the pool's owner has it")));
                devices.push(serde_json::json!({ "device": name, "available": null }));
                continue;
            }
            let Some(store) = store else {
                lines.push(line("data device", format!("{name}: not available, its files fail")));
                devices.push(serde_json::json!({ "device": name, "available": false }));
                continue;
            };
            let space = store.space();
            let capacity_bytes = space.clusters * ferrite_blob::CLUSTER_BYTES;
            lines.push(line(
                "data device",
                format!(
                    "{name}: {} free of {}, {} blobs",
                    human_bytes(space.free_bytes),
                    human_bytes(capacity_bytes),
                    space.blobs
                ),
            ));
            devices.push(serde_json::json!({
                "device": name,
                "available": true,
                "capacity_bytes": capacity_bytes,
                "free_bytes": space.free_bytes,
                "unit_bytes": space.unit_bytes,
                "blobs": space.blobs,
            }));
        }
        devices
    }
}

fn durability(parts: &Parts) -> &'static str {
    match parts.config.s3() {
        Some(_) => DURABILITY_IN_S3,
        None => DURABILITY,
    }
}

/// Where the metadata is, and what keeps it there.
fn metadata_text(parts: &Parts) -> (String, &'static str) {
    let place = parts.config.metadata_place();
    match parts.config.metadata.postgres {
        Some(_) => (place, "PostgreSQL"),
        None => (format!("RocksDB in {place}"), "RocksDB"),
    }
}

fn small_files_text(core: &Core, files: u64, bytes: u64) -> String {
    format!(
        "{files} with {} in the metadata; files up to {} are",
        human_bytes(bytes),
        human_bytes(core.small_bytes_max)
    )
}

fn space_text(parts: &Parts, free_bytes: u64, capacity_bytes: u64) -> String {
    match parts.owned_by {
        Some(_) => "known to its owner".to_owned(),
        None => format!("{} free of {}", human_bytes(free_bytes), human_bytes(capacity_bytes)),
    }
}

fn content_text(parts: &Parts) -> String {
    match (parts.config.rados(), parts.config.s3()) {
        (Some(_), _) => "content in Ceph".into(),
        (None, Some(_)) => "content in S3".into(),
        (None, None) => format!("{} data devices", parts.config.present().count()),
    }
}

/// A pool of Ceph for programs; appends its lines.
fn info_of_ceph(parts: &Parts, lines: &mut Vec<InfoLine>) -> Option<serde_json::Value> {
    let (content, rados) = (parts.ceph.as_ref()?, parts.config.rados()?);
    let usage = content.usage();
    let held = match usage {
        Some(usage) => format!(
            "{} free, {} in {} objects of all its namespaces",
            human_bytes(usage.free_bytes),
            human_bytes(usage.bytes),
            usage.objects
        ),
        None => "its space is unknown: no manager has counted it yet".into(),
    };
    lines.push(line("content", parts.config.content_place()));
    lines.push(line("Ceph pool", format!("{}: {held}", rados.pool)));
    lines.push(line(
        "Ceph client",
        format!("{}, {}", rados.client, rados.conf.display()),
    ));
    Some(serde_json::json!({
        "pool": rados.pool,
        "namespace": parts.config.namespace(rados),
        "client": rados.client,
        "conf": rados.conf,
        "objects": usage.map(|usage| usage.objects),
        "used_bytes": usage.map(|usage| usage.bytes),
        "free_bytes": usage.map(|usage| usage.free_bytes),
    }))
}

/// Where the bytes of a file are, for programs.
fn placement_json(of: &Placement) -> serde_json::Value {
    serde_json::json!({
        "stored_bytes": of.stored_bytes,
        "cached_bytes": of.cached_bytes,
        "disk_cached_bytes": of.disk_cached_bytes,
        "memory_bytes": of.memory_bytes,
        "log_bytes": of.log_bytes,
    })
}

/// Where the bytes of a file are, for people.
fn placement_text(of: &Placement) -> String {
    let [stored, cached, disk, memory, log] = [
        of.stored_bytes,
        of.cached_bytes,
        of.disk_cached_bytes,
        of.memory_bytes,
        of.log_bytes,
    ]
    .map(human_bytes);
    let waiting = format!("{memory} in memory and {log} in the log alone are on their way there");
    format!("{stored} in the bucket, of which {cached} in memory and {disk} on this machine's disk; {waiting}")
}

#[cfg(not(feature = "s3"))]
fn info_of_s3(_parts: &Parts, _lines: &mut Vec<InfoLine>) -> Option<serde_json::Value> {
    None
}

/// The lines on the metadata store.
fn info_of_metadata(statistics: &Statistics) -> [InfoLine; 2] {
    let keys = format!(
        "about {} keys, {} stored, {} in memory",
        statistics.keys_estimated,
        human_bytes(statistics.stored_bytes),
        human_bytes(statistics.memory_bytes)
    );
    let log = format!(
        "{} written, synced {} times",
        human_bytes(statistics.log_bytes),
        statistics.log_syncs
    );
    [line("metadata holds", keys), line("log of metadata", log)]
}

fn yes_or_no(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Volume for NvmeVolume {
    fn fs(&self) -> Arc<dyn FileSystem> {
        let fs = self.parts.fs.clone();
        match self.parts.config.metadata.postgres {
            Some(_) => Arc::new(Answering::new(fs)),
            None => Arc::new(fs),
        }
    }

    fn close(&self) -> Result<(), VolumeError> {
        self.parts.fs.close().map_err(failed)
    }

    fn info(&self) -> Result<VolumeInfo, VolumeError> {
        let core = &self.parts.fs.0;
        let space = self.parts.fs.statfs(SYSTEM).map_err(failed)?;
        let unit = u64::from(space.block_bytes);
        let (capacity_bytes, free_bytes) = (space.blocks * unit, space.blocks_free * unit);
        let record = core.pool.lock().clone();
        let inodes = core.inodes.load(Ordering::Relaxed);
        let small_files = core.small_files.load(Ordering::Relaxed);
        let small_bytes = core.small_bytes.load(Ordering::Relaxed);
        let small = small_files_text(core, small_files, small_bytes);
        let place = self.parts.config.metadata_place();
        let (metadata, kind) = metadata_text(&self.parts);
        let mut lines = vec![
            line("pool", self.path.display().to_string()),
            line("uuid", hex(&record.uuid)),
            line("metadata", metadata),
            line("durability", durability(&self.parts).to_owned()),
            line("space", space_text(&self.parts, free_bytes, capacity_bytes)),
            line("data checksums", yes_or_no(self.has_data_checksums())),
            line("inodes", inodes.to_string()),
            line("small files", small),
            line("openings", record.epoch.to_string()),
        ];
        let (devices, ceph) = (self.info_of_devices(&mut lines), info_of_ceph(&self.parts, &mut lines));
        let s3 = info_of_s3(&self.parts, &mut lines);
        let statistics = core.meta.statistics();
        lines.extend(info_of_metadata(&statistics));
        lines.extend(ownership_info::lines(&statistics));
        let failed = core.failed.lock().clone();
        if let Some(why) = &failed {
            lines.push(line("failed", why.clone()));
        }
        let json = serde_json::json!({
            "engine": SCHEME,
            "uuid": hex(&record.uuid),
            "metadata": place,
            "capacity_bytes": self.parts.owned_by.is_none().then_some(capacity_bytes),
            "free_bytes": self.parts.owned_by.is_none().then_some(free_bytes),
            "inodes": inodes,
            "small_files": small_files,
            "small_file_bytes": small_bytes,
            "small_file_bytes_max": core.small_bytes_max,
            "openings": record.epoch,
            "data_checksums": self.has_data_checksums(),
            "devices": devices,
            "ceph": ceph,
            "s3": s3,
            "failed": failed,
            "quotas": core.quotas.list(|dir| dir),
            "user_quotas": core.quotas.users(0).into_iter().take(QUOTAS_LISTED_MAX).collect::<Vec<_>>(),
            "ownership": ownership_info::json(&statistics),
        });
        Ok(VolumeInfo {
            engine: SCHEME.to_owned(),
            medium: format!("{}, metadata in {kind}", content_text(&self.parts)),
            durability: durability(&self.parts).to_owned(),
            size_bytes: capacity_bytes,
            capacity_bytes,
            used_bytes: capacity_bytes - free_bytes,
            available_bytes: space.blocks_available * unit,
            inodes: space.inodes,
            inodes_free: space.inodes_free,
            failed,
            damage: self.damage(),
            in_use_by: self.parts.owned_by.as_ref().map(ownership_info::owner_in_words),
            lines,
            json: json.to_string(),
            ..VolumeInfo::default()
        })
    }

    fn damage(&self) -> Vec<String> {
        if self.parts.owned_by.is_some() {
            return Vec::new();
        }
        let stores = self.stores();
        let of_store = |(name, store): &(String, Option<ferrite_blob::BlobStore>)| match store {
            Some(store) => store.damage().iter().map(|what| format!("{name}: {what}")).collect(),
            None => vec![format!("{name}: not available, its files fail")],
        };
        let of_ceph = self.parts.ceph.as_ref().and_then(ceph::Content::damage);
        let of_s3 = self.parts.s3.as_ref().and_then(s3::Content::damage);
        stores.iter().flat_map(of_store).chain(of_ceph).chain(of_s3).collect()
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    fn is_read_only(&self) -> bool {
        self.parts.fs.0.is_read_only || self.parts.fs.0.failed.lock().is_some()
    }

    fn freeze(&self) -> Result<(), VolumeError> {
        let core = &self.parts.fs.0;
        core.settle_all();
        if !core.freeze_barrier.shut() {
            return Err(refuse(VolumeErrorKind::Invalid, "it is frozen already".into()));
        }
        let content = core.content.sync().map_err(FsError::from);
        let synced = content.and_then(|()| Ok(core.meta.sync()?));
        synced.map_err(failed).inspect_err(|_| core.freeze_barrier.open())
    }

    fn thaw(&self) -> Result<(), VolumeError> {
        self.parts.fs.0.freeze_barrier.open();
        Ok(())
    }

    fn scrub(&self, limit: Option<u64>, progress: Progress<'_>) -> Result<ScrubReport, VolumeError> {
        progress("checking", 0, 1);
        let mut show = |done, total| progress("reading", done, total);
        let report = self.parts.fs.check_with_data(limit, &mut show).map_err(failed)?;
        let mut findings: Vec<String> = report.findings.iter().map(|finding| finding.what.clone()).collect();
        for (name, store) in self.stores() {
            let Some(store) = store else { continue };
            let found = store
                .check()
                .map_err(|error| failed(content_store::Error::from(error).into()))?;
            findings.extend(found.findings.iter().map(|what| format!("{name}: {what}")));
        }
        progress("checking", 1, 1);
        Ok(ScrubReport {
            findings,
            more: report.more,
            inodes: report.inodes,
            entries: report.entries,
            bytes: report.bytes,
            pages: report.pages,
            data_findings: report.data_findings,
            ..ScrubReport::default()
        })
    }

    fn dump(&self, ino: Ino) -> Result<Vec<DumpedPiece>, VolumeError> {
        let core = &self.parts.fs.0;
        let pinned = core.pin(ino).map_err(failed)?;
        let state = pinned.read().map_err(failed)?;
        let piece = match &state.node.content {
            Content::Inline(bytes) => DumpedPiece {
                lines: vec![format!("{} bytes in the node", bytes.len())],
                json: serde_json::json!({ "inline_bytes": bytes.len() }).to_string(),
            },
            Content::Beside(beside) => DumpedPiece {
                lines: vec![format!("{} bytes beside the node", beside.len_bytes)],
                json: serde_json::json!({ "beside_bytes": beside.len_bytes }).to_string(),
            },
            Content::Blob(place) => {
                let blob = core.blob_of(ino, &state).map_err(failed)?;
                let (allocated, valid) = (blob.allocated_bytes(), blob.valid_len());
                let (name, number) = match place.name {
                    BlobName::Local(id) => (
                        format!("blob {:x} of data device {}", id.raw(), place.store),
                        serde_json::json!(id.raw()),
                    ),
                    // The names of its objects begin so.
                    BlobName::Unique(id) => {
                        let head = format!("{:x}.{:x}.{:x}", id.shard, id.epoch, id.number);
                        let name = match self.parts.config.s3() {
                            Some(_) => format!("slices of blob {head} in S3"),
                            None => format!("objects {head}.* in Ceph"),
                        };
                        (name, serde_json::json!(head))
                    }
                };
                let placement = blob.placement();
                let allocated_text = human_bytes(allocated);
                let mut lines = vec![format!("{name}: {allocated_text} allocated, {valid} bytes valid")];
                lines.extend(placement.as_ref().map(placement_text));
                DumpedPiece {
                    lines,
                    json: serde_json::json!({
                        "store": place.store,
                        "blob": number,
                        "allocated_bytes": allocated,
                        "valid_bytes": valid,
                        "placement": placement.as_ref().map(placement_json),
                    })
                    .to_string(),
                }
            }
        };
        Ok(vec![piece])
    }

    fn activity(&self) -> u64 {
        self.parts.fs.0.changes.load(Ordering::Relaxed)
    }

    fn ownership(&self) -> Option<Arc<dyn Ownership>> {
        let is_shared = self.parts.config.metadata.postgres.is_some();
        is_shared.then(|| Arc::clone(self.parts.fs.0.core()) as Arc<dyn Ownership>)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
