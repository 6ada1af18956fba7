//! `ferrite mkfs nvme:` and `ferrite fsck nvme:`: the needs of pools on devices beyond the commands of all engines.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ferrite::volume::{Volume, VolumeError, VolumeErrorKind, VolumeInfo};
use ferrite_nvme::{Config, Finding, MakeOptions, NvmeVolume, Options, Report, Salvaged};
use serde_json::json;

use super::progress::Bar;
use super::{FAILED, Failure, Outcome, USAGE, about, complain, contents, say, size, users};

/// The arguments of `mkfs`.
pub(crate) struct Making<'m> {
    /// The file that describes the pool.
    pub(crate) path: &'m Path,
    pub(crate) metadata: Option<&'m Path>,
    pub(crate) data: &'m [PathBuf],
    pub(crate) adds: Option<&'m Path>,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) data_checksum: bool,
    pub(crate) force: bool,
}

fn refuse(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(FAILED, format!("{}: {why}", path.display()))
}

fn usage(text: &str) -> Failure {
    Failure::new(USAGE, text.to_owned())
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(about(path))
}

/// Refuses a device that is in use, or that holds something.
fn refuse_to_overwrite(device: &Path, force: bool) -> Result<(), Failure> {
    if !device.exists() {
        return Ok(());
    }
    // Inspect an NVMe namespace through its block device: its own device takes commands only.
    let block = ferrite_nvme::block_device_of(device);
    let device = block.as_deref().unwrap_or(device);
    if let Some(used) = users::find(device) {
        return Err(refuse(device, format!("is {used}; stop using it first")));
    }
    match force {
        true => Ok(()),
        false => contents::refuse_to_overwrite(device),
    }
}

fn read(path: &Path) -> Result<Config, Failure> {
    let text = std::fs::read_to_string(path).map_err(about(path))?;
    let base = path.parent().unwrap_or(Path::new("."));
    Config::parse(&text, base).map_err(|error| refuse(path, error))
}

/// Warns of a file with less space on its medium than its length: a write may find its file system full, which is an
/// error of the device for the pool.
fn tell_if_sparse(device: &Path) {
    let Ok(found) = std::fs::metadata(device) else { return };
    if found.is_file() && found.blocks() * 512 < found.len() {
        let (name, len) = (device.display(), found.len());
        complain(format_args!(
            "{name}: the file is sparse: when its file system is full, writes to it fail as those to a failing device; \
             `fallocate -l {len} {name}` reserves its space"
        ));
    }
}

impl Making<'_> {
    pub(crate) fn run(&self) -> Outcome {
        let mut options = MakeOptions::default();
        options.size_bytes = self.size_bytes;
        options.force = self.force;
        options.data_checksum = self.data_checksum;
        options.owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if let Some(device) = self.adds {
            return self.add(device, &options);
        }
        let given = match (self.metadata, self.data) {
            (Some(directory), [_, ..]) => {
                let devices = self
                    .data
                    .iter()
                    .map(|device| absolute(device))
                    .collect::<Result<Vec<_>, _>>()?;
                Some(Config::new(absolute(directory)?, devices))
            }
            (None, []) => None,
            _ => {
                return Err(usage(
                    "--meta and --data go together: both are written to the pool's file",
                ));
            }
        };
        let config = match &given {
            Some(config) => config.clone(),
            None => read(self.path)?,
        };
        let devices = config.present().map(|(_, data)| &data.device);
        let log = config.tier.iter().flat_map(ferrite_nvme::Tier::devices);
        for device in devices.chain(&config.metadata.device).chain(log) {
            refuse_to_overwrite(device, self.force)?;
        }
        match &given {
            Some(config) => ferrite_nvme::make_described(self.path, config, &options)?,
            None => ferrite_nvme::make(self.path, &options)?,
        }
        config.present().for_each(|(_, data)| tell_if_sparse(&data.device));
        let (content, metadata) = (self.content(&config)?, config.metadata_place());
        say(format!(
            "nvme:{}: {content}, metadata in {metadata}",
            self.path.display()
        ));
        Ok(0)
    }

    /// Where the content of the new pool is, in words.
    fn content(&self, config: &Config) -> Result<String, Failure> {
        if !config.has_devices() {
            return Ok(format!("content in {}", config.content_place()));
        }
        let devices = config.present().count();
        Ok(format!(
            "{} on {devices} data device{}{}",
            size::human(self.capacity()?),
            if devices == 1 { "" } else { "s" },
            if self.data_checksum { " with data checksums" } else { "" }
        ))
    }

    fn capacity(&self) -> Result<u64, Failure> {
        let volume = NvmeVolume::open(self.path, inspecting())?;
        Ok(volume.info()?.capacity_bytes)
    }

    fn add(&self, device: &Path, options: &MakeOptions) -> Outcome {
        let device = absolute(device)?;
        // For a Ferrite store the library finds the owner: it may be this pool, if an earlier addition was cut off.
        refuse_to_overwrite(&device, self.force || contents::is_data_store(&device))?;
        ferrite_nvme::add(self.path, &device, options)?;
        tell_if_sparse(&device);
        say(format!("nvme:{}: {} added", self.path.display(), device.display()));
        Ok(0)
    }
}

