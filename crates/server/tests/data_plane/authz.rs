//! Authorization, seen from outside: every row of the table of routes and the native protocol, with
//! every wrong token and over every wrong port. Refusals are counted.

use std::path::PathBuf;

use epicepoch_server::front::routes::table::{Methods, NATIVE, Row, TABLE};
use epicepoch_server::security::authz::{Reason, Right};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::{ClientHello, Token};
use tempfile::TempDir;

use crate::native::{Got, Native};
use crate::node::{Client, Cluster, Reply, TestNode};

const CLIENT: &str = "client-token-0123456789";
const OPERATOR: &str = "operator-token-0123456789";
const REFUSED: (u16, &str) = (401, "UNAUTHORIZED");
const FORBIDDEN: (u16, &str) = (403, "FORBIDDEN");

/// A node without peers that requires tokens, and the directory of its token files.
struct Guarded {
    node: TestNode,
    dir: TempDir,
    _cluster: Cluster,
}

impl Guarded {
    fn new(has_ops_port: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, token: &str| -> Option<PathBuf> {
            let path = dir.path().join(name);
            std::fs::write(&path, token).unwrap();
            Some(path)
        };
        let mut cluster = Cluster::new(1);
        let node = cluster.start_with(1, |config| {
            config.authz.client_token_file = write("clients", CLIENT);
            config.authz.ops_token_file = write("operations", OPERATOR);
            config.authz.ops_addr = has_ops_port.then(|| "127.0.0.1:0".parse().unwrap());
        });
        node.publish(cluster.leading(1, 3, true));
        Self { node, dir, _cluster: cluster }
    }

    fn count(&self, right: Right, reason: Reason) -> u64 {
        self.node.shared.authz.denials.count(right, reason)
    }
}

/// Sends one request to the path of a row, with or without a token.
fn ask(client: &mut Client, row: &Row, token: Option<&str>) -> Reply {
    let method = if row.methods == Methods::Post { "POST" } else { "GET" };
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!(
        "{method} {} HTTP/1.1\r\nhost: test\r\nepicepoch-admin: test\r\n{token}\r\n",
        row.path
    );
    client.send_raw(request.as_bytes());
    client.reply().expect("an answer")
}

/// The tokens that have this right, and one that does not. `None` if the right needs no token.
fn tokens(right: Right) -> Option<(&'static [&'static str], &'static str)> {
    match right {
        Right::Health | Right::Page | Right::Peer => None,
        Right::Timestamps => Some((&[CLIENT, OPERATOR], "unknown-token-0123456789")),
        Right::Operations | Right::Change => Some((&[OPERATOR], CLIENT)),
    }
}

#[test]
fn a_request_without_the_required_right_is_refused_and_counted() {
    let guarded = Guarded::new(false);
    for row in TABLE {
        let mut client = guarded.node.connect();
        let Some((right_tokens, wrong_token)) = tokens(row.right) else {
            assert!(![401, 403].contains(&ask(&mut client, &row, None).status), "{}", row.path);
            continue;
        };
        let before = |reason| guarded.count(row.right, reason);
        let (without, wrong) = (before(Reason::NoToken), before(Reason::WrongToken));
        let reply = ask(&mut client, &row, None);
        assert_eq!(reply.error(), REFUSED, "{}", row.path);
        assert_eq!(reply.header("www-authenticate"), "Bearer");
        // The text names the right, and each file whose tokens give it.
        let is_for_clients = right_tokens.contains(&CLIENT);
        for reply in [reply, ask(&mut client, &row, Some(wrong_token))] {
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            assert!(text.starts_with(&format!("missing right {}: ", row.right.name())), "{text}");
            assert!(text.contains("OPS_TOKEN_FILE"), "{text}");
            assert_eq!(text.contains("CLIENT_TOKEN_FILE"), is_for_clients, "{text}");
        }
        let token = right_tokens[0];
        for token in [wrong_token, "x", &token[1..], &format!("{token}x")] {
            assert_eq!(ask(&mut client, &row, Some(token)).error(), REFUSED, "{}", row.path);
        }
        assert_eq!(guarded.count(row.right, Reason::NoToken), without + 1, "{}", row.path);
        assert_eq!(guarded.count(row.right, Reason::WrongToken), wrong + 5, "{}", row.path);
        // Tries the right tokens on the connection that was refused before, and on a new
        // connection, which begins on the fast path.
        for client in [&mut client, &mut guarded.node.connect()] {
            for token in right_tokens {
                let reply = ask(client, &row, Some(token));
                assert!(![401, 403].contains(&reply.status), "{}: {reply:?}", row.path);
                assert_eq!(ask(client, &row, None).error(), REFUSED, "{}", row.path);
            }
        }
    }
}

