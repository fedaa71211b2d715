//! Measuring links.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fabric::{LinkMeasurement, ProbeOptions, Transport, local_group};

fn measure(size: usize, transport: Transport) -> Vec<LinkMeasurement> {
    let options = ProbeOptions { budget: Duration::from_millis(2) };
    let fabrics = local_group(size, transport).unwrap();
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            fabrics.into_iter().map(|mut fabric| scope.spawn(move || fabric.probe(&options).unwrap())).collect();
        ranks.into_iter().flat_map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn every_direction_of_every_link_is_measured() {
    for transport in [Transport::SharedMemory, Transport::Tcp] {
        let measurements = measure(3, transport);
        let pairs: Vec<_> = measurements.iter().map(|it| (it.from, it.to)).collect();
        assert_eq!(pairs, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]);
        for it in measurements {
            assert_eq!((it.transport, it.hops, it.errors), (transport, 1, Some(0)));
            assert!(0.0 < it.latency_us_median && it.latency_us_median <= it.latency_us_p99, "{it:?}");
            assert!(it.bandwidth > 0.0);
            assert_eq!(it.loss.is_some(), transport == Transport::Tcp, "{it:?}");
            assert!(it.loss.is_none_or(|loss| (0.0..=1.0).contains(&loss)));
        }
    }
}
