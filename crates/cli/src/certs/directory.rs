//! The directory of an authority, and the arguments of the commands that read and write it. Writing
//! never replaces a file.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgMatches, value_parser};
use epicepoch_certs::PemFile;
use epicepoch_certs::authority::{AUTHORITY_DAYS, Authority, DAYS_DEFAULT, Validity};

use crate::arguments::text;
use crate::failure::Failure;

/// Builds the argument for the validity of what is signed.
pub(crate) fn days() -> Arg {
    text("days", "DAYS", "Days until it expires, at most those of the authority")
        .value_parser(value_parser!(u32).range(1..=i64::from(AUTHORITY_DAYS)))
        .default_value(DAYS_DEFAULT.to_string())
}

/// Returns the validity that `--days` gives.
pub(crate) fn validity(matches: &ArgMatches) -> Validity {
    Validity::days(matches.get_one("days").copied().unwrap_or(DAYS_DEFAULT))
}

/// Returns the path that an argument gives.
pub(super) fn directory(matches: &ArgMatches, argument: &str) -> PathBuf {
    PathBuf::from(matches.get_one::<String>(argument).map_or("", String::as_str))
}

/// Reads the authority from the directory.
pub(super) fn authority(directory: &Path, cluster: &str) -> Result<Authority, Failure> {
    let read = |name: &str| -> Result<String, Failure> {
        let file = PemFile::new("--dir", directory.join(name));
        let bytes = file
            .read()
            .context("there is no authority to sign with; make one with: epicepoch certs ca")
            .map_err(Failure::usage)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (certificate, key) = (read(CA_CERTIFICATE)?, read(CA_KEY)?);
    Authority::of(cluster, &certificate, &key).map_err(Failure::usage)
}

/// Writes all of these files, or none. Each has its content, and whether it is secret.
pub(super) fn write_files(files: &[(PemFile, &str, bool)]) -> Result<(), Failure> {
    if let Some((file, ..)) = files.iter().find(|(file, ..)| file.exists()) {
        return Err(Failure::usage(anyhow!(
            "{} exists already and is not replaced; move it away first",
            file.path.display()
        )));
    }
    for (at, (file, text, is_secret)) in files.iter().enumerate() {
        file.write_new(text.as_bytes(), *is_secret).inspect_err(|_| {
            for (written, ..) in &files[..at] {
                // If the file cannot be removed, nothing more can be done, so the error is ignored.
                let _ = std::fs::remove_file(&written.path);
            }
        })?;
    }
    Ok(())
}

/// The argument that lists nodes, clients or files.
pub(super) const NAMES: &str = "names";
pub(crate) const CA_CERTIFICATE: &str = "ca.pem";
pub(crate) const CA_KEY: &str = "ca.key";
