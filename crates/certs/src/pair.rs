//! A certificate with its key, read from two files and checked: the key must belong to the
//! certificate.

use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::expiry::not_after;
use crate::file::{FileError, PemFile};

/// A certificate, its chain, and its key.
#[derive(Clone)]
pub struct Pair {
    certificate_file: PemFile,
    key_file: PemFile,
    /// The content of the two files. [`Pair::read_again`] compares the files with it.
    bytes: (Vec<u8>, Vec<u8>),
    key: Arc<CertifiedKey>,
    expires_at: SystemTime,
}

impl Pair {
    /// Reads a pair and checks it. An expired pair is accepted; [`Pair::expires_at`] shows it.
    ///
    /// # Errors
    /// When a file cannot be read, has other content, or the certificate and the key do not fit
    /// together.
    pub fn load(certificate_file: PemFile, key_file: PemFile) -> Result<Self, PairError> {
        let bytes = (certificate_file.read()?, key_file.read()?);
        Self::of(certificate_file, key_file, bytes)
    }

    fn of(
        certificate_file: PemFile,
        key_file: PemFile,
        bytes: (Vec<u8>, Vec<u8>),
    ) -> Result<Self, PairError> {
        let file = certificate_file.clone();
        let chain = match CertificateDer::pem_slice_iter(&bytes.0).collect::<Result<Vec<_>, _>>() {
            Ok(chain) if !chain.is_empty() => chain,
            Ok(_) => return Err(PairError::NoCertificate { file }),
            Err(error) => return Err(PairError::Certificate { file, why: error.to_string() }),
        };
        let Some(expires_at) = not_after(&chain[0]) else {
            return Err(PairError::Certificate { file, why: "it has no readable expiry".into() });
        };
        let key = PrivateKeyDer::from_pem_slice(&bytes.1)
            .map_err(|error| PairError::Key { file: key_file.clone(), why: error.to_string() })?;
        let provider = default_provider();
        let key = provider
            .key_provider
            .load_private_key(key)
            .map_err(|error| PairError::Key { file: key_file.clone(), why: error.to_string() })?;
        let key = CertifiedKey::new(chain, key);
        match key.keys_match() {
            Ok(()) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                return Err(PairError::Mismatch { certificate: file, key: key_file });
            }
            Err(error) => return Err(PairError::Certificate { file, why: error.to_string() }),
        }
        Ok(Self { certificate_file, key_file, bytes, key: Arc::new(key), expires_at })
    }

    /// Reads the files again. Returns their pair if it differs from this one.
    ///
    /// # Errors
    /// As [`Pair::load`].
    pub fn read_again(&self) -> Result<Option<Self>, PairError> {
        let bytes = (self.certificate_file.read()?, self.key_file.read()?);
        if bytes == self.bytes {
            return Ok(None);
        }
        Self::of(self.certificate_file.clone(), self.key_file.clone(), bytes).map(Some)
    }

    /// When the certificate expires.
    pub fn expires_at(&self) -> SystemTime {
        self.expires_at
    }

    /// The certificate itself, the first of its chain.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.key.cert[0]
    }

    /// The file of the certificate.
    pub fn certificate_file(&self) -> &PemFile {
        &self.certificate_file
    }

    /// The file of the key.
    pub fn key_file(&self) -> &PemFile {
        &self.key_file
    }

    /// The pair in the type that rustls uses.
    pub fn certified_key(&self) -> Arc<CertifiedKey> {
        self.key.clone()
    }
}

impl std::fmt::Debug for Pair {
    /// Never shows the key.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = out.debug_struct("Pair");
        out.field("certificate", &self.certificate_file).field("key", &self.key_file);
        out.field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// Why a pair cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PairError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Only one of the two files exists. The missing one is not made, because it would not match.
    #[error(
        "{missing} is missing, but {present} is there; name a certificate and its own key, or move \
        {present} away to have a new pair made"
    )]
    Half {
        /// The missing file.
        missing: PemFile,
        /// The existing file.
        present: PemFile,
    },
    /// Name the file with the certificate.
    #[error("{file} holds no certificate; a PEM file with -----BEGIN CERTIFICATE----- is needed")]
    NoCertificate {
        /// The file.
        file: PemFile,
    },
    /// Have the certificate made anew.
    #[error("{file} holds a certificate that cannot be used: {why}; have it made anew")]
    Certificate {
        /// The file.
        file: PemFile,
        /// What is wrong with the certificate.
        why: String,
    },
    /// Name the file with the key.
    #[error(
        "{file} holds no key that can be used: {why}; a PEM file with an unencrypted private key \
        (ECDSA P-256 or P-384, Ed25519, or RSA) is needed"
    )]
    Key {
        /// The file.
        file: PemFile,
        /// What is wrong with the key.
        why: String,
    },
    /// The certificate and the key belong to different pairs: name two files of one pair.
    #[error(
        "{key} is not the key of the certificate in {certificate}; name the two files of one pair \
        (the node's own certificate comes first in its file)"
    )]
    Mismatch {
        /// The file of the certificate.
        certificate: PemFile,
        /// The file of the key.
        key: PemFile,
    },
    /// The certificate lacks the required name: give each node its own certificate.
    #[error(
        "{certificate} is another's certificate: its DNS names lack {name}; make one with: \
        epicepoch certs"
    )]
    Unnamed {
        /// The file of the certificate.
        certificate: PemFile,
        /// The required name.
        name: String,
    },
    /// One of the node's names cannot stand in a certificate.
    #[error(
        "no certificate can be made for the name {name:?}: {why}; use a DNS name or an address"
    )]
    Name {
        /// The invalid name.
        name: String,
        /// Why it is invalid.
        why: String,
    },
    /// The certificate library failed; for example, the system provided no random bytes.
    #[error("no certificate can be made: {why}")]
    Make {
        /// What failed.
        why: String,
    },
}
