//! gRPC's reflection: a client asks a node which services it has and what their messages are. The
//! answers are descriptors, compiled from the definitions in `crates/wire/proto`; a test in
//! `proof/interop/pd` compares both.

use super::protobuf::{Fields, ProtobufError, put_bytes, put_message, put_number};
use super::status::Code;

/// The only method of the service. Requests and answers come on one stream.
pub const INFO: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// The same method before it had its final name: the messages are the same. Older clients ask it.
pub const INFO_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// The descriptors of all files. A file imports no other, and has a package of its own.
const FILES: [&[u8]; 4] = [
    include_bytes!("../../proto/epicepoch/v1/oracle.binpb"),
    include_bytes!("../../proto/api/v1/api.binpb"),
    include_bytes!("../../proto/grpc/health/v1/health.binpb"),
    include_bytes!("../../proto/grpc/reflection/v1/reflection.binpb"),
];

/// Numbers of fields, named by the message and the field.
mod field {
    pub(super) const BY_FILENAME: u32 = 3;
    pub(super) const BY_SYMBOL: u32 = 4;
    pub(super) const BY_EXTENSION: u32 = 5;
    pub(super) const EXTENSION_NUMBERS: u32 = 6;
    pub(super) const LIST_SERVICES: u32 = 7;
    pub(super) const ORIGINAL_REQUEST: u32 = 2;
    pub(super) const FILES: u32 = 4;
    pub(super) const SERVICES: u32 = 6;
    pub(super) const ERROR: u32 = 7;
    /// The only field of the messages with files and services, and of a service.
    pub(super) const ONLY: u32 = 1;
    pub(super) const ERROR_CODE: u32 = 1;
    pub(super) const ERROR_MESSAGE: u32 = 2;
    pub(super) const FILE_NAME: u32 = 1;
    pub(super) const FILE_PACKAGE: u32 = 2;
    pub(super) const FILE_MESSAGE: u32 = 4;
    pub(super) const FILE_ENUM: u32 = 5;
    pub(super) const FILE_SERVICE: u32 = 6;
    /// The name of a message, an enumeration, a service or a method.
    pub(super) const NAME: u32 = 1;
    pub(super) const MESSAGE_NESTED: u32 = 3;
    pub(super) const MESSAGE_ENUM: u32 = 4;
    pub(super) const SERVICE_METHOD: u32 = 2;
}

/// Appends the answer to a request. `services` are the names of the services that this node has.
///
/// # Errors
/// When the bytes are not a request.
pub fn put_answer(
    out: &mut Vec<u8>,
    request: &[u8],
    services: impl Iterator<Item = &'static str>,
) -> Result<(), ProtobufError> {
    let (mut fields, mut last) = (Fields::new(request), None);
    while let Some(field) = fields.next_field()? {
        if (field::BY_FILENAME..=field::LIST_SERVICES).contains(&field.number) {
            last = Some(field);
        }
    }
    let (number, wanted) = match last {
        Some(field) => (field.number, field.as_bytes()?),
        None => (0, &[][..]),
    };
    let found = match number {
        field::LIST_SERVICES => None,
        field::BY_FILENAME => Some(file_named(wanted).ok_or(Code::NotFound)),
        field::BY_SYMBOL => Some(file_with(wanted).ok_or(Code::NotFound)),
        // No definition here has extensions.
        field::BY_EXTENSION | field::EXTENSION_NUMBERS => Some(Err(Code::NotFound)),
        _ => Some(Err(Code::InvalidArgument)),
    };
    put_bytes(out, field::ORIGINAL_REQUEST, request);
    match found {
        None => put_message(out, field::SERVICES, |out| {
            for name in services {
                put_message(out, field::ONLY, |out| put_bytes(out, field::ONLY, name.as_bytes()));
            }
        }),
        Some(Ok(file)) => {
            put_message(out, field::FILES, |out| put_bytes(out, field::ONLY, file));
        }
        Some(Err(code)) => put_message(out, field::ERROR, |out| {
            put_number(out, field::ERROR_CODE, code as u64);
            put_bytes(out, field::ERROR_MESSAGE, b"this node does not define that");
        }),
    }
    Ok(())
}

fn file_named(name: &[u8]) -> Option<&'static [u8]> {
    FILES.into_iter().find(|file| text(file, field::FILE_NAME) == Some(name))
}

/// The file that defines `symbol`: a package and a name, with a dot between them.
fn file_with(symbol: &[u8]) -> Option<&'static [u8]> {
    FILES.into_iter().find(|file| {
        text(file, field::FILE_PACKAGE).and_then(|package| below(symbol, package)).is_some_and(
            |name| {
                parts(file, field::FILE_MESSAGE).any(|message| has_type(message, name))
                    || parts(file, field::FILE_ENUM).any(|it| text(it, field::NAME) == Some(name))
                    || parts(file, field::FILE_SERVICE).any(|service| has_method(service, name))
            },
        )
    })
}

