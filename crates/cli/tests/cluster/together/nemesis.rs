//! A random sequence of faults hits links, processes, clocks and disks. In between, an operator
//! gives commands. All nodes are asked all the time, and every answer is checked. Every few seconds
//! all faults end, and the cluster must serve again. In another run, all requests accept a lease,
//! and the clocks of the leases run at different rates.
//!
//! The commands move leadership, change settings of the cluster, move the epoch ahead, and add,
//! promote and remove a spare node. The first spare node has the id 4. When it has been removed,
//! the next one has the id 5, because ids are never used again. Each command is carried out or
//! refused.
//!
//! `EPICEPOCH_NEMESIS_SECONDS` is the duration (a night: 28800). `EPICEPOCH_NEMESIS_SEED` selects
//! the sequence; without it, a seed is drawn and printed. The seed determines the faults, but not
//! which messages are under way when a fault begins.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use epicepoch_bench::Operation;
use epicepoch_link::{Cut, Fault, Party};
use serde_json::Value;

use crate::support::cluster::MEMBERS;
use crate::support::late::Late;
use crate::support::operator::{EXIT_REMOVED, named};
use crate::support::wire::Wire;
use crate::support::{
    Cluster, Faults, LinkedCluster, Node, WAIT_MAX, Watch, let_pass, say, wait_until,
};

/// Default duration.
const SECONDS: u64 = 14;
/// Time between two faults, ms.
const PAUSE_MS: std::ops::Range<u64> = 30..600;
/// Time between two repairs of everything.
const MENDED_EVERY: Duration = Duration::from_secs(6);
/// One watch collects answers for this long. Then the answers are checked, and another watch
/// begins.
const WATCH: Duration = Duration::from_mins(1);

/// Names and values of settings.
type Settings = &'static [(&'static str, &'static str)];

/// Leases that every request accepts.
const LEASES: Settings =
    &[("LEASE_CLOCK", "trusted"), ("LEASE_MS", "200"), ("GUARANTEE_DEFAULT", "lease")];
/// The rates of the clocks of the leases are wrong by at most so much. Leases allow for a ninth.
const LEASE_RATE_PPM_MAX: i64 = 110_000;

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value:?}")))
}

/// Of 100 random events, this many are an operator's commands. The others begin or end a fault.
const ORDERS_OF_100: u32 = 20;
/// Timeout of an operator's command.
const ORDER_LIMIT: &str = "1s";
/// Index of the spare node. The first members come before it.
const SPARE: usize = MEMBERS;
/// One run has at most this many spare nodes. Each spare node uses two listeners of the proxy for
/// good, and a proxy has at most 256.
const SPARES_MAX: u64 = 100;

/// This many connections to a paused node send requests just before the node is resumed.
const LATE_CONNECTIONS: usize = 4;
/// How long the test waits for the answers to requests that were sent to a paused node.
const LATE_LIMIT: Duration = Duration::from_secs(2);

/// The faults of a node.
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
#[derive(Clone, Copy, Debug, Default)]
struct Patient {
    is_down: bool,
    is_paused: bool,
    faults: Faults,
    /// The disk of the node has failed since the node started, so the node may exit.
    may_exit: bool,
    /// A command to remove the node was given. The node may be removed now or later, and then it
    /// exits.
    may_be_removed: bool,
    /// The node was removed and has exited.
    is_removed: bool,
}

struct Nemesis {
    cluster: LinkedCluster,
    /// The settings of every node.
    settings: Settings,
    patients: Vec<Patient>,
    random: fastrand::Rng,
    began: Instant,
    faults: u64,
    /// Number of operator's commands.
    orders: u64,
    /// Number of operator's commands that succeeded.
    orders_done: u64,
    /// Number of spare nodes so far.
    spares: u64,
    /// Connections to paused nodes.
    known: Vec<Vec<Wire>>,
    /// The requests that were sent to paused nodes, with their outcomes.
    late: Vec<Operation>,
}

impl Nemesis {
    fn record(&mut self, what: &str) {
        self.faults += 1;
        say(&format!("{:8.2} s  {what}", self.began.elapsed().as_secs_f64()));
    }

