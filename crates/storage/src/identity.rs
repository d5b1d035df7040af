//! The owner of a data directory, readable for operators. It is drawn once and never changes.
//!
//! ```text
//! epicepoch data directory
//! format 1
//! node 2
//! store 5a0c…
//! cluster epicepoch
//! crc32 8d1f03c2
//! ```
//! The checksum covers every line before it. The first line and the syntax of the second never
//! change, so any version can tell a newer directory from a damaged one.

use std::fmt::Write as _;

use epicepoch_wire::{NodeId, StoreId};
use thiserror::Error;

/// The newest format of a data directory that this program knows.
pub const FORMAT: u64 = 1;
/// Longest text that is read as an identity, bytes.
pub const IDENTITY_LEN_MAX: usize = 4096;

const TITLE: &str = "epicepoch data directory";

/// The owner of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node.
    pub node: NodeId,
    /// The directory's own id.
    pub store: StoreId,
    /// The cluster's name, escaped to fit on one line.
    pub cluster: String,
}

/// Why a text is not an identity.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// The text is damaged, or no identity.
    #[error("not an identity, or a damaged one")]
    Damaged,
    /// A newer version of this program wrote it.
    #[error("format {found}")]
    Newer {
        /// Its format.
        found: u64,
    },
}

impl Identity {
    /// The identity of a new directory. `store` must be newly drawn.
    #[must_use]
    pub fn new(node: NodeId, store: StoreId, cluster_name: &str) -> Self {
        Self { node, store, cluster: escape(cluster_name) }
    }

    /// Whether the directory belongs to the cluster with this name.
    #[must_use]
    pub fn is_of(&self, cluster_name: &str) -> bool {
        self.cluster == escape(cluster_name)
    }

    /// Reads what [`Identity::text`] wrote.
    ///
    /// # Errors
    /// When the text is anything else.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        let damaged = IdentityError::Damaged;
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(damaged);
        }
        // The format is checked before the checksum, because a newer format may have another
        // checksum.
        let format = lines.next().and_then(|line| line.strip_prefix("format ")).unwrap_or("");
        match format.parse::<u64>() {
            Ok(FORMAT) => {}
            Ok(found) if found > FORMAT => return Err(IdentityError::Newer { found }),
            Ok(_) | Err(_) => return Err(damaged),
        }
        let fields = (
            field(lines.next(), "node ").and_then(|node| node.parse().ok()),
            field(lines.next(), "store ").and_then(|hex| u128::from_str_radix(hex, 16).ok()),
            field(lines.next(), "cluster "),
        );
        let (Some(node), Some(store), Some(cluster)) = fields else {
            return Err(damaged);
        };
        let identity =
            Self { node: NodeId(node), store: StoreId(store), cluster: cluster.to_owned() };
        // Only the exact text that [`Identity::text`] writes is valid, with its checksum and its
        // last line break.
        if identity.text() == text { Ok(identity) } else { Err(damaged) }
    }

    /// The text of the `IDENTITY` file.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { node, store, cluster } = self;
        let mut text =
            format!("{TITLE}\nformat {FORMAT}\nnode {node}\nstore {store}\ncluster {cluster}\n");
        let checksum = crc32fast::hash(text.as_bytes());
        writeln!(text, "crc32 {checksum:08x}").expect("writing to a string");
        text
    }
}

fn field<'a>(line: Option<&'a str>, name: &str) -> Option<&'a str> {
    line?.strip_prefix(name)
}

/// Escapes any name so that it fits on one line.
fn escape(cluster: &str) -> String {
    cluster.escape_default().to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_identity_comes_back_whatever_the_name(node: u64, store: u128, name: String) {
            let identity =
                Identity { node: NodeId(node), store: StoreId(store), cluster: escape(&name) };
            prop_assert_eq!(Identity::parse(&identity.text()), Ok(identity));
        }

        #[test]
        fn a_damaged_identity_is_never_taken(at: prop::sample::Index, flip in 1_u8..) {
            let mut bytes = Identity::new(NodeId(1), StoreId(5), "epicepoch").text().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(text) = std::str::from_utf8(&bytes) {
                prop_assert!(Identity::parse(text).is_err());
                prop_assert!(Identity::parse(&text[..text.floor_char_boundary(at)]).is_err());
            }
        }
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let newer = format!("{TITLE}\nformat 2\nshape of another kind\n");
        assert_eq!(Identity::parse(&newer), Err(IdentityError::Newer { found: 2 }));
        let older = format!("{TITLE}\nformat 0\n");
        assert_eq!(Identity::parse(&older), Err(IdentityError::Damaged));
    }
}
