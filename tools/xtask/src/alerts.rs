//! `cargo xtask alerts`: writes the table of alerts in `docs/alerts.md` from the rules that Prometheus
//! loads, `deploy/prometheus/alerts.yaml`. With `--check` it compares the two, and checks that each
//! alert has a test that sees it fire. It reads only the form of YAML that this one file has;
//! `promtool` checks the file itself.

use std::fs;

const RULES: &str = "deploy/prometheus/alerts.yaml";
const TESTS: &str = "deploy/prometheus/tests.yaml";
const PAGE: &str = "docs/alerts.md";
/// The head of the table. The table ends with the first line that is no row.
const BEGIN: &str =
    "| alert | severity | fires if | what it means | what to do |\n|---|---|---|---|---|\n";
/// The keys that the rules may have and that the table does not need.
const OTHERS: [&str; 6] = ["groups", "name", "rules", "labels", "annotations", "summary"];

/// An alert of the rules.
#[derive(Debug, Default, PartialEq, Eq)]
struct Alert {
    name: String,
    expr: String,
    /// How long the expression must be true; empty if the alert fires at once.
    wait: String,
    severity: String,
    meaning: String,
    action: String,
}

impl Alert {
    /// The row of the table.
    fn row(&self) -> Result<String, String> {
        let Self { name, expr, wait, severity, meaning, action } = self;
        if [name, expr, severity, meaning, action].iter().any(|it| it.is_empty()) {
            return Err(format!("{RULES}: {name} has no expr, severity, meaning or action"));
        }
        let expr = expr.replace('|', "\\|");
        let wait = if wait.is_empty() { String::new() } else { format!(" for {wait}") };
        let (meaning, action) = (linked(meaning), linked(action));
        Ok(format!("| `{name}` | {severity} | `{expr}`{wait} | {meaning} | {action} |\n"))
    }
}

/// A text in which pages in brackets, as in `(docs/tls.md#what)`, are links for readers of `docs`.
fn linked(text: &str) -> String {
    let mut parts = text.split("(docs/");
    let mut linked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (page, rest) = part.split_once(')').unwrap_or((part, ""));
        linked.extend(["([page](", page, "))", rest]);
    }
    linked
}

/// Reads the rules: each line is a key with a value, or with `>-` and the value in deeper lines.
fn parse(text: &str) -> Result<Vec<Alert>, String> {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut alerts: Vec<Alert> = Vec::new();
    let mut lines = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
        .peekable();
    while let Some(line) = lines.next() {
        let pair = line.trim_start().trim_start_matches("- ").split_once(':');
        let (key, value) = pair.ok_or_else(|| format!("{RULES}: no key: {line}"))?;
        let mut value = value.trim().to_owned();
        if value == ">-" {
            value.clear();
            while let Some(more) = lines.next_if(|more| depth(more) > depth(line)) {
                value.push_str(if value.is_empty() { "" } else { " " });
                value.push_str(more.trim());
            }
        }
        if key == "alert" {
            alerts.push(Alert { name: value, ..Alert::default() });
            continue;
        }
        if OTHERS.contains(&key) {
            continue;
        }
        let alert = alerts.last_mut().ok_or_else(|| format!("{RULES}: before any alert: {key}"))?;
        let field = match key {
            "expr" => &mut alert.expr,
            "for" => &mut alert.wait,
            "severity" => &mut alert.severity,
            "meaning" => &mut alert.meaning,
            "action" => &mut alert.action,
            _ => return Err(format!("{RULES}: unknown key {key}")),
        };
        *field = value;
    }
    Ok(alerts)
}

/// The page with this table instead of its own.
fn page_with(page: &str, table: &str) -> Result<String, String> {
    let (before, mut rest) = page.split_once(BEGIN).ok_or(format!("{PAGE}: no table of alerts"))?;
    while rest.starts_with('|') {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    Ok(format!("{before}{BEGIN}{table}{rest}"))
}

/// `cargo xtask alerts`. Returns whether the page is, or now is, that of the rules.
///
/// # Errors
/// A file cannot be read, or the rules have another form.
pub(crate) fn command(arguments: &[String]) -> Result<bool, String> {
    let is_check = match arguments {
        [] => false,
        [one] if one == "--check" => true,
        _ => return Err("usage: cargo xtask alerts [--check]".to_owned()),
    };
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let (alerts, tests, page) = (parse(&read(RULES)?)?, read(TESTS)?, read(PAGE)?);
    let rows: Result<String, String> = alerts.iter().map(Alert::row).collect();
    let wanted = page_with(&page, &rows?)?;
    let untested: Vec<_> = alerts
        .iter()
        .map(|alert| &alert.name)
        .filter(|name| !tests.contains(&format!("alertname=\"{name}\"")))
        .collect();
    println!("alerts: {} in {RULES}, without a test in {TESTS}: {untested:?}", alerts.len());
    if !is_check {
        fs::write(PAGE, &wanted).map_err(|error| format!("{PAGE}: {error}"))?;
    } else if page != wanted {
        println!("{PAGE} is not the page of these rules: run cargo xtask alerts");
        return Ok(false);
    }
    Ok(untested.is_empty() && !alerts.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: &str = "# a: comment\ngroups:\n  - name: x\n    rules:\n      - alert: A\n        \
                        expr: >-\n          up{a=~\"b|c\"}\n          == 0\n        for: 1m\n        \
                        labels:\n          severity: page\n        annotations:\n          \
                        summary: \"s: {{ $value }}\"\n          meaning: >-\n            It is.\n          \
                        action: >-\n            See it (docs/tls.md#a) now.\n";

    #[test]
    fn a_rule_becomes_a_row() {
        let alerts = parse(SOME).expect("rules");
        let row = "| `A` | page | `up{a=~\"b\\|c\"} == 0` for 1m | It is. | \
                   See it ([page](tls.md#a)) now. |\n";
        assert_eq!(alerts.iter().map(|it| it.row().expect("a row")).collect::<Vec<_>>(), [row]);
        let page = format!("above\n{BEGIN}| old |\n| older |\n\nbelow\n");
        let expected = format!("above\n{BEGIN}{row}\nbelow\n");
        assert_eq!(page_with(&page, row).expect("a table"), expected);
    }

    #[test]
    fn rules_of_another_form_are_refused() {
        for wrong in [
            SOME.replace("severity: page", "colour: red"),
            SOME.replace("expr: >-", "expr"),
            SOME.replace("- alert: A", "- record: A"),
        ] {
            assert!(parse(&wrong).is_err(), "{wrong}");
        }
        let without = SOME.replace("severity: page", "name: page");
        assert!(parse(&without).expect("its form is right")[0].row().is_err());
    }
}
