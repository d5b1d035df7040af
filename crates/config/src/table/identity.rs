//! Settings of a node's identity: its id, its cluster, its data, its peers.

use epicepoch_core::state::FORMATS;
use epicepoch_wire::NodeId;
use epicepoch_wire::settings::LEASE_MS_MAX;
use epicepoch_wire::voter_status::Zone;

use crate::config::CLUSTER_NAME_DEFAULT;
use crate::links::PeerTlsMode;
use crate::setting::DefaultValue::{Is, Words};
use crate::setting::{Kind, Setting};
use crate::values::{A_FILE, addresses, floor, millis, ms, path, peers, put, zones};

pub(crate) const IDENTITY: &[Setting] = &[
    Setting {
        name: "NODE_ID",
        value: "ID",
        default: Words("required"),
        help: "Raft node id: unique in the cluster, never used again",
        kind: Kind::Number {
            range: 1..=u64::MAX,
            unit: "",
            get: |c| c.node_id.0,
            set: |c, n| c.node_id = NodeId(n),
        },
    },
    Setting {
        name: "PEERS",
        value: "ID=HOST:PORT,...",
        default: Words("required, unless SINGLE or JOIN"),
        help: "Raft addresses of the first members, this node included; the same list \
               on every node",
        kind: Kind::Text {
            allowed: "a list such as 1=a:60001,2=b:60001,3=c:60001 with each node once",
            set: |c, text| put(&mut c.peers, peers(text)),
        },
    },
    Setting {
        name: "SINGLE",
        value: "SWITCH",
        default: Is("off"),
        help: "Run a cluster of one node; it stops when that node stops. Replaces PEERS",
        kind: Kind::Switch(|c, on| c.single = on),
    },
    Setting {
        name: "BOOTSTRAP",
        value: "SWITCH",
        default: Is("off"),
        help: "Found a new cluster: set it on all first members, for their first start \
               only. Ignored once data exists; refused if a peer already belongs to a \
               cluster",
        kind: Kind::Switch(|c, on| c.bootstrap = on),
    },
    Setting {
        name: "JOIN",
        value: "HOST:PORT,...",
        default: Words("none"),
        help: "Join a running cluster: Raft addresses of its members, one is enough. \
               Replaces PEERS; ignored once data exists",
        kind: Kind::Text {
            allowed: "a list of host:port, such as n1:60001,n2:60001",
            set: |c, text| put(&mut c.join, addresses(text)),
        },
    },
    Setting {
        name: "RESTORE",
        value: "FILE",
        default: Words("none"),
        help: "With BOOTSTRAP: restore the cluster from this backup. Timestamps \
               continue above all that the old cluster can have given. Give all first \
               members the same file",
        kind: Kind::Text {
            allowed: "the path of a file that epicepoch backup wrote",
            set: |c, text| put(&mut c.restore, path(text).map(Some)),
        },
    },
    Setting {
        name: "RESTORE_FLOOR",
        value: "TIMESTAMP",
        default: Words("none"),
        help: "With BOOTSTRAP: start above this timestamp, the greatest that another \
               oracle gave, or that was given since the backup. It can only raise the \
               floor that RESTORE proves",
        kind: Kind::Text {
            allowed: "a timestamp of 32 hexadecimal digits, or Unix time with its unit, such as \
                      1700000000000ms",
            set: |c, text| put(&mut c.restore_floor, floor(text).map(Some)),
        },
    },
    Setting {
        name: "RESTORE_LEASE_MS",
        value: "MS",
        default: Is("60000"),
        help: "With RESTORE or RESTORE_FLOOR: the longest LEASE_MS that the old cluster ever had. \
               Before it begins, the new one waits for 5/4 of this, or of the longest lease in \
               the backup if that is longer. 0 if the old one never had leases",
        kind: Kind::Number {
            range: 0..=LEASE_MS_MAX,
            unit: "ms",
            get: |c| millis(c.restore_lease),
            set: |c, n| c.restore_lease = ms(n),
        },
    },
    Setting {
        name: "CLUSTER",
        value: "NAME",
        default: Is(CLUSTER_NAME_DEFAULT),
        help: "Cluster name; nodes with another name are refused",
        kind: Kind::Text {
            allowed: "1 to 64 letters, digits, '.', '_' and '-'",
            set: |c, text| put(&mut c.cluster_name, (!text.is_empty()).then(|| text.to_owned())),
        },
    },
    Setting {
        name: "DATA_DIR",
        value: "DIR",
        default: Words("_raft/node-<NODE_ID>"),
        help: "Directory of the Raft log and the ceiling: a few MB, one directory per \
               node",
        kind: Kind::Text {
            allowed: "the path of a directory",
            set: |c, text| put(&mut c.data_dir, path(text)),
        },
    },
    Setting {
        name: "ZONE",
        value: "NAME",
        default: Words("none"),
        help: "Zone of this node: the data centre or availability zone that it shares \
               with others",
        kind: Kind::Text {
            allowed: "1 to 32 letters, digits, '.', '_' and '-'",
            set: |c, text| put(&mut c.placement.zone, Zone::new(text).map(Some)),
        },
    },
    Setting {
        name: "LEADER_ZONES",
        value: "NAME,...",
        default: Words("none: all zones are equal"),
        help: "Zones preferred for the leader, the best first, the same on every node. \
               A leader in another zone hands over once the cluster has been stable for \
               25 ELECTION_TIMEOUT_MS",
        kind: Kind::Text {
            allowed: "up to 9 zones such as near-1,near-2, each once, of 1 to 32 letters, digits, '.', \
                  '_' and '-'",
            set: |c, text| put(&mut c.placement.leaders, zones(text)),
        },
    },
    Setting {
        name: "PEER_CERT_FILE",
        value: "FILE",
        default: Words("none"),
        help: "This node's certificate for connections between nodes, as PEM with its \
               chain; see epicepoch certs",
        kind: Kind::Text {
            allowed: A_FILE,
            set: |c, text| put(&mut c.links.cert_file, path(text).map(Some)),
        },
    },
    Setting {
        name: "PEER_KEY_FILE",
        value: "FILE",
        default: Words("none"),
        help: "Private key of PEER_CERT_FILE, as PEM",
        kind: Kind::Text {
            allowed: A_FILE,
            set: |c, text| put(&mut c.links.key_file, path(text).map(Some)),
        },
    },
    Setting {
        name: "PEER_CA_FILE",
        value: "FILE",
        default: Words("none"),
        help: "Authorities of node certificates, as PEM. A peer must show a certificate \
               that one of them has signed, with its node id and cluster name",
        kind: Kind::Text {
            allowed: A_FILE,
            set: |c, text| put(&mut c.links.ca_file, path(text).map(Some)),
        },
    },
    Setting {
        name: "PEER_TLS",
        value: "MODE",
        default: Words("on with the PEER files, else off"),
        help: "Which connections between nodes use TLS: off, on, or, to change over \
               without downtime, first accept (accept both, dial plain text), then dial \
               (accept both, dial TLS)",
        kind: Kind::Text {
            allowed: "off, accept, dial or on",
            set: |c, text| put(&mut c.links.tls, PeerTlsMode::parse(text).map(Some)),
        },
    },
    Setting {
        name: "PEER_PLAIN",
        value: "SWITCH",
        default: Is("off"),
        help: "Allow plain text between nodes on different machines: only on a network \
               where every machine is trusted",
        kind: Kind::Switch(|c, on| c.links.allows_plain = on),
    },
    Setting {
        name: "FORMAT_MAX",
        value: "FORMAT",
        default: Words("the newest that this version reads"),
        help: "Newest format of the replicated state that this node reads. The cluster \
               uses a new format, and what depends on it, once every node reads it",
        kind: Kind::Number {
            range: FORMATS.oldest as u64..=FORMATS.newest as u64,
            unit: "",
            get: |c| c.format_max.into(),
            set: |c, n| c.format_max = n as u32,
        },
    },
];
