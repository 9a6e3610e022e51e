//! The `esker` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    esker_client::cli::main()
}
