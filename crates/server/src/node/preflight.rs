//! What would stop [`Node::start`](super::Node::start), without starting a node. It uses the same
//! functions as a start. It opens each port for a moment, and creates and changes no file.

use std::net::ToSocketAddrs as _;
use std::path::Path;

use epicepoch_certs::PemFile;

use super::{StartError, bind_clients, bind_operations, bind_peers, check_beginning};
use crate::config::Config;
use crate::consensus::restore::Restore;
use crate::faults::Faults;
use crate::lease_clock::LeaseClock;
use crate::security::authz::tokens::Tokens;
use crate::security::tls::peers::PeerTls;
use crate::security::tls::{ClientTls, load_pair};
use crate::storage::{Found, Storage};
use crate::worker::processor;

/// The result of a check.
#[derive(Debug, Default)]
pub struct Preflight {
    /// What a start would fail with, each with advice.
    pub problems: Vec<StartError>,
    /// What a start would accept, but an operator should know.
    pub warnings: Vec<String>,
}

/// Checks a configuration that [`Config::check`] accepts.
#[must_use]
pub fn preflight(config: &Config) -> Preflight {
    let mut found = Preflight::default();
    found.add(processor::check(&config.worker_cpus));
    let is_running = found.data_directory(config);
    found.leases(config);
    found.certificates(config);
    found.tokens(config);
    found.names(config);
    if is_running {
        let path = config.data_dir.display();
        found.warnings.push(format!(
            "a node runs with DATA_DIR {path} now, so its ports and its database were not checked"
        ));
    } else {
        found.ports(config);
    }
    found
}

impl Preflight {
    fn add<T, E: Into<StartError>>(&mut self, checked: Result<T, E>) -> Option<T> {
        checked.map_err(|error| self.problems.push(error.into())).ok()
    }

    /// Checks the data directory and the backup. Returns whether a node uses the directory now.
    fn data_directory(&mut self, config: &Config) -> bool {
        let found = Storage::inspect(&config.data_dir, config.node_id, &config.cluster_name);
        let has_data = match self.add(found) {
            None => return false,
            Some(Found::InUse) => return true,
            Some(Found::Data) => true,
            Some(Found::Nothing) => false,
        };
        self.add(check_beginning(config, has_data));
        if !has_data {
            self.add(Restore::read(config, &Faults::none()).map_err(StartError::Restore));
        }
        false
    }

    /// Warns if this node would take no lease, although its settings ask for leases.
    fn leases(&mut self, config: &Config) {
        let right = LeaseClock::new(config.leases.clock).right();
        let is_asked_for = !config.shared().is_without_leases();
        if let Some(advice) = right.advice().filter(|_| is_asked_for) {
            self.warnings.push(format!("LEASE_CLOCK: this node takes no lease: {advice}"));
        }
    }

    fn certificates(&mut self, config: &Config) {
        let tls = &config.tls;
        let is_missing = |file: &Path| !PemFile::new("", file).exists();
        let is_made = is_missing(&tls.cert_file) && is_missing(&tls.key_file);
        let is_used = tls.http3 || tls.clients != crate::config::ClientTlsMode::Off;
        if is_made && is_used && tls.client_ca_file.is_none() {
            self.warnings.push(format!(
                "CERT_FILE: {} is missing, and so is KEY_FILE: the node will write a self-signed pair, \
                 which no client trusts",
                tls.cert_file.display()
            ));
        } else if tls.clients != crate::config::ClientTlsMode::Off {
            self.add(ClientTls::load(config));
        } else if tls.http3 {
            match load_pair(config) {
                Err(error) if tls.names_no_pair() => {
                    self.warnings.push(format!("HTTP/3 will be off: {error}"));
                }
                loaded => drop(self.add(loaded.map_err(crate::security::tls::TlsError::from))),
            }
        }
        self.add(PeerTls::load(config));
        let keys =
            [("KEY_FILE", Some(&tls.key_file)), ("PEER_KEY_FILE", config.links.key_file.as_ref())];
        for (setting, file) in keys {
            self.warn_of_exposure(setting, file.map(AsRef::as_ref));
        }
    }

    fn tokens(&mut self, config: &Config) {
        let authz = &config.authz;
        for (setting, file) in [
            ("CLIENT_TOKEN_FILE", authz.client_token_file.as_deref()),
            ("OPS_TOKEN_FILE", authz.ops_token_file.as_deref()),
        ] {
            if let Some(file) = file {
                self.add(Tokens::read(setting, file));
            }
            self.warn_of_exposure(setting, file);
        }
    }

    fn warn_of_exposure(&mut self, setting: &'static str, file: Option<&Path>) {
        if let Some(file) = file.filter(|file| PemFile::new(setting, *file).is_exposed()) {
            self.warnings.push(format!(
                "{setting}: other users may read {path}, which holds a secret: chmod 600 {path}",
                path = file.display()
            ));
        }
    }

    /// Resolves the names of all nodes. A start does not fail if a name is not known yet.
    fn names(&mut self, config: &Config) {
        let peers = config.peers.values().map(|addr| ("PEERS", addr));
        let others = config.join.iter().map(|addr| ("JOIN", addr));
        let own = [("RAFT_ADDR", &config.raft_addr), ("ADVERTISE_ADDR", &config.advertise_addr)];
        let mut seen = Vec::new();
        for (setting, addr) in own.into_iter().chain(peers).chain(others) {
            if seen.contains(&addr) {
                continue;
            }
            seen.push(addr);
            let error = match addr.to_socket_addrs().map(|mut addrs| addrs.next()) {
                Ok(Some(_)) => continue,
                Ok(None) => "it has no address".to_owned(),
                Err(error) => error.to_string(),
            };
            self.warnings.push(format!(
                "{setting}: the name in {addr} cannot be resolved here ({error}): correct it, or \
                 DNS, before nodes have to reach each other"
            ));
        }
    }

