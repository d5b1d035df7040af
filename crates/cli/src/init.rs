//! `epicepoch init`: writes all files of a new cluster into one directory: certificates, tokens, and
//! for each node its settings, its unit and a script that installs them. It asks no node, changes
//! nothing outside that directory, and never replaces a file.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io::Write as _;
use std::net::Ipv6Addr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgAction, ArgMatches, Command};
use epicepoch_certs::PemFile;
use epicepoch_certs::authority::Authority;
use epicepoch_config::file::ConfigFile;
use epicepoch_config::{CLUSTER_NAME_DEFAULT, Given};
use epicepoch_wire::NodeId;

use crate::arguments::{number, text};
use crate::certs;
use crate::certs::directory::{CA_CERTIFICATE, CA_KEY, days, validity};
use crate::failure::Failure;
use crate::output;
use crate::serve::cores;

#[cfg(test)]
mod install;

pub(crate) fn command() -> Command {
    // The unit gives the service no privilege, and lower ports need one.
    let port = |name, default: &'static str, help| {
        number(name, 1_024..=65_535, help).default_value(default).value_name("PORT")
    };
    Command::new("init")
        .about("Write all files of a new cluster with TLS: certificates, settings, units, tokens")
        .long_about(ABOUT)
        .after_help(EXAMPLES)
        .arg(
            Arg::new(NODES)
                .value_name("ID=HOST,...")
                .help(
                    "Node id, the host at which nodes and clients reach it, and more names of it for \
                     its certificate",
                )
                .required(true)
                .action(ArgAction::Append),
        )
        .arg(text("out", "DIR", "New directory to write to").default_value("cluster"))
        .arg(text("cluster", "NAME", "Name of the cluster").default_value(CLUSTER_NAME_DEFAULT))
        .arg(text("binary", "FILE", "Binary that install.sh installs, copied to each directory"))
        .arg(port("http-port", "8080", "Port of clients, on every node, from 1024 on"))
        .arg(port("raft-port", "60001", "Port for the other nodes, on every node, from 1024 on"))
        .arg(days())
}

/// What the files of a cluster are made from.
struct Plan<'a> {
    cluster: &'a str,
    http_port: u64,
    raft_port: u64,
    nodes: Vec<Planned>,
}

/// One node of a plan.
struct Planned {
    id: NodeId,
    /// At least one; the first is the one that others dial.
    hosts: Vec<String>,
}

