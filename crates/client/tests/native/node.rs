//! A scripted node that does what a test chooses.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use epicepoch_client::{Epoch, EpochIndex, Timestamp};
use epicepoch_wire::http::ErrorCode;
use epicepoch_wire::native::client_hello::MemberAddr;
use epicepoch_wire::native::message::{goodbye, ping};
use epicepoch_wire::native::{
    COUNT_MAX, ClientHello, ErrorFrame, FEATURE_LATEST, LeaderNotice, Request,
    TO_SERVER_TAIL_LEN_MAX, ToServer, Welcome, split,
};
use epicepoch_wire::{ClusterId, HistoryId, NodeId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// The cluster's name.
pub(crate) const NAME: &str = "scripted";

/// How a node treats a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Play {
    /// Answers the request.
    Lead,
    /// Refuses the request.
    Refuse(ErrorCode),
    /// Reads the request, and closes the connection.
    HangUp,
    /// Reads the request, and never answers.
    Silence,
    /// Reads everything, and never sends anything, not even a welcome.
    Mute,
    /// Answers, and accepts clients that expect another cluster name.
    AnyName,
    /// Keeps the request for [`Play::RefuseAndRelease`].
    Keep,
    /// Refuses the request. 5 ms later, answers the requests that were kept unanswered until then.
    RefuseAndRelease(ErrorCode),
    /// Refuses the request, and names the leader in the same write.
    RefuseAndTell(ErrorCode),
    /// Refuses the request, and says goodbye in the same write.
    RefuseAndLeave(ErrorCode),
    /// Answers on all connections except the first one, on which it never answers.
    LeadElsewhere,
    /// Answers on all connections. On the first connection, the node takes the timestamps at once,
    /// but sends the answer only after this time.
    Late(Duration),
    /// Does what [`Play::Late`] does, but the late answer has a timestamp of an older epoch.
    LateRepeat(Duration),
    /// Answers after a random time, which is long for one request in eight. The node takes the
    /// timestamps before or after that time, at random.
    Jitter,
    /// Sends a welcome that names no leader, and the leader in the same write.
    WelcomeAndTell,
    /// Sends a welcome and says goodbye in the same write, then closes the connection.
    WelcomeAndLeave,
    /// Sends a welcome and a refusal in the same write, then closes the connection.
    WelcomeAndRefuse(ErrorCode),
    /// Sends a welcome and a ping in the same write. Answers requests only after the pong.
    WelcomeAndPing,
}

/// The timestamps, leader and members that all nodes of a cluster share.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    next: AtomicU64,
    leader: Mutex<Option<SocketAddr>>,
    pub(crate) members: Mutex<Vec<SocketAddr>>,
}

/// A scripted node.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) addr: SocketAddr,
    oracle: Arc<Oracle>,
    play: Arc<Mutex<Play>>,
    cluster: u128,
    /// The count of each request that has arrived.
    asked: Arc<Mutex<Vec<u64>>>,
    pub(crate) connections: Arc<AtomicU64>,
    peers: Arc<Mutex<Vec<mpsc::UnboundedSender<Vec<u8>>>>>,
}

impl Node {
    pub(crate) async fn start(oracle: &Arc<Oracle>, play: Play) -> Self {
        Self::start_in(oracle, play, 7).await
    }

