//! `ferrite cp`: copy files to and from volumes.

use super::content::Watch;
use super::place::{Place, Why};
use super::tree::{How, Job};
use super::{OPERANDS, Operand, Volumes, umask};
use crate::progress::Bytes;
use crate::{FAILED, Failure, Outcome, USAGE};

/// Copy files to and from volumes that are not mounted
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{OPERANDS}
Other operands are paths of this machine; `-` is standard input or output. `ferrite copy` copies whole pools.

Examples:
  ferrite cp -r photos tcp://127.0.0.1:7447:/         as the directory /photos
  ferrite cp tcp://127.0.0.1:7447:/photos/a.jpg .
  tar c src | ferrite cp - tcp://127.0.0.1:7447:/src.tar

Each file is written as .ferrite-cp-... next to its target, and renamed once it is complete, which replaces a file or a \
link of that name. After a failure or an interruption the old file is still there; only a process that is killed leaves \
the temporary file behind. While a server is unreachable, the copy waits, and then continues.

Symbolic links that are operands are followed, others are not: in the target, a file replaces a link, and a link in \
place of a directory is an error. Without --privileges, a file from a server gets no rights on this machine that its \
user lacks.

Holes of sparse files stay holes. Files belong to the user who runs the command; the server decides which of its users \
that is."))]
pub(crate) struct Cp {
    /// Sources, and the target: a name, or a directory, which may take several
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DEST"], value_parser = Operand::parser(),
        value_hint = clap::ValueHint::AnyPath)]
    operands: Vec<Operand>,
    /// Copy directories with their content; symbolic links are copied as links
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Preserve permissions, times and extended attributes, and owners if the user may change them
    #[arg(short, long)]
    preserve: bool,
    /// Also create device files from a server, and preserve setuid, setgid and capabilities of its files
    #[arg(long)]
    privileges: bool,
    /// Do not replace existing files
    #[arg(short, long, conflicts_with = "force")]
    no_clobber: bool,
    /// Also replace files that the user may not write
    #[arg(short, long)]
    force: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

impl Cp {
    pub(crate) fn run(mut self) -> Outcome {
        let usage = |text: &str| Err(Failure::new(USAGE, text));
        let Some(to) = self.operands.pop() else {
            return usage("a target is missing");
        };
        let is_there = |operand: &Operand| matches!(operand, Operand::There { .. });
        if !is_there(&to) && !self.operands.iter().all(is_there) {
            return usage(
                "neither source nor target is in a volume, for which there is cp(1); in a volume it is \
                 tcp://HOST:PORT/EXPORT:/PATH or pm:POOL:/PATH",
            );
        }
        let umask = umask();
        let mut volumes = Volumes::to_change();
        let mut job = Job::new(
            How {
                recursive: self.recursive,
                preserve: self.preserve,
                privileges: self.privileges,
                no_clobber: self.no_clobber,
                force: self.force,
                umask,
            },
            Watch::until_signal(Bytes::new(self.quiet))?,
        );
        let copied = self.copy(&to, &mut volumes, &mut job);
        let has_failed = job.has_failed;
        drop(job);
        volumes.close()?;
        copied?;
        Ok(if has_failed { FAILED } else { 0 })
    }

    fn copy(&self, to: &Operand, volumes: &mut Volumes, job: &mut Job) -> Result<(), Failure> {
        let Some(to) = Place::of(to, volumes)? else {
            return self.print(volumes, job);
        };
        let there = to.look_for().map_err(|why| Failure::new(FAILED, to.message(&why)))?;
        let is_dir = there.as_ref().is_some_and(super::place::Found::is_dir);
        if self.operands.len() > 1 && !is_dir {
            return Err(Failure::new(
                FAILED,
                to.message(&Why::new("is no directory; several sources need one")),
            ));
        }
        for operand in &self.operands {
            match Place::of(operand, volumes)? {
                Some(from) if is_dir => match from.path().file_name() {
                    Some(name) => job.copy(&from, &to.join(name)),
                    // The root of a volume, `.`, `..`: their entries go into the directory.
                    None => job.copy(&from, &to),
                },
                Some(from) => job.copy(&from, &to),
                None if is_dir => job.report(&to.message(&Why::new("is a directory; standard input needs a name"))),
                None => job.copy_input(&to),
            }
        }
        Ok(())
    }

    /// Copies to standard output.
    fn print(&self, volumes: &mut Volumes, job: &mut Job) -> Result<(), Failure> {
        for operand in &self.operands {
            if let Some(from) = Place::of(operand, volumes)?
                && let Err(message) = super::cat::print(&from)
            {
                job.report(&message);
            }
        }
        Ok(())
    }
}
