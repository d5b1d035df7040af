//! A tier that is ended by a signal leaves no process behind.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A script in place of cargo. It starts one process in its own process group and one in another
/// group, and writes the ids of all three.
const CARGO: &str = "#!/bin/sh
sleep 300 & first=$!
timeout 300 sleep 300 & second=$!
echo $first $second $$ >\"$0.begun\"
mv \"$0.begun\" \"$0.ids\"
wait
";
/// Time limit of each wait.
const LIMIT: Duration = Duration::from_mins(1);

#[test]
fn a_step_ends_with_the_program_that_started_it() {
    for signal in ["TERM", "INT", "KILL"] {
        let bin = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("interrupted-{signal}"));
        let _ = fs::remove_dir_all(&bin);
        fs::create_dir_all(&bin).expect("a directory");
        let cargo = bin.join("cargo");
        fs::write(&cargo, CARGO).expect("a script");
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("executable");
        let path = std::env::var("PATH").expect("a path");
        // If a shell started these tests in the background, they may ignore SIGINT, and xtask would
        // inherit that. So `env` sets the default again.
        let mut tier = Command::new("env")
            .args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_xtask")])
            .args(["check", "--only", "format"])
            .env("PATH", format!("{}:{path}", bin.display()))
            .stdout(Stdio::null())
            .spawn()
            .expect("xtask starts");
        let ids = await_some("the step", || fs::read_to_string(bin.join("cargo.ids")).ok());
        let ids: Vec<&str> = ids.split_whitespace().collect();
        assert!(ids.len() == 3 && ids.iter().all(|id| is_running(id)), "{ids:?}");
        let mut kill = Command::new("kill");
        kill.args([&format!("-{signal}"), &tier.id().to_string()]);
        assert!(kill.status().expect("kill").success());
        assert!(!tier.wait().expect("xtask ends").success());
        await_some("the end of the step", || (!ids.iter().any(|id| is_running(id))).then_some(()));
    }
}

fn await_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what}: not in time");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process runs. A process that has ended and was not waited for does not run.
fn is_running(id: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
