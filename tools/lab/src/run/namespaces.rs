//! Links made by the kernel: a network namespace for each node, pairs of virtual devices between
//! them, and `netem`, which delays what a device sends. The lab itself runs in a namespace of its
//! own ([`Entry`]), so no device, route or address of the machine changes. The system deletes all of
//! it when the last process in it ends.
//!
//! - Nodes reach each other at `10.9.0.x`, over one pair of devices for each two nodes.
//! - Clients of region r reach a node at `10.(16 + r).x.2`, over a pair for each region and node. So
//!   every direction has a device of its own, and needs no filter.
//! - The lab's own questions go to `10.8.x.2`, and have neither delay nor fault.
//!
//! A direction that is cut loses all packets on their way (netem's loss), as a cable that is pulled.
//! TCP does not notice it, and sends them again after longer and longer times. A queue that is full
//! would not do: the sender's own kernel tells TCP of it, which then tries again twice a second, and
//! ends the connection after some seconds.
//!
//! The lab contacts no other machine. If the kernel has the modules `veth` and `sch_netem` and has
//! not loaded them, it does so, and they stay loaded.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::error::LabError;
use crate::outcome::End;
use crate::topology::Topology;

/// How the lab gets into a namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whether it needs a user namespace for that, as it does without root.
    is_user: bool,
}

impl Entry {
    /// Tries everything that the links need, in a namespace that is gone afterwards.
    ///
    /// # Errors
    /// What this machine cannot do, in one line.
    pub fn probe() -> Result<Self, String> {
        find(&TOOLS)?;
        let tries = |is_user| finish(start(Self { is_user }.unshare().arg("true"), "")?);
        let entry = match tries(false) {
            Ok(()) => Self { is_user: false },
            Err(_not_root) => {
                tries(true).map_err(|why| format!("no network namespace can be made: {why}"))?;
                Self { is_user: true }
            }
        };
        let inside = |args: &str, problem: &str| {
            let mut command = entry.unshare();
            command.args(args.split(' '));
            start(&mut command, "").and_then(finish).map_err(|why| format!("{problem}: {why}"))
        };
        inside("ip link add name one type veth peer name other", "no virtual devices can be made")?;
        inside("nsenter --net=/proc/self/ns/net true", "no process can enter a namespace")?;
        inside(
            "tc qdisc add dev lo root netem delay 1ms",
            "the kernel cannot delay packets (its module sch_netem is missing)",
        )?;
        Ok(entry)
    }

    /// A command that runs `program` in a new network namespace.
    #[must_use]
    pub fn command(self, program: &Path) -> Command {
        let mut command = self.unshare();
        command.arg("--").arg(program);
        command
    }

    fn unshare(self) -> Command {
        let mut command = Command::new("unshare");
        if self.is_user {
            command.args(["--user", "--map-root-user"]);
        }
        command.arg("--net");
        command
    }
}

/// One direction of a link: what it should do to packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Direction {
    pub(super) from: End,
    pub(super) to: End,
    pub(super) delay_ms: f64,
    /// The longest random delay in addition.
    pub(super) jitter_ms: f64,
    pub(super) is_cut: bool,
}

/// The namespaces of all nodes.
pub(super) struct Namespaces {
    /// Each node's number in addresses and names of devices, from 1.
    numbers: BTreeMap<u64, u8>,
    holders: BTreeMap<u64, Holder>,
    /// What each device does now, so that only changes are made.
    told: BTreeMap<String, String>,
}

/// A process that keeps a namespace. It reads from a pipe of the lab, so it ends with the lab, however
/// the lab ends.
struct Holder {
    child: Child,
}

