//! A report of a real run of two seconds against a server with one fixed answer.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use epicepoch_bench::floor::{self, Wait};
use epicepoch_bench::record::{Program, Run};
use epicepoch_bench::run::{self, Arrivals, Pace, RunConfig, Target};
use epicepoch_wire::{Epoch, EpochIndex, Timestamp};

/// One run serves all tests.
pub(crate) fn report() -> Run {
    static REPORT: OnceLock<Run> = OnceLock::new();
    REPORT.get_or_init(measure).clone()
}

fn measure() -> Run {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || serve(&listener));
    let config = RunConfig {
        pace: Pace::Open { rate: 1000.0, arrivals: Arrivals::Poisson },
        warmup: Duration::from_millis(100),
        duration: Duration::from_secs(2),
        interval: Duration::from_millis(100),
        ..RunConfig::new(vec![Target::new(1, addr)])
    };
    let echo = floor::echo(Wait::Sleeping, Duration::from_millis(50)).unwrap();
    let program = Program {
        version: "1".to_owned(),
        commit: Some("abc".to_owned()),
        command: vec!["bench".to_owned(), "run".to_owned()],
    };
    Run::new(&run::run(config, |_, _| {}), Some(&echo), &[], program)
}

fn serve(listener: &TcpListener) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    for stream in listener.incoming().map_while(Result::ok) {
        std::thread::spawn(move || {
            let mut stream = stream;
            stream.set_nodelay(true).unwrap();
            let mut request = [0; 1024];
            while let Ok(1..) = stream.read(&mut request) {
                let index = EpochIndex(NEXT.fetch_add(1, Ordering::SeqCst));
                let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n".to_vec();
                answer.extend_from_slice(&Timestamp::new(Epoch(7), index).to_bytes());
                if stream.write_all(&answer).is_err() {
                    return;
                }
            }
        });
    }
}