    /// Adds or removes a fault, or runs an operator's command.
    fn strike(&mut self) {
        self.collect();
        if self.random.u32(..100) < ORDERS_OF_100 {
            self.order();
            return;
        }
        let index = self.pick();
        let id = self.cluster.nodes[index].id;
        let patient = self.patients[index];
        if patient.is_removed {
            return;
        }
        match self.random.u32(..100) {
            0..10 => {
                self.cluster.set_outgoing(index, Fault::blackhole());
                self.cluster.set_incoming(index, Fault::blackhole());
                self.record(&format!("node {id} cut off from its peers silently"));
            }
            10..40 => self.strike_a_link(index),
            40..50 => {
                self.cluster.links.heal();
                self.record("links healed");
            }
            50..60 if patient.is_down => self.start(index),
            50..60 => {
                self.cluster.nodes[index].kill();
                self.patients[index] =
                    Patient { is_down: true, is_paused: false, may_exit: false, ..patient };
                self.record(&format!("node {id} killed"));
            }
            60..75 if patient.is_paused => self.resume(index),
            60..75 if !patient.is_down => {
                let addr = self.cluster.nodes[index].http();
                let open = || Wire::open(addr, LATE_LIMIT).ok();
                self.known[index] = (0..LATE_CONNECTIONS).filter_map(|_| open()).collect();
                // Only connections that work before the pause can be used later.
                self.known[index].retain_mut(|wire| wire.get("/up").is_ok());
                self.cluster.nodes[index].pause();
                self.patients[index].is_paused = true;
                self.record(&format!("node {id} paused"));
            }
            75..85 if self.has_leases() && self.random.bool() => {
                let lease_rate_ppm = self.lease_rate_ppm();
                let faults = Faults { lease_rate_ppm, ..patient.faults };
                let what = format!("node {id}: clocks of leases {lease_rate_ppm:+} ppm off");
                self.break_with(index, faults, &what);
            }
            75..85 => {
                let hours = self.random.i64(-2..3);
                let faults = Faults { wall_offset_ms: hours * 3_600_000, ..patient.faults };
                self.break_with(index, faults, &format!("node {id}: clock {hours:+} h off"));
            }
            85..95 => {
                let faults = Faults { fsync_hang: !patient.faults.fsync_hang, ..patient.faults };
                let what = if faults.fsync_hang { "hangs" } else { "goes on" };
                self.break_with(index, faults, &format!("node {id}: disk {what}"));
            }
            95..98 if !patient.is_down => {
                self.patients[index].may_exit = true;
                let faults = Faults { fsync_fail: true, ..patient.faults };
                self.break_with(index, faults, &format!("node {id}: disk fails"));
            }
            _ => {
                self.cluster.links.reset(self.cluster.party(index), Party::Client);
                for other in self.cluster.others(index) {
                    let (one, other) = (self.cluster.party(index), self.cluster.party(other));
                    self.cluster.links.reset(one, other);
                }
                self.record(&format!("node {id}: all connections reset"));
            }
        }
    }

