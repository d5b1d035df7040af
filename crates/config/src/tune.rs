//! Checks whether the settings of a running cluster suit its links. The input is the JSON of its
//! nodes; the output is a report for people and programs. This module asks no node. Numbers out of
//! range are refused, because an answer may come from another version or another program.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::RESERVATION_ELECTIONS_MIN;
use crate::defaults::default_reservation;
use crate::timing::{Timing, is_too_tight};

/// The round trip from one node to another, in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Link {
    from: u64,
    to: u64,
    usual_ms: f64,
    max_ms: f64,
}

/// The settings that a node has now, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Present {
    election: u64,
    heartbeat: u64,
    reservation: u64,
    /// `None` if the node's version does not report it.
    request_timeout: Option<u64>,
    /// `None` if the node's version does not report it.
    clock_offset_max: Option<u64>,
    /// 0 without leases; `None` if the node's version does not report it.
    lease: Option<u64>,
}

/// The answer of a node.
struct NodeReport {
    present: Present,
    links: Vec<Link>,
    /// Ids of the voters; `None` if the node's version does not report them.
    voters: Option<Vec<u64>>,
}

/// Advised values, in ms, for settings that are too small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Raised {
    reservation: Option<u64>,
    request_timeout: Option<u64>,
    clock_offset_max: Option<u64>,
    /// Also if the lease is too long.
    lease: Option<u64>,
    /// Whether the lease has to wait until all nodes have a longer election timeout.
    is_lease_late: bool,
}

impl Raised {
    /// Returns the command that raises the settings of the cluster now. It leaves a lease out that is
    /// longer than the shortest election timeout that a node has now: a leader refuses that.
    fn command(&self) -> Option<String> {
        command_of(&[
            ("RESERVATION_MS", self.reservation),
            ("CLOCK_OFFSET_MAX_MS", self.clock_offset_max),
            ("LEASE_MS", self.lease.filter(|_| !self.is_lease_late)),
        ])
    }

    /// Returns the command for the lease, once all nodes have the advised election timeout.
    fn late_command(&self) -> Option<String> {
        command_of(&[("LEASE_MS", self.lease.filter(|_| self.is_lease_late))])
    }
}

fn command_of(named: &[(&str, Option<u64>)]) -> Option<String> {
    let changes: String =
        named.iter().filter_map(|(name, ms)| Some(format!(" {name}={}", (*ms)?))).collect();
    (!changes.is_empty()).then(|| format!("epicepoch settings set{changes}"))
}

/// The report on a cluster.
#[derive(Debug)]
pub struct Report {
    links: Vec<Link>,
    present: BTreeMap<u64, Present>,
    /// Links, as (from, to), between nodes that answer, if no recent round trip of the link is
    /// known.
    unmeasured: Vec<(u64, u64)>,
    /// Nodes without a usable answer, with the reason.
    silent: Vec<(u64, String)>,
}

impl Report {
    /// Makes the report from each node's answer, or from the reason why it has none.
    pub fn of(answers: impl IntoIterator<Item = (u64, Result<Value, String>)>) -> Self {
        let mut report =
            Self { links: vec![], present: BTreeMap::new(), unmeasured: vec![], silent: vec![] };
        let mut voters = BTreeMap::new();
        for (node, answer) in answers {
            match answer.and_then(|said| read(node, &said)) {
                Ok(said) => {
                    report.present.insert(node, said.present);
                    report.links.extend(said.links);
                    voters.insert(node, said.voters);
                }
                Err(why) => report.silent.push((node, why)),
            }
        }
        for (from, voters) in &voters {
            let is_voter = |to: u64| voters.as_ref().is_none_or(|voters| voters.contains(&to));
            let is_measured = |to| report.links.iter().any(|it| (it.from, it.to) == (*from, to));
            let others = report.present.keys().copied().filter(|to| to != from && is_voter(*to));
            report.unmeasured.extend(others.filter(|to| !is_measured(*to)).map(|to| (*from, to)));
        }
        report
    }

    /// Returns the usual round trip of the slowest link; `None` if no link is measured.
    fn longest(&self) -> Option<Duration> {
        let longest = self.links.iter().map(|link| link.usual_ms).max_by(f64::total_cmp)?;
        Some(Duration::from_secs_f64(longest / 1e3))
    }

