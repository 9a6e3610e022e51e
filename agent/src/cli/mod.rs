//! The `esker-agent` command: `run`, `dev`, `check-store`, `log`, `health`, `config`.

mod check_store;
mod health;
mod log;
mod open_files;
mod run;
mod telemetry;

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

pub(crate) use run::told_to_stop;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::{
    config::{self, KEYS, Key, Settings, Sources},
    dev,
    start_error::StartError,
};

/// Threads that read files, compute digests and decode at a time.
const BLOCKING_THREADS_MAX: usize = 32;

/// Runs the command line and returns the process's exit code.
pub fn main() -> ExitCode {
    let matches = command().get_matches();
    open_files::raise_limit();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&StartError::System(error)),
    };
    let code = match matches.subcommand() {
        Some(("run", given)) => with_settings(given, |s| runtime.block_on(run::run(s))),
        Some(("dev", given)) => {
            with_settings(given, |s| runtime.block_on(dev::run(s, given.into())))
        }
        Some(("check-store", given)) => {
            with_settings(given, |s| runtime.block_on(check_store::run(s)))
        }
        Some(("log", given)) => match given.subcommand() {
            Some(("verify", given)) => with_settings(given, |s| log::verify(&s, given)),
            Some((_, given)) => with_settings(given, |s| log::repair(&s, given)),
            None => ExitCode::from(2),
        },
        Some(("health", given)) => with_settings(given, |s| {
            runtime.block_on(health::run(s, given.get_flag("ready")))
        }),
        _ => {
            print!("{}", config::reference());
            ExitCode::SUCCESS
        }
    };
    // A blocking call that hangs (a dead disk, a dead resolver) must not keep the process alive.
    runtime.shutdown_background();
    code
}

/// Builds the command line.
pub fn command() -> Command {
    let run = Command::new("run")
        .about("Serve topics out of a bucket")
        .long_about(
            "Serve topics out of a bucket.\n\nEvery option can also be given in the configuration \
             file or in the environment. SIGTERM or Ctrl-C drains: what is not in the bucket yet \
             is uploaded first.",
        );
    let dev = Command::new("dev")
        .about("Try Esker on this machine: start, run the main job once, keep serving")
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Exit after the report, non-zero if anything failed"),
        )
        .arg(
            Arg::new("records")
                .long("records")
                .value_name("N")
                .default_value("1000000")
                .value_parser(clap::value_parser!(u64).range(1_000..=1_000_000_000))
                .help("Records to publish and replay"),
        );
    let check = Command::new("check-store")
        .about("Probe whether a bucket keeps the promises Esker rests on; exit 0 if it does");
    Command::new("esker-agent")
        .about("The server process of Esker: a message log whose history lives in a bucket")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(with_keys(run, KEYS))
        .subcommand(with_keys(dev, KEYS))
        .subcommand(with_keys(check, KEYS))
        .subcommand(logs())
        .subcommand(health())
        .subcommand(Command::new("config").about("Print the reference of all settings"))
}

fn logs() -> Command {
    let asked = || KEYS.iter().filter(|key| key.name == "data-dir");
    Command::new("log")
        .about("Verify and repair the local logs of an agent that is stopped")
        .subcommand_required(true)
        .subcommand(with_keys(log::verify_command(), asked()))
        .subcommand(with_keys(log::repair_command(), asked()))
}

fn health() -> Command {
    let command = Command::new("health")
        .about("Ask the agent on this machine whether it is alive; exit 0 if it is, else 1")
        .arg(
            Arg::new("ready")
                .long("ready")
                .action(ArgAction::SetTrue)
                .help("Ask whether it serves, which it does not while it starts or drains"),
        );
    let asked = KEYS.iter().filter(|key| key.name == "http-listen");
    with_keys(command, asked)
}

fn with_keys<'a>(command: Command, keys: impl IntoIterator<Item = &'a Key>) -> Command {
    let file = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .env("ESKER_CONFIG")
        .value_parser(clap::value_parser!(PathBuf))
        .help("A TOML file of settings");
    keys.into_iter().fold(command.arg(file), |command, key| {
        let shown_default = match key.default {
            "" => String::new(),
            default => format!(" [default: {default}]"),
        };
        let arg = Arg::new(key.name)
            .long(key.name)
            .value_name(value_name(key.name))
            .help_heading(key.group)
            .help(format!("{}{shown_default} [env: {}]", key.doc, key.env()));
        command.arg(arg)
    })
}

fn value_name(key: &str) -> &'static str {
    match key {
        "store" => "URL",
        "data-dir" => "DIRECTORY",
        "take-over" => "AGENT_IDS",
        _ if key.contains("bytes") => "SIZE",
        _ if key.contains("listen") || key == "advertise" => "ADDRESS",
        _ if key.contains("age") || key.contains("timeout") || key.contains("interval") => "TIME",
        "retention" | "metadata-poll" => "TIME",
        "partitions" => "N",
        _ => "VALUE",
    }
}

fn with_settings(given: &ArgMatches, then: impl FnOnce(Settings) -> ExitCode) -> ExitCode {
    match config::load(&sources(given)) {
        Ok(settings) => then(settings),
        Err(error) => failed(&StartError::Config(error)),
    }
}

fn sources(given: &ArgMatches) -> Sources {
    let flags = KEYS.iter().filter_map(|key| {
        // Not every command takes every key.
        let text = given.try_get_one::<String>(key.name).ok().flatten();
        text.map(|text| (key.name.to_owned(), text.clone()))
    });
    Sources {
        file: given.get_one::<PathBuf>("config").cloned(),
        environment: std::env::vars().collect(),
        flags: flags.collect::<BTreeMap<_, _>>(),
    }
}

/// Prints an error for a person and returns its exit code.
fn failed(error: &StartError) -> ExitCode {
    eprintln!("esker-agent: {error}");
    ExitCode::from(error.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
