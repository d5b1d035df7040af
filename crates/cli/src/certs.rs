//! `epicepoch certs`: keeps a small certificate authority in a directory. It asks no node. Only
//! [`renew`] replaces files; [`show`] reads them.

pub(crate) mod directory;
mod renew;
mod show;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgAction, ArgMatches, Command};
use epicepoch_certs::PemFile;
use epicepoch_certs::authority::{Authority, Issued, Validity};
use epicepoch_config::whole_number;
use epicepoch_config::{CLUSTER_NAME_DEFAULT, CLUSTER_NAME_LEN_MAX};
use epicepoch_wire::NodeId;

use self::directory::{NAMES, authority, days, directory, validity, write_files};
use crate::arguments::text;
use crate::failure::Failure;
use crate::output;

/// The name of a client in its certificate has at most this many bytes.
const CLIENT_NAME_LEN_MAX: usize = 64;

pub(crate) fn command() -> Command {
    let names = |value, help| {
        Arg::new(NAMES).value_name(value).help(help).required(true).action(ArgAction::Append)
    };
    let at = |command: Command| {
        let dir = text("dir", "DIR", "Directory of the authority").default_value("certs");
        command.arg(dir).arg(text("out", "DIR", OUT_HELP))
    };
    let shared = |command: Command| {
        at(command).arg(
            text("cluster", "NAME", "Name of the cluster (CLUSTER of its nodes)")
                .default_value(CLUSTER_NAME_DEFAULT),
        )
    };
    let signed = |command: Command| shared(command).arg(days());
    Command::new("certs")
        .about("Make an authority, and certificates for nodes and clients")
        .long_about(ABOUT)
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            shared(Command::new("ca").about("Make the authority of a cluster: ca.pem and ca.key"))
                .mut_arg("out", |out| out.help("The same as --dir").conflicts_with("dir")),
        )
        .subcommand(
            signed(
                Command::new("node").about("Sign certificates for nodes: node-ID.pem, node-ID.key"),
            )
            .arg(names(
                "ID=HOST,...",
                "Node id, and every name and address that clients reach the node at",
            )),
        )
        .subcommand(
            signed(
                Command::new("client")
                    .about("Sign certificates for clients: client-NAME.pem, client-NAME.key"),
            )
            .arg(names("NAME", "Name of the client: letters, digits, '.', '_', '-'")),
        )
        .subcommand(show::command())
        .subcommand(at(renew::command()).arg(days()))
}

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let (what, matches) = matches
        .subcommand()
        .ok_or_else(|| Failure::usage(anyhow!("see epicepoch certs --help")))?;
    match what {
        "show" => return show::run(matches),
        "renew" => return renew::run(matches),
        _ => {}
    }
    let directory = directory(matches, "dir");
    let out = match matches.get_one::<String>("out") {
        Some(out) => PathBuf::from(out),
        None => directory.clone(),
    };
    let cluster = cluster(matches)?;
    let made = || {
        let shown = out.display();
        std::fs::create_dir_all(&out).with_context(|| format!("the directory {shown}"))
    };
    let written = if what == "ca" {
        made()?;
        write(&out, &[("ca".to_owned(), issued_to_itself(&Authority::new(cluster)?))])?
    } else {
        let authority = authority(&directory, cluster)?;
        made()?;
        let validity = validity(matches);
        let mut issued = Vec::new();
        for item in matches.get_many::<String>(NAMES).into_iter().flatten() {
            issued.push(match what {
                "node" => sign_node(&authority, item, validity)?,
                _ => sign_client(&authority, item, validity)?,
            });
        }
        write(&out, &issued)?
    };
    let mut out = output::account();
    for path in written {
        writeln!(out, "{}", path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the cluster that `--cluster` names.
pub(crate) fn cluster(matches: &ArgMatches) -> Result<&str, Failure> {
    let cluster = matches.get_one::<String>("cluster").map_or("", String::as_str);
    if cluster.is_empty() || cluster.len() > CLUSTER_NAME_LEN_MAX || !cluster.chars().all(is_plain)
    {
        return Err(Failure::usage(anyhow!(
            "--cluster is {cluster:?}; allowed are 1 to {CLUSTER_NAME_LEN_MAX} letters, digits, '.', \
             '_' and '-'"
        )));
    }
    Ok(cluster)
}

/// The certificate and the key of an authority.
pub(crate) fn issued_to_itself(authority: &Authority) -> Issued {
    Issued { certificate: authority.certificate().to_owned(), key: authority.key() }
}

fn sign_node(
    authority: &Authority,
    item: &str,
    validity: Validity,
) -> Result<(String, Issued), Failure> {
    let (node, hosts) = node(item)?;
    Ok((format!("node-{node}"), issue_node(authority, node, hosts, validity)?))
}

/// Signs a node's certificate for these hosts, and for the node's own machine. There, commands reach
/// the node at localhost.
pub(crate) fn issue_node(
    authority: &Authority,
    node: NodeId,
    mut hosts: Vec<String>,
    validity: Validity,
) -> Result<Issued, Failure> {
    hosts.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    authority.node(node, &hosts, validity).map_err(Failure::usage)
}

fn sign_client(
    authority: &Authority,
    name: &str,
    validity: Validity,
) -> Result<(String, Issued), Failure> {
    if name.is_empty() || name.len() > CLIENT_NAME_LEN_MAX || !name.chars().all(is_plain) {
        return Err(Failure::usage(anyhow!(
            "{name:?} is not a client name; allowed are 1 to {CLIENT_NAME_LEN_MAX} letters, \
             digits, '.', '_' and '-'"
        )));
    }
    Ok((format!("client-{name}"), authority.client(name, validity)?))
}

/// Writes all pairs of certificate and key, or none. Existing files stay as they are. If a write
/// fails, the files written before it are removed.
fn write(directory: &Path, issued: &[(String, Issued)]) -> Result<Vec<PathBuf>, Failure> {
    let mut names: Vec<_> = issued.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let name = twice[0];
        return Err(Failure::usage(anyhow!(
            "{name} is given twice, and has one certificate: name all its hosts at once"
        )));
    }
    let files: Vec<_> = issued
        .iter()
        .flat_map(|(name, pair)| {
            let file = |end: &str| PemFile::new("--dir", directory.join(format!("{name}.{end}")));
            [(file("key"), &*pair.key, true), (file("pem"), &*pair.certificate, false)]
        })
        .collect();
    write_files(&files)?;
    Ok(files.into_iter().map(|(file, ..)| file.path).collect())
}

/// Parses a node id and its hosts, such as `1=host,host`.
pub(crate) fn node(item: &str) -> Result<(NodeId, Vec<String>), Failure> {
    let parsed = || {
        let (id, hosts) = item.split_once('=')?;
        let id = whole_number(id).filter(|id| *id > 0)?;
        let hosts: Vec<_> = hosts.split(',').map(|host| host.trim().to_owned()).collect();
        (!hosts.iter().any(String::is_empty)).then_some((NodeId(id), hosts))
    };
    parsed().ok_or_else(|| {
        Failure::usage(anyhow!(
            "{item:?} is not a node; allowed is ID=HOST,... such as 1=n1.example,10.0.0.1"
        ))
    })
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-')
}

const OUT_HELP: &str = "Directory to write to, if it is not that of the authority";

const ABOUT: &str = "\
Make a certificate authority for one cluster, and sign certificates for its nodes and clients.
\"epicepoch init\" does this, and writes the rest of what a new cluster needs.

Keys are ECDSA P-256, and readable by their owner only. Only \"renew\" replaces files. ca.key can
sign anything: keep it safe, and off the nodes. A node needs its own pair and ca.pem. A client needs
ca.pem and, if nodes require client certificates, a pair of its own.

A node's certificate names its cluster and its id, so that no node can pose as another, and the
hosts under which clients know it. localhost, 127.0.0.1 and ::1 are always among them, for commands
on the node's own machine. A running node reads renewed files within seconds.";

const EXAMPLES: &str = "\
Examples:
  epicepoch certs ca                              an authority, in certs/
  epicepoch certs node 1=n1.example 2=n2.example 3=n3.example,10.0.0.3
  epicepoch certs client app                      for CLIENT_CA_FILE=certs/ca.pem
  epicepoch certs show certs/*.pem                whose they are, and when they end
  epicepoch certs renew certs/node-*.pem          new keys and dates, same names
  epicepoch serve ... --client-tls on --cert-file certs/node-1.pem --key-file certs/node-1.key
  epicepoch get --ca-file certs/ca.pem --addr n1.example:8080";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_one_file_cannot_be_written_none_is_left() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("one").expect("an authority");
        let sign = |name: &str| {
            (name.to_owned(), authority.client(name, Validity::days(1)).expect("signed"))
        };
        let entries = || std::fs::read_dir(directory.path()).expect("readable").count();
        let issued = [sign("client-a"), sign("nowhere/client-b")];
        assert!(write(directory.path(), &issued).is_err());
        assert_eq!(entries(), 0);
        // Files that existed before stay.
        write(directory.path(), &issued[..1]).expect("written");
        assert!(write(directory.path(), &[sign("client-c"), sign("client-a")]).is_err());
        assert_eq!(entries(), 2);
    }

    #[test]
    fn a_node_is_an_id_and_its_hosts() {
        let (id, hosts) = node("3=n3.example, 10.0.0.3").expect("a node");
        assert_eq!((id, hosts), (NodeId(3), vec!["n3.example".into(), "10.0.0.3".into()]));
        for bad in ["", "3", "3=", "=a", "x=a", "0=a", "3=a,", "-1=a"] {
            assert!(node(bad).is_err(), "{bad}");
        }
    }
}
