//! A restore is refused while a member of the old history may still run.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::slice::from_ref;
use std::sync::mpsc;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epicepoch_server::config::PeerTlsMode;
use epicepoch_server::consensus::ConsensusError;
use epicepoch_server::{Config, Node, RunError};
use epicepoch_wire::backup::Backup;
use epicepoch_wire::bootstrap::Member;
use epicepoch_wire::peer_hello::RefusalCode;
use epicepoch_wire::{ClusterId, Epoch, HistoryId, LogIndex, NodeId, StoreId};

use crate::authorities::{CLUSTER, Fixture, Running, WAIT_MAX, get, wait_until, write};
use crate::founding::Question;
use crate::lines;

/// A backup of a cluster whose members were at these addresses.
fn backup(fixture: &Fixture, addrs: &[String]) -> PathBuf {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let taken_ns = since.as_nanos() as u64;
    let member = |(node, addr): (u64, &String)| Member {
        node: NodeId(node),
        store: StoreId(u128::from(node)),
        raft_addr: addr.clone(),
        client_addr: "127.0.0.1:1".to_owned(),
    };
    let backup = Backup {
        name: CLUSTER.to_owned(),
        cluster: ClusterId(5),
        history: HistoryId(6),
        index: LogIndex(7),
        ceiling: Epoch(taken_ns),
        taken_ns,
        reservation_ms: 5000,
        clock_offset_max_ms: 500,
        lease_longest_ms: 0,
        settings: None,
        removed: vec![],
        members: (11..).zip(addrs).map(member).collect(),
    };
    let path = fixture.path("a.backup");
    write(&path, &backup.text());
    path
}

/// The founder of a cluster of one, which restores from a backup of members at these addresses.
fn founder(fixture: &Fixture, addrs: &[String]) -> Config {
    let mut config = fixture.config(1);
    config.peers = [(NodeId(1), config.raft_addr.clone())].into();
    (config.restore, config.restore_lease) = (Some(backup(fixture, addrs)), Duration::ZERO);
    config
}

