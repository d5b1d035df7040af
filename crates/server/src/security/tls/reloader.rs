//! The certificate reloader. It reads the files again every [`RELOAD_INTERVAL`]; changes take
//! effect at the next handshake. A month before a certificate expires it warns in the log and in
//! the metrics. A file that cannot be used is logged, and the old content stays in use.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use epicepoch_certs::{LivePair, LiveRoots};

use crate::reload::RELOAD_INTERVAL;

/// The reloader begins to warn this long before a certificate expires.
pub const WARNING: Duration = Duration::from_hours(30 * 24);
/// The number of checks between two warnings of an expiry: one day of checks.
const WARNING_LOOKS: u64 = 24 * 3600 / RELOAD_INTERVAL.as_secs();
/// A file must be unusable for this many checks before this is logged. A certificate and its key
/// are two files, and they cannot be replaced at the same moment.
const FAILING_LOOKS: u32 = 3;

/// The certificates and authorities that are reloaded.
#[derive(Clone, Debug, Default)]
pub struct Certificates(Vec<Kept>);

#[derive(Clone, Debug)]
enum Kept {
    Pair(Arc<LivePair>),
    Roots(Arc<LiveRoots>),
}

impl Certificates {
    /// Adds a certificate and its key.
    pub fn add_pair(&mut self, pair: Arc<LivePair>) {
        self.0.push(Kept::Pair(pair));
    }

    /// Adds a bundle of authorities.
    pub fn add_roots(&mut self, roots: Arc<LiveRoots>) {
        self.0.push(Kept::Roots(roots));
    }

    /// When each file expires, by the setting that names it.
    pub fn expiries(&self) -> impl Iterator<Item = (&'static str, SystemTime)> {
        self.0.iter().map(|kept| (kept.setting(), kept.expires_at()))
    }
}

impl Kept {
    fn setting(&self) -> &'static str {
        match self {
            Self::Pair(pair) => pair.current().certificate_file().setting,
            Self::Roots(roots) => roots.file().setting,
        }
    }

    /// The message for an expired file. It differs for authorities: a verifier checks the expiry of
    /// the shown certificate, but not of its own trusted authorities (RFC 5280, 6.1).
    fn expired(&self) -> News {
        let setting = self.setting();
        match self {
            Self::Pair(_) => News::Expired { setting },
            Self::Roots(_) => News::AuthorityExpired { setting },
        }
    }

    fn expires_at(&self) -> SystemTime {
        match self {
            Self::Pair(pair) => pair.expires_at(),
            Self::Roots(roots) => roots.expires_at(),
        }
    }

    /// Whether users other than the owner may read the key.
    fn is_exposed(&self) -> bool {
        match self {
            Self::Pair(pair) => pair.current().key_file().is_exposed(),
            Self::Roots(_) => false,
        }
    }

    fn reload(&self) -> Result<bool, String> {
        match self {
            Self::Pair(pair) => pair.reload().map_err(|error| error.to_string()),
            Self::Roots(roots) => roots.reload().map_err(|error| error.to_string()),
        }
    }
}

