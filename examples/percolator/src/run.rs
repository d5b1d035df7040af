//! Runs the whole example: the oracle, stores, clients in Rust and Go. Leaders and clients are
//! killed meanwhile.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, ensure};
use epicepoch_conformance::cluster::Cluster;

use crate::bank::Bank;
use crate::checker::Evidence;
use crate::history;
use crate::network::{Network, Work};
use crate::plant::Plant;
use crate::process::{Process, start_store};
use crate::transaction::LOCK_TTL;
use crate::world::WorldError;

#[derive(Clone, Debug)]
pub struct Settings {
    pub seconds: u64,
    pub stores: usize,
    pub clients: usize,
    pub threads: usize,
    pub bank: Bank,
    /// Seed of random choices. Runs with the same seed still differ, because they use real
    /// processes.
    pub seed: u64,
    pub plant: Option<Plant>,
    /// The `epicepoch` binary.
    pub oracle: PathBuf,
    /// The Go client, if it could be built.
    pub go_client: Option<PathBuf>,
    pub own: PathBuf,
    pub dir: PathBuf,
}

#[derive(Debug)]
pub struct RunResult {
    pub evidence: Evidence,
    /// For each killed leader, the time until another node led.
    pub leaders_killed: Vec<Duration>,
    pub clients_killed: u64,
    pub took: Duration,
}

/// Runs everything.
pub fn run(settings: &Settings) -> Result<RunResult> {
    let mut rng = fastrand::Rng::with_seed(settings.seed);
    let oracle = Cluster::start(&settings.oracle).map_err(Error::msg)?;
    let stores = (0..settings.stores)
        .map(|_| start_store(&mut own(settings, "store")))
        .collect::<Result<Vec<_>>>()?;
    let (_stores, addrs): (Vec<Process>, Vec<String>) = stores.into_iter().unzip();
    let work = Work {
        name: "bank".to_owned(),
        stores: addrs,
        oracle: oracle.addrs().iter().map(ToString::to_string).collect(),
        threads: 1,
        bank: settings.bank,
        seed: rng.u64(..),
        plant: settings.plant,
    };
    let mut clients =
        Clients { settings, work: &work, processes: Vec::new(), histories: Vec::new() };
    let log = File::create(clients.history("bank")?)?;
    let mut world = Network::worlds(&work, log)?.pop().context("one thread has one world")?;
    settings.bank.load(&mut world)?;
    let (stop, stopped) = channel::<()>();
    let nemesis = thread::spawn(move || kill_leaders(oracle, &stopped));
    let worked = clients.work(&mut rng);
    // Stop the thread that kills leaders, also after an error. Otherwise nodes would keep running.
    drop(stop);
    let (oracle, leaders_killed) =
        nemesis.join().map_err(|_| anyhow!("the nemesis panicked"))?.map_err(Error::msg)?;
    let (clients_killed, took) = worked?;
    let mut evidence = Evidence { total: settings.bank.total(), ..Evidence::default() };
    evidence.rows = conclude(settings.bank, &mut world)?;
    drop(oracle);
    for path in &clients.histories {
        evidence.add(history::read(path)?);
    }
    Ok(RunResult { evidence, leaders_killed, clients_killed, took })
}

/// Client processes and their histories.
struct Clients<'a> {
    settings: &'a Settings,
    work: &'a Work,
    processes: Vec<Process>,
    histories: Vec<PathBuf>,
}

