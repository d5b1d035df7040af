//! `/admin`: commands of operators over HTTP. [`crate::security::authz`] has checked the caller's
//! rights before. The replica decides whether a command is allowed. This module changes nothing by
//! itself, and a `GET` never changes anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use epicepoch_core::admin::Command;
use epicepoch_core::publication::Published;
use epicepoch_core::replica::{ADVANCE_AHEAD_MAX_NS, ADVANCE_AHEAD_NS};
use epicepoch_core::state::MembershipStep;
use epicepoch_core::state::is_recordable;
use epicepoch_wire::bootstrap::{Empty, Member};
use epicepoch_wire::http::{ErrorCode, cluster_header};
use epicepoch_wire::peer_hello::{Formats, RefusalCode};
use epicepoch_wire::settings::SettingName;
use epicepoch_wire::{Epoch, NodeId};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::admin_queue::{AdminCommand, Answer, Denied, STORE};
use crate::config::{host_and_port, is_loopback};
use crate::peers::probe::{ASK_TIMEOUT, Found, ask};
use crate::shared::NodeShared;

/// How often a new node is asked before it is added.
const ASKS_MAX: usize = 10;
/// Pause between two questions to a new node.
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// The consensus plane gives up a change after this time.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The plane is stuck if its answer is late by this time.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

/// The parameters that set a cluster's settings. The last but one allows zones without a voter, and
/// the last one states which removed nodes run no more.
const SETTINGS: [&str; SettingName::ALL.len() + 2] = {
    let mut names = [FORCE; SettingName::ALL.len() + 2];
    names[SettingName::ALL.len() + 1] = STOPPED;
    let mut at = 0;
    while at < SettingName::ALL.len() {
        names[at] = SettingName::ALL[at].text();
        at += 1;
    }
    names
};
const FORCE: &str = "force";
const STOPPED: &str = "stopped";
/// Describes a node that did not answer in time.
const SILENT: &str = "no answer in time";

/// The command of an `/admin` path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admin {
    Members,
    Clock,
    Backup,
    Add,
    Promote,
    Remove,
    Transfer,
    AdvancePlan,
    Advance,
    Settings,
    Set,
}

impl Admin {
    /// Whether the command changes something. A test compares this with the table of routes.
    #[cfg(test)]
    pub(crate) const fn changes(self) -> bool {
        match self {
            Self::Members | Self::Clock | Self::Backup | Self::AdvancePlan | Self::Settings => {
                false
            }
            Self::Add
            | Self::Promote
            | Self::Remove
            | Self::Transfer
            | Self::Advance
            | Self::Set => true,
        }
    }
}

/// A parsed command of an operator.
#[derive(Debug)]
pub(crate) enum Order {
    Plain(AdminCommand),
    /// Adds a node. The node must first be asked for its data directory.
    Add {
        node: NodeId,
        raft_addr: String,
    },
}

