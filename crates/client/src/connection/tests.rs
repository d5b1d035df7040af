//! Tests of one connection, over a stream in memory.

use std::future::Future;
use std::pin::pin;
use std::task::Waker;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

/// More than all bytes of a test that the other end does not read.
const ROOM: usize = 1 << 20;

fn connected(room: usize) -> (Connection<DuplexStream>, DuplexStream) {
    let (stream, server) = duplex(room);
    (Connection::new(stream), server)
}

fn answer(headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Asks, while the server sends these bytes after the request.
async fn asked(
    connection: &mut Connection<DuplexStream>,
    server: &mut DuplexStream,
    bytes: &[u8],
) -> Result<(), ExchangeError> {
    let answering = async {
        request(server).await;
        server.write_all(bytes).await.unwrap();
    };
    tokio::join!(connection.ask("a:1", "/x", None), answering).0
}

/// Reads a request.
async fn request(server: &mut DuplexStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(server.read_u8().await.unwrap());
    }
    String::from_utf8(request).unwrap()
}

#[tokio::test]
async fn each_request_gets_the_answer_that_follows_it() {
    let (mut connection, mut server) = connected(64);
    let token = Token::new("secret");
    for (token, line) in [(None, ""), (token.as_ref(), "authorization: Bearer secret\r\n")] {
        for path in ["/a", "/timestamp?format=range&n=1"] {
            let bytes = answer("", path);
            let answering = async {
                let request = request(&mut server).await;
                server.write_all(&bytes).await.unwrap();
                request
            };
            let asking = connection.ask("[::1]:80", path, token);
            let (asked, request) = tokio::join!(asking, answering);
            asked.unwrap();
            let direct = "epicepoch-direct: 1\r\n";
            let expected = format!("GET {path} HTTP/1.1\r\nhost: [::1]:80\r\n{direct}{line}\r\n");
            assert_eq!(request, expected);
            assert_eq!(connection.answer().body, path.as_bytes());
            assert!(connection.is_reusable());
        }
    }
}

#[tokio::test]
async fn bytes_behind_an_answer_are_not_the_next_answer() {
    for more in ["\r\n", "H", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"] {
        let (mut connection, mut server) = connected(ROOM);
        let bytes = [answer("", "mine"), more.into()].concat();
        asked(&mut connection, &mut server, &bytes).await.unwrap();
        assert_eq!(connection.answer().body, b"mine");
        assert!(!connection.is_reusable(), "{more:?}");
    }
}

#[tokio::test]
async fn an_answer_before_the_request_is_sent_can_only_be_a_refusal() {
    for (status, is_taken) in [("200 OK", false), ("204 No Content", false), ("503 Busy", true)] {
        // The server reads nothing, so the request cannot be sent.
        let (mut connection, mut server) = connected(16);
        let bytes = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        let (asked, written) = tokio::join!(
            connection.ask("a:1", "/timestamp?format=range&n=1", None),
            server.write_all(bytes.as_bytes())
        );
        written.unwrap();
        assert_eq!(asked.is_ok(), is_taken, "{asked:?}");
        assert!(is_taken || matches!(asked, Err(ExchangeError::Unasked)));
        assert!(!connection.is_reusable(), "a part of the request would follow");
    }
}

#[tokio::test]
async fn a_request_that_was_given_up_leaves_no_connection_to_use() {
    for sent in [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nx"] {
        let (mut connection, mut server) = connected(ROOM);
        server.write_all(sent).await.unwrap();
        {
            let mut asking = pin!(connection.ask("a:1", "/x", None));
            let mut context = Context::from_waker(Waker::noop());
            assert!(asking.as_mut().poll(&mut context).is_pending());
        }
        assert!(!connection.is_reusable());
    }
}

#[tokio::test]
#[should_panic(expected = "one request at a time")]
async fn a_connection_that_was_given_up_sends_no_other_request() {
    let (mut connection, _server) = connected(ROOM);
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(connection.ask("a:1", "/x", None)).poll(&mut context).is_pending());
    let _ = connection.ask("a:1", "/y", None).await;
}

#[tokio::test]
#[should_panic(expected = "only the lines that it should")]
async fn a_path_cannot_add_a_line_to_a_request() {
    let (mut connection, _server) = connected(ROOM);
    let _ = connection.ask("a:1", "/x HTTP/1.1\r\nx: y", None).await;
}

#[test]
fn text_with_blanks_line_ends_or_control_bytes_is_not_plain() {
    for good in ["a:1", "[::1]:80", "/timestamp?format=range&n=1"] {
        assert!(is_plain(good), "{good}");
    }
    for bad in ["", "a b:1", "a:1\r\nx: y", "a:1\n", "\ta:1", "\u{e9}:1", "a:1\0"] {
        assert!(!is_plain(bad), "{bad:?}");
    }
}

