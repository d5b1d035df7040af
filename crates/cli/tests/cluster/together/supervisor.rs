//! Messages of a node to systemd (`sd_notify(3)`). The test binds the socket in place of systemd.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Cluster, Faults, WAIT_MAX};

/// The socket of a supervisor.
struct Heard {
    socket: UnixDatagram,
    lines: Vec<String>,
}

impl Heard {
    /// Binds a socket at `path`, in place of that of systemd.
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a limit");
        Self { socket, lines: Vec::new() }
    }

    /// Reads and forgets all messages that were sent so far.
    fn discard(&mut self) {
        self.lines.clear();
        self.socket.set_nonblocking(true).expect("an option");
        while self.socket.recv(&mut [0; 1024]).is_ok() {}
        self.socket.set_nonblocking(false).expect("an option");
    }

    /// Reads messages until one has a line that fits. Returns that line.
    #[track_caller]
    fn wait(&mut self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + WAIT_MAX;
        loop {
            if let Some(at) = self.lines.iter().position(|line| fits(line)) {
                self.lines.drain(..at);
                return self.lines.remove(0);
            }
            assert!(Instant::now() < until, "{what}");
            let mut message = [0; 1024];
            if let Ok(len) = self.socket.recv(&mut message) {
                let text = std::str::from_utf8(&message[..len]).expect("text");
                self.lines.extend(text.lines().map(str::to_owned));
            }
        }
    }
}

#[test]
fn systemd_hears_that_a_node_is_ready_what_it_does_that_it_lives_and_that_it_stops() {
    let mut cluster = Cluster::down_calm(&[]);
    let path = cluster.dir.path().join("notify");
    let mut heard = Heard::at(&path);
    let node = &mut cluster.nodes[0];
    node.set("NOTIFY_SOCKET", path.display());
    node.set("WATCHDOG_USEC", 2_000_000);
    // The node is ready before the others run: it takes part, and systemd need not wait.
    node.start();
    heard.wait("ready", |line| line == "READY=1");
    heard.wait("waits", |line| line == "STATUS=waits for the other first members");
    heard.wait("lives while it waits", |line| line == "WATCHDOG=1");
    cluster.nodes[1].start();
    cluster.nodes[2].start();
    cluster.wait_until_ready();
    let does = |line: &str| {
        line.starts_with("STATUS=leads in term ") || line.starts_with("STATUS=follows node ")
    };
    heard.wait("its part", does);
    cluster.order(&[
        "leader",
        "transfer",
        "--to",
        if cluster.nodes[0].is_leader() { "2" } else { "1" },
    ]);
    heard.wait("its new part", does);
    heard.wait("lives", |line| line == "WATCHDOG=1");
    heard.wait("lives on", |line| line == "WATCHDOG=1");
    assert!(cluster.nodes[0].terminate().success());
    heard.wait("stops", |line| line == "STOPPING=1");
    heard.wait("says so", |line| line == "STATUS=stopping");
    // SHUTDOWN_TIMEOUT_MS of its settings, and five seconds.
    heard.wait("asks for the time that it may need", |line| line == "EXTEND_TIMEOUT_USEC=8000000");
}

/// The watchdog is about the consensus thread. A disk that hangs is not its business: the node hands
/// leadership over, and goes on when the disk does. A restart would help nobody.
#[test]
fn a_disk_that_hangs_does_not_make_systemd_kill_the_node() {
    let mut cluster = Cluster::down_calm(&[]);
    let path = cluster.dir.path().join("notify");
    let mut heard = Heard::at(&path);
    cluster.nodes[0].set("NOTIFY_SOCKET", path.display());
    cluster.nodes[0].set("WATCHDOG_USEC", 1_000_000);
    cluster.start_all();
    cluster.wait_until_ready();
    cluster.nodes[0].break_with(Faults { fsync_hang: true, ..Faults::NONE });
    cluster.wait_for_leader_other_than(Some(0), WAIT_MAX);
    // These messages were sent before the disk hung, or soon afterwards.
    heard.discard();
    // Messages come four times in the limit of the watchdog. These span several limits.
    for _ in 0..12 {
        heard.wait("lives", |line| line == "WATCHDOG=1");
    }
    cluster.nodes[0].break_with(Faults::NONE);
    cluster.assert_well();
}

/// The node is removed: it ends by itself, and systemd shows why.
#[test]
fn systemd_hears_why_a_node_ends_by_itself() {
    let mut cluster = Cluster::down_calm(&[]);
    let path = cluster.dir.path().join("notify");
    let mut heard = Heard::at(&path);
    for node in &mut cluster.nodes {
        node.set("NOTIFY_SOCKET", path.display());
    }
    cluster.start_all();
    cluster.wait_until_ready();
    let leader = cluster.wait_for_leader();
    let index = cluster.others(leader)[0];
    let id = cluster.nodes[index].id.to_string();
    cluster.order(&["member", "remove", &id]);
    let end = heard.wait("its end", |line| line.contains("was removed from the cluster"));
    assert!(end.starts_with("STATUS="), "{end}");
    cluster.nodes[index].wait_for_exit(WAIT_MAX);
}