/// A site can let its own name lead to a node. Then the browser of an operator sends the site's
/// name, and would let the site read the answer.
#[test]
fn another_site_gets_nothing_of_operators_from_a_node_without_tokens() {
    let mut cluster = Cluster::new(2);
    let node = cluster.start(1);
    // Without a leader no request waits for a quorum.
    node.publish(cluster.nothing(1));
    let mut client = node.connect();
    let mut ask = |row: &Row, headers: &str| {
        let method = if row.methods == Methods::Post { "POST" } else { "GET" };
        let headers = format!("{headers}\r\nepicepoch-admin: test\r\ncontent-length: 0\r\n");
        client.send_raw(format!("{method} {} HTTP/1.1\r\n{headers}\r\n", row.path).as_bytes());
        client.reply().expect("an answer")
    };
    let counted = |right, reason| node.shared.authz.denials.count(right, reason);
    for row in TABLE {
        let is_of_operators = matches!(row.right, Right::Operations | Right::Page | Right::Change);
        for (headers, reason) in [
            ("host: evil.example", Reason::Host),
            ("host: localhost.evil.example:80\r\norigin: http://localhost", Reason::Host),
            ("host: localhost\r\norigin: http://evil.example", Reason::Origin),
            ("host: 127.0.0.1:80\r\norigin: null", Reason::Origin),
        ] {
            let before = counted(row.right, reason);
            let reply = ask(&row, headers);
            assert_eq!(reply.error() == FORBIDDEN, is_of_operators, "{}: {headers}", row.path);
            assert_eq!(counted(row.right, reason), before + u64::from(is_of_operators));
            // The text says what to do.
            let told = reply.text().contains("OPS_TOKEN_FILE") || reply.text().contains("/ui");
            assert!(!is_of_operators || told, "{}", reply.text());
        }
        // Changes are left out: they would be carried out.
        if row.right == Right::Change {
            continue;
        }
        for headers in [
            "host: localhost:80\r\norigin: http://localhost:80",
            "host: [::1]:80",
            "host: 10.0.0.1",
            "host: CLIENT-1.test:80",
            "host: client-2.test",
        ] {
            assert_ne!(ask(&row, headers).status, 403, "{}: {headers}", row.path);
        }
    }
    // With tokens, every name will do: the site does not know the token.
    let guarded = Guarded::new(false);
    let mut client = guarded.node.connect();
    let headers = format!("host: evil.example\r\nauthorization: Bearer {OPERATOR}\r\n");
    client.send_raw(format!("GET /status HTTP/1.1\r\n{headers}\r\n").as_bytes());
    assert_eq!(client.reply().expect("an answer").status, 200);
}

#[test]
fn every_pipelined_request_needs_its_own_token() {
    let guarded = Guarded::new(false);
    let mut client = guarded.node.connect();
    let with = format!("authorization: Bearer {CLIENT}\r\n");
    let twice = format!("{with}authorization: Bearer other-token-0123456789\r\n");
    let requests = [&*with, &with, "", &with, "authorization: Bearer wrong\r\n", &twice, &with];
    let text = requests.map(|line| format!("GET /timestamp HTTP/1.1\r\nhost: a\r\n{line}\r\n"));
    client.send_raw(text.concat().as_bytes());
    let statuses = requests.map(|_| client.reply().expect("an answer").status);
    assert_eq!(statuses, [200, 200, 401, 200, 401, 401, 200]);
}

