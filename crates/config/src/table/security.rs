//! Settings of certificates and of authorization.

use crate::allowed_from::AllowedFrom;
use crate::setting::DefaultValue::{Is, Words};
use crate::setting::{Kind, Setting};
use crate::tls::{CERT_FILE_DEFAULT, ClientTlsMode, KEY_FILE_DEFAULT};
use crate::values::{A_FILE, NETWORKS, path, put};

pub(crate) const TLS: &[Setting] = &[
    Setting {
        name: "CLIENT_TLS",
        value: "MODE",
        default: Is("off"),
        help: "TLS on the client port over TCP: off for plain text, on for TLS, both \
               for either",
        kind: Kind::Text {
            allowed: "off, on or both",
            set: |c, text| put(&mut c.tls.clients, ClientTlsMode::parse(text)),
        },
    },
    Setting {
        name: "HTTP3",
        value: "SWITCH",
        default: Is("on"),
        help: "Serve HTTP/3 on the client port over UDP",
        kind: Kind::Switch(|c, on| c.tls.http3 = on),
    },
    Setting {
        name: "CERT_FILE",
        value: "FILE",
        default: Is(CERT_FILE_DEFAULT),
        help: "This node's certificate for clients, as PEM with its chain; read again \
               when it changes. If neither it nor the key exists, a self-signed pair is \
               written",
        kind: Kind::Text { allowed: A_FILE, set: |c, text| put(&mut c.tls.cert_file, path(text)) },
    },
    Setting {
        name: "KEY_FILE",
        value: "FILE",
        default: Is(KEY_FILE_DEFAULT),
        help: "Private key of CERT_FILE, as PEM",
        kind: Kind::Text { allowed: A_FILE, set: |c, text| put(&mut c.tls.key_file, path(text)) },
    },
    Setting {
        name: "CLIENT_CA_FILE",
        value: "FILE",
        default: Words("none"),
        help: "Authorities of client certificates, as PEM. With CLIENT_TLS on, a client \
               must show a certificate that one of them has signed",
        kind: Kind::Text {
            allowed: A_FILE,
            set: |c, text| put(&mut c.tls.client_ca_file, path(text).map(Some)),
        },
    },
];

pub(crate) const AUTHORIZATION: &[Setting] = &[
    Setting {
        name: "CLIENT_TOKEN_FILE",
        value: "FILE",
        default: Words("none: every client gets timestamps"),
        help: "File of tokens, one per line. A client must send one of them for \
               timestamps and members; read again when it changes",
        kind: Kind::Text {
            allowed: A_FILE,
            set: |c, text| put(&mut c.authz.client_token_file, path(text).map(Some)),
        },
    },
    Setting {
        name: "OPS_TOKEN_FILE",
        value: "FILE",
        default: Words("none"),
        help: "File of tokens, one per line. Metrics and /admin require one of them; \
               read again when it changes",
        kind: Kind::Text {
            allowed: A_FILE,
            set: |c, text| put(&mut c.authz.ops_token_file, path(text).map(Some)),
        },
    },
    Setting {
        name: "OPS_PLAIN_FROM",
        value: "WHERE",
        default: Is("loopback"),
        help: "Where metrics and /admin are served in plain text: loopback, any, or \
               networks (loopback is always included)",
        kind: Kind::Text {
            allowed: NETWORKS,
            set: |c, text| put(&mut c.authz.ops_plain_from, AllowedFrom::parse(text)),
        },
    },
];
