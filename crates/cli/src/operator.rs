//! Sends an operator's order to the leader of a cluster, over HTTP. It first asks a known node for
//! the leader. An order that may have arrived is never sent twice.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::ArgMatches;
use epicepoch_bench::http1::parse_response;
use epicepoch_client::dial::{Alpn, BlockingSocket, Dialer, TlsFailure};
use epicepoch_config::Environment;
use epicepoch_wire::http::{
    ErrorCode, HEADER_ADMIN, HEADER_CLUSTER, HEADER_ERROR, HEADER_LEADER, PATH_ADMIN_MEMBERS,
};
use serde_json::Value;

use crate::addresses::{self, TokenFor};
use crate::arguments;
use crate::expected::Expected;
use crate::failure::Failure;
use crate::output;
use crate::resolve::resolve;

/// While no node leads, all given addresses are asked again after this pause.
const PAUSE: Duration = Duration::from_millis(100);
/// How long one node may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Shortest time that a node gets to answer whether it leads, before another one is asked.
const ATTEMPT_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// A command follows at most this many answers that name another leader. Then it asks all given
/// addresses again.
const HOPS_MAX: usize = 4;

/// How long one node may take to answer a question, before another one is asked.
pub(crate) fn attempt_timeout(matches: &ArgMatches) -> Result<Duration, Failure> {
    Ok(addresses::attempt_timeout(matches)?.max(ATTEMPT_TIMEOUT_MIN))
}

/// A request to a node: an order, which changes something, or a question, which does not.
pub(crate) struct Order {
    method: &'static str,
    /// Path and query of the URL.
    target: String,
    /// Whether to retry, until the deadline, while the member has not caught up.
    waits_for_member: bool,
    /// The command that shows whether the order was carried out.
    shown_by: &'static str,
    /// The only cluster that may carry it out.
    expected: Option<Expected>,
    /// Whether the node's answer need not name the cluster, because it was checked already.
    is_checked: bool,
}

impl Order {
    /// A question, which changes nothing.
    pub(crate) fn look(path: &str) -> Self {
        Self { method: "GET", ..Self::change(path, &[]) }
    }

    /// Creates a question with parameters. A question changes nothing.
    pub(crate) fn look_with(path: &str, parameters: &[(&str, Option<String>)]) -> Self {
        Self { method: "GET", ..Self::change(path, parameters) }
    }

    /// An order, which changes something.
    pub(crate) fn change(path: &str, parameters: &[(&str, Option<String>)]) -> Self {
        let given = parameters.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let query: Vec<_> = given.map(|(name, value)| format!("{name}={value}")).collect();
        let query = query.join("&");
        let target = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        let shown_by = "epicepoch member list";
        Self {
            method: "POST",
            target,
            waits_for_member: false,
            shown_by,
            expected: None,
            is_checked: false,
        }
    }

    /// Sets the command that shows whether the order was carried out; by default `epicepoch member
    /// list`.
    pub(crate) fn shown_by(self, command: &'static str) -> Self {
        Self { shown_by: command, ..self }
    }

    /// Sets the only cluster that may carry the order out.
    pub(crate) fn expecting(self, expected: Option<Expected>) -> Self {
        Self { expected, ..self }
    }

    /// Skips the check of the answer, because the caller checks the cluster otherwise.
    pub(crate) fn checked(self) -> Self {
        Self { is_checked: true, ..self }
    }

    /// Sets whether to retry, until the deadline, while the member has not caught up.
    pub(crate) fn waiting(self, waits_for_member: bool) -> Self {
        Self { waits_for_member, ..self }
    }

    /// Sends the order to the leader and returns its answer. A change is sent only to a node that
    /// has just answered a question, because a node that hangs could lose it. With `--cluster`, the
    /// leader's list of members comes first, because only that names the cluster; a node of 0.1
    /// ignores the header.
    pub(crate) fn give(
        self,
        matches: &ArgMatches,
        environment: &Environment,
    ) -> Result<Value, Failure> {
        let (_, deadline) = addresses::given(matches, environment)?;
        self.give_before(matches, environment, deadline)
    }