    fn shortest_timeout(&self) -> Option<Duration> {
        self.present.values().map(|it| Duration::from_millis(it.election)).min()
    }

    fn is_tight(&self) -> bool {
        let known = self.longest().zip(self.shortest_timeout());
        known.is_some_and(|(longest, election)| is_too_tight(election, longest))
    }

    /// Whether `RESERVATION_MS` is too short for the election timeout of any node.
    fn is_window_short(&self) -> bool {
        let least = |it: &Present| RESERVATION_ELECTIONS_MIN * it.election;
        self.present.values().any(|it| it.reservation < least(it))
    }

    /// Whether every link is measured and the settings suit all links.
    pub fn is_well(&self) -> bool {
        let is_measured = self.silent.is_empty() && self.unmeasured.is_empty();
        is_measured && !self.is_tight() && !self.is_window_short()
    }

    /// Returns the other settings that must be raised together with this election timeout.
    fn raised(&self, advised: Duration) -> Raised {
        let election = advised.as_millis() as u64;
        // RESERVATION_MS must suit the longest election timeout of all nodes.
        let elections = self.present.values().map(|it| it.election);
        let slowest = elections.fold(election, u64::max);
        let window = default_reservation(Duration::from_millis(slowest));
        let least = RESERVATION_ELECTIONS_MIN * slowest;
        let longest = self.links.iter().map(|it| it.max_ms).max_by(f64::total_cmp).unwrap_or(0.0);
        let is_too_small = |present: Option<u64>, least: u64| present.is_some_and(|it| it <= least);
        let needed = |least: u64, of: fn(&Present) -> Option<u64>| {
            let more = (least + 1).next_multiple_of(STEP_MS);
            self.present.values().any(|it| is_too_small(of(it), least)).then_some(more)
        };
        let is_short = self.present.values().any(|it| it.reservation < least);
        // A lease is renewed when two fifths of it have passed. The rest must be enough for a commit.
        let usual_ms = self.longest().unwrap_or_default().as_secs_f64() * 1e3;
        let renewable_ms = LEASE_ROUND_TRIPS_MIN * usual_ms;
        let is_unsuitable = |it: &Present| {
            let lease_ms = it.lease.unwrap_or(0);
            lease_ms > 0 && ((lease_ms as f64) < renewable_ms || lease_ms > it.election)
        };
        let is_lease_wrong = self.present.values().any(is_unsuitable);
        let is_timeout_shorter = self.present.values().any(|it| it.election < election);
        Raised {
            is_lease_late: is_lease_wrong && is_timeout_shorter,
            lease: is_lease_wrong.then_some(election),
            reservation: is_short.then_some(window.as_millis() as u64),
            request_timeout: needed(2 * election, |it| it.request_timeout),
            clock_offset_max: needed(longest.ceil() as u64, |it| it.clock_offset_max),
        }
    }

    /// The usual round trips as a matrix, for people. With two nodes the list says the same, so
    /// there is none.
    fn matrix(&self) -> Vec<String> {
        let nodes: BTreeSet<u64> = self.links.iter().flat_map(|it| [it.from, it.to]).collect();
        if nodes.len() < MATRIX_NODES_MIN {
            return Vec::new();
        }
        let row = |name: String, cells: Vec<String>| {
            cells.iter().fold(format!("{name:<9}"), |row, cell| format!("{row} {cell:>8}"))
        };
        let cell = |from: u64, to: u64| {
            let link = self.links.iter().find(|it| (it.from, it.to) == (from, to));
            link.map_or_else(|| "-".to_owned(), |link| format!("{:.2}", link.usual_ms))
        };
        let head = nodes.iter().map(|to| format!("to {to}")).collect();
        let rows = nodes.iter().map(|from| {
            let cells = nodes.iter().map(|to| cell(*from, *to)).collect();
            row(format!("from {from}"), cells)
        });
        std::iter::once(row("usual, ms".to_owned(), head)).chain(rows).collect()
    }

