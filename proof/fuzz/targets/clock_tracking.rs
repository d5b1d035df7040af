//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `clock_tracking`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::clock_tracking(data));
