//! The beginning of a connection: the hello of a client and the welcome of a node. The hello names
//! the client's versions and the cluster that it expects. The welcome names the node, the leader
//! and the limits. Both are lists of fields with tag and length, so later versions can add fields.
//! An unknown field is skipped, unless its tag marks it as required.

use thiserror::Error;

use super::frame::{Frame, HEADER_LEN, Header, KIND_HELLO, KIND_WELCOME, text};
use super::token::Token;
use super::{TO_CLIENT_TAIL_LEN_MAX, TO_SERVER_TAIL_LEN_MAX};
use crate::cursor::DecodeError;
use crate::guarantee::Guarantee;
use crate::id::{ClusterId, HistoryId, NodeId};
use crate::peer_hello::{ADDR_LEN_MAX, CLUSTER_NAME_LEN_MAX};
use crate::timestamp_format::TimestampFormat;

/// The field `id` of a hello and of a welcome has this value: `EPOCHTSO` in ASCII.
pub const MAGIC: u64 = u64::from_be_bytes(*b"EPOCHTSO");
/// Longest name of a client, bytes.
pub const AGENT_LEN_MAX: usize = 64;
/// A welcome lists at most this many members.
pub const MEMBERS_MAX: usize = 64;

/// Fields with this tag or a higher one must be understood: a receiver that does not know such a
/// field refuses the connection.
const MUST_UNDERSTAND: u16 = 0x8000;
/// Bytes of a field before its value: tag and length.
const FIELD_HEAD_LEN: usize = 4;

const TAG_FEATURES: u16 = 0x0001;
const TAG_CLUSTER_NAME: u16 = 0x0002;
const TAG_CLUSTER: u16 = 0x0003;
const TAG_AGENT: u16 = 0x0004;
const TAG_NODE: u16 = 0x0005;
const TAG_LEADER: u16 = 0x0006;
const TAG_IN_FLIGHT_MAX: u16 = 0x0007;
const TAG_IDLE_MS: u16 = 0x0008;
const TAG_COUNT_MAX: u16 = 0x0009;
const TAG_MEMBER: u16 = 0x000a;
const TAG_TOKEN: u16 = 0x8001;
const TAG_GUARANTEE: u16 = 0x8002;
const TAG_TIMESTAMP_FORMAT: u16 = 0x8004;

/// Why a hello or a welcome cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClientHelloError {
    /// The other end violates the protocol: do not retry.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// The two ends speak no common version: update the older one.
    #[error("versions {oldest} to {newest} are not spoken here")]
    Version {
        /// The newest version that the other end speaks.
        newest: u8,
        /// The oldest version that the other end speaks.
        oldest: u8,
    },
    /// The other end requires a field, or a value of it, that this end does not know: leave the
    /// field out there, or update this end.
    #[error("the field {0:#06x} must be understood and is not")]
    Field(u16),
}

/// The hello of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The newest version that the client speaks.
    pub newest: u8,
    /// The oldest version that the client speaks, at least 1.
    pub oldest: u8,
    /// Features that the client offers, one bit each: see [`FEATURES`](super::FEATURES).
    pub features: u64,
    /// The cluster name that the client expects; empty if it accepts any.
    pub cluster_name: String,
    /// The cluster and history that the client knows; `None` if it accepts any.
    pub cluster: Option<(ClusterId, HistoryId)>,
    /// Name and version of the client, for logs; may be empty.
    pub agent: String,
    /// The client's token; `None` when the nodes require none.
    pub token: Option<Token>,
    /// The guarantee that all requests of the connection ask for, if the client names one. Then the
    /// flags of the answers say what has proved them.
    pub guarantee: Option<Guarantee>,
    /// The format that all timestamps of the connection must have, if the client names one. A cluster
    /// that gives wide timestamps refuses requests of a client that needs compact ones.
    pub timestamp_format: Option<TimestampFormat>,
}

impl Default for ClientHello {
    fn default() -> Self {
        Self {
            newest: super::VERSION,
            oldest: super::VERSION,
            features: 0,
            cluster_name: String::new(),
            cluster: None,
            agent: String::new(),
            token: None,
            guarantee: None,
            timestamp_format: None,
        }
    }
}

