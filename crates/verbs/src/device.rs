//! Devices and their ports.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Call, Error};
use crate::ffi;
use crate::gid::Gid;
use crate::library::Library;
use crate::limits::Usage;

/// The only port of the devices that this is made for.
pub const PORT: u8 = 1;
/// A port's table of addresses is read up to here, as connections name places in it with one byte.
const GIDS_MAX: i32 = 256;
/// So many empty places in a row are taken for the end of the table, as each look at one is a system call.
const EMPTY_GIDS_MAX: u32 = 16;

/// The system's list of devices, which stay valid as long as it does.
struct DeviceList {
    library: &'static Library,
    base: NonNull<*mut ffi::Device>,
}

// SAFETY: the library allows calls from any thread, and nothing changes the list before it is freed.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: this is the list that the library gave out, freed once; no `Device` outlives it.
        unsafe { (self.library.free_device_list)(self.base.as_ptr()) }
    }
}

/// An RDMA device of this machine.
#[derive(Clone)]
pub struct Device {
    list: Arc<DeviceList>,
    index: usize,
    name: String,
}

impl Device {
    /// All devices of this machine.
    ///
    /// # Errors
    /// [`Error::NoLibrary`], [`Error::NoDevices`], or the system's refusal.
    pub fn all() -> Result<Vec<Self>, Error> {
        let library = Library::open()?;
        let mut count = 0;
        // SAFETY: the library writes the number of devices, and returns a list of its own or null.
        let base = unsafe { (library.get_device_list)(&mut count) };
        let Some(base) = NonNull::new(base) else {
            let code = std::io::Error::last_os_error().raw_os_error();
            // A kernel without RDMA has no devices, which is how this reads best.
            return match code {
                Some(libc::ENOSYS) | None => Err(Error::NoDevices),
                Some(code) => Err(Error::call(Call::ListDevices, "this machine", code)),
            };
        };
        let list = Arc::new(DeviceList { library, base });
        let count = usize::try_from(count).unwrap_or(0);
        let devices: Vec<Self> = (0..count)
            .map(|index| {
                let mut device = Self { list: list.clone(), index, name: String::new() };
                // SAFETY: the device is of a list that lives; its name is a string that lives as long.
                let name = unsafe { (library.get_device_name)(device.raw()) };
                if !name.is_null() {
                    // SAFETY: not null, and as above.
                    device.name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
                }
                device
            })
            .collect();
        if devices.is_empty() { Err(Error::NoDevices) } else { Ok(devices) }
    }

    /// The system's name for it, which may be another one after a restart.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn raw(&self) -> *mut ffi::Device {
        // SAFETY: `index` is below the length of the list, which lives.
        unsafe { *self.list.base.as_ptr().add(self.index) }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name).finish()
    }
}

/// An open device. Clones are the same one.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Open>,
}

struct Open {
    library: &'static Library,
    raw: NonNull<ffi::Context>,
    name: String,
    usage: Usage,
}

// SAFETY: the library allows calls on a context from any thread, and synchronizes what they share.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

impl Context {
    /// Opens a device.
    ///
    /// # Errors
    /// When the system refuses it.
    pub(crate) fn open(device: &Device) -> Result<Self, Error> {
        let library = device.list.library;
        // SAFETY: the device is of a list that lives.
        let raw = unsafe { (library.open_device)(device.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::OpenDevice, &device.name))?;
        Ok(Self { inner: Arc::new(Open { library, raw, name: device.name.clone(), usage: Usage::default() }) })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.inner.library
    }

    pub(crate) fn raw(&self) -> *mut ffi::Context {
        self.inner.raw.as_ptr()
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.inner.usage
    }

    /// The number of queue pairs under [`Profile::Apple`](crate::Profile::Apple) that were dropped with sends on the way.
    /// That breaks a rule of Apple's driver: memory that it still reads may be gone then.
    pub fn undrained(&self) -> u32 {
        self.usage().undrained()
    }

