//! Protection domains: what belongs together on one device.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{Context, Device, PORT};
use crate::error::{Call, Error};
use crate::ffi;
use crate::limits::Profile;

/// A protection domain on an open device. Clones are the same one.
///
/// There is one per device, profile and process, and it stays until the process ends: Apple's driver was seen to lose
/// domains that are made and freed again and again, until the machine is restarted.
#[derive(Clone)]
pub struct ProtectionDomain {
    inner: Arc<Domain>,
}

struct Domain {
    raw: NonNull<ffi::ProtectionDomain>,
    context: Context,
    profile: Profile,
}

// SAFETY: the library allows calls on a domain from any thread, and synchronizes what they share.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

static DOMAINS: Mutex<Vec<ProtectionDomain>> = Mutex::new(Vec::new());

impl ProtectionDomain {
    /// The domain of a device under a profile, whose limits hold for all that is made in it.
    ///
    /// # Errors
    /// When the system refuses the device or the domain.
    pub fn of(device: &Device, profile: Profile) -> Result<Self, Error> {
        let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |domain: &Self| domain.context().name() == device.name() && domain.profile() == profile;
        if let Some(position) = domains.iter().position(known) {
            // A device that went and came again has the same name, but this context is of no more use.
            if domains[position].context().port(PORT).is_ok() {
                return Ok(domains[position].clone());
            }
            domains.swap_remove(position);
        }
        let domain = Self::allocate(Context::open(device)?, profile)?;
        domains.push(domain.clone());
        Ok(domain)
    }

    fn allocate(context: Context, profile: Profile) -> Result<Self, Error> {
        // SAFETY: the context is open, and is held by the domain.
        let raw = unsafe { (context.library().alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::AllocateDomain, context.name()))?;
        Ok(Self { inner: Arc::new(Domain { raw, context, profile }) })
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The limits that hold.
    pub fn profile(&self) -> Profile {
        self.inner.profile
    }

    pub(crate) fn raw(&self) -> *mut ffi::ProtectionDomain {
        self.inner.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: this is the domain that the library allocated; whatever was made in it held this one alive.
        let code = unsafe { (self.context.library().dealloc_pd)(self.raw.as_ptr()) };
        if code != 0 {
            tracing::warn!("cannot free a protection domain of {}: error {code}", self.context.name());
        }
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain")
            .field("device", &self.context().name())
            .field("profile", &self.profile())
            .finish()
    }
}