impl ClientHello {
    /// Appends the frame, without empty fields.
    ///
    /// # Panics
    /// A text is longer than its limit.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.cluster_name.len() <= CLUSTER_NAME_LEN_MAX, "a long cluster name");
        assert!(self.agent.len() <= AGENT_LEN_MAX, "a long agent");
        let start = begin(out);
        put_common(out, self.features, &self.cluster_name, self.cluster);
        if !self.agent.is_empty() {
            put(out, TAG_AGENT, &[self.agent.as_bytes()]);
        }
        if let Some(token) = &self.token {
            put(out, TAG_TOKEN, &[token.reveal().as_bytes()]);
        }
        if let Some(guarantee) = self.guarantee {
            put(out, TAG_GUARANTEE, &[&[guarantee_byte(guarantee)]]);
        }
        if let Some(format) = self.timestamp_format {
            put(out, TAG_TIMESTAMP_FORMAT, &[&[format_byte(format)]]);
        }
        let code = u16::from(self.oldest) << 8;
        end(out, start, KIND_HELLO, self.newest, code);
    }

    /// Reads the first frame of a client.
    ///
    /// # Errors
    /// See [`ClientHelloError`].
    pub fn decode(frame: &Frame<'_>) -> Result<Self, ClientHelloError> {
        let Frame { header, tail } = *frame;
        check(header, KIND_HELLO, tail, TO_SERVER_TAIL_LEN_MAX)?;
        let [oldest, reserved] = header.code.to_be_bytes();
        let newest = header.flags;
        if reserved != 0 || oldest == 0 || newest < oldest {
            return Err(bad("versions", u64::from(newest)).into());
        }
        if !(oldest..=newest).contains(&super::VERSION) {
            return Err(ClientHelloError::Version { newest, oldest });
        }
        let mut hello = Self { newest, oldest, ..Self::default() };
        let mut seen = Seen::default();
        let mut rest = tail;
        while let Some(field) = next_field(&mut rest)? {
            seen.check(field.tag)?;
            match field.tag {
                TAG_FEATURES => hello.features = field.u64()?,
                TAG_CLUSTER_NAME => hello.cluster_name = field.text(CLUSTER_NAME_LEN_MAX)?,
                TAG_CLUSTER => hello.cluster = Some(field.cluster()?),
                TAG_AGENT => hello.agent = field.text(AGENT_LEN_MAX)?,
                TAG_TOKEN if hello.token.is_some() => {
                    return Err(bad("a field that comes twice", u64::from(TAG_TOKEN)).into());
                }
                TAG_TOKEN => hello.token = Some(field.token()?),
                TAG_GUARANTEE if hello.guarantee.is_some() => {
                    return Err(bad("a field that comes twice", u64::from(TAG_GUARANTEE)).into());
                }
                TAG_GUARANTEE => hello.guarantee = Some(field.guarantee()?),
                TAG_TIMESTAMP_FORMAT if hello.timestamp_format.is_some() => {
                    let tag = u64::from(TAG_TIMESTAMP_FORMAT);
                    return Err(bad("a field that comes twice", tag).into());
                }
                TAG_TIMESTAMP_FORMAT => hello.timestamp_format = Some(field.timestamp_format()?),
                tag => pass_over(tag)?,
            }
        }
        Ok(hello)
    }
}

/// The welcome of a node: it accepts a hello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// The version of this connection.
    pub version: u8,
    /// The features that both ends have. A client uses only these.
    pub features: u64,
    /// The node's cluster name.
    pub cluster_name: String,
    /// The node's cluster and history; `None` until it has joined one.
    pub cluster: Option<(ClusterId, HistoryId)>,
    /// The node.
    pub node: NodeId,
    /// The leader as far as the node knows. The node itself may be the leader.
    pub leader: Option<MemberAddr>,
    /// The node reads at most this many requests of this connection before it answers. Further
    /// requests wait in the network's buffers.
    pub in_flight_max: u32,
    /// After a silence of this many milliseconds, the node closes the connection.
    pub idle_ms: u32,
    /// Largest count of a request, timestamps.
    pub count_max: u64,
    /// The members, voters or not.
    pub members: Vec<MemberAddr>,
}

/// A member and its address for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAddr {
    /// Its node id.
    pub node: NodeId,
    /// Its client address, `host:port`.
    pub addr: String,
}

