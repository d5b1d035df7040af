//! The text of `INTERVAL_SOURCE`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// Which source states the bound of the clock. There is no default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceSetting {
    /// `clockbound[=PATH]`: ClockBound's segment.
    ClockBound(PathBuf),
    /// `chrony[=ADDRESS]`: chronyd's command port.
    Chrony(ChronyAddress),
    /// `fixed=DURATION`: the bound is always this one. For tests.
    Fixed(Duration),
}

/// Where chronyd takes commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChronyAddress {
    /// A UDP port.
    Udp(SocketAddr),
    /// A Unix socket. The directory must be writable, for the socket of the answers.
    Unix(PathBuf),
}

/// A text that names no source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadSource {
    /// None of the texts that are allowed.
    #[error(
        "the source must be clockbound[=PATH], chrony[=IP:PORT or =/PATH] or fixed=DURATION, such \
         as fixed=500us"
    )]
    Unrecognized,
    /// The kernel's own bound, which is not supported.
    #[error(
        "the source kernel is not supported: use clockbound, or chrony for a machine with chronyd"
    )]
    Kernel,
}

impl FromStr for SourceSetting {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Self, BadSource> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        match (name, value) {
            ("clockbound", None) => Ok(Self::ClockBound(CLOCKBOUND_PATH.into())),
            ("clockbound", Some(path)) if path.starts_with('/') => {
                Ok(Self::ClockBound(path.into()))
            }
            ("chrony", None) => Ok(Self::Chrony(ChronyAddress::Udp(CHRONY_ADDRESS))),
            ("chrony", Some(path)) if path.starts_with('/') => {
                Ok(Self::Chrony(ChronyAddress::Unix(path.into())))
            }
            ("chrony", Some(address)) => {
                let address = address.parse().map_err(|_| BadSource::Unrecognized)?;
                Ok(Self::Chrony(ChronyAddress::Udp(address)))
            }
            ("fixed", Some(bound)) => duration(bound).map(Self::Fixed),
            ("kernel", _) => Err(BadSource::Kernel),
            _ => Err(BadSource::Unrecognized),
        }
    }
}

fn duration(text: &str) -> Result<Duration, BadSource> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| BadSource::Unrecognized)?;
    let unit_ns: u64 = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return Err(BadSource::Unrecognized),
    };
    number.checked_mul(unit_ns).map(Duration::from_nanos).ok_or(BadSource::Unrecognized)
}

impl fmt::Display for SourceSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClockBound(path) => write!(f, "clockbound={}", path.display()),
            Self::Chrony(ChronyAddress::Udp(address)) => write!(f, "chrony={address}"),
            Self::Chrony(ChronyAddress::Unix(path)) => write!(f, "chrony={}", path.display()),
            Self::Fixed(bound) => write!(f, "fixed={}ns", bound.as_nanos()),
        }
    }
}

/// Where ClockBound's daemon keeps its segment.
const CLOCKBOUND_PATH: &str = "/var/run/clockbound/shm0";
/// chronyd's default command port.
const CHRONY_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 323);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_as_it_is_written() {
        for text in [
            "clockbound=/var/run/clockbound/shm0",
            "chrony=127.0.0.1:323",
            "chrony=[::1]:323",
            "chrony=/run/chrony/chronyd.sock",
            "fixed=500000ns",
        ] {
            assert_eq!(text.parse::<SourceSetting>().unwrap().to_string(), text);
        }
        let same = |short: &str, long: &str| {
            assert_eq!(short.parse::<SourceSetting>().unwrap().to_string(), long);
        };
        same("clockbound", "clockbound=/var/run/clockbound/shm0");
        same("chrony", "chrony=127.0.0.1:323");
        same("fixed=500us", "fixed=500000ns");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "fixed",
            "fixed=",
            "fixed=1",
            "fixed=1h",
            "fixed=-1ms",
            "Fixed=1ms",
            "chrony=",
            "chrony=host",
            "clockbound=",
            "clockbound=shm0",
            "fixed=99999999999999999999s",
        ] {
            assert_eq!(text.parse::<SourceSetting>(), Err(BadSource::Unrecognized), "{text}");
        }
        assert_eq!("kernel=chronyd".parse::<SourceSetting>(), Err(BadSource::Kernel));
    }
}
