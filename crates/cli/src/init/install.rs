//! Tests of `deploy/install.sh` with the files of `epicepoch init`. They change nothing outside their
//! own directory: the commands that change a machine are replaced by scripts that record calls.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::tests::{init, read};
use super::{INSTALL, UNIT};

#[test]
fn install_puts_every_file_where_settings_and_unit_look_for_it() {
    let home = tempfile::tempdir().expect("a directory");
    let binary = home.path().join("binary");
    fs::write(&binary, "a program").expect("written");
    init(home.path(), &format!("--binary {} 1=n1 2=n2 3=n3", binary.display())).expect("written");
    let root = home.path().join("root");
    let install = || {
        let mut script = Command::new("sh");
        script.arg(home.path().join("out/node-2/install.sh")).env("DESTDIR", &root);
        assert!(script.status().expect("sh runs").success());
    };
    install();
    // It may run again.
    install();
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let settings = read(&below("/etc/epicepoch/epicepoch.toml"));
    let named: Vec<_> = settings
        .lines()
        .filter_map(|line| line.split_once("_file = "))
        .map(|(_, path)| path.trim_matches('"'))
        .collect();
    assert_eq!(named.len(), 7, "{named:?}");
    for path in named {
        assert!(below(path).exists(), "{path}");
    }
    for secret in ["node.key", "clients", "operators"] {
        let data = below("/etc/epicepoch").join(secret).metadata().expect("it exists");
        assert_eq!(data.permissions().mode() & 0o777, 0o400, "{secret}");
    }
    let unit = read(&below("/etc/systemd/system/epicepoch.service"));
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a line");
    let words: Vec<_> = start.split(' ').collect();
    assert_eq!(words[1..], ["serve", "--config", "/etc/epicepoch/epicepoch.toml"]);
    assert_eq!(read(&below(words[0])), "a program");
}

/// A machine with systemd, below a directory.
struct Machine {
    home: tempfile::TempDir,
}

/// The file that lets the next process of the service found a cluster.
const FOUNDING: &str = "/run/epicepoch-found";

/// In place of the commands that need root or systemd. `start` records what the service would read.
const COMMANDS: [(&str, &str); 4] = [
    ("id", "[ \"$1\" = -u ] && echo 0 || [ -e \"$HOME/user\" ]"),
    ("useradd", "echo \"$*\" >\"$HOME/user\""),
    (
        "install",
        "for word; do shift; case $word in -o|epicepoch) ;; *) set -- \"$@\" \"$word\" ;; esac; done
         exec env PATH=/usr/bin:/bin install \"$@\"",
    ),
    (
        "systemctl",
        "case $1 in
         is-active)
             [ -e \"$HOME/active\" ] && state=active || state=failed
             [ \"$2\" = --quiet ] || echo $state
             [ $state = active ]; exit ;;
         start) touch \"$HOME/active\"; cat \"$HOME/root/run/epicepoch-found\" 2>/dev/null ;;
         esac
         echo \"systemctl $*\"",
    ),
];

impl Machine {
    fn new() -> Self {
        let machine = Self { home: tempfile::tempdir().expect("a directory") };
        init(machine.home.path(), "--binary /bin/true 1=n1").expect("written");
        fs::create_dir_all(machine.path("/run/systemd/system")).expect("made");
        fs::create_dir_all(machine.path("/var/lib/epicepoch/lost+found")).expect("made");
        fs::create_dir(machine.home.path().join("bin")).expect("made");
        for (name, text) in COMMANDS {
            let path = machine.home.path().join("bin").join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
        }
        // The script runs as it is, but for the root directory.
        let root = "root=${DESTDIR:-}\n";
        assert_eq!(INSTALL.matches(root).count(), 1);
        let script = INSTALL.replace(root, &format!("root='{}'\n", machine.path("").display()));
        fs::write(machine.home.path().join("out/node-1/install.sh"), script).expect("written");
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.home.path().join(format!("root{path}"))
    }