/// Waits until the founder ends, and returns its error.
fn ended(config: Config) -> ConsensusError {
    let node = Node::start(config).unwrap();
    let (ended, end) = mpsc::channel();
    spawn(move || ended.send(node.wait()));
    match end.recv_timeout(WAIT_MAX).expect("the founder ends") {
        Err(RunError::Consensus(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Returns the address of the member that may still run, and its answer.
fn refused(config: Config) -> (String, String) {
    match ended(config) {
        ConsensusError::OldHistoryRuns { addr, said } => (addr, said),
        other => panic!("{other:?}"),
    }
}

fn plain(mut config: Config) -> Config {
    config.links.tls = Some(PeerTlsMode::Off);
    config
}

fn serves(config: Config) -> Running {
    let running = Running::of(Node::start(config).unwrap());
    wait_until("it serves", || get(running.node().http_addr(), "/timestamp?format=json").0 == 200);
    running
}

/// The restore is refused.
#[test]
fn a_silent_process_that_accepts_connections_may_be_a_paused_node() {
    let fixture = Fixture::new();
    // The listener accepts and never answers. A stopped process looks the same, because the system
    // accepts connections for it.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let there = silent.local_addr().unwrap().to_string();
    for config in [founder(&fixture, from_ref(&there)), plain(founder(&fixture, from_ref(&there)))]
    {
        let (addr, said) = refused(config);
        assert_eq!(addr, there);
        assert!(said.contains("no answer"), "{said}");
    }
    // Now no process listens at the address.
    drop(silent);
    let _running = serves(plain(founder(&fixture, &[there])));
}

/// The founder uses plain text and the old member uses TLS, or the reverse. The restore is refused.
#[test]
fn an_old_member_runs_even_if_only_one_side_uses_tls() {
    let fixture = Fixture::new();
    let mut old = fixture.config(2);
    old.peers = [(NodeId(2), old.raft_addr.clone())].into();
    let there = old.raft_addr.clone();
    // The member requires TLS and the founder speaks plain text; then the other way round.
    let secured = serves(old.clone());
    let (addr, said) = refused(plain(founder(&fixture, from_ref(&there))));
    assert_eq!(addr, there, "{said}");
    drop(secured);
    let _unsecured = serves(plain(old));
    let (addr, said) = refused(founder(&fixture, from_ref(&there)));
    assert_eq!(addr, there, "{said}");
}

/// The restore is refused.
#[test]
fn a_member_that_comes_back_while_the_founder_waits_for_leases_is_found() {
    let fixture = Fixture::new();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let there = port.local_addr().unwrap().to_string();
    let mut config = plain(founder(&fixture, from_ref(&there)));
    config.restore_lease = Duration::from_millis(100);
    let playing = spawn(move || {
        Question::at(&port).refuse(RefusalCode::NotBootstrapped);
        Question::at(&port).refuse(RefusalCode::UnknownNode);
    });
    let (addr, said) = refused(config);
    assert_eq!((addr, &*said), (there, "no"));
    playing.join().unwrap();
}

/// The restore is refused.
#[test]
fn a_member_that_restarts_still_counts_as_running() {
    let fixture = Fixture::new();
    let freed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let started = spawn(move || {
        sleep(Duration::from_millis(1_500));
        TcpListener::bind(freed).unwrap()
    });
    let there = freed.to_string();
    let (addr, said) = refused(plain(founder(&fixture, from_ref(&there))));
    assert_eq!(addr, there, "{said}");
    drop(started.join().unwrap());
}

/// If the names of a majority do not resolve, the founder's resolver is probably broken, and that
/// majority may still give timestamps. The error names all of them.
#[test]
fn a_founder_that_is_cut_off_from_a_majority_of_the_old_members_founds_nothing() {
    lines::keep();
    let fixture = Fixture::new();
    let nowhere = ["a.invalid:1".to_owned(), "b.invalid:1".to_owned()];
    let asked = Instant::now();
    match ended(plain(founder(&fixture, &nowhere))) {
        ConsensusError::CutOff { members } => {
            assert!(nowhere.iter().all(|addr| members.contains(addr)), "{members}");
        }
        other => panic!("{other:?}"),
    }
    assert!(asked.elapsed() >= Duration::from_secs(3), "{:?}", asked.elapsed());
    let freed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let [one, _] = nowhere;
    let _running = serves(plain(founder(&fixture, &[one.clone(), freed.to_string()])));
    // The operator reads which member could not be asked.
    let warned = lines::lines_with(&["WARN a member of the old history cannot be asked", &one]);
    assert!(!warned.is_empty());
}

#[test]
fn the_founders_own_address_in_another_spelling_is_not_an_old_member() {
    let fixture = Fixture::new();
    let spelled = format!("localhost:{}", fixture.raft[0].port());
    let _running = serves(founder(&fixture, &[spelled]));
}

/// It belongs to another cluster, or to none.
#[test]
fn a_node_that_holds_nothing_of_the_old_history_does_not_prevent_the_new_one() {
    let fixture = Fixture::new();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let there = port.local_addr().unwrap().to_string();
    let codes = [RefusalCode::WrongClusterName, RefusalCode::NotBootstrapped];
    spawn(move || codes.map(|code| Question::at(&port).refuse(code)));
    for directory in ["one", "other"] {
        let mut config = plain(founder(&fixture, from_ref(&there)));
        config.data_dir = fixture.path(directory);
        drop(serves(config));
    }
}

#[test]
fn a_process_that_does_not_identify_itself_is_asked_three_times() {
    let fixture = Fixture::new();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let there = port.local_addr().unwrap().to_string();
    let (accepted, connections) = mpsc::channel();
    spawn(move || {
        for connection in port.incoming() {
            // The connection ends at once.
            let _ended = accepted.send(connection.is_ok());
        }
    });
    let (addr, said) = refused(plain(founder(&fixture, from_ref(&there))));
    assert_eq!(addr, there, "{said}");
    assert_eq!(connections.try_iter().collect::<Vec<_>>(), [true; 3]);
}
