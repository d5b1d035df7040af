//! The content that files may have, and the errors for any other content.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use epicepoch_certs::authority::{Authority, AuthorityError, Validity};
use epicepoch_certs::rustls::pki_types::pem::PemObject as _;
use epicepoch_certs::rustls::pki_types::{CertificateDer, UnixTime};
use epicepoch_certs::rustls::server::danger::ClientCertVerifier as _;
use epicepoch_certs::{
    FileError, LivePair, LiveRoots, Pair, PairError, PemFile, RootsError, node_name,
};
use epicepoch_wire::NodeId;

use crate::memory::write;

fn files(directory: &Path) -> (PemFile, PemFile) {
    let file = |setting, name| PemFile::new(setting, directory.join(name));
    (file("CERT_FILE", "cert.pem"), file("KEY_FILE", "key.pem"))
}

fn days_left(at: SystemTime) -> u64 {
    (at.duration_since(SystemTime::now()).unwrap() + Duration::from_mins(1)).as_secs() / 86_400
}

#[test]
fn a_missing_pair_is_made_once_for_its_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = files(directory.path());
    let names = ["localhost", "127.0.0.1", "[::1]", "localhost"].map(str::to_owned);
    let made: BTreeSet<Vec<u8>> = std::thread::scope(|scope| {
        let make = || Pair::load_or_make(certificate.clone(), key.clone(), &names).unwrap();
        let makers: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
        makers.into_iter().map(|maker| maker.join().unwrap().certificate().to_vec()).collect()
    });
    assert_eq!(made.len(), 1, "all have the same");
    let bits = |file: &PemFile| file.path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(bits(&key), 0o600);
    assert!(!key.is_exposed() && certificate.is_exposed());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "and no other file");
    let pair = Pair::load(certificate, key).unwrap();
    assert_eq!(days_left(pair.expires_at()), 825);
}

#[test]
fn half_a_pair_is_never_completed() {
    for missing in [0, 1] {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = files(directory.path());
        Pair::load_or_make(certificate.clone(), key.clone(), &[]).unwrap();
        std::fs::remove_file([&certificate, &key][missing].path.clone()).unwrap();
        let error = Pair::load_or_make(certificate, key, &[]).unwrap_err();
        assert!(matches!(error, PairError::Half { .. }), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_certificate_that_cannot_be_written_leaves_no_key_behind() {
    let directory = tempfile::tempdir().unwrap();
    let key = PemFile::new("KEY_FILE", directory.path().join("key.pem"));
    let nowhere = PemFile::new("CERT_FILE", directory.path().join("nowhere/cert.pem"));
    let error = Pair::load_or_make(nowhere, key.clone(), &[]).unwrap_err();
    assert!(matches!(error, PairError::File(FileError::Write { .. })), "{error}");
    assert!(!key.exists());
    // The next attempt, in a writable directory, makes both files.
    let (certificate, key) = files(directory.path());
    Pair::load_or_make(certificate, key, &[]).unwrap();
}

#[test]
fn a_bad_pair_is_refused_with_its_setting_and_file() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("one").unwrap();
    let issue = || authority.node(NodeId(1), &[], Validity::days(1)).unwrap();
    let (one, other) = (issue(), issue());
    let of = |certificate: &str, key: &str| {
        let (certificate_file, key_file) = files(directory.path());
        std::fs::write(&certificate_file.path, certificate).unwrap();
        std::fs::write(&key_file.path, key).unwrap();
        let error = Pair::load(certificate_file, key_file).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("CERT_FILE (") || text.contains("KEY_FILE ("), "{text}");
        assert!(!text.contains("PRIVATE KEY-----M"), "{text}");
        error
    };
    let cut = &one.certificate[..one.certificate.len() / 2];
    let garbled = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(of(&one.certificate, &other.key), PairError::Mismatch { .. }));
    assert!(matches!(of("", &one.key), PairError::NoCertificate { .. }));
    assert!(matches!(of(&one.key, &one.key), PairError::NoCertificate { .. }));
    assert!(matches!(of(cut, &one.key), PairError::Certificate { .. }));
    assert!(matches!(of(garbled, &one.key), PairError::Certificate { .. }));
    assert!(matches!(of(&one.certificate, ""), PairError::Key { .. }));
    assert!(matches!(of(&one.certificate, &one.certificate), PairError::Key { .. }));
    let (certificate, _) = files(directory.path());
    let error = Pair::load(certificate, PemFile::new("KEY_FILE", "/nowhere/key.pem")).unwrap_err();
    let PairError::File(error) = error else { panic!("{error}") };
    assert!(error.is_missing() && error.to_string().contains("KEY_FILE (/nowhere"), "{error}");
    let long = directory.path().join("long");
    std::fs::write(&long, vec![b'-'; (1 << 20) + 1]).unwrap();
    let error = PemFile::new("KEY_FILE", long).read().unwrap_err();
    assert!(matches!(error, FileError::TooLong { .. }), "{error}");
}

#[test]
fn a_pair_that_cannot_be_used_replaces_none() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("one").unwrap();
    let issue = |days| authority.node(NodeId(1), &[], Validity::days(days)).unwrap();
    let (certificate, key) = write(directory.path(), "node", &issue(10));
    let pair = LivePair::new(Pair::load(certificate.clone(), key.clone()).unwrap());
    assert_eq!(days_left(pair.expires_at()), 10);
    let next = issue(20);
    std::fs::write(&certificate.path, &next.certificate).unwrap();
    assert!(matches!(pair.reload(), Err(PairError::Mismatch { .. })));
    assert_eq!(days_left(pair.expires_at()), 10);
    std::fs::write(&key.path, &next.key).unwrap();
    assert!(pair.reload().unwrap());
    assert!(!pair.reload().unwrap());
    assert_eq!(days_left(pair.expires_at()), 20);
    std::fs::remove_file(&key.path).unwrap();
    assert!(matches!(pair.reload(), Err(PairError::File(_))));
    assert_eq!(days_left(pair.expires_at()), 20);
}

