//! Tests every fault on real sockets. The tests check the bytes at the other end, or counts of lost
//! bytes. Times have only lower bounds, because these hold on a busy machine, too.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use epicepoch_link::{Cut, Diallers, Fault, Links, Party, Passed};
use epicepoch_wire::frame::{FrameKind, write_frame};
use epicepoch_wire::native::{ClientHello, FORWARDER_AGENT};
use epicepoch_wire::{ClusterId, NodeId};

const WAIT_MAX: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);
const ONE: Party = Party::node(1);
const TWO: Party = Party::node(2);
const THREE: Party = Party::node(3);
const ANY_PORT: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

/// Node 2 behind a proxy.
struct Behind {
    links: Links,
    listener: TcpListener,
    addr: SocketAddr,
}

impl Behind {
    fn new() -> Self {
        let links = Links::start(7).unwrap();
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        let target = listener.local_addr().unwrap();
        let addr = links.stand_before(TWO, Diallers::Peers, ANY_PORT.into(), target).unwrap();
        Self { links, listener, addr }
    }

    /// Connects as the node `from`, and sends its hello. Returns both ends of the connection. The
    /// other end has already read the hello.
    fn dial(&self, from: u64) -> (TcpStream, TcpStream) {
        let near = dial(self.addr, &hello(from));
        let mut far = self.accept();
        assert_eq!(read(&mut far, hello(from).len()), hello(from));
        (near, far)
    }

    fn accept(&self) -> TcpStream {
        let (far, _) = self.listener.accept().unwrap();
        far.set_read_timeout(Some(WAIT_MAX)).unwrap();
        far
    }
}

fn dial(addr: SocketAddr, first: &[u8]) -> TcpStream {
    let mut near = TcpStream::connect(addr).unwrap();
    near.set_read_timeout(Some(WAIT_MAX)).unwrap();
    near.write_all(first).unwrap();
    near
}

fn hello(from: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    write_frame(&mut frame, FrameKind::PeerHello, ClusterId(5), NodeId(from), |out| {
        out.extend_from_slice(b"hello");
    });
    frame
}

fn read(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Reads until the end. Returns the bytes, and how the stream ended.
fn read_to_end(stream: &mut TcpStream) -> (Vec<u8>, Result<(), ErrorKind>) {
    let mut bytes = Vec::new();
    let ended = stream.read_to_end(&mut bytes);
    (bytes, ended.map(drop).map_err(|error: io::Error| error.kind()))
}

const RESET: (Vec<u8>, Result<(), ErrorKind>) = (Vec::new(), Err(ErrorKind::ConnectionReset));

/// Waits until the counts fulfil a condition.
#[track_caller]
fn wait_for(links: &Links, from: Party, to: Party, is_so: impl Fn(Passed) -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !is_so(links.passed(from, to)) {
        assert!(Instant::now() < deadline, "in vain: {:?}", links.passed(from, to));
        std::thread::yield_now();
    }
}

#[test]
fn a_good_link_carries_everything_unaltered_both_ways_and_its_ends() {
    let behind = Behind::new();
    let (mut near, mut far) = behind.dial(1);
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let sent = bytes.clone();
    let mut sender = near.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        sender.write_all(&sent).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
    });
    assert!(read_to_end(&mut far) == (bytes, Ok(())), "what comes is not what was sent");
    sending.join().unwrap();
    far.write_all(b"after the other side has ended").unwrap();
    drop(far);
    assert_eq!(read_to_end(&mut near), (b"after the other side has ended".to_vec(), Ok(())));
}

#[test]
fn a_process_that_resets_is_seen_to_reset() {
    let behind = Behind::new();
    let (near, mut far) = behind.dial(1);
    socket2::SockRef::from(&near).set_linger(Some(Duration::ZERO)).unwrap();
    drop(near);
    assert_eq!(read_to_end(&mut far), RESET);
}