    /// The report as JSON.
    pub fn document(&self) -> Value {
        let ms = |duration: Duration| duration.as_millis() as u64;
        let advised = self.longest().and_then(Timing::advised);
        json!({
            "links": self.links.iter().map(|link| json!({
                "fromNodeID": link.from, "toNodeID": link.to, "usualMs": link.usual_ms, "maxMs": link.max_ms,
            })).collect::<Vec<_>>(),
            "members": self.present.iter().map(|(node, present)| json!({
                "nodeID": node, "electionTimeoutMs": present.election,
                "heartbeatMs": present.heartbeat, "reservationMs": present.reservation,
                "requestTimeoutMs": present.request_timeout,
                "clockOffsetMaxMs": present.clock_offset_max,
                "leaseMs": present.lease,
            })).collect::<Vec<_>>(),
            "unmeasured": self.unmeasured.iter().map(|(from, to)| json!({"fromNodeID": from, "toNodeID": to}))
                .collect::<Vec<_>>(),
            "silent": self.silent.iter().map(|(node, why)| json!({"nodeID": node, "error": why}))
                .collect::<Vec<_>>(),
            "tooTight": self.is_tight(),
            "advised": advised.map(|it| {
                let raised = self.raised(it.election_timeout);
                json!({
                    "electionTimeoutMs": ms(it.election_timeout), "heartbeatMs": ms(it.heartbeat),
                    "reservationMs": ms(it.reservation),
                    "requestTimeoutMs": raised.request_timeout,
                    "clockOffsetMaxMs": raised.clock_offset_max,
                    "leaseMs": raised.lease,
                    "clusterCommand": raised.command(),
                    "laterClusterCommand": raised.late_command(),
                })
            }),
        })
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = format!("{:<4} {:<4} {:>11} {:>11}\n", "FROM", "TO", "USUAL", "LONGEST");
        let mut line = |line: String| text += &(line + "\n");
        for Link { from, to, usual_ms, max_ms } in &self.links {
            line(format!("{from:<4} {to:<4} {usual_ms:>8.2} ms {max_ms:>8.2} ms"));
        }
        self.matrix().into_iter().for_each(&mut line);
        for (from, to) in &self.unmeasured {
            line(format!("{from:<4} {to:<4} not measured in the last seconds"));
        }
        for (node, why) in &self.silent {
            line(format!("{node:<4} {why}"));
        }
        let Some(longest) = self.longest() else {
            line(
                "no round trip is known: run this again when the nodes have run for some seconds"
                    .into(),
            );
            return text;
        };
        let longest_ms = longest.as_secs_f64() * 1e3;
        line(format!("the longest usual round trip is {longest_ms:.2} ms: {}", kind(longest)));
        let Some(advised) = Timing::advised(longest) else {
            line("no settings suit links of more than a second: put the voters nearer".into());
            return text;
        };
        let raised = self.raised(advised.election_timeout);
        let election = advised.election_timeout.as_millis() as u64;
        let of_node = |election: u64, heartbeat: u64| {
            format!("ELECTION_TIMEOUT_MS={election} HEARTBEAT_MS={heartbeat}")
        };
        let heartbeat = advised.heartbeat.as_millis() as u64;
        let _infallible = writeln!(text, "advised     {}", of_node(election, heartbeat));
        for (node, it) in &self.present {
            let (own, shared) = (of_node(it.election, it.heartbeat), it.reservation);
            let _infallible = writeln!(text, "node {node:<6} {own} RESERVATION_MS={shared}");
        }
        if let Some(ms) = raised.request_timeout {
            let why = "above two election timeouts, or requests are refused during an election";
            let _infallible = writeln!(text, "advised     REQUEST_TIMEOUT_MS={ms}: {why}");
        }
        if let Some(ms) = raised.clock_offset_max {
            let why = "above the longest round trip, or the nodes cannot compare clocks";
            let _infallible = writeln!(text, "advised     CLOCK_OFFSET_MAX_MS={ms}: {why}");
        }
        if let Some(ms) = raised.lease {
            let why = "long enough to be renewed in time, and at most an election timeout";
            let _infallible = writeln!(text, "advised     LEASE_MS={ms}: {why}");
        }
        if let Some(ms) = raised.reservation {
            let why = "at least four election timeouts of every node";
            let _infallible = writeln!(text, "advised     RESERVATION_MS={ms}: {why}");
        }
        if let Some(command) = raised.command() {
            let _infallible = writeln!(
                text,
                "first give  {command}\n\
                 these settings belong to the cluster, which ignores those of its nodes: remove them \
                 from all nodes"
            );
        }
        if let Some(command) = raised.late_command() {
            let _infallible = writeln!(
                text,
                "later give  {command}\n\
                 give this when all nodes run with ELECTION_TIMEOUT_MS={election}: until then the \
                 leader may refuse it"
            );
        }
        text += if self.is_tight() {
            "TOO TIGHT: an election does not fit into its turn; set the advised values on all nodes\n"
        } else if self.is_window_short() {
            "TOO SHORT: RESERVATION_MS is below four ELECTION_TIMEOUT_MS; give the command above\n"
        } else if !self.is_well() {
            "not all links were measured: run this again when all nodes have run for some seconds\n"
        } else if raised.request_timeout.is_some() {
            "the election settings suit; set the other advised values on all nodes\n"
        } else if raised.is_lease_late {
            "the election settings suit; set ELECTION_TIMEOUT_MS for the advised lease\n"
        } else if raised != Raised::default() {
            "the election settings suit; give the command above\n"
        } else if self.present.values().any(|it| it.election < election) {
            "the settings suit the links, with little to spare\n"
        } else {
            "the settings suit the links\n"
        };
        text
    }
}

