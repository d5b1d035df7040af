//! The messages of `epicepoch.v1.Oracle`, our own service, and of the service of the first
//! EpicEpoch. `crates/wire/proto` has their definitions, from which the numbers of the fields are.

use super::protobuf::{Fields, ProtobufError, put_bytes, put_message, put_number};
use crate::{Guarantee, ProvedBy, Timestamp};

/// The name of the service.
pub const SERVICE: &str = "epicepoch.v1.Oracle";
/// One request for timestamps.
pub const GET_TIMESTAMP: &str = "/epicepoch.v1.Oracle/GetTimestamp";
/// A stream of requests for timestamps.
pub const STREAM_TIMESTAMPS: &str = "/epicepoch.v1.Oracle/StreamTimestamps";
/// Asks for the members and the leader.
pub const GET_MEMBERS: &str = "/epicepoch.v1.Oracle/GetMembers";
/// The name of the first EpicEpoch's service.
pub const FIRST_SERVICE: &str = "api.v1.HybridTimestampAPI";
/// The only method of that service: a request for one timestamp.
pub const FIRST_GET_TIMESTAMP: &str = "/api.v1.HybridTimestampAPI/GetTimestamp";
/// The type of [`NotLeader`] in the details of a status.
pub const NOT_LEADER: &str = "type.googleapis.com/epicepoch.v1.ErrNotLeader";

/// Numbers of fields, named by the message and the field.
mod field {
    pub(super) const REQUEST_COUNT: u32 = 1;
    pub(super) const REQUEST_COMPACT: u32 = 2;
    pub(super) const REQUEST_GUARANTEE: u32 = 3;
    pub(super) const REQUEST_CLUSTER: u32 = 4;
    pub(super) const RESPONSE_TIMESTAMP: u32 = 1;
    pub(super) const RESPONSE_COUNT: u32 = 2;
    pub(super) const RESPONSE_COMPACT: u32 = 3;
    pub(super) const RESPONSE_PROOF: u32 = 4;
    pub(super) const RESPONSE_FORWARDED: u32 = 5;
    pub(super) const MEMBERS_CLUSTER: u32 = 1;
    pub(super) const MEMBERS_LEADER: u32 = 2;
    pub(super) const MEMBERS_MEMBERS: u32 = 3;
    pub(super) const MEMBER_NODE: u32 = 1;
    pub(super) const MEMBER_ADDRESS: u32 = 2;
    pub(super) const MEMBER_VOTER: u32 = 3;
    pub(super) const NOT_LEADER_NODE: u32 = 1;
    pub(super) const NOT_LEADER_ADDRESS: u32 = 2;
}

/// A request for timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampRequest<'a> {
    /// How many timestamps, at least 1.
    pub count: u64,
    /// Whether the answer has the compact form, too.
    pub is_compact: bool,
    /// What may prove the answer; `None` for the default of the node.
    pub guarantee: Option<Guarantee>,
    /// The ids of the cluster and its history that the client wants, as
    /// [`cluster_header`](crate::http::cluster_header) has them; empty for any.
    pub cluster: &'a str,
}

impl<'a> TimestampRequest<'a> {
    /// Reads a request. A count of 0, which is also that of an empty message, asks for one.
    ///
    /// # Errors
    /// When the bytes are not such a request. An unknown guarantee is an error, because another one
    /// might promise less.
    pub fn decode(message: &'a [u8]) -> Result<Self, ProtobufError> {
        let mut request = Self { count: 1, is_compact: false, guarantee: None, cluster: "" };
        let mut fields = Fields::new(message);
        while let Some(field) = fields.next_field()? {
            match field.number {
                field::REQUEST_COUNT => request.count = field.as_number()?.max(1),
                field::REQUEST_COMPACT => request.is_compact = field.as_number()? != 0,
                field::REQUEST_GUARANTEE => {
                    request.guarantee = match field.as_number()? {
                        0 => None,
                        1 => Some(Guarantee::Quorum),
                        2 => Some(Guarantee::Lease),
                        _ => return Err(ProtobufError::Value(field.number)),
                    };
                }
                field::REQUEST_CLUSTER => request.cluster = field.as_text()?,
                _ => {}
            }
        }
        Ok(request)
    }

