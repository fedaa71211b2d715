//! Collectives that have been done before allocate nothing.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use fabric::{Operator, Topology, Transport};

use self::common::{run_on, uneven_parts};

#[test]
fn repeated_collectives_allocate_nothing() {
    let topologies = [Topology::one_host(2), Topology::one_host(3), Topology::chain(3)];
    for transport in [Transport::SharedMemory, Transport::Tcp] {
        for topology in &topologies {
            run_on(topology, transport, |mut fabric, team| {
                let (size, rank) = (fabric.size(), fabric.rank());
                let (rows, width) = (3, 700);
                let parts = uneven_parts(width, size);
                let mut matrix = vec![1f32; rows * width];
                let mut small = vec![1f32; 100];
                let mut large = vec![1f32; 100_000];
                let mut message = vec![7; 300];
                let mut step = || {
                    fabric.all_gather(&team, rows, width, &parts, &mut matrix).unwrap();
                    fabric.all_reduce(&team, Operator::Max, &mut small).unwrap();
                    fabric.all_reduce(&team, Operator::Max, &mut large).unwrap();
                    fabric.broadcast(&team, 0, &mut message).unwrap();
                    if rank == 0 {
                        fabric.send(1, &message).unwrap();
                    } else if rank == 1 {
                        fabric.recv(0, &mut message).unwrap();
                    }
                    fabric.barrier(&team).unwrap();
                };
                (0..3).for_each(|_| step());
                let counted = allocation_counter::measure(|| (0..50).for_each(|_| step()));
                assert_eq!(counted.count_total, 0, "rank {rank} of {size} over {transport}");
            });
        }
    }
}
