//! How a new history of a cluster begins, and the content of a backup. This module collects the
//! facts: the backup, the first members' clocks, and whether the old history still runs.
//! [`epicepoch_core::restore`] decides.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use epicepoch_core::durable::Restored;
use epicepoch_core::replica::{Replica, RestoreError};
use epicepoch_core::restore::{self, Grounds, Surroundings, WallSample};
use epicepoch_core::state::{FORMATS, State};
use epicepoch_wire::backup::{BACKUP_LEN_MAX, Backup, BackupError};
use epicepoch_wire::bootstrap::{Claim, Empty, Genesis, Member};
use epicepoch_wire::peer_hello::SharedSettings;
use epicepoch_wire::settings::ClusterSettings;
use epicepoch_wire::{ClusterId, Epoch, HistoryId, Mode, NodeId};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::{Instant, sleep};

use super::error::ConsensusError;
use super::old_members;
use super::wall::wall_ns;
use crate::config::Config;
use crate::faults::Faults;
use crate::shared::NodeShared;
use crate::storage::{OpenError, Stopped, Storage};

pub use epicepoch_core::restore::newest;

/// What an empty first member knows about the new history that it should begin: the backup, and the
/// floor that an operator has set. Without both, the node begins a new cluster.
#[derive(Debug)]
pub struct Restore {
    backup: Option<Backup>,
    by_hand: Option<Epoch>,
    /// The settings that the new history keeps from the old one.
    settings: Option<ClusterSettings>,
    /// The longest lease that the old cluster can have had, besides those that the backup names.
    lease: Duration,
    /// Whether the leases of the old history are over.
    are_leases_over: Cell<bool>,
    faults: Faults,
}

/// Why a backup cannot be used, and what to do. The caller knows which setting or flag names the
/// file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RestoreFileError {
    /// The file cannot be read. Correct the path or its permissions.
    #[error("{path} cannot be read: {cause}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The file is damaged or too new. Get another copy, or a newer version of this program.
    #[error("{path} cannot be used: {error}; get another copy", path = .path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The defect of the file.
        error: BackupError,
    },
    /// The backup belongs to a cluster with another name. Correct `CLUSTER` or `RESTORE`.
    #[error(
        "{path} is a backup of the cluster named {found:?}, and CLUSTER is {name:?}: correct \
         one of the two", path = .path.display()
    )]
    WrongName {
        /// The file.
        path: PathBuf,
        /// The name in the backup.
        found: String,
        /// The name in the settings.
        name: String,
    },
}

/// Reads the backup at `path`.
///
/// # Errors
/// When there is no backup, or it is damaged.
pub fn read_backup(path: &Path) -> Result<Backup, RestoreFileError> {
    let unreadable = |cause| RestoreFileError::Unreadable { path: path.into(), cause };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(BACKUP_LEN_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let text = std::str::from_utf8(&bytes).unwrap_or("");
    Backup::parse(text).map_err(|error| RestoreFileError::Unusable { path: path.into(), error })
}

/// Why no backup can be made from the directory of a stopped node.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoppedError {
    /// The data directory cannot be opened; the text says what to do.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// This version cannot read the state. Use the version that wrote it, or the directory of
    /// another node.
    #[error("this version cannot read the state in the data directory")]
    State(#[from] RestoreError),
    /// The cluster is in interval mode. Found a new cluster instead of a restore.
    #[error("{NO_BACKUP_OF_INTERVALS}")]
    Intervals,
}

/// Why there is no backup in interval mode.
pub(super) const NO_BACKUP_OF_INTERVALS: &str = "MODE is interval, and a backup cannot prove how far the nodes have given timestamps: a lost cluster \
     is replaced by a new one";

/// Makes a backup from the data directory of a stopped node. `reservation_ms` and
/// `clock_offset_max_ms` are the largest values that any node of its cluster has used. If the
/// replicated state has larger ones, those are used.
///
/// # Errors
/// When the directory cannot be read, or a process uses it.
pub fn backup_of_stopped(
    path: &Path,
    reservation_ms: u64,
    clock_offset_max_ms: u64,
) -> Result<Backup, StoppedError> {
    let Stopped { identity, restored, written_at } = Storage::read_stopped(path)?;
    // S13: the room for what was given after the backup counts from its state. The others may have
    // gone on for long after this node had stopped.
    let written_ns = written_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let taken_ns = wall_ns(&Faults::none()).min(written_ns);
    let name = identity.cluster;
    let around = Surroundings { name, taken_ns, reservation_ms, clock_offset_max_ms };
    let backup = restore::backup_of_directory(&restored, around)?;
    if backup.settings.as_ref().is_some_and(|it| it.mode == Mode::Interval) {
        return Err(StoppedError::Intervals);
    }
    Ok(backup)
}

/// Returns the members of the cluster in the data directory of a stopped node.
///
/// # Errors
/// When the directory cannot be read, or a process uses it.
pub fn members_of_stopped(path: &Path) -> Result<Vec<Member>, StoppedError> {
    let Stopped { identity, restored, .. } = Storage::read_stopped(path)?;
    let around = Surroundings {
        name: identity.cluster,
        taken_ns: 0,
        reservation_ms: 0,
        clock_offset_max_ms: 0,
    };
    Ok(restore::backup_of_directory(&restored, around)?.members)
}

/// The answer of another first member that is empty, when it came, and how long it took.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) node: NodeId,
    pub(super) answer: Empty,
    pub(super) took: Duration,
    pub(super) at: Instant,
}

