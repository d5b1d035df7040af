//! The expiry of a certificate: the one field that its verifier does not return. Reads only
//! certificates from files of this machine, never from the network.

use std::time::SystemTime;

use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{Reader, SliceReader, Tag, TagNumber, Tagged};

/// The tag of a certificate's version (RFC 5280, section 4.1).
pub(crate) const VERSION: TagNumber = TagNumber(0);

/// The end of a certificate's validity, from its `notAfter` (RFC 5280, section 4.1.2.5) and the
/// fields before it. `None` if the bytes are not a certificate, or the end is before 1970.
#[must_use]
pub fn not_after(der: &[u8]) -> Option<SystemTime> {
    let mut reader = SliceReader::new(der).ok()?;
    let until = reader.sequence(read_certificate).ok()?;
    reader.is_finished().then_some(until)
}

fn read_certificate(fields: &mut SliceReader<'_>) -> der::Result<SystemTime> {
    let until = fields.sequence(read_to_be_signed)?;
    // Skips algorithm and signature.
    skip(fields)?;
    skip(fields)?;
    Ok(until)
}

fn read_to_be_signed(fields: &mut SliceReader<'_>) -> der::Result<SystemTime> {
    // Skips the version, the serial number, the algorithm and the issuer. A certificate of the
    // first version has no version field.
    if matches!(Tag::peek(fields)?, Tag::ContextSpecific { number: VERSION, .. }) {
        skip(fields)?;
    }
    skip(fields)?;
    skip(fields)?;
    skip(fields)?;
    let until = fields.sequence(|validity| {
        skip(validity)?;
        time(validity.decode()?)
    })?;
    // Skips subject, key and extensions.
    while !fields.is_finished() {
        skip(fields)?;
    }
    Ok(until)
}

/// Skips one field.
pub(crate) fn skip(fields: &mut SliceReader<'_>) -> der::Result<()> {
    fields.decode::<AnyRef<'_>>().map(drop)
}

/// Reads a time in either of its two forms.
pub(crate) fn time(time: AnyRef<'_>) -> der::Result<SystemTime> {
    match time.tag() {
        Tag::UtcTime => Ok(time.decode_as::<UtcTime>()?.to_system_time()),
        _ => Ok(time.decode_as::<GeneralizedTime>()?.to_system_time()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The fields before the end of the validity, each as tag, length and content.
    const FIELDS: [&[u8]; 4] = [&[2, 1, 9], &[0x30, 0], &[0x30, 0], VALIDITY];
    const VALIDITY: &[u8] = b"\x30\x1e\x17\x0d260101000000Z\x17\x0d491231235959Z";

    fn sequence(content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).expect("it is short");
        assert!(length < 0x80, "a length of one byte");
        [&[0x30, length], content].concat()
    }

    fn certificate(fields: &[&[u8]]) -> Vec<u8> {
        sequence(&[sequence(&fields.concat()), vec![0x30, 0], vec![3, 1, 0]].concat())
    }

    #[test]
    fn a_length_beyond_memory_is_none_of_a_certificate() {
        let whole = certificate(&FIELDS);
        assert_eq!(
            not_after(&whole),
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(2_524_607_999))
        );
        // The length of this field is so large that its end overflows.
        let mut endless = vec![0x30, 0x88];
        endless.extend_from_slice(&u64::MAX.to_be_bytes());
        for place in 0..FIELDS.len() {
            let mut fields = FIELDS;
            fields[place] = &endless;
            assert_eq!(not_after(&certificate(&fields)), None, "in place {place}");
        }
    }
}
