//! The agent as a process, for tests that kill it: the very `esker-agent` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    esker_agent::cli::main()
}
