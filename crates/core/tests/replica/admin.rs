//! Admin commands: what is accepted, and when each is answered (S17). The test decides when a write
//! is durable and who acknowledges it.

use epicepoch_core::admin::{AdminCommands, Answer, Command, Denied, Done, Unsettled};
use epicepoch_core::publication::Role;
use epicepoch_core::replica::{ChangeError, Report, SettingsError, TransferError};
use epicepoch_core::state::{FORMAT_OF_SETTINGS, FORMATS, MembershipStep};
use epicepoch_wire::raft_message::MessageKind;
use epicepoch_wire::settings::{ClusterSettings, SettingName};
use epicepoch_wire::{Epoch, Guarantee, LogIndex, Mode, NodeId, StoreId, TimestampFormat};

use crate::support::bench::{Bench, genesis, message};
use crate::support::disk::Disk;
use crate::support::{ELECTION_TICKS, TICK_NS, member};

const SECOND_NS: u64 = 1_000_000_000;

/// An operator at a replica. Commands are numbered; a command's number is its nonce.
struct Queue {
    bench: Bench,
    commands: AdminCommands<u64>,
    asked: u64,
    stamped: Epoch,
    answers: Vec<(u64, Answer)>,
}

impl Queue {
    fn of(bench: Bench) -> Self {
        let commands = AdminCommands::default();
        Self { bench, commands, asked: 0, stamped: Epoch(0), answers: vec![] }
    }

    /// Gives a command. Returns its number.
    fn ask(&mut self, command: Command) -> u64 {
        self.asked += 1;
        let (now_ns, number) = (self.bench.now_ns, self.asked);
        let replica = &mut self.bench.replica;
        self.commands.handle_command(now_ns, number, command, number, self.stamped, replica);
        self.bench.drain();
        number
    }

    /// The answer to a command, if it was given.
    fn answer(&mut self, to: u64) -> Option<Answer> {
        for report in std::mem::take(&mut self.bench.reports) {
            match report {
                Report::Changed { nonce, outcome } | Report::SettingsChanged { nonce, outcome } => {
                    self.commands.handle_outcome(nonce, &outcome);
                }
                Report::Advanced { to } => self.commands.handle_advanced(to),
                _ => {}
            }
        }
        let now_ns = self.bench.now_ns;
        while let Some(it) = self.commands.poll_answer(now_ns, &self.bench.replica) {
            self.answers.push((it.reply, it.answer));
        }
        let at = self.answers.iter().position(|(number, _)| *number == to)?;
        Some(self.answers.remove(at).1)
    }

    fn now(&mut self, command: Command) -> Option<Answer> {
        let number = self.ask(command);
        self.answer(number)
    }

    /// Another leader of a higher term is heard.
    fn depose(&mut self, leader: u64) {
        let term = self.bench.status().term.0 + 1;
        self.bench.take(leader, &message(MessageKind::Heartbeat, term)).expect("it is taken");
    }
}

fn remove(node: u64) -> Command {
    Command::Change(vec![MembershipStep::Remove(NodeId(node))])
}

fn promote(node: u64) -> Command {
    Command::Change(vec![MembershipStep::Promote(NodeId(node))])
}

fn add(node: u64) -> Command {
    let member = member(NodeId(node), StoreId(u128::from(node) + 100));
    Command::Change(vec![MembershipStep::AddLearner(member)])
}

fn set(name: SettingName, text: &str) -> Command {
    Command::Set { changes: vec![(name, text.to_owned())], is_forced: false, gone: vec![] }
}

fn advance(to: u64) -> Command {
    Command::Advance { to: Epoch(to), allowed_ns: 3_600 * SECOND_NS, is_plan: false }
}

/// Commands that ask for what the cluster already has when node 1 leads it.
fn repeated() -> Vec<Command> {
    let raft_addr = member(NodeId(2), StoreId(102)).raft_addr;
    vec![
        promote(2),
        Command::Transfer(Some(NodeId(1))),
        Command::Vacancy { node: NodeId(2), raft_addr },
    ]
}

const fn says_already(done: &Done) -> bool {
    matches!(
        done,
        Done::Changed { is_already: true, .. }
            | Done::Transferred { is_already: true, .. }
            | Done::Member { .. }
    )
}

