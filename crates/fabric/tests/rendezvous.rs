//! Groups that form, and strangers that do not keep them from it.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

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

/// Lets a group of two form while `disturb` does what it can to the rendezvous' address.
fn check_undisturbed(disturb: impl FnOnce(SocketAddr)) {
    let secret = Secret::random().unwrap();
    let mut meeting = rendezvous(2, &secret);
    let address = meeting.address();
    let gathering = thread::spawn(move || meeting.gather(|_, _| Vec::new()).map(|controls| controls.len()));
    disturb(address);
    let started = Instant::now();
    let ranks: Vec<_> = (0..2).map(|_| join_in_thread(address, &secret, options(None, Transport::Auto))).collect();
    for rank in ranks {
        rank.join().unwrap().unwrap();
    }
    assert_eq!(gathering.join().unwrap().unwrap(), 2);
    assert!(started.elapsed() < Duration::from_secs(4), "the group had to wait: {:?}", started.elapsed());
}

#[test]
fn silent_strangers_do_not_block() {
    let mut strangers = Vec::new();
    check_undisturbed(|address| {
        for _ in 0..20 {
            strangers.push(TcpStream::connect(address).unwrap());
        }
        // This one stops in the middle of its greeting.
        strangers[0].write_all(b"ropewalk").unwrap();
    });
}

#[test]
fn thresholds_are_measured_when_a_group_forms() {
    let secret = Secret::random().unwrap();
    let mut meeting = rendezvous(3, &secret);
    let address = meeting.address();
    let tunings: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3)
            .map(|_| {
                let options = JoinOptions { tuning: Some(Duration::from_millis(5)), ..options(None, Transport::Auto) };
                let secret = &secret;
                scope.spawn(move || {
                    let joined = join(address, secret, &options).unwrap();
                    (joined.fabric.tuning(), joined)
                })
            })
            .collect();
        let controls = meeting.gather(|_, _| Vec::new()).unwrap();
        let joined: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        drop(controls);
        joined.into_iter().map(|(tuning, _)| tuning).collect()
    });
    assert!(tunings.iter().all(|tuning| *tuning == tunings[0]), "{tunings:?}");
}

