//! Requests that a page of another site made a browser send. Without a token, only the address of
//! the caller identifies an operator, and the browser of an operator has that address.
//!
//! - **DNS rebinding**: a site lets its own name lead to the address of a node. Then the browser
//!   takes the node's answers for those of the site, and lets the site read them. The browser still
//!   sends the site's name as `Host`, and no page can change that. So the name must be one of the
//!   node's own. Over TLS, the browser itself has compared the name with the node's certificate.
//! - **Requests across sites**: the browser names the site in `Origin` (Fetch Standard, 3.2).

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, ORIGIN};
use http::uri::{Authority, Uri};

use super::right::{Caller, Reason};

/// Checks the names in a request. `is_own_name` says whether a name, in any case and without a dot
/// at its end, is one of this node or of a member.
///
/// # Errors
/// When the request is for a node of another name, or comes from a page of another site.
pub(super) fn check(
    caller: &Caller,
    uri: &Uri,
    headers: &HeaderMap,
    is_own_name: impl Fn(&str) -> bool,
) -> Result<(), Reason> {
    // HTTP/3 and the absolute form of HTTP/1 have the name in the URI (RFC 9112, 3.2.2). Only
    // programs that are no browsers send none.
    let in_uri = uri.authority().map(|authority| authority.as_str().as_bytes());
    let hosts = headers.get_all(HOST).iter().map(http::HeaderValue::as_bytes);
    let hosts: Vec<_> = in_uri.into_iter().chain(hosts).collect();
    if !caller.is_encrypted && !hosts.iter().all(|host| is_own(host, &is_own_name)) {
        return Err(Reason::Host);
    }
    let is_own_page = |origin: &[u8]| {
        let authority = origin.strip_prefix(b"http://").or(origin.strip_prefix(b"https://"));
        authority.is_some_and(|it| hosts.iter().any(|host| host.eq_ignore_ascii_case(it)))
    };
    let mut origins = headers.get_all(ORIGIN).iter();
    if origins.all(|it| is_own_page(it.as_bytes())) { Ok(()) } else { Err(Reason::Origin) }
}

/// Whether no other site can have this host: an address, `localhost`, or an own name.
fn is_own(host: &[u8], is_own_name: impl Fn(&str) -> bool) -> bool {
    let Ok(authority) = Authority::try_from(host) else { return false };
    let host = authority.host();
    let behind = authority.as_str().strip_prefix(host);
    if !behind.is_some_and(|port| port.is_empty() || port.starts_with(':')) {
        return false;
    }
    let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
    let name = host.strip_suffix('.').unwrap_or(host);
    inner.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost") || is_own_name(name)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::super::right::Port;
    use super::*;

    fn checked(is_encrypted: bool, uri: &'static str, lines: &[(&'static str, &str)]) -> bool {
        let caller = Caller { from: None, port: Port::Shared, is_encrypted };
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let is_own_name = |name: &str| name.eq_ignore_ascii_case("node-1.payments.example");
        check(&caller, &Uri::from_static(uri), &headers, is_own_name).is_ok()
    }

    #[test]
    fn only_addresses_localhost_and_own_names_are_hosts_of_a_node() {
        for host in [
            "10.0.0.7",
            "127.0.0.1:8080",
            "[::1]:8080",
            "[2001:db8::1]",
            "localhost:8080",
            "LocalHost.",
            "node-1.payments.example:8080",
            "Node-1.Payments.Example.",
        ] {
            assert!(checked(false, "/status", &[("host", host)]), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "node-1.payments.example.evil.example:8080",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "[::1].evil.example",
            "payments.example",
            "x y",
        ] {
            assert!(!checked(false, "/status", &[("host", host)]), "{host}");
            assert!(checked(true, "/status", &[("host", host)]), "TLS: {host}");
        }
        // Every name counts, because a proxy on the way may have used another one.
        let both = [("host", "localhost"), ("host", "evil.example")];
        assert!(!checked(false, "/status", &both));
        assert!(!checked(false, "http://evil.example/status", &[("host", "localhost")]));
        assert!(!checked(false, "http://localhost/status", &[("host", "evil.example")]));
        assert!(checked(false, "http://localhost/status", &[("host", "localhost")]));
        assert!(checked(false, "/status", &[]), "no browser leaves the name out");
    }

    #[test]
    fn a_page_of_another_site_is_refused_also_over_tls() {
        for is_encrypted in [false, true] {
            let allows = |origin| {
                checked(is_encrypted, "/status", &[("host", "localhost:8080"), ("origin", origin)])
            };
            assert!(allows("http://localhost:8080") && allows("https://LOCALHOST:8080"));
            for origin in [
                "http://evil.example",
                "http://localhost:8081",
                "http://localhost",
                "https://127.0.0.1:8080",
                "null",
                "localhost:8080",
                "",
            ] {
                assert!(!allows(origin), "{origin}");
            }
        }
    }
}