/// Another node may have become the leader in the meantime.
#[test]
fn a_leader_answers_already_only_after_a_quorum_has_confirmed_its_lead() {
    for command in repeated() {
        let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
        let number = queue.ask(command.clone());
        queue.bench.persist();
        assert_eq!(queue.answer(number), None, "{command:?}: nobody else has acknowledged it");
        assert!(!queue.commands.is_idle());
        queue.bench.ack_all(3);
        let done = queue.answer(number).expect("it is confirmed").expect("it is so");
        assert!(says_already(&done), "{done:?}");
        assert!(queue.commands.is_idle());
    }
}

/// A deposed leader may hold an old state.
#[test]
fn a_deposed_leader_never_says_that_something_is_so_already() {
    for command in repeated() {
        let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
        let number = queue.ask(command.clone());
        queue.depose(2);
        assert_eq!(queue.answer(number), Some(Err(Denied::NotLeader)), "{command:?}");
        // A leader that is not deposed, but hears no quorum, answers when its limit of 5 s has
        // passed.
        let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
        let number = queue.ask(command);
        queue.bench.now_ns += 5 * SECOND_NS - 1;
        assert_eq!(queue.answer(number), None);
        queue.bench.now_ns += 1;
        assert_eq!(queue.answer(number), Some(Err(Denied::Unconfirmed)));
    }
}

/// The barrier of the earlier term proves nothing about the time between the two.
#[test]
fn a_leader_that_was_replaced_and_leads_again_does_not_say_already() {
    for command in repeated() {
        let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
        let number = queue.ask(command.clone());
        queue.bench.persist();
        queue.depose(2);
        queue.bench.elect(&[2, 3]);
        queue.bench.persist();
        queue.bench.ack_all(2);
        assert!(queue.bench.is_leader() && queue.bench.status().applied > LogIndex(2));
        assert_eq!(queue.answer(number), Some(Err(Denied::NotLeader)), "{command:?}");
    }
}

#[test]
fn a_removal_that_is_done_is_confirmed_like_any_other_answer() {
    let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
    queue.bench.beats(1, &[2, 3]);
    let number = queue.ask(remove(3));
    queue.bench.ack_all(2);
    let done = |is_already| {
        let steps = vec![MembershipStep::Remove(NodeId(3))];
        Some(Ok(Done::Changed { steps, is_already }))
    };
    assert_eq!(queue.answer(number), done(false));
    let number = queue.ask(remove(3));
    assert_eq!(queue.answer(number), None, "nobody has acknowledged it");
    queue.bench.ack_all(2);
    assert_eq!(queue.answer(number), done(true));
    // While a change is under way, no command is answered with "already".
    let pending = queue.ask(add(4));
    assert_eq!(queue.now(promote(2)), Some(Err(ChangeError::Busy.into())));
    let raft_addr = member(NodeId(2), StoreId(102)).raft_addr;
    let vacancy = Command::Vacancy { node: NodeId(2), raft_addr };
    assert_eq!(queue.now(vacancy), Some(Err(ChangeError::Busy.into())));
    queue.bench.ack_all(2);
    assert!(matches!(queue.answer(pending), Some(Ok(Done::Changed { is_already: false, .. }))));
}

#[test]
fn a_change_of_members_is_done_when_a_quorum_has_it_and_unsettled_when_time_is_up() {
    let unsettled = Some(Err(Denied::Unsettled(Unsettled::Members)));
    let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
    let number = queue.ask(add(4));
    queue.bench.persist();
    assert_eq!(queue.answer(number), None, "it is proposed and no more");
    // The node loses leadership. The change may still be committed, so the operator gets an answer
    // only when the limit of 5 s has passed.
    queue.depose(2);
    assert_eq!(queue.answer(number), None);
    queue.bench.now_ns += 5 * SECOND_NS;
    assert_eq!(queue.answer(number), unsettled);
}

