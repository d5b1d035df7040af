//! Runs the commands of a step. Their environment is fixed, their time is limited, and their output
//! goes to a file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::num::NonZero;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::processes::{end, signal};

/// Names of the environment variables that a step inherits.
const KEPT: [&str; 26] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "TMPDIR",
    "TERM",
    "SHELL",
    "CI",
    "DEBIAN_FRONTEND",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_JOBS",
    "CARGO_INCREMENTAL",
    "CARGO_PROFILE_DEV_DEBUG",
    "CARGO_PROFILE_RELEASE_DEBUG",
    "GOPATH",
    "GOPROXY",
    "GOFLAGS",
    "GOTOOLCHAIN",
    "JAVA_HOME",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "AWS_CA_BUNDLE",
];
/// Beginnings, and below them ends, of the names of further variables that a step inherits: for
/// networks, registries and certificates.
const KEPT_PREFIXES: [&str; 13] = [
    "LC_",
    "SSL_CERT_",
    "PIP_",
    "npm_config_",
    "MAVEN_",
    "PYENV_",
    "CARGO_NET_",
    "CARGO_HTTP_",
    "CARGO_REGISTR",
    "CARGO_SOURCE_",
    "RUSTUP_DIST_",
    "GONO",
    "GOSUM",
];
const KEPT_SUFFIXES: [&str; 2] = ["_proxy", "_PROXY"];
/// Time between two checks whether a running command has ended.
const LOOK: Duration = Duration::from_millis(30);
/// How long to wait for output after a command has ended. Processes that the command left behind
/// may keep its output open.
const OUTPUT: Duration = Duration::from_secs(2);

/// Runs the commands of one step.
#[derive(Debug)]
pub(crate) struct Shell {
    log: PathBuf,
    deadline: Instant,
    /// Whether the output is also printed as it comes.
    is_live: bool,
    /// Whether commands run at the lowest priority, so that they run only when the processors are
    /// idle.
    is_idle: bool,
    notes: Mutex<Vec<String>>,
    /// The directory of builds that may run beside the tests: `$BUILDS`.
    pub(crate) builds: PathBuf,
    /// Whether every file counts as changed.
    pub(crate) is_all: bool,
    /// The time that `nightly` gives to steps that find more the longer they run.
    pub(crate) night: Duration,
    /// The process group that commands join.
    pub(crate) group: Option<u32>,
}

impl Shell {
    /// A shell whose output goes to `log`. Its commands must end by `deadline`.
    pub(crate) fn new(
        log: PathBuf,
        deadline: Instant,
        is_live: bool,
        is_idle: bool,
    ) -> io::Result<Self> {
        if let Some(directory) = log.parent() {
            fs::create_dir_all(directory)?;
        }
        File::create(&log)?;
        Ok(Self {
            log,
            deadline,
            is_live,
            is_idle,
            notes: Mutex::default(),
            builds: PathBuf::from("target"),
            is_all: false,
            night: Duration::ZERO,
            group: None,
        })
    }

    /// Prints a note about something that was left out, and the reason. The note is printed again
    /// after the table at the end.
    pub(crate) fn note(&self, text: &str) {
        self.say(&format!("NOTE: {text}"));
        self.notes.lock().expect("no panic").push(text.to_owned());
    }

