//! The admin commands of simulated nodes, handled as the server's consensus plane handles them: the
//! core decides and keeps each command until its answer is due.

use epicepoch_core::admin::{Answer, Answered, Command, Denied, Done};
use epicepoch_core::replica::Report;
use epicepoch_wire::NodeId;

use crate::history::orders::Teller;
use crate::world::World;

impl World {
    /// A command arrives at a running node. Returns the answer if the node answers at once.
    pub(crate) fn command(&mut self, id: NodeId, command: Command) -> Option<Answer> {
        self.settle(id);
        self.record(|| format!("{id} is asked for {command:?}"));
        self.nemesis.nonce += 1;
        let nonce = self.nemesis.nonce;
        let asked = self.history.ordered(nonce);
        self.monitor.is_asked(id, nonce);
        let now_ns = self.monotonic_ns(id);
        let running = self.node(id).running_mut();
        let (admin, stamped) = (&mut running.admin_commands, running.stamper.epoch());
        let replica = running.consensus.replica_mut();
        admin.handle_command(now_ns, asked, command, nonce, stamped, replica);
        let mut own = None;
        while let Some((of, answer)) = self.answer_operator(id) {
            own = own.or_else(|| (of == nonce).then_some(answer));
        }
        self.pump(id);
        own
    }

    /// Passes a report of the replica to the admin commands that wait for such a report.
    pub(crate) fn report_to_operators(&mut self, id: NodeId, report: &Report) {
        let admin = &mut self.nodes[id.0 as usize - 1].running_mut().admin_commands;
        match report {
            Report::Changed { nonce, outcome } | Report::SettingsChanged { nonce, outcome } => {
                admin.handle_outcome(*nonce, outcome);
                self.history.check_outcome(id, *nonce, outcome);
            }
            Report::Advanced { to } => admin.handle_advanced(*to),
            _ => {}
        }
    }

    /// Gives the next answer that is due. Returns it with the nonce of its command.
    pub(crate) fn answer_operator(&mut self, id: NodeId) -> Option<(u64, Answer)> {
        let now_ns = self.monotonic_ns(id);
        let running = self.nodes[id.0 as usize - 1].running_mut();
        let replica = running.consensus.replica();
        let answered = running.admin_commands.poll_answer(now_ns, replica)?;
        let Answered { reply: asked, answer, .. } = answered;
        let term = running.shared.published().term;
        let by = Teller { node: id, term, applied: running.applied };
        self.record(|| format!("{by:?} tells {asked:?} {answer:?}"));
        self.count(match &answer {
            Ok(
                Done::Transferred { is_already: true, .. }
                | Done::Changed { is_already: true, .. }
                | Done::Member { .. },
            ) => "operator told: already so",
            Ok(_) => "operator told: done",
            Err(Denied::Unsettled(_)) => "operator told: not known",
            Err(_) => "operator told: denied",
        });
        self.history.check_told(by, asked, &answer);
        let is_already = matches!(
            answer,
            Ok(Done::Transferred { is_already: true, .. }
                | Done::Changed { is_already: true, .. }
                | Done::Member { .. })
        );
        if is_already {
            self.monitor.says_already(id, asked.nonce);
        }
        if let Ok(Done::Advanced(advance)) = &answer {
            self.monitor.advances(id, advance.to);
        }
        Some((asked.nonce, answer))
    }
}
