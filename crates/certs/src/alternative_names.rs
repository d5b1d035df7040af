//! The names in a new certificate.

use std::net::IpAddr;

use rcgen::SanType;

/// DNS names and addresses in the form of a certificate, without duplicates. An address may be in
/// brackets.
///
/// # Errors
/// The name that is neither a DNS name nor an address, and why.
pub(crate) fn alternative_names(names: &[String]) -> Result<Vec<SanType>, (String, String)> {
    let mut all = Vec::new();
    for name in names {
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let own = if let Ok(address) = bare.parse::<IpAddr>() {
            SanType::IpAddress(address)
        } else {
            let why = |why: &dyn std::fmt::Display| (name.clone(), why.to_string());
            rustls::pki_types::DnsName::try_from(bare).map_err(|error| why(&error))?;
            SanType::DnsName(bare.try_into().map_err(|error: rcgen::Error| why(&error))?)
        };
        if !all.contains(&own) {
            all.push(own);
        }
    }
    Ok(all)
}
