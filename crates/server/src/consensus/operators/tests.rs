//! What operators are told of settings, by replicas whose writes become durable when the story says so.

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

const TICK_NS: u64 = 10_000_000;

struct Stage {
    replica: Replica,
    shared: Arc<Shared>,
    operators: Operators,
    now_ns: u64,
}

impl Stage {
    /// Node 1 of these voters, with settings in its state.
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
        Self { replica, shared, operators: Operators::default(), now_ns: 0 }
    }

    fn tick(&mut self) {
        self.now_ns += TICK_NS;
        self.replica.handle_tick(self.now_ns, self.now_ns).expect("no reason to stop");
    }

    /// All that was written is durable, and what follows from it is told.
    fn persist(&mut self) {
        while let Some(write) = self.replica.poll_write() {
            self.replica.handle_persisted(self.now_ns, write.number);
        }
        while let Some(report) = self.replica.poll_report() {
            if let Report::SettingsChanged { nonce, outcome } = report {
                self.operators.note_change(nonce, &outcome);
            }
        }
        let published = self.shared.published();
        self.operators.settle(&self.replica, &published, self.now_ns);
    }

    fn set(&mut self, name: SettingName, text: &str) -> oneshot::Receiver<Answer> {
        let (answer, answered) = oneshot::channel();
        let asked = Asked {
            wish: Wish::Set { changes: vec![(name, text.to_owned())], is_forced: false },
            answer,
        };
        let published = self.shared.published();
        let nothing = |_: &Replica| Value::Null;
        let at = (self.now_ns, Duration::from_millis(200));
        self.operators.take(asked, &mut self.replica, &published, at, (nothing, nothing, Epoch(0)));
        answered
    }
}

#[test]
fn who_does_not_lead_does_not_say_that_settings_are_as_asked() {
    let mut stage = Stage::of(&[1, 2, 3]);
    for text in ["100", "200", "no number"] {
        let answer = stage.set(SettingName::MaxN, text).try_recv().expect("an answer at once");
        assert_eq!(answer, Err(not_leader()), "{text}");
    }
}

#[test]
fn settings_that_count_already_are_done_only_once_they_are_committed() {
    let mut stage = Stage::of(&[1]);
    for _ in 0..40 {
        stage.tick();
        stage.persist();
    }
    assert_eq!(stage.shared.published().role, Role::Leader);
    let mut changed = stage.set(SettingName::MaxN, "300");
    let busy = stage.set(SettingName::MaxN, "100").try_recv().expect("an answer at once");
    assert_eq!(busy, Err(settings_denied(&SettingsError::Busy)), "the change may come yet");
    assert!(changed.try_recv().is_err(), "nothing is durable");
    stage.persist();
    let counts = |answer: Answer| answer.map(|it| it["settings"]["MAX_N"].clone());
    assert_eq!(counts(changed.try_recv().expect("it is done")), Ok(json!("300")));
    let mut same = stage.set(SettingName::MaxN, "300");
    assert!(same.try_recv().is_err(), "nothing is durable");
    stage.persist();
    assert_eq!(counts(same.try_recv().expect("it is done")), Ok(json!("300")));
}

/// Whoever is told to ask another member would have it done twice.
#[test]
fn what_changes_something_is_not_known_to_be_undone_when_the_plane_ends_with_it() {
    let told = |wish: Wish| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (desk, mut asks) = Desk::open();
        runtime.block_on(async {
            let ended = async { drop(asks.next().await) };
            let (answer, ()) = tokio::join!(desk.ask(wish.clone()), ended);
            let before = answer.expect_err("nobody answers").code;
            // The plane is gone, and takes nothing.
            drop(asks);
            (before, desk.ask(wish).await.expect_err("nobody answers").code)
        })
    };
    let taken = (ErrorCode::Unsettled, ErrorCode::ShuttingDown);
    let advance = |is_plan| Wish::Advance { to: Epoch(1), allowed_ns: 0, is_plan };
    assert_eq!(told(Wish::Change(vec![MembershipStep::Promote(NodeId(4))])), taken);
    assert_eq!(told(Wish::Transfer(None)), taken);
    assert_eq!(told(Wish::Set { changes: vec![], is_forced: false }), taken);
    assert_eq!(told(advance(false)), taken);
    let looked = (ErrorCode::ShuttingDown, ErrorCode::ShuttingDown);
    for wish in [Wish::Members, Wish::Clock, Wish::Backup, Wish::Settings, advance(true)] {
        assert_eq!(told(wish), looked);
    }
    let vacancy = Wish::Vacancy { node: NodeId(4), raft_addr: "n4:1".into() };
    assert_eq!(told(vacancy), looked);
}
