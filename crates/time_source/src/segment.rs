//! ClockBound's shared memory, protocol 2: 80 bytes in the machine's byte order, decoded and
//! evaluated. This module never reads a file or a clock. The layout is that of the project's
//! `docs/PROTOCOL.md`.

use crate::Unknown;
use crate::clock::nanoseconds;

/// The bytes of a segment.
pub const LENGTH: usize = 80;

/// The content of a segment that is not being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// When the bound was computed, `CLOCK_MONOTONIC_COARSE`.
    pub as_of_ns: u64,
    /// When the content ends to be valid, `CLOCK_MONOTONIC_COARSE`.
    pub void_after_ns: u64,
    /// The bound at `as_of_ns`.
    pub bound_ns: u64,
    /// Another number after each pause or move of the machine that was noticed.
    pub disruption: u64,
    /// How fast the clock may drift, parts per billion.
    pub drift_ppb: u32,
    /// How the clock is.
    pub status: Status,
}

/// How the clock is, as the daemon says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// 0: not known.
    Unknown,
    /// 1: corrected by a daemon.
    Synchronized,
    /// 2: not corrected any more; the bound grows until void-after.
    FreeRunning,
    /// 3: the machine was paused or moved.
    Disrupted,
}

impl Segment {
    /// Decodes a segment.
    ///
    /// # Errors
    /// [`Unknown::Torn`] while it is being written, [`Unknown::Malformed`] for other content.
    pub fn decode(bytes: &[u8; LENGTH]) -> Result<Self, Unknown> {
        let u16_at = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_ne_bytes(array(bytes, at));
        let u64_at = |at: usize| u64::from_ne_bytes(array(bytes, at));
        if [u32_at(0), u32_at(4)] != MAGIC {
            return Err(Unknown::Malformed("magic number"));
        }
        let length = u32_at(8) as usize;
        if length < LENGTH {
            return Err(Unknown::Malformed("segment size"));
        }
        if u16_at(12) != VERSION {
            return Err(Unknown::Malformed("version"));
        }
        let generation = u16_at(14);
        if generation == 0 {
            return Err(Unknown::Malformed("generation"));
        }
        if generation % 2 == 1 {
            return Err(Unknown::Torn);
        }
        let time = |at: usize| nanoseconds(u64_at(at).cast_signed(), u64_at(at + 8).cast_signed());
        Ok(Self {
            as_of_ns: time(16).ok_or(Unknown::Malformed("as-of time"))?,
            void_after_ns: time(32).ok_or(Unknown::Malformed("void-after time"))?,
            bound_ns: u64::try_from(u64_at(48).cast_signed())
                .map_err(|_| Unknown::Malformed("bound"))?,
            disruption: u64_at(56),
            drift_ppb: u32_at(64),
            status: match u32_at(68) {
                0 => Status::Unknown,
                1 => Status::Synchronized,
                2 => Status::FreeRunning,
                3 => Status::Disrupted,
                _ => return Err(Unknown::Malformed("clock status")),
            },
        })
    }

    /// The bound at a moment of `CLOCK_MONOTONIC_COARSE`, which was read after the wall clock.
    ///
    /// # Errors
    /// When the segment states no bound at that moment.
    pub fn bound_at(&self, now_ns: u64) -> Result<u64, Unknown> {
        match self.status {
            Status::Unknown => return Err(Unknown::Unsynchronized),
            Status::Disrupted => return Err(Unknown::Disrupted),
            Status::Synchronized | Status::FreeRunning => {}
        }
        if now_ns.saturating_add(COARSE_NS_MAX) >= self.void_after_ns {
            return Err(Unknown::Void);
        }
        if self.as_of_ns > now_ns.saturating_add(COARSE_NS_MAX) {
            return Err(Unknown::Malformed("as-of time, which is in the future"));
        }
        // The coarse clock is up to one tick late.
        let age = u128::from(now_ns.saturating_sub(self.as_of_ns) + COARSE_NS_MAX);
        let drift = (age * u128::from(self.drift_ppb)).div_ceil(1_000_000_000);
        u64::try_from(u128::from(self.bound_ns) + drift).map_err(|_| Unknown::Malformed("bound"))
    }
}

