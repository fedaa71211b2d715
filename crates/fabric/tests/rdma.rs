//! Groups over real RDMA ports, where `FABRIC_TEST_RDMA` says that there are some, all of one network; see
//! `scripts/check-rdma`. Elsewhere these tests do nothing.
//!
//! Ranks that are to be killed are processes: this test binary again, told by its environment to run [`child_rank`].
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use fabric::{
    Control, Fabric, FabricError, JoinOptions, Rendezvous, RendezvousOptions, Secret, Team, Transport, join,
    local_group,
};

const ADDRESS: &str = "FABRIC_TEST_ADDRESS";
const SECRET_FILE: &str = "FABRIC_TEST_SECRET_FILE";
const RANK: &str = "FABRIC_TEST_RANK";
/// Emulated machines are slow.
const PATIENCE: Duration = Duration::from_secs(120);

fn has_ports() -> bool {
    std::env::var_os("FABRIC_TEST_RDMA").is_some()
}

/// Runs `rank` on each rank of a group, and returns what it returns, by rank.
fn run<T: Send>(size: usize, rank: impl Fn(Fabric, Team) -> T + Sync) -> Vec<T> {
    let fabrics = local_group(size, Transport::Rdma).unwrap();
    thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = fabrics
            .into_iter()
            .map(|mut fabric| {
                fabric.set_deadline(PATIENCE);
                fabric.set_crowded(true);
                let team = Team::of_range(0..size, fabric.rank()).unwrap();
                scope.spawn(move || rank(fabric, team))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A value for each element of each rank, of which no two are equal by accident.
fn value(rank: usize, index: usize) -> f32 {
    (rank * 1_000_003 + index * 7919) as f32 * 0.37 - 11.0
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn sums_have_the_bits_of_a_plain_reduction() {
    if !has_ports() {
        return;
    }
    for size in 2..=4 {
        let lengths = [0, 1, 5, 1000, 1024, 8191, 65_537];
        let results = run(size, |mut fabric, team| {
            assert!((0..size).all(|other| other == team.index() || fabric.transport(other) == Some(Transport::Rdma)));
            let sums = lengths.map(|length| {
                let mut buffer: Vec<f32> = (0..length).map(|index| value(team.index(), index)).collect();
                fabric.all_reduce_sum(&team, &mut buffer).unwrap();
                buffer
            });
            fabric.barrier(&team).unwrap();
            sums
        });
        for (place, length) in lengths.into_iter().enumerate() {
            let sum = |index| (1..size).fold(value(0, index), |sum, rank| sum + value(rank, index));
            let expected: Vec<f32> = (0..length).map(sum).collect();
            for result in &results {
                assert_eq!(bits(&result[place]), bits(&expected), "{length} elements over {size} ranks");
            }
        }
    }
}

#[test]
fn gathers_and_broadcasts_bring_what_was_sent() {
    if !has_ports() {
        return;
    }
    for size in 2..=4 {
        let width = 10_007;
        let bound = |rank: usize| width * rank / size;
        let parts: Vec<_> = (0..size).map(|rank| bound(rank)..bound(rank + 1)).collect();
        let results = run(size, |mut fabric, team| {
            let own = team.index();
            let mut buffer = vec![f32::NAN; width];
            parts[own].clone().for_each(|index| buffer[index] = value(own, index));
            fabric.all_gather(&team, 1, width, &parts, &mut buffer).unwrap();
            let mut news = if own == 1 { vec![7; 70_001] } else { Vec::new() };
            fabric.broadcast(&team, 1, &mut news).unwrap();
            fabric.barrier(&team).unwrap();
            (buffer, news)
        });
        for (buffer, news) in results {
            for (rank, part) in parts.iter().enumerate() {
                assert!(part.clone().all(|index| buffer[index].to_bits() == value(rank, index).to_bits()));
            }
            assert!(news == vec![7; 70_001]);
        }
    }
}

/// Child processes that do not outlive a failing test.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a child does; nothing when this is the test run itself.
#[test]
fn child_rank() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let secret = Secret::from_file(Path::new(&std::env::var(SECRET_FILE).unwrap())).unwrap();
    let options = JoinOptions {
        rank: Some(std::env::var(RANK).unwrap().parse().unwrap()),
        transport: Transport::Rdma,
        deadline: PATIENCE,
        wait_deadline: PATIENCE,
        ..JoinOptions::default()
    };
    let mut joined = join(address, &secret, &options).unwrap();
    let team = Team::of_range(0..joined.size, joined.rank).unwrap();
    let mut round = || {
        let mut sum = vec![1.0; 20_000];
        joined.fabric.all_reduce_sum(&team, &mut sum)?;
        assert!(sum.iter().all(|&it| it == team.len() as f32));
        Ok(())
    };
    // Only once all have exchanged something may one of them be killed.
    round().unwrap();
    joined.control.send(b"ready").unwrap();
    let error: FabricError = (0..).find_map(|_: u64| round().err()).unwrap();
    let report = match error {
        FabricError::PeerLost { rank, .. } => format!("lost {rank}"),
        error => error.to_string(),
    };
    joined.control.send(report.as_bytes()).unwrap();
    // The fabric stays until all have reported, so that no survivor takes another one's end for the first.
    assert!(joined.control.recv(PATIENCE).is_err());
}

fn report(control: &mut Control) -> String {
    String::from_utf8(control.recv(PATIENCE).unwrap().unwrap()).unwrap()
}

#[test]
fn a_killed_process_is_named_by_all_survivors() {
    if !has_ports() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let secret = Secret::random().unwrap();
    let secret_file = folder.path().join("secret");
    secret.write_to_file(&secret_file).unwrap();
    let options = RendezvousOptions { deadline: PATIENCE, ..RendezvousOptions::default() };
    let mut meeting = Rendezvous::listen("127.0.0.1:0", &secret, 3, options).unwrap();
    let children = (0..3).map(|rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child_rank", "--exact", "--nocapture"]).env(RANK, rank.to_string());
        command.env(ADDRESS, meeting.address().to_string()).env(SECRET_FILE, &secret_file).spawn().unwrap()
    });
    let mut children = Children(children.collect());
    let mut controls = meeting.gather(|_, _| Vec::new()).unwrap();
    for control in &mut controls {
        assert_eq!(report(control), "ready");
    }
    children.0[1].kill().unwrap();
    for rank in [0, 2] {
        assert_eq!(report(&mut controls[rank]), "lost 1");
    }
    drop(controls);
    for rank in [0, 2] {
        assert!(children.0[rank].wait().unwrap().success());
    }
}
