//! Any bytes, as what a stranger says to either side of a handshake. None may let it in.
#![no_main]

use fabric::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::authentication(bytes));