impl Welcome {
    /// Appends the frame. Members beyond [`MEMBERS_MAX`] are left out.
    ///
    /// # Panics
    /// A text is longer than its limit.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.cluster_name.len() <= CLUSTER_NAME_LEN_MAX, "a long cluster name");
        let start = begin(out);
        put_common(out, self.features, &self.cluster_name, self.cluster);
        put(out, TAG_NODE, &[&self.node.0.to_be_bytes()]);
        let put_member = |out: &mut Vec<u8>, tag, member: &MemberAddr| {
            assert!(member.addr.len() <= ADDR_LEN_MAX, "an address of {} bytes", member.addr.len());
            put(out, tag, &[&member.node.0.to_be_bytes(), member.addr.as_bytes()]);
        };
        if let Some(leader) = &self.leader {
            put_member(out, TAG_LEADER, leader);
        }
        put(out, TAG_IN_FLIGHT_MAX, &[&self.in_flight_max.to_be_bytes()]);
        put(out, TAG_IDLE_MS, &[&self.idle_ms.to_be_bytes()]);
        put(out, TAG_COUNT_MAX, &[&self.count_max.to_be_bytes()]);
        for member in self.members.iter().take(MEMBERS_MAX) {
            put_member(out, TAG_MEMBER, member);
        }
        end(out, start, KIND_WELCOME, self.version, 0);
    }

    /// Reads the first frame of a node.
    ///
    /// # Errors
    /// See [`ClientHelloError`]. The node id and the limits must be present and not 0.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, ClientHelloError> {
        let Frame { header, tail } = *frame;
        check(header, KIND_WELCOME, tail, TO_CLIENT_TAIL_LEN_MAX)?;
        let version = header.flags;
        if header.code != 0 {
            return Err(bad("reserved bytes", u64::from(header.code)).into());
        }
        if version != super::VERSION {
            return Err(ClientHelloError::Version { newest: version, oldest: version });
        }
        let mut welcome = Self { version, ..Self::default() };
        let mut seen = Seen::default();
        let mut rest = tail;
        while let Some(field) = next_field(&mut rest)? {
            if field.tag != TAG_MEMBER {
                seen.check(field.tag)?;
            }
            match field.tag {
                TAG_FEATURES => welcome.features = field.u64()?,
                TAG_CLUSTER_NAME => welcome.cluster_name = field.text(CLUSTER_NAME_LEN_MAX)?,
                TAG_CLUSTER => welcome.cluster = Some(field.cluster()?),
                TAG_NODE => welcome.node = NodeId(field.u64()?),
                TAG_LEADER => welcome.leader = Some(field.member()?),
                TAG_IN_FLIGHT_MAX => welcome.in_flight_max = field.u32()?,
                TAG_IDLE_MS => welcome.idle_ms = field.u32()?,
                TAG_COUNT_MAX => welcome.count_max = field.u64()?,
                TAG_MEMBER if welcome.members.len() == MEMBERS_MAX => {
                    let (length, limit) = (MEMBERS_MAX + 1, MEMBERS_MAX);
                    return Err(DecodeError::TooLong { field: "members", length, limit }.into());
                }
                TAG_MEMBER => welcome.members.push(field.member()?),
                tag => pass_over(tag)?,
            }
        }
        if welcome.node.0 == 0 || welcome.in_flight_max == 0 || welcome.count_max == 0 {
            return Err(DecodeError::Truncated("the welcome's node id or limits").into());
        }
        Ok(welcome)
    }
}

fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_LEN]);
    start
}

fn end(out: &mut [u8], start: usize, kind: u8, flags: u8, code: u16) {
    let argument = (out.len() - start - HEADER_LEN) as u32;
    let header = Header { kind, flags, code, argument, id: MAGIC };
    out[start..start + HEADER_LEN].copy_from_slice(&header.to_bytes());
}

fn put(out: &mut Vec<u8>, tag: u16, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&tag.to_be_bytes());
    out.extend_from_slice(&(length as u16).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn put_common(
    out: &mut Vec<u8>,
    features: u64,
    cluster_name: &str,
    cluster: Option<(ClusterId, HistoryId)>,
) {
    if features != 0 {
        put(out, TAG_FEATURES, &[&features.to_be_bytes()]);
    }
    if !cluster_name.is_empty() {
        put(out, TAG_CLUSTER_NAME, &[cluster_name.as_bytes()]);
    }
    if let Some((cluster, history)) = cluster {
        put(out, TAG_CLUSTER, &[&cluster.0.to_be_bytes(), &history.0.to_be_bytes()]);
    }
}

fn check(header: Header, kind: u8, tail: &[u8], limit: usize) -> Result<(), DecodeError> {
    if header.kind != kind || header.id != MAGIC {
        return Err(DecodeError::NotAFrame);
    }
    if tail.len() > limit {
        return Err(DecodeError::TooLong { field: "fields", length: tail.len(), limit });
    }
    Ok(())
}

struct Field<'a> {
    tag: u16,
    value: &'a [u8],
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Result<Option<Field<'a>>, DecodeError> {
    if rest.is_empty() {
        return Ok(None);
    }
    let (head, after) = rest
        .split_first_chunk::<FIELD_HEAD_LEN>()
        .ok_or(DecodeError::Truncated("a field's head"))?;
    let [t0, t1, l0, l1] = *head;
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    let (value, after) =
        after.split_at_checked(length).ok_or(DecodeError::Truncated("a field's value"))?;
    *rest = after;
    Ok(Some(Field { tag: u16::from_be_bytes([t0, t1]), value }))
}

