//! Groups over cables: hosts are network namespaces, cables are pairs of virtual Ethernet devices between them.
//!
//! Needs Linux, root and iproute2, and says so where it lacks them. The ranks are this test binary again, run inside the
//! namespaces and told by their environment what to do.
#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

mod lab;

use std::time::{Duration, Instant};

use fabric::{
    FabricError, JoinOptions, ReformOptions, Rendezvous, RendezvousOptions, Secret, Team, Topology, Transport, join,
};
use lab::{Lab, PORT, Task, lab_or_skip};

const PATIENCE: Duration = Duration::from_secs(40);
const LIVENESS_DEADLINE: Duration = Duration::from_secs(2);
/// Numbers of elements: none, one, odd ones, and more than fits on the way.
const SIZES: [usize; 6] = [0, 1, 7, 1000, 65_537, 1 << 20];

#[test]
fn chain_of_three() {
    check("chain of 3", 3, &[(0, 1), (1, 2)]);
}

#[test]
fn chain_of_four() {
    check("chain of 4", 4, &[(0, 1), (1, 2), (2, 3)]);
}

#[test]
fn chain_with_its_coordinator_in_the_middle() {
    check("chain around host 0", 4, &[(2, 0), (0, 1), (1, 3)]);
}

#[test]
fn ring_of_five() {
    check("ring of 5", 5, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]);
}