#[test]
fn a_wrong_secret_is_refused() {
    check_undisturbed(|address| {
        let wrong = Secret::from_bytes(b"an utterly different secret").unwrap();
        let error = join(address, &wrong, &options(None, Transport::Auto)).unwrap_err();
        assert!(matches!(error, FabricError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("secret"), "{error}");
    });
}

#[test]
fn a_coordinator_with_a_wrong_secret_is_refused() {
    let secret = Secret::random().unwrap();
    let mut impostor = rendezvous(1, &Secret::random().unwrap());
    let address = impostor.address();
    let stopper = impostor.stopper();
    let gathering = thread::spawn(move || impostor.gather(|_, _| Vec::new()).map(|_| ()));
    assert!(matches!(join(address, &secret, &options(None, Transport::Auto)), Err(FabricError::Refused { .. })));
    stopper.stop();
    assert!(matches!(gathering.join().unwrap(), Err(FabricError::Cancelled)));
}

#[test]
fn other_programs_are_refused() {
    for greeting in
        [&b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n"[..], &[0xff; 200], b"ropewalk\xff\xff"]
    {
        check_undisturbed(|address| {
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.write_all(greeting).unwrap();
            let _ = stranger.shutdown(Shutdown::Write);
            stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            // The door closes, whether by an end or a reset.
            let _ = stranger.read_to_end(&mut Vec::new());
        });
    }
}

#[test]
fn another_version_is_told_so() {
    check_undisturbed(|address| {
        let mut stranger = TcpStream::connect(address).unwrap();
        let mut greeting = [0; 76];
        greeting[..8].copy_from_slice(b"ropewalk");
        greeting[8..11].copy_from_slice(&[0x39, 0x05, 1]);
        stranger.write_all(&greeting).unwrap();
        let mut answer = [0; 76];
        stranger.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[..8], b"ropewalk");
        assert_ne!(answer[8..10], greeting[8..10]);
    });
}

#[test]
fn garbage_never_panics() {
    // A panic of a greeter would show as a visitor that never leaves; a panic of the gathering fails the test.
    let config = proptest::test_runner::Config { cases: 64, failure_persistence: None, ..Default::default() };
    check_undisturbed(|address| {
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let garbage = proptest::collection::vec(proptest::num::u8::ANY, 0..300);
        let like_a_greeting = proptest::bool::ANY;
        runner
            .run(&(garbage, like_a_greeting), |(mut bytes, like_a_greeting)| {
                if like_a_greeting {
                    bytes.splice(0..0, *b"ropewalk\x02\x00\x01\x00");
                }
                let mut stranger = TcpStream::connect(address)?;
                // The door may close while the stranger is still talking.
                let _ = stranger.write_all(&bytes);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn a_rank_number_is_given_once() {
    let secret = Secret::random().unwrap();
    let mut meeting = rendezvous(2, &secret);
    let address = meeting.address();
    let first = join_in_thread(address, &secret, options(Some(0), Transport::Auto));
    let second = join_in_thread(address, &secret, options(Some(0), Transport::Auto));
    let gathering = thread::spawn(move || meeting.gather(|_, _| Vec::new()).map(|controls| controls.len()));
    // Which of the two comes first is open; the other one is refused.
    while !first.is_finished() && !second.is_finished() {
        thread::yield_now();
    }
    let too_high = join(address, &secret, &options(Some(2), Transport::Auto)).unwrap_err();
    assert!(too_high.to_string().contains("rank 2 in a group of 2"), "{too_high}");
    let other = join(address, &secret, &options(Some(1), Transport::Auto)).unwrap();
    assert_eq!(other.rank, 1);
    let outcomes = [first.join().unwrap(), second.join().unwrap()];
    let refusals: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert_eq!(refusals.len(), 1);
    assert!(matches!(refusals[0], FabricError::Refused { .. }) && refusals[0].to_string().contains("rank 0 already"));
    assert_eq!(gathering.join().unwrap().unwrap(), 2);
}

#[test]
fn ranks_that_want_different_transports_fail() {
    let secret = Secret::random().unwrap();
    let mut meeting = rendezvous(3, &secret);
    let address = meeting.address();
    let started = Instant::now();
    let ranks = [Transport::Tcp, Transport::SharedMemory, Transport::Auto];
    let ranks = ranks.map(|transport| join_in_thread(address, &secret, options(None, transport)));
    let error = meeting.gather(|_, _| Vec::new()).unwrap_err();
    assert!(error.to_string().contains("same transport"), "{error}");
    for rank in ranks {
        assert!(rank.join().unwrap().is_err());
    }
    assert!(started.elapsed() < Duration::from_secs(10), "the others waited for nothing: {:?}", started.elapsed());
}

#[test]
fn a_rendezvous_ends_at_its_deadline() {
    let secret = Secret::random().unwrap();
    let deadline = Duration::from_millis(200);
    let options = RendezvousOptions { deadline, ..RendezvousOptions::default() };
    let mut meeting = Rendezvous::listen("127.0.0.1:0", &secret, 2, options).unwrap();
    let join_options = JoinOptions { deadline: Duration::from_secs(20), ..JoinOptions::default() };
    let lonely = join_in_thread(meeting.address(), &secret, join_options);
    let error = meeting.gather(|_, _| Vec::new()).unwrap_err();
    assert!(matches!(error, FabricError::Timeout { .. }), "{error}");
    drop(meeting);
    assert!(matches!(lonely.join().unwrap(), Err(FabricError::CoordinatorLost { .. })));
}

#[test]
fn a_rank_may_come_before_its_rendezvous() {
    let secret = Secret::random().unwrap();
    let address = rendezvous(1, &secret).address();
    let early = join_in_thread(address, &secret, options(None, Transport::Auto));
    // The rank finds nobody at first. A moment later is as good as at once, if the scheduler is slow.
    thread::sleep(Duration::from_millis(30));
    let mut meeting = Rendezvous::listen(address, &secret, 1, RendezvousOptions::default()).unwrap();
    assert_eq!(meeting.gather(|_, _| b"job".to_vec()).unwrap().len(), 1);
    assert_eq!(early.join().unwrap().unwrap().job, b"job");
}

#[test]
fn a_rendezvous_that_has_ended_is_not_waited_for() {
    let secret = Secret::random().unwrap();
    let address = rendezvous(2, &secret).address();
    let options =
        JoinOptions { rendezvous_listens: true, deadline: Duration::from_secs(600), ..JoinOptions::default() };
    let started = Instant::now();
    assert!(matches!(join(address, &secret, &options), Err(FabricError::Io { .. })));
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn nobody_there_is_an_error_at_the_deadline() {
    let secret = Secret::random().unwrap();
    let address = rendezvous(1, &secret).address();
    let options = JoinOptions { deadline: Duration::from_millis(100), ..JoinOptions::default() };
    let error = join(address, &secret, &options).unwrap_err();
    assert!(error.to_string().contains("cannot reach the rendezvous"), "{error}");
}

#[test]
fn the_end_of_the_coordinator_is_noticed_by_both_halves() {
    let secret = Secret::random().unwrap();
    let mut meeting = rendezvous(1, &secret);
    let rank = join_in_thread(meeting.address(), &secret, options(None, Transport::Auto));
    let controls = meeting.gather(|_, _| Vec::new()).unwrap();
    let (mut sender, mut receiver) = rank.join().unwrap().unwrap().control.split();
    let reader = thread::spawn(move || receiver.recv(Duration::from_secs(20)));
    sender.send(b"unread").unwrap();
    drop(controls);
    assert!(matches!(reader.join().unwrap(), Err(FabricError::CoordinatorLost { .. })));
    // The first message after the end may still vanish into the void, but not all of them.
    let error = (0..1000).find_map(|_| sender.send(&[0; 1000]).err()).unwrap();
    assert!(matches!(error, FabricError::CoordinatorLost { .. }), "{error}");
}
