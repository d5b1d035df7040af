//! The sources of settings. A flag has priority over an environment variable, which has priority
//! over the file, which has priority over the default. The caller passes in the command line and
//! the environment; this module does not read them itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use epicepoch_wire::NodeId;
use thiserror::Error;

use crate::config::Config;
use crate::error::ConfigError;
use crate::file::{ConfigFile, ConfigFileError};
use crate::setting::{DefaultValue, Kind, Setting};
use crate::table::{Group, TABLE, named, settings};

/// The environment of the process.
pub type Environment = BTreeMap<OsString, OsString>;

/// The flags that were given, by the names of their settings. The flag of [`CONFIG`] may be among
/// them.
pub type Flags = BTreeMap<&'static str, String>;

/// Returns the value of one environment variable; `None` if it is not set.
///
/// An empty variable counts as set, and no setting accepts the empty value. An empty variable is
/// more often an unfilled template than a request for the default.
///
/// # Errors
/// The value is not UTF-8.
pub fn variable(
    environment: &Environment,
    name: &'static str,
) -> Result<Option<String>, SettingError> {
    let Some(value) = environment.get(&OsString::from(name)) else { return Ok(None) };
    match value.to_str() {
        Some(text) => Ok(Some(text.to_owned())),
        None => Err(SettingError::NotUnicode { name, value: value.clone() }),
    }
}

/// Which settings a command accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All settings of one node, including the file.
    Node,
    /// The settings that the nodes of a cluster have in common, for `dev`. There is no file of
    /// settings.
    Cluster,
}

/// The settings that were given, as text, with the source of each.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The values of each setting from all sources. The last one counts.
    values: BTreeMap<&'static str, Vec<(String, Source)>>,
    /// The file of settings.
    file: Option<PathBuf>,
}

/// A setting as it takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// Its name.
    pub name: &'static str,
    /// Its value as text; `None` if there is none.
    pub value: Option<String>,
    /// Where the value comes from; `None` for a default.
    pub from: Option<Source>,
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A flag, without the dashes in front.
    Flag(String),
    /// An environment variable.
    Variable(&'static str),
    /// A key of the file.
    File {
        /// The key.
        key: String,
        /// The file.
        path: PathBuf,
    },
}

/// Why settings are refused. The message has the name, the value, its source, and the values
/// allowed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingError {
    /// A value is not allowed. Correct it.
    #[error("{} is {value:?} (from {from}); {}{hint}", .setting.name, .setting.allowed())]
    BadValue {
        /// The setting.
        setting: &'static Setting,
        /// The value, shortened if it is long.
        value: String,
        /// The source of the value.
        from: Source,
        /// More advice, or nothing.
        hint: &'static str,
    },
    /// A variable is not UTF-8. Correct it.
    #[error("{name} is {value:?} (from the environment variable {name}); allowed is UTF-8")]
    NotUnicode {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: OsString,
    },
    /// A required setting is missing. Set it.
    #[error(
        "{name} is required: set the flag --{flag}, the environment variable {name} or the key \
         {key} of the file; {allowed}",
        name = .0.name, flag = .0.flag(), key = .0.key(), allowed = .0.allowed(),
    )]
    Missing(&'static Setting),
    /// Some settings contradict each other. Correct them.
    #[error("{error}{sources}")]
    Refused {
        /// Why the configuration is refused.
        error: ConfigError,
        /// The source of each setting in the error.
        sources: String,
    },
    /// The file of settings is bad. Correct it.
    #[error(transparent)]
    File(#[from] ConfigFileError),
}

impl SettingError {
    /// The settings that the error is about; none for a file.
    pub fn settings(&self) -> Vec<&'static str> {
        match self {
            Self::BadValue { setting, .. } | Self::Missing(setting) => vec![setting.name],
            Self::NotUnicode { name, .. } => vec![name],
            Self::Refused { error, .. } => error.settings(),
            Self::File(_) => Vec::new(),
        }
    }
}