impl Restore {
    /// Reads the settings of an empty first member, and the backup that they name.
    ///
    /// # Errors
    /// When the backup cannot be read, or belongs to another cluster.
    pub fn read(config: &Config, faults: &Faults) -> Result<Self, RestoreFileError> {
        let Some(path) = config.restore.as_ref().filter(|_| config.bootstrap) else {
            return Ok(Self::none(config, faults));
        };
        let backup = read_backup(path)?;
        if backup.name != config.cluster_name {
            let (path, found) = (path.clone(), backup.name);
            let name = config.cluster_name.clone();
            return Err(RestoreFileError::WrongName { path, found, name });
        }
        let settings = backup.settings.clone();
        Ok(Self { backup: Some(backup), settings, ..Self::none(config, faults) })
    }

    /// What a node needs of the backup if it stopped before the restored cluster had settings: only
    /// these. A backup that cannot be read, or is not of this cluster, is ignored, because a node
    /// with data needs none.
    #[must_use]
    pub fn continued(config: &Config, faults: &Faults, restored: &Restored) -> Self {
        let none = Self::none(config, faults);
        let state = State::decode_up_to(&restored.record.data, FORMATS.newest);
        let (Ok(state), Ok(Self { backup: Some(backup), .. })) =
            (state, Self::read(config, faults))
        else {
            return none;
        };
        let is_earlier = backup.cluster == state.cluster && backup.history < state.history;
        Self { settings: backup.settings.filter(|_| is_earlier), ..none }
    }

    /// The first settings of the cluster: those of the backup, or else this node's own.
    pub(super) fn first_settings(&self, config: &Config) -> ClusterSettings {
        self.settings.clone().unwrap_or_else(|| config.shared())
    }

    /// The settings of a node that does not use a backup.
    #[must_use]
    pub fn none(config: &Config, faults: &Faults) -> Self {
        Self {
            backup: None,
            by_hand: config.restore_floor,
            settings: None,
            lease: config.restore_lease,
            are_leases_over: Cell::new(false),
            faults: faults.clone(),
        }
    }

    /// The backup, floor and wall clock that this node shows to the other first members; `None`
    /// without backup and floor.
    pub(super) fn claim(&self) -> Option<Claim> {
        let backup = self.backup.as_ref().map(|backup| (backup.taken_ns, backup.checksum()));
        let is_any = backup.is_some() || self.by_hand.is_some();
        let floor = self.by_hand.unwrap_or(Epoch(0));
        is_any.then(|| Claim { backup, floor, wall_ns: wall_ns(&self.faults) })
    }

    /// Why this node cannot found a cluster with the first member `node`, whose claim is `theirs`;
    /// `None` if it can. All must have the same backup and floor.
    pub(super) fn unwilling(&self, node: NodeId, theirs: Option<Claim>) -> Option<String> {
        let told = |claim: Option<Claim>| claim.map(|claim| (claim.backup, claim.floor));
        let (ours, theirs) =
            (told(self.claim()).unwrap_or_default(), told(theirs).unwrap_or_default());
        if ours.0 != theirs.0 {
            return Some(match (ours.0, theirs.0) {
                (Some(_), Some(_)) => {
                    format!("RESTORE of node {node} is another backup: give all nodes the same one")
                }
                (_, Some(_)) => {
                    format!(
                        "node {node} has RESTORE, and this node has none: give all nodes the same one"
                    )
                }
                (_, None) => {
                    format!(
                        "node {node} has no RESTORE, and this node has one: give all nodes the same one"
                    )
                }
            });
        }
        (ours.1 != theirs.1)
            .then(|| format!("node {node} has another RESTORE_FLOOR: give all nodes the same one"))
    }

