//! Groups over real RDMA ports, where `FABRIC_TEST_RDMA` says that there are some, all of one network; see
//! `scripts/check-rdma`. Elsewhere these tests do nothing.
//!
//! Ranks that are to be killed are processes: this test binary again, told by its environment to run [`child_rank`].
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{check_collectives, check_team, run};
use fabric::{
    Control, Fabric, FabricError, JoinOptions, ReformOptions, Rendezvous, RendezvousOptions, Secret, Team, Transport,
    join,
};
use rustix::process::{Pid, Signal, kill_process};

const ADDRESS: &str = "FABRIC_TEST_ADDRESS";
const SECRET_FILE: &str = "FABRIC_TEST_SECRET_FILE";
const RANK: &str = "FABRIC_TEST_RANK";
/// Emulated machines are slow.
const PATIENCE: Duration = Duration::from_secs(120);

fn has_ports() -> bool {
    std::env::var_os("FABRIC_TEST_RDMA").is_some()
}

#[test]
fn collectives_give_what_a_single_process_computes() {
    if !has_ports() {
        return;
    }
    for size in 2..=4 {
        run(size, Transport::Rdma, |mut fabric, team| {
            fabric.set_deadline(PATIENCE);
            let others = (0..size).filter(|&rank| rank != team.index());
            assert!(others.into_iter().all(|rank| fabric.transport(rank) == Some(Transport::Rdma)));
            check_collectives(&mut fabric, &[0, 1, 1021]);
            // Long enough for the lane of long messages.
            check_team(&mut fabric, &team, 40_009);
        });
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
    // Only once all have exchanged something may one of them be lost.
    round(&mut joined.fabric, &team).unwrap();
    joined.control.send(b"ready").unwrap();
    let error: FabricError = (0..).find_map(|_: u64| round(&mut joined.fabric, &team).err()).unwrap();
    let report = match error {
        FabricError::PeerLost { rank, .. } => format!("lost {rank}"),
        error => error.to_string(),
    };
    joined.control.send(report.as_bytes()).unwrap();
    let again = ReformOptions { deadline: PATIENCE, least: 2 };
    let mut fabric = joined.fabric.reform(&again).unwrap();
    let team = Team::of_range(0..fabric.size(), fabric.rank()).unwrap();
    assert!((0..2).all(|rank| rank == fabric.rank() || fabric.transport(rank) == Some(Transport::Rdma)));
    round(&mut fabric, &team).unwrap();
    joined.control.send(format!("formed {}", fabric.size()).as_bytes()).unwrap();
    // The group stays until all have reported.
    assert!(joined.control.recv(PATIENCE).is_err());
}

/// A collective whose result every rank knows.
fn round(fabric: &mut Fabric, team: &Team) -> Result<(), FabricError> {
    let mut sum = vec![1.0; 20_000];
    fabric.all_reduce_sum(team, &mut sum)?;
    assert!(sum.iter().all(|&it| it == team.len() as f32));
    Ok(())
}

fn report(control: &mut Control) -> String {
    String::from_utf8(control.recv(PATIENCE).unwrap().unwrap()).unwrap()
}

/// A process that is lost is named by all survivors, which then form a group of their own.
fn check_loss(signal: Signal) {
    let folder = tempfile::tempdir().unwrap();
    let secret = Secret::random().unwrap();
    let secret_file = folder.path().join("secret");
    secret.write_to_file(&secret_file).unwrap();
    let options = RendezvousOptions { deadline: PATIENCE, ..RendezvousOptions::default() };
    let mut meeting = Rendezvous::listen("127.0.0.1:0", &secret, 3, options).unwrap();
    let children = (0..3).map(|rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child_rank", "--exact", "--nocapture"]).env(RANK, rank.to_string());
        command.env(ADDRESS, meeting.address().to_string()).env(SECRET_FILE, &secret_file);
        command.stdout(Stdio::null()).spawn().unwrap()
    });
    let mut children = Children(children.collect());
    let mut controls = meeting.gather(|_, _| Vec::new()).unwrap();
    for control in &mut controls {
        assert_eq!(report(control), "ready");
    }
    kill_process(Pid::from_child(&children.0[1]), signal).unwrap();
    for expected in ["lost 1", "formed 2"] {
        for rank in [0, 2] {
            assert_eq!(report(&mut controls[rank]), expected);
        }
    }
    drop(controls);
    for rank in [0, 2] {
        assert!(children.0[rank].wait().unwrap().success());
    }
}

#[test]
fn survivors_of_a_killed_process_go_on() {
    if has_ports() {
        check_loss(Signal::KILL);
    }
}

#[test]
fn survivors_of_a_stopped_process_go_on() {
    if has_ports() {
        check_loss(Signal::STOP);
    }
}