impl Scope {
    /// The groups of settings that the command accepts.
    pub fn groups(self) -> impl Iterator<Item = &'static Group> {
        TABLE.iter().filter(move |group| self == Self::Node || !group.is_per_node)
    }

    /// The settings that the command accepts.
    pub fn settings(self) -> impl Iterator<Item = &'static Setting> {
        self.groups().flat_map(|group| group.settings)
    }
}

impl Given {
    /// Gathers the settings of `scope` from the flags and the environment. For a node, also from
    /// the file that one of them names.
    ///
    /// # Errors
    /// The file or a variable cannot be read.
    pub fn gather(
        scope: Scope,
        flags: &Flags,
        environment: &Environment,
    ) -> Result<Self, SettingError> {
        let (given, errors) = Self::gather_all(scope, flags, environment);
        errors.into_iter().next().map_or(Ok(given), Err)
    }

    /// Gathers the settings as [`Given::gather`] does. Returns what can be read, and every error.
    pub fn gather_all(
        scope: Scope,
        flags: &Flags,
        environment: &Environment,
    ) -> (Self, Vec<SettingError>) {
        let (mut given, mut errors) = (Self::default(), Vec::new());
        let mut read = |name| {
            let read = variable(environment, name);
            read.unwrap_or_else(|error| {
                errors.push(error);
                None
            })
        };
        if scope == Scope::Node {
            let path = flags.get(CONFIG).cloned().or_else(|| read(CONFIG));
            given.file = path.map(PathBuf::from);
        }
        let variables: Vec<_> =
            scope.settings().map(|setting| (setting, read(setting.name))).collect();
        if let Some(path) = given.file.clone() {
            let (file, refused) = ConfigFile::read_all(&path);
            given.add_file(&path, file);
            errors.splice(0..0, refused.into_iter().map(SettingError::from));
        }
        for (setting, text) in variables {
            if let Some(text) = text {
                given.add(setting, text, Source::Variable(setting.name));
            }
            if let Some(text) = flags.get(setting.name) {
                given.add(setting, text.clone(), Source::Flag(setting.flag()));
            }
        }
        (given, errors)
    }

    /// Adds the settings of a file.
    pub fn add_file(&mut self, path: &Path, file: ConfigFile) {
        for (setting, text) in file.values {
            let source = Source::File { key: setting.key(), path: path.to_owned() };
            self.add(setting, text, source);
        }
    }

    fn add(&mut self, setting: &Setting, text: String, source: Source) {
        self.values.entry(setting.name).or_default().push((text, source));
    }

    fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// Returns the checked configuration of one node, on a machine with `cores` cores.
    ///
    /// # Errors
    /// A setting is missing, not allowed, or contradicts another.
    pub fn node(&self, cores: usize) -> Result<Config, SettingError> {
        let (config, errors) = self.node_all(cores);
        errors.into_iter().next().map_or(Ok(config), Err)
    }

    /// Makes the configuration as [`Given::node`] does. Returns every error, and the configuration
    /// without the values in error. A contradiction with such a value is not reported.
    pub fn node_all(&self, cores: usize) -> (Config, Vec<SettingError>) {
        // First each value is checked by itself, because a bad value should be reported before a
        // missing one.
        let mut first = Config::new(NodeId(0), "");
        let mut errors = self.apply(&mut first);
        for name in ["NODE_ID", "RAFT_ADDR"] {
            let missing = named(name).filter(|_| !self.has(name));
            errors.extend(missing.map(SettingError::Missing));
        }
        // Then all values are applied again, over the defaults that follow from the node's id and
        // address.
        let mut config = Config::new(first.node_id, first.raft_addr);
        self.apply(&mut config);
        config.derive(cores, |name| self.has(name));
        if config.single && config.peers.is_empty() {
            config = config.into_single();
        }
        let known: Vec<_> = errors.iter().flat_map(SettingError::settings).collect();
        let violations = config.violations().into_iter();
        // Without RAFT_ADDR the addresses that follow from it are wrong, too.
        let follows =
            |name: &str| ["ADVERTISE_ADDR", "RAFT_BIND"].contains(&name) && !self.has(name);
        let is_known =
            |name: &&str| known.contains(name) || (follows(name) && known.contains(&"RAFT_ADDR"));
        let new = violations.filter(|it| !it.settings().iter().any(is_known));
        errors.extend(new.map(|error| self.refused(error)));
        (config, errors)
    }