#[test]
fn full_mesh_of_four() {
    check("full mesh of 4", 4, &[(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]);
}

#[test]
fn two_cables_are_both_used() {
    let Some(lab) = lab_or_skip("two cables", 2, &[(0, 1), (0, 1)]) else { return };
    let before = [lab.bytes_sent(0, 0), lab.bytes_sent(0, 1)];
    finish(&lab, lab.start(Task::Collectives));
    // The largest all-reduce alone sends 4 MiB.
    for (cable, before) in before.into_iter().enumerate() {
        let sent = lab.bytes_sent(0, cable) - before;
        assert!(sent > 1 << 20, "cable {cable} carried only {sent} bytes");
    }
}

#[test]
fn a_lossy_cable_costs_time_and_nothing_else() {
    let Some(mut lab) = lab_or_skip("lossy cable", 2, &[(0, 1)]) else { return };
    if lab.spoil(0, &["--drop", "0.01", "--delay-us", "100", "--seed", "5"]) {
        let mut run = lab.start(Task::Encrypted);
        for rank in 0..2 {
            let said = run.says(rank, PATIENCE);
            assert!(said.starts_with("done"), "rank {rank} says {said}");
        }
    }
}

#[test]
fn an_encrypted_chain() {
    let Some(lab) = lab_or_skip("encrypted chain", 3, &[(0, 1), (1, 2)]) else { return };
    finish(&lab, lab.start(Task::Encrypted));
}

#[test]
fn a_rank_that_does_not_encrypt_is_refused() {
    let Some(lab) = lab_or_skip("one in clear", 2, &[(0, 1)]) else { return };
    let mut run = lab.start(Task::OneInClear);
    let said = run.says(1, PATIENCE);
    assert!(said.contains("does not"), "{said}");
    assert!(said.contains("encrypt"), "{said}");
}

#[test]
fn parts_that_do_not_reach_each_other_are_named() {
    // Rank 0 listens where none of those that dial it can be.
    let Some(lab) = lab_or_skip("disconnected", 3, &[(0, 1), (1, 2)]) else { return };
    let mut run = lab.start(Task::ListenElsewhere);
    let said = run.coordinator_says(PATIENCE);
    assert!(said.contains("ranks [0] and [1, 2]"), "{said}");
    for rank in 0..3 {
        let said = run.says(rank, PATIENCE);
        assert!(said.contains("do not reach each other"), "rank {rank}: {said}");
    }
}

#[test]
fn a_cut_cable_of_a_chain_is_noticed_on_both_sides() {
    check_cut("cut chain", 4, &[(0, 1), (1, 2), (2, 3)], &[1], &[(0, 2), (1, 2), (2, 1), (3, 1)]);
}

#[test]
fn a_host_cut_off_from_a_mesh_is_named_by_all_others() {
    let cables = [(0, 1), (0, 2), (1, 2)];
    check_cut("cut mesh", 3, &cables, &[1, 2], &[(0, 2), (1, 2)]);
}

#[test]
fn a_rank_that_others_speak_through_is_named_when_it_is_killed() {
    check_signal("killed relay", "-KILL");
}

#[test]
fn a_rank_that_others_speak_through_is_named_when_it_is_stopped() {
    check_signal("stopped relay", "-STOP");
}

#[test]
fn what_is_left_of_a_chain_forms_anew() {
    let Some(lab) = lab_or_skip("chain that forms anew", 4, &[(0, 1), (1, 2), (2, 3)]) else { return };
    let mut run = lab.start(Task::FormAnew);
    for rank in 0..4 {
        assert_eq!(run.says(rank, PATIENCE), "under way", "rank {rank}");
    }
    run.signal(3, "-KILL");
    for rank in 0..3 {
        let said = run.says(rank, PATIENCE);
        assert!(said.starts_with("lost 3:"), "rank {rank} says {said}");
        assert_eq!(run.says(rank, PATIENCE), "done", "rank {rank}");
    }
}

/// Sends a signal to the second rank of a chain, through which the first speaks to all others.
fn check_signal(name: &str, signal: &str) {
    let Some(lab) = lab_or_skip(name, 4, &[(0, 1), (1, 2), (2, 3)]) else { return };
    let mut run = lab.start(Task::Forever);
    for rank in 0..4 {
        assert_eq!(run.says(rank, PATIENCE), "under way", "rank {rank}");
    }
    run.signal(1, signal);
    let started = Instant::now();
    for rank in [0, 2, 3] {
        let said = run.says(rank, PATIENCE);
        assert!(said.starts_with("lost 1:"), "rank {rank} says {said}");
    }
    assert!(started.elapsed() < LIVENESS_DEADLINE + Duration::from_secs(3), "{:?}", started.elapsed());
}

/// Has all hosts do what [`collectives`] does.
fn check(name: &str, hosts: usize, cables: &[(usize, usize)]) {
    let Some(lab) = lab_or_skip(name, hosts, cables) else { return };
    finish(&lab, lab.start(Task::Collectives));
}

fn finish(lab: &Lab, mut run: lab::Run) {
    for rank in 0..lab.hosts() {
        assert_eq!(run.says(rank, PATIENCE), "done", "rank {rank}");
    }
}

/// Cuts cables while all ranks exchange data. `blames` are the ranks that must notice, and whom they must name.
fn check_cut(name: &str, hosts: usize, cables: &[(usize, usize)], cut: &[usize], blames: &[(usize, usize)]) {
    let Some(lab) = lab_or_skip(name, hosts, cables) else { return };
    let mut run = lab.start(Task::Forever);
    for rank in 0..hosts {
        assert_eq!(run.says(rank, PATIENCE), "under way", "rank {rank}");
    }
    cut.iter().for_each(|&cable| lab.cut(cable));
    let started = Instant::now();
    for &(rank, culprit) in blames {
        let said = run.says(rank, PATIENCE);
        assert!(said.starts_with(&format!("lost {culprit}:")), "rank {rank} says {said}");
    }
    // The machine may be busy with other tests.
    assert!(started.elapsed() < LIVENESS_DEADLINE + Duration::from_secs(3), "{:?}", started.elapsed());
}

/// What a child does; nothing when this is the test run itself.
#[test]
fn child() {
    let Some(orders) = lab::orders() else { return };
    let secret = Secret::from_file(&orders.secret_file).unwrap();
    if orders.rank.is_none() {
        let encrypt = encrypts(orders.task, None);
        let options = RendezvousOptions { deadline: PATIENCE, encrypt, ..RendezvousOptions::default() };
        let mut meeting = Rendezvous::listen(("0.0.0.0", PORT), &secret, orders.size, options).unwrap();
        match meeting.gather(|_, _| Vec::new()) {
            // Nobody says anything: the controls end with the ranks.
            Ok(mut controls) => controls.iter_mut().for_each(|control| assert!(control.recv(PATIENCE).is_err())),
            Err(error) => lab::say(&error.to_string()),
        }
        return;
    }
    let mut options = JoinOptions {
        rank: orders.rank,
        transport: Transport::Auto,
        deadline: PATIENCE,
        forward: orders.forwards.then(|| ([0, 0, 0, 0], PORT).into()),
        liveness_deadline: LIVENESS_DEADLINE,
        encrypt: encrypts(orders.task, orders.rank),
        ..JoinOptions::default()
    };
    if orders.task == Task::ListenElsewhere {
        let elsewhere = if orders.rank == Some(0) { "127.0.0.0/8" } else { "0.0.0.0/0" };
        options.listen = vec![elsewhere.parse().unwrap()];
    }
    let mut joined = match join(orders.rendezvous.as_str(), &secret, &options) {
        Ok(joined) => joined,
        Err(error) => return lab::say(&error.to_string()),
    };
    assert_eq!(joined.fabric.topology(), &orders.topology);
    let others = (0..joined.size).filter(|&rank| rank != joined.rank);
    let encrypted = others.map(|rank| joined.fabric.is_encrypted(rank));
    assert!({ encrypted }.all(|it| it == Some(options.encrypt)));
    let result = match orders.task {
        Task::Forever => forever(&mut joined.fabric),
        Task::FormAnew => return form_anew(joined.fabric),
        _ => collectives(&mut joined.fabric),
    };
    match result {
        Ok(()) => lab::say("done"),
        Err(FabricError::PeerLost { rank, cause }) => lab::say(&format!("lost {rank}: {cause}")),
        Err(error) => lab::say(&error.to_string()),
    }
}

/// Whether a rank, or the coordinator, encrypts.
fn encrypts(task: Task, rank: Option<usize>) -> bool {
    task == Task::Encrypted || task == Task::OneInClear && rank != Some(1)
}

/// A number of any size and sign, the same on every rank that asks for it.
fn value(rank: usize, index: usize) -> f32 {
    let bits = (rank as u32 * 977 + index as u32).wrapping_mul(2_654_435_761);
    (bits as i32) as f32 * 1.0e-6
}

/// What a single process gets that adds up what all ranks have.
fn plain_sum(size: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| (1..size).fold(value(0, index), |sum, rank| sum + value(rank, index))).collect()
}

