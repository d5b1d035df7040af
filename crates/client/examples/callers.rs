//! Measures how many calls per second one client carries out, and how much CPU time a call costs.
//! As many callers as the second argument says ask without pause. All of them run on one thread
//! with the client. With `http` as the fourth argument, each call is a request of its own over
//! HTTP/1.1. The program also prints how many calls were made, so that the cost of one can be
//! computed from two runs.
//!
//! `cargo run --release -p epicepoch-client --example callers -- localhost:8881 1000 5`
//! `cargo run --release -p epicepoch-client --example callers -- localhost:8881 32 5 http`

use std::time::{Duration, Instant};

use epicepoch_client::{Client, Options, Via};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let addrs = arguments.next().unwrap_or_else(|| "localhost:8881".to_owned());
    let callers: usize = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let mut options = Options::default();
    match arguments.next().as_deref() {
        None | Some("native") => {}
        Some("http") => options.via = Via::Http,
        Some(other) => return Err(format!("{other:?} is no protocol: native or http").into()),
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let client = Client::new(addrs.split(','), options)?;
        client.timestamp().await?;
        let (began, cpu_before) = (Instant::now(), cpu()?);
        let end = began + Duration::from_secs(seconds);
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move {
                    let mut calls = 0_u64;
                    // The clock is read only every 16 calls, because one reading costs a good part
                    // of what a call costs.
                    while !calls.is_multiple_of(16) || Instant::now() < end {
                        client.timestamp().await?;
                        calls += 1;
                    }
                    Ok::<u64, epicepoch_client::TimestampsError>(calls)
                })
            })
            .collect();
        let mut calls = 0;
        for task in tasks {
            calls += task.await??;
        }
        let (elapsed, cpu) = (began.elapsed(), cpu()?.saturating_sub(cpu_before));
        println!(
            "{callers} callers: {:.0} calls per second, {:.3} us of CPU per call, {calls} calls",
            calls as f64 / elapsed.as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / calls as f64,
        );
        Ok(())
    })
}

/// Returns the CPU time of this thread.
fn cpu() -> Result<Duration, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split(' ').next().unwrap_or_default();
    Ok(Duration::from_nanos(first.parse()?))
}
