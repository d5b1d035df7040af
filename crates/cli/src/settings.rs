//! The settings of `serve` and `dev` as command-line arguments.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};
use epicepoch_config::{
    CONFIG, Environment, Flags, Given, Group, Kind, Scope, Setting, SettingError,
};

/// Returns one argument for each setting.
pub(crate) fn arguments(scope: Scope) -> impl Iterator<Item = Arg> {
    let of_group = |group: &'static Group| group.settings.iter().map(|it| argument(group, it));
    scope.groups().flat_map(of_group)
}

fn argument(group: &Group, setting: &'static Setting) -> Arg {
    let Setting { name, value, default, help, kind } = setting;
    let default = default.text();
    let argument = Arg::new(*name)
        .long(setting.flag())
        .value_name(*value)
        .help_heading(group.heading)
        .allow_negative_numbers(true)
        .help(format!("{help} [default: {default}]"))
        .long_help(format!("{help}\n[env: {name}] [default: {default}]\n[{}]", setting.allowed()));
    match kind {
        Kind::Switch(_) => argument.num_args(0..=1).require_equals(true).default_missing_value("1"),
        Kind::Number { .. } | Kind::Text { .. } => argument,
    }
}

/// Gathers the settings of a node from the command line, the environment and the file of settings.
pub(crate) fn given(
    scope: Scope,
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<Given, SettingError> {
    Given::gather(scope, &flags(scope, matches), environment)
}

/// Gathers the settings as [`given()`] does. Returns what can be read, and every error.
pub(crate) fn given_all(
    scope: Scope,
    matches: &ArgMatches,
    environment: &Environment,
) -> (Given, Vec<SettingError>) {
    Given::gather_all(scope, &flags(scope, matches), environment)
}

fn flags(scope: Scope, matches: &ArgMatches) -> Flags {
    let file = (scope == Scope::Node).then_some(CONFIG);
    let names = file.into_iter().chain(scope.settings().map(|setting| setting.name));
    names
        .filter(|name| matches.value_source(name) == Some(ValueSource::CommandLine))
        .filter_map(|name| Some((name, matches.get_one::<String>(name)?.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    #[test]
    fn a_flag_beats_a_variable_and_a_switch_needs_no_value() {
        let flags = ["--node-id=1", "--raft-addr=a:1", "--single", "--http-port", "3333"];
        let arguments = ["epicepoch", "serve"].into_iter().chain(flags);
        let matches = commands::tree().try_get_matches_from(arguments).expect("arguments");
        let matches = matches.subcommand_matches("serve").expect("serve");
        let environment = Environment::from([("HTTP_PORT".into(), "2222".into())]);
        let config = given(Scope::Node, matches, &environment).expect("settings").node(8);
        let config = config.expect("a configuration");
        assert_eq!((config.http_port, config.single), (3333, true));
    }
}