    pub(crate) async fn start_in(oracle: &Arc<Oracle>, play: Play, cluster: u128) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = Self {
            addr: listener.local_addr().unwrap(),
            oracle: oracle.clone(),
            play: Arc::new(Mutex::new(play)),
            cluster,
            asked: Arc::default(),
            connections: Arc::default(),
            peers: Arc::default(),
        };
        oracle.members.lock().unwrap().push(node.addr);
        let serving = node.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let nth = serving.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serving.clone().converse(stream, nth));
            }
        });
        node
    }

    pub(crate) fn now_plays(&self, play: Play) {
        *self.play.lock().unwrap() = play;
    }

    pub(crate) fn now_leads(&self) {
        *self.oracle.leader.lock().unwrap() = Some(self.addr);
    }

    fn welcome(&self) -> Welcome {
        let node = |addr: SocketAddr| NodeId(u64::from(addr.port()));
        let member = |addr: &SocketAddr| MemberAddr { node: node(*addr), addr: addr.to_string() };
        Welcome {
            version: 1,
            cluster: Some((ClusterId(self.cluster), HistoryId(1))),
            node: node(self.addr),
            leader: self.oracle.leader.lock().unwrap().as_ref().map(member),
            cluster_name: NAME.to_owned(),
            in_flight_max: 1024,
            idle_ms: 1000,
            count_max: COUNT_MAX,
            features: FEATURE_LATEST,
            members: self.oracle.members.lock().unwrap().iter().map(member).collect(),
        }
    }

    fn answer(&self, request: Request) -> [u8; 32] {
        let next = self.oracle.next.fetch_add(request.count(), Ordering::SeqCst);
        request.answer(match (request.count(), next.checked_sub(1)) {
            // It asks for the latest timestamp.
            (0, None) => Timestamp::highest_at(8),
            (0, Some(last)) => Timestamp::new(Epoch(9), EpochIndex(last)),
            _ => Timestamp::new(Epoch(9), EpochIndex(next)),
        })
    }

    /// Serves one connection until it ends.
    async fn converse(self, stream: TcpStream, nth: u64) -> Option<()> {
        stream.set_nodelay(true).unwrap();
        let (mut reader, mut writer) = stream.into_split();
        let (say, mut said) = mpsc::unbounded_channel::<Vec<u8>>();
        self.peers.lock().unwrap().push(say.clone());
        let writing = tokio::spawn(async move {
            while let Some(bytes) = said.recv().await {
                writer.write_all(&bytes).await.ok()?;
            }
            Some(())
        });
        let mut input = Vec::new();
        let (mut kept, mut has_pong) = (Vec::new(), false);
        while reader.read_buf(&mut input).await.ok()? > 0 {
            let mut taken = 0;
            while let Some(frame) = split(&input[taken..], TO_SERVER_TAIL_LEN_MAX).unwrap() {
                taken += frame.len();
                let mut out = Vec::new();
                let play = *self.play.lock().unwrap();
                match ToServer::decode(&frame).unwrap() {
                    ToServer::ClientHello(_) if play == Play::Mute => {}
                    ToServer::ClientHello(hello) if !may_stay(play, &hello) => {
                        let code = ErrorCode::WrongCluster as u16;
                        ErrorFrame { code, closes: true, id: 0, text: "" }.encode(&mut out);
                    }
                    ToServer::ClientHello(hello) => {
                        assert!(hello.agent.starts_with("epicepoch-rust/"), "{}", hello.agent);
                        self.greet(play, &mut out);
                    }
                    ToServer::Pong(_) => has_pong = true,
                    ToServer::Request(request) => {
                        self.asked.lock().unwrap().push(request.count());
                        if self.play(play, request, nth, &mut kept, &mut out, &say).is_none() {
                            drop(say);
                            self.peers.lock().unwrap().clear();
                            // Earlier answers are still written.
                            return writing.await.ok()?;
                        }
                    }
                    ToServer::Ping(id) => {
                        out.extend(epicepoch_wire::native::message::pong(id));
                    }
                    other => panic!("{other:?}"),
                }
                if has_pong {
                    out.extend(kept.drain(..).flat_map(|request| self.answer(request)));
                }
                say.send(out).ok()?;
                if matches!(play, Play::WelcomeAndLeave | Play::WelcomeAndRefuse(_)) {
                    drop(say);
                    self.peers.lock().unwrap().clear();
                    return writing.await.ok()?;
                }
            }
            input.drain(..taken);
        }
        None
    }

    /// Appends the welcome, and what `play` sends behind it.
    fn greet(&self, play: Play, out: &mut Vec<u8>) {
        let mut welcome = self.welcome();
        if play == Play::WelcomeAndTell {
            welcome.leader = None;
        }
        welcome.encode(out);
        if play == Play::WelcomeAndTell {
            out.extend(self.leader_notice());
        }
        if play == Play::WelcomeAndLeave {
            out.extend(goodbye());
        }
        if let Play::WelcomeAndRefuse(code) = play {
            ErrorFrame { code: code as u16, closes: true, id: 0, text: "" }.encode(out);
        }
        if play == Play::WelcomeAndPing {
            out.extend(ping(7));
        }
    }

    /// Handles one request as `play` says. Returns `None` if the connection must be closed.
    fn play(
        &self,
        play: Play,
        request: Request,
        nth: u64,
        kept: &mut Vec<Request>,
        out: &mut Vec<u8>,
        say: &mpsc::UnboundedSender<Vec<u8>>,
    ) -> Option<()> {
        let later = |bytes: Vec<u8>, after: Duration| {
            let say = say.clone();
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                // The client may have closed the connection, so an error is ignored.
                let _ = say.send(bytes);
            });
        };
        let id = request.id;
        let refusal = |code: ErrorCode, out: &mut Vec<u8>| {
            ErrorFrame { code: code as u16, closes: false, id, text: "" }.encode(out);
        };
        match play {
            Play::Keep | Play::WelcomeAndPing => kept.push(request),
            Play::RefuseAndRelease(code) => {
                refusal(code, out);
                let answers = kept.drain(..).flat_map(|request| self.answer(request)).collect();
                later(answers, Duration::from_millis(5));
            }
            Play::RefuseAndTell(code) => {
                refusal(code, out);
                out.extend(self.leader_notice());
            }
            Play::RefuseAndLeave(code) => {
                refusal(code, out);
                out.extend(goodbye());
            }
            Play::LeadElsewhere if nth == 0 => {}
            Play::Late(after) if nth == 0 => later(self.answer(request).to_vec(), after),
            Play::LateRepeat(after) if nth == 0 => {
                later(request.answer(Timestamp::new(Epoch(8), EpochIndex(0))).to_vec(), after);
            }
            Play::Jitter => {
                let after = Duration::from_micros(match self.asked().len() % 8 {
                    0 => fastrand::u64(25_000..60_000),
                    1 => fastrand::u64(5_000..25_000),
                    _ => fastrand::u64(..2_000),
                });
                if fastrand::bool() {
                    later(self.answer(request).to_vec(), after);
                } else {
                    let (node, say) = (self.clone(), say.clone());
                    tokio::spawn(async move {
                        tokio::time::sleep(after).await;
                        let _ = say.send(node.answer(request).to_vec());
                    });
                }
            }
            Play::LeadElsewhere
            | Play::Late(_)
            | Play::LateRepeat(_)
            | Play::AnyName
            | Play::Lead => out.extend(self.answer(request)),
            Play::Refuse(code) => refusal(code, out),
            Play::HangUp | Play::WelcomeAndLeave | Play::WelcomeAndRefuse(_) => return None,
            Play::Silence | Play::Mute | Play::WelcomeAndTell => {}
        }
        Some(())
    }

    pub(crate) fn asked(&self) -> Vec<u64> {
        self.asked.lock().unwrap().clone()
    }

    /// Sends a leader notice to every connected client.
    pub(crate) fn announce_leader(&self) {
        let frame = self.leader_notice();
        // Closed connections are removed.
        self.peers.lock().unwrap().retain(|peer| peer.send(frame.clone()).is_ok());
    }

    fn leader_notice(&self) -> Vec<u8> {
        let addr = self.oracle.leader.lock().unwrap().expect("somebody leads");
        let mut frame = Vec::new();
        LeaderNotice { node: NodeId(u64::from(addr.port())), addr: &addr.to_string() }
            .encode(&mut frame);
        frame
    }

    /// Waits until this many requests have arrived.
    pub(crate) async fn until_asked(&self, requests: usize) {
        while self.asked().len() < requests {
            tokio::task::yield_now().await;
        }
    }
}

fn may_stay(play: Play, hello: &ClientHello) -> bool {
    play == Play::AnyName || ["", NAME].contains(&hello.cluster_name.as_str())
}
