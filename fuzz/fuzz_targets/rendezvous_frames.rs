//! Any bytes, in pieces of any size, as what ranks and coordinator say to each other while a group forms.
#![no_main]

use fabric::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::frames(bytes);
    fuzzing::understand(bytes);
});
