//! Settings of protocols that a node speaks only if it is told to.

use crate::setting::DefaultValue::Is;
use crate::setting::{Kind, Setting};

pub(crate) const PROTOCOLS: &[Setting] = &[
    Setting {
        name: "GRPC",
        value: "SWITCH",
        default: Is("off"),
        help: "Serve timestamps, health checks and reflection by gRPC on the client port: see \
               docs/grpc.md",
        kind: Kind::Switch(|c, on| c.grpc = on),
    },
    Setting {
        name: "PD_WIRE",
        value: "SWITCH",
        default: Is("off"),
        help: "Serve timestamps to clients of PD (TiKV, TiDB) on the client port, by gRPC. Needs \
               TIMESTAMP_FORMAT=compact. It is not all of PD: see docs/pd.md",
        kind: Kind::Switch(|c, on| c.pd_wire = on),
    },
];