/// A file to write, below the output directory.
struct Written {
    path: PathBuf,
    content: Vec<u8>,
    is_secret: bool,
}

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let out = out(matches)?;
    let given = matches.get_many::<String>(NODES).into_iter().flatten().map(String::as_str);
    let plan = Plan {
        cluster: certs::cluster(matches)?,
        http_port: matches.get_one("http-port").copied().unwrap_or_default(),
        raft_port: matches.get_one("raft-port").copied().unwrap_or_default(),
        nodes: planned(given)?,
    };
    let binary = match matches.get_one::<String>("binary") {
        Some(path) => Some(
            fs::read(path).with_context(|| format!("--binary {path}")).map_err(Failure::usage)?,
        ),
        None => None,
    };
    if fs::read_dir(&out).map_or_else(|_| out.exists(), |mut entries| entries.next().is_some()) {
        return Err(Failure::usage(anyhow!(
            "{} exists already and is not replaced; move it away, or give another --out",
            out.display()
        )));
    }
    let files = plan.files(matches, binary.as_deref())?;
    write(&out, &files)?;
    write!(output::account(), "{}", plan.next(&out.display().to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the directory to write, without slashes at its end: the files are first written to a
/// directory beside it, whose name begins with the same text.
fn out(matches: &ArgMatches) -> Result<PathBuf, Failure> {
    let given = matches.get_one::<String>("out").map_or("", String::as_str);
    let out: PathBuf = Path::new(given).components().collect();
    if out.file_name().is_none() {
        return Err(Failure::usage(anyhow!(
            "--out is {given:?}; give the name of a new directory, such as --out cluster"
        )));
    }
    Ok(out)
}

/// Parses the nodes. Each has an id and a host of its own, because all have the same ports.
fn planned<'a>(given: impl Iterator<Item = &'a str>) -> Result<Vec<Planned>, Failure> {
    let mut nodes: Vec<Planned> = Vec::new();
    for item in given {
        let (id, hosts) = certs::node(item)?;
        let twice = |what: String| {
            Failure::usage(anyhow!("{what} is given twice; each node has its own id and host"))
        };
        if nodes.iter().any(|node| node.id == id) {
            return Err(twice(format!("node {id}")));
        }
        if nodes.iter().any(|node| node.hosts[0] == hosts[0]) {
            return Err(twice(format!("the host {}", hosts[0])));
        }
        nodes.push(Planned { id, hosts });
    }
    Ok(nodes)
}

impl Plan<'_> {
    /// Makes the content of all files. Refuses a plan that `epicepoch serve` would refuse.
    fn files(&self, matches: &ArgMatches, binary: Option<&[u8]>) -> Result<Vec<Written>, Failure> {
        let authority = Authority::new(self.cluster)?;
        let (clients, operators) = (token("clients")?, token("operators")?);
        let mut files = Vec::new();
        let mut put = |directory: &str, name: &str, content: &[u8], is_secret| {
            let path = Path::new(directory).join(name);
            files.push(Written { path, content: content.to_vec(), is_secret });
        };
        let own = certs::issued_to_itself(&authority);
        put("", "README.txt", self.readme().as_bytes(), false);
        put(AUTHORITY, CA_CERTIFICATE, own.certificate.as_bytes(), false);
        put(AUTHORITY, CA_KEY, own.key.as_bytes(), true);
        for (directory, token) in [("client", &clients), ("operator", &operators)] {
            put(directory, CA_CERTIFICATE, own.certificate.as_bytes(), false);
            put(directory, "token", token.as_bytes(), true);
        }
        for node in &self.nodes {
            let directory = &*node.directory();
            let settings = self.settings(node);
            check(&settings, node)?;
            let hosts = node.hosts.clone();
            let issued = certs::issue_node(&authority, node.id, hosts, validity(matches))?;
            put(directory, "README.txt", self.readme_of(node).as_bytes(), false);
            put(directory, SETTINGS, settings.as_bytes(), false);
            put(directory, "node.pem", issued.certificate.as_bytes(), false);
            put(directory, "node.key", issued.key.as_bytes(), true);
            put(directory, CA_CERTIFICATE, own.certificate.as_bytes(), false);
            put(directory, "clients", clients.as_bytes(), true);
            put(directory, "operators", operators.as_bytes(), true);
            put(directory, "epicepoch.service", UNIT.as_bytes(), false);
            put(directory, "install.sh", INSTALL.as_bytes(), false);
            if let Some(binary) = binary {
                put(directory, "epicepoch", binary, false);
            }
        }
        Ok(files)
    }

    fn settings(&self, node: &Planned) -> String {
        let Planned { id, .. } = node;
        let Self { cluster, http_port, raft_port, .. } = self;
        let mut text = format!(
            "\
# Settings of node {id} of the cluster {cluster}, written by \"epicepoch init\".
# Every key is also a variable and a flag; \"epicepoch serve --help\" has all of them.

node_id = {id}
cluster = \"{cluster}\"
raft_addr = \"{}:{raft_port}\"
http_port = {http_port}
data_dir = \"/var/lib/epicepoch\"

# This node's certificate and key, for other nodes and for clients. The node reads changed files by
# itself.
peer_cert_file = \"/etc/epicepoch/node.pem\"
peer_key_file = \"/etc/epicepoch/node.key\"
peer_ca_file = \"/etc/epicepoch/ca.pem\"
cert_file = \"/etc/epicepoch/node.pem\"
key_file = \"/etc/epicepoch/node.key\"
client_tls = \"on\"

# Clients need a token of one of these files. Operators need one of the second.
client_token_file = \"/etc/epicepoch/clients\"
ops_token_file = \"/etc/epicepoch/operators\"
# Addresses that may change the cluster, over TLS with a token of operators. Name networks, such as
# \"10.0.0.0/8\", to allow fewer.
admin_from = \"any\"
",
            node.host()
        );
        if self.nodes.len() == 1 {
            text.push_str("\n# A cluster of one: it stops when this node stops.\nsingle = true\n");
            return text;
        }
        text.push_str("\n# The first members; the same list on every node.\n[peers]\n");
        for other in &self.nodes {
            let _infallible = writeln!(text, "{} = \"{}:{raft_port}\"", other.id, other.host());
        }
        text
    }

    /// The steps after `init`, with `out` as the directory that was written.
    fn next(&self, out: &str) -> String {
        let mut text = format!(
            "{out}/ has all files of the cluster {}. These steps found it as a NEW cluster.\n\
             To restore a cluster that lost its data, see docs/operations/backup-and-restore.md.\n",
            self.cluster
        );
        for node in &self.nodes {
            let (host, directory) = (node.plain_host(), node.directory());
            let _infallible = writeln!(
                text,
                "  scp -r {out}/{directory} {}:\n  \
                 ssh -t {host} 'sudo sh {directory}/install.sh --found && rm -r {directory}'",
                node.host()
            );
        }
        let addrs: Vec<_> = self.nodes.iter().map(|node| self.client_addr(node)).collect();
        let _infallible = write!(
            text,
            "When all run, see them, and get a timestamp:\n  \
             epicepoch status --addr {addrs} --ca-file {out}/operator/ca.pem \\\n    \
             --token-file {out}/operator/token\n  \
             epicepoch get --addr {addrs} --ca-file {out}/client/ca.pem \\\n    \
             --token-file {out}/client/token\n\
             Keep {out}/{AUTHORITY}/ where no node is: its key can sign anything.\n",
            addrs = addrs.join(",")
        );
        text
    }

    fn client_addr(&self, node: &Planned) -> String {
        format!("{}:{}", node.host(), self.http_port)
    }

    fn readme(&self) -> String {
        format!(
            "{next}\n{LAYOUT}
Another node later, here node {id}:
  epicepoch certs node --dir {AUTHORITY} --out node-{id} --cluster {cluster} {id}=n{id}.example
New dates for the certificates, before they end:
  epicepoch certs renew --dir {AUTHORITY} node-*/node.pem
then copy node.key and after it node.pem to /etc/epicepoch of each machine, or run install.sh again,
without --found.
",
            next = self.next("."),
            cluster = self.cluster,
            id = self.nodes.iter().map(|node| node.id.0).max().map_or(1, |id| id.saturating_add(1)),
        )
    }

    fn readme_of(&self, node: &Planned) -> String {
        let (host, directory) = (node.plain_host(), node.directory());
        format!(
            "\
Node {id} of the cluster {cluster}, for the machine {host}

1. Copy this directory to {host}:
       scp -r {directory} {addr}:
2. There, run, to found a new cluster:
       sudo sh {directory}/install.sh --found
   Later, for new certificates, run it without --found. It keeps changed settings and another
   program; --settings and --program replace them.
3. Delete the copy, because it has the node's key and tokens:
       rm -r {directory}

{INSTALLED}",
            id = node.id,
            addr = node.host(),
            cluster = self.cluster,
        )
    }
}

