//! `epicepoch completions` and `epicepoch man`: the command line as shells and `man` read it. Both
//! are made from the tree of commands that parses the command line.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use crate::arguments::text;
use crate::failure::Failure;
use crate::output;

pub(crate) fn completions() -> Command {
    Command::new("completions")
        .about("Print the completion script of a shell")
        .after_help(
            "Install:\n  \
             epicepoch completions bash > /usr/share/bash-completion/completions/epicepoch\n  \
             epicepoch completions zsh > /usr/share/zsh/site-functions/_epicepoch\n  \
             epicepoch completions fish > /usr/share/fish/vendor_completions.d/epicepoch.fish",
        )
        .arg(
            Arg::new("shell")
                .value_name("SHELL")
                .required(true)
                .value_parser(["bash", "zsh", "fish"])
                .help("The shell"),
        )
}

pub(crate) fn man() -> Command {
    Command::new("man")
        .about("Write the manual pages, one for each command")
        .after_help(
            "Example:\n  epicepoch man --out /usr/local/share/man/man1\n  man epicepoch-get",
        )
        .arg(
            text("out", "DIR", "Directory of the pages; it is made if it is missing")
                .value_parser(value_parser!(PathBuf))
                .default_value("man"),
        )
}

/// Prints the script for the command line `tree`.
pub(crate) fn run_completions(
    matches: &ArgMatches,
    mut tree: Command,
) -> Result<ExitCode, Failure> {
    let shell = match matches.get_one::<String>("shell").map_or("", String::as_str) {
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => Shell::Bash,
    };
    // The generator panics if it cannot write. So it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut tree, NAME, &mut script);
    output::product().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of the command line `tree`.
pub(crate) fn run_man(matches: &ArgMatches, mut tree: Command) -> Result<ExitCode, Failure> {
    let directory = matches.get_one::<PathBuf>("out").cloned().unwrap_or_default();
    let shown = || format!("--out {}", directory.display());
    std::fs::create_dir_all(&directory).with_context(shown).map_err(Failure::usage)?;
    tree.build();
    let mut out = output::account();
    for (name, command) in pages(NAME, &tree) {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).title(name.clone()).render(&mut page)?;
        let path = directory.join(format!("{name}.1"));
        std::fs::write(&path, page).with_context(|| path.display().to_string())?;
        writeln!(out, "{}", path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns every command with the name of its page, such as `epicepoch-member-list`.
fn pages(name: &str, command: &Command) -> Vec<(String, Command)> {
    let below = command.get_subcommands().filter(|it| !it.is_hide_set());
    let below = below.flat_map(|it| pages(&format!("{name}-{}", it.get_name()), it));
    let own = command.clone().name(name.to_owned()).display_name(name);
    [(name.to_owned(), own)].into_iter().chain(below).collect()
}

const NAME: &str = "epicepoch";
