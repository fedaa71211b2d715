//! The C structures and functions of libibverbs and librdma, as far as they are used.
//!
//! Both libraries share one layout up to the fields named here (Apple's is a rebuilt rdma-core with provider interface
//! 34); the assertions at the end hold it fast. Structures that the library allocates are declared only as far as they
//! are read: `ibv_context` goes on with fields that differ between the systems.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`, never looked into.
#[repr(C)]
pub(crate) struct Device {
    _opaque: [u8; 0],
}

/// `struct ibv_context` up to the table of operations.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: Operations,
}

/// `struct ibv_context_ops`: calls that the headers make without going through the library.
#[repr(C)]
pub(crate) struct Operations {
    _before_poll: [*mut c_void; 11],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int>,
    _before_send: [*mut c_void; 13],
    pub(crate) post_send:
        Option<unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int>,
    pub(crate) post_recv:
        Option<unsafe extern "C" fn(*mut QueuePair, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int>,
    _after: [*mut c_void; 5],
}

/// `struct ibv_pd` up to what is needed.
#[repr(C)]
pub(crate) struct ProtectionDomain {
    pub(crate) context: *mut Context,
}

/// `struct ibv_cq` up to what is needed.
#[repr(C)]
pub(crate) struct CompletionQueue {
    pub(crate) context: *mut Context,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct MemoryRegion {
    pub(crate) context: *mut Context,
    pub(crate) domain: *mut ProtectionDomain,
    pub(crate) address: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_qp` up to its number.
#[repr(C)]
pub(crate) struct QueuePair {
    pub(crate) context: *mut Context,
    _user: *mut c_void,
    _domain: *mut ProtectionDomain,
    _send_queue: *mut CompletionQueue,
    _receive_queue: *mut CompletionQueue,
    _shared: *mut c_void,
    _handle: u32,
    pub(crate) number: u32,
}

/// `union ibv_gid`: 16 bytes, aligned as a u64.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawGid(pub(crate) [u8; 16]);

/// `struct ibv_port_attr`. Newer libraries know more fields than older ones, which fill fewer: the buffer is longer than
/// any of them and zeroed beforehand.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PortAttributes {
    pub(crate) state: c_uint,
    pub(crate) max_mtu: c_uint,
    pub(crate) active_mtu: c_uint,
    pub(crate) gid_table_length: c_int,
    pub(crate) capabilities: u32,
    pub(crate) max_message_bytes: u32,
    pub(crate) bad_key_count: u32,
    pub(crate) bad_queue_key_count: u32,
    pub(crate) key_table_length: u16,
    pub(crate) lid: u16,
    pub(crate) manager_lid: u16,
    pub(crate) lid_mask: u8,
    pub(crate) max_lanes: u8,
    pub(crate) manager_level: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) physical_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    _later: [u64; 6],
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Capacity {
    pub(crate) send_requests: u32,
    pub(crate) receive_requests: u32,
    pub(crate) send_entries: u32,
    pub(crate) receive_entries: u32,
    pub(crate) inline_bytes: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct QueuePairRequest {
    pub(crate) user: *mut c_void,
    pub(crate) send_queue: *mut CompletionQueue,
    pub(crate) receive_queue: *mut CompletionQueue,
    pub(crate) shared: *mut c_void,
    pub(crate) capacity: Capacity,
    pub(crate) kind: c_uint,
    pub(crate) signal_all: c_int,
}

/// `struct ibv_ah_attr` with its `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Route {
    pub(crate) gid: RawGid,
    pub(crate) flow_label: u32,
    pub(crate) gid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
    pub(crate) path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct QueuePairAttributes {
    pub(crate) state: c_uint,
    pub(crate) current_state: c_uint,
    pub(crate) path_mtu: c_uint,
    pub(crate) migration_state: c_uint,
    pub(crate) queue_key: u32,
    pub(crate) receive_number: u32,
    pub(crate) send_number: u32,
    pub(crate) remote_queue_pair: u32,
    pub(crate) access: c_uint,
    pub(crate) capacity: Capacity,
    pub(crate) route: Route,
    pub(crate) other_route: Route,
    pub(crate) key_index: u16,
    pub(crate) other_key_index: u16,
    pub(crate) notify_drained: u8,
    pub(crate) draining: u8,
    pub(crate) max_reads: u8,
    pub(crate) max_remote_reads: u8,
    pub(crate) not_ready_timer: u8,
    pub(crate) port: u8,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) not_ready_retries: u8,
    pub(crate) other_port: u8,
    pub(crate) other_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_send_wr`. Drivers copy all 128 bytes of it.
#[repr(C)]
pub(crate) struct SendRequest {
    pub(crate) id: u64,
    pub(crate) next: *mut SendRequest,
    pub(crate) entries: *mut Entry,
    pub(crate) entry_count: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) flags: c_uint,
    pub(crate) immediate: u32,
    pub(crate) other_opcodes: [u64; 11],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(crate) struct ReceiveRequest {
    pub(crate) id: u64,
    pub(crate) next: *mut ReceiveRequest,
    pub(crate) entries: *mut Entry,
    pub(crate) entry_count: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct WorkCompletion {
    pub(crate) id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_error: u32,
    pub(crate) bytes: u32,
    pub(crate) immediate: u32,
    pub(crate) queue_pair: u32,
    pub(crate) source_queue_pair: u32,
    pub(crate) flags: c_uint,
    pub(crate) key_index: u16,
    pub(crate) source_lid: u16,
    pub(crate) service_level: u8,
    pub(crate) path_bits: u8,
}

pub(crate) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(crate) const ACCESS_REMOTE_READ: c_int = 1 << 2;

pub(crate) const KIND_RELIABLE: c_uint = 2;
pub(crate) const KIND_UNRELIABLE: c_uint = 3;

pub(crate) const OPCODE_SEND: c_uint = 2;
pub(crate) const SEND_SIGNALED: c_uint = 1 << 1;
pub(crate) const SEND_INLINE: c_uint = 1 << 3;

pub(crate) const STATE_INIT: c_uint = 1;
pub(crate) const STATE_READY_TO_RECEIVE: c_uint = 2;
pub(crate) const STATE_READY_TO_SEND: c_uint = 3;

/// Which fields of [`QueuePairAttributes`] count.
pub(crate) mod mask {
    use std::ffi::c_int;

    pub(crate) const STATE: c_int = 1 << 0;
    pub(crate) const ACCESS: c_int = 1 << 3;
    pub(crate) const KEY_INDEX: c_int = 1 << 4;
    pub(crate) const PORT: c_int = 1 << 5;
    pub(crate) const ROUTE: c_int = 1 << 7;
    pub(crate) const PATH_MTU: c_int = 1 << 8;
    pub(crate) const TIMEOUT: c_int = 1 << 9;
    pub(crate) const RETRIES: c_int = 1 << 10;
    pub(crate) const NOT_READY_RETRIES: c_int = 1 << 11;
    pub(crate) const RECEIVE_NUMBER: c_int = 1 << 12;
    pub(crate) const MAX_READS: c_int = 1 << 13;
    pub(crate) const NOT_READY_TIMER: c_int = 1 << 15;
    pub(crate) const SEND_NUMBER: c_int = 1 << 16;
    pub(crate) const MAX_REMOTE_READS: c_int = 1 << 17;
    pub(crate) const REMOTE_QUEUE_PAIR: c_int = 1 << 20;
}

pub(crate) type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut Device;
pub(crate) type FreeDeviceList = unsafe extern "C" fn(*mut *mut Device);
pub(crate) type GetDeviceName = unsafe extern "C" fn(*mut Device) -> *const c_char;
pub(crate) type OpenDevice = unsafe extern "C" fn(*mut Device) -> *mut Context;
pub(crate) type CloseDevice = unsafe extern "C" fn(*mut Context) -> c_int;
pub(crate) type QueryPort = unsafe extern "C" fn(*mut Context, u8, *mut PortAttributes) -> c_int;
pub(crate) type QueryGid = unsafe extern "C" fn(*mut Context, u8, c_int, *mut RawGid) -> c_int;
pub(crate) type AllocateDomain = unsafe extern "C" fn(*mut Context) -> *mut ProtectionDomain;
pub(crate) type FreeDomain = unsafe extern "C" fn(*mut ProtectionDomain) -> c_int;
pub(crate) type RegisterMemory =
    unsafe extern "C" fn(*mut ProtectionDomain, *mut c_void, usize, c_int) -> *mut MemoryRegion;
pub(crate) type ForgetMemory = unsafe extern "C" fn(*mut MemoryRegion) -> c_int;
pub(crate) type CreateCompletionQueue =
    unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut CompletionQueue;
pub(crate) type DestroyCompletionQueue = unsafe extern "C" fn(*mut CompletionQueue) -> c_int;
pub(crate) type CreateQueuePair = unsafe extern "C" fn(*mut ProtectionDomain, *mut QueuePairRequest) -> *mut QueuePair;
pub(crate) type DestroyQueuePair = unsafe extern "C" fn(*mut QueuePair) -> c_int;
pub(crate) type ModifyQueuePair = unsafe extern "C" fn(*mut QueuePair, *mut QueuePairAttributes, c_int) -> c_int;

// Sizes and places as compiled from the headers of rdma-core 44 and 55; see the module's documentation.
const _: () = {
    use std::mem::offset_of;

    assert!(size_of::<*mut c_void>() == 8, "the layouts are those of 64-bit systems");
    assert!(offset_of!(Context, ops) == 8);
    assert!(size_of::<Operations>() == 256);
    assert!(offset_of!(Operations, poll_cq) == 88);
    assert!(offset_of!(Operations, post_send) == 200);
    assert!(offset_of!(Operations, post_recv) == 208);
    assert!(size_of::<MemoryRegion>() == 48 && offset_of!(MemoryRegion, lkey) == 36);
    assert!(offset_of!(QueuePair, number) == 52);
    assert!(size_of::<RawGid>() == 16 && align_of::<RawGid>() == 8);
    assert!(size_of::<PortAttributes>() >= 64);
    assert!(offset_of!(PortAttributes, gid_table_length) == 12);
    assert!(offset_of!(PortAttributes, lid) == 34);
    assert!(offset_of!(PortAttributes, active_width) == 43);
    assert!(offset_of!(PortAttributes, link_layer) == 46);
    assert!(size_of::<Capacity>() == 20);
    assert!(size_of::<QueuePairRequest>() == 64);
    assert!(offset_of!(QueuePairRequest, capacity) == 32 && offset_of!(QueuePairRequest, kind) == 52);
    assert!(size_of::<Route>() == 32);
    assert!(offset_of!(Route, lid) == 24 && offset_of!(Route, is_global) == 29 && offset_of!(Route, port) == 30);
    assert!(size_of::<QueuePairAttributes>() == 144);
    assert!(offset_of!(QueuePairAttributes, capacity) == 36);
    assert!(offset_of!(QueuePairAttributes, route) == 56 && offset_of!(QueuePairAttributes, other_route) == 88);
    assert!(offset_of!(QueuePairAttributes, key_index) == 120);
    assert!(offset_of!(QueuePairAttributes, port) == 129 && offset_of!(QueuePairAttributes, timeout) == 130);
    assert!(offset_of!(QueuePairAttributes, rate_limit) == 136);
    assert!(size_of::<Entry>() == 16);
    assert!(size_of::<SendRequest>() == 128);
    assert!(offset_of!(SendRequest, opcode) == 28 && offset_of!(SendRequest, flags) == 32);
    assert!(offset_of!(SendRequest, immediate) == 36 && offset_of!(SendRequest, other_opcodes) == 40);
    assert!(size_of::<ReceiveRequest>() == 32);
    assert!(size_of::<WorkCompletion>() == 48);
    assert!(offset_of!(WorkCompletion, status) == 8 && offset_of!(WorkCompletion, bytes) == 20);
    assert!(offset_of!(WorkCompletion, immediate) == 24 && offset_of!(WorkCompletion, queue_pair) == 28);
};
