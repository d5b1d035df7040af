//! The `/status` of a node, as `epicepoch top` reads it.

use serde_json::Value;

/// A member answers five pings a second. It counts as silent after this time.
pub(super) const SILENT_MS: f64 = 1_500.0;
/// A stall of a machine that is at least this long is counted.
const STALL_MS: f64 = 50.0;

/// The `/status` of a node.
#[derive(Clone, Debug)]
pub(super) struct Status(pub(super) Value);

impl Status {
    /// A number; 0 if the node does not say it.
    pub(super) fn number(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or(0.0)
    }

    /// A text; empty if the node does not say it.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    /// A number among the settings of this group.
    pub(super) fn setting(&self, group: &str, name: &str) -> Option<f64> {
        let value = &self.0[group][name];
        value.as_f64().or_else(|| value.as_str()?.parse().ok())
    }

    pub(super) fn is(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or(false)
    }

    pub(super) fn node(&self) -> u64 {
        self.0["nodeID"].as_u64().unwrap_or(0)
    }

    /// The node id of the leader that the node knows.
    pub(super) fn leader(&self) -> Option<u64> {
        self.0["leader"]["nodeID"].as_u64()
    }

    pub(super) fn members(&self) -> &[Value] {
        self.0["members"].as_array().map_or(&[], Vec::as_slice)
    }

    pub(super) fn certificates(&self) -> &[Value] {
        self.0["certificates"].as_array().map_or(&[], Vec::as_slice)
    }

    pub(super) fn counter(&self, name: &str) -> f64 {
        self.0["counters"][name].as_f64().unwrap_or(0.0)
    }

    pub(super) fn refused(&self, code: &str) -> f64 {
        self.0["refusals"][code].as_f64().unwrap_or(0.0)
    }

    /// Stalls of the machine that were long enough to count.
    pub(super) fn stalls(&self) -> f64 {
        let bounds = self.bounds();
        let is_long = |at: usize| at > 0 && bounds.get(at - 1).is_some_and(|low| *low >= STALL_MS);
        let counts = self.durations("hiccup").into_iter().enumerate();
        counts.filter(|(at, _)| is_long(*at)).map(|(_, count)| count).sum()
    }

    /// The ids of the cluster and of its history.
    pub(super) fn ids(&self) -> (&str, &str) {
        (self.text("cluster"), self.text("history"))
    }

    /// Whether the cluster is in interval mode. Then no node has a grant.
    pub(super) fn is_in_interval_mode(&self) -> bool {
        self.0["interval"].is_object()
    }

    /// Why the node gives no interval timestamps; `None` if it does, and in quorum mode.
    pub(super) fn interval_refusal(&self) -> Option<&str> {
        self.0["interval"]["refusal"].as_str()
    }

    pub(super) fn bounds(&self) -> Vec<f64> {
        numbers(&self.0["boundsMs"])
    }

    pub(super) fn durations(&self, name: &str) -> Vec<f64> {
        numbers(&self.0["latencies"][name])
    }
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().map_or(Vec::new(), |list| list.iter().filter_map(Value::as_f64).collect())
}

pub(super) fn is_voter(role: &str) -> bool {
    matches!(role, "voter" | "leader")
}

/// How long ago a member answered the node of this status, in milliseconds, when the status came.
/// The consensus thread receives these answers. While it is stuck, their ages say nothing.
pub(super) fn answer_age_ms(of: &Status, member: &Value) -> Option<f64> {
    Some((member["answerAgeMs"].as_f64()? - of.number("tickAgeMs")).max(0.0))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// The status of a node of three, whose leader is node 1. Every node has given `timestamps`.
    pub(in crate::top) fn status(node: u64, uptime_ms: u64, timestamps: u64) -> Value {
        let member = |id: u64| {
            json!({
                "nodeID": id, "addr": format!("n{id}:8080"), "raftAddr": format!("n{id}:60001"),
                "role": if id == 1 { "leader" } else { "voter" },
                "heard": (node == 1).then_some(true),
                "behind": (node == 1 && id != 1).then_some(0),
                "answerAgeMs": if id == node { None } else { Some(120.0) },
                "usualMs": (id != node).then_some(0.25), "offsetMs": (id != node).then_some(-1.5),
                "version": "0.2.0",
            })
        };
        json!({
            "nodeID": node, "addr": format!("n{node}:8080"), "clusterName": "prod",
            "cluster": "0a", "history": "0b",
            "version": "0.2.0", "boot": format!("{node:016x}"), "uptimeMs": uptime_ms,
            "role": if node == 1 { "leader" } else { "follower" }, "term": 5, "leads": node == 1,
            "hasGrant": node == 1, "leader": {"nodeID": 1, "addr": "n1:8080"},
            "leaderForMs": 65_000.0, "ready": true, "leaving": "no", "quorumReached": true,
            "impaired": false, "tickAgeMs": 0.0, "status": "followed", "offsetMs": 0.0,
            "leadMs": 800.0, "members": [member(1), member(2), member(3)],
            "confirmLinks": 2, "confirmLinksMax": 2, "settings": {"CLOCK_OFFSET_MAX_MS": "500"},
            "nodeSettings": {"ELECTION_TIMEOUT_MS": "1000"}, "lagMs": null,
            "certificates": [], "boundsMs": [1.0, 2.0, 4.0],
            "counters": {"timestamps": timestamps, "answered": timestamps, "cpuMs": uptime_ms / 10},
            "refusals": {"NO_QUORUM": timestamps / 10, "NOT_LEADER": timestamps},
            "latencies": {
                "confirm": [timestamps, timestamps, 0, 0], "diskWrite": [0, 0, timestamps, 0],
            },
        })
    }

    pub(in crate::top) fn addr(node: u64) -> String {
        format!("n{node}:8080")
    }
}