fn array<const N: usize>(bytes: &[u8; LENGTH], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

/// "AMZN", "CB", 2, 0, as two numbers in the machine's byte order.
const MAGIC: [u32; 2] = [0x414D_5A4E, 0x4342_0200];
const VERSION: u16 = 2;
/// The longest tick of the coarse clock: 100 ticks a second.
const COARSE_NS_MAX: u64 = 10_000_000;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes of a segment: generation, as-of, void-after, bound, marker, drift, status.
    pub(crate) fn bytes(generation: u16, segment: &Segment) -> [u8; LENGTH] {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.iter().flat_map(|it| it.to_ne_bytes()));
        bytes.extend(80_u32.to_ne_bytes());
        bytes.extend(2_u16.to_ne_bytes());
        bytes.extend(generation.to_ne_bytes());
        for time in [segment.as_of_ns, segment.void_after_ns] {
            bytes.extend((time / 1_000_000_000).to_ne_bytes());
            bytes.extend((time % 1_000_000_000).to_ne_bytes());
        }
        bytes.extend(segment.bound_ns.to_ne_bytes());
        bytes.extend(segment.disruption.to_ne_bytes());
        bytes.extend(segment.drift_ppb.to_ne_bytes());
        bytes.extend((segment.status as u32).to_ne_bytes());
        bytes.resize(LENGTH, 0);
        bytes.try_into().unwrap()
    }

    pub(crate) const GOOD: Segment = Segment {
        as_of_ns: 5_000_000_000,
        void_after_ns: 1_005_000_000_000,
        bound_ns: 40_000,
        disruption: 7,
        drift_ppb: 50_000,
        status: Status::Synchronized,
    };

    #[cfg(target_endian = "little")]
    #[test]
    fn golden_bytes() {
        let mut golden = [0; LENGTH];
        golden[..16].copy_from_slice(b"\x4e\x5a\x4d\x41\x00\x02\x42\x43\x50\0\0\0\x02\0\x04\0");
        golden[16] = 5;
        golden[32..34].copy_from_slice(&[0xed, 0x03]);
        golden[48..50].copy_from_slice(&[0x40, 0x9c]);
        golden[56] = 7;
        golden[64..66].copy_from_slice(&[0x50, 0xc3]);
        golden[68] = 1;
        assert_eq!(bytes(4, &GOOD), golden);
        assert_eq!(Segment::decode(&golden), Ok(GOOD));
    }

    #[test]
    fn the_bound_grows_with_its_age() {
        // 50 ppm of 1 s, and of a tick of the coarse clock.
        assert_eq!(GOOD.bound_at(6_000_000_000), Ok(40_000 + 50_000 + 500));
    }

    #[test]
    fn a_segment_without_a_bound_is_refused() {
        let with = |status| Segment { status, ..GOOD }.bound_at(6_000_000_000);
        assert_eq!(with(Status::Unknown), Err(Unknown::Unsynchronized));
        assert_eq!(with(Status::Disrupted), Err(Unknown::Disrupted));
        assert!(with(Status::FreeRunning).is_ok());
        assert_eq!(GOOD.bound_at(GOOD.void_after_ns), Err(Unknown::Void));
        assert!(matches!(GOOD.bound_at(4_000_000_000), Err(Unknown::Malformed(_))));
        assert_eq!(Segment::decode(&bytes(5, &GOOD)), Err(Unknown::Torn));
        assert_eq!(Segment::decode(&bytes(0, &GOOD)), Err(Unknown::Malformed("generation")));
        for (at, part) in [
            (0, "magic number"),
            (8, "segment size"),
            (12, "version"),
            (55, "bound"),
            (71, "clock status"),
        ] {
            let mut bad = bytes(4, &GOOD);
            bad[at] ^= 0xC0;
            if at == 8 {
                bad[8..12].fill(0);
            }
            assert_eq!(Segment::decode(&bad), Err(Unknown::Malformed(part)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(content in any::<[u8; 64]>(), now in any::<u64>()) {
            let mut whole = bytes(4, &GOOD);
            whole[16..].copy_from_slice(&content);
            if let Ok(segment) = Segment::decode(&whole) {
                prop_assert_eq!(&bytes(4, &segment)[16..72], &whole[16..72]);
                if let Ok(bound) = segment.bound_at(now) {
                    prop_assert!(bound >= segment.bound_ns && now < segment.void_after_ns);
                }
            }
        }
    }
}
