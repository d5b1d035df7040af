//! The screen of `epicepoch top`: a pure function of the model, the time and the size of the
//! terminal. Every character is one column wide.

use crate::top::events::Urgency;
use crate::top::figures::{count, lasting, ms, ms_up_to, signed};
use crate::top::model::{Asked, Health, Model, Row};
use crate::top::rates::Rates;
use crate::top::status::Status;
use crate::top::warnings::Warning;

/// How a part of a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Dim,
    Bold,
    Good,
    Soon,
    Now,
}

/// A line of the screen.
pub(super) type Line = Vec<(Style, String)>;

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) lines: usize,
}

/// The smallest terminal that shows something useful.
const SIZE_MIN: Size = Size { columns: 40, lines: 10 };
/// At most one line in so many has warnings.
const WARNING_PARTS: usize = 3;
/// Lines around the nodes: the head, the titles of the columns, empty lines, and the keys.
const LINES_AROUND_NODES: usize = 7;
/// Columns before the advice of a warning.
const WARNING_INDENT: usize = 8;
/// Columns of the name of a chart, and of its last value.
const CHART_NAME: usize = 24;
const CHART_VALUE: usize = 10;
/// The bars of a chart, from the lowest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const KEYS: &str = "q quits  ↑ ↓ chooses the node of the charts";

