//! `epicepoch rolling`: restarts the nodes of a cluster one after the other while it serves.
//! Followers come first. The leader comes last, after it has handed over. A command of the operator
//! restarts each process. `rolling` stops at the first problem, or at a signal, and reports where.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command as Process, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use clap::{Arg, ArgMatches, Command};
use epicepoch_config::{Environment, host_and_port, whole_number};
use epicepoch_wire::http::{PATH_ADMIN_MEMBERS, PATH_ADMIN_TRANSFER};
use serde_json::Value;

use crate::addresses;
use crate::arguments::{client_arguments, switch};
use crate::clock;
use crate::failure::Failure;
use crate::leader::leader;
use crate::operator::Order;
use crate::signals;

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(100);
/// A problem that is seen before a restart counts only if it lasts this long. A shorter one may be a
/// short stall of the machine: after a silence of one election timeout, the leader reports that it
/// does not hear the node. A new leader hears each node a moment later.
const PROBLEM_LASTS: Duration = Duration::from_secs(2);
/// A restarted node may lack at most this many committed entries before the next node is restarted.
const LAG_MAX: u64 = 16;
/// A cluster needs at least this many voters, so that it serves while one of them is down.
const SERVING_VOTERS: usize = 3;
/// The message after the first signal.
const STOPPING: &str =
    "stopping as soon as the node's command has ended; another signal ends this at once";
/// After this many failed transfers of leadership the command gives up. One failure is not enough,
/// because a voter may refuse once.
const TRANSFERS_MAX: usize = 5;

pub(crate) fn command() -> Command {
    Command::new("rolling")
        .about("Restart all nodes, one after the other, while the cluster serves")
        .long_about(
            "Restart all nodes, one after the other, while the cluster serves: followers first, the \
             leader last, after it has handed over. The command first checks that all nodes are well. \
             Right before each restart it checks all other nodes again. \
             After each restart it waits until the node runs as another process, is ready, is heard by \
             the leader and has caught up. At the first problem it stops, and reports where, and what \
             is left to do. It does so, too, at Ctrl-C or SIGTERM, once the command of --restart has \
             ended; a second signal ends it at once.\n\n\
             A cluster of one or two voters does not answer while one of them restarts, because a \
             majority of two is both. The command says so beforehand. Nothing is lost: clients wait, \
             or are told to ask again. With three or more voters the cluster serves all the time.\n\n\
             The command of --restart is run with sh -c for each node, with these variables: \
             EPICEPOCH_NODE_ID, EPICEPOCH_NODE_ADDR (client address), EPICEPOCH_NODE_HOST (host of \
             that address). It must end the process with SIGTERM and start it again, and may replace \
             the program in between.",
        )
        .after_help(
            "Examples:\n  \
             epicepoch rolling --restart 'ssh $EPICEPOCH_NODE_HOST sudo systemctl restart epicepoch'\n  \
             epicepoch rolling --nodes 2,3 --restart './upgrade.sh'\n  \
             epicepoch rolling --dry-run\n\n\
             The command asks every node, and moves leadership like epicepoch leader transfer: \
             ADMIN_FROM and OPS_PLAIN_FROM of each node must allow it, or give --ca-file and \
             --token-file if the nodes use TLS. If the nodes have an OPS_ADDR, name that of every node \
             in --addr.\n\n\
             Exit codes: 0 all nodes were restarted; 1 it has stopped, and reports where; 2 wrong usage.",
        )
        .arg(
            Arg::new("restart")
                .long("restart")
                .value_name("COMMAND")
                .required_unless_present("dry-run")
                .help("Command that restarts one node, run with sh -c; see above"),
        )
        .arg(
            Arg::new("nodes")
                .long("nodes")
                .value_name("ID,...")
                .help("Restart only these nodes; default all members"),
        )
        .arg(
            Arg::new("wait")
                .long("wait")
                .value_name("TIME")
                .default_value("60s")
                .help("How long a node may take to be ready again after its command has ended"),
        )
        .arg(
            Arg::new("settle")
                .long("settle")
                .value_name("TIME")
                .default_value("2s")
                .help("How long all nodes must be well before the next restart"),
        )
        .arg(switch("dry-run", "Check that all nodes are well, print the order, and restart nothing"))
        .args(client_arguments())
}