impl Namespaces {
    /// Makes a namespace for each node, and all devices between them. There are no delays yet.
    pub(super) fn new(topology: &Topology) -> Result<Self, LabError> {
        let failed = |what: String| LabError::Netns(what);
        // In a new namespace not even the loopback device is up, so it has no route.
        let is_fresh = |routes: io::Result<String>| routes.is_ok_and(|it| it.trim().is_empty());
        if !is_fresh(fs::read_to_string("/proc/net/fib_trie")) {
            return Err(failed("the lab is in a namespace with a network".into()));
        }
        let numbers: BTreeMap<u64, u8> = topology.nodes.keys().copied().zip(1..).collect();
        let mut holders = BTreeMap::new();
        for id in topology.nodes.keys() {
            holders.insert(*id, Holder::start().map_err(failed)?);
        }
        let namespaces = Self { numbers, holders, told: BTreeMap::new() };
        let pid = |id: u64| namespaces.holders[&id].child.id();
        let hub = hub_lines(topology, &namespaces.numbers, pid);
        namespaces.run("ip", None, &hub).and_then(finish).map_err(failed)?;
        for id in topology.nodes.keys() {
            let lines = node_lines(topology, &namespaces.numbers, *id);
            namespaces.run("ip", Some(*id), &lines).and_then(finish).map_err(failed)?;
        }
        Ok(namespaces)
    }

    /// Where the lab's own questions reach a node.
    pub(super) fn control(&self, id: u64) -> SocketAddr {
        (Ipv4Addr::new(10, CONTROL, self.numbers[&id], 2), HTTP_PORT).into()
    }

    /// The addresses from which the lab asks its own questions, and changes who leads.
    pub(super) fn control_network() -> String {
        format!("10.{CONTROL}.0.0/16")
    }

    /// Where clients of a region reach a node.
    pub(super) fn target(&self, region: usize, id: u64) -> SocketAddr {
        (Ipv4Addr::new(10, CLIENTS + region as u8, self.numbers[&id], 2), HTTP_PORT).into()
    }

    /// Where other nodes reach a node.
    pub(super) fn peer(&self, id: u64) -> SocketAddr {
        (Ipv4Addr::new(10, PEERS, 0, self.numbers[&id]), RAFT_PORT).into()
    }

    /// The file of a node's namespace, for `nsenter`.
    pub(super) fn file(&self, id: u64) -> PathBuf {
        self.holders[&id].file()
    }

    /// Makes these directions do what they should. All namespaces change at the same time.
    pub(super) fn set(&mut self, directions: &[Direction]) -> Result<(), LabError> {
        let mut changes: BTreeMap<Option<u64>, String> = BTreeMap::new();
        for direction in directions {
            let (namespace, device) = sender(&self.numbers, direction);
            let line = qdisc_line(&device, direction);
            let key = format!("{namespace:?} {device}");
            if self.told.insert(key, line.clone()).as_ref() != Some(&line) {
                *changes.entry(namespace).or_default() += &line;
            }
        }
        let started: Vec<_> =
            changes.iter().map(|(namespace, lines)| self.run("tc", *namespace, lines)).collect();
        let ended: Vec<_> = started.into_iter().map(|it| it.and_then(finish)).collect();
        ended.into_iter().collect::<Result<(), String>>().map_err(LabError::Netns)
    }

    /// Starts `ip` or `tc` with these lines, in a node's namespace or in the lab's.
    fn run(&self, tool: &str, namespace: Option<u64>, lines: &str) -> Result<Tool, String> {
        let mut command = match namespace {
            None => Command::new(tool),
            Some(id) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", self.file(id).display())).arg(tool);
                command
            }
        };
        start(command.args(["-batch", "-"]), lines)
    }
}

impl Holder {
    fn start() -> Result<Self, String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        // As for tools, see `start`.
        let child = command
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|it| format!("unshare: {it}"))?;
        let mut holder = Self { child };
        let own = fs::read_link("/proc/self/ns/net").map_err(|it| it.to_string())?;
        let end = Instant::now() + TOOL_MAX;
        // The process exists before it is in its own namespace.
        while fs::read_link(holder.file()).ok().is_none_or(|it| it == own) {
            let has_ended = !matches!(holder.child.try_wait(), Ok(None));
            if has_ended || Instant::now() >= end {
                return Err("unshare --net makes no namespace".into());
            }
            thread::sleep(LOOK);
        }
        Ok(holder)
    }

    fn file(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.child.id()).into()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fails with the first of these tools that cannot be started.
fn find(tools: &[&str]) -> Result<(), String> {
    for name in tools {
        let tool = start(Command::new(name).arg("-V"), "");
        let tool = tool.map_err(|why| format!("a tool cannot be started: {why}; install it"))?;
        // What it says does not matter.
        let _started = finish(tool);
    }
    Ok(())
}

