//! Where settings come from: a flag beats an environment variable, which beats the file, which
//! beats the default. It never reads the environment itself: `main` hands it over.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use epicepoch_server::config::{self, Config, ConfigError};
use epicepoch_wire::NodeId;
use thiserror::Error;

use crate::config_file::{ConfigFile, ConfigFileError};
use crate::logging::Logging;
use crate::settings::{Draft, Setting, TABLE};

/// The environment of the process, read once in `main`.
pub(crate) type Environment = BTreeMap<OsString, OsString>;

/// The value of one variable; `None` if it is not set.
///
/// An empty variable is set, to nothing, and for every setting nothing is a bad value: an empty
/// variable is more often a template that was not filled in than a wish for the default.
pub(crate) fn variable(
    environment: &Environment,
    name: &'static str,
) -> Result<Option<String>, SettingError> {
    let Some(value) = environment.get(&OsString::from(name)) else { return Ok(None) };
    match value.to_str() {
        Some(text) => Ok(Some(text.to_owned())),
        None => Err(SettingError::NotUnicode { name, value: value.clone() }),
    }
}

/// The settings that were given, as text, with where each came from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    /// Of each setting what all sources say, the one that counts last.
    values: BTreeMap<&'static str, Vec<(String, Origin)>>,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(String),
    Variable(&'static str),
    File { key: String, path: PathBuf },
}

