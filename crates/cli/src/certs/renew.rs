//! `epicepoch certs renew`: signs certificates anew for the same owners, with the same names, new
//! keys and a new validity. It never changes an authority.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgAction, ArgMatches, Command};
use epicepoch_certs::authority::{Authority, Issued};
use epicepoch_certs::rustls::pki_types::CertificateDer;
use epicepoch_certs::rustls::pki_types::pem::PemObject as _;
use epicepoch_certs::{PemFile, Purpose};

use super::directory::{CA_CERTIFICATE, NAMES, authority, directory, validity, write_files};
use super::show;
use crate::failure::Failure;
use crate::output;

pub(crate) fn command() -> Command {
    Command::new("renew")
        .about("Sign certificates anew: same owner and names, new key and validity")
        .long_about(
            "Sign certificates anew: same owner and names, new key and validity. The authority in \
             --dir must have signed them; they may have ended.\n\n\
             The new files replace the old ones, the key first. With --out they are written there, \
             and the old ones stay. A running node or client reads its files again by itself, within \
             seconds: no restart and no signal is needed. To renew the files of another machine, copy \
             the key there first, then the certificate.",
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
    let mut all: Vec<Renewed> = Vec::new();
    for path in matches.get_many::<String>(NAMES).into_iter().flatten() {
        let old = Path::new(path);
        let bytes = PemFile::new("FILE", old).read().map_err(Failure::usage)?;
        let certificate = CertificateDer::from_pem_slice(&bytes)
            .map_err(|error| Failure::usage(anyhow!("{path} holds no certificate: {error}")))?;
        let issued = authority
            .renew(&certificate, validity(matches))
            .with_context(|| path.clone())
            .map_err(Failure::usage)?;
        let name = old.file_name().map(PathBuf::from).unwrap_or_default();
        let certificate = out.as_ref().map_or_else(|| old.to_owned(), |out| out.join(name));
        if all.iter().any(|other| other.certificate == certificate) {
            let shown = certificate.display();
            return Err(Failure::usage(anyhow!("{shown} would be written twice")));
        }
        all.push(Renewed { key: certificate.with_extension("key"), certificate, issued });
    }
    match &out {
        Some(out) => write_new(out, &all)?,
        None => all.iter().try_for_each(replace)?,
    }
    let mut told = output::account();
    for Renewed { certificate, key, .. } in &all {
        writeln!(told, "{}\n{}", key.display(), certificate.display())?;
    }
    // The paths are the result. What follows is advice.
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

fn write_new(directory: &Path, all: &[Renewed]) -> Result<(), Failure> {
    fs::create_dir_all(directory).with_context(|| format!("--out {}", directory.display()))?;
    let files: Vec<_> = all
        .iter()
        .flat_map(|it| {
            let file = |path: &PathBuf| PemFile::new("--out", path.clone());
            [
                (file(&it.key), &*it.issued.key, true),
                (file(&it.certificate), &*it.issued.certificate, false),
            ]
        })
        .collect();
    write_files(&files)
}

/// Replaces both files of a pair. Each is complete at every moment. Between the two, a node finds a
/// key that does not belong to its certificate, and goes on with the pair that it has.
fn replace(renewed: &Renewed) -> Result<(), Failure> {
    let Renewed { certificate, key, issued } = renewed;
    let beside = |path: &Path| path.with_extension("renewed");
    let (new_key, new_certificate) =
        (beside(key).with_extension("renewed-key"), beside(certificate));
    for leftover in [&new_key, &new_certificate] {
        // An earlier renewal may have been interrupted.
        let _absent = fs::remove_file(leftover);
    }
    let files = [
        (PemFile::new("FILE", &new_key), &*issued.key, true),
        (PemFile::new("FILE", &new_certificate), &*issued.certificate, false),
    ];
    write_files(&files)?;
    for (from, to) in [(&new_key, key), (&new_certificate, certificate)] {
        fs::rename(from, to).with_context(|| {
            format!("{} cannot be replaced; move {} there", to.display(), from.display())
        })?;
    }
    Ok(())
}
