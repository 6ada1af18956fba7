//! `ferrite manual`: man pages and shell completions, from the same source as `--help`. `make install` calls it.

use std::path::PathBuf;

use clap::{Command, ValueEnum};
use clap_complete::Shell;

use super::{Outcome, about};

/// Write man pages and shell completions into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes DIR/man/man1/ferrite*.1, a page for each command, and DIR/completions, with a file for each shell. Existing files \
of these names are replaced.")]
pub(crate) struct Manual {
    /// Directory to write to; created if missing
    dir: PathBuf,
}

impl Manual {
    pub(crate) fn run(self, mut program: Command) -> Outcome {
        let pages = self.dir.join("man/man1");
        let completions = self.dir.join("completions");
        for dir in [&pages, &completions] {
            std::fs::create_dir_all(dir).map_err(about(dir))?;
        }
        // Before completions are made, which permanently add the commands `help`: those need no pages.
        let described = program
            .clone()
            .disable_help_subcommand(true)
            .mut_subcommands(|command| command.disable_help_subcommand(true));
        clap_mangen::generate_to(described, &pages).map_err(about(&pages))?;
        for shell in Shell::value_variants() {
            clap_complete::generate_to(*shell, &mut program, "ferrite", &completions).map_err(about(&completions))?;
        }
        Ok(0)
    }
}
