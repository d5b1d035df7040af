//! The cluster that `--cluster` names. A command with it does nothing to another cluster, for
//! example when an address of the wrong environment was pasted.
//!
//! Each order carries the cluster in the header `epicepoch-cluster`. A node of another cluster then
//! refuses the order. This module also checks the cluster that a node names in its answer.

use std::time::Instant;

use anyhow::{anyhow, bail};
use clap::ArgMatches;
use epicepoch_client::Client;
use epicepoch_config::{CLUSTER_NAME_LEN_MAX, Environment, variable};

use crate::failure::Failure;

/// The cluster that an operator means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The name (`CLUSTER` of its nodes) or the id, as given.
    text: String,
    /// The id, in lower case, if the text can be one: 32 hexadecimal digits. A name can look the
    /// same.
    id: Option<String>,
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
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if text.is_empty() || text.len() > CLUSTER_NAME_LEN_MAX || !text.bytes().all(is_plain) {
            return None;
        }
        let is_id = text.len() == ID_LEN && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(Self { text: text.to_owned(), id: is_id.then(|| text.to_ascii_lowercase()) })
    }

    /// Returns the name or the id, as the header carries it.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the name, unless the text can be an id, too.
    pub(crate) fn name(&self) -> Option<&str> {
        self.id.is_none().then_some(&self.text)
    }

    /// Checks an answer from `addr`: the ids in its header, and the name in its document. A node
    /// that has not joined has no id. A node of 0.1 tells no name.
    pub(crate) fn check(
        &self,
        addr: &str,
        ids: Option<&str>,
        name: Option<&str>,
    ) -> Result<(), anyhow::Error> {
        let Self { text, id } = self;
        if name == Some(text) {
            return Ok(());
        }
        let Some(id) = id else {
            match name {
                Some(name) => bail!(
                    "{addr} belongs to the cluster {name:?}, and --cluster is {text:?}; nothing was \
                     done"
                ),
                None => bail!(
                    "{addr} does not tell the name of its cluster, because it runs an older version; \
                     give the id of the cluster in --cluster; nothing was done"
                ),
            }
        };
        let found = ids.and_then(|ids| ids.split('.').next()).unwrap_or_default();
        if found == id || found.bytes().all(|byte| byte == b'0') {
            return Ok(());
        }
        bail!("{addr} belongs to the cluster {found}, and --cluster is {text}; nothing was done")
    }
}

