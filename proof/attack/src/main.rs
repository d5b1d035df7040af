//! The command line of the attacks, for `scripts/attack`. Every command except `echo` ends by
//! itself, and prints one line of results, each as `name=value`.

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use epicepoch_attack::connections::{Behaviour, Connections};
use epicepoch_attack::http2::{self, Flood};
use epicepoch_attack::{client, echo, peers, quic, requests};

const USAGE: &str = "\
attack flood KIND ADDR SECONDS         frames of HTTP/2, on a new connection when one was ended
attack crowd BEHAVIOUR ADDR COUNT SECONDS idle or slow connections
attack saturate ADDR COUNT SECONDS     pipelined requests on COUNT connections
attack connects ADDR SECONDS           connections that are closed at once
attack peers OPENING FROM ADDR COUNT SECONDS  connections to the peer port, from the address FROM
attack quic ADDR SECONDS               first packets of QUIC, each of a new connection
attack good ADDR,... RATE SECONDS      a well-behaved client; percentiles in milliseconds
attack echo ADDR                       a server that does nothing
KIND: rapid-reset made-you-reset continuation streams empty-data settings ping window-update
      priority unknown
BEHAVIOUR: mute idle slow-head deaf half-tls
OPENING: silent hello";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
        Some(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        Some(Ok(line)) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
    }
}

/// Runs a command. Returns its line of results, or an error. Returns `None` if the command is
/// unknown.
fn run(words: &[&str]) -> Option<io::Result<String>> {
    let packets = |sent: io::Result<u64>| sent.map(|packets| format!("packets={packets}"));
    Some(Ok(match *words {
        ["flood", kind, addr, limit] => {
            flood(Flood::named(kind)?, addr.parse().ok()?, seconds(limit)?)
        }
        ["crowd", behaviour, addr, count, limit] => {
            let mut held = Connections::open(
                addr.parse().ok()?,
                count.parse().ok()?,
                Behaviour::named(behaviour)?,
            );
            let opened = held.look();
            let left = held.hold(seconds(limit)?);
            format!("opened={opened} left={left}")
        }
        ["saturate", addr, count, limit] => {
            let answered =
                requests::saturate(addr.parse().ok()?, count.parse().ok()?, seconds(limit)?);
            format!("answered_bytes={answered}")
        }
        ["connects", addr, limit] => {
            format!("connections={}", requests::come_and_go(addr.parse().ok()?, seconds(limit)?))
        }
        ["peers", opening, from, addr, count, limit] => {
            let opening = peers::Opening::named(opening)?;
            let path = (from.parse().ok()?, addr.parse().ok()?);
            let came = peers::occupy_for(path, opening, count.parse().ok()?, seconds(limit)?);
            format!("{came:?}")
        }
        ["quic", addr, limit] => {
            return Some(packets(quic::flood(addr.parse().ok()?, seconds(limit)?, quic::initial)));
        }
        ["quic-hello", addr, limit] => {
            let hello = quic::ClientHello::new().ok()?;
            let next = |seed| hello.packet(seed);
            return Some(packets(quic::flood(addr.parse().ok()?, seconds(limit)?, next)));
        }
        ["good", addrs, rate, limit] => {
            let addrs: Option<Vec<SocketAddr>> =
                addrs.split(',').map(|addr| addr.parse().ok()).collect();
            let report = client::ask(&addrs?, rate.parse().ok()?, seconds(limit)?);
            format!(
                "answers={} failed={} moves={} p50={:.3} p99={:.3} max={:.3}",
                report.latency_ns.len(),
                report.failed,
                report.moves,
                report.ms(50.0),
                report.ms(99.0),
                report.ms(100.0)
            )
        }
        ["echo", addr] => {
            let listener = std::net::TcpListener::bind(addr.parse::<SocketAddr>().ok()?).ok()?;
            format!("{:?}", echo::serve(&listener))
        }
        _ => return None,
    }))
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

/// Floods one connection after another until the time is over.
fn flood(kind: Flood, addr: SocketAddr, limit: Duration) -> String {
    let start = Instant::now();
    let (mut connections, mut ended, mut pieces, mut answered) = (0_u64, 0_u64, 0_u64, 0);
    while start.elapsed() < limit {
        let Ok(outcome) = http2::flood(addr, kind, limit.saturating_sub(start.elapsed())) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        connections += 1;
        ended += u64::from(outcome.is_ended);
        pieces += u64::from(outcome.pieces);
        answered += outcome.answered;
    }
    format!("connections={connections} ended={ended} pieces={pieces} answered_bytes={answered}")
}
