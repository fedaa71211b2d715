//! The files of `mlx.launch`: lists of addresses per rank, the launcher's own list of hosts in both of its forms, and the
//! matrix of RDMA devices.

use serde::Deserialize;

use crate::error::FabricError;
use crate::rendezvous::MAX_RANKS;

/// The port that the launcher starts counting from.
const STARTING_PORT: u16 = 32_323;
/// More addresses or devices than this for one rank are no machine's.
const PER_RANK_MAX: usize = 64;
/// Names longer than this are no names.
const NAME_BYTES_MAX: usize = 256;

/// The names of the RDMA devices that lead from a rank (first index) to another (second index). There may be several,
/// or none.
pub type Devices = Vec<Vec<Vec<String>>>;

/// What a host file says, in any of its forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hostfile {
    /// By rank: where it is reached, best first, each with a port where the file gives one.
    hosts: Vec<Vec<(String, Option<u16>)>>,
    devices: Option<Devices>,
}

/// The forms of a host file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    /// What the launcher gives to each process: a list of addresses with ports per rank.
    Addresses(Vec<Vec<String>>),
    /// What a user gives to the launcher.
    Hosts(Vec<Host>),
    /// The same with more settings around it.
    Settings { hosts: Vec<Host> },
}

#[derive(Deserialize)]
struct Host {
    ssh: Option<String>,
    #[serde(default)]
    ips: Vec<String>,
    rdma: Option<Vec<Cell>>,
}

/// What leads from one rank to another.
#[derive(Deserialize)]
#[serde(untagged)]
enum Cell {
    Nothing(()),
    One(String),
    Several(Vec<String>),
}

impl Hostfile {
    /// Reads a host file.
    ///
    /// # Errors
    /// [`FabricError::Invalid`] when it is none.
    pub fn parse(text: &str) -> Result<Self, FabricError> {
        let form = serde_json::from_str(text).map_err(|error| wrong("host file", &error.to_string()))?;
        let hosts = match form {
            Form::Addresses(ranks) => {
                let hosts = ranks.into_iter().map(|rank| rank.iter().map(|it| with_port(it)).collect()).collect();
                return Self { hosts, devices: None }.checked();
            }
            Form::Hosts(hosts) | Form::Settings { hosts } => hosts,
        };
        let has_devices = hosts.iter().any(|host| host.rdma.is_some());
        let (mut addresses, mut rows) = (Vec::new(), Vec::new());
        for host in hosts {
            // A host without addresses is found by the name that the launcher logs in with, less the user's.
            let name = host.ssh.map(|name| name.rsplit('@').next().unwrap_or_default().to_owned());
            let places = if host.ips.is_empty() { name.into_iter().collect() } else { host.ips };
            addresses.push(places.into_iter().map(|place| (place, None)).collect());
            rows.push(host.rdma);
        }
        let devices = if has_devices {
            let missing = || wrong("host file", "some hosts have a list of RDMA devices, others have none");
            let rows: Option<Vec<Vec<Cell>>> = rows.into_iter().collect();
            Some(matrix(rows.ok_or_else(missing)?)?)
        } else {
            None
        };
        Self { hosts: addresses, devices }.checked()
    }

    fn checked(self) -> Result<Self, FabricError> {
        if self.hosts.is_empty() || self.hosts.len() > MAX_RANKS {
            return Err(wrong("host file", &format!("it has {} ranks, not 1 to {MAX_RANKS}", self.hosts.len())));
        }
        if let Some(rank) = self.hosts.iter().position(|places| places.len() > PER_RANK_MAX) {
            return Err(wrong("host file", &format!("rank {rank} has too many addresses")));
        }
        let names = self.hosts.iter().flatten().map(|(place, _)| place);
        check_names("host file", names)?;
        Ok(self)
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.hosts.len()
    }

    /// Where rank 0 is reached.
    pub fn coordinator(&self) -> Option<(String, u16)> {
        let (place, port) = self.hosts.first()?.first()?;
        Some((place.clone(), port.unwrap_or(STARTING_PORT)))
    }

    /// The RDMA devices, if the file names any.
    pub fn into_devices(self) -> Option<Devices> {
        self.devices
    }
}

/// Reads a matrix of RDMA devices: `null`, a name or a list of names for each pair of ranks.
pub(super) fn parse_devices(text: &str) -> Result<Devices, FabricError> {
    let rows: Vec<Vec<Cell>> = serde_json::from_str(text).map_err(|error| wrong("device file", &error.to_string()))?;
    matrix(rows)
}

fn matrix(rows: Vec<Vec<Cell>>) -> Result<Devices, FabricError> {
    let size = rows.len();
    if size == 0 || size > MAX_RANKS {
        return Err(wrong("device file", &format!("it has {size} ranks, not 1 to {MAX_RANKS}")));
    }
    let mut devices = Vec::with_capacity(size);
    for (rank, row) in rows.into_iter().enumerate() {
        if row.len() != size {
            let (count, what) = (row.len(), "device file");
            return Err(wrong(what, &format!("rank {rank} has devices for {count} ranks of {size}")));
        }
        let names = row.into_iter().map(|cell| match cell {
            Cell::Nothing(()) => Vec::new(),
            Cell::One(name) => vec![name],
            Cell::Several(names) => names,
        });
        let names: Vec<Vec<String>> = names.collect();
        if !names[rank].is_empty() {
            return Err(wrong("device file", &format!("rank {rank} has a device that leads to itself")));
        }
        if names.iter().any(|names| names.len() > PER_RANK_MAX) {
            return Err(wrong("device file", &format!("rank {rank} has too many devices")));
        }
        check_names("device file", names.iter().flatten())?;
        devices.push(names);
    }
    Ok(devices)
}

