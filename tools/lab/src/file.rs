//! The TOML file of a topology. Whatever is wrong with it is refused by name, with what is allowed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::Deserialize;
use thiserror::Error;
use toml::Value;

use crate::topology::{Clients, Measure, Mode, NODES_MAX, REGIONS_MAX, Topology, Transport};

/// Why a file is refused. Each variant names the place in the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is longer than [`FILE_LEN_MAX`].
    #[error("it is longer than allowed: {FILE_LEN_MAX} bytes")]
    TooLong,
    /// It is not TOML, or has a key that no topology has, or a value of another type.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A value is out of range, or does not fit to another one.
    #[error("{0}")]
    Value(String),
}

/// A topology file has at most this many bytes.
pub const FILE_LEN_MAX: u64 = 64 << 10;
/// The longest delay of one direction, ms. No election settings suit round trips above a second.
const ONE_WAY_MS_MAX: f64 = 500.0;
/// The longest jitter of one direction, ms.
const JITTER_MS_MAX: f64 = 100.0;
/// At most this many callers of a region.
const CALLERS_MAX: u32 = 64;
/// At most this many numbers of callers.
const CALLERS_LEN_MAX: usize = 4;
/// At most this many timestamps of a transaction.
const PER_TRANSACTION_MAX: u32 = 100;
/// The greatest weight of a region.
const WEIGHT_MAX: f64 = 1e6;
/// Longest name of a topology or a region.
const NAME_LEN_MAX: usize = 32;
/// Longest sentence about a topology.
const ABOUT_LEN_MAX: usize = 200;
/// Settings that the lab gives to its nodes, and those with which it cannot work. A file may not have
/// them.
const OWN: [&str; 33] = [
    "NODE_ID",
    "RAFT_ADDR",
    "RAFT_BIND",
    "PEERS",
    "BOOTSTRAP",
    "SINGLE",
    "JOIN",
    "CLUSTER",
    "DATA_DIR",
    "HTTP_BIND",
    "HTTP_PORT",
    "ADVERTISE_ADDR",
    "OPS_ADDR",
    "CLIENT_TLS",
    "PEER_TLS",
    "LEADER_ZONES",
    "ZONE",
    // The lab and its clients speak plain HTTP/1.1, or the native protocol, and show no token.
    "ADMIN_FROM",
    "OPS_PLAIN_FROM",
    "PEER_PLAIN",
    "CLIENT_TOKEN_FILE",
    "OPS_TOKEN_FILE",
    "HTTP3",
    "CERT_FILE",
    "KEY_FILE",
    "CLIENT_CA_FILE",
    "PEER_CA_FILE",
    "PEER_CERT_FILE",
    "PEER_KEY_FILE",
    // Given by measure.modes.
    "FORWARD",
    // Nodes begin without data.
    "RESTORE",
    "RESTORE_FLOOR",
    "RESTORE_LEASE_MS",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    #[serde(default)]
    about: String,
    regions: RawRegions,
    nodes: BTreeMap<String, String>,
    #[serde(default)]
    clients: BTreeMap<String, RawClients>,
    #[serde(default)]
    measure: RawMeasure,
    #[serde(default)]
    settings: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRegions {
    names: Vec<String>,
    rtt_ms: Option<Vec<Vec<f64>>>,
    one_way_ms: Option<Vec<Vec<f64>>>,
    #[serde(default)]
    jitter_ms: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClients {
    #[serde(default = "one")]
    weight: f64,
    #[serde(default = "single")]
    per_transaction: u32,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMeasure {
    callers: Option<Vec<u32>>,
    transport: Option<String>,
    modes: Option<Vec<String>>,
    leader: Option<String>,
}

fn one() -> f64 {
    Clients::default().weight
}

fn single() -> u32 {
    Clients::default().per_transaction
}

/// Reads the file at `path`.
///
/// # Errors
/// The file cannot be read, or is refused by [`parse`].
pub fn read(path: &Path) -> Result<Topology, FileError> {
    let mut text = String::new();
    File::open(path)?.take(FILE_LEN_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(FileError::TooLong);
    }
    parse(&text)
}

/// Parses and checks a topology.
///
/// # Errors
/// The first thing that is wrong, by name.
pub fn parse(text: &str) -> Result<Topology, FileError> {
    let raw: Raw = toml::from_str(text)?;
    check_name("name", &raw.name)?;
    ensure(raw.about.len() <= ABOUT_LEN_MAX, || {
        format!("about has {} bytes; allowed are {ABOUT_LEN_MAX}", raw.about.len())
    })?;
    let regions = regions(&raw.regions.names)?;
    let one_way_ms = delays(&raw.regions, &regions)?;
    let jitter_ms = raw.regions.jitter_ms;
    ensure((0.0..=JITTER_MS_MAX).contains(&jitter_ms), || {
        format!("regions.jitter_ms is {jitter_ms}; allowed are 0 to {JITTER_MS_MAX}")
    })?;
    let find = |place: &str, name: &str| {
        let known = || regions.join(", ");
        let found = regions.iter().position(|it| it == name);
        found.ok_or_else(|| {
            wrong(format!("{place}: no region is named {name}; there are {}", known()))
        })
    };
    Ok(Topology {
        nodes: nodes(&raw.nodes, find)?,
        clients: clients(&raw.clients, regions.len(), find)?,
        measure: measure(&raw, find)?,
        settings: settings(&raw.settings)?,
        name: raw.name,
        about: raw.about,
        one_way_ms,
        jitter_ms,
        regions,
    })
}

fn wrong(text: String) -> FileError {
    FileError::Value(text)
}

fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<(), FileError> {
    if holds { Ok(()) } else { Err(wrong(text())) }
}

fn check_name(place: &str, name: &str) -> Result<(), FileError> {
    let is_letter = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-';
    let is_sound = (1..=NAME_LEN_MAX).contains(&name.len()) && name.chars().all(is_letter);
    ensure(is_sound, || {
        format!(
            "{place} is {name:?}; allowed are 1 to {NAME_LEN_MAX} lower-case letters, digits and hyphens"
        )
    })
}

fn regions(names: &[String]) -> Result<Vec<String>, FileError> {
    ensure((1..=REGIONS_MAX).contains(&names.len()), || {
        format!("regions.names has {} names; allowed are 1 to {REGIONS_MAX}", names.len())
    })?;
    for (at, name) in names.iter().enumerate() {
        check_name("a name in regions.names", name)?;
        ensure(!names[..at].contains(name), || format!("regions.names has {name} twice"))?;
    }
    Ok(names.to_vec())
}

/// Returns the delay of each direction.
fn delays(raw: &RawRegions, regions: &[String]) -> Result<Vec<Vec<f64>>, FileError> {
    let (key, matrix, longest) = match (&raw.rtt_ms, &raw.one_way_ms) {
        (Some(matrix), None) => ("rtt_ms", matrix, 2.0 * ONE_WAY_MS_MAX),
        (None, Some(matrix)) => ("one_way_ms", matrix, ONE_WAY_MS_MAX),
        (Some(_), Some(_)) => {
            return Err(wrong("regions has both rtt_ms and one_way_ms; give one of them".into()));
        }
        (None, None) => {
            return Err(wrong(
                "regions has no delays; give rtt_ms (round trips) or one_way_ms (from row to column)"
                    .into(),
            ));
        }
    };
    let count = regions.len();
    let is_square = matrix.len() == count && matrix.iter().all(|row| row.len() == count);
    ensure(is_square, || {
        format!(
            "regions.{key} is not a square of {count} rows with {count} numbers, one per region"
        )
    })?;
    for (from, row) in matrix.iter().enumerate() {
        for (to, ms) in row.iter().enumerate() {
            let link = || format!("regions.{key} from {} to {}", regions[from], regions[to]);
            ensure((0.0..=longest).contains(ms), || {
                format!("{} is {ms}; allowed are 0 to {longest} ms", link())
            })?;
            let back = matrix[to][from];
            ensure(key == "one_way_ms" || ms.total_cmp(&back).is_eq(), || {
                format!(
                    "{} is {ms}, but back it is {back}: a round trip is the same from both ends; for \
                     two directions that differ give one_way_ms",
                    link()
                )
            })?;
        }
    }
    let half = if key == "rtt_ms" { 0.5 } else { 1.0 };
    Ok(matrix.iter().map(|row| row.iter().map(|ms| ms * half).collect()).collect())
}

fn nodes(
    raw: &BTreeMap<String, String>,
    find: impl Fn(&str, &str) -> Result<usize, FileError>,
) -> Result<BTreeMap<u64, usize>, FileError> {
    let mut nodes = BTreeMap::new();
    for (id, region) in raw {
        let number = id.parse().ok().filter(|number| (1..=NODE_ID_MAX).contains(number));
        let number: u64 = number.ok_or_else(|| {
            wrong(format!("nodes: {id} is no node id; allowed are 1 to {NODE_ID_MAX}"))
        })?;
        let region = find(&format!("nodes.{id}"), region)?;
        ensure(nodes.insert(number, region).is_none(), || format!("nodes has {number} twice"))?;
    }
    ensure((2..=NODES_MAX).contains(&nodes.len()), || {
        format!(
            "nodes has {} voters; allowed are 2 to {NODES_MAX}: with fewer there is no majority to ask",
            nodes.len()
        )
    })?;
    Ok(nodes)
}

fn clients(
    raw: &BTreeMap<String, RawClients>,
    regions: usize,
    find: impl Fn(&str, &str) -> Result<usize, FileError>,
) -> Result<BTreeMap<usize, Clients>, FileError> {
    if raw.is_empty() {
        return Ok((0..regions).map(|region| (region, Clients::default())).collect());
    }
    let mut clients = BTreeMap::new();
    for (name, it) in raw {
        let region = find("clients", name)?;
        ensure(it.weight > 0.0 && it.weight <= WEIGHT_MAX, || {
            format!(
                "clients.{name}.weight is {}; allowed is more than 0, up to {WEIGHT_MAX}",
                it.weight
            )
        })?;
        ensure((1..=PER_TRANSACTION_MAX).contains(&it.per_transaction), || {
            format!(
                "clients.{name}.per_transaction is {}; allowed are 1 to {PER_TRANSACTION_MAX}",
                it.per_transaction
            )
        })?;
        clients.insert(region, Clients { weight: it.weight, per_transaction: it.per_transaction });
    }
    Ok(clients)
}

fn measure(
    raw: &Raw,
    find: impl Fn(&str, &str) -> Result<usize, FileError>,
) -> Result<Measure, FileError> {
    let it = &raw.measure;
    let callers = it.callers.clone().unwrap_or_else(|| vec![1, 16]);
    let is_sound = (1..=CALLERS_LEN_MAX).contains(&callers.len())
        && callers.iter().all(|count| (1..=CALLERS_MAX).contains(count));
    ensure(is_sound, || {
        format!(
            "measure.callers is {callers:?}; allowed are 1 to {CALLERS_LEN_MAX} numbers from 1 to \
             {CALLERS_MAX}"
        )
    })?;
    let transport = match it.transport.as_deref() {
        None | Some("http") => Transport::Http,
        Some("native") => Transport::Native,
        Some(other) => {
            return Err(wrong(format!("measure.transport is {other}; allowed are http, native")));
        }
    };
    let mut modes = Vec::new();
    for name in it.modes.as_deref().unwrap_or(&["quorum".to_owned()]) {
        let allowed = Mode::ALL.map(Mode::name).join(", ");
        let mode = Mode::from_name(name).ok_or_else(|| {
            wrong(format!(
                "measure.modes has {name}, which the lab does not have; allowed are {allowed}"
            ))
        })?;
        ensure(!modes.contains(&mode), || format!("measure.modes names {name} twice"))?;
        modes.push(mode);
    }
    // The way back from interval mode takes long.
    modes.sort_by_key(|mode| *mode == Mode::Interval);
    ensure(!modes.is_empty(), || "measure.modes names no mode; leave it out for quorum".into())?;
    let leader = it.leader.as_deref().map(|name| find("measure.leader", name)).transpose()?;
    if let Some(region) = leader {
        let name = &raw.regions.names[region];
        ensure(raw.nodes.values().any(|it| it == name), || {
            format!("measure.leader is {name}, where no node is; name a region with a node")
        })?;
    }
    Ok(Measure { callers, transport, modes, leader })
}

fn settings(raw: &BTreeMap<String, Value>) -> Result<BTreeMap<String, String>, FileError> {
    let mut given = BTreeMap::new();
    for (name, value) in raw {
        ensure(!OWN.contains(&name.as_str()), || {
            format!("settings.{name} is chosen by the lab; leave it out")
        })?;
        ensure(epicepoch_config::settings().any(|setting| setting.name == *name), || {
            format!("settings.{name} is no setting of a node; epicepoch serve --help lists them")
        })?;
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(is_on) => u8::from(*is_on).to_string(),
            Value::Float(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
                return Err(wrong(format!(
                    "settings.{name} is a {}; allowed are text, whole numbers, true and false",
                    value.type_str()
                )));
            }
        };
        given.insert(name.clone(), text);
    }
    Ok(given)
}

/// The greatest node id.
const NODE_ID_MAX: u64 = 999;

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "a"
[regions]
names = ["eu", "us"]
rtt_ms = [[0.5, 80], [80, 0.5]]
[nodes]
1 = "eu"
2 = "eu"
3 = "us"
[clients]
eu = { weight = 3 }
[measure]
callers = [1]
[settings]
ELECTION_TIMEOUT_MS = 900
"#;

    #[track_caller]
    fn refused(from: &str, to: &str, words: &[&str]) {
        assert!(GOOD.contains(from), "{from}");
        let error = parse(&GOOD.replace(from, to)).expect_err("refused").to_string();
        for word in words {
            assert!(error.contains(word), "{word} in {error}");
        }
    }

    #[test]
    fn a_good_file_is_read() {
        let topology = parse(GOOD).expect("it is good");
        assert_eq!(topology.regions, ["eu", "us"]);
        assert_eq!(topology.voters_in(0), [1, 2]);
        assert_eq!((topology.one_way_ms[0][1], topology.round_trip_ms(1, 0)), (40.0, 80.0));
        assert_eq!(topology.clients[&0], Clients { weight: 3.0, per_transaction: 1 });
        assert_eq!(topology.clients.len(), 1);
        assert_eq!(topology.settings["ELECTION_TIMEOUT_MS"], "900");
        let all = parse(&GOOD.replace("[clients]\neu = { weight = 3 }", "")).expect("good");
        assert_eq!(all.clients.len(), 2, "without the table every region has clients");
    }

    #[test]
    fn each_mistake_is_refused_by_name() {
        refused("name = \"a\"", "name = \"A b\"", &["name is \"A b\"", "lower-case"]);
        refused("name = \"a\"", "name = 1", &["name"]);
        refused("name = \"a\"", "nmae = \"a\"", &["nmae"]);
        refused("[\"eu\", \"us\"]", "[\"eu\", \"eu\"]", &["eu twice"]);
        refused("[\"eu\", \"us\"]", "[]", &["regions.names has 0 names", "1 to 8"]);
        refused("[80, 0.5]", "[90, 0.5]", &["from eu to us is 80", "back it is 90", "one_way_ms"]);
        refused("[80, 0.5]", "[80]", &["rtt_ms", "square of 2"]);
        refused(
            "[[0.5, 80], [80, 0.5]]",
            "[[0, -1], [-1, 0]]",
            &["from eu to us is -1", "0 to 1000"],
        );
        refused("[[0.5, 80], [80, 0.5]]", "[[0, nan], [nan, 0]]", &["NaN"]);
        refused("rtt_ms", "rtts_ms", &["rtts_ms"]);
        refused("rtt_ms = [[0.5, 80], [80, 0.5]]", "", &["no delays"]);
        refused(
            "[nodes]",
            "one_way_ms = [[0, 1], [1, 0]]\n[nodes]",
            &["both rtt_ms and one_way_ms"],
        );
        refused("[nodes]", "jitter_ms = 101\n[nodes]", &["jitter_ms is 101"]);
        refused("3 = \"us\"", "3 = \"uk\"", &["nodes.3", "uk", "eu, us"]);
        refused("3 = \"us\"", "x = \"us\"", &["x is no node id"]);
        refused("3 = \"us\"", "0 = \"us\"", &["0 is no node id"]);
        refused("3 = \"us\"", "03 = \"us\"\n3 = \"us\"", &["3 twice"]);
        refused("2 = \"eu\"\n3 = \"us\"", "", &["nodes has 1 voters", "no majority"]);
        refused("eu = { weight = 3 }", "uk = {}", &["clients", "uk"]);
        refused("weight = 3", "weight = 0", &["clients.eu.weight is 0"]);
        refused("weight = 3", "per_transaction = 0", &["per_transaction is 0"]);
        refused("callers = [1]", "callers = []", &["measure.callers"]);
        refused("callers = [1]", "callers = [0]", &["measure.callers"]);
        refused("callers = [1]", "transport = \"udp\"", &["measure.transport is udp", "native"]);
        for mode in ["forward", "latest"] {
            let modes = format!("modes = [\"quorum\", \"{mode}\"]");
            refused("callers = [1]", &modes, &[mode, "does not have", "quorum"]);
        }
        let all = "modes = [\"interval\", \"forwarded\", \"lease\"]";
        let modes = parse(&GOOD.replace("callers = [1]", all)).expect("a topology").measure.modes;
        assert_eq!(modes, [Mode::Forwarded, Mode::Lease, Mode::Interval], "interval is last");
        refused("callers = [1]", "modes = []", &["measure.modes"]);
        refused("callers = [1]", "modes = [\"lease\", \"lease\"]", &["names lease twice"]);
        refused("callers = [1]", "leader = \"uk\"", &["measure.leader", "uk"]);
        refused("3 = \"us\"\n", "3 = \"eu\"\n[measure]\nleader = \"us\"\n[x]\n", &["measure"]);
        refused("ELECTION_TIMEOUT_MS = 900", "ELECTION = 9", &["settings.ELECTION is no setting"]);
        refused("ELECTION_TIMEOUT_MS = 900", "NODE_ID = 9", &["NODE_ID is chosen by the lab"]);
        refused("= 900", "= 0.5", &["ELECTION_TIMEOUT_MS is a float"]);
    }

    #[test]
    fn settings_of_the_lab_are_settings_of_nodes_and_refused() {
        for name in OWN {
            assert!(epicepoch_config::settings().any(|it| it.name == name), "{name}");
            let setting = format!("{name} = \"nonsense\"");
            let said = format!("settings.{name} is chosen by the lab; leave it out");
            refused("ELECTION_TIMEOUT_MS = 900", &setting, &[&said]);
        }
    }

    #[test]
    fn a_leader_is_in_a_region_with_a_node() {
        let text = GOOD.replace("3 = \"us\"", "3 = \"eu\"");
        let text = text.replace("callers = [1]", "leader = \"us\"");
        let error = parse(&text).expect_err("refused").to_string();
        assert!(error.contains("measure.leader is us, where no node is"), "{error}");
    }

    #[test]
    fn a_file_that_is_missing_or_too_long_is_refused() {
        assert!(matches!(read(Path::new("/nonexistent/x.toml")), Err(FileError::Io(_))));
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("long.toml");
        std::fs::write(&path, "#".repeat(FILE_LEN_MAX as usize + 1)).expect("written");
        assert!(matches!(read(&path), Err(FileError::TooLong)));
    }
}