/// The arguments of `resize --remove`.
pub(crate) struct Removing<'r> {
    /// The file that describes the pool.
    pub(crate) path: &'r Path,
    pub(crate) device: &'r Path,
    /// A device that is added first.
    pub(crate) with: Option<&'r Path>,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) quiet: bool,
}

impl Removing<'_> {
    pub(crate) fn run(&self) -> Outcome {
        let (path, device) = (&*absolute(self.path)?, absolute(self.device)?);
        // Before another one is added.
        ferrite_nvme::number_of(path, &device)?;
        if let Some(with) = self.with {
            let with = absolute(with)?;
            if with == device {
                return Err(usage("--with names the device of --remove; name another one"));
            }
            // Unless an earlier call was interrupted after that.
            if !read(path)?.present().any(|(_, data)| data.device == with) {
                let adding = Making {
                    path,
                    metadata: None,
                    data: &[],
                    adds: Some(&with),
                    size_bytes: self.size_bytes,
                    data_checksum: false,
                    force: false,
                };
                adding.run()?;
            }
        } else if self.size_bytes.is_some() {
            return Err(usage("--size is for the file of --with"));
        }
        let bar = Bar::new(self.quiet);
        let moved = ferrite_nvme::remove(path, &device, &mut |done, total| bar.show("moving", done, total));
        drop(bar);
        let moved = moved?;
        let files = if moved == 1 { "file" } else { "files" };
        say(format!(
            "nvme:{}: {} removed, {moved} {files} moved",
            path.display(),
            device.display()
        ));
        Ok(0)
    }
}

/// Options for a look that changes nothing.
fn inspecting() -> Options {
    let mut options = Options::default();
    options.read_only = true;
    options.inspect = true;
    options
}

/// Options for a look at a pool that a server may own.
fn looking() -> Options {
    let mut options = inspecting();
    options.look = true;
    options
}

/// The information about a pool in a database, without owning it; `None` for one whose metadata is elsewhere.
pub(crate) fn look(path: &Path) -> Result<Option<VolumeInfo>, Failure> {
    match read(path) {
        Ok(config) if config.metadata.postgres.is_some() => Ok(Some(NvmeVolume::open(path, looking())?.info()?)),
        // Opening the pool reports a file that cannot be read.
        _ => Ok(None),
    }
}

/// The server that owns a pool whose metadata is in a database, and how long its lease lasts.
fn owner_of(volume: &NvmeVolume) -> Option<String> {
    let shard = volume.owned_by()?;
    let owner = shard.owner.as_ref();
    let (name, address) = owner.map_or(("a server", ""), |owner| (&owner.name, &owner.address));
    let at = match address {
        "" => String::new(),
        address => format!(" ({address})"),
    };
    Some(format!("{name}{at}"))
}

