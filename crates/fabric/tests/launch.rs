//! Groups that launchers start: what their environments look like, and processes that meet through them.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use fabric::launch::{Environment, Launch, Launcher, join_launched};
use fabric::{FabricError, JoinOptions, Team};
use proptest::prelude::*;

/// The launch that these variables, one a line, and these files tell of.
fn detect_with(variables: &str, files: &[(&str, &str)]) -> Result<Option<Launch>, FabricError> {
    let variables: BTreeMap<&str, &str> = variables.lines().filter_map(|line| line.trim().split_once('=')).collect();
    let file = |path: &Path| {
        let found = files.iter().find(|(name, _)| path == Path::new(name)).map(|(_, text)| (*text).to_owned());
        found.ok_or_else(|| std::io::ErrorKind::NotFound.into())
    };
    let environment = Environment::new(|name| variables.get(name).map(|value| (*value).to_owned()), file);
    Launch::from_environment(&environment)
}

fn detect(variables: &str) -> Launch {
    detect_with(variables, &[]).unwrap().unwrap()
}

fn refusal(variables: &str) -> String {
    detect_with(variables, &[]).unwrap_err().to_string()
}

fn at(host: &str, port: u16) -> (String, u16) {
    (host.to_owned(), port)
}

const TORCHRUN: &str = "RANK=1
    WORLD_SIZE=4
    LOCAL_RANK=1
    LOCAL_WORLD_SIZE=2
    GROUP_RANK=0
    ROLE_RANK=1
    MASTER_ADDR=10.0.0.1
    MASTER_PORT=29500
    TORCHELASTIC_RUN_ID=none
    TORCHELASTIC_RESTART_COUNT=0
    TORCHELASTIC_USE_AGENT_STORE=True";

#[test]
fn torchrun() {
    let launch = detect(TORCHRUN);
    assert_eq!((launch.launcher, launch.rank, launch.size, launch.local_rank), (Launcher::Torchrun, 1, 4, Some(1)));
    // The agent has the port itself.
    assert_eq!(launch.coordinator, at("10.0.0.1", 29501));
    assert!(!launch.one_host);
    let by_hand = detect("RANK=0\nWORLD_SIZE=2\nMASTER_ADDR=host\nMASTER_PORT=7000");
    assert_eq!(by_hand.coordinator, at("host", 7000));
    assert!(refusal("RANK=0\nWORLD_SIZE=2").contains("MASTER_ADDR"));
    assert!(refusal("RANK=2\nWORLD_SIZE=2\nMASTER_ADDR=host").contains("rank 2 of 2"));
    assert!(refusal("RANK=two\nWORLD_SIZE=2\nMASTER_ADDR=host").contains("RANK is \"two\""));
    assert!(refusal("RANK=0\nWORLD_SIZE=100000\nMASTER_ADDR=host").contains("up to 256"));
}

const SLURM: &str = "SLURM_PROCID=5
    SLURM_LOCALID=1
    SLURM_NTASKS=8
    SLURM_NODEID=1
    SLURM_JOB_ID=123456
    SLURM_STEP_ID=0
    SLURM_JOB_NODELIST=node[07-10],other
    SLURM_STEP_NODELIST=node[08-09]
    SLURM_JOB_NUM_NODES=5
    PMI_RANK=5
    PMI_SIZE=8
    PMIX_RANK=5";

#[test]
fn slurm() {
    let launch = detect(SLURM);
    assert_eq!((launch.launcher, launch.rank, launch.size, launch.local_rank), (Launcher::Slurm, 5, 8, Some(1)));
    let (host, port) = launch.coordinator.clone();
    assert!(host == "node08" && (20_000..30_000).contains(&port), "{host}:{port}");
    assert_eq!(detect(&SLURM.replace("=5", "=0")).coordinator, launch.coordinator.clone());
    assert_ne!(detect(&SLURM.replace("STEP_ID=0", "STEP_ID=1")).coordinator, launch.coordinator);
    let reserved = detect(&format!("{SLURM}\nSLURM_STEP_RESV_PORTS=12001-12002"));
    assert_eq!(reserved.coordinator, at("node08", 12001));
    let one_node = detect("SLURM_PROCID=0\nSLURM_NTASKS=2\nSLURM_JOB_ID=1\nSLURM_STEP_NODELIST=node1");
    assert!(one_node.one_host && one_node.coordinator.0 == "127.0.0.1");
    assert!(refusal(&SLURM.replace("node[08-09]", "node[08-")).contains("node[08-"));
}

