//! Writes what packages carry besides programs, all of it made from the command lines and the table
//! of settings: completions, man pages, and a sample of `/etc/esker/esker-agent.env`.
//!
//! ```sh
//! cargo run -p esker-agent --example pages -- DIRECTORY
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap_complete::{Shell, generate_to};
use esker_agent::config::KEYS;

/// Width of the sample's comments.
const WIDTH: usize = 98;

const HEAD: &str = "\
# Settings of esker-agent for its unit; \"man esker-agent-run\" describes the same as flags.
#
# ESKER_STORE has to be set. Whatever is commented out has the value that is shown, its default.
# Credentials for the bucket are best those of the machine (an instance role). Elsewhere the usual
# variables can stand here: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the like.
";

fn main() -> anyhow::Result<()> {
    let root = std::env::args_os().nth(1).map(PathBuf::from);
    let root = root.context("usage: pages DIRECTORY")?;
    let [completions, man, etc] = ["completions", "man", "etc"].map(|name| root.join(name));
    for directory in [&completions, &man, &etc] {
        fs::create_dir_all(directory)?;
    }
    for command in [esker_agent::cli::command(), esker_client::cli::command()] {
        complete(&command, &completions)?;
        clap_mangen::generate_to(command, &man)?;
    }
    fs::write(etc.join("esker-agent.env"), sample_env())?;
    Ok(())
}

fn complete(command: &clap::Command, directory: &Path) -> anyhow::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let name = command.get_name().to_owned();
        generate_to(shell, &mut command.clone(), name, directory)?;
    }
    Ok(())
}

fn sample_env() -> String {
    let mut text = HEAD.to_owned();
    let mut group = "";
    for key in KEYS {
        if key.group != group {
            group = key.group;
            text += &format!("\n## {group}\n");
        }
        text += "\n";
        for line in wrapped(key.doc, WIDTH - 2) {
            text += &format!("# {line}\n");
        }
        let mark = if key.name == "store" { "" } else { "#" };
        text += &format!("{mark}{}={}\n", key.env(), key.default);
    }
    text
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let is_full = lines
            .last()
            .is_some_and(|line| line.len() + 1 + word.len() > width);
        match lines.last_mut() {
            Some(line) if !is_full && !line.is_empty() => *line += &format!(" {word}"),
            Some(line) if line.is_empty() => *line += word,
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
