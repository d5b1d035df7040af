//! The addresses, deadline, TLS files and token with which a command asks a cluster. This module
//! never resolves a name.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::ArgMatches;
use epicepoch_client::{Client, Options, Tls, Token};
use epicepoch_config::whole_number;
use epicepoch_config::{Environment, variable};

use crate::arguments::guarantee_of;
use crate::expected::Expected;
use crate::failure::Failure;

/// Returns the client that `--addr`, `EPICEPOCH_ADDRS` or the defaults describe, and the deadline
/// that `--timeout` sets.
pub(crate) fn client(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<(Client, Instant), Failure> {
    let (text, source) = named(matches, environment)?;
    let mut options = Options::default();
    options.tls = tls(matches, environment)?;
    options.token = token(matches, environment, TokenFor::Clients)?;
    options.attempt_timeout = attempt_timeout(matches)?;
    options.guarantee = guarantee_of(matches);
    let expected = Expected::of(matches, environment)?;
    options.cluster_name = expected.and_then(|it| it.name().map(str::to_owned));
    let client = Client::new(addresses(&text), options)
        .with_context(|| format!("{text:?} (from {source})"))
        .map_err(Failure::usage)?;
    Ok((client, deadline(matches)?))
}

/// Returns the addresses and the deadline, without a client.
pub(crate) fn given(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<(Vec<String>, Instant), Failure> {
    // Making a client checks the addresses.
    let (_, deadline) = client(matches, environment)?;
    let (text, _) = named(matches, environment)?;
    Ok((addresses(&text).collect(), deadline))
}

/// Returns the TLS settings that `--ca-file`, `--cert-file` and `--key-file` or their environment
/// variables give.
pub(crate) fn tls(matches: &ArgMatches, environment: &Environment) -> Result<Option<Tls>, Failure> {
    let file = |flag: &str, name: &'static str| -> Result<Option<String>, Failure> {
        match matches.get_one::<String>(flag) {
            Some(path) => Ok(Some(path.clone())),
            None => Ok(variable(environment, name).map_err(Failure::usage)?),
        }
    };
    let pair = (file("cert-file", CERT_VARIABLE)?, file("key-file", KEY_VARIABLE)?);
    let tls = match (file("ca-file", CA_VARIABLE)?, pair) {
        (None, (None, None)) => return Ok(None),
        (None, _) => Err(anyhow!(
            "--cert-file or --key-file is given without the authority of the nodes: give --ca-file, \
             too"
        )),
        (Some(ca), (None, None)) => Tls::trusting(ca).map_err(Into::into),
        (Some(ca), (Some(cert), Some(key))) => {
            Tls::trusting(ca).and_then(|tls| tls.showing(cert, key)).map_err(Into::into)
        }
        (Some(_), (Some(_), None) | (None, Some(_))) => {
            Err(anyhow!("--cert-file and --key-file belong together: give both or none"))
        }
    };
    tls.map(Some).map_err(Failure::usage)
}

/// The requests that a token is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TokenFor {
    /// Requests of clients: timestamps and members.
    Clients,
    /// Requests of operators: everything below `/admin`.
    Operators,
}

impl TokenFor {
    /// The environment variables that name the token's file, the first set one counts. A token of
    /// operators includes the rights of clients, so it comes second for clients, if TLS or the
    /// machine's own addresses keep it from others. The token of
    /// clients comes second for operators, because one variable is enough for a file of both.
    const fn variables(self) -> [&'static str; 2] {
        match self {
            Self::Clients => [TOKEN_VARIABLE, OPS_TOKEN_VARIABLE],
            Self::Operators => [OPS_TOKEN_VARIABLE, TOKEN_VARIABLE],
        }
    }
}