/// The lines for `ip` that make all devices, from the lab's namespace.
fn hub_lines(topology: &Topology, numbers: &BTreeMap<u64, u8>, pid: impl Fn(u64) -> u32) -> String {
    let mut lines = vec!["link set lo up".to_owned()];
    for (id, number) in numbers {
        let nets = topology.clients.keys().map(|region| CLIENTS + *region as u8);
        for net in nets.chain([CONTROL]) {
            let (mine, other) = (mac(net, *number, 0, 1), mac(net, *number, 0, 2));
            let (device, theirs) = (hub_device(net, *number), node_device(net));
            let namespace = pid(*id);
            lines.push(format!(
                "link add name {device} address {mine} type veth peer name {theirs} address {other} netns \
                 {namespace}"
            ));
            lines.extend(up(&device, &format!("10.{net}.{number}.1/30")));
            lines.push(neighbour(&format!("10.{net}.{number}.2"), &other, &device));
        }
        for (peer, later) in numbers.iter().filter(|(peer, _)| *peer > id) {
            let (one, other) = (mac(PEERS, *number, *later, 1), mac(PEERS, *number, *later, 2));
            lines.push(format!(
                "link add name {} address {one} netns {} type veth peer name {} address {other} netns {}",
                peer_device(*later),
                pid(*id),
                peer_device(*number),
                pid(*peer),
            ));
        }
    }
    joined(&lines)
}

/// The lines for `ip` in a node's namespace: addresses and routes of its devices.
fn node_lines(topology: &Topology, numbers: &BTreeMap<u64, u8>, id: u64) -> String {
    let own = numbers[&id];
    let mut lines =
        vec!["link set lo up".to_owned(), format!("addr add 10.{PEERS}.0.{own}/32 dev lo")];
    let nets = topology.clients.keys().map(|region| CLIENTS + *region as u8);
    for net in nets.chain([CONTROL]) {
        let device = node_device(net);
        lines.extend(up(&device, &format!("10.{net}.{own}.2/30")));
        lines.push(neighbour(&format!("10.{net}.{own}.1"), &mac(net, own, 0, 1), &device));
    }
    for (peer, number) in numbers.iter().filter(|(peer, _)| **peer != id) {
        let device = peer_device(*number);
        let (low, high) = (own.min(*number), own.max(*number));
        let theirs = mac(PEERS, low, high, if id < *peer { 2 } else { 1 });
        lines.push(format!("link set {device} up"));
        let (to, from) = (format!("10.{PEERS}.0.{number}"), format!("10.{PEERS}.0.{own}"));
        lines.push(format!("route add {to}/32 dev {device} src {from}"));
        lines.push(neighbour(&to, &theirs, &device));
    }
    joined(&lines)
}

/// The line for `tc` that makes a device do what a direction should.
fn qdisc_line(device: &str, direction: &Direction) -> String {
    let Direction { delay_ms, jitter_ms, is_cut, .. } = direction;
    let what = if *is_cut {
        format!("netem loss 100% limit {PACKETS_MAX}")
    } else if *jitter_ms > 0.0 {
        // netem draws from both sides of the delay.
        let half = jitter_ms / 2.0;
        format!("netem delay {:.3}ms {half:.3}ms limit {PACKETS_MAX}", delay_ms + half)
    } else {
        format!("netem delay {delay_ms:.3}ms limit {PACKETS_MAX}")
    };
    format!("qdisc replace dev {device} root {what}\n")
}

/// The namespace and the device that send in this direction. The lab's own namespace is `None`.
fn sender(numbers: &BTreeMap<u64, u8>, direction: &Direction) -> (Option<u64>, String) {
    let net = |region: usize| CLIENTS + region as u8;
    match (direction.from, direction.to) {
        (End::Node(from), End::Node(to)) => (Some(from), peer_device(numbers[&to])),
        (End::Node(from), End::Clients(region)) => (Some(from), node_device(net(region))),
        (End::Clients(region), End::Node(to)) => (None, hub_device(net(region), numbers[&to])),
        (End::Clients(_), End::Clients(_)) => unreachable!("clients have no link between them"),
    }
}

