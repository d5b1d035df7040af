//! `epicepoch certs show`: says what certificates are for, and when they end. It changes nothing,
//! and checks no signature.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches, Command};
use epicepoch_certs::rustls::pki_types::CertificateDer;
use epicepoch_certs::rustls::pki_types::pem::PemObject as _;
use epicepoch_certs::{Description, PemFile, Purpose};
use serde_json::{Value, json};

use super::directory::NAMES;
use crate::arguments::{is_json, output as output_argument};
use crate::failure::Failure;
use crate::output;

/// From this many days before its end on, a certificate should be renewed. A node logs a warning
/// from the same day on.
const DAYS_SOON: i64 = 30;
const DAY_S: i64 = 86_400;

pub(crate) fn command() -> Command {
    Command::new("show")
        .about("Say what certificates are for, their names, and when they end")
        .long_about(
            "Say what certificates are for, their names, and when they end. A warning names each one \
             that ends within 30 days. No signature is checked.\n\n\
             Exit codes: 0 none has ended; 1 one has ended; 2 a file cannot be read.",
        )
        .after_help("Examples:\n  epicepoch certs show certs/*.pem\n  epicepoch certs show --output json certs/ca.pem")
        .arg(
            Arg::new(NAMES)
                .value_name("FILE")
                .help("PEM files of certificates")
                .required(true)
                .action(ArgAction::Append),
        )
        .arg(output_argument())
}

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let now = SystemTime::now();
    let mut shown = Vec::new();
    for path in matches.get_many::<String>(NAMES).into_iter().flatten() {
        for description in read(Path::new(path)).map_err(Failure::usage)? {
            shown.push((path.as_str(), description));
        }
    }
    let mut out = output::account();
    if is_json(matches) {
        let all: Vec<_> = shown.iter().map(|(path, it)| object(path, it, now)).collect();
        writeln!(out, "{}", Value::from(all))?;
    } else {
        for (path, description) in &shown {
            write!(out, "{}", text(path, description, now))?;
        }
    }
    for (path, description) in &shown {
        if let Some(warning) = warning(path, description, now) {
            // The certificates are shown in any case.
            let _unread = writeln!(io::stderr(), "warning: {warning}");
        }
    }
    let has_ended = shown.iter().any(|(_, it)| it.not_after <= now);
    Ok(if has_ended { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reads and describes every certificate of a file.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Description>> {
    let bytes = PemFile::new("FILE", path).read()?;
    let unusable = |why: String| anyhow!("{}: {why}", path.display());
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        let description = Description::of(&certificate);
        found
            .push(description.ok_or_else(|| unusable("a certificate that cannot be read".into()))?);
    }
    if found.is_empty() {
        let why = "no certificate; a file with -----BEGIN CERTIFICATE----- is needed, not a key";
        return Err(unusable(why.to_owned()));
    }
    Ok(found)
}

/// Returns whole days until a certificate ends; less than 0 if it has ended.
fn days_left(description: &Description, now: SystemTime) -> i64 {
    (unix_s(description.not_after) - unix_s(now)).div_euclid(DAY_S)
}

fn unix_s(time: SystemTime) -> i64 {
    let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => signed(since.as_secs()),
        Err(before) => -signed(before.duration().as_secs()),
    }
}

fn time(time: SystemTime) -> String {
    let seconds = unix_s(time);
    jiff::Timestamp::from_second(seconds)
        .map_or_else(|_| format!("{seconds} s after 1970"), |time| time.to_string())
}

fn purpose(description: &Description) -> (&'static str, String) {
    let Description { organization, common_name, .. } = description;
    match description.purpose {
        Purpose::Authority => ("authority", format!("authority of cluster {organization}")),
        Purpose::Node(node) => ("node", format!("node {node} of cluster {organization}")),
        Purpose::Client => ("client", format!("client {common_name} of cluster {organization}")),
        Purpose::Server => ("server", format!("server, no node's: {common_name}")),
        Purpose::Other => ("other", format!("neither a node nor a client: {common_name}")),
    }
}

fn text(path: &str, description: &Description, now: SystemTime) -> String {
    let names = match &*description.names {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    let left = match days_left(description, now) {
        days if days < 0 => "it has ended".to_owned(),
        1 => "1 day left".to_owned(),
        days => format!("{days} days left"),
    };
    let (from, until) = (time(description.not_before), time(description.not_after));
    let mut text = format!("{path}\n");
    let _infallible = write!(
        text,
        "  for    {}\n  names  {names}\n  valid  {from} to {until}, {left}\n",
        purpose(description).1
    );
    text
}

fn object(path: &str, description: &Description, now: SystemTime) -> Value {
    let node = match description.purpose {
        Purpose::Node(node) => Some(node.0),
        _ => None,
    };
    json!({
        "file": path,
        "purpose": purpose(description).0,
        "clusterName": description.organization,
        "nodeID": node,
        "name": description.common_name,
        "names": description.names,
        "notBefore": time(description.not_before),
        "notAfter": time(description.not_after),
        "daysLeft": days_left(description, now),
    })
}

/// Returns a warning for a certificate that ends soon, and what to do.
fn warning(path: &str, description: &Description, now: SystemTime) -> Option<String> {
    let days = days_left(description, now);
    let when = match days {
        i64::MIN..0 => "has ended".to_owned(),
        0 => "ends within a day".to_owned(),
        1 => "ends in 1 day".to_owned(),
        2..=DAYS_SOON => format!("ends in {days} days"),
        _ => return None,
    };
    let what = match description.purpose {
        Purpose::Authority => "replace it (docs/tls.md, replacing certificates)".to_owned(),
        Purpose::Node(_) | Purpose::Client => format!("renew it: epicepoch certs renew {path}"),
        Purpose::Server | Purpose::Other => "have it made anew".to_owned(),
    };
    Some(format!("{path} {when}; {what}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use epicepoch_wire::NodeId;

    use super::*;

    fn ending_in(days: i64, now: SystemTime) -> Description {
        let days = Duration::from_secs(days.unsigned_abs() * 86_400);
        Description {
            organization: "pay".to_owned(),
            common_name: "node-3".to_owned(),
            names: vec!["n3.example".to_owned(), "127.0.0.1".to_owned()],
            not_before: now,
            not_after: now + days,
            purpose: Purpose::Node(NodeId(3)),
        }
    }

    #[test]
    fn a_certificate_that_ends_soon_is_warned_of_and_what_to_do_is_said() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let warned = |days| warning("a.pem", &ending_in(days, now), now);
        assert_eq!(warned(31), None);
        assert_eq!(
            warned(30).as_deref(),
            Some("a.pem ends in 30 days; renew it: epicepoch certs renew a.pem")
        );
        assert!(warned(0).is_some_and(|text| text.contains("within a day")));
        let later = now + Duration::from_hours(24);
        let ended = warning("a.pem", &ending_in(0, now), later).expect("a warning");
        assert!(ended.starts_with("a.pem has ended; renew it"), "{ended}");
    }

    #[test]
    fn owner_names_and_end_are_shown_for_people_and_programs() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let description = ending_in(10, now);
        let expected = "\
a.pem
  for    node 3 of cluster pay
  names  n3.example, 127.0.0.1
  valid  2023-11-14T22:13:20Z to 2023-11-24T22:13:20Z, 10 days left
";
        assert_eq!(text("a.pem", &description, now), expected);
        let object = object("a.pem", &description, now);
        assert_eq!((&object["nodeID"], &object["daysLeft"]), (&json!(3), &json!(10)));
        assert_eq!(object["notAfter"], "2023-11-24T22:13:20Z");
    }
}