/// Parses a path and its query.
///
/// # Errors
/// When the query is invalid; the text says what is wrong.
pub(crate) fn order(admin: Admin, query: Option<&str>) -> Result<Order, Denied> {
    let allowed: &[&str] = match admin {
        Admin::Members | Admin::Clock | Admin::Backup | Admin::Settings => &[],
        Admin::Set => &SETTINGS,
        Admin::Add => &["id", "raft_addr"],
        Admin::Promote => &["id", "remove"],
        Admin::Remove => &["id"],
        Admin::Transfer => &["to"],
        Admin::AdvancePlan | Admin::Advance => &["to", "ahead_max_ms"],
    };
    let given = parameters(query, allowed)?;
    let node = |name: &'static str| given.get(name).map(|text| node_id(name, text)).transpose();
    let required = |name: &'static str| node(name)?.ok_or_else(|| missing(name));
    Ok(match admin {
        Admin::Members => Order::Plain(AdminCommand::Members),
        Admin::Clock => Order::Plain(AdminCommand::Clock),
        Admin::Backup => Order::Plain(AdminCommand::Backup),
        Admin::Settings => Order::Plain(AdminCommand::Settings),
        Admin::Set => {
            let value = |(name, text): (&&str, &&str)| {
                Some((SettingName::named(name)?, (*text).to_owned()))
            };
            let changes: Vec<_> = given.iter().filter_map(value).collect();
            if changes.is_empty() {
                return Err(bad("a setting is missing, such as RESERVATION_MS=2000".to_owned()));
            }
            let is_forced = match given.get(FORCE) {
                None => false,
                Some(&"1") => true,
                Some(text) => return Err(bad(format!("force is {text:?}; allowed is 1"))),
            };
            let stopped = given.get(STOPPED).into_iter().flat_map(|text| text.split(','));
            let gone = stopped.map(|text| node_id(STOPPED, text)).collect::<Result<_, _>>()?;
            decided(Command::Set { changes, is_forced, gone })
        }
        Admin::Transfer => decided(Command::Transfer(node("to")?)),
        Admin::AdvancePlan | Admin::Advance => {
            let to = given.get("to").ok_or_else(|| missing("to"))?;
            let to = epoch(to).ok_or_else(|| {
                bad(format!("to is {to:?}; allowed is Unix time in nanoseconds, from 1"))
            })?;
            let allowed_ns = match given.get("ahead_max_ms") {
                Some(text) => ahead_max_ns(text).ok_or_else(|| {
                    bad(format!(
                        "ahead_max_ms is {text:?}; allowed is a number of milliseconds up to 366 days"
                    ))
                })?,
                None => ADVANCE_AHEAD_NS,
            };
            decided(Command::Advance { to, allowed_ns, is_plan: admin == Admin::AdvancePlan })
        }
        Admin::Remove => decided(Command::Change(vec![MembershipStep::Remove(required("id")?)])),
        Admin::Promote => {
            let promoted = MembershipStep::Promote(required("id")?);
            let removed = node("remove")?.map(MembershipStep::Remove);
            decided(Command::Change([promoted].into_iter().chain(removed).collect()))
        }
        Admin::Add => {
            let node = required("id")?;
            let raft_addr = *given.get("raft_addr").ok_or_else(|| missing("raft_addr"))?;
            if host_and_port(raft_addr).is_none_or(|(_, port)| port == 0)
                || !is_recordable(raft_addr)
            {
                return Err(bad(format!("raft_addr is {raft_addr:?}; allowed is host:port")));
            }
            Order::Add { node, raft_addr: raft_addr.to_owned() }
        }
    })
}

/// Checks that the request means this cluster: `named` is the value of its `epicepoch-cluster`
/// header, if it has one. This is the cluster's name, its id, or id and history as in answers.
pub(crate) fn check_cluster(
    named: Option<&[u8]>,
    published: &Published,
    name: &str,
) -> Result<(), Denied> {
    let Some(named) = named else { return Ok(()) };
    let id = published.cluster.to_string();
    let both = cluster_header(published.cluster, published.history);
    // Hexadecimal digits may be in upper case.
    let is_id = |own: &String| own.as_bytes().eq_ignore_ascii_case(named);
    if name.as_bytes() == named || is_id(&id) || is_id(&both) {
        return Ok(());
    }
    let named = String::from_utf8_lossy(named);
    let text = format!(
        "this node belongs to the cluster {name:?} with the id {id}, and not to {named:?}; nothing was \
         done: correct the addresses, or the cluster that you name"
    );
    Err(Denied::new(ErrorCode::WrongCluster, text))
}

const fn decided(command: Command) -> Order {
    Order::Plain(AdminCommand::Decide(command))
}

/// Runs a command and waits for its outcome.
pub(crate) async fn carry_out(shared: Arc<NodeShared>, order: Order) -> Answer {
    let command = match order {
        Order::Plain(command) => command,
        Order::Add { node, raft_addr } => match introduced(&shared, node, raft_addr).await? {
            Introduced::New(member) => {
                AdminCommand::Decide(Command::Change(vec![MembershipStep::AddLearner(member)]))
            }
            Introduced::Member(document) => return Ok(document),
        },
    };
    shared.admin_queue.ask(command, answer_time_max(&shared)).await
}

/// The longest time in which the consensus plane answers a command, unless it is stuck. The plane
/// gives up a handover after two election timeouts.
fn answer_time_max(shared: &NodeShared) -> Duration {
    CHANGE_TIMEOUT.max(2 * shared.config.election_timeout) + ANSWER_GRACE
}

/// The node that must be added.
enum Introduced {
    New(Member),
    /// The node was added before. This document describes the member.
    Member(Value),
}