impl Clients<'_> {
    /// Starts the clients. From time to time, kills one client and starts another. Returns how many
    /// were killed, and how long the work took.
    fn work(&mut self, rng: &mut fastrand::Rng) -> Result<(u64, Duration)> {
        let began = Instant::now();
        let places = self.settings.clients + usize::from(self.settings.go_client.is_some());
        for at in 0..places {
            let process = self.start(at, 0, rng.u64(..))?;
            self.processes.push(process);
        }
        let deadline = began + Duration::from_secs(self.settings.seconds);
        let mut killed = 0;
        while Instant::now() + CLIENT_LIFE < deadline {
            thread::sleep(CLIENT_LIFE.mul_f64(0.5 + rng.f64()));
            killed += 1;
            let at = rng.usize(0..places);
            // The new client starts first, so that clients are always running.
            let next = self.start(at, killed, rng.u64(..))?;
            std::mem::replace(&mut self.processes[at], next).kill()?;
        }
        thread::sleep(deadline.saturating_duration_since(Instant::now()));
        let took = began.elapsed();
        self.processes.drain(..).try_for_each(Process::end)?;
        Ok((killed, took))
    }

    fn start(&mut self, at: usize, life: u64, seed: u64) -> Result<Process> {
        let (name, mut command) = match &self.settings.go_client {
            Some(binary) if at == self.settings.clients => {
                (format!("go-{life}"), Command::new(binary))
            }
            _ => (format!("rust-{at}-{life}"), own(self.settings, "client")),
        };
        let Work { stores, oracle, bank, .. } = self.work;
        command.args([
            "--name",
            &name,
            "--stores",
            &stores.join(","),
            "--oracle",
            &oracle.join(","),
        ]);
        command.args(["--threads", &self.settings.threads.to_string()]);
        command.args(["--accounts", &bank.accounts.to_string()]);
        command.args(["--pairs", &bank.pairs.to_string(), "--seed", &seed.to_string()]);
        command.arg("--history").arg(self.history(&name)?);
        command.stdin(Stdio::piped());
        Process::start_logged(&name, &mut command, &self.settings.dir)
    }

    /// Makes an empty history file. A client may be killed before it would make the file itself.
    fn history(&mut self, name: &str) -> Result<PathBuf> {
        let path = self.settings.dir.join(format!("{name}.jsonl"));
        File::create(&path)?;
        self.histories.push(path.clone());
        Ok(path)
    }
}

/// Kills leaders until `stopped` is signalled. Starts each killed node again, so all nodes run at
/// the end. Returns, for each killed leader, the time until another node led.
fn kill_leaders(
    mut oracle: Cluster,
    stopped: &Receiver<()>,
) -> Result<(Cluster, Vec<Duration>), String> {
    let mut killed = Vec::new();
    while stopped.recv_timeout(LEADER_LIFE) == Err(RecvTimeoutError::Timeout) {
        let leader = oracle.leader()?;
        let from = Instant::now();
        oracle.kill(leader)?;
        oracle.leader()?;
        killed.push(from.elapsed());
        oracle.restart(leader)?;
        oracle.wait_until_ready()?;
    }
    Ok((oracle, killed))
}

/// Waits until all remaining locks have expired, then reads every row, which resolves them.
fn conclude(bank: Bank, world: &mut Network) -> Result<Vec<crate::protocol::Row>> {
    thread::sleep(LOCK_TTL);
    for _ in 0..CONCLUDE_ATTEMPTS_MAX {
        match bank.audit(world) {
            Ok(_) => return Ok(world.dump()?),
            Err(WorldError::Unavailable(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(anyhow!("no timestamp for the last audit"))
}

fn own(settings: &Settings, what: &str) -> Command {
    let mut command = Command::new(&settings.own);
    command.arg(what);
    if let Some(plant) = settings.plant {
        command.args(["--plant", &plant.to_string()]);
    }
    command
}

/// Builds the Go client, if there is a Go toolchain.
pub fn build_go_client(dir: &Path) -> Result<Option<PathBuf>> {
    let is_there = Command::new("go").arg("version").stdout(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        return Ok(None);
    }
    let binary = dir.join("percolator-go");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&binary).arg(".").current_dir(&source);
    ensure!(build.status()?.success(), "{build:?} failed in {}", source.display());
    Ok(Some(binary))
}

/// Mean time until a client is killed.
const CLIENT_LIFE: Duration = Duration::from_millis(800);
/// Time from a killed leader's return to the next kill.
const LEADER_LIFE: Duration = Duration::from_secs(2);
const CONCLUDE_ATTEMPTS_MAX: u32 = 5;