#[tokio::test]
async fn an_answer_may_be_the_last_one_of_its_connection() {
    for (head, has_length) in [
        ("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\n", true),
        ("HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\n", true),
        ("HTTP/1.0 200 OK\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\n\r\n", false),
    ] {
        let (mut connection, mut server) = connected(ROOM);
        let answering = async {
            request(&mut server).await;
            server.write_all(format!("{head}body").as_bytes()).await.unwrap();
            if !has_length {
                drop(server);
            }
        };
        tokio::join!(connection.ask("a:1", "/x", None), answering).0.unwrap();
        assert_eq!(connection.answer().body, b"body", "{head}");
        assert!(!connection.is_reusable(), "{head}");
    }
}

#[tokio::test]
async fn interim_and_chunked_answers_leave_the_connection_open() {
    let (mut connection, mut server) = connected(ROOM);
    let bytes = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\n\
          transfer-encoding: chunked\r\n\r\n2\r\nbo\r\n2;x=y\r\ndy\r\n0\r\n\r\n";
    for _ in 0..2 {
        asked(&mut connection, &mut server, bytes).await.unwrap();
        assert_eq!(connection.answer().body, b"body");
        assert!(connection.is_reusable());
    }
}

#[tokio::test]
async fn a_connection_that_ends_too_early_says_whether_an_answer_had_begun() {
    for begun in ["", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab"] {
        let (mut connection, mut server) = connected(ROOM);
        let answering = async {
            request(&mut server).await;
            server.write_all(begun.as_bytes()).await.unwrap();
            drop(server);
        };
        let error = tokio::join!(connection.ask("a:1", "/x", None), answering).0.unwrap_err();
        assert!(matches!(error, ExchangeError::NoAnswer(AnswerError::Ended)), "{error}");
        assert_eq!(connection.has_received(), !begun.is_empty());
        assert!(!connection.is_reusable());
    }
    let (mut connection, server) = connected(ROOM);
    drop(server);
    let error = connection.ask("a:1", "/x", None).await.unwrap_err();
    assert!(matches!(error, ExchangeError::Broken(_)), "{error}");
}

#[tokio::test]
async fn a_malformed_answer_is_an_error_that_says_what_is_wrong() {
    let (mut connection, mut server) = connected(ROOM);
    let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab";
    let error = asked(&mut connection, &mut server, bytes).await.unwrap_err();
    let expected = "not an answer over HTTP/1.1: the header content-length comes twice";
    assert_eq!(error.to_string(), expected);
    assert!(!connection.is_reusable());
}

#[tokio::test]
async fn a_long_answer_is_read_and_its_memory_given_back() {
    let (mut connection, mut server) = connected(100);
    let body = "x".repeat(200_000);
    asked(&mut connection, &mut server, &answer("", &body)).await.unwrap();
    assert_eq!(connection.answer().body, body.as_bytes());
    assert!(connection.is_reusable());
    connection.shrink();
    assert_eq!(connection.input.capacity(), INPUT_LEN);
    asked(&mut connection, &mut server, &answer("", "short")).await.unwrap();
    connection.shrink();
    assert_eq!(connection.answer().body, b"short");
}

#[tokio::test]
async fn an_endless_answer_is_refused_at_the_limit_of_the_buffer() {
    for head in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 ", "HTTP/1.1 200 OK\r\nx: "] {
        let (mut connection, mut server) = connected(1000);
        let answering = async {
            server.write_all(head.as_bytes()).await.unwrap();
            // The write ends with an error when the client has closed the connection.
            while server.write_all(&[b'x'; 1000]).await.is_ok() {}
        };
        let asking = async {
            let asked = connection.ask("a:1", "/x", None).await;
            let length = connection.input.len();
            drop(connection);
            (asked, length)
        };
        let ((asked, length), ()) = tokio::join!(asking, answering);
        assert!(matches!(asked, Err(ExchangeError::NoAnswer(_))), "{asked:?}");
        assert!(length <= ANSWER_LEN_MAX, "{length}");
    }
}

#[tokio::test]
async fn the_text_of_a_connection_does_not_contain_its_token() {
    let (mut connection, mut server) = connected(ROOM);
    server.write_all(&answer("", "")).await.unwrap();
    let token = Token::new("secret");
    connection.ask("a:1", "/x", token.as_ref()).await.unwrap();
    assert!(String::from_utf8_lossy(&connection.request).contains("secret"));
    assert!(!format!("{connection:?}").contains("secret"));
}