/// Asks the node that is to be added for its data directory and its client address.
async fn introduced(
    shared: &NodeShared,
    node: NodeId,
    raft_addr: String,
) -> Result<Introduced, Denied> {
    let published = shared.core.published();
    if published.leader != Some(published.identity.node) {
        return Err(Denied::new(ErrorCode::NotLeader, "this node does not lead"));
    }
    let refused = |text: String| Err(Denied::new(ErrorCode::Refused, text));
    // The replica can refuse without asking the node. Its reason is clearer than an error from
    // asking a wrong or missing node.
    let vacancy = Command::Vacancy { node, raft_addr: raft_addr.clone() };
    let limit = answer_time_max(shared);
    let known = shared.admin_queue.ask(AdminCommand::Decide(vacancy), limit).await?;
    let own = &shared.config.raft_addr;
    if is_loopback(own) != is_loopback(&raft_addr) {
        return refused(format!(
            "node {} is reached at {own} and node {node} at {raft_addr}: one of the two is an address \
             that the other's machine cannot dial; correct RAFT_ADDR",
            shared.identity.node
        ));
    }
    let start = format!(
        "start it first, with an empty DATA_DIR, NODE_ID={node}, RAFT_ADDR={raft_addr} and JOIN={own}"
    );
    // A node refuses formats that it cannot read. Asking first prevents adding a node that would
    // then refuse for ever.
    let formats = Formats { oldest: published.format, ..shared.formats() };
    let asked = || timeout(ASK_TIMEOUT, ask(shared, node, &raft_addr, formats));
    let mut found = asked().await;
    // The node may have just started, so it is asked again.
    for _ in 1..ASKS_MAX {
        if !matches!(found, Ok(Err(_))) {
            break;
        }
        sleep(ASK_PAUSE).await;
        found = asked().await;
    }
    if !known.is_null() {
        return is_member(node, &raft_addr, known, found.unwrap_or_else(|_| Err(SILENT.into())));
    }
    match found {
        Ok(Ok(Found::Empty(empty))) if empty.bootstrapping => refused(format!(
            "node {node} at {raft_addr} waits to found a cluster of its own: restart it with JOIN={own} \
             instead of BOOTSTRAP"
        )),
        Ok(Ok(Found::Empty(empty))) if !is_recordable(&empty.client_addr) => {
            refused(format!("node {node} names no client address"))
        }
        // `Busy` is a transient refusal, so the client's command asks again until its deadline.
        Ok(Ok(Found::Empty(_))) if shared.core.published().format != published.format => {
            let text = "the format of the replicated state has risen meanwhile: repeat the command";
            Err(Denied::new(ErrorCode::Busy, text))
        }
        Ok(Ok(Found::Empty(empty))) => {
            let (store, client_addr) = (empty.store, empty.client_addr);
            Ok(Introduced::New(Member { node, store, raft_addr, client_addr }))
        }
        Ok(Ok(Found::Admitted(_))) => refused(format!(
            "node {node} at {raft_addr} belongs to a cluster already: a new member needs an empty DATA_DIR"
        )),
        Ok(Ok(Found::Refused { refusal, .. })) if refusal.code == RefusalCode::Format => {
            refused(format!(
                "node {node} at {raft_addr} does not read format {}, the format of this cluster's \
                 state: run a version there that reads it, without a lower FORMAT_MAX, and repeat the \
                 command",
                published.format
            ))
        }
        Ok(Ok(Found::Refused { refusal, .. })) => {
            refused(format!("node {node} at {raft_addr} refuses: {refusal}; {start}"))
        }
        Ok(Err(error)) => refused(format!("node {node} at {raft_addr}: {error}; {start}")),
        Err(_) => refused(format!("node {node} at {raft_addr} does not answer; {start}")),
    }
}