    /// What a port is and does at this moment.
    ///
    /// # Errors
    /// When the port does not exist, or the device has gone.
    pub fn port(&self, number: u8) -> Result<Port, Error> {
        let mut attributes = ffi::PortAttributes::default();
        // SAFETY: the context is open, and the buffer is longer than what any version of the library writes.
        let code = unsafe { (self.library().query_port)(self.raw(), number, &mut attributes) };
        if code != 0 {
            return Err(Error::call(Call::QueryPort, self.name(), code));
        }
        Ok(Port {
            number,
            state: PortState::from_number(attributes.state),
            mtu: Mtu::from_number(attributes.active_mtu).unwrap_or(Mtu::B1024),
            lid: attributes.lid,
            gid_count: attributes.gid_table_length.clamp(0, GIDS_MAX) as usize,
            gbit_per_second: rate(attributes.active_width, attributes.active_speed),
        })
    }

    /// The addresses of a port with their places in its table, of equal ones the one that routers let through.
    ///
    /// # Errors
    /// As for [`Context::port`].
    pub fn gids(&self, port: &Port) -> Result<Vec<(u8, Gid)>, Error> {
        let mut gids: Vec<(u8, Gid)> = Vec::new();
        let mut empty = 0;
        for index in 0..=u8::MAX {
            if usize::from(index) >= port.gid_count || empty >= EMPTY_GIDS_MAX {
                break;
            }
            let mut raw = ffi::RawGid::default();
            // SAFETY: the context is open, and the library writes 16 bytes.
            let code = unsafe { (self.library().query_gid)(self.raw(), port.number, index.into(), &mut raw) };
            let gid = Gid::from_bytes(raw.0);
            if code != 0 || gid.is_empty() {
                empty += 1;
                continue;
            }
            empty = 0;
            match gids.iter_mut().find(|(_, known)| *known == gid) {
                Some(known) if is_routable(self.name(), port.number, index) => known.0 = index,
                Some(_) => {}
                None => gids.push((index, gid)),
            }
        }
        Ok(gids)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: this is the context that the library opened, and whatever was made from it held this one alive.
        let code = unsafe { (self.library.close_device)(self.raw.as_ptr()) };
        if code != 0 {
            tracing::warn!("cannot close RDMA device {}: error {code}", self.name);
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.name()).finish()
    }
}

/// Whether a place in a port's table stands for RoCE version 2. Ethernet ports list each address once for either version.
fn is_routable(device: &str, port: u8, index: u8) -> bool {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
    cfg!(target_os = "linux") && std::fs::read_to_string(path).is_ok_and(|kind| kind.contains("v2"))
}

/// Data rate in Gbit/s from the numbers for the number of lanes and for the rate of one.
fn rate(width: u8, speed: u8) -> f64 {
    let lanes = match width {
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => 1.0,
    };
    let lane = match speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => 0.0,
    };
    lanes * lane
}

/// What a port is and does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Port {
    /// Its number at its device, from 1.
    pub number: u8,
    /// Whether it carries data.
    pub state: PortState,
    /// The largest packets that it sends at present.
    pub mtu: Mtu,
    /// Its local identifier, which only InfiniBand uses.
    pub lid: u16,
    /// Places in its table of addresses.
    pub gid_count: usize,
    /// What it is rated at; 0 if it does not say.
    pub gbit_per_second: f64,
}

/// The state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// No cable, or nobody at its other end.
    Down,
    /// On its way up.
    Starting,
    /// It carries data.
    Active,
    /// A number without meaning.
    Unknown(u32),
}

impl PortState {
    fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Down,
            2 | 3 => Self::Starting,
            4 | 5 => Self::Active,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("down"),
            Self::Starting => f.write_str("starting"),
            Self::Active => f.write_str("active"),
            Self::Unknown(number) => write!(f, "in unknown state {number}"),
        }
    }
}

/// The largest packet on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say the number of bytes")]
pub enum Mtu {
    B256 = 1,
    B512 = 2,
    B1024 = 3,
    B2048 = 4,
    B4096 = 5,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u32 == number)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The MTU of so many bytes.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_library_are_understood() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert!(Mtu::ALL.iter().all(|&mtu| Mtu::from_bytes(mtu.bytes()) == Some(mtu)));
        assert_eq!((Mtu::from_number(5), Mtu::from_number(6)), (Some(Mtu::B4096), None));
        assert_eq!(PortState::from_number(4), PortState::Active);
        // Thunderbolt 5 as its port describes itself: 8 lanes of 10 Gbit/s.
        assert_eq!(rate(4, 4), 80.0);
    }
}
