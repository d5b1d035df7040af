//! `epicepoch member`: shows and changes the members of a cluster.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Arg, ArgMatches, Command};
use epicepoch_config::Environment;
use epicepoch_config::whole_number;
use epicepoch_wire::http::{
    PATH_ADMIN_ADD, PATH_ADMIN_MEMBERS, PATH_ADMIN_PROMOTE, PATH_ADMIN_REMOVE,
};
use serde_json::Value;

use crate::arguments::{WHERE_ORDERS_ARE_ACCEPTED, client_arguments, group, output, switch};
use crate::failure::Failure;
use crate::leader::node;
use crate::operator::{self, Order};

pub(crate) fn command() -> Command {
    let asks = |command: Command| command.args(client_arguments()).arg(output());
    let list = Command::new("list")
        .about("Show the members, how far behind each is, and the removed ids")
        .after_help("Example:\n  epicepoch member list --addr n1:8080,n2:8080,n3:8080");
    let add = Command::new("add")
        .about("Add a node that waits to join; it gets the log, and no vote yet")
        .long_about(
            "Add a node that waits to join; it gets the log, and no vote yet. First start it, on its \
             own machine, with an empty DATA_DIR, an id that was never used, and JOIN. The leader \
             binds the id to the node's data directory for ever.",
        )
        .after_help(
            "Example, first on the new machine, then where orders are accepted:\n  \
             epicepoch serve --node-id 4 --raft-addr n4:60001 --join n1:60001 \\\n    \
             --peer-cert-file node-4.pem --peer-key-file node-4.key --peer-ca-file ca.pem\n  \
             epicepoch member add 4=n4:60001 --addr n1:8080\n  \
             epicepoch member promote 4 --wait --addr n1:8080",
        )
        .arg(
            Arg::new("member")
                .value_name("ID=HOST:PORT")
                .required(true)
                .help("Its node id and its RAFT_ADDR"),
        );
    let promote = Command::new("promote")
        .about("Give a learner that has caught up a vote, and perhaps remove another member")
        .after_help(
            "Examples:\n  epicepoch member promote 4 --wait\n  \
             epicepoch member promote 4 --remove 2\n\n\
             With --remove both happen in one change, so that the cluster never needs more voters \
             than before. Replace a dead node this way.",
        )
        .arg(node("node", "The learner").required(true))
        .arg(node("remove", "Member to remove for ever in the same change").long("remove"))
        .arg(switch("wait", "Wait, up to --timeout, until the learner has caught up"));
    let remove = Command::new("remove")
        .about("Remove a member for ever: it stops, and its id is never used again")
        .after_help(
            "Example:\n  epicepoch member remove 5\n\nA leader is not removed: hand leadership over \
             first (epicepoch leader transfer).",
        )
        .arg(node("node", "The member").required(true));
    group("member", [list, add, promote, remove].map(asks))
        .about("Show and change the members of a cluster")
        .long_about(format!(
            "Show and change the members of a cluster while it serves. A change is done when the \
             command returns with 0. If nothing is left to do, the command says \"already\".\n\n\
             {WHERE_ORDERS_ARE_ACCEPTED}",
        ))
        .after_help("Exit codes: 0 done; 1 refused, with the reason; 2 wrong usage.")
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let Some((name, matches)) = matches.subcommand() else {
        return Err(Failure::usage(anyhow!("no command given; see epicepoch member --help")));
    };
    let id = |name: &str| matches.get_one::<u64>(name).map(u64::to_string);
    let order = match name {
        "list" => Order::look(PATH_ADMIN_MEMBERS),
        "add" => {
            let text = matches.get_one::<String>("member").map_or("", String::as_str);
            let (id, addr) = added(text).map_err(Failure::usage)?;
            let parameters = [("id", Some(id.to_string())), ("raft_addr", Some(addr.to_owned()))];
            Order::change(PATH_ADMIN_ADD, &parameters)
        }
        "promote" => {
            let parameters = [("id", id("node")), ("remove", id("remove"))];
            Order::change(PATH_ADMIN_PROMOTE, &parameters).waiting(matches.get_flag("wait"))
        }
        _ => Order::change(PATH_ADMIN_REMOVE, &[("id", id("node"))]),
    };
    let document = order.give(matches, environment)?;
    operator::print(matches, &document, if name == "list" { table } else { changes })?;
    Ok(ExitCode::SUCCESS)
}

/// Parses the id and address of a node to add.
fn added(text: &str) -> Result<(u64, &str), anyhow::Error> {
    let parts = text.split_once('=').and_then(|(id, addr)| Some((whole_number(id)?, addr)));
    parts
        .filter(|(id, addr)| *id != 0 && epicepoch_config::host_and_port(addr).is_some())
        .ok_or_else(|| {
            anyhow!("{text:?} is no member; allowed is ID=HOST:PORT, such as 4=n4:60001")
        })
}