    /// Makes the genesis of a new history. All other first members were found empty.
    ///
    /// # Errors
    /// Why no history can begin. After a wait for leases, the error is a passing one: the first
    /// members and the old members have to be asked again, because they may have changed meanwhile.
    pub(super) async fn genesis(
        &self,
        shared: &Arc<NodeShared>,
        members: Vec<Member>,
        empty: &[Answered],
    ) -> Result<Genesis, ConsensusError> {
        if let Some(backup) = &self.backup {
            old_members::check(shared, backup).await?;
        }
        let config = &shared.config;
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        let wall_ns = wall_ns(&self.faults);
        let grounds = Grounds {
            by_hand: self.by_hand,
            own: (shared.identity.node, wall_ns),
            others: empty.iter().filter_map(Answered::sample).collect(),
            reservation_ns: nanos(config.reservation),
            bound_ns: nanos(config.clock_offset_max),
        };
        let floor =
            restore::floor(self.backup.as_ref(), &grounds).map_err(ConsensusError::NoFloor)?;
        let mut drawn = [0; 24];
        getrandom::fill(&mut drawn).map_err(io::Error::from)?;
        let (cluster, history) = drawn.split_at(16);
        let cluster = u128::from_le_bytes(cluster.try_into().unwrap_or_default()).max(1);
        let history = u64::from_le_bytes(history.try_into().unwrap_or_default());
        let genesis = if let Some(backup) = &self.backup {
            restore::genesis(backup, members, floor, wall_ns, history)
                .map_err(ConsensusError::NoFloor)?
        } else {
            // A new cluster draws its history id from the lower half of all numbers. The upper half
            // is left for later restores, because each restore needs a higher id.
            let (cluster, history) = (ClusterId(cluster), HistoryId(history >> 1));
            Genesis { cluster, history, members, floor, removed: Vec::new() }
        };
        // Last, so that every other reason against a new history is known before the wait.
        if self.wait_for_leases(shared).await {
            return Err(ConsensusError::AnswersTooOld);
        }
        let ahead_ms = ((i128::from(floor.0) - i128::from(wall_ns)) / 1_000_000) as i64;
        if let Some(backup) = &self.backup {
            tracing::warn!(
                cluster = %genesis.cluster,
                history = format!("{:016x}", genesis.history.0),
                ended = format!("{:016x}", backup.history.0),
                floor = floor.0,
                ahead_ms,
                "a new history of the cluster begins; epochs stand still until the clock has caught up"
            );
        } else if floor > Epoch(0) {
            tracing::warn!(floor = floor.0, ahead_ms, "a cluster begins above RESTORE_FLOOR");
        }
        Ok(genesis)
    }

    /// Waits until every lease of the old history is over (S13, S20), once. Returns whether this call
    /// has waited. A new cluster without backup and floor does not wait.
    async fn wait_for_leases(&self, shared: &NodeShared) -> bool {
        let is_due = self.backup.is_some() || self.by_hand.is_some();
        if !is_due || self.are_leases_over.get() {
            return false;
        }
        let named_ms = self.lease.as_millis() as u64;
        let lease_ms = restore::lease_longest_ms(self.backup.as_ref(), named_ms);
        let wait = Duration::from_nanos(restore::lease_wait_ns(lease_ms));
        if !wait.is_zero() {
            tracing::info!(
                wait_ms = wait.as_millis(),
                lease_ms,
                "the founder waits until the leases of the old cluster are over; if the old cluster had \
                 shorter leases or none, RESTORE_LEASE_MS shortens this wait"
            );
        }
        let end = Instant::now() + wait;
        while Instant::now() < end {
            shared.health.ticked_ns.store(shared.clock.monotonic_ns(), Ordering::Relaxed);
            sleep(LEASE_WAIT_STEP.min(end - Instant::now())).await;
        }
        self.are_leases_over.set(true);
        !wait.is_zero()
    }
}

