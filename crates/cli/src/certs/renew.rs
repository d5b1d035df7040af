//! `epicepoch certs renew`: signs certificates anew for the same owners, with the same names, new
//! keys and a new validity. It never changes an authority.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgAction, ArgMatches, Command};
use epicepoch_certs::authority::{Authority, Issued};
use epicepoch_certs::rustls::pki_types::CertificateDer;
use epicepoch_certs::rustls::pki_types::pem::PemObject as _;
use epicepoch_certs::{Pair, PemFile, Purpose};

use super::directory::{CA_CERTIFICATE, NAMES, authority, directory, validity, write_files};
use super::show;
use crate::arguments::text;
use crate::failure::Failure;
use crate::output;

pub(crate) fn command() -> Command {
    Command::new("renew")
        .about("Sign certificates anew: same owner and names, new key and validity")
        .long_about(
            "Sign certificates anew: same owner and names, new key and validity. The authority in \
             --dir must have signed them; they may have ended.\n\n\
             The new files replace the old ones, the key first, and keep their owner and mode. So each \
             key must be there; it is beside its certificate with the end .key, or give --key-file. \
             With --out the new files are written there, and the old ones stay. \
             A running node or client reads its files again by itself, within seconds: no restart and \
             no signal is needed. To renew the files of another machine, copy the key there first, \
             then the certificate.",
        )
        .after_help(
            "Examples:\n  epicepoch certs renew certs/node-*.pem\n  \
             epicepoch certs renew --dir authority --out renewed node-1/node.pem",
        )
        .arg(
            Arg::new(NAMES)
                .value_name("FILE")
                .help("Certificates, such as certs/node-1.pem; the key is beside each, with the end .key")
                .required(true)
                .action(ArgAction::Append),
        )
        .arg(text(KEY, "FILE", "The key of the certificate, if it has another name; for one FILE"))
}

/// A renewed certificate, and where it goes.
struct Renewed {
    certificate: PathBuf,
    key: PathBuf,
    issued: Issued,
}

pub(crate) fn run(matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let authority = of_directory(&directory(matches, "dir"))?;
    let out = matches.contains_id("out").then(|| directory(matches, "out"));
    let given_key = matches.get_one::<String>(KEY);
    if given_key.is_some() && matches.get_many::<String>(NAMES).is_some_and(|it| it.len() > 1) {
        return Err(Failure::usage(anyhow!("--{KEY} is for one certificate: renew one at a time")));
    }
    let mut all: Vec<Renewed> = Vec::new();
    // Held until this returns.
    let mut locks: BTreeMap<PathBuf, Option<File>> = BTreeMap::new();
    for path in matches.get_many::<String>(NAMES).into_iter().flatten() {
        let old = Path::new(path);
        let old_key = given_key.map_or_else(|| old.with_extension("key"), PathBuf::from);
        let moved = |out: &PathBuf, to: &Path| out.join(to.file_name().unwrap_or_default());
        let (certificate, key) = match &out {
            Some(out) => (moved(out, old), moved(out, &old_key)),
            None => (old.to_owned(), old_key.clone()),
        };
        for path in [&key, &certificate] {
            let is_used = |other: &Renewed| [&other.key, &other.certificate].contains(&path);
            if key == certificate || all.iter().any(is_used) {
                let shown = path.display();
                return Err(Failure::usage(anyhow!("{shown} would be written twice")));
            }
        }
        if out.is_none() {
            let directory = fs::canonicalize(old.parent().unwrap_or(old)).unwrap_or_default();
            if let Entry::Vacant(free) = locks.entry(directory) {
                let locked = lock(free.key())?;
                free.insert(locked);
            }
            finish_interrupted(old, &old_key)?;
        }
        let bytes = PemFile::new("FILE", old).read().map_err(Failure::usage)?;
        let described = CertificateDer::from_pem_slice(&bytes)
            .map_err(|error| Failure::usage(anyhow!("{path} holds no certificate: {error}")))?;
        let issued = authority
            .renew(&described, validity(matches))
            .with_context(|| path.clone())
            .map_err(Failure::usage)?;
        if out.is_none() {
            // A new certificate without its key in the right file would stop the next start.
            Pair::load(PemFile::new("FILE", old), PemFile::new("its key", &old_key))
                .context("nothing is replaced; name the key of the certificate with --key-file")
                .map_err(Failure::usage)?;
        }
        all.push(Renewed { certificate, key, issued });
    }
    let (done, outcome) = match &out {
        Some(out) => write_new(out, &all).map(|()| (all.len() * 2, Ok(())))?,
        None => replace(&all)?,
    };
    let mut told = output::account();
    for path in paths(&all).take(done) {
        writeln!(told, "{}", path.display())?;
    }
    outcome?;
    // Standard output has only the paths. This advice goes to standard error.
    let _unread = writeln!(
        io::stderr(),
        "A running node or client reads renewed files by itself, within seconds. To another machine, \
         copy the key first, then the certificate."
    );
    Ok(ExitCode::SUCCESS)
}