    /// Runs the script. Returns its whole output, and whether it succeeded.
    fn install(&self, arguments: &[&str]) -> (bool, String) {
        let path = format!("{}/bin:/usr/bin:/bin", self.home.path().display());
        let script = self.home.path().join("out/node-1/install.sh");
        let mut command = Command::new("sh");
        command.arg(script).args(arguments).env_remove("DESTDIR");
        said(command.env("PATH", path).env("HOME", self.home.path()).output().expect("sh runs"))
    }

    /// Does what the unit does when the process of the service ends.
    fn end_process(&self) {
        let end = UNIT.lines().find_map(|line| line.strip_prefix("ExecStopPost=+/bin/rm -f "));
        let _ = fs::remove_file(self.path(end.expect("the unit deletes a file")));
        fs::remove_file(self.home.path().join("active")).expect("it was active");
    }

    fn may_found(&self) -> bool {
        self.path(FOUNDING).exists()
    }
}

fn said(output: Output) -> (bool, String) {
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Whether the script started the service, and whether with `BOOTSTRAP`.
fn started(text: &str) -> (bool, bool) {
    let start = text.contains("systemctl start --no-block epicepoch");
    (start, text.lines().any(|line| line == "BOOTSTRAP=1"))
}

#[test]
fn only_the_word_found_lets_a_node_found_a_cluster_and_only_one_process() {
    let machine = Machine::new();
    // Without the word, an empty node founds nothing, and the script says what to do.
    let (is_done, text) = machine.install(&[]);
    assert!(is_done && text.contains("install.sh --found\n"), "{text}");
    assert!(text.contains("backup-and-restore.md") && text.contains("rm -r "), "{text}");
    assert_eq!((started(&text), machine.may_found()), ((true, false), false), "{text}");
    machine.end_process();

    // lost+found is no reason not to found.
    let (is_done, text) = machine.install(&["--found"]);
    assert!(is_done && text.contains("founds a NEW cluster"), "{text}");
    assert!(text.contains("backup-and-restore.md") && text.contains("rm -r "), "{text}");
    assert_eq!((started(&text), machine.may_found()), ((true, true), true), "{text}");
    for line in
        [format!("EnvironmentFile=-{FOUNDING}"), format!("ExecStopPost=+/bin/rm -f {FOUNDING}")]
    {
        assert!(UNIT.lines().any(|it| it == line), "{line}");
    }
    machine.end_process();
    assert!(!machine.may_found(), "a later process founds nothing");

    // A node with data, or one that has lost them.
    fs::write(machine.path("/var/lib/epicepoch/data"), "data").expect("written");
    let (is_done, text) = machine.install(&[]);
    assert!(is_done && !machine.may_found(), "{text}");
    assert_eq!(read(&machine.path("/var/lib/epicepoch/data")), "data");
}

#[test]
fn a_node_that_has_ended_is_not_started_by_a_new_certificate() {
    let machine = Machine::new();
    assert!(machine.install(&["--found"]).0);
    let is_enabled = |text: &str| text.contains("systemctl enable epicepoch\n");
    let (is_done, text) = machine.install(&[]);
    assert!(is_done && text.contains("The node runs on") && !is_enabled(&text), "{text}");
    assert_eq!(started(&text), (false, false), "{text}");
    machine.end_process();
    for arguments in [&[][..], &["--settings"], &["--program"]] {
        let (is_done, text) = machine.install(arguments);
        assert!(
            is_done && text.contains("systemctl status epicepoch") && !is_enabled(&text),
            "{text}"
        );
        assert_eq!(started(&text), (false, false), "{text}");
    }
}

#[test]
fn the_key_of_another_node_is_not_installed() {
    let machine = Machine::new();
    assert!(machine.install(&["--found"]).0);
    machine.end_process();
    let from = machine.home.path().join("out/node-1");
    let settings = read(&from.join("epicepoch.toml"));
    assert!(settings.contains("\nnode_id = 1\n"), "{settings}");
    let other = settings.replace("\nnode_id = 1\n", "\nnode_id = 12\n");
    fs::write(from.join("epicepoch.toml"), other).expect("written");
    fs::write(from.join("node.key"), "another").expect("written");
    for arguments in [&[][..], &["--settings"], &["--found"]] {
        let (is_done, text) = machine.install(arguments);
        assert!(
            !is_done && text.contains("is for node 12,") && text.contains("of node 1:"),
            "{text}"
        );
        assert_ne!(read(&machine.path("/etc/epicepoch/node.key")), "another");
    }
    fs::remove_dir_all(machine.path("/etc/epicepoch")).expect("removed");
    assert!(machine.install(&[]).0);
    assert_eq!(read(&machine.path("/etc/epicepoch/node.key")), "another");
}

#[test]
fn a_running_node_is_not_told_to_found_and_every_run_without_the_word_ends_it() {
    let machine = Machine::new();
    assert!(machine.install(&["--found"]).0);
    let (is_done, text) = machine.install(&["--found"]);
    assert!(!is_done && text.contains("runs already"), "{text}");
    assert_eq!((started(&text), machine.may_found()), ((false, false), false), "{text}");
    machine.end_process();
    assert!(machine.install(&["--found"]).0 && machine.may_found());
    let (is_done, text) = machine.install(&[]);
    assert!(is_done && !machine.may_found(), "{text}");
}

#[test]
fn the_script_makes_the_user_and_the_group_that_the_unit_names() {
    let machine = Machine::new();
    assert!(machine.install(&[]).0);
    let asked = read(&machine.home.path().join("user"));
    let words: Vec<_> = asked.split_whitespace().collect();
    for line in ["User=epicepoch", "Group=epicepoch"] {
        assert!(UNIT.lines().any(|it| it == line), "{line}");
    }
    assert!(words.contains(&"--user-group"), "{asked}");
    assert_eq!(words.last(), Some(&"epicepoch"), "{asked}");
}

#[test]
fn without_systemd_the_script_says_how_to_start() {
    let machine = Machine::new();
    fs::remove_dir_all(machine.path("/run/systemd")).expect("removed");
    for (arguments, shown) in
        [(&["--found"][..], "    BOOTSTRAP=1 epicepoch"), (&[], "    epicepoch")]
    {
        let (is_done, text) = machine.install(arguments);
        let shown = format!("{shown} serve --config /etc/epicepoch/epicepoch.toml\n");
        assert!(is_done && text.contains(&shown), "{text}");
        assert_eq!((started(&text), machine.may_found()), ((false, false), false), "{text}");
    }
}

#[test]
fn with_the_package_the_script_installs_neither_program_nor_unit() {
    for is_packaged in [true, false] {
        let machine = Machine::new();
        if is_packaged {
            let directory = machine.path("/usr/lib/systemd/system");
            fs::create_dir_all(&directory).expect("made");
            fs::write(directory.join("epicepoch.service"), "a unit").expect("written");
        }
        let (is_done, text) = machine.install(&["--found"]);
        assert!(is_done, "{text}");
        assert_eq!(started(&text), (true, true), "{text}");
        assert!(machine.path("/etc/epicepoch/epicepoch.toml").exists());
        for path in ["/usr/local/bin/epicepoch", "/etc/systemd/system/epicepoch.service"] {
            assert_eq!(machine.path(path).exists(), !is_packaged, "{path}");
        }
    }
}

#[test]
fn an_argument_without_effect_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    init(home.path(), "1=n1").expect("written");
    let root = home.path().join("root");
    for (argument, words) in [("--found", "only copies"), ("--fuond", "the only argument")] {
        let mut script = Command::new("sh");
        script.arg(home.path().join("out/node-1/install.sh")).arg(argument);
        let (is_done, text) = said(script.env("DESTDIR", &root).output().expect("sh runs"));
        assert!(!is_done && text.contains(words), "{text}");
        assert!(!Path::new(&root).exists(), "{argument}");
    }
}

