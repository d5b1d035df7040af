//! `epicepoch clock`: compares every node's clock with the others and with the ceiling. It only
//! reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::anyhow;
use clap::{ArgMatches, Command};
use epicepoch_client::Member;
use epicepoch_client::dial::{Alpn, Dialer};
use epicepoch_config::Environment;
use epicepoch_wire::http::{PATH_ADMIN_CLOCK, PATH_ADMIN_MEMBERS};
use epicepoch_wire::{Epoch, NodeId};
use serde_json::{Value, json};

use crate::addresses::{self, TokenFor};
use crate::arguments::{EVERY_NODE_IS_ASKED, client_arguments, output};
use crate::expected::Expected;
use crate::failure::Failure;
use crate::moment;
use crate::operator::{self, Order, RequestError};

mod advance;

pub(crate) fn command() -> Command {
    Command::new("clock")
        .about("Show every node's clock, and how far the ceiling is ahead of it")
        .long_about(
            "Show every node's clock, and how far the ceiling is ahead of it.\n\n  \
             STATUS  which clock the node trusts: followed: its wall clock; outvoted: the median of \
             the others; jumped: its monotonic clock\n  \
             OFFSET  the node's wall clock minus the time that it trusts\n  \
             LAG     the leader's wall clock minus the epoch of its last answer: below \
             EPOCH_INTERVAL_MS under load\n  \
             LEAD    the ceiling minus the node's wall clock: normally about RESERVATION_MS\n  \
             CEILING the highest epoch that a leader has ever owned, as this node has applied it\n\n\
             If epochs are ahead of the clocks, the command shows how long it takes until time has \
             caught up (recoversInMs). This is the leader's last epoch minus the time that it \
             trusts; if no node leads, it is the lead.\n\n\
             In quorum mode without leases, order does not depend on clocks: they only keep epochs \
             close to wall time.",
        )
        .after_help(format!(
            "Example:\n  epicepoch clock --addr n1:8080,n2:8080,n3:8080\n\n\
             {EVERY_NODE_IS_ASKED}\n\n\
             Exit codes: 0 every node's clock is followed; 1 one is not, a node does not answer, or \
             the members are not known; 2 wrong usage.",
        ))
        .args(client_arguments())
        .arg(output())
        .disable_help_subcommand(true)
        .subcommand(advance::command())
}