    /// The notes about what was left out.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lock().expect("no panic").clone()
    }

    /// Writes a line of the step's output.
    pub(crate) fn say(&self, text: &str) {
        if self.is_live {
            println!("{text}");
        }
        if let Ok(mut log) = OpenOptions::new().append(true).open(&self.log) {
            let _ = writeln!(log, "{text}");
        }
    }

    /// The output of the step so far.
    pub(crate) fn printed(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Makes a command of `words`, separated by white space. Variables (`NAME=value`) come first,
    /// `$PWD` stands for the root, `$BUILDS` for [`Self::builds`], and `$THREADS` for two threads per
    /// processor.
    pub(crate) fn command(&self, words: &str) -> Command {
        let root = std::env::current_dir().unwrap_or_default();
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let words = words
            .replace("$PWD", &root.to_string_lossy())
            .replace("$BUILDS", &self.builds.to_string_lossy())
            .replace("$THREADS", &(2 * processors).to_string());
        let is_variable = |word: &&str| word.split_once('=').is_some_and(|(name, _)| is_name(name));
        let (mut variables, mut rest) = (Vec::new(), Vec::new());
        for word in words.split_whitespace() {
            if rest.is_empty() && is_variable(&word) {
                variables.extend(word.split_once('='));
            } else {
                rest.push(word);
            }
        }
        if self.is_idle && has("chrt") {
            rest.splice(0..0, ["chrt", "--idle", "0"]);
        }
        let mut command = Command::new(rest.first().copied().unwrap_or_default());
        command
            .args(rest.iter().skip(1))
            .env_clear()
            .envs(environment())
            .envs(variables)
            .stdin(Stdio::null());
        if let Some(group) = self.group {
            command.process_group(group.cast_signed());
        }
        command
    }

    /// Runs the command `words`. Returns an error if it fails.
    pub(crate) fn run(&self, words: &str) -> Result<(), String> {
        self.succeed(self.command(words))
    }

    /// Runs another command of this program. Returns an error if it fails.
    pub(crate) fn own(&self, command: &str) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        self.run(&format!("{} {command}", program.display()))
    }

    /// Runs `command`. Returns an error if it fails.
    pub(crate) fn succeed(&self, command: Command) -> Result<(), String> {
        let shown = shown(&command);
        match self.status(command)?.code() {
            Some(0) => Ok(()),
            Some(code) => Err(format!("{shown}: exit code {code}")),
            None => Err(format!("{shown}: ended by a signal")),
        }
    }

    /// Runs `command` until it ends or its time is up.
    pub(crate) fn status(&self, mut command: Command) -> Result<ExitStatus, String> {
        let shown = shown(&command);
        self.say(&format!("$ {shown}"));
        let (reader, writer) = io::pipe().map_err(|error| error.to_string())?;
        let errors = writer.try_clone().map_err(|error| error.to_string())?;
        let child = command.stdout(writer).stderr(errors).spawn();
        // `command` holds ends of the output's pipe. It must be dropped so that the pipe closes
        // with the child.
        drop(command);
        let mut child = child.map_err(|error| format!("{shown}: {error}"))?;
        let (log, is_live) = (self.log.clone(), self.is_live);
        let copy = thread::spawn(move || copy(reader, &log, is_live));
        let status = self.wait(&mut child, &shown);
        let until = Instant::now() + OUTPUT;
        while !copy.is_finished() && Instant::now() < until {
            thread::sleep(LOOK);
        }
        status
    }

    fn wait(&self, child: &mut Child, shown: &str) -> Result<ExitStatus, String> {
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Ok(status);
            }
            if Instant::now() >= self.deadline {
                end(child);
                return Err(format!("{shown}: not finished within the time limit"));
            }
            thread::sleep(LOOK);
        }
    }

    /// Runs the command `words`. Returns what it prints, or an error if it fails.
    pub(crate) fn output(&self, words: &str) -> Result<String, String> {
        self.say(&format!("$ {words}"));
        let output = self.captured(self.command(words))?;
        if !output.status.success() {
            self.say(&String::from_utf8_lossy(&output.stderr));
            return Err(format!("{words}: {}", output.status));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `command` until it ends or its time is up, and returns what it prints.
    pub(crate) fn captured(&self, mut command: Command) -> Result<Output, String> {
        let shown = shown(&command);
        let failed = |error: io::Error| format!("{shown}: {error}");
        // Output goes to files and not to pipes. Otherwise this would wait for processes that the
        // command leaves behind.
        let files = [self.log.with_extension("out"), self.log.with_extension("err")];
        command.stdout(File::create(&files[0]).map_err(failed)?);
        command.stderr(File::create(&files[1]).map_err(failed)?);
        let status = self.wait(&mut command.spawn().map_err(failed)?, &shown)?;
        let [stdout, stderr] = files.map(fs::read);
        Ok(Output { status, stdout: stdout.map_err(failed)?, stderr: stderr.map_err(failed)? })
    }

    /// Starts `command` with its output in `file`. It ends when the returned value is dropped.
    pub(crate) fn spawn(&self, mut command: Command, file: &Path) -> Result<Running, String> {
        let shown = shown(&command);
        self.say(&format!("$ {shown} &"));
        let output = File::create(file).and_then(|file| Ok((file.try_clone()?, file)));
        let (output, errors) = output.map_err(|error| format!("{}: {error}", file.display()))?;
        let child = command
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("{shown}: {error}"))?;
        Ok(Running { child })
    }
}

