//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `clock_segment`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::clock_segment(data));
