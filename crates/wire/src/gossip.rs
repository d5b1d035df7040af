//! Clock samples between peers: a ping, and a pong with the wall clock of the answering node. Other
//! modules decide how to use a sample; a sample alone never sets a clock.
//!
//! A receiver corrects a sample by half the round trip, as in Cristian's algorithm (1989). In
//! interval mode, a pong also has an interval that holds true time.

use crate::cursor::{DecodeError, Reader, Writer};
use crate::id::StorePosition;

/// Asks for a clock sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// The sender's monotonic time, in nanoseconds since its process started. It means nothing on
    /// other nodes.
    pub sent_ns: u64,
}

impl Ping {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.sent_ns);
    }

    /// Decodes the payload of a [`Ping`].
    ///
    /// # Errors
    /// The bytes are not a valid payload of this kind.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let ping = Self { sent_ns: reader.u64("sent")? };
        reader.finish()?;
        Ok(ping)
    }
}

/// Answers a [`Ping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong {
    /// [`Ping::sent_ns`], unchanged.
    pub sent_ns: u64,
    /// The answering node's wall clock, Unix nanoseconds.
    pub wall_ns: u64,
    /// The position of the answering node's data directory. The write with this number is on disk
    /// before the pong is sent.
    pub position: StorePosition,
    /// Interval mode: true time was not below the first and not above the second when the node
    /// answered, Unix nanoseconds. `None` if the node does not know, in quorum mode, and for a node
    /// whose hello does not say that it reads this
    /// ([`reads_intervals`](crate::peer_hello::PeerHello::reads_intervals)).
    pub interval: Option<(u64, u64)>,
}

impl Pong {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.sent_ns);
        out.put_u64(self.wall_ns);
        out.put_u64(self.position.0);
        if let Some((earliest_ns, latest_ns)) = self.interval {
            out.put_u64(earliest_ns);
            out.put_u64(latest_ns);
        }
    }

    /// Decodes the payload of a [`Pong`].
    ///
    /// # Errors
    /// The bytes are not a valid payload of this kind.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let mut pong = Self {
            sent_ns: reader.u64("sent")?,
            wall_ns: reader.u64("wall")?,
            position: StorePosition(reader.u64("position")?),
            interval: None,
        };
        if reader.remaining() > 0 {
            pong.interval = Some((reader.u64("earliest")?, reader.u64("latest")?));
        }
        reader.finish()?;
        Ok(pong)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn samples_round_trip(
            sent_ns: u64, wall_ns: u64, position: u64, interval: Option<(u64, u64)>,
        ) {
            let position = StorePosition(position);
            let (ping, pong) = (Ping { sent_ns }, Pong { sent_ns, wall_ns, position, interval });
            let (mut a, mut b) = (Vec::new(), Vec::new());
            ping.encode(&mut a);
            pong.encode(&mut b);
            prop_assert_eq!((Ping::decode(&a), Pong::decode(&b)), (Ok(ping), Ok(pong)));
            prop_assert!(Ping::decode(&b).is_err());
            prop_assert!(Pong::decode(&b[..b.len() - 1]).is_err());
        }
    }
}
