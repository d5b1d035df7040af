//! Answers to admin commands. The test decides when the replica's writes become durable.

use std::sync::Arc;

use epicepoch_core::durable::{HardState, Record, Restored};
use epicepoch_core::positions::Positions;
use epicepoch_core::publication::{Identity, Shared};
use epicepoch_core::replica::{ReplicaConfig, Report};
use epicepoch_core::state::{Command, FORMATS, State};
use epicepoch_wire::bootstrap::{Genesis, Member};
use epicepoch_wire::raft_message::Configuration;
use epicepoch_wire::{BootId, ClusterId, HistoryId, LogIndex, StoreId, Term};

use super::*;
use crate::admin_queue::AdminQueue;

const TICK_NS: u64 = 10_000_000;

struct Stage {
    replica: Replica,
    shared: Arc<Shared>,
    admin_commands: AdminCommands,
    now_ns: u64,
}

impl Stage {
    /// A replica as node 1 of these voters, with settings in its state.
    fn of(voters: &[u64]) -> Self {
        let member = |node: &u64| Member {
            node: NodeId(*node),
            store: StoreId(u128::from(*node)),
            raft_addr: format!("n{node}:1"),
            client_addr: format!("n{node}:2"),
        };
        let genesis = Genesis {
            cluster: ClusterId(9),
            history: HistoryId(1),
            members: voters.iter().map(member).collect(),
            floor: Epoch(0),
            removed: vec![],
        };
        let mut state = State { format: FORMATS.newest, ..State::new(&genesis) };
        let settings = ClusterSettings {
            epoch_interval_ms: 100,
            reservation_ms: 1_000,
            clock_offset_max_ms: 500,
            max_n: 100,
            leader_zones: vec![],
        };
        state.apply(Term(1), &Command::Settings { nonce: 0, is_seed: true, settings });
        let restored = Restored {
            hard_state: HardState { term: Term(1), vote: NodeId(0), commit: LogIndex(1) },
            record: Record {
                index: LogIndex(1),
                term: Term(1),
                configuration: Configuration {
                    voters: voters.iter().copied().map(NodeId).collect(),
                    ..Configuration::default()
                },
                data: state.encode(),
            },
            entries: vec![],
            positions: Positions::default(),
        };
        let config = ReplicaConfig {
            identity: Identity { node: NodeId(1), store: StoreId(1), boot: BootId(7) },
            seed: 5,
            election_ticks: 10,
            heartbeat_ticks: 1,
            tick_ns: TICK_NS,
            reservation_ns: 1_000_000_000,
            deadline_limit: 100,
            format_max: FORMATS.newest,
        };
        let shared = Arc::new(Shared::new(Term(0), Published::nothing(config.identity)));
        let mut replica = Replica::new(config, &restored, shared.clone()).expect("a sound disk");
        replica.handle_compared(true);
        Self { replica, shared, admin_commands: AdminCommands::default(), now_ns: 0 }
    }

    fn tick(&mut self) {
        self.now_ns += TICK_NS;
        self.replica.handle_tick(self.now_ns, self.now_ns).expect("no reason to stop");
    }

    /// Makes every write durable, and records the replica's reports.
    fn persist(&mut self) {
        while let Some(write) = self.replica.poll_write() {
            self.replica.handle_persisted(self.now_ns, write.number);
        }
        while let Some(report) = self.replica.poll_report() {
            if let Report::SettingsChanged { nonce, outcome } = report {
                self.admin_commands.record_change(nonce, &outcome);
            }
        }
        let published = self.shared.published();
        self.admin_commands.settle(&self.replica, &published, self.now_ns);
    }

    fn set(&mut self, name: SettingName, text: &str) -> oneshot::Receiver<Answer> {
        let (answer, answered) = oneshot::channel();
        let request = AdminRequest {
            command: AdminCommand::Set { changes: vec![(name, text.to_owned())], is_forced: false },
            answer,
        };
        let published = self.shared.published();
        let nothing = |_: &Replica| Value::Null;
        let at = (self.now_ns, Duration::from_millis(200));
        self.admin_commands.begin(
            request,
            &mut self.replica,
            &published,
            at,
            (nothing, nothing, Epoch(0)),
        );
        answered
    }
}

#[test]
fn a_follower_never_says_that_settings_are_as_asked() {
    let mut stage = Stage::of(&[1, 2, 3]);
    for text in ["100", "200", "no number"] {
        let answer = stage.set(SettingName::MaxN, text).try_recv().expect("an answer at once");
        assert_eq!(answer, Err(not_leader()), "{text}");
    }
}

#[test]
fn setting_the_current_values_is_done_only_once_committed() {
    let mut stage = Stage::of(&[1]);
    for _ in 0..40 {
        stage.tick();
        stage.persist();
    }
    assert_eq!(stage.shared.published().role, Role::Leader);
    let mut changed = stage.set(SettingName::MaxN, "300");
    let busy = stage.set(SettingName::MaxN, "100").try_recv().expect("an answer at once");
    assert_eq!(busy, Err(settings_denied(&SettingsError::Busy)), "the change is not committed yet");
    assert!(changed.try_recv().is_err(), "nothing is durable");
    stage.persist();
    let counts = |answer: Answer| answer.map(|it| it["settings"]["MAX_N"].clone());
    assert_eq!(counts(changed.try_recv().expect("it is done")), Ok(json!("300")));
    let mut same = stage.set(SettingName::MaxN, "300");
    assert!(same.try_recv().is_err(), "nothing is durable");
    stage.persist();
    assert_eq!(counts(same.try_recv().expect("it is done")), Ok(json!("300")));
}

/// If the answer sent the operator to another member, the operator would repeat the change.
#[test]
fn a_change_that_the_plane_took_before_it_ended_is_unsettled() {
    let answers = |command: AdminCommand| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (admin_queue, mut requests) = AdminQueue::open();
        runtime.block_on(async {
            let ended = async { drop(requests.next().await) };
            let (answer, ()) = tokio::join!(admin_queue.ask(command.clone()), ended);
            let before = answer.expect_err("no answer").code;
            // The consensus plane ends.
            drop(requests);
            (before, admin_queue.ask(command).await.expect_err("no answer").code)
        })
    };
    let taken = (ErrorCode::Unsettled, ErrorCode::ShuttingDown);
    let advance = |is_plan| AdminCommand::Advance { to: Epoch(1), allowed_ns: 0, is_plan };
    assert_eq!(answers(AdminCommand::Change(vec![MembershipStep::Promote(NodeId(4))])), taken);
    assert_eq!(answers(AdminCommand::Transfer(None)), taken);
    assert_eq!(answers(AdminCommand::Set { changes: vec![], is_forced: false }), taken);
    assert_eq!(answers(advance(false)), taken);
    let reading = (ErrorCode::ShuttingDown, ErrorCode::ShuttingDown);
    for command in [
        AdminCommand::Members,
        AdminCommand::Clock,
        AdminCommand::Backup,
        AdminCommand::Settings,
        advance(true),
    ] {
        assert_eq!(answers(command), reading);
    }
    let vacancy = AdminCommand::Vacancy { node: NodeId(4), raft_addr: "n4:1".into() };
    assert_eq!(answers(vacancy), reading);
}
