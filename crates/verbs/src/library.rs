//! Opens the system's RDMA library at run time, so that programs also run where there is none.
#![allow(unsafe_code)]

use std::error::Error as _;
use std::sync::OnceLock;

use crate::error::Error;
use crate::ffi;

/// What the library is called. On macOS it lies in the system's cache of libraries only; there is no such file.
#[cfg(target_os = "macos")]
const NAME: &str = "librdma.dylib";
#[cfg(not(target_os = "macos"))]
const NAME: &str = "libibverbs.so.1";

/// The system's RDMA library. It stays open for the life of the process.
pub struct Library {
    pub(crate) get_device_list: ffi::GetDeviceList,
    pub(crate) free_device_list: ffi::FreeDeviceList,
    pub(crate) get_device_name: ffi::GetDeviceName,
    pub(crate) open_device: ffi::OpenDevice,
    pub(crate) close_device: ffi::CloseDevice,
    pub(crate) query_port: ffi::QueryPort,
    pub(crate) query_gid: ffi::QueryGid,
    pub(crate) alloc_pd: ffi::AllocateDomain,
    pub(crate) dealloc_pd: ffi::FreeDomain,
    pub(crate) reg_mr: ffi::RegisterMemory,
    pub(crate) dereg_mr: ffi::ForgetMemory,
    pub(crate) create_cq: ffi::CreateCompletionQueue,
    pub(crate) destroy_cq: ffi::DestroyCompletionQueue,
    pub(crate) create_qp: ffi::CreateQueuePair,
    pub(crate) destroy_qp: ffi::DestroyQueuePair,
    pub(crate) modify_qp: ffi::ModifyQueuePair,
    /// Keeps the functions above valid.
    _library: libloading::Library,
}

impl Library {
    /// Opens the library, once for all.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] on a system without it.
    pub fn open() -> Result<&'static Self, Error> {
        static LIBRARY: OnceLock<Result<Library, Error>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::load(NAME)).as_ref().map_err(Clone::clone)
    }

    fn load(name: &'static str) -> Result<Self, Error> {
        let missing = |error: libloading::Error| {
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            Error::NoLibrary { library: name, why }
        };
        // All symbols are bound now: Apple's library was seen to hang when it was bound lazily.
        let flags = libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_LOCAL;
        // SAFETY: the name is that of the system's own library, whose constructors load the drivers' parts.
        let library = unsafe { libloading::os::unix::Library::open(Some(name), flags) }.map_err(missing)?;
        let library = libloading::Library::from(library);
        macro_rules! function {
            ($symbol:literal) => {
                // SAFETY: the type of the field is the function's type in the library's header, and the library stays
                // loaded as long as the field exists.
                *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.map_err(missing)?
            };
        }
        Ok(Self {
            get_device_list: function!("ibv_get_device_list"),
            free_device_list: function!("ibv_free_device_list"),
            get_device_name: function!("ibv_get_device_name"),
            open_device: function!("ibv_open_device"),
            close_device: function!("ibv_close_device"),
            query_port: function!("ibv_query_port"),
            query_gid: function!("ibv_query_gid"),
            alloc_pd: function!("ibv_alloc_pd"),
            dealloc_pd: function!("ibv_dealloc_pd"),
            reg_mr: function!("ibv_reg_mr"),
            dereg_mr: function!("ibv_dereg_mr"),
            create_cq: function!("ibv_create_cq"),
            destroy_cq: function!("ibv_destroy_cq"),
            create_qp: function!("ibv_create_qp"),
            destroy_qp: function!("ibv_destroy_qp"),
            modify_qp: function!("ibv_modify_qp"),
            _library: library,
        })
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Library").field(&NAME).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_plainly_missing() {
        let error = Library::load("libropewalk-none.so.1").unwrap_err();
        assert!(error.is_absence());
        assert!(error.to_string().starts_with("no RDMA here: libropewalk-none.so.1 cannot be opened"), "{error}");
    }

    #[test]
    fn another_library_lacks_the_functions() {
        // Any library that is surely there: the one with the mathematical functions.
        let name = if cfg!(target_os = "macos") { "libSystem.dylib" } else { "libm.so.6" };
        let error = Library::load(name).unwrap_err();
        assert!(error.to_string().contains("ibv_get_device_list"), "{error}");
    }
}
