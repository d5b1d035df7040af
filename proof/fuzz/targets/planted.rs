//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `planted`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::planted(data));
