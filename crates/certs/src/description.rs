//! Reads the cluster, the owner, the names and the validity of a certificate, to show them to a
//! person. Reads only certificates from files of this machine. It never checks a signature, so
//! nothing may be trusted because of it.

use std::net::IpAddr;
use std::time::SystemTime;

use der::asn1::AnyRef;
use der::{Reader, SliceReader, Tag, TagNumber, Tagged};
use epicepoch_wire::NodeId;
use rustls::pki_types::CertificateDer;

use crate::expiry::{VERSION, skip, time};
use crate::name::node_of;

/// The fields of a certificate that people need (RFC 5280, section 4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The organization of its subject: the cluster's name, in certificates of `epicepoch certs`.
    /// Empty if the subject has no organization.
    pub organization: String,
    /// The common name of its subject. Empty if the subject has no common name.
    pub common_name: String,
    /// The DNS names and addresses that it is for, in its order.
    pub names: Vec<String>,
    /// When its validity begins.
    pub not_before: SystemTime,
    /// When its validity ends.
    pub not_after: SystemTime,
    /// The owner of the certificate.
    pub purpose: Purpose,
}

/// The owner of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// An authority, which signs other certificates.
    Authority,
    /// A node of the cluster that the organization names.
    Node(NodeId),
    /// A client.
    Client,
    /// A server, but not a node of the cluster that the organization names.
    Server,
    /// None of these: neither a client nor a server may use it.
    Other,
}

/// The fields of a certificate's body that are described.
struct Body<'a> {
    not_before: SystemTime,
    not_after: SystemTime,
    subject: AnyRef<'a>,
    extensions: Option<AnyRef<'a>>,
}

/// The extensions that are described.
#[derive(Default)]
struct Extensions {
    names: Vec<String>,
    is_authority: bool,
    is_for_servers: bool,
    is_for_clients: bool,
}

impl Description {
    /// Describes a certificate. `None` if the bytes are not a certificate that can be read.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let mut reader = SliceReader::new(certificate).ok()?;
        let body = reader
            .sequence(|fields| {
                let body = fields.sequence(read_body)?;
                skip(fields)?;
                skip(fields)?;
                Ok::<_, der::Error>(body)
            })
            .ok()?;
        if !reader.is_finished() {
            return None;
        }
        let mut extensions = Extensions::default();
        if let Some(field) = body.extensions {
            read_extensions(field, &mut extensions).ok()?;
        }
        let (organization, common_name) = read_subject(body.subject).ok()?;
        let purpose = match node_of(certificate, &organization) {
            _ if extensions.is_authority => Purpose::Authority,
            Some(node) => Purpose::Node(node),
            None if extensions.is_for_servers => Purpose::Server,
            None if extensions.is_for_clients => Purpose::Client,
            None => Purpose::Other,
        };
        Some(Self {
            organization,
            common_name,
            names: extensions.names,
            not_before: body.not_before,
            not_after: body.not_after,
            purpose,
        })
    }
}

fn read_body<'a>(fields: &mut SliceReader<'a>) -> der::Result<Body<'a>> {
    // A certificate of the first version has no version field.
    if context_number(Tag::peek(fields)?) == Some(VERSION) {
        skip(fields)?;
    }
    // Skips the serial number, the algorithm and the issuer.
    skip(fields)?;
    skip(fields)?;
    skip(fields)?;
    let (not_before, not_after) = fields.sequence(|validity| {
        Ok::<_, der::Error>((time(validity.decode()?)?, time(validity.decode()?)?))
    })?;
    let subject = fields.decode()?;
    // Skips the key.
    skip(fields)?;
    let mut extensions = None;
    while !fields.is_finished() {
        let field: AnyRef<'_> = fields.decode()?;
        if context_number(field.tag()) == Some(EXTENSIONS) {
            extensions = Some(field);
        }
    }
    Ok(Body { not_before, not_after, subject, extensions })
}

/// Reads the organization and the common name of a subject. Each is empty if it is missing.
fn read_subject(subject: AnyRef<'_>) -> der::Result<(String, String)> {
    let (mut organization, mut common_name) = (String::new(), String::new());
    let mut sets = SliceReader::new(subject.value())?;
    while !sets.is_finished() {
        let set: AnyRef<'_> = sets.decode()?;
        let mut pairs = SliceReader::new(set.value())?;
        while !pairs.is_finished() {
            let (kind, text) = pairs.sequence(|pair| {
                let kind: AnyRef<'_> = pair.decode()?;
                let text: AnyRef<'_> = pair.decode()?;
                Ok::<_, der::Error>((kind, text))
            })?;
            let text = || String::from_utf8_lossy(text.value()).into_owned();
            match kind.value() {
                ORGANIZATION => organization = text(),
                COMMON_NAME => common_name = text(),
                _ => {}
            }
        }
    }
    Ok((organization, common_name))
}

fn read_extensions(field: AnyRef<'_>, found: &mut Extensions) -> der::Result<()> {
    let mut outer = SliceReader::new(field.value())?;
    outer.sequence(|list| {
        while !list.is_finished() {
            list.sequence(|extension| {
                let kind: AnyRef<'_> = extension.decode()?;
                let mut content: AnyRef<'_> = extension.decode()?;
                // Whether the extension is critical comes before its content, if it is.
                if content.tag() == Tag::Boolean {
                    content = extension.decode()?;
                }
                read_extension(kind.value(), content.value(), found)
            })?;
        }
        Ok::<_, der::Error>(())
    })
}

