//! The addresses from which a node accepts changes by operators (`ADMIN_FROM`) and operations in
//! plain text (`OPS_PLAIN_FROM`). They are networks, never names, because a connection has only an
//! address.

use std::net::IpAddr;

/// One setting may have at most this many networks.
pub const NETWORKS_MAX: usize = 16;

/// The addresses from which requests are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedFrom {
    /// Only loopback addresses.
    #[default]
    Loopback,
    /// All addresses.
    Any,
    /// Loopback addresses and these networks, at most [`NETWORKS_MAX`].
    Networks(Vec<Network>),
}

/// A network: all addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    addr: IpAddr,
    /// How many first bits all addresses of the network share: 0 to 32, or 0 to 128 for IPv6.
    bits: u8,
}

impl AllowedFrom {
    /// Reads `loopback`, `any`, or a list such as `10.0.0.0/8,192.0.2.7`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "loopback" => return Some(Self::Loopback),
            "any" => return Some(Self::Any),
            _ => {}
        }
        let networks: Option<Vec<_>> =
            text.split(',').map(|it| Network::parse(it.trim())).collect();
        networks.filter(|networks| networks.len() <= NETWORKS_MAX).map(Self::Networks)
    }

    /// Whether requests from `addr` are accepted. An IPv4 address may be written as IPv6.
    ///
    /// Only loopback addresses count as this machine. A connection whose two ends have the same
    /// address is not enough, because it may come from outside. The port forwarder of rootless
    /// containers makes such connections: it connects from the container's own address
    /// (`RootlessKit` in Podman, <https://github.com/containers/podman/pull/11177>). Operators who
    /// want to allow that address can name it.
    #[must_use]
    pub fn allows(&self, addr: IpAddr) -> bool {
        let addr = addr.to_canonical();
        addr.is_loopback()
            || match self {
                Self::Loopback => false,
                Self::Any => true,
                Self::Networks(networks) => networks.iter().any(|network| network.contains(addr)),
            }
    }
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (addr, bits) = match text.split_once('/') {
            Some((addr, bits)) => (addr, Some(bits)),
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().ok()?;
        let bits_max = if addr.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => bits.parse().ok()?,
            Some(_) => return None,
            None => bits_max,
        };
        (bits <= bits_max).then_some(Self { addr, bits })
    }

    fn contains(&self, addr: IpAddr) -> bool {
        let differing = match (self.addr, addr) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        differing >= u32::from(self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(setting: &str, addr: &str) -> bool {
        AllowedFrom::parse(setting).expect("a setting").allows(addr.parse().expect("an address"))
    }

    #[test]
    fn this_machine_is_always_allowed() {
        for setting in ["loopback", "any", "10.0.0.0/8", "fd00::/8"] {
            for addr in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
                assert!(allows(setting, addr), "{setting} {addr}");
            }
        }
    }

    #[test]
    fn a_network_is_the_addresses_that_begin_with_its_bits() {
        for (setting, addr, expected) in [
            ("loopback", "10.0.0.1", false),
            ("any", "10.0.0.1", true),
            ("10.1.0.0/16", "10.1.255.255", true),
            ("10.1.0.0/16", "10.2.0.0", false),
            ("10.1.0.0/16", "::ffff:10.1.0.1", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.2", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("10.0.0.0/8, fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe00::1", false),
        ] {
            assert_eq!(allows(setting, addr), expected, "{setting} {addr}");
        }
    }

    #[test]
    fn a_bad_list_of_networks_is_refused() {
        let many = ["10.0.0.1"; NETWORKS_MAX + 1].join(",");
        for bad in [
            "",
            "all",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "a,any",
            &many,
        ] {
            assert_eq!(AllowedFrom::parse(bad), None, "{bad}");
        }
    }
}
