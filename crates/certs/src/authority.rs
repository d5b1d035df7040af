//! A small certificate authority: one key that signs the certificates of one cluster's nodes and
//! clients, and nothing else. The authority's own name contains the cluster's name. It writes no
//! file and remembers nothing: the caller stores what it signs.

use std::time::SystemTime;

use epicepoch_wire::NodeId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use time::OffsetDateTime;

use crate::alternative_names::alternative_names;
use crate::description::{Description, Purpose};
use crate::expiry::not_after;
use crate::name::{SUFFIX, is_reserved, node_name};

pub use crate::validity::Validity;

/// How many days an authority is valid: long, because replacing one is laborious.
pub const AUTHORITY_DAYS: u32 = 3650;
/// How many days a node's or a client's certificate is valid by default.
pub const DAYS_DEFAULT: u32 = 365;

/// An authority with its key.
pub struct Authority {
    cluster_name: String,
    certificate: String,
    key: KeyPair,
}

/// A certificate and its key, as PEM.
pub struct Issued {
    /// The certificate, which is public.
    pub certificate: String,
    /// The key, which is secret.
    pub key: String,
}

impl Authority {
    /// Makes a new authority for a cluster.
    ///
    /// # Errors
    /// When the system provides no random bytes.
    pub fn new(cluster_name: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let mut params = authority_params(cluster_name);
        let validity = Validity::days(AUTHORITY_DAYS);
        (params.not_before, params.not_after) = (validity.from, validity.until);
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { cluster_name: cluster_name.to_owned(), certificate, key })
    }

    /// Opens an authority that was made before, from its certificate and its key.
    ///
    /// # Errors
    /// When certificate and key do not belong together, or the authority is of another cluster, or
    /// it has expired.
    pub fn of(cluster_name: &str, certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(key).map_err(|error| AuthorityError::Key(error.to_string()))?;
        let certificate = certificate.to_owned();
        let authority = Self { cluster_name: cluster_name.to_owned(), certificate, key };
        // A certificate that this authority signs must verify. That proves that certificate, key
        // and name belong together.
        authority.client("proof", Validity::days(1))?;
        Ok(authority)
    }

    /// The authority's certificate as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The authority's key as PEM.
    pub fn key(&self) -> String {
        self.key.serialize_pem()
    }

    /// Signs a certificate for a node of the cluster. The node may show it to clients and to peers,
    /// in either direction of the connection. `names` are the DNS names and addresses at which
    /// clients reach the node.
    ///
    /// # Errors
    /// When a name is neither a DNS name nor an address.
    pub fn node(
        &self,
        node: NodeId,
        names: &[String],
        validity: Validity,
    ) -> Result<Issued, AuthorityError> {
        let own = node_name(&self.cluster_name, node);
        if let Some(name) = names.iter().find(|name| is_reserved(name)) {
            let why = format!("names below {SUFFIX} say which node of which cluster one is");
            return Err(AuthorityError::Name { name: name.clone(), why });
        }
        let mut all = vec![own];
        all.extend_from_slice(names);
        let names =
            alternative_names(&all).map_err(|(name, why)| AuthorityError::Name { name, why })?;
        let usages = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(&format!("node-{node}"), names, usages.to_vec(), validity)
    }

    /// Signs a certificate for a client. It has no DNS name, so no peer ever takes it for a node.
    ///
    /// # Errors
    /// When the system provides no random bytes.
    pub fn client(&self, name: &str, validity: Validity) -> Result<Issued, AuthorityError> {
        self.issue(name, Vec::new(), vec![ExtendedKeyUsagePurpose::ClientAuth], validity)
    }

    /// Signs a certificate for the same node or client as `old`, with the same names and a new key.
    /// `old` may have expired.
    ///
    /// # Errors
    /// When this authority has not signed `old`, or `old` is neither a node's nor a client's.
    pub fn renew(
        &self,
        old: &CertificateDer<'_>,
        validity: Validity,
    ) -> Result<Issued, AuthorityError> {
        let description = Description::of(old).ok_or(AuthorityError::NotIssued)?;
        let check = || {
            let checked = self.check(old, description.not_after.into());
            checked.map_err(|_| AuthorityError::NotSigned)
        };
        match description.purpose {
            Purpose::Node(node) => {
                check()?;
                let own = node_name(&self.cluster_name, node);
                let names = description.names.iter().filter(|name| **name != own);
                let names: Vec<_> = names.cloned().collect();
                self.node(node, &names, validity)
            }
            Purpose::Client => {
                check()?;
                self.client(&description.common_name, validity)
            }
            Purpose::Authority | Purpose::Server | Purpose::Other => Err(AuthorityError::NotIssued),
        }
    }

    fn issue(
        &self,
        common_name: &str,
        names: Vec<SanType>,
        usages: Vec<ExtendedKeyUsagePurpose>,
        validity: Validity,
    ) -> Result<Issued, AuthorityError> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        // A certificate never outlives the authority that signed it.
        let until = validity.until.min(self.expires_at()?);
        (params.not_before, params.not_after) = (validity.from, until);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, self.cluster_name.as_str());
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages;
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::new(authority_params(&self.cluster_name), &self.key);
        let certificate = params.signed_by(&key, &issuer)?;
        self.check(certificate.der(), until)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// Verifies a signed certificate as its readers will: now, or at the end of its validity if
    /// that end has passed.
    fn check(
        &self,
        issued: &CertificateDer<'_>,
        until: OffsetDateTime,
    ) -> Result<(), AuthorityError> {
        let foreign = || AuthorityError::Foreign { cluster_name: self.cluster_name.clone() };
        let own = self.der()?;
        let anchor = webpki::anchor_from_trusted_cert(&own)
            .map_err(|error| AuthorityError::Certificate(error.to_string()))?;
        let certificate = webpki::EndEntityCert::try_from(issued).map_err(|_| foreign())?;
        let at = until.min(OffsetDateTime::now_utc()).unix_timestamp().max(0).unsigned_abs();
        certificate
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &[anchor],
                &[],
                UnixTime::since_unix_epoch(std::time::Duration::from_secs(at)),
                webpki::KeyUsage::client_auth(),
                None,
                None,
            )
            .map_err(|_| foreign())?;
        Ok(())
    }

    fn der(&self) -> Result<CertificateDer<'static>, AuthorityError> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes())
            .map_err(|error| AuthorityError::Certificate(error.to_string()))
    }

    fn expires_at(&self) -> Result<OffsetDateTime, AuthorityError> {
        let at = not_after(&self.der()?)
            .ok_or_else(|| AuthorityError::Certificate("it has no readable expiry".to_owned()))?;
        if at <= SystemTime::now() {
            return Err(AuthorityError::Expired);
        }
        Ok(at.into())
    }
}

