//! A store as a process. It has a thread for each connection, and one lock around the rows. All
//! rows are in memory. This is enough, because the example is about the protocol of clients. A real
//! store would replicate its rows.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::Result;

use crate::columns::Columns;
use crate::plant::Plant;
use crate::protocol::Reply;

/// Serves the clients of `listener` for ever.
pub fn serve(listener: &TcpListener, plant: Option<Plant>) -> Result<()> {
    let columns = Arc::new(Mutex::new(Columns::new(plant)));
    let began = Instant::now();
    loop {
        let (stream, _) = listener.accept()?;
        let columns = columns.clone();
        thread::Builder::new().name("connection".to_owned()).spawn(move || {
            // Errors of a connection are ignored, because this example kills clients on purpose.
            drop(converse(&stream, &columns, began));
        })?;
    }
}

fn converse(stream: &TcpStream, columns: &Mutex<Columns>, began: Instant) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream);
    let mut out = BufWriter::new(stream);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        let reply = match serde_json::from_str(&line) {
            Ok(request) => {
                let mut columns = columns.lock().unwrap_or_else(PoisonError::into_inner);
                columns.handle(request, began.elapsed())
            }
            Err(error) => Reply::Refused { why: error.to_string() },
        };
        serde_json::to_writer(&mut out, &reply)?;
        out.write_all(b"\n")?;
        out.flush()?;
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_request_is_refused_and_the_next_one_is_served() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        thread::spawn(move || serve(&listener, None));
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(b"{\"op\":\"steal\"}\n{\"op\":\"dump\",\"after\":\"\"}\n").unwrap();
        let mut lines = BufReader::new(stream).lines();
        let mut reply = || serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(matches!(reply(), Reply::Refused { .. }));
        assert_eq!(reply(), Reply::End);
    }
}
