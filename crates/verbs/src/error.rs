//! What can go wrong with RDMA, as values that say what happened, why it probably did, and what to do.

use std::fmt;
use std::io;

use crate::completion::{Direction, Status};
use crate::limits::Limit;

/// A failure of RDMA.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This system has no RDMA library. Everything else works without.
    #[error("no RDMA here: {library} cannot be opened ({why})")]
    NoLibrary {
        /// The library looked for.
        library: &'static str,
        /// What the loader said.
        why: String,
    },
    /// There is a library but no device.
    #[error("no RDMA here: there are no devices; {}", Diagnosis::NoDevices.remedy())]
    NoDevices,
    /// A call failed.
    #[error("{call} failed on {device}: {}; {diagnosis}", io::Error::from_raw_os_error(*code))]
    Call {
        /// What was called.
        call: Call,
        /// The device's name.
        device: String,
        /// The system's error code.
        code: i32,
        /// The likely reason.
        diagnosis: Diagnosis,
    },
    /// A send or receive failed after it had been posted.
    #[error("a {direction} failed on {device}: {status} (vendor's code {vendor_code:#x}); {}", status.diagnosis())]
    Completion {
        /// The device's name.
        device: String,
        /// What was to be done.
        direction: Direction,
        /// How it ended.
        status: Status,
        /// The device's own code.
        vendor_code: u32,
    },
    /// A port does not carry data.
    #[error("port {port} of {device} is {state}; {}", Diagnosis::PortDown)]
    PortDown {
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
        /// The state it is in.
        state: crate::PortState,
    },
    /// A port has no address that a connection could use.
    #[error("port {port} of {device} has no IPv4 address among its GIDs; {}", Diagnosis::NoAddress)]
    NoAddress {
        /// The device's name.
        device: String,
        /// The port's number.
        port: u8,
    },
    /// The caller wanted more than the profile allows.
    #[error("beyond the limits of Apple's RDMA: {0}")]
    Limit(#[from] Limit),
    /// The caller asked for something that cannot be done.
    #[error("invalid use of RDMA: {0}")]
    Misuse(&'static str),
    /// The provider said something that makes no sense.
    #[error("the RDMA provider of {device} broke its contract: {what}")]
    Provider {
        /// The device's name.
        device: String,
        /// What it did.
        what: &'static str,
    },
}

/// A call into the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// Listing the devices.
    ListDevices,
    /// Opening a device.
    OpenDevice,
    /// Asking for a port's state.
    QueryPort,
    /// Asking for a port's address.
    QueryGid,
    /// Making a protection domain.
    AllocateDomain,
    /// Registering memory.
    RegisterMemory,
    /// Making a completion queue.
    CreateCompletionQueue,
    /// Making a queue pair.
    CreateQueuePair,
    /// Taking a queue pair to INIT.
    Initialize,
    /// Taking a queue pair to RTR.
    Connect,
    /// Taking a queue pair to RTS.
    Start,
    /// Posting a send.
    PostSend,
    /// Posting a receive.
    PostReceive,
    /// Looking for completions.
    Poll,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ListDevices => "listing RDMA devices",
            Self::OpenDevice => "opening the device",
            Self::QueryPort => "querying the port",
            Self::QueryGid => "querying a GID",
            Self::AllocateDomain => "allocating a protection domain",
            Self::RegisterMemory => "registering memory",
            Self::CreateCompletionQueue => "creating a completion queue",
            Self::CreateQueuePair => "creating a queue pair",
            Self::Initialize => "initializing a queue pair (INIT)",
            Self::Connect => "connecting a queue pair (RTR)",
            Self::Start => "starting a queue pair (RTS)",
            Self::PostSend => "posting a send",
            Self::PostReceive => "posting a receive",
            Self::Poll => "polling for completions",
        })
    }
}

