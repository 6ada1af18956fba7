//! `ferrite ls`: list directories of volumes.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrite::{FileKind, Metadata};

use super::folder::NAMES_MAX;
use super::place::Why;
use super::show::{self, Json};
use super::{OPERANDS, Opened, Operand, Volumes, shown};
use crate::printable::printable;
use crate::{FAILED, Failure, Outcome, complain, output, say_json};

/// List directories of volumes that are not mounted
#[derive(Debug, clap::Args)]
#[command(after_help = format!("\
{OPERANDS}

Each name has its own line. Owners are numbers, as with `ls -n`: they are users of the server's machine, or of the \
machine that the files came from."))]
pub(crate) struct Ls {
    /// Directories, or files
    #[arg(required = true, value_parser = Operand::parser_in_volume())]
    paths: Vec<Operand>,
    /// Also show permissions, links, owner, group, size and time of the last change
    #[arg(short)]
    long: bool,
    /// Also show names that begin with a dot
    #[arg(short)]
    all: bool,
    /// Print one name per line (the default)
    #[arg(short = '1')]
    one: bool,
    /// Also list the directories below
    #[arg(short = 'R', long)]
    recursive: bool,
    /// List the directories themselves, not their content
    #[arg(short, long)]
    directory: bool,
    /// Print one line of JSON per file
    #[arg(long)]
    json: bool,
}

/// A file to be shown.
struct Row {
    name: OsString,
    path: PathBuf,
    metadata: Option<Metadata>,
    kind: FileKind,
}

/// A directory, and its name in messages and headings.
struct Listed<'o> {
    volume: &'o Arc<Opened>,
    prefix: &'o OsStr,
}

impl Ls {
    pub(crate) fn run(self) -> Outcome {
        let mut volumes = Volumes::to_read();
        let (mut code, mut is_first) = (0, true);
        for operand in &self.paths {
            let Operand::There { address, prefix, path } = operand else {
                continue;
            };
            let volume = volumes.open(address)?;
            let listed = Listed {
                volume: &volume,
                prefix,
            };
            let mut todo = vec![path.clone()];
            let mut is_given = true;
            // Depth first, in the order of names.
            while let Some(path) = todo.pop() {
                match self.list(&listed, &path, is_given, &mut is_first) {
                    Ok(below) => todo.extend(below.into_iter().rev()),
                    Err(why) => {
                        let (path, hint) = (printable(&shown(prefix, &path)), volume.hint(&why));
                        complain(format_args!("ferrite: {path}: {}{hint}", why.text));
                        code = FAILED;
                    }
                }
                is_given = false;
                if !output::goes_on() {
                    break;
                }
            }
        }
        volumes.close()?;
        Ok(code)
    }

    /// Lists a path; returns the directories below it that are still to be listed.
    fn list(&self, at: &Listed<'_>, path: &Path, is_given: bool, is_first: &mut bool) -> Result<Vec<PathBuf>, Why> {
        let fs = &at.volume.fs;
        if is_given {
            let itself = fs.symlink_metadata(path)?;
            let is_dir = match itself.is_symlink() && !self.long {
                true => fs.metadata(path).is_ok_and(|found| found.is_dir()),
                false => itself.is_dir(),
            };
            if self.directory || !is_dir {
                let row = Row {
                    name: shown(at.prefix, path),
                    path: path.to_path_buf(),
                    kind: itself.file_type().kind(),
                    metadata: Some(itself),
                };
                self.show(at, &[row])?;
                *is_first = false;
                return Ok(Vec::new());
            }
        }
        let mut rows = Vec::new();
        let with_metadata = self.long || self.json;
        let listing = match with_metadata {
            true => fs.read_dir_with_metadata(path)?,
            false => fs.read_dir(path)?,
        };
        for entry in listing {
            let entry = entry?;
            if rows.len() == NAMES_MAX {
                return Err(Why::new(format!(
                    "has more than {NAMES_MAX} entries, and is not listed"
                )));
            }
            if self.all || !entry.file_name().as_encoded_bytes().starts_with(b".") {
                rows.push(Row {
                    name: entry.file_name(),
                    path: path.join(entry.file_name()),
                    // An entry may be damaged, or removed while it is listed.
                    metadata: with_metadata.then(|| entry.metadata().ok()).flatten(),
                    kind: entry.file_type()?.kind(),
                });
            }
        }
        rows.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        if !self.json && (self.recursive || self.paths.len() > 1) {
            if !*is_first {
                output::write(b"\n");
            }
            output::write(&[&show::name(&shown(at.prefix, path))[..], b":\n"].concat());
        }
        *is_first = false;
        self.show(at, &rows)?;
        Ok(match self.recursive {
            true => rows
                .into_iter()
                .filter(|row| row.kind == FileKind::Directory)
                .map(|row| row.path)
                .collect(),
            false => Vec::new(),
        })
    }

    fn show(&self, at: &Listed<'_>, rows: &[Row]) -> Result<(), Why> {
        let width = |number: fn(&Metadata) -> u64| {
            let digits = rows.iter().filter_map(|row| row.metadata.as_ref()).map(number).max();
            digits.unwrap_or(0).to_string().len()
        };
        let widths = [
            width(MetadataExt::nlink),
            width(|found| found.uid().into()),
            width(|found| found.gid().into()),
            width(Metadata::len),
        ];
        for row in rows {
            let target = || match row.kind {
                FileKind::Symlink => at.volume.fs.read_link(&row.path).ok().map(PathBuf::into_os_string),
                _ => None,
            };
            let mut line = Vec::new();
            match &row.metadata {
                Some(found) if self.json => {
                    let path = shown(at.prefix, &row.path);
                    let json = say_json(&Json::new(&path, found, target().as_deref()));
                    json.map_err(|failure: Failure| Why::new(failure.text()))?;
                    continue;
                }
                Some(found) if self.long => {
                    let [links, uid, gid, size] = widths;
                    line.extend(
                        format!(
                            "{} {:links$} {:uid$} {:gid$} {:size$} {} ",
                            show::mode(found),
                            found.nlink(),
                            found.uid(),
                            found.gid(),
                            found.len(),
                            show::time(found.modified().ok(), "%Y-%m-%d %H:%M"),
                        )
                        .into_bytes(),
                    );
                }
                // It was removed while it was listed, or is damaged.
                None if self.long => line.extend(b"?????????? "),
                _ => {}
            }
            line.extend(show::name(&row.name));
            if self.long
                && let Some(target) = target()
            {
                line.extend(b" -> ");
                line.extend(show::name(&target));
            }
            line.push(b'\n');
            if !output::write(&line) {
                break;
            }
        }
        Ok(())
    }
}