#[test]
fn a_missing_target_is_seen_as_a_reset() {
    let Behind { links: _links, listener, addr } = Behind::new();
    drop(listener);
    assert_eq!(read_to_end(&mut dial(addr, &hello(1))), RESET);
}

#[test]
fn a_connection_without_a_hello_is_a_clients_and_is_carried_too() {
    let behind = Behind::new();
    behind.links.set_both(ONE, TWO, Fault::blackhole());
    for first in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\xc0\xe5", b"\xc0x", &[0xff; 64]] {
        let near = dial(behind.addr, first);
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&mut behind.accept()), (first.to_vec(), Ok(())));
    }
    assert_eq!(behind.links.passed(Party::Client, TWO).connections, 4);
}

/// In front of a client port, a node is known by the agent in its hello, whether that comes at once or
/// in parts. Everybody else is a client.
#[test]
fn a_node_that_sends_requests_on_is_known_by_its_hello() {
    let links = Links::start(7).unwrap();
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let target = listener.local_addr().unwrap();
    let addr = links.stand_before(TWO, Diallers::Forwarders, ANY_PORT.into(), target).unwrap();
    let hello = |agent: &str| {
        let mut bytes = Vec::new();
        ClientHello { agent: agent.to_owned(), ..ClientHello::default() }.encode(&mut bytes);
        bytes
    };
    let node = hello(&format!("{FORWARDER_AGENT}3"));
    let clients =
        [hello("epicepoch"), hello(FORWARDER_AGENT), b"GET /timestamp HTTP/1.1\r\n\r\n".to_vec()];
    let firsts = [&node, &clients[0], &clients[1], &clients[2]];
    for first in firsts {
        let mut near = dial(addr, &first[..20]);
        near.write_all(&first[20..]).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.set_read_timeout(Some(WAIT_MAX)).unwrap();
        assert_eq!(read(&mut far, first.len()), *first);
    }
    let connections = |from| links.passed(from, TWO).connections;
    assert_eq!((connections(THREE), connections(Party::Client)), (1, 3));
}

#[test]
fn a_blackhole_swallows_one_dialler_and_not_another() {
    let behind = Behind::new();
    let (mut one, mut far_one) = behind.dial(1);
    let (mut three, mut far_three) = behind.dial(3);
    behind.links.set(ONE, TWO, Fault::blackhole());
    one.write_all(b"lost").unwrap();
    three.write_all(b"kept").unwrap();
    assert_eq!(read(&mut far_three, 4), b"kept");
    wait_for(&behind.links, ONE, TWO, |passed| passed.bytes_lost == 4);
    // The other direction of the same connection still works.
    far_one.write_all(b"back").unwrap();
    assert_eq!(read(&mut one, 4), b"back");
    // When the cut ends, the stream is reset because bytes are missing. The lost bytes have not
    // arrived.
    behind.links.heal();
    assert_eq!(read_to_end(&mut far_one), RESET);
    assert_eq!(read_to_end(&mut one), RESET);
    three.write_all(b"kept").unwrap();
    assert_eq!(read(&mut far_three, 4), b"kept");
    assert_eq!(behind.links.passed(ONE, TWO).resets, 1);
    assert_eq!(behind.links.passed(THREE, TWO).bytes_lost, 0);
}

#[test]
fn a_blackhole_backwards_swallows_answers_only() {
    let behind = Behind::new();
    let (mut near, mut far) = behind.dial(1);
    behind.links.set(TWO, ONE, Fault::blackhole());
    near.write_all(b"ask").unwrap();
    assert_eq!(read(&mut far, 3), b"ask");
    far.write_all(b"answer").unwrap();
    wait_for(&behind.links, TWO, ONE, |passed| passed.bytes_lost == 6);
    behind.links.heal();
    assert_eq!(read_to_end(&mut near), RESET);
}

#[test]
fn a_connection_that_lost_nothing_outlives_the_blackhole() {
    let behind = Behind::new();
    let (mut near, mut far) = behind.dial(1);
    behind.links.set_both(ONE, TWO, Fault::blackhole());
    behind.links.heal();
    near.write_all(b"still here").unwrap();
    assert_eq!(read(&mut far, 10), b"still here");
}