#[test]
fn a_certificate_without_the_name_that_is_required_replaces_none() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("one").unwrap();
    let issue = |node, days| authority.node(NodeId(node), &[], Validity::days(days)).unwrap();
    let (certificate, key) = write(directory.path(), "node", &issue(1, 10));
    let load = || Pair::load(certificate.clone(), key.clone()).unwrap();
    let pair = LivePair::named(load(), node_name("one", NodeId(1))).unwrap();
    write(directory.path(), "node", &issue(2, 20));
    let error = pair.reload().unwrap_err();
    assert!(matches!(error, PairError::Unnamed { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("CERT_FILE (") && text.contains("node-1.one."), "{text}");
    assert_eq!(days_left(pair.expires_at()), 10);
    let error = LivePair::named(load(), node_name("one", NodeId(1))).unwrap_err();
    assert!(matches!(error, PairError::Unnamed { .. }), "{error}");
    write(directory.path(), "node", &issue(1, 30));
    assert!(pair.reload().unwrap());
    assert_eq!(days_left(pair.expires_at()), 30);
}

#[test]
fn a_bundle_that_cannot_be_used_replaces_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = PemFile::new("CLIENT_CA_FILE", directory.path().join("ca.pem"));
    let authority = Authority::new("one").unwrap();
    std::fs::write(&file.path, authority.certificate()).unwrap();
    let roots = LiveRoots::load(file.clone()).unwrap();
    let other = Authority::new("other").unwrap();
    let is_trusted = |authority: &Authority| {
        let client = authority.client("somebody", Validity::days(1)).unwrap();
        let client = CertificateDer::from_pem_slice(client.certificate.as_bytes()).unwrap();
        roots.verify_client_cert(&client, &[], UnixTime::now()).is_ok()
    };
    assert!(is_trusted(&authority) && !is_trusted(&other));
    assert_eq!(days_left(roots.expires_at()), 3650);
    for bad in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&file.path, bad).unwrap();
        let error = roots.reload().unwrap_err();
        assert!(error.to_string().contains("CLIENT_CA_FILE ("), "{error}");
        assert!(!matches!(error, RootsError::File(_)), "{error}");
        assert!(is_trusted(&authority) && !is_trusted(&other), "{bad:?}");
    }
    std::fs::remove_file(&file.path).unwrap();
    assert!(matches!(roots.reload(), Err(RootsError::File(_))));
    assert!(is_trusted(&authority) && !is_trusted(&other), "without a file");
    std::fs::write(&file.path, other.certificate()).unwrap();
    assert!(roots.reload().unwrap());
    assert!(!is_trusted(&authority) && is_trusted(&other));
}

#[test]
fn nothing_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let file = PemFile::new("--out", directory.path().join("ca.key"));
    file.write_new(b"first", true).unwrap();
    let error = file.write_new(b"second", true).unwrap_err();
    assert!(matches!(error, FileError::Exists { .. }), "{error}");
    assert_eq!(file.read().unwrap(), b"first");
}

#[test]
fn an_authority_signs_for_its_own_cluster_alone() {
    let authority = Authority::new("one").unwrap();
    let again = Authority::of("one", authority.certificate(), &authority.key()).unwrap();
    again.node(NodeId(1), &[], Validity::days(1)).unwrap();
    let of = |name, certificate: &Authority, key: &Authority| {
        Authority::of(name, certificate.certificate(), &key.key()).unwrap_err()
    };
    let other = Authority::new("one").unwrap();
    assert!(matches!(of("two", &authority, &authority), AuthorityError::Foreign { .. }));
    assert!(matches!(of("one", &authority, &other), AuthorityError::Foreign { .. }));
    assert!(matches!(of("one", &other, &authority), AuthorityError::Foreign { .. }));
    for bad in ["a b", "", "http://x", "*.a b", "host:80"] {
        let names = [bad.to_owned()];
        let error = again.node(NodeId(1), &names, Validity::days(1)).unwrap_err();
        assert!(matches!(error, AuthorityError::Name { .. }), "{bad}: {error}");
    }
}

#[test]
fn a_certificate_does_not_outlive_its_authority() {
    let authority = Authority::new("one").unwrap();
    let issued = authority.node(NodeId(1), &[], Validity::days(100_000)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = write(directory.path(), "node", &issued);
    let pair = Pair::load(certificate, key).unwrap();
    assert_eq!(days_left(pair.expires_at()), 3650);
}

#[test]
fn a_read_between_the_two_files_of_a_new_pair_waits_for_the_second() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = files(directory.path());
    let load = || Pair::load_or_make(certificate.clone(), key.clone(), &[]);
    load().unwrap();
    // Leaves only the key, as for a moment while another process makes the pair.
    let whole = std::fs::read(&certificate.path).unwrap();
    std::fs::remove_file(&certificate.path).unwrap();
    let maker = std::fs::File::open(directory.path()).unwrap();
    maker.lock().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(load);
        // A reader that did not wait for the lock would find only one file within this time.
        std::thread::sleep(Duration::from_millis(100));
        std::fs::write(&certificate.path, &whole).unwrap();
        maker.unlock().unwrap();
        waiting.join().unwrap().unwrap();
    });
}
