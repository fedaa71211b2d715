//! Hosts made of network namespaces, joined by a switch whose ports can go down.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// They go when this is dropped.
pub(crate) struct Switch {
    name: String,
    hosts: usize,
    /// A running `ip` that takes commands for the switch, so that a port goes down at once.
    commands: Mutex<Child>,
    /// The same for the switch between RDMA ports, where there is one.
    rdma_commands: Option<Mutex<Child>>,
}

impl Switch {
    /// Builds `hosts` hosts, or says why it cannot. With `rdma`, each host also has the RDMA device that
    /// [`Switch::device`] names, whose cable leads to a port of the system's own, `s1` and so on; see
    /// `scripts/check-rdma`. RDMA ports of software cannot be within namespaces.
    pub(crate) fn build(hosts: usize, rdma: bool) -> Result<Self, String> {
        static SWITCHES: AtomicUsize = AtomicUsize::new(0);
        let name = format!("rwc{}x{}", std::process::id(), SWITCHES.fetch_add(1, Ordering::Relaxed));
        ip(&["netns", "add", &name])?;
        let commands = interpreter(&["-n", &name])?;
        let rdma_commands = if rdma { Some(interpreter(&[])?) } else { None };
        let switch = Self { name, hosts, commands, rdma_commands };
        switch.join_hosts()?;
        Ok(switch)
    }

    fn join_hosts(&self) -> Result<(), String> {
        ip(&["-n", &self.name, "link", "add", "switch", "type", "bridge"])?;
        ip(&["-n", &self.name, "addr", "add", &format!("{}/24", self.address()), "dev", "switch"])?;
        ip(&["-n", &self.name, "link", "set", "switch", "up"])?;
        for host in 0..self.hosts {
            let (at, port, address) = (self.host(host), port(host), format!("10.78.0.{}/24", host + 1));
            ip(&["netns", "add", &at])?;
            ip(&["-n", &at, "link", "set", "lo", "up"])?;
            ip(&["-n", &self.name, "link", "add", &port, "type", "veth", "peer", "name", "cable", "netns", &at])?;
            ip(&["-n", &self.name, "link", "set", &port, "master", "switch", "up"])?;
            ip(&["-n", &at, "addr", "add", &address, "dev", "cable"])?;
            ip(&["-n", &at, "link", "set", "cable", "up"])?;
        }
        Ok(())
    }

    /// The name of a host's namespace.
    pub(crate) fn host(&self, host: usize) -> String {
        format!("{}h{host}", self.name)
    }

    /// The name of a host's RDMA device, whose address is that of the host.
    pub(crate) fn device(host: usize) -> String {
        format!("rdma_h{}", host + 1)
    }

    /// Where the switch itself is found by all hosts.
    pub(crate) fn address(&self) -> &str {
        "10.78.0.100"
    }

    /// Runs something on the switch.
    pub(crate) fn inside<T: Send>(&self, task: impl FnOnce() -> T + Send) -> T {
        let namespace = std::fs::File::open(format!("/run/netns/{}", self.name)).unwrap();
        // Only this thread moves.
        let moved = move || {
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network)).unwrap();
            task()
        };
        std::thread::scope(|scope| scope.spawn(moved).join().unwrap())
    }

    /// Takes the port of a host down or up.
    pub(crate) fn set_port(&self, host: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        let tell = |commands: &Mutex<Child>, port: String| {
            writeln!(commands.lock().unwrap().stdin.as_mut().unwrap(), "link set {port} {state}").unwrap();
        };
        if let Some(commands) = &self.rdma_commands {
            tell(commands, format!("s{}", host + 1));
        }
        tell(&self.commands, port(host));
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for commands in std::iter::once(&mut self.commands).chain(&mut self.rdma_commands) {
            let commands = commands.get_mut().unwrap();
            let _ = commands.kill();
            let _ = commands.wait();
        }
        for host in 0..self.hosts {
            // What was never built cannot be taken down.
            let _ = ip(&["netns", "del", &self.host(host)]);
        }
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn port(host: usize) -> String {
    format!("port{host}")
}

/// Starts an `ip` that takes commands.
fn interpreter(arguments: &[&str]) -> Result<Mutex<Child>, String> {
    let child = Command::new("ip").args(arguments).args(["-batch", "-"]).stdin(Stdio::piped()).spawn();
    child.map(Mutex::new).map_err(|error| error.to_string())
}

/// Runs `ip`, or says what is wrong with it.
fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("no iproute2: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
