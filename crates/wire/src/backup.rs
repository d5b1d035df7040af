//! A backup of a cluster is a small readable text. It has what a new history of the cluster must
//! know of the old one: its ceiling, its members and its settings. It has no timestamps and no log.
//!
//! ```text
//! epicepoch backup
//! format 2
//! name epicepoch
//! cluster 5a0c…
//! history 00f3…
//! index 4711
//! ceiling 1700000001000000000
//! taken 1700000000000000000
//! reservation_ms 1000
//! clock_offset_max_ms 500
//! setting EPOCH_INTERVAL_MS=100
//! setting LEADER_ZONES=near-1,near-2
//! removed 2
//! member 1 77de… n1:60001 n1:8080
//! crc32 8d1f03c2
//! ```
//! There is a line for each setting of the cluster. If the replicated state has no settings yet,
//! these lines are missing, and the format is 1. A cluster that has or had leases also has a line
//! `lease_longest_ms` and the settings `LEASE_MS` and `GUARANTEE_DEFAULT`. If timestamps are compact,
//! there is a line for `TIMESTAMP_FORMAT`. In both cases the format is 3: a version that does not know
//! these must not restore the cluster.
//!
//! The checksum covers every line before it; it detects damage, not forgery. The first line and the
//! syntax of the second never change, so any version can tell a newer file from a damaged one.

use std::fmt::Write as _;

use thiserror::Error;

use crate::bootstrap::{MEMBERS_MAX, Member};
use crate::guarantee::Guarantee;
use crate::id::{ClusterId, HistoryId, LogIndex, NodeId, StoreId};
use crate::mode::Mode;
use crate::settings::{
    CLOCK_OFFSET_MAX_MS, ClusterSettings, EPOCH_INTERVAL_MS, MAX_N, RESERVATION_MS, SettingName,
};
use crate::timestamp::Epoch;
use crate::timestamp_format::TimestampFormat;

/// The newest format of a backup that this version reads.
pub const FORMAT: u64 = 3;
/// The format of a backup with settings, without leases and with wide timestamps.
const FORMAT_WITHOUT_LEASES: u64 = 2;
/// The format of a backup without settings of the cluster.
const FORMAT_WITHOUT_SETTINGS: u64 = 1;
/// Longest backup, bytes: enough for thousands of removed ids and all members.
pub const BACKUP_LEN_MAX: usize = 512 << 10;

const TITLE: &str = "epicepoch backup";

/// The content of a backup: the end of one history of a cluster, as far as the node knew that made
/// the backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// `CLUSTER`: 1 to 64 letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// Its history.
    pub history: HistoryId,
    /// The log index of the state.
    pub index: LogIndex,
    /// The ceiling at `index`. Up to this log index, no epoch above the ceiling had been assigned.
    pub ceiling: Epoch,
    /// The time when the backup was taken, Unix nanoseconds.
    pub taken_ns: u64,
    /// The longest known `RESERVATION_MS` of any node, milliseconds.
    pub reservation_ms: u64,
    /// The longest known `CLOCK_OFFSET_MAX_MS` of any node, milliseconds.
    pub clock_offset_max_ms: u64,
    /// The longest lease that the cluster ever had, milliseconds; 0 if it never had one.
    pub lease_longest_ms: u64,
    /// The settings of the cluster, which the new history keeps; `None` if the replicated state has
    /// none.
    pub settings: Option<ClusterSettings>,
    /// Removed ids, which are never used again.
    pub removed: Vec<NodeId>,
    /// The members.
    pub members: Vec<Member>,
}

/// Why a backup cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BackupError {
    /// The file is damaged: get another copy.
    #[error("it is no backup, or a damaged one")]
    Damaged,
    /// The file has a newer format: use a newer version of this program.
    #[error("it is of format {found}, and this version reads up to {FORMAT}")]
    Newer {
        /// Its format.
        found: u64,
    },
}

