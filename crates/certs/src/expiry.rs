//! Until when a certificate holds: the one field that its verifier does not tell. Reads what
//! comes from files of this machine, never from the network.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use yasna::models::TaggedDerValue;
use yasna::{ASN1Error, ASN1ErrorKind, ASN1Result, BERReaderSeq, Tag};

/// Until when a certificate holds, by its `notAfter` (RFC 5280, section 4.1.2.5), with all that is
/// before it. `None` if it is no certificate.
#[must_use]
pub fn not_after(der: &[u8]) -> Option<SystemTime> {
    let seconds = yasna::parse_der(der, |certificate| {
        certificate.read_sequence(|certificate| {
            let seconds = certificate.next().read_sequence(read_to_be_signed)?;
            skip(certificate)?;
            skip(certificate)?;
            Ok(seconds)
        })
    })
    .ok()?;
    let since = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) }
}

#[expect(clippy::redundant_closure_for_method_calls, reason = "methods are not general enough")]
fn read_to_be_signed(fields: &mut BERReaderSeq<'_, '_>) -> ASN1Result<i64> {
    // Version, where it is not the first one; serial number; algorithm; issuer.
    fields.read_optional(|version| {
        version.read_tagged(Tag::context(0), |version| version.read_u8())
    })?;
    skip(fields)?;
    skip(fields)?;
    skip(fields)?;
    let seconds = fields.next().read_sequence(|validity| {
        skip(validity)?;
        let time = validity.next().read_tagged_der()?;
        seconds(&time)
    })?;
    // Subject, key, extensions.
    while fields.read_optional(|field| field.read_tagged_der())?.is_some() {}
    Ok(seconds)
}

fn skip(fields: &mut BERReaderSeq<'_, '_>) -> ASN1Result<TaggedDerValue> {
    fields.next().read_tagged_der()
}

/// A time of either form, as seconds of Unix time.
fn seconds(time: &TaggedDerValue) -> ASN1Result<i64> {
    let invalid = || ASN1Error::new(ASN1ErrorKind::Invalid);
    let parsed = match time.tag() {
        tag if tag == yasna::tags::TAG_UTCTIME => {
            yasna::models::UTCTime::parse(time.value()).map(|time| *time.datetime())
        }
        tag if tag == yasna::tags::TAG_GENERALIZEDTIME => {
            yasna::models::GeneralizedTime::parse(time.value()).map(|time| *time.datetime())
        }
        _ => None,
    };
    parsed.map(time::OffsetDateTime::unix_timestamp).ok_or_else(invalid)
}