impl Planned {
    fn directory(&self) -> String {
        format!("node-{}", self.id)
    }

    /// The host as it stands before a port: an IPv6 address is in brackets.
    fn host(&self) -> String {
        let host = self.plain_host();
        if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { host.to_owned() }
    }

    /// The host without brackets.
    fn plain_host(&self) -> &str {
        self.hosts[0].trim_start_matches('[').trim_end_matches(']')
    }
}

/// Reads settings as `epicepoch serve` does.
fn check(settings: &str, node: &Planned) -> Result<(), Failure> {
    let path = Path::new(&node.directory()).join(SETTINGS);
    let mut given = Given::default();
    given.add_file(&path, ConfigFile::parse(&path, settings).map_err(Failure::usage)?);
    let config = given.node(cores()).map_err(Failure::usage)?;
    assert_eq!(config.node_id, node.id, "the file is of this node");
    Ok(())
}

/// Returns the content of a file with a new random token.
fn token(whose: &str) -> Result<String, Failure> {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes).context("the system provides no random bytes")?;
    let mut text = format!("# A token of {whose}. More may follow, one on each line.\n");
    for byte in bytes {
        let _infallible = write!(text, "{byte:02x}");
    }
    text.push('\n');
    Ok(text)
}

/// Writes all files, or none: they are written into a new directory beside `out`, which is then
/// renamed.
fn write(out: &Path, files: &[Written]) -> Result<(), Failure> {
    if let Some(parent) = out.parent() {
        fs::create_dir_all(parent).with_context(|| cannot_be_made(parent))?;
    }
    let mut beside = out.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    make(&beside)?;
    let written = write_below(&beside, files).and_then(|()| {
        fs::rename(&beside, out).with_context(|| format!("--out {}", out.display()))?;
        Ok(())
    });
    if written.is_err() {
        // This process has made it, and nothing in it is in use.
        let _ = fs::remove_dir_all(&beside);
    }
    written.map_err(Failure::from)
}