impl Backup {
    /// Parses the text that [`Backup::text`] wrote.
    ///
    /// # Errors
    /// The file is damaged, is not a backup, or has a newer format.
    pub fn parse(text: &str) -> Result<Self, BackupError> {
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(BackupError::Damaged);
        }
        // The format is checked before the checksum, because a newer format may have another
        // checksum.
        match field(lines.next(), "format").and_then(|format| format.parse::<u64>().ok()) {
            Some(FORMAT_WITHOUT_SETTINGS..=FORMAT) => {}
            Some(found) if found > FORMAT => return Err(BackupError::Newer { found }),
            Some(_) | None => return Err(BackupError::Damaged),
        }
        let backup = Self::fields(lines).ok_or(BackupError::Damaged)?;
        // A backup has only one valid text. Comparing with it checks everything, including the
        // format, the checksum and the last line break.
        if backup.text() == text { Ok(backup) } else { Err(BackupError::Damaged) }
    }

    fn fields<'a>(mut lines: impl Iterator<Item = &'a str>) -> Option<Self> {
        let name = field(lines.next(), "name")?.to_owned();
        let cluster = u128::from_str_radix(field(lines.next(), "cluster")?, 16).ok()?;
        let history = u64::from_str_radix(field(lines.next(), "history")?, 16).ok()?;
        let mut number = |name| field(lines.next(), name)?.parse::<u64>().ok();
        let mut backup = Self {
            name,
            cluster: ClusterId(cluster),
            history: HistoryId(history),
            index: LogIndex(number("index")?),
            ceiling: Epoch(number("ceiling")?),
            taken_ns: number("taken")?,
            reservation_ms: number("reservation_ms")?,
            clock_offset_max_ms: number("clock_offset_max_ms")?,
            lease_longest_ms: 0,
            settings: None,
            removed: Vec::new(),
            members: Vec::new(),
        };
        for line in lines {
            if let Some(longest) = line.strip_prefix("lease_longest_ms ") {
                backup.lease_longest_ms = longest.parse().ok()?;
            } else if let Some(setting) = line.strip_prefix("setting ") {
                let (name, value) = setting.split_once('=')?;
                let settings = backup.settings.get_or_insert_with(least);
                *settings = settings.with(SettingName::named(name)?, value)?;
            } else if let Some(id) = line.strip_prefix("removed ") {
                backup.removed.push(NodeId(id.parse().ok()?));
            } else if let Some(text) = line.strip_prefix("member ") {
                if backup.members.len() >= MEMBERS_MAX {
                    return None;
                }
                backup.members.push(member(text)?);
            }
        }
        Some(backup)
    }

    /// Whether the cluster gives compact timestamps.
    #[must_use]
    pub fn is_compact(&self) -> bool {
        let format = self.settings.as_ref().map(|settings| settings.timestamp_format);
        format == Some(TimestampFormat::Compact)
    }

    /// The text of the file.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.body();
        writeln!(text, "crc32 {:08x}", crc32fast::hash(text.as_bytes())).expect(INFALLIBLE);
        text
    }

    /// Returns the checksum of the file. It shows whether two backups differ.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        crc32fast::hash(self.body().as_bytes())
    }

    /// Whether the cluster has or had leases, so that the backup names them.
    fn has_leases(&self) -> bool {
        let settings = self.settings.as_ref();
        self.lease_longest_ms > 0 || settings.is_some_and(|it| !it.is_without_leases())
    }

    fn body(&self) -> String {
        let Self { name, cluster, history, index, ceiling, taken_ns, .. } = self;
        let Self { reservation_ms, clock_offset_max_ms, settings, removed, members, .. } = self;
        let (has_leases, is_compact) = (self.has_leases(), self.is_compact());
        let format = match settings {
            _ if has_leases || is_compact => FORMAT,
            Some(_) => FORMAT_WITHOUT_LEASES,
            None => FORMAT_WITHOUT_SETTINGS,
        };
        let mut text = format!(
            "{TITLE}\nformat {format}\nname {name}\ncluster {cluster}\nhistory {:016x}\nindex {index}\n\
             ceiling {ceiling}\ntaken {taken_ns}\nreservation_ms {reservation_ms}\n\
             clock_offset_max_ms {clock_offset_max_ms}\n",
            history.0
        );
        if has_leases {
            writeln!(text, "lease_longest_ms {}", self.lease_longest_ms).expect(INFALLIBLE);
        }
        let is_named = |name: &SettingName| match name {
            SettingName::LeaseMs | SettingName::GuaranteeDefault => has_leases,
            SettingName::TimestampFormat => is_compact,
            // There is no backup in interval mode.
            SettingName::Mode => false,
            _ => true,
        };
        let names = SettingName::ALL.iter().filter(|name| is_named(name));
        for (name, settings) in names.zip(settings.iter().cycle()) {
            writeln!(text, "setting {name}={}", settings.text(*name)).expect(INFALLIBLE);
        }
        for node in removed {
            writeln!(text, "removed {node}").expect(INFALLIBLE);
        }
        for Member { node, store, raft_addr, client_addr } in members {
            let (raft, client) = (plain(raft_addr), plain(client_addr));
            writeln!(text, "member {node} {store} {raft} {client}").expect(INFALLIBLE);
        }
        text
    }
}