/// A member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    node: u64,
    addr: String,
    is_leader: bool,
    is_voter: bool,
    heard: bool,
    behind: u64,
}

struct Rolling<'a> {
    matches: &'a ArgMatches,
    environment: &'a Environment,
    wait: Duration,
    settle: Duration,
    /// Where to print progress.
    progress: Cell<Progress>,
    /// Whether a signal has come.
    is_stopped: Arc<AtomicBool>,
}

/// Where progress is printed. If the reader of one output leaves, the next output is used, and the
/// restarts go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Stdout,
    /// Standard output has failed.
    Stderr,
    /// Standard error has failed, too.
    Nowhere,
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let rolling = Rolling {
        matches,
        environment,
        wait: time(matches, "wait")?,
        settle: time(matches, "settle")?,
        progress: Cell::new(Progress::Stdout),
        is_stopped: Arc::default(),
    };
    let wanted = matches.get_one::<String>("nodes").map(|text| ids(text)).transpose()?;
    let seen = rolling.look()?;
    // The order is computed here only to report an unknown node at once. It is computed again when
    // all nodes are well.
    order(&seen, wanted.as_deref())?;
    let seen = rolling.look_until_well(Ok(seen), None);
    let seen = seen.map_err(|error| anyhow!("{error:#}; nothing was restarted"))?;
    let order = order(&seen, wanted.as_deref())?;
    rolling.print(&format!("all nodes are well; restarting in this order: {}", names(&order)));
    if let Some(outage) = outage(&seen, &order) {
        rolling.print(&outage);
    }
    if matches.get_flag("dry-run") {
        return Ok(ExitCode::SUCCESS);
    }
    let command = matches.get_one::<String>("restart").map_or("", String::as_str);
    let is_stopped = rolling.is_stopped.clone();
    signals::watch(move || {
        is_stopped.store(true, Ordering::SeqCst);
        let _unread = writeln!(io::stderr(), "{STOPPING}");
    })?;
    for (at, node) in order.iter().enumerate() {
        let before = rolling.boot_of(*node);
        let done = before.as_ref().map_err(|error| anyhow!("{error:#}"));
        let done = done.and_then(|before| rolling.restart(*node, command, before.as_deref()));
        done.map_err(|error| {
            let is_another =
                before.is_ok_and(|before| rolling.is_another(*node, before.as_deref()));
            error.context(where_it_stopped(&order, at, is_another))
        })?;
    }
    let leader = match rolling.look() {
        Ok(seen) => match seen.iter().find(|it| it.is_leader) {
            Some(leader) => format!("node {} leads", leader.node),
            None => "no node leads now".to_owned(),
        },
        Err(failure) => format!("the leader is not known: {:#}", failure.error),
    };
    rolling.print(&format!("all nodes were restarted: {}; {leader}", names(&order)));
    Ok(ExitCode::SUCCESS)
}

