//! Memory that devices read and write.
//!
//! A region is carved into slots. A slot belongs to either the program or the device: who has the value may read and
//! write its bytes, and posting it hands the value over to a queue pair until the device is done with it. So no
//! reference to bytes exists while a device writes them.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_int;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::domain::ProtectionDomain;
use crate::error::{Call, Error};
use crate::ffi;
use crate::limits::{Limit, Profile};

/// Regions begin and end at multiples of this many bytes: the pages of Apple's processors, and four of others.
pub const PAGE_BYTES: usize = 16 << 10;

/// Registered memory, zeroed at first.
pub struct MemoryRegion {
    memory: Registered,
}

/// Memory and its registration, in the order in which they end.
struct Registered {
    raw: NonNull<ffi::MemoryRegion>,
    pages: Pages,
    domain: ProtectionDomain,
    /// When it was registered, on the clock of [`crate::limits::Usage`].
    registered: u64,
}

/// Whole pages of memory.
struct Pages {
    base: NonNull<u8>,
    layout: Layout,
    /// Set when a device may still use them, so that they must never be given back.
    leaked: bool,
}

// SAFETY: the pages are memory like any other, which only slots hand out, each of them other bytes; the library allows
// calls on a region from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Pages {
    fn new(bytes: usize) -> Result<Self, Error> {
        let layout =
            Layout::from_size_align(bytes, PAGE_BYTES).map_err(|_| Error::Misuse("a region beyond all memory"))?;
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::Misuse("a region that does not consist of whole pages"));
        }
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Ok(Self { base, layout, leaked: false })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.leaked {
            // SAFETY: allocated in `new` with this layout, and no slot or registration is left.
            unsafe { dealloc(self.base.as_ptr(), self.layout) }
        }
    }
}

impl MemoryRegion {
    /// Allocates and registers `bytes`, a multiple of [`PAGE_BYTES`].
    ///
    /// # Errors
    /// When the system refuses it, or the profile allows no more regions.
    pub fn register(domain: &ProtectionDomain, bytes: usize) -> Result<Self, Error> {
        let pages = Pages::new(bytes)?;
        let (context, profile) = (domain.context(), domain.profile());
        let address = pages.base.as_ptr() as usize;
        if profile == Profile::Apple && !(address.is_multiple_of(PAGE_BYTES) && bytes.is_multiple_of(PAGE_BYTES)) {
            return Err(Limit::Alignment { address, bytes }.into());
        }
        context.usage().take_region(profile)?;
        let raw = Self::try_flags(domain, &pages).inspect_err(|_| context.usage().return_region())?;
        let registered = context.usage().tick();
        Ok(Self { memory: Registered { raw, pages, domain: domain.clone(), registered } })
    }

    /// Only local writes are needed. Some versions of Apple's driver take nothing but all flags at once, although no
    /// side can write to the other there.
    fn try_flags(domain: &ProtectionDomain, pages: &Pages) -> Result<NonNull<ffi::MemoryRegion>, Error> {
        const ALL: c_int = ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_WRITE | ffi::ACCESS_REMOTE_READ;
        let flags: &[c_int] = match Profile::native() {
            Profile::Apple => &[ALL, ffi::ACCESS_LOCAL_WRITE],
            Profile::Standard => &[ffi::ACCESS_LOCAL_WRITE],
        };
        let context = domain.context();
        let mut failure = Error::Misuse("no access flags");
        for &flags in flags {
            // SAFETY: the pages are allocated with this length and stay so until after the registration ends.
            let raw = unsafe {
                (context.library().reg_mr)(domain.raw(), pages.base.as_ptr().cast(), pages.layout.size(), flags)
            };
            match NonNull::new(raw) {
                Some(raw) => return Ok(raw),
                None => failure = Error::last(Call::RegisterMemory, context.name()),
            }
        }
        Err(failure)
    }

    /// Bytes of the region.
    pub fn len(&self) -> usize {
        self.memory.pages.layout.size()
    }

    /// Never: a region has at least a page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Cuts the region into slots: of each pair `(count, bytes)` so many of that length, one behind the other.
    ///
    /// # Errors
    /// When the region is too short for them.
    pub fn into_slots<const N: usize>(self, shapes: [(usize, usize); N]) -> Result<[Vec<Slot>; N], Error> {
        let too_short = Error::Misuse("slots beyond the end of their region");
        let wanted = shapes.iter().try_fold(0usize, |sum, (count, bytes)| sum.checked_add(count.checked_mul(*bytes)?));
        if wanted.is_none_or(|wanted| wanted > self.len()) {
            return Err(too_short);
        }
        let memory = Arc::new(self.memory);
        let mut offset = 0;
        Ok(shapes.map(|(count, bytes)| {
            let slots = (0..count).map(|index| Slot { memory: memory.clone(), offset: offset + index * bytes, bytes });
            let slots = slots.collect();
            offset += count * bytes;
            slots
        }))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let context = self.domain.context();
        // SAFETY: this is the region that the library registered; a queue pair that used it held a slot, and is gone.
        let code = unsafe { (context.library().dereg_mr)(self.raw.as_ptr()) };
        context.usage().return_region();
        if code != 0 {
            tracing::warn!("cannot end a registration of memory at {}: error {code}", context.name());
            self.pages.leaked = true;
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

/// A piece of a region that belongs to whoever has this value.
pub struct Slot {
    memory: Arc<Registered>,
    offset: usize,
    bytes: usize,
}

impl Slot {
    fn start(&self) -> *mut u8 {
        // SAFETY: `into_slots` has checked that the slot lies within the pages.
        unsafe { self.memory.pages.base.as_ptr().add(self.offset) }
    }

    /// What a request says about the first `length` bytes.
    pub(crate) fn entry(&self, length: usize) -> ffi::Entry {
        debug_assert!(length <= self.bytes);
        // SAFETY: the registration lives; its key never changes.
        let lkey = unsafe { self.memory.raw.as_ref() }.lkey;
        ffi::Entry { address: self.start() as u64, length: length as u32, lkey }
    }

    pub(crate) fn registered(&self) -> u64 {
        self.memory.registered
    }

    pub(crate) fn domain(&self) -> *mut ffi::ProtectionDomain {
        self.memory.domain.raw()
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie within the pages and were initialized with zeros. No other slot has them, and no device
        // writes them: what is posted lies in a queue pair, out of reach. Nobody is told a key for remote access.
        unsafe { std::slice::from_raw_parts(self.start(), self.bytes) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.bytes) }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("offset", &self.offset).field("bytes", &self.bytes).finish()
    }
}