/// One member and its clock.
pub(crate) struct Row {
    /// The member's id and address. This is the address that answered, otherwise the one that
    /// clients use.
    pub(crate) member: Member,
    /// The member's report about its clock, or why it has none.
    pub(crate) clock: Result<Value, String>,
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    if let Some((_, matches)) = matches.subcommand() {
        return advance::run(matches, environment);
    }
    let looked = look(matches, environment)?;
    let rows = &looked.rows;
    let document = document(rows);
    warn(&looked);
    operator::print(matches, &document, |_| table(rows))?;
    let is_followed = |row: &Row| row.clock.as_ref().is_ok_and(|clock| clock["status"] == FOLLOWED);
    let is_well = looked.doubt.is_none() && rows.iter().all(is_followed);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The clocks of a cluster, as far as they are known.
pub(crate) struct Looked {
    /// Each known member once.
    pub(crate) rows: Vec<Row>,
    /// Why members may be missing: no node said who the members are.
    pub(crate) doubt: Option<String>,
}

/// Asks every member for its clock.
pub(crate) fn look(matches: &ArgMatches, environment: &Environment) -> Result<Looked, Failure> {
    let (client, deadline) = addresses::client(matches, environment)?;
    let (given, _) = addresses::given(matches, environment)?;
    let tls = addresses::tls(matches, environment)?;
    let token = addresses::token(matches, environment, TokenFor::Operators)?;
    let dialer = Dialer::new(tls.as_ref(), Alpn::Http1).with_token(token);
    let timeout = operator::attempt_timeout(matches)?;
    let attempt = || deadline.min(Instant::now() + timeout);
    let expected = Expected::of(matches, environment)?;
    let question = |path| Order::look(path).expecting(expected.clone());
    let look = |addr: &str| {
        let clock = question(PATH_ADMIN_CLOCK).ask(&dialer, addr, attempt());
        clock.map_err(RequestError::into_text)
    };
    // The cluster's list of members has client addresses. With OPS_ADDR, a node answers this
    // question only at that address, not at its client address. So the addresses from the command
    // line are asked first.
    let (mut answers, mut errors) = (Vec::new(), Vec::new());
    for addr in given {
        match look(&addr) {
            Ok(clock) => {
                let node_id = clock["nodeID"].as_u64().map(NodeId);
                let row = |node_id| Row { member: Member { node_id, addr }, clock: Ok(clock) };
                answers.extend(node_id.map(row));
            }
            Err(error) => errors.push(error),
        }
    }
    let of_leader = |row: &Row| {
        let asked = question(PATH_ADMIN_MEMBERS);
        let (_, document) = asked.follow(&dialer, &row.member.addr, attempt()).ok()?;
        members(&document)
    };
    let leads = |row: &&Row| row.clock.as_ref().is_ok_and(|clock| clock["leads"] == true);
    let of_leader_found = answers.iter().find(leads).and_then(of_leader);
    let members = if let Some(members) = of_leader_found {
        Ok(members)
    } else {
        let timeout = if answers.is_empty() { deadline } else { attempt() };
        match addresses::block_on(client.members(timeout))? {
            Ok(members) => Ok(members.members),
            Err(error) if answers.is_empty() => {
                let errors = errors.join("; ");
                return Err(anyhow!("no node answers about its clock: {errors}; {error}").into());
            }
            // The call fails if the operator's token has no right to /members. It also fails if
            // the given address is an OPS_ADDR, which does not serve /members. Then this command
            // asks for the operators' list of members. Any node that answered will do, because it
            // can name the leader.
            Err(error) => answers.iter().find_map(of_leader).ok_or_else(|| error.to_string()),
        }
    };
    Ok(gathered(answers, members, look))
}

/// Reads the members from the leader's answer.
fn members(document: &Value) -> Option<Vec<Member>> {
    let member = |row: &Value| {
        let (node_id, addr) = (NodeId(row["nodeID"].as_u64()?), row["addr"].as_str()?.to_owned());
        Some(Member { node_id, addr })
    };
    document["members"].as_array()?.iter().map(member).collect()
}

/// Returns a row for every member: its answer so far, or the one that it gives now. If the members
/// are not known, there is a row for every node that answered, and one with an error for every other
/// voter that these answers name.
fn gathered(
    answers: Vec<Row>,
    members: Result<Vec<Member>, String>,
    look: impl Fn(&str) -> Result<Value, String>,
) -> Looked {
    // The map removes duplicates: an address may be given twice.
    let mut rows: BTreeMap<_, _> =
        answers.into_iter().map(|row| (row.member.node_id, row)).collect();
    let error = match members {
        Ok(members) => {
            let rows = members.into_iter().map(|member| {
                let clock = rows.remove(&member.node_id).map(|row| row.clock);
                let clock = clock.unwrap_or_else(|| look(&member.addr));
                (member.node_id, Row { member, clock })
            });
            let rows = rows.collect::<BTreeMap<_, _>>().into_values().collect();
            return Looked { rows, doubt: None };
        }
        Err(error) => error,
    };
    let voters: BTreeSet<_> = rows
        .values()
        .filter_map(|row| row.clock.as_ref().ok()?["voters"].as_array())
        .flatten()
        .filter_map(|node| node.as_u64().map(NodeId))
        .collect();
    for node_id in voters {
        rows.entry(node_id).or_insert_with(|| Row {
            member: Member { node_id, addr: "-".to_owned() },
            clock: Err(NOT_GIVEN.to_owned()),
        });
    }
    let doubt = format!(
        "no node answered who the members are, so some may be missing: name an address of every node \
         in --addr, the leader's among them ({error})"
    );
    Looked { rows: rows.into_values().collect(), doubt: Some(doubt) }
}

/// Warns if members may be missing.
pub(crate) fn warn(looked: &Looked) {
    if let Some(doubt) = &looked.doubt {
        // If the warning cannot be printed, the table is printed all the same.
        let _unread = writeln!(io::stderr(), "warning: {doubt}");
    }
}

fn document(rows: &[Row]) -> Value {
    let members: Vec<_> = rows.iter().map(object).collect();
    json!({"members": members, "recoversInMs": recovers_in_ms(rows)})
}

/// Returns a document with a node that did not answer.
#[cfg(test)]
pub(crate) fn example() -> Value {
    let member = Member { node_id: NodeId(1), addr: "a:1".into() };
    document(&[Row { member, clock: Err("no answer".into()) }])
}

fn object(row: &Row) -> Value {
    match &row.clock {
        Ok(clock) => clock.clone(),
        Err(error) => json!({"nodeID": row.member.node_id.0, "error": error}),
    }
}

fn table(rows: &[Row]) -> Option<String> {
    let width = rows.iter().map(|row| row.member.addr.len()).max().unwrap_or(0).max(4);
    let mut text = format!(
        "{:<4} {:<width$} {:<8} {:>14} {:>14} {:>14} CEILING\n",
        "ID", "ADDR", "STATUS", "OFFSET", "LAG", "LEAD"
    );
    for Row { member, clock } in rows {
        let (id, addr) = (member.node_id.to_string(), &member.addr);
        let _infallible = match clock {
            Ok(clock) => {
                let number = |name: &str| clock[name].as_f64();
                let (offset, lead) = (number("offsetMs")?, number("leadMs")?);
                let status = clock["status"].as_str()?;
                let ceiling = moment::time(Epoch(clock["ceiling"].as_str()?.parse().ok()?));
                let lag = number("lagMs").map_or("-".to_owned(), |lag| format!("{lag:.1} ms"));
                writeln!(
                    text,
                    "{id:<4} {addr:<width$} {status:<8} {offset:>11.1} ms {lag:>14} {lead:>11.1} ms \
                     {ceiling}"
                )
            }
            Err(error) => writeln!(text, "{id:<4} {addr:<width$} {error}"),
        };
    }
    text += &offsets(rows);
    if let Some(ahead_ms) = recovers_in_ms(rows).filter(|ms| *ms > AHEAD_TOLD_MS) {
        let _infallible = writeln!(
            text,
            "epochs are ahead of the clocks: they move by the least step, or stand still while the \
             index goes on, until time has caught up in {:.1} s",
            ahead_ms / 1e3
        );
    }
    Some(text)
}

/// Draws the offsets of the clocks, each on a line with the same scale. Nothing if all are small.
fn offsets(rows: &[Row]) -> String {
    let known = rows.iter().filter_map(|row| {
        let clock = row.clock.as_ref().ok()?;
        Some((row.member.node_id, clock["offsetMs"].as_f64()?))
    });
    let most_ms = known.clone().map(|(_, offset_ms)| offset_ms.abs()).fold(0.0, f64::max);
    if most_ms < OFFSET_DRAWN_MS {
        return String::new();
    }
    let last = SCALES[SCALES.len() - 1];
    let (scale_ms, name) = SCALES.into_iter().find(|(ms, _)| *ms >= most_ms).unwrap_or(last);
    let left = format!("-{name}");
    let mut text = format!("{left:>12} {:^width$} +{name}\n", "trusted time", width = 2 * HALF + 1);
    for (node, offset_ms) in known {
        let share = (offset_ms / scale_ms).clamp(-1.0, 1.0);
        // From 0 to twice the half: the share is between -1 and 1.
        let mut at = ((share + 1.0) * HALF as f64).round() as usize;
        // The middle means that the clock is right. An offset that is drawn stays off it.
        if at == HALF && offset_ms.abs() >= OFFSET_DRAWN_MS {
            at = if offset_ms < 0.0 { HALF - 1 } else { HALF + 1 };
        }
        let mut line = vec!['─'; 2 * HALF + 1];
        (line[0], line[HALF], line[2 * HALF]) = ('├', '┼', '┤');
        line[at] = '●';
        let line: String = line.into_iter().collect();
        let _infallible = writeln!(text, "{:>12} {line}", format!("node {node}"));
    }
    text
}

/// Returns how long it takes until wall time has caught up with the epochs, in ms; `None` if
/// unknown. A leader reports this value. If no node leads, it is computed from the ceiling, because
/// the next leader begins there. Normally the ceiling is one reservation ahead.
fn recovers_in_ms(rows: &[Row]) -> Option<f64> {
    let clocks = || rows.iter().filter_map(|row| row.clock.as_ref().ok());
    // If two nodes believe that they lead, the real leader has the greater value.
    let of_leader = clocks().filter_map(|clock| clock["recoversInMs"].as_f64());
    let begun = |clock: &Value| {
        let (lead, window) = (clock["leadMs"].as_f64()?, clock["reservationMs"].as_f64()?);
        (clock["status"] == FOLLOWED && lead > window + AHEAD_TOLD_MS).then_some(lead)
    };
    of_leader.reduce(f64::max).or_else(|| clocks().filter_map(begun).reduce(f64::max))
}

/// Offsets are drawn if one is at least this large, in ms. Smaller ones are shown by the table.
const OFFSET_DRAWN_MS: f64 = 1.0;
/// The ends of the scale of offsets, in ms, with their names.
const SCALES: [(f64, &str); 11] = [
    (10.0, "10 ms"),
    (100.0, "100 ms"),
    (1e3, "1 s"),
    (1e4, "10 s"),
    (6e4, "1 min"),
    (6e5, "10 min"),
    (3.6e6, "1 h"),
    (8.64e7, "1 d"),
    (8.64e8, "10 d"),
    (8.64e9, "100 d"),
    (3.2e10, "1 year"),
];
/// Characters on each side of the middle of an offset's line.
const HALF: usize = 20;
/// Shown for a voter whose address is not known.
const NOT_GIVEN: &str = "a voter whose address was not given: name it in --addr";
const FOLLOWED: &str = "followed";
/// The table mentions that epochs are ahead of the clocks only above this value, in ms. It is the
/// default of `RESERVATION_MS`.
const AHEAD_TOLD_MS: f64 = 1_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(node: u64, clock: Result<Value, String>) -> Row {
        Row { member: Member { node_id: NodeId(node), addr: format!("n{node}:8080") }, clock }
    }