/// A message of the reloader.
#[derive(Clone, Debug, PartialEq, Eq)]
enum News {
    /// A new certificate is in use.
    Replaced { setting: &'static str },
    /// The files cannot be used; the old content stays in use.
    Unusable { setting: &'static str, why: String },
    /// The certificate expires within [`WARNING`].
    Expires { setting: &'static str, days: u64 },
    /// The certificate has expired.
    Expired { setting: &'static str },
    /// An authority of the file has expired.
    AuthorityExpired { setting: &'static str },
    /// Users other than the owner may read the key.
    Exposed { setting: &'static str },
}

/// Checks the files, and remembers which messages were logged.
#[derive(Debug)]
pub struct CertificateReloader {
    kept: Vec<(Kept, Said)>,
}

#[derive(Clone, Debug, Default)]
struct Said {
    /// The current error of the files, and for how many checks it has lasted.
    failing: Option<(String, u32)>,
    /// Checks until the next warning of an expiry.
    quiet_looks: u64,
    /// Whether others could read the key at the last check.
    is_exposed: bool,
}

impl CertificateReloader {
    /// A reloader that has logged nothing yet.
    pub fn new(certificates: &Certificates) -> Self {
        let kept = certificates.0.iter().map(|kept| (kept.clone(), Said::default()));
        Self { kept: kept.collect() }
    }

    /// Applies changed files and logs the messages. It reads files, so it must not run on a thread
    /// that others wait for.
    pub fn look(&mut self) {
        self.look_at(SystemTime::now()).iter().for_each(News::log);
    }

    fn look_at(&mut self, now: SystemTime) -> Vec<News> {
        let mut news = Vec::new();
        for (kept, said) in &mut self.kept {
            let setting = kept.setting();
            match kept.reload() {
                Ok(is_new) => {
                    said.failing = None;
                    if is_new {
                        said.quiet_looks = 0;
                        news.push(News::Replaced { setting });
                    }
                }
                Err(why) => {
                    let looks = match said.failing.take() {
                        Some((known, looks)) if known == why => looks + 1,
                        Some(_) | None => 1,
                    };
                    if looks == FAILING_LOOKS {
                        news.push(News::Unusable { setting, why: why.clone() });
                    }
                    said.failing = Some((why, looks));
                }
            }
            said.quiet_looks = said.quiet_looks.saturating_sub(1);
            let left = kept.expires_at().duration_since(now);
            if said.quiet_looks == 0 && left.as_ref().map_or(true, |left| *left < WARNING) {
                said.quiet_looks = WARNING_LOOKS;
                news.push(match left {
                    Ok(left) => News::Expires { setting, days: left.as_secs() / SECONDS_PER_DAY },
                    Err(_) => kept.expired(),
                });
            }
            let is_exposed = kept.is_exposed();
            if is_exposed && !said.is_exposed {
                news.push(News::Exposed { setting });
            }
            said.is_exposed = is_exposed;
        }
        news
    }
}

const SECONDS_PER_DAY: u64 = 24 * 3600;

impl News {
    fn log(&self) {
        match self {
            Self::Replaced { setting } => tracing::info!(setting, "{self}"),
            Self::Unusable { setting, .. }
            | Self::Expires { setting, .. }
            | Self::Exposed { setting } => tracing::warn!(setting, "{self}"),
            Self::Expired { setting } | Self::AuthorityExpired { setting } => {
                tracing::error!(setting, "{self}");
            }
        }
    }
}

impl fmt::Display for News {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replaced { .. } => write!(out, "certificates reloaded"),
            Self::Unusable { why, .. } => {
                write!(out, "certificates not reloaded, the old ones stay in use: {why}")
            }
            Self::Expires { days, .. } => {
                write!(
                    out,
                    "a certificate expires in {days} days: replace the file; the node reloads it"
                )
            }
            Self::Expired { .. } => write!(
                out,
                "a certificate has expired, so peers and clients refuse it: replace the file"
            ),
            Self::AuthorityExpired { .. } => write!(
                out,
                "an authority has expired, and stays trusted until you remove it from the file: the \
                 certificates that it signed are accepted until they expire themselves"
            ),
            Self::Exposed { .. } => {
                write!(out, "other users may read the key beside this file (chmod 600)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use epicepoch_certs::authority::{Authority, Validity};
    use epicepoch_certs::{Pair, PemFile};
    use epicepoch_wire::NodeId;

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn each_change_expiry_and_fault_is_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new("one").unwrap();
        let issue = |days| authority.node(NodeId(1), &[], Validity::days(days)).unwrap();
        let file = |setting, name| PemFile::new(setting, directory.path().join(name));
        let certificate = file("CERT_FILE", "cert.pem");
        let key = file("KEY_FILE", "key.pem");
        let write = |file: &PemFile, text: &str| std::fs::write(&file.path, text).unwrap();
        let first = issue(90);
        write(&certificate, &first.certificate);
        write(&key, &first.key);
        let set_mode = |mode| {
            std::fs::set_permissions(&key.path, PermissionsExt::from_mode(mode)).unwrap();
        };
        set_mode(0o600);
        let pair = LivePair::new(Pair::load(certificate.clone(), key.clone()).unwrap());
        let mut certificates = Certificates::default();
        certificates.add_pair(pair.clone());
        let mut reloader = CertificateReloader::new(&certificates);
        let setting = "CERT_FILE";
        let now = SystemTime::now();

        assert_eq!(reloader.look_at(now), []);
        assert_eq!(reloader.look_at(now + 59 * DAY), []);
        assert_eq!(reloader.look_at(now + 61 * DAY), [News::Expires { setting, days: 28 }]);
        assert_eq!(reloader.look_at(now + 61 * DAY), [], "once a day");
        reloader.kept[0].1.quiet_looks = 1;
        assert_eq!(reloader.look_at(now + 91 * DAY), [News::Expired { setting }]);

        // First only the new certificate is there, then its key, too.
        let second = issue(20);
        write(&certificate, &second.certificate);
        for _ in 1..FAILING_LOOKS {
            assert_eq!(reloader.look_at(now), [], "the other file may be on its way");
        }
        let told = reloader.look_at(now);
        assert!(matches!(&told[..], [News::Unusable { .. }]), "{told:?}");
        assert!(told[0].to_string().contains("KEY_FILE"), "{}", told[0]);
        assert_eq!(reloader.look_at(now), [], "once");
        write(&key, &second.key);
        let expected = [News::Replaced { setting }, News::Expires { setting, days: 19 }];
        assert_eq!(reloader.look_at(now), expected);
        assert_eq!(reloader.look_at(now), []);

        // Each time the key becomes readable for others, one message follows.
        for _ in 0..2 {
            set_mode(0o640);
            assert_eq!(reloader.look_at(now), [News::Exposed { setting }]);
            assert_eq!(reloader.look_at(now), [], "once");
            set_mode(0o600);
            assert_eq!(reloader.look_at(now), []);
        }
    }

    #[test]
    fn an_authority_that_has_expired_is_told_to_be_trusted_on() {
        let directory = tempfile::tempdir().unwrap();
        let file = PemFile::new("PEER_CA_FILE", directory.path().join("ca.pem"));
        std::fs::write(&file.path, Authority::new("one").unwrap().certificate()).unwrap();
        let mut certificates = Certificates::default();
        certificates.add_roots(LiveRoots::load(file).unwrap());
        let mut reloader = CertificateReloader::new(&certificates);
        let now = SystemTime::now();
        assert_eq!(reloader.look_at(now), []);
        let setting = "PEER_CA_FILE";
        let told = reloader.look_at(now + 3660 * DAY);
        assert_eq!(told, [News::AuthorityExpired { setting }]);
        assert!(!told[0].to_string().contains("refuse it"), "{}", told[0]);
    }
}
