//! Settings of a node's limits and of its threads.

use std::num::NonZeroU32;

use epicepoch_wire::settings;

use crate::setting::DefaultValue::{Is, Words};
use crate::setting::{Kind, Setting};
use crate::values::{millis, ms, processors, put};

pub(crate) const LIMITS: &[Setting] = &[
    Setting {
        name: "TIMESTAMP_REQUEST_BUFFER",
        value: "COUNT",
        default: Is("10000"),
        help: "Requests that may wait; more are refused with 503 at once",
        kind: Kind::Number {
            range: 1..=10_000_000,
            unit: "",
            get: |c| c.request_buffer as u64,
            set: |c, n| c.request_buffer = n as usize,
        },
    },
    Setting {
        name: "MAX_N",
        value: "COUNT",
        default: Is("65536"),
        help: "Most timestamps in one answer (format=range has its own maximum, 2^32)",
        kind: Kind::Number {
            range: settings::MAX_N,
            unit: "",
            get: |c| c.max_n,
            set: |c, n| c.max_n = n,
        },
    },
    Setting {
        name: "TIMESTAMP_FORMAT",
        value: "FORMAT",
        default: Is("wide"),
        help: "Timestamps of a new cluster: wide, or compact ones, which also have a spelling in 64 \
               bits",
        kind: Kind::Text {
            allowed: "wide or compact",
            set: |c, text| put(&mut c.timestamp_format, text.parse().ok()),
        },
    },
    Setting {
        name: "CONNECTIONS_MAX",
        value: "COUNT",
        default: Is("20000"),
        help: "Client connections at once; more are closed",
        kind: Kind::Number {
            range: 1..=1_000_000,
            unit: "",
            get: |c| c.connections_max as u64,
            set: |c, n| c.connections_max = n as usize,
        },
    },
    Setting {
        name: "ADDRESS_CONNECTIONS_MAX",
        value: "COUNT",
        default: Words("half of CONNECTIONS_MAX (10000)"),
        help: "Client connections from one address at once; more are closed. An IPv6 \
               address counts by its first 64 bits",
        kind: Kind::Number {
            range: 1..=1_000_000,
            unit: "",
            get: |c| c.limits.address_connections_max as u64,
            set: |c, n| c.limits.address_connections_max = n as usize,
        },
    },
    Setting {
        name: "ADDRESS_REQUEST_RATE_MAX",
        value: "PER_SECOND",
        default: Words("0: no limit"),
        help: "Requests from one address per second, a second's worth at once; more are \
               refused with 503",
        kind: Kind::Number {
            range: 0..=100_000_000,
            unit: "per second",
            get: |c| c.limits.address_request_rate_max.map_or(0, |it| it.get().into()),
            set: |c, n| c.limits.address_request_rate_max = NonZeroU32::new(n as u32),
        },
    },
    Setting {
        name: "HEAD_TIMEOUT_MS",
        value: "MS",
        default: Is("10000"),
        help: "How long the head of a request may take to arrive, from the start of the \
               connection or from its first byte",
        kind: Kind::Number {
            range: 1_000..=60_000,
            unit: "ms",
            get: |c| millis(c.limits.head_timeout),
            set: |c, n| c.limits.head_timeout = ms(n),
        },
    },
    Setting {
        name: "IDLE_TIMEOUT_MS",
        value: "MS",
        default: Is("120000"),
        help: "Silence after which a connection without requests is closed",
        kind: Kind::Number {
            range: 1_000..=86_400_000,
            unit: "ms",
            get: |c| millis(c.limits.idle_timeout),
            set: |c, n| c.limits.idle_timeout = ms(n),
        },
    },
    Setting {
        name: "WORKERS",
        value: "COUNT",
        default: Words("half of the cores"),
        help: "Threads that serve clients",
        kind: Kind::Number {
            range: 1..=64,
            unit: "",
            get: |c| c.workers as u64,
            set: |c, n| c.workers = n as usize,
        },
    },
    Setting {
        name: "WORKER_CPUS",
        value: "CPU,...",
        default: Words("none: the kernel chooses"),
        help: "Processors that the workers are pinned to, one for each, such as 2,3; \
               sets WORKERS",
        kind: Kind::Text {
            allowed: "a list of processors such as 0,1 with each of them once, from 0 to 1023",
            set: |c, text| put(&mut c.worker_cpus, processors(text)),
        },
    },
    Setting {
        name: "FORWARD",
        value: "SWITCH",
        default: Is("off"),
        help: "While another node leads, requests for timestamps are sent on to it, and not \
               refused with 409; with CLIENT_TLS or CLIENT_TOKEN_FILE only if nodes have \
               certificates",
        kind: Kind::Switch(|c, on| c.forward = on),
    },
    Setting {
        name: "BUSY_POLL",
        value: "SWITCH",
        default: Is("off"),
        help: "Workers spin instead of sleeping: the lowest latency, but each worker \
               keeps a processor busy. Leave one processor for elections",
        kind: Kind::Switch(|c, on| c.busy_poll = on),
    },
];
