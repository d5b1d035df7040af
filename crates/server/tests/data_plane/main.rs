//! The data plane of nodes over real loopback sockets. The consensus plane is played by hand: a
//! test publishes who leads, and accepts confirm links as that plane would.

mod authz;
mod bad_input;
mod fast_path;
mod floods;
mod forwarding;
mod forwarding_secured;
mod grpc;
mod guarantee;
mod http2;
mod http2_frames;
mod http3;
mod latest;
mod leases;
mod limits;
mod log;
mod malformed;
mod native;
mod node;
mod oracle;
mod page;
mod requests;
mod rounds;
mod streams;
mod tls;