/// A device of the lab's namespace.
fn hub_device(net: u8, number: u8) -> String {
    format!("c{net}-{number}")
}

/// A node's device towards the lab's namespace.
fn node_device(net: u8) -> String {
    format!("c{net}")
}

/// A node's device towards another node.
fn peer_device(number: u8) -> String {
    format!("p{number}")
}

fn mac(net: u8, one: u8, other: u8, end: u8) -> String {
    // The second lowest bit of the first byte marks an address that no maker gave.
    format!("02:00:{net:02x}:{one:02x}:{other:02x}:{end:02x}")
}

fn up(device: &str, addr: &str) -> [String; 2] {
    [format!("addr add {addr} dev {device}"), format!("link set {device} up")]
}

/// Without a fixed neighbour, a packet after a cut would wait for a question and its answer.
fn neighbour(addr: &str, mac: &str, device: &str) -> String {
    format!("neigh add {addr} lladdr {mac} dev {device} nud permanent")
}

fn joined(lines: &[String]) -> String {
    lines.join("\n") + "\n"
}

/// A tool of the system that runs.
struct Tool {
    name: String,
    child: Child,
    said: ChildStderr,
}

fn start(command: &mut Command, input: &str) -> Result<Tool, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error: io::Error| format!("{name}: {error}");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    // A group of its own, so that an interrupt from the terminal reaches only the lab.
    command.process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let said = child.stderr.take().expect("it is a pipe");
    // All lines fit into a pipe. A tool that ends early says why on its standard error.
    let _early = child.stdin.take().expect("it is a pipe").write_all(input.as_bytes());
    Ok(Tool { name, child, said })
}

/// Waits for a tool. If it fails, returns the first line that it said.
fn finish(tool: Tool) -> Result<(), String> {
    let Tool { name, mut child, said } = tool;
    let end = Instant::now() + TOOL_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => thread::sleep(LOOK),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} takes longer than {TOOL_MAX:?}"));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut text = Vec::new();
    let _partial = said.take(SAID_LEN_MAX).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| !line.trim().is_empty());
    let sentence = |it: &str| {
        let it = it.trim();
        it.strip_prefix("Error: ").unwrap_or(it).trim_end_matches('.').to_owned()
    };
    Err(line.map_or_else(|| format!("{name} ended with {status}"), sentence))
}