/// While the founder waits for leases, it shows this often that it runs.
const LEASE_WAIT_STEP: Duration = Duration::from_millis(100);

impl Answered {
    fn sample(&self) -> Option<WallSample> {
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        let Claim { wall_ns, .. } = self.answer.claim?;
        let (took_ns, age_ns) = (nanos(self.took), nanos(self.at.elapsed()));
        Some(WallSample { node: self.node, wall_ns, took_ns, age_ns })
    }
}

/// The largest settings that any peer has sent since this node started. All peers count, because
/// any of them may have led, or may lead later.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LongestHeard {
    reservation_ms: u64,
    clock_offset_max_ms: u64,
}

impl LongestHeard {
    pub(super) fn record(&mut self, settings: &SharedSettings) {
        self.reservation_ms = self.reservation_ms.max(settings.reservation_ms);
        self.clock_offset_max_ms = self.clock_offset_max_ms.max(settings.clock_offset_max_ms);
    }
}

/// The document with a backup of the state that this node has applied. `taken_ns` is trusted time.
pub(super) fn document(
    shared: &NodeShared,
    replica: &Replica,
    heard: LongestHeard,
    taken_ns: u64,
) -> Value {
    // This node's own settings count, too, because it may have led before it knew the cluster's
    // settings.
    let own = shared.config.shared();
    let around = Surroundings {
        name: shared.config.cluster_name.clone(),
        taken_ns,
        reservation_ms: own.reservation_ms.max(heard.reservation_ms),
        clock_offset_max_ms: own.clock_offset_max_ms.max(heard.clock_offset_max_ms),
    };
    let backup = restore::backup(replica.state(), replica.applied(), around);
    json!({
        "nodeID": shared.identity.node.0,
        "logIndex": backup.index.0,
        "ceiling": backup.ceiling.0.to_string(),
        "voters": shared.core.published().voters.iter().map(|(node, _)| node.0).collect::<Vec<_>>(),
        "backup": backup.text(),
    })
}

