//! The name in a node's certificate, with its cluster and its id:
//! `node-3.payments.epicepoch.internal`. No two nodes of any clusters have the same name. Names
//! below `internal` belong to no owner in the public DNS.

use std::fmt::Write as _;

use epicepoch_wire::NodeId;
use rustls::pki_types::CertificateDer;

/// The end of every name of a node.
pub const SUFFIX: &str = "epicepoch.internal";
/// Longest label, bytes (RFC 1035, section 2.3.4).
const LABEL_LEN_MAX: usize = 63;
/// The beginning of a cluster's name that is written in hexadecimal digits.
const ESCAPE: &str = "x-";

/// The DNS name in the certificate of a cluster's node.
///
/// A cluster's name of lower-case letters, digits and inner hyphens is used as it is. Any other
/// name is written in hexadecimal digits, because DNS names ignore case and are split at dots.
pub fn node_name(cluster_name: &str, node: NodeId) -> String {
    format!("node-{node}.{}.{SUFFIX}", cluster_labels(cluster_name))
}

/// Whether a host name is reserved for nodes: it is [`SUFFIX`] or a name below it, as every
/// [`node_name`] is. Case and dots at the end are ignored.
pub fn is_reserved(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host.strip_suffix(SUFFIX).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn cluster_labels(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = !name.is_empty() && name.len() <= LABEL_LEN_MAX && name.bytes().all(is_plain);
    let is_inner = !name.starts_with('-') && !name.ends_with('-');
    if is_label && is_inner && !name.starts_with(ESCAPE) {
        return name.to_owned();
    }
    let mut digits = String::new();
    for byte in name.bytes() {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    let mut labels = Vec::new();
    let mut rest = digits.as_str();
    while labels.is_empty() || !rest.is_empty() {
        let (label, behind) = rest.split_at(rest.len().min(LABEL_LEN_MAX - ESCAPE.len()));
        labels.push(format!("{ESCAPE}{label}"));
        rest = behind;
    }
    labels.join(".")
}

/// Whether a certificate carries exactly `name` among its DNS names. Unlike in other server
/// certificates, a wildcard matches no name here.
///
/// This function does not check the signature: [`LiveRoots`](crate::LiveRoots) does that first.
pub fn is_named(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return false };
    certificate.valid_dns_names().any(|own| own == name)
}

/// The node of a cluster that a certificate belongs to; the first if it names several. `None` for a
/// client's certificate, and for one of another cluster.
///
/// This function does not check the signature: [`LiveRoots`](crate::LiveRoots) does that first.
pub fn node_of(certificate: &CertificateDer<'_>, cluster_name: &str) -> Option<NodeId> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let behind = format!(".{}.{SUFFIX}", cluster_labels(cluster_name));
    certificate.valid_dns_names().find_map(|name| {
        let id: u64 = name.strip_prefix("node-")?.strip_suffix(&*behind)?.parse().ok()?;
        // Only the exact spelling matches.
        (node_name(cluster_name, NodeId(id)) == name).then_some(NodeId(id))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rustls::pki_types::ServerName;

    use super::*;

    #[test]
    fn a_host_is_not_called_as_nodes_are() {
        let node = node_name("a.b", NodeId(7));
        for name in [&*node, "EpicEpoch.Internal", "x.epicepoch.internal.", "*.epicepoch.internal"]
        {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["internal", "myepicepoch.internal", "epicepoch.internal.example", "10.0.0.1"] {
            assert!(!is_reserved(name), "{name}");
        }
    }

    #[test]
    fn no_two_nodes_have_the_same_name_and_every_name_is_one_of_dns() {
        let long = "A".repeat(64);
        let clusters = [
            "epicepoch",
            "a",
            "A",
            "a.b",
            "a-b",
            "a_b",
            "-a",
            "a-",
            "x-61",
            "X-61",
            "x-",
            "..",
            "61",
            &long,
            &long[1..],
        ];
        let mut seen = BTreeSet::new();
        for cluster in clusters {
            for node in [1, 2, 11, u64::MAX] {
                let name = node_name(cluster, NodeId(node));
                assert!(ServerName::try_from(name.clone()).is_ok(), "{name}");
                assert!(seen.insert(name.clone()), "{name} twice");
            }
        }
        assert_eq!(node_name("payments", NodeId(3)), "node-3.payments.epicepoch.internal");
        assert_eq!(node_name("a.B", NodeId(1)), "node-1.x-612e42.epicepoch.internal");
    }
}