#[test]
fn open_mpi() {
    let four = "OMPI_COMM_WORLD_RANK=3
        OMPI_COMM_WORLD_SIZE=4
        OMPI_COMM_WORLD_LOCAL_RANK=1
        OMPI_COMM_WORLD_LOCAL_SIZE=2
        OMPI_MCA_ess_base_jobid=1596391425
        OMPI_MCA_orte_hnp_uri=1596391424.0;tcp://192.0.2.2,10.0.0.1:57075;tcp6://[fd00::2]:45969
        SLURM_PROCID=0
        SLURM_NTASKS=1
        PMIX_RANK=3";
    let launch = detect(four);
    assert_eq!((launch.launcher, launch.rank, launch.size, launch.local_rank), (Launcher::OpenMpi, 3, 4, Some(1)));
    assert_eq!(launch.coordinator.0, "192.0.2.2");
    let five = "OMPI_COMM_WORLD_RANK=0
        OMPI_COMM_WORLD_SIZE=4
        OMPI_COMM_WORLD_LOCAL_SIZE=2
        PMIX_NAMESPACE=prterun-head-4711@1
        PMIX_SERVER_URI41=prterun-head-4711@0.0;tcp4://127.0.0.1:40001
        PMIX_RANK=0";
    assert!(refusal(five).contains("MASTER_ADDR"));
    assert_eq!(detect(&format!("{five}\nMASTER_ADDR=head")).coordinator.0, "head");
    let one_host = detect(&five.replace("LOCAL_SIZE=2", "LOCAL_SIZE=4"));
    assert!(one_host.one_host && one_host.coordinator.0 == "127.0.0.1");
}

#[test]
fn other_launchers() {
    let hydra = "PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALNRANKS=2\nMPI_LOCALRANKID=1\nSLURM_PROCID=0\nSLURM_NTASKS=2";
    let launch = detect(hydra);
    assert_eq!((launch.launcher, launch.rank, launch.coordinator.0.as_str()), (Launcher::Hydra, 1, "127.0.0.1"));
    assert!(refusal("PMI_RANK=1\nPMI_SIZE=2").contains("MASTER_ADDR"));
    assert!(refusal("PMI_RANK=1").contains("PMI_SIZE"));
    let pmix = detect("PMIX_RANK=1\nWORLD_SIZE=2\nMASTER_ADDR=a\nPMIX_NAMESPACE=b");
    assert_eq!((pmix.launcher, pmix.coordinator.0.as_str()), (Launcher::Pmix, "a"));
    assert_eq!(detect_with("HOME=/root", &[]).unwrap(), None);
}

