//! The engine as [`Volume`]: the same calls with reports and errors that name no engine.

use std::any::Any;
use std::sync::Arc;

use ferrite_vfs::volume::{DumpedPiece, Progress, ScrubReport, Volume, VolumeError, VolumeInfo};
use ferrite_vfs::{FileSystem, Ino};

use crate::audit::owner::MAYBE_COPIED;
use crate::engine::describe::{info_lines, page_lines};
use crate::engine::handle::Engine;

/// Scheme of the addresses of pools.
const SCHEME: &str = "pm";

/// A report as JSON. Those of the engine have names and numbers only, which can always be written.
#[cfg(feature = "json")]
fn json(report: &impl serde::Serialize) -> Result<String, VolumeError> {
    serde_json::to_string(report)
        .map_err(|error| VolumeError::new(ferrite_vfs::volume::VolumeErrorKind::Invalid, error))
}

/// An empty object, in programs that read typed reports instead.
#[cfg(not(feature = "json"))]
fn json(_: &impl serde::Serialize) -> Result<String, VolumeError> {
    Ok("{}".into())
}

impl Volume for Engine {
    fn fs(&self) -> Arc<dyn FileSystem> {
        Arc::new(self.clone())
    }

    fn close(&self) -> Result<(), VolumeError> {
        Ok(self.unmount()?)
    }

    fn info(&self) -> Result<VolumeInfo, VolumeError> {
        let info = Engine::info(self);
        let bytes = |blocks: u64| blocks * u64::from(info.block_bytes);
        Ok(VolumeInfo {
            engine: SCHEME.into(),
            size_bytes: info.size_bytes,
            capacity_bytes: bytes(info.blocks),
            used_bytes: bytes(info.blocks - info.blocks_free),
            available_bytes: bytes(info.blocks_free.saturating_sub(info.blocks_reserved)),
            inodes: info.inodes,
            inodes_free: info.inodes_free,
            lines: info_lines(&info),
            json: json(&info)?,
            findings_since_open: info.runtime_findings_total,
            medium: info.medium,
            durability: info.durability,
            failed: info.failed,
            damage: info.damage,
            in_use_by: None,
        })
    }

    fn damage(&self) -> Vec<String> {
        Engine::damage(self).to_vec()
    }

    fn warnings(&self) -> Vec<String> {
        match self.may_be_live_copy() {
            true => vec![MAYBE_COPIED.into()],
            false => Vec::new(),
        }
    }

    fn is_read_only(&self) -> bool {
        Engine::is_read_only(self)
    }

    fn freeze(&self) -> Result<(), VolumeError> {
        Ok(Engine::freeze(self)?)
    }

    fn thaw(&self) -> Result<(), VolumeError> {
        Ok(Engine::thaw(self)?)
    }

    fn scrub(&self, bytes_per_second: Option<u64>, progress: Progress<'_>) -> Result<ScrubReport, VolumeError> {
        Ok(self.scrub_telling(bytes_per_second, progress)?)
    }

    fn dump(&self, ino: Ino) -> Result<Vec<DumpedPiece>, VolumeError> {
        let pages = Engine::dump(self, ino)?;
        let piece = |page| {
            let (lines, json) = (page_lines(page), json(page)?);
            Ok(DumpedPiece { lines, json })
        };
        pages.iter().map(piece).collect()
    }

    fn activity(&self) -> u64 {
        let counters = self.counters();
        // Each of them only grows.
        [
            counters.fences,
            counters.lines_written_back,
            counters.bytes_streamed,
            counters.file_syncs,
        ]
        .into_iter()
        .fold(0, u64::wrapping_add)
    }