/// Opens the authority in a directory. Its certificate names its cluster.
fn of_directory(directory: &Path) -> Result<Authority, Failure> {
    let path = directory.join(CA_CERTIFICATE);
    let description = show::read(&path)
        .context("there is no authority to sign with; give its directory as --dir")
        .map_err(Failure::usage)?;
    match description.first() {
        Some(it) if it.purpose == Purpose::Authority => authority(directory, &it.organization),
        _ => Err(Failure::usage(anyhow!("{} is no authority's certificate", path.display()))),
    }
}

/// Returns the paths of all pairs, each key before its certificate.
fn paths(all: &[Renewed]) -> impl Iterator<Item = &PathBuf> {
    all.iter().flat_map(|it| [&it.key, &it.certificate])
}

/// Writes the pairs to new files, whose paths are `at`, in the order of [`paths`].
fn write_at(setting: &'static str, at: &[PathBuf], all: &[Renewed]) -> Result<(), Failure> {
    let contents = all.iter().flat_map(|Renewed { issued, .. }| {
        [(issued.key.as_str(), true), (issued.certificate.as_str(), false)]
    });
    let file = |path: &PathBuf| PemFile::new(setting, path.clone());
    let files: Vec<_> =
        at.iter().zip(contents).map(|(path, (text, secret))| (file(path), text, secret)).collect();
    write_files(&files)
}

fn write_new(directory: &Path, all: &[Renewed]) -> Result<(), Failure> {
    fs::create_dir_all(directory).with_context(|| format!("--out {}", directory.display()))?;
    write_at("--out", &paths(all).cloned().collect::<Vec<_>>(), all)
}

/// Replaces all files. First every new file is written beside the old one; if that fails, nothing is
/// replaced. Each file is complete at every moment. Between the two of a pair, a node finds a key
/// that does not belong to its certificate, and goes on with the pair that it has.
///
/// Returns how many files were replaced, in the order of [`paths`], and why not all of them.
fn replace(all: &[Renewed]) -> Result<(usize, Result<(), Failure>), Failure> {
    let beside: Vec<_> = paths(all).map(|path| beside(path)).collect();
    let remove = |from: &[PathBuf]| {
        for path in from {
            // Most are absent.
            let _absent = fs::remove_file(path);
        }
    };
    // An earlier renewal may have been interrupted.
    remove(&beside);
    write_at("FILE", &beside, all)?;
    let kept = beside.iter().zip(paths(all)).try_for_each(|(new, old)| {
        keep_owner(new, old).with_context(|| {
            format!(
                "the new {} cannot get the owner and the mode of the old one; nothing is replaced; \
                 run this as its owner, or as root",
                old.display()
            )
        })
    });
    kept.inspect_err(|_| remove(&beside))?;
    for (at, (from, to)) in beside.iter().zip(paths(all)).enumerate() {
        if let Err(error) = fs::rename(from, to) {
            // The certificate of a replaced key stays, so that it can still be put in place.
            let left = if at % 2 == 0 { at } else { at + 1 };
            remove(&beside[left..]);
            let (to, from) = (to.display(), from.display());
            let advice = if left == at { String::new() } else { format!("; move {from} there") };
            let error = anyhow!(error).context(format!("{to} cannot be replaced{advice}"));
            return Ok((at, Err(error.into())));
        }
    }
    Ok((beside.len(), Ok(())))
}