/// Why settings are refused: the name, the value, where it came from, and what is allowed.
#[derive(Debug, Error)]
pub(crate) enum SettingError {
    #[error("{} is {value:?} (from {origin}); {}{hint}", .setting.name, .setting.allowed())]
    BadValue { setting: &'static Setting, value: String, origin: Origin, hint: &'static str },
    #[error("{name} is {value:?} (from the environment variable {name}); allowed is UTF-8")]
    NotUnicode { name: &'static str, value: OsString },
    #[error(
        "{name} is required: set the flag --{flag}, the environment variable {name} or the key \
         {key} of the file; {allowed}",
        name = .0.name, flag = .0.flag(), key = .0.key(), allowed = .0.allowed(),
    )]
    Missing(&'static Setting),
    #[error("{error}{origins}")]
    Refused { error: ConfigError, origins: String },
    #[error(transparent)]
    File(#[from] ConfigFileError),
}

impl Given {
    /// Gathers what `matches` (flags), `environment` and the file named by either hold for the
    /// settings that `wanted` lets through.
    pub(crate) fn gather(
        matches: &ArgMatches,
        environment: &Environment,
        wanted: impl Fn(&Setting) -> bool,
    ) -> Result<Self, SettingError> {
        let mut given = Self::default();
        if let Some(path) = config_path(matches, environment)? {
            given.take_file(&path, ConfigFile::read(&path)?, &wanted);
        }
        for setting in TABLE.iter().filter(|setting| wanted(setting)) {
            if let Some(text) = variable(environment, setting.name)? {
                given.add(setting, text, Origin::Variable(setting.name));
            }
            if let Some(text) = flag(matches, setting.name) {
                given.add(setting, text, Origin::Flag(setting.flag()));
            }
        }
        Ok(given)
    }

    /// Takes what a file holds for the settings that `wanted` lets through.
    pub(crate) fn take_file(
        &mut self,
        path: &Path,
        file: ConfigFile,
        wanted: impl Fn(&Setting) -> bool,
    ) {
        for (setting, text) in file.values.into_iter().filter(|(setting, _)| wanted(setting)) {
            let origin = Origin::File { key: setting.key(), path: path.to_owned() };
            self.add(setting, text, origin);
        }
    }

    fn add(&mut self, setting: &Setting, text: String, origin: Origin) {
        self.values.entry(setting.name).or_default().push((text, origin));
    }

    /// Whether a setting was given at all.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The checked configuration of one node, on a machine with `cores` cores.
    pub(crate) fn node(&self, logging: Logging, cores: usize) -> Result<Draft, SettingError> {
        // First every value by itself: a bad one is a better answer than a missing one.
        let mut first = Draft { config: Config::new(NodeId(0), ""), logging };
        self.apply(&mut first)?;
        for name in ["NODE_ID", "RAFT_ADDR"] {
            if let Some(setting) = Setting::named(name).filter(|_| !self.has(name)) {
                return Err(SettingError::Missing(setting));
            }
        }
        // Then again from the defaults that follow from identity and address.
        let Config { node_id, raft_addr, .. } = first.config;
        let mut draft = Draft { config: Config::new(node_id, raft_addr), logging };
        self.complete(&mut draft, cores)?;
        if draft.config.single && draft.config.peers.is_empty() {
            draft.config = draft.config.into_single();
        }
        self.check(&draft.config)?;
        Ok(draft)
    }

    /// Puts every given setting into the draft, then the defaults that follow from others.
    pub(crate) fn complete(&self, draft: &mut Draft, cores: usize) -> Result<(), SettingError> {
        self.apply(draft)?;
        let config = &mut draft.config;
        if !self.has("ADVERTISE_ADDR") {
            config.advertise_addr =
                config::default_advertise_addr(&config.raft_addr, config.http_port);
        }
        if !self.has("HEARTBEAT_MS") {
            config.heartbeat = config::default_heartbeat(config.election_timeout);
        }
        if !self.has("RESERVATION_MS") {
            config.reservation = config::default_reservation(config.election_timeout);
        }
        if !self.has("ADDRESS_CONNECTIONS_MAX") {
            config.limits.address_connections_max =
                config::default_address_connections(config.connections_max);
        }
        if !self.has("WORKERS") {
            config.workers = match config.worker_cpus.len() {
                0 => config::default_workers(cores),
                pinned => pinned,
            };
        }
        Ok(())
    }

    /// Holds the settings to each other; an error says where each of them came from.
    pub(crate) fn check(&self, config: &Config) -> Result<(), SettingError> {
        let Err(error) = config.check() else { return Ok(()) };
        let origin = |name: &&str| {
            let (_, origin) = self.values.get(name)?.last()?;
            Some(format!("{name} from {origin}"))
        };
        let origins: Vec<_> = error.settings().iter().filter_map(origin).collect();
        let origins =
            if origins.is_empty() { String::new() } else { format!(" ({})", origins.join(", ")) };
        Err(SettingError::Refused { error, origins })
    }

    /// A value that another source overrides is checked all the same: it is a slip that would
    /// show on the day when the other source goes.
    fn apply(&self, draft: &mut Draft) -> Result<(), SettingError> {
        for setting in TABLE {
            let Some((last, overridden)) =
                self.values.get(setting.name).and_then(|values| values.split_last())
            else {
                continue;
            };
            for value in overridden {
                apply_one(setting, value, &mut draft.clone())?;
            }
            apply_one(setting, last, draft)?;
        }
        Ok(())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "the flag --{flag}"),
            Self::Variable(name) => write!(f, "the environment variable {name}"),
            Self::File { key, path } => write!(f, "the key {key} of {}", path.display()),
        }
    }
}

fn apply_one(
    setting: &'static Setting,
    (text, origin): &(String, Origin),
    draft: &mut Draft,
) -> Result<(), SettingError> {
    setting.apply(draft, text).ok_or_else(|| SettingError::BadValue {
        setting,
        value: text.chars().take(VALUE_SHOWN_MAX).collect(),
        origin: origin.clone(),
        hint: if text.is_empty() { "; unset it to use the default" } else { "" },
    })
}

