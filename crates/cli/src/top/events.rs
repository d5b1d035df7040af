//! Events of a node that need attention once there are too many: the table `EVENTS` of the page for
//! operators, row by row.

use crate::top::rates::Events;

pub(super) const LINKS: &str = "Look at the leader's disk and its links (epicepoch tune).";

/// How soon something needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Clients are affected, or soon will be.
    Now,
    Soon,
}

/// Events of a node. More than `above` of them within some minutes need attention.
pub(super) struct EventRule {
    pub(super) name: &'static str,
    pub(super) urgency: Urgency,
    pub(super) above: f64,
    pub(super) minutes: u16,
    pub(super) title: &'static str,
    pub(super) advice: &'static str,
    pub(super) of: fn(&Events) -> f64,
}

pub(super) const CHANGES: &str = "changes";

pub(super) const EVENTS: [EventRule; 9] = [
    EventRule {
        name: "overloaded",
        urgency: Urgency::Now,
        above: 0.0,
        minutes: 1,
        title: "Requests refused, because the node has too many",
        advice: "Ask for several timestamps in one request, or add processors.",
        of: |it| it.overloaded,
    },
    EventRule {
        name: CHANGES,
        urgency: Urgency::Now,
        above: 3.0,
        minutes: 10,
        title: "Changes of the leader",
        advice: "“handing leadership over” and “leadership given up” in the logs say why each time.",
        of: |it| it.leader_changes,
    },
    EventRule {
        name: "full",
        urgency: Urgency::Now,
        above: 0.0,
        minutes: 5,
        title: "Connections refused at a limit",
        advice: "Raise CONNECTIONS_MAX and LimitNOFILE=.",
        of: |it| it.full,
    },
    EventRule {
        name: "crowded",
        urgency: Urgency::Soon,
        above: 0.0,
        minutes: 5,
        title: "Connections refused, because an address has too many",
        advice: "Raise ADDRESS_CONNECTIONS_MAX.",
        of: |it| it.crowded,
    },
    EventRule {
        name: "missed",
        urgency: Urgency::Soon,
        above: 0.0,
        minutes: 5,
        title: "Reservations that took longer than half a window",
        advice: LINKS,
        of: |it| it.reservations_missed,
    },
    EventRule {
        name: "rounds",
        urgency: Urgency::Soon,
        above: 0.0,
        minutes: 5,
        title: "Confirm rounds without an answer in time",
        advice: "Check the load of the other machines, and the network between the nodes.",
        of: |it| it.rounds_timed_out,
    },
    EventRule {
        name: "dropped",
        urgency: Urgency::Soon,
        above: 300.0,
        minutes: 5,
        title: "Messages to other nodes dropped",
        advice: "The network or a node is slow.",
        of: |it| it.messages_dropped,
    },
    EventRule {
        name: "stalls",
        urgency: Urgency::Soon,
        above: 2.0,
        minutes: 5,
        title: "Stalls of this machine of 50 ms or more",
        advice: "Run less other work here, or add processors.",
        of: |it| it.stalls,
    },
    EventRule {
        name: "denied",
        urgency: Urgency::Soon,
        above: 0.0,
        minutes: 5,
        title: "Callers refused, because a right is missing",
        advice: "The log names the address.",
        of: |it| it.denied,
    },
];