fn changes(document: &Value) -> Option<String> {
    let mut text = String::new();
    let is_already = document["already"] == true;
    for change in document["changed"].as_array()? {
        let (node, role) = (change["nodeID"].as_u64()?, change["role"].as_str()?);
        let _infallible = match (role, is_already) {
            ("removed", false) => writeln!(text, "node {node} is removed for ever"),
            ("removed", true) => writeln!(text, "node {node} was removed already"),
            ("learner", true) => writeln!(
                text,
                "node {node} is a learner already; give it a vote with: epicepoch member promote {node}"
            ),
            (role, true) => writeln!(text, "node {node} is a {role} already"),
            (role, false) => writeln!(text, "node {node} is a {role}"),
        };
    }
    Some(text)
}

fn table(document: &Value) -> Option<String> {
    let mut text = String::new();
    let members = document["members"].as_array()?;
    let width = |name: &str, title: &str| {
        let lengths = members.iter().filter_map(|member| Some(member[name].as_str()?.len()));
        lengths.max().unwrap_or(0).max(title.len())
    };
    let (addr, raft_addr) = (width("addr", "ADDR"), width("raftAddr", "RAFT ADDR"));
    let is_placed = members.iter().any(|member| member["zone"].is_string());
    let mut line = |cells: [&str; 7]| {
        let [id, client, raft, role, behind, heard, zone] = cells;
        let zone = if is_placed { zone } else { "" };
        let line = format!(
            "{id:<4} {client:<addr$} {raft:<raft_addr$} {role:<8} {behind:>6} {heard:<5} {zone}"
        );
        let _infallible = writeln!(text, "{}", line.trim_end());
    };
    line(["ID", "ADDR", "RAFT ADDR", "ROLE", "BEHIND", "HEARD", "ZONE"]);
    for member in members {
        line([
            &member["nodeID"].as_u64()?.to_string(),
            member["addr"].as_str()?,
            member["raftAddr"].as_str()?,
            member["role"].as_str()?,
            &member["behind"].as_u64()?.to_string(),
            if member["heard"].as_bool()? { "yes" } else { "no" },
            member["zone"].as_str().unwrap_or("-"),
        ]);
    }
    text += &margin(members, document["joint"] == true);
    for member in members.iter().filter(|member| member["agreesOnZones"] == false) {
        let id = member["nodeID"].as_u64()?;
        let _infallible = writeln!(
            text,
            "node {id} has other LEADER_ZONES than the leader, which never prefers it; make them the \
             same"
        );
    }
    for zone in document["emptyZones"].as_array().into_iter().flatten() {
        let zone = zone.as_str()?;
        let _infallible =
            writeln!(text, "LEADER_ZONES names {zone:?}, and no voter is in that zone");
    }
    let (format, waits_for) = (document["format"].as_u64(), document["formatWaitsFor"].as_array());
    if let (Some(format), Some(waits_for)) = (format, waits_for.filter(|nodes| !nodes.is_empty())) {
        let nodes: Vec<_> = waits_for.iter().map(Value::to_string).collect();
        let _infallible = writeln!(
            text,
            "the state is of format {format}; the next one waits for node {}: update it, start it, or \
             take its FORMAT_MAX away",
            nodes.join(", ")
        );
    }
    let removed: Vec<_> = document["removed"].as_array()?.iter().map(Value::to_string).collect();
    if !removed.is_empty() {
        let _infallible = writeln!(text, "removed for ever: {}", removed.join(", "));
    }
    Some(text)
}