/// Locks a directory against another renewal in place, whose files beside the old ones have the same
/// names. A missing directory is reported later, and some file systems have no locks.
fn lock(directory: &Path) -> Result<Option<File>, Failure> {
    let Ok(file) = File::open(directory) else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(anyhow!(
            "another command renews certificates in {} now: run this again once it has ended",
            directory.display()
        )
        .into()),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Puts the certificate in place whose key an interrupted renewal has replaced already.
fn finish_interrupted(certificate: &Path, key: &Path) -> Result<(), Failure> {
    let (new, key) = (beside(certificate), PemFile::new("its key", key));
    let fits = |path: &Path| Pair::load(PemFile::new("FILE", path), key.clone()).is_ok();
    if !fits(certificate) && fits(&new) {
        let what = || format!("{} belongs to the key, and cannot be put in place", new.display());
        fs::rename(&new, certificate).with_context(what)?;
    }
    Ok(())
}

/// Returns the path of a new file before it replaces the old one.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".renewed");
    PathBuf::from(name)
}

/// Gives a new file the owner, the group and the mode of the old one.
fn keep_owner(new: &Path, old: &Path) -> io::Result<()> {
    let (was, is) = (fs::metadata(old)?, fs::metadata(new)?);
    if (was.uid(), was.gid()) != (is.uid(), is.gid()) {
        chown(new, Some(was.uid()), Some(was.gid()))?;
    }
    fs::set_permissions(new, was.permissions())?;
    File::open(new)?.sync_all()
}

