//! The commands of operators on a cluster of whole nodes: each answer, compared as a document, and
//! its effect.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epicepoch_core::state::FORMATS;
use epicepoch_link::unused_port;
use epicepoch_server::config::PeerTlsMode;
use epicepoch_server::consensus::{ConsensusError, Fatal};
use epicepoch_server::{Config, Node, RunError};
use epicepoch_wire::peer_hello::{LinkKind, Refusal, RefusalCode};
use epicepoch_wire::voter_status::Zone;
use epicepoch_wire::{ClusterId, NodeId};
use serde_json::{Value, json};

use crate::authorities::{CLUSTER, Fixture, Running, WAIT_MAX, get, stamp, wait_until};
use crate::intruders::{answer_of, hello};
use crate::lines;

/// Sends a request of an operator. Returns its status and its document, or its text if it has none.
fn ask(node: &Running, method: &str, path: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(node.node().http_addr()).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let head =
        "host: localhost\r\nepicepoch-admin: test\r\nconnection: close\r\ncontent-length: 0\r\n";
    write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or_else(|_| body.into()))
}

/// The document of a command that must succeed.
#[track_caller]
fn document(node: &Running, method: &str, path: &str) -> Value {
    let (status, document) = ask(node, method, path);
    assert_eq!(status, 200, "{path}: {document}");
    document
}

/// Repeats a command until it succeeds: it may have to wait for a node, for another change, or for
/// the leader to lead again.
fn in_time(node: &Running, method: &str, path: &str) -> Value {
    in_tries(node, method, path).1
}

/// Like [`in_time`], and counts the tries.
fn in_tries(node: &Running, method: &str, path: &str) -> (usize, Value) {
    let (mut tries, mut last) = (0, (0, Value::Null));
    wait_until(path, || {
        tries += 1;
        last = ask(node, method, path);
        last.0 == 200
    });
    (tries, last.1)
}

/// Waits until one of the nodes leads and serves, and returns its place in the list.
fn leading(nodes: &[Running]) -> usize {
    stamp(nodes);
    let mut found = None;
    wait_until("a leader", || {
        found = nodes.iter().position(|node| node.node().is_leader());
        found.is_some()
    });
    found.expect("a leader")
}

fn plain(fixture: &Fixture, node: u64, change: impl FnOnce(&mut Config)) -> Running {
    let mut config = fixture.config(node);
    config.links.tls = Some(PeerTlsMode::Off);
    change(&mut config);
    Running::of(Node::start(config).unwrap())
}

fn zone(name: &str) -> Option<Zone> {
    Zone::new(name)
}

fn entry(node: u64, addr: SocketAddr) -> Value {
    json!({"nodeID": node, "addr": addr.to_string()})
}

