//! A scripted oracle over HTTP/1.1: several nodes, one of which leads. The oracle can stall, go
//! away, or have a bug.

// Each test binary compiles this module and uses only a part of it.
#![allow(dead_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use epicepoch_bench::run::{Measurement, Target};
use epicepoch_wire::{Epoch, EpochIndex, Timestamp, TimestampRange};

/// The oracle's bug.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    /// A new leader starts below the last timestamp of the previous one.
    NewLeaderRepeats,
    /// A deposed leader goes on answering from its own block, far from the others' blocks.
    DeposedAnswers,
    /// Every node, leader or not, answers from its own block: unique, but not in order.
    BlockPerNode,
    /// An index inside a list is left out.
    HoleInBatch,
    /// Every answer says that a lease has proved it.
    Lease,
    /// An answer is sometimes repeated to the next request.
    AnswerTwice,
}

#[derive(Clone)]
pub(crate) struct Oracle {
    pub(crate) targets: Vec<Target>,
    state: Arc<Mutex<State>>,
}

struct State {
    bug: Bug,
    addrs: Vec<SocketAddr>,
    leader: usize,
    next: u64,
    /// The next index in each node's own block of indexes, for bugs that give each node a block.
    blocks: Vec<u64>,
    was_leader: Vec<bool>,
    answers: u64,
    remembered: Option<TimestampRange>,
    /// The time before which no request is answered.
    stalled_until: Instant,
    /// While this is set, no node listens, and every connection is closed.
    is_down: bool,
    /// When the oracle has given this many answers, the connection of the next request falls silent
    /// for good.
    mute_at: u64,
}