#[test]
fn an_advance_that_is_not_reserved_when_leadership_is_lost_is_unsettled() {
    let unsettled = Some(Err(Denied::Unsettled(Unsettled::Advance)));
    let beyond = |bench: &Bench| bench.shared.published().grant.expect("it serves").range.high.0;
    let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
    let number = queue.ask(advance(beyond(&queue.bench) + SECOND_NS));
    queue.bench.persist();
    assert_eq!(queue.answer(number), None, "nobody has acknowledged its reservation");
    queue.depose(2);
    assert_eq!(queue.answer(number), unsettled);
    // No follower answers the leader. After 5 s, the outcome of the advance is unknown.
    let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
    let number = queue.ask(advance(beyond(&queue.bench) + SECOND_NS));
    queue.bench.now_ns += 5 * SECOND_NS;
    assert_eq!(queue.answer(number), unsettled);
    // If a quorum answers, the advance is done.
    let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
    let to = beyond(&queue.bench) + SECOND_NS;
    let number = queue.ask(advance(to));
    for _ in 0..3 {
        queue.bench.ack_all(2);
        queue.bench.beats(1, &[2]);
    }
    let done = queue.answer(number).expect("it is done").expect("it is done");
    assert!(matches!(done, Done::Advanced(it) if it.to == Epoch(to)), "{done:?}");
}

#[test]
fn an_advance_below_a_timestamp_that_was_given_is_done_and_moves_nothing() {
    let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
    let range = queue.bench.shared.published().grant.expect("it serves").range;
    queue.stamped = Epoch(range.low.0 + 100);
    let done = queue.now(advance(range.low.0 + 99)).expect("an answer").expect("it is done");
    assert!(matches!(done, Done::Advanced(it) if it.is_done), "{done:?}");
    // Other timestamps of the same epoch may still be given.
    for to in [queue.stamped, range.high] {
        let is_plan = Command::Advance { to, allowed_ns: SECOND_NS, is_plan: true };
        let plan = queue.now(is_plan).expect("an answer").expect("a plan");
        assert!(matches!(plan, Done::Planned(it) if !it.is_done), "{plan:?}");
    }
    assert_eq!(queue.bench.shared.published().grant.expect("it serves").range, range);
}

#[test]
fn a_transfer_is_done_when_the_successor_is_heard_as_the_leader() {
    let transfer = || Command::Transfer(Some(NodeId(2)));
    let led = || {
        let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
        queue.bench.beats(1, &[2, 3]);
        let number = queue.ask(transfer());
        assert_eq!(queue.answer(number), None);
        let busy = queue.now(Command::Transfer(Some(NodeId(1))));
        assert_eq!(busy, Some(Err(TransferError::Busy.into())));
        (queue, number)
    };
    let (mut queue, number) = led();
    queue.depose(2);
    let done = queue.answer(number).expect("it leads").expect("it leads");
    let Done::Transferred { to: NodeId(2), before: NodeId(1), is_already: false, .. } = done else {
        panic!("{done:?}")
    };
    let (mut queue, number) = led();
    queue.depose(3);
    let denied = Denied::OtherLeads { leader: NodeId(3), to: NodeId(2) };
    assert_eq!(queue.answer(number), Some(Err(denied)));
    let (mut queue, number) = led();
    queue.bench.beats(2 * ELECTION_TICKS, &[2, 3]);
    let denied = Denied::NotTaken { to: NodeId(2), me: NodeId(1) };
    assert_eq!(queue.answer(number), Some(Err(denied)));
    let (mut queue, number) = led();
    queue.bench.now_ns += 2 * ELECTION_TICKS as u64 * TICK_NS - 1;
    assert_eq!(queue.answer(number), None);
    queue.bench.now_ns += 1;
    let unsettled = Denied::Unsettled(Unsettled::Members);
    assert_eq!(queue.answer(number), Some(Err(unsettled)), "no leader is heard in time");
}

#[test]
fn an_id_that_a_member_has_is_taken_for_every_other_address() {
    let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
    let raft_addr = member(NodeId(2), StoreId(102)).raft_addr;
    let vacancy = Command::Vacancy { node: NodeId(2), raft_addr: "elsewhere:1".to_owned() };
    let taken = Denied::IdTaken { node: NodeId(2), raft_addr };
    assert_eq!(queue.now(vacancy), Some(Err(taken)));
}

#[test]
fn what_a_command_may_have_done_is_unsettled_and_a_question_may_be_asked_elsewhere() {
    let is_plan = Command::Advance { to: Epoch(1), allowed_ns: 1, is_plan: true };
    let vacancy = Command::Vacancy { node: NodeId(4), raft_addr: "n4:1".to_owned() };
    for (command, unsettled) in [
        (is_plan, None),
        (vacancy, None),
        (advance(1), Some(Unsettled::Advance)),
        (Command::Transfer(None), Some(Unsettled::Members)),
        (remove(2), Some(Unsettled::Members)),
        (set(SettingName::MaxN, "1"), Some(Unsettled::Settings)),
    ] {
        assert_eq!(command.unsettled(), unsettled, "{command:?}");
    }
}