/// The file to read, if this command takes one.
fn config_path(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<Option<PathBuf>, SettingError> {
    let Ok(flag) = matches.try_get_one::<String>(CONFIG) else { return Ok(None) };
    let path = match flag {
        Some(path) => Some(path.clone()),
        None => variable(environment, CONFIG)?,
    };
    Ok(path.map(|path| Path::new(&path).to_owned()))
}

fn flag(matches: &ArgMatches, name: &str) -> Option<String> {
    let given = matches.value_source(name) == Some(ValueSource::CommandLine);
    matches.get_one::<String>(name).filter(|_| given).cloned()
}

/// Names the file of settings, as a variable and (`--config`) as a flag.
pub(crate) const CONFIG: &str = "CONFIG";
/// Characters of a bad value that an error repeats.
const VALUE_SHOWN_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;
    use crate::commands;
    use crate::settings::Kind;

    const CORES: usize = 8;
    const NEEDED: [&str; 2] = ["NODE_ID=1", "RAFT_ADDR=localhost:60001"];

    fn load(flags: &[&str], variables: &[&str]) -> Result<Draft, String> {
        let arguments = ["epicepoch", "serve"].iter().chain(flags);
        let matches =
            commands::tree().try_get_matches_from(arguments).map_err(|e| e.to_string())?;
        let matches = matches.subcommand_matches("serve").expect("serve");
        let split = |text: &&str| text.split_once('=').map(|(k, v)| (k.into(), v.into()));
        let environment: Environment = variables.iter().filter_map(split).collect();
        let given = Given::gather(matches, &environment, |_| true).map_err(|e| e.to_string())?;
        given.node(Logging::default(), CORES).map_err(|e| e.to_string())
    }

    fn load_single(flags: &[&str], variables: &[&str]) -> Result<Draft, String> {
        let variables: Vec<_> =
            NEEDED.iter().chain(&["SINGLE=1"]).chain(variables).copied().collect();
        load(flags, &variables)
    }

    /// With what the setting cannot be without: `JOIN` is for a node that founds nothing, and
    /// who speaks no TLS shows no certificate.
    fn load_beside(setting: &Setting, flags: &[&str], variables: &[&str]) -> Result<Draft, String> {
        if setting.name == "CLIENT_CA_FILE" {
            let variables: Vec<_> = ["CLIENT_TLS=on"].iter().chain(variables).copied().collect();
            return load_single(flags, &variables);
        }
        let beside: &[&str] = match setting.name {
            "RAFT_BIND" => &["PEER_PLAIN=1"],
            "PEER_CERT_FILE" => &["PEER_KEY_FILE=x", "PEER_CA_FILE=x"],
            "PEER_KEY_FILE" => &["PEER_CERT_FILE=x", "PEER_CA_FILE=x"],
            "PEER_CA_FILE" => &["PEER_CERT_FILE=x", "PEER_KEY_FILE=x"],
            "LEADER_ZONES" => &["ZONE=x"],
            _ => &[],
        };
        if setting.name != "JOIN" {
            let variables: Vec<_> = beside.iter().chain(variables).copied().collect();
            return load_single(flags, &variables);
        }
        let variables: Vec<_> = NEEDED.iter().chain(variables).copied().collect();
        load(flags, &variables)
    }

    #[test]
    fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "http_port = 1111\nmax_n = 11\ncluster = 'file'").expect("written");
        let path = file.path().to_str().expect("plain path");
        let config = format!("CONFIG={path}");
        let got = load_single(&["--http-port", "3333"], &[&config, "HTTP_PORT=2222", "MAX_N=22"]);
        let got = got.expect("valid").config;
        assert_eq!((got.http_port, got.max_n), (3333, 22));
        assert_eq!(got.cluster_name, "file");
        assert_eq!(got.epoch_interval, Duration::from_millis(100));
        let got =
            load_single(&["--config", path], &["CONFIG=/nonexistent"]).expect("the flag wins");
        assert_eq!(got.config.http_port, 1111);
    }

    #[test]
    fn a_bad_value_is_refused_even_where_another_source_overrides_it() {
        let error = load_single(&["--bootstrap"], &["BOOTSTRAP=yes"]).expect_err("yes");
        assert!(error.contains("BOOTSTRAP is \"yes\" (from the environment variable"), "{error}");
        // Nothing of an overridden value is left.
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "raft_bind = '127.0.0.1:7'").expect("written");
        let path = file.path().to_str().expect("plain path");
        let got = load_single(&["--config", path], &["RAFT_BIND=127.0.0.2"]).expect("valid");
        assert_eq!(got.config.raft_bind.to_string(), "127.0.0.2:60001");
    }

    #[test]
    fn defaults_follow_from_what_is_given() {
        let got = load_single(&["--http-port=0"], &["ELECTION_TIMEOUT_MS=1000"]).expect("valid");
        assert_eq!(got.config.advertise_addr, "localhost:0");
        assert_eq!(got.config.heartbeat, Duration::from_millis(200));
        assert_eq!(got.config.reservation, Duration::from_secs(5));
        assert_eq!(got.config.workers, CORES / 2);
        assert_eq!(got.config.data_dir, PathBuf::from("_raft/node-1"));
        assert_eq!(got.config.peers.len(), 1);
        let got = load_single(&[], &["RAFT_BIND=127.0.0.1"]).expect("valid");
        assert_eq!(got.config.raft_bind.to_string(), "127.0.0.1:60001");
    }

    #[test]
    fn every_setting_is_a_flag_a_variable_and_a_key() {
        for setting in TABLE {
            let good = match (&setting.kind, setting.name) {
                (_, "NODE_ID") => "1",
                (_, "PEERS") => "1=localhost:60001",
                (_, "RAFT_ADDR") => "localhost:60001",
                (_, "RAFT_BIND" | "HTTP_BIND") => "127.0.0.1",
                (_, "ADVERTISE_ADDR") => "localhost:1",
                (_, "WORKER_CPUS") => "0,3",
                (_, "JOIN") => "localhost:60002,localhost:60003",
                (_, "ADMIN_FROM" | "OPS_PLAIN_FROM") => "10.0.0.0/8",
                (_, "RESTORE_FLOOR") => "1700000000000ms",
                (_, "OPS_ADDR") => "127.0.0.1:9090",
                (Kind::Switch(_), _) | (_, "CLIENT_TLS") => "on",
                (_, "PEER_TLS") => "off",
                (Kind::Number(bounds, _), _) => {
                    let value = bounds.default.unwrap_or(bounds.min).to_string();
                    let shown = setting.default.starts_with(&value);
                    assert!(bounds.default.is_none() || shown, "{} in the help", setting.name);
                    &value.clone()
                }
                (Kind::Text { .. }, _) => "x",
            };
            let flag = format!("--{}={good}", setting.flag());
            load_beside(setting, &[&flag], &[]).expect(setting.name);
            let variable = format!("{}={good}", setting.name);
            load_beside(setting, &[], &[&variable]).expect(setting.name);
            let mut file = tempfile::NamedTempFile::new().expect("a file");
            writeln!(file, "{} = '{good}'", setting.key()).expect("written");
            let path = file.path().to_str().expect("plain path");
            load_beside(setting, &["--config", path], &[]).expect(setting.name);
            if let Kind::Number(bounds, _) = &setting.kind {
                assert_eq!(bounds.setting, setting.name);
            }
        }
    }

    #[test]
    fn a_bad_value_is_refused_with_name_value_origin_and_what_is_allowed() {
        for setting in TABLE {
            let bad: &[&str] = match (&setting.kind, setting.name) {
                (Kind::Number(..), _) => {
                    &["", "x", "-1", "+1", "1.5", " 1", "1e30", "99999999999999999999"]
                }
                (Kind::Switch(_), _) => &["", "yes", "2", "TRUE"],
                (_, "CLUSTER") => &["", "a b", "ä"],
                (_, "ZONE") => &["", "a b", "a,b", "ä"],
                (_, "LEADER_ZONES") => &["", "a,", "a,a", "a b", "ä"],
                (_, name) if matches!(name, "DATA_DIR" | "RESTORE") || name.ends_with("_FILE") => {
                    &[""]
                }
                (_, "CLIENT_TLS" | "PEER_TLS") => &["", "yes", "1", "ON"],
                (_, "OPS_ADDR") => &["", "a", "9090", "127.0.0.1", "a:9090", "127.0.0.1:99999"],
                (_, "RESTORE_FLOOR") => {
                    &["", "now", "1700000000", "17979cfe362a0000", "-1s", "99999999999s"]
                }
                (_, "PEERS") => &["", "1", "1=a", "1=a:1,", "1=a:1,1=b:2", "x=a:1", "1=a:99999"],
                (_, "HTTP_BIND") => &["", "localhost", "127.0.0.1:1"],
                (_, "RAFT_BIND") => &["", "localhost:1", "x", "127.0.0.1:99999"],
                (_, "JOIN") => &["", "a", "a:1,", "a:1,a:1", "1=a:1", "a:99999"],
                _ => &["", "a", "a:", ":1", "a:99999", "http://a:1", "0.0.0.0:1"],
            };
            for value in bad {
                let variable = format!("{}={value}", setting.name);
                let error = load_single(&[], &[&variable]).expect_err(&variable);
                let shown = format!("{} is {value:?}", setting.name);
                let origin = format!("the environment variable {}", setting.name);
                for part in [shown.as_str(), origin.as_str(), "allowed"] {
                    assert!(error.contains(part), "{variable}: {error}");
                }
                let flag = format!("--{}={value}", setting.flag());
                let error = load_single(&[&flag], &[]).expect_err(&flag);
                assert!(error.contains(&format!("the flag --{}", setting.flag())), "{error}");
            }
        }
    }

    #[test]
    fn the_file_to_deploy_is_a_valid_configuration() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/epicepoch.toml");
        let got = load(&["--config", path], &[]).expect("valid").config;
        assert_eq!((got.node_id, got.peers.len(), got.bootstrap), (NodeId(1), 3, false));
        let text = std::fs::read_to_string(path).expect("readable");
        let first_start = tempfile::NamedTempFile::new().expect("a file");
        let uncommented = text.replace("\n# bootstrap = true\n", "\nbootstrap = true\n");
        std::fs::write(first_start.path(), uncommented).expect("writable");
        let path = first_start.path().to_str().expect("text");
        assert!(load(&["--config", path], &[]).expect("valid").config.bootstrap);
    }

    #[test]
    fn numbers_outside_their_bounds_are_refused() {
        for setting in TABLE {
            let Kind::Number(bounds, _) = &setting.kind else { continue };
            for value in
                [bounds.min.checked_sub(1), bounds.max.checked_add(1)].into_iter().flatten()
            {
                let variable = format!("{}={value}", setting.name);
                let error = load_single(&[], &[&variable]).expect_err(&variable);
                assert!(error.contains(&bounds.allowed()), "{error}");
            }
        }
    }

    #[test]
    fn what_is_required_is_asked_for_by_all_its_names() {
        let error = load(&[], &["RAFT_ADDR=a:1"]).expect_err("no node id");
        for name in ["NODE_ID", "--node-id", "node_id"] {
            assert!(error.contains(name), "{error}");
        }
        let error = load(&[], &["HTTP_PORT="]).expect_err("no node id, and a bad port");
        assert!(error.contains("HTTP_PORT is \"\""), "{error}");
        let error = load(&[], &["NODE_ID=1"]).expect_err("no address");
        assert!(error.contains("RAFT_ADDR is required"), "{error}");
        let error = load(&[], &NEEDED).expect_err("no peers");
        assert!(error.contains("PEERS is required") && error.contains("--single"), "{error}");
    }

    #[test]
    fn settings_that_contradict_each_other_are_named_with_their_origins() {
        let error = load_single(&["--heartbeat-ms=190"], &["ELECTION_TIMEOUT_MS=300"]);
        let error = error.expect_err("too slow");
        for part in
            ["from the flag --heartbeat-ms", "from the environment variable ELECTION_TIMEOUT_MS"]
        {
            assert!(error.contains(part), "{error}");
        }
        let error = load_single(&["--workers=3"], &["WORKER_CPUS=0,1"]).expect_err("two for three");
        assert!(error.contains("WORKER_CPUS has 2 processors and WORKERS is 3"), "{error}");
        assert_eq!(load_single(&[], &["WORKER_CPUS=0, 5"]).expect("two").config.workers, 2);
        let peers = "PEERS=2=a:1,3=b:1";
        let error = load(&[], &[NEEDED[0], NEEDED[1], peers]).expect_err("not this node");
        assert!(error.contains("PEERS has the node ids 2, 3, but NODE_ID is 1"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_no_text_is_refused_by_name() {
        use std::os::unix::ffi::OsStringExt;
        let environment =
            Environment::from([(OsString::from("DATA_DIR"), OsString::from_vec(vec![0xff]))]);
        let matches = commands::tree().try_get_matches_from(["epicepoch", "serve"]).expect("valid");
        let matches = matches.subcommand_matches("serve").expect("serve");
        let error = Given::gather(matches, &environment, |_| true).expect_err("not text");
        assert!(error.to_string().contains("DATA_DIR"), "{error}");
    }
}
