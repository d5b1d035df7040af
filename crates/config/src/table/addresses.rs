//! Settings of the addresses: where a node listens, and how others reach it.

use crate::allowed_from::AllowedFrom;
use crate::setting::DefaultValue::{Is, Words};
use crate::setting::{Kind, Setting};
use crate::values::{HOST_AND_PORT, NETWORKS, address, put};

pub(crate) const ADDRESSES: &[Setting] = &[
    Setting {
        name: "RAFT_ADDR",
        value: "HOST:PORT",
        default: Words("required"),
        help: "Address at which other nodes reach this node",
        kind: Kind::Text {
            allowed: HOST_AND_PORT,
            set: |c, text| put(&mut c.raft_addr, address(text)),
        },
    },
    Setting {
        name: "RAFT_BIND",
        value: "IP[:PORT]",
        default: Words("all interfaces, port of RAFT_ADDR"),
        help: "Address that the peer listener binds, if not all interfaces at the port \
               of RAFT_ADDR. The default is loopback if RAFT_ADDR is loopback, and for \
               SINGLE in plain text",
        kind: Kind::Text {
            allowed: "an IP address with or without a port, such as 10.0.0.1 or [::]:60001",
            set: |c, text| match text.parse() {
                Ok(ip) => {
                    c.raft_bind.set_ip(ip);
                    Some(())
                }
                Err(_) => put(&mut c.raft_bind, text.parse().ok()),
            },
        },
    },
    Setting {
        name: "HTTP_PORT",
        value: "PORT",
        default: Is("8080"),
        help: "Client port; 0 lets the system choose a port",
        kind: Kind::Number {
            range: 0..=65_535,
            unit: "",
            get: |c| c.http_port.into(),
            set: |c, n| c.http_port = n as u16,
        },
    },
    Setting {
        name: "HTTP_BIND",
        value: "IP",
        default: Words("0.0.0.0, or :: (IPv4 too) if RAFT_ADDR is an IPv6 address"),
        help: "Interface of the client port",
        kind: Kind::Text {
            allowed: "an IP address, such as 127.0.0.1 or ::",
            set: |c, text| put(&mut c.http_bind, text.parse().ok()),
        },
    },
    Setting {
        name: "ADVERTISE_ADDR",
        value: "HOST:PORT",
        default: Words("host of RAFT_ADDR, HTTP_PORT"),
        help: "Client address that this node tells clients and peers",
        kind: Kind::Text {
            allowed: HOST_AND_PORT,
            set: |c, text| put(&mut c.advertise_addr, address(text)),
        },
    },
    Setting {
        name: "OPS_ADDR",
        value: "IP:PORT",
        default: Words("none: the client port"),
        help: "Address that serves metrics and /admin, instead of the client port. An \
               address beyond loopback needs CLIENT_TLS or OPS_PLAIN_FROM",
        kind: Kind::Text {
            allowed: "an IP address with a port, such as 127.0.0.1:9090 or [::1]:9090",
            set: |c, text| put(&mut c.authz.ops_addr, text.parse().ok().map(Some)),
        },
    },
    Setting {
        name: "ADMIN_FROM",
        value: "WHERE",
        default: Is("loopback"),
        help: "Where changes of members and leadership are accepted from: loopback, \
               any, or networks (loopback is always included)",
        kind: Kind::Text {
            allowed: NETWORKS,
            set: |c, text| put(&mut c.authz.admin_from, AllowedFrom::parse(text)),
        },
    },
];