    /// Returns every setting of a node as it takes effect in `config`, which was made from these.
    pub fn effective(&self, config: &Config) -> Vec<Effective> {
        let effective = |setting: &'static Setting| {
            let name = setting.name;
            let given = self.values.get(name).and_then(|values| values.last());
            let value = match (&setting.kind, given, setting.default) {
                (_, None, DefaultValue::Words(REQUIRED)) => None,
                (Kind::Number { get, .. }, ..) => Some(get(config).to_string()),
                (_, Some((text, _)), _) => Some(text.clone()),
                (_, None, DefaultValue::Is(text)) => Some(text.to_owned()),
                (_, None, DefaultValue::Words(_)) => config.derived(name),
            };
            Effective { name, value, from: given.map(|(_, source)| source.clone()) }
        };
        settings().map(effective).collect()
    }

    /// The file of settings, if one was named.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Puts every given setting into `config`, then fills in the defaults that follow from other
    /// settings.
    ///
    /// # Errors
    /// A value is not allowed.
    pub fn complete(&self, config: &mut Config, cores: usize) -> Result<(), SettingError> {
        if let Some(error) = self.apply(config).into_iter().next() {
            return Err(error);
        }
        config.derive(cores, |name| self.has(name));
        Ok(())
    }

    /// Checks a configuration that was made from these settings.
    ///
    /// # Errors
    /// [`Config::check`] refuses it. The error names the source of each setting concerned.
    pub fn check(&self, config: &Config) -> Result<(), SettingError> {
        config.check().map_err(|error| self.refused(error))
    }

    fn refused(&self, error: ConfigError) -> SettingError {
        let source = |name: &&str| {
            let (_, source) = self.values.get(name)?.last()?;
            Some(format!("{name} from {source}"))
        };
        let sources: Vec<_> = error.settings().iter().filter_map(source).collect();
        let sources =
            if sources.is_empty() { String::new() } else { format!(" ({})", sources.join(", ")) };
        SettingError::Refused { error, sources }
    }

    /// Writes every given value to `config`, except those in error. Checks values that another
    /// source overrides, too. Otherwise a mistake in such a value would show only when the other
    /// source is removed.
    fn apply(&self, config: &mut Config) -> Vec<SettingError> {
        config.given = self.values.keys().copied().collect();
        let mut errors = Vec::new();
        for setting in settings() {
            let Some((last, overridden)) =
                self.values.get(setting.name).and_then(|values| values.split_last())
            else {
                continue;
            };
            for value in overridden {
                errors.extend(apply_one(setting, value, &mut config.clone()).err());
            }
            errors.extend(apply_one(setting, last, config).err());
        }
        errors
    }
}

impl fmt::Display for Source {
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
    (text, from): &(String, Source),
    config: &mut Config,
) -> Result<(), SettingError> {
    setting.apply(config, text).ok_or_else(|| SettingError::BadValue {
        setting,
        value: text.chars().take(VALUE_SHOWN_MAX).collect(),
        from: from.clone(),
        hint: if text.is_empty() { "; unset it to use the default" } else { "" },
    })
}

