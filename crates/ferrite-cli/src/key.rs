//! `ferrite key`: make the key of an export.

use std::path::PathBuf;

use ferrite_client::secure::Key;

use super::{Outcome, say};

/// Make a key for exports of a server
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The server and the clients of an export have the same key: `ferrite serve --key FILE` or the server's configuration, and \
`ferrite mount 'tcp://HOST:PORT/NAME?key=FILE' DIR` or `-o key=FILE`. A key gives access to the export, so copy it over a \
secure channel, such as scp(1). Ferrite refuses a key file that anyone but its owner can read.

Without FILE the key is printed. An existing file is never replaced. To rotate a key, make a new one, configure both on \
the server, install the new one on the clients, and then remove the old one.")]
pub(crate) struct MakeKey {
    /// File to write; must not exist
    #[arg(value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
}

impl MakeKey {
    pub(crate) fn run(self) -> Outcome {
        let key = Key::generate()?;
        match self.file {
            Some(file) => {
                key.write_new(&file)?;
                say(format_args!("{}: a new key, {}", file.display(), key.id()));
            }
            None => say(format_args!("{}", key.line().trim_end())),
        }
        Ok(0)
    }
}