    /// Runs a random operator's command while anything may be broken. The command succeeds, or is
    /// refused with a reason.
    fn order(&mut self) {
        let random = &mut self.random;
        let mut drawn = |range: std::ops::Range<u64>| random.u64(range);
        let spare = &self.cluster.nodes[SPARE];
        let id = spare.id.to_string();
        let order = match drawn(0..8) {
            0 => order(&["leader", "transfer"]),
            1 => order(&["leader", "transfer", "--to", &drawn(1..4).to_string()]),
            2 => order(&["member", "add", &named(spare)]),
            3 | 4 => order(&["member", "promote", &id]),
            5 if self.spares < SPARES_MAX => {
                self.patients[SPARE].may_be_removed = true;
                order(&["member", "remove", &id])
            }
            6 => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970");
                let to = now + Duration::from_millis(drawn(0..3_000));
                order(&["clock", "advance-to", &format!("{}ns", to.as_nanos()), "--yes"])
            }
            _ => {
                let mut set = |name, range| format!("{name}={}", drawn(range));
                let window = set("RESERVATION_MS", 800..3_000);
                let interval = set("EPOCH_INTERVAL_MS", 10..200);
                let bound = set("CLOCK_OFFSET_MAX_MS", 300..1_000);
                order(&["settings", "set", &window, &interval, &bound])
            }
        };
        self.give(&order);
    }

    /// Takes the next step with the spare node: adds, promotes or removes it. Nothing is broken at
    /// this time.
    fn advance_spare(&mut self) {
        let spare = &self.cluster.nodes[SPARE];
        let (name, number, id) = (named(spare), spare.id, spare.id.to_string());
        let Some(listed) = self.listed() else { return };
        let members = listed["members"].as_array().expect("members");
        let own = members.iter().find(|member| member["nodeID"] == number);
        let order = match own.and_then(|member| member["role"].as_str()) {
            None => order(&["member", "add", &name]),
            Some("learner") => order(&["member", "promote", &id, "--wait"]),
            Some("leader") => order(&["leader", "transfer"]),
            Some(_) if self.spares >= SPARES_MAX => return,
            Some(_) => {
                self.patients[SPARE].may_be_removed = true;
                order(&["member", "remove", &id])
            }
        };
        self.give(&order);
    }

    /// Returns the output of `member list`, if any node answers.
    fn listed(&self) -> Option<Value> {
        let output = self.cluster.operate(&["member", "list", "--output", "json"]);
        serde_json::from_slice(&output.stdout).ok()
    }

    fn give(&mut self, order: &[String]) {
        let mut words: Vec<&str> = order.iter().map(String::as_str).collect();
        words.extend(["--timeout", ORDER_LIMIT]);
        let output = self.cluster.operate(&words);
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let is_done = match output.status.code() {
            Some(0) => true,
            Some(1) => false,
            other => panic!("{order:?} ends with {other:?}: {why}"),
        };
        assert!(is_done || !why.is_empty(), "{order:?} is refused without a reason");
        self.orders += 1;
        self.orders_done += u64::from(is_done);
        let outcome = if is_done { "done" } else { why.lines().next().unwrap_or_default() };
        self.record(&format!("{}: {outcome}", order.join(" ")));
    }

    fn strike_a_link(&mut self, index: usize) {
        let ms = |random: &mut fastrand::Rng, max| Duration::from_millis(random.u64(..max));
        let random = &mut self.random;
        let fault = match random.u32(..9) {
            0..3 => Fault::blackhole(),
            3 => Fault::cut(Cut::Hold),
            4 => Fault::cut(Cut::Reset),
            5 => Fault::delay(ms(random, 300)),
            6 => Fault::jitter(ms(random, 300)),
            7 => Fault::bandwidth(random.usize(2_000..100_000)),
            _ => Fault::trickle(random.usize(1..64), Duration::from_millis(1)),
        };
        let mut others: Vec<Party> =
            self.cluster.others(index).into_iter().map(|it| self.cluster.party(it)).collect();
        others.push(Party::Client);
        let me = self.cluster.party(index);
        // The fault hits some of the node's links, each in one direction or in both.
        let mut struck = Vec::new();
        for other in others {
            let which = self.random.u32(..5);
            if which < 2 || which == 4 {
                self.cluster.links.set(me, other, fault);
            }
            if (1..3).contains(&which) || which == 4 {
                self.cluster.links.set(other, me, fault);
            }
            let arrow = ["->", "<->", "<-", "no", "<->"][which as usize];
            struck.push(format!("{arrow} {other:?}"));
        }
        let id = self.cluster.nodes[index].id;
        self.record(&format!("node {id} {}: {fault:?}", struck.join(", ")));
    }

    fn break_with(&mut self, index: usize, faults: Faults, what: &str) {
        self.patients[index].faults = faults;
        self.cluster.nodes[index].break_with(faults);
        self.record(what);
    }

    fn has_leases(&self) -> bool {
        !self.settings.is_empty()
    }

    /// Draws by how much the rate of a node's clocks of leases is wrong.
    fn lease_rate_ppm(&mut self) -> i64 {
        if self.has_leases() {
            self.random.i64(-LEASE_RATE_PPM_MAX..=LEASE_RATE_PPM_MAX)
        } else {
            0
        }
    }

    /// Ends the faults of a node. Only the rate of its clocks of leases stays wrong.
    fn repair(&mut self, index: usize) {
        let faults = Faults::lease_rate_ppm(self.lease_rate_ppm());
        self.cluster.nodes[index].break_with(faults);
        self.patients[index].faults = faults;
    }

    fn start(&mut self, index: usize) {
        self.cluster.nodes[index].start();
        self.patients[index].is_down = false;
        self.patients[index].may_exit = self.patients[index].faults.fsync_fail;
        let id = self.cluster.nodes[index].id;
        self.record(&format!("node {id} started"));
    }

    fn resume(&mut self, index: usize) {
        let id = self.cluster.nodes[index].id;
        let known = std::mem::take(&mut self.known[index]);
        let late: Vec<Late> = known.into_iter().map(|wire| Late::send(wire, 2)).collect();
        self.cluster.nodes[index].resume();
        self.patients[index].is_paused = false;
        self.record(&format!("node {id} goes on"));
        for it in late {
            it.collect(id, &mut self.late);
        }
    }

    /// Returns the leader in half of the cases, otherwise a random node.
    fn pick(&mut self) -> usize {
        let leader = self.cluster.nodes.iter().position(Node::is_leader);
        let any = self.random.usize(..self.patients.len());
        leader.filter(|_| self.random.bool()).unwrap_or(any)
    }

    /// Checks each node that has exited: a fault or its removal must be the reason.
    fn collect(&mut self) {
        for index in 0..self.patients.len() {
            let Some(status) = self.cluster.nodes[index].exit_status() else { continue };
            let (id, patient) = (self.cluster.nodes[index].id, self.patients[index]);
            if status.code() == Some(EXIT_REMOVED) && patient.may_be_removed {
                self.cluster.nodes[index].wait_for_exit(Duration::from_secs(1));
                self.patients[index] = Patient { is_removed: true, ..Patient::default() };
                self.known[index].clear();
                self.record(&format!("node {id} ended: it was removed"));
                continue;
            }
            assert!(patient.may_exit, "node {id} ended by itself, {status}, with {patient:?}");
            assert_eq!(status.code(), Some(1), "node {id}, whose disk failed");
            self.cluster.nodes[index].wait_for_exit(Duration::from_secs(1));
            self.patients[index].is_down = true;
            self.record(&format!("node {id} ended: its disk had failed"));
        }
    }

    /// Ends all faults, and waits until the cluster serves. Returns whether there is a new spare
    /// node.
    fn mend(&mut self, watch: &Watch) -> bool {
        self.cluster.links.heal();
        for index in 0..self.patients.len() {
            self.repair(index);
            if self.patients[index].is_paused {
                self.resume(index);
            }
        }
        // An fsync that was about to fail has failed by the end of this pause. So a node that exits
        // because of it is noticed below.
        let_pass(Duration::from_millis(50));
        self.collect();
        for index in 0..self.patients.len() {
            if self.patients[index].is_removed {
                continue;
            }
            if self.patients[index].is_down {
                self.start(index);
            } else if self.patients[index].may_exit {
                // The disk of this node has failed. The node may exit a moment later, or not at
                // all. So it is restarted.
                self.cluster.nodes[index].kill();
                self.start(index);
            }
            self.patients[index].may_exit = false;
        }
        let mended = Instant::now();
        wait_until("every member is ready", WAIT_MAX, || {
            self.collect();
            self.cluster.nodes[..MEMBERS].iter().all(Node::is_ready) && self.is_spare_settled()
        });
        watch.wait_for_service_since(mended);
        if self.has_leases() {
            wait_until("a lease proves an answer", WAIT_MAX, || {
                let name = "epicepoch_proofs_total{by=\"lease\"}";
                self.cluster.nodes.iter().any(|node| node.metric(name) > Some(0.0))
            });
        }
        self.record(&format!("all mended: serves within {:.2} s", mended.elapsed().as_secs_f64()));
        self.advance_spare();
        if !self.patients[SPARE].is_removed {
            return false;
        }
        self.cluster.drop_last();
        self.add_spare();
        true
    }

    /// Whether the spare node is in a state that lasts: it is ready, or is no member, or was
    /// removed and has ended.
    fn is_spare_settled(&self) -> bool {
        if self.patients[SPARE].is_removed || self.cluster.nodes[SPARE].is_ready() {
            return true;
        }
        let id = self.cluster.nodes[SPARE].id;
        let Some(listed) = self.listed() else { return false };
        let is_of = |name: &str, key: fn(&Value) -> Option<u64>| {
            let nodes = listed[name].as_array().expect("a list");
            nodes.iter().any(|node| key(node) == Some(id))
        };
        let is_removed = is_of("removed", Value::as_u64);
        !is_removed && !is_of("members", |member| member["nodeID"].as_u64())
    }

    /// Starts a new spare node with an id and links of its own. It is no member until a command
    /// adds it.
    fn add_spare(&mut self) {
        let id = (MEMBERS as u64) + 1 + self.spares;
        self.spares += 1;
        let index = self.cluster.add_joining(id);
        assert_eq!(index, SPARE, "behind the first members");
        for (name, value) in self.settings {
            self.cluster.nodes[SPARE].set(name, value);
        }
        self.patients.truncate(SPARE);
        self.known.truncate(SPARE);
        self.patients.push(Patient::default());
        self.known.push(Vec::new());
        self.repair(SPARE);
        self.start(SPARE);
    }
}