/// How the table describes a setting that has no default.
const REQUIRED: &str = "required";
/// The environment variable that names the file of settings. The flag is `--config`.
pub const CONFIG: &str = "CONFIG";
/// An error repeats at most this many characters of a bad value.
const VALUE_SHOWN_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;

    const CORES: usize = 8;
    const NEEDED: [&str; 2] = ["NODE_ID=1", "RAFT_ADDR=localhost:60001"];

    /// Flags are written `--name=value`, and variables `NAME=value`.
    fn load(flags: &[&str], variables: &[&str]) -> Result<Config, String> {
        let flag = |text: &&str| {
            let (flag, value) = text.strip_prefix("--")?.split_once('=')?;
            let name = [CONFIG].into_iter().chain(settings().map(|setting| setting.name));
            let of = |name: &&str| name.to_ascii_lowercase().replace('_', "-") == flag;
            Some((name.into_iter().find(of)?, value.to_owned()))
        };
        let flags: Flags = flags.iter().map(|text| flag(text).expect(text)).collect();
        let variable = |text: &&str| text.split_once('=').map(|(k, v)| (k.into(), v.into()));
        let environment: Environment = variables.iter().filter_map(variable).collect();
        let given = Given::gather(Scope::Node, &flags, &environment).map_err(|e| e.to_string())?;
        given.node(CORES).map_err(|e| e.to_string())
    }

    fn load_single(flags: &[&str], variables: &[&str]) -> Result<Config, String> {
        let variables: Vec<_> =
            NEEDED.iter().chain(&["SINGLE=1"]).chain(variables).copied().collect();
        load(flags, &variables)
    }

    /// Loads a configuration with this setting and the other settings that it needs.
    fn load_beside(
        setting: &Setting,
        flags: &[&str],
        variables: &[&str],
    ) -> Result<Config, String> {
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
        let got = load_single(&["--http-port=3333"], &[&config, "HTTP_PORT=2222", "MAX_N=22"]);
        let got = got.expect("valid");
        assert_eq!((got.http_port, got.max_n), (3333, 22));
        assert_eq!(got.cluster_name, "file");
        assert_eq!(got.epoch_interval, Duration::from_millis(100));
        let got = load_single(&[&format!("--config={path}")], &["CONFIG=/nonexistent"])
            .expect("the flag wins");
        assert_eq!(got.http_port, 1111);
    }

    #[test]
    fn every_problem_is_found_at_once_and_the_first_is_that_of_serve() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "htp_port = 1\nmax_n = [1]\nheartbeat_ms = 150").expect("written");
        let path = file.path().to_str().expect("plain path").to_owned();
        let flags = Flags::from([(CONFIG, path)]);
        let variables = [
            ("NODE_ID", "0"),
            ("BOOTSTRAP", "yes"),
            ("PEERS", "1=a:1,2=a:1"),
            ("CLUSTER", "a b"),
            ("OPS_ADDR", "0.0.0.0:9"),
        ];
        let environment: Environment =
            variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let (given, mut errors) = Given::gather_all(Scope::Node, &flags, &environment);
        let refused = Given::gather(Scope::Node, &flags, &environment).expect_err("serve refuses");
        assert_eq!(refused.to_string(), errors[0].to_string());
        let (_, others) = given.node_all(CORES);
        let refused = given.node(CORES).expect_err("serve refuses");
        assert_eq!(refused.to_string(), others[0].to_string());
        errors.extend(others);
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        for part in [
            "unknown key \"htp_port\"",
            "max_n in",
            "NODE_ID is \"0\"",
            "BOOTSTRAP is \"yes\"",
            "RAFT_ADDR is required",
            "PEERS has a:1 for node 1 and for node 2",
            "HEARTBEAT_MS",
            "CLUSTER",
            "OPS_ADDR",
        ] {
            let count = texts.iter().filter(|text| text.contains(part)).count();
            assert_eq!(count, 1, "{part} in {texts:#?}");
        }
    }

    #[test]
    fn the_effective_value_of_each_setting_means_what_the_configuration_holds() {
        let variables = ["NODE_ID=3", "RAFT_ADDR=n3:60001", "PEERS=3=n3:60001", "PEER_PLAIN=1"];
        let environment: Environment = variables
            .iter()
            .filter_map(|text| text.split_once('='))
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let given = Given::gather(Scope::Node, &Flags::new(), &environment).expect("settings");
        let config = given.node(CORES).expect("valid");
        let effective = given.effective(&config);
        assert_eq!(effective.len(), settings().count());
        // Every value is given explicitly. The configuration is the same.
        let all: Environment = effective
            .iter()
            .filter_map(|it| Some((it.name.into(), it.value.clone()?.into())))
            .collect();
        let again = Given::gather(Scope::Node, &Flags::new(), &all).expect("settings");
        let mut again = again.node(CORES).expect("valid");
        assert_eq!(again.links.tls.take(), Some(config.links.mode()));
        assert!(again.given.contains("MAX_N") && !config.given.contains("MAX_N"));
        again.given.clone_from(&config.given);
        assert_eq!(again, config);
        let of = |name| effective.iter().find(|it| it.name == name).expect("a setting");
        assert_eq!(of("ADVERTISE_ADDR").value.as_deref(), Some("n3:8080"));
        assert_eq!(of("NODE_ID").from, Some(Source::Variable("NODE_ID")));
        assert_eq!((of("MAX_N").from.clone(), of("RESTORE").value.clone()), (None, None));
    }

    #[test]
    fn a_bad_value_is_refused_even_where_another_source_overrides_it() {
        let error = load_single(&["--bootstrap=1"], &["BOOTSTRAP=yes"]).expect_err("yes");
        assert!(error.contains("BOOTSTRAP is \"yes\" (from the environment variable"), "{error}");
        // An overridden value has no effect.
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "raft_bind = '127.0.0.1:7'").expect("written");
        let path = file.path().to_str().expect("plain path");
        let got =
            load_single(&[&format!("--config={path}")], &["RAFT_BIND=127.0.0.2"]).expect("valid");
        assert_eq!(got.raft_bind.to_string(), "127.0.0.2:60001");
    }

    #[test]
    fn defaults_follow_from_what_is_given() {
        let got = load_single(&["--http-port=0"], &["ELECTION_TIMEOUT_MS=1000"]).expect("valid");
        assert_eq!(got.advertise_addr, "localhost:0");
        assert_eq!(got.heartbeat, Duration::from_millis(200));
        assert_eq!(got.reservation, Duration::from_secs(5));
        assert_eq!(got.workers, CORES / 2);
        assert_eq!(got.data_dir, PathBuf::from("_raft/node-1"));
        assert_eq!(got.peers.len(), 1);
        let got = load_single(&[], &["RAFT_BIND=127.0.0.1"]).expect("valid");
        assert_eq!(got.raft_bind.to_string(), "127.0.0.1:60001");
    }

    #[test]
    fn every_setting_is_a_flag_a_variable_and_a_key() {
        for setting in settings() {
            let good = match (&setting.kind, setting.name) {
                (_, "NODE_ID") => "1",
                (_, "RESERVATION_MS") => "1000",
                (_, "PEERS") => "1=localhost:60001",
                (_, "RAFT_ADDR") => "localhost:60001",
                (_, "RAFT_BIND" | "HTTP_BIND") => "127.0.0.1",
                (_, "ADVERTISE_ADDR") => "localhost:1",
                (_, "WORKER_CPUS") => "0,3",
                (_, "JOIN") => "localhost:60002,localhost:60003",
                (_, "ADMIN_FROM" | "OPS_PLAIN_FROM") => "10.0.0.0/8",
                (_, "RESTORE_FLOOR") => "1700000000000ms",
                (_, "OPS_ADDR") => "127.0.0.1:9090",
                (_, "GUARANTEE_DEFAULT") => "lease",
                (_, "LEASE_CLOCK") => "never",
                (_, "INTERVAL_SOURCE") => "fixed=1ms",
                (_, "TIMESTAMP_FORMAT") => "compact",
                (Kind::Switch(_), _) | (_, "CLIENT_TLS") => "on",
                (_, "PEER_TLS") => "off",
                (Kind::Number { range, .. }, _) => match setting.default {
                    DefaultValue::Is(text) => text,
                    DefaultValue::Words(_) => &range.start().to_string(),
                },
                (Kind::Text { .. }, _) => "x",
            };
            let flag = format!("--{}={good}", setting.flag());
            load_beside(setting, &[&flag], &[]).expect(setting.name);
            let variable = format!("{}={good}", setting.name);
            load_beside(setting, &[], &[&variable]).expect(setting.name);
            let mut file = tempfile::NamedTempFile::new().expect("a file");
            writeln!(file, "{} = '{good}'", setting.key()).expect("written");
            let path = file.path().to_str().expect("plain path");
            load_beside(setting, &[&format!("--config={path}")], &[]).expect(setting.name);
        }
    }

    #[test]
    fn a_bad_value_is_refused_with_name_value_source_and_range() {
        for setting in settings() {
            let bad: &[&str] = match (&setting.kind, setting.name) {
                (Kind::Number { .. }, _) => {
                    &["", "x", "-1", "+1", "1.5", " 1", "1e30", "99999999999999999999"]
                }
                (Kind::Switch(_), _) => &["", "yes", "2", "TRUE"],
                (_, "CLUSTER") => &["", "a b", "ä"],
                (_, "ZONE") => &["", "a b", "a,b", "ä"],
                (_, "LEADER_ZONES") => &["", "a,", "a,a", "a b", "ä"],
                (_, name) if matches!(name, "DATA_DIR" | "RESTORE") || name.ends_with("_FILE") => {
                    &[""]
                }
                (
                    _,
                    "CLIENT_TLS" | "PEER_TLS" | "GUARANTEE_DEFAULT" | "LEASE_CLOCK"
                    | "INTERVAL_SOURCE",
                ) => &["", "yes", "1", "ON"],
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
                let source = format!("the environment variable {}", setting.name);
                for part in [shown.as_str(), source.as_str(), "allowed"] {
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
        let got = load(&[&format!("--config={path}")], &[]).expect("valid");
        assert_eq!((got.node_id, got.peers.len(), got.bootstrap), (NodeId(1), 3, false));
        let text = std::fs::read_to_string(path).expect("readable");
        let first_start = tempfile::NamedTempFile::new().expect("a file");
        let uncommented = text.replace("\n# bootstrap = true\n", "\nbootstrap = true\n");
        std::fs::write(first_start.path(), uncommented).expect("writable");
        let path = first_start.path().to_str().expect("text");
        assert!(load(&[&format!("--config={path}")], &[]).expect("valid").bootstrap);
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        for setting in settings() {
            let Kind::Number { range, .. } = &setting.kind else { continue };
            let outside = [range.start().checked_sub(1), range.end().checked_add(1)];
            for value in outside.into_iter().flatten() {
                let variable = format!("{}={value}", setting.name);
                let error = load_single(&[], &[&variable]).expect_err(&variable);
                assert!(error.contains(&setting.allowed()), "{error}");
            }
        }
    }

    #[test]
    fn a_missing_setting_is_named_as_flag_variable_and_key() {
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
    fn contradicting_settings_are_named_with_their_sources() {
        let error = load_single(&["--heartbeat-ms=190"], &["ELECTION_TIMEOUT_MS=300"]);
        let error = error.expect_err("too slow");
        for part in
            ["from the flag --heartbeat-ms", "from the environment variable ELECTION_TIMEOUT_MS"]
        {
            assert!(error.contains(part), "{error}");
        }
        let error = load_single(&["--workers=3"], &["WORKER_CPUS=0,1"]).expect_err("two for three");
        assert!(error.contains("WORKER_CPUS has 2 processors and WORKERS is 3"), "{error}");
        assert_eq!(load_single(&[], &["WORKER_CPUS=0, 5"]).expect("two").workers, 2);
        let peers = "PEERS=2=a:1,3=b:1";
        let error = load(&[], &[NEEDED[0], NEEDED[1], peers]).expect_err("not this node");
        assert!(error.contains("PEERS has the node ids 2, 3, but NODE_ID is 1"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_not_utf8_is_refused_by_name() {
        use std::os::unix::ffi::OsStringExt;
        let environment =
            Environment::from([(OsString::from("DATA_DIR"), OsString::from_vec(vec![0xff]))]);
        let error = Given::gather(Scope::Node, &Flags::new(), &environment).expect_err("not text");
        assert!(error.to_string().contains("DATA_DIR"), "{error}");
    }
}