    /// Does what [`Self::give`] does, but gives up at `deadline` instead of after `--timeout`.
    pub(crate) fn give_before(
        self,
        matches: &ArgMatches,
        environment: &Environment,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let (addrs, _) = addresses::given(matches, environment)?;
        let tls = addresses::tls(matches, environment)?;
        let dialer = Dialer::new(tls.as_ref(), Alpn::Http1).with_token(addresses::token(
            matches,
            environment,
            TokenFor::Operators,
        )?);
        let order = self.expecting(Expected::of(matches, environment)?).checked();
        let is_question = order.method == "GET";
        let is_first =
            is_question && order.expected.is_none() || order.target == PATH_ADMIN_MEMBERS;
        let question = Self::look(if is_first { &order.target } else { PATH_ADMIN_MEMBERS });
        let question = question.expecting(order.expected.clone());
        let timeout = attempt_timeout(matches)?;
        let mut last = anyhow!("no node was asked");
        loop {
            let mut pass = Pass::default();
            for addr in &addrs {
                let attempt = deadline.min(Instant::now() + timeout);
                let taken = match question.follow(&dialer, addr, attempt) {
                    Ok((_, document)) if is_first => Ok(document),
                    Ok((leader, _)) => {
                        let until = if is_question { attempt } else { deadline };
                        order.ask(&dialer, &leader, until)
                    }
                    // Nodes name the leader by its client address. If the leader has an OPS_ADDR,
                    // it refuses orders at its client address. So the other given addresses are
                    // tried, too.
                    Err(error @ (RequestError::Final(_) | RequestError::Denied(_))) => {
                        last = pass.record(error, last);
                        continue;
                    }
                    Err(error) => Err(error),
                };
                match taken {
                    Ok(document) => return Ok(document),
                    Err(
                        RequestError::Final(error)
                        | RequestError::Denied(error)
                        | RequestError::WrongCluster(error),
                    ) => {
                        return Err(error.into());
                    }
                    Err(error) => last = pass.record(error, last),
                }
            }
            if let Some(error) = pass.take_end() {
                return Err(error.into());
            }
            if Instant::now() + PAUSE >= deadline {
                let last = pass.explain(last);
                let text = if is_question {
                    "no leader answered in time"
                } else {
                    "no leader took the order in time"
                };
                return Err(last.context(text).into());
            }
            thread::sleep(PAUSE);
        }
    }

    /// Asks `addr`, then the leader that it names, and so on. Returns the leader's answer and its
    /// address.
    pub(crate) fn follow(
        &self,
        dialer: &Dialer,
        addr: &str,
        deadline: Instant,
    ) -> Result<(String, Value), RequestError> {
        let mut addr = addr.to_owned();
        for _ in 0..HOPS_MAX {
            match self.ask(dialer, &addr, deadline) {
                Ok(document) => return Ok((addr, document)),
                Err(RequestError::NotLeader { leader, .. }) => addr = leader,
                Err(error) => return Err(error),
            }
        }
        Err(RequestError::Retryable(disagreeing(&addr)))
    }

    /// Asks one node once.
    pub(crate) fn ask(
        &self,
        dialer: &Dialer,
        addr: &str,
        deadline: Instant,
    ) -> Result<Value, RequestError> {
        let answer = self.exchange(dialer, addr, deadline)?;
        if answer.status == 200 {
            let document = serde_json::from_slice(&answer.body);
            let document: Value = document.map_err(|_| RequestError::Final(no_oracle(addr)))?;
            if let Some(expected) = self.expected.as_ref().filter(|_| !self.is_checked) {
                let name = document["clusterName"].as_str();
                let checked = expected.check(addr, answer.cluster.as_deref(), name);
                checked.map_err(RequestError::WrongCluster)?;
            }
            return Ok(document);
        }
        let text = String::from_utf8_lossy(&answer.body).trim().to_owned();
        let Some(code) = answer.code else { return Err(RequestError::Final(no_oracle(addr))) };
        Err(match (code, answer.leader) {
            (ErrorCode::NotLeader, Some(leader)) => {
                RequestError::NotLeader { from: addr.to_owned(), leader }
            }
            (ErrorCode::NotCaughtUp, _) if !self.waits_for_member => {
                RequestError::Final(anyhow!("{text}"))
            }
            (ErrorCode::WrongCluster, _) => RequestError::WrongCluster(anyhow!("{addr}: {text}")),
            (code, _) if code.is_retryable() => RequestError::Retryable(anyhow!("{addr}: {text}")),
            (ErrorCode::NotFound, _) => RequestError::Final(anyhow!(
                "{addr} does not know this order: it runs another version"
            )),
            // The error names the node, because the operator must know which node to configure.
            (ErrorCode::Forbidden | ErrorCode::Unauthorized, _) => {
                RequestError::Denied(anyhow!("{addr}: {text}"))
            }
            _ => RequestError::Final(anyhow!("{text}")),
        })
    }

