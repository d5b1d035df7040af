//! The table of settings: each row is at once an environment variable, a flag and a key of the
//! TOML file. Nothing else knows a setting's name, meaning or default. It reads none of the three
//! sources; [`crate::sources`] does.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;

use epicepoch_server::config::{self, Bounds, Config};
use epicepoch_wire::NodeId;

use crate::logging::Logging;

// By its path, because the fuzz target of settings takes this file by its path, too.
#[path = "settings/placed.rs"]
mod placed;
#[path = "settings/secured.rs"]
mod secured;
#[path = "settings/values.rs"]
mod values;

pub(crate) use values::whole_number;
use values::{HOST_AND_PORT, ORIGINS, address, floor, joined, ms, peers, processors, switch};

/// One setting. Its flag and its key follow from its name: `HTTP_PORT` is `--http-port` on the
/// command line and `http_port` in the file.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Environment variable, in capitals.
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    /// Placeholder of the value in the help.
    pub(crate) value: &'static str,
    /// Default in words.
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
}

/// Heading in the help. Only [`Group::Identity`] and [`Group::Addresses`] differ from node to
/// node, and `dev` chooses those itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Identity,
    Addresses,
    Tls,
    Time,
    Limits,
    Rights,
    Log,
}

/// How a text becomes a value, and what is allowed.
#[derive(Debug)]
pub(crate) enum Kind {
    Number(Bounds, fn(&mut Draft, u64)),
    Switch(fn(&mut Draft, bool)),
    Text { allowed: &'static str, set: fn(&mut Draft, &str) -> Option<()> },
}

/// What the table fills in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    pub(crate) config: Config,
    pub(crate) logging: Logging,
}

impl Setting {
    /// Name of the flag, without the dashes in front.
    pub(crate) fn flag(&self) -> String {
        self.name.to_ascii_lowercase().replace('_', "-")
    }

    /// Key in the TOML file.
    pub(crate) fn key(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    /// The setting of that environment variable.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|setting| setting.name == name)
    }

    /// What is allowed, in words.
    pub(crate) fn allowed(&self) -> String {
        match &self.kind {
            Kind::Number(bounds, _) => bounds.allowed(),
            Kind::Switch(_) => "allowed are 1, true, on and 0, false, off".to_owned(),
            Kind::Text { allowed, .. } => format!("allowed is {allowed}"),
        }
    }

    /// Puts the value that `text` stands for into the draft; `None` if it is not allowed.
    pub(crate) fn apply(&self, draft: &mut Draft, text: &str) -> Option<()> {
        match &self.kind {
            Kind::Number(bounds, set) => {
                let number = whole_number(text)?;
                bounds.check(number).ok()?;
                set(draft, number);
                Some(())
            }
            Kind::Switch(set) => {
                set(draft, switch(text)?);
                Some(())
            }
            Kind::Text { set, .. } => set(draft, text),
        }
    }
}

impl Group {
    /// Every group, in the order of the help.
    pub(crate) const ALL: [Self; 7] = [
        Self::Identity,
        Self::Addresses,
        Self::Tls,
        Self::Time,
        Self::Limits,
        Self::Rights,
        Self::Log,
    ];

    pub(crate) fn heading(self) -> &'static str {
        match self {
            Self::Identity => "Who this node is",
            Self::Addresses => "Where it listens and how it is reached",
            Self::Tls => "Certificates",
            Self::Time => "Epochs, elections and patience",
            Self::Limits => "Limits",
            Self::Rights => "Who may do what",
            Self::Log => "Log",
        }
    }

    /// Whether each node of a cluster has its own value.
    pub(crate) fn is_per_node(self) -> bool {
        match self {
            Self::Identity | Self::Addresses => true,
            Self::Tls | Self::Time | Self::Limits | Self::Rights | Self::Log => false,
        }
    }
}