/// The arguments of an operator's command.
fn order(words: &[&str]) -> Vec<String> {
    words.iter().map(|it| (*it).to_owned()).collect()
}

#[test]
fn any_sequence_of_faults_costs_answers_but_never_order() {
    strike_at_random(&[]);
}

/// The clocks of the leases are wrong by up to 11 %, each by another rate.
#[test]
fn any_sequence_of_faults_costs_no_order_with_leases_on_clocks_of_different_rates() {
    strike_at_random(LEASES);
}

/// Runs a random sequence of faults, and checks every answer.
fn strike_at_random(settings: Settings) {
    let seed = setting("EPICEPOCH_NEMESIS_SEED").unwrap_or_else(|| fastrand::u64(..));
    let time = Duration::from_secs(setting("EPICEPOCH_NEMESIS_SECONDS").unwrap_or(SECONDS));
    say(&format!("nemesis: EPICEPOCH_NEMESIS_SEED={seed}, {time:?}, {settings:?}"));
    let cluster = LinkedCluster::start_of(Cluster::down(settings), seed);
    let mut nemesis = Nemesis {
        settings,
        patients: vec![Patient::default(); cluster.nodes.len()],
        known: cluster.nodes.iter().map(|_| Vec::new()).collect(),
        late: Vec::new(),
        cluster,
        random: fastrand::Rng::with_seed(seed),
        began: Instant::now(),
        faults: 0,
        orders: 0,
        orders_done: 0,
        spares: 0,
    };
    nemesis.add_spare();
    (0..MEMBERS).for_each(|index| nemesis.repair(index));
    let mut answers = 0;
    while nemesis.began.elapsed() < time {
        // Half of the requests go to the nodes directly, so that nodes that are cut off are asked,
        // too. The others go through the proxy, over bad links.
        let mut targets = nemesis.cluster.targets();
        targets.extend(nemesis.cluster.targets_behind_links());
        let watch = Watch::start_at(targets, 2);
        let watch_began = Instant::now();
        while nemesis.began.elapsed() < time && watch_began.elapsed() < WATCH {
            let mended = Instant::now();
            while mended.elapsed() < MENDED_EVERY {
                nemesis.strike();
                let pause = nemesis.random.u64(PAUSE_MS);
                let_pass(Duration::from_millis(pause));
            }
            if nemesis.mend(&watch) {
                // There is a new spare node. So another watch begins, which sends requests to that
                // node, too.
                break;
            }
        }
        let late = std::mem::take(&mut nemesis.late);
        answers += watch.finish_with(&late).report.answers();
    }
    if nemesis.patients[SPARE].may_be_removed || !nemesis.cluster.nodes[SPARE].is_ready() {
        // Either the spare node was never added, or its removal has begun. So the last check leaves
        // it out.
        nemesis.cluster.drop_last();
    }
    nemesis.cluster.assert_well();
    let links = &nemesis.cluster;
    say(&format!(
        "nemesis: seed {seed}, {} faults and repairs, {} of {} orders done, {} spare nodes, \
         {} connections reset, {} bytes lost, {answers} answers",
        nemesis.faults,
        nemesis.orders_done,
        nemesis.orders,
        nemesis.spares,
        links.resets(),
        links.bytes_lost(),
    ));
    // Few sequences lose no byte: none of their faults does, or only on links that were silent.
    let harm = links.bytes_lost() + links.resets();
    assert!(harm > 0 && nemesis.faults > 10 && answers > 0, "too few faults");
    assert!(nemesis.orders_done > 0, "no order was done");
}