/// A chart: its name, its value of a second, and how the value is written. The last argument is the
/// last bound of what is measured.
type Chart = (&'static str, fn(&Rates) -> Option<f64>, fn(f64, f64) -> String);

const CHARTS: [Chart; 7] = [
    ("timestamps/s", |it| Some(it.timestamps_per_s), |it, _| count(it)),
    ("requests/s answered", |it| Some(it.answered_per_s), |it, _| count(it)),
    ("requests/s failed", |it| Some(it.failed_per_s), |it, _| count(it)),
    ("confirm round, median", |it| it.confirm_p50_ms, ms_up_to),
    ("confirm round, p99", |it| it.confirm_p99_ms, ms_up_to),
    ("disk write, p99", |it| it.disk_p99_ms, ms_up_to),
    ("processor, of one core", |it| Some(it.cpu_percent), |percent, _| format!("{percent:.1} %")),
];

/// The lines of the screen: at most as many as the terminal has.
pub(super) fn screen(model: &Model, found: &[Warning], now_ms: u64, size: Size) -> Vec<Line> {
    if size.columns < SIZE_MIN.columns || size.lines < SIZE_MIN.lines {
        let Size { columns, lines } = SIZE_MIN;
        return vec![plain(format!("too small: needs {columns} columns, {lines} lines"))];
    }
    let rows = model.rows(now_ms);
    let mut lines = head(model, &rows, found, now_ms);
    if rows.is_empty() {
        lines.extend(unanswered(model));
    } else {
        let room = size.lines.saturating_sub(LINES_AROUND_NODES + rows.len());
        lines.extend(attention(found, room.min(size.lines / WARNING_PARTS).max(1), size.columns));
        lines.extend(table(model, &rows, now_ms));
        lines.extend(charts(model, now_ms, size.columns));
    }
    lines.truncate(size.lines - 1);
    lines.resize(size.lines - 1, Line::new());
    let every = model.interval.as_secs_f64();
    lines.push(vec![(Style::Dim, format!("{KEYS}  asks every {every} s"))]);
    lines
}

fn plain(text: impl Into<String>) -> Line {
    vec![(Style::Plain, text.into())]
}

/// Who leads, since when, and how many nodes answer.
fn head(model: &Model, rows: &[Row<'_>], found: &[Warning], now_ms: u64) -> Vec<Line> {
    let view = model.view(now_ms);
    let Some((asked, status)) = view.and_then(|it| Some((it, it.status.as_ref()?))) else {
        return vec![vec![(Style::Bold, "EpicEpoch".to_owned())], Line::new()];
    };
    let is_old = !model.is_current(asked, now_ms);
    let is_ready = rows.iter().all(|row| row.health == Health::Ready);
    let (style, verdict) = match found.first().map(|it| it.urgency) {
        _ if is_old => (Style::Now, "✕ No node answers"),
        Some(Urgency::Now) => (Style::Now, "✕ Act now"),
        Some(Urgency::Soon) => (Style::Soon, "▲ Look at it soon"),
        None if !is_ready => (Style::Soon, "… Asks"),
        None => (Style::Good, "✓ All is well"),
    };
    let first = vec![
        (Style::Bold, format!("EpicEpoch {}  ", status.text("clusterName"))),
        (style, verdict.to_owned()),
    ];
    let age_ms = now_ms.saturating_sub(asked.at_ms);
    let since_ms = status.number("leaderForMs") + age_ms as f64;
    let leader = match status.leader() {
        Some(leader) if status.is("leads") => {
            format!("Node {leader} leads, for {}", lasting(since_ms))
        }
        Some(leader) => format!("Node {leader} leads, seen for {}", lasting(since_ms)),
        None => format!("No leader, for {}", lasting(since_ms)),
    };
    let answering = rows.iter().filter(|row| !row.is_silent()).count();
    let told = if is_old {
        let age = lasting(age_ms as f64);
        format!("This is what node {} said {age} ago: {leader}", status.node())
    } else {
        let term = status.number("term");
        format!("{leader}  term {term}  {answering} of {} nodes answer", rows.len())
    };
    vec![first, plain(told), Line::new()]
}

/// Why no node has answered yet.
fn unanswered(model: &Model) -> Vec<Line> {
    let mut lines = vec![plain("No node has answered yet."), Line::new()];
    for asked in &model.asked {
        let error = asked.error.as_deref().unwrap_or("is asked");
        let is_named = error.starts_with(&asked.addr);
        let text = if is_named { error.to_owned() } else { format!("{}: {error}", asked.addr) };
        lines.push(vec![(Style::Soon, text)]);
    }
    lines
}

/// The most urgent warnings that fit into so many lines: the title of the first at the least.
fn attention(found: &[Warning], most: usize, columns: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut count = 0;
    for it in found {
        let (style, name) = match it.urgency {
            Urgency::Now => (Style::Now, "✕ Now   "),
            Urgency::Soon => (Style::Soon, "▲ Soon  "),
        };
        let advice = wrapped(&it.advice, columns - WARNING_INDENT);
        // A line is kept for how many more there are.
        let rest = usize::from(found.len() > count + 1);
        if count > 0 && lines.len() + 1 + advice.len() + rest > most {
            break;
        }
        count += 1;
        lines.push(vec![(style, name.to_owned()), (Style::Bold, it.title.clone())]);
        let room = most.saturating_sub(lines.len() + rest);
        lines.extend(advice.into_iter().take(room).map(indented));
    }
    if found.len() > count && lines.len() < most {
        lines.push(indented(format!("and {} more", found.len() - count)));
    }
    if !lines.is_empty() {
        lines.push(Line::new());
    }
    lines
}

fn indented(text: impl AsRef<str>) -> Line {
    vec![(Style::Plain, format!("{:WARNING_INDENT$}{}", "", text.as_ref()))]
}

/// A text in lines of so many columns. A longer word has a line of its own.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn table(model: &Model, rows: &[Row<'_>], now_ms: u64) -> Vec<Line> {
    let charted = model.charted(now_ms).and_then(|it| it.status.as_ref()).map(Status::node);
    let width = rows.iter().map(|row| row.addr.len()).max().unwrap_or(0).clamp(4, 28);
    let head = format!(
        "  {:<5} {:<width$} {:<8} {:<16} {:>6} {:>10} {:>10} {:>9}  VERSION",
        "NODE", "ADDR", "ROLE", "HEALTH", "BEHIND", "ROUND TRIP", "CLOCK", "STAMPS/S",
    );
    let mut lines = vec![vec![(Style::Dim, head)]];
    for row in rows {
        let (style, health) = health(row);
        let mark = if charted == Some(row.node) { '›' } else { ' ' };
        let addr: String = row.addr.chars().take(width).collect();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let rate = row.own.and_then(Asked::last_rates).map(|it| count(it.timestamps_per_s));
        let clock = row.own.and_then(|own| own.status.as_ref()).map(|it| it.text("status"));
        let clock = clock.filter(|clock| !matches!(*clock, "followed" | "")).map(str::to_owned);
        lines.push(vec![
            (Style::Bold, format!("{mark} {:<5} ", row.node)),
            (Style::Plain, format!("{addr:<width$} {:<8} ", row.role)),
            (style, format!("{health:<16}")),
            (
                Style::Plain,
                format!(
                    " {:>6} {:>10} {:>10} {:>9}  {}",
                    or_dash(row.behind.map(|behind| behind.to_string())),
                    or_dash(row.trip_ms.map(ms)),
                    or_dash(clock.or_else(|| row.offset_ms.map(signed))),
                    or_dash(rate),
                    row.version,
                ),
            ),
        ]);
    }
    lines.push(Line::new());
    lines
}

fn health(row: &Row<'_>) -> (Style, String) {
    match row.health {
        Health::Ready => (Style::Good, "● ready".to_owned()),
        Health::NotReady => (Style::Now, "✕ not ready".to_owned()),
        Health::AnswersNodes if row.error.is_none() => (Style::Soon, "… is asked".to_owned()),
        Health::AnswersNodes => (Style::Soon, "▲ no answer here".to_owned()),
        Health::Silent(None) => (Style::Now, "✕ no answer".to_owned()),
        Health::Silent(Some(age)) => (Style::Now, format!("✕ silent {}", lasting(age))),
    }
}

fn charts(model: &Model, now_ms: u64, columns: usize) -> Vec<Line> {
    let Some(asked) = model.charted(now_ms) else { return Vec::new() };
    let node = asked.status.as_ref().map_or(0, Status::node);
    let mut title = vec![(Style::Dim, format!("Node {node}, the newest on the right"))];
    if !model.is_current(asked, now_ms) {
        let age_ms = now_ms.saturating_sub(asked.at_ms) as f64;
        title.push((Style::Now, format!("  no answer for {}", lasting(age_ms))));
    }
    let mut lines = vec![title];
    for (name, of, written) in CHARTS {
        let bars = bars(asked, of, columns.saturating_sub(CHART_NAME + CHART_VALUE + 1));
        let last = asked.last_rates().and_then(of);
        let last = last.map_or_else(|| "-".to_owned(), |it| written(it, asked.last_bound_ms()));
        lines.push(vec![
            (Style::Plain, format!("{name:<CHART_NAME$}")),
            (Style::Good, bars),
            (Style::Bold, format!("{last:>CHART_VALUE$}")),
        ]);
    }
    lines
}

/// The last values as bars, the newest on the right. The highest bar is the largest value shown.
/// Where nothing is known, there is no bar.
fn bars(asked: &Asked, of: fn(&Rates) -> Option<f64>, columns: usize) -> String {
    let skipped = asked.samples.len().saturating_sub(columns);
    let bound_ms = asked.last_bound_ms();
    let shown: Vec<_> = asked
        .samples
        .iter()
        .skip(skipped)
        .map(|it| it.rates.as_ref().and_then(of))
        .map(|value| value.map(|value| if value.is_finite() { value } else { bound_ms }))
        .collect();
    let most = shown.iter().flatten().copied().fold(0.0, f64::max);
    let bar = |value: &Option<f64>| match value {
        Some(value) if most > 0.0 => {
            let step = (value / most * (BARS.len() - 1) as f64).round();
            // Between 0 and 7: no value is above the largest, or negative.
            BARS[(step as usize).min(BARS.len() - 1)]
        }
        Some(_) => BARS[0],
        None => ' ',
    };
    let bars: String = shown.iter().map(bar).collect();
    format!("{bars:>columns$}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::top::model::tests::{INTERVAL, after, lost};
    use crate::top::status::tests::status;
    use crate::top::warnings::warnings;

    const SIZE: Size = Size { columns: 100, lines: 24 };

    fn shown(model: &Model, now_ms: u64, size: Size) -> Vec<String> {
        let joined = |line: Line| line.into_iter().map(|(_, text)| text).collect::<String>();
        let lines = screen(model, &warnings(model, now_ms), now_ms, size).into_iter().map(joined);
        lines.map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn the_screen_shows_the_leader_each_node_and_the_charts() {
        let lines = shown(&after(&[1, 2, 3]), 2_000, SIZE);
        let bar = format!("{:<24}{:>65}{:>10}", "timestamps/s", "█", "200");
        assert_eq!(lines.len(), SIZE.lines);
        assert_eq!(
            lines[..9],
            [
                "EpicEpoch prod  ✓ All is well",
                "Node 1 leads, for 1 min 5 s  term 5  3 of 3 nodes answer",
                "",
                "  NODE  ADDR    ROLE     HEALTH           BEHIND ROUND TRIP      CLOCK  STAMPS/S  VERSION",
                "› 1     n1:8080 leader   ● ready               -          -          -       200  0.2.0",
                "  2     n2:8080 voter    ● ready               0     250 us   -1.50 ms       200  0.2.0",
                "  3     n3:8080 voter    ● ready               0     250 us   -1.50 ms       200  0.2.0",
                "",
                "Node 1, the newest on the right",
            ]
        );
        assert_eq!(lines[9], bar);
        assert_eq!(lines[23], format!("{KEYS}  asks every 1 s"));
    }

    #[test]
    fn warnings_come_first_and_leave_room_for_the_nodes() {
        let mut model = after(&[1, 2, 3]);
        let mut bad = status(1, 12_000, 300);
        bad["impaired"] = json!(true);
        bad["hasGrant"] = json!(false);
        bad["version"] = json!("0.3.0");
        bad["tickAgeMs"] = json!(5_000.0);
        bad["quorumReached"] = json!(false);
        model.record("n1:8080", Ok(bad), 3_000);
        let lines = shown(&model, 3_000, SIZE);
        assert_eq!(lines[0], "EpicEpoch prod  ✕ Act now");
        assert_eq!(lines[3], "✕ Now   The leader may not answer yet");
        assert_eq!(lines[9], "        and 2 more");
        assert!(lines[11].starts_with("  NODE"), "{lines:?}");
    }

    #[test]
    fn advice_goes_on_in_the_next_line() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("immeasurable, it is", 5), ["immeasurable,", "it is"]);
        let mut model = after(&[1, 2]);
        let mut seen = status(1, 12_000, 400);
        seen["members"][2]["answerAgeMs"] = json!(61_000.0);
        model.record("n1:8080", Ok(seen), 3_000);
        let lines = shown(&model, 3_000, SIZE);
        assert_eq!(lines[5], "        stops the service.");
    }

    #[test]
    fn old_answers_are_called_old() {
        let lines = shown(&after(&[1, 2, 3]), 62_000, SIZE);
        assert_eq!(lines[0], "EpicEpoch prod  ✕ No node answers");
        let told = "This is what node 3 said 1 min 0 s ago: Node 1 leads, seen for 2 min 5 s";
        assert_eq!(lines[1], told);
        assert!(lines.iter().filter(|line| line.contains("✕ no answer")).count() == 3, "{lines:?}");
    }

    #[test]
    fn a_chart_has_a_gap_and_a_note_where_its_node_did_not_answer() {
        let mut model = after(&[1, 2, 3]);
        model.choose(2, 2_000);
        model.record("n3:8080", lost("n3:8080: no answer in time"), 3_000);
        let mut next = status(1, 12_000, 300);
        next["members"][2]["answerAgeMs"] = json!(1_900.0);
        model.record("n1:8080", Ok(next), 3_000);
        let lines = shown(&model, 4_000, SIZE);
        let title = "Node 3, the newest on the right  no answer for 2 s";
        let at = lines.iter().position(|line| line == title).expect("a note");
        assert_eq!(lines[at + 1], format!("{:<24}{:>64} {:>10}", "timestamps/s", "█", "-"));
    }

    #[test]
    fn until_every_node_is_ready_the_screen_does_not_say_that_all_is_well() {
        let mut model = Model::new(vec!["n1:8080".into()], INTERVAL);
        model.record("n1:8080", Ok(status(1, 10_000, 100)), 10);
        let lines = shown(&model, 10, SIZE);
        assert_eq!(lines[0], "EpicEpoch prod  … Asks");
        assert!(lines[5].contains("… is asked"), "{lines:?}");
    }

    #[test]
    fn before_an_answer_the_screen_says_why_there_is_none() {
        let mut model = Model::new(vec!["a:1".into(), "b:2".into()], INTERVAL);
        model.record("a:1", lost("a:1: connection refused"), 10);
        let lines = shown(&model, 10, SIZE);
        assert_eq!(lines[2], "No node has answered yet.");
        assert_eq!(lines[4..6], ["a:1: connection refused", "b:2: is asked"]);
    }

    #[test]
    fn a_small_terminal_shows_what_fits_and_a_tiny_one_says_so() {
        let model = after(&[1, 2, 3]);
        let small = shown(&model, 2_000, SIZE_MIN);
        assert_eq!(small.len(), SIZE_MIN.lines);
        assert!(small[4].starts_with("› 1") && small[9].starts_with("q quits"), "{small:?}");
        // Warnings leave the nodes their place.
        let mut model = after(&[1, 2, 3]);
        let mut bad = status(1, 12_000, 300);
        (bad["impaired"], bad["hasGrant"]) = (json!(true), json!(false));
        model.record("n1:8080", Ok(bad), 3_000);
        let small = shown(&model, 3_000, SIZE_MIN);
        assert_eq!(small[3], "✕ Now   The leader may not answer yet");
        assert!(small[6].starts_with("› 1") && small[8].starts_with("  3"), "{small:?}");
        let tiny = shown(&model, 2_000, Size { columns: 39, lines: 50 });
        assert_eq!(tiny, ["too small: needs 40 columns, 10 lines"]);
    }
}