/// Waits until the members document is as expected, apart from what differs from run to run: term,
/// commit index and the ids of data directories.
fn await_members(leader: &Running, expected: &Value) {
    let start = Instant::now();
    loop {
        let mut document = document(leader, "GET", "/admin/members");
        for name in ["term", "committed"] {
            assert!(document[name].as_u64() >= Some(1), "{document}");
            document[name] = Value::Null;
        }
        let rows = document["members"].as_array_mut().expect("rows");
        for row in rows {
            let store = row["store"].take();
            let digits = store.as_str().unwrap_or_default();
            assert!(digits.len() == 32 && digits.bytes().all(|it| it.is_ascii_hexdigit()));
        }
        if document == *expected {
            return;
        }
        assert!(start.elapsed() < WAIT_MAX, "{document}\nis not\n{expected}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Of each member, by `/status` of a node: its id, whether it is heard, and how far it is behind.
fn progress(node: &Running) -> Vec<Value> {
    let status = document(node, "GET", "/status");
    let rows = status["members"].as_array().expect("rows").iter();
    rows.map(|row| json!([row["nodeID"], row["heard"], row["behind"]])).collect()
}

/// Nodes 1 and 2 found the cluster. Node 3 comes, and one of the others goes.
#[test]
fn members_come_and_go_as_operators_order() {
    lines::keep();
    let fixture = Fixture::new();
    let zones = ["east", "west"];
    let found = |node: u64| {
        plain(&fixture, node, |config| {
            config.peers.remove(&NodeId(3));
            config.placement.zone = zone(zones[node as usize - 1]);
        })
    };
    let mut nodes: Vec<_> = [1, 2].map(found).into_iter().collect();
    let at = leading(&nodes);
    let (leader, other) = (nodes.remove(at), nodes.remove(0));
    let (led, left) = (at as u64 + 1, 2 - at as u64);
    let third = plain(&fixture, 3, |config| {
        config.bootstrap = false;
        config.peers.clear();
        config.join = vec![fixture.raft[0].to_string(), fixture.raft[1].to_string()];
    });
    let row = |node: u64, running: &Running, role: &str| {
        json!({
            "nodeID": node,
            "addr": running.node().http_addr().to_string(),
            "raftAddr": fixture.raft[node as usize - 1].to_string(),
            "role": role,
            "behind": 0,
            "heard": true,
            "store": null,
            "zone": zones.get(node as usize - 1),
            "agreesOnZones": true,
            "formatMax": FORMATS.newest,
        })
    };
    let named = document(&leader, "GET", "/admin/members");
    let expected = |rows: Vec<Value>, removed: &[u64]| {
        let mut rows = rows;
        rows.sort_by_key(|row| row["nodeID"].as_u64());
        json!({
            "cluster": named["cluster"],
            "history": named["history"],
            "clusterName": CLUSTER,
            "leader": entry(led, leader.node().http_addr()),
            "term": null,
            "joint": false,
            "committed": null,
            "members": rows,
            "emptyZones": [],
            "format": FORMATS.newest,
            "formatWaitsFor": [],
            "removed": removed,
        })
    };
    let first = [row(led, &leader, "leader"), row(left, &other, "voter")];
    await_members(&leader, &expected(first.to_vec(), &[]));

    let addr = fixture.raft[2].to_string();
    let add = format!("/admin/members/add?id=3&raft_addr={addr}");
    let added =
        |already| json!({"changed": [{"nodeID": 3, "role": "learner"}], "already": already});
    let (tries, first_added) = in_tries(&leader, "POST", &add);
    assert_eq!(first_added, added(false));
    assert_eq!(in_time(&leader, "POST", &add), added(true));
    let logged = lines::lines_with(&["an operator changes the members", &addr]);
    let line = format!("INFO an operator changes the members steps=add 3 at {addr}");
    assert!(
        (1..=tries).contains(&logged.len()) && logged.iter().all(|it| *it == line),
        "{logged:?}"
    );
    let learner = row(3, &third, "learner");
    await_members(&leader, &expected([&first[..], &[learner]].concat(), &[]));

    // The leader shows how far the others are.
    let seen = |node| if node == led { json!([node, null, null]) } else { json!([node, true, 0]) };
    wait_until("progress", || progress(&leader) == [1, 2, 3].map(seen));
    let nothing = |node: u64| json!([node, null, null]);
    wait_until("no progress", || progress(&other) == [1, 2, 3].map(nothing));

    let promote = format!("/admin/members/promote?id=3&remove={left}");
    let changed = json!([{"nodeID": 3, "role": "voter"}, {"nodeID": left, "role": "removed"}]);
    let promoted = in_time(&leader, "POST", &promote);
    assert_eq!(promoted, json!({"changed": changed, "already": false}));
    let rows = vec![row(led, &leader, "leader"), row(3, &third, "voter")];
    await_members(&leader, &expected(rows, &[left]));
    // The others confirm the removal, so the removed node ends.
    match other.ended() {
        Err(RunError::Consensus(ConsensusError::Fatal(Fatal::Removed { node }))) => {
            assert_eq!(node, NodeId(left));
        }
        other => panic!("{other:?}"),
    }
    // It comes back with an empty directory.
    let mut stream = TcpStream::connect(fixture.raft[led as usize - 1]).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let empty = hello(LinkKind::Bootstrap, led);
    let answer = answer_of(&mut stream, ClusterId(0), left, &empty).unwrap();
    let (_, payload) = answer.expect("an answer");
    assert_eq!(Refusal::decode(&payload).unwrap().code, RefusalCode::Removed);
    leading(&[leader, third]);
}

const STAMP: &str = "/timestamp?format=json";

/// The high half of a timestamp: its epoch.
fn epoch_in(stamped: &Value) -> u64 {
    let hex = stamped["timestamps"][0]["hex"].as_str().or(stamped["hex"].as_str());
    u64::from_str_radix(&hex.unwrap_or_else(|| panic!("{stamped}"))[..16], 16).unwrap()
}

fn epoch_of(node: &Running) -> u64 {
    epoch_in(&in_time(node, "GET", STAMP))
}

/// Nodes 1 to 3. Only node 2 is in the zone "west".
fn three(fixture: &Fixture) -> [Running; 3] {
    [1, 2, 3].map(|node| {
        plain(fixture, node, |config| {
            config.placement.zone = zone("west").filter(|_| node == 2);
        })
    })
}

/// Waits until the replicated state has settings, in the newest format.
fn await_format(leader: &Running) {
    wait_until("settings", || {
        let settings = ask(leader, "GET", "/admin/settings").1;
        settings["format"] == FORMATS.newest && !settings["settings"].is_null()
    });
}

#[test]
fn leadership_and_settings_change_as_operators_order() {
    let fixture = Fixture::new();
    let nodes = three(&fixture);
    let addr = |node: u64| nodes[node as usize - 1].node().http_addr();
    let transfer = |from: u64, to: u64| {
        let start = Instant::now();
        let path = format!("/admin/leader/transfer?to={to}");
        let mut document = in_time(&nodes[from as usize - 1], "POST", &path);
        let took_ms = document["tookMs"].take().as_f64().expect("a number");
        let most_ms = start.elapsed().as_secs_f64() * 1e3;
        assert!((0.0..=most_ms).contains(&took_ms), "{took_ms} of {most_ms} ms");
        assert!(document["term"].take().as_u64() >= Some(1));
        document
    };
    let moved = |from: u64, to: u64, preferred: &[u64], already: bool| {
        json!({
            "leader": entry(to, addr(to)),
            "previousLeader": entry(from, addr(from)),
            "term": null,
            "tookMs": null,
            "preferred": preferred,
            "already": already,
        })
    };
    let first = leading(&nodes) as u64 + 1;
    assert_eq!(transfer(first, 2), moved(first, 2, &[], first == 2));
    leading(&nodes);
    let leader = &nodes[1];

    await_format(leader);
    let mut set =
        in_time(leader, "POST", "/admin/settings/set?MAX_N=10&LEADER_ZONES=west,north&force=1");
    assert_eq!(set["settings"]["MAX_N"], "10", "{set}");
    assert_eq!(set["settings"]["LEADER_ZONES"], "west,north");
    let fields = set.as_object_mut().expect("a document");
    assert_eq!(fields.remove("emptyZones"), Some(json!(["north"])));
    fields.remove("unplacedVoters").expect("a list");
    assert_eq!(set, document(leader, "GET", "/admin/settings"));
    assert_eq!(ask(leader, "GET", "/timestamp?n=11&format=json").0, 400);
    assert_eq!(ask(leader, "GET", "/timestamp?n=10&format=json").0, 200);

    // Node 2 alone is in the best zone, so it is preferred to every other leader.
    let start = Instant::now();
    assert_eq!(transfer(2, 3), moved(2, 3, &[2], false));
    assert_eq!(leading(&nodes), 2);
    let leads_ms = document(&nodes[2], "GET", "/status")["leaderForMs"].as_f64();
    let most_ms = start.elapsed().as_secs_f64() * 1e3;
    assert!(leads_ms.is_some_and(|it| it <= most_ms), "{leads_ms:?} of {most_ms} ms");
    // The new leader first has to hear the zone of node 2.
    wait_until("the zone of node 2", || transfer(3, 3) == moved(3, 3, &[2], true));
    wait_until("node 1 leads", || {
        nodes[2].node().transfer_leader_to(NodeId(1));
        nodes[0].node().is_leader()
    });
}

/// The documents of each node's clock, when the epoch of leader `led` is above `to`.
fn check_clocks(nodes: &[Running; 3], led: u64, to: u64) {
    for (node, running) in (1..).zip(nodes) {
        let peers: Vec<_> = (1..=3).filter(|it| *it != node).collect();
        let asked = |clock: &Value, name: &str| {
            let rows = clock[name].as_array().expect("rows").iter();
            rows.filter_map(|row| row["nodeID"].as_u64()).collect::<Vec<_>>()
        };
        wait_until("the clocks of the peers", || {
            let clock = document(running, "GET", "/admin/clock");
            ["peers", "roundTrips"].iter().all(|name| asked(&clock, name) == peers)
        });
        let clock = document(running, "GET", "/admin/clock");
        let leads = node == led;
        assert_eq!((&clock["nodeID"], &clock["leads"]), (&json!(node), &json!(leads)));
        let epoch = clock["epoch"].as_str().map(|it| it.parse::<u64>().unwrap());
        assert_eq!(epoch.is_some_and(|it| it > to), leads, "{clock}");
        assert_eq!(clock["lagMs"].as_f64().is_some_and(|it| it < 0.0), leads, "{clock}");
    }
}

#[test]
fn the_epoch_advances_as_an_operator_orders() {
    lines::keep();
    let fixture = Fixture::new();
    let nodes = three(&fixture);
    let led = leading(&nodes);
    let leader = &nodes[led];
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now_ns = since.as_nanos() as u64;
    let to = now_ns + 60_000_000_000;
    let number = |value: &mut Value| value.take().as_str().and_then(|it| it.parse::<u64>().ok());
    let checked = |mut document: Value| {
        let ceiling = number(&mut document["ceiling"]).expect("a number");
        let after = number(&mut document["ceilingAfter"]).expect("a number");
        assert!(after >= ceiling && after >= to, "{ceiling}, then {after}");
        let ahead_ms = document["aheadMs"].take().as_f64().expect("a number");
        assert!((1_000.0..=61_000.0).contains(&ahead_ms), "{ahead_ms}");
        document
    };
    let planned = json!({
        "to": to.to_string(),
        "ceiling": null,
        "ceilingAfter": null,
        "aheadMs": null,
        "already": false,
    });
    let logged = |text: &str, epoch: u64| lines::lines_with(&[text, &epoch.to_string()]).len();
    let plan = format!("/admin/clock/plan?to={to}");
    assert_eq!(checked(document(leader, "GET", &plan)), planned);
    assert_eq!(logged("an operator moves the epoch", to), 0, "a plan moves nothing");
    let (tries, mut done) = in_tries(leader, "POST", &format!("/admin/clock/advance?to={to}"));
    let took_ms = done.as_object_mut().and_then(|it| it.remove("tookMs"));
    assert!(took_ms.is_some_and(|it| it.as_f64() > Some(0.0)));
    assert_eq!(checked(done), planned);
    assert!((1..=tries).contains(&logged("an operator moves the epoch", to)));
    assert_eq!(logged("an operator has moved the epoch", to), 1);
    assert!(epoch_of(leader) > to);
    // A time that has passed needs no move.
    let past = now_ns - 10_000_000_000;
    let already = in_time(leader, "POST", &format!("/admin/clock/advance?to={past}"));
    assert_eq!(already["already"], true, "{already}");
    assert_eq!(logged("an operator moves the epoch", past), 0);
    check_clocks(&nodes, led as u64 + 1, to);
}

/// A handover that the machine has delayed is repeated, this often at most.
const HANDOVERS_MAX: usize = 10;

/// Hands leadership over while a client asks the old leader all the time. Returns the epochs of the
/// old leader's last answer and of the new leader's first one; `None` if leadership stayed.
fn hand_over(nodes: &[Running; 3], from: usize, to: usize) -> Option<(u64, u64)> {
    let path = format!("/admin/leader/transfer?to={}", to + 1);
    let mut last = epoch_of(&nodes[from]);
    let status = std::thread::scope(|scope| {
        let order = scope.spawn(|| ask(&nodes[from], "POST", &path).0);
        while !order.is_finished() {
            let (status, stamped) = ask(&nodes[from], "GET", STAMP);
            last = if status == 200 { epoch_in(&stamped) } else { last };
        }
        order.join().unwrap()
    });
    (status == 200).then(|| (last, epoch_of(&nodes[to])))
}

/// The old leader gives back its range from its last epoch on. Without this, the next leader would
/// begin behind the end of that range. If the old leader answered after that, the next leader would
/// answer with the same epoch.
#[test]
fn after_a_planned_handover_epochs_go_on_behind_the_last_one_of_the_old_leader() {
    let fixture = Fixture::new();
    let nodes = three(&fixture);
    let leader = &nodes[leading(&nodes)];
    await_format(leader);
    // Ten minutes ahead of every clock, the next epoch is the last one plus one.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ahead = (since + Duration::from_mins(10)).as_nanos();
    in_time(leader, "POST", &format!("/admin/clock/advance?to={ahead}"));
    let goes_on = (0..HANDOVERS_MAX).any(|_| {
        let from = leading(&nodes);
        let Some((last, first)) = hand_over(&nodes, from, (from + 1) % 3) else { return false };
        assert!(first > last, "{first} is not above {last}");
        // A leader whose disk or successor is slow gives nothing back, so there may be a gap.
        first == last + 1
    });
    assert!(goes_on, "a gap after each of {HANDOVERS_MAX} handovers");
}

#[test]
fn a_member_that_restarts_at_another_address_is_reached_there() {
    lines::keep();
    let mut fixture = Fixture::new();
    let mut nodes: Vec<_> =
        [1, 2, 3].map(|node| plain(&fixture, node, |_| ())).into_iter().collect();
    leading(&nodes);
    drop(nodes.remove(2));
    let before =
        std::mem::replace(&mut fixture.raft[2], SocketAddr::from(([127, 0, 0, 1], unused_port())));
    let after = fixture.raft[2].to_string();
    nodes.push(plain(&fixture, 3, |_| ()));
    let is_ready = || get(nodes[2].node().http_addr(), "/ready").0 == 200;
    wait_until("node 3 follows", is_ready);
    wait_until("its new address", || {
        let leader = &nodes[leading(&nodes)];
        let members = ask(leader, "GET", "/admin/members").1;
        members["members"][2]["raftAddr"] == *after
    });
    wait_until("a log line", || {
        let fields = format!("before={before} after={after}");
        !lines::lines_with(&["a member has another address member=3", &fields]).is_empty()
    });
}