    fn inodes_dropped(&self) -> u64 {
        Engine::inodes_dropped(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use ferrite_pm::{Access, PmError, Region};
    use ferrite_vfs::{Cred, OpenFlags, SYSTEM, Vfs};

    use super::*;
    use crate::error::EngineError;
    use crate::options::{MkfsOptions, MountOptions};
    use ferrite_vfs::volume::VolumeErrorKind;

    fn volume() -> (Region, Box<dyn Volume>) {
        let region = Region::anonymous(64 << 20).unwrap();
        crate::engine::mkfs(&region, &MkfsOptions::default()).unwrap();
        let mut image = vec![0; region.len() as usize];
        region.read(0, &mut image);
        let engine = Engine::mount(region, &MountOptions::default()).unwrap();
        (Region::from_image(&image).unwrap(), Box::new(engine))
    }

    #[test]
    fn a_pool_is_looked_after_without_being_named() {
        let (_, volume) = volume();
        let before = volume.activity();
        let vfs = Vfs::new(volume.fs(), Cred::root());
        let flags = OpenFlags {
            write: true,
            create: true,
            mode: 0o600,
            ..OpenFlags::default()
        };
        let file = vfs.open(b"/file", &flags).unwrap();
        file.write_at(SYSTEM, 0, &[1; 9000]).unwrap();
        assert!(volume.activity() > before);
        let info = volume.info().unwrap();
        let typed = Engine::info(volume.as_any().downcast_ref().unwrap());
        #[cfg(feature = "json")]
        assert_eq!(
            serde_json::from_str::<crate::PoolInfo>(&info.json).unwrap().blocks,
            typed.blocks
        );
        assert_eq!(info.engine, "pm");
        assert_eq!(info.capacity_bytes, typed.blocks * u64::from(typed.block_bytes));
        assert_eq!(
            info.used_bytes,
            (typed.blocks - typed.blocks_free) * u64::from(typed.block_bytes)
        );
        assert!(
            info.available_bytes < info.capacity_bytes - info.used_bytes,
            "there is a reserve"
        );
        assert!(
            info.lines
                .iter()
                .any(|line| line.name == "uuid" && line.value.contains(&typed.uuid))
        );
        let pieces = volume.dump(file.ino()).unwrap();
        assert_eq!(pieces.len(), 3);
        assert!(pieces[1].lines[0].starts_with("page 1"), "{pieces:?}");
        let report = volume.scrub(None, &mut |_, _, _| {}).unwrap();
        assert!(report.findings.is_empty() && report.inodes == 2, "{report:?}");
        volume.freeze().unwrap();
        let again = volume.freeze().unwrap_err();
        assert_eq!(again.kind(), &VolumeErrorKind::Invalid);
        assert!(matches!(again.downcast::<EngineError>(), Ok(EngineError::Options(_))));
        volume.thaw().unwrap();
        volume.close().unwrap();
        assert!(vfs.stat(b"/file", true).is_err(), "it is closed");
        assert!(volume.as_any().is::<Engine>());
    }

    #[test]
    fn an_inspection_is_not_counted_as_a_mount() {
        let (region, volume) = volume();
        let mounts = |engine: &Engine| Engine::info(engine).mounts;
        assert_eq!(mounts(volume.as_any().downcast_ref().unwrap()), 1);
        let inspecting = Engine::mount(region, &MountOptions::inspect()).unwrap();
        assert!(Engine::is_read_only(&inspecting));
        assert_eq!(mounts(&inspecting), 0);
    }

    #[test]
    fn errors_keep_what_callers_act_on() {
        let missing = Region::open("/nowhere/pool".as_ref(), Access::ReadWrite)
            .map(drop)
            .unwrap_err();
        let error = VolumeError::from(EngineError::from(missing));
        assert_eq!(
            (error.kind(), error.raw_os_error()),
            (&VolumeErrorKind::Medium, Some(2))
        );
        assert!(error.names_volume() && error.to_string().starts_with("/nowhere/pool: "));
        let (path, by, process) = ("/p".into(), String::from("process 7"), Some(7));
        let kind = VolumeErrorKind::InUse {
            by: by.clone(),
            process,
        };
        let error = VolumeError::from(EngineError::from(PmError::InUse { path, by, process }));
        assert_eq!(error.kind(), &kind);
        let error = VolumeError::from(EngineError::Damaged("block 9".into()));
        assert!(!error.names_volume() && error.to_string().contains("block 9"));
    }
}
