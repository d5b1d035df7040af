//! `epicepoch dev`: runs a whole cluster in one process on loopback, for development. A node is the
//! same as one that `serve` runs; this command only chooses ids, addresses and directories.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::{Arg, ArgMatches, Command, value_parser};
use epicepoch_config::{
    CERT_FILE_DEFAULT, Config, Environment, Given, KEY_FILE_DEFAULT, Logging, Scope,
};
use epicepoch_server::consensus::restore::members_of_stopped;
use epicepoch_server::faults::TEST_FAULTS_FILE;
use epicepoch_server::{Node, RunError, StartError};
use epicepoch_wire::NodeId;
use epicepoch_wire::voter_status::Zone;

use crate::failure::Failure;
use crate::logging;
use crate::serve::{colours, cores};
use crate::{settings, signals, version};

/// The cluster that the arguments describe.
#[derive(Debug)]
struct Layout {
    nodes: u16,
    http_port_base: u16,
    raft_port_base: u16,
    data_dir: PathBuf,
}

/// A node that stopped, and its result.
type Stopped = (NodeId, Result<(), RunError>);

pub(crate) fn command() -> Command {
    let command = Command::new("dev")
        .about("Run a whole cluster in one process, for development")
        .long_about(
            "Run a whole cluster in one process on loopback, for development. The first start \
             founds the cluster; its data is kept. Node 1 leads. This command chooses the settings \
             of the groups \"Node and cluster\" and \"Addresses\" (such as PEERS, CLUSTER and \
             HTTP_PORT) or leaves them out, and ignores their variables. It takes all other \
             settings of `epicepoch serve`, as flags or variables, but no file: CONFIG is ignored.",
        )
        .after_help("Then:\n  curl -fsS localhost:8881/timestamp | xxd\n  epicepoch get -n 3")
        .arg(
            Arg::new("nodes")
                .long("nodes")
                .value_name("COUNT")
                .value_parser(value_parser!(u16).range(1..=9))
                .default_value("3")
                .help("Nodes of the cluster, 1 to 9"),
        )
        .arg(
            Arg::new("http-port-base")
                .long("http-port-base")
                .value_name("PORT")
                .value_parser(value_parser!(u16).range(1..))
                .default_value("8881")
                .help("Client port of node 1; each further node has the next port"),
        )
        .arg(
            Arg::new("raft-port-base")
                .long("raft-port-base")
                .value_name("PORT")
                .value_parser(value_parser!(u16).range(1..))
                .default_value("60001")
                .help("Raft port of node 1; each further node has the next port"),
        )
        .arg(
            Arg::new("data-dir")
                .long("data-dir")
                .value_name("DIR")
                .default_value("_raft/dev")
                .help("Directory of the data, with node-1, node-2 and so on in it"),
        );
    command.args(settings::arguments(Scope::Cluster))
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let layout = Layout::of(matches)?;
    layout.check_data()?;
    let given = settings::given(Scope::Cluster, matches, environment).map_err(Failure::usage)?;
    let configs = layout.configs(&given)?;
    if let Some(first) = configs.first() {
        logging::start(first.logging, colours(environment));
        version::log();
    }
    serve(&layout, configs, environment).map_err(Failure::logged)
}

