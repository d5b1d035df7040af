//! `epicepoch status`: shows the members of a cluster, and whether each is ready. With `--watch`, it
//! shows them again and again. It changes nothing.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::{ArgMatches, Command};
use epicepoch_client::{Build, Client, Member, Members};
use epicepoch_config::{Environment, variable};
use serde_json::{Value, json};

use crate::addresses;
use crate::arguments::{client_arguments, is_json, output as output_argument, text};
use crate::expected::{self, Expected};
use crate::failure::{Failure, USAGE};
use crate::output::{self, Output};

/// One member.
#[derive(Debug)]
struct Row {
    member: Member,
    role: &'static str,
    ready: bool,
    /// The node's own description of its state, or why it did not answer.
    detail: Result<String, String>,
    /// The build of its program; `None` if the node does not say.
    build: Option<Build>,
}

pub(crate) fn command() -> Command {
    Command::new("status")
        .about("Show the members of a cluster; exits with 0 when a leader serves, else with 1")
        .long_about(
            "Show the members of a cluster, and whether each is ready. The exit code is 0 when a leader \
             serves, else 1. In interval mode every node answers alone: then the exit code is 0 when \
             every node is ready.",
        )
        .after_help(
            "Examples:\n  epicepoch status --addr n1:8080,n2:8080,n3:8080\n  epicepoch status \
             --watch\n  epicepoch status --watch=10s --output json >> status.log",
        )
        .args(client_arguments())
        .arg(output_argument())
        .arg(
            text("watch", "TIME", "Show it again every so often, until you stop it [default: 2s]")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("2s")
                .long_help(
                    "Show it again every so often, 100ms to 3600s, until you stop it; without a value \
                     every 2s. On a terminal each one replaces the one before. In JSON each is one \
                     line. A failure is written to standard error, and the command goes on.",
                ),
        )
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let Some(watch) = matches.get_one::<String>("watch") else {
        return show(matches, environment, output::account(), "");
    };
    let every = addresses::duration(watch, EVERY_MAX).filter(|every| *every >= EVERY_MIN);
    let every = every.ok_or_else(|| {
        Failure::usage(anyhow!(
            "--watch is {watch:?}; allowed is a whole number with its unit, from 100ms to 3600s"
        ))
    })?;
    let term = variable(environment, "TERM").map_err(Failure::usage)?;
    let is_replaced = output::moves_cursor(term.as_deref()) && !is_json(matches);
    loop {
        let due = Instant::now() + every;
        let before = format!("{}{}\n", if is_replaced { CLEAR } else { "" }, now());
        // Without a reader, the command ends at the first look that it cannot print.
        match show(matches, environment, output::product(), &before) {
            Ok(_) => {}
            // Wrong usage is wrong at each further look, too.
            Err(failure) if failure.code == USAGE || failure.is_of_reader() => return Err(failure),
            Err(failure) => {
                // The table from before is not true any more.
                let mut out = output::product();
                write!(out, "{}", if is_replaced { &before } else { "" })?;
                out.flush()?;
                log_failure(&failure);
            }
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Writes why one look failed, and when. If standard error is closed, the text is lost.
fn log_failure(failure: &Failure) {
    let _unread = writeln!(std::io::stderr(), "epicepoch: {}: {:#}", now(), failure.error);
}

/// The time by this machine's clock, RFC 3339 in UTC, in milliseconds.
fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// Looks once, and prints what it has found, after `before`.
fn show(
    matches: &ArgMatches,
    environment: &Environment,
    mut out: Output,
    before: &str,
) -> Result<ExitCode, Failure> {
    let (client, deadline) = addresses::client(matches, environment)?;
    let expected = Expected::of(matches, environment)?;
    let (members, rows) = addresses::block_on(async {
        expected::check(expected.as_ref(), &client, deadline).await?;
        look(client, deadline).await
    })??;
    if is_json(matches) {
        writeln!(out, "{}", object(&members, &rows))?;
    } else {
        write!(out, "{before}{}", table(&members, &rows))?;
    }
    out.flush()?;
    Ok(if is_served(&rows) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks one node for the members, then asks all members at once for their state.
async fn look(client: Client, deadline: Instant) -> Result<(Members, Vec<Row>), Failure> {
    let members = client.members(deadline).await?;
    let asked: Vec<_> = members
        .members
        .iter()
        .map(|member| tokio::spawn(ask(client.clone(), member.clone(), deadline)))
        .collect();
    let mut rows = Vec::with_capacity(asked.len());
    for row in asked {
        rows.push(row.await?.with_role_in(&members));
    }
    Ok((members, rows))
}

impl Row {
    /// Whether the node said at `/ready` that it is in interval mode. That text is for programs
    /// (`docs/http.md`).
    fn is_of_intervals(&self) -> bool {
        let detail = self.detail.as_deref().unwrap_or_default();
        detail.split(' ').any(|it| it.starts_with("interval="))
    }

    /// The same row. In interval mode no node has a grant, so `/leader` names none: the role comes
    /// from the list of members.
    fn with_role_in(mut self, members: &Members) -> Self {
        if self.is_of_intervals() {
            let leader = members.leader.as_ref().map(|it| it.node_id);
            let leads = leader == Some(self.member.node_id);
            self.role = if leads { LEADER } else { FOLLOWER };
        }
        self
    }
}

/// Whether the cluster serves. In interval mode every node answers alone.
fn is_served(rows: &[Row]) -> bool {
    if rows.iter().any(Row::is_of_intervals) {
        return rows.iter().all(|row| row.ready);
    }
    rows.iter().any(|row| row.role == LEADER)
}

async fn ask(client: Client, member: Member, deadline: Instant) -> Row {
    let readiness = match client.ready(&member.addr, deadline).await {
        Ok(readiness) => readiness,
        Err(error) => {
            let detail = Err(error.to_string());
            return Row { member, role: UNKNOWN, ready: false, detail, build: None };
        }
    };
    let role = match client.leads(&member.addr, deadline).await {
        Ok(true) => LEADER,
        Ok(false) => FOLLOWER,
        Err(_) => UNKNOWN,
    };
    let build = client.build(&member.addr, deadline).await.unwrap_or_default();
    Row { member, role, ready: readiness.ready, detail: Ok(readiness.detail), build }
}

fn table(members: &Members, rows: &[Row]) -> String {
    let cluster = members.cluster.as_deref().unwrap_or(UNKNOWN);
    let leader = members.leader.as_ref().map_or_else(
        || "no leader".to_owned(),
        |Member { node_id, addr }| format!("leader {node_id} at {addr}"),
    );
    let width = rows.iter().map(|row| row.member.addr.len()).max().unwrap_or(0).max(4);
    let mut text = format!("cluster {cluster}, {leader}\n");
    let mut line = |id: &str, addr: &str, role: &str, ready: &str, version: &str, detail: &str| {
        let line = format!("{id:<4} {addr:<width$} {role:<8} {ready:<5} {version:<8} {detail}");
        let _infallible = writeln!(text, "{}", line.trim_end());
    };
    line("ID", "ADDR", "ROLE", "READY", "VERSION", "DETAIL");
    for Row { member, role, ready, detail, build } in rows {
        let ready = if *ready { "yes" } else { "no" };
        let version = build.as_ref().map_or(UNKNOWN, |build| &build.version);
        let (Ok(detail) | Err(detail)) = detail;
        line(&member.node_id.to_string(), &member.addr, role, ready, version, detail);
    }
    let marks: Vec<_> = rows.iter().map(|row| if row.ready { "●" } else { "○" }).collect();
    let count = rows.iter().filter(|row| row.ready).count();
    let _infallible = writeln!(text, "nodes {}  {count} of {} ready", marks.join(" "), rows.len());
    text
}

fn object(members: &Members, rows: &[Row]) -> Value {
    let leader = members.leader.as_ref().map(|m| json!({"nodeID": m.node_id.0, "addr": m.addr}));
    let rows: Vec<_> = rows
        .iter()
        .map(|Row { member, role, ready, detail, build }| {
            let field = |of: fn(&Build) -> &String| build.as_ref().map(of);
            let mut row = json!({
                "nodeID": member.node_id.0,
                "addr": member.addr,
                "role": role,
                "ready": ready,
                "version": field(|it| &it.version),
                "commit": field(|it| &it.commit),
                "profile": field(|it| &it.profile),
                "target": field(|it| &it.target),
            });
            match detail {
                Ok(detail) => row["detail"] = json!(detail),
                Err(error) => row["error"] = json!(error),
            }
            row
        })
        .collect();
    // The header has both ids: CLUSTER.HISTORY.
    let ids = members.cluster.as_deref().map(|ids| ids.split_once('.').unwrap_or((ids, "")));
    json!({
        "time": now(),
        "cluster": ids.map(|(cluster, _)| cluster),
        "history": ids.map(|(_, history)| history),
        "clusterName": members.cluster_name,
        "leader": leader,
        "members": rows,
    })
}

/// Returns a document with every field.
#[cfg(test)]
pub(crate) fn example() -> Value {
    let body = br#"{"leader":{"nodeID":1,"addr":"a:1"},"members":[],"clusterName":"c"}"#;
    let members = Members::from_json(body, Some("0a.0b".into())).expect("members");
    let row = |detail| Row {
        member: members.leader.clone().expect("a leader"),
        role: UNKNOWN,
        ready: false,
        detail,
        build: None,
    };
    object(&members, &[row(Ok("leader=1".into())), row(Err("no answer".into()))])
}

/// The shortest and the longest time between two looks of `--watch`.
const EVERY_MIN: Duration = Duration::from_millis(100);
const EVERY_MAX: Duration = Duration::from_hours(1);
/// Clears a terminal, and begins at its first line (ECMA-48).
const CLEAR: &str = "\x1b[H\x1b[2J";
/// The role of a node that holds a grant and serves requests; in interval mode, of the node that
/// leads.
const LEADER: &str = "leader";
const FOLLOWER: &str = "follower";
const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_interval_mode_the_leader_is_that_of_the_members_and_every_node_has_to_be_ready() {
        let body = br#"{"leader":{"nodeID":2,"addr":"b:1"},"clusterName":"c","members":[
            {"nodeID":1,"addr":"a:1"},{"nodeID":2,"addr":"b:1"}]}"#;
        let members = Members::from_json(body, None).expect("members");
        let rows = |ends: [(&str, bool); 2]| -> Vec<Row> {
            let rows = members.members.iter().cloned().zip(ends).map(|(member, (end, ready))| {
                let detail = Ok(format!("leader=2 nodeID={}{end}", member.node_id));
                let row = Row { member, role: FOLLOWER, ready, detail, build: None };
                row.with_role_in(&members)
            });
            rows.collect()
        };
        let certain = (" interval=certain boundNs=1", true);
        let both = rows([certain, certain]);
        assert_eq!([both[0].role, both[1].role], [FOLLOWER, LEADER]);
        assert!(is_served(&both));
        assert!(!is_served(&rows([certain, (" interval=uncertain (no source)", false)])));
        let of_quorum_mode = rows([("", true), ("", true)]);
        assert_eq!([of_quorum_mode[0].role, of_quorum_mode[1].role], [FOLLOWER, FOLLOWER]);
        assert!(!is_served(&of_quorum_mode), "no node said at /leader that it serves");
    }
}