impl Field<'_> {
    fn array<const N: usize>(&self) -> Result<[u8; N], DecodeError> {
        let wrong = bad("the length of a field", self.value.len() as u64);
        self.value.try_into().map_err(|_| wrong)
    }

    fn u32(&self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    fn text(&self, limit: usize) -> Result<String, DecodeError> {
        text("a field", self.value, limit).map(str::to_owned)
    }

    fn cluster(&self) -> Result<(ClusterId, HistoryId), DecodeError> {
        let bytes = self.array::<24>()?;
        let (cluster, history) = bytes.split_at(16);
        let cluster = cluster.iter().fold(0, |all, byte| all << 8 | u128::from(*byte));
        let history = history.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        if cluster == 0 {
            return Err(bad("cluster", 0));
        }
        Ok((ClusterId(cluster), HistoryId(history)))
    }

    fn token(&self) -> Result<Token, DecodeError> {
        let length = self.value.len();
        let token = std::str::from_utf8(self.value).ok().and_then(Token::new);
        // The token is a secret. So the error contains only its length, never its text.
        token.ok_or(bad("the length of a token, or its characters", length as u64))
    }

    /// A guarantee of a later version must be understood, as an unknown field with this tag: the
    /// client would get another guarantee, and not notice.
    fn guarantee(&self) -> Result<Guarantee, ClientHelloError> {
        let [byte] = self.array::<1>()?;
        let all = [Guarantee::Quorum, Guarantee::Lease];
        let known = all.into_iter().find(|guarantee| guarantee_byte(*guarantee) == byte);
        known.ok_or(ClientHelloError::Field(TAG_GUARANTEE))
    }

    /// A format of a later version must be understood, too.
    fn timestamp_format(&self) -> Result<TimestampFormat, ClientHelloError> {
        let [byte] = self.array::<1>()?;
        let known = TimestampFormat::ALL.into_iter().find(|format| format_byte(*format) == byte);
        known.ok_or(ClientHelloError::Field(TAG_TIMESTAMP_FORMAT))
    }

    fn member(&self) -> Result<MemberAddr, DecodeError> {
        let (node, addr) =
            self.value.split_first_chunk::<8>().ok_or(DecodeError::Truncated("a member"))?;
        let node = NodeId(u64::from_be_bytes(*node));
        let addr = text("a member's address", addr, ADDR_LEN_MAX)?.to_owned();
        if node.0 == 0 || addr.is_empty() {
            return Err(bad("a member", node.0));
        }
        Ok(MemberAddr { node, addr })
    }
}

/// The known tags of fields that have occurred so far. A known tag may occur only once; unknown
/// tags may repeat.
#[derive(Default)]
struct Seen(u64);

impl Seen {
    fn check(&mut self, tag: u16) -> Result<(), DecodeError> {
        if tag == 0 || tag > TAG_MEMBER {
            return Ok(());
        }
        let bit = 1 << tag;
        if self.0 & bit != 0 {
            return Err(bad("a field that comes twice", u64::from(tag)));
        }
        self.0 |= bit;
        Ok(())
    }
}

/// The value of the field [`TAG_TIMESTAMP_FORMAT`].
const fn format_byte(format: TimestampFormat) -> u8 {
    match format {
        TimestampFormat::Wide => 0,
        TimestampFormat::Compact => 1,
    }
}

/// The value of the field [`TAG_GUARANTEE`].
const fn guarantee_byte(guarantee: Guarantee) -> u8 {
    match guarantee {
        Guarantee::Quorum => 0,
        Guarantee::Lease => 1,
    }
}

const fn pass_over(tag: u16) -> Result<(), ClientHelloError> {
    if tag & MUST_UNDERSTAND == 0 { Ok(()) } else { Err(ClientHelloError::Field(tag)) }
}