impl Oracle {
    /// Starts nodes with the ids 1, 2 and so on. The first one leads.
    pub(crate) fn start(nodes: usize, bug: Bug) -> Self {
        let bind = |_| TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners: Vec<TcpListener> = (0..nodes).map(bind).collect();
        let addrs: Vec<SocketAddr> = listeners.iter().map(|it| it.local_addr().unwrap()).collect();
        let targets = addrs.iter().zip(1..).map(|(addr, id)| Target::new(id, *addr)).collect();
        let state = Arc::new(Mutex::new(State {
            bug,
            addrs,
            leader: 0,
            next: 1 << 20,
            blocks: (0..nodes).map(|node| (node as u64) << 40).collect(),
            was_leader: (0..nodes).map(|node| node == 0).collect(),
            answers: 0,
            remembered: None,
            stalled_until: Instant::now(),
            is_down: false,
            mute_at: u64::MAX,
        }));
        let oracle = Self { targets, state };
        for (node, listener) in listeners.into_iter().enumerate() {
            let oracle = oracle.clone();
            std::thread::spawn(move || oracle.listen(node, listener));
        }
        oracle
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Lets the next node lead.
    pub(crate) fn move_leader(&self) {
        let mut state = self.state();
        state.leader = (state.leader + 1) % state.addrs.len();
        let leader = state.leader;
        state.was_leader[leader] = true;
        if state.bug == Bug::NewLeaderRepeats {
            state.next -= 3;
        }
    }

    pub(crate) fn plant(&self, bug: Bug) {
        self.state().bug = bug;
    }

    pub(crate) fn stall(&self, time: Duration) {
        self.state().stalled_until = Instant::now() + time;
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    pub(crate) fn mute_at(&self, answers: u64) {
        self.state().mute_at = answers;
    }

    /// Number of answers so far.
    pub(crate) fn answers(&self) -> u64 {
        self.state().answers
    }

    fn listen(&self, node: usize, listener: TcpListener) {
        let addr = listener.local_addr().unwrap();
        let (mut listener, mut streams) = (Some(listener), Vec::<TcpStream>::new());
        loop {
            if self.state().is_down {
                listener = None;
                let close = |it: TcpStream| it.shutdown(Shutdown::Both).ok();
                streams.drain(..).filter_map(close).for_each(drop);
            } else if listener.is_none() {
                listener = TcpListener::bind(addr).ok();
            }
            let accepted = listener.as_ref().map(|listener| {
                listener.set_nonblocking(true).unwrap();
                listener.accept()
            });
            match accepted {
                Some(Ok((stream, _))) => {
                    stream.set_nonblocking(false).unwrap();
                    stream.set_nodelay(true).unwrap();
                    streams.push(stream.try_clone().unwrap());
                    let oracle = self.clone();
                    std::thread::spawn(move || oracle.serve(node, stream));
                }
                Some(Err(error)) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Answers requests on one connection until it ends.
    fn serve(&self, node: usize, mut stream: TcpStream) {
        let (mut buffer, mut chunk, mut is_mute) = (Vec::new(), [0; 16 * 1024], false);
        while let Ok(len @ 1..) = stream.read(&mut chunk) {
            buffer.extend_from_slice(&chunk[..len]);
            let stalled_until = self.state().stalled_until;
            std::thread::sleep(stalled_until.saturating_duration_since(Instant::now()));
            let mut out = Vec::new();
            while let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8(buffer.drain(..at + 4).collect()).unwrap();
                let mut state = self.state();
                if state.answers == state.mute_at {
                    (is_mute, state.mute_at) = (true, u64::MAX);
                }
                if !is_mute {
                    out.extend(state.response(node, &head));
                }
            }
            if stream.write_all(&out).is_err() {
                return;
            }
        }
    }
}

impl State {
    fn response(&mut self, node: usize, head: &str) -> Vec<u8> {
        let target = head.split(' ').nth(1).unwrap();
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let count = query.split('&').find_map(|pair| pair.strip_prefix("n="));
        let count = count.map_or(1, |text| text.parse().unwrap());
        let (status, body) = match self.answer(node, count) {
            Ok(range) if query.contains("format=range") => {
                ("200 OK".into(), range.to_bytes().to_vec())
            }
            Ok(range) => ("200 OK".into(), self.body(&range)),
            Err(leader) => {
                let headers = "epicepoch-error: NOT_LEADER\r\nepicepoch-leader";
                (format!("409 Conflict\r\n{headers}: {leader}"), Vec::new())
            }
        };
        let proof = if self.bug == Bug::Lease { "Epicepoch-Proof: lease\r\n" } else { "" };
        let head = format!("HTTP/1.1 {status}\r\n{proof}content-length: {}\r\n\r\n", body.len());
        [head.into_bytes(), body].concat()
    }

    /// Returns the timestamps, or the leader's address as an error.
    fn answer(&mut self, node: usize, count: u64) -> Result<TimestampRange, SocketAddr> {
        let is_deposed = self.was_leader[node] && node != self.leader;
        let has_block =
            self.bug == Bug::BlockPerNode || (self.bug == Bug::DeposedAnswers && is_deposed);
        if node != self.leader && !has_block {
            return Err(self.addrs[self.leader]);
        }
        self.answers += 1;
        if self.bug == Bug::AnswerTwice
            && self.answers.is_multiple_of(100)
            && let Some(remembered) = self.remembered
        {
            return Ok(remembered);
        }
        let next = if has_block { &mut self.blocks[node] } else { &mut self.next };
        let first = Timestamp::new(Epoch(7), EpochIndex(*next));
        *next += count;
        let range = TimestampRange::new(first, count).unwrap();
        self.remembered = Some(range);
        Ok(range)
    }

    /// The body of an answer. With [`Bug::HoleInBatch`] it sometimes leaves out an index.
    fn body(&self, range: &TimestampRange) -> Vec<u8> {
        let hole = self.bug == Bug::HoleInBatch && self.answers.is_multiple_of(50);
        let skip = |at: usize, it: Timestamp| {
            let index = EpochIndex(it.index.0 + u64::from(hole && at > 1));
            Timestamp::new(it.epoch, index).to_bytes()
        };
        range.iter().enumerate().flat_map(|(at, it)| skip(at, it)).collect()
    }
}

/// Repeats a measurement, at most three times in all, until the machine has not stalled for
/// [`STANDSTILL`] during it. Returns the last measurement. A stall of the machine makes the
/// generator late, and would fail any test.
pub(crate) fn undisturbed(measure: impl Fn() -> Measurement) -> Measurement {
    let is_disturbed = |it: &Measurement| Duration::from_nanos(it.hiccups.max()) >= STANDSTILL;
    let mut measured = measure();
    for _ in 1..3 {
        if !is_disturbed(&measured) {
            break;
        }
        measured = measure();
    }
    measured
}

/// A stall of the machine for this time counts as a disturbance. It is half of the lateness that
/// fails a test, 100 ms.
const STANDSTILL: Duration = Duration::from_millis(50);
