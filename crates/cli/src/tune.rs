//! `epicepoch tune`: how far the nodes are from each other, as they measure it themselves, and which
//! election settings that calls for. It changes nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Command};
use epicepoch_server::config::{Timing, is_too_tight};
use serde_json::{Value, json};

use crate::clock::{self, Row};
use crate::commands::{client_arguments, json as json_switch};
use crate::failure::Failure;
use crate::operator;
use crate::sources::Environment;

pub(crate) fn command() -> Command {
    Command::new("tune")
        .about("Show the round trips between nodes, and the election settings that they call for")
        .long_about(
            "Show the round trips between nodes, as they measure them themselves, and the election \
             settings that they call for.\n\n  \
             USUAL    nine of ten of the last 64 questions, of 13 seconds, took no longer\n  \
             LONGEST  the longest of them\n\n\
             An election is two round trips, and has to fit into a quarter of ELECTION_TIMEOUT_MS, \
             which is one voter's turn: ten of the longest usual round trip are advised, and never \
             less than the default; eight are the least.",
        )
        .after_help(
            "Example:\n  epicepoch tune --addr n1:8080,n2:8080,n3:8080\n\n\
             With OPS_ADDR give that of every node.\n\n\
             Exit codes: 0 the settings suit the links; 1 they are too tight, or a node does not \
             answer; 2 wrong usage.",
        )
        .args(client_arguments())
        .arg(json_switch())
}

pub(crate) fn run(matches: &ArgMatches, environment: &Environment) -> Result<ExitCode, Failure> {
    let rows = clock::rows(matches, environment)?;
    let report = Report::of(&rows);
    operator::print(matches, &report.document(), |_| Some(report.text()))?;
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The way from one node to another and back, ms.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Link {
    from: u64,
    to: u64,
    usual_ms: f64,
    max_ms: f64,
}

/// What a node was started with, ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Present {
    election: u64,
    heartbeat: u64,
    reservation: u64,
}

#[derive(Debug)]
struct Report {
    links: Vec<Link>,
    present: BTreeMap<u64, Present>,
    /// Who does not answer, or says nothing of it, and why.
    silent: Vec<(u64, String)>,
}

impl Report {
    fn of(rows: &[Row]) -> Self {
        let mut report = Self { links: vec![], present: BTreeMap::new(), silent: vec![] };
        for row in rows {
            let node = row.member.node_id.0;
            let said = row.clock.as_ref().map_err(Clone::clone);
            match said.and_then(|said| read(node, said).ok_or_else(|| OTHER_VERSION.to_owned())) {
                Ok((present, links)) => {
                    report.present.insert(node, present);
                    report.links.extend(links);
                }
                Err(why) => report.silent.push((node, why)),
            }
        }
        report
    }

    /// The longest of the usual round trips.
    fn longest(&self) -> Option<Duration> {
        let longest = self.links.iter().map(|link| link.usual_ms).max_by(f64::total_cmp)?;
        Some(Duration::from_secs_f64(longest.max(0.0) / 1e3))
    }

    fn shortest_timeout(&self) -> Option<Duration> {
        self.present.values().map(|it| Duration::from_millis(it.election)).min()
    }

    fn is_tight(&self) -> bool {
        let known = self.longest().zip(self.shortest_timeout());
        known.is_some_and(|(longest, election)| is_too_tight(election, longest))
    }

    fn is_well(&self) -> bool {
        self.silent.is_empty() && !self.is_tight()
    }

    fn document(&self) -> Value {
        let ms = |duration: Duration| duration.as_millis() as u64;
        let advised = self.longest().and_then(Timing::advised);
        json!({
            "links": self.links.iter().map(|link| json!({
                "from": link.from, "to": link.to, "usualMs": link.usual_ms, "maxMs": link.max_ms,
            })).collect::<Vec<_>>(),
            "nodes": self.present.iter().map(|(node, present)| json!({
                "nodeID": node, "electionTimeoutMs": present.election,
                "heartbeatMs": present.heartbeat, "reservationMs": present.reservation,
            })).collect::<Vec<_>>(),
            "silent": self.silent.iter().map(|(node, why)| json!({"nodeID": node, "error": why}))
                .collect::<Vec<_>>(),
            "tooTight": self.is_tight(),
            "advised": advised.map(|it| json!({
                "electionTimeoutMs": ms(it.election_timeout), "heartbeatMs": ms(it.heartbeat),
                "reservationMs": ms(it.reservation),
            })),
        })
    }

