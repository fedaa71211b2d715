//! Hosts and cables made of network namespaces and virtual Ethernet devices, and processes on those hosts.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fabric::{Secret, Topology};

/// Where the rendezvous and those who pass others on to it listen.
pub(crate) const PORT: u16 = 7077;
/// Starts each line that a child says to the test.
const MARK: &str = "lab: ";
const ORDERS: &str = "FABRIC_LAB_ORDERS";

/// What the ranks are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// All collectives of all sizes, once.
    Collectives,
    /// One collective again and again.
    Forever,
    /// As the one before; then, among those that are left, as the first.
    FormAnew,
    /// As the first, encrypted.
    Encrypted,
    /// Join while one rank does not encrypt.
    OneInClear,
    /// Join while one rank listens where nobody reaches it.
    ListenElsewhere,
}

const TASKS: [Task; 6] =
    [Task::Collectives, Task::Forever, Task::FormAnew, Task::Encrypted, Task::OneInClear, Task::ListenElsewhere];

/// What a child is told.
pub(crate) struct Orders {
    pub(crate) task: Task,
    /// `None` is the coordinator.
    pub(crate) rank: Option<usize>,
    pub(crate) size: usize,
    pub(crate) rendezvous: String,
    /// Whether others reach the rendezvous through this one.
    pub(crate) forwards: bool,
    pub(crate) secret_file: PathBuf,
    pub(crate) topology: Topology,
}

/// The orders of this process, if it is a child.
pub(crate) fn orders() -> Option<Orders> {
    let text = std::env::var(ORDERS).ok()?;
    let mut words = text.split(';');
    let mut next = move || words.next().unwrap().to_owned();
    let task = TASKS[next().parse::<usize>().unwrap()];
    let rank = next().parse().ok();
    let size = next().parse().unwrap();
    let (rendezvous, forwards, secret_file) = (next(), next() == "true", next().into());
    let cables = next();
    let pair = |text: &str| text.split_once('-').map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap())).unwrap();
    let cables: Vec<_> = cables.split(',').map(pair).collect();
    Some(Orders { task, rank, size, rendezvous, forwards, secret_file, topology: super::topology(size, &cables) })
}

/// Says something to the test.
pub(crate) fn say(words: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{}", words.replace('\n', " ")).unwrap();
    out.flush().unwrap();
}

/// Hosts with cables. They go when this is dropped.
pub(crate) struct Lab {
    name: String,
    hosts: usize,
    cables: Vec<(usize, usize)>,
    folder: tempfile::TempDir,
    /// Cables made of software.
    relays: Vec<Child>,
}

/// A lab, or `None` and a loud word where there can be none.
pub(crate) fn lab_or_skip(name: &str, hosts: usize, cables: &[(usize, usize)]) -> Option<Lab> {
    static LABS: AtomicUsize = AtomicUsize::new(0);
    let number = LABS.fetch_add(1, Ordering::Relaxed);
    let lab = Lab {
        name: format!("rw{}x{number}", std::process::id()),
        hosts,
        cables: cables.to_vec(),
        folder: tempfile::tempdir().unwrap(),
        relays: Vec::new(),
    };
    match lab.build() {
        Ok(()) => Some(lab),
        Err(why) => {
            eprintln!("\nSKIPPED: {name}: no network namespaces here: {why}\n");
            None
        }
    }
}

impl Lab {
    pub(crate) fn hosts(&self) -> usize {
        self.hosts
    }

    fn build(&self) -> Result<(), String> {
        for host in 0..self.hosts {
            ip(&["netns", "add", &self.host(host)])?;
            ip(&["-n", &self.host(host), "link", "set", "lo", "up"])?;
        }
        for (cable, &(a, b)) in self.cables.iter().enumerate() {
            let (left, right) = (device(cable, 0), device(cable, 1));
            let (at_a, at_b) = (self.host(a), self.host(b));
            ip(&["link", "add", &left, "netns", &at_a, "type", "veth", "peer", "name", &right, "netns", &at_b])?;
            for (end, host, device) in [(0, at_a, left), (1, at_b, right)] {
                let address = format!("{}/24", address(cable, end));
                ip(&["-n", &host, "addr", "add", &address, "dev", &device])?;
                ip(&["-n", &host, "link", "set", &device, "up"])?;
            }
        }
        Ok(())
    }

