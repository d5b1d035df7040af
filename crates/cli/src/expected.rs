//! The cluster that `--cluster` names. A command with it does nothing to another cluster, for
//! example when an address of the wrong environment was pasted.
//!
//! Orders carry the cluster in the header `epicepoch-cluster`, so that the node that would carry
//! them out refuses them. What a node says about its cluster is checked here, too.

use std::time::Instant;

use anyhow::{anyhow, bail};
use clap::ArgMatches;
use epicepoch_client::Client;
use epicepoch_config::{CLUSTER_NAME_LEN_MAX, Environment, variable};

use crate::failure::Failure;

/// The cluster that an operator means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The name (`CLUSTER` of its nodes).
    Name(String),
    /// The id: 32 hexadecimal digits.
    Id(String),
}

impl Expected {
    /// Reads `--cluster` or its environment variable.
    pub(crate) fn of(
        matches: &ArgMatches,
        environment: &Environment,
    ) -> Result<Option<Self>, Failure> {
        let text = match matches.get_one::<String>(FLAG) {
            Some(text) => Some(text.clone()),
            None => variable(environment, VARIABLE).map_err(Failure::usage)?,
        };
        let parsed = |text: String| {
            Self::parse(&text).ok_or_else(|| {
                Failure::usage(anyhow!(
                    "--cluster is {text:?}; allowed is the name of a cluster (1 to \
                     {CLUSTER_NAME_LEN_MAX} letters, digits, '.', '_' and '-'), or its id (32 \
                     hexadecimal digits)"
                ))
            })
        };
        text.map(parsed).transpose()
    }

    fn parse(text: &str) -> Option<Self> {
        if text.len() == ID_LEN && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Some(Self::Id(text.to_ascii_lowercase()));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_name = !text.is_empty() && text.len() <= CLUSTER_NAME_LEN_MAX;
        (is_name && text.bytes().all(is_plain)).then(|| Self::Name(text.to_owned()))
    }

    /// Returns the name or the id, as the header carries it.
    pub(crate) fn text(&self) -> &str {
        let (Self::Name(text) | Self::Id(text)) = self;
        text
    }

    /// Returns the name, if the cluster is named by it.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Id(_) => None,
        }
    }

    /// Checks the ids in the header of an answer from `addr`. A node that has not joined has none.
    pub(crate) fn check_ids(&self, addr: &str, header: Option<&str>) -> Result<(), anyhow::Error> {
        let (Self::Id(id), Some(header)) = (self, header) else { return Ok(()) };
        let found = header.split('.').next().unwrap_or_default();
        if found == id || found.bytes().all(|byte| byte == b'0') {
            return Ok(());
        }
        bail!("{addr} belongs to the cluster {found}, and --cluster is {id}; nothing was done")
    }

    /// Checks the name in an answer from `addr`.
    pub(crate) fn check_name(&self, addr: &str, found: Option<&str>) -> Result<(), anyhow::Error> {
        let Self::Name(name) = self else { return Ok(()) };
        match found {
            Some(found) if found == name => Ok(()),
            Some(found) => bail!(
                "{addr} belongs to the cluster {found:?}, and --cluster is {name:?}; nothing was done"
            ),
            None => bail!(
                "{addr} does not tell the name of its cluster, because it runs an older version; give \
                 the id of the cluster in --cluster; nothing was done"
            ),
        }
    }
}

/// Asks for the cluster's id, if `--cluster` names one. Afterwards the client accepts no answer of
/// another cluster. A client knows the *name* from its options.
pub(crate) async fn check(
    expected: Option<&Expected>,
    client: &Client,
    deadline: Instant,
) -> Result<(), Failure> {
    if let Some(expected @ Expected::Id(_)) = expected {
        let members = client.members(deadline).await?;
        expected.check_ids("the node that answered", members.cluster.as_deref())?;
    }
    Ok(())
}

/// The argument.
pub(crate) const FLAG: &str = "cluster";
/// The environment variable.
pub(crate) const VARIABLE: &str = "EPICEPOCH_CLUSTER";
const ID_LEN: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0000000000000000000000000000abcd";

    #[test]
    fn a_cluster_is_a_name_or_an_id() {
        assert_eq!(Expected::parse("prod-1"), Some(Expected::Name("prod-1".into())));
        assert_eq!(Expected::parse(&ID.to_uppercase()), Some(Expected::Id(ID.into())));
        assert_eq!(Expected::parse("abcd"), Some(Expected::Name("abcd".into())));
        for bad in ["", "a b", "a\r\nx: y", &"n".repeat(65)] {
            assert_eq!(Expected::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_the_expected_cluster_passes() {
        let id = Expected::Id(ID.into());
        let header = |id: &str| format!("{id}.0000000000000001");
        assert!(id.check_ids("n", Some(&header(ID))).is_ok());
        assert!(id.check_ids("n", Some(&header(&"0".repeat(32)))).is_ok(), "it has not joined");
        let error = id.check_ids("n1:8080", Some(&header(&"1".repeat(32)))).expect_err("another");
        let text = error.to_string();
        assert!(text.contains("n1:8080") && text.contains(ID), "{text}");
        assert!(id.check_name("n", None).is_ok(), "the id decides");
        let name = Expected::Name("prod".into());
        assert!(name.check_name("n", Some("prod")).is_ok());
        let text = |found| name.check_name("n", found).expect_err("another").to_string();
        assert!(text(Some("test")).contains("\"test\""));
        assert!(text(None).contains("older version"));
    }
}
