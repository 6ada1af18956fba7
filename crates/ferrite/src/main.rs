//! The `ferrite` command. Everything is in [`cli`]; here is only how the process ends.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