/// Returns the first token of the file that `--token-file` or an environment variable names.
pub(crate) fn token(
    matches: &ArgMatches,
    environment: &Environment,
    token_for: TokenFor,
) -> Result<Option<Token>, Failure> {
    let mut path = matches.get_one::<String>("token-file").cloned();
    // A token of operators can change the cluster. So without TLS it is not sent to other machines
    // in place of a client's token.
    let is_kept_back = matches!(token_for, TokenFor::Clients)
        && tls(matches, environment)?.is_none()
        && !addresses(&named(matches, environment)?.0).all(|addr| is_loopback(&addr));
    for name in token_for.variables() {
        if path.is_none() && !(is_kept_back && name == OPS_TOKEN_VARIABLE) {
            path = variable(environment, name).map_err(Failure::usage)?;
        }
    }
    let Some(path) = path else { return Ok(None) };
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("the token file {path:?} cannot be read"))
        .map_err(Failure::usage)?;
    let lines = text.lines().map(str::trim);
    let first = lines.into_iter().find(|line| !line.is_empty() && !line.starts_with('#'));
    // The file holds secrets, so this error never shows its content.
    let token = first.and_then(Token::new);
    token.map(Some).ok_or_else(|| {
        Failure::usage(anyhow!(
            "the token file {path:?} holds no token: its first line that does not begin with # must \
             be 1 to 256 visible ASCII characters"
        ))
    })
}

/// Whether an address is on this machine.
fn is_loopback(addr: &str) -> bool {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    ip.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback())
}

/// Returns the list of addresses as text, and the name of its source: the flag, the environment
/// variable or the default.
fn named(
    matches: &ArgMatches,
    environment: &Environment,
) -> Result<(String, &'static str), Failure> {
    if let Some(flag) = matches.get_one::<String>("addr") {
        return Ok((flag.clone(), "the flag --addr"));
    }
    let variable = variable(environment, VARIABLE).map_err(Failure::usage)?;
    Ok(match variable {
        Some(text) => (text, "the environment variable EPICEPOCH_ADDRS"),
        None => (DEFAULT.to_owned(), "the defaults"),
    })
}

fn deadline(matches: &ArgMatches) -> Result<Instant, Failure> {
    Ok(Instant::now() + timeout(matches)?)
}

/// Returns how long one node may take to answer before another one is asked: a quarter of
/// `--timeout`. So a node that hangs leaves time for the others, and a longer `--timeout` gives
/// slow links more time.
pub(crate) fn attempt_timeout(matches: &ArgMatches) -> Result<Duration, Failure> {
    Ok(attempt_of(timeout(matches)?))
}

fn attempt_of(timeout: Duration) -> Duration {
    (timeout / 4).clamp(ATTEMPT_TIMEOUT_MIN, ATTEMPT_TIMEOUT_MAX)
}

/// Reads the value of `--timeout`.
fn timeout(matches: &ArgMatches) -> Result<Duration, Failure> {
    let timeout = matches.get_one::<String>("timeout").map_or("", String::as_str);
    duration(timeout, TIMEOUT_MAX).ok_or_else(|| {
        Failure::usage(anyhow!(
            "--timeout is {timeout:?}; allowed is a whole number with its unit, from 1ms to \
             3600s, such as 5s or 500ms"
        ))
    })
}

/// Runs a future to its end on a new runtime.
pub(crate) fn block_on<T>(question: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(question);
    // A name that is being resolved must not hold up the answer. Dropping the runtime would wait.
    runtime.shutdown_background();
    Ok(answer)
}

/// Splits a list into addresses. An item that is only a port means that port on localhost.
fn addresses(text: &str) -> impl Iterator<Item = String> {
    text.split(',').map(str::trim).map(|item| match whole_number(item) {
        Some(port) => format!("localhost:{port}"),
        None => item.to_owned(),
    })
}

/// Parses a whole number of seconds or milliseconds with its unit, from 1 ms to `max`.
pub(crate) fn duration(text: &str, max: Duration) -> Option<Duration> {
    let duration = match text.strip_suffix("ms") {
        Some(number) => Duration::from_millis(whole_number(number)?),
        None => Duration::from_secs(whole_number(text.strip_suffix('s')?)?),
    };
    (Duration::from_millis(1)..=max).contains(&duration).then_some(duration)
}

