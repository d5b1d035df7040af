//! The engine's entry to [`epicepoch_fuzz::TARGETS`]' `raft_message`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epicepoch_fuzz::targets::raft_message(data));