    /// Appends the request.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let guarantee = match self.guarantee {
            None => 0,
            Some(Guarantee::Quorum) => 1,
            Some(Guarantee::Lease) => 2,
        };
        put_number(out, field::REQUEST_COUNT, self.count);
        put_number(out, field::REQUEST_COMPACT, self.is_compact.into());
        put_number(out, field::REQUEST_GUARANTEE, guarantee);
        put_bytes(out, field::REQUEST_CLUSTER, self.cluster.as_bytes());
    }
}

/// The answer to a request: `count` timestamps in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampResponse {
    /// The first one.
    pub first: Timestamp,
    /// How many.
    pub count: u64,
    /// The first one in 64 bits, if the request asked for it.
    pub compact: Option<u64>,
    /// What has proved the answer.
    pub proved_by: ProvedBy,
    /// The id of the node that has sent the request on to the leader, if one has.
    pub forwarded_by: Option<u64>,
}

impl TimestampResponse {
    /// Appends the answer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_first_timestamp(out, self.first);
        put_number(out, field::RESPONSE_COUNT, self.count);
        put_number(out, field::RESPONSE_COMPACT, self.compact.unwrap_or_default());
        let proof = match self.proved_by {
            ProvedBy::Round => 1,
            ProvedBy::Lease => 2,
        };
        put_number(out, field::RESPONSE_PROOF, proof);
        put_number(out, field::RESPONSE_FORWARDED, self.forwarded_by.unwrap_or_default());
    }

    /// Reads an answer, for tests and measurements.
    ///
    /// # Errors
    /// When the bytes are not such an answer.
    pub fn decode(message: &[u8]) -> Result<Self, ProtobufError> {
        let mut first = None;
        let (mut count, mut compact, mut proved_by) = (0, None, ProvedBy::Round);
        let mut forwarded_by = None;
        let mut fields = Fields::new(message);
        while let Some(field) = fields.next_field()? {
            let wrong = ProtobufError::Value(field.number);
            match field.number {
                field::RESPONSE_TIMESTAMP => {
                    let bytes = field.as_bytes()?.try_into().map_err(|_| wrong)?;
                    first = Some(Timestamp::from_bytes(bytes));
                }
                field::RESPONSE_COUNT => count = field.as_number()?,
                field::RESPONSE_COMPACT => {
                    compact = Some(field.as_number()?).filter(|it| *it != 0);
                }
                field::RESPONSE_PROOF => {
                    proved_by = match field.as_number()? {
                        1 => ProvedBy::Round,
                        2 => ProvedBy::Lease,
                        _ => return Err(wrong),
                    };
                }
                field::RESPONSE_FORWARDED => {
                    forwarded_by = Some(field.as_number()?).filter(|it| *it != 0);
                }
                _ => {}
            }
        }
        let first = first.ok_or(ProtobufError::Value(field::RESPONSE_TIMESTAMP))?;
        Ok(Self { first, count, compact, proved_by, forwarded_by })
    }
}

/// Appends the whole answer of the first EpicEpoch's service, which is also the first field of
/// ours.
pub fn put_first_timestamp(out: &mut Vec<u8>, timestamp: Timestamp) {
    put_bytes(out, field::RESPONSE_TIMESTAMP, &timestamp.to_bytes());
}

/// A member of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// The id.
    pub node: u64,
    /// Where it serves clients; may be empty.
    pub address: &'a str,
    /// Whether it is a voter.
    pub is_voter: bool,
}