/// Returns an address as one word. Returns `?` for an address that is not a single word.
fn plain(addr: &str) -> &str {
    let is_word = !addr.is_empty() && addr.bytes().all(|byte| byte.is_ascii_graphic());
    if is_word { addr } else { "?" }
}

fn field<'a>(line: Option<&'a str>, name: &str) -> Option<&'a str> {
    line?.strip_prefix(name)?.strip_prefix(' ')
}

fn member(text: &str) -> Option<Member> {
    let mut words = text.split(' ');
    Some(Member {
        node: NodeId(words.next()?.parse().ok()?),
        store: StoreId(u128::from_str_radix(words.next()?, 16).ok()?),
        raft_addr: words.next()?.to_owned(),
        client_addr: words.next()?.to_owned(),
    })
}

/// Settings from which a backup's settings are read, one after the other.
fn least() -> ClusterSettings {
    ClusterSettings {
        epoch_interval_ms: *EPOCH_INTERVAL_MS.start(),
        reservation_ms: *RESERVATION_MS.start(),
        clock_offset_max_ms: *CLOCK_OFFSET_MAX_MS.start(),
        max_n: *MAX_N.start(),
        leader_zones: Vec::new(),
        lease_ms: 0,
        guarantee_default: Guarantee::Quorum,
        timestamp_format: TimestampFormat::Wide,
        mode: Mode::Quorum,
    }
}