/// The likely reason of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Diagnosis {
    /// No device shows up.
    NoDevices,
    /// The port is down.
    PortDown,
    /// The interface of the port has no IPv4 address, or belongs to a bridge.
    NoAddress,
    /// The GID index names another address than the one meant.
    WrongGid,
    /// All queue pairs of the device are taken, by this process or left over by others.
    QueuePairsTaken,
    /// The device has resources left over from processes that ended badly.
    StaleResources,
    /// The system does not let this user lock so much memory, or the device is out of it.
    MemoryLimit,
    /// More is posted than the queue or the port holds.
    QueueFull,
    /// The provider does not know this kind of connection or this flag.
    Unsupported,
    /// This user may not use the device.
    NotPermitted,
    /// The device has gone.
    DeviceGone,
    /// The other side does not answer.
    PeerSilent,
    /// The other side had no receive posted.
    PeerNotReady,
    /// The two sides disagree about lengths or memory.
    Disagreement,
    /// The queue pair had failed before.
    EarlierFailure,
    /// Nothing is known.
    Unknown,
}

impl Diagnosis {
    /// Why it probably happened.
    pub fn likely_cause(self) -> &'static str {
        match self {
            Self::NoDevices => "RDMA is off, or no card is there",
            Self::PortDown => "the cable is unplugged, or RDMA is off at its other end",
            Self::NoAddress => "its network interface has no IPv4 address, or is a member of an active bridge",
            Self::WrongGid => "the port's addresses have changed, or packets cannot reach the other one",
            Self::QueuePairsTaken => "all queue pairs of the device are in use",
            Self::StaleResources => "processes that ended badly have left resources of the device behind",
            Self::MemoryLimit => "memory for the device cannot be locked",
            Self::QueueFull => "more is posted than the port takes",
            Self::Unsupported => "the provider does not support it",
            Self::NotPermitted => "this user may not use the device",
            Self::DeviceGone => "the device has gone, as with its network interface",
            Self::PeerSilent => "the other side is gone, or the cable is",
            Self::PeerNotReady => "the other side has posted no receive",
            Self::Disagreement => "the two sides disagree about a message",
            Self::EarlierFailure => "the connection had failed before",
            Self::Unknown => "unknown",
        }
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NoDevices => {
                "on a Mac with Thunderbolt 5, run `rdma_ctl enable` in the recovery system; on Linux, load the card's driver"
            }
            Self::PortDown => "plug it in, and enable RDMA on both machines",
            Self::NoAddress => "give the interface an address, and take it out of the (Thunderbolt) bridge",
            Self::WrongGid => "check the interface's address and form the group again",
            Self::QueuePairsTaken => "end other groups on this machine, or use fewer ranks per device",
            Self::StaleResources => "end other users of the device; if it stays, restart this machine",
            Self::MemoryLimit => "raise the limit of locked memory (ulimit -l), or end other users of the device",
            Self::QueueFull => "use fewer ranks per cable",
            Self::Unsupported => "use another kind of connection",
            Self::NotPermitted => "allow this user the devices in /dev/infiniband",
            Self::DeviceGone => "plug the cable in again and form the group anew",
            Self::PeerSilent => "look at the other machine and the cable, then form the group again",
            Self::PeerNotReady => "this is a fault of the program or of the driver: report it",
            Self::Disagreement => "run the same version on both machines",
            Self::EarlierFailure => "see the first error of this connection",
            Self::Unknown => "see the system's log",
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "likely because {}: {}", self.likely_cause(), self.remedy())
    }
}

/// The system whose error codes and habits are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Linux,
    Macos,
}

impl System {
    pub(crate) const fn native() -> Self {
        if cfg!(target_os = "macos") { Self::Macos } else { Self::Linux }
    }
}

/// Error codes that mean something here, as numbers of one system or the other.
struct Codes {
    unsupported: [i32; 3],
    timed_out: i32,
}

const LINUX: Codes = Codes { unsupported: [95, 38, 93], timed_out: 110 };
const MACOS: Codes = Codes { unsupported: [45, 78, 102], timed_out: 60 };

// These are the same on both systems.
const EPERM: i32 = 1;
const EIO: i32 = 5;
const ENXIO: i32 = 6;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;