    fn text(&self) -> String {
        let mut text = format!("{:<4} {:<4} {:>11} {:>11}\n", "FROM", "TO", "USUAL", "LONGEST");
        let mut line = |line: String| text += &(line + "\n");
        for Link { from, to, usual_ms, max_ms } in &self.links {
            line(format!("{from:<4} {to:<4} {usual_ms:>8.2} ms {max_ms:>8.2} ms"));
        }
        for (node, why) in &self.silent {
            line(format!("{node:<4} {why}"));
        }
        let Some(longest) = self.longest() else {
            line(
                "no round trip is known: ask again when the nodes have run for some seconds".into(),
            );
            return text;
        };
        let longest_ms = longest.as_secs_f64() * 1e3;
        line(format!("the longest usual round trip is {longest_ms:.2} ms: {}", kind(longest)));
        let Some(advised) = Timing::advised(longest) else {
            line("no settings suit links of more than a second: put the voters nearer".into());
            return text;
        };
        let advised = Present {
            election: advised.election_timeout.as_millis() as u64,
            heartbeat: advised.heartbeat.as_millis() as u64,
            reservation: advised.reservation.as_millis() as u64,
        };
        let of = |it: &Present| {
            format!(
                "ELECTION_TIMEOUT_MS={} HEARTBEAT_MS={} RESERVATION_MS={}",
                it.election, it.heartbeat, it.reservation
            )
        };
        let _infallible = writeln!(text, "advised     {}", of(&advised));
        for (node, present) in &self.present {
            let _infallible = writeln!(text, "node {node:<6} {}", of(present));
        }
        text += if self.is_tight() {
            "TOO TIGHT: an election does not fit into its turn; set what is advised, on all nodes\n"
        } else if self.present.values().any(|it| it.election < advised.election) {
            "they suit, with little to spare\n"
        } else {
            "they suit\n"
        };
        text
    }
}

/// What a node says of its settings and its links.
fn read(node: u64, said: &Value) -> Option<(Present, Vec<Link>)> {
    let number = |name: &str| said[name].as_u64();
    let present = Present {
        election: number("electionTimeoutMs")?,
        heartbeat: number("heartbeatMs")?,
        reservation: number("reservationMs")?,
    };
    let links = said["roundTrips"].as_array()?.iter().map(|link| {
        Some(Link {
            from: node,
            to: link["nodeID"].as_u64()?,
            usual_ms: link["usualMs"].as_f64()?,
            max_ms: link["maxMs"].as_f64()?,
        })
    });
    Some((present, links.collect::<Option<_>>()?))
}

/// What links of this length are like.
fn kind(round_trip: Duration) -> &'static str {
    match round_trip.as_micros() {
        0..2_000 => "as in one place, or zones close by",
        2_000..20_000 => "as between zones, or regions close by",
        _ => "as between regions; every request waits for one such way",
    }
}

const OTHER_VERSION: &str = "says nothing of its links: it runs another version";

#[cfg(test)]
mod tests {
    use epicepoch_client::Member;
    use epicepoch_wire::NodeId;

    use super::*;

    fn row(node: u64, election: u64, trips: &[(u64, f64)]) -> Row {
        let trips: Vec<_> = trips
            .iter()
            .map(|(to, ms)| json!({"nodeID": to, "usualMs": ms, "maxMs": ms * 2.0}))
            .collect();
        let said = json!({"electionTimeoutMs": election, "heartbeatMs": election / 5,
                          "reservationMs": 1000, "roundTrips": trips});
        Row { member: Member { node_id: NodeId(node), addr: String::new() }, clock: Ok(said) }
    }

    #[test]
    fn links_of_a_lan_are_suited_by_the_defaults() {
        let report = Report::of(&[row(1, 200, &[(2, 0.25)]), row(2, 200, &[(1, 0.3)])]);
        let expected = "\
FROM TO         USUAL     LONGEST
1    2        0.25 ms     0.50 ms
2    1        0.30 ms     0.60 ms
the longest usual round trip is 0.30 ms: as in one place, or zones close by
advised     ELECTION_TIMEOUT_MS=200 HEARTBEAT_MS=40 RESERVATION_MS=1000
node 1      ELECTION_TIMEOUT_MS=200 HEARTBEAT_MS=40 RESERVATION_MS=1000
node 2      ELECTION_TIMEOUT_MS=200 HEARTBEAT_MS=40 RESERVATION_MS=1000
they suit
";
        assert_eq!(report.text(), expected);
        assert!(report.is_well());
    }

    #[test]
    fn links_between_regions_need_more_and_it_is_said_what() {
        let report = Report::of(&[row(1, 200, &[(2, 70.5)])]);
        assert!(!report.is_well());
        let text = report.text();
        assert!(text.contains("advised     ELECTION_TIMEOUT_MS=750 HEARTBEAT_MS=150"), "{text}");
        assert!(text.contains("TOO TIGHT") && text.contains("between regions"), "{text}");
        assert_eq!(report.document()["advised"]["reservationMs"], 3_750);
        let report = Report::of(&[row(1, 200, &[(2, 22.0)])]);
        assert!(report.is_well() && report.text().ends_with("with little to spare\n"));
    }

    #[test]
    fn who_says_nothing_is_named() {
        let mut silent = row(3, 200, &[]);
        silent.clock = Err("no answer".into());
        let mut old = row(2, 200, &[]);
        old.clock = Ok(json!({"status": "followed"}));
        let report = Report::of(&[row(1, 200, &[(2, 1.0)]), old, silent]);
        assert!(!report.is_well());
        assert!(
            report.text().contains("2    says nothing") && report.text().contains("3    no answer")
        );
        assert!(Report::of(&[row(1, 200, &[])]).text().contains("no round trip is known"));
    }
}