/// Parses the answer of a node.
///
/// # Errors
/// Names the first value that is missing or out of range.
fn read(node: u64, said: &Value) -> Result<NodeReport, String> {
    let setting = |name: &str| whole_ms(name, &said[name]);
    let required = |name: &str| setting(name)?.ok_or_else(|| OTHER_VERSION.to_owned());
    let present = Present {
        election: required("electionTimeoutMs")?,
        heartbeat: required("heartbeatMs")?,
        reservation: required("reservationMs")?,
        request_timeout: setting("requestTimeoutMs")?,
        clock_offset_max: setting("clockOffsetMaxMs")?,
        lease: setting("leaseMs")?,
    };
    let links = said["roundTrips"].as_array().ok_or(OTHER_VERSION)?.iter().map(|link| {
        Ok(Link {
            from: node,
            to: link["nodeID"].as_u64().ok_or(OTHER_VERSION)?,
            usual_ms: ms("usualMs", &link["usualMs"])?,
            max_ms: ms("maxMs", &link["maxMs"])?,
        })
    });
    let links = links.collect::<Result<_, String>>()?;
    let voters = said["voters"].as_array();
    let voters = voters.map(|ids| ids.iter().filter_map(Value::as_u64).collect());
    Ok(NodeReport { present, links, voters })
}

/// Reads a setting; `None` if it is missing.
fn whole_ms(name: &str, value: &Value) -> Result<Option<u64>, String> {
    let is_sound = |ms: &u64| *ms <= MS_MAX;
    match value {
        Value::Null => Ok(None),
        value => value
            .as_u64()
            .filter(is_sound)
            .map(Some)
            .ok_or_else(|| out_of_range(name, value, "whole ")),
    }
}

/// Reads a measured time.
fn ms(name: &str, value: &Value) -> Result<f64, String> {
    let is_sound = |ms: &f64| (0.0..=MS_MAX as f64).contains(ms);
    match value {
        Value::Null => Err(OTHER_VERSION.to_owned()),
        value => value.as_f64().filter(is_sound).ok_or_else(|| out_of_range(name, value, "")),
    }
}

fn out_of_range(name: &str, value: &Value, whole: &str) -> String {
    // Only a number is shown, because a value of another type may be of any length.
    let value = if value.is_number() { value.to_string() } else { "no number".to_owned() };
    format!("reports {name} as {value}; allowed are {whole}milliseconds from 0 to {MS_MAX}")
}

/// Names the places between which such round trips are usual.
fn kind(round_trip: Duration) -> &'static str {
    match round_trip.as_micros() {
        0..2_000 => "as in one place, or zones close by",
        2_000..20_000 => "as between zones, or regions close by",
        _ => "as between regions; every request waits for one such round trip",
    }
}

/// A lease is at least so many usual round trips long. A commit takes one round trip and the time of
/// two disks, and has to fit into three fifths of the lease.
const LEASE_ROUND_TRIPS_MIN: f64 = 5.0;
/// Advised times are rounded up to a multiple of this, in ms.
const STEP_MS: u64 = 50;
/// Greatest setting of any version, and greatest measured round trip, in ms: a day.
const MS_MAX: u64 = 86_400_000;
const OTHER_VERSION: &str = "does not report its links: it runs another version";

