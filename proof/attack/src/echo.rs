//! A server that gives every HTTP/1.1 request the same answer and drops everything else. It has one
//! thread and an event loop. It does so little that its latency under a flood is that of the
//! machine and its kernel.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;

use rustix::event::epoll;

/// The answer to every request.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n0123456789abcdef";
/// At most this many events are taken in one call of epoll.
const EVENTS_MAX: usize = 1024;

/// Answers every client of `listener`, for ever.
///
/// # Errors
/// The system has no event queue left.
pub fn serve(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let queue = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let own = epoll::EventData::new_u64(u64::MAX);
    epoll::add(&queue, listener, own, epoll::EventFlags::IN)?;
    let mut held: HashMap<u64, TcpStream> = HashMap::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut chunk = vec![0; 64 << 10];
    loop {
        events.clear();
        epoll::wait(&queue, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let id = event.data.u64();
            if id == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    let id = stream.as_raw_fd() as u64;
                    let data = epoll::EventData::new_u64(id);
                    epoll::add(&queue, &stream, data, epoll::EventFlags::IN)?;
                    held.insert(id, stream);
                }
            } else if let Some(stream) = held.get_mut(&id)
                && !answer(stream, &mut chunk)
            {
                let _ = stream.shutdown(Shutdown::Both);
                held.remove(&id);
            }
        }
    }
}

/// Answers the requests that have come. Returns whether the connection goes on.
fn answer(stream: &mut TcpStream, chunk: &mut [u8]) -> bool {
    match stream.read(chunk) {
        Ok(0) => false,
        Ok(length) => {
            let ends = chunk[..length].windows(4).filter(|it| *it == b"\r\n\r\n").count();
            (0..ends).all(|_| match stream.write(ANSWER) {
                Ok(_) => true,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            })
        }
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}