/// The answer to a command that adds a node a second time. It succeeds if the node at the address
/// is the member that `known` describes, and not another data directory with the same id.
fn is_member(
    node: NodeId,
    raft_addr: &str,
    mut known: Value,
    found: Result<Found, String>,
) -> Result<Introduced, Denied> {
    let store = known.as_object_mut().and_then(|known| known.remove(STORE));
    let is_it = |empty: &Empty| store == Some(format!("{:032x}", empty.store.0).into());
    let said = match found {
        // The node runs as this member already, or it has the member's data directory and has not
        // joined yet.
        Ok(Found::Admitted(_)) => return Ok(Introduced::Member(known)),
        Ok(Found::Empty(empty)) if is_it(&empty) => return Ok(Introduced::Member(known)),
        Ok(Found::Empty(_)) => {
            let text = format!(
                "node {node} cannot be added: the id is that of a member already, and what is at \
                 {raft_addr} now is another data directory: give the new node another NODE_ID"
            );
            return Err(Denied::new(ErrorCode::Refused, text));
        }
        Ok(Found::Refused { refusal, .. }) => format!("refuses: {refusal}"),
        Err(error) => format!("does not answer: {error}"),
    };
    let text = format!(
        "node {node} is a member already, and what is at {raft_addr} {said}; start it with the data \
         directory that it had, and look with: epicepoch member list"
    );
    Err(Denied::new(ErrorCode::Refused, text))
}

/// The parameters of a query. Each may be given once, and must be in `allowed`.
fn parameters<'a>(
    query: Option<&'a str>,
    allowed: &[&'static str],
) -> Result<BTreeMap<&'a str, &'a str>, Denied> {
    let mut given = BTreeMap::new();
    for pair in query.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !allowed.contains(&name) {
            let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
            return Err(bad(format!("no parameter {name:?} here; allowed: {allowed}")));
        }
        if given.insert(name, value).is_some() {
            return Err(bad(format!("{name} is given twice")));
        }
    }
    Ok(given)
}

fn node_id(name: &str, text: &str) -> Result<NodeId, Denied> {
    plain(text)
        .filter(|number| *number != 0)
        .map(NodeId)
        .ok_or_else(|| bad(format!("{name} is {text:?}; allowed is a node id from 1")))
}

/// Parses an epoch: Unix nanoseconds in plain digits, not 0.
fn epoch(text: &str) -> Option<Epoch> {
    plain(text).filter(|number| *number != 0).map(Epoch)
}

/// Parses milliseconds of plain digits into nanoseconds, up to [`ADVANCE_AHEAD_MAX_NS`].
fn ahead_max_ns(text: &str) -> Option<u64> {
    plain(text)?.checked_mul(1_000_000).filter(|ns| *ns <= ADVANCE_AHEAD_MAX_NS)
}