fn read_extension(kind: &[u8], content: &[u8], found: &mut Extensions) -> der::Result<()> {
    let mut content = SliceReader::new(content)?;
    match kind {
        ALTERNATIVE_NAMES => content.sequence(|names| {
            while !names.is_finished() {
                let name: AnyRef<'_> = names.decode()?;
                found.names.extend(general_name(name));
            }
            Ok::<_, der::Error>(())
        }),
        EXTENDED_KEY_USAGE => content.sequence(|usages| {
            while !usages.is_finished() {
                let usage: AnyRef<'_> = usages.decode()?;
                found.is_for_servers |= usage.value() == SERVER_AUTH;
                found.is_for_clients |= usage.value() == CLIENT_AUTH;
            }
            Ok::<_, der::Error>(())
        }),
        BASIC_CONSTRAINTS => content.sequence(|constraints| {
            while !constraints.is_finished() {
                let constraint: AnyRef<'_> = constraints.decode()?;
                found.is_authority |= constraint.tag() == Tag::Boolean && constraint.value() != [0];
            }
            Ok::<_, der::Error>(())
        }),
        _ => Ok(()),
    }
}

/// The text of a DNS name or an address; `None` for another kind of name.
fn general_name(name: AnyRef<'_>) -> Option<String> {
    match context_number(name.tag())? {
        DNS_NAME => Some(String::from_utf8_lossy(name.value()).into_owned()),
        ADDRESS => {
            let v4 = <[u8; 4]>::try_from(name.value()).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(name.value()).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

fn context_number(tag: Tag) -> Option<TagNumber> {
    match tag {
        Tag::ContextSpecific { number, .. } => Some(number),
        _ => None,
    }
}

const EXTENSIONS: TagNumber = TagNumber(3);
/// Kinds of names in a certificate (RFC 5280, section 4.2.1.6).
const DNS_NAME: TagNumber = TagNumber(2);
const ADDRESS: TagNumber = TagNumber(7);
/// Object identifiers, as they are encoded (RFC 5280, appendix A).
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATION: &[u8] = &[0x55, 4, 10];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 29, 17];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 29, 19];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 29, 37];
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

#[cfg(all(test, feature = "issue"))]
mod tests {
    use rustls::pki_types::pem::PemObject as _;

    use super::*;
    use crate::authority::{Authority, Validity};
    use crate::expiry::not_after;

    fn described(pem: &str) -> Description {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
        let description = Description::of(&der).expect("it can be read");
        assert_eq!(Some(description.not_after), not_after(&der));
        for cut in [0, 1, der.len() / 2, der.len() - 1] {
            assert_eq!(Description::of(&CertificateDer::from(&der[..cut])), None, "cut at {cut}");
        }
        description
    }

    #[test]
    fn a_certificate_says_whose_it_is_and_what_it_is_for() {
        let authority = Authority::new("pay.ments").expect("an authority");
        let own = described(authority.certificate());
        assert_eq!((own.purpose, &*own.organization), (Purpose::Authority, "pay.ments"));
        let names = ["n3.example", "10.0.0.3", "::1"].map(str::to_owned);
        let node = authority.node(NodeId(3), &names, Validity::days(30)).expect("signed");
        let node = described(&node.certificate);
        assert_eq!((node.purpose, &*node.organization), (Purpose::Node(NodeId(3)), "pay.ments"));
        assert_eq!(node.names[1..], names);
        let days = node.not_after.duration_since(node.not_before).expect("in order");
        assert_eq!(days.as_secs() / 86_400, 31, "valid from a day ago");
        let client = authority.client("app", Validity::days(1)).expect("signed");
        let client = described(&client.certificate);
        assert_eq!((client.purpose, &*client.common_name), (Purpose::Client, "app"));
        assert!(client.names.is_empty());
        // A self-signed pair is for a server, and is no node's.
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| crate::PemFile::new("X", dir.path().join(name));
        let pair = crate::Pair::load_or_make(file("c"), file("k"), &names).expect("made");
        let own = Description::of(pair.certificate()).expect("it can be read");
        assert_eq!((own.purpose, own.names), (Purpose::Server, names.to_vec()));
    }

    #[test]
    fn a_certificate_is_renewed_for_the_same_owner_with_a_new_key() {
        let authority = Authority::new("one").expect("an authority");
        let other = Authority::new("one").expect("an authority");
        let names = ["n3.example", "10.0.0.3"].map(str::to_owned);
        let validity = Validity::days(1);
        let ended = Validity::until(SystemTime::now() - std::time::Duration::from_mins(1));
        let old = [
            authority.node(NodeId(3), &names, ended).expect("signed"),
            authority.client("app", validity).expect("signed"),
        ];
        for old in &old {
            let der = CertificateDer::from_pem_slice(old.certificate.as_bytes()).expect("one");
            let new = authority.renew(&der, Validity::days(7)).expect("renewed");
            let (was, is) = (described(&old.certificate), described(&new.certificate));
            assert_eq!((was.purpose, &was.names), (is.purpose, &is.names));
            assert_eq!((&was.organization, &was.common_name), (&is.organization, &is.common_name));
            assert!(is.not_after > was.not_after && new.key != old.key);
            assert!(other.renew(&der, validity).is_err(), "another authority has signed it");
        }
        let own = CertificateDer::from_pem_slice(authority.certificate().as_bytes()).expect("one");
        assert!(authority.renew(&own, validity).is_err(), "an authority is not renewed");
    }
}
