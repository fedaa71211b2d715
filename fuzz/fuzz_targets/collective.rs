//! Any bytes from another rank, in any portions, in the middle of any collective: headers, bodies, remains of an older
//! generation, garbage.
#![no_main]

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use fabric::{Cause, Fabric, HEADER_BYTES, Interest, Link, Operation, Operator, Team, Topology, Transport, Watched};
use libfuzzer_sys::fuzz_target;

/// A neighbour that has said all it has to say, and takes whatever it is told.
struct Babbler {
    bytes: Vec<u8>,
    at: usize,
    portion: usize,
}

impl Link for Babbler {
    fn try_send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Cause> {
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn try_recv(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Cause> {
        let mut taken = 0;
        for part in parts {
            let count = part.len().min(self.bytes.len() - self.at).min(self.portion - taken);
            part[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
            self.at += count;
            taken += count;
        }
        if self.at == self.bytes.len() && taken == 0 { Err(Cause::Closed) } else { Ok(taken) }
    }

    fn is_readable(&mut self) -> Result<bool, Cause> {
        Ok(self.at < self.bytes.len())
    }

    fn rest(&mut self, _interest: Interest, _at_most: Duration) -> Result<bool, Cause> {
        Ok(true)
    }

    fn watch<'a>(&'a self, _interest: Interest, _sockets: &mut Watched<'a>) {}

    fn transport(&self) -> Transport {
        Transport::Tcp
    }
}

/// Goes on until it is done or fails, which it does when the other side has nothing more to say.
fn end(fabric: &mut Fabric, mut operation: Operation<'_>) {
    while let Ok(false) = fabric.poll(&mut operation) {}
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        assert!(!fabric::decode_header(header).to_string().is_empty());
    }
    let Some((&[what, portion, length], bytes)) = bytes.split_first_chunk() else { return };
    let babbler = Babbler { bytes: bytes.to_vec(), at: 0, portion: usize::from(portion) + 1 };
    let links: Vec<Option<Box<dyn Link>>> = vec![None, Some(Box::new(babbler))];
    let mut fabric = Fabric::over_links(0, 2, links, Topology::full_mesh(2)).expect("one link to each other rank");
    let team = Team::of_range(0..2, 0).expect("a team of two");
    let length = 2 * usize::from(length);
    let mut numbers = vec![1f32; length];
    let mut raw = vec![0; length];
    for round in 0..3 {
        let begun = match what.wrapping_add(round) % 6 {
            0 => fabric.begin_all_reduce(&team, Operator::Sum, &mut numbers),
            1 => fabric.begin_all_gather_equal(&team, &mut numbers),
            2 => fabric.begin_recv(1, &mut raw),
            3 => fabric.begin_broadcast(&team, 1, &mut raw),
            4 => fabric.begin_barrier(&team),
            _ => {
                let mut message = Vec::new();
                let _ = fabric.broadcast(&team, 1, &mut message);
                continue;
            }
        };
        match begun {
            Ok(operation) => end(&mut fabric, operation),
            Err(_) => return,
        }
    }
});