#[test]
fn a_path_that_is_not_in_the_table_is_refused_to_everyone() {
    let guarded = Guarded::new(false);
    let mut client = guarded.node.connect();
    for path in ["/admin", "/admin/", "/admin/members/", "/debug", "/"] {
        let token = format!("authorization: Bearer {OPERATOR}\r\n");
        client.send_raw(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{token}\r\n").as_bytes());
        assert_eq!(client.reply().expect("an answer").status, 404, "{path}");
    }
}

#[test]
fn each_port_answers_only_its_own_paths() {
    let guarded = Guarded::new(true);
    for row in TABLE {
        let (mut clients, mut operators) = (guarded.node.connect(), guarded.node.connect_ops());
        let token = tokens(row.right).map(|(right, _)| right[0]);
        let before = guarded.count(row.right, Reason::Port);
        let answers = [&mut clients, &mut operators].map(|client| ask(client, &row, token));
        let is_refused = answers.map(|reply| reply.error() == FORBIDDEN);
        let expected = match row.right {
            Right::Health => [false, false],
            Right::Timestamps => [false, true],
            Right::Operations | Right::Page | Right::Change => [true, false],
            Right::Peer => panic!("no route of peers"),
        };
        assert_eq!(is_refused, expected, "{}", row.path);
        let refused = expected.into_iter().filter(|is_refused| *is_refused).count() as u64;
        assert_eq!(guarded.count(row.right, Reason::Port), before + refused, "{}", row.path);
    }
}

#[test]
fn a_native_client_needs_its_token_and_the_client_port() {
    let guarded = Guarded::new(true);
    let hello = |token: Option<&str>| ClientHello {
        token: token.map(|token| Token::new(token).unwrap()),
        ..ClientHello::default()
    };
    for (token, reason) in [(None, Reason::NoToken), (Some("unknown"), Reason::WrongToken)] {
        let mut client = Native::connect(&guarded.node);
        client.hello(&hello(token));
        client.ask(1, 1);
        assert_eq!(client.end(), ErrorCode::Unauthorized, "{token:?}");
        assert_eq!(guarded.count(NATIVE, reason), 1);
    }
    let mut client = Native::connect_to(guarded.node.ops_addr.unwrap());
    client.hello(&hello(Some(CLIENT)));
    assert_eq!(client.end(), ErrorCode::Forbidden);
    assert_eq!(guarded.count(NATIVE, Reason::Port), 1);
    for token in [CLIENT, OPERATOR] {
        let mut client = Native::connect(&guarded.node);
        client.hello(&hello(Some(token)));
        assert!(matches!(client.next(), Got::Welcome(_)));
        client.ask(7, 3);
        assert_eq!(client.range(7).count(), 3);
    }
}

#[test]
fn a_withdrawn_token_is_refused_on_every_open_connection() {
    const NEW: &str = "another-token-0123456789";
    let guarded = Guarded::new(false);
    let hello = ClientHello { token: Token::new(CLIENT), ..ClientHello::default() };
    let mut native = Native::connect(&guarded.node);
    native.hello(&hello);
    assert!(matches!(native.next(), Got::Welcome(_)));
    let mut http = guarded.node.connect();
    let row = TABLE[0];
    assert_eq!(ask(&mut http, &row, Some(CLIENT)).status, 200);
    // While operators hand out the new token, both tokens are valid. Afterwards the old one is not.
    let path = guarded.dir.path().join("clients");
    std::fs::write(&path, format!("{CLIENT}\n{NEW}\n")).unwrap();
    guarded.node.shared.authz.reload();
    assert_eq!(ask(&mut http, &row, Some(CLIENT)).status, 200);
    assert_eq!(ask(&mut http, &row, Some(NEW)).status, 200);
    native.ask(1, 1);
    native.range(1);
    std::fs::write(&path, NEW).unwrap();
    guarded.node.shared.authz.reload();
    assert_eq!(ask(&mut http, &row, Some(CLIENT)).error(), REFUSED);
    native.ask(2, 1);
    assert_eq!(native.end(), ErrorCode::Unauthorized);
    // The same holds for a token of operators.
    let hello = ClientHello { token: Token::new(OPERATOR), ..ClientHello::default() };
    let mut native = Native::connect(&guarded.node);
    native.hello(&hello);
    assert!(matches!(native.next(), Got::Welcome(_)));
    std::fs::write(guarded.dir.path().join("operations"), NEW).unwrap();
    guarded.node.shared.authz.reload();
    native.ask(1, 1);
    assert_eq!(native.end(), ErrorCode::Unauthorized);
}
