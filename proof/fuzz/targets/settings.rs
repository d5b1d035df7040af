//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `settings`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::settings(data));