/// The argument that names the key of a certificate.
const KEY: &str = "key-file";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use epicepoch_certs::authority::Validity;
    use epicepoch_wire::NodeId;

    use super::super::directory::{CA_KEY, days};
    use super::*;
    use crate::failure::USAGE;

    /// A directory with an authority, and these pairs of it.
    struct Directory(tempfile::TempDir);

    impl Directory {
        fn with(pairs: &[(&str, &str)]) -> Self {
            let this = Self(tempfile::tempdir().expect("a directory"));
            let authority = Authority::new("one").expect("an authority");
            fs::write(this.path(CA_CERTIFICATE), authority.certificate()).expect("written");
            fs::write(this.path(CA_KEY), authority.key()).expect("written");
            for (certificate, key) in pairs {
                let names = ["n1.example".to_owned()];
                let issued = authority.node(NodeId(1), &names, Validity::days(9)).expect("signed");
                fs::write(this.path(certificate), issued.certificate).expect("written");
                fs::write(this.path(key), issued.key).expect("written");
            }
            this
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Returns the content of every file.
        fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
            let entries =
                fs::read_dir(self.0.path()).expect("listed").map(|it| it.expect("it").path());
            let files = entries.filter(|path| path.is_file());
            let mut files: Vec<_> =
                files.map(|path| (path.clone(), fs::read(path).expect("read"))).collect();
            files.sort();
            files
        }

        /// Renews these files. A word with a dot is a file in the directory.
        fn renew(&self, words: &str) -> Result<(), Failure> {
            let is_file = |word: &str| word.contains('.');
            let word = |word: &str| {
                if is_file(word) { self.path(word).display().to_string() } else { word.to_owned() }
            };
            let dir = self.0.path().display().to_string();
            let start = ["renew".to_owned(), "--dir".into(), dir];
            let dir = text("dir", "DIR", "").default_value("certs");
            let command = command().arg(dir).arg(text("out", "DIR", ""));
            let command = command.arg(days());
            let words = start.into_iter().chain(words.split_whitespace().map(word));
            run(&command.get_matches_from(words)).map(drop)
        }

        fn is_pair(&self, certificate: &str, key: &str) -> bool {
            let file = |name| PemFile::new("", self.path(name));
            Pair::load(file(certificate), file(key)).is_ok()
        }
    }

    #[test]
    fn a_certificate_without_its_key_beside_it_is_not_replaced() {
        let dir = Directory::with(&[("cert.pem", "key.pem"), ("a.pem", "a.key")]);
        let before = dir.files();
        for words in [
            "cert.pem",
            "a.pem cert.pem",
            "--key-file a.key cert.pem",
            "--key-file key.pem a.pem cert.pem",
        ] {
            let failure = dir.renew(words).expect_err(words);
            assert_eq!(failure.code, USAGE, "{words}: {:#}", failure.error);
            assert!(dir.files() == before, "{words}: nothing is written");
        }
        dir.renew("--key-file key.pem cert.pem").expect("renewed");
        assert!(dir.is_pair("cert.pem", "key.pem"));
        assert_ne!(dir.files(), before);
        assert_eq!(dir.files().len(), before.len(), "no other file appears");
    }

    #[test]
    fn a_renewal_that_was_interrupted_between_key_and_certificate_is_finished() {
        let dir = Directory::with(&[("a.pem", "a.key"), ("b.pem", "b.key")]);
        fs::rename(dir.path("b.key"), dir.path("a.key")).expect("renamed");
        fs::rename(dir.path("b.pem"), dir.path("a.pem.renewed")).expect("renamed");
        assert!(!dir.is_pair("a.pem", "a.key"));
        dir.renew("a.pem").expect("renewed");
        assert!(dir.is_pair("a.pem", "a.key") && !dir.path("a.pem.renewed").exists());
    }

    #[test]
    fn two_renewals_in_one_directory_do_not_run_at_once() {
        let dir = Directory::with(&[("a.pem", "a.key"), ("b.pem", "b.key")]);
        let before = dir.files();
        let other = lock(dir.0.path()).expect("free").expect("it exists");
        let failure = dir.renew("a.pem b.pem").expect_err("it is locked");
        assert!(failure.error.to_string().contains("run this again"), "{:#}", failure.error);
        assert!(dir.files() == before, "nothing is replaced");
        drop(other);
        dir.renew("a.pem b.pem").expect("renewed");
        assert!(dir.is_pair("a.pem", "a.key") && dir.is_pair("b.pem", "b.key"));
    }

    #[test]
    fn no_file_is_written_twice() {
        let dir = Directory::with(&[("a.pem", "a.key")]);
        fs::copy(dir.path("a.pem"), dir.path("a.crt")).expect("copied");
        let before = dir.files();
        for words in ["a.pem a.crt", "a.pem a.pem", "--out out. a.pem a.crt"] {
            let failure = dir.renew(words).expect_err(words);
            assert_eq!(failure.code, USAGE, "{words}");
            assert!(failure.error.to_string().contains("written twice"), "{:#}", failure.error);
            assert!(dir.files() == before, "{words}");
        }
    }

    #[test]
    fn all_files_are_replaced_or_none_and_keep_their_owner_and_mode() {
        let dir = Directory::with(&[("a.pem", "a.key"), ("b.pem", "b.key")]);
        fs::set_permissions(dir.path("a.key"), fs::Permissions::from_mode(0o640)).expect("set");
        // Only root may give a file away. Others see that the mode is kept.
        let _denied = chown(dir.path("a.key"), Some(1), Some(1));
        let of_key = || {
            let data = fs::metadata(dir.path("a.key")).expect("it");
            (data.uid(), data.gid(), data.mode())
        };
        let (before, owner) = (dir.files(), of_key());
        // The new certificate of b cannot be written.
        fs::create_dir(dir.path("b.pem.renewed")).expect("made");
        assert!(dir.renew("a.pem b.pem").is_err());
        assert!(dir.files() == before, "nothing is replaced");
        fs::remove_dir(dir.path("b.pem.renewed")).expect("removed");
        dir.renew("a.pem b.pem").expect("renewed");
        assert!(dir.is_pair("a.pem", "a.key") && dir.is_pair("b.pem", "b.key"));
        assert!(dir.files().iter().zip(&before).filter(|(now, was)| now != was).count() == 4);
        assert_eq!(of_key(), owner);
    }
}
