//! The messages of PD, the Placement Driver of TiKV, as far as its clients need them for
//! timestamps: package `pdpb` of `github.com/pingcap/kvproto`, from which the numbers of the fields
//! are. A timestamp of PD is two numbers: physical, milliseconds of Unix time, and logical, below
//! 2^18.

use super::protobuf::{Fields, ProtobufError, put_bytes, put_message, put_number};
use crate::{ClusterId, HistoryId};

/// Asks for the members and the leader.
pub const GET_MEMBERS: &str = "/pdpb.PD/GetMembers";
/// Asks how timestamps are served.
pub const GET_CLUSTER_INFO: &str = "/pdpb.PD/GetClusterInfo";
/// A stream of requests for timestamps.
pub const TSO: &str = "/pdpb.PD/Tso";
/// The name of the service.
pub const SERVICE: &str = "pdpb.PD";
/// Bits of the logical part.
pub const LOGICAL_BITS: u32 = 18;
/// Most timestamps of one request: the logical part has no more values.
pub const COUNT_MAX: u32 = 1 << LOGICAL_BITS;
/// The place that means all data centres. PD once had timestamps of one data centre, too.
const GLOBAL: &str = "global";

/// Numbers of fields, named by the message and the field.
mod field {
    pub(super) const HEADER: u32 = 1;
    pub(super) const HEADER_CLUSTER_ID: u32 = 1;
    pub(super) const TSO_COUNT: u32 = 2;
    pub(super) const TSO_DC_LOCATION: u32 = 3;
    pub(super) const TSO_TIMESTAMP: u32 = 3;
    pub(super) const TIMESTAMP_PHYSICAL: u32 = 1;
    pub(super) const TIMESTAMP_LOGICAL: u32 = 2;
    pub(super) const MEMBERS_MEMBERS: u32 = 2;
    pub(super) const MEMBERS_LEADER: u32 = 3;
    pub(super) const MEMBERS_ETCD_LEADER: u32 = 4;
    pub(super) const MEMBER_NAME: u32 = 1;
    pub(super) const MEMBER_ID: u32 = 2;
    pub(super) const MEMBER_PEER_URLS: u32 = 3;
    pub(super) const MEMBER_CLIENT_URLS: u32 = 4;
    pub(super) const INFO_SERVICE_MODES: u32 = 2;
}

/// The mode of a cluster whose leader gives the timestamps. The other mode has separate servers.
const PD_SERVICE_MODE: u8 = 1;

/// The id of a cluster as PD's clients know it, never 0: they take 0 for none. It follows from the
/// cluster and its history. So a client of an old history is refused, as over the other protocols.
#[must_use]
pub const fn cluster_id(cluster: ClusterId, history: HistoryId) -> u64 {
    // The finalizer of splitmix64 spreads the history, which is a small number, over all bits.
    let mut mixed = history.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let id = (cluster.0 >> 64) as u64 ^ cluster.0 as u64 ^ mixed;
    if id == 0 { 1 } else { id }
}

/// A request for timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TsoRequest {
    /// The cluster that the client believes it speaks to.
    pub cluster_id: u64,
    /// How many timestamps.
    pub count: u32,
    /// Whether the request is for all data centres, and not for one that it names.
    pub is_global: bool,
}

impl TsoRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// When the bytes are not such a request.
    pub fn decode(message: &[u8]) -> Result<Self, ProtobufError> {
        let mut request = Self { cluster_id: 0, count: 0, is_global: true };
        let mut fields = Fields::new(message);
        while let Some(field) = fields.next_field()? {
            match field.number {
                field::HEADER => {
                    let mut header = Fields::new(field.as_bytes()?);
                    while let Some(field) = header.next_field()? {
                        if field.number == field::HEADER_CLUSTER_ID {
                            request.cluster_id = field.as_number()?;
                        }
                    }
                }
                field::TSO_COUNT => request.count = field.as_u32()?,
                field::TSO_DC_LOCATION => {
                    request.is_global = matches!(field.as_text()?, "" | GLOBAL);
                }
                _ => {}
            }
        }
        Ok(request)
    }

    /// Appends the request, as PD's client sends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_header(out, self.cluster_id);
        put_number(out, field::TSO_COUNT, self.count.into());
        if !self.is_global {
            put_bytes(out, field::TSO_DC_LOCATION, b"one");
        }
    }
}