fn write_below(root: &Path, files: &[Written]) -> anyhow::Result<()> {
    let directories: BTreeSet<_> = files.iter().filter_map(|file| file.path.parent()).collect();
    for directory in directories.into_iter().filter(|it| !it.as_os_str().is_empty()) {
        make(&root.join(directory))?;
    }
    for Written { path, content, is_secret } in files {
        PemFile::new("--out", root.join(path)).write_new(content, *is_secret)?;
    }
    Ok(())
}

/// Makes a directory that did not exist. Only its owner may look into it, because it has secrets.
fn make(path: &Path) -> anyhow::Result<()> {
    DirBuilder::new().mode(0o700).create(path).with_context(|| cannot_be_made(path))
}

fn cannot_be_made(path: &Path) -> String {
    format!("the directory {} cannot be made", path.display())
}

const NODES: &str = "nodes";
const AUTHORITY: &str = "authority";
const SETTINGS: &str = "epicepoch.toml";
/// Bytes of a token before they are written as digits: nobody guesses 256 bits.
const TOKEN_BYTES: usize = 32;
/// The unit and the script are those of `deploy/`, so they are always the same.
const UNIT: &str = include_str!("../../../deploy/epicepoch.service");
const INSTALL: &str = include_str!("../../../deploy/install.sh");

const ABOUT: &str = "\
Write all files of a new cluster with TLS into one directory. Nothing else is changed.

  node-ID/    what one machine needs: settings, certificate and key, tokens, a systemd unit, and
              install.sh, which puts each file in its place and starts the node
  client/     what programs need: the authority's certificate and the token of clients
  operator/   the same with the token of operators, which serves every command
  authority/  the key that signed the certificates: keep it, and keep it off the nodes

Between machines, everything is TLS. Clients need a token. README.txt has the steps.";

const EXAMPLES: &str = "\
Examples:
  epicepoch init 1=n1.example 2=n2.example 3=n3.example
  epicepoch init --out prod --cluster payments --binary target/release/epicepoch \\
      1=n1.example,10.0.0.1 2=n2.example,10.0.0.2 3=n3.example,10.0.0.3
Then, for each node:
  scp -r prod/node-1 n1.example:
  ssh -t n1.example 'sudo sh node-1/install.sh --found && rm -r node-1'

Exit codes: 0 written; 1 the files cannot be written; 2 wrong usage, or the directory exists.";

const LAYOUT: &str = "\
What is here:
  node-ID/    for one machine: settings, certificate and key, tokens, unit, install.sh
  client/     for programs: ca.pem (--ca-file) and token (--token-file, or EPICEPOCH_TOKEN_FILE)
  operator/   for operators: the same; their token serves every command
  authority/  the key that signed the certificates
";