/// Whether `name` is this message, or one within it.
fn has_type(message: &[u8], name: &[u8]) -> bool {
    let Some(own) = text(message, field::NAME) else { return false };
    own == name
        || below(name, own).is_some_and(|inner| {
            parts(message, field::MESSAGE_NESTED).any(|nested| has_type(nested, inner))
                || parts(message, field::MESSAGE_ENUM)
                    .any(|it| text(it, field::NAME) == Some(inner))
        })
}

/// Whether `name` is this service, or a method of it.
fn has_method(service: &[u8], name: &[u8]) -> bool {
    let Some(own) = text(service, field::NAME) else { return false };
    own == name
        || below(name, own).is_some_and(|inner| {
            parts(service, field::SERVICE_METHOD).any(|it| text(it, field::NAME) == Some(inner))
        })
}

/// The rest of a name behind `outer` and a dot.
fn below<'a>(name: &'a [u8], outer: &[u8]) -> Option<&'a [u8]> {
    name.strip_prefix(outer)?.strip_prefix(b".")
}

fn text(message: &[u8], field: u32) -> Option<&[u8]> {
    parts(message, field).next()
}

/// The values of a field in a descriptor.
fn parts(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    let mut fields = Fields::new(message);
    std::iter::from_fn(move || fields.next_field().ok().flatten())
        .filter(move |field| field.number == number)
        .filter_map(|field| field.as_bytes().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::{health, oracle};

    fn asked(number: u32, wanted: &str) -> Vec<u8> {
        let (mut request, mut out) = (Vec::new(), Vec::new());
        put_bytes(&mut request, 1, b"host");
        put_message(&mut request, number, |out| out.extend_from_slice(wanted.as_bytes()));
        let services = [oracle::SERVICE, health::SERVICE].into_iter();
        put_answer(&mut out, &request, services).unwrap();
        assert_eq!(text(&out, field::ORIGINAL_REQUEST), Some(&request[..]));
        out
    }

    fn found(number: u32, wanted: &str) -> Option<usize> {
        let answer = asked(number, wanted);
        let Some(files) = text(&answer, field::FILES) else {
            let error = text(&answer, field::ERROR).unwrap();
            assert!(error.starts_with(b"\x08\x05\x12"), "{error:?}");
            return None;
        };
        let bytes = text(files, field::ONLY).unwrap();
        FILES.iter().position(|file| *file == bytes)
    }

    #[test]
    fn services_are_listed_by_name() {
        let answer = asked(field::LIST_SERVICES, "*");
        let list = text(&answer, field::SERVICES).unwrap();
        let names: Vec<_> =
            parts(list, field::ONLY).map(|it| text(it, field::ONLY).unwrap()).collect();
        assert_eq!(names, [oracle::SERVICE.as_bytes(), health::SERVICE.as_bytes()]);
    }

    #[test]
    fn a_file_is_found_by_its_name_and_by_each_thing_that_it_defines() {
        for (at, name) in [
            "epicepoch/v1/oracle.proto",
            "api/v1/api.proto",
            "grpc/health/v1/health.proto",
            "grpc/reflection/v1/reflection.proto",
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(found(field::BY_FILENAME, name), Some(at), "{name}");
        }
        for (symbol, at) in [
            (oracle::SERVICE, 0),
            ("epicepoch.v1.Oracle.GetTimestamp", 0),
            ("epicepoch.v1.ErrNotLeader", 0),
            ("epicepoch.v1.Guarantee", 0),
            (oracle::FIRST_SERVICE, 1),
            ("grpc.health.v1.HealthCheckResponse.ServingStatus", 2),
            ("grpc.reflection.v1.ServerReflection", 3),
        ] {
            assert_eq!(found(field::BY_SYMBOL, symbol), Some(at), "{symbol}");
        }
        for symbol in [
            "",
            "epicepoch.v1",
            "epicepoch.v1.",
            "epicepoch.v1.Oracle.",
            "epicepoch.v1.Oracle.GetNothing",
            "epicepoch.v1.OracleX",
            "grpc.health.v1.HealthCheckResponse.Other",
            "pdpb.PD",
        ] {
            assert_eq!(found(field::BY_SYMBOL, symbol), None, "{symbol}");
        }
        assert_eq!(found(field::BY_FILENAME, "oracle.proto"), None);
        assert_eq!(found(field::BY_EXTENSION, ""), None);
    }

    #[test]
    fn every_path_that_is_served_is_defined() {
        for path in [
            oracle::GET_TIMESTAMP,
            oracle::STREAM_TIMESTAMPS,
            oracle::GET_MEMBERS,
            oracle::FIRST_GET_TIMESTAMP,
            health::CHECK,
            health::WATCH,
            INFO,
        ] {
            let symbol = path[1..].replace('/', ".");
            assert!(file_with(symbol.as_bytes()).is_some(), "{symbol}");
        }
    }

    #[test]
    fn an_empty_request_is_an_error_of_its_answer_and_a_broken_one_of_the_call() {
        let mut out = Vec::new();
        put_answer(&mut out, b"", std::iter::empty()).unwrap();
        assert!(text(&out, field::ERROR).unwrap().starts_with(b"\x08\x03"));
        assert!(put_answer(&mut out, b"\x3a\x05", std::iter::empty()).is_err());
        assert!(put_answer(&mut out, b"\x38\x05", std::iter::empty()).is_err());
    }
}
