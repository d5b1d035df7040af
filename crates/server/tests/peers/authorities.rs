//! The fixture of these tests: an authority, its certificates in files, and nodes that use them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use epicepoch_certs::authority::{Authority, Issued, Validity};
use epicepoch_link::unused_port;
use epicepoch_server::config::PeerTlsMode;
use epicepoch_server::{Config, Node, RunError};
use epicepoch_wire::NodeId;
use tempfile::TempDir;

/// The cluster name of all tests here.
pub(crate) const CLUSTER: &str = "secured";
/// Longest wait for a step of a test, also on a busy machine.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);

/// An authority, its files, and the ports of three nodes.
pub(crate) struct Fixture {
    pub(crate) authority: Authority,
    pub(crate) dir: TempDir,
    pub(crate) raft: Vec<SocketAddr>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let fixture = Self {
            authority: Authority::new(CLUSTER).unwrap(),
            dir: tempfile::tempdir().unwrap(),
            raft: [(); 3].map(|()| (Ipv4Addr::LOCALHOST, unused_port()).into()).into(),
        };
        write(&fixture.path("ca.pem"), fixture.authority.certificate());
        for node in 1..=3 {
            let issued = fixture.issued(node, 30);
            fixture.hand_out(node, &issued);
        }
        fixture
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn issued(&self, node: u64, days: u32) -> Issued {
        self.authority.node(NodeId(node), &[], Validity::days(days)).unwrap()
    }

    /// Writes a certificate to the file of a node.
    pub(crate) fn hand_out(&self, node: u64, issued: &Issued) {
        write(&self.path(&format!("node-{node}.key")), &issued.key);
        write(&self.path(&format!("node-{node}.pem")), &issued.certificate);
    }

    pub(crate) fn config(&self, node: u64) -> Config {
        let mut config = Config::new(NodeId(node), self.raft[node as usize - 1].to_string());
        config.peers = (1..).map(NodeId).zip(self.raft.iter().map(ToString::to_string)).collect();
        CLUSTER.clone_into(&mut config.cluster_name);
        config.bootstrap = true;
        config.http_bind = Ipv4Addr::LOCALHOST.into();
        config.http_port = 0;
        "127.0.0.1:0".clone_into(&mut config.advertise_addr);
        config.data_dir = self.path(&format!("data-{node}"));
        // A long timeout, because the machine may be busy with a build.
        config.election_timeout = Duration::from_secs(1);
        config.heartbeat = Duration::from_millis(200);
        config.reservation = Duration::from_secs(5);
        config.links.cert_file = Some(self.path(&format!("node-{node}.pem")));
        config.links.key_file = Some(self.path(&format!("node-{node}.key")));
        config.links.ca_file = Some(self.path("ca.pem"));
        // The node makes this pair for HTTP/3.
        config.tls.cert_file = self.path(&format!("clients-{node}.pem"));
        config.tls.key_file = self.path(&format!("clients-{node}.key"));
        config
    }

    pub(crate) fn start(&self, node: u64) -> Running {
        self.start_as(node, None)
    }

    pub(crate) fn start_as(&self, node: u64, mode: Option<PeerTlsMode>) -> Running {
        let mut config = self.config(node);
        config.links.tls = mode;
        Running::of(Node::start(config).unwrap())
    }
}

/// A node that stops when its test ends.
pub(crate) struct Running(Option<Node>);

impl Running {
    pub(crate) fn of(node: Node) -> Self {
        Self(Some(node))
    }

    pub(crate) fn node(&self) -> &Node {
        self.0.as_ref().expect("it runs")
    }

    /// Waits until the node has ended by itself.
    pub(crate) fn ended(mut self) -> Result<(), RunError> {
        let node = self.0.take().expect("it runs");
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || ended.send(node.wait()));
        end.recv_timeout(WAIT_MAX).expect("the node ends")
    }

    /// The value of a metric, added up over its labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = get(self.node().http_addr(), "/metrics").1;
        // If the name goes on after this prefix, the line belongs to another metric.
        let is_of =
            |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let values = text.lines().filter(is_of);
        let values = values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>() as u64
    }

    /// Waits until a metric is at least `least`.
    pub(crate) fn await_metric(&self, name: &str, least: u64) {
        wait_until(name, || self.metric(name) >= least);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(node) = self.0.take() {
            node.request_shutdown();
            let _ended = node.wait();
        }
    }
}

/// Waits until a node gives a timestamp, and returns it.
pub(crate) fn stamp(nodes: &[Running]) -> Vec<u8> {
    let mut got = None;
    wait_until("a timestamp", || {
        let answers =
            nodes.iter().map(|node| get(node.node().http_addr(), "/timestamp?format=json"));
        got = answers.into_iter().find(|(status, _)| *status == 200).map(|(_, body)| body);
        got.is_some()
    });
    got.unwrap_or_default().into_bytes()
}

/// Sends a `GET` and returns status and body.
pub(crate) fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    use std::io::{Read as _, Write as _};
    let ask = || -> std::io::Result<String> {
        let mut stream = std::net::TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = ask().unwrap_or_default();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < WAIT_MAX, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn write(path: &Path, text: &str) {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let new = path.with_extension("new");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&new).unwrap().write_all(text.as_bytes()).unwrap();
    std::fs::rename(new, path).unwrap();
}
