//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `http3_control`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::http3_control(data));