/// Draws which voters the leader hears, and says how many more may be lost. A leader hears itself.
/// While members change, two majorities are needed, and the line says only who is heard.
fn margin(members: &[Value], is_joint: bool) -> String {
    let voters =
        members.iter().filter(|member| matches!(member["role"].as_str(), Some("leader" | "voter")));
    let heard: Vec<bool> = voters.map(|voter| voter["heard"] == true).collect();
    if heard.is_empty() {
        return String::new();
    }
    let marks: Vec<_> = heard.iter().map(|heard| if *heard { "●" } else { "○" }).collect();
    let (count, majority) = (heard.iter().filter(|heard| **heard).count(), heard.len() / 2 + 1);
    let more = match count.checked_sub(majority) {
        _ if is_joint => "the members change".to_owned(),
        None => "too few to answer".to_owned(),
        Some(0) => "the loss of one more stops the service".to_owned(),
        Some(spare) => format!("{spare} more may be lost"),
    };
    let (marks, all) = (marks.join(" "), heard.len());
    format!("voters {marks}  {count} of {all} heard: {more}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_member_is_an_id_and_an_address() {
        assert_eq!(added("4=n4:60001").ok(), Some((4, "n4:60001")));
        assert_eq!(added("4=[::1]:1").ok(), Some((4, "[::1]:1")));
        for bad in ["", "4", "=n4:1", "0=n4:1", "+4=n4:1", "4=n4", "4=n4:99999", "4=a b:1"] {
            assert!(added(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_order_that_was_done_before_says_so_and_what_is_next() {
        let said = |role: &str, already: bool| {
            let changed = json!([{"nodeID": 4, "role": role}]);
            changes(&json!({"changed": changed, "already": already})).expect("a text")
        };
        assert_eq!(said("removed", true), "node 4 was removed already\n");
        assert!(
            said("learner", true)
                .ends_with("already; give it a vote with: epicepoch member promote 4\n")
        );
        assert_eq!(said("voter", true), "node 4 is a voter already\n");
        assert_eq!(said("voter", false), "node 4 is a voter\n");
    }

    #[test]
    fn the_table_shows_what_operators_look_for() {
        let member = |node: u64, role: &str, behind: u64| {
            json!({"nodeID": node, "addr": format!("n{node}:8080"), "role": role, "heard": true,
                   "raftAddr": format!("n{node}:60001"), "behind": behind})
        };
        let members = [member(1, "leader", 0), member(4, "learner", 1234)];
        let text = table(&json!({"members": members, "removed": [2, 3]})).expect("a table");
        let expected = "\
ID   ADDR    RAFT ADDR ROLE     BEHIND HEARD
1    n1:8080 n1:60001  leader        0 yes
4    n4:8080 n4:60001  learner    1234 yes
voters ●  1 of 1 heard: the loss of one more stops the service
removed for ever: 2, 3
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_margin_says_how_many_voters_may_be_lost() {
        let drawn = |voters: &[(&str, bool)], is_joint| {
            let voter = |(role, heard): &(&str, bool)| json!({"role": role, "heard": heard});
            margin(&voters.iter().map(voter).collect::<Vec<_>>(), is_joint)
        };
        let of = |voters: &[_]| drawn(voters, false);
        let (leader, heard, lost) = (("leader", true), ("voter", true), ("voter", false));
        assert_eq!(of(&[leader, heard, heard]), "voters ● ● ●  3 of 3 heard: 1 more may be lost\n");
        let bare = "voters ● ● ○  2 of 3 heard: the loss of one more stops the service\n";
        assert_eq!(of(&[leader, heard, lost, ("learner", true)]), bare);
        assert_eq!(of(&[leader, lost, lost]), "voters ● ○ ○  1 of 3 heard: too few to answer\n");
        let joint = "voters ● ●  2 of 2 heard: the members change\n";
        assert_eq!(drawn(&[leader, heard, ("leaving", true)], true), joint);
        // While a learner becomes a voter, no member is leaving.
        assert_eq!(drawn(&[leader, heard], true), joint);
    }

    #[test]
    fn nodes_that_hold_the_next_format_back_are_named() {
        let document = |waits_for: &[u64]| json!({"members": [], "removed": [], "format": 1, "formatWaitsFor": waits_for});
        let text = table(&document(&[2, 3])).expect("a table");
        assert!(text.contains("of format 1; the next one waits for node 2, 3: update"), "{text}");
        let text = table(&document(&[])).expect("a table");
        assert!(!text.contains("format"), "{text}");
    }

    #[test]
    fn zones_are_shown_where_there_are_any_and_slips_in_them_in_words() {
        let member = |node: u64, zone: Option<&str>, agrees: bool| {
            json!({"nodeID": node, "addr": format!("n{node}:1"), "role": "voter", "heard": true,
                   "raftAddr": format!("n{node}:2"), "behind": 0, "zone": zone,
                   "agreesOnZones": agrees})
        };
        let members = [member(1, Some("near"), true), member(2, None, false)];
        let document = json!({"members": members, "removed": [], "emptyZones": ["nera"]});
        let expected = "\
ID   ADDR RAFT ADDR ROLE     BEHIND HEARD ZONE
1    n1:1 n1:2      voter         0 yes   near
2    n2:1 n2:2      voter         0 yes   -
voters ● ●  2 of 2 heard: the loss of one more stops the service
node 2 has other LEADER_ZONES than the leader, which never prefers it; make them the same
LEADER_ZONES names \"nera\", and no voter is in that zone
";
        assert_eq!(table(&document).as_deref(), Some(expected));
    }
}
