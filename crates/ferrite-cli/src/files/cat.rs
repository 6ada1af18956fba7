//! `ferrite cat`: print files of volumes.

use super::place::{Place, Result};
use super::{OPERANDS, Operand, Volumes};
use crate::{FAILED, Outcome, complain, output};

/// Bytes per read.
const PIECE_BYTES: usize = 4 << 20;

/// Print files of volumes that are not mounted
#[derive(Debug, clap::Args)]
#[command(after_help = OPERANDS)]
pub(crate) struct Cat {
    /// Files
    #[arg(required = true, value_parser = Operand::parser_in_volume())]
    files: Vec<Operand>,
}

impl Cat {
    pub(crate) fn run(self) -> Outcome {
        let mut volumes = Volumes::to_read();
        let mut code = 0;
        for operand in &self.files {
            if let Some(from) = Place::of(operand, &mut volumes)?
                && let Err(message) = print(&from)
            {
                complain(format_args!("ferrite: {message}"));
                code = FAILED;
            }
        }
        volumes.close()?;
        Ok(code)
    }
}

/// Prints a file; `output` records failed writes.
pub(super) fn print(from: &Place) -> Result<(), String> {
    let file = from.open().map_err(|why| from.message(&why))?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut offset = 0;
    loop {
        let count = file.read_at(&mut buffer, offset).map_err(|why| from.message(&why))?;
        if count == 0 || !output::write(&buffer[..count]) {
            return Ok(());
        }
        offset += count as u64;
    }
}