/// The answer to a request for timestamps: `count` of them, whose logical parts are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TsoResponse {
    /// The cluster.
    pub cluster_id: u64,
    /// How many timestamps.
    pub count: u32,
    /// The physical part of all of them, milliseconds of Unix time.
    pub physical: u64,
    /// The logical part of the *last* one.
    pub logical: u64,
}

impl TsoResponse {
    /// Appends the answer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_header(out, self.cluster_id);
        put_number(out, field::TSO_COUNT, self.count.into());
        put_message(out, field::TSO_TIMESTAMP, |out| {
            put_number(out, field::TIMESTAMP_PHYSICAL, self.physical);
            put_number(out, field::TIMESTAMP_LOGICAL, self.logical);
        });
    }

    /// Reads an answer, for tests and measurements.
    ///
    /// # Errors
    /// When the bytes are not such an answer.
    pub fn decode(message: &[u8]) -> Result<Self, ProtobufError> {
        let mut answer = Self { cluster_id: 0, count: 0, physical: 0, logical: 0 };
        let mut fields = Fields::new(message);
        while let Some(field) = fields.next_field()? {
            match field.number {
                field::HEADER => {
                    let mut header = Fields::new(field.as_bytes()?);
                    while let Some(field) = header.next_field()? {
                        if field.number == field::HEADER_CLUSTER_ID {
                            answer.cluster_id = field.as_number()?;
                        }
                    }
                }
                field::TSO_COUNT => answer.count = field.as_u32()?,
                field::TSO_TIMESTAMP => {
                    let mut timestamp = Fields::new(field.as_bytes()?);
                    while let Some(field) = timestamp.next_field()? {
                        match field.number {
                            field::TIMESTAMP_PHYSICAL => answer.physical = field.as_number()?,
                            field::TIMESTAMP_LOGICAL => answer.logical = field.as_number()?,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(answer)
    }
}

/// A member of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// A name for people.
    pub name: &'a str,
    /// The id, unique in the cluster.
    pub id: u64,
    /// The URL at which other members reach it.
    pub peer_url: &'a str,
    /// The URL at which clients reach it.
    pub client_url: &'a str,
}

impl Member<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, field::MEMBER_NAME, self.name.as_bytes());
        put_number(out, field::MEMBER_ID, self.id);
        put_bytes(out, field::MEMBER_PEER_URLS, self.peer_url.as_bytes());
        put_bytes(out, field::MEMBER_CLIENT_URLS, self.client_url.as_bytes());
    }
}

/// Appends the answer to [`GET_MEMBERS`]. Without a leader, clients ask the next member.
pub fn put_members<'a>(
    out: &mut Vec<u8>,
    cluster_id: u64,
    members: impl Iterator<Item = Member<'a>>,
    leader: Option<&Member<'_>>,
) {
    put_header(out, cluster_id);
    for member in members {
        put_message(out, field::MEMBERS_MEMBERS, |out| member.encode(out));
    }
    if let Some(leader) = leader {
        put_message(out, field::MEMBERS_LEADER, |out| leader.encode(out));
        // The leader of PD's storage, which some clients show.
        put_message(out, field::MEMBERS_ETCD_LEADER, |out| leader.encode(out));
    }
}

/// Appends the answer to [`GET_CLUSTER_INFO`]: the leader gives the timestamps.
pub fn put_cluster_info(out: &mut Vec<u8>, cluster_id: u64) {
    put_header(out, cluster_id);
    put_bytes(out, field::INFO_SERVICE_MODES, &[PD_SERVICE_MODE]);
}