    fn exchange(
        &self,
        dialer: &Dialer,
        addr: &str,
        deadline: Instant,
    ) -> Result<Answer, RequestError> {
        let retryable = |error: io::Error| match TlsFailure::of(&error) {
            Some(failure) => RequestError::Tls(anyhow!("TLS with {addr} failed: {failure}")),
            None => RequestError::Unanswered(anyhow!("{addr}: {error}")),
        };
        let mut stream = connect(dialer, addr, deadline).map_err(retryable)?;
        let token =
            dialer.token().map(|token| format!("authorization: Bearer {}\r\n", token.reveal()));
        let expected = self.expected.as_ref();
        let expected = expected.map(|it| format!("{HEADER_CLUSTER}: {}\r\n", it.text()));
        let request = format!(
            "{} {} HTTP/1.1\r\nhost: {addr}\r\n{HEADER_ADMIN}: cli\r\n{}{}content-length: 0\r\n\r\n",
            self.method,
            self.target,
            token.unwrap_or_default(),
            expected.unwrap_or_default(),
        );
        stream.write_all(request.as_bytes()).map_err(retryable)?;
        receive(&mut stream, deadline).map_err(|error| match self.method {
            "GET" => retryable(error),
            _ => RequestError::Final(anyhow!(
                "{addr}: {error}; the outcome of the command is not known, check with: {}",
                self.shown_by
            )),
        })
    }
}

/// Why a request to a node returned no document.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// Another node leads.
    NotLeader { from: String, leader: String },
    /// The node answered. Another attempt or another node may succeed.
    Retryable(anyhow::Error),
    /// The node did not answer. Another attempt or another node may succeed.
    Unanswered(anyhow::Error),
    /// TLS with the node failed, and will fail again. Another node may succeed.
    Tls(anyhow::Error),
    /// The node belongs to another cluster than the one that the operator means.
    WrongCluster(anyhow::Error),
    /// The right is missing. The node counts such requests.
    Denied(anyhow::Error),
    /// Another attempt cannot succeed, or could carry out the order twice.
    Final(anyhow::Error),
}

impl RequestError {
    /// Returns the error as text for people.
    pub(crate) fn into_text(self) -> String {
        match self {
            Self::NotLeader { from, .. } => disagreeing(&from).to_string(),
            Self::Retryable(error)
            | Self::Unanswered(error)
            | Self::Tls(error)
            | Self::WrongCluster(error)
            | Self::Denied(error)
            | Self::Final(error) => format!("{error:#}"),
        }
    }
}

/// One round over all given addresses that brought no result.
#[derive(Debug, Default)]
struct Pass {
    /// The first refusal. Its node may not be the leader, so the refusal counts only if every other
    /// node that answered refused, too.
    refused: Option<anyhow::Error>,
    /// The first failure of TLS. It counts only if no node may succeed later.
    tls: Option<anyhow::Error>,
    /// Whether a node answered that may succeed later.
    has_answer: bool,
    /// Whether a node did not answer.
    has_silence: bool,
}

impl Pass {
    /// Records why a node did not carry out the order. Returns the reason to give at the deadline;
    /// so far that was `last`.
    fn record(&mut self, error: RequestError, last: anyhow::Error) -> anyhow::Error {
        match error {
            RequestError::Retryable(error) => {
                self.has_answer = true;
                error
            }
            RequestError::NotLeader { from, .. } => {
                self.has_answer = true;
                disagreeing(&from)
            }
            RequestError::Unanswered(error) => {
                self.has_silence = true;
                error
            }
            RequestError::Tls(error) => {
                self.tls.get_or_insert(error);
                last
            }
            RequestError::WrongCluster(error)
            | RequestError::Denied(error)
            | RequestError::Final(error) => {
                self.refused.get_or_insert(error);
                last
            }
        }
    }

    /// Returns the error that ends the command now, if another pass cannot help.
    fn take_end(&mut self) -> Option<anyhow::Error> {
        if self.has_answer {
            return None;
        }
        let may_return = self.has_silence;
        self.refused.take().or_else(|| self.tls.take_if(|_| !may_return))
    }

    /// Adds to `last`, the reason of the last attempt, what else the operator can correct.
    fn explain(self, last: anyhow::Error) -> anyhow::Error {
        match self.refused.or(self.tls) {
            Some(error) if self.has_answer || self.has_silence => anyhow!("{last:#}; {error:#}"),
            Some(error) => error,
            None => last,
        }
    }
}

struct Answer {
    status: u16,
    code: Option<ErrorCode>,
    leader: Option<String>,
    cluster: Option<String>,
    body: Vec<u8>,
}

fn disagreeing(addr: &str) -> anyhow::Error {
    anyhow!("{addr}: the nodes do not agree on who leads")
}

fn no_oracle(addr: &str) -> anyhow::Error {
    anyhow!("{addr} does not answer like a node of EpicEpoch: correct --addr")
}