#[test]
fn what_was_changed_on_the_machine_is_kept_and_only_certificates_are_renewed() {
    let machine = Machine::new();
    assert!(machine.install(&["--found"]).0);
    machine.end_process();
    let kept = ["epicepoch.toml", "clients", "operators"].map(|name| {
        let path = machine.path("/etc/epicepoch").join(name);
        fs::remove_file(&path).expect("installed");
        fs::write(&path, "changed").expect("written");
        path
    });
    let program = machine.path("/usr/local/bin/epicepoch");
    fs::write(&program, "#!/bin/sh\necho epicepoch 9.8.7\n").expect("written");
    fs::write(machine.home.path().join("out/node-1/node.pem"), "renewed").expect("written");

    let (is_done, text) = machine.install(&[]);
    assert!(is_done && text.contains("epicepoch 9.8.7") && text.contains("--program"), "{text}");
    assert!(text.contains("--settings"), "{text}");
    assert_eq!(read(&machine.path("/etc/epicepoch/node.pem")), "renewed");
    assert!(read(&program).contains("9.8.7"));
    for path in &kept {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(text.contains(&format!("/etc/epicepoch/{name}")), "{text}");
        assert_eq!(read(path), "changed", "{name}");
    }

    let (is_done, text) = machine.install(&["--settings"]);
    assert!(is_done && read(&program).contains("9.8.7"), "{text}");
    for path in &kept {
        assert_ne!(read(path), "changed", "{}", path.display());
        assert_eq!(read(Path::new(&format!("{}.before", path.display()))), "changed");
    }

    assert!(machine.install(&["--program"]).0);
    assert_eq!(fs::read(&program).expect("read"), fs::read("/bin/true").expect("read"));
}

