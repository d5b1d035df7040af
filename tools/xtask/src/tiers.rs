//! Runs the steps of a tier in three queues, and prints a table at the end. Each step has a time
//! limit, and the whole tier has one, too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::builds::Builds;
use crate::processes::Guard;
use crate::shell::Shell;
use crate::steps::{Beside, Run, STEPS, Step, Tier};

/// Directory for the output of each step.
const LOGS: &str = "target/xtask";
/// The name of the step for which computing steps wait when they run beside others.
const TESTS_BUILD: &str = "tests-build";
/// The limits of steps grow by this many times the time that `nightly` has for fresh seeds and
/// faults.
const NIGHT_SLOW: u32 = 3;
/// Lines of a failed step's output that are printed when it fails.
const TAIL_LINES: usize = 60;
/// Lines of a failed step's output that are printed again at the end of the run.
const END_LINES: usize = 12;

impl Tier {
    /// The tier with this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        [Self::Check, Self::Ci, Self::Nightly].into_iter().find(|tier| tier.name() == name)
    }

    /// The name of the tier, which is also its command.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Ci => "ci",
            Self::Nightly => "nightly",
        }
    }

    /// Seconds that all steps together should take on two cores. If they take longer, a note says
    /// so.
    const fn budget(self) -> u64 {
        match self {
            Self::Check => 5 * 60,
            Self::Ci => 25 * 60,
            Self::Nightly => 4 * 3600,
        }
    }

    /// Seconds after which no further step is started.
    const fn bound(self) -> u64 {
        match self {
            Self::Check => 30 * 60,
            Self::Ci => 50 * 60,
            Self::Nightly => 6 * 3600,
        }
    }
}

/// How a step ended.
#[derive(Debug, Clone)]
struct Ended {
    took: Duration,
    result: Result<(), String>,
    /// The last lines of a failed step's output.
    tail: Vec<String>,
    notes: Vec<String>,
}

impl Ended {
    /// The result of a step that was not run.
    const fn at_once(result: Result<(), String>) -> Self {
        Self { took: Duration::ZERO, result, tail: vec![], notes: vec![] }
    }
}

/// State that all queues of steps share.
struct Tally {
    ended: Mutex<BTreeMap<&'static str, Ended>>,
    changed: Condvar,
    start: Instant,
    deadline: Instant,
    is_to_go_on: bool,
    is_all: bool,
    night: Duration,
    builds: Builds,
    guard: Guard,
}

impl Tally {
    /// Runs `steps` one after the other.
    fn run_in_order(&self, steps: &[&'static Step], is_idle: bool) {
        for step in steps {
            if !self.is_to_run(step, is_idle) {
                continue;
            }
            let ended = self.step(step, is_idle);
            let mut all = self.ended.lock().expect("no panic");
            all.insert(step.name, ended);
            self.changed.notify_all();
        }
    }

    /// Waits for the steps that `step` needs, and returns whether to run it. A step is skipped if
    /// one of the steps that it needs failed. After any other failure it is skipped, too, unless
    /// the run continues after failures.
    fn is_to_run(&self, step: &Step, is_beside: bool) -> bool {
        let mut all = self.ended.lock().expect("no panic");
        loop {
            let failed = all.iter().find(|(name, ended)| {
                ended.result.is_err() && (!self.is_to_go_on || step.after.contains(name))
            });
            if let Some((name, _)) = failed {
                let result = Err(format!("not run: {name} failed"));
                if self.is_to_go_on {
                    all.insert(step.name, Ended::at_once(result));
                    self.changed.notify_all();
                }
                return false;
            }
            let built = (is_beside && step.beside == Beside::Computes).then_some(&TESTS_BUILD);
            if step.after.iter().chain(built).all(|name| all.contains_key(name)) {
                return true;
            }
            all = self.changed.wait(all).expect("no panic");
        }
    }

    fn step(&self, step: &Step, is_idle: bool) -> Ended {
        let from = Instant::now();
        let at = self.start.elapsed().as_secs();
        let beside = if is_idle { ", beside the others" } else { "" };
        let limit = Duration::from_secs(step.bound) + self.night * NIGHT_SLOW;
        let seconds = limit.as_secs();
        println!("\n== {}: {} [at {at} s, limit {seconds} s{beside}]", step.name, step.title);
        let log = Path::new(LOGS).join(format!("{}.log", step.name));
        let deadline = (from + limit).min(self.deadline);
        let mut shell = match Shell::new(log, deadline, step.is_live, is_idle) {
            Ok(shell) => shell,
            Err(error) => {
                return Ended::at_once(Err(format!("{LOGS}: {error}")));
            }
        };
        shell.is_all = self.is_all;
        shell.night = self.night;
        self.builds.path().clone_into(&mut shell.builds);
        shell.group = Some(self.guard.group());
        let result = match step.run {
            Run::Commands(commands) => commands.iter().try_for_each(|command| shell.run(command)),
            Run::Function(function) => function(&shell),
        };
        let mut ended = Ended { took: from.elapsed(), result, tail: vec![], notes: shell.notes() };
        let seconds = ended.took.as_secs();
        match &ended.result {
            Ok(()) => println!("-- {}: {seconds} s", step.name),
            Err(error) => {
                let printed = shell.printed();
                let lines: Vec<&str> = printed.lines().collect();
                let last = |count| &lines[lines.len().saturating_sub(count)..];
                println!(
                    "{}\n-- FAILED: {}: {error} ({seconds} s)",
                    last(TAIL_LINES).join("\n"),
                    step.name
                );
                ended.tail = last(END_LINES).iter().map(ToString::to_string).collect();
            }
        }
        ended
    }
}

/// Which steps of a tier to run, and how.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) tier: Tier,
    /// Names of steps; if empty, all steps run.
    pub(crate) only: Vec<String>,
    pub(crate) is_to_go_on: bool,
    /// Whether every file counts as changed.
    pub(crate) is_all: bool,
    /// The time of steps that find more the longer they run.
    pub(crate) night: Duration,
}