    fn clock(status: &str, offset_ms: f64, lead_ms: f64) -> Value {
        json!({
            "status": status, "offsetMs": offset_ms, "leadMs": lead_ms, "reservationMs": 1000,
            "ceiling": "1700000000000000001"
        })
    }

    fn leading(lead_ms: f64, recovers_in_ms: f64) -> Value {
        let mut clock = clock("followed", 0.0, lead_ms);
        clock["recoversInMs"] = json!(recovers_in_ms);
        clock
    }

    #[test]
    fn the_table_of_clocks_shows_a_wrong_clock_and_a_silent_node() {
        let mut leading = leading(912.25, 0.0);
        leading["lagMs"] = json!(71.5);
        let rows = [
            row(1, Ok(leading)),
            row(2, Ok(clock("outvoted", -3_600_000.5, 3_600_912.0))),
            row(3, Err("no answer".into())),
        ];
        let expected = "\
ID   ADDR    STATUS           OFFSET            LAG           LEAD CEILING
1    n1:8080 followed         0.0 ms        71.5 ms       912.2 ms 2023-11-14T22:13:20.000000001Z
2    n2:8080 outvoted  -3600000.5 ms              -   3600912.0 ms 2023-11-14T22:13:20.000000001Z
3    n3:8080 no answer
        -1 d               trusted time                +1 d
      node 1 ├───────────────────●───────────────────┤
      node 2 ├──────────────────●┼───────────────────┤
";
        assert_eq!(table(&rows).as_deref(), Some(expected));
    }