/// The tools that the links need.
const TOOLS: [&str; 4] = ["unshare", "nsenter", "ip", "tc"];
/// The second number of addresses of the lab's own questions.
const CONTROL: u8 = 8;
/// The second number of addresses of nodes among each other.
const PEERS: u8 = 9;
/// The second number of addresses of the first region's clients. Other regions follow.
const CLIENTS: u8 = 16;
/// Each node is alone in its namespace, so all have the same ports.
const HTTP_PORT: u16 = 8080;
const RAFT_PORT: u16 = 60001;
/// A delayed direction holds at most this many packets.
const PACKETS_MAX: u32 = 10_000;
/// How long a tool may take.
const TOOL_MAX: Duration = Duration::from_secs(10);
/// Time between two looks at a tool.
const LOOK: Duration = Duration::from_millis(1);
/// At most this many bytes of what a tool says are read.
const SAID_LEN_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    fn direction(from: End, to: End) -> Direction {
        Direction { from, to, delay_ms: 40.0, jitter_ms: 0.0, is_cut: false }
    }

    #[test]
    fn a_direction_is_delayed_by_the_device_that_sends() {
        let numbers = BTreeMap::from([(1, 1), (7, 2)]);
        let sends = |from, to| sender(&numbers, &direction(from, to));
        assert_eq!(sends(End::Node(7), End::Node(1)), (Some(7), "p1".to_owned()));
        assert_eq!(sends(End::Node(7), End::Clients(3)), (Some(7), "c19".to_owned()));
        assert_eq!(sends(End::Clients(3), End::Node(7)), (None, "c19-2".to_owned()));
    }

    #[test]
    fn a_delay_a_jitter_and_a_cut_are_lines_for_tc() {
        let plain = direction(End::Node(1), End::Node(2));
        let line = |it| qdisc_line("p2", &it);
        assert_eq!(line(plain), "qdisc replace dev p2 root netem delay 40.000ms limit 10000\n");
        let jitter = Direction { jitter_ms: 1.0, ..plain };
        let said = "qdisc replace dev p2 root netem delay 40.500ms 0.500ms limit 10000\n";
        assert_eq!(line(jitter), said, "from 40 to 41 ms, as the proxies do it");
        let cut = Direction { is_cut: true, ..jitter };
        assert_eq!(line(cut), "qdisc replace dev p2 root netem loss 100% limit 10000\n");
    }

    #[test]
    fn every_device_of_every_built_in_topology_is_made_once_and_has_two_ends() {
        for (name, _) in builtin::BUILT_IN {
            let topology = builtin::find(name).expect("built in");
            let numbers: BTreeMap<u64, u8> = topology.nodes.keys().copied().zip(1..).collect();
            let lines = hub_lines(&topology, &numbers, |id| 1000 + id as u32);
            let (nodes, clients) = (numbers.len(), topology.clients.len());
            let pairs = nodes * (nodes - 1) / 2 + nodes * (clients + 1);
            assert_eq!(lines.matches("link add").count(), pairs, "{name}\n{lines}");
            let ends = |part: &str| part.matches("address 02:").count();
            assert_eq!(ends(&lines), 2 * pairs, "{name}");
            for id in topology.nodes.keys() {
                let lines = node_lines(&topology, &numbers, *id);
                // Its own, the lab's, a device for each region of clients, and one for each peer.
                assert_eq!(
                    lines.matches("link set").count(),
                    1 + 1 + clients + nodes - 1,
                    "{lines}"
                );
                assert_eq!(lines.matches("route add").count(), nodes - 1, "{lines}");
            }
        }
    }

    #[test]
    fn both_ends_of_a_pair_know_the_address_of_the_other() {
        let topology = builtin::find("three-regions").expect("built in");
        let numbers: BTreeMap<u64, u8> = topology.nodes.keys().copied().zip(1..).collect();
        let (first, second) =
            (node_lines(&topology, &numbers, 1), node_lines(&topology, &numbers, 2));
        let hub = hub_lines(&topology, &numbers, |id| id as u32);
        assert!(hub.contains(
            "link add name p2 address 02:00:09:01:02:01 netns 1 type veth peer name p1 address \
             02:00:09:01:02:02 netns 2"
        ));
        assert!(first.contains("neigh add 10.9.0.2 lladdr 02:00:09:01:02:02 dev p2"), "{first}");
        assert!(second.contains("neigh add 10.9.0.1 lladdr 02:00:09:01:02:01 dev p1"), "{second}");
    }

    #[test]
    fn a_missing_tool_is_named() {
        assert_eq!(find(&["true", "false"]), Ok(()), "what a tool says does not matter");
        let missing = find(&["true", "no-such-tool"]).expect_err("it is not there");
        assert!(missing.contains("no-such-tool: "), "{missing}");
    }

    #[test]
    fn a_tool_has_a_process_group_of_its_own() {
        // The fifth field is the process group, the first one the process.
        let script = "cut -d' ' -f1,5 /proc/$$/stat >&2; exit 1";
        let said = start(Command::new("sh").args(["-c", script]), "").and_then(finish);
        let said = said.expect_err("it fails");
        let (pid, group) = said.split_once(' ').expect("two fields");
        assert_eq!(pid, group);
    }

    #[test]
    fn a_tool_that_fails_says_why_in_one_line() {
        let run = |program: &str, args: &[&str]| {
            start(Command::new(program).args(args), "").and_then(finish)
        };
        let said = run("sh", &["-c", "echo Error: first. >&2; echo second >&2; exit 3"]);
        assert_eq!(said, Err("first".to_owned()));
        let silent = run("false", &[]).expect_err("it fails");
        assert!(silent.starts_with("false ended with"), "{silent}");
        let missing = run("no-such-tool", &[]).expect_err("it is not there");
        assert!(missing.starts_with("no-such-tool: "), "{missing}");
    }
}