    fn ports(&mut self, config: &Config) {
        // All ports stay bound until all are checked, because two settings may name one port.
        let clients = self.add(bind_clients(config, config.tls.http3));
        let operations = self.add(bind_operations(config));
        let peers = self.add(bind_peers(config));
        drop((clients, operations, peers));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt as _;

    use epicepoch_wire::NodeId;

    use super::*;

    /// Returns a configuration of one node on free ports, with all files in `dir`.
    fn config(dir: &Path) -> Config {
        let port = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("an address").port()
        };
        let mut config = Config::new(NodeId(1), format!("127.0.0.1:{}", port())).into_single();
        config.http_port = 0;
        config.advertise_addr = "127.0.0.1:0".into();
        config.data_dir = dir.join("data");
        config.bootstrap = true;
        config.tls.cert_file = dir.join("cert.pem");
        config.tls.key_file = dir.join("key.pem");
        config
    }

    fn texts(found: &Preflight) -> Vec<String> {
        found.problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_new_node_has_no_problem_and_nothing_is_created() {
        let dir = tempfile::tempdir().expect("a directory");
        let found = preflight(&config(dir.path()));
        assert!(found.problems.is_empty(), "{:?}", texts(&found));
        assert!(found.warnings.iter().any(|it| it.contains("self-signed")), "{found:?}");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
    }

    #[test]
    fn every_problem_is_found_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config(dir.path());
        let taken = TcpListener::bind("0.0.0.0:0").expect("a port");
        config.http_port = taken.local_addr().expect("an address").port();
        config.bootstrap = false;
        config.authz.ops_token_file = Some(dir.path().join("none"));
        fs::write(&config.tls.cert_file, "no certificate").expect("written");
        fs::write(&config.tls.key_file, "no key").expect("written");
        fs::set_permissions(&config.tls.key_file, fs::Permissions::from_mode(0o644)).expect("set");
        config.advertise_addr = "name.invalid:1".into();
        let found = preflight(&config);
        let problems = texts(&found);
        for part in ["BOOTSTRAP is off", "OPS_TOKEN_FILE", "CERT_FILE", "HTTP_PORT"] {
            assert!(problems.iter().any(|text| text.contains(part)), "{part} in {problems:#?}");
        }
        for part in ["KEY_FILE: other users", "ADVERTISE_ADDR: the name in name.invalid:1"] {
            assert!(found.warnings.iter().any(|text| text.contains(part)), "{part}: {found:#?}");
        }
    }

    #[test]
    fn a_node_that_would_take_no_lease_says_so_if_it_is_set_to_have_leases() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config(dir.path());
        let is_told = |config: &Config| {
            let found = preflight(config);
            assert!(found.problems.is_empty(), "{:?}", texts(&found));
            found.warnings.iter().any(|it| it.ends_with("takes no lease: LEASE_CLOCK is never"))
        };
        config.leases.clock = crate::config::LeaseClock::Never;
        assert!(!is_told(&config));
        config.leases.length = std::time::Duration::from_millis(100);
        assert!(is_told(&config));
        config.leases.clock = crate::config::LeaseClock::Trusted;
        assert!(!is_told(&config));
    }

    #[test]
    fn a_directory_that_was_opened_but_never_founded_has_no_data() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config(dir.path());
        let open = || Storage::open(&config.data_dir, NodeId(1), "epicepoch", &Faults::none());
        drop(open().expect("opened"));
        let database = config.data_dir.join("log.redb");
        let before = fs::read(&database).expect("read");
        assert!(preflight(&config).problems.is_empty(), "BOOTSTRAP founds it");
        config.bootstrap = false;
        let problems = texts(&preflight(&config));
        assert!(problems.iter().any(|text| text.contains("BOOTSTRAP is off")), "{problems:?}");
        assert_eq!(fs::read(&database).expect("read"), before, "nothing is changed");
        fs::write(&database, &before[..before.len() / 2]).expect("written");
        let problems = texts(&preflight(&config));
        assert!(problems.iter().any(|text| text.contains("damaged")), "{problems:?}");
    }

    #[test]
    fn the_directory_of_another_node_or_of_a_running_one_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config(dir.path());
        let opened = Storage::open(&config.data_dir, NodeId(1), "epicepoch", &Faults::none());
        let opened = opened.expect("opened");
        let found = preflight(&config);
        assert!(found.problems.is_empty(), "{:?}", texts(&found));
        assert!(found.warnings.iter().any(|text| text.contains("a node runs")), "{found:?}");
        drop(opened);
        config.node_id = NodeId(2);
        let problems = texts(&preflight(&config));
        assert!(problems.iter().any(|text| text.contains("belongs to node 1")), "{problems:?}");
        config.data_dir = config.tls.cert_file.clone();
        fs::write(&config.data_dir, "a file").expect("written");
        let problems = texts(&preflight(&config));
        assert!(problems.iter().any(|text| text.contains("not a directory")), "{problems:?}");
    }
}