    #[test]
    fn small_offsets_are_not_drawn_and_large_ones_stay_on_the_line() {
        let drawn = |offset_ms| offsets(&[row(1, Ok(clock("followed", offset_ms, 900.0)))]);
        assert_eq!(drawn(0.9), "");
        let line = |offset_ms| drawn(offset_ms).lines().nth(1).expect("a line").to_owned();
        let ticks = "─".repeat(HALF - 1);
        assert_eq!(line(10.0), format!("      node 1 ├{ticks}┼{ticks}●"));
        // Three days, on a scale of ten: six of twenty characters from the middle.
        let (left, right) = ("─".repeat(5), "─".repeat(HALF - 7));
        assert_eq!(line(2.6e8), format!("      node 1 ├{ticks}┼{left}●{right}┤"));
        let rows = [("followed", 8.64e7), ("followed", 1.0), ("followed", 0.9)];
        let rows = rows.map(|(status, offset_ms)| row(1, Ok(clock(status, offset_ms, 900.0))));
        let drawn = offsets(&rows);
        let at = |line: usize| {
            drawn.lines().nth(line).and_then(|it| it.chars().position(|it| it == '●'))
        };
        let middle = at(3).expect("a clock that is right");
        assert_eq!(at(2), Some(middle + 1), "one millisecond, on a scale of a day");
        assert_eq!(line(-1e15), format!("      node 1 ●{ticks}┼{ticks}┤"));
    }