fn plain(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

fn missing(name: &str) -> Denied {
    bad(format!("{name} is missing"))
}

fn bad(text: String) -> Denied {
    Denied::new(ErrorCode::BadRequest, text)
}

#[cfg(test)]
mod tests {
    use epicepoch_core::publication::Identity;
    use epicepoch_wire::{BootId, ClusterId, HistoryId, StoreId};

    use super::*;

    fn refused(admin: Admin, query: &str) -> String {
        order(admin, Some(query)).expect_err(query).text
    }

    #[test]
    fn orders_say_what_they_mean() {
        let command = |admin, query| match order(admin, query) {
            Ok(Order::Plain(AdminCommand::Decide(Command::Change(steps)))) => steps,
            other => panic!("{other:?}"),
        };
        let (promote, remove) =
            (MembershipStep::Promote(NodeId(4)), MembershipStep::Remove(NodeId(2)));
        assert_eq!(command(Admin::Promote, Some("id=4")), std::slice::from_ref(&promote));
        assert_eq!(command(Admin::Promote, Some("remove=2&id=4")), [promote, remove.clone()]);
        assert_eq!(command(Admin::Remove, Some("id=2")), [remove]);
        let added = order(Admin::Add, Some("id=4&raft_addr=[::1]:60004")).expect("an order");
        assert!(
            matches!(added, Order::Add { node: NodeId(4), raft_addr } if raft_addr == "[::1]:60004")
        );
        let advance = |query| match order(Admin::Advance, Some(query)) {
            Ok(Order::Plain(AdminCommand::Decide(Command::Advance {
                to,
                allowed_ns,
                is_plan: false,
            }))) => (to.0, allowed_ns),
            other => panic!("{other:?}"),
        };
        assert_eq!(advance("to=17"), (17, ADVANCE_AHEAD_NS));
        assert_eq!(advance("to=17&ahead_max_ms=31622400000"), (17, ADVANCE_AHEAD_MAX_NS));
        let set = order(Admin::Set, Some("RESERVATION_MS=2000&LEADER_ZONES=")).expect("an order");
        let Order::Plain(AdminCommand::Decide(Command::Set { changes, is_forced: false, gone })) =
            set
        else {
            panic!("{set:?}")
        };
        let values = [(SettingName::LeaderZones, ""), (SettingName::ReservationMs, "2000")];
        assert_eq!(changes, values.map(|(name, text)| (name, text.to_owned())));
        assert_eq!(gone, []);
        let gone = order(Admin::Set, Some("MODE=quorum&stopped=3,5")).expect("an order");
        assert!(matches!(
            gone,
            Order::Plain(AdminCommand::Decide(Command::Set { gone, .. }))
                if gone == [NodeId(3), NodeId(5)]
        ));
        for name in SettingName::ALL {
            assert!(order(Admin::Set, Some(&format!("{name}=1"))).is_ok(), "{name}");
        }
        let forced = order(Admin::Set, Some("LEADER_ZONES=a&force=1")).expect("an order");
        assert!(
            matches!(
                forced,
                Order::Plain(AdminCommand::Decide(Command::Set { is_forced: true, .. }))
            ),
            "{forced:?}"
        );
        assert!(matches!(
            order(Admin::Transfer, None),
            Ok(Order::Plain(AdminCommand::Decide(Command::Transfer(None))))
        ));
    }

    #[test]
    fn a_command_for_another_cluster_is_refused() {
        let identity = Identity { node: NodeId(1), store: StoreId(1), boot: BootId(1) };
        let mut published = Published::nothing(identity);
        (published.cluster, published.history) = (ClusterId(0xabc), HistoryId(7));
        let check = |named: &str| check_cluster(Some(named.as_bytes()), &published, "prod");
        assert!(check_cluster(None, &published, "prod").is_ok());
        let id = "00000000000000000000000000000abc";
        for own in ["prod", id, &id.to_uppercase(), &format!("{id}.0000000000000007")] {
            assert!(check(own).is_ok(), "{own}");
        }
        for other in ["", "Prod", "test", "abc", &format!("{id}.0000000000000008")] {
            let denied = check(other).expect_err(other);
            assert_eq!(denied.code, ErrorCode::WrongCluster);
            assert!(
                denied.text.contains("\"prod\"") && denied.text.contains(id),
                "{}",
                denied.text
            );
        }
    }

    #[test]
    fn a_command_with_bad_parameters_is_refused() {
        for (admin, query, part) in [
            (Admin::Transfer, "to=", "to is"),
            (Admin::Transfer, "to=0", "to is"),
            (Admin::Transfer, "to=+2", "to is"),
            (Admin::Transfer, "id=2", "no parameter"),
            (Admin::Transfer, "to=2&to=3", "twice"),
            (Admin::Remove, "", "id is missing"),
            (Admin::Remove, "id=99999999999999999999", "id is"),
            (Admin::Add, "id=4", "raft_addr is missing"),
            (Admin::Add, "id=4&raft_addr=n4", "raft_addr is"),
            (Admin::Add, "id=4&raft_addr=n4:0", "raft_addr is"),
            (Admin::Members, "id=4", "allowed: none"),
            (Admin::Advance, "", "to is missing"),
            (Admin::Advance, "to=0", "to is"),
            (Admin::Advance, "to=-1", "to is"),
            (Admin::Advance, "to=1&ahead_max_ms=1h", "ahead_max_ms is"),
            (Admin::Advance, "to=1&ahead_max_ms=31622400001", "ahead_max_ms is"),
            (Admin::AdvancePlan, "to=1&force=1", "no parameter"),
            (Admin::Set, "", "a setting is missing"),
            (Admin::Set, "force=1", "a setting is missing"),
            (Admin::Set, "MAX_N=1&force=yes", "force is"),
            (Admin::Set, "MODE=quorum&stopped=", "stopped is"),
            (Admin::Set, "MODE=quorum&stopped=3,x", "stopped is"),
            (Admin::Set, "ELECTION_TIMEOUT_MS=200", "no parameter"),
            (Admin::Set, "MAX_N=1&MAX_N=2", "twice"),
            (Admin::Settings, "MAX_N=1", "allowed: none"),
        ] {
            assert!(refused(admin, query).contains(part), "{query}: {}", refused(admin, query));
        }
    }
}
