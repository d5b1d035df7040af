//! Two versions of the program run in one cluster under load. Nodes are upgraded one by one,
//! downgraded, and upgraded again. Members are added and removed. Leadership moves between the
//! versions in both directions. No call fails, and no answer is wrong. After each step all nodes
//! have the same state.
//!
//! [`old_program`] is the old version. `scripts/upgrade` builds the oldest version that is
//! supported, and runs these tests with it. Without that, a copy of the program under test takes
//! its place. Then the steps are tested, but not with two versions.

use std::path::{Path, PathBuf};
use std::time::Instant;

use epicepoch_wire::backup::Backup;
use serde_json::Value;

use crate::support::node::{binary, old_program};
use crate::support::operator::transferred;
use crate::support::operator::{admit, list, remove, roles};
use crate::support::{
    Calling, Campaigns, Cluster, Disturbed, Node, WAIT_MAX, Watch, say, undisturbed, wait_until,
};

/// This setting keeps the state at the oldest format, even if all nodes run the new version. An old
/// version that does not know the setting reads only that format.
const HELD: (&str, &str) = ("FORMAT_MAX", "1");
/// The test tries at most this many times to hand leadership to a node of one version. On a busy
/// machine, leadership may move on at once.
const TRANSFER_TRIES: usize = 5;
/// After each step, all nodes must apply at least this many new log entries. The leader's
/// reservations are such entries.
const ENTRIES: u64 = 1;

/// Returns the state that a node has applied, as its backup shows it.
fn held(node: &Node) -> Option<Backup> {
    let document: Value = serde_json::from_str(&node.ask("/admin/backup")?.text()).ok()?;
    let backup = Backup::parse(document["backup"].as_str()?).expect("a backup");
    // A backup also has its time and the longest settings of all nodes. These are not part of the
    // replicated state, so they are set to 0.
    Some(Backup { taken_ns: 0, reservation_ms: 0, clock_offset_max_ms: 0, ..backup })
}

/// Waits until every node is ready and has applied a new entry. Checks that all nodes have the same
/// state at the same log index.
#[track_caller]
fn assert_equal(cluster: &mut Cluster) {
    cluster.wait_until_ready();
    let mut from = None;
    wait_until("all nodes have the same state", WAIT_MAX, || {
        let all: Option<Vec<Backup>> = cluster.nodes.iter().map(held).collect();
        let Some(all) = all else { return false };
        let index = all[0].index;
        if all.iter().any(|it| it.index != index) {
            return false;
        }
        assert!(all.iter().all(|it| *it == all[0]), "different states at one index: {all:#?}");
        index.0 >= from.get_or_insert(index.0).saturating_add(ENTRIES)
    });
}

/// Whether this node runs this program.
fn is_of(node: &Node, program: &Path) -> bool {
    node.runs() == program.canonicalize().expect("the program is there")
}

/// A follower that runs this program.
fn follower_of(cluster: &Cluster, program: &Path) -> usize {
    let leader = cluster.wait_for_leader();
    let others = cluster.others(leader);
    let found = others.into_iter().find(|index| is_of(&cluster.nodes[*index], program));
    found.expect("a follower of that version")
}

/// Restarts a node with another program.
#[track_caller]
fn replace(cluster: &mut Cluster, index: usize, program: &Path) {
    let node = &mut cluster.nodes[index];
    assert_eq!(node.terminate().code(), Some(0));
    node.install(program.to_owned());
    node.start();
    assert!(is_of(node, program));
    assert_equal(cluster);
}

/// Hands leadership to a node that runs this program, and returns its index.
#[track_caller]
fn lead_with(cluster: &mut Cluster, program: &Path) -> usize {
    for _ in 0..TRANSFER_TRIES {
        let leader = cluster.wait_for_leader();
        if is_of(&cluster.nodes[leader], program) {
            return leader;
        }
        let id = cluster.nodes[follower_of(cluster, program)].id.to_string();
        transferred(cluster, &["leader", "transfer", "--to", &id]);
        assert_equal(cluster);
    }
    panic!("{TRANSFER_TRIES} times leadership did not stay where it was handed to");
}

/// Restarts every node with this program. The leader comes last, after it has handed leadership
/// over.
#[track_caller]
fn roll(cluster: &mut Cluster, program: &Path) {
    loop {
        let leader = cluster.wait_for_leader();
        let behind = |index: &usize| !is_of(&cluster.nodes[*index], program);
        match cluster.others(leader).into_iter().find(behind) {
            Some(index) => replace(cluster, index, program),
            None if behind(&leader) => {
                lead_with(cluster, program);
            }
            None => return,
        }
    }
}

/// The format of the leader's state.
fn format(cluster: &Cluster) -> u64 {
    list(cluster)["format"].as_u64().expect("a format")
}

/// The newest format that any member has said that it reads.
fn newest_format(cluster: &Cluster) -> u64 {
    let list = list(cluster);
    let members = list["members"].as_array().expect("members").iter();
    members.filter_map(|member| member["formatMax"].as_u64()).max().expect("they have met")
}