#[test]
fn mlx_launch() {
    let ring = [("hosts.json", r#"[["10.0.0.1:32323"], ["10.0.0.2:32324"], ["10.0.0.3:32325"]]"#)];
    let launch = detect_with("MLX_RANK=2\nMLX_HOSTFILE=hosts.json", &ring).unwrap().unwrap();
    assert_eq!((launch.launcher, launch.rank, launch.size), (Launcher::Mlx, 2, 3));
    assert_eq!((launch.coordinator, launch.devices, launch.ring), (at("10.0.0.1", 32323), None, false));
    let jaccl = [("devices.json", r#"[[null, "rdma_en5"], [["rdma_en4"], null]]"#)];
    let variables = "MLX_RANK=1\nMLX_IBV_DEVICES=devices.json\nMLX_JACCL_COORDINATOR=10.0.0.1:32323\nMLX_JACCL_RING=1";
    let launch = detect_with(variables, &jaccl).unwrap().unwrap();
    assert_eq!((launch.size, launch.coordinator, launch.ring), (2, at("10.0.0.1", 32323), true));
    assert_eq!(launch.devices.unwrap()[0][1], ["rdma_en5"]);
    let launchers =
        [("hosts.json", r#"{"backend": "jaccl", "hosts": [{"ssh": "a"}, {"ssh": "b", "ips": ["10.0.0.2"]}]}"#)];
    let launch = detect_with("MLX_RANK=0\nMLX_HOSTFILE=hosts.json", &launchers).unwrap().unwrap();
    assert_eq!((launch.size, launch.coordinator), (2, at("a", 32323)));
    let nccl = detect("MLX_RANK=0\nMLX_WORLD_SIZE=2\nNCCL_HOST_IP=10.0.0.1\nNCCL_PORT=12345");
    assert_eq!(nccl.coordinator, at("10.0.0.1", 12345));
    for (variables, word) in [
        ("MLX_RANK=0", "MLX_WORLD_SIZE"),
        ("MLX_RANK=0\nMLX_HOSTFILE=missing.json", "missing.json"),
        ("MLX_RANK=0\nMLX_WORLD_SIZE=2", "MLX_JACCL_COORDINATOR"),
        ("MLX_RANK=0\nMLX_WORLD_SIZE=2\nMLX_JACCL_COORDINATOR=10.0.0.1", "ADDRESS:PORT"),
        ("MLX_RANK=0\nMLX_WORLD_SIZE=3\nMLX_HOSTFILE=hosts.json", "[2, 3]"),
    ] {
        let error = detect_with(variables, &launchers).unwrap_err().to_string();
        assert!(error.contains(word), "{variables}: {error}");
    }
}

#[test]
fn secrets_come_from_the_user_unless_nothing_leaves_the_machine() {
    let far = detect(TORCHRUN);
    let error = far.secret().unwrap_err().to_string();
    assert!(error.contains("ROPEWALK_SECRET_FILE") && error.contains("ROPEWALK_SECRET"), "{error}");
    let with_secret = detect(&format!("{TORCHRUN}\nROPEWALK_SECRET=the quick brown fox"));
    assert_eq!(with_secret.secret().unwrap().expose(), b"the quick brown fox");
    assert!(!format!("{with_secret:?}").contains("quick"));
    let near = |job: &str| {
        let text = TORCHRUN.replace("10.0.0.1", "127.0.0.1").replace("RUN_ID=none", &format!("RUN_ID={job}"));
        detect(&text).secret().unwrap().expose().to_vec()
    };
    assert!(near("a") == near("a") && near("a") != near("b"));
    assert!(detect(&format!("{TORCHRUN}\nROPEWALK_SECRET=short")).secret().is_err());
    assert_eq!(detect(&format!("{TORCHRUN}\nROPEWALK_PORT=4242")).coordinator.1, 4242);
}

proptest! {
    #[test]
    fn any_environment_gives_a_launch_or_an_error(
        values in proptest::collection::vec("[0-9]{1,3}|[a-z\\[\\],:;/.0-9-]{0,12}|\\PC{0,8}", 24),
        present in proptest::collection::vec(any::<bool>(), 24),
    ) {
        let names = [
            "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MLX_RANK", "MLX_HOSTFILE",
            "MLX_IBV_DEVICES", "MLX_WORLD_SIZE", "MLX_JACCL_COORDINATOR", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
            "OMPI_MCA_orte_hnp_uri", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "SLURM_PROCID", "SLURM_NTASKS",
            "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_RESV_PORTS", "ROPEWALK_PORT", "ROPEWALK_SECRET",
        ];
        let variable = |name: &str| {
            let index = names.iter().position(|other| *other == name)?;
            present[index].then(|| values[index].clone())
        };
        let environment = Environment::new(variable, |_| Ok(values[0].clone()));
        if let Ok(Some(launch)) = Launch::from_environment(&environment) {
            prop_assert!(launch.rank < launch.size && launch.coordinator.1 > 0);
            let _ = launch.secret();
        }
    }
}

/// What a process does that a launcher has started; nothing when this is the test run itself.
#[test]
fn child() {
    if std::env::var_os("FABRIC_TEST_LAUNCHED").is_none() {
        return;
    }
    let launch = Launch::detect().unwrap().unwrap();
    let options = JoinOptions { deadline: Duration::from_secs(40), ..JoinOptions::default() };
    let mut joined = join_launched(&launch, &options).unwrap();
    assert_eq!((joined.rank, joined.size), (launch.rank, launch.size));
    let team = Team::of_range(0..joined.size, joined.rank).unwrap();
    let mut sum = [1.0, joined.rank as f32];
    joined.fabric.all_reduce_sum(&team, &mut sum).unwrap();
    assert_eq!(sum, [joined.size as f32, (0..joined.size).sum::<usize>() as f32]);
    joined.fabric.barrier(&team).unwrap();
    println!("\nmet as {} of {}", joined.rank, joined.size);
}

fn myself() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture"]).env("FABRIC_TEST_LAUNCHED", "1").stdout(Stdio::piped());
    command
}

/// A port that is free, at least for now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn processes_meet_as_under_torchrun() {
    let port = free_port().to_string();
    let start = |rank: usize| {
        let variables = [("WORLD_SIZE", "3"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())];
        myself().envs(variables).env("RANK", rank.to_string()).spawn().unwrap()
    };
    // The one that waits for the others comes last.
    let children: Vec<_> = [2, 1, 0].map(start).into();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("of 3"), "{output:?}");
    }
}

#[test]
fn processes_meet_under_mpirun() {
    let found = Command::new("mpirun").arg("--version").output();
    if !found.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI")) {
        eprintln!("\nSKIPPED: Open MPI's mpirun is not here\n");
        return;
    }
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "3"]).env("FABRIC_TEST_LAUNCHED", "1");
    command.env("ROPEWALK_PORT", free_port().to_string());
    let output =
        command.arg(std::env::current_exe().unwrap()).args(["child", "--exact", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.matches("met as ").count() == 3, "{output:?}");
}