fn names(nodes: &[u64]) -> String {
    nodes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns a text that says at which node the command stopped, and with which node to go on. That
/// is the same node, or the next one if the node was restarted already.
fn where_it_stopped(order: &[u64], at: usize, is_another: bool) -> String {
    let (done, left) = order.split_at(if is_another { at + 1 } else { at });
    let mut text = format!("stopped at node {}", order[at]);
    if !done.is_empty() {
        let _infallible = write!(text, "; restarted were {}", names(done));
    }
    let _infallible = match left {
        [] => write!(text, "; it was the last one"),
        _ => write!(
            text,
            "; go on, once it is well, with --nodes {}",
            left.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
        ),
    };
    text
}

/// Whether the node leads, and another voter could.
fn leads_others(seen: &[Seen], node: u64) -> bool {
    seen.iter().any(|it| it.node == node && it.is_leader)
        && seen.iter().filter(|it| it.is_voter).count() >= 2
}

impl Rolling<'_> {
    /// Restarts one node and waits until all nodes are well again. `before` is the node's old boot
    /// id.
    fn restart(&self, node: u64, command: &str, before: Option<&str>) -> Result<(), anyhow::Error> {
        let seen = self.look_without_lead(node)?;
        self.check_signal()?;
        let addr = seen.iter().find(|it| it.node == node).map(|it| it.addr.clone());
        let addr = addr.ok_or_else(|| anyhow!("node {node} is not a member any more"))?;
        let host = host_of(&addr)?;
        self.print(&format!("node {node}: restarting"));
        let from = Instant::now();
        let (output, errors) = self.streams();
        let status = Process::new("sh")
            .args(["-c", command])
            .env("EPICEPOCH_NODE_ID", node.to_string())
            .env("EPICEPOCH_NODE_ADDR", &addr)
            .env("EPICEPOCH_NODE_HOST", host)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .status()
            .context("sh cannot be run")?;
        self.check_signal().with_context(|| format!("its command ended with {status}"))?;
        if !status.success() {
            bail!("its command ended with {status}: see the command's output and the node's log");
        }
        self.wait_until_well(node, before)?;
        let took = from.elapsed().as_secs_f64();
        self.print(&format!("node {node}: ready after {took:.1} s, all is well"));
        if before.is_none() && matches!(self.boot_of(node), Ok(None)) {
            self.print(&format!(
                "node {node}: its version does not report its boot id, so the restart could not be \
                 verified"
            ));
        }
        Ok(())
    }

    /// Prints a line of progress.
    fn print(&self, line: &str) {
        if self.progress.get() == Progress::Stdout {
            let Err(error) = writeln!(io::stdout().lock(), "{line}") else { return };
            self.progress.set(Progress::Stderr);
            self.print(&format!(
                "standard output failed ({error}): progress goes to standard error"
            ));
        }
        if self.progress.get() == Progress::Stderr && writeln!(io::stderr(), "{line}").is_err() {
            self.progress.set(Progress::Nowhere);
        }
    }

    /// Returns where the command's output and errors go. It is never standard output, because a
    /// reader that leaves would end the command halfway.
    fn streams(&self) -> (Stdio, Stdio) {
        match self.progress.get() {
            Progress::Stdout | Progress::Stderr => (io::stderr().into(), Stdio::inherit()),
            Progress::Nowhere => (Stdio::null(), Stdio::null()),
        }
    }

    /// Whether the node runs in another process than the one with the boot id `before`.
    fn is_another(&self, node: u64, before: Option<&str>) -> bool {
        self.boot_of(node).is_ok_and(|now| now.is_some() && now.as_deref() != before)
    }

    /// Returns an error once a signal has come.
    fn check_signal(&self) -> Result<(), anyhow::Error> {
        if self.is_stopped.load(Ordering::SeqCst) {
            bail!("a signal has stopped epicepoch rolling");
        }
        Ok(())
    }

    /// Moves leadership away from the node, until the other nodes are well and it does not lead. The
    /// handover may take some time, in which it may lead again, and another operator may restart nodes.
    fn look_without_lead(&self, node: u64) -> Result<Vec<Seen>, anyhow::Error> {
        for _ in 0..TRANSFERS_MAX {
            self.hand_over_from(node)?;
            let seen = self.look_until_well(self.look(), Some(node))?;
            if !leads_others(&seen, node) {
                return Ok(seen);
            }
        }
        bail!("it became leader again each time")
    }

    /// Moves leadership away from the node.
    fn hand_over_from(&self, node: u64) -> Result<(), anyhow::Error> {
        let mut last = anyhow!("it became leader again each time");
        for _ in 0..TRANSFERS_MAX {
            self.check_signal()?;
            let seen = self.look().map_err(|failure| failure.error)?;
            if !leads_others(&seen, node) {
                return Ok(());
            }
            match Order::change(PATH_ADMIN_TRANSFER, &[]).give(self.matches, self.environment) {
                Ok(done) => {
                    let to = leader(&done).map_or("another".to_owned(), |it| it.to_string());
                    self.print(&format!("node {node}: has handed leadership to node {to}"));
                }
                Err(failure) => last = failure.error,
            }
            thread::sleep(PAUSE);
        }
        Err(last.context("it does not hand over leadership"))
    }

    /// Waits until the node runs in a new process and all nodes have been well for as long as
    /// `settle`.
    fn wait_until_well(&self, node: u64, before: Option<&str>) -> Result<(), anyhow::Error> {
        let deadline = Instant::now() + self.wait;
        let mut well_since = None;
        loop {
            self.check_signal()?;
            let problem = self.problem_after(node, before);
            let now = Instant::now();
            match problem {
                None => {
                    let since = *well_since.get_or_insert(now);
                    if now - since >= self.settle {
                        return Ok(());
                    }
                }
                Some(problem) => {
                    well_since = None;
                    if now >= deadline {
                        let waited = self.wait.as_secs_f64();
                        bail!(
                            "{waited:.0} s after its command: {problem}; see the log of the node"
                        );
                    }
                }
            }
            thread::sleep(PAUSE);
        }
    }

    /// Checks again until all nodes except `node` are well, for at most [`PROBLEM_LASTS`]. A failed
    /// question counts as a problem. Returns the members of the last check.
    fn look_until_well(
        &self,
        mut looked: Result<Vec<Seen>, Failure>,
        node: Option<u64>,
    ) -> Result<Vec<Seen>, anyhow::Error> {
        let deadline = Instant::now() + PROBLEM_LASTS;
        loop {
            let problem = match looked {
                Ok(seen) => match self.problem(seen.iter().filter(|it| Some(it.node) != node)) {
                    Ok(None) => return Ok(seen),
                    Ok(Some(problem)) => problem,
                    Err(Failure { error, .. }) => format!("{error:#}"),
                },
                Err(Failure { error, .. }) => format!("{error:#}"),
            };
            if Instant::now() >= deadline {
                bail!("{problem}");
            }
            thread::sleep(PAUSE);
            looked = self.look();
        }
    }

    /// Returns the first problem after a restart. A failed question counts as a problem.
    fn problem_after(&self, node: u64, before: Option<&str>) -> Option<String> {
        let all_well = || -> Result<Option<String>, anyhow::Error> {
            let now = self.boot_of(node)?;
            if before.is_some() && now.as_deref() == before {
                return Ok(Some("it is the same process as before".into()));
            }
            let seen = self.look().map_err(|failure| failure.error)?;
            self.problem(seen.iter()).map_err(|failure| failure.error)
        };
        all_well().unwrap_or_else(|error| Some(format!("{error:#}")))
    }

    /// Returns the members as the leader sees them.
    fn look(&self) -> Result<Vec<Seen>, Failure> {
        let document = Order::look(PATH_ADMIN_MEMBERS).give(self.matches, self.environment)?;
        if document["joint"] == true {
            return Err(anyhow!("the members are being changed").into());
        }
        members(&document).ok_or_else(|| anyhow!("the leader runs another version").into())
    }

    /// Returns the first problem of a member: not ready, not heard by the leader, or behind.
    fn problem<'a>(&self, seen: impl Iterator<Item = &'a Seen>) -> Result<Option<String>, Failure> {
        for Seen { node, addr, heard, behind, .. } in seen {
            if !heard {
                return Ok(Some(format!("the leader does not hear node {node}")));
            }
            if *behind > LAG_MAX {
                return Ok(Some(format!("node {node} lacks {behind} committed entries")));
            }
            let (client, deadline) = addresses::client(self.matches, self.environment)?;
            match addresses::block_on(client.ready(addr, deadline))? {
                Ok(readiness) if readiness.ready => {}
                Ok(readiness) => {
                    return Ok(Some(format!("node {node} is not ready: {}", readiness.detail)));
                }
                Err(error) => return Ok(Some(format!("node {node} does not answer: {error}"))),
            }
        }
        Ok(None)
    }

    /// Returns the boot id of a node's process, or `None` if the node's version does not report
    /// one.
    fn boot_of(&self, node: u64) -> Result<Option<String>, anyhow::Error> {
        let looked =
            clock::look(self.matches, self.environment).map_err(|failure| failure.error)?;
        let row = looked.rows.into_iter().find(|row| row.member.node_id.0 == node);
        let row = row.ok_or_else(|| match looked.doubt {
            Some(doubt) => anyhow!("node {node} is not known: {doubt}"),
            None => anyhow!("node {node} is not a member any more"),
        })?;
        let said = row.clock.map_err(|error| anyhow!("node {node}: {error}"))?;
        Ok(said["boot"].as_str().map(str::to_owned))
    }
}