const fn bad(field: &'static str, value: u64) -> DecodeError {
    DecodeError::BadValue { field, value }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frame::split;
    use super::*;

    fn addr() -> impl Strategy<Value = MemberAddr> {
        (1..u64::MAX, "[a-z.:0-9]{1,40}")
            .prop_map(|(node, addr)| MemberAddr { node: NodeId(node), addr })
    }

    fn cluster() -> impl Strategy<Value = Option<(ClusterId, HistoryId)>> {
        prop::option::of(
            (1..u128::MAX, any::<u64>()).prop_map(|(c, h)| (ClusterId(c), HistoryId(h))),
        )
    }

    proptest! {
        #[test]
        fn a_hello_round_trips(
            features: u64, newest in 1_u8.., name in "[a-z]{0,64}", cluster in cluster(),
            agent in "\\PC{0,16}", token in prop::option::of("[!-~]{1,256}"),
            guarantee in 0_usize..3, format in 0_usize..3,
        ) {
            let timestamp_format =
                [None, Some(TimestampFormat::Wide), Some(TimestampFormat::Compact)][format];
            let guarantee = [None, Some(Guarantee::Quorum), Some(Guarantee::Lease)][guarantee];
            let cluster_name = name;
            let token = token.and_then(|text| Token::new(&text));
            let hello = ClientHello {
                newest, oldest: 1, features, cluster_name, cluster, agent, token, guarantee,
                timestamp_format,
            };
            let mut bytes = Vec::new();
            hello.encode(&mut bytes);
            prop_assert!(bytes.len() <= TO_SERVER_TAIL_LEN_MAX);
            let frame = split(&bytes, TO_SERVER_TAIL_LEN_MAX).unwrap().unwrap();
            prop_assert_eq!(ClientHello::decode(&frame), Ok(hello));
        }

        #[test]
        fn a_welcome_round_trips(
            features: u64, name in "[a-z]{0,64}", cluster in cluster(), node in 1_u64..,
            leader in prop::option::of(addr()), in_flight_max in 1_u32.., idle_ms: u32,
            count_max in 1_u64.., members in prop::collection::vec(addr(), 0..MEMBERS_MAX),
        ) {
            let welcome = Welcome {
                version: super::super::VERSION, features, cluster_name: name, cluster,
                node: NodeId(node), leader, in_flight_max, idle_ms, count_max, members,
            };
            let mut bytes = Vec::new();
            welcome.encode(&mut bytes);
            let frame = split(&bytes, TO_CLIENT_TAIL_LEN_MAX).unwrap().unwrap();
            prop_assert_eq!(Welcome::decode(&frame), Ok(welcome));
        }

        /// A node and a client both decode random fields, in a few hundred random cases.
        #[test]
        fn garbage_in_the_fields_never_panics(fields: Vec<u8>, kind in 0_u8.., flags: u8, code: u16) {
            let argument = fields.len() as u32;
            let header = Header { kind, flags, code, argument, id: MAGIC };
            for version in [flags, super::super::VERSION] {
                let frame = Frame { header: Header { flags: version, ..header }, tail: &fields };
                let _ = super::super::ToServer::decode(&frame);
                let _ = super::super::ToClient::decode(&frame);
                let hello = Header { kind: KIND_HELLO, code: 0x0100, ..frame.header };
                let _ = ClientHello::decode(&Frame { header: hello, tail: &fields });
                let welcome = Header { kind: KIND_WELCOME, code: 0, ..frame.header };
                let _ = Welcome::decode(&Frame { header: welcome, tail: &fields });
            }
        }
    }

    #[test]
    fn a_field_of_a_later_version_may_come_more_than_once() {
        for tag in [0, TAG_MEMBER + 1, 63, 64, MUST_UNDERSTAND - 1] {
            let [high, low] = tag.to_be_bytes();
            let fields = [high, low, 0, 1, 5].repeat(3);
            let mut bytes = Vec::new();
            ClientHello::default().encode(&mut bytes);
            bytes[7] += fields.len() as u8;
            bytes.extend_from_slice(&fields);
            let frame = split(&bytes, TO_SERVER_TAIL_LEN_MAX).unwrap().unwrap();
            assert_eq!(ClientHello::decode(&frame), Ok(ClientHello::default()), "{tag:#06x}");
        }
    }

    #[test]
    fn the_longest_welcome_fits_its_limit() {
        let member = MemberAddr { node: NodeId(1), addr: "a".repeat(ADDR_LEN_MAX) };
        let welcome = Welcome {
            version: super::super::VERSION,
            features: 1,
            cluster_name: "c".repeat(CLUSTER_NAME_LEN_MAX),
            cluster: Some((ClusterId(1), HistoryId(1))),
            node: NodeId(1),
            leader: Some(member.clone()),
            in_flight_max: 1,
            idle_ms: 1,
            count_max: 1,
            members: vec![member; MEMBERS_MAX + 1],
        };
        let mut bytes = Vec::new();
        welcome.encode(&mut bytes);
        let frame = split(&bytes, TO_CLIENT_TAIL_LEN_MAX).unwrap().unwrap();
        assert_eq!(Welcome::decode(&frame).unwrap().members.len(), MEMBERS_MAX);
    }
}
