//! `epicepoch status`: shows the members of a cluster, and whether each is ready. It changes nothing.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::{ArgMatches, Command};
use epicepoch_client::{Build, Client, Member, Members};
use epicepoch_config::Environment;
use serde_json::{Value, json};

use crate::addresses;
use crate::arguments::{client_arguments, is_json, output as output_argument};
use crate::expected::{self, Expected};
use crate::failure::Failure;
use crate::output;

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
        .args(client_arguments())
        .arg(output_argument())
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let (client, deadline) = addresses::client(matches, environment)?;
    let expected = Expected::of(matches, environment)?;
    let (members, rows) = addresses::block_on(async {
        expected::check(expected.as_ref(), &client, deadline).await?;
        look(client, deadline).await
    })??;
    let mut out = output::account();
    if is_json(matches) {
        writeln!(out, "{}", object(&members, &rows))?;
    } else {
        write!(out, "{}", table(&members, &rows))?;
    }
    let served = rows.iter().any(|row| row.role == LEADER);
    Ok(if served { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
        rows.push(row.await?);
    }
    Ok((members, rows))
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

/// The role of a node that holds a grant and serves requests.
const LEADER: &str = "leader";
const FOLLOWER: &str = "follower";
const UNKNOWN: &str = "unknown";