/// Reads the members from the leader's answer; `None` if it is malformed.
fn members(document: &Value) -> Option<Vec<Seen>> {
    let rows = document["members"].as_array()?.iter().map(|row| {
        let role = row["role"].as_str()?;
        Some(Seen {
            node: row["nodeID"].as_u64()?,
            addr: row["addr"].as_str()?.to_owned(),
            is_leader: role == "leader",
            is_voter: role != "learner",
            heard: row["heard"].as_bool()?,
            behind: row["behind"].as_u64()?,
        })
    });
    rows.collect()
}

/// Returns the host of a client address, without brackets. A member announces its address itself,
/// and may lie. So whatever a shell or ssh could take for more than a host is refused.
fn host_of(addr: &str) -> Result<&str, anyhow::Error> {
    let host = host_and_port(addr).map(|(host, _)| host.trim_matches(['[', ']']));
    host.filter(|host| !host.starts_with('-')).ok_or_else(|| {
        anyhow!(
            "its client address is {addr:?}, and that has no host for the command: see its \
             ADVERTISE_ADDR, and whether it is a node of yours"
        )
    })
}

/// Returns the order of the restarts: learners first, because no majority needs them, and the
/// leader last.
fn order(seen: &[Seen], wanted: Option<&[u64]>) -> Result<Vec<u64>, anyhow::Error> {
    if let Some(unknown) =
        wanted.into_iter().flatten().find(|id| !seen.iter().any(|it| it.node == **id))
    {
        bail!("--nodes names node {unknown}, which is not a member");
    }
    let mut meant: Vec<&Seen> =
        seen.iter().filter(|it| wanted.is_none_or(|ids| ids.contains(&it.node))).collect();
    meant.sort_by_key(|it| (it.is_leader, it.is_voter, it.node));
    Ok(meant.into_iter().map(|it| it.node).collect())
}