/// The environment variable that names the file of authorities that the client trusts.
const CA_VARIABLE: &str = "EPICEPOCH_CA_FILE";
/// The environment variable that names the file of the client's certificate.
const CERT_VARIABLE: &str = "EPICEPOCH_CERT_FILE";
/// The environment variable that names the file of the client's key.
const KEY_VARIABLE: &str = "EPICEPOCH_KEY_FILE";
/// The environment variable that names the file of a client's token.
const TOKEN_VARIABLE: &str = "EPICEPOCH_TOKEN_FILE";
/// The environment variable that names the file of an operator's token.
const OPS_TOKEN_VARIABLE: &str = "EPICEPOCH_OPS_TOKEN_FILE";
/// The variable that holds the addresses.
const VARIABLE: &str = "EPICEPOCH_ADDRS";
/// The default ports: the client ports of `epicepoch dev`, then the default client port of a node.
const DEFAULT: &str = "8881,8882,8883,8080";
/// One node gets at least this time to answer: the client's own default.
const ATTEMPT_TIMEOUT_MIN: Duration = Duration::from_millis(500);
/// One node gets at most this time to answer. It is enough for a connection, TLS and an answer over
/// the slowest links.
const ATTEMPT_TIMEOUT_MAX: Duration = Duration::from_secs(5);
/// Greatest `--timeout`.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_hours(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_localhost() {
        let got: Vec<_> = addresses("8881, n1:8080,[::1]:1").collect();
        assert_eq!(got, ["localhost:8881", "n1:8080", "[::1]:1"]);
    }

    #[test]
    fn one_node_gets_a_quarter_of_the_time() {
        let ms = |ms| attempt_of(Duration::from_millis(ms)).as_millis();
        assert_eq!([100, 2_000, 5_000, 12_000].map(ms), [500, 500, 1_250, 3_000]);
        assert_eq!([20_000, 3_600_000].map(ms), [5_000, 5_000]);
        let given = |timeout: &str| {
            let matches = clap::Command::new("x").args(crate::arguments::client_arguments());
            let matches = matches.get_matches_from(["x", "--timeout", timeout]);
            attempt_timeout(&matches).expect("a time").as_millis()
        };
        assert_eq!(["8s", "2s"].map(given), [2_000, 500]);
    }

    #[test]
    fn each_command_sends_the_token_of_its_right_and_one_token_is_enough() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("# of {name}\n{name}-token-0123456789\n"))
                .expect("written");
            path.into_os_string()
        };
        let (clients, operators, given) = (file("clients"), file("operators"), file("given"));
        let sent_to = |addr: &str, flag: bool, variables: &[(&str, &std::ffi::OsString)]| {
            let environment: Environment =
                variables.iter().map(|(name, path)| ((*name).into(), (*path).clone())).collect();
            let matches = clap::Command::new("x").args(crate::arguments::client_arguments());
            let given = ["--token-file".into(), given.clone()];
            let flags = given.into_iter().filter(|_| flag);
            let start = ["x", "--addr", addr].map(std::ffi::OsString::from);
            let matches = matches.get_matches_from(start.into_iter().chain(flags));
            [TokenFor::Clients, TokenFor::Operators].map(|token_for| {
                let token = token(&matches, &environment, token_for).expect("readable");
                token.map_or_else(String::new, |token| {
                    token.reveal().split('-').next().unwrap_or_default().to_owned()
                })
            })
        };
        let sent = |flag, variables: &[_]| sent_to("8080,[::1]:1,127.0.0.2:1", flag, variables);
        let both = [(TOKEN_VARIABLE, &clients), (OPS_TOKEN_VARIABLE, &operators)];
        assert_eq!(sent(false, &both), ["clients", "operators"]);
        assert_eq!(sent(false, &both[1..]), ["operators", "operators"]);
        assert_eq!(sent(false, &both[..1]), ["clients", "clients"]);
        assert_eq!(sent(true, &both), ["given", "given"]);
        assert_eq!(sent(false, &[]), ["", ""]);
        // In plain text to another machine, the operators' token is not sent for a client's.
        let far = |flag, variables: &[_]| sent_to("localhost:1,n1:8080", flag, variables);
        assert_eq!(far(false, &both), ["clients", "operators"]);
        assert_eq!(far(false, &both[1..]), ["", "operators"]);
        assert_eq!(far(true, &both), ["given", "given"]);
        let ca = dir.path().join("ca.pem").into_os_string();
        let authority = epicepoch_certs::authority::Authority::new("one").expect("an authority");
        std::fs::write(&ca, authority.certificate()).expect("written");
        let secured = [both[1], (CA_VARIABLE, &ca)];
        assert_eq!(far(false, &secured), ["operators", "operators"]);
    }

    #[test]
    fn a_duration_has_a_unit() {
        let duration = |text| duration(text, TIMEOUT_MAX);
        assert_eq!(duration("5s"), Some(Duration::from_secs(5)));
        assert_eq!(duration("500ms"), Some(Duration::from_millis(500)));
        for bad in ["", "5", "s", "ms", "0s", "-1s", "1.5s", "3601s", "5 s", "5m"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