#[test]
fn a_blackhole_hides_the_end_of_a_process_until_it_is_over() {
    let behind = Behind::new();
    let (near, mut far) = behind.dial(1);
    behind.links.set(ONE, TWO, Fault::blackhole());
    drop(near);
    // The hello of a new connection between the same parties is lost, too. So the node sees no new
    // connection.
    let mut new = dial(behind.addr, &hello(1));
    wait_for(&behind.links, ONE, TWO, |passed| passed.bytes_lost == hello(1).len() as u64);
    behind.listener.set_nonblocking(true).unwrap();
    assert_eq!(behind.listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    far.set_nonblocking(true).unwrap();
    assert_eq!(far.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    far.set_nonblocking(false).unwrap();
    behind.links.heal();
    assert_eq!(read_to_end(&mut far), RESET);
    assert_eq!(read_to_end(&mut new), RESET);
}

#[test]
fn a_half_closed_connection_does_not_see_the_other_end_close_in_a_blackhole() {
    let behind = Behind::new();
    let (mut near, mut far) = behind.dial(1);
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&mut far), (Vec::new(), Ok(())));
    behind.links.set(TWO, ONE, Fault::blackhole());
    far.write_all(b"the last words").unwrap();
    drop(far);
    wait_for(&behind.links, TWO, ONE, |passed| passed.bytes_lost == 14);
    near.set_nonblocking(true).unwrap();
    assert_eq!(near.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    near.set_nonblocking(false).unwrap();
    behind.links.heal();
    assert_eq!(read_to_end(&mut near), RESET);
}

#[test]
fn bytes_that_a_cut_holds_arrive_late_and_whole() {
    let behind = Behind::new();
    let (mut near, mut far) = behind.dial(1);
    behind.links.set(ONE, TWO, Fault::cut(Cut::Hold));
    near.write_all(b"old news").unwrap();
    let mut new = dial(behind.addr, &hello(1));
    drop(near);
    // When a byte of the other direction has passed, the proxy has seen the events above.
    far.write_all(b"x").unwrap();
    wait_for(&behind.links, TWO, ONE, |passed| passed.bytes == 1);
    far.set_nonblocking(true).unwrap();
    assert_eq!(far.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    far.set_nonblocking(false).unwrap();
    behind.links.heal();
    assert_eq!(read_to_end(&mut far).0, b"old news");
    let mut far_new = behind.accept();
    assert_eq!(read(&mut far_new, hello(1).len()), hello(1));
    far_new.write_all(b"welcome").unwrap();
    assert_eq!(read(&mut new, 7), b"welcome");
}

#[test]
fn a_refusing_link_resets_what_there_is_and_what_comes() {
    let behind = Behind::new();
    let (mut near, mut far) = behind.dial(1);
    behind.links.set(TWO, ONE, Fault::cut(Cut::Reset));
    assert_eq!(read_to_end(&mut near), RESET);
    assert_eq!(read_to_end(&mut far), RESET);
    assert_eq!(read_to_end(&mut dial(behind.addr, &hello(1))), RESET);
    let (_near, _far) = behind.dial(3);
    behind.links.heal();
    let (_near, _far) = behind.dial(1);
    assert_eq!(behind.links.passed(ONE, TWO).resets, 2);
}

#[test]
fn connections_are_broken_on_command_with_a_reset_or_an_end() {
    let behind = Behind::new();
    let (mut near, mut far) = behind.dial(1);
    let (mut three, mut far_three) = behind.dial(3);
    behind.links.reset(TWO, ONE);
    assert_eq!((read_to_end(&mut near), read_to_end(&mut far)), (RESET, RESET));
    let (mut near, mut far) = behind.dial(1);
    behind.links.close(ONE, TWO);
    let end = (Vec::new(), Ok(()));
    assert_eq!((read_to_end(&mut near), read_to_end(&mut far)), (end.clone(), end));
    three.write_all(b"untouched").unwrap();
    assert_eq!(read(&mut far_three, 9), b"untouched");
}

#[test]
fn a_delay_and_its_jitter_are_waited_out_in_one_direction_only() {
    let behind = Behind::new();
    let (mut near, mut far) = behind.dial(1);
    let delay = MS * 80;
    behind.links.set(ONE, TWO, Fault { jitter: MS * 20, ..Fault::delay(delay) });
    let sent = Instant::now();
    near.write_all(b"slow").unwrap();
    assert_eq!(read(&mut far, 4), b"slow");
    assert!(sent.elapsed() >= delay, "{:?}", sent.elapsed());
    // Write many single bytes. They must arrive in their order.
    for byte in 0..100 {
        near.write_all(&[byte]).unwrap();
    }
    assert_eq!(read(&mut far, 100), (0..100).collect::<Vec<u8>>());
    far.write_all(b"fast").unwrap();
    assert_eq!(read(&mut near, 4), b"fast");
}

#[test]
fn a_bandwidth_is_shared_by_all_connections_of_a_direction() {
    let behind = Behind::new();
    let pairs = [behind.dial(1), behind.dial(1)];
    behind.links.set(ONE, TWO, Fault::bandwidth(20_000));
    let start = Instant::now();
    let reading = pairs.map(|(mut near, mut far)| {
        near.write_all(&[1; 2_000]).unwrap();
        std::thread::spawn(move || drop((read(&mut far, 2_000), near)))
    });
    for thread in reading {
        thread.join().unwrap();
    }
    // The 4000 bytes are 20 pieces of 200 bytes, 10 ms apart. The first is sent at once, so the
    // last is sent after 190 ms.
    assert!(start.elapsed() >= MS * 190, "{:?}", start.elapsed());
}

#[test]
fn a_trickle_lets_a_few_bytes_through_at_a_time() {
    let behind = Behind::new();
    let (mut near, mut far) = behind.dial(1);
    behind.links.set(ONE, TWO, Fault::trickle(3, MS * 10));
    let start = Instant::now();
    near.write_all(b"0123456789").unwrap();
    assert_eq!(read(&mut far, 10), b"0123456789");
    assert!(start.elapsed() >= MS * 30, "four pieces: {:?}", start.elapsed());
}

#[test]
fn a_receiver_that_does_not_read_fills_the_proxy_only_to_its_limit() {
    let behind = Behind::new();
    let (mut near, mut far) = behind.dial(1);
    behind.links.set(ONE, TWO, Fault::delay(Duration::from_hours(1)));
    near.set_nonblocking(true).unwrap();
    let chunk = vec![0; 64 << 10];
    let mut sent = 0_u64;
    let mut refused = 0;
    // Write until the proxy and the sockets have accepted no bytes for a while, because all are
    // full.
    while refused < 20 {
        if let Ok(len) = near.write(&chunk) {
            (sent, refused) = (sent + len as u64, 0);
        } else {
            refused += 1;
            far.set_read_timeout(Some(MS * 5)).unwrap();
            let got = far.read(&mut [0; 1]);
            assert!(got.is_err(), "nothing comes in an hour: {got:?}");
        }
        assert!(sent < 64 << 20, "somebody takes without limit");
    }
    assert_eq!(behind.links.passed(ONE, TWO).bytes, hello(1).len() as u64);
    behind.links.reset(ONE, TWO);
    far.set_read_timeout(Some(WAIT_MAX)).unwrap();
    assert_eq!(read_to_end(&mut far), RESET);
}

#[test]
fn a_proxy_that_is_dropped_leaves_nothing_behind() {
    let Behind { links, listener, addr } = Behind::new();
    let mut near = dial(addr, &hello(1));
    let (mut far, _) = listener.accept().unwrap();
    drop(links);
    let (_, _) = (read_to_end(&mut near), read_to_end(&mut far));
    assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