/// Every setting, in the order of the help.
pub(crate) const TABLE: &[Setting] = &[
    Setting {
        name: "NODE_ID",
        group: Group::Identity,
        value: "ID",
        default: "required",
        help: "Raft node id, unique in the cluster and never reused",
        kind: Kind::Number(config::NODE_ID, |draft, id| draft.config.node_id = NodeId(id)),
    },
    Setting {
        name: "PEERS",
        group: Group::Identity,
        value: "ID=HOST:PORT,...",
        default: "required, unless SINGLE or JOIN",
        help: "Raft addresses of the first members, this node included, the same on every node",
        kind: Kind::Text {
            allowed: "a list such as 1=a:60001,2=b:60001,3=c:60001 with each node once",
            set: |draft, text| {
                draft.config.peers = peers(text)?;
                Some(())
            },
        },
    },
    Setting {
        name: "SINGLE",
        group: Group::Identity,
        value: "SWITCH",
        default: "off",
        help: "Run a cluster of one, which stops when its only node does; replaces PEERS",
        kind: Kind::Switch(|draft, on| draft.config.single = on),
    },
    Setting {
        name: "BOOTSTRAP",
        group: Group::Identity,
        value: "SWITCH",
        default: "off",
        help: "Found a new cluster: on the first start only, on all its first members. Ignored \
               once data exists; refused if any peer already belongs to a cluster",
        kind: Kind::Switch(|draft, on| draft.config.bootstrap = on),
    },
    Setting {
        name: "JOIN",
        group: Group::Identity,
        value: "HOST:PORT,...",
        default: "none",
        help: "Join a cluster that exists: Raft addresses of any of its members, one is enough. \
               Replaces PEERS; ignored once data exists",
        kind: Kind::Text {
            allowed: "a list of host:port, such as n1:60001,n2:60001",
            set: |draft, text| {
                draft.config.join = joined(text)?;
                Some(())
            },
        },
    },
    Setting {
        name: "RESTORE",
        group: Group::Identity,
        value: "FILE",
        default: "none",
        help: "With BOOTSTRAP: begin a new history of the cluster that FILE is a backup of, above \
               all that the old one can have given. The same file on all first members",
        kind: Kind::Text {
            allowed: "the path of a file that epicepoch backup wrote",
            set: |draft, text| {
                draft.config.restore = Some(PathBuf::from(text));
                (!text.is_empty()).then_some(())
            },
        },
    },
    Setting {
        name: "RESTORE_FLOOR",
        group: Group::Identity,
        value: "TIMESTAMP",
        default: "none",
        help: "With BOOTSTRAP: begin above the greatest timestamp that was ever given, by another \
               oracle or since the backup; it only raises what RESTORE proves",
        kind: Kind::Text {
            allowed: "a timestamp of 32 hexadecimal digits, or Unix time with its unit, such as \
                      1700000000000ms",
            set: |draft, text| {
                draft.config.restore_floor = Some(floor(text)?);
                Some(())
            },
        },
    },
    Setting {
        name: "CLUSTER",
        group: Group::Identity,
        value: "NAME",
        default: "epicepoch",
        help: "Cluster name; nodes of another name are refused",
        kind: Kind::Text {
            allowed: "1 to 64 letters, digits, '.', '_' and '-'",
            set: |draft, text| {
                text.clone_into(&mut draft.config.cluster_name);
                (!text.is_empty()).then_some(())
            },
        },
    },
    Setting {
        name: "DATA_DIR",
        group: Group::Identity,
        value: "DIR",
        default: "_raft/node-<NODE_ID>",
        help: "Where the Raft log and the ceiling live: a few MB, one directory per node",
        kind: Kind::Text {
            allowed: "the path of a directory",
            set: |draft, text| {
                draft.config.data_dir = PathBuf::from(text);
                (!text.is_empty()).then_some(())
            },
        },
    },
    placed::ZONE,
    placed::LEADER_ZONES,
    secured::PEER_CERT_FILE,
    secured::PEER_KEY_FILE,
    secured::PEER_CA_FILE,
    secured::PEER_TLS,
    secured::PEER_PLAIN,
    Setting {
        name: "RAFT_ADDR",
        group: Group::Addresses,
        value: "HOST:PORT",
        default: "required",
        help: "Address other nodes reach this node at",
        kind: Kind::Text {
            allowed: HOST_AND_PORT,
            set: |draft, text| address(text, &mut draft.config.raft_addr),
        },
    },
    Setting {
        name: "RAFT_BIND",
        group: Group::Addresses,
        value: "IP[:PORT]",
        default: "all interfaces, port of RAFT_ADDR",
        help: "Where the peer listener binds, if not at RAFT_ADDR's port everywhere; that is loopback \
               where RAFT_ADDR is, and for SINGLE in plain text",
        kind: Kind::Text {
            allowed: "an IP address with or without a port, such as 10.0.0.1 or [::]:60001",
            set: |draft, text| {
                let bind = &mut draft.config.raft_bind;
                match text.parse::<IpAddr>() {
                    Ok(ip) => bind.set_ip(ip),
                    Err(_) => *bind = text.parse::<SocketAddr>().ok()?,
                }
                Some(())
            },
        },
    },
    Setting {
        name: "HTTP_PORT",
        group: Group::Addresses,
        value: "PORT",
        default: "8080",
        help: "Client port; 0 lets the system choose one",
        kind: Kind::Number(config::HTTP_PORT, |draft, port| draft.config.http_port = port as u16),
    },
    Setting {
        name: "HTTP_BIND",
        group: Group::Addresses,
        value: "IP",
        default: "0.0.0.0, or :: (IPv4 too) if RAFT_ADDR is IPv6",
        help: "Interface of the client port",
        kind: Kind::Text {
            allowed: "an IP address, such as 127.0.0.1 or ::",
            set: |draft, text| {
                draft.config.http_bind = text.parse().ok()?;
                Some(())
            },
        },
    },
    Setting {
        name: "ADVERTISE_ADDR",
        group: Group::Addresses,
        value: "HOST:PORT",
        default: "host of RAFT_ADDR, HTTP_PORT",
        help: "Client address this node tells to clients and peers",
        kind: Kind::Text {
            allowed: HOST_AND_PORT,
            set: |draft, text| address(text, &mut draft.config.advertise_addr),
        },
    },
    Setting {
        name: "OPS_ADDR",
        group: Group::Addresses,
        value: "IP:PORT",
        default: "none: the client port",
        help: "Where metrics and /admin are answered, and nowhere else; beyond loopback only with \
               CLIENT_TLS or OPS_PLAIN_FROM",
        kind: Kind::Text {
            allowed: "an IP address with a port, such as 127.0.0.1:9090 or [::1]:9090",
            set: |draft, text| {
                draft.config.rights.ops_addr = Some(text.parse().ok()?);
                Some(())
            },
        },
    },
    Setting {
        name: "ADMIN_FROM",
        group: Group::Addresses,
        value: "WHERE",
        default: "loopback",
        help: "From where members and leadership may be changed: loopback, any, or networks (and \
               loopback)",
        kind: Kind::Text {
            allowed: ORIGINS,
            set: |draft, text| {
                draft.config.rights.admin_from = config::AllowedFrom::parse(text)?;
                Some(())
            },
        },
    },
    secured::CLIENT_TLS,
    secured::HTTP3,
    secured::CERT_FILE,
    secured::KEY_FILE,
    secured::CLIENT_CA_FILE,
    Setting {
        name: "EPOCH_INTERVAL_MS",
        group: Group::Time,
        value: "MS",
        default: "100",
        help: "How often the epoch advances and the index restarts",
        kind: Kind::Number(config::EPOCH_INTERVAL_MS, |d, n| d.config.epoch_interval = ms(n)),
    },
    Setting {
        name: "RESERVATION_MS",
        group: Group::Time,
        value: "MS",
        default: "1000, or 5 ELECTION_TIMEOUT_MS if more",
        help: "How far ahead of the clock the leader reserves epochs, at least 4 \
               ELECTION_TIMEOUT_MS",
        kind: Kind::Number(config::RESERVATION_MS, |d, n| d.config.reservation = ms(n)),
    },
    Setting {
        name: "EPOCH_DEADLINE_LIMIT",
        group: Group::Time,
        value: "COUNT",
        default: "100",
        help: "Consecutive reservations that may be late, while this node leads and reaches a \
               quorum, before it exits with an error",
        kind: Kind::Number(config::EPOCH_DEADLINE_LIMIT, |draft, count| {
            draft.config.epoch_deadline_limit = count as u32;
        }),
    },
    Setting {
        name: "FORMAT_MAX",
        group: Group::Identity,
        value: "FORMAT",
        default: "the newest that this version reads",
        help: "Newest format of the replicated state that this node reads: one node with less than \
               the others holds back the next format, and with it what only a newer version reads",
        kind: Kind::Number(config::FORMAT_MAX, |d, n| d.config.format_max = n as u32),
    },
    Setting {
        name: "CLOCK_OFFSET_MAX_MS",
        group: Group::Time,
        value: "MS",
        default: "500",
        help: "How far a clock may be from the others before it is not believed",
        kind: Kind::Number(config::CLOCK_OFFSET_MAX_MS, |d, n| d.config.clock_offset_max = ms(n)),
    },
    Setting {
        name: "ELECTION_TIMEOUT_MS",
        group: Group::Time,
        value: "MS",
        default: "200",
        help: "Shortest silence of a leader after which others campaign",
        kind: Kind::Number(config::ELECTION_TIMEOUT_MS, |d, n| d.config.election_timeout = ms(n)),
    },
    Setting {
        name: "HEARTBEAT_MS",
        group: Group::Time,
        value: "MS",
        default: "a fifth of ELECTION_TIMEOUT_MS (40)",
        help: "Time between a leader's heartbeats, at most a third of ELECTION_TIMEOUT_MS",
        kind: Kind::Number(config::HEARTBEAT_MS, |d, n| d.config.heartbeat = ms(n)),
    },
    Setting {
        name: "REQUEST_TIMEOUT_MS",
        group: Group::Time,
        value: "MS",
        default: "1000",
        help: "How long a request may wait before it is refused with 503",
        kind: Kind::Number(config::REQUEST_TIMEOUT_MS, |d, n| d.config.request_timeout = ms(n)),
    },
    Setting {
        name: "SHUTDOWN_TIMEOUT_MS",
        group: Group::Time,
        value: "MS",
        default: "3000",
        help: "How long SIGTERM waits for open requests and the handover of leadership",
        kind: Kind::Number(config::SHUTDOWN_TIMEOUT_MS, |d, n| d.config.shutdown_timeout = ms(n)),
    },
    Setting {
        name: "TIMESTAMP_REQUEST_BUFFER",
        group: Group::Limits,
        value: "COUNT",
        default: "10000",
        help: "Requests that may wait; beyond it they are refused with 503 at once",
        kind: Kind::Number(config::TIMESTAMP_REQUEST_BUFFER, |draft, count| {
            draft.config.request_buffer = count as usize;
        }),
    },
    Setting {
        name: "MAX_N",
        group: Group::Limits,
        value: "COUNT",
        default: "65536",
        help: "Timestamps in one answer at most (format=range has its own maximum, 2^32)",
        kind: Kind::Number(config::MAX_N, |draft, count| draft.config.max_n = count),
    },
    Setting {
        name: "CONNECTIONS_MAX",
        group: Group::Limits,
        value: "COUNT",
        default: "20000",
        help: "Client connections held at once",
        kind: Kind::Number(config::CONNECTIONS_MAX, |draft, count| {
            draft.config.connections_max = count as usize;
        }),
    },
    Setting {
        name: "ADDRESS_CONNECTIONS_MAX",
        group: Group::Limits,
        value: "COUNT",
        default: "half of CONNECTIONS_MAX (10000)",
        help: "Client connections of one address at once, an IPv6 address counting by its first 64 \
               bits; beyond it new ones are closed",
        kind: Kind::Number(config::ADDRESS_CONNECTIONS_MAX, |draft, count| {
            draft.config.limits.address_connections_max = count as usize;
        }),
    },
    Setting {
        name: "ADDRESS_REQUEST_RATE_MAX",
        group: Group::Limits,
        value: "PER_SECOND",
        default: "0: no limit",
        help: "Requests of one address per second, a second's worth at once; beyond it they are \
               refused with 503",
        kind: Kind::Number(config::ADDRESS_REQUEST_RATE_MAX, |draft, rate| {
            draft.config.limits.address_request_rate_max = NonZeroU32::new(rate as u32);
        }),
    },
    Setting {
        name: "HEAD_TIMEOUT_MS",
        group: Group::Limits,
        value: "MS",
        default: "10000",
        help: "How long a new connection, or a request that has begun, may take until its head has \
               come",
        kind: Kind::Number(config::HEAD_TIMEOUT_MS, |d, n| d.config.limits.head_timeout = ms(n)),
    },
    Setting {
        name: "IDLE_TIMEOUT_MS",
        group: Group::Limits,
        value: "MS",
        default: "120000",
        help: "Silence after which a connection without requests is closed",
        kind: Kind::Number(config::IDLE_TIMEOUT_MS, |d, n| d.config.limits.idle_timeout = ms(n)),
    },
    Setting {
        name: "WORKERS",
        group: Group::Limits,
        value: "COUNT",
        default: "half of the cores",
        help: "Threads that serve clients",
        kind: Kind::Number(config::WORKERS, |draft, count| draft.config.workers = count as usize),
    },
    Setting {
        name: "WORKER_CPUS",
        group: Group::Limits,
        value: "CPU,...",
        default: "none: the kernel chooses",
        help: "Processors that workers are pinned to, one for each, such as 2,3; WORKERS follows",
        kind: Kind::Text {
            allowed: "a list of processors such as 0,1 with each of them once, from 0 to 1023",
            set: |draft, text| {
                draft.config.worker_cpus = processors(text)?;
                Some(())
            },
        },
    },
    Setting {
        name: "BUSY_POLL",
        group: Group::Limits,
        value: "SWITCH",
        default: "off",
        help: "Workers spin instead of sleeping: lowest latency, and a processor always busy for \
               each of them; leave one for elections",
        kind: Kind::Switch(|draft, on| draft.config.busy_poll = on),
    },
    secured::CLIENT_TOKEN_FILE,
    secured::OPS_TOKEN_FILE,
    secured::OPS_PLAIN_FROM,
    Setting {
        name: "DEBUG",
        group: Group::Log,
        value: "SWITCH",
        default: "off",
        help: "Log what helps to debug, too",
        kind: Kind::Switch(|draft, on| draft.logging.debug = on),
    },
    Setting {
        name: "PRETTY",
        group: Group::Log,
        value: "SWITCH",
        default: "off (JSON lines); on for dev",
        help: "Log for people",
        kind: Kind::Switch(|draft, on| draft.logging.pretty = on),
    },
    Setting {
        name: "LOG_TIME_MS",
        group: Group::Log,
        value: "SWITCH",
        default: "off (RFC 3339)",
        help: "Log the time as Unix milliseconds",
        kind: Kind::Switch(|draft, on| draft.logging.time_ms = on),
    },
];