/// Asks for the cluster's id, if `--cluster` can be one. Afterwards the client accepts no answer of
/// another cluster. A client knows the *name* from its options.
pub(crate) async fn check(
    expected: Option<&Expected>,
    client: &Client,
    deadline: Instant,
) -> Result<(), Failure> {
    if let Some(expected) = expected.filter(|it| it.name().is_none()) {
        let members = client.members(deadline).await?;
        let (ids, name) = (members.cluster.as_deref(), Some(&*members.cluster_name));
        expected.check("the node that answered", ids, name)?;
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
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::*;
    use crate::scripted::ID;
    use crate::{backup, commands, scripted};

    fn expected(text: &str) -> Expected {
        Expected::parse(text).expect("a cluster")
    }

    #[test]
    fn a_cluster_is_a_name_or_an_id() {
        for name in ["prod-1", "abcd", &"a".repeat(33)] {
            assert_eq!(expected(name).name(), Some(name));
        }
        assert_eq!(expected(&ID.to_uppercase()).id.as_deref(), Some(ID));
        for bad in ["", "a b", "a\r\nx: y", &"n".repeat(65)] {
            assert_eq!(Expected::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_the_expected_cluster_passes() {
        let id = expected(ID);
        let header = |id: &str| format!("{id}.0000000000000001");
        let check = |ids: &str, name| id.check("n1:8080", Some(ids), name);
        assert!(check(&header(ID), Some("prod")).is_ok());
        assert!(check(&header(ID), None).is_ok(), "an older version tells no name");
        assert!(check(&header(&"0".repeat(32)), Some("prod")).is_ok(), "it has not joined");
        let error = check(&header(&"1".repeat(32)), Some("prod")).expect_err("another");
        let text = error.to_string();
        assert!(text.contains("n1:8080") && text.contains(ID), "{text}");
        let name = expected("prod");
        assert!(name.check("n", Some(&header(ID)), Some("prod")).is_ok());
        let text = |found| name.check("n", None, found).expect_err("another").to_string();
        assert!(text(Some("test")).contains("\"test\""));
        assert!(text(None).contains("older version"));
    }

    #[test]
    fn a_name_may_look_like_an_id() {
        let name = "ABCDEF0123456789abcdef0123456789";
        let ids = Some("11111111111111111111111111111111.0000000000000001");
        assert!(expected(name).check("n", ids, Some(name)).is_ok());
        assert_eq!(expected(name).text(), name, "the node compares it as it is");
        assert!(expected(name).check("n", ids, Some("other")).is_err());
    }

    /// Starts a node of 0.1, which does not read the header and does not tell its cluster's name.
    /// Returns its address, and the requests that it answers.
    fn start_old_node() -> (String, Arc<Mutex<Vec<String>>>) {
        let (listener, addr) = scripted::listen();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (of_node, seen) = (addr.clone(), asked.clone());
        scripted::serve(listener, move |line| {
            seen.lock().expect("no panic").push(line.to_owned());
            let member = json!({"nodeID": 1, "addr": of_node, "raftAddr": "n:1", "role": "leader",
                                "voter": true, "store": "1", "heard": true, "behind": 0});
            Ok(match line.split_once(' ').expect("a target").1 {
                "/members" => json!({"leader": member, "members": [member]}),
                "/admin/members" => json!({"members": [member], "joint": false, "term": 1}),
                "/admin/clock" => json!({"nodeID": 1, "leads": true, "status": "followed"}),
                "/admin/backup" => json!({"backup": backup::sample().text()}),
                _ => Value::Null,
            })
        });
        (addr, asked)
    }

    #[test]
    fn a_node_that_ignores_the_header_is_neither_believed_nor_changed() {
        let (addr, asked) = start_old_node();
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (file, touch) = (path("file"), format!("touch {}", path("restarted")));
        let run = |words: &[&str]| {
            let shared = ["--addr", &addr, "--timeout", "2s"];
            let words = [&["epicepoch"][..], words, &shared].concat();
            let matches = commands::tree().try_get_matches_from(words).expect("right usage");
            crate::run(&matches, &Environment::new())
        };
        for words in [
            &["rolling", "--restart", &touch][..],
            &["backup", "--out", &file],
            &["clock"],
            &["tune"],
            &["member", "list"],
            &["settings", "list"],
            &["settings", "set", "MAX_N=77"],
            &["clock", "advance-to", "1s"],
            &["leader", "transfer"],
        ] {
            let failure = run(&[words, &["--cluster", "prod"]].concat()).expect_err("refused");
            let text = format!("{:#}", failure.error);
            assert_eq!(failure.code, 1, "{words:?}: {text}");
            let is_told = text.contains("older version") || text.contains("belongs to the cluster");
            assert!(is_told, "{words:?}: {text}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0, "nothing was done");
        let requests = || asked.lock().expect("no panic").clone();
        let spoken =
            ["GET /admin/members", "GET /admin/clock", "GET /admin/backup", "GET /members"];
        for request in requests() {
            assert!(spoken.contains(&request.as_str()), "{request}");
        }
        // Its id is known, and without --cluster any cluster will do.
        run(&["settings", "list", "--output", "json", "--cluster", ID]).expect("the id is right");
        run(&["settings", "list", "--output", "json"]).expect("no cluster is meant");
        run(&["backup", "--out", &file]).expect("no cluster is meant");
        assert!(requests().iter().any(|it| it == "GET /admin/settings"));
    }
}
