//! Settings of epochs, elections and timeouts.

use epicepoch_wire::settings;

use crate::config::ELECTION_TIMEOUT_MS;
use crate::leases::LeaseClock;
use crate::setting::DefaultValue::{Is, Words};
use crate::setting::{Kind, Setting};
use crate::values::{millis, ms, put};

pub(crate) const TIME: &[Setting] = &[
    Setting {
        name: "EPOCH_INTERVAL_MS",
        value: "MS",
        default: Is("100"),
        help: "How often the epoch advances and the index restarts",
        kind: Kind::Number {
            range: settings::EPOCH_INTERVAL_MS,
            unit: "ms",
            get: |c| millis(c.epoch_interval),
            set: |c, n| c.epoch_interval = ms(n),
        },
    },
    Setting {
        name: "RESERVATION_MS",
        value: "MS",
        default: Words("1000, or 5 ELECTION_TIMEOUT_MS if more"),
        help: "How far ahead of the clock the leader reserves epochs, at least 4 \
               ELECTION_TIMEOUT_MS",
        kind: Kind::Number {
            range: settings::RESERVATION_MS,
            unit: "ms",
            get: |c| millis(c.reservation),
            set: |c, n| c.reservation = ms(n),
        },
    },
    Setting {
        name: "EPOCH_DEADLINE_LIMIT",
        value: "COUNT",
        default: Is("100"),
        help: "Consecutive reservations that may be late before this node exits with an \
               error; counted while it leads and reaches a quorum",
        kind: Kind::Number {
            range: 1..=1_000_000,
            unit: "",
            get: |c| c.epoch_deadline_limit.into(),
            set: |c, n| c.epoch_deadline_limit = n as u32,
        },
    },
    Setting {
        name: "CLOCK_OFFSET_MAX_MS",
        value: "MS",
        default: Is("500"),
        help: "How far a clock may be from the others and still be trusted",
        kind: Kind::Number {
            range: settings::CLOCK_OFFSET_MAX_MS,
            unit: "ms",
            get: |c| millis(c.clock_offset_max),
            set: |c, n| c.clock_offset_max = ms(n),
        },
    },
    Setting {
        name: "LEASE_MS",
        value: "MS",
        default: Is("0"),
        help: "How long the leader may answer without a round to requests that accept a lease, \
               50 to ELECTION_TIMEOUT_MS; 0 for never. The order of timestamps then depends on \
               clocks",
        kind: Kind::Number {
            range: 0..=settings::LEASE_MS_MAX,
            unit: "ms",
            get: |c| millis(c.leases.length),
            set: |c, n| c.leases.length = ms(n),
        },
    },
    Setting {
        name: "GUARANTEE_DEFAULT",
        value: "quorum|lease",
        default: Is("quorum"),
        help: "The guarantee of requests that name none",
        kind: Kind::Text {
            allowed: "quorum or lease",
            set: |c, text| put(&mut c.leases.guarantee_default, text.parse().ok()),
        },
    },
    Setting {
        name: "LEASE_CLOCK",
        value: "auto|trusted|never",
        default: Is("auto"),
        help: "Whether this node may take leases: auto (only on a machine that shows no sign of a \
               hypervisor; some hide), trusted (the clock never stands still), never",
        kind: Kind::Text {
            allowed: "auto, trusted or never",
            set: |c, text| put(&mut c.leases.clock, LeaseClock::parse(text)),
        },
    },
    Setting {
        name: "INTERVAL_SOURCE",
        value: "SOURCE",
        default: Words("none: this node gives no interval timestamps"),
        help: "Interval mode: the source that states the bound of this machine's clock: \
               clockbound[=PATH], chrony[=IP:PORT or =/PATH], or, for tests, fixed=DURATION",
        kind: Kind::Text {
            allowed: "clockbound, chrony or fixed=DURATION",
            set: |c, text| c.intervals.set_source(text),
        },
    },
    Setting {
        name: "INTERVAL_BOUND_MAX_MS",
        value: "MS",
        default: Is("10"),
        help: "Interval mode: this node refuses while the bound of its clock is larger",
        kind: Kind::Number {
            range: 1..=1_000,
            unit: "ms",
            get: |c| millis(c.intervals.bound_max),
            set: |c, n| c.intervals.bound_max = ms(n),
        },
    },
    Setting {
        name: "ELECTION_TIMEOUT_MS",
        value: "MS",
        default: Is("200"),
        help: "Shortest silence of the leader after which other voters campaign",
        kind: Kind::Number {
            range: ELECTION_TIMEOUT_MS,
            unit: "ms",
            get: |c| millis(c.election_timeout),
            set: |c, n| c.election_timeout = ms(n),
        },
    },
    Setting {
        name: "HEARTBEAT_MS",
        value: "MS",
        default: Words("a fifth of ELECTION_TIMEOUT_MS (40)"),
        help: "Time between the leader's heartbeats, at most a third of \
               ELECTION_TIMEOUT_MS",
        kind: Kind::Number {
            range: 1..=3_333,
            unit: "ms",
            get: |c| millis(c.heartbeat),
            set: |c, n| c.heartbeat = ms(n),
        },
    },
    Setting {
        name: "REQUEST_TIMEOUT_MS",
        value: "MS",
        default: Is("1000"),
        help: "How long a request may wait before it is refused with 503",
        kind: Kind::Number {
            range: 1..=60_000,
            unit: "ms",
            get: |c| millis(c.request_timeout),
            set: |c, n| c.request_timeout = ms(n),
        },
    },
    Setting {
        name: "SHUTDOWN_TIMEOUT_MS",
        value: "MS",
        default: Is("3000"),
        help: "How long SIGTERM waits for open requests and the handover of leadership",
        kind: Kind::Number {
            range: 1..=60_000,
            unit: "ms",
            get: |c| millis(c.shutdown_timeout),
            set: |c, n| c.shutdown_timeout = ms(n),
        },
    },
];
