//! Addresses in settings: `host:port`, where the host is a name or a number. This module never
//! resolves a name.

use std::net::{IpAddr, Ipv6Addr};

/// Splits `host:port`. The host is a name, an IPv4 address, or an IPv6 address in brackets, which
/// stay part of it. `None` if the text does not have that form.
#[must_use]
pub fn host_and_port(addr: &str) -> Option<(&str, u16)> {
    let (host, port) = addr.rsplit_once(':')?;
    if port.is_empty() || port.len() > 5 || !port.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let port = port.parse().ok()?;
    if let Some(inner) = host.strip_prefix('[') {
        inner.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?;
    } else {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if host.is_empty() || host.len() > HOST_LEN_MAX || !host.chars().all(plain) {
            return None;
        }
    }
    Some((host, port))
}

/// Whether a `host:port` is a loopback address, which other machines cannot dial.
#[must_use]
pub fn is_loopback(addr: &str) -> bool {
    host_and_port(addr).is_some_and(|(host, _)| host_is_loopback(host))
}

fn host_is_loopback(host: &str) -> bool {
    host_ip(host).map_or_else(
        || host.eq_ignore_ascii_case("localhost") || host.eq_ignore_ascii_case("localhost."),
        |ip| ip.is_loopback(),
    )
}

pub(crate) fn host_ip(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// A host name has at most this many bytes (RFC 1035, section 2.3.4).
const HOST_LEN_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        assert_eq!(host_and_port("a-b.c:1"), Some(("a-b.c", 1)));
        assert_eq!(host_and_port("[::1]:65535"), Some(("[::1]", 65535)));
        for bad in
            ["", "a", ":1", "a:", "a:b", "a:65536", "a:+1", "::1:1", "a b:1", "[a]:1", "u@h:1"]
        {
            assert_eq!(host_and_port(bad), None, "{bad}");
        }
    }
}
