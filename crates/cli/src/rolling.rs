//! `epicepoch rolling`: restarts a whole cluster, node by node, while it serves: followers first, the
//! leader last and only after it has handed over. It stops at the first trouble and says where. How a
//! process is restarted it does not know: a command of the operator's does it.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command as Process, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use clap::{Arg, ArgMatches, Command};
use epicepoch_wire::http::{PATH_ADMIN_MEMBERS, PATH_ADMIN_TRANSFER};
use serde_json::Value;

use crate::addresses;
use crate::clock;
use crate::commands::{client_arguments, switch};
use crate::failure::Failure;
use crate::operator::Order;
use crate::settings::whole_number;
use crate::sources::Environment;

/// Between two looks at a node that comes back, or at what is not well before the first restart.
const PAUSE: Duration = Duration::from_millis(100);
/// What is not well for so long before the first restart is trouble: a single look may fall into a
/// machine's standstill, and a node counts as not heard after one election timeout.
const TROUBLE_LASTS: Duration = Duration::from_secs(2);
/// Committed entries that a node may lack before the next one is restarted.
const LAG_MAX: u64 = 16;
/// Voters of whom one may be down while the others serve.
const SERVING_VOTERS: usize = 3;
/// How often leadership is asked for before it counts as stuck: a voter may decline once.
const TRANSFERS_MAX: usize = 5;

pub(crate) fn command() -> Command {
    Command::new("rolling")
        .about("Restart all nodes, one after the other, while the cluster serves")
        .long_about(
            "Restart all nodes, one after the other, while the cluster serves: followers first, the \
             leader last, after it has handed over. Between two nodes it waits until the one that was \
             restarted runs as another process, is ready, is heard by the leader and lacks nothing. \
             At the first trouble it stops, and says where and what is left to do. Before the first \
             one it looks whether all nodes are well.\n\n\
             With one voter or two, nobody answers while one of them is restarted: a majority of two \
             is both. Nothing is lost by that, clients wait or are told to ask again, and it is said \
             beforehand. With three or more, leadership moves and the cluster serves.\n\n\
             The command given with --restart is run by sh -c for each node, with these variables: \
             EPICEPOCH_NODE_ID, EPICEPOCH_NODE_ADDR (its client address), EPICEPOCH_NODE_HOST (the \
             host of that). It has to end the process with SIGTERM and start it again, and may \
             replace the program in between.",
        )
        .after_help(
            "Examples:\n  \
             epicepoch rolling --restart 'ssh $EPICEPOCH_NODE_HOST sudo systemctl restart epicepoch'\n  \
             epicepoch rolling --nodes 2,3 --restart './upgrade.sh'\n  \
             epicepoch rolling --dry-run\n\n\
             Every node is asked, and leadership is moved as by epicepoch leader transfer: ADMIN_FROM \
             of all nodes has to allow it and OPS_PLAIN_FROM, or give --ca-file and --token-file where \
             they speak TLS. With OPS_ADDR give that of every node.\n\n\
             Exit codes: 0 all were restarted; 1 it has stopped, and says where; 2 wrong usage.",
        )
        .arg(
            Arg::new("restart")
                .long("restart")
                .value_name("COMMAND")
                .required_unless_present("dry-run")
                .help("What restarts one node; run by sh -c, see above"),
        )
        .arg(
            Arg::new("nodes")
                .long("nodes")
                .value_name("ID,...")
                .help("Only these nodes; default all members"),
        )
        .arg(
            Arg::new("wait")
                .long("wait")
                .value_name("TIME")
                .default_value("60s")
                .help("How long a node may take to be ready again, after its command has ended"),
        )
        .arg(
            Arg::new("settle")
                .long("settle")
                .value_name("TIME")
                .default_value("2s")
                .help("For how long all has to be well before the next node"),
        )
        .arg(switch("dry-run", "Look whether all is well, say the order, and restart nothing"))
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
    /// Where it says how far it is.
    hearing: Cell<Hearing>,
}

/// Who hears how far it is: a reader may leave, and nodes are restarted all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hearing {
    Output,
    /// Standard output did not take a line: standard error gets it, and those that follow.
    Errors,
    Nobody,
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let rolling = Rolling {
        matches,
        environment,
        wait: time(matches, "wait")?,
        settle: time(matches, "settle")?,
        hearing: Cell::new(Hearing::Output),
    };
    let wanted = matches.get_one::<String>("nodes").map(|text| ids(text)).transpose()?;
    let seen = rolling.look().map_err(|failure| failure.error)?;
    // Wrong usage is told at once; the order is that of when all was well.
    order(&seen, wanted.as_deref()).map_err(Failure::usage)?;
    let seen = rolling.look_until_well(seen)?;
    let order = order(&seen, wanted.as_deref()).map_err(Failure::usage)?;
    rolling.tell(&format!("all is well; in this order: {}", names(&order)));
    if let Some(silence) = silence(&seen, &order) {
        rolling.tell(&silence);
    }
    if matches.get_flag("dry-run") {
        return Ok(ExitCode::SUCCESS);
    }
    let command = matches.get_one::<String>("restart").map_or("", String::as_str);
    for (at, node) in order.iter().enumerate() {
        let before = rolling.run_of(*node);
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
            None => "nobody leads now".to_owned(),
        },
        Err(failure) => format!("who leads is not known: {:#}", failure.error),
    };
    rolling.tell(&format!("all were restarted: {}; {leader}", names(&order)));
    Ok(ExitCode::SUCCESS)
}

