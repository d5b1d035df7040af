//! The generator measures a service that is no timestamp oracle.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use epicepoch_bench::run::{self, Measurement, RunConfig, Target};

/// Answers `GET /stamp` with status 200, and other paths with status 404, until the client leaves.
fn serve(stream: TcpStream) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(request) = lines.next().transpose()? {
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let is_known = request == "GET /stamp?x=1 HTTP/1.1";
        let status = if is_known { "200 OK" } else { "404 Not Found" };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\n\r\nhello");
        out.write_all(answer.as_bytes())?;
    }
    Ok(())
}

fn measure(path: Option<&str>) -> Measurement {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let config = RunConfig {
        path: path.map(str::to_owned),
        verify: false,
        connections: 1,
        warmup: Duration::ZERO,
        duration: Duration::from_millis(200),
        interval: Duration::from_millis(100),
        ..RunConfig::new(vec![Target { id: 1, addr, name: addr.to_string() }])
    };
    // The thread waits for connections until the process ends.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _the_client_has_left = serve(stream.unwrap());
        }
    });
    run::run(config, |_, _| {})
}

#[test]
fn every_answer_of_another_path_counts_and_another_status_is_a_failure() {
    let measured = measure(Some("/stamp?x=1"));
    assert!(measured.counts.answers > 10, "{}", measured.to_string());
    assert!(measured.counts.failures.is_empty(), "{:?}", measured.counts.failures);
    for path in [Some("/stamp"), None] {
        let refused = measure(path);
        assert_eq!(refused.counts.answers, 0);
        assert!(refused.counts.failures.contains_key("status"), "{:?}", refused.counts.failures);
    }
}
