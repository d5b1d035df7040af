//! Ends processes together with all processes that they have started. When this program ends, for
//! any reason, a guard process does this.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two checks whether processes have ended.
const LOOK: Duration = Duration::from_millis(30);
/// Processes must end within `END` after SIGTERM, and within `KILLED` after SIGKILL.
const END: Duration = Duration::from_secs(10);
const KILLED: Duration = Duration::from_secs(2);

/// A process that ends all processes of its group when this program ends. The commands of the steps
/// join the group. This program may be ended by a signal at any moment. When it ends, its end of
/// the guard's input closes, and the guard notices. So this program needs no signal handler.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
}

impl Guard {
    /// The argument that makes this program a guard.
    pub(crate) const COMMAND: &str = "guard";

    /// Starts the guard.
    pub(crate) fn start() -> io::Result<Self> {
        let process = Command::new(std::env::current_exe()?)
            .arg(Self::COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { process })
    }

    /// The guard itself: waits until its input ends, then ends its group.
    pub(crate) fn run() -> io::Result<()> {
        io::copy(&mut io::stdin(), &mut io::sink())?;
        end_group(std::process::id());
        Ok(())
    }

    /// The process group of the guard.
    pub(crate) fn group(&self) -> u32 {
        self.process.id()
    }

    /// Ends all commands that have joined the group, and the processes that they have started.
    pub(crate) fn end(&self) {
        end_group(self.group());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Ends a process and its descendants.
pub(crate) fn end(child: &mut Child) {
    let id = child.id();
    end_all(|process| process.id == id);
    let _ = child.wait();
}

/// Ends the group of `leader` and its descendants, but not the leader.
fn end_group(leader: u32) {
    end_all(|process| process.group == leader && process.id != leader);
}

/// Ends the processes for which `is_meant` is true, and their descendants: first with SIGTERM, then
/// with SIGKILL.
fn end_all(is_meant: impl Fn(&Process) -> bool) {
    let mut known = BTreeSet::new();
    for (name, limit) in [("TERM", END), ("KILL", KILLED)] {
        let until = Instant::now() + limit;
        let mut told = BTreeSet::new();
        while Instant::now() < until {
            let all = Process::all();
            // A process may lose its parent during this loop. It stays in `known`, so it is still
            // ended.
            known.extend(all.iter().filter(|process| is_meant(process)).map(|process| process.id));
            add_descendants(&all, &mut known);
            known.retain(|id| all.iter().any(|process| process.id == *id));
            if known.is_empty() {
                return;
            }
            signal(name, known.difference(&told));
            told.extend(&known);
            thread::sleep(LOOK);
        }
    }
}

fn add_descendants(all: &[Process], known: &mut BTreeSet<u32>) {
    let mut count = 0;
    while known.len() > count {
        count = known.len();
        for process in all {
            if known.contains(&process.parent) {
                known.insert(process.id);
            }
        }
    }
}

/// Sends a signal to processes.
pub(crate) fn signal<'a>(name: &str, processes: impl IntoIterator<Item = &'a u32>) {
    let list: Vec<String> = processes.into_iter().map(u32::to_string).collect();
    if !list.is_empty() {
        let _ = Command::new("sh")
            .args(["-c", &format!("kill -{name} {} 2>/dev/null", list.join(" "))])
            .status();
    }
}

/// A running process.
struct Process {
    id: u32,
    parent: u32,
    group: u32,
}

impl Process {
    /// All processes of this machine.
    fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
            .filter_map(|stat| Self::parse(&stat))
            .collect()
    }

    /// Reads `/proc/ID/stat`, see proc(5). `None` for a process that has ended but whose parent has
    /// not waited for it yet.
    fn parse(stat: &str) -> Option<Self> {
        let (id, rest) = stat.split_once(" (")?;
        // The name of the program may contain any character, also brackets.
        let (_, rest) = rest.rsplit_once(") ")?;
        let [state, parent, group, ..] = rest.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let is_running = !matches!(state, "Z" | "X");
        is_running.then_some(Self {
            id: id.parse().ok()?,
            parent: parent.parse().ok()?,
            group: group.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let read = |stat| Process::parse(stat).map(|it| (it.id, it.parent, it.group));
        assert_eq!(read("7 (a) b (c) S 3 5 5 0 -1"), Some((7, 3, 5)));
        assert_eq!(read("7 (a) Z 3 5 5 0 -1"), None);
        assert!(Process::all().iter().any(|process| process.id == std::process::id()));
    }
}