fn names(nodes: &[u64]) -> String {
    nodes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Where it has stopped and how to go on: with that node, unless it runs as another process.
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

impl Rolling<'_> {
    /// Restarts one node, and returns when all is well again. `before` is the run that it is in.
    fn restart(&self, node: u64, command: &str, before: Option<&str>) -> Result<(), anyhow::Error> {
        self.hand_over_from(node)?;
        let seen = self.look().map_err(|failure| failure.error)?;
        let addr = seen.iter().find(|it| it.node == node).map(|it| it.addr.clone());
        let addr = addr.ok_or_else(|| anyhow!("node {node} is no member any more"))?;
        self.tell(&format!("node {node}: restarting"));
        let from = Instant::now();
        let host = addr.rsplit_once(':').map_or(addr.as_str(), |(host, _)| host);
        let (output, errors) = self.streams();
        let status = Process::new("sh")
            .args(["-c", command])
            .env("EPICEPOCH_NODE_ID", node.to_string())
            .env("EPICEPOCH_NODE_ADDR", &addr)
            .env("EPICEPOCH_NODE_HOST", host.trim_matches(['[', ']']))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .status()
            .context("sh cannot be run")?;
        if !status.success() {
            bail!("its command ended with {status}: see what it did, and the log of the node");
        }
        self.wait_until_well(node, before)?;
        let took = from.elapsed().as_secs_f64();
        self.tell(&format!("node {node}: ready after {took:.1} s, all is well"));
        if before.is_none() && matches!(self.run_of(node), Ok(None)) {
            self.tell(&format!(
                "node {node}: its version does not say in which run it is, so whether it was \
                 restarted could not be looked at"
            ));
        }
        Ok(())
    }

    /// Says how far it is, to whoever hears it still.
    fn tell(&self, line: &str) {
        if self.hearing.get() == Hearing::Output {
            let Err(error) = writeln!(io::stdout().lock(), "{line}") else { return };
            self.hearing.set(Hearing::Errors);
            self.tell(&format!(
                "standard output takes no more ({error}): it goes on, and says it here"
            ));
        }
        if self.hearing.get() == Hearing::Errors && writeln!(io::stderr(), "{line}").is_err() {
            self.hearing.set(Hearing::Nobody);
        }
    }

    /// Where a command's output and errors go: never to standard output, whose reader may leave while it
    /// runs and so end it halfway.
    fn streams(&self) -> (Stdio, Stdio) {
        match self.hearing.get() {
            Hearing::Output | Hearing::Errors => (io::stderr().into(), Stdio::inherit()),
            Hearing::Nobody => (Stdio::null(), Stdio::null()),
        }
    }

    /// Whether a node is known to run as another process than before.
    fn is_another(&self, node: u64, before: Option<&str>) -> bool {
        self.run_of(node).is_ok_and(|now| now.is_some() && now.as_deref() != before)
    }

    /// Leadership goes elsewhere, if this node has it.
    fn hand_over_from(&self, node: u64) -> Result<(), anyhow::Error> {
        let mut last = anyhow!("it leads again and again");
        for _ in 0..TRANSFERS_MAX {
            let seen = self.look().map_err(|failure| failure.error)?;
            let leads = |it: &Seen| it.node == node && it.is_leader;
            if !seen.iter().any(leads) || seen.iter().filter(|it| it.is_voter).count() < 2 {
                return Ok(());
            }
            match Order::change(PATH_ADMIN_TRANSFER, &[]).give(self.matches, self.environment) {
                Ok(done) => {
                    self.tell(&format!(
                        "node {node}: has handed leadership to node {}",
                        done["leader"]
                    ));
                }
                Err(failure) => last = failure.error,
            }
            thread::sleep(PAUSE);
        }
        Err(last.context("it does not hand leadership over"))
    }

    /// Waits until the node is another process than before, and all is well, for long enough.
    fn wait_until_well(&self, node: u64, before: Option<&str>) -> Result<(), anyhow::Error> {
        let deadline = Instant::now() + self.wait;
        let mut well_since = None;
        loop {
            let trouble = self.trouble_after(node, before);
            let now = Instant::now();
            match trouble {
                None => {
                    let since = *well_since.get_or_insert(now);
                    if now - since >= self.settle {
                        return Ok(());
                    }
                }
                Some(trouble) => {
                    well_since = None;
                    if now >= deadline {
                        let waited = self.wait.as_secs_f64();
                        bail!(
                            "{waited:.0} s after its command: {trouble}; see the log of the node"
                        );
                    }
                }
            }
            thread::sleep(PAUSE);
        }
    }

    /// Looks again for as long as something is not well, up to [`TROUBLE_LASTS`], a question that fails among
    /// it; the members, as they were when all was.
    fn look_until_well(&self, seen: Vec<Seen>) -> Result<Vec<Seen>, Failure> {
        let deadline = Instant::now() + TROUBLE_LASTS;
        let mut looked = Ok(seen);
        loop {
            let trouble = match looked {
                Ok(seen) => match self.trouble(&seen) {
                    Ok(None) => return Ok(seen),
                    Ok(Some(trouble)) => trouble,
                    Err(Failure { error, .. }) => format!("{error:#}"),
                },
                Err(Failure { error, .. }) => format!("{error:#}"),
            };
            if Instant::now() >= deadline {
                return Err(anyhow!("{trouble}; nothing was restarted").into());
            }
            thread::sleep(PAUSE);
            looked = self.look();
        }
    }

    /// What is not well after a restart; a question that fails is such a thing.
    fn trouble_after(&self, node: u64, before: Option<&str>) -> Option<String> {
        let all_well = || -> Result<Option<String>, anyhow::Error> {
            let now = self.run_of(node)?;
            if before.is_some() && now.as_deref() == before {
                return Ok(Some("it is the same process as before".into()));
            }
            let seen = self.look().map_err(|failure| failure.error)?;
            self.trouble(&seen).map_err(|failure| failure.error)
        };
        all_well().unwrap_or_else(|error| Some(format!("{error:#}")))
    }

    /// The members, as the leader sees them.
    fn look(&self) -> Result<Vec<Seen>, Failure> {
        let document = Order::look(PATH_ADMIN_MEMBERS).give(self.matches, self.environment)?;
        if document["joint"] == true {
            return Err(anyhow!("the members are being changed").into());
        }
        members(&document).ok_or_else(|| anyhow!("the leader runs another version").into())
    }

    /// What is not well with the members: one is not ready, not heard, or lacks entries.
    fn trouble(&self, seen: &[Seen]) -> Result<Option<String>, Failure> {
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

    /// Which run of its process a node is in; `None` of a version that does not say.
    fn run_of(&self, node: u64) -> Result<Option<String>, anyhow::Error> {
        let looked =
            clock::look(self.matches, self.environment).map_err(|failure| failure.error)?;
        let row = looked.rows.into_iter().find(|row| row.member.node_id.0 == node);
        let row = row.ok_or_else(|| match looked.doubt {
            Some(doubt) => anyhow!("node {node} is not known: {doubt}"),
            None => anyhow!("node {node} is no member any more"),
        })?;
        let said = row.clock.map_err(|error| anyhow!("node {node}: {error}"))?;
        Ok(said["boot"].as_str().map(str::to_owned))
    }
}

/// The rows of the leader's document; `None` where it is none.
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

/// Learners first, for nobody needs them; the leader last.
fn order(seen: &[Seen], wanted: Option<&[u64]>) -> Result<Vec<u64>, anyhow::Error> {
    if let Some(unknown) =
        wanted.into_iter().flatten().find(|id| !seen.iter().any(|it| it.node == **id))
    {
        bail!("--nodes names node {unknown}, which is no member");
    }
    let mut meant: Vec<&Seen> =
        seen.iter().filter(|it| wanted.is_none_or(|ids| ids.contains(&it.node))).collect();
    meant.sort_by_key(|it| (it.is_leader, it.is_voter, it.node));
    Ok(meant.into_iter().map(|it| it.node).collect())
}

/// What is to be said where a voter is restarted that the others are no majority without.
fn silence(seen: &[Seen], order: &[u64]) -> Option<String> {
    let voters: Vec<u64> = seen.iter().filter(|it| it.is_voter).map(|it| it.node).collect();
    let is_needed = voters.len() < SERVING_VOTERS && voters.iter().any(|id| order.contains(id));
    is_needed.then(|| {
        format!(
            "of {} voter{} none can be missed: while one is down, nobody answers",
            voters.len(),
            if voters.len() == 1 { "" } else { "s" }
        )
    })
}

/// `2,3`; a node given twice is a slip.
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
    use serde_json::json;

    use super::*;

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

    #[test]
    fn it_is_said_beforehand_that_nobody_answers_while_one_of_two_voters_is_down() {
        let two = seen(&[(1, "leader"), (2, "voter"), (3, "learner")]);
        let said = silence(&two, &[3, 2, 1]).expect("a word");
        assert_eq!(said, "of 2 voters none can be missed: while one is down, nobody answers");
        assert_eq!(silence(&two, &[3]), None, "a learner can be missed");
        let said = silence(&seen(&[(1, "leader")]), &[1]).expect("a word");
        assert!(said.starts_with("of 1 voter none"), "{said}");
        assert_eq!(silence(&seen(&[(1, "leader"), (2, "voter"), (3, "voter")]), &[1, 2, 3]), None);
    }

    #[test]
    fn it_goes_on_with_the_node_that_it_stopped_at_unless_that_was_restarted() {
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