/// A process that runs beside the step.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
}

impl Running {
    /// Whether the process has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGTERM and waits at most `limit` for the end. Returns the exit code.
    pub(crate) fn terminate(&mut self, limit: Duration) -> Result<i32, String> {
        signal("TERM", [&self.child.id()]);
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return status.code().ok_or_else(|| "ended by a signal".to_owned());
            }
            if Instant::now() >= until {
                return Err(format!("still running {} s after SIGTERM", limit.as_secs()));
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            end(&mut self.child);
        }
    }
}

/// The environment of every step.
fn environment() -> BTreeMap<OsString, OsString> {
    let mut kept: BTreeMap<OsString, OsString> =
        std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_kept)).collect();
    kept.insert("CARGO_TERM_COLOR".into(), "never".into());
    kept.entry("LANG".into()).or_insert("C.UTF-8".into());
    kept
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn is_kept(name: &str) -> bool {
    KEPT.contains(&name)
        || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || KEPT_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// Whether a program is in the `PATH`.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn shown(command: &Command) -> String {
    let mut words: Vec<String> = Vec::new();
    for (name, value) in command.get_envs() {
        let (name, value) = (name.to_string_lossy(), value.unwrap_or_default());
        // Variables that every step has are not shown.
        if !is_kept(&name) && name != "CARGO_TERM_COLOR" {
            words.push(format!("{name}={}", quoted(&value.to_string_lossy())));
        }
    }
    words.push(command.get_program().to_string_lossy().into_owned());
    words.extend(command.get_args().map(|argument| quoted(&argument.to_string_lossy())));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = !word.is_empty()
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_=./:,@+%".contains(c));
    if plain { word.to_owned() } else { format!("'{word}'") }
}

fn copy(mut reader: io::PipeReader, log: &Path, is_live: bool) {
    let Ok(mut log) = OpenOptions::new().append(true).open(log) else { return };
    let mut buffer = [0; 8192];
    while let Ok(length @ 1..) = reader.read(&mut buffer) {
        let _ = log.write_all(&buffer[..length]);
        if is_live {
            let mut out = io::stdout().lock();
            let _ = out.write_all(&buffer[..length]).and_then(|()| out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, limit: Duration) -> Shell {
        let log = std::env::temp_dir().join(format!("xtask-shell-{name}-{}", std::process::id()));
        Shell::new(log, Instant::now() + limit, false, false).expect("a log")
    }

    #[test]
    fn a_step_sees_only_the_environment_that_is_meant_for_it() {
        for name in ["PATH", "https_proxy", "LC_ALL", "CARGO_PROFILE_DEV_DEBUG", "PIP_INDEX_URL"] {
            assert!(is_kept(name), "{name}");
        }
        for name in
            ["NODE_ID", "RUSTFLAGS", "CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "LD_LIBRARY_PATH"]
        {
            assert!(!is_kept(name), "{name}");
        }
    }

    #[test]
    fn a_command_that_fails_says_how_and_its_output_is_kept() {
        let shell = shell("fails", Duration::from_secs(30));
        let error = shell.run("sh -c false").expect_err("it fails");
        assert_eq!(error, "sh -c false: exit code 1");
        shell.run("echo words").expect("it succeeds");
        assert!(shell.printed().ends_with("$ echo words\nwords\n"), "{}", shell.printed());
        assert_eq!(shell.output("echo words"), Ok("words\n".to_owned()));
        assert_eq!(shell.output("sh -c false"), Err("sh -c false: exit status: 1".to_owned()));
    }

    #[test]
    fn a_command_that_takes_too_long_is_ended_with_what_it_began() {
        let shell = shell("late", Duration::from_millis(200));
        let from = Instant::now();
        let late = "timeout 60 sleep 50";
        for error in [shell.run(late).expect_err("ended"), shell.output(late).expect_err("ended")] {
            assert!(error.contains("not finished within the time limit"), "{error}");
        }
        assert!(from.elapsed() < Duration::from_secs(20));
    }
}
