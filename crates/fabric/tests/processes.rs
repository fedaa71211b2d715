//! Ranks as processes of their own, which share memory, and one of which is killed.
//!
//! The ranks are this test binary again, told by its environment to run [`child_rank`] as one.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fabric::{Control, FabricError, JoinOptions, Joined, Rendezvous, RendezvousOptions, Secret, Team, Transport, join};

const ADDRESS: &str = "FABRIC_TEST_ADDRESS";
const SECRET_FILE: &str = "FABRIC_TEST_SECRET_FILE";
const PATIENCE: Duration = Duration::from_secs(20);

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

/// Starts a process for each rank; each asks for its number, so that child and control correspond.
fn start(size: usize, job: &[u8], folder: &Path) -> (Children, Vec<Control>) {
    let secret = Secret::random().unwrap();
    let secret_file = folder.join("secret");
    secret.write_to_file(&secret_file).unwrap();
    let options = RendezvousOptions { deadline: PATIENCE, generation: 3, ..RendezvousOptions::default() };
    let mut meeting = Rendezvous::listen("127.0.0.1:0", &secret, size, options).unwrap();
    let children = (0..size).map(|rank| {
        Command::new(std::env::current_exe().unwrap())
            .args(["child_rank", "--exact", "--nocapture"])
            .env(ADDRESS, meeting.address().to_string())
            .env(SECRET_FILE, &secret_file)
            .env("FABRIC_TEST_RANK", rank.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    });
    let children = Children(children.collect());
    let controls = meeting.gather(|_, _| job.to_vec()).unwrap();
    (children, controls)
}

/// What a child does; nothing when this is the test run itself.
#[test]
fn child_rank() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let secret = Secret::from_file(Path::new(&std::env::var(SECRET_FILE).unwrap())).unwrap();
    let rank = std::env::var("FABRIC_TEST_RANK").unwrap().parse().unwrap();
    let options = JoinOptions {
        rank: Some(rank),
        transport: Transport::SharedMemory,
        deadline: PATIENCE,
        wait_deadline: PATIENCE,
        ..JoinOptions::default()
    };
    let mut joined = join(address, &secret, &options).unwrap();
    assert_eq!((joined.rank, joined.fabric.generation()), (rank, 3));
    // Once the others have joined as well, nobody else needs the memory's name.
    exchange(&mut joined, 0).unwrap();
    assert_memory_has_no_name(joined.size - 1);
    let rounds = if joined.job == b"a while" { 300 } else { u32::MAX };
    let result = (0..rounds).try_for_each(|round| exchange(&mut joined, round));
    let report = match result {
        Ok(()) => "done".to_owned(),
        Err(FabricError::PeerLost { rank, .. }) => format!("lost {rank}"),
        Err(error) => error.to_string(),
    };
    joined.control.send(report.as_bytes()).unwrap();
    // The fabric stays until all have reported, so that no survivor takes another one's end for the first.
    assert!(joined.control.recv(PATIENCE).is_err());
}

/// One round of all ranks.
fn exchange(joined: &mut Joined, round: u32) -> Result<(), FabricError> {
    let team = Team::of_range(0..joined.size, joined.rank)?;
    let parts: Vec<_> = (0..joined.size).map(|rank| rank * 1000..(rank + 1) * 1000).collect();
    let mut buffer = vec![0.0; joined.size * 1000];
    let value = |rank: usize| (rank as u32 + round % 1000) as f32;
    buffer[parts[joined.rank].clone()].fill(value(joined.rank));
    joined.fabric.all_gather(&team, 1, buffer.len(), &parts, &mut buffer)?;
    for (rank, part) in parts.into_iter().enumerate() {
        assert!(buffer[part].iter().all(|&element| element == value(rank)));
    }
    Ok(())
}

fn assert_memory_has_no_name(links: usize) {
    if let Ok(maps) = std::fs::read_to_string("/proc/self/maps") {
        // Memory that never had a name, or a file that has lost its own.
        let is_shared = |line: &&str| line.contains("/memfd:ropewalk") || line.contains("/ropewalk-");
        let shared: Vec<_> = maps.lines().filter(is_shared).collect();
        assert_eq!(shared.len(), links, "{maps}");
        assert!(shared.iter().all(|line| line.ends_with("(deleted)")), "{maps}");
    }
}

fn report(control: &mut Control) -> String {
    String::from_utf8(control.recv(PATIENCE).unwrap().unwrap()).unwrap()
}

#[test]
fn processes_share_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (mut children, mut controls) = start(3, b"a while", folder.path());
    for control in &mut controls {
        assert_eq!(report(control), "done");
    }
    drop(controls);
    for child in &mut children.0 {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_killed_process_is_named_by_all_survivors() {
    let folder = tempfile::tempdir().unwrap();
    let (mut children, mut controls) = start(3, b"forever", folder.path());
    // Nobody reports as long as all are alive.
    assert!(controls[0].recv(Duration::from_millis(50)).unwrap().is_none());
    children.0[1].kill().unwrap();
    let killed = Instant::now();
    assert!(matches!(controls[1].recv(PATIENCE), Err(FabricError::PeerLost { rank: 1, .. })));
    for rank in [0, 2] {
        assert_eq!(report(&mut controls[rank]), "lost 1");
    }
    assert!(killed.elapsed() < Duration::from_secs(3), "noticed only after {:?}", killed.elapsed());
    drop(controls);
    for rank in [0, 2] {
        assert!(children.0[rank].wait().unwrap().success());
    }
}