    #[test]
    fn every_member_is_asked_or_the_command_warns() {
        let answer = |node| {
            let mut clock = clock("followed", 0.0, 900.0);
            clock["voters"] = json!([1, 2, 3]);
            row(node, Ok(clock))
        };
        let member = |node| row(node, Err(String::new())).member;
        let silent = |addr: &str| Err(format!("{addr} is silent"));
        let gathered = |answers, members| {
            let looked = gathered(answers, members, silent);
            let rows = looked.rows.into_iter().map(|it| (it.member.node_id.0, it.clock.err()));
            (rows.collect::<Vec<_>>(), looked.doubt)
        };
        let (rows, doubt) = gathered(vec![answer(1), answer(1)], Ok(vec![member(1), member(4)]));
        assert_eq!(rows, [(1, None), (4, Some("n4:8080 is silent".to_owned()))]);
        assert_eq!(doubt, None);
        let (rows, doubt) = gathered(vec![answer(2)], Err("unauthorized".to_owned()));
        let not_given = Some(NOT_GIVEN.to_owned());
        assert_eq!(rows, [(1, not_given.clone()), (2, None), (3, not_given)]);
        let doubt = doubt.expect("a doubt");
        assert!(doubt.contains("--addr") && doubt.contains("unauthorized"), "{doubt}");
    }

    #[test]
    fn epochs_that_are_ahead_are_told_with_the_time_of_recovery() {
        // Node 2 leads. Its own report, 60,250 ms, counts, not the ceiling, which is 61,000 ms
        // ahead.
        let rows =
            [row(1, Ok(clock("followed", 0.0, 61_000.0))), row(2, Ok(leading(61_000.0, 60_250.0)))];
        assert_eq!(recovers_in_ms(&rows), Some(60_250.0));
        let text = table(&rows).expect("a table");
        assert!(text.ends_with("caught up in 60.2 s\n"), "{text}");
        // The ceiling is 90 s ahead. The table gives the leader's own report: caught up in 59 s.
        let text = table(&[row(1, Ok(leading(90_000.0, 59_000.0)))]).expect("a table");
        assert!(text.ends_with("caught up in 59.0 s\n"), "{text}");
        let text = table(&[row(1, Ok(leading(1_900.0, 900.0)))]).expect("a table");
        assert!(!text.contains("caught up"), "{text}");
        // No node leads. The next leader would begin at the ceiling, which is 61,000 ms ahead.
        let rows = [row(1, Ok(clock("followed", 0.0, 61_000.0))), row(2, Err("gone".into()))];
        assert_eq!(recovers_in_ms(&rows), Some(61_000.0));
        assert_eq!(recovers_in_ms(&[row(1, Ok(clock("followed", 0.0, 1_200.0)))]), None);
        assert_eq!(recovers_in_ms(&[row(1, Ok(clock("outvoted", 0.0, 61_000.0)))]), None);
    }
}