/// Returns a warning if the other voters are not a majority during a restart.
fn outage(seen: &[Seen], order: &[u64]) -> Option<String> {
    let voters: Vec<u64> = seen.iter().filter(|it| it.is_voter).map(|it| it.node).collect();
    let is_needed = voters.len() < SERVING_VOTERS && voters.iter().any(|id| order.contains(id));
    is_needed.then(|| {
        format!(
            "the cluster has {} voter{} and needs all of them: it does not answer while one restarts",
            voters.len(),
            if voters.len() == 1 { "" } else { "s" }
        )
    })
}

/// Parses node ids such as `2,3`, each once.
fn ids(text: &str) -> Result<Vec<u64>, Failure> {
    let mut ids = Vec::new();
    for item in text.split(',').map(str::trim) {
        let id = whole_number(item).filter(|id| *id != 0 && !ids.contains(id));
        ids.push(id.ok_or_else(|| {
            Failure::usage(anyhow!("--nodes is {text:?}; allowed are node ids such as 2,3"))
        })?);
    }
    Ok(ids)
}

fn time(matches: &ArgMatches, name: &str) -> Result<Duration, Failure> {
    let text = matches.get_one::<String>(name).map_or("", String::as_str);
    addresses::duration(text, addresses::TIMEOUT_MAX).ok_or_else(|| {
        Failure::usage(anyhow!(
            "--{name} is {text:?}; allowed is a whole number with its unit, from 1ms to 3600s"
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use serde_json::json;

    use super::*;
    use crate::{commands, scripted};

    fn seen(rows: &[(u64, &str)]) -> Vec<Seen> {
        let rows: Vec<_> = rows
            .iter()
            .map(|(node, role)| {
                json!({"nodeID": node, "addr": "n:1", "role": role, "heard": true, "behind": 0})
            })
            .collect();
        members(&json!({"members": rows})).expect("members")
    }

    #[test]
    fn the_leader_is_restarted_last_and_learners_first() {
        let seen = seen(&[(1, "leader"), (2, "voter"), (3, "voter"), (4, "learner")]);
        assert_eq!(order(&seen, None).expect("an order"), [4, 2, 3, 1]);
        assert_eq!(order(&seen, Some(&[1, 3])).expect("an order"), [3, 1]);
        let error = order(&seen, Some(&[9])).expect_err("no member").to_string();
        assert!(error.contains("node 9"), "{error}");
    }

    /// Nodes 1 to 3, of which node 1 leads. Once the boot id of a node was asked, the leader does not
    /// hear node 3 any more. Returns the address of the leader.
    fn start_nodes() -> String {
        let addrs = Arc::new(OnceLock::<Vec<String>>::new());
        let is_lost = Arc::new(AtomicBool::new(false));
        let listeners = [1, 2, 3].map(|id| (id, scripted::listen()));
        let named = listeners.each_ref().map(|(_, (_, addr))| addr.clone());
        addrs.set(named.to_vec()).expect("set once");
        for (id, (listener, _)) in listeners {
            let (addrs, is_lost) = (addrs.clone(), is_lost.clone());
            scripted::serve(listener, move |line| {
                let of = |id: usize| {
                    let is_heard = id != 3 || !is_lost.load(Ordering::SeqCst);
                    let role = if id == 1 { "leader" } else { "voter" };
                    let addr = &addrs.get().expect("set")[id - 1];
                    json!({"nodeID": id, "addr": addr, "raftAddr": "n:1", "role": role,
                           "voter": true, "store": "1", "heard": is_heard, "behind": 0})
                };
                let members = [of(1), of(2), of(3)];
                Ok(match line.split_once(' ').expect("a target").1 {
                    "/members" => json!({"leader": members[0], "members": members}),
                    "/admin/members" => json!({"members": members, "joint": false, "term": 1}),
                    "/admin/clock" => {
                        is_lost.store(true, Ordering::SeqCst);
                        json!({"nodeID": id, "leads": id == 1, "status": "followed", "boot": "a"})
                    }
                    _ => json!(null),
                })
            });
        }
        named[0].clone()
    }

    #[test]
    fn no_node_is_restarted_while_the_leader_does_not_hear_another_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let touch = format!("touch {}", dir.path().join("restarted").display());
        let addr = start_nodes();
        let words = ["epicepoch", "rolling", "--nodes", "2", "--restart", &touch, "--addr", &addr];
        let matches = commands::tree().try_get_matches_from(words).expect("right usage");
        let failure = crate::run(&matches, &Environment::new()).expect_err("it stops");
        let text = format!("{:#}", failure.error);
        assert_eq!(failure.code, 1, "{text}");
        for words in ["stopped at node 2;", "does not hear node 3", "with --nodes 2"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0, "{text}");
    }

    #[test]
    fn only_a_host_gets_into_the_command() {
        for (addr, host) in
            [("n1.example:8080", "n1.example"), ("[::1]:80", "::1"), ("10.0.0.1:1", "10.0.0.1")]
        {
            assert_eq!(host_of(addr).expect("a host"), host);
        }
        for addr in
            ["-oProxyCommand=x:8080", "-n:1", "n;x:1", "$(x):1", "n 1:1", "n", ":1", "[x]:1"]
        {
            let error = host_of(addr).expect_err(addr).to_string();
            assert!(error.contains("ADVERTISE_ADDR"), "{error}");
        }
    }

    #[test]
    fn an_outage_of_small_clusters_is_announced() {
        let two = seen(&[(1, "leader"), (2, "voter"), (3, "learner")]);
        let said = outage(&two, &[3, 2, 1]).expect("a word");
        assert_eq!(
            said,
            "the cluster has 2 voters and needs all of them: it does not answer while one restarts"
        );
        assert_eq!(outage(&two, &[3]), None, "a learner can be missed");
        let said = outage(&seen(&[(1, "leader")]), &[1]).expect("a word");
        assert!(said.starts_with("the cluster has 1 voter and"), "{said}");
        assert_eq!(outage(&seen(&[(1, "leader"), (2, "voter"), (3, "voter")]), &[1, 2, 3]), None);
    }

    #[test]
    fn the_rest_begins_with_the_node_that_failed_unless_it_was_restarted() {
        let order = [4, 2, 1];
        let at_first = "stopped at node 4; go on, once it is well, with --nodes 4,2,1";
        assert_eq!(where_it_stopped(&order, 0, false), at_first);
        let restarted =
            "stopped at node 4; restarted were 4; go on, once it is well, with --nodes 2,1";
        assert_eq!(where_it_stopped(&order, 0, true), restarted);
        let at_last =
            "stopped at node 1; restarted were 4, 2; go on, once it is well, with --nodes 1";
        assert_eq!(where_it_stopped(&order, 2, false), at_last);
        let all = "stopped at node 1; restarted were 4, 2, 1; it was the last one";
        assert_eq!(where_it_stopped(&order, 2, true), all);
    }

    #[test]
    fn a_list_of_nodes_has_each_once() {
        assert_eq!(ids("2, 3").ok(), Some(vec![2, 3]));
        for bad in ["", "0", "2,2", "a", "1;2"] {
            assert!(ids(bad).is_err(), "{bad}");
        }
    }
}
