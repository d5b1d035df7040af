//! Everything at once: a random sequence of faults on links, processes, clocks and disks, while all
//! nodes are driven and every answer is checked. From time to time everything is mended, and the
//! cluster must serve again.
//!
//! `EPICEPOCH_NEMESIS_SECONDS` says how long (a night: 28800), `EPICEPOCH_NEMESIS_SEED` which
//! sequence; it is drawn and printed otherwise. The sequence is the seed's; when exactly each fault
//! meets which message is not, and cannot be replayed.

use std::time::{Duration, Instant};

use epicepoch_bench::Operation;
use epicepoch_link::{Cut, Fault, Party};

use crate::support::late::Late;
use crate::support::wire::Wire;
use crate::support::{Faults, LinkedCluster, Node, Watch, let_pass, say};

/// How long without a setting.
const SECONDS: u64 = 20;
/// Between two faults.
const PAUSE_MS: std::ops::Range<u64> = 30..600;
/// Between two moments at which all is mended.
const MENDED_EVERY: Duration = Duration::from_secs(6);
/// Answers that are held for checking before a watch is settled and another begins.
const WATCH: Duration = Duration::from_mins(1);

fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value:?}")))
}

/// Connections to a node that is paused, over which it is asked just before it goes on.
const LATE_CONNECTIONS: usize = 4;
/// How long an answer to those is waited for.
const LATE_LIMIT: Duration = Duration::from_secs(2);

/// What is wrong with a node now.
#[derive(Clone, Copy, Debug, Default)]
struct Patient {
    is_down: bool,
    is_paused: bool,
    faults: Faults,
    /// Its disk has failed since it was started: it may end by itself.
    may_exit: bool,
}

struct Nemesis {
    cluster: LinkedCluster,
    patients: Vec<Patient>,
    random: fastrand::Rng,
    began: Instant,
    faults: u64,
    /// Open to nodes that are paused.
    known: Vec<Vec<Wire>>,
    /// What was asked of nodes while they were paused.
    late: Vec<Operation>,
}

impl Nemesis {
    fn tell(&mut self, what: &str) {
        self.faults += 1;
        say(&format!("{:8.2} s  {what}", self.began.elapsed().as_secs_f64()));
    }

    /// One more fault, or one less.
    fn strike(&mut self) {
        self.collect();
        let index = self.pick();
        let id = self.cluster.nodes[index].id;
        let patient = self.patients[index];
        match self.random.u32(..100) {
            0..10 => {
                self.cluster.set_outgoing(index, Fault::blackhole());
                self.cluster.set_incoming(index, Fault::blackhole());
                self.tell(&format!("node {id} cut off from its peers silently"));
            }
            10..40 => self.strike_a_link(index),
            40..50 => {
                self.cluster.links.heal();
                self.tell("links healed");
            }
            50..60 if patient.is_down => self.start(index),
            50..60 => {
                self.cluster.nodes[index].kill();
                self.patients[index] =
                    Patient { is_down: true, faults: patient.faults, ..Patient::default() };
                self.tell(&format!("node {id} killed"));
            }
            60..75 if patient.is_paused => self.resume(index),
            60..75 if !patient.is_down => {
                let addr = self.cluster.nodes[index].http();
                let open = || Wire::open(addr, LATE_LIMIT).ok();
                self.known[index] = (0..LATE_CONNECTIONS).filter_map(|_| open()).collect();
                // Whoever does not answer here is of no use later.
                self.known[index].retain_mut(|wire| wire.get("/up").is_ok());
                self.cluster.nodes[index].pause();
                self.patients[index].is_paused = true;
                self.tell(&format!("node {id} paused"));
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
                self.tell(&format!("node {id}: all connections reset"));
            }
        }
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
        // Some of its links, each in one direction or in both.
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
        self.tell(&format!("node {id} {}: {fault:?}", struck.join(", ")));
    }

    fn break_with(&mut self, index: usize, faults: Faults, what: &str) {
        self.patients[index].faults = faults;
        self.cluster.nodes[index].break_with(faults);
        self.tell(what);
    }

