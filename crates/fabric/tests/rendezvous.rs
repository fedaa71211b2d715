//! Groups that form, and strangers that do not keep them from it.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use fabric::{FabricError, JoinOptions, Joined, Rendezvous, RendezvousOptions, Secret, Team, Transport, join};

/// Options with a deadline that a failing test can afford.
fn options(rank: Option<usize>, transport: Transport) -> JoinOptions {
    JoinOptions { rank, transport, deadline: Duration::from_secs(20), ..JoinOptions::default() }
}

fn rendezvous(size: usize, secret: &Secret) -> Rendezvous {
    let options = RendezvousOptions { deadline: Duration::from_secs(20), ..RendezvousOptions::default() };
    Rendezvous::listen("127.0.0.1:0", secret, size, options).unwrap()
}

fn join_in_thread(
    address: SocketAddr,
    secret: &Secret,
    options: JoinOptions,
) -> thread::JoinHandle<Result<Joined, FabricError>> {
    let secret = secret.clone();
    thread::spawn(move || join(address, &secret, &options))
}

fn check_group(size: usize, transport: Transport) {
    let secret = Secret::random().unwrap();
    let mut meeting = rendezvous(size, &secret);
    let address = meeting.address();
    let ranks: Vec<_> = (0..size)
        .map(|index| {
            let mut options = options((index % 2 == 0).then_some(size - 1 - index), transport);
            options.hello = vec![index as u8; index];
            let join = join_in_thread(address, &secret, options);
            thread::spawn(move || {
                let mut joined = join.join().unwrap().unwrap();
                assert_eq!(joined.job, format!("job {}", joined.rank).into_bytes());
                let team = Team::of_range(0..size, joined.rank).unwrap();
                let mut sum = [joined.rank as f32];
                joined.fabric.all_reduce_sum(&team, &mut sum).unwrap();
                assert_eq!(sum[0], (size * (size - 1) / 2) as f32);
                let message = joined.control.recv(Duration::from_secs(10)).unwrap().unwrap();
                joined.control.send(&message).unwrap();
                (joined.rank, index)
            })
        })
        .collect();
    let mut hellos = Vec::new();
    let mut controls = meeting
        .gather(|rank, hello| {
            hellos.push(hello.payload.clone());
            format!("job {rank}").into_bytes()
        })
        .unwrap();
    for (rank, control) in controls.iter_mut().enumerate() {
        control.send(&[rank as u8; 100_000]).unwrap();
        assert_eq!(control.recv(Duration::from_secs(10)).unwrap().unwrap(), [rank as u8; 100_000]);
    }
    for thread in ranks {
        let (rank, index) = thread.join().unwrap();
        assert_eq!(hellos[rank], vec![index as u8; index]);
        if index % 2 == 0 {
            assert_eq!(rank, size - 1 - index);
        }
    }
    for control in &mut controls {
        assert!(matches!(control.recv(Duration::from_secs(10)), Err(FabricError::PeerLost { .. })));
    }
}

#[test]
fn groups_form() {
    for size in [1, 2, 3, 5] {
        check_group(size, Transport::Tcp);
        check_group(size, Transport::Auto);
        check_group(size, Transport::SharedMemory);
    }
}