/// Whether a floor may be found when the same nodes are asked again.
pub(super) fn is_passing(error: &ConsensusError) -> bool {
    match error {
        ConsensusError::NoFloor(error) => error.is_passing(),
        error => matches!(error, ConsensusError::AnswersTooOld),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use epicepoch_core::restore::FloorError;
    use epicepoch_wire::{LogIndex, Term};

    use super::super::fixture::{
        CLUSTER, HISTORY, logged, member, restored, shared, shared_with, state, voters,
    };
    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    fn backup(cluster: ClusterId, history: HistoryId) -> Backup {
        let config = Config::new(NodeId(1), "n1:1".to_owned());
        Backup {
            name: "test".to_owned(),
            cluster,
            history,
            index: LogIndex(7),
            ceiling: Epoch(1),
            taken_ns: wall_ns(&Faults::none()),
            reservation_ms: 5_000,
            clock_offset_max_ms: 500,
            lease_longest_ms: 0,
            settings: Some(ClusterSettings { max_n: 77, ..config.shared() }),
            removed: vec![],
            members: vec![],
        }
    }

    /// The settings of a first member with this backup.
    fn config(directory: &Path, backup: &Backup) -> Config {
        let path = directory.join("a.backup");
        fs::write(&path, backup.text()).expect("written");
        let mut config = Config::new(NodeId(1), "n1:1".to_owned());
        "test".clone_into(&mut config.cluster_name);
        (config.bootstrap, config.restore) = (true, Some(path));
        config
    }

    #[test]
    fn the_settings_of_a_backup_are_for_its_cluster_and_a_later_history_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let later = HistoryId(HISTORY.0 + 1);
        let earlier = HistoryId(HISTORY.0 - 1);
        for (cluster, history, is_kept) in [
            (CLUSTER, earlier, true),
            (CLUSTER, HISTORY, false),
            (CLUSTER, later, false),
            (ClusterId(8), earlier, false),
            (ClusterId(8), later, false),
        ] {
            let config = config(directory.path(), &backup(cluster, history));
            let max_n = |restore: &Restore| restore.first_settings(&config).max_n;
            let data = restored(&state(1), voters(1));
            let continued = Restore::continued(&config, &Faults::none(), &data);
            let expected = if is_kept { 77 } else { config.max_n };
            assert_eq!(max_n(&continued), expected, "{cluster:?} {history:?}");
            assert!(continued.backup.is_none(), "a node with data begins no history");
            // A node without data begins the new history with them.
            let read = Restore::read(&config, &Faults::none()).expect("a backup");
            assert_eq!(max_n(&read), 77);
        }
    }

    fn restore(backup: Option<&Backup>, floor: Option<u64>) -> Restore {
        let (backup, by_hand) = (backup.cloned(), floor.map(Epoch));
        let (lease, are_leases_over) = (Duration::ZERO, Cell::new(false));
        Restore { backup, by_hand, settings: None, lease, are_leases_over, faults: Faults::none() }
    }

    #[test]
    fn a_first_member_shows_its_backup_its_floor_or_both() {
        let backup = backup(CLUSTER, HISTORY);
        let named = (backup.taken_ns, backup.checksum());
        let before_ns = wall_ns(&Faults::none());
        for (with, floor) in [(None, Some(5)), (Some(&backup), None), (Some(&backup), Some(5))] {
            let claim = restore(with, floor).claim().expect("a claim");
            assert_eq!(claim.backup, with.map(|_| named));
            assert_eq!(claim.floor, Epoch(floor.unwrap_or(0)));
            assert!((before_ns..before_ns + HOUR_NS).contains(&claim.wall_ns));
        }
        assert_eq!(restore(None, None).claim(), None);
    }

    #[test]
    fn first_members_found_a_cluster_only_with_one_backup_and_one_floor() {
        let one = backup(CLUSTER, HISTORY);
        let other = backup(CLUSTER, HistoryId(HISTORY.0 + 1));
        let unwilling = |ours: &Restore, theirs: &Restore| {
            ours.unwilling(NodeId(2), theirs.claim()).unwrap_or_default()
        };
        let none = restore(None, None);
        for same in [&none, &restore(Some(&one), None), &restore(Some(&one), Some(5))] {
            assert_eq!(unwilling(same, same), "");
        }
        let (one, other) = (restore(Some(&one), None), restore(Some(&other), None));
        for (ours, theirs, text) in [
            (&one, &other, "RESTORE of node 2 is another backup"),
            (&none, &one, "node 2 has RESTORE, and this node has none"),
            (&one, &none, "node 2 has no RESTORE, and this node has one"),
            (&restore(None, Some(5)), &restore(None, Some(6)), "node 2 has another RESTORE_FLOOR"),
            (&none, &restore(None, Some(6)), "node 2 has another RESTORE_FLOOR"),
        ] {
            let why = unwilling(ours, theirs);
            assert!(why.starts_with(text), "{why}");
        }
    }

    fn block_on<T>(made: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        tokio::task::LocalSet::new().block_on(&runtime.expect("a runtime"), made)
    }

    fn genesis(restore: &Restore, empty: &[Answered]) -> Result<Genesis, ConsensusError> {
        block_on(restore.genesis(&shared(), vec![member(1), member(2)], empty))
    }

    #[test]
    fn a_new_cluster_warns_of_a_floor_and_leaves_history_ids_for_restores() {
        let mut made = None;
        assert_eq!(logged(|| made = genesis(&restore(None, None), &[]).ok()), Vec::<String>::new());
        assert_eq!(made.expect("a cluster").floor, Epoch(0));
        let floor = wall_ns(&Faults::none()) + HOUR_NS;
        let line = logged(|| drop(genesis(&restore(None, Some(floor)), &[]))).concat();
        let begins = format!("WARN a cluster begins above RESTORE_FLOOR floor={floor} ahead_ms=");
        let ahead_ms = line.strip_prefix(&begins).and_then(|it| it.parse::<u64>().ok());
        assert!(ahead_ms.is_some_and(|it| (3_000_000..=3_600_000).contains(&it)), "{line}");
        for _ in 0..30 {
            let genesis = genesis(&restore(None, None), &[]).expect("a cluster");
            assert!(genesis.history.0 <= u64::MAX / 2, "{genesis:?}");
        }
    }

    /// The founder has a backup, a floor, or both. Meanwhile first and old members may change, so they
    /// are asked again. The wait is not repeated.
    #[test]
    fn a_founder_waits_once_for_leases_of_the_old_history_and_then_asks_again() {
        let backup = backup(CLUSTER, HISTORY);
        for (with, floor) in [(None, Some(5)), (Some(&backup), None), (Some(&backup), Some(5))] {
            let restore = Restore { lease: Duration::from_millis(80), ..restore(with, floor) };
            let start = Instant::now();
            let mut first = None;
            let lines = logged(|| first = Some(genesis(&restore, &[]))).concat();
            assert!(start.elapsed() >= Duration::from_millis(100), "{floor:?}");
            assert!(lines.contains("wait_ms=100 lease_ms=80"), "{lines}");
            let error = first.expect("an answer").expect_err("the answers are old");
            assert!(is_passing(&error), "{error}");
            let lines = logged(|| drop(genesis(&restore, &[]).expect("a history"))).concat();
            assert!(!lines.contains("the founder waits"), "{lines}");
        }
        // A cluster that continues nothing waits for nothing.
        let new = Restore { lease: Duration::from_mins(1), ..restore(None, None) };
        assert!(genesis(&new, &[]).is_ok());
        // The backup names a longer lease.
        let of_leases = Backup { lease_longest_ms: 40, ..backup };
        assert!(genesis(&restore(Some(&of_leases), None), &[]).is_err());
    }

    #[test]
    fn no_history_begins_while_the_clocks_of_first_members_disagree() {
        let backup = backup(CLUSTER, HISTORY);
        let answered = |wall_ns, took| {
            let claim = Claim { wall_ns, ..restore(Some(&backup), None).claim().expect("a claim") };
            let answer = Empty {
                store: member(2).store,
                client_addr: "n2:2".to_owned(),
                bootstrapping: true,
                peers: vec![],
                claim: Some(claim),
            };
            Answered { node: NodeId(2), answer, took, at: Instant::now() }
        };
        let with =
            |wall_ns, took| genesis(&restore(Some(&backup), None), &[answered(wall_ns, took)]);
        let now_ns = wall_ns(&Faults::none());
        let begun = with(now_ns, Duration::ZERO).expect("the clocks agree");
        assert_eq!(begun.cluster, CLUSTER);
        let apart = with(now_ns + HOUR_NS, Duration::ZERO).expect_err("an hour ahead");
        assert!(matches!(apart, ConsensusError::NoFloor(FloorError::ClocksDisagree { .. })));
        assert!(!is_passing(&apart));
        let slow = with(now_ns, Duration::from_secs(1)).expect_err("a slow answer proves nothing");
        assert!(matches!(slow, ConsensusError::NoFloor(FloorError::SlowAnswer { .. })));
        assert!(is_passing(&slow));
    }

    /// The node has heard of longer settings than its own, then of shorter ones.
    #[test]
    fn a_backup_has_the_longest_settings_of_all_nodes() {
        let shared = shared_with(|config| {
            config.reservation = Duration::from_secs(2);
            config.clock_offset_max = Duration::from_millis(400);
        });
        let mut heard = LongestHeard::default();
        let replica = super::super::fixture::leader();
        let taken = |heard: LongestHeard| {
            let document = document(&shared, &replica, heard, 1_234);
            assert_eq!(document["nodeID"], 1);
            assert_eq!(document["logIndex"], replica.applied().0);
            assert_eq!(document["ceiling"], replica.ceiling().0.to_string());
            let backup = Backup::parse(document["backup"].as_str().unwrap_or_default());
            backup.expect("a backup")
        };
        let own = taken(heard);
        assert_eq!((own.name.as_str(), own.cluster, own.history), ("test", CLUSTER, HISTORY));
        assert_eq!((own.taken_ns, own.members), (1_234, vec![member(1)]));
        assert_eq!((own.reservation_ms, own.clock_offset_max_ms), (2_000, 400));
        let term = replica.status().term;
        assert!(term > Term(1), "it was elected");
        let hello = shared.hello(epicepoch_wire::peer_hello::LinkKind::Raft, NodeId(2)).settings;
        for (reservation_ms, clock_offset_max_ms) in [(9_000, 300), (8_000, 700), (1, 1)] {
            heard.record(&SharedSettings { reservation_ms, clock_offset_max_ms, ..hello });
        }
        let backup = taken(heard);
        assert_eq!((backup.reservation_ms, backup.clock_offset_max_ms), (9_000, 700));
    }
}