fn check_names<'a>(what: &str, mut names: impl Iterator<Item = &'a String>) -> Result<(), FabricError> {
    let is_none = |name: &String| name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control);
    match names.find(|name| is_none(name)) {
        Some(name) => Err(wrong(what, &format!("{:?} is no name", name.chars().take(40).collect::<String>()))),
        None => Ok(()),
    }
}

fn wrong(what: &str, why: &str) -> FabricError {
    FabricError::Invalid(format!("the {what} of mlx.launch cannot be used: {why}"))
}

fn with_port(text: &str) -> (String, Option<u16>) {
    match split_address(text) {
        Some((host, port)) => (host, Some(port)),
        None => (text.to_owned(), None),
    }
}

/// The parts of `HOST:PORT`, where a host with colons stands in brackets.
pub(super) fn split_address(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bare {
        Some(bare) => bare,
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_per_rank() {
        let file = Hostfile::parse(r#"[["10.0.0.1:32323", "10.0.1.1:32324"], ["10.0.0.2:32325"]]"#).unwrap();
        assert_eq!((file.size(), file.coordinator()), (2, Some(("10.0.0.1".to_owned(), 32323))));
        assert_eq!(file.into_devices(), None);
        assert_eq!(Hostfile::parse(r#"[["[fd00::1]:5"]]"#).unwrap().coordinator(), Some(("fd00::1".to_owned(), 5)));
    }

    #[test]
    fn hosts_in_both_forms() {
        let hosts = r#"[
            {"ssh": "one", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en5"]},
            {"ssh": "me@two", "ips": [], "rdma": [["rdma_en4", "rdma_en3"], null]}
        ]"#;
        let list = Hostfile::parse(hosts).unwrap();
        let settings = format!(r#"{{"backend": "jaccl", "envs": ["A=1"], "hosts": {hosts}}}"#);
        assert_eq!(Hostfile::parse(&settings).unwrap(), list);
        assert_eq!((list.size(), list.coordinator()), (2, Some(("10.0.0.1".to_owned(), 32323))));
        assert_eq!(list.hosts[1], [("two".to_owned(), None)]);
        let devices = list.into_devices().unwrap();
        assert_eq!(devices[0][1], ["rdma_en5"]);
        assert_eq!(devices[1][0], ["rdma_en4", "rdma_en3"]);
        assert!(devices[0][0].is_empty());
        assert_eq!(Hostfile::parse(r#"[{"ssh": "a"}, {"ssh": "b"}]"#).unwrap().into_devices(), None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let files =
            ["", "{}", "[]", "[[1]]", r#"{"hosts": []}"#, r#"[[""]]"#, r#"[{"ssh": "a", "rdma": [null, "x"]}]"#];
        for file in files {
            assert!(Hostfile::parse(file).is_err(), "{file}");
        }
        let mixed = r#"[{"ssh": "a", "rdma": [null, "x"]}, {"ssh": "b"}]"#;
        assert!(Hostfile::parse(mixed).unwrap_err().to_string().contains("others have none"));
        for devices in
            ["[]", "[[null], [null]]", r#"[["x"]]"#, r#"[[null, "\n"], ["a", null]]"#, "{}", "[[null, 5], [5, null]]"]
        {
            assert!(parse_devices(devices).is_err(), "{devices}");
        }
        let too_many = serde_json::to_string(&vec![vec!["10.0.0.1:5"]; MAX_RANKS + 1]).unwrap();
        assert!(Hostfile::parse(&too_many).is_err());
    }

    #[test]
    fn addresses_are_split() {
        assert_eq!(split_address("host:1"), Some(("host".to_owned(), 1)));
        for wrong in ["", ":", "host", "host:", ":1", "host:0", "host:65536", "fd00::1:5", "[fd00::1]"] {
            assert_eq!(split_address(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_file_or_an_error(text in "[\\[\\]{}\",:a-c0-9 ]{0,60}|\\PC{0,60}") {
            let _ = Hostfile::parse(&text);
            let _ = parse_devices(&text);
        }

        #[test]
        fn matrices_come_through(names in proptest::collection::vec(proptest::collection::vec("[a-z0-9_]{1,9}", 0..3), 9)) {
            let mut matrix: Vec<Vec<Vec<String>>> = names.chunks(3).map(<[_]>::to_vec).collect();
            (0..3).for_each(|rank| matrix[rank][rank].clear());
            let text = serde_json::to_string(&matrix).unwrap();
            prop_assert_eq!(parse_devices(&text).unwrap(), matrix);
        }
    }
}