fn collectives(fabric: &mut fabric::Fabric) -> Result<(), FabricError> {
    let (rank, size) = (fabric.rank(), fabric.size());
    let team = Team::of_range(0..size, rank)?;
    for count in SIZES {
        let mut buffer: Vec<f32> = (0..count).map(|index| value(rank, index)).collect();
        fabric.all_reduce_sum(&team, &mut buffer)?;
        let expected = plain_sum(size, count);
        let equal = buffer.iter().zip(&expected).all(|(ours, plain)| ours.to_bits() == plain.to_bits());
        assert!(equal, "rank {rank} has another sum of {count} elements than a single process");
    }
    let parts: Vec<_> = (0..size).map(|rank| rank * 70_001..(rank + 1) * 70_001).collect();
    let mut buffer = vec![0.0; size * 70_001];
    buffer[parts[rank].clone()].fill(rank as f32 + 0.5);
    fabric.all_gather(&team, 1, buffer.len(), &parts, &mut buffer)?;
    for (rank, part) in parts.into_iter().enumerate() {
        assert!(buffer[part].iter().all(|&element| element == rank as f32 + 0.5));
    }
    let mut message = if rank == 1 { vec![7; 300_000] } else { Vec::new() };
    fabric.broadcast(&team, 1, &mut message)?;
    assert_eq!(message, vec![7; 300_000]);
    fabric.barrier(&team)
}

/// Goes on without a rank that is lost.
fn form_anew(mut fabric: fabric::Fabric) {
    match forever(&mut fabric) {
        Err(FabricError::PeerLost { rank, cause }) => lab::say(&format!("lost {rank}: {cause}")),
        other => return lab::say(&format!("{other:?}")),
    }
    let size = fabric.size();
    let mut fabric = match fabric.reform(&ReformOptions::default()) {
        Ok(fabric) => fabric,
        Err(error) => return lab::say(&error.to_string()),
    };
    assert_eq!((fabric.size(), fabric.topology()), (size - 1, &Topology::chain(size - 1)));
    match collectives(&mut fabric) {
        Ok(()) => lab::say("done"),
        Err(error) => lab::say(&error.to_string()),
    }
}

/// Sums without end.
fn forever(fabric: &mut fabric::Fabric) -> Result<(), FabricError> {
    let team = Team::of_range(0..fabric.size(), fabric.rank())?;
    let mut buffer = vec![1.0; 10_000];
    fabric.all_reduce_sum(&team, &mut buffer)?;
    lab::say("under way");
    loop {
        buffer.fill(1.0);
        fabric.all_reduce_sum(&team, &mut buffer)?;
        assert!(buffer.iter().all(|&element| element == fabric.size() as f32));
    }
}

/// The shape that hosts with these cables must find themselves to have.
fn topology(hosts: usize, cables: &[(usize, usize)]) -> Topology {
    let count = |pair: (usize, usize)| cables.iter().filter(|&&(a, b)| (a.min(b), a.max(b)) == pair).count();
    let pairs = (0..hosts).flat_map(|b| (0..b).map(move |a| (a, b)));
    let edges: Vec<fabric::Edge> = pairs
        .map(|(a, b)| fabric::Edge { a, b, cables: count((a, b)) as u32 })
        .filter(|edge| edge.cables > 0)
        .collect();
    Topology::from_edges(&(0..hosts).collect::<Vec<_>>(), &edges).unwrap()
}
