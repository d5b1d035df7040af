//! Trust: a bundle of authorities, replaced while connections go on, and the verifiers of the other
//! end's certificate. An unusable bundle never replaces a usable one. An existing connection stays
//! open when its authority is no longer trusted; a new one is refused.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use crate::expiry::not_after;
use crate::file::{FileError, PemFile};

/// A replaceable bundle. For a client it verifies the server's certificate. For a server it
/// verifies the client's certificate, which is required.
#[derive(Debug)]
pub struct LiveRoots {
    file: PemFile,
    trust: ArcSwap<Trust>,
}

#[derive(Debug)]
struct Trust {
    bytes: Vec<u8>,
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
    expires_at: SystemTime,
}

impl LiveRoots {
    /// Reads a bundle of one or more certificates.
    ///
    /// # Errors
    /// When the file cannot be read, holds no certificate, or holds one that cannot be used.
    pub fn load(file: PemFile) -> Result<Arc<Self>, RootsError> {
        let trust = Trust::of(&file, file.read()?)?;
        Ok(Arc::new(Self { file, trust: ArcSwap::from_pointee(trust) }))
    }

    /// Reads the file again. Returns whether it holds another bundle than before.
    ///
    /// # Errors
    /// When the file holds no usable bundle. The old one stays trusted.
    pub fn reload(&self) -> Result<bool, RootsError> {
        let bytes = self.file.read()?;
        if bytes == self.trust.load().bytes {
            return Ok(false);
        }
        self.trust.store(Arc::new(Trust::of(&self.file, bytes)?));
        Ok(true)
    }

    /// When the first of the certificates expires.
    pub fn expires_at(&self) -> SystemTime {
        self.trust.load().expires_at
    }

    /// The file of the bundle.
    pub fn file(&self) -> &PemFile {
        &self.file
    }
}

impl Trust {
    fn of(file: &PemFile, bytes: Vec<u8>) -> Result<Self, RootsError> {
        let unusable = |why: String| RootsError::Certificate { file: file.clone(), why };
        let mut roots = RootCertStore::empty();
        let mut first: Option<SystemTime> = None;
        for certificate in CertificateDer::pem_slice_iter(&bytes) {
            let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
            let expires_at = not_after(&certificate)
                .ok_or_else(|| unusable("it has no readable expiry".to_owned()))?;
            first = Some(first.map_or(expires_at, |first| first.min(expires_at)));
            roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
        }
        let Some(expires_at) = first else {
            return Err(RootsError::NoCertificate { file: file.clone() });
        };
        let (roots, provider) = (Arc::new(roots), Arc::new(default_provider()));
        let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone());
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider)
            // The server does not send clients the names of its trusted authorities.
            .clear_root_hint_subjects();
        Ok(Self {
            bytes,
            servers: servers.build().map_err(|error| unusable(error.to_string()))?,
            clients: clients.build().map_err(|error| unusable(error.to_string()))?,
            expires_at,
        })
    }
}

impl ServerCertVerifier for LiveRoots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let trust = self.trust.load();
        trust.servers.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.load().servers.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.load().servers.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.load().servers.supported_verify_schemes()
    }
}

impl ClientCertVerifier for LiveRoots {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.trust.load().clients.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.load().clients.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.load().clients.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.load().clients.supported_verify_schemes()
    }
}

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootsError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file holds no certificate: name the file with the authorities' certificates.
    #[error("{file} holds no certificate; a PEM file with -----BEGIN CERTIFICATE----- is needed")]
    NoCertificate {
        /// The file.
        file: PemFile,
    },
    /// Remove the certificate from the bundle.
    #[error("{file} holds a certificate that cannot be used: {why}; name those of the authority")]
    Certificate {
        /// The file.
        file: PemFile,
        /// What is wrong with the certificate.
        why: String,
    },
}