const INFALLIBLE: &str = "writing to a string";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::voter_status::Zone;

    fn backup() -> Backup {
        let member = |node| Member {
            node: NodeId(node),
            store: StoreId(u128::MAX - u128::from(node)),
            raft_addr: format!("n{node}:60001"),
            client_addr: format!("n{node}:8080"),
        };
        Backup {
            name: "epicepoch".into(),
            cluster: ClusterId(0xC1),
            history: HistoryId(7),
            index: LogIndex(4_711),
            ceiling: Epoch(1_700_000_001_000_000_000),
            taken_ns: 1_700_000_000_000_000_000,
            reservation_ms: 1_000,
            clock_offset_max_ms: 500,
            lease_longest_ms: 0,
            settings: Some(ClusterSettings {
                epoch_interval_ms: 50,
                reservation_ms: 900,
                leader_zones: ["near-1", "near-2"].map(|it| Zone::new(it).unwrap()).to_vec(),
                ..least()
            }),
            removed: vec![NodeId(2)],
            members: vec![member(1), member(3)],
        }
    }

    proptest! {
        #[test]
        fn a_backup_comes_back(
            cluster: u128,
            history: u64,
            ceiling: u64,
            taken_ns: u64,
            removed: Vec<u64>,
            has_settings: bool,
            lease_longest_ms in prop_oneof![Just(0), any::<u64>()],
            lease_ms in prop_oneof![Just(0), 50..60_000_u64],
            is_compact: bool,
        ) {
            let timestamp_format =
                if is_compact { TimestampFormat::Compact } else { TimestampFormat::Wide };
            let settings = backup().settings.map(|it| ClusterSettings { timestamp_format, ..it });
            let removed = removed.into_iter().map(NodeId).collect();
            let backup = Backup {
                cluster: ClusterId(cluster),
                history: HistoryId(history),
                ceiling: Epoch(ceiling),
                taken_ns,
                removed,
                lease_longest_ms,
                settings: settings
                    .filter(|_| has_settings)
                    .map(|it| ClusterSettings { lease_ms, ..it }),
                ..backup()
            };
            prop_assert_eq!(Backup::parse(&backup.text()), Ok(backup));
        }

        #[test]
        fn a_damaged_backup_is_rejected(at: prop::sample::Index, flip in 1_u8..) {
            let mut bytes = backup().text().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(text) = std::str::from_utf8(&bytes) {
                prop_assert!(Backup::parse(text).is_err());
                prop_assert!(Backup::parse(&text[..text.floor_char_boundary(at)]).is_err());
            }
        }

        #[test]
        fn garbage_never_panics(text in "\\PC{0,200}") {
            let _ = Backup::parse(&text);
        }
    }

    #[test]
    fn the_text_is_for_people_and_its_checksum_is_the_last_line() {
        let text = backup().text();
        assert!(
            text.starts_with("epicepoch backup\nformat 2\nname epicepoch\ncluster 0000"),
            "{text}"
        );
        let settings = "clock_offset_max_ms 500\nsetting EPOCH_INTERVAL_MS=50\n\
                        setting RESERVATION_MS=900\nsetting CLOCK_OFFSET_MAX_MS=1\n\
                        setting MAX_N=1\nsetting LEADER_ZONES=near-1,near-2\nremoved 2\n";
        assert!(text.contains(settings), "{text}");
        let last = format!(
            "member 3 {:032x} n3:60001 n3:8080\ncrc32 {:08x}\n",
            u128::MAX - 3,
            backup().checksum()
        );
        assert!(text.ends_with(&last), "{text}");
    }

    #[test]
    fn a_backup_of_a_cluster_with_leases_names_them_and_has_a_format_of_its_own() {
        let settings = |lease_ms, guarantee_default| {
            backup().settings.map(|it| ClusterSettings { lease_ms, guarantee_default, ..it })
        };
        for (longest, settings, format, lines) in [
            (0, settings(0, Guarantee::Quorum), 2, ""),
            (0, None, 1, ""),
            (200, None, 3, "lease_longest_ms 200\nremoved"),
            (200, settings(0, Guarantee::Quorum), 3, "\nsetting LEASE_MS=0\n"),
            (0, settings(50, Guarantee::Quorum), 3, "lease_longest_ms 0\nsetting EPOCH"),
            (0, settings(0, Guarantee::Lease), 3, "\nsetting GUARANTEE_DEFAULT=lease\n"),
        ] {
            let with = Backup { lease_longest_ms: longest, settings, ..backup() };
            let text = with.text();
            assert!(text.contains(&format!("format {format}\n")), "{text}");
            assert!(text.contains(lines), "{lines} in {text}");
            assert_eq!(text.contains("lease"), format == 3, "{text}");
            assert_eq!(Backup::parse(&text), Ok(with));
        }
    }

    #[test]
    fn a_newer_format_differs_from_damage_and_an_odd_address_is_one_word() {
        let newer = format!("{TITLE}\nformat 4\nof another shape\n");
        assert_eq!(Backup::parse(&newer), Err(BackupError::Newer { found: 4 }));
        assert_eq!(
            Backup::parse(&newer.replace("format 4", "format 0")),
            Err(BackupError::Damaged)
        );
        // The format says whether there are settings.
        let with = backup().text();
        assert!(Backup::parse(&with).is_ok());
        let without = Backup { settings: None, ..backup() }.text();
        assert!(without.contains("format 1\n") && Backup::parse(&without).is_ok());
        let mut compact = backup();
        let settings = compact.settings.as_mut().expect("settings");
        settings.timestamp_format = TimestampFormat::Compact;
        let text = compact.text();
        assert!(text.contains("format 3\n") && text.contains("setting TIMESTAMP_FORMAT=compact\n"));
        assert_eq!(Backup::parse(&text), Ok(compact));
        let mut odd = backup();
        odd.members[0].client_addr = "a b\nremoved 9".into();
        let read = Backup::parse(&odd.text()).expect("whole");
        assert_eq!((read.members[0].client_addr.as_str(), read.removed.len()), ("?", 1));
    }

    #[test]
    fn added_or_repeated_lines_are_damage() {
        let text = backup().text();
        let again = text.replace("removed 2\n", "removed 2\nremoved 2\n");
        for other in [format!("{text}\n"), format!("{text}x\n"), again] {
            assert_eq!(Backup::parse(&other), Err(BackupError::Damaged), "{other}");
        }
    }
}
