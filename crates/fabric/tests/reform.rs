//! Groups that form anew after a loss, among themselves or at their coordinator, in the same processes.
#![allow(clippy::unwrap_used)]

use std::thread;
use std::time::Duration;

use fabric::{
    Fabric, FabricError, JoinOptions, Joined, ReformOptions, Rendezvous, RendezvousOptions, Secret, Team, Transport,
    join, local_group,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn reform_options(least: usize) -> ReformOptions {
    ReformOptions { deadline: PATIENCE, least }
}

/// The sum of all ranks' numbers plus one.
fn sum(fabric: &mut Fabric) -> Result<f32, FabricError> {
    let team = Team::of_range(0..fabric.size(), fabric.rank()).unwrap();
    let mut buffer = vec![fabric.rank() as f32 + 1.0; 1000];
    fabric.all_reduce_sum(&team, &mut buffer)?;
    assert!(buffer.iter().all(|element| *element == buffer[0]));
    Ok(buffer[0])
}

fn assert_works(fabric: &mut Fabric, size: usize, generation: u32) {
    assert_eq!((fabric.size(), fabric.generation()), (size, generation));
    assert_eq!(sum(fabric).unwrap(), (size * (size + 1) / 2) as f32);
}

fn await_loss(fabric: &mut Fabric, lost: usize) {
    let error = (0..1000).find_map(|_| sum(fabric).err()).unwrap();
    assert!(matches!(error, FabricError::PeerLost { rank, .. } if rank == lost), "{error}");
}

/// Runs each rank of a group in a thread of its own.
fn with_group(size: usize, transport: Transport, rank_main: impl Fn(Joined) + Send + Sync) {
    let secret = Secret::random().unwrap();
    let options = RendezvousOptions { deadline: PATIENCE, ..RendezvousOptions::default() };
    let mut meeting = Rendezvous::listen("127.0.0.1:0", &secret, size, options).unwrap();
    let address = meeting.address();
    thread::scope(|scope| {
        for rank in 0..size {
            let (secret, rank_main) = (&secret, &rank_main);
            scope.spawn(move || {
                let options = JoinOptions { rank: Some(rank), transport, deadline: PATIENCE, ..JoinOptions::default() };
                rank_main(join(address, secret, &options).unwrap());
            });
        }
        let _controls = meeting.gather(|_, _| Vec::new()).unwrap();
    });
}

#[test]
fn survivors_form_a_group_again_and_again() {
    for transport in [Transport::SharedMemory, Transport::Tcp] {
        with_group(4, transport, |joined| {
            let mut fabric = joined.fabric;
            assert_works(&mut fabric, 4, 1);
            if joined.rank == 2 {
                return;
            }
            await_loss(&mut fabric, 2);
            let mut fabric = fabric.reform(&reform_options(2)).unwrap();
            assert_eq!(fabric.rank(), [0, 1, 9, 2][joined.rank]);
            assert_works(&mut fabric, 3, 2);
            // Now it is the one that has gathered.
            if joined.rank == 0 {
                return;
            }
            await_loss(&mut fabric, 0);
            let mut fabric = fabric.reform(&reform_options(2)).unwrap();
            assert_works(&mut fabric, 2, 3);
            if joined.rank == 1 {
                return;
            }
            await_loss(&mut fabric, 0);
            let error = fabric.reform(&reform_options(2)).unwrap_err();
            assert!(matches!(error, FabricError::TooFew { left: 1, least: 2 }), "{error}");
        });
    }
}

#[test]
fn a_group_without_losses_can_form_anew() {
    with_group(3, Transport::Auto, |joined| {
        let mut fabric = joined.fabric;
        // One of them calls something else.
        let team = Team::of_range(0..3, joined.rank).unwrap();
        let result = if joined.rank == 1 {
            fabric.barrier(&team)
        } else {
            fabric.all_reduce_sum(&team, &mut vec![1.0_f32; 5000])
        };
        assert!(matches!(result, Err(FabricError::Mismatch { .. })), "rank {}: {result:?}", joined.rank);
        let mut fabric = fabric.reform(&reform_options(3)).unwrap();
        assert_works(&mut fabric, 3, 2);
        // The last one to be served must not find the others gone.
        fabric.barrier(&Team::of_range(0..3, fabric.rank()).unwrap()).unwrap();
    });
}

#[test]
fn the_last_survivor_goes_on_alone_if_it_likes() {
    with_group(2, Transport::Auto, |joined| {
        let mut fabric = joined.fabric;
        if joined.rank == 0 {
            return;
        }
        await_loss(&mut fabric, 0);
        assert_works(&mut fabric.reform(&reform_options(1)).unwrap(), 1, 2);
    });
}

#[test]
fn a_group_of_threads_has_nowhere_to_meet() {
    let fabric = local_group(2, Transport::Auto).unwrap().remove(0);
    assert!(matches!(fabric.reform(&reform_options(1)), Err(FabricError::Invalid(_))));
}

#[test]
fn a_coordinator_gathers_fewer_or_other_ranks() {
    let secret = Secret::random().unwrap();
    let options = RendezvousOptions { deadline: PATIENCE, ..RendezvousOptions::default() };
    let mut meeting = Rendezvous::listen("127.0.0.1:0", &secret, 3, options).unwrap();
    let address = meeting.address();
    let come = |rank| {
        let options = JoinOptions { rank, deadline: PATIENCE, ..JoinOptions::default() };
        join(address, &secret, &options).unwrap().fabric
    };
    thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let mut fabric = come(Some(rank));
                assert_works(&mut fabric, 3, 1);
                if rank == 2 {
                    return;
                }
                await_loss(&mut fabric, 2);
                // The survivors meet a newcomer.
                assert_works(&mut come(None), 3, 2);
            });
        }
        drop(meeting.gather(|_, _| Vec::new()).unwrap());
        scope.spawn(move || assert_works(&mut come(None), 3, 2));
        assert_eq!(meeting.gather_again(3, |_, _| Vec::new()).unwrap().len(), 3);
        assert!(meeting.gather_again(0, |_, _| Vec::new()).is_err());
    });
}
