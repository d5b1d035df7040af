//! The result of a run, as a screen of text.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::checker::Verdict;
use crate::history::{Ended, Kind, Outcome, Why};
use crate::run::{Mode, RunResult, Settings};

/// Its `Display` prints the summary.
#[derive(Debug)]
pub struct Summary<'a> {
    pub settings: &'a Settings,
    pub result: &'a RunResult,
    pub verdict: &'a Verdict,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, result, .. } = self;
        writeln!(
            f,
            "{:.1} s: 3 nodes of the oracle, {} stores, {} clients, {} accounts",
            result.took.as_secs_f64(),
            settings.stores,
            settings.clients,
            settings.bank.accounts
        )?;
        match settings.mode {
            Mode::Quorum => {}
            Mode::Intervals => writeln!(f, "interval mode     clients wait out each timestamp")?,
            Mode::IntervalsWithoutWait => {
                writeln!(f, "interval mode     CLIENTS DO NOT WAIT")?;
            }
        }
        if let Some(plant) = settings.plant {
            writeln!(f, "PLANTED           {plant}")?;
        }
        self.kills(f)?;
        self.transactions(f)?;
        self.checked(f)
    }
}

impl Summary<'_> {
    fn kills(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, result, verdict } = self;
        let (killed, clients) = (&result.nodes_killed, result.clients_killed);
        let slowest = millis(killed.iter().max().copied().unwrap_or_default());
        let killed = killed.len();
        if settings.mode == Mode::Quorum {
            writeln!(
                f,
                "killed            {killed} leaders of the oracle (another one served after \
                 {slowest} at most), {clients} clients"
            )?;
        } else {
            writeln!(f, "killed            {killed} nodes of the oracle, {clients} clients")?;
        }
        writeln!(
            f,
            "cut off           {} transactions that had happened, {} that had not",
            verdict.cut_off_committed, verdict.cut_off_lost
        )?;
        let sum = |of: fn(&Ended) -> u64| result.evidence.ended.iter().map(of).sum::<u64>();
        writeln!(
            f,
            "locks of others   {} made versions (roll forward), {} removed (roll back)",
            sum(|ended| ended.figures.forward),
            sum(|ended| ended.figures.back)
        )
    }

    fn transactions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = &self.result.evidence.ended;
        let committed = |kind| {
            let of_kind = ended.iter().filter(move |ended| ended.kind == kind);
            of_kind.filter(|ended| matches!(ended.outcome, Outcome::Committed { .. })).count()
        };
        let transfers = committed(Kind::Transfer);
        let read_only = ended.iter().filter(|ended| ended.outcome == Outcome::ReadOnly).count();
        writeln!(
            f,
            "committed         {transfers} transfers ({:.0}/s), {} changes of duty; {read_only} \
             only read",
            transfers as f64 / self.result.took.as_secs_f64(),
            committed(Kind::Duty)
        )?;
        let mut aborted: BTreeMap<Why, u64> = BTreeMap::new();
        for ended in ended {
            if let Outcome::Aborted { why } = ended.outcome {
                *aborted.entry(why).or_default() += 1;
            }
        }
        write!(f, "aborted           {}", aborted.values().sum::<u64>())?;
        let mut before = " (";
        for (why, count) in &aborted {
            write!(f, "{before}{} {count}", words(*why))?;
            before = ", ";
        }
        writeln!(f, "{}", if aborted.is_empty() { "" } else { ")" })?;
        let without = aborted.get(&Why::NoTimestamp).copied().unwrap_or_default();
        let without = self.result.evidence.without_timestamp + without;
        writeln!(f, "no timestamp      {without} transactions")
    }

    fn checked(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verdict, .. } = self;
        writeln!(
            f,
            "checked           {} reads, {} versions, {} sums over all accounts",
            verdict.reads, verdict.versions, verdict.snapshots
        )?;
        writeln!(f, "write skews       {} (snapshot isolation allows them)", verdict.write_skews)?;
        if verdict.findings.is_empty() {
            return write!(f, "verdict           no anomaly");
        }
        writeln!(f, "verdict           {} FINDINGS", verdict.findings.len())?;
        let mut counts = BTreeMap::new();
        for finding in &verdict.findings {
            *counts.entry(finding.anomaly).or_insert(0_u64) += 1;
        }
        for (anomaly, count) in counts {
            let example = verdict.findings.iter().find(|finding| finding.anomaly == anomaly);
            let what = example.map_or("", |finding| finding.what.as_str());
            writeln!(f, "  {count} times {anomaly:?}, such as: {what}")?;
        }
        Ok(())
    }
}

fn words(why: Why) -> &'static str {
    match why {
        Why::Conflict => "first committer won",
        Why::Locked => "locked",
        Why::RolledBack => "rolled back by others",
        Why::NoTimestamp => "no timestamp",
    }
}

fn millis(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}
