//! The messages of `grpc.health.v1.Health`, gRPC's health checks.

use super::protobuf::{Fields, ProtobufError, put_number};

/// The name of the service.
pub const SERVICE: &str = "grpc.health.v1.Health";
/// Asks for the status now.
pub const CHECK: &str = "/grpc.health.v1.Health/Check";
/// Asks for the status now and after each change, on a stream that does not end.
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Numbers of fields, named by the message and the field.
mod field {
    pub(super) const REQUEST_SERVICE: u32 = 1;
    pub(super) const RESPONSE_STATUS: u32 = 1;
}

/// The status of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Serving {
    /// The service answers.
    Serving = 1,
    /// The service does not answer: another node does, or the node is about to end.
    NotServing = 2,
    /// There is no such service. Only [`WATCH`] says this.
    Unknown = 3,
}

/// Reads a request: the name of the service that it asks about. An empty name asks about the whole
/// node.
///
/// # Errors
/// When the bytes are not such a request.
pub fn decode_check(message: &[u8]) -> Result<&str, ProtobufError> {
    let (mut fields, mut service) = (Fields::new(message), "");
    while let Some(field) = fields.next_field()? {
        if field.number == field::REQUEST_SERVICE {
            service = field.as_text()?;
        }
    }
    Ok(service)
}

/// Appends an answer.
pub fn put_checked(out: &mut Vec<u8>, serving: Serving) {
    put_number(out, field::RESPONSE_STATUS, serving as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_names_a_service_or_none() {
        assert_eq!(decode_check(b""), Ok(""));
        assert_eq!(decode_check(b"\x0a\x07pdpb.PD\x10\x01"), Ok("pdpb.PD"));
        assert_eq!(decode_check(b"\x0a\x01\xff"), Err(ProtobufError::Text(1)));
        let mut out = Vec::new();
        put_checked(&mut out, Serving::Serving);
        put_checked(&mut out, Serving::NotServing);
        assert_eq!(out, b"\x08\x01\x08\x02");
    }
}
