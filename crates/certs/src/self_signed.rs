//! A pair that a node makes for itself, if it has none, and signs itself.

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};

use crate::alternative_names::alternative_names;
use crate::file::{FileError, PemFile};
use crate::pair::{Pair, PairError};
use crate::validity::Validity;

/// How many days a self-signed pair is valid. Some clients refuse a longer time.
pub const SELF_SIGNED_DAYS: u32 = 825;

impl Pair {
    /// Reads a pair. If both files are missing, makes a self-signed pair first, for `names`, which
    /// are DNS names and addresses. Processes that do this at the same time for the same files get
    /// the same pair.
    ///
    /// # Errors
    /// As [`Pair::load`]; when only one of the files exists; when a name cannot stand in a
    /// certificate; or when the files cannot be written.
    pub fn load_or_make(
        certificate_file: PemFile,
        key_file: PemFile,
        names: &[String],
    ) -> Result<Self, PairError> {
        let absent = |file: &PemFile| !file.exists();
        if absent(&certificate_file) || absent(&key_file) {
            // Locks the directory. Another process may be making this pair now, and may have
            // written only one of the files.
            let unlocked = |cause| FileError::Write { file: key_file.clone(), cause };
            let directory = std::fs::File::open(key_file.directory()).map_err(unlocked)?;
            directory.lock().map_err(unlocked)?;
            if absent(&certificate_file) && absent(&key_file) {
                let (certificate, key) = self_signed(names)?;
                key_file.write_new(key.as_bytes(), true)?;
                certificate_file.write_new(certificate.as_bytes(), false).inspect_err(|_| {
                    // Removes the key again. With only one of the files, no later start would make
                    // a pair.
                    let _ = std::fs::remove_file(&key_file.path);
                })?;
            }
        }
        for (missing, present) in [(&certificate_file, &key_file), (&key_file, &certificate_file)] {
            if absent(missing) && !absent(present) {
                let (missing, present) = (missing.clone(), present.clone());
                return Err(PairError::Half { missing, present });
            }
        }
        Self::load(certificate_file, key_file)
    }
}

/// A new self-signed pair for `names`, as PEM: the certificate, then the key.
fn self_signed(names: &[String]) -> Result<(String, String), PairError> {
    let failed = |error: rcgen::Error| PairError::Make { why: error.to_string() };
    let mut params = CertificateParams::default();
    let Validity { from, until } = Validity::days(SELF_SIGNED_DAYS);
    (params.not_before, params.not_after) = (from, until);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "EpicEpoch node, signed by itself");
    params.subject_alt_names =
        alternative_names(names).map_err(|(name, why)| PairError::Name { name, why })?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}
