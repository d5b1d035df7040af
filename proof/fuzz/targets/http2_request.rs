//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `http2_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::http2_request(data));