fn put_header(out: &mut Vec<u8>, cluster_id: u64) {
    put_message(out, field::HEADER, |out| put_number(out, field::HEADER_CLUSTER_ID, cluster_id));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out);
        out
    }

    #[test]
    fn a_request_has_the_bytes_of_pds_client() {
        let request = TsoRequest { cluster_id: 300, count: 5, is_global: true };
        let bytes = written(|out| request.encode(out));
        assert_eq!(bytes, b"\x0a\x03\x08\xac\x02\x10\x05");
        assert_eq!(TsoRequest::decode(&bytes), Ok(request));
    }

    #[test]
    fn a_request_may_have_its_fields_in_any_order_and_others_beside() {
        let bytes = b"\x10\x01\x1a\x06global\x7a\x01x\x10\x07\x0a\x06\x10\x09\x08\x01\x18\x02";
        let expected = TsoRequest { cluster_id: 1, count: 7, is_global: true };
        assert_eq!(TsoRequest::decode(bytes), Ok(expected));
        let local = TsoRequest::decode(b"\x1a\x03dc1").unwrap();
        assert!(!local.is_global && local.count == 0 && local.cluster_id == 0);
        assert!(TsoRequest::decode(b"\x0a\x02\x08").is_err());
        assert_eq!(TsoRequest::decode(b"\x12\x01a"), Err(ProtobufError::Value(2)));
    }

    #[test]
    fn an_answer_names_the_last_timestamp() {
        let answer = TsoResponse { cluster_id: 1, count: 3, physical: 1 << 40, logical: 262_143 };
        let bytes = written(|out| answer.encode(out));
        let physical = b"\x08\x80\x80\x80\x80\x80\x20";
        let expected =
            [&b"\x0a\x02\x08\x01\x10\x03\x1a\x0b"[..], physical, b"\x10\xff\xff\x0f"].concat();
        assert_eq!(bytes, expected);
        assert_eq!(TsoResponse::decode(&bytes), Ok(answer));
    }

    #[test]
    fn members_and_modes_have_the_fields_of_the_definition() {
        let member = Member { name: "n", id: 2, peer_url: "http://r:1", client_url: "http://c:2" };
        let encoded = b"\x0a\x01n\x10\x02\x1a\x0ahttp://r:1\x22\x0ahttp://c:2";
        assert_eq!(written(|out| member.encode(out)), encoded);
        let of = |leader| written(|out| put_members(out, 7, [member, member].into_iter(), leader));
        let header = &b"\x0a\x02\x08\x07"[..];
        let as_field = |tag: u8| [&[tag, encoded.len() as u8], &encoded[..]].concat();
        let members = [header, &as_field(0x12), &as_field(0x12)].concat();
        assert_eq!(of(None), members);
        let led = [&members[..], &as_field(0x1a), &as_field(0x22)].concat();
        assert_eq!(of(Some(&member)), led);
        assert_eq!(written(|out| put_cluster_info(out, 7)), b"\x0a\x02\x08\x07\x12\x01\x01");
    }

    #[test]
    fn the_id_of_a_cluster_is_never_zero_and_another_in_each_history() {
        let cluster = ClusterId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        let ids: Vec<_> =
            (1..=100).map(|history| cluster_id(cluster, HistoryId(history))).collect();
        for (at, id) in ids.iter().enumerate() {
            assert!(*id != 0 && !ids[..at].contains(id), "{id}");
        }
        // The id must never change: clients keep it while they run.
        assert_eq!(ids[0], 0x9038_4ab8_44fc_f759);
        let zero = cluster_id(ClusterId(0), HistoryId(1));
        assert_eq!(cluster_id(ClusterId(u128::from(zero)), HistoryId(1)), 1);
    }
}
