//! The `esker-agent` process: parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    esker_agent::cli::main()
}
