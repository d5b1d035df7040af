//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `client_answer`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::client_answer(data));
