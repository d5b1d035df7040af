//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `report`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::report(data));
