//! What rank 0 tells the others to compute.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|message: &[u8]| engine::ranks::fuzz_plan(message));