    /// Replaces a cable by one made of software, which `options` make a bad one. False, after a loud word, where Python
    /// is missing.
    pub(crate) fn spoil(&mut self, cable: usize, options: &[&str]) -> bool {
        let (a, b) = self.cables[cable];
        let (middle, ends) = (self.host(self.hosts + cable), [(self.host(a), 0), (self.host(b), 1)]);
        ip(&["netns", "add", &middle]).unwrap();
        for (host, end) in &ends {
            // The other end goes with it.
            let _ = ip(&["-n", host, "link", "del", &device(cable, *end)]);
        }
        for (host, end) in &ends {
            let (near, far, address) =
                (device(cable, *end), format!("far{end}"), format!("{}/24", address(cable, *end)));
            ip(&["link", "add", &near, "netns", host, "type", "veth", "peer", "name", &far, "netns", &middle]).unwrap();
            ip(&["-n", host, "addr", "add", &address, "dev", &near]).unwrap();
            ip(&["-n", host, "link", "set", &near, "up"]).unwrap();
            ip(&["-n", &middle, "link", "set", &far, "up"]).unwrap();
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/cable-relay");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &middle, script, "far0", "far1"]).args(options);
        let mut relay = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(relay.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        self.relays.push(relay);
        let works = ready.trim() == "ready";
        if !works {
            eprintln!("\nSKIPPED: no bad cables here: scripts/cable-relay does not run\n");
        }
        works
    }

    fn host(&self, host: usize) -> String {
        format!("{}h{host}", self.name)
    }

    /// Takes a cable out.
    pub(crate) fn cut(&self, cable: usize) {
        let host = self.host(self.cables[cable].0);
        ip(&["-n", &host, "link", "set", &device(cable, 0), "down"]).unwrap();
    }

    /// The bytes that have left one host by a cable.
    pub(crate) fn bytes_sent(&self, host: usize, cable: usize) -> u64 {
        let end = usize::from(self.cables[cable].0 != host);
        let file = format!("/sys/class/net/{}/statistics/tx_bytes", device(cable, end));
        ip(&["netns", "exec", &self.host(host), "cat", &file]).unwrap().trim().parse().unwrap()
    }

    /// For each host the address at which it finds the rendezvous, and whether it passes others on to it: the hosts form
    /// a tree around host 0.
    fn ways_to_rendezvous(&self) -> (Vec<String>, Vec<bool>) {
        let mut addresses = vec![String::new(); self.hosts];
        let mut forwards = vec![false; self.hosts];
        addresses[0] = format!("0.0.0.0:{PORT}");
        let mut reached = vec![0];
        let mut looked_at = 0;
        while let Some(&from) = reached.get(looked_at) {
            looked_at += 1;
            for (cable, &(a, b)) in self.cables.iter().enumerate() {
                let (to, end) = if a == from { (b, 0) } else { (a, 1) };
                if (a == from || b == from) && addresses[to].is_empty() {
                    addresses[to] = format!("{}:{PORT}", address(cable, end));
                    // The rendezvous itself is on host 0.
                    forwards[from] = from != 0;
                    reached.push(to);
                }
            }
        }
        (addresses, forwards)
    }

    /// Starts the coordinator on host 0 and a rank on each host.
    pub(crate) fn start(&self, task: Task) -> Run {
        let secret_file = self.folder.path().join("secret");
        Secret::random().unwrap().write_to_file(&secret_file).unwrap();
        let (addresses, forwards) = self.ways_to_rendezvous();
        let task = TASKS.iter().position(|&other| other == task).unwrap();
        let cables = self.cables.iter().map(|(a, b)| format!("{a}-{b}")).collect::<Vec<_>>().join(",");
        let (size, secret_file) = (self.hosts, secret_file.display());
        let orders = |rank: &str, host: usize| {
            let (rendezvous, forwards) = (&addresses[host], forwards[host]);
            format!("{task};{rank};{size};{rendezvous};{forwards};{secret_file};{cables}")
        };
        let coordinator = Process::start(&self.host(0), &orders("coordinator", 0));
        let rank = |rank: usize| Process::start(&self.host(rank), &orders(&rank.to_string(), rank));
        Run { coordinator, ranks: (0..self.hosts).map(rank).collect() }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for relay in &mut self.relays {
            let _ = relay.kill();
            let _ = relay.wait();
        }
        for host in 0..self.hosts + self.cables.len() {
            // What was never built cannot be taken down.
            let _ = ip(&["netns", "del", &self.host(host)]);
        }
    }
}

/// The name of a device at one end of a cable.
fn device(cable: usize, end: usize) -> String {
    format!("cable{cable}e{end}")
}

fn address(cable: usize, end: usize) -> String {
    format!("10.77.{cable}.{}", end + 1)
}

/// Runs `ip`, whose output is returned, or what is wrong with it.
fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("no iproute2: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// A group at work.
pub(crate) struct Run {
    coordinator: Process,
    ranks: Vec<Process>,
}

impl Run {
    /// The next thing that a rank says.
    pub(crate) fn says(&mut self, rank: usize, patience: Duration) -> String {
        self.ranks[rank].says(patience)
    }

    /// Sends a signal to a rank.
    pub(crate) fn signal(&self, rank: usize, signal: &str) {
        let process = self.ranks[rank].child.id().to_string();
        assert!(Command::new("kill").args([signal, &process]).status().unwrap().success());
    }

    /// The next thing that the coordinator says.
    pub(crate) fn coordinator_says(&mut self, patience: Duration) -> String {
        self.coordinator.says(patience)
    }
}

/// A process on a host. It does not outlive a failing test.
struct Process {
    child: Child,
    words: Receiver<String>,
}

impl Process {
    fn start(host: &str, orders: &str) -> Self {
        let mut child = Command::new("ip")
            .args(["netns", "exec", host])
            .arg(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(ORDERS, orders)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, words) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(words) = line.strip_prefix(MARK) {
                    let _ = sender.send(words.to_owned());
                }
            }
        });
        Self { child, words }
    }

    fn says(&mut self, patience: Duration) -> String {
        self.words.recv_timeout(patience).unwrap_or_else(|error| format!("nothing: {error}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