/// Runs the steps of `choice`. Returns whether all of them succeed.
///
/// # Errors
/// When there is no step with a given name, or no guard can be started.
pub(crate) fn run(choice: &Choice) -> Result<bool, String> {
    let tier = choice.tier;
    if let Some(unknown) =
        choice.only.iter().find(|name| !STEPS.iter().any(|step| step.name == **name))
    {
        return Err(format!("no step is named {unknown}: cargo xtask steps"));
    }
    let is_meant = |step: &Step| match choice.only.as_slice() {
        [] => step.tiers.contains(&tier),
        only => only.iter().any(|name| name == step.name),
    };
    let start = Instant::now();
    let commit = clean_commit();
    let tally = Tally {
        ended: Mutex::default(),
        changed: Condvar::new(),
        start,
        deadline: start + Duration::from_secs(tier.bound()) + choice.night * NIGHT_SLOW,
        is_to_go_on: choice.is_to_go_on,
        is_all: choice.is_all,
        night: choice.night,
        builds: if tier == Tier::Ci { Builds::in_memory() } else { Builds::on_disk() },
        guard: Guard::start().map_err(|error| format!("a guard of the steps: {error}"))?,
    };
    let steps: Vec<&'static Step> = STEPS.iter().filter(|step| is_meant(step)).collect();
    if choice.only.is_empty() {
        let [mut main, mut waiting, mut idle] = [const { Vec::new() }; 3];
        for step in &steps {
            let queue = match step.beside {
                Beside::Waits if tier == Tier::Ci => &mut waiting,
                Beside::Downloads if tier == Tier::Ci => &mut idle,
                Beside::Computes if tally.builds.are_in_memory() => &mut idle,
                _ => &mut main,
            };
            queue.push(*step);
        }
        thread::scope(|scope| {
            scope.spawn(|| tally.run_in_order(&idle, true));
            scope.spawn(|| tally.run_in_order(&waiting, false));
            tally.run_in_order(&main, false);
            let failed =
                tally.ended.lock().expect("no panic").values().any(|ended| ended.result.is_err());
            if failed && !tally.is_to_go_on {
                tally.guard.end();
            }
        });
    } else {
        // With `--only`, the steps that the chosen ones need count as done. If a result of such a
        // step is missing, the chosen step fails and says so.
        let mut ended = tally.ended.lock().expect("no panic");
        for name in steps
            .iter()
            .flat_map(|step| step.after)
            .filter(|name| !choice.only.contains(&(**name).to_owned()))
        {
            ended.insert(name, Ended::at_once(Ok(())));
        }
        drop(ended);
        tally.run_in_order(&steps, false);
    }
    let took = start.elapsed().as_secs();
    let ended = tally.ended.into_inner().expect("no panic");
    println!("{}", table(&steps, &ended));
    for (name, failed) in ended.iter().filter(|(_, ended)| ended.result.is_err()) {
        println!(
            "FAILED: {name}; to repeat it: cargo xtask {} --only {name}; output: {LOGS}/{name}.log",
            tier.name()
        );
        for line in &failed.tail {
            println!("    {line}");
        }
    }
    let failed: Vec<&str> =
        ended.iter().filter(|(_, ended)| ended.result.is_err()).map(|(name, _)| *name).collect();
    if failed.is_empty() {
        println!("All steps succeeded in {took} s");
        // `scripts/release ready` reads this. A run of some steps, or of sources that nobody can get
        // again, proves nothing about a commit.
        if let (true, Some(commit)) = (choice.only.is_empty(), &commit)
            && clean_commit().as_ref() == Some(commit)
        {
            let path = format!("{LOGS}/{}.passed", tier.name());
            fs::write(&path, commit).map_err(|error| format!("{path}: {error}"))?;
        }
    } else {
        println!("Failed: {} ({took} s)", failed.join(", "));
    }
    let budget = tier.budget() + choice.night.as_secs();
    if choice.only.is_empty() && took > budget {
        println!("NOTE: {} should take at most {budget} s", tier.name());
    }
    // Notes about what was not checked come last.
    for note in ended.values().flat_map(|ended| &ended.notes) {
        println!("NOTE: {note}");
    }
    Ok(failed.is_empty())
}

/// The present commit, if nothing is uncommitted.
fn clean_commit() -> Option<String> {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let is_clean = git(&["status", "--porcelain"])?.is_empty();
    is_clean.then(|| git(&["rev-parse", "HEAD"])).flatten()
}

/// A table with a row for each step: seconds, name, and how it ended.
fn table(steps: &[&Step], ended: &BTreeMap<&str, Ended>) -> String {
    let mut text = String::new();
    for step in steps {
        let (seconds, how) = match ended.get(step.name) {
            Some(Ended { took, result: Ok(()), .. }) => (took.as_secs(), step.title),
            Some(Ended { took, result: Err(error), .. }) => (took.as_secs(), error.as_str()),
            None => (0, "not run"),
        };
        let _ = write!(text, "\n{seconds:>6} s  {:<16} {how}", step.name);
    }
    text
}

/// `cargo xtask steps`: prints every step, its tiers, its time limit and its commands.
pub(crate) fn list() {
    for step in STEPS {
        let tiers: Vec<&str> = step.tiers.iter().map(|tier| tier.name()).collect();
        println!("{:<16} {} [{}; {} s]", step.name, step.title, tiers.join(", "), step.bound);
        if let Run::Commands(commands) = step.run {
            for command in commands {
                println!("{:<16}   $ {command}", "");
            }
        }
    }
}
