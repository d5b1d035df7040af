//! What people and other programs write: queries, settings, JSON, answers, promises. Whatever it
//! is, it is understood or refused with a word, and what is understood is within its bounds.

use std::path::Path;

use epicepoch_bench::http1::{BODY_LEN_MAX, parse_response};
use epicepoch_bench::slo::Slo;
use epicepoch_client::Members;
use epicepoch_server::config::MAX_N;
use epicepoch_server::http::query::{Ask, Format};
use epicepoch_wire::http::RANGE_COUNT_MAX;

use crate::config_file::ConfigFile;
use crate::logging::Logging;
use crate::sources::Given;

/// Processors of the machine that settings are read on.
const CORES: usize = 4;

/// The query of `/timestamp`. The first bytes are the maximum of `n`.
pub(crate) fn http_query(data: &[u8]) {
    let Some((max_n, text)) = data.split_first_chunk::<4>() else { return };
    let max_n = u64::from(u32::from_le_bytes(*max_n)).clamp(MAX_N.min, MAX_N.max);
    let Ok(text) = std::str::from_utf8(text) else { return };
    match Ask::parse(Some(text), max_n) {
        Ok(Ask { count, format }) => {
            let most = if format == Format::Range { RANGE_COUNT_MAX } else { max_n };
            assert!((1..=most).contains(&count), "a count within its bounds");
        }
        Err(bad) => {
            assert!(!bad.text.is_empty() && !bad.text.contains(['\r', '\n']), "one line of advice");
            assert_eq!(bad.code.status(), 400, "a bad query is the client's mistake");
        }
    }
}

/// A file of settings, from its text to a checked configuration.
pub(crate) fn settings(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let path = Path::new("epicepoch.toml");
    let file = match ConfigFile::parse(path, text) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty(), "a refusal says why"),
    };
    let mut given = Given::default();
    given.take_file(path, file, |_| true);
    match given.node(Logging::default(), CORES) {
        Ok(draft) => assert_eq!(draft.config.check(), Ok(()), "what is taken is within bounds"),
        Err(error) => assert!(!error.to_string().is_empty(), "a refusal says why"),
    }
}

/// The body of `/members`, as the client reads it.
pub(crate) fn members(data: &[u8]) {
    let Ok(members) = Members::from_json(data, None) else { return };
    assert!(members.members.len() <= Members::COUNT_MAX, "members within their limit");
    for member in members.members.iter().chain(&members.leader) {
        assert_ne!(member.node_id.0, 0, "node 0 is nobody");
        let is_plain = member.addr.bytes().all(|byte| byte.is_ascii_graphic());
        assert!(is_plain && member.addr.contains(':'), "an address that a header can hold");
    }
}

/// Answers that come one after another, as the load generator reads them.
pub(crate) fn http_answer(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some((response, used))) = parse_response(rest) {
        assert!(used <= rest.len() && response.body.len() <= BODY_LEN_MAX.min(used));
        let names = response.headers().map(|(name, _)| name);
        assert!(names.into_iter().all(|name| response.header(name).is_some()));
        rest = &rest[used..];
    }
}

/// Promises about a measurement.
pub(crate) fn slo(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<Slo>() {
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty(), "a refusal says why"),
    }
}