#[test]
fn a_certificate_is_not_installed_beside_other_authorities() {
    let machine = Machine::new();
    assert!(machine.install(&["--found"]).0);
    machine.end_process();
    let from = machine.home.path().join("out/node-1");
    for name in ["ca.pem", "node.pem"] {
        fs::write(from.join(name), "another").expect("written");
    }
    let (is_done, text) = machine.install(&[]);
    assert!(!is_done && text.contains("has other authorities"), "{text}");
    let installed = ["ca.pem", "node.pem"].map(|name| machine.path("/etc/epicepoch").join(name));
    assert!(installed.iter().all(|path| read(path) != "another"));
    assert!(machine.install(&["--settings"]).0);
    assert!(installed.iter().all(|path| read(path) == "another"));
}

#[test]
fn a_node_that_joins_is_not_told_to_found() {
    let machine = Machine::new();
    let settings = machine.home.path().join("out/node-1/epicepoch.toml");
    fs::write(&settings, "node_id = 4\njoin = \"n1:60001\"\n").expect("written");
    let (is_done, text) = machine.install(&["--found"]);
    assert!(!is_done && text.contains("founds none") && !machine.may_found(), "{text}");
    let (is_done, text) = machine.install(&[]);
    assert!(is_done && text.contains("waits until an operator adds it"), "{text}");
    assert!(!text.contains("--found") && !text.contains("exit code 4"), "{text}");
}

#[test]
fn a_package_that_came_later_is_not_said_to_be_in_use() {
    let machine = Machine::new();
    assert!(machine.install(&["--found"]).0);
    machine.end_process();
    let directory = machine.path("/usr/lib/systemd/system");
    fs::create_dir_all(&directory).expect("made");
    fs::write(directory.join("epicepoch.service"), "a unit").expect("written");
    let (is_done, text) = machine.install(&[]);
    assert!(is_done && text.contains("hides its unit"), "{text}");
    assert!(!text.contains("its program and its unit are used"), "{text}");
}