/// Starts the old program with the data directory of a member, whose format it cannot read. Checks
/// that the old program exits and leaves the data unchanged.
#[track_caller]
fn assert_refused_by_format(cluster: &mut Cluster, old: &Path, new: &Path) {
    let (index, risen) = (follower_of(cluster, new), format(cluster));
    let node = &mut cluster.nodes[index];
    assert_eq!(node.terminate().code(), Some(0));
    node.install(old.to_owned());
    // The old program may be a copy of the new one. With this setting, such a copy reads only the
    // formats that an old version reads.
    node.set(HELD.0, HELD.1);
    node.start();
    assert_eq!(node.wait_for_exit(WAIT_MAX).code(), Some(1), "{}", node.log());
    node.install(new.to_owned());
    node.unset(HELD.0);
    node.start();
    let id = node.id.to_string();
    assert_equal(cluster);
    undisturbed(|| {
        let campaigns = Campaigns::so_far(cluster);
        let is_asked = cluster.wait_for_leader() != index;
        if is_asked {
            transferred(cluster, &["leader", "transfer", "--to", &id]);
        }
        let leads = cluster.wait_for_leader() == index;
        campaigns.judge(cluster, usize::from(is_asked), leads, "it leads when it is asked to")
    });
    assert_eq!(format(cluster), risen, "nothing is lost");
}

/// Returns the list of members that this program prints for an operator.
fn members_told_by(cluster: &Cluster, program: PathBuf) -> String {
    let output = cluster.operator_with(program, &["member", "list"]).output();
    let output = output.expect("the program can be started");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn two_versions_in_one_cluster_under_load_fail_no_call_and_have_the_same_state_after_each_step() {
    undisturbed(upgrade_and_take_back);
}

/// Runs the whole test. Returns `Disturbed` if leadership moved by itself while a member was added,
/// because it matters which version leads then.
fn upgrade_and_take_back() -> Result<(), Disturbed> {
    let mut cluster = Cluster::down(&[HELD]);
    let (old, new) = (old_program(cluster.dir.path()), binary());
    for node in &mut cluster.nodes {
        node.install(old.clone());
    }
    cluster.start_all();
    cluster.wait_until_ready();
    let watch = Watch::start_with(&cluster, 1);
    let calling = Calling::start(&cluster);

    // The first node is upgraded. Then the leader is killed, so the next leader is elected with one
    // vote from each version.
    let first = follower_of(&cluster, &old);
    replace(&mut cluster, first, &new);
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    calling.wait_for_service_since(Instant::now());
    cluster.nodes[leader].start();
    assert_equal(&mut cluster);

    // The second node is upgraded while a node of the old version leads. This leader also adds a
    // member that runs the new version.
    lead_with(&mut cluster, &old);
    let second = follower_of(&cluster, &old);
    replace(&mut cluster, second, &new);
    lead_with(&mut cluster, &old);
    let campaigns = Campaigns::so_far(&cluster);
    let leader = lead_with(&mut cluster, &old);
    let fourth = cluster.add_joining(4, "node-4");
    cluster.nodes[fourth].set(HELD.0, HELD.1);
    admit(&mut cluster, fourth);
    let is_same = cluster.wait_for_leader() == leader;
    let by_old = campaigns.judge(&cluster, 0, is_same, "the old one has added it");
    assert_equal(&mut cluster);
    lead_with(&mut cluster, &new);
    lead_with(&mut cluster, &old);

    // The leader is upgraded last, after it has handed leadership over. An operator's command of
    // the old program still understands the answers of new nodes.
    roll(&mut cluster, &new);
    let told = members_told_by(&cluster, old.clone());
    assert!(cluster.nodes.iter().all(|it| told.contains(&it.raft_addr().to_string())), "{told}");
    // The leader is killed and restarted. It reads a data directory that both versions have
    // written.
    let leader = cluster.wait_for_leader();
    cluster.nodes[leader].kill();
    calling.wait_for_service_since(Instant::now());
    cluster.nodes[leader].start();
    assert_equal(&mut cluster);

    // One node is downgraded. A leader of the new version adds a member that runs the old version.
    // Then a node of the old version leads. It goes on after log entries that the new version has
    // written, and removes a node of the new version.
    let back = follower_of(&cluster, &new);
    replace(&mut cluster, back, &old);
    lead_with(&mut cluster, &new);
    let campaigns = Campaigns::so_far(&cluster);
    let leader = lead_with(&mut cluster, &new);
    let fifth = cluster.add_joining(5, "node-5");
    cluster.nodes[fifth].set(HELD.0, HELD.1);
    cluster.nodes[fifth].install(old.clone());
    admit(&mut cluster, fifth);
    let is_same = cluster.wait_for_leader() == leader;
    let by_new = campaigns.judge(&cluster, 0, is_same, "the new one has added it");
    assert_equal(&mut cluster);
    lead_with(&mut cluster, &old);
    let fourth = cluster.nodes.iter().position(|node| node.id == 4).expect("a member");
    assert!(is_of(&cluster.nodes[fourth], &new));
    remove(&mut cluster, fourth);
    assert_equal(&mut cluster);

    // All nodes are downgraded one by one, and then upgraded again.
    roll(&mut cluster, &old);
    roll(&mut cluster, &new);
    assert_eq!(roles(&cluster), ["1 voter", "2 voter", "3 voter", "5 voter"]);

    // All nodes restart without the setting `FORMAT_MAX`. Now the format may rise.
    let held = format(&cluster);
    assert_eq!(held.to_string(), HELD.1);
    for index in 0..cluster.nodes.len() {
        cluster.nodes[index].unset(HELD.0);
        replace(&mut cluster, index, &new);
    }
    // It rises in steps, to the newest that all read.
    wait_until("the format rises", WAIT_MAX, || format(&cluster) == newest_format(&cluster));
    assert!(format(&cluster) > held);
    assert_equal(&mut cluster);
    assert_refused_by_format(&mut cluster, &old, &new);

    cluster.assert_well();
    calling.wait_for_service_since(Instant::now());
    let operations = calling.finish();
    assert!(operations.len() > 500, "{} calls", operations.len());
    let calls = operations.len();
    watch.finish_with(&operations);
    say(&format!("{} upgraded and downgraded under {calls} calls of the client", old.display()));
    by_old.and(by_new)
}