fn serve(
    layout: &Layout,
    configs: Vec<Config>,
    environment: &Environment,
) -> Result<ExitCode, Failure> {
    let faults = environment.get(OsStr::new(TEST_FAULTS_FILE)).map(PathBuf::from);
    // This directory also holds the certificate that the nodes share.
    std::fs::create_dir_all(&layout.data_dir)
        .with_context(|| format!("--data-dir: {} cannot be created", layout.data_dir.display()))
        .map_err(Failure::usage)?;
    let nodes = start_all(configs, faults.as_deref())?;
    let stopping = nodes.clone();
    signals::watch(move || stop_all(&stopping))?;
    let stopped = wait_all(&nodes)?;
    let first = match prefer_first(&nodes, &stopped) {
        Ok(leader) => {
            layout.welcome(leader, &nodes);
            stopped.recv().ok()
        }
        Err(end) => Some(end),
    };
    // One of the nodes has stopped, so the others shut down, too.
    stop_all(&nodes);
    let ends: Vec<Stopped> = first.into_iter().chain(stopped.iter()).collect();
    for (id, end) in ends {
        end.with_context(|| format!("node {id} stopped"))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Layout {
    fn of(matches: &ArgMatches) -> Result<Self, Failure> {
        let port = |name| matches.get_one::<u16>(name).copied().unwrap_or(1);
        let layout = Self {
            nodes: port("nodes"),
            http_port_base: port("http-port-base"),
            raft_port_base: port("raft-port-base"),
            data_dir: matches.get_one::<String>("data-dir").map(PathBuf::from).unwrap_or_default(),
        };
        for (flag, base) in [
            ("--http-port-base", layout.http_port_base),
            ("--raft-port-base", layout.raft_port_base),
        ] {
            if base.checked_add(layout.nodes - 1).is_none() {
                let most = u16::MAX - (layout.nodes - 1);
                let nodes = layout.nodes;
                return Err(Failure::usage(anyhow!(
                    "{flag} is {base}; allowed with {nodes} nodes is 1 to {most}"
                )));
            }
        }
        if layout.http_port_base.abs_diff(layout.raft_port_base) < layout.nodes {
            let Self { nodes, http_port_base, raft_port_base, .. } = layout;
            return Err(Failure::usage(anyhow!(
                "--http-port-base is {http_port_base} and --raft-port-base is {raft_port_base}; \
                 allowed with {nodes} nodes are bases at least {nodes} apart"
            )));
        }
        if layout.data_dir.as_os_str().is_empty() {
            return Err(Failure::usage(anyhow!(
                "--data-dir is empty; allowed is the path of a directory"
            )));
        }
        Ok(layout)
    }

    /// Rejects a directory with a cluster whose members are not the nodes that are started. Nodes
    /// that have ended before they founded a cluster have left a directory without members. A node
    /// whose data cannot be read reports that itself when it starts.
    fn check_data(&self) -> Result<(), Failure> {
        let members = |id| members_of_stopped(&self.node_dir(id)).ok();
        let Some(members) = (1..=NODES_MAX).find_map(members) else { return Ok(()) };
        // Other members run elsewhere.
        let is_here = |id: &u16| {
            let is_member = members.iter().any(|it| it.node == NodeId(u64::from(*id)));
            is_member && self.node_dir(*id).exists()
        };
        let here: Vec<u16> = (1..=NODES_MAX).filter(is_here).collect();
        if here.iter().copied().eq(1..=self.nodes) {
            return Ok(());
        }
        let (dir, nodes) = (self.data_dir.display(), self.nodes);
        let size = match here.last() {
            Some(last) if usize::from(*last) == here.len() => format!("--nodes {last}, "),
            _ => String::new(),
        };
        let names = here.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        Err(Failure::usage(anyhow!(
            "{dir} holds a cluster of the nodes {names}, but --nodes is {nodes}; allowed is \
             {size}another --data-dir, or none of the old data"
        )))
    }

    fn node_dir(&self, id: u16) -> PathBuf {
        Path::new(&self.data_dir).join(format!("node-{id}"))
    }

    fn configs(&self, given: &Given) -> Result<Vec<Config>, Failure> {
        let raft_addr = |id: u16| format!("127.0.0.1:{}", self.raft_port_base + (id - 1));
        let peers: BTreeMap<_, _> =
            (1..=self.nodes).map(|id| (NodeId(u64::from(id)), raft_addr(id))).collect();
        let mut configs = Vec::new();
        for id in 1..=self.nodes {
            let mut config = Config::new(NodeId(u64::from(id)), raft_addr(id));
            config.peers.clone_from(&peers);
            config.single = self.nodes == 1;
            // The first start founds the cluster. Once data exists, the setting is ignored.
            config.bootstrap = true;
            config.raft_bind = SocketAddr::from((LOOPBACK, self.raft_port_base + (id - 1)));
            config.http_bind = IpAddr::V4(LOOPBACK);
            config.http_port = self.http_port_base + (id - 1);
            config.data_dir = self.node_dir(id);
            if self.nodes > 1 {
                // The examples in the README use the address of node 1. So leadership comes back
                // there.
                let zone = |node: NodeId| Zone::new(&format!("node-{node}"));
                config.placement.zone = zone(config.node_id);
                config.placement.leaders = zone(FIRST).into_iter().collect();
            }
            CLUSTER_NAME.clone_into(&mut config.cluster_name);
            // The certificate is beside the data, not in the working directory.
            config.tls.cert_file = self.data_dir.join(CERT_FILE_DEFAULT);
            config.tls.key_file = self.data_dir.join(KEY_FILE_DEFAULT);
            config.logging = Logging { pretty: true, ..Logging::default() };
            let cores = cores() / usize::from(self.nodes);
            given.complete(&mut config, cores).map_err(Failure::usage)?;
            given.check(&config).map_err(Failure::usage)?;
            configs.push(config);
        }
        Ok(configs)
    }

    fn welcome(&self, leader: Option<NodeId>, nodes: &BTreeMap<NodeId, Arc<Node>>) {
        let leads = leader.map_or_else(
            || "but no node leads yet".to_owned(),
            |leader| format!("and node {leader} leads"),
        );
        let (count, dir, port) = (nodes.len(), self.data_dir.display(), self.http_port_base);
        let address = |(id, node): (_, &Arc<Node>)| {
            format!("  node {id}   http://localhost:{}\n", node.http_addr().port())
        };
        let list: String = nodes.iter().map(address).collect();
        let addr =
            if port == DEFAULT_PORT { String::new() } else { format!(" --addr localhost:{port}") };
        // As this program was called: after `cargo run`, its path.
        let program = std::env::args().next().unwrap_or_else(|| "epicepoch".to_owned());
        let text = format!(
            "\nA cluster of {count} is up, {leads}. Data in {dir}. Ctrl-C stops it.\n\n{list}\n\
             Try, in another terminal:\n\n  \
             curl -fsS localhost:{port}/timestamp | xxd\n  \
             curl -fsS 'localhost:{port}/timestamp?n=3&format=json'\n  \
             curl -fsS localhost:{port}/members\n  \
             {program} get -n 3{addr} | {program} decode\n  \
             {program} status{addr}\n\n"
        );
        // If standard error is closed, the text is lost and nothing else happens.
        let _unread = io::stderr().write_all(text.as_bytes());
    }
}

/// Starts all nodes at the same time, because a node may wait for its peers while it starts. If one
/// fails, the others are stopped.
fn start_all(
    configs: Vec<Config>,
    faults: Option<&Path>,
) -> Result<BTreeMap<NodeId, Arc<Node>>, Failure> {
    let starting: Vec<_> = configs
        .into_iter()
        .map(|config| {
            let (id, faults) = (config.node_id, faults.map(Path::to_owned));
            (id, thread::spawn(|| Node::start_with_faults(config, version::build(), faults)))
        })
        .collect();
    let mut nodes = BTreeMap::new();
    let mut failed: Option<anyhow::Error> = None;
    for (id, start) in starting {
        let started: Result<Node, StartError> = match start.join() {
            Ok(started) => started,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        match started {
            Ok(node) => drop(nodes.insert(id, Arc::new(node))),
            Err(error) if failed.is_none() => {
                let port = match &error {
                    StartError::Bind { setting: "HTTP_PORT", .. } => {
                        "; its client port follows from --http-port-base"
                    }
                    StartError::Bind { .. } => "; its Raft port follows from --raft-port-base",
                    _ => "",
                };
                let what = format!("node {id} did not start{port}");
                failed = Some(anyhow::Error::new(error).context(what));
            }
            Err(_) => {}
        }
    }
    let Some(error) = failed else { return Ok(nodes) };
    stop_all(&nodes);
    for node in nodes.values() {
        // The first node's error is reported. Errors of the other nodes while they stop are
        // ignored.
        let _later = node.wait();
    }
    Err(error.into())
}

fn stop_all(nodes: &BTreeMap<NodeId, Arc<Node>>) {
    for node in nodes.values() {
        node.request_shutdown();
    }
}

/// Returns a channel that reports every node that stops.
fn wait_all(nodes: &BTreeMap<NodeId, Arc<Node>>) -> io::Result<Receiver<Stopped>> {
    let (report, stopped) = mpsc::channel();
    for (id, node) in nodes {
        let (id, node, report) = (*id, Arc::clone(node), report.clone());
        let waiting = move || drop(report.send((id, node.wait())));
        thread::Builder::new().name(format!("wait-{id}")).spawn(waiting)?;
    }
    Ok(stopped)
}

/// Waits for a leader and asks it once to hand over to node 1, because the examples in the README
/// use the address of node 1. Returns the final leader, if there is one, or the node that stopped
/// meanwhile.
fn prefer_first(
    nodes: &BTreeMap<NodeId, Arc<Node>>,
    stopped: &Receiver<Stopped>,
) -> Result<Option<NodeId>, Stopped> {
    let mut deadline = Instant::now() + LEADER_WAIT_MAX;
    let mut asked = false;
    loop {
        let leader = nodes.iter().find(|(_, node)| node.is_leader());
        match leader {
            Some((id, _)) if *id == FIRST => return Ok(Some(FIRST)),
            Some((_, node)) if !asked => {
                node.transfer_leader_to(FIRST);
                asked = true;
                deadline = Instant::now() + TRANSFER_WAIT_MAX;
            }
            Some(_) | None => {}
        }
        if Instant::now() >= deadline {
            return Ok(leader.map(|(id, _)| *id));
        }
        match stopped.recv_timeout(LEADER_POLL) {
            Ok(end) => return Err(end),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
}

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const CLUSTER_NAME: &str = "dev";
const FIRST: NodeId = NodeId(1);
/// A development cluster has at most this many nodes. No cluster may have more first members.
const NODES_MAX: u16 = 9;
/// Default client port of node 1. Other commands ask it by default.
const DEFAULT_PORT: u16 = 8881;
/// How long `dev` waits for a leader before it prints the summary without one.
const LEADER_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long the handover to node 1 may take.
const TRANSFER_WAIT_MAX: Duration = Duration::from_secs(2);
const LEADER_POLL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    fn layout(flags: &[&str]) -> Result<Vec<Config>, Failure> {
        let arguments = ["epicepoch", "dev"].iter().chain(flags);
        let matches = commands::tree().try_get_matches_from(arguments)?;
        let matches = matches.subcommand_matches("dev").expect("dev");
        let layout = Layout::of(matches)?;
        layout.check_data()?;
        layout.configs(&settings::given(Scope::Cluster, matches, &Environment::new())?)
    }

    #[test]
    fn a_cluster_of_every_size_passes_the_check() {
        for nodes in 1..=NODES_MAX {
            let configs = layout(&["--nodes", &nodes.to_string()]).expect("valid");
            assert_eq!(configs.len(), usize::from(nodes));
        }
    }

    #[test]
    fn nodes_have_the_documented_ports_and_share_the_settings() {
        let configs = layout(&["--epoch-interval-ms", "7"]).expect("valid");
        let third = &configs[2];
        assert_eq!((third.http_port, third.raft_bind.port()), (8883, 60003));
        assert_eq!(third.advertise_addr, "127.0.0.1:8883");
        assert_eq!(third.data_dir, PathBuf::from("_raft/dev/node-3"));
        assert_eq!(third.tls.cert_file, PathBuf::from("_raft/dev/cert.pem"));
        assert_eq!((third.cluster_name.as_str(), third.bootstrap), ("dev", true));
        assert_eq!(third.epoch_interval, Duration::from_millis(7));
        assert!(configs[0].logging.pretty);
    }

    #[test]
    fn leadership_comes_back_to_node_1_if_there_are_others() {
        let zones = |flags: &[&str]| {
            let configs = layout(flags).expect("valid");
            let own =
                configs.iter().filter_map(|it| it.placement.zone.as_ref().map(Zone::to_string));
            let leaders = configs.iter().map(|it| it.placement.leaders.clone());
            (own.collect::<Vec<_>>(), leaders.collect::<Vec<_>>())
        };
        let first = Zone::new("node-1").expect("a zone");
        let own = ["node-1", "node-2", "node-3"].map(str::to_owned);
        assert_eq!(zones(&[]), (own.to_vec(), vec![vec![first]; 3]));
        assert_eq!(zones(&["--nodes", "1"]), (vec![], vec![vec![]]));
    }

    #[test]
    fn ports_beyond_the_last_are_refused() {
        assert_eq!(layout(&["--http-port-base", "65534"]).expect_err("too high").code, 2);
        assert_eq!(layout(&["--http-port-base", "60003"]).expect_err("a clash").code, 2);
    }
}