    fn start(&mut self, index: usize) {
        self.cluster.nodes[index].start();
        self.patients[index].is_down = false;
        self.patients[index].may_exit = self.patients[index].faults.fsync_fail;
        let id = self.cluster.nodes[index].id;
        self.tell(&format!("node {id} started"));
    }

    fn resume(&mut self, index: usize) {
        let id = self.cluster.nodes[index].id;
        let known = std::mem::take(&mut self.known[index]);
        let late: Vec<Late> = known.into_iter().map(|wire| Late::send(wire, 2)).collect();
        self.cluster.nodes[index].resume();
        self.patients[index].is_paused = false;
        self.tell(&format!("node {id} goes on"));
        for it in late {
            it.collect(id, &mut self.late);
        }
    }

    /// The leader, as often as not.
    fn pick(&mut self) -> usize {
        let leader = self.cluster.nodes.iter().position(Node::is_leader);
        let any = self.random.usize(..self.patients.len());
        leader.filter(|_| self.random.bool()).unwrap_or(any)
    }

    /// A node that ended by itself must have had a reason to.
    fn collect(&mut self) {
        for index in 0..self.patients.len() {
            let Some(status) = self.cluster.nodes[index].exit_status() else { continue };
            let (id, patient) = (self.cluster.nodes[index].id, self.patients[index]);
            assert!(patient.may_exit, "node {id} ended by itself, {status}, with {patient:?}");
            assert_eq!(status.code(), Some(1), "node {id}, whose disk failed");
            self.cluster.nodes[index].wait_for_exit(Duration::from_secs(1));
            self.patients[index].is_down = true;
            self.tell(&format!("node {id} ended: its disk had failed"));
        }
    }

    /// Mends everything; then the cluster must serve.
    fn mend(&mut self, watch: &Watch) {
        self.cluster.links.heal();
        for index in 0..self.patients.len() {
            self.cluster.nodes[index].break_with(Faults::NONE);
            self.patients[index].faults = Faults::NONE;
            if self.patients[index].is_paused {
                self.resume(index);
            }
        }
        // A sync that was about to fail does so within an interval of the fault's file.
        let_pass(Duration::from_millis(50));
        self.collect();
        for index in 0..self.patients.len() {
            if self.patients[index].is_down {
                self.start(index);
            } else if self.patients[index].may_exit {
                // It may end a moment later, or not at all: it is started afresh.
                self.cluster.nodes[index].kill();
                self.start(index);
            }
            self.patients[index].may_exit = false;
        }
        let mended = Instant::now();
        self.cluster.wait_until_ready();
        watch.wait_for_service_since(mended);
        self.tell(&format!("all mended: serves within {:.2} s", mended.elapsed().as_secs_f64()));
    }
}

#[test]
fn any_sequence_of_faults_costs_answers_and_never_order() {
    let seed = setting("EPICEPOCH_NEMESIS_SEED").unwrap_or_else(|| fastrand::u64(..));
    let time = Duration::from_secs(setting("EPICEPOCH_NEMESIS_SECONDS").unwrap_or(SECONDS));
    say(&format!("nemesis: EPICEPOCH_NEMESIS_SEED={seed}, {time:?}"));
    let cluster = LinkedCluster::start(seed);
    let mut nemesis = Nemesis {
        patients: vec![Patient::default(); cluster.nodes.len()],
        known: cluster.nodes.iter().map(|_| Vec::new()).collect(),
        late: Vec::new(),
        cluster,
        random: fastrand::Rng::with_seed(seed),
        began: Instant::now(),
        faults: 0,
    };
    let mut answers = 0;
    while nemesis.began.elapsed() < time {
        // Directly, so that who is cut off from its peers is asked; and through bad links.
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
            nemesis.mend(&watch);
        }
        let late = std::mem::take(&mut nemesis.late);
        answers += watch.finish_with(&late).report.answers;
    }
    nemesis.cluster.assert_well();
    let links = &nemesis.cluster;
    say(&format!(
        "nemesis: seed {seed}, {} faults and repairs, {} connections reset, {} bytes lost, \
         {answers} answers",
        nemesis.faults,
        links.resets(),
        links.bytes_lost(),
    ));
    assert!(links.bytes_lost() > 0 && nemesis.faults > 10 && answers > 0, "a tame sequence");
}
