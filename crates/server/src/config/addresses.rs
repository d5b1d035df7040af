//! Addresses as settings hold them: `host:port`, with a name or a number. It never resolves a name.

use std::net::{IpAddr, Ipv6Addr};

use super::ConfigError;

/// Host and port of `host:port`. The host is a name, an IPv4 address, or an IPv6 address in
/// brackets (which stay part of it). `None` if the text is not of that form.
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

/// Whether a `host:port` is this machine's own: what nobody else can dial.
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

pub(super) fn host_ip(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Host and port of an address that other machines can dial, from `port_min` up; `bind` is the setting
/// that says where to listen instead.
pub(super) fn dialable<'a>(
    setting: &'static str,
    addr: &'a str,
    bind: &'static str,
    port_min: u16,
) -> Result<(&'a str, u16), ConfigError> {
    match host_and_port(addr) {
        Some((host, _)) if host_ip(host).is_some_and(|ip| ip.is_unspecified()) => {
            Err(ConfigError::Wildcard { setting, value: addr.to_owned(), bind })
        }
        Some((host, port)) if port >= port_min => Ok((host, port)),
        Some(_) | None => Err(ConfigError::Address { setting, value: addr.to_owned() }),
    }
}

/// Longest host name, RFC 1035 section 2.3.4.
const HOST_LEN_MAX: usize = 253;
