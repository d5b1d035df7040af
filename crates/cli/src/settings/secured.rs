//! The settings that keep others out, and say who this node is to them: see [`super::TABLE`].

use std::path::PathBuf;

use epicepoch_server::config;

use super::values::{A_FILE, ORIGINS, file};
use super::{Group, Kind, Setting};

pub(super) const PEER_CERT_FILE: Setting = Setting {
    name: "PEER_CERT_FILE",
    group: Group::Identity,
    value: "FILE",
    default: "none",
    help: "Certificate of this node towards the others as PEM, with those that vouch for it: made by epicepoch certs",
    kind: Kind::Text {
        allowed: A_FILE,
        set: |d, text| file(text, d.config.links.cert_file.get_or_insert_default()),
    },
};

pub(super) const PEER_KEY_FILE: Setting = Setting {
    name: "PEER_KEY_FILE",
    group: Group::Identity,
    value: "FILE",
    default: "none",
    help: "Its key as PEM",
    kind: Kind::Text {
        allowed: A_FILE,
        set: |d, text| file(text, d.config.links.key_file.get_or_insert_default()),
    },
};

pub(super) const PEER_CA_FILE: Setting = Setting {
    name: "PEER_CA_FILE",
    group: Group::Identity,
    value: "FILE",
    default: "none",
    help: "Authorities of nodes as PEM: who has no certificate of one of them, with the name of its node and cluster, is no peer",
    kind: Kind::Text {
        allowed: A_FILE,
        set: |d, text| file(text, d.config.links.ca_file.get_or_insert_default()),
    },
};

pub(super) const PEER_TLS: Setting = Setting {
    name: "PEER_TLS",
    group: Group::Identity,
    value: "MODE",
    default: "on with the PEER files, else off",
    help: "Which connections between nodes are TLS: off, on, or on the way there accept (those \
           that others open so), then dial (those that this node opens, too)",
    kind: Kind::Text {
        allowed: "off, accept, dial or on",
        set: |draft, text| {
            draft.config.links.tls = Some(config::PeerTlsMode::parse(text)?);
            Some(())
        },
    },
};

pub(super) const PEER_PLAIN: Setting = Setting {
    name: "PEER_PLAIN",
    group: Group::Identity,
    value: "SWITCH",
    default: "off",
    help: "Let nodes speak to other machines in plain text: only where everybody who reaches the \
           network is trusted",
    kind: Kind::Switch(|draft, on| draft.config.links.allows_plain = on),
};

pub(super) const CLIENT_TLS: Setting = Setting {
    name: "CLIENT_TLS",
    group: Group::Tls,
    value: "MODE",
    default: "off",
    help: "What the client port takes over TCP: off for plain connections, on for TLS, both for \
           either",
    kind: Kind::Text {
        allowed: "off, on or both",
        set: |draft, text| {
            draft.config.tls.clients = config::ClientTlsMode::parse(text)?;
            Some(())
        },
    },
};

pub(super) const HTTP3: Setting = Setting {
    name: "HTTP3",
    group: Group::Tls,
    value: "SWITCH",
    default: "on",
    help: "Serve HTTP/3 on the client port over UDP",
    kind: Kind::Switch(|draft, on| draft.config.tls.http3 = on),
};

pub(super) const CERT_FILE: Setting = Setting {
    name: "CERT_FILE",
    group: Group::Tls,
    value: "FILE",
    default: "cert.pem",
    help: "Certificate of this node as PEM, with those that vouch for it behind it. Where it \
           and the key are missing, a pair that is signed by itself is written. Read again \
           when it changes",
    kind: Kind::Text {
        allowed: A_FILE,
        set: |draft, text| file(text, &mut draft.config.tls.cert_file),
    },
};

pub(super) const KEY_FILE: Setting = Setting {
    name: "KEY_FILE",
    group: Group::Tls,
    value: "FILE",
    default: "key.pem",
    help: "Key of that certificate as PEM",
    kind: Kind::Text {
        allowed: A_FILE,
        set: |draft, text| file(text, &mut draft.config.tls.key_file),
    },
};

pub(super) const CLIENT_CA_FILE: Setting = Setting {
    name: "CLIENT_CA_FILE",
    group: Group::Tls,
    value: "FILE",
    default: "none",
    help: "Authorities of clients as PEM: with CLIENT_TLS on, who shows no certificate that \
           one of them has signed is refused",
    kind: Kind::Text {
        allowed: A_FILE,
        set: |draft, text| {
            let path = draft.config.tls.client_ca_file.insert(PathBuf::new());
            file(text, path)
        },
    },
};

pub(super) const CLIENT_TOKEN_FILE: Setting = Setting {
    name: "CLIENT_TOKEN_FILE",
    group: Group::Rights,
    value: "FILE",
    default: "none: every client gets timestamps",
    help: "File of tokens, one on each line, of which a client has to send one for timestamps \
           and members; read again when it changes",
    kind: Kind::Text {
        allowed: A_FILE,
        set: |d, text| file(text, d.config.rights.client_token_file.get_or_insert_default()),
    },
};

pub(super) const OPS_TOKEN_FILE: Setting = Setting {
    name: "OPS_TOKEN_FILE",
    group: Group::Rights,
    value: "FILE",
    default: "none",
    help: "File of tokens, one on each line, of which one has to be sent for metrics and \
           /admin; read again when it changes",
    kind: Kind::Text {
        allowed: A_FILE,
        set: |d, text| file(text, d.config.rights.ops_token_file.get_or_insert_default()),
    },
};

pub(super) const OPS_PLAIN_FROM: Setting = Setting {
    name: "OPS_PLAIN_FROM",
    group: Group::Rights,
    value: "WHERE",
    default: "loopback",
    help: "From where metrics and /admin are answered in plain text: loopback, any, or networks \
           (and loopback)",
    kind: Kind::Text {
        allowed: ORIGINS,
        set: |draft, text| {
            draft.config.rights.ops_plain_from = config::AllowedFrom::parse(text)?;
            Some(())
        },
    },
};