const INSTALLED: &str = "\
install.sh puts each file in its place:
  epicepoch.toml, node.pem, node.key, ca.pem, clients, operators    /etc/epicepoch/
  epicepoch.service                                                 /etc/systemd/system/
  epicepoch, if it is here                                          /usr/local/bin/
It makes the user epicepoch, who alone reads the key and the tokens, and starts the service. With
--found, this start founds the cluster as soon as all nodes run; the log says which are missing:
  journalctl -u epicepoch
A later run keeps the files that differ, but for node.pem and node.key. Without --found, it starts
no node. See the first lines of install.sh.
";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use epicepoch_config::{AllowedFrom, ClientTlsMode, Config};

    use super::*;
    use crate::commands;

    /// Runs `epicepoch init` with these words. It writes to `out` in a directory, if they name no
    /// other.
    pub(super) fn init(directory: &Path, words: &str) -> Result<ExitCode, Failure> {
        let out = directory.join("out").display().to_string();
        let own = if words.contains("--out") { &[][..] } else { &["--out", &out] };
        let words = ["init"].iter().chain(own).copied().chain(words.split_whitespace());
        run(&command().get_matches_from(words))
    }

    pub(super) fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The configuration that `epicepoch serve --config PATH` would have.
    fn configuration(path: &Path) -> Config {
        let mut given = Given::default();
        given.add_file(path, ConfigFile::read(path).expect("it can be read"));
        given.node(2).expect("it is allowed")
    }

    #[test]
    fn each_node_gets_settings_that_serve_accepts_and_the_unit_and_script_of_deploy() {
        let home = tempfile::tempdir().expect("a directory");
        let words =
            "--cluster pay --http-port 8000 --raft-port 9000 1=n1 2=n2,10.0.0.2 3=[fd00::3]";
        init(home.path(), words).expect("written");
        for (node, raft_addr) in [(1, "n1:9000"), (2, "n2:9000"), (3, "[fd00::3]:9000")] {
            let directory = home.path().join(format!("out/node-{node}"));
            let config = configuration(&directory.join(SETTINGS));
            assert_eq!((config.node_id, &*config.raft_addr), (NodeId(node), raft_addr));
            assert_eq!((config.peers.len(), config.http_port, config.bootstrap), (3, 8_000, false));
            assert_eq!((&*config.cluster_name, config.tls.clients), ("pay", ClientTlsMode::On));
            assert!(config.authz.client_token_file.is_some() && !config.single);
            assert_eq!(config.authz.admin_from, AllowedFrom::Any);
            assert_eq!(config.authz.ops_plain_from, AllowedFrom::Loopback, "TLS from elsewhere");
            let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
            for name in ["epicepoch.service", "install.sh"] {
                assert_eq!(read(&directory.join(name)), read(&deploy.join(name)), "{name}");
            }
            // The key that signs anything is with the authority only.
            assert!(!directory.join(CA_KEY).exists());
            let mode = |name: &str| {
                directory.join(name).metadata().expect("it exists").permissions().mode() & 0o777
            };
            assert_eq!(["node.key", "clients", "operators"].map(mode), [0o600; 3]);
            assert_eq!(directory.metadata().expect("it").permissions().mode() & 0o777, 0o700);
        }
        let tokens =
            ["client/token", "operator/token"].map(|it| read(&home.path().join("out").join(it)));
        assert_ne!(tokens[0], tokens[1]);
        for (token, name) in tokens.iter().zip(["clients", "operators"]) {
            assert_eq!(token, &read(&home.path().join("out/node-1").join(name)));
        }
        let one = tempfile::tempdir().expect("a directory");
        init(one.path(), "7=n7").expect("written");
        assert!(configuration(&one.path().join("out/node-7/epicepoch.toml")).single);
    }

    #[test]
    fn a_port_that_the_unit_may_not_open_is_refused() {
        for port in ["--http-port", "--raft-port"] {
            let parsed = |value| command().try_get_matches_from(["init", port, value, "1=n1"]);
            assert!(parsed("1023").is_err() && parsed("1024").is_ok(), "{port}");
        }
    }

    #[test]
    fn a_refused_plan_writes_nothing_and_nothing_is_replaced() {
        let home = tempfile::tempdir().expect("a directory");
        let entries = || fs::read_dir(home.path()).expect("readable").count();
        for (words, part) in [
            ("1=n1 1=n2", "node 1 is given twice"),
            ("1=n1 2=n1", "the host n1 is given twice"),
            ("1", "ID=HOST"),
            ("1=a_b!", "a_b!"),
            ("1=n1 2=localhost", "localhost"),
            ("--cluster a/b 1=n1", "--cluster"),
            ("--binary /nowhere 1=n1", "/nowhere"),
            ("--raft-port 8080 1=n1 2=n2", "8080"),
            ("--out . 1=n1", "--out is \".\""),
            ("--out / 1=n1", "--out is \"/\""),
            ("--out= 1=n1", "--out is \"\""),
        ] {
            let failure = init(home.path(), words).expect_err(words);
            assert_eq!(failure.code, crate::failure::USAGE, "{words}");
            assert!(format!("{:#}", failure.error).contains(part), "{words}: {:#}", failure.error);
            assert_eq!(entries(), 0, "{words}");
        }
        init(home.path(), "1=n1 2=n2 3=n3").expect("written");
        let before = read(&home.path().join("out/authority/ca.key"));
        assert!(init(home.path(), "1=n1").is_err());
        assert_eq!(read(&home.path().join("out/authority/ca.key")), before);
        assert_eq!(entries(), 1, "no other directory is left");
    }
    #[test]
    fn slashes_at_the_end_of_out_do_not_count_and_parents_are_made() {
        let home = tempfile::tempdir().expect("a directory");
        let out = home.path().join("new/prod");
        init(home.path(), &format!("--out {}// 1=n1", out.display())).expect("written");
        assert!(out.join("node-1/install.sh").exists());
        let mode = |path: &Path| path.metadata().expect("it exists").permissions().mode() & 0o777;
        assert_eq!(mode(&out), 0o700);
        // A parent is an ordinary directory.
        fs::create_dir(home.path().join("ordinary")).expect("made");
        let ordinary = mode(&home.path().join("ordinary"));
        assert_eq!(mode(&home.path().join("new")), ordinary);
        assert_eq!(fs::read_dir(home.path().join("new")).expect("readable").count(), 1);
    }

    #[test]
    fn a_directory_that_is_in_the_way_stays_as_it_is() {
        let home = tempfile::tempdir().expect("a directory");
        let in_the_way = home.path().join(format!("out.{}.new", std::process::id()));
        fs::create_dir(&in_the_way).expect("made");
        fs::write(in_the_way.join("kept"), "of another").expect("written");
        let failure = init(home.path(), "1=n1").expect_err("it is in the way");
        assert!(format!("{:#}", failure.error).contains("cannot be made"), "{:#}", failure.error);
        assert_eq!(read(&in_the_way.join("kept")), "of another");
        assert!(!home.path().join("out").exists());
    }

    #[test]
    fn every_command_that_init_prints_is_one_of_the_command_line() {
        let home = tempfile::tempdir().expect("a directory");
        init(home.path(), "--cluster pay 1=n1 2=n2 3=n3").expect("written");
        let out = home.path().join("out");
        let printed = read(&out.join("README.txt")).replace("\\\n", " ");
        let parse = |line: &str| {
            let parsed = commands::tree().try_get_matches_from(line.split_whitespace());
            parsed.unwrap_or_else(|error| panic!("{line}: {error}"))
        };
        let lines = printed.lines().map(str::trim).filter(|line| line.starts_with("epicepoch "));
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        for line in &lines {
            parse(line);
        }
        // The next node gets a certificate of this cluster.
        let line = lines.iter().find(|line| line.contains("certs node")).expect("init shows it");
        let line = line
            .replace("--dir ", &format!("--dir {}/", out.display()))
            .replace("--out ", &format!("--out {}/", out.display()));
        let matches = parse(&line);
        certs::run(matches.subcommand_matches("certs").expect("certs")).expect("signed");
        assert!(out.join("node-4/node-4.pem").exists());
    }
}