/// Round trips between at least so many nodes are drawn as a matrix.
const MATRIX_NODES_MIN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    type Row = (u64, Result<Value, String>);

    fn row(node: u64, election: u64, trips: &[(u64, f64)]) -> Row {
        let trips: Vec<_> = trips
            .iter()
            .map(|(to, ms)| json!({"nodeID": to, "usualMs": ms, "maxMs": ms * 2.0}))
            .collect();
        let said = json!({"electionTimeoutMs": election, "heartbeatMs": election / 5,
                          "reservationMs": 1000, "roundTrips": trips});
        (node, Ok(said))
    }

    #[test]
    fn the_defaults_suit_a_lan() {
        let report = Report::of([row(1, 200, &[(2, 0.25)]), row(2, 200, &[(1, 0.3)])]);
        let expected = "\
FROM TO         USUAL     LONGEST
1    2        0.25 ms     0.50 ms
2    1        0.30 ms     0.60 ms
the longest usual round trip is 0.30 ms: as in one place, or zones close by
advised     ELECTION_TIMEOUT_MS=200 HEARTBEAT_MS=40
node 1      ELECTION_TIMEOUT_MS=200 HEARTBEAT_MS=40 RESERVATION_MS=1000
node 2      ELECTION_TIMEOUT_MS=200 HEARTBEAT_MS=40 RESERVATION_MS=1000
the settings suit the links
";
        assert_eq!(report.text(), expected);
        assert!(report.is_well());
    }

    #[test]
    fn round_trips_of_three_nodes_are_a_matrix() {
        let rows = [row(1, 200, &[(2, 0.25), (3, 70.0)]), row(2, 200, &[(1, 0.3)])];
        let expected = [
            "usual, ms     to 1     to 2     to 3",
            "from 1           -     0.25    70.00",
            "from 2        0.30        -        -",
            "from 3           -        -        -",
        ];
        assert_eq!(Report::of(rows).matrix(), expected);
    }

    #[test]
    fn links_between_regions_get_advice() {
        let report = Report::of([row(1, 200, &[(2, 70.5)])]);
        assert!(!report.is_well());
        let text = report.text();
        assert!(text.contains("advised     ELECTION_TIMEOUT_MS=750 HEARTBEAT_MS=150"), "{text}");
        assert!(text.contains("TOO TIGHT") && text.contains("between regions"), "{text}");
        assert_eq!(report.document()["advised"]["reservationMs"], 3_750);
        // RESERVATION_MS belongs to the cluster, so setting it on a node has no effect.
        let command = "epicepoch settings set RESERVATION_MS=3750";
        assert!(text.contains(&format!("first give  {command}\n")), "{text}");
        assert!(!text.contains("HEARTBEAT_MS=150 RESERVATION_MS"), "{text}");
        assert_eq!(report.document()["advised"]["clusterCommand"], command);
        let report = Report::of([row(1, 200, &[(2, 22.0)])]);
        assert!(report.is_well() && report.text().ends_with("with little to spare\n"));
    }

    /// A node was restarted with a longer election timeout, but the operator did not give the
    /// command that raises `RESERVATION_MS`.
    #[test]
    fn a_reservation_too_short_for_a_node_is_reported_on_any_links() {
        let report = Report::of([row(1, 1_800, &[(2, 0.25)]), row(2, 200, &[(1, 0.25)])]);
        let text = report.text();
        assert!(!report.is_well() && text.contains("TOO SHORT: RESERVATION_MS"), "{text}");
        assert!(text.contains("epicepoch settings set RESERVATION_MS=9000\n"), "{text}");
        assert!(Report::of([row(1, 250, &[(2, 0.25)])]).is_well());
    }

    #[test]
    fn nodes_without_an_answer_are_named() {
        let mut silent = row(3, 200, &[]);
        silent.1 = Err("no answer".into());
        let mut old = row(2, 200, &[]);
        old.1 = Ok(json!({"status": "followed"}));
        let report = Report::of([row(1, 200, &[(2, 1.0)]), old, silent]);
        assert!(!report.is_well());
        assert!(
            report.text().contains("2    does not report")
                && report.text().contains("3    no answer")
        );
        assert!(Report::of([row(1, 200, &[])]).text().contains("no round trip is known"));
    }

    /// While one link is not measured, the links count as unsuitable, because that link may be the
    /// longest.
    #[test]
    fn settings_never_suit_while_a_link_is_not_measured() {
        let rows = [row(1, 200, &[(2, 1.0), (3, 1.0)]), row(2, 200, &[(1, 1.0)]), row(3, 200, &[])];
        let report = Report::of(rows);
        assert_eq!(report.unmeasured, [(2, 3), (3, 1), (3, 2)]);
        let text = report.text();
        assert!(!report.is_well() && !text.contains("suit"), "{text}");
        assert!(
            text.contains("2    3    not measured") && text.contains("not all links were measured")
        );
        assert_eq!(report.document()["unmeasured"][0], json!({"fromNodeID": 2, "toNodeID": 3}));
        let none = Report::of([row(1, 200, &[]), row(2, 200, &[])]);
        assert!(!none.is_well() && none.text().contains("2    1    not measured"));
        // Links to learners need no measurement.
        let voting = |mut row: Row| {
            row.1.as_mut().expect("said")["voters"] = json!([1, 2]);
            row
        };
        let rows = [row(1, 200, &[(2, 1.0)]), row(2, 200, &[(1, 1.0)])].map(voting);
        let learner = voting(row(3, 200, &[(1, 1.0), (2, 1.0)]));
        let report = Report::of(rows.into_iter().chain([learner]));
        assert!(report.is_well(), "{}", report.text());
    }

    #[test]
    fn other_times_that_the_links_need_are_advised_where_they_are_too_small() {
        let with = |request: u64, offset: u64| {
            let mut row = row(1, 800, &[(2, 80.0)]);
            let said = row.1.as_mut().expect("said");
            said["reservationMs"] = json!(4_000);
            said["requestTimeoutMs"] = json!(request);
            said["clockOffsetMaxMs"] = json!(offset);
            Report::of([row])
        };
        let report = with(1_600, 160);
        let text = report.text();
        assert!(report.is_well() && text.contains("advised     REQUEST_TIMEOUT_MS=1650: "));
        assert!(text.contains("advised     CLOCK_OFFSET_MAX_MS=200: "), "{text}");
        assert!(text.contains("epicepoch settings set CLOCK_OFFSET_MAX_MS=200\n"), "{text}");
        assert!(text.ends_with("set the other advised values on all nodes\n"), "{text}");
        assert_eq!(report.document()["advised"]["clockOffsetMaxMs"], 200);
        let report = with(1_601, 161);
        assert!(report.text().ends_with("the settings suit the links\n"));
        assert_eq!(report.document()["advised"]["requestTimeoutMs"], Value::Null);
    }

    #[test]
    fn a_lease_that_cannot_be_renewed_in_time_or_outlasts_an_election_is_reported() {
        let with = |lease_ms: Option<u64>, election_ms, trip_ms| {
            let mut row = row(1, election_ms, &[(2, trip_ms)]);
            let said = row.1.as_mut().expect("said");
            said["reservationMs"] = json!(4_000);
            said["leaseMs"] = json!(lease_ms);
            Report::of([row])
        };
        for (lease_ms, election_ms, trip_ms, advised_ms) in [
            (None, 200, 0.5, None),
            (Some(0), 800, 80.0, None),
            (Some(50), 200, 0.5, None),
            (Some(400), 800, 80.0, None),
            (Some(399), 800, 80.0, Some(800)),
            (Some(201), 200, 0.5, Some(200)),
        ] {
            let report = with(lease_ms, election_ms, trip_ms);
            let (text, document) = (report.text(), report.document());
            assert_eq!(document["advised"]["leaseMs"], json!(advised_ms), "{text}");
            let command = advised_ms.map(|ms| format!("epicepoch settings set LEASE_MS={ms}"));
            assert_eq!(document["advised"]["clusterCommand"], json!(command), "{text}");
            assert_eq!(text.contains("advised     LEASE_MS="), advised_ms.is_some(), "{text}");
            assert!(report.is_well());
        }
    }

    /// A leader refuses a lease that is longer than its own election timeout, and a reservation that
    /// is shorter than four of them. The first command is given while the nodes have the present
    /// timeouts, the later one when they have the advised timeout.
    #[test]
    fn no_advised_command_is_refused_when_it_is_given() {
        let value = |command: &Value, name: &str| {
            let changes = command.as_str().unwrap_or_default().split(' ');
            let found = changes.filter_map(|it| it.split_once('=')).find(|it| it.0 == name);
            found.map(|(_, ms)| ms.parse::<u64>().expect("a number"))
        };
        let mut late = 0;
        for (elections, lease_ms, trip_ms) in [
            ([200, 200], 200, 70.5),
            ([200, 800], 200, 70.5),
            ([800, 800], 100, 70.5),
            ([200, 200], 201, 0.5),
            ([200, 600], 300, 0.5),
            ([200, 200], 0, 70.5),
        ] {
            let rows = [(1, elections[0]), (2, elections[1])].map(|(node, election)| {
                let mut row = row(node, election, &[(3 - node, trip_ms)]);
                row.1.as_mut().expect("said")["leaseMs"] = json!(lease_ms);
                row
            });
            let report = Report::of(rows);
            let (text, document) = (report.text(), report.document());
            let advised = &document["advised"];
            let (now, later) = (&advised["clusterCommand"], &advised["laterClusterCommand"]);
            for election in elections {
                let is_allowed = value(now, "LEASE_MS").is_none_or(|it| it <= election);
                assert!(is_allowed, "{now}");
                let reservation_ms = value(now, "RESERVATION_MS");
                assert!(reservation_ms.is_none_or(|it| it >= 4 * election), "{now}");
            }
            let then = advised["electionTimeoutMs"].as_u64().expect("advised");
            assert!(value(later, "LEASE_MS").is_none_or(|it| it <= then), "{later}");
            let is_advised = value(now, "LEASE_MS").or(value(later, "LEASE_MS"));
            assert_eq!(json!(is_advised), advised["leaseMs"], "{text}");
            if let Some(command) = later.as_str() {
                late += 1;
                assert!(text.contains(&format!("later give  {command}\n")), "{text}");
            }
        }
        assert_eq!(late, 2);
    }

    #[test]
    fn a_number_out_of_range_is_reported_and_the_other_nodes_are_read() {
        let settings = ["electionTimeoutMs", "reservationMs", "requestTimeoutMs"];
        let of_setting = settings.map(|name| (name, json!(u64::MAX), "18446744073709551615"));
        let others = [
            ("heartbeatMs", json!(-1), "-1"),
            ("clockOffsetMaxMs", json!("1"), "no number"),
            ("usualMs", json!(1e300), "1e+300"),
            ("usualMs", json!(-0.5), "-0.5"),
            ("usualMs", json!(1e15), "1000000000000000.0"),
            ("maxMs", json!(1e19), "1e+19"),
        ];
        for (name, value, shown) in of_setting.into_iter().chain(others) {
            let mut nonsense = row(2, 200, &[(1, 1.0)]);
            let said = nonsense.1.as_mut().expect("said");
            let said = if said["roundTrips"][0].get(name).is_some() {
                &mut said["roundTrips"][0]
            } else {
                said
            };
            said[name] = value;
            let report = Report::of([row(1, 200, &[(2, 1.0)]), nonsense]);
            let text = report.text();
            assert!(!report.is_well() && text.contains("1    2        1.00 ms"), "{text}");
            let told = format!("2    reports {name} as {shown}; ");
            assert!(text.contains(&told), "{told}: {text}");
            assert_eq!(report.document()["silent"][0]["nodeID"], 2);
        }
    }

    #[test]
    fn the_greatest_times_are_handled() {
        let mut longest = row(1, MS_MAX, &[(2, MS_MAX as f64 / 2.0)]);
        let said = longest.1.as_mut().expect("said");
        for name in ["reservationMs", "requestTimeoutMs", "clockOffsetMaxMs"] {
            said[name] = json!(MS_MAX);
        }
        let report = Report::of([longest, row(2, 200, &[(1, 900.0)])]);
        let text = report.text();
        assert!(!report.is_well() && text.contains("put the voters nearer"), "{text}");
        assert!(report.document()["advised"].is_null());
    }
}
