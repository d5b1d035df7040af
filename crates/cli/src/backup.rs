//! `epicepoch backup`: writes a small file with everything that a restore needs. It changes nothing
//! in the cluster, and replaces an existing file only with `--force`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use clap::{ArgMatches, Command, value_parser};
use epicepoch_client::dial::{Alpn, Dialer};
use epicepoch_config::Environment;
use epicepoch_server::consensus::restore::{
    RestoreFileError, StoppedError, backup_of_stopped, newest, read_backup,
};
use epicepoch_server::storage::OpenError;
use epicepoch_wire::Epoch;
use epicepoch_wire::backup::Backup;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::http::PATH_ADMIN_BACKUP;
use epicepoch_wire::settings::{CLOCK_OFFSET_MAX_MS, RESERVATION_MS, SettingName};
use serde_json::{Value, json};

use crate::addresses::{self, TokenFor};
use crate::arguments::{
    EVERY_NODE_IS_ASKED, client_arguments, is_json, output as output_argument, switch, text,
};
use crate::expected::Expected;
use crate::failure::Failure;
use crate::moment;
use crate::operator::{self, Order, RequestError};
use crate::output;

pub(crate) fn command() -> Command {
    let of_stopped = |name: &'static str, range: RangeInclusive<u64>, help: &'static str| {
        text(name, "MS", help).value_parser(value_parser!(u64).range(range)).requires("data-dir")
    };
    Command::new("backup")
        .about("Write what a restore needs into a small file, or check such a file")
        .long_about(
            "Write what a restore needs into a small file: the ceiling, the members, the removed ids \
             and the settings of the cluster. The command asks every address and writes the newest answer, with the longest \
             RESERVATION_MS and CLOCK_OFFSET_MAX_MS of all answers. If fewer than a majority of the \
             voters answer, it writes the file, warns that the file may miss the last changes, and \
             exits with 1. A backup holds no timestamps. \
             While clocks are right, an old backup is as good as a new one: a restore begins above \
             everything that can have been given since.",
        )
        .after_help(format!(
            "Examples:\n  epicepoch backup --out epicepoch.backup --addr n1:8080,n2:8080,n3:8080\n  \
             epicepoch backup --check epicepoch.backup\n  \
             epicepoch backup --data-dir /var/lib/epicepoch --reservation-ms 1000 \
             --clock-offset-max-ms 500 --out survivor.backup\n\n\
             The last example reads the directory of a stopped node, for when the majority is lost. \
             The directory may be older than the cluster's last settings, so give the longest that \
             the cluster had. Without them the greatest allowed values count, and after the restore \
             epochs stand still for two and a half minutes. Longer values in the directory win.\n\n\
             {EVERY_NODE_IS_ASKED}\n\n\
             Exit codes: 0 done; 1 fewer than a majority of the voters answer, the file is there \
             already, or is damaged; 2 wrong usage, or --check and --data-dir name no such file.",
        ))
        .arg(
            text("out", "FILE", "File to write; - is standard output")
                .default_value("epicepoch.backup"),
        )
        .arg(switch("force", "Replace the file if it exists"))
        .arg(
            text("check", "FILE", "Check a backup, and show its content")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with_all(["out", "force", "data-dir", "addr"]),
        )
        .arg(
            text("data-dir", "DIR", "Read the directory of a stopped node instead of asking nodes")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("addr"),
        )
        .arg(of_stopped(
            "reservation-ms",
            RESERVATION_MS,
            "The longest RESERVATION_MS of any node of the stopped cluster [default: 60000, the \
             longest allowed]",
        ))
        .arg(of_stopped(
            "clock-offset-max-ms",
            CLOCK_OFFSET_MAX_MS,
            "The longest CLOCK_OFFSET_MAX_MS of any node of the stopped cluster [default: 60000, the \
             longest allowed]",
        ))
        .args(client_arguments())
        .arg(output_argument())
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    if let Some(path) = matches.get_one::<PathBuf>("check") {
        let backup = read_backup(path).map_err(|error| match error {
            RestoreFileError::Unreadable { .. } => Failure::usage(error),
            error => error.into(),
        })?;
        show(matches, &mut output::account(), &backup, &format!("{}: whole", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let out = matches.get_one::<String>("out").map_or("", String::as_str);
    if out != "-" && !directory(Path::new(out)).is_dir() {
        let directory = directory(Path::new(out)).display();
        return Err(Failure::usage(anyhow!("--out is {out:?}, but {directory} is no directory")));
    }
    let (backup, from, is_of_majority) = match matches.get_one::<PathBuf>("data-dir") {
        Some(path) => (of_directory(matches, path)?, path.display().to_string(), true),
        None => of_cluster(matches, environment)?,
    };
    if out == "-" {
        // If the reader of standard output has gone, the backup is lost. So the command fails.
        let written = io::stdout().lock().write_all(backup.text().as_bytes());
        written.context("standard output did not take the backup")?;
        show(matches, &mut io::stderr().lock(), &backup, &format!("from {from}"))?;
    } else {
        let path = Path::new(out);
        place(path, &backup.text(), matches.get_flag("force"))?;
        let said = format!("{}: written, from {from}", path.display());
        show(matches, &mut output::account(), &backup, &said)?;
    }
    Ok(if is_of_majority { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks every node for a backup. Returns the newest one, the address that gave it, and whether a
/// majority of the voters answered. Its settings are replaced by the longest of all answers,
/// because a restore must allow for the longest.
///
/// A node answers from the state that it has applied, also while it is cut off. A majority of the
/// voters has the last changes in its logs. So one node of any such majority has them, and has
/// applied them, unless it lost its leader between the change and the message that the change is
/// committed. The voters are those of the newest answer; if it names none, all members. While
/// voters change, both the old and the new ones count.
fn of_cluster(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<(Backup, String, bool), Failure> {
    let (addrs, deadline) = addresses::given(matches, environment)?;
    let tls = addresses::tls(matches, environment)?;
    let token = addresses::token(matches, environment, TokenFor::Operators)?;
    let dialer = Dialer::new(tls.as_ref(), Alpn::Http1).with_token(token);
    let expected = Expected::of(matches, environment)?;
    let mut found: Option<(Backup, String)> = None;
    let mut voters = Vec::new();
    // An address may be given twice, so nodes are counted, not addresses.
    let mut answered = BTreeSet::new();
    let mut errors = Vec::new();
    let timeout = operator::attempt_timeout(matches)?;
    for addr in addrs {
        // The time for one node is limited, so that a node that hangs leaves time for the others.
        let attempt = deadline.min(Instant::now() + timeout);
        // The backup names its cluster, so it is checked instead of the answer.
        let question = Order::look(PATH_ADMIN_BACKUP).expecting(expected.clone()).checked();
        let answer = question.ask(&dialer, &addr, attempt).map_err(RequestError::into_text);
        let answer = match answer {
            Ok(document) => {
                let backup = taken(&document, &addr)?;
                let node = document["nodeID"].as_u64();
                let named = document["voters"].as_array().into_iter().flatten();
                let named: Vec<_> = named.filter_map(Value::as_u64).collect();
                let checked = expected.as_ref().map_or(Ok(()), |expected| {
                    let id = backup.cluster.to_string();
                    expected.check(&addr, Some(&id), Some(&backup.name))
                });
                checked.map(|()| (backup, node, named)).map_err(|error| error.to_string())
            }
            Err(text) => Err(text),
        };
        let backup = match answer {
            Ok((backup, node, named)) => {
                answered.extend(node);
                let is_newest = found.as_ref().is_none_or(|(known, _)| backup.index > known.index);
                if is_newest || voters.is_empty() {
                    voters = named;
                }
                backup
            }
            Err(text) => {
                let is_named = text.starts_with(&addr);
                errors.push(if is_named { text } else { format!("{addr}: {text}") });
                continue;
            }
        };
        let Some((known, from)) = found.take() else {
            found = Some((backup, addr));
            continue;
        };
        if (known.cluster, known.history) != (backup.cluster, backup.history) {
            return Err(anyhow!(
                "{from} and {addr} belong to different clusters, or to different histories of one: \
                 name the nodes of one in --addr"
            )
            .into());
        }
        let from = if backup.index > known.index { addr } else { from };
        found = Some((newest(known, backup), from));
    }
    let found = found.ok_or_else(|| anyhow!("no node answered: {}", errors.join("; ")));
    let (backup, from) = found?;
    for error in errors {
        // The exit code says whether the backup is complete without this node. So it does not matter
        // if a warning cannot be printed.
        let _unread = writeln!(io::stderr(), "warning: not in this backup: {error}");
    }
    if voters.is_empty() {
        voters = backup.members.iter().map(|it| it.node.0).collect();
    }
    let count = voters.iter().filter(|it| answered.contains(*it)).count();
    let is_of_majority = count > voters.len() / 2;
    if !is_of_majority {
        let _unread = writeln!(
            io::stderr(),
            "warning: this backup may miss the last changes, because only {count} of {} voters \
             answered: name all of them in --addr, and take another one",
            voters.len()
        );
    }
    Ok((backup, from, is_of_majority))
}

fn taken(document: &Value, addr: &str) -> Result<Backup, Failure> {
    let text = document["backup"].as_str();
    let text = text.with_context(|| format!("{addr} gives no backup: it runs another version"))?;
    let backup =
        Backup::parse(text).with_context(|| format!("the answer of {addr} is not a backup"))?;
    Ok(backup)
}

fn of_directory(matches: &ArgMatches, path: &Path) -> Result<Backup, Failure> {
    // The settings of the cluster may have changed after this node stopped. If the operator gives
    // no values, the longest allowed ones are used, because values that are too long are safe.
    let given = |name: &str, most: u64| matches.get_one::<u64>(name).copied().unwrap_or(most);
    let reservation_ms = given("reservation-ms", *RESERVATION_MS.end());
    let clock_offset_max_ms = given("clock-offset-max-ms", *CLOCK_OFFSET_MAX_MS.end());
    let backup = backup_of_stopped(path, reservation_ms, clock_offset_max_ms);
    backup.map_err(|error| match error {
        StoppedError::Open(OpenError::NoData { .. } | OpenError::NotADirectory { .. }) => {
            Failure::usage(error)
        }
        error => error.into(),
    })
}

/// Writes the file completely or not at all. It replaces an existing file only with `--force`.
fn place(path: &Path, text: &str, is_forced: bool) -> Result<(), Failure> {
    place_by(path, text, is_forced, |aside, path| fs::hard_link(aside, path))
}

/// Does what [`place`] does. `link` gives a file a second name, and fails if that name exists. On a
/// file system without links, the file is written in place. Then a power failure can damage it, and
/// `--check` finds the damage.
fn place_by(
    path: &Path,
    text: &str,
    is_forced: bool,
    link: impl Fn(&Path, &Path) -> io::Result<()>,
) -> Result<(), Failure> {
    let refused = || {
        let path = path.display();
        anyhow!("{path} exists already: name another file, or replace it with --force")
    };
    if !is_forced && path.try_exists()? {
        return Err(refused().into());
    }
    let directory = directory(path);
    let aside = aside(path)?;
    let write = || -> io::Result<()> {
        write_new(&aside, text)?;
        if is_forced {
            return fs::rename(&aside, path);
        }
        // Unlike a rename, a link fails if the file was created meanwhile.
        match link(&aside, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => write_new(path, text),
            linked => linked,
        }
    };
    let written = write();
    // After a rename the temporary name is gone already, so an error of the removal is ignored.
    let _gone = fs::remove_file(&aside);
    match written {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(refused().into()),
        Err(error) => {
            Err(anyhow!(error).context(format!("{} is not written", path.display())).into())
        }
        Ok(()) => {
            let synced = File::open(directory).and_then(|directory| directory.sync_all());
            let is_lasting = judge_sync(synced).with_context(|| {
                let (path, directory) = (path.display(), directory.display());
                format!("{path} is written, but a power failure may lose it: {directory} cannot be synced")
            });
            Ok(is_lasting?)
        }
    }
}

/// Returns the directory of a file.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// Writes a new file, and removes it if the write fails.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // The error of the write is reported, not one of the removal.
        let _left = fs::remove_file(path);
    }
    written
}

/// Ignores the error of a file system that cannot sync a directory: such a file system needs no
/// sync.
fn judge_sync(synced: io::Result<()>) -> io::Result<()> {
    let cannot = [io::ErrorKind::InvalidInput, io::ErrorKind::Unsupported];
    synced.or_else(|error| if cannot.contains(&error.kind()) { Ok(()) } else { Err(error) })
}

/// Returns a temporary name in the same directory.
fn aside(path: &Path) -> Result<PathBuf, Failure> {
    let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
    let mut aside = name.to_owned();
    aside.push(format!(".{}.new", std::process::id()));
    Ok(path.with_file_name(aside))
}

fn show(
    matches: &ArgMatches,
    out: &mut impl io::Write,
    backup: &Backup,
    title: &str,
) -> Result<(), Failure> {
    if is_json(matches) {
        writeln!(out, "{}", object(backup))?;
    } else {
        write!(out, "{title}\n{}", lines(backup))?;
    }
    Ok(())
}

fn object(backup: &Backup) -> Value {
    let member = |it: &Member| json!({"nodeID": it.node.0, "addr": it.client_addr, "raftAddr": it.raft_addr});
    json!({
        "clusterName": backup.name,
        "cluster": backup.cluster.to_string(),
        "history": format!("{:016x}", backup.history.0),
        "logIndex": backup.index.0,
        "ceiling": backup.ceiling.0.to_string(),
        "ceilingTime": moment::time(backup.ceiling),
        "takenTime": moment::time(Epoch(backup.taken_ns)),
        "reservationMs": backup.reservation_ms,
        "clockOffsetMaxMs": backup.clock_offset_max_ms,
        "leaseLongestMs": backup.lease_longest_ms,
        "settings": settings(backup).map(Iterator::collect::<BTreeMap<_, _>>),
        "members": backup.members.iter().map(member).collect::<Vec<_>>(),
        "removed": backup.removed.iter().map(|node| node.0).collect::<Vec<_>>(),
    })
}

/// Returns the settings of the cluster, by name; `None` if the backup has none.
fn settings(backup: &Backup) -> Option<impl Iterator<Item = (&'static str, String)> + '_> {
    let settings = backup.settings.as_ref()?;
    Some(SettingName::ALL.into_iter().map(|name| (name.text(), settings.text(name))))
}

fn lines(backup: &Backup) -> String {
    let members =
        backup.members.iter().map(|member| format!("{}={}", member.node, member.raft_addr));
    let removed: Vec<_> = backup.removed.iter().map(ToString::to_string).collect();
    let listed =
        |list: Vec<String>| if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    format!(
        "cluster  {} ({})\nhistory  {:016x}\nindex    {}\nceiling  {}\ntaken    {}\nwindow   {} ms, \
         clocks within {} ms\nsettings {}\nmembers  {}\nremoved  {}\n",
        backup.name,
        backup.cluster,
        backup.history.0,
        backup.index,
        moment::time(backup.ceiling),
        moment::time(Epoch(backup.taken_ns)),
        backup.reservation_ms,
        backup.clock_offset_max_ms,
        listed(settings(backup).into_iter().flatten().map(|(k, v)| format!("{k}={v}")).collect()),
        listed(members.collect()),
        listed(removed),
    )
}

/// Returns a document with every field.
#[cfg(test)]
pub(crate) fn example() -> Value {
    object(&sample())
}

/// Returns a backup with every field.
#[cfg(test)]
pub(crate) fn sample() -> Backup {
    let member = Member {
        node: epicepoch_wire::NodeId(6),
        store: epicepoch_wire::StoreId(1),
        raft_addr: "n6:60001".into(),
        client_addr: "n6:8080".into(),
    };
    Backup { members: vec![member], ..tests::backup() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{commands, scripted};

    #[test]
    fn a_backup_from_fewer_than_a_majority_of_the_voters_is_written_and_exits_with_1() {
        let member = |id| Member { node: epicepoch_wire::NodeId(id), ..sample().members.remove(0) };
        let text = Backup { members: [1, 2, 3, 4, 5].map(member).into(), ..sample() }.text();
        let node = |id: u64, voters: &[u64]| {
            let document = json!({"nodeID": id, "voters": voters, "backup": text});
            scripted::start(move |_| Ok(document.clone()))
        };
        let voters = [1, 2, 3];
        let (first, second, learner) = (node(1, &voters), node(2, &voters), node(4, &voters));
        // Nodes of an older version name no voters.
        let [old, other_old, stranger] = [1, 2, 9].map(|id| node(id, &[]));
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.backup");
        let out = path.to_str().expect("plain path");
        for (addrs, expected) in [
            (vec![&first], ExitCode::FAILURE),
            (vec![&first, &first], ExitCode::FAILURE),
            (vec![&first, &learner], ExitCode::FAILURE),
            (vec![&first, &second], ExitCode::SUCCESS),
            (vec![&old, &other_old, &stranger], ExitCode::FAILURE),
            (vec![&old, &other_old, &learner], ExitCode::SUCCESS),
        ] {
            let addrs = addrs.into_iter().map(String::as_str).collect::<Vec<_>>().join(",");
            let words = ["epicepoch", "backup", "--out", out, "--addr", &addrs];
            let matches = commands::tree().try_get_matches_from(words).expect("right usage");
            let code = crate::run(&matches, &Environment::new()).expect("written");
            // An exit code cannot be compared in another way.
            assert_eq!(format!("{code:?}"), format!("{expected:?}"), "{addrs}");
            assert_eq!(fs::read_to_string(&path).expect("the file"), text);
            fs::remove_file(&path).expect("the file");
        }
    }

    #[test]
    fn a_file_is_written_completely_and_replaced_only_by_force() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.backup");
        place(&path, "one", false).expect("written");
        let error = place(&path, "two", false).expect_err("there already").error;
        assert!(error.to_string().contains("--force"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("read"), "one");
        place(&path, "two", true).expect("replaced");
        assert_eq!(fs::read_to_string(&path).expect("read"), "two");
        // The directory "none" does not exist, so this call fails. It leaves no temporary file
        // behind.
        place(&dir.path().join("none").join("b"), "x", false).expect_err("no directory");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
    }

    #[test]
    fn a_file_system_without_links_gets_the_file_and_keeps_an_older_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.backup");
        let unlinked = |text| {
            let link = |_: &Path, _: &Path| Err(io::ErrorKind::PermissionDenied.into());
            place_by(&path, text, false, link)
        };
        unlinked("one").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "one");
        unlinked("two").expect_err("there already");
        // `place_by` finds no file. Then another process creates one. `place_by` must not replace
        // it.
        let comes = |_: &Path, path: &Path| {
            fs::write(path, "three").expect("written");
            Err(io::ErrorKind::Unsupported.into())
        };
        let other = dir.path().join("b.backup");
        let error = place_by(&other, "four", false, comes).expect_err("there already").error;
        assert!(error.to_string().contains("--force"), "{error}");
        assert_eq!(fs::read_to_string(&other).expect("read"), "three");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 2);
        // Errors of fsync: 22 is EINVAL, 95 is ENOTSUP, 5 is EIO. Only EIO is reported.
        for (code, is_whole) in [(22, true), (95, true), (5, false)] {
            let synced = judge_sync(Err(io::Error::from_raw_os_error(code)));
            assert_eq!(synced.is_ok(), is_whole, "{code}");
        }
    }

    pub(super) fn backup() -> Backup {
        Backup {
            name: "epicepoch".into(),
            cluster: epicepoch_wire::ClusterId(1),
            history: epicepoch_wire::HistoryId(2),
            index: epicepoch_wire::LogIndex(3),
            ceiling: Epoch(1_700_000_000_000_000_000),
            taken_ns: 1_600_000_000_000_000_000,
            reservation_ms: 4,
            clock_offset_max_ms: 5,
            lease_longest_ms: 200,
            settings: None,
            removed: vec![epicepoch_wire::NodeId(6)],
            members: vec![],
        }
    }

    #[test]
    fn the_summary_of_a_backup_has_its_times_and_members() {
        let backup = backup();
        let text = lines(&backup);
        for part in ["0000000000000002", "2023-11-14", "2020-09-13", "members  none", "removed  6"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(object(&backup)["removed"], json!([6]));
    }
}