/// Writes a copy of the metadata of a pool to a directory; returns how many keys it has.
pub(crate) fn dump_metadata(volume: &dyn Volume, to: &Path) -> Result<u64, Failure> {
    match volume.as_any().downcast_ref::<NvmeVolume>() {
        Some(volume) => Ok(volume.dump_metadata(to)?),
        None => Err(only_nvme()),
    }
}

/// The refusal of a pool in memory.
pub(crate) fn only_nvme() -> Failure {
    usage("only pools on devices (nvme:) have metadata apart from their content; `ferrite copy` copies others")
}

/// The options of a check.
pub(crate) struct Checking<'c> {
    pub(crate) path: &'c Path,
    pub(crate) repair: bool,
    /// Repair only if the repair loses nothing.
    pub(crate) preen: bool,
    /// Read content that has checksums, too.
    pub(crate) data: bool,
    /// Give up changes that are staged on a device which is not here.
    pub(crate) forget_staged: bool,
    pub(crate) json: bool,
}

/// Codes of fsck(8).
const CLEAN: u8 = 0;
const REPAIRED: u8 = 1;
const ERRORS_LEFT: u8 = 4;

impl Checking<'_> {
    pub(crate) fn run(&self) -> Outcome {
        if self.forget_staged {
            self.forget()?;
        }
        match self.check() {
            // With damaged metadata, no part of the pool can be checked until the readable rest replaces it.
            Err(error) if *error.kind() == VolumeErrorKind::Damaged || *error.kind() == VolumeErrorKind::Foreign => {
                match ferrite_nvme::metadata_damage(self.path)? {
                    Some(what) => self.salvage(what),
                    None => Err(error.into()),
                }
            }
            checked => match checked? {
                (report, None) => self.judge(report),
                (report, Some(owner)) => self.tell_of_owned(&report, &owner),
            },
        }
    }

    fn forget(&self) -> Result<(), Failure> {
        let volume = NvmeVolume::open(self.path, Options::default())?;
        let files = volume.forget_staged()?;
        volume.close()?;
        if !self.json {
            say(match files {
                1 => "1 file has lost changes that were staged".to_owned(),
                _ => format!("{files} files have lost changes that were staged"),
            });
        }
        Ok(())
    }

    /// The report, and the server that owns the pool. Content is left out then: that server changes it.
    fn check(&self) -> Result<(Report, Option<String>), VolumeError> {
        let volume = NvmeVolume::open(self.path, looking())?;
        let bar = Bar::new(self.json);
        let mut show = |done, total| bar.show("reading", done, total);
        let owner = owner_of(&volume);
        let report = match self.data && owner.is_none() {
            true => volume.check_with_data(&mut show)?,
            false => volume.check()?,
        };
        Ok((report, owner))
    }

    /// A pool that a server owns: it is checked as far as that is possible meanwhile, and never repaired.
    fn tell_of_owned(&self, report: &Report, owner: &str) -> Outcome {
        if self.repair || self.preen {
            return Err(refuse(
                self.path,
                format!("{owner} owns this volume; end that server, and then repair it"),
            ));
        }
        self.tell_with(report, &[], &report.findings, Some(owner))?;
        Ok(if report.findings.is_empty() { CLEAN } else { ERRORS_LEFT })
    }

    /// Damaged metadata: its readable part replaces it, and then the pool is checked and repaired.
    fn salvage(&self, what: String) -> Outcome {
        let found = Finding::of_metadata(what);
        if !self.repair {
            let report = Report::default();
            self.tell(&report, &[], &[found])?;
            return Ok(ERRORS_LEFT);
        }
        let salvaged = ferrite_nvme::salvage_metadata(self.path)?;
        self.after(found, &salvaged)
    }

    /// Repairs a pool whose metadata was replaced.
    pub(crate) fn after(&self, found: Finding, salvaged: &Salvaged) -> Outcome {
        if let (Some(kept), false) = (&salvaged.kept, self.json) {
            say(format!("the metadata that was there is now in {}", kept.display()));
        }
        let volume = NvmeVolume::open(self.path, Options::default())?;
        let mut repaired = volume.repair()?;
        volume.close()?;
        repaired.mended.insert(0, found);
        self.tell(&repaired.after, &repaired.mended, &repaired.after.findings)?;
        Ok(match repaired.after.findings.is_empty() {
            true => REPAIRED,
            false => ERRORS_LEFT,
        })
    }

    fn judge(&self, report: Report) -> Outcome {
        let bar = Bar::new(self.json);
        let mut show = |done, total| bar.show("reading", done, total);
        let loses = report.findings.iter().any(|finding| finding.loses);
        let mends = self.repair || (self.preen && !loses);
        if report.findings.is_empty() || !mends {
            drop(bar);
            self.tell(&report, &[], &report.findings)?;
            return Ok(if report.findings.is_empty() { CLEAN } else { ERRORS_LEFT });
        }
        let volume = NvmeVolume::open(self.path, Options::default())?;
        let repaired = match self.data {
            true => volume.repair_with_data(&mut show)?,
            false => volume.repair()?,
        };
        volume.close()?;
        drop(bar);
        self.tell(&repaired.after, &repaired.mended, &repaired.after.findings)?;
        Ok(match repaired.after.findings.is_empty() {
            true => REPAIRED,
            false => ERRORS_LEFT,
        })
    }

    fn tell(&self, report: &Report, mended: &[Finding], left: &[Finding]) -> Result<(), Failure> {
        self.tell_with(report, mended, left, None)
    }

    fn tell_with(
        &self,
        report: &Report,
        mended: &[Finding],
        left: &[Finding],
        owner: Option<&str>,
    ) -> Result<(), Failure> {
        if self.json {
            let what =
                |finding: &Finding| json!({ "what": finding.what, "mend": finding.mend, "loses": finding.loses });
            let text = json!({
                "inodes": report.inodes,
                "entries": report.entries,
                "blobs": report.blobs,
                "orphans": report.orphans,
                "pages": report.pages,
                "mended": mended.iter().map(what).collect::<Vec<_>>(),
                "findings": left.iter().map(what).collect::<Vec<_>>(),
                "more": report.more,
                "in_use_by": owner,
                "is_changing": report.is_changing,
            });
            say(text);
            return Ok(());
        }
        for finding in mended {
            say(format!("{}: {}", finding.what, finding.mend.unwrap_or("mended")));
        }
        for finding in left {
            match finding.mend {
                Some(mend) => say(format!("{}; with --repair {mend}", finding.what)),
                None => say(format!("LEFT: {}", finding.what)),
            }
        }
        let state = match (mended.len(), left.len()) {
            (0, 0) => "sound".to_string(),
            (0, count) if owner.is_some() => format!("{count} errors; end its owner, and repair it then"),
            (count, 0) => format!("sound after {count} repairs"),
            (0, count) => format!(
                "{count} errors; `ferrite fsck --repair nvme:{}` mends those that can be mended",
                self.path.display()
            ),
            (count, more) => format!("{count} repairs, {more} errors LEFT"),
        };
        if let Some(owner) = owner {
            let how = match report.is_changing {
                true => "it was checked while it changes: an error is listed if it stayed over several checks",
                false => "it did not change during the check",
            };
            say(format!(
                "nvme:{}: in use by {owner}; {how}; content is not checked",
                self.path.display()
            ));
        }
        say(format!(
            "nvme:{}: {state}; {} inodes ({} without a name), {} names, {} blobs",
            self.path.display(),
            report.inodes,
            report.orphans,
            report.entries,
            report.blobs
        ));
        Ok(())
    }
}
