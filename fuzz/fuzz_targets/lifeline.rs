//! Any bytes, as what another rank says on a lifeline. The rank that hears it goes on.
#![no_main]

use fabric::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::lifeline(bytes));
