//! The report of a failure, and its files.
//!
//! Contents: [`Failure::tell`], the workload and the command that runs it again; [`Failure::report`], which keeps the
//! failing image and that text in files. A failure of several threads may not recur; then only its image can be
//! examined.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ferrite_vfs::DedupToken;

use crate::choices;
use crate::explore::{Effort, Failure};
use crate::source::Source;

impl Failure {
    /// [`Self::tell`], and the paths of the files with image and text: in `dir`, which must exist.
    pub fn report(&self, effort: &Effort, dir: &Path) -> String {
        let mut text = self.tell(effort);
        match self.keep(&text, dir) {
            Ok(Some(path)) => {
                text += &format!(
                    "\nimage: {0} (and this text beside it)\nlook at it: cargo run --release -p ferrite-crash -- \
                     replay --image {0}",
                    path.display()
                );
            }
            Ok(None) => text += "\nno image: it went wrong without a crash",
            Err(error) => text += &format!("\nthe image is lost: {}: {error}", dir.display()),
        }
        text
    }

    /// Writes image and text to new files in `dir`; returns the path of the image.
    fn keep(&self, text: &str, dir: &Path) -> io::Result<Option<PathBuf>> {
        static KEPT: AtomicU64 = AtomicU64::new(0);
        let Some(image) = &self.image else { return Ok(None) };
        let path = dir.join(format!(
            "ferrite-crash-{}-{}-{}-{}.img",
            self.variant.mapping,
            self.name.source.to_string().replace(':', "-"),
            std::process::id(),
            KEPT.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::write(&path, image)?;
        std::fs::write(path.with_extension("txt"), text)?;
        Ok(Some(path))
    }

    /// The violation, the operations that lead to it, and the command that reproduces it.
    pub fn tell(&self, effort: &Effort) -> String {
        let workload = self.name.workload();
        let mut text = format!("{}\n", self.what);
        for (thread, ops) in workload.threads.iter().enumerate() {
            for (index, op) in ops.iter().enumerate() {
                let token = match workload.token(thread, index) {
                    Some(DedupToken { slot, seq }) => format!(" (slot {slot}, number {seq})"),
                    None => String::new(),
                };
                text += &format!("  thread {thread}: {op:?}{token}\n");
            }
        }
        let place = match self.place {
            Some((point, choice)) => format!(" --point {point} --choice {}", choices::name(choice)),
            None => String::new(),
        };
        let mut kind = String::new();
        if self.variant.data_checksum {
            kind += " --data-checksum";
        }
        if self.variant.deferred {
            kind += " --deferred";
        }
        if matches!(self.name.source, Source::Threads(_)) {
            text += "(threads: it may take many runs until this comes again)\n";
        }
        text + &format!(
            "replay: cargo run --release -p ferrite-crash -- replay {} --seed {} --mapping {}{kind}{place}",
            self.name, effort.seed, self.variant.mapping
        )
    }
}

#[cfg(test)]
mod tests {
    use ferrite_pm::{Choice, Image};

    use super::*;
    use crate::record::record;
    use crate::source::Name;
    use crate::verify::verify_alone;
    use crate::{Mapping, Variant};

    /// The image of a failure can be examined alone: a sound one passes, and damage is reported.
    #[test]
    fn a_failing_image_is_kept_and_tried_again() {
        let name = Name::from(Source::Pair(60)).with_tokens(4);
        let variant = Variant::from(Mapping::default());
        let recorded = record(variant, &name.workload()).unwrap();
        let failure = Failure {
            variant,
            name,
            place: Some((0, Choice::All)),
            what: "nothing, in truth".into(),
            image: Some(recorded.log.final_image()),
        };
        let dir = tempfile::tempdir().unwrap();
        let text = failure.report(&Effort::default(), dir.path());
        let kept = |extension: &str| {
            let mut files = std::fs::read_dir(dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().path());
            files
                .find(|path| path.extension().is_some_and(|found| found == extension))
                .unwrap()
        };
        assert!(text.contains(&kept("img").display().to_string()), "{text}");
        assert!(
            std::fs::read_to_string(kept("txt"))
                .unwrap()
                .contains("replay pair:60@4 ")
        );
        let name = failure.name.clone();
        for token in name.workload().tokens[0].iter().map(|token| token.unwrap()) {
            let token = format!(" (slot {}, number {})\n", token.slot, token.seq);
            assert!(text.contains(&token), "{token} in {text}");
        }
        let mut image = std::fs::read(kept("img")).unwrap();
        let tree = verify_alone(&Image::from(&image[..]), 1).unwrap();
        assert_eq!(&tree, recorded.states[0].last().unwrap());
        // The root directory.
        image[4096..1 << 20].fill(0x5a);
        assert!(verify_alone(&Image::from(&image[..]), 1).is_err());
        assert!(verify_alone(&Image::from(&b"no pool"[..]), 1).is_err());
    }

    #[test]
    fn what_cannot_be_kept_is_said() {
        let failure = Failure {
            variant: Mapping::default().into(),
            name: "threads:3/0".parse().unwrap(),
            place: None,
            what: "wrong".into(),
            image: Some(vec![1]),
        };
        let text = failure.report(&Effort::default(), Path::new("/nowhere/at/all"));
        assert!(text.contains("the image is lost: /nowhere/at/all: "), "{text}");
        assert!(text.contains("many runs"), "{text}");
    }
}