impl std::fmt::Debug for Authority {
    /// Never shows the key.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = out.debug_struct("Authority");
        out.field("cluster_name", &self.cluster_name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Issued {
    /// Never shows the key.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = out.debug_struct("Issued");
        out.field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Why no authority was made, or no certificate signed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// The authority's key is malformed: give the key that was written beside the certificate.
    #[error("the authority's key cannot be read: {0}")]
    Key(String),
    /// The authority's certificate is malformed: give the one that was written beside the key.
    #[error("the authority's certificate cannot be read: {0}")]
    Certificate(String),
    /// The authority has expired: make a new one. Let nodes trust both until all have certificates
    /// of the new one.
    #[error(
        "the authority has expired; make a new one, and trust both until nothing needs the old"
    )]
    Expired,
    /// Certificate and key are not of this cluster's authority: give the right cluster, or the
    /// right pair of files.
    #[error(
        "this certificate and key are not those of the authority of cluster {cluster_name:?}; name \
        the cluster that it was made for, and the two files that were made together"
    )]
    Foreign {
        /// The cluster that was requested.
        cluster_name: String,
    },
    /// Another authority has signed the certificate: give that one.
    #[error("another authority has signed this certificate; give that authority's directory")]
    NotSigned,
    /// The certificate is neither a node's nor a client's, so it cannot be renewed: name such a
    /// certificate, or make a new authority.
    #[error(
        "this is no certificate of a node or a client; give one that epicepoch certs has made (an \
        authority is replaced, not renewed)"
    )]
    NotIssued,
    /// The name is invalid: give a DNS name or an address.
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
    #[error("no certificate can be made: {0}")]
    Make(String),
}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Make(error.to_string())
    }
}

/// The fields of the certificate of this cluster's authority. The key is not among them.
fn authority_params(cluster_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // Both names are within the 64 characters that X.520 allows.
    params.distinguished_name.push(DnType::OrganizationName, cluster_name);
    params.distinguished_name.push(DnType::CommonName, "EpicEpoch authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}
