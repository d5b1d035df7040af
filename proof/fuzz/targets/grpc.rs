//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `grpc`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::grpc(data));
