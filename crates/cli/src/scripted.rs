//! A scripted node of a unit test: it answers every request as the test says. It keeps no state and
//! knows no protocol but HTTP/1.1.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use epicepoch_wire::http::{ErrorCode, HEADER_CLUSTER, HEADER_ERROR};
use serde_json::Value;

/// The id of the cluster that every scripted node names.
pub(crate) const ID: &str = "0000000000000000000000000000abcd";

/// Starts a node, and returns its address. `answer` gets the method and the target of a request,
/// such as `GET /members`, and returns a document or the code of a refusal.
pub(crate) fn start(
    answer: impl Fn(&str) -> Result<Value, ErrorCode> + Send + Sync + 'static,
) -> String {
    let (listener, addr) = listen();
    serve(listener, answer);
    addr
}

/// Returns a listener and its address, for nodes that name each other.
pub(crate) fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    (listener, addr)
}

/// Answers at a listener from now on, as [`start`] does.
pub(crate) fn serve(
    listener: TcpListener,
    answer: impl Fn(&str) -> Result<Value, ErrorCode> + Send + Sync + 'static,
) {
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            thread::spawn(move || exchange(&mut stream.expect("a connection"), &*answer));
        }
    });
}

/// Reads one request and answers it.
fn exchange(stream: &mut TcpStream, answer: &impl Fn(&str) -> Result<Value, ErrorCode>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        let Ok(1) = stream.read(&mut byte) else { return };
        request.extend(byte);
    }
    let request = String::from_utf8(request).expect("text");
    let line = request.lines().next().expect("a line");
    let (line, _version) = line.rsplit_once(' ').expect("a version");
    let (status, error, body) = match answer(line) {
        Ok(document) => (200, String::new(), document.to_string()),
        Err(code) => {
            let error = format!("{HEADER_ERROR}: {}\r\n", code.name());
            (code.status(), error, format!("{}\n", code.name()))
        }
    };
    // A command that has read enough may leave.
    let _left = write!(
        stream,
        "HTTP/1.1 {status} x\r\nconnection: close\r\n{HEADER_CLUSTER}: {ID}.0000000000000001\r\n\
         {error}content-length: {}\r\n\r\n{body}",
        body.len()
    );
}
