//! Header sections (QPACK, RFC 9204) without a dynamic table, which neither end offers here: the one
//! request that is sent, and of answers what is looked at.

use thiserror::Error;

use epicepoch_wire::http2::hpack::{self, HpackError};

/// Why a header section cannot be decoded.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpackError {
    /// A number or a string in it is none.
    #[error(transparent)]
    Hpack(#[from] HpackError),
    /// It names an entry of a dynamic table, and none was offered.
    #[error("a header section names an entry of a table that was not offered")]
    Dynamic,
}

/// What is looked at of an answer's headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The status code; 0 if there is none.
    pub status: u16,
    /// The header `epicepoch-error`, or nothing.
    pub error: String,
    /// The header `epicepoch-leader`, or nothing.
    pub leader: String,
}

/// The header section of a `GET`, with a header `authorization` if there is a value for it.
#[must_use]
pub fn request(path: &str, authority: &str, authorization: Option<&str>) -> Vec<u8> {
    // No dynamic table: required insert count and base are 0.
    let mut section = vec![0, 0, INDEXED | METHOD_GET, INDEXED | SCHEME_HTTPS];
    for (name, value) in [(AUTHORITY, authority), (PATH, path)] {
        section.push(NAMED | name);
        hpack::put_string(&mut section, value.as_bytes());
    }
    if let Some(value) = authorization {
        // Its index is larger than the prefix of the name.
        section.extend([NAMED | NAMED_MAX, AUTHORIZATION - NAMED_MAX]);
        hpack::put_string(&mut section, value.as_bytes());
    }
    section
}

/// Decodes the header section of an answer.
///
/// # Errors
/// When it is not one that a server may send which was offered no dynamic table.
pub fn head(mut section: &[u8]) -> Result<Head, QpackError> {
    let mut head = Head::default();
    let inserted = hpack::number(&mut section, 8)?;
    let _base = hpack::number(&mut section, 7)?;
    if inserted != 0 {
        return Err(QpackError::Dynamic);
    }
    let (mut name, mut value) = (Vec::new(), Vec::new());
    while let Some(first) = section.first().copied() {
        name.clear();
        value.clear();
        if first & 0x80 != 0 {
            if first & 0x40 == 0 {
                return Err(QpackError::Dynamic);
            }
            let index = hpack::number(&mut section, 6)?;
            if let Some((_, status)) = STATUSES.iter().find(|(known, _)| *known == index) {
                head.status = *status;
            }
            continue;
        }
        if first & 0x40 != 0 {
            if first & 0x10 == 0 {
                return Err(QpackError::Dynamic);
            }
            let index = hpack::number(&mut section, 4)?;
            hpack::string(&mut section, 7, &mut value)?;
            if STATUSES.iter().any(|(known, _)| *known == index) {
                let text = std::str::from_utf8(&value).unwrap_or_default();
                head.status = text.parse().unwrap_or(0);
            }
            continue;
        }
        if first & 0x20 == 0 {
            return Err(QpackError::Dynamic);
        }
        hpack::string(&mut section, 3, &mut name)?;
        hpack::string(&mut section, 7, &mut value)?;
        let place = match &*name {
            name if name == epicepoch_wire::http::HEADER_ERROR.as_bytes() => &mut head.error,
            name if name == epicepoch_wire::http::HEADER_LEADER.as_bytes() => &mut head.leader,
            _ => continue,
        };
        *place = String::from_utf8_lossy(&value).into_owned();
    }
    Ok(head)
}

/// An entry of the static table, all of it (RFC 9204, 4.5.2).
const INDEXED: u8 = 0xc0;
/// The name of an entry of the static table, with another value (4.5.4).
const NAMED: u8 = 0x50;
/// From here on the index of a name goes on behind its first byte.
const NAMED_MAX: u8 = 0x0f;
/// Entries of the static table (appendix A).
const AUTHORITY: u8 = 0;
const PATH: u8 = 1;
const AUTHORIZATION: u8 = 84;
const METHOD_GET: u8 = 17;
const SCHEME_HTTPS: u8 = 23;
const STATUSES: [(usize, u16); 14] = [
    (24, 103),
    (25, 200),
    (26, 304),
    (27, 404),
    (28, 503),
    (63, 100),
    (64, 204),
    (65, 206),
    (66, 302),
    (67, 400),
    (68, 403),
    (69, 421),
    (70, 425),
    (71, 500),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn statuses_come_by_index_and_by_name() {
        assert_eq!(head(&[0, 0, 0xd9]).unwrap().status, 200);
        assert_eq!(head(&[0, 0, 0x5f, 0x09, 3, b'4', b'0', b'9']).unwrap().status, 409);
        // 71 takes a byte after its prefix.
        assert_eq!(head(&[0, 0, 0xff, 71 - 63]).unwrap().status, 500);
    }

    #[test]
    fn headers_of_this_product_are_read_and_others_passed_over() {
        let mut section = vec![0, 0, 0xdc];
        for (name, value) in
            [("epicepoch-error", "NO_LEADER"), ("x", "y"), ("epicepoch-leader", "a:1")]
        {
            section.push(0x20 | (name.len().min(7) as u8));
            if name.len() >= 7 {
                section.push(name.len() as u8 - 7);
            }
            section.extend_from_slice(name.as_bytes());
            section.push(value.len() as u8);
            section.extend_from_slice(value.as_bytes());
        }
        let expected = Head { status: 503, error: "NO_LEADER".into(), leader: "a:1".into() };
        assert_eq!(head(&section), Ok(expected));
    }

    #[test]
    fn a_token_comes_behind_the_rest_by_the_name_in_the_static_table() {
        let without = request("/t", "n:1", None);
        let with = request("/t", "n:1", Some("Bearer x"));
        let token = [&[0x5f, 84 - 15, 8][..], b"Bearer x"].concat();
        assert_eq!(with, [without, token].concat());
    }

    #[test]
    fn a_dynamic_table_was_not_offered() {
        for section in
            [&[1, 0, 0xd9][..], &[0, 0, 0x80], &[0, 0, 0x40, 0], &[0, 0, 0x10], &[0, 0, 0]]
        {
            assert_eq!(head(section), Err(QpackError::Dynamic));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(bytes: Vec<u8>) {
            let _ = head(&bytes);
        }
    }
}