/// The likely reason why a call ended with an error code.
pub(crate) fn classify(call: Call, code: i32, system: System) -> Diagnosis {
    let codes = if system == System::Macos { MACOS } else { LINUX };
    match (call, code) {
        (_, EPERM | EACCES) => Diagnosis::NotPermitted,
        (_, ENODEV | ENXIO | EIO) => Diagnosis::DeviceGone,
        (Call::CreateQueuePair, EBUSY | ENOMEM) => Diagnosis::QueuePairsTaken,
        (Call::PostSend | Call::PostReceive, ENOMEM) => Diagnosis::QueueFull,
        (_, EBUSY) => Diagnosis::StaleResources,
        (Call::AllocateDomain, _) => Diagnosis::StaleResources,
        (_, ENOMEM) => Diagnosis::MemoryLimit,
        (_, code) if codes.unsupported.contains(&code) => Diagnosis::Unsupported,
        (Call::Connect, code) if code == codes.timed_out => Diagnosis::WrongGid,
        (Call::Connect, EINVAL) => Diagnosis::NoAddress,
        (Call::CreateQueuePair | Call::RegisterMemory, EINVAL) => Diagnosis::Unsupported,
        _ => Diagnosis::Unknown,
    }
}

impl Error {
    /// The error of a call that returned an error code; zero, which some providers leave in `errno`, counts as unknown.
    pub(crate) fn call(call: Call, device: &str, code: i32) -> Self {
        let code = code.abs();
        Self::Call { call, device: device.to_owned(), code, diagnosis: classify(call, code, System::native()) }
    }

    /// The error of a call that left its code in `errno`.
    pub(crate) fn last(call: Call, device: &str) -> Self {
        Self::call(call, device, io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Whether there is nothing to use RDMA with, so that nobody would expect it to work.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoLibrary { .. } | Self::NoDevices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_failures_are_recognized() {
        use Diagnosis::*;
        let cases = [
            // Over Thunderbolt: no IPv4 address or an active bridge; a wrong GID index; more than ten queue pairs.
            (System::Macos, Call::Connect, 22, NoAddress),
            (System::Macos, Call::Connect, 60, WrongGid),
            (System::Macos, Call::CreateQueuePair, 16, QueuePairsTaken),
            (System::Macos, Call::OpenDevice, 16, StaleResources),
            (System::Macos, Call::AllocateDomain, 0, StaleResources),
            (System::Macos, Call::Connect, 45, Unsupported),
            (System::Macos, Call::PostReceive, 12, QueueFull),
            (System::Linux, Call::Connect, 110, WrongGid),
            (System::Linux, Call::Connect, 95, Unsupported),
            (System::Linux, Call::RegisterMemory, 12, MemoryLimit),
            (System::Linux, Call::OpenDevice, 13, NotPermitted),
            (System::Linux, Call::QueryPort, 19, DeviceGone),
            (System::Linux, Call::Poll, 77, Unknown),
        ];
        for (system, call, code, expected) in cases {
            assert_eq!(classify(call, code, system), expected, "{call} {code} on {system:?}");
        }
    }

    #[test]
    fn messages_say_what_why_and_what_to_do() {
        let error = Error::call(Call::CreateQueuePair, "rdma_en2", 16);
        let text = error.to_string();
        for part in ["creating a queue pair failed on rdma_en2", "all queue pairs of the device", "end other groups"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!error.is_absence() && Error::NoDevices.is_absence());
    }

    #[test]
    fn the_codes_are_those_of_this_system() {
        let codes = if System::native() == System::Macos { MACOS } else { LINUX };
        assert_eq!(codes.timed_out, libc::ETIMEDOUT);
        assert!(codes.unsupported.contains(&libc::EOPNOTSUPP) && codes.unsupported.contains(&libc::ENOSYS));
        let same = [EPERM, EIO, ENXIO, ENOMEM, EACCES, EBUSY, ENODEV, EINVAL];
        let system =
            [libc::EPERM, libc::EIO, libc::ENXIO, libc::ENOMEM, libc::EACCES, libc::EBUSY, libc::ENODEV, libc::EINVAL];
        assert_eq!(same, system);
    }
}