/// Appends the answer to [`GET_MEMBERS`]: the ids of the cluster and its history, the id of the
/// leader if one is known, and the members.
pub fn put_members<'a>(
    out: &mut Vec<u8>,
    cluster: &str,
    leader: Option<u64>,
    members: impl Iterator<Item = Member<'a>>,
) {
    put_bytes(out, field::MEMBERS_CLUSTER, cluster.as_bytes());
    put_number(out, field::MEMBERS_LEADER, leader.unwrap_or_default());
    for member in members {
        put_message(out, field::MEMBERS_MEMBERS, |out| {
            put_number(out, field::MEMBER_NODE, member.node);
            put_bytes(out, field::MEMBER_ADDRESS, member.address.as_bytes());
            put_number(out, field::MEMBER_VOTER, member.is_voter.into());
        });
    }
}

/// The leader, in the details of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotLeader<'a> {
    /// The id of the leader.
    pub node: u64,
    /// Where it serves clients.
    pub address: &'a str,
}

impl NotLeader<'_> {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_number(out, field::NOT_LEADER_NODE, self.node);
        put_bytes(out, field::NOT_LEADER_ADDRESS, self.address.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoch, EpochIndex};

    fn written(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out);
        out
    }

    #[test]
    fn an_empty_request_asks_for_one_timestamp() {
        let one = TimestampRequest { count: 1, is_compact: false, guarantee: None, cluster: "" };
        assert_eq!(TimestampRequest::decode(b""), Ok(one));
        assert_eq!(TimestampRequest::decode(b"\x08\x00\x7a\x01x"), Ok(one));
    }

    #[test]
    fn a_request_has_the_fields_of_its_definition() {
        let guarantee = Some(Guarantee::Lease);
        let request = TimestampRequest { count: 300, is_compact: true, guarantee, cluster: "c.h" };
        let bytes = written(|out| request.encode(out));
        assert_eq!(bytes, b"\x08\xac\x02\x10\x01\x18\x02\x22\x03c.h");
        assert_eq!(TimestampRequest::decode(&bytes), Ok(request));
        assert_eq!(TimestampRequest::decode(b"\x18\x03"), Err(ProtobufError::Value(3)));
        assert_eq!(TimestampRequest::decode(b"\x0a\x00"), Err(ProtobufError::Value(1)));
    }

    #[test]
    fn an_answer_begins_with_the_answer_of_the_first_service() {
        let first = Timestamp::new(Epoch(0x0102_0304_0506_0708), EpochIndex(9));
        let (compact, proved_by, forwarded_by) = (Some(77), ProvedBy::Lease, None);
        let answer = TimestampResponse { first, count: 2, compact, proved_by, forwarded_by };
        let bytes = written(|out| answer.encode(out));
        let alone = written(|out| put_first_timestamp(out, first));
        assert_eq!(alone, b"\x0a\x10\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\x09");
        assert_eq!(bytes, [&alone[..], b"\x10\x02\x18\x4d\x20\x02"].concat());
        assert_eq!(TimestampResponse::decode(&bytes), Ok(answer));
        let forwarded = TimestampResponse { forwarded_by: Some(3), ..answer };
        let forwarded_bytes = written(|out| forwarded.encode(out));
        assert_eq!(forwarded_bytes, [&bytes[..], b"\x28\x03"].concat());
        assert_eq!(TimestampResponse::decode(&forwarded_bytes), Ok(forwarded));
        assert!(TimestampResponse::decode(b"\x0a\x01x").is_err());
        assert!(TimestampResponse::decode(b"\x10\x02").is_err());
    }

    #[test]
    fn members_and_the_leader_have_the_fields_of_their_definitions() {
        let members = [
            Member { node: 1, address: "a:1", is_voter: true },
            Member { node: 2, address: "", is_voter: false },
        ];
        let bytes = written(|out| put_members(out, "c.h", Some(1), members.into_iter()));
        assert_eq!(
            bytes,
            b"\x0a\x03c.h\x10\x01\x1a\x09\x08\x01\x12\x03a:1\x18\x01\x1a\x02\x08\x02"
        );
        let leader = NotLeader { node: 2, address: "b:2" };
        assert_eq!(written(|out| leader.encode(out)), b"\x08\x02\x12\x03b:2");
    }
}