/// Whether the settings cannot be known yet, or never in this format.
#[test]
fn without_settings_the_answer_says_why() {
    for (format, expected) in [
        (FORMAT_OF_SETTINGS - 1, SettingsError::Format { format: FORMAT_OF_SETTINGS - 1 }),
        (FORMAT_OF_SETTINGS, SettingsError::NotSeeded { not_reading: vec![] }),
        (FORMATS.newest, SettingsError::NotSeeded { not_reading: vec![] }),
    ] {
        let mut queue = Queue::of(Bench::made(Disk::genesis(&genesis(&[1, 2, 3])), |config| {
            config.format_max = format;
        }));
        queue.bench.elect(&[2, 3]);
        queue.bench.persist();
        queue.bench.report_formats(&[2, 3], format);
        for _ in 0..8 * ELECTION_TICKS {
            queue.bench.beats(1, &[2, 3]);
            queue.bench.ack_all(2);
            queue.bench.ack_all(3);
        }
        assert_eq!(queue.bench.replica.state().format, format);
        let answer = queue.now(set(SettingName::MaxN, "100"));
        assert_eq!(answer, Some(Err(expected.into())), "{format}");
    }
}

/// Node 1 as the leader of these voters, with settings in its state.
fn with_settings(voters: &[u64]) -> Queue {
    let disk = Disk::genesis(&genesis(voters));
    let mut bench = Bench::reading(disk, FORMATS.newest);
    bench.replica.seed_settings(ClusterSettings {
        epoch_interval_ms: 100,
        reservation_ms: 1_000,
        clock_offset_max_ms: 500,
        max_n: 100,
        leader_zones: vec![],
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode: Mode::Quorum,
    });
    Queue::of(bench)
}

/// Only the leader knows the current settings.
#[test]
fn a_follower_never_says_that_settings_are_as_asked() {
    let mut queue = with_settings(&[1, 2, 3]);
    for text in ["100", "200", "no number"] {
        let answer = queue.now(set(SettingName::MaxN, text));
        assert_eq!(answer, Some(Err(Denied::NotLeader)), "{text}");
    }
}

#[test]
fn setting_the_current_values_is_done_only_once_committed() {
    let mut queue = with_settings(&[1]);
    for _ in 0..100 {
        queue.bench.tick();
        queue.bench.persist();
    }
    assert_eq!(queue.bench.shared.published().role, Role::Leader);
    let changed = queue.ask(set(SettingName::MaxN, "300"));
    let busy = queue.now(set(SettingName::MaxN, "100"));
    let expected = Some(Err(SettingsError::Busy.into()));
    assert_eq!(busy, expected, "the change is not committed yet");
    let wrong = queue.now(set(SettingName::MaxN, "no number")).expect("an answer");
    assert!(matches!(wrong, Err(Denied::NotAllowed { .. })), "{wrong:?}");
    assert_eq!(queue.answer(changed), None, "nothing is durable");
    queue.bench.persist();
    let is_done = Some(Ok(Done::Set { doubt: None }));
    assert_eq!(queue.answer(changed), is_done);
    assert_eq!(queue.bench.replica.settings().map(|it| it.max_n), Some(300));
    let same = queue.ask(set(SettingName::MaxN, "300"));
    assert_eq!(queue.answer(same), None, "nothing is durable");
    queue.bench.persist();
    assert_eq!(queue.answer(same), is_done);
}

#[test]
fn too_many_commands_at_once_are_denied_and_change_nothing() {
    let mut queue = Queue::of(Bench::led(&[1, 2, 3]));
    let last = queue.bench.status().last.0;
    for _ in 0..16 {
        assert_eq!(queue.now(promote(2)), None);
    }
    assert_eq!(queue.now(promote(2)), Some(Err(Denied::Overloaded)));
    assert_eq!(queue.bench.status().last.0, last + 16);
    queue.bench.ack_all(2);
    let number = queue.ask(promote(2));
    queue.answer(number);
    assert_eq!(queue.answers.len(), 16, "all others are answered");
}