/// Returns the time until the deadline, at least 1 ms, because a timeout of 0 would mean no limit.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn connect(dialer: &Dialer, name: &str, deadline: Instant) -> io::Result<BlockingSocket> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for addr in resolve(name, left(deadline))? {
        match TcpStream::connect_timeout(&addr, left(deadline).min(CONNECT_TIMEOUT)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(left(deadline)))?;
                stream.set_read_timeout(Some(left(deadline)))?;
                return dialer.secure_blocking(stream, name);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn receive(stream: &mut BlockingSocket, deadline: Instant) -> io::Result<Answer> {
    let mut buffer = Vec::new();
    loop {
        if let Some((response, _)) = parse_response(&buffer).map_err(io::Error::other)? {
            return Ok(Answer {
                status: response.status,
                code: response.header(HEADER_ERROR).and_then(ErrorCode::from_name),
                leader: response.header(HEADER_LEADER).map(str::to_owned),
                cluster: response.header(HEADER_CLUSTER).map(str::to_owned),
                body: response.body.to_vec(),
            });
        }
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
        }
        stream.tcp().set_read_timeout(Some(left(deadline)))?;
        let mut chunk = [0; 8192];
        match stream.read(&mut chunk) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no answer")),
            Ok(len) => buffer.extend_from_slice(&chunk[..len]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Prints a document as JSON, or as `text` formats it.
pub(crate) fn print(
    matches: &ArgMatches,
    document: &Value,
    text: impl FnOnce(&Value) -> Option<String>,
) -> Result<(), Failure> {
    let mut out = output::account();
    if arguments::is_json(matches) {
        writeln!(out, "{document}")?;
    } else {
        let text = text(document)
            .context("the answer is of another version: see it with --output json")?;
        write!(out, "{text}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn one_node_that_refuses_does_not_end_an_order_that_another_may_take_later() {
        let busy = || RequestError::Retryable(anyhow!("b:1: BUSY"));
        let moved = || RequestError::NotLeader { from: "b:1".into(), leader: "c:1".into() };
        let down = || RequestError::Unanswered(anyhow!("c:1: refused"));
        let tls = || RequestError::Tls(anyhow!("TLS with a:1 failed"));
        let refusal = || RequestError::Final(anyhow!("a:1: FORBIDDEN"));
        let pass = |errors: Vec<RequestError>| {
            let (mut pass, mut last) = (Pass::default(), anyhow!("no node was asked"));
            for error in errors {
                last = pass.record(error, last);
            }
            let end = pass.take_end().map(|end| end.to_string());
            (end, pass.explain(last).to_string())
        };
        for errors in [vec![tls(), busy()], vec![busy(), tls()], vec![tls(), down(), busy()]] {
            let (end, text) = pass(errors);
            assert_eq!((end, text.as_str()), (None, "b:1: BUSY; TLS with a:1 failed"));
        }
        for errors in [vec![tls(), moved()], vec![refusal(), moved()], vec![busy(), refusal()]] {
            assert_eq!(pass(errors).0, None);
        }
        let (end, text) = pass(vec![tls(), down()]);
        assert_eq!((end, text.as_str()), (None, "c:1: refused; TLS with a:1 failed"));
        assert_eq!(pass(vec![tls(), tls()]).0.as_deref(), Some("TLS with a:1 failed"));
        assert_eq!(pass(vec![tls(), refusal()]).0.as_deref(), Some("a:1: FORBIDDEN"));
        assert_eq!(pass(vec![down(), refusal()]).0.as_deref(), Some("a:1: FORBIDDEN"));
        assert_eq!(pass(vec![down(), down()]), (None, "c:1: refused".to_owned()));
    }

    #[test]
    fn an_order_without_an_answer_names_the_command_that_shows_its_result() {
        let shown = |order: Order| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let addr = listener.local_addr().expect("an address").to_string();
            let node = thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.read(&mut [0; 1024]).expect("an order")
            });
            let deadline = Instant::now() + Duration::from_secs(30);
            let asked = order.ask(&Dialer::new(None, Alpn::Http1), &addr, deadline);
            assert!(node.join().expect("no panic") > 0);
            asked.expect_err("no answer").into_text()
        };
        let said = shown(Order::change("/change", &[]));
        assert!(said.ends_with("is not known, check with: epicepoch member list"), "{said}");
        let said = shown(Order::change("/change", &[]).shown_by("epicepoch settings list"));
        assert!(said.ends_with("is not known, check with: epicepoch settings list"), "{said}");
        // A question changes nothing and can be sent again. So its error does not say that the
        // result is unknown.
        assert!(!shown(Order::look("/look")).contains("not known"));
    }
}
