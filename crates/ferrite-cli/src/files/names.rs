//! `ferrite rm`, `ferrite mkdir`, `ferrite mv`: change names in volumes.

use std::io::ErrorKind;
use std::path::Path;

use ferrite::Fs;
use rustix::io::Errno;

use super::place::{Place, Why};
use super::{OPERANDS, Operand, Volumes, umask};
use crate::printable::printable;
use crate::{FAILED, Failure, Outcome, complain};

/// Reports a failure; the command continues with the next operand.
fn report(at: &Place, why: &Why) -> u8 {
    complain(format_args!("ferrite: {}", at.message(why)));
    FAILED
}

/// Does something with each operand, and closes the volumes.
fn each(operands: &[Operand], mut act: impl FnMut(&Fs, &Path, &Place) -> Result<(), Why>) -> Outcome {
    let mut volumes = Volumes::to_change();
    let mut code = 0;
    for operand in operands {
        let Some(at) = Place::of(operand, &mut volumes)? else {
            continue;
        };
        if let Place::There { volume, path, .. } = &at
            && let Err(why) = act(&volume.fs, path, &at)
        {
            code = report(&at, &why);
        }
    }
    volumes.close()?;
    Ok(code)
}

/// Remove files and directories of volumes that are not mounted
#[derive(Debug, clap::Args)]
#[command(after_help = OPERANDS)]
pub(crate) struct Rm {
    /// Files and directories to remove
    #[arg(required = true, value_parser = Operand::parser_in_volume())]
    paths: Vec<Operand>,
    /// Remove directories with their content; symbolic links are never followed
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Ignore missing files
    #[arg(short, long)]
    force: bool,
}

impl Rm {
    pub(crate) fn run(self) -> Outcome {
        each(&self.paths, |fs, path, _| {
            if path.file_name().is_none() {
                return Err(Why::new("a root, `.` or `..` is not removed; name what is in it"));
            }
            let removed = match fs.symlink_metadata(path) {
                Ok(found) if found.is_dir() && self.recursive => fs.remove_dir_all(path),
                Ok(found) if found.is_dir() => {
                    return Err(Why::new("is a directory; give -r to remove it with all that is in it"));
                }
                Ok(_) => fs.remove_file(path),
                Err(error) => Err(error),
            };
            match removed {
                Err(error) if self.force && error.kind() == ErrorKind::NotFound => Ok(()),
                Err(error) if error.path() != path => {
                    Err(Why::new(format!("{}: {}", printable(error.path()), error.cause())))
                }
                removed => Ok(removed?),
            }
        })
    }
}

/// Make directories in volumes that are not mounted
#[derive(Debug, clap::Args)]
#[command(after_help = OPERANDS)]
pub(crate) struct Mkdir {
    /// Directories to make
    #[arg(required = true, value_parser = Operand::parser_in_volume())]
    paths: Vec<Operand>,
    /// Make parent directories as needed, and ignore existing ones
    #[arg(short, long)]
    parents: bool,
    /// Permission bits of the last directory, in octal [default: 777 minus the umask]
    #[arg(short, long, value_parser = octal)]
    mode: Option<u32>,
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o1777 => Ok(mode),
        _ => Err("permission bits are an octal number up to 1777, for example 755".to_owned()),
    }
}

impl Mkdir {
    pub(crate) fn run(self) -> Outcome {
        let default = 0o777 & !umask();
        each(&self.paths, |fs, path, _| {
            if self.parents {
                let mut above: Vec<&Path> = path
                    .ancestors()
                    .skip(1)
                    .filter(|path| path.file_name().is_some())
                    .collect();
                above.reverse();
                for dir in above {
                    // As mkdir(1): the maker of parents can create entries in them.
                    make(fs, dir, default | 0o300)?;
                }
                return make(fs, path, self.mode.unwrap_or(default));
            }
            Ok(fs.create_dir_with(path, self.mode.unwrap_or(default))?)
        })
    }
}

/// Makes a directory if absent.
fn make(fs: &Fs, path: &Path, mode: u32) -> Result<(), Why> {
    match fs.create_dir_with(path, mode) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && fs.metadata(path)?.is_dir() => Ok(()),
        made => Ok(made?),
    }
}

/// Rename files and directories within a volume that is not mounted
#[derive(Debug, clap::Args)]
#[command(after_help = OPERANDS)]
pub(crate) struct Mv {
    /// Files and directories to rename, and the new name, or a directory, which may take several
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DEST"], value_parser = Operand::parser_in_volume())]
    operands: Vec<Operand>,
    /// Do not replace existing files
    #[arg(short, long)]
    no_clobber: bool,
    /// Also replace files that the user may not write
    #[arg(short, long, conflicts_with = "no_clobber")]
    force: bool,
}

impl Mv {
    pub(crate) fn run(mut self) -> Outcome {
        let mut volumes = Volumes::to_change();
        let missing = || Failure::new(crate::USAGE, "a target is missing");
        let to = self.operands.pop().ok_or_else(missing)?;
        let to = Place::of(&to, &mut volumes)?.ok_or_else(missing)?;
        let failed = |at: &Place, why: Why| Failure::new(FAILED, at.message(&why));
        let there = to.look_for().map_err(|why| failed(&to, why))?;
        let is_dir = there.is_some_and(|found| found.is_dir());
        if self.operands.len() > 1 && !is_dir {
            return Err(failed(&to, Why::new("is no directory; several sources need one")));
        }
        let mut code = 0;
        for operand in &self.operands {
            let Some(from) = Place::of(operand, &mut volumes)? else {
                continue;
            };
            let moved = match (is_dir, from.path().file_name()) {
                (true, Some(name)) => self.rename(&from, &to.join(name)),
                _ => self.rename(&from, &to),
            };
            if let Err(why) = moved {
                code = report(&from, &why);
            }
        }
        volumes.close()?;
        Ok(code)
    }

    fn rename(&self, from: &Place, to: &Place) -> Result<(), Why> {
        let (Place::There { volume, .. }, Place::There { volume: other, .. }) = (from, to) else {
            return Ok(());
        };
        if volume.address != other.address {
            return Err(Why::new(format!(
                "{} is in another volume, and mv renames within one; use `ferrite cp -r -p`, then `ferrite rm -r`",
                printable(&to.shown())
            )));
        }
        match to.look() {
            Ok(_) if self.no_clobber => return Ok(()),
            Ok(there)
                if !there.is_dir() && !self.force && there.kind != ferrite::FileKind::Symlink && !to.may_write() =>
            {
                let text = format!("{}: Permission denied; give -f to replace it", printable(&to.shown()));
                return Err(Why::new(text));
            }
            _ => {}
        }
        match from.rename(to, !self.no_clobber) {
            Err(why) if self.no_clobber && why.is(Errno::EXIST) => Ok(()),
            renamed => renamed,
        }
    }
}
