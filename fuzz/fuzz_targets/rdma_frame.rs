//! Messages of any bytes over an RDMA link, and any bytes as what ranks say while they connect their ports.
#![no_main]

use fabric::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::rdma_frames(bytes);
    fuzzing::understand(bytes);
});
