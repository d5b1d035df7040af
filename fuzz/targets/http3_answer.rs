//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `http3_answer`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::http3_answer(data));
